"""Exercises of notebooks/68_winograd.ipynb on Winograd: a row by F(2, 3), and the filters' transform."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.convolution_layer.winograd_transforms import cook_toom
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 64  # threads per block
FLOAT64 = "A literal such as 0.5 is float64, and makes a float64 of what it meets: write np.float32(0.5)."
PRUNED = 5, 1000  # lengths of the rows whose u[1] is set to 0: then u = G g for no g
A, G, B = (matrix.astype(np.float64) for matrix in cook_toom(2))


def _blocks(n: int) -> int:
    return blocks(n, BLOCK)


# -------------------------------------------------------------------------------------------- convolution_winograd/row


def _row(x: np.ndarray, u: np.ndarray, a: np.ndarray = A, b: np.ndarray = B) -> np.ndarray:
    """The outputs by F(2, 3) with these matrices, in float64."""
    tiles = x.size // 2 - 1 + x.size % 2
    tile = np.lib.stride_tricks.sliding_window_view(np.pad(x.astype(np.float64), (0, 2)), 4)[: 2 * tiles : 2]
    return ((tile @ b.T * u) @ a.T).reshape(-1)[: x.size - 2]


def _row_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    # None is 2 * BLOCK + 2, which the tile of a block has, and which may stand in the code.
    for n in (3, 4, 5, 2 * BLOCK + 3, 4 * BLOCK + 2, 1000, 2001):
        x, g = rng.standard_normal(n, dtype=np.float32), rng.standard_normal(3)
        u = (G @ g).astype(np.float32)
        pruned = n in PRUNED
        if pruned:
            u[1] = 0
        # At most four roundings: one in B^T, one in the product, two in A^T. A fifth covers second order.
        allowed = 5 * 2.0**-24 * _row(abs(x), abs(u), abs(A), abs(B))
        args = x, u, unwritten(n - 2, np.float32)
        name = f"n = {n}" + ", u[1] pruned" * pruned
        cases.append(Case(name, args, _blocks((n - 1) // 2), BLOCK, {2: _row(x, u)}, {2: allowed}))
    return cases


def _row_budget(case: Case) -> dict[str, tuple[float, str]]:
    pairs = (case.args[2].size + 1) // 2
    # 4 additions, 4 products, 4 additions: 12 operations. Sums that start at 0 add 2. The limit is 14.4: the way with
    # six products takes 15.
    sentence = "Two outputs take four multiplications: m = u * (B^T d), and both outputs are made of m1 and m2."
    return {"flops": (1.2 * 12 * pairs, sentence), "flops_f64": (0, FLOAT64)}


@cuda.jit
def row_answer(x, u, out):
    i = 2 * cuda.grid(1)
    if i < out.size:
        d0, d1, d2 = x[i], x[i + 1], x[i + 2]
        m1, m2 = u[1] * (d1 + d2), u[2] * (d2 - d1)
        out[i] = u[0] * (d2 - d0) + m1 + m2
        if i + 1 < out.size:
            out[i + 1] = m1 - m2 + u[3] * (x[i + 3] - d1)


def _plus(x: np.ndarray, u: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: _row(x, u, a=abs(A))}


def _other_sign(x: np.ndarray, u: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: _row(x, u, b=B * np.array([[-1], [1], [1], [1]]))}


def _last_sign(x: np.ndarray, u: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: _row(x, u, b=B * np.array([[1], [1], [1], [-1]]))}


def _taken_back(x: np.ndarray, u: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    """The outputs for the filter g = (-u[0], u[1] - u[2], u[3]): right only if u = G g."""
    return {2: np.correlate(x.astype(np.float64), np.array([-u[0], u[1] - u[2], u[3]], np.float64), "valid")}


# ---------------------------------------------------------------------------------------- convolution_winograd/weights


def _weights_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for k, c in ((1, 1), (3, 5), (2, 32), (7, 9), (20, 33), (16, 64)):
        w = rng.standard_normal((k, c, 3, 3), dtype=np.float32)
        # Two roundings for each dimension: half of a sum is exact. A fifth covers second order.
        size = _transformed(abs(w), abs(G))
        args = w, unwritten((16, k, c), np.float32)
        name = f"{k} filter{'s' * (k > 1)} of {c} channel{'s' * (c > 1)}"
        cases.append(Case(name, args, _blocks(k * c), BLOCK, {1: _transformed(w, G)}, {1: 5 * 2.0**-24 * size}))
    return cases


def _transformed(w: np.ndarray, g: np.ndarray) -> np.ndarray:
    return np.einsum("ir,kcrs,js->ijkc", g, w.astype(np.float64), g).reshape(16, *w.shape[:2])


def _weights_budget(case: Case) -> dict[str, tuple[float, str]]:
    once = "Load each of the nine weights once, into a variable or a local array: u needs them several times."
    filters = case.args[0].shape[0] * case.args[0].shape[1]
    return {"flops_f64": (0, FLOAT64), "global_load_requests": (1.5 * 9 * blocks(filters, 32), once)}


@cuda.jit(device=True)
def three_to_four(g0, g1, g2):
    half = np.float32(0.5)
    return -g0, half * (g0 + g1 + g2), half * (g0 - g1 + g2), g2


@cuda.jit
def weights_answer(w, u):
    at = cuda.grid(1)
    k, c = at // w.shape[1], at % w.shape[1]
    if k < w.shape[0]:
        left = three_to_four(w[k, c, 0, 0], w[k, c, 1, 0], w[k, c, 2, 0])
        middle = three_to_four(w[k, c, 0, 1], w[k, c, 1, 1], w[k, c, 2, 1])
        right = three_to_four(w[k, c, 0, 2], w[k, c, 1, 2], w[k, c, 2, 2])
        for i in range(4):
            row = three_to_four(left[i], middle[i], right[i])
            for j in range(4):
                u[4 * i + j, k, c] = row[j]


def _columns_first(w: np.ndarray, u: np.ndarray) -> dict[int, np.ndarray]:
    return {1: _transformed(w.swapaxes(2, 3), G)}


def _positive(w: np.ndarray, u: np.ndarray) -> dict[int, np.ndarray]:
    return {1: _transformed(w, G * np.array([[-1], [1], [1], [1]]))}


def _not_halved(w: np.ndarray, u: np.ndarray) -> dict[int, np.ndarray]:
    return {1: _transformed(w, np.sign(G))}


def _mirrored(w: np.ndarray, u: np.ndarray) -> dict[int, np.ndarray]:
    return {1: _transformed(w[:, :, ::-1, ::-1], G)}


EXERCISES = (
    Exercise(
        "winograd/row",
        task="One row by F(2, 3). You are given the transformed filter u, four float32. Usually u = G g for a filter "
        "g, and out[i] = g[0] x[i] + g[1] x[i + 1] + g[2] x[i + 2]. Sometimes pruning has set u[1] to 0, and then no "
        "g gives this u. In both cases a thread computes the outputs 2 i and 2 i + 1 from four elements of x, with "
        "four multiplications: y = A^T [u * (B^T d)] with the matrices of the chapter. x has n >= 3 elements, out "
        "n - 2, all float32. If n is odd, the last thread has one output only. "
        f"The launch has {BLOCK} threads per block, one for each two outputs.",
        parameters="x, u, out",
        cases=_row_cases,
        answer=row_answer,
        hints=(
            "B^T d is d2 - d0, d1 + d2, d2 - d1, d3 - d1.",
            "With m = u * (B^T d): the outputs are m0 + m1 + m2 and m1 - m2 + m3.",
            "If the last output is alone there is no d3. Its own sum does not need it.",
        ),
        budget=_row_budget,
        traps=(
            Trap("all added", "The second output is m1 - m2 + m3: A^T has a -1 in its second row.", _plus),
            Trap(
                "first sign",
                "Row 0 of B^T is d2 - d0 here, since row 0 of G is -g0: the signs must match.",
                _other_sign,
            ),
            Trap("last sign", "Row 3 of B^T is d3 - d1, and the second output is m1 - m2 + m3.", _last_sign),
            Trap(
                "filter taken back",
                "A pruned u belongs to no g, and g takes six multiplications: use u itself, y = A^T [u * (B^T d)].",
                _taken_back,
            ),
        ),
    ),
    Exercise(
        "winograd/weights",
        task="Transform filters for F(2 x 2, 3 x 3): u[4 i + j, k, c] = (G w[k, c] G^T)[i, j]. w has shape "
        "(K, C, 3, 3), u (16, K, C), both float32. G's rows are (-1, 0, 0), (1/2, 1/2, 1/2), (1/2, -1/2, 1/2) and "
        "(0, 0, 1). A thread transforms one 3 x 3 filter w[k, c], and neighbouring threads write neighbouring elements "
        f"of u. The launch has {BLOCK} threads per block, one for each (k, c).",
        parameters="w, u",
        cases=_weights_cases,
        answer=weights_answer,
        hints=(
            "A device function that makes four numbers of three can be used for columns, then for rows.",
            "Down the three columns first: 3 x 3 become 4 x 3. Then along the four rows.",
            "c is the fastest index of u: let it be the fastest of the threads too.",
        ),
        budget=_weights_budget,
        traps=(
            Trap("transposed", "u[4 i + j] is row i, column j: you have exchanged i and j.", _columns_first),
            Trap("mirrored", "A layer computes a correlation: do not mirror the filter.", _mirrored),
            Trap("first sign", "Row 0 of G is (-1, 0, 0) here, since row 0 of B^T is d2 - d0.", _positive),
            Trap("not halved", "The two rows in the middle of G have 1/2, not 1.", _not_halved),
        ),
    ),
)
