"""Wrong versions of `mri` that people write, each with the reason for which the tests reject it."""

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.mri import ladder as room
from pmpp.kernels.mri.ladder import BLOCK, EACH, NUMBERS, TURN, WIDTH, bring, f0, product, wave
from pmpp.runtime.vector import load128
from tests.support.wrong import WrongRung


def named(function, name):
    function.__name__ = name
    return function


def launched(kernel, threads, name, cleared=False):
    """``kernel(k, phi, data, voxels, out)`` as a rung is called; ``threads(p)``: how many there are."""

    def image(k, phi, data, voxels):
        p = room.arguments(k, phi, data, voxels)
        if not p.done:
            if cleared:
                room.clear(p)
            given = p.k, p.phi, p.data, p.voxels, p.result.view(np.float32)
            kernel[blocks(threads(p), BLOCK), BLOCK](*given)
        return p.result

    return named(image, name)


def packed(kernel, name, each=1):
    """``kernel(packed, voxels, out)`` as a rung is called."""

    def image(k, phi, data, voxels):
        p = room.arguments(k, phi, data, voxels)
        if not p.done:
            given = room.packed_samples(p), p.voxels, p.result.view(np.float32)
            kernel[blocks(p.voxels.shape[0], each * BLOCK), BLOCK](*given)
        return p.result

    return named(image, name)


def of_samples(p):
    return p.k.shape[0]


def of_voxels(p):
    return p.voxels.shape[0]


# ------------------------------------------------------------------------------------------------- samples and voxels


@cuda.jit(device=True)
def of_turns(turns):
    return math.sin(TURN * turns), math.cos(TURN * turns)


@cuda.jit
def no_atomic(k, phi, data, voxels, out):
    m = cuda.grid(1)
    if m < k.shape[0]:
        re, im = product(phi, data, m)
        for n in range(voxels.shape[0]):
            s, c = of_turns(k[m, 0] * voxels[n, 0] + k[m, 1] * voxels[n, 1] + k[m, 2] * voxels[n, 2])
            out[2 * n] += re * c - im * s
            out[2 * n + 1] += im * c + re * s


def interchanged(wave=of_turns, product=product, guard=True, sign=1, name="interchanged"):
    """`interchanged` with another wave, another product, another sign of the angle, or without its guard."""
    sign = np.float32(sign)

    @cuda.jit
    def kernel(k, phi, data, voxels, out):
        n = cuda.grid(1)
        if not guard or n < voxels.shape[0]:
            real, imaginary = f0, f0
            for m in range(k.shape[0]):
                re, im = product(phi, data, m)
                s, c = wave(k[m, 0] * voxels[n, 0] + k[m, 1] * voxels[n, 1] + k[m, 2] * voxels[n, 2])
                s *= sign
                real += re * c - im * s
                imaginary += im * c + re * s
            out[2 * n], out[2 * n + 1] = real, imaginary

    return launched(kernel, of_voxels, name)


@cuda.jit(device=True)
def not_conjugated(phi, data, m):
    p, d = phi[m], data[m]
    return p.real * d.real - p.imag * d.imag, p.real * d.imag + p.imag * d.real


@cuda.jit(device=True)
def in_radians(turns):
    """As if the angle were in radians already."""
    return math.sin(turns), math.cos(turns)


@cuda.jit(device=True)
def exchanged(turns):
    return math.cos(TURN * turns), math.sin(TURN * turns)


@cuda.jit(device=True)
def halves_cut_off(turns):
    """Half a turn changes the sign, so only whole turns may go."""
    angle = TURN * (turns - np.float32(np.int32(turns + turns)) / np.float32(2))
    return cuda.libdevice.fast_sinf(angle), cuda.libdevice.fast_cosf(angle)


@cuda.jit(device=True)
def in_float64(turns):
    angle = 2 * math.pi * turns
    return np.float32(math.sin(angle)), np.float32(math.cos(angle))


# ------------------------------------------------------------------------------------------------------------- tiles


