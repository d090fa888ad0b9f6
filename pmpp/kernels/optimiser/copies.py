"""Many tensors into many others, in one launch: the gradients of a network into the vectors that are sent.

A launch for each tensor takes the host longer than the GPU takes for a small one. As for a step of an optimiser, the
kernel finds the tensors in a table (`tensors`).
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.optimiser import tensors
from pmpp.kernels.optimiser.tensors import BLOCK, CHUNK
from pmpp.runtime import device
from pmpp.runtime.addresses import array_at
from pmpp.runtime.vector import load128, store128

__all__ = ["copy_"]


@cuda.jit
def copy_kernel(table, chunks):
    tensor, chunk = chunks[cuda.blockIdx.x, 0], chunks[cuda.blockIdx.x, 1]
    n = table[tensor, 3]
    source, target = array_at(table[tensor, 0], n, np.float32), array_at(table[tensor, 1], n, np.float32)
    i = np.int64(chunk) * CHUNK + 4 * cuda.threadIdx.x
    if i < table[tensor, 2]:  # the elements that are whole vectors
        store128(target, i, load128(source, i))
    else:
        for j in range(i, min(i + 4, n)):
            target[j] = source[j]


def copy_(targets: typing.Any, sources: typing.Any, *, stream: typing.Any = 0) -> None:
    """Each of some arrays into another one of its shape, all in one launch.

    Args:
        targets: a list of device arrays of float32 in C order, which are written. None may overlap another array.
        sources: as many arrays of float32, in C order, of the same shapes in turn.
        stream: the stream to work on.

    Returns nothing, and does not wait for the work to be done. The sources have to stay until it is.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> x = [device.empty(2, np.float32), device.empty((1, 1), np.float32)]
    >>> copy_(x, [np.float32([1, 2]), np.float32([[3]])])
    >>> [one.copy_to_host().tolist() for one in x]
    [[1.0, 2.0], [[3.0]]]
    """
    stream = device.as_stream(stream)
    into = tensors.given("targets", targets, None, update=True, stream=stream)
    taken = tensors.given("sources", sources, into, update=False, stream=stream)
    sizes = tuple(one.size for one in into)
    tensors.refuse_overlap(("targets", "sources"), tensors.addresses(into, taken), sizes)
    made = tables([one.reshape(-1) for one in into], [one.reshape(-1) for one in taken], stream)
    if made is not None:
        launch(made, stream)


def tables(targets: typing.Sequence, sources: typing.Sequence, stream: typing.Any) -> tensors.Tables | None:
    """What `launch` needs for arrays of one dimension, which are not checked; None if none has an element.

    It holds addresses: for the same arrays it can be launched again. Gradients often come at other addresses in each
    step, and a copy of the table from the host would wait for all that is queued: launches bring it along.
    """
    some = [k for k, one in enumerate(targets) if one.size]
    if not some:
        return None
    taken, into = (tuple([arrays[k] for k in some]) for arrays in (sources, targets))
    if not device.on_gpu():
        return tensors.tables(taken, into, stream=stream)
    sizes = tuple([one.size for one in into])
    table = tensors.put(tensors._numbers(tensors.addresses(taken, into), sizes), stream)
    return tensors.Tables(table, tensors._chunks(sizes, CHUNK))


def launch(made: tensors.Tables, stream: typing.Any) -> None:
    """Copy what the tables say."""
    copy_kernel[made.chunks.shape[0], BLOCK, stream](made.table, made.chunks)
