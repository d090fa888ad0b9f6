"""The norm of all gradients: and for each tensor its mean, its largest element, and how many are not finite.

Chapter: notebooks/82_optimisers.ipynb.  PMPP 4e ch. 10.

Every gradient is read once, 4 bytes for some five operations, and next to nothing is written: the bound is the time to
read them. The sums are made in an order that depends on sizes alone, so the same gradients give the same bits.
"""

from __future__ import annotations

import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import block_max, block_sum, blocks
from pmpp.kernels.optimiser import tensors
from pmpp.kernels.optimiser.tensors import BLOCK, f0
from pmpp.runtime import device
from pmpp.runtime.addresses import array_at
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128

VECTORS = 8  # of 128 bits, for each thread
PART = 4 * VECTORS * BLOCK  # elements a block: 32 KiB
NORM, MEAN, LARGEST, NOT_FINITE = range(4)  # columns of the result


def reference(*gradients: np.ndarray) -> np.ndarray:
    """A row for each gradient and one for all together: norm, mean, largest finite size, how many are not finite."""
    flat = [one.astype(np.float64).reshape(-1) for one in gradients]
    with np.errstate(invalid="ignore"):
        return np.array([_row(one) for one in (*flat, np.concatenate(flat))])


def _row(g: np.ndarray) -> tuple[float, float, float, float]:
    finite = np.isfinite(g)
    largest = np.abs(g[finite]).max(initial=0.0)
    return math.sqrt(np.sum(g * g)), g.sum() / max(g.size, 1), largest, g.size - finite.sum()


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and one gradient."""
    rng = np.random.default_rng(10) if rng is None else rng
    made = {f"n = {n}": (rng.standard_normal(n).astype(np.float32),) for n in (0, 1, 3, 4, BLOCK, BLOCK + 1, PART - 1)}
    made |= {f"n = {n}": (rng.standard_normal(n).astype(np.float32),) for n in (PART, PART + 1, 3 * PART + 5)}
    made["a matrix"] = (rng.standard_normal((31, 7)).astype(np.float32),)
    made["all zero"] = (np.zeros(300, np.float32),)
    made["cancelling"] = (np.where(np.arange(1000) % 2, 1, -1).astype(np.float32),)
    made["one large"] = (np.where(np.arange(5000) == 4711, 1e6, 1e-3).astype(np.float32),)
    made["tiny"] = (np.float32(1e-15) * rng.standard_normal(70).astype(np.float32),)
    for name, value in {"a NaN": np.nan, "infinite": -np.inf}.items():
        g = rng.standard_normal(PART + 70).astype(np.float32)
        g[PART + 9], g[3] = value, value
        made[name] = (g,)
    return made


def tolerance(*gradients: np.ndarray) -> np.ndarray:
    """How far from the reference is right: u = 2^-24, and a term passes through no more than 64 additions.

    A thread adds 32 numbers, a warp and a block add 10 times, and so do the blocks that add the parts, after a few in
    each of their threads. So a sum is wrong by 64 u of its absolute terms at most. All squares are positive: their
    sum's relative error is 65 u, and half of that after the root. The largest element and the count are exact.
    """
    u = 2.0**-24
    flat = [np.abs(one.astype(np.float64)).reshape(-1) for one in gradients]
    rows = []
    for g in (*flat, np.concatenate(flat)):
        g = g[np.isfinite(g)]
        rows.append((36 * u * math.sqrt(np.sum(g * g)) + 2.0**-70, 66 * u * g.sum() / max(g.size, 1) + 2.0**-126, 0, 0))
    return np.array(rows)


def cost(n: int) -> Cost:
    """For ``n`` gradients: each read once; a square, two sums, a comparison for the largest and one if it is finite."""
    return Cost(flops=5 * n, bytes=4 * n)


def arguments(gradients, *, out=None, stream=0) -> Problem:
    """The norm of gradients, of each tensor and of all together, with three more statistics.

    Args:
        gradients: an array of any shape, float32, contiguous; or a list of such arrays.
        out: a device array (tensors + 1, 4) of float32 apart from ``gradients`` in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done: a row for each tensor, and the last for all together. Its
    columns are the Euclidean norm, the mean, the largest size of a finite element, and how many elements are not
    finite. Of no elements all four are 0. Squares are float32: from 1.8e19 on an element makes the norm infinite.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: R. Pascanu and others, On the difficulty of training recurrent neural networks (2013), for the clipping;
    PyTorch's torch.nn.utils.get_total_norm.

    >>> from pmpp.kernels.optimiser import gradient_norm
    >>> gradient_norm.vectorised([np.float32([3, np.inf]), np.float32([[4, -4]])]).copy_to_host()
    array([[     inf,      inf, 3.      , 1.      ],
           [5.656854, 0.      , 4.      , 0.      ],
           [     inf,      inf, 4.      , 1.      ]], dtype=float32)
    """
    stream = device.as_stream(stream)
    gradients = tensors.given("gradients", gradients, None, update=False, stream=stream)
    apart = tensors.named(gradients=gradients)
    shape = len(gradients) + 1, 4
    out = device.as_output("out", out, shape=shape, dtype=np.float32, apart=apart, stream=stream)
    return Problem(out, stream=stream, gradients=tuple(one.reshape(-1) for one in gradients), out=out)


# ------------------------------------------------------------------------------------------------ a block for a tensor


@cuda.jit(device=True)
def note(x, squares, total, largest, lost):
    """Four running statistics with one element more."""
    size = abs(x)
    if size <= np.float32(3.4028235e38):  # neither infinite nor NaN
        largest = max(largest, size)
    else:
        lost += np.float32(1)
    return squares + x * x, total + x, largest, lost


@cuda.jit(device=True)
def of_block(squares, total, largest, lost):
    """The statistics of a block's threads together, in all of them."""
    partial = cuda.shared.array((4, 32), np.float32)
    squares, total = block_sum(squares, partial[0]), block_sum(total, partial[1])
    return squares, total, block_max(largest, partial[2]), block_sum(lost, partial[3])


