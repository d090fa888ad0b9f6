"""Gradients of a linear layer: what y = x Wᵀ + b passes back to x, W and b.

Chapter: notebooks/74_linear.ipynb.  PMPP 4e ch. 16.

Let L be a number that depends on y, and dy[i, o] its derivative by y[i, o]. Since y[i, o] is the sum of x[i, k] W[o, k]
over k and of b[o], the chain rule gives

- dx[i, k], the sum of dy[i, o] W[o, k] over the outputs: dx = dy W.
- dW[o, k], the sum of dy[i, o] x[i, k] over the examples: dW = dyᵀ x.
- db[o], the sum of dy[i, o] over the examples.

Each of the two products has as many multiply-adds as the layer itself. That of dW sums over the batch: it is a small
matrix, from sums that may be very long. Split, these fill a GPU; added in a fixed order, they give the same bits.
"""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks, round_up
from pmpp.kernels.linear import products
from pmpp.kernels.linear.ladder import growth
from pmpp.runtime import device
from pmpp.runtime.rung import Cost, Problem, rung

GRADIENTS = ("x", "weight", "bias")
f0 = np.float32(0)


def reference(dy: np.ndarray, x: np.ndarray, weight: np.ndarray, of: str = "weight") -> np.ndarray:
    """The gradient as the sums over y's elements say it, in float64."""
    made = np.zeros({"x": x.shape, "weight": weight.shape, "bias": weight.shape[:1]}[of])
    for i, o in np.ndindex(dy.shape):
        passed = float(dy[i, o])
        if of == "x":
            made[i] += passed * weight[o].astype(np.float64)
        elif of == "weight":
            made[o] += passed * x[i].astype(np.float64)
        else:
            made[o] += passed
    return made


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs by name: (dy, x, weight, of)."""
    rng = np.random.default_rng(0) if rng is None else rng

    def layer(rows: int, features: int, outputs: int) -> tuple:
        shapes = (rows, outputs), (rows, features), (outputs, features)
        return tuple(rng.standard_normal(shape, dtype=np.float32) for shape in shapes)

    shapes = {"one": (1, 1, 1), "no rows": (0, 4, 3), "a tile and one": (33, 34, 31), "fours": (20, 36, 40)}
    found = {f"{name}, {of}": (*layer(*shape), of) for name, shape in shapes.items() for of in GRADIENTS}
    found |= {f"long, {of}": (*layer(90, 8, 12), of) for of in ("weight", "bias")}
    found |= {"one row, x": (*layer(1, 36, 9), "x"), "one row, weight": (*layer(1, 36, 9), "weight")}
    found |= {"no features, bias": (*layer(4, 0, 3), "bias"), "no outputs, x": (*layer(3, 4, 0), "x")}
    found["many outputs, x"] = (*layer(5, 12, 70), "x")
    dy, x, weight = layer(10, 12, 8)
    dy[3, 4], dy[7, 0], dy[9, -1] = np.nan, np.inf, -np.inf
    found |= {f"non-finite, {of}": (dy, x, weight, of) for of in GRADIENTS}
    dy, x, weight = layer(8, 12, 8)
    found["cancellation, weight"] = np.vstack([dy, -dy]), np.vstack([x, x]), weight, "weight"
    return found


def cost(rows: int, features: int, outputs: int, of: str = "weight") -> Cost:
    """For dx and dW a multiply-add for each weight and row, for db an addition for each element of dy."""
    dy, x, weight = rows * outputs, rows * features, features * outputs
    if of == "bias":
        return Cost(flops=dy, bytes=4 * (dy + outputs))
    return Cost(flops=2 * rows * weight, bytes=4 * (dy + x + weight))  # one of the three is written


def tolerance(dy: np.ndarray, x: np.ndarray, weight: np.ndarray, of: str = "weight") -> np.ndarray:
    """How far from the exact gradient a right one may be: as `pmpp.kernels.linear.tolerance`, for sums over outputs or
    over examples."""
    dy, x, weight = (np.abs(one).astype(np.float64) for one in (dy, x, weight))
    with np.errstate(all="ignore"):
        terms = {"x": lambda: dy @ weight, "weight": lambda: dy.T @ x, "bias": lambda: dy.sum(axis=0)}[of]()
    return growth((dy.shape[1] if of == "x" else dy.shape[0]) + 1) * terms


def arguments(dy, x, weight, of="weight", *, out=None, stream=0) -> Problem:
    """One gradient of a linear layer y = x Wᵀ + b.

    Args:
        dy: float32, shape (N, out): the gradient of y; C order, as all arrays.
        x: float32, shape (N, in): what the layer was applied to.
        weight: float32, shape (out, in).
        of: "x", "weight" or "bias": of what the gradient is wanted.
        out: a float32 device array of the shape of x, of weight, or (out,), apart from dy, x and weight in memory, or
            None to allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. An extent may be 0; a sum of nothing is 0.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> from pmpp.kernels.linear import linear_gradients
    >>> dy, x, weight = np.float32([[1, 10]]), np.float32([[2, 3]]), np.float32([[1, 1], [0, 5]])
    >>> linear_gradients.tiled(dy, x, weight, "x").copy_to_host()
    array([[ 1., 51.]], dtype=float32)
    """
    stream = device.as_stream(stream)
    if not (isinstance(of, str) and of in GRADIENTS):
        raise ValueError(f"of must be 'x', 'weight' or 'bias', was {of!r}")
    dy, x, weight = checked(dy, x, weight, stream)
    shape = {"x": x.shape, "weight": weight.shape, "bias": weight.shape[:1]}[of]
    apart = {"dy": dy, "x": x, "weight": weight}
    out = device.as_output("out", out, shape=shape, dtype="float32", apart=apart, stream=stream)
    return Problem(out, stream=stream, dy=dy, x=x, weight=weight, of=str(of))


def checked(dy, x, weight, stream, optional=()):
    """The three arrays on the device, found to fit each other. ``optional``: names of those that may be None."""
    dy = device.as_input("dy", dy, dtypes="float32", ndim=2, stream=stream)
    if x is not None or "x" not in optional:
        x = device.as_input("x", x, dtypes="float32", ndim=2, shape=(dy.shape[0], None), stream=stream)
    if weight is not None or "weight" not in optional:
        shape = dy.shape[1], None if x is None else x.shape[1]
        weight = device.as_input("weight", weight, dtypes="float32", ndim=2, shape=shape, stream=stream)
    products.check_sizes(dy=dy, x=x, weight=weight)
    return dy, x, weight


# ---------------------------------------------------------------------------------------------- one element a thread

BLOCK = 256


@cuda.jit
def naive_input_kernel(dy, weight, dx):
    at = cuda.grid(1)
    if at < dx.size:
        row, feature = at // dx.shape[1], at % dx.shape[1]
        total, output = f0, 0
        while output < dy.shape[1]:
            total += dy[row, output] * weight[output, feature]
            output += 1
        dx[row, feature] = total


@cuda.jit
def naive_weight_kernel(dy, x, dweight):
    at = cuda.grid(1)
    if at < dweight.size:
        output, feature = at // dweight.shape[1], at % dweight.shape[1]
        total, row = f0, 0
        while row < dy.shape[0]:
            total += dy[row, output] * x[row, feature]
            row += 1
        dweight[output, feature] = total


@cuda.jit
def naive_bias_kernel(dy, dbias):
    output = cuda.grid(1)
    if output < dbias.size:
        total, row = f0, 0
        while row < dy.shape[0]:
            total += dy[row, output]
            row += 1
        dbias[output] = total


@rung(naive_input_kernel, naive_weight_kernel, naive_bias_kernel)
def naive(p):
    """One thread for each element of the gradient: the sum that the chain rule says.

    Source: the derivation above; PMPP 4e section 16.3.

    Leaves: every multiply-add fetches its two operands through the caches, and a bias has few threads.
    """
    if p.of == "x":
        naive_input_kernel[blocks(p.result.size, BLOCK), BLOCK, p.stream](p.dy, p.weight, p.result)
    elif p.of == "weight":
        naive_weight_kernel[blocks(p.result.size, BLOCK), BLOCK, p.stream](p.dy, p.x, p.result)
    else:
        naive_bias_kernel[blocks(p.result.size, BLOCK), BLOCK, p.stream](p.dy, p.result)


# ----------------------------------------------------------------------------------------------- tiles in shared memory

TILE = 32  # a block computes a TILE x TILE square of the gradient


@cuda.jit(device=True)
def element(a, row, column):
    """a[row, column], or beyond the edges 0, which adds nothing to a sum."""
    return a[row, column] if row < a.shape[0] and column < a.shape[1] else f0


@cuda.jit
def tiled_kernel(a, b, c, a_deep):
    """C = A B, where A lies in memory as it is called, row by row, or column by column if it is not ``a_deep``."""
    a_tile = cuda.shared.array((TILE, TILE), np.float32)
    b_tile = cuda.shared.array((TILE, TILE), np.float32)
    x, y = np.uint32(cuda.threadIdx.x), np.uint32(cuda.threadIdx.y)
    across = (c.shape[1] + TILE - 1) // TILE
    first_row, column = cuda.blockIdx.x // across * TILE, cuda.blockIdx.x % across * TILE + x
    total = f0
    k0 = 0
    while k0 < b.shape[0]:
        a_tile[y, x] = element(a, first_row + y, k0 + x) if a_deep else element(a, k0 + y, first_row + x)
        b_tile[y, x] = element(b, k0 + y, column)
        cuda.syncthreads()
        for k in range(TILE):
            total += (a_tile[y, k] if a_deep else a_tile[k, y]) * b_tile[k, x]  # one of A's for all lanes: one bank
        cuda.syncthreads()
        k0 += TILE
    if first_row + y < c.shape[0] and column < c.shape[1]:
        c[first_row + y, column] = total


@rung(tiled_kernel, naive_bias_kernel)
def tiled(p):
    """Squares of both operands go into shared memory as they lie; a transposed one is read there down its columns.

    The gradient of the bias stays naive.

    Source: PMPP 4e sections 5.3 to 5.5.

    Leaves: every multiply-add waits for two loads from shared memory.
    """
    if p.of == "bias":
        naive.launch(p)
    else:
        grid = blocks(p.result.shape[0], TILE) * blocks(p.result.shape[1], TILE)
        b = p.weight if p.of == "x" else p.x
        tiled_kernel[grid, (TILE, TILE), p.stream](p.dy, b, p.result, p.of == "x")


# --------------------------------------------------------------------------------------------------- tiles in registers


def operands(of, dy, x, weight):
    """A and B of the product that is dx or dW. B is wide in both."""
    if of == "x":
        return products.Matrix(dy, True), products.Matrix(weight, False)
    return products.Matrix(dy, False), products.Matrix(x, False)


@rung(products.kernel_for, naive_bias_kernel)
def register_tiled(p):
    """A thread computes 8 x 8 elements in registers, from tiles that are read 16 bytes at a time, either way.

    The gradient of the bias stays naive.

    Source: as `pmpp.kernels.matmul.batched`; PMPP 4e section 6.3.

    Leaves: a layer of 512 x 512 has 64 tiles of 64 x 64, however long the batch, and an H200 has 132 multiprocessors.
    """
    if p.of == "bias":
        naive.launch(p)
    else:
        a, b = operands(p.of, p.dy, p.x, p.weight)
        products.launch(a, b, p.result, plan=products.slices_of(products.MIDDLE, a.sizes[0], 1), stream=p.stream)


# ------------------------------------------------------------------------------------------------------- split sums

ROWS, AHEAD = 8, 4  # rows of dy that a block reads at a time; rows that a thread has on their way
BUSY = 8  # blocks for each multiprocessor: 2048 threads


@cuda.jit
def column_sums_kernel(dy, partials, length):
    """A block sums 32 columns over ``length`` rows of dy, and leaves the sums in its row of ``partials``."""
    shared = cuda.shared.array((ROWS, 32), np.float32)
    x, y = np.uint32(cuda.threadIdx.x), np.uint32(cuda.threadIdx.y)
    across = (dy.shape[1] + 31) // 32
    part, column = cuda.blockIdx.x // across, cuda.blockIdx.x % across * 32 + x
    values = cuda.local.array(AHEAD, np.float32)
    row, end = part * length + y, min((part + 1) * length, dy.shape[0])
    if column >= dy.shape[1]:
        end = 0
    total = f0
    while row < end:
        for u in range(AHEAD):
            values[u] = dy[row + u * ROWS, column] if row + u * ROWS < end else f0
        for u in range(AHEAD):
            total += values[u]
        row += AHEAD * ROWS
    shared[y, x] = total
    cuda.syncthreads()
    if y == 0 and column < dy.shape[1]:
        for other in range(1, ROWS):
            total += shared[other, x]
        partials[part, column] = total


def column_sums(dy, sums, stream):
    """Launch the sums over the rows of dy: parts of it first, then the parts in their order."""
    rows, columns = dy.shape
    across = blocks(columns, 32)
    parts = max(1, min(blocks(rows, ROWS * AHEAD), BUSY * device.limits()["multiprocessors"] // across))
    length = round_up(blocks(rows, parts), ROWS * AHEAD)
    parts = max(1, blocks(rows, max(length, 1)))
    partials = sums.reshape(1, -1) if parts == 1 else device.empty((parts, columns), np.float32, stream=stream)
    column_sums_kernel[parts * across, (32, ROWS), stream](dy, partials, length)
    if parts > 1:
        none = products.nothing()
        adders = blocks(columns, products.ADDERS)
        target = sums.reshape(1, -1)
        products.add_kernel[adders, products.ADDERS, stream](
            partials.reshape(-1), none, parts, none, False, target, none
        )


@rung(products.kernel_for, products.add_kernel, column_sums_kernel)
def split(p):
    """Long sums are cut into slices with blocks of their own, and a second kernel adds the slices in their order.

    Source: CUTLASS, "Efficient GEMM in CUDA", parallelised reductions.

    Leaves: one size of tile for all shapes: what is small or thin leaves most of it unused.
    """
    if p.of == "bias":
        column_sums(p.dy, p.result, p.stream)
    else:
        a, b = operands(p.of, p.dy, p.x, p.weight)
        (k, m), n, vectors = a.sizes, p.result.shape[1], a.vectors and b.vectors
        plan = products.plan_for(m, n, k, vectors, device.limits()["multiprocessors"], (products.MIDDLE,))
        products.launch(a, b, p.result, plan=plan, stream=p.stream)


@rung(products.kernel_for, products.add_kernel, column_sums_kernel)
def by_shape(p):
    """Tiles and slices are chosen that should take least time; small sums are split within a block, in one launch.

    Source: `pmpp.kernels.linear.products`.
    """
    if p.of == "bias":
        column_sums(p.dy, p.result, p.stream)
    else:
        products.launch(*operands(p.of, p.dy, p.x, p.weight), p.result, stream=p.stream)


LADDER = (naive, tiled, register_tiled, split, by_shape)
