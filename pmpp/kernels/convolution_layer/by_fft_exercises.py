"""The exercise of notebooks/70_convolution_by_fft.ipynb: sums over channels of products of spectra."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 64  # threads per block


def _sums(image: np.ndarray, masks: np.ndarray) -> np.ndarray:
    return np.einsum("cf,kcf->kf", image.astype(np.complex128), masks.conj())


def _spectrum(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(np.complex64)


def _products_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for k, c, f in ((1, 1, 1), (3, 2, 21), (2, 5, 33), (5, 3, 129), (4, 16, 80), (40, 2, 72)):
        image, masks = _spectrum(rng, c, f), _spectrum(rng, k, c, f)
        # Each part of a sum has 2 c products and as many additions: at most 2 c + 1 roundings of each product.
        size = np.einsum("cf,kcf->kf", abs(image).astype(float), abs(masks).astype(float))
        args = image, masks, unwritten((k, f), np.complex64)
        name = f"{k} filter{'s' * (k > 1)}, {c} channel{'s' * (c > 1)}, {f} point{'s' * (f > 1)}"
        allowed = 2 * (2 * c + 1) * 2.0**-24 * size  # of both parts
        cases.append(Case(name, args, blocks(k * f, BLOCK), BLOCK, {2: _sums(image, masks)}, {2: allowed}))
    return cases


@cuda.jit
def products_answer(image, masks, out):
    at = cuda.grid(1)
    k, f = at // out.shape[1], at % out.shape[1]
    if k < out.shape[0]:
        total = np.complex64(0)
        for c in range(image.shape[0]):
            total += image[c, f] * masks[k, c, f].conjugate()
        out[k, f] = total


def _no_conjugate(image: np.ndarray, masks: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: _sums(image, masks.conj())}


def _of_the_image(image: np.ndarray, masks: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: _sums(image, masks).conj()}


def _last_channel(image: np.ndarray, masks: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: _sums(image[-1:], masks[:, -1:])}


EXERCISES = (
    Exercise(
        "by_fft/products",
        task="Multiply spectra. image has shape (C, F): a tile of each channel, transformed. masks has shape "
        "(K, C, F): the window of each filter and channel, transformed. out has shape (K, F), and out[k, f] is the sum "
        "over c of image[c, f] times the conjugate of masks[k, c, f]. All are complex64. "
        f"The launch has {BLOCK} threads per block, one for each element of out.",
        parameters="image, masks, out",
        cases=_products_cases,
        answer=products_answer,
        budget=lambda case: {"flops_f64": (0, "A sum that starts at 0j is complex128: write np.complex64(0).")},
        hints=(
            "Find k and f first: f is what changes fastest, so that neighbouring threads read neighbours.",
            "z.conjugate() is the conjugate of a complex number; .real and .imag are its parts.",
            "Start the sum at np.complex64(0): 0j is complex128, and makes a complex128 of what it meets.",
        ),
        traps=(
            Trap(
                "not conjugated",
                "This is a convolution, whose window is mirrored. A layer correlates: take the conjugate of masks.",
                _no_conjugate,
            ),
            Trap("image conjugated", "It is the window's spectrum that is conjugated, not the image's.", _of_the_image),
            Trap("one channel", "A sum over channels: add every c, and do not start anew.", _last_channel),
        ),
    ),
)
