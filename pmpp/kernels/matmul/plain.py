"""The product that a program asks for: any shapes, any strides, and an epilogue, by the room that is made for it."""

from __future__ import annotations

import typing

import numpy as np

from pmpp.kernels.matmul import fitted, fused, matvec, mixed, plans
from pmpp.kernels.matmul import ladder as chapter
from pmpp.runtime import device
from pmpp.runtime.check import as_flag, as_number
from pmpp.runtime.rung import Problem
from pmpp.runtime.views import strided


def matmul(
    a, b, bias=None, residual=None, activation=None, alpha=1.0, beta=1.0, *, accumulate=False, out=None, stream=0
) -> typing.Any:
    """Multiply matrices or vectors, and finish the products: ``activation(alpha * (a @ b) + beta * residual + bias)``.

    Args:
        a: float32, shape (..., M, K), with any strides that are not negative: transposed, sliced and repeated views are
            not copied. Or a contiguous vector of shape (K,), which stands for a row.
        b: float32, shape (..., K, N), in the same way; or a contiguous vector of shape (K,), which stands for a column.
            The leading dimensions of a and b are broadcast, as in ``numpy.matmul``.
        bias: float32, shape (N,), contiguous: a number for each column; or None, as it must be where b is a vector.
        residual: float32, any shape of at least one dimension that broadcasts to that of the result, any strides; or
            None. Where a or b is a vector it must be contiguous.
        activation: None, "relu", "gelu" (by erf), or a device function of a float32 that returns one.
        alpha, beta: finite numbers; they become float32. With beta = 0 the residual is not read, as in BLAS.
        accumulate: True to take for ``residual`` what ``out`` held before the call.
        out: a float32 device array of the result's shape in C order, apart from the others in memory, or None to
            allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. Its shape is that of ``numpy.matmul``: (..., M, N),
    without M where a is a vector, and without N where b is one. An extent may be 0; with K = 0 all products are 0. The
    same call gives the same bits on the same GPU.

    Matrices of float16 or bfloat16, both of one dtype, are multiplied on tensor cores by `pmpp.kernels.matmul.mixed`,
    with sums in float32 and a result of that dtype. There bias and out have that dtype too, residual and activation
    must be None, accumulate False, no operand a vector, and there are at most two leading dimensions.

    A product of two matrices in C or Fortran order, with nothing to finish, is done by `pmpp.kernels.matmul.fitted`, or
    by `matvec` if one has a single row or column. All others are done by `pmpp.kernels.matmul.fused`. The tile of
    `fitted` is the one that was tuned for this GPU, as `pmpp.kernels.matmul.plans` says.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> import numpy as np
    >>> a, b = np.float32([[1, 2], [3, 4]]), np.float32([[1, 0], [1, -9]])
    >>> matmul(a, b).copy_to_host()
    array([[  3., -18.],
           [  7., -36.]], dtype=float32)
    >>> matmul(a, b, np.float32([10, 20]), activation="relu").copy_to_host()
    array([[13.,  2.],
           [17.,  0.]], dtype=float32)
    >>> matmul(a, np.float32([1, 1])).copy_to_host()
    array([3., 7.], dtype=float32)
    >>> matmul(np.stack([a, a]), b[:, :1]).shape
    (2, 2, 1)
    """
    stream = device.as_stream(stream)
    if str(getattr(a, "dtype", "")).rpartition(".")[2] in mixed.DTYPES:  # PyTorch's is "torch.float16"
        as_number("beta", beta)  # of a residual, which must be None
        return _short(a, b, bias, residual, activation, alpha, accumulate, out, stream)
    a = device.as_input("a", a, dtypes="float32", layout="any", stream=stream)
    b = device.as_input("b", b, dtypes="float32", layout="any", stream=stream)
    epilogue = bias, residual, activation, as_number("alpha", alpha), as_number("beta", beta)
    as_flag("accumulate", accumulate)
    if len(a.shape) == 1 or len(b.shape) == 1:
        return _with_vectors(a, b, *epilogue, accumulate, out, stream)
    return _product(a, b, *epilogue, accumulate, out, stream)


def _short(a, b, bias, residual, activation, alpha, accumulate, out, stream):
    """The product of 16-bit matrices, with what is finished in the same kernel: ``alpha`` and a bias."""
    for name, given in (("residual", residual), ("activation", activation)):
        if given is not None:
            raise TypeError(f"{name} must be None where a is {a.dtype}: use elementwise or activation on the product")
    if as_flag("accumulate", accumulate):
        raise TypeError(f"accumulate must be False where a is {a.dtype}")
    return mixed.multiply(a, b, bias, alpha=alpha, out=out, stream=stream)


