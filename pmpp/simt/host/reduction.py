"""`cuda.reduce`: an array to one value, by a binary function.

It combines in the order of Numba's own kernels, so that sums of floats are rounded alike: up to 64 blocks of 128
threads stride through whole groups of 128; a block of fewer threads takes the rest; one more takes what they leave.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pmpp.simt.host.arrays import DeviceArray, device_array
from pmpp.simt.host.context import check_stream
from pmpp.simt.values.errors import ArgumentError

THREADS = 128
WARP = 32
MOST_BLOCKS = 64


def _kernels(function: Callable, dtype: np.dtype) -> tuple[Any, Any]:
    from pmpp.simt.host import cuda

    combine = cuda.jit(device=True)(function)

    @cuda.jit
    def whole_groups(x, partial, init, use_init):
        """A block of 128 threads: each strides through the array, then a tree for each warp, then the four warps."""
        values = cuda.shared.array(THREADS, dtype)
        t, b = cuda.threadIdx.x, cuda.blockIdx.x
        value = x[t + THREADS * b]
        for i in range(t + THREADS * (b + cuda.gridDim.x), x.size, THREADS * cuda.gridDim.x):
            value = combine(value, x[i])
        values[t] = value
        cuda.syncthreads()
        width = WARP // 2
        while width > 0:
            if t % WARP < width:
                values[t] = combine(values[t], values[t + width])
            cuda.syncthreads()
            width //= 2
        if t < 2:
            values[t * WARP] = combine(values[t * WARP], values[(t + 2) * WARP])
        cuda.syncthreads()
        if t == 0:
            total = combine(values[0], values[WARP])
            if use_init and b == 0:
                total = combine(total, init)
            partial[b] = total

    @cuda.jit
    def the_rest(x, partial, init, use_init):
        """One block of a thread an element: whole warps by a tree, the last one element by element."""
        values = cuda.shared.array(THREADS, dtype)
        t = cuda.threadIdx.x
        warp, lane = t // WARP, t % WARP
        values[t] = x[t]
        cuda.syncthreads()
        whole = (warp + 1) * WARP < x.size
        width = WARP // 2
        while width > 0:
            if whole and lane < width:
                values[t] = combine(values[t], values[t + width])
            cuda.syncthreads()
            width //= 2
        if not whole and lane == 0:
            for i in range(t + 1, x.size):
                values[t] = combine(values[t], values[i])
        cuda.syncthreads()
        if t == 0:
            total = values[0]
            for w in range(1, (x.size + WARP - 1) // WARP):
                total = combine(total, values[w * WARP])
            if use_init:
                total = combine(total, init)
            partial[0] = total

    return whole_groups, the_rest


class Reduce:
    """`cuda.reduce(lambda a, b: a + b)`: a function that reduces an array of one axis."""

    def __init__(self, functor: Callable) -> None:
        self._functor, self._kernels = functor, {}

    def __call__(self, arr: Any, size: int | None = None, res: Any = None, init: Any = 0, stream: Any = 0) -> Any:
        """The elements, or the first `size` of them, combined with each other and with `init`.

        The result is returned, or written to `res[0]`, an array on the device.
        """
        check_stream(stream)
        if not isinstance(arr, (np.ndarray, DeviceArray)):
            raise ArgumentError(f"arr is {type(arr).__name__}; it must be an array of NumPy or of the device")
        if arr.ndim != 1:
            raise TypeError("only support 1D array")
        if size is not None:
            arr = arr[:size]
        init = arr.dtype.type(init)
        if arr.size < 1:
            return init
        if arr.dtype not in self._kernels:
            self._kernels[arr.dtype] = _kernels(self._functor, arr.dtype)
        whole_groups, the_rest = self._kernels[arr.dtype]
        whole = arr.size // THREADS * THREADS
        blocks = min(whole // THREADS, MOST_BLOCKS)
        count = blocks + (whole < arr.size)
        partial = device_array(count, arr.dtype)
        if blocks:
            whole_groups[blocks, THREADS](arr[:whole], partial[:blocks], init, True)
        if whole < arr.size:
            the_rest[1, arr.size - whole](arr[whole:], partial[blocks:], init, not blocks)
        if count > 1:
            the_rest[1, count](partial, partial, init, False)
        if res is None:
            return partial[0]
        res[:1].copy_to_device(partial[:1])
        return None


reduce = Reduce
