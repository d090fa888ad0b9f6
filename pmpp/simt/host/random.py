"""`cuda.random`: the generators of Numba: the same bits, and normal numbers up to the last bits of log and cos.

xoroshiro128+ (D. Blackman, S. Vigna, with the shifts 55, 14, 36 of 2016) gives 64 random bits a step from a state of
128.  A state is filled from a seed by splitmix64 (S. Vigna), both halves alike, and each further generator starts 2**64
steps after the one before it.  The device functions here are kernels' source like any other: the interpreter runs
them, counts their accesses and checks them for races.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pmpp.simt.host import arrays
from pmpp.simt.host.cuda import float32, float64, int64, jit, uint32, uint64
from pmpp.simt.values.errors import ArgumentError

xoroshiro128p_dtype = np.dtype([("s0", np.uint64), ("s1", np.uint64)], align=True)
xoroshiro128p_type = xoroshiro128p_dtype

_WORD = (1 << 64) - 1
#: The polynomial that stands for 2**64 steps: bit k says whether the state after k steps goes into the sum.
_JUMP = 0xD86B048B86AA9922_BEAC0467EBA5FACB
_TWO_PI_32, _TWO_PI_64 = np.float32(2 * math.pi), np.float64(2 * math.pi)


# -- on the device ---------------------------------------------------------------------------------------------------


@jit(device=True)
def rotl(x, k):
    """`x` rotated left by `k` bits."""
    x, k = uint64(x), uint32(k)
    return (x << k) | (x >> uint32(64 - k))


@jit(device=True)
def xoroshiro128p_next(states, index):
    """The next 64 random bits of generator `index`."""
    index = int64(index)
    a = states[index]["s0"]
    b = states[index]["s1"]
    result = a + b
    b ^= a
    states[index]["s0"] = uint64(rotl(a, uint32(55))) ^ b ^ (b << uint32(14))
    states[index]["s1"] = uint64(rotl(b, uint32(36)))
    return result


@jit(device=True)
def xoroshiro128p_uniform_float64(states, index):
    """A float64 from [0, 1): the upper 53 bits of the next 64."""
    return (xoroshiro128p_next(states, index) >> uint32(11)) * (float64(1) / (uint64(1) << uint32(53)))


@jit(device=True)
def xoroshiro128p_uniform_float32(states, index):
    """A float32 from [0, 1], rounded from float64: 1 comes up once in 2**25 draws, as it does in Numba."""
    return float32(xoroshiro128p_uniform_float64(states, index))


@jit(device=True)
def xoroshiro128p_normal_float32(states, index):
    """A float32 from the normal distribution, by Box and Muller from two draws; the second value is not kept."""
    u = xoroshiro128p_uniform_float32(states, index)
    v = xoroshiro128p_uniform_float32(states, index)
    return math.sqrt(-float32(2.0) * math.log(u)) * math.cos(_TWO_PI_32 * v)


@jit(device=True)
def xoroshiro128p_normal_float64(states, index):
    """A float64 from the normal distribution; as in Numba its two draws and the logarithm are float32."""
    u = xoroshiro128p_uniform_float32(states, index)
    v = xoroshiro128p_uniform_float32(states, index)
    return math.sqrt(-float64(2.0) * math.log(u)) * math.cos(_TWO_PI_64 * v)


# -- on the host -----------------------------------------------------------------------------------------------------


def _rotated(x: int, k: int) -> int:
    return (x << k | x >> (64 - k)) & _WORD


def _stepped(a: int, b: int) -> tuple[int, int]:
    b ^= a
    return _rotated(a, 55) ^ b ^ (b << 14 & _WORD), _rotated(b, 36)


def _jumped(a: int, b: int) -> tuple[int, int]:
    """The state after 2**64 steps."""
    sum_a = sum_b = 0
    for k in range(128):
        if _JUMP >> k & 1:
            sum_a, sum_b = sum_a ^ a, sum_b ^ b
        a, b = _stepped(a, b)
    return sum_a, sum_b


def _seeded(seed: int) -> int:
    z = (seed + 0x9E3779B97F4A7C15) & _WORD
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _WORD
    return z ^ z >> 31


def init_xoroshiro128p_states_cpu(states: np.ndarray, seed: int, subsequence_start: int = 0) -> None:
    """Fill a host array of `xoroshiro128p_dtype`: generator i starts (subsequence_start + i) x 2**64 steps in."""
    if getattr(states, "dtype", None) != xoroshiro128p_dtype or states.ndim != 1:
        raise ArgumentError(f"states is {arrays._what(states)}; it must be a 1-D array of xoroshiro128p_dtype")
    a = b = _seeded(int(seed) & _WORD)
    for _ in range(int(subsequence_start)):
        a, b = _jumped(a, b)
    # A jump is linear over bits, so the jump of a state is the exclusive or of the jumps of its bits.
    table = [_jumped(1 << k, 0) for k in range(64)] + [_jumped(0, 1 << k) for k in range(64)]
    for i in range(len(states)):
        states[i] = (a, b)
        bits, a, b = a | b << 64, 0, 0
        for k in range(128):
            if bits >> k & 1:
                a, b = a ^ table[k][0], b ^ table[k][1]


def init_xoroshiro128p_states(states: Any, seed: int, subsequence_start: int = 0, stream: Any = 0) -> None:
    """Fill a device array of `xoroshiro128p_dtype`."""
    host = np.empty(states.shape, xoroshiro128p_dtype)
    init_xoroshiro128p_states_cpu(host, seed, subsequence_start)
    states.copy_to_device(host, stream=stream)


def create_xoroshiro128p_states(n: int, seed: int, subsequence_start: int = 0, stream: Any = 0) -> Any:
    """A device array of `n` generators whose sequences start 2**64 steps apart."""
    states = arrays.device_array(n, dtype=xoroshiro128p_dtype)
    init_xoroshiro128p_states(states, seed, subsequence_start, stream)
    return states