def in_tiles(before=True, after=True, rest=True, name="in_tiles"):
    """`fast_trigonometry` without one of its barriers, or as if every tile were full."""

    @cuda.jit
    def kernel(packed, voxels, out):
        tile = cuda.shared.array(NUMBERS, np.float32, alignment=16)
        n = cuda.grid(1)
        mine = min(n, voxels.shape[0] - 1)
        x, y, z, real, imaginary = voxels[mine, 0], voxels[mine, 1], voxels[mine, 2], f0, f0
        for first in range(0, packed.shape[0], BLOCK):
            count = bring(packed, first, tile)
            if before:
                cuda.syncthreads()
            for m in range(count if rest else BLOCK):
                kx, ky, kz, _ = load128(tile, WIDTH * m)
                re, im, _, _ = load128(tile, WIDTH * m + 4)
                s, c = wave(kx * x + ky * y + kz * z)
                real += re * c - im * s
                imaginary += im * c + re * s
            if after:
                cuda.syncthreads()
        if n < voxels.shape[0]:
            out[2 * n], out[2 * n + 1] = real, imaginary

    return packed(kernel, name)


def several_voxels(guard=True, neighbours=False, name="several_voxels"):
    """`several_voxels` without its last guard, or with each block's voxels counted as if threads had one."""

    @cuda.jit
    def kernel(packed, voxels, out):
        tile = cuda.shared.array(NUMBERS, np.float32, alignment=16)
        n, apart = cuda.grid(1), 1 if neighbours else cuda.gridsize(1)
        for e in range(EACH):
            mine = min(n + e * apart, voxels.shape[0] - 1)
            x, y, z, real, imaginary = voxels[mine, 0], voxels[mine, 1], voxels[mine, 2], f0, f0
            for first in range(0, packed.shape[0], BLOCK):
                count = bring(packed, first, tile)
                cuda.syncthreads()
                for m in range(count):
                    kx, ky, kz, _ = load128(tile, WIDTH * m)
                    re, im, _, _ = load128(tile, WIDTH * m + 4)
                    s, c = wave(kx * x + ky * y + kz * z)
                    real += re * c - im * s
                    imaginary += im * c + re * s
                cuda.syncthreads()
            if not guard or n + e * apart < voxels.shape[0]:
                out[2 * (n + e * apart)], out[2 * (n + e * apart) + 1] = real, imaginary

    return packed(kernel, name, EACH)


RUNGS = (
    WrongRung(launched(no_atomic, of_samples, "no_atomic", cleared=True), "race"),
    WrongRung(launched(room.scattered_kernel, of_samples, "sums_not_cleared"), "uninitialised read"),
    WrongRung(interchanged(guard=False, name="no_guard"), "out of bounds"),
    WrongRung(interchanged(sign=-1, name="wave_backwards"), "wrong result"),
    WrongRung(interchanged(product=not_conjugated, name="phi_not_conjugated"), "wrong result"),
    WrongRung(interchanged(wave=in_radians, name="turns_taken_for_radians"), "wrong result"),
    WrongRung(interchanged(wave=exchanged, name="sine_and_cosine_exchanged"), "wrong result"),
    WrongRung(interchanged(wave=halves_cut_off, name="half_turns_cut_off"), "wrong result"),
    WrongRung(interchanged(wave=in_float64, name="angle_in_float64"), "float64"),
    WrongRung(in_tiles(before=False, name="tile_read_too_early"), "race"),
    WrongRung(in_tiles(after=False, name="tile_overwritten_too_early"), "race"),
    WrongRung(in_tiles(rest=False, name="leftovers_of_the_last_tile"), "uninitialised read"),
    WrongRung(several_voxels(guard=False, name="last_voxels_unguarded"), "out of bounds"),
    WrongRung(several_voxels(neighbours=True, name="voxels_of_other_threads"), "wrong result"),
)
RIGHT = (interchanged(), in_tiles(), several_voxels())
