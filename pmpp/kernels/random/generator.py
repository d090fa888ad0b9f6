"""Philox: random numbers from counters, and uniform and normal numbers made of their bits.

`philox` turns a counter and a key into four numbers of 32 bits, by ten rounds of multiplications. There is no state:
who wants the millionth number asks for it. Everything after that is float32 arithmetic of which every rounding is said
here: `cuda.fma` is a product and a sum, rounded once. So all backends and GPUs give the same bits.

Source: J. Salmon and others, Parallel random numbers: as easy as 1, 2, 3 (SC11), Philox4x32-10; G. Box and M. Muller,
A note on the generation of random normal deviates (1958).
"""

from __future__ import annotations

import math

import numpy as np

from pmpp import cuda

ROUNDS = 10
M0, M1 = np.uint32(0xD2511F53), np.uint32(0xCD9E8D57)
W0, W1 = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)  # added to the key after each round: golden ratio and sqrt(3) - 1
LOW, HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
OF_24_BITS = np.float32(2.0**-24)
f0, f1 = np.float32(0), np.float32(1)


@cuda.jit(device=True)
def product(a, b):
    """The upper and the lower 32 bits of a product, which is what a GPU multiplies at once.

    As a product of 64-bit numbers, ``np.uint64(a) * np.uint64(b)``, it may become one of 64 by 64 bits, which costs
    several times as much: the compiler does not see any more that the upper halves are 0.
    """
    return np.uint32(cuda.libdevice.umulhi(np.int32(a), np.int32(b))), np.uint32(a * b)


@cuda.jit(device=True)
def philox(counter, stream, key):
    """Four numbers of 32 bits from a counter of 128 bits, ``counter`` and above it ``stream``, and a key of 64 bits."""
    c0, c1 = np.uint32(counter & LOW), np.uint32(counter >> HALF)
    c2, c3 = np.uint32(stream & LOW), np.uint32(stream >> HALF)
    k0, k1 = np.uint32(key & LOW), np.uint32(key >> HALF)
    for _ in range(ROUNDS):
        high0, low0 = product(c0, M0)
        high1, low1 = product(c2, M1)
        c0, c1, c2, c3 = np.uint32(high1 ^ c1 ^ k0), low1, np.uint32(high0 ^ c3 ^ k1), low0
        k0, k1 = np.uint32(k0 + W0), np.uint32(k1 + W1)
    return c0, c1, c2, c3


@cuda.jit(device=True)
def unit(bits):
    """A number from 0 to less than 1 of the upper 24 bits: all that a float32 can hold of them without rounding."""
    return np.float32(bits >> np.uint32(8)) * OF_24_BITS


# log(1 + f) = f + f^2 q(f) for f from -1/3 to 1/3; cos(2 pi r) = 1 - 2 pi^2 r^2 + r^4 c(r^2) and sin(2 pi r) = 2 pi r +
# r^3 s(r^2) for r from -1/8 to 1/8. The polynomials are least squares at Chebyshev nodes, rounded to float32. Where one
# float32 is too short for a constant there is a second one, its rest.
LOG_2, TURN, BEND = np.float32(0.693145751953125), np.float32(2 * math.pi), np.float32(-2 * math.pi**2)
LOG_2_REST = np.float32(math.log(2) - float(LOG_2))  # LOG_2 has 16 bits: times an exponent it is exact
TURN_REST, BEND_REST = np.float32(2 * math.pi - float(TURN)), np.float32(-2 * math.pi**2 - float(BEND))
Q0, Q1, Q2, Q3, Q4, Q5, Q6, Q7, Q8 = np.float32(
    [-0.5, 0.33333272, -0.24999839, 0.20007323, -0.16678093, 0.14054218, -0.12219618, 0.13756539, -0.12734152]
)
S0, S1, S2, S3 = np.float32([-41.3417, 81.60523, -76.701286, 41.58957])
C1, C2, C3, C4 = np.float32([64.93939, -85.45681, 60.242233, -26.179974])
EIGHTH = np.uint32(1 << 21)  # of a turn, which is 2^24


@cuda.jit(device=True)
def radius(bits):
    """sqrt(-2 log(u)) for u from 2^-24 to 1, of the upper 24 bits: nearly rounded, and what is missing of it."""
    u = np.float32(np.uint32(bits >> np.uint32(8)) + np.uint32(1)) * OF_24_BITS
    shifted = u.view(np.int32) - np.int32(0x3F2AAAAB)  # the bits of 2/3: so u = m 2^e with m from 2/3 to 4/3
    e = np.int32(shifted >> np.int32(23))
    m = np.int32(u.view(np.int32) - np.int32(e << np.int32(23))).view(np.float32)
    f, exponent = m - f1, np.float32(e)
    q = cuda.fma(Q8, f, Q7)
    q = cuda.fma(q, f, Q6)
    q = cuda.fma(q, f, Q5)
    q = cuda.fma(q, f, Q4)
    q = cuda.fma(q, f, Q3)
    q = cuda.fma(q, f, Q2)
    q = cuda.fma(q, f, Q1)
    q = cuda.fma(q, f, Q0)
    whole = exponent * LOG_2  # exact: LOG_2 has 16 bits
    high = whole + f
    low = (f - (high - whole)) + cuda.fma(q, f * f, exponent * LOG_2_REST)
    log = high + low
    rest = low - (log - high)
    a, b = np.float32(-2) * log, np.float32(-2) * rest
    if a == f0:
        return f0, f0
    root = math.sqrt(a)
    return root, (cuda.fma(-root, root, a) + b) * (np.float32(0.5) / root)


@cuda.jit(device=True)
def normals(bits, angle):
    """Two independent normal numbers, by Box and Muller: a point whose distance and direction are random.

    Both are right to 2 ulp of their exact value, which is that for the uniform numbers of the upper 24 bits.
    """
    root, rest = radius(bits)
    # The direction as a whole number of quarter turns, and r, from -1/8 to 1/8 of a turn.
    n = np.uint32(np.uint32(angle >> np.uint32(8)) + EIGHTH)
    quarter = np.uint32(n >> np.uint32(22)) & np.uint32(3)
    r = np.float32(np.int32(n & np.uint32((1 << 22) - 1)) - np.int32(EIGHTH)) * OF_24_BITS
    square = r * r
    c = cuda.fma(cuda.fma(cuda.fma(C4, square, C3), square, C2), square, C1)
    bend = cuda.fma(square, BEND, square * cuda.fma(square, c, BEND_REST))  # the cosine is 1 + bend
    s = cuda.fma(cuda.fma(cuda.fma(S3, square, S2), square, S1), square, S0)
    tail = cuda.fma(r * square, s, r * TURN_REST)  # the sine is r TURN + tail
    x = root + cuda.fma(root, bend, cuda.fma(rest, bend, rest))
    product = root * r
    missing = cuda.fma(root, r, -product)
    y = cuda.fma(product, TURN, cuda.fma(root, tail, cuda.fma(missing, TURN, rest * (r * TURN))))
    if quarter == np.uint32(0):
        return x, y
    if quarter == np.uint32(1):
        return -y, x
    if quarter == np.uint32(2):
        return -x, -y
    return y, -x
