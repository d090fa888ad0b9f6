"""Linear layer: y = x Wᵀ + b in float32, with a ReLU behind it or none.

Chapter: notebooks/74_linear.ipynb.  PMPP 4e ch. 5, 6 and 16.

A layer with ``in`` inputs and ``out`` outputs has a weight for each pair, W of shape (out, in), and a bias for each
output. A batch is a matrix x with a row for each example. The arithmetic is that of chapter 12, but the shapes are not:
a layer is often thin. A batch of 256 with 400 inputs and 120 outputs gives a large GPU eight tiles of 64 x 64 to do, a
single example gives it one row. For one row memory is the bound: each weight is read for one multiply-add.
"""

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.linear import products
from pmpp.kernels.linear.products import finished
from pmpp.runtime import device
from pmpp.runtime.rung import Cost, Problem, rung

ACTIVATIONS = (None, "relu")
f0 = np.float32(0)


def reference(x: np.ndarray, weight: np.ndarray, bias=None, activation=None) -> np.ndarray:
    """One output of one example after another: the sum of its products in float64, and the bias."""
    y = np.zeros((x.shape[0], weight.shape[0]))
    for i, o in np.ndindex(y.shape):
        y[i, o] = sum(float(value) * float(w) for value, w in zip(x[i], weight[o], strict=True))
        y[i, o] += 0 if bias is None else float(bias[o])
    return np.where(y < 0, 0.0, y) if activation == "relu" else y  # a NaN is not below 0, and stays


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs by name: (x, weight, bias, activation)."""
    rng = np.random.default_rng(0) if rng is None else rng

    def layer(rows: int, features: int, outputs: int, bias: bool = True, activation: str | None = None) -> tuple:
        x = rng.standard_normal((rows, features), dtype=np.float32)
        weight = rng.standard_normal((outputs, features), dtype=np.float32)
        return x, weight, rng.standard_normal(outputs, dtype=np.float32) if bias else None, activation

    found = {"one": layer(1, 1, 1), "no rows": layer(0, 4, 3), "no outputs": layer(4, 3, 0)}
    found |= {"no features": layer(3, 0, 5), "no features, no bias": layer(2, 0, 4, False, "relu")}
    found |= {"one row": layer(1, 36, 9, activation="relu"), "three rows, no bias": layer(3, 24, 6, False)}
    found |= {"a tile and one": layer(33, 31, 34), "rows of sixteen bytes": layer(35, 40, 36, activation="relu")}
    found |= {"deep": layer(9, 68, 12), "deep and odd": layer(10, 43, 5, False, "relu")}
    x, weight, bias, _ = layer(12, 20, 8)
    found["cancellation"] = np.hstack([x, -x]), np.hstack([weight, weight]), bias, None
    non_finite = x.copy()
    non_finite[3, 4], non_finite[7, 0], non_finite[9, -1] = np.nan, np.inf, -np.inf
    return found | {"non-finite": (non_finite, weight, bias, "relu"), "outliers": (x * 1e6, weight, bias, None)}


def cost(rows: int, features: int, outputs: int) -> Cost:
    """A multiply-add for each weight and row; x, W and the bias read once, y written once."""
    moved = rows * features + features * outputs + outputs + rows * outputs
    return Cost(flops=2 * rows * features * outputs, bytes=4 * moved)


def tolerance(x: np.ndarray, weight: np.ndarray, bias=None, activation=None) -> np.ndarray:
    """How far from the exact result a right one may be.

    Each of the products is rounded, unless it is fused with its addition. It then takes part in at most ``in``
    additions, in whatever order and however the sum is split, and in that of the bias. Each rounds by at most half an
    eps of the sum of the absolute values (Higham, Accuracy and Stability of Numerical Algorithms, section 3.5). A ReLU
    makes no error larger.
    """
    with np.errstate(all="ignore"):
        terms = np.abs(x).astype(np.float64) @ np.abs(weight).astype(np.float64).T
        terms += 0 if bias is None else np.abs(bias)
        return growth(x.shape[1] + 2) * terms


def growth(roundings: int) -> float:
    """The relative error of so many roundings of float32: n u / (1 - n u)."""
    relative = roundings * float(np.finfo(np.float32).eps) / 2
    return relative / (1 - relative)


def arguments(x, weight, bias=None, activation=None, *, out=None, stream=0) -> Problem:
    """Apply a linear layer to each row of x.

    Args:
        x: float32, shape (N, in); C order, as all arrays.
        weight: float32, shape (out, in): PyTorch's layout.
        bias: float32, shape (out,), or None for none.
        activation: "relu" to set negative results to 0 (a NaN stays one), or None.
        out: a float32 device array of shape (N, out), apart from x, weight and bias in memory, or None to allocate
            one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. An extent may be 0; without inputs the bias is left.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> from pmpp.kernels.linear import ladder
    >>> ladder.tiled(np.float32([[1, 2]]), np.float32([[3, 4], [-5, 1]]), np.float32([10, 1]), "relu").copy_to_host()
    array([[21.,  0.]], dtype=float32)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes="float32", ndim=2, stream=stream)
    weight = device.as_input("weight", weight, dtypes="float32", ndim=2, shape=(None, x.shape[1]), stream=stream)
    shape = x.shape[0], weight.shape[0]
    if bias is not None:
        bias = device.as_input("bias", bias, dtypes="float32", ndim=1, shape=(shape[1],), stream=stream)
    if not (activation is None or (isinstance(activation, str) and activation == "relu")):
        raise ValueError(f"activation must be None or 'relu', was {activation!r}")
    apart = {"x": x, "weight": weight, "bias": bias}
    out = device.as_output("out", out, shape=shape, dtype="float32", apart=apart, stream=stream)
    products.check_sizes(x=x, weight=weight, out=out)
    return Problem(out, stream=stream, x=x, weight=weight, bias=bias, relu=activation is not None)


