"""The rounding of tensor cores: what an H200 gave for the same fragments in November 2026, bit for bit.

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
    "mma_f64": {
        "normal": "496a046fea6182db",
        "normal, large c": "a9f7d54682ec2382",
        "normal, no c": "3af8dcc4c8c35c5f",
        "near one": "fe2db6242b5fbc99",
        "exponents +-3": "d8d9c1b9e11cd518",
        "exponents +-6": "a18e545c5372830f",
        "exponents +-10": "2b8a82c3ca84505f",
        "exponents +-13": "19b842b1cdf98fe1",
        "all finite": "ed5859bed0733c14",
        "any bits": "6f956416cce9a3bb",
        "tiny": "7d9e23232c0e41c2",
        "tiny, no c": "6132070a80434cb8",
        "huge": "2b305289698e54b0",
        "cancelling": "feda5c708df717b7",
        "zeros": "b4595beef6673266",
        "zeros only": "6550a1af42da1bb5",
    },
    "mma_e4m3": {
        "normal": "18d55d3b04304ba5",
        "normal, large c": "fa55de2d2b257808",
        "normal, no c": "cbce369610edd596",
        "near one": "46aff408844407ac",
        "exponents +-3": "9b09d5dabd440500",
        "exponents +-6": "e13b34f818e2fec6",
        "exponents +-10": "2ee952f0ace0d4a4",
        "exponents +-13": "c91cc05e52de35d7",
        "all finite": "7107101d23829844",
        "any bits": "837cca182576c68c",
        "tiny": "0bf6427bf57a910d",
        "tiny, no c": "b98bdee882bd4be7",
        "huge": "c7cf67fcd5ba0942",
        "cancelling": "9b02d1a6448eab5e",
        "zeros": "881627d01828f901",
        "zeros only": "de676bae28a48001",
    },
    "mma_e5m2": {
        "normal": "4b835e588c68ffe6",
        "normal, large c": "dda8517b75476ad4",
        "normal, no c": "23740e43bce6e813",
        "near one": "6c83782d77ebb40a",
        "exponents +-3": "73954c316b2ec9d0",
        "exponents +-6": "91dd62cc058e7955",
        "exponents +-10": "a92874ecc4e135a4",
        "exponents +-13": "0469e0fea9f573fe",
        "all finite": "43752b71f4aad0dc",
        "any bits": "e1422ee12b667f9b",
        "tiny": "3eabb63dc194d05c",
        "tiny, no c": "8225566553783571",
        "huge": "c7cf67fcd5ba0942",
        "cancelling": "47755c01f39511e8",
        "zeros": "4d18f7a3451ea101",
        "zeros only": "de676bae28a48001",
    },
}


@pytest.mark.parametrize("name", FOUND)
def test_results_are_those_of_an_h200(name):
    found = {}
    for what, *matrices in fragments(name):
        a, b, c = (registers(name, letter, matrix) for letter, matrix in zip("abc", matrices, strict=True))
        if name == "mma_f64":
            a, b, c = (x.view(np.float64) for x in (a, b, c))
        else:
            c = c.view(np.int32 if name == "mma_s8" else np.float32)
        result = tensor_cores.multiply_add(name, a, b, c)
        found[what] = digest(result.view(f"u{result.itemsize}"))
    assert found == FOUND[name]
