"""`cuda.reduce`: an array to one value, by a binary function.

It combines in the order of Numba's own kernels, so that sums of floats are rounded alike: up to 64 blocks of 128
threads stride through whole groups of 128; a block of fewer threads takes the rest; one more takes what they leave.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pmpp.simt.api.intrinsics import DeviceName
from pmpp.simt.host.arrays import DeviceArray, device_array
from pmpp.simt.host.context import check_stream
from pmpp.simt.host.launch import plain_launch
from pmpp.simt.values.errors import ArgumentError

THREADS = 128
WARP = 32
MOST_BLOCKS = 64


#: What kernels see of `cuda`, which imports this module.
shared, syncthreads = DeviceName("shared"), DeviceName("syncthreads")
threadIdx, blockIdx, gridDim = map(DeviceName, ("threadIdx", "blockIdx", "gridDim"))


class _Device:
    """A device function."""

    def __init__(self, py_func: Callable) -> None:
        self.py_func = py_func


def _kernels(function: Callable, dtype: np.dtype) -> tuple[Callable, Callable]:
    combine = _Device(function)

    def whole_groups(x, partial, init, use_init):
        """A block of 128 threads: each strides through the array, then a tree for each warp, then the four warps."""
        values = shared.array(THREADS, dtype)
        t, b = threadIdx.x, blockIdx.x
        value = x[t + THREADS * b]
        for i in range(t + THREADS * (b + gridDim.x), x.size, THREADS * gridDim.x):
            value = combine(value, x[i])
        values[t] = value
        syncthreads()
        width = WARP // 2
        while width > 0:
            if t % WARP < width:
                values[t] = combine(values[t], values[t + width])
            syncthreads()
            width //= 2
        if t < 2:
            values[t * WARP] = combine(values[t * WARP], values[(t + 2) * WARP])
        syncthreads()
        if t == 0:
            total = combine(values[0], values[WARP])
            if use_init and b == 0:
                total = combine(total, init)
            partial[b] = total

    def the_rest(x, partial, init, use_init):
        """One block of a thread an element: whole warps by a tree, the last one element by element."""
        values = shared.array(THREADS, dtype)
        t = threadIdx.x
        warp, lane = t // WARP, t % WARP
        values[t] = x[t]
        syncthreads()
        whole = (warp + 1) * WARP < x.size
        width = WARP // 2
        while width > 0:
            if whole and lane < width:
                values[t] = combine(values[t], values[t + width])
            syncthreads()
            width //= 2
        if not whole and lane == 0:
            for i in range(t + 1, x.size):
                values[t] = combine(values[t], values[i])
        syncthreads()
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
            plain_launch(whole_groups, blocks, THREADS, (arr[:whole], partial[:blocks], init, True), 0, None)
        if whole < arr.size:
            rest = arr[whole:], partial[blocks:], init, not blocks
            plain_launch(the_rest, 1, arr.size - whole, rest, 0, None)
        if count > 1:
            plain_launch(the_rest, 1, count, (partial, partial, init, False), 0, None)
        if res is None:
            return partial[0]
        res[:1].copy_to_device(partial[:1])
        return None


reduce = Reduce
