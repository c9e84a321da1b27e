"""Encoders for the block formats of GGUF: float32 [rows, in] to bytes [rows, row_bytes].

Layouts are those of ggml-common.h in ggml-org/llama.cpp. Scales are chosen directly from the
largest and smallest value of a group; nothing searches for better ones, because speed and finite
activations are all that random weights are for.
"""

import numpy as np

# name: (ggml type, values of a block, bytes of a block, general.file_type)
TYPES = {
    "F32": (0, 1, 4, 0),
    "F16": (1, 1, 2, 1),
    "Q4_0": (2, 32, 18, 2),
    "Q5_0": (6, 32, 22, 8),
    "Q8_0": (8, 32, 34, 7),
    "Q4_K": (12, 256, 144, 14),
    "Q6_K": (14, 256, 210, 18),
    "I32": (26, 1, 4, 0),
    "BF16": (30, 1, 2, 32),
}


def row_bytes(kind, width):
    _, values, size, _ = TYPES[kind]
    if width % values != 0:
        raise ValueError(f"rows of {width} values do not fit {kind}")
    return width // values * size


def signed_largest(groups):
    """Of each group (last axis) the value of largest magnitude, with its sign."""
    high, low = groups.max(axis=-1), groups.min(axis=-1)
    return np.where(high >= -low, high, low)


def reciprocal(values):
    return np.divide(1.0, values, out=np.zeros_like(values), where=values != 0)


def f16_bytes(values):
    return values.astype(np.float16).reshape(-1, 1).view(np.uint8)


def half_and_half(codes):
    """4-bit codes [.., 2n] to bytes [.., n]: the first half in the low bits."""
    count = codes.shape[-1] // 2
    return codes[..., :count] | (codes[..., count:] << 4)


def encode_q4_0(x):
    groups = x.reshape(-1, 32)
    d = signed_largest(groups) / np.float32(-8)
    codes = groups * reciprocal(d)[:, None]
    codes += np.float32(8.5)
    codes = np.minimum(codes.astype(np.uint8), 15)
    return np.concatenate([f16_bytes(d), half_and_half(codes)], axis=1)


def encode_q5_0(x):
    groups = x.reshape(-1, 32)
    d = signed_largest(groups) / np.float32(-16)
    codes = groups * reciprocal(d)[:, None]
    codes += np.float32(16.5)
    codes = np.minimum(codes.astype(np.uint8), 31)
    high = np.packbits(codes >> 4, axis=1, bitorder="little")
    return np.concatenate([f16_bytes(d), high, half_and_half(codes & 15)], axis=1)


def encode_q8_0(x):
    groups = x.reshape(-1, 32)
    d = np.maximum(groups.max(axis=1), -groups.min(axis=1)) / np.float32(127)
    codes = groups * reciprocal(d)[:, None]
    np.rint(codes, out=codes)
    return np.concatenate([f16_bytes(d), codes.astype(np.int8).view(np.uint8)], axis=1)


def encode_q4_k(x):
    groups = x.reshape(-1, 8, 32)
    low = np.minimum(groups.min(axis=2), 0)
    scales = (groups.max(axis=2) - low) / np.float32(15)
    d = (scales.max(axis=1) / np.float32(63)).astype(np.float16)
    dmin = (-low.min(axis=1) / np.float32(63)).astype(np.float16)
    d32, dmin32 = d.astype(np.float32), dmin.astype(np.float32)
    sc = np.minimum(np.rint(scales * reciprocal(d32)[:, None]), 63)
    mn = np.minimum(np.rint(-low * reciprocal(dmin32)[:, None]), 63)
    codes = groups + (mn * dmin32[:, None])[:, :, None]
    codes *= reciprocal(sc * d32[:, None])[:, :, None]
    codes = np.clip(np.rint(codes, out=codes), 0, 15).astype(np.uint8)
    sc, mn = sc.astype(np.uint8), mn.astype(np.uint8)
    packed = np.empty((len(groups), 12), np.uint8)
    packed[:, 0:4] = sc[:, :4] | (sc[:, 4:] >> 4 << 6)
    packed[:, 4:8] = mn[:, :4] | (mn[:, 4:] >> 4 << 6)
    packed[:, 8:12] = (sc[:, 4:] & 15) | ((mn[:, 4:] & 15) << 4)
    quants = half_and_half(codes.reshape(-1, 4, 64)).reshape(-1, 128)
    return np.concatenate([f16_bytes(d), f16_bytes(dmin), packed, quants], axis=1)


def encode_q6_k(x):
    groups = x.reshape(-1, 16, 16)
    scales = signed_largest(groups) / np.float32(-32)
    d = (signed_largest(scales) / np.float32(-128)).astype(np.float16)
    d32 = d.astype(np.float32)
    sc = np.clip(np.rint(scales * reciprocal(d32)[:, None]), -128, 127)
    codes = groups * reciprocal(sc * d32[:, None])[:, :, None]
    codes = np.clip(np.rint(codes, out=codes), -32, 31)
    codes = (codes + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low, high = codes & 15, codes >> 4
    ql = np.concatenate([low[:, :, 0] | low[:, :, 2] << 4, low[:, :, 1] | low[:, :, 3] << 4],
                        axis=2)
    qh = high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6
    return np.concatenate([ql.reshape(-1, 128), qh.reshape(-1, 64),
                           sc.astype(np.int8).view(np.uint8), f16_bytes(d)], axis=1)


def encode(kind, bits, widen):
    """BF16 bits [rows, in] to the bytes of `kind`; `widen` makes float32 of them."""
    if kind == "BF16":
        return np.ascontiguousarray(bits)
    x = widen(np.ascontiguousarray(bits))
    if kind == "F32":
        return x
    if kind == "F16":
        return x.astype(np.float16)
    return {"Q4_0": encode_q4_0, "Q5_0": encode_q5_0, "Q8_0": encode_q8_0, "Q4_K": encode_q4_k,
            "Q6_K": encode_q6_k}[kind](x)