def _product(a, b, bias, residual, activation, alpha, beta, accumulate, out, stream):
    finished = bias is not None or residual is not None or activation is not None or alpha != 1 or accumulate
    if finished or len(a.shape) != 2 or len(b.shape) != 2 or not (_in_order(a) and _in_order(b)):
        options = {"accumulate": accumulate, "out": out, "stream": stream}
        return fused.packed(a, b, bias, residual, activation, alpha, beta, **options)
    if a.shape[1] != b.shape[0]:
        chapter.arguments(a, b)  # raises, in the words of all rooms
    shape = a.shape[0], b.shape[1]
    out = device.as_output("out", out, shape=shape, dtype="float32", apart={"a": a, "b": b}, stream=stream)
    p = Problem(out, stream=stream, a=a, b=b)
    p.a_c, p.b_c = (x.strides[1] == x.dtype.itemsize for x in (p.a, p.b))  # which is what `fitted` asks besides
    if 1 in p.result.shape and p.a.size and p.b.size:
        return _with_a_vector(p)
    fits = max(p.a.size, p.b.size) <= fitted.MOST_ELEMENTS
    return (plans.product if fits else chapter.prefetched).run(p)


def _in_order(x: typing.Any) -> bool:
    """Whether a matrix is contiguous in C or in Fortran order."""
    return x.is_c_contiguous() or x.is_f_contiguous()


def _with_a_vector(p: Problem) -> typing.Any:
    """The product if one operand is a vector. A row times B is B, transposed, times the row: nothing is copied."""
    row_first = p.result.shape[1] > 1
    matrix, vector, by_rows = (p.b, p.a, not p.b_c) if row_first else (p.a, p.b, p.a_c)
    m, n = matrix.shape[::-1] if row_first else matrix.shape
    a = strided(matvec.memory(matrix), (m, n), (n, 1) if by_rows else (1, m))
    y = p.result.reshape(-1)
    matvec.undivided.run(Problem(y, stream=p.stream, a=a, x=matvec.memory(vector), by_rows=by_rows or n == 1))
    return p.result


def _with_vectors(a, b, bias, residual, activation, alpha, beta, accumulate, out, stream):
    """The product if ``a`` or ``b`` has one dimension: as a matrix of one row or one column, which is then left out."""
    row, column = len(a.shape) == 1, len(b.shape) == 1
    if row and column:
        raise ValueError(f"b must have at least 2 dimensions where a has 1, had 1: its shape was {b.shape}")
    if column and bias is not None:
        raise ValueError("bias must be None where b is a vector: give it as residual, which has a number for each row")
    if row:
        a = device.as_input("a", a, dtypes="float32", stream=stream).reshape(1, -1)
    else:
        b = device.as_input("b", b, dtypes="float32", shape=(a.shape[-1],), stream=stream).reshape(-1, 1)
    if accumulate and residual is not None:
        raise ValueError(f"residual must be None with accumulate={accumulate!r}, had shape {np.shape(residual)}")
    if residual is not None:
        residual = device.as_input("residual", residual, dtypes="float32", stream=stream)
    if bias is not None:
        bias = device.as_input("bias", bias, dtypes="float32", shape=(b.shape[-1],), stream=stream)
    leading = a.shape[:-1] if column else (*b.shape[:-2], b.shape[-1])
    if residual is not None:
        if not fused.broadcasts(residual.shape, leading):
            raise ValueError(f"residual must have a shape that broadcasts to {leading}, had {residual.shape}")
        inner = (*residual.shape, 1) if column else (*residual.shape[:-1], 1, residual.shape[-1])
        residual = residual.reshape(*inner)
    if accumulate and out is None:
        raise ValueError(f"out must be an array with accumulate={accumulate!r}, was None")
    apart = {"a": a, "b": b, "bias": bias, "residual": residual}
    out = device.as_output("out", out, shape=leading, dtype="float32", apart=apart, stream=stream)
    inner = (*leading, 1) if column else (*leading[:-1], 1, leading[-1])
    _product(a, b, bias, residual, activation, alpha, beta, accumulate, out.reshape(*inner), stream)
    return out