# ------------------------------------------------------------------------------------------------ one output a thread

BLOCK = 256


@cuda.jit
def naive_kernel(x, weight, bias, y, relu):
    at = cuda.grid(1)
    if at < y.size:
        row, output = at // y.shape[1], at % y.shape[1]
        total = bias[output] if bias.size else f0
        k = 0
        while k < x.shape[1]:
            total += x[row, k] * weight[output, k]
            k += 1
        y[row, output] = finished(total, f0 if relu else np.float32(-math.inf))


def bias_of(p: Problem):
    """What a kernel takes as the bias: an array of no elements for none."""
    return products.nothing() if p.bias is None else p.bias


@rung(naive_kernel)
def naive(p):
    """One thread for each output of each example: a row of x times a row of W.

    Source: PMPP 4e section 3.4.

    Leaves: neighbouring threads read rows of W that lie ``in`` numbers apart: 32 sectors a request.
    """
    naive_kernel[blocks(p.result.size, BLOCK), BLOCK, p.stream](p.x, p.weight, bias_of(p), p.result, p.relu)


# ----------------------------------------------------------------------------------------------- tiles in shared memory

TILE = 32  # a block computes a TILE x TILE square of y
PITCH = TILE + 1  # W's tile is read down its columns: its rows begin one bank apart


@cuda.jit(device=True)
def element(a, row, column):
    """a[row, column], or beyond the edges 0, which adds nothing to a sum."""
    return a[row, column] if row < a.shape[0] and column < a.shape[1] else f0


