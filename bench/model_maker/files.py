"""Writes the two kinds of files: a Hugging Face folder in BF16, and GGUF.

Headers come first in both and hold every offset, so sizes are computed from shapes alone and the
values then stream through in chunks; memory stays at a few chunks whatever the model's size.
"""

import collections
import concurrent.futures
import json
import math
import os
import struct

import numpy as np

from model_maker import blocks, gguf_names, values

ALIGNMENT = 32
SAFETENSORS_BYTES = {"BF16": 2, "F32": 4, "I64": 8}
SCALARS = {"u32": (4, "<I"), "i32": (5, "<i"), "f32": (6, "<f"), "bool": (7, "<?")}
NUMPY = {"u32": "<u4", "i32": "<i4", "f32": "<f4"}
IN_FLIGHT = 2 * (os.cpu_count() or 1)


def in_order(pool, function, items):
    """map() over a pool that takes no more than IN_FLIGHT items ahead."""
    waiting = collections.deque()
    for item in items:
        waiting.append(pool.submit(function, item))
        if len(waiting) == IN_FLIGHT:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


# --- Hugging Face --------------------------------------------------------------------------------


def tensor_bytes(tensor):
    return tensor.count() * SAFETENSORS_BYTES[tensor.dtype]


def split_shards(listed, shard_bytes):
    shards, size = [[]], 0
    for tensor in listed:
        if shards[-1] and size + tensor_bytes(tensor) > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor_bytes(tensor)
    return shards


def write_shard(path, shard, seed):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for tensor in shard:
        end = offset + tensor_bytes(tensor)
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape),
                               "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in shard:
            if tensor.dtype == "I64":
                file.write(values.indices(tensor, seed).astype("<i8"))
                continue
            for bits in values.chunks(tensor, seed):
                file.write(bits if tensor.dtype == "BF16" else values.widen_bf16(bits))


def write_hugging_face(folder, config, listed, seed, shard_bytes, tokenizer):
    folder.mkdir(parents=True, exist_ok=True)
    config = config | {"torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    if tokenizer is not None:
        tokenizer.write_folder(folder)
    shards = split_shards(listed, shard_bytes)
    names = ["model.safetensors"]
    if len(shards) > 1:
        names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
        index = {"metadata": {"total_size": sum(map(tensor_bytes, listed))},
                 "weight_map": {tensor.name: name for name, shard in zip(names, shards)
                                for tensor in shard}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1),
                                                             encoding="utf-8")
    for name, shard in zip(names, shards):
        write_shard(folder / name, shard, seed)


# --- GGUF ----------------------------------------------------------------------------------------


def pack_string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def pack_value(kind, value):
    if kind == "string":
        return struct.pack("<I", 8) + pack_string(value)
    if isinstance(kind, tuple):
        element = kind[1]
        number = 8 if element == "string" else SCALARS[element][0]
        data = (b"".join(map(pack_string, value)) if element == "string"
                else np.asarray(value, NUMPY[element]).tobytes())
        return struct.pack("<IIQ", 9, number, len(value)) + data
    number, code = SCALARS[kind]
    return struct.pack("<I", number) + struct.pack(code, value)


def uses_more_bits(layer, layers):
    """Where llama.cpp's Q4_K_M spends Q6_K: the first and last eighth, and every third between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def type_of(tensor, kind, config):
    """The block format of a tensor in a file of `kind`, as llama.cpp's quantizer chooses."""
    if tensor.change == "integers":
        return "I32"
    if tensor.is_kept():
        return "F32"
    wanted = "Q4_K" if kind == "Q4_K_M" else kind
    if kind in ("Q4_0", "Q4_K", "Q4_K_M") and tensor.name == output_name(config):
        wanted = "Q6_K"
    if kind == "Q4_K_M" and ("ffn_down" in tensor.name or "attn_v." in tensor.name):
        layer = int(tensor.name.split(".")[1])
        if uses_more_bits(layer, config["num_hidden_layers"]):
            wanted = "Q6_K"
    if tensor.dims[0] % blocks.TYPES[wanted][1] == 0:
        return wanted
    narrower = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}.get(wanted, "F16")
    return narrower if tensor.dims[0] % blocks.TYPES[narrower][1] == 0 else "F16"


def output_name(config):
    tied = config.get("tie_word_embeddings", False)
    return "token_embd.weight" if tied else "output.weight"


def rope_divisors(config):
    """llama3's scaling as ggml wants it, one divisor a pair of dimensions; None for others."""
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type", scaling.get("type")) != "llama3":
        return None
    heads = config["num_attention_heads"]
    dim = config.get("head_dim", config["hidden_size"] // heads)
    wave = 2 * math.pi * config["rope_theta"] ** (np.arange(0, dim, 2) / dim)
    original, factor = scaling["original_max_position_embeddings"], scaling["factor"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    smooth = np.clip((original / wave - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


def gguf_chunks(tensor, kind, config, seed, pool):
    """Yields the bytes of a tensor."""
    for part in tensor.parts:
        if tensor.change == "integers":
            yield values.indices(part, seed).astype("<i4")
            continue
        source = values.chunks(part, seed)
        if tensor.change:
            source = [gguf_names.rearrange(config, tensor.change, values.whole(part, seed))]
        yield from in_order(pool, lambda bits: blocks.encode(kind, bits, values.widen_bf16),
                            source)


def write_gguf(path, config, listed, seed, kind, tokenizer):
    tensors = gguf_names.list_gguf_tensors(config, listed)
    kinds = [type_of(tensor, kind, config) for tensor in tensors]
    divisors = rope_divisors(config)
    if divisors is not None:
        tensors.append(gguf_names.GgufTensor("rope_freqs.weight", (len(divisors),), []))
        kinds.append("F32")
    file_type = 15 if kind == "Q4_K_M" else blocks.TYPES[kind][3]
    out = gguf_names.metadata(config, path.stem, file_type)
    if tokenizer is not None:
        tokenizer.write_gguf(out)
    else:
        out.text("tokenizer.ggml.model", "no_vocab")
    header = [struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(out.entries))]
    header += [pack_string(key) + pack_value(value_kind, value)
               for key, value_kind, value in out.entries]
    offset = 0
    for tensor, own in zip(tensors, kinds):
        header.append(pack_string(tensor.name) + struct.pack("<I", len(tensor.dims))
                      + struct.pack(f"<{len(tensor.dims)}Q", *tensor.dims)
                      + struct.pack("<IQ", blocks.TYPES[own][0], offset))
        offset += gguf_bytes(tensor, own)
        offset += -offset % ALIGNMENT
    with open(path, "wb") as file, concurrent.futures.ThreadPoolExecutor() as pool:
        file.write(b"".join(header))
        file.write(bytes(-file.tell() % ALIGNMENT))
        for tensor, own in zip(tensors, kinds):
            start = file.tell()
            if not tensor.parts:
                file.write(divisors)
            for data in gguf_chunks(tensor, own, config, seed, pool):
                file.write(data)
            if file.tell() - start != gguf_bytes(tensor, own):
                raise AssertionError(f"{tensor.name}: {file.tell() - start} bytes written")
            file.write(bytes(-file.tell() % ALIGNMENT))


def gguf_bytes(tensor, kind):
    return blocks.row_bytes(kind, tensor.dims[0]) * math.prod(tensor.dims[1:])
