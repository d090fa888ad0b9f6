"""MRI: an image of what a scanner has measured along any path, by a sum of waves over all samples.

Chapter: notebooks/49_mri.ipynb.  PMPP 4e ch. 17.

A scanner measures the Fourier transform of a body, at places k that lie on a spiral as well as on a grid. Each sample
is a wave through the whole body, so each voxel needs the sine and cosine of each sample. That is done in every step of
a reconstruction. Arithmetic is the bound: two special functions for each pair, 16 of which a multiprocessor does in a
cycle.
"""

from __future__ import annotations

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.runtime import device
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128, store128

RESULT = np.dtype(np.complex64)
BLOCK = 128  # threads a block, and samples that a block brings to shared memory at a time
WIDTH = 8  # floats of a packed sample: kx, ky, kz, unused, real and imaginary part, two unused
NUMBERS = WIDTH * BLOCK  # of a block's samples
EACH = 4  # voxels of a thread
f0 = np.float32(0)
TURN, OF_TURN = np.float32(2 * math.pi), np.float32(1 / (2 * math.pi))
RESIDENT = 32  # blocks for each multiprocessor, at least, if samples are cut into parts
ROUNDER = np.float32(1.5 * 2**23)  # a float32 plus this, less this, is rounded to a whole number


def reference(k: np.ndarray, phi: np.ndarray, data: np.ndarray, voxels: np.ndarray) -> np.ndarray:
    """Sample by sample: conj(phi) data exp(2 pi i k . x), added to all voxels, in complex128."""
    out = np.zeros(len(voxels), np.complex128)
    places = voxels.astype(np.float64)
    with np.errstate(all="ignore"):
        for place, p, d in zip(k.astype(np.float64), phi, data, strict=True):
            mu = np.conj(np.complex128(p)) * np.complex128(d)
            out += mu * np.exp(2j * np.pi * (places @ place))
        return out.astype(np.complex64)