@cuda.jit
def tiled_kernel(x, weight, bias, y, relu):
    x_tile = cuda.shared.array((TILE, TILE), np.float32)
    weight_tile = cuda.shared.array((TILE, PITCH), np.float32)
    i, j = np.uint32(cuda.threadIdx.x), np.uint32(cuda.threadIdx.y)
    across = (y.shape[1] + TILE - 1) // TILE
    first_row, first_output = cuda.blockIdx.x // across * TILE, cuda.blockIdx.x % across * TILE
    row, output = first_row + j, first_output + i
    total = f0
    k0 = 0
    while k0 < x.shape[1]:
        x_tile[j, i] = element(x, row, k0 + i)
        weight_tile[j, i] = element(weight, first_output + j, k0 + i)  # both along k, as they lie in memory
        cuda.syncthreads()
        for k in range(TILE):
            total += x_tile[j, k] * weight_tile[i, k]
        cuda.syncthreads()
        k0 += TILE
    if row < y.shape[0] and output < y.shape[1]:
        total += bias[output] if bias.size else f0
        y[row, output] = finished(total, f0 if relu else np.float32(-math.inf))


@rung(tiled_kernel)
def tiled(p):
    """A block loads squares of x and of W into shared memory as they lie, and reads that of W down its columns.

    Source: PMPP 4e sections 5.3 to 5.5; the padded column is that of chapter 16.

    Leaves: every multiply-add waits for two loads from shared memory.
    """
    grid = blocks(p.result.shape[0], TILE) * blocks(p.result.shape[1], TILE)
    tiled_kernel[grid, (TILE, TILE), p.stream](p.x, p.weight, bias_of(p), p.result, p.relu)


# --------------------------------------------------------------------------------------------------- tiles in registers


def product(p: Problem, plan: products.Plan | None) -> None:
    """y by the product kernel: x and W are both deep."""
    a, b = products.Matrix(p.x, True), products.Matrix(p.weight, True)
    products.launch(a, b, p.result, bias=p.bias, relu=p.relu, plan=plan, stream=p.stream)


@rung(products.kernel_for)
def register_tiled(p):
    """A thread computes 8 x 8 outputs in registers, and finishes them there: bias and ReLU cost no pass of their own.

    Source: as `pmpp.kernels.matmul.batched`; PMPP 4e section 6.3.

    Leaves: 256 x 120 outputs are eight tiles of 64 x 64, and an H200 has 132 multiprocessors.
    """
    product(p, products.slices_of(products.MIDDLE, p.x.shape[1], 1))


@rung(products.kernel_for, products.add_kernel)
def split(p):
    """The sum over the inputs is cut into slices, each with its own blocks; a second kernel adds them in their order.

    Source: CUTLASS, "Efficient GEMM in CUDA", parallelised reductions.

    Leaves: slices are written and read once more, a row alone computes 63 that are thrown away, and what is small
    waits for a second launch.
    """
    product(p, plan_of(p, (products.MIDDLE,)))


def plan_of(p: Problem, tiles: tuple[products.Tile, ...] = ()) -> products.Plan:
    """The plan for y, of some tiles or of all."""
    (rows, features), outputs = p.x.shape, p.weight.shape[0]
    vectors = products.Matrix(p.x, True).vectors and products.Matrix(p.weight, True).vectors
    return products.plan_for(rows, outputs, features, vectors, device.limits()["multiprocessors"], tiles)


@rung(products.few_rows_kernel_for, products.kernel_for, products.add_kernel)
def by_shape(p):
    """The shape decides: up to 2 rows a warp for each two outputs, else tiles and slices that should take least time.

    Source: for few rows, PMPP 4e section 16.2 and chapter 30's sum over a warp.
    """
    rows, outputs = p.result.shape
    if rows <= products.FEW and products.Matrix(p.x, True).vectors and products.Matrix(p.weight, True).vectors:
        kernel = products.few_rows_kernel_for(rows)
        grid = blocks(outputs, products.OUTPUTS * products.WARPS)
        kernel[grid, 32 * products.WARPS, p.stream](p.x, p.weight, bias_of(p), p.result, p.relu)
    else:
        product(p, None)


LADDER = (naive, tiled, register_tiled, split, by_shape)
