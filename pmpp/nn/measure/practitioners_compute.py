"""A softmax of rows and a scan with cuda.compute, for `pmpp.nn.measure.practitioners`.

cuda.compute has CUB's algorithms for a whole GPU, with operators that are functions in Python. The package is
``cuda-cccl``; the last version whose operators Numba compiles is 1.1. It is imported where it is used.

A scan is one of its algorithms. A softmax is put together from two: a reduction of segments finds each row's maximum
and its sum of exponentials in one pass, and a transformation computes the elements, for which it reads them again.

Source: the documentation of CCCL, "cuda.compute"; M. Milakov, N. Gimelshein, Online normalizer calculation for softmax
(2018).
"""

import functools
import types
import typing

import numpy as np


class Stream:
    """A stream as cuda.compute takes it: an object that tells the driver's handle."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        """The version of the protocol, and the handle."""
        return 0, self.handle


class Scan:
    """The running sum of ``x`` into ``out``: vectors of float32 on the GPU, PyTorch's.

    It is compiled when it is first called.
    """

    def __init__(self, x: typing.Any, out: typing.Any) -> None:
        self.x, self.out = x, out

    @functools.cached_property
    def launch(self) -> typing.Any:
        """The compiled algorithm, with the memory that it needs."""
        import torch
        from cuda import compute

        about = {"op": compute.OpKind.PLUS, "init_value": np.zeros(1, np.float32)}
        found = compute.make_inclusive_scan(d_in=self.x, d_out=self.out, **about)
        about |= {"d_in": self.x, "d_out": self.out, "num_items": self.x.numel()}
        needed = found(temp_storage=None, **about)
        memory = torch.empty(max(needed, 1), dtype=torch.uint8, device=self.x.device)
        return lambda stream: found(temp_storage=memory, stream=Stream(stream), **about)

    def __call__(self, stream: int) -> None:
        """Compute it on a stream, given as the driver's handle."""
        self.launch(stream)


@functools.cache
def operators(columns: int) -> types.SimpleNamespace:
    """What the two algorithms of a softmax call, for rows of so many columns.

    ``first`` and ``last`` say where a row begins and ends, and ``row`` in which a place lies. A ``Pair`` is the largest
    of some elements, and the sum of their exponentials, each divided by that of the largest: ``pair`` makes one of an
    element, ``join`` of two. ``weight`` is an element of the result.
    """
    from cuda import compute
    from numba import cuda

    Pair = compute.gpu_struct({"largest": np.float32, "total": np.float32}, name="Pair")

    def first(row):
        return np.int64(row) * columns

    def last(row):
        return (np.int64(row) + 1) * columns

    def row(place):
        return place // columns

    def pair(value):
        return Pair(value, np.float32(1))

    def join(one, other):
        largest = max(one.largest, other.largest)
        total = one.total * cuda.libdevice.expf(one.largest - largest)
        return Pair(largest, total + other.total * cuda.libdevice.expf(other.largest - largest))

    def weight(value, of_row):
        return cuda.libdevice.expf(value - of_row.largest) / of_row.total

    return types.SimpleNamespace(first=first, last=last, row=row, Pair=Pair, pair=pair, join=join, weight=weight)


class Softmax:
    """The softmax of each row of ``x`` into ``out``: matrices of float32 in C order on the GPU, PyTorch's.

    Places in a matrix are counted with 32 bits. It is compiled when it is first called.
    """

    def __init__(self, x: typing.Any, out: typing.Any) -> None:
        self.x, self.out = x, out

    @functools.cached_property
    def launch(self) -> typing.Any:
        """The two compiled algorithms, with the memory that they need."""
        import torch
        from numba import cuda

        rows, columns = self.x.shape
        pairs = cuda.device_array(rows, operators(columns).Pair.dtype)
        of_rows, of_elements = arguments(self.x.view(-1), self.out.view(-1), pairs, columns)
        reduce, transform = compiled(of_rows, of_elements)
        of_rows |= {"num_segments": rows}
        of_elements |= {"num_items": self.x.numel()}
        memory = torch.empty(max(reduce(temp_storage=None, **of_rows), 1), dtype=torch.uint8, device=self.x.device)

        def on(stream: int) -> None:
            reduce(temp_storage=memory, stream=Stream(stream), **of_rows)
            transform(stream=Stream(stream), **of_elements)

        return on

    def __call__(self, stream: int) -> None:
        """Compute it on a stream, given as the driver's handle."""
        self.launch(stream)


def arguments(x: typing.Any, out: typing.Any, pairs: typing.Any, columns: int) -> tuple[dict, dict]:
    """What the reduction of rows takes, and what the transformation of elements takes, of flat arrays."""
    from cuda import compute

    calls = operators(columns)
    counted = compute.CountingIterator(np.int32(0))
    of_rows = {
        "d_in": compute.TransformIterator(x, calls.pair),
        "d_out": pairs,
        "start_offsets_in": compute.TransformIterator(counted, calls.first),
        "end_offsets_in": compute.TransformIterator(counted, calls.last),
        "op": calls.join,
        "h_init": calls.Pair(np.finfo(np.float32).min, np.float32(0)),
    }
    its_pair = compute.PermutationIterator(pairs, compute.TransformIterator(counted, calls.row))
    return of_rows, {"d_in1": x, "d_in2": its_pair, "d_out": out, "op": calls.weight}


def compiled(of_rows: dict, of_elements: dict, **target: typing.Any) -> tuple[typing.Any, typing.Any]:
    """The reduction and the transformation; ``compute_capability=90`` compiles them where no GPU is."""
    from cuda import compute

    return compute.make_segmented_reduce(**of_rows, **target), compute.make_binary_transform(**of_elements, **target)
