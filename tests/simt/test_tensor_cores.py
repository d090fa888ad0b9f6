"""The rounding of tensor cores: what an H200 gave for the same fragments on 2026-11-23, bit for bit.

The fragments are random numbers of every kind that is told apart: near one another and far apart, cancelling,
subnormal, huge, zeros, infinities and NaN. Of what the GPU gave there is a digest for each.
"""

import hashlib

import numpy as np
import pytest

from pmpp.simt.values import tensor_cores

WARPS = 48

#: The width of the bits, those of the exponent, and those behind the point.
FORMATS = {
    "mma_f16": (np.uint16, 5, 10),
    "mma_bf16": (np.uint16, 8, 7),
    "mma_tf32": (np.uint32, 8, 23),
    "mma_f64": (np.uint64, 11, 52),
    "mma_e4m3": (np.uint8, 4, 3),
    "mma_e5m2": (np.uint8, 5, 2),
    "c": (np.uint32, 8, 23),
}


def bits(name, rng, shape, exponents):
    """Numbers with random signs and mantissas; exponents, as they are stored, from the first up to below the last."""
    kind, ebits, mbits = FORMATS[name]
    e = rng.integers(*exponents, shape)
    sign, mantissa = rng.integers(0, 2, shape), rng.integers(0, 1 << mbits, shape)
    return sign.astype(kind) << kind(ebits + mbits) | e.astype(kind) << kind(mbits) | mantissa.astype(kind)


def normal(name, rng, shape):
    x = rng.normal(size=shape)
    if name == "mma_f64":
        return x.view(np.uint64)
    if name == "mma_e4m3":
        values = tensor_cores.values_of_8_bits("e4m3")[:0x7F]
        return (np.searchsorted(values, np.abs(x)) | (x < 0) << 7).astype(np.uint8)
    if name in ("mma_f16", "mma_e5m2"):
        found = x.astype(np.float16).view(np.uint16)
        return found if name == "mma_f16" else (found >> 8).astype(np.uint8)
    found = x.astype(np.float32).view(np.uint32)
    return (found >> 16).astype(np.uint16) if name == "mma_bf16" else found