def samples_of(m: int, rng: np.random.Generator, reach: float = 8.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """So many samples at random places from -reach to reach: k (m, 3), and phi and data (m,)."""
    k = rng.uniform(-reach, reach, (m, 3)).astype(np.float32)
    phi, data = (rng.standard_normal((2, m)) + 1j * rng.standard_normal((2, m))).astype(np.complex64)
    return k, phi, data


def inputs() -> dict[str, tuple]:
    """Small awkward inputs: a name, and the arguments of `reference`. The same every time."""
    rng = np.random.default_rng(17)

    def case(m: int, n: int, reach: float = 8.0) -> tuple:
        return *samples_of(m, rng, reach), rng.uniform(-0.5, 0.5, (n, 3)).astype(np.float32)

    made = {"no sample": case(0, 7), "no voxel": case(5, 0), "one and one": case(1, 1), "one sample": case(1, 300)}
    made["one voxel"] = case(300, 1)
    made |= {f"a tile of samples {d:+}": case(BLOCK + d, 5) for d in (-1, 0, 1)}
    made |= {f"a block of voxels {d:+}": case(3, BLOCK + d) for d in (-1, 0, 1)}
    made |= {f"voxels of a block {d:+}": case(2, EACH * BLOCK + d) for d in (-1, 0, 1)}
    made["high frequencies"] = case(40, 50, 500.0)
    whole = case(20, 30)
    whole[0][:], whole[3][:] = np.rint(whole[0]), np.rint(4 * whole[3]) / 4
    made["quarters of a turn"] = whole
    still = case(6, 9)
    still[0][:] = 0
    made["no frequency"] = still
    lost = case(4, 6)
    lost[2][2], lost[3][3, 1] = np.nan, np.nan
    made["not a number"] = lost
    huge = case(5, 6)
    huge[1][1], huge[2][2] = 1e30, 1e-42
    made["huge and nearly 0"] = huge
    return made


def cost(samples: int, voxels: int) -> Cost:
    """Fifteen FLOP for a pair: 5 for the angle, a sine, a cosine, and 8 for product and sum.

    Nine for each sample: its product, and k in radians. Samples and voxels are read once, and a complex number is
    written for each voxel.
    """
    return Cost(flops=15 * samples * voxels + 9 * samples, bytes=28 * samples + 20 * voxels)


def tolerance(k: np.ndarray, phi: np.ndarray, data: np.ndarray, voxels: np.ndarray) -> np.ndarray:
    """How far from the exact sum a right one may be, for each voxel.

    The angle is a sum of three products: off by at most 4 halves of an eps of the sum of their sizes, and by two more
    for 2 pi. To take whole turns off costs two: 2 pi is rounded, and so is its multiple. A fast sine that gets the
    whole angle makes turns of it, rounded towards zero: two as well. So a sine is off by 2 pi times that, and by
    2^-20.5 if it is a fast one (PTX ISA, "sin"). The product of two complex numbers is off by some 4 halves, and each
    of n additions rounds the sum.
    """
    half = np.finfo(np.float32).eps / 2
    known = np.isfinite(k).all(axis=1) & np.isfinite(phi) & np.isfinite(data)
    size = np.where(known, np.abs(phi.astype(np.complex128)) * np.abs(data.astype(np.complex128)), 0)
    with np.errstate(invalid="ignore"):
        turns = np.abs(np.where(np.isfinite(voxels), voxels, 0)).astype(np.float64) @ np.abs(k.astype(np.float64)).T
    each = 2 * np.pi * 8 * half * turns + 2.0**-20 + (len(k) + 12) * half
    return 1.5 * (each * size).sum(axis=1) + len(k) * 2.0**-125


def arguments(k, phi, data, voxels, *, out=None, stream=0) -> Problem:
    """The sum over all samples of conj(phi) data exp(2 pi i k . x), for each voxel x: the F^H d of PMPP.

    Args:
        k: a contiguous array (m, 3) of float32, m >= 0: the place of each sample in the space of frequencies, in turns
            for each unit of length.
        phi: a contiguous vector (m,) of complex64: the transform of a voxel's shape at each sample. Ones, if voxels are
            points.
        data: a contiguous vector (m,) of complex64: what was measured.
        voxels: a contiguous array (n, 3) of float32, n >= 0: the place x, y, z of each. A product k . x is less than
            2^22 turns: that is not checked.
        out: a device array (n,) of complex64, apart from the others in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out`` without waiting for the work to be done. The same call gives the same bits on the same GPU, but for
    the rung `scattered`, whose additions come in any order.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: Stone and others, "Accelerating advanced MRI reconstructions on GPUs" (2008); PMPP 4e section 17.3.

    >>> from pmpp.kernels import mri
    >>> k, voxels = np.float32([[1, 0, 0]]), np.float32([[0, 0, 0], [0.25, 0, 0], [0.5, 0, 0]])
    >>> mri.in_parts(k, np.complex64([1]), np.complex64([2]), voxels).copy_to_host().round(3) + 0
    array([ 2.+0.j,  0.+2.j, -2.+0.j], dtype=complex64)
    """
    stream = device.as_stream(stream)
    k = device.as_input("k", k, dtypes="float32", shape=(None, 3), stream=stream)
    phi = device.as_input("phi", phi, dtypes="complex64", shape=(k.shape[0],), stream=stream)
    data = device.as_input("data", data, dtypes="complex64", shape=(k.shape[0],), stream=stream)
    voxels = device.as_input("voxels", voxels, dtypes="float32", shape=(None, 3), stream=stream)
    apart = {"k": k, "phi": phi, "data": data, "voxels": voxels}
    out = device.as_output("out", out, shape=(voxels.shape[0],), dtype=np.complex64, apart=apart, stream=stream)
    p = Problem(out, stream=stream, begin=clear, k=k, phi=phi, data=data, voxels=voxels)
    if not k.shape[0] and out.size:
        clear(p)
        p.done = True
    return p


@cuda.jit
def clear_kernel(out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = 0


def clear(p):
    """Every voxel is 0 at the beginning."""
    clear_kernel[blocks(2 * p.result.size, BLOCK), BLOCK, p.stream](p.result.view(np.float32))


# ------------------------------------------------------------------------------------------------ threads and samples


@cuda.jit(device=True)
def product(phi, data, m):
    """conj(phi[m]) * data[m]: real and imaginary part."""
    p, d = phi[m], data[m]
    return p.real * d.real + p.imag * d.imag, p.real * d.imag - p.imag * d.real


@cuda.jit
def scattered_kernel(k, phi, data, voxels, out):
    m = cuda.grid(1)
    if m < k.shape[0]:
        re, im = product(phi, data, m)
        for n in range(voxels.shape[0]):
            turns = k[m, 0] * voxels[n, 0] + k[m, 1] * voxels[n, 1] + k[m, 2] * voxels[n, 2]
            s, c = math.sin(TURN * turns), math.cos(TURN * turns)
            cuda.atomic.add(out, 2 * n, re * c - im * s)
            cuda.atomic.add(out, 2 * n + 1, im * c + re * s)


@rung(clear_kernel, scattered_kernel)
def scattered(p):
    """A thread takes a sample, and adds its wave to every voxel.

    Source: PMPP 4e section 17.3.

    Leaves: two atomics for each pair, and all lanes of a warp add to the same voxel at the same time.
    """
    given = p.k, p.phi, p.data, p.voxels, p.result.view(np.float32)
    scattered_kernel[blocks(p.k.shape[0], BLOCK), BLOCK, p.stream](*given)


# ---------------------------------------------------------------------------------------------------- loop interchange


@cuda.jit
def interchanged_kernel(k, phi, data, voxels, out):
    n = cuda.grid(1)
    if n < voxels.shape[0]:
        x, y, z, real, imaginary = voxels[n, 0], voxels[n, 1], voxels[n, 2], f0, f0
        for m in range(k.shape[0]):
            re, im = product(phi, data, m)
            turns = k[m, 0] * x + k[m, 1] * y + k[m, 2] * z
            s, c = math.sin(TURN * turns), math.cos(TURN * turns)
            real = (real + re * c) - im * s
            imaginary = (imaginary + im * c) + re * s
        out[2 * n], out[2 * n + 1] = real, imaginary


@rung(interchanged_kernel, begin=False)
def interchanged(p):
    """The two loops change places: a thread takes a voxel, and goes through all samples, with its sums in registers.

    Source: PMPP 4e section 17.3, "loop interchange".

    Leaves: every thread computes the product of phi and the datum of every sample again.
    """
    given = p.k, p.phi, p.data, p.voxels, p.result.view(np.float32)
    interchanged_kernel[blocks(p.voxels.shape[0], BLOCK), BLOCK, p.stream](*given)


# -------------------------------------------------------------------------------------------------------- loop fission


@cuda.jit
def pack_kernel(k, phi, data, packed):
    m = cuda.grid(1)
    if m < k.shape[0]:
        packed[m, 0], packed[m, 1], packed[m, 2] = TURN * k[m, 0], TURN * k[m, 1], TURN * k[m, 2]
        packed[m, 4], packed[m, 5] = product(phi, data, m)
        packed[m, 3] = packed[m, 6] = packed[m, 7] = 0


def packed_samples(p):
    """What every voxel needs of a sample, side by side: computed once."""
    packed = device.empty((p.k.shape[0], WIDTH), np.float32, stream=p.stream)
    pack_kernel[blocks(p.k.shape[0], BLOCK), BLOCK, p.stream](p.k, p.phi, p.data, packed)
    return packed


@cuda.jit
def fissioned_kernel(packed, voxels, out):
    n = cuda.grid(1)
    if n < voxels.shape[0]:
        x, y, z, real, imaginary = voxels[n, 0], voxels[n, 1], voxels[n, 2], f0, f0
        for m in range(packed.shape[0]):
            kx, ky, kz, _ = load128(packed, WIDTH * m)
            re, im, _, _ = load128(packed, WIDTH * m + 4)
            angle = kx * x + ky * y + kz * z
            s, c = math.sin(angle), math.cos(angle)
            real = (real + re * c) - im * s
            imaginary = (imaginary + im * c) + re * s
        out[2 * n], out[2 * n + 1] = real, imaginary


@rung(fissioned_kernel, pack_kernel, begin=False)
def fissioned(p):
    """The loop is cut in two: a first kernel makes the products, and packs all that voxels need of a sample together.

    It also multiplies k by 2 pi, so that angles are in radians from the beginning.

    Source: PMPP 4e section 17.3, "loop fission".

    Leaves: a sample comes from the cache for each voxel, by two loads of 128 bits.
    """
    given = packed_samples(p), p.voxels, p.result.view(np.float32)
    fissioned_kernel[blocks(p.voxels.shape[0], BLOCK), BLOCK, p.stream](*given)


# ------------------------------------------------------------------------------------------------------- shared memory


@cuda.jit(device=True)
def bring(packed, first, tile):
    """Up to BLOCK samples from ``first`` on into shared memory, four numbers at a time; how many samples there are."""
    count = np.uint32(min(BLOCK, packed.shape[0] - first))
    i = np.uint32(4 * cuda.threadIdx.x)
    while i < np.uint32(WIDTH * count):
        store128(tile, i, load128(packed, WIDTH * first + i))
        i = np.uint32(i + 4 * BLOCK)
    return count


@cuda.jit
def in_tiles_kernel(packed, voxels, out):
    tile = cuda.shared.array(NUMBERS, np.float32, alignment=16)
    n = cuda.grid(1)
    mine = min(n, voxels.shape[0] - 1)
    x, y, z, real, imaginary = voxels[mine, 0], voxels[mine, 1], voxels[mine, 2], f0, f0
    for first in range(0, packed.shape[0], BLOCK):
        count = bring(packed, first, tile)
        cuda.syncthreads()
        m = np.uint32(0)
        while m < count:
            kx, ky, kz, _ = load128(tile, WIDTH * m)
            re, im, _, _ = load128(tile, WIDTH * m + 4)
            angle = kx * x + ky * y + kz * z
            s, c = math.sin(angle), math.cos(angle)
            real = (real + re * c) - im * s
            imaginary = (imaginary + im * c) + re * s
            m = np.uint32(m + 1)
        cuda.syncthreads()
    if n < voxels.shape[0]:
        out[2 * n], out[2 * n + 1] = real, imaginary


@rung(in_tiles_kernel, pack_kernel, begin=False)
def in_tiles(p):
    """A block brings 128 samples to shared memory at a time, which hands each of them to all lanes of a warp at once.

    PMPP uses constant memory. In Numba, that holds only what is known when a kernel is compiled.

    Source: PMPP 4e section 17.3.

    Leaves: a sine that is right to the last place takes dozens of instructions, in case the angle is a large one.
    """
    given = packed_samples(p), p.voxels, p.result.view(np.float32)
    in_tiles_kernel[blocks(p.voxels.shape[0], BLOCK), BLOCK, p.stream](*given)


# --------------------------------------------------------------------------------------------------- fast trigonometry


@cuda.jit(device=True)
def wave(angle):
    """Sine and cosine of an angle in radians, each by one instruction, right to 2^-20.

    That holds for angles up to half a turn, so whole turns are taken off before. Their number is the nearest whole one:
    a number so large is added that no place after the point is left, and is taken away again.
    """
    turns = (angle * OF_TURN + ROUNDER) - ROUNDER
    angle -= turns * TURN
    return cuda.libdevice.fast_sinf(angle), cuda.libdevice.fast_cosf(angle)


@cuda.jit
def fast_trigonometry_kernel(packed, voxels, out):
    tile = cuda.shared.array(NUMBERS, np.float32, alignment=16)
    n = cuda.grid(1)
    mine = min(n, voxels.shape[0] - 1)
    x, y, z, real, imaginary = voxels[mine, 0], voxels[mine, 1], voxels[mine, 2], f0, f0
    for first in range(0, packed.shape[0], BLOCK):
        count = bring(packed, first, tile)
        cuda.syncthreads()
        m = np.uint32(0)
        while m < count:
            kx, ky, kz, _ = load128(tile, WIDTH * m)
            re, im, _, _ = load128(tile, WIDTH * m + 4)
            s, c = wave(kx * x + ky * y + kz * z)
            real = (real + re * c) - im * s
            imaginary = (imaginary + im * c) + re * s
            m = np.uint32(m + 1)
        cuda.syncthreads()
    if n < voxels.shape[0]:
        out[2 * n], out[2 * n + 1] = real, imaginary


@rung(fast_trigonometry_kernel, pack_kernel, begin=False)
def fast_trigonometry(p):
    """Sine and cosine by one instruction each of the special function unit, after whole turns were taken off.

    Source: PMPP 4e section 17.3, "hardware trigonometry functions".

    Leaves: two loads from shared memory to each pair.
    """
    given = packed_samples(p), p.voxels, p.result.view(np.float32)
    fast_trigonometry_kernel[blocks(p.voxels.shape[0], BLOCK), BLOCK, p.stream](*given)


# ---------------------------------------------------------------------------------------------------- several voxels


@cuda.jit
def several_voxels_kernel(packed, voxels, share, out):
    """Row y of ``out`` gets the sums of ``share`` samples from number y * share on; y counts blocks in the grid."""
    tile = cuda.shared.array(NUMBERS, np.float32, alignment=16)
    n, apart = cuda.grid(1), np.int64(cuda.gridDim.x) * BLOCK
    x, y = cuda.local.array(EACH, np.float32), cuda.local.array(EACH, np.float32)
    z, real = cuda.local.array(EACH, np.float32), cuda.local.array(EACH, np.float32)
    imaginary = cuda.local.array(EACH, np.float32)
    for e in range(EACH):
        mine = min(n + e * apart, voxels.shape[0] - 1)
        x[e], y[e], z[e], real[e], imaginary[e] = voxels[mine, 0], voxels[mine, 1], voxels[mine, 2], f0, f0
    begin = cuda.blockIdx.y * share
    for first in range(begin, min(begin + share, packed.shape[0]), BLOCK):
        count = bring(packed, first, tile)
        cuda.syncthreads()
        m = np.uint32(0)
        while m < count:
            kx, ky, kz, _ = load128(tile, WIDTH * m)
            re, im, _, _ = load128(tile, WIDTH * m + 4)
            for e in range(EACH):
                s, c = wave(kx * x[e] + ky * y[e] + kz * z[e])
                real[e] = (real[e] + re * c) - im * s
                imaginary[e] = (imaginary[e] + im * c) + re * s
            m = np.uint32(m + 1)
        cuda.syncthreads()
    for e in range(EACH):
        at = n + e * apart
        if at < voxels.shape[0]:
            out[cuda.blockIdx.y, 2 * at], out[cuda.blockIdx.y, 2 * at + 1] = real[e], imaginary[e]


@rung(several_voxels_kernel, pack_kernel, begin=False)
def several_voxels(p):
    """A thread takes four voxels, as many apart as there are threads: two loads serve four pairs.

    Source: PMPP 4e sections 6.3 and 17.3.

    Leaves: with few voxels there are few threads, and most multiprocessors have nothing to do.
    """
    out = p.result.view(np.float32).reshape(1, 2 * p.result.size)
    grid = blocks(p.voxels.shape[0], EACH * BLOCK)
    several_voxels_kernel[grid, BLOCK, p.stream](packed_samples(p), p.voxels, np.int64(p.k.shape[0]), out)


# ---------------------------------------------------------------------------------------------------- parts of samples


@cuda.jit
def sum_parts_kernel(parts, out):
    i = cuda.grid(1)
    if i < out.size:
        total = f0
        for part in range(parts.shape[0]):
            total += parts[part, i]
        out[i] = total


def share_of(samples: int, voxels: int) -> int:
    """How many samples a block takes, a multiple of BLOCK: so many that each multiprocessor has some blocks."""
    wanted = blocks(device.limits()["multiprocessors"] * RESIDENT, blocks(voxels, EACH * BLOCK))
    return BLOCK * blocks(blocks(samples, BLOCK), wanted)


def launch_parts(kernel, p):
    """A grid with an axis for voxels and one for parts of the samples; then the sums of the parts."""
    samples, voxels, stream = p.k.shape[0], p.voxels.shape[0], p.stream
    share, out = share_of(samples, voxels), p.result.view(np.float32)
    count = blocks(samples, share)
    parts = out.reshape(1, 2 * voxels) if count == 1 else device.empty((count, 2 * voxels), np.float32, stream=stream)
    grid = blocks(voxels, EACH * BLOCK), count
    kernel[grid, BLOCK, stream](packed_samples(p), p.voxels, np.int64(share), parts)
    if count > 1:
        sum_parts_kernel[blocks(out.size, BLOCK), BLOCK, stream](parts, out)


@rung(several_voxels_kernel, pack_kernel, sum_parts_kernel, begin=False)
def in_parts(p):
    """With few voxels, samples are cut into parts: each has blocks of its own, and a last kernel adds their sums up.

    Source: PMPP 4e section 10.8, for sums of parts.

    Leaves: for each pair, three instructions that take whole turns off the angle.
    """
    launch_parts(several_voxels_kernel, p)


# ------------------------------------------------------------------------------------------------- whole turns left on


@cuda.jit
def unreduced_kernel(packed, voxels, share, out):
    tile = cuda.shared.array(NUMBERS, np.float32, alignment=16)
    n, apart = cuda.grid(1), np.int64(cuda.gridDim.x) * BLOCK
    x, y = cuda.local.array(EACH, np.float32), cuda.local.array(EACH, np.float32)
    z, real = cuda.local.array(EACH, np.float32), cuda.local.array(EACH, np.float32)
    imaginary = cuda.local.array(EACH, np.float32)
    for e in range(EACH):
        mine = min(n + e * apart, voxels.shape[0] - 1)
        x[e], y[e], z[e], real[e], imaginary[e] = voxels[mine, 0], voxels[mine, 1], voxels[mine, 2], f0, f0
    begin = cuda.blockIdx.y * share
    for first in range(begin, min(begin + share, packed.shape[0]), BLOCK):
        count = bring(packed, first, tile)
        cuda.syncthreads()
        m = np.uint32(0)
        while m < count:
            kx, ky, kz, _ = load128(tile, WIDTH * m)
            re, im, _, _ = load128(tile, WIDTH * m + 4)
            for e in range(EACH):
                angle = kx * x[e] + ky * y[e] + kz * z[e]
                s, c = cuda.libdevice.fast_sinf(angle), cuda.libdevice.fast_cosf(angle)
                real[e] = (real[e] + re * c) - im * s
                imaginary[e] = (imaginary[e] + im * c) + re * s
            m = np.uint32(m + 1)
        cuda.syncthreads()
    for e in range(EACH):
        at = n + e * apart
        if at < voxels.shape[0]:
            out[cuda.blockIdx.y, 2 * at], out[cuda.blockIdx.y, 2 * at + 1] = real[e], imaginary[e]


@rung(unreduced_kernel, pack_kernel, sum_parts_kernel, begin=False)
def unreduced(p):
    """The fast sine gets the angle as it is. It turns it into a number of turns itself, and drops the whole ones.

    What that costs in digits is one rounding of the angle more: see `tolerance`.

    Source: NVIDIA, PTX ISA, "sin": the promised error for angles of up to 100 pi is that of such a rounding.
    """
    launch_parts(unreduced_kernel, p)


LADDER = (scattered, interchanged, fissioned, in_tiles, fast_trigonometry, several_voxels, in_parts, unreduced)
