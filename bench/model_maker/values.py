"""Random values of a tensor, the same for every file that holds it.

A value is one of 65536 quantiles of the normal distribution, scaled and rounded to BF16, picked by
16 bits of a generator that is seeded by the tensor's name: about 2 ns a value, and both formats
see the same numbers whatever order they are written in.
"""

import functools
import hashlib

import numpy as np

CHUNK_VALUES = 1 << 22


def round_to_bf16(values):
    """float32 to the bits of the nearest BF16, ties to even. Requires finite values."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
            >> np.uint32(16)).astype(np.uint16)


def widen_bf16(bits):
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


@functools.lru_cache(maxsize=1)
def normal_quantiles():
    """The inverse of the normal distribution's integral at (i + 1/2) / 65536, by Newton's method
    on Abramowitz and Stegun's formula 26.2.23."""
    p = (np.arange(65536, dtype=np.float64) + 0.5) / 65536
    tail = np.minimum(p, 1 - p)
    t = np.sqrt(-2 * np.log(tail))
    x = t - ((0.010328 * t + 0.802853) * t + 2.515517) / (
        ((0.001308 * t + 0.189269) * t + 1.432788) * t + 1)
    x = np.where(p < 0.5, -x, x)
    for _ in range(3):
        x -= (normal_integral(x) - p) / (np.exp(-0.5 * x * x) / np.sqrt(2 * np.pi))
    return x


def normal_integral(x):
    """Marsaglia's series (Evaluating the Normal Distribution, 2004); converges for |x| < 6."""
    term, total, square = x.copy(), x.copy(), x * x
    for k in range(3, 160, 2):
        term = term * square / k
        total += term
    return 0.5 + total * np.exp(-0.5 * square) / np.sqrt(2 * np.pi)


@functools.lru_cache(maxsize=64)
def table_of(mean, std):
    return round_to_bf16((mean + std * normal_quantiles()).astype(np.float32))


def generator_of(tensor, seed):
    digest = hashlib.sha256(f"{seed}/{tensor.name}".encode()).digest()
    return np.random.SFC64(int.from_bytes(digest[:16], "little"))


def chunks(tensor, seed):
    """Yields the tensor's BF16 bits by rows, at most about CHUNK_VALUES at a time: [rows, in]."""
    width = tensor.shape[-1]
    rows = tensor.count() // width
    step = max(4, CHUNK_VALUES // width // 4 * 4)  # so that every chunk is whole 64-bit words
    random = generator_of(tensor, seed)
    table = table_of(tensor.mean, tensor.std)
    for first in range(0, rows, step):
        count = min(step, rows - first) * width
        words = random.random_raw((count + 3) // 4)
        yield table[words.view(np.uint16)[:count]].reshape(-1, width)


def whole(tensor, seed):
    """All of a tensor that is small: BF16 bits in the tensor's shape."""
    return np.concatenate(list(chunks(tensor, seed))).reshape(tensor.shape)


def indices(tensor, seed):
    """Integers in [0, index_max), no two in one row alike (a token's hashed experts)."""
    rows, count = tensor.shape
    random = np.random.Generator(generator_of(tensor, seed))
    start = random.integers(0, tensor.index_max, size=(rows, 1))
    step = random.integers(1, max(2, tensor.index_max // count), size=(rows, 1))
    return (start + step * np.arange(count)) % tensor.index_max