def fragments(name):
    """(what they are, a, b, c) of many warps, as bits of matrices."""
    rng = np.random.default_rng(7)
    depth = tensor_cores.KINDS[name].depth
    A, B, C = (WARPS, 16, depth), (WARPS, depth, 8), (WARPS, 16, 8)
    if name == "mma_s8":
        a, b = (rng.integers(0, 256, shape).astype(np.uint8) for shape in (A, B))
        yield "any", a, b, rng.integers(0, 2**32, C).astype(np.uint32)
        near = rng.integers(2**31 - 2**20, 2**31 + 2**20, C).astype(np.uint32)
        yield "extreme", np.full(A, 0x80, np.uint8), np.full(B, 0x80, np.uint8), near
        return

    # Of sums: the type's bits as a whole number and as a number, and the exponents of infinity and of 1.
    sums = "mma_f64" if name == "mma_f64" else "c"
    word, number = (np.uint64, np.float64) if name == "mma_f64" else (np.uint32, np.float32)
    end, one = (2047, 1023) if name == "mma_f64" else (255, 127)

    def three(first, second, third):
        return bits(name, rng, A, first), bits(name, rng, B, second), bits(sums, rng, C, third)

    width, ebits, mbits = FORMATS[name]
    few = ebits < 8  # so few exponents that products neither overflow nor vanish
    top, bias = (1 << ebits) - 1, (1 << ebits - 1) - 1
    minus = width(1 << (ebits + mbits))
    for what, scale in (("normal", 1.0), ("normal, large c", 300.0), ("normal, no c", 0.0)):
        a, b = normal(name, rng, A), normal(name, rng, B)
        c = rng.normal(size=C) * scale if scale else np.zeros(C)
        yield what, a, b, c.astype(number).view(word)
    yield "near one", *three((bias, bias + 1), (bias, bias + 1), (one - 2, one + 5))
    for spread in (3, 6, 10, 13):
        around = (max(0, bias - spread), min(top, bias + spread))
        yield f"exponents +-{spread}", *three(around, around, (one - 2 * spread, one + 2 * spread))
    yield "all finite", *three((0, top), (0, top), (one - 30, one + 30) if few else (0, end))
    a, b = (bits(name, rng, shape, (0, top + 1)) for shape in (A, B))
    yield "any bits", a, b, rng.integers(0, np.iinfo(word).max, C, dtype=word, endpoint=True)
    yield "tiny", *three((0, 3), (0, 3) if few else (bias - 20, bias + 4), (0, 104 if few else 4))
    a, b = bits(name, rng, A, (0, 2)), bits(name, rng, B, (0, top))
    yield "tiny, no c", a, b, np.zeros(C, word)
    yield "huge", *three((top - 3, top), (bias - 2, bias + 3), (end - 5, end))
    a, b = (bits(name, rng, shape, (max(0, bias - 4), bias + 4)) for shape in (A, B))
    a[:, :, depth // 2 :], b[:, depth // 2 :] = a[:, :, : depth // 2] ^ minus, b[:, : depth // 2]
    a[:, :, -1] = bits(name, rng, a[:, :, -1].shape, (max(0, bias - 12), max(1, bias - 8)))
    yield "cancelling", a, b, bits(sums, rng, C, (one - 37, one + 3))
    a, b = (bits(name, rng, shape, (0, top)) for shape in (A, B))
    a = np.where(rng.random(A) < 0.6, a & minus, a)
    yield "zeros", a, b, bits(sums, rng, C, (one - 37, one + 13))
    c = np.where(rng.random(C) < 0.5, 0, 1 << (8 * word().itemsize - 1)).astype(word)
    yield "zeros only", a & minus, b, c


def registers(name, letter, matrix):
    """The registers of matrices: (warps, 32, registers)."""
    places = tensor_cores._places(name, letter)
    numbers = matrix.reshape(WARPS, -1)[:, places.reshape(-1)].reshape(WARPS, *places.shape)
    whole = letter == "c" or name == "mma_f64"
    return numbers[..., 0] if whole else np.ascontiguousarray(numbers).view(np.uint32)[..., 0]


def digest(numbers):
    numbers = np.ascontiguousarray(numbers)
    return hashlib.sha256(numbers.astype(f"<u{numbers.itemsize}").tobytes()).hexdigest()[:16]


#: What the GPU gave, by instruction and fragments.
FOUND = {
    "mma_f16": {
        "normal": "84853092c31594e2",
        "normal, large c": "c5606f811a4f9653",
        "normal, no c": "b63378fd7ea83c39",
        "near one": "a3b1e6ecc963f131",
        "exponents +-3": "e415366d65e87361",
        "exponents +-6": "921169086d28fe7a",
        "exponents +-10": "94608e37793887e6",
        "exponents +-13": "2f499c6aa9cbbad4",
        "all finite": "14caddfa2e5926da",
        "any bits": "1fd5d6fdd457df49",
        "tiny": "f2d851dc0a625274",
        "tiny, no c": "09a3f10246a97b2d",
        "huge": "cf4b3113995d9918",
        "cancelling": "5b7e64c07f95b0a3",
        "zeros": "8547cfd9b6415461",
        "zeros only": "de676bae28a48001",
    },
    "mma_bf16": {
        "normal": "cb5ea8fc337c833b",
        "normal, large c": "09d784643861c5a8",
        "normal, no c": "de00db18c15a0044",
        "near one": "ea5b866ff15a6239",
        "exponents +-3": "5628051816e39a86",
        "exponents +-6": "d3f0ae6d081d0232",
        "exponents +-10": "431550ed87873065",
        "exponents +-13": "43bf8ce9c202d15a",
        "all finite": "78756033b0e2e2de",
        "any bits": "a73cfe925f14e6dc",
        "tiny": "bac3c4e28abd73a1",
        "tiny, no c": "bceef1ddc7c9e6fc",
        "huge": "e0288f676105620b",
        "cancelling": "811e67ac964b3387",
        "zeros": "878ab4f460d28599",
        "zeros only": "de676bae28a48001",
    },
    "mma_tf32": {
        "normal": "792d0a292f06111d",
        "normal, large c": "61572bcf371a03ed",
        "normal, no c": "2bd89e4435da194d",
        "near one": "b24b52ad07e742c9",
        "exponents +-3": "39eb4d35559f8eca",
        "exponents +-6": "0f455ffedd19580d",
        "exponents +-10": "31414824f0dcd653",
        "exponents +-13": "2f3fb4478f993420",
        "all finite": "fd5086245f1f8afe",
        "any bits": "b9739253778be1fb",
        "tiny": "08c8187e114a46c7",
        "tiny, no c": "cd141955d935e651",
        "huge": "b29ec274c6648286",
        "cancelling": "e8d600f988f87e00",
        "zeros": "bfb7fd5d592117ad",
        "zeros only": "de676bae28a48001",
    },
    "mma_s8": {
        "any": "3b54e7a955acb9b5",
        "extreme": "87110e269a29f841",
    },
}


@pytest.mark.parametrize("name", FOUND)
def test_results_are_those_of_an_h200(name):
    found = {}
    for what, *matrices in fragments(name):
        a, b, c = (registers(name, letter, matrix) for letter, matrix in zip("abc", matrices, strict=True))
        c = c.view(np.int32 if name == "mma_s8" else np.float32)
        found[what] = digest(tensor_cores.multiply_add(name, a, b, c).view(np.uint32))
    assert found == FOUND[name]