@cuda.jit
def whole_kernel(gradient, sums, row):
    squares, total, largest, lost = f0, f0, f0, f0
    for i in range(cuda.threadIdx.x, gradient.size, BLOCK):
        squares, total, largest, lost = note(gradient[i], squares, total, largest, lost)
    squares, total, largest, lost = of_block(squares, total, largest, lost)
    if cuda.threadIdx.x == 0:
        sums[row, 0], sums[row, 1], sums[row, 2], sums[row, 3] = squares, total, largest, lost


@cuda.jit(device=True)
def write(out, row, squares, total, largest, lost, n):
    """A row of the result, of ``n`` elements."""
    out[row, NORM], out[row, LARGEST], out[row, NOT_FINITE] = math.sqrt(squares), largest, lost
    out[row, MEAN] = total / np.float32(max(n, 1))


@cuda.jit
def together_kernel(sums, sizes, out):
    """One block: the rows of the tensors, and that of all together."""
    squares, total, largest, lost = f0, f0, f0, f0
    n = np.int64(0)
    for row in range(cuda.threadIdx.x, sizes.size, BLOCK):
        write(out, row, sums[row, 0], sums[row, 1], sums[row, 2], sums[row, 3], sizes[row])
        squares, total = squares + sums[row, 0], total + sums[row, 1]
        largest, lost = max(largest, sums[row, 2]), lost + sums[row, 3]
    for row in range(sizes.size):
        n += sizes[row]
    squares, total, largest, lost = of_block(squares, total, largest, lost)
    if cuda.threadIdx.x == 0:
        write(out, sizes.size, squares, total, largest, lost, n)


@rung(whole_kernel, together_kernel)
def a_block_a_tensor(p):
    """One block walks through a tensor, a launch for each; then one block puts together what they found.

    Leaves: a GPU has room for a thousand blocks, and each launch uses one.
    """
    sums = device.empty((len(p.gradients), 4), np.float32, stream=p.stream)
    for row, gradient in enumerate(p.gradients):
        whole_kernel[1, BLOCK, p.stream](gradient, sums, row)
    together_kernel[1, BLOCK, p.stream](sums, _sizes(p), p.out)


@device.cached(64)
def _on_device(sizes: tuple[int, ...]) -> typing.Any:
    return device.to_device(np.array(sizes, np.int64))


def _sizes(p: Problem) -> typing.Any:
    """The tensors' sizes, on the device."""
    return _on_device(tuple(one.size for one in p.gradients))


# -------------------------------------------------------------------------------------------------------- in two levels


@cuda.jit
def parts_kernel(table, chunks, parts):
    tensor, part = chunks[cuda.blockIdx.x, 0], chunks[cuda.blockIdx.x, 1]
    n = table[tensor, table.shape[1] - 1]
    gradient = array_at(table[tensor, 0], n, np.float32)
    squares, total, largest, lost = f0, f0, f0, f0
    begin = np.int64(part) * PART
    for i in range(begin + cuda.threadIdx.x, min(begin + PART, gradient.size), BLOCK):
        squares, total, largest, lost = note(gradient[i], squares, total, largest, lost)
    squares, total, largest, lost = of_block(squares, total, largest, lost)
    if cuda.threadIdx.x == 0:
        k = cuda.blockIdx.x
        parts[k, 0], parts[k, 1], parts[k, 2], parts[k, 3] = squares, total, largest, lost


@cuda.jit
def tensors_kernel(parts, first, sums):
    """A block for each tensor, whose parts are those from ``first[row]`` on."""
    row = cuda.blockIdx.x
    squares, total, largest, lost = f0, f0, f0, f0
    for k in range(first[row] + cuda.threadIdx.x, first[row + 1], BLOCK):
        squares, total = squares + parts[k, 0], total + parts[k, 1]
        largest, lost = max(largest, parts[k, 2]), lost + parts[k, 3]
    squares, total, largest, lost = of_block(squares, total, largest, lost)
    if cuda.threadIdx.x == 0:
        sums[row, 0], sums[row, 1], sums[row, 2], sums[row, 3] = squares, total, largest, lost


@device.cached(64)
def _first_parts(sizes: tuple[int, ...]) -> typing.Any:
    """The number of each tensor's first part, and the number of all."""
    return device.to_device(np.cumsum([0, *(blocks(size, PART) for size in sizes)]))


def in_levels(p, kernel):
    """Launch a kernel that finds the statistics of parts, and then those that put them together."""
    table, chunks = tensors.tables(p.gradients, chunk=PART, stream=p.stream)
    parts = device.empty((chunks.shape[0], 4), np.float32, stream=p.stream)
    sums = device.empty((len(p.gradients), 4), np.float32, stream=p.stream)
    if chunks.shape[0]:
        kernel[chunks.shape[0], BLOCK, p.stream](table, chunks, parts)
    first = _first_parts(tuple(one.size for one in p.gradients))
    tensors_kernel[len(p.gradients), BLOCK, p.stream](parts, first, sums)
    together_kernel[1, BLOCK, p.stream](sums, _sizes(p), p.out)


@rung(parts_kernel, tensors_kernel, together_kernel)
def two_level(p):
    """One launch for all tensors, a block for 8,192 elements; two small ones add up what the blocks found.

    Nothing is added by an atomic operation: which part goes where depends on sizes alone.

    Leaves: a load has 4 bytes, and the next one's address is computed anew.
    """
    in_levels(p, parts_kernel)


# ------------------------------------------------------------------------------------------------------- 128 bits wide


@cuda.jit
def vectorised_kernel(table, chunks, parts):
    tensor, part = chunks[cuda.blockIdx.x, 0], chunks[cuda.blockIdx.x, 1]
    n = table[tensor, table.shape[1] - 1]
    gradient, whole = array_at(table[tensor, 0], n, np.float32), table[tensor, 1]
    squares, total, largest, lost = f0, f0, f0, f0
    begin = np.int64(part) * PART
    for k in range(VECTORS):
        i = begin + 4 * (k * BLOCK + cuda.threadIdx.x)
        if i < whole:
            a, b, c, d = load128(gradient, i)
            squares, total, largest, lost = note(a, squares, total, largest, lost)
            squares, total, largest, lost = note(b, squares, total, largest, lost)
            squares, total, largest, lost = note(c, squares, total, largest, lost)
            squares, total, largest, lost = note(d, squares, total, largest, lost)
        else:
            for j in range(i, min(i + 4, gradient.size)):
                squares, total, largest, lost = note(gradient[j], squares, total, largest, lost)
    squares, total, largest, lost = of_block(squares, total, largest, lost)
    if cuda.threadIdx.x == 0:
        k = cuda.blockIdx.x
        parts[k, 0], parts[k, 1], parts[k, 2], parts[k, 3] = squares, total, largest, lost


@rung(vectorised_kernel, tensors_kernel, together_kernel)
def vectorised(p):
    """The same with loads of 128 bits, eight for each thread."""
    in_levels(p, vectorised_kernel)


LADDER = (a_block_a_tensor, two_level, vectorised)
