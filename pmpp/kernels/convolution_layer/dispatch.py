"""Convolution layers: one function for six algorithms, and the choice between them.

Chapter: notebooks/72_choosing_a_convolution.ipynb.  PMPP 4e ch. 16.

No algorithm is the fastest for all layers: they trade multiplications for traffic and workspace. `convolution` runs the
algorithm that it is told, or takes the one that `expected_times` puts first, from the shape alone.
`pmpp.kernels.convolution_layer.find` measures which is the fastest for a layer on this device. cuDNN offers the same
two ways, in functions with Find and with Get in their names (S. Chetlur and others, "cuDNN: efficient primitives for
deep learning", 2014).
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp.kernels.convolution_layer import by_fft, depthwise, direct, im2col, implicit, winograd
from pmpp.kernels.convolution_layer.cost_model import guess
from pmpp.kernels.convolution_layer.definition import Layer, Problem, arguments
from pmpp.runtime import device

ROOMS = {
    "direct": direct,
    "im2col": im2col,
    "implicit": implicit,
    "winograd": winograd,
    "fft": by_fft,
    "depthwise": depthwise,
}
ALGORITHMS = tuple(ROOMS)


def refuses(algorithm: str, layer: Layer) -> str | None:
    """Why the algorithm cannot compute the layer, or None."""
    return ROOMS[algorithm].refuses(layer)


def workspace_bytes(algorithm: str, layer: Layer) -> int:
    """Bytes of device memory that the algorithm takes for intermediate results while it runs."""
    return ROOMS[algorithm].workspace_bytes(layer)


def convolution(
    x,
    w,
    bias=None,
    stride=1,
    padding=0,
    dilation=1,
    groups=1,
    relu=False,
    *,
    algorithm="auto",
    workspace_limit=None,
    out=None,
    stream=0,
) -> typing.Any:
    """Compute a convolution layer by the named ``algorithm``, or with "auto" by the one expected to be the fastest.

    Args:
        x: images of shape (N, C, H, W), float32, contiguous, of at most 2^31 - 1 elements, like ``w`` and ``out``.
        w: filters of shape (K, C / groups, R, S), float32, contiguous.
        bias: a number for each filter, float32 of shape (K,), or None.
        stride, padding, dilation: integers below 2^31, or pairs of them for rows and columns. The image is padded with
            zeros.
        groups: into how many separate layers the channels and the filters are divided.
        relu: whether negative results become 0. A NaN stays NaN.
        algorithm: "auto", or one of `ALGORITHMS`: "direct", "im2col", "implicit", "winograd", "fft" or "depthwise".
            What `pmpp.kernels.convolution_layer.find` found to be the fastest is passed here by its name.
        workspace_limit: bytes of device memory that "auto" may take besides the result; None for no limit. Where memory
            is short all the same, "auto" goes on with the next algorithm.
        out: a float32 device array of shape (N, K, P, Q), apart from the others in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. P = (H + 2 padding - dilation (R - 1) - 1) // stride + 1,
    and Q likewise. With "direct", "im2col", "implicit" and "depthwise" a NaN or infinity in x reaches only the outputs
    that depend on it. With "winograd" it may reach all outputs of its tile, and with "fft" also those of another tile
    or image that shares its transform.
    Raises TypeError or ValueError that names the argument at fault, ValueError if the algorithm named cannot compute
    the layer, and MemoryError if there is no room for its workspace, before anything is written. Source: PMPP 4e
    chapter 16.

    >>> from pmpp.kernels import convolution_layer
    >>> x, w = np.ones((1, 2, 3, 3), np.float32), np.ones((1, 2, 2, 2), np.float32)
    >>> convolution_layer.convolution(x, w).copy_to_host()
    array([[[[8., 8.],
             [8., 8.]]]], dtype=float32)
    """
    p = arguments(x, w, bias, stride, padding, dilation, groups, relu, out=out, stream=stream)
    if not isinstance(algorithm, str) or algorithm not in ("auto", *ALGORITHMS):
        raise ValueError(f"algorithm must be 'auto' or one of {', '.join(ALGORITHMS)}, was {algorithm!r}")
    check_limit(workspace_limit)
    if algorithm != "auto":
        if why := refuses(algorithm, p.layer):
            raise ValueError(f"algorithm must be able to compute the layer, was {algorithm!r}: {why}")
        return run(algorithm, p)
    names = [name for name in choose(p.layer) if fits(name, p.layer, workspace_limit)]
    for name in names[:-1]:
        try:
            return run(name, p)
        except MemoryError:
            continue  # nothing has been written
    return run(names[-1], p)


def run(name: str, p: Problem) -> typing.Any:
    """Compute a problem of `pmpp.kernels.convolution_layer.definition.arguments` by an algorithm's best rung.

    >>> p = arguments(np.ones((1, 2, 3, 3), np.float32), np.ones((1, 2, 2, 2), np.float32))
    >>> run("direct", p).copy_to_host()
    array([[[[8., 8.],
             [8., 8.]]]], dtype=float32)
    """
    return ROOMS[name].LADDER[-1].run(p)


def check_limit(limit: typing.Any) -> None:
    """Raise ValueError unless ``limit`` is None or a number of bytes."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | np.integer) or limit < 0):
        raise ValueError(f"workspace_limit must be None or bytes, an integer of at least 0, was {limit!r}")


def fits(name: str, layer: Layer, limit: int | None) -> bool:
    """Whether the algorithm needs at most ``limit`` bytes of workspace. None allows any number."""
    return limit is None or workspace_bytes(name, layer) <= limit


# ----------------------------------------------------------------------------------------------------------- the choice


def expected_times(layer: Layer) -> dict[str, float]:
    """Expected milliseconds of each algorithm that accepts the layer.

    The cost model, `pmpp.kernels.convolution_layer.cost_model`, asks this device for its bandwidth, its clock and its
    number of multiprocessors. Its constants are the same for all GPUs.

    >>> list(expected_times(Layer(1, 2, 9, 9, 2, 5, 5)))  # Winograd's algorithm here computes 3 x 3 only
    ['direct', 'im2col', 'implicit', 'fft']
    """
    return {name: guess(name, layer) for name in ALGORITHMS if not refuses(name, layer)}


def choose(layer: Layer) -> list[str]:
    """The algorithms that can compute the layer, the one that is expected to be the fastest first.

    >>> choose(Layer(32, 144, 56, 56, 144, 3, 3, padding=(1, 1), groups=144))[0]  # one channel per group
    'depthwise'
    """
    return list(_expected_order(layer, device.current(), guess))


@functools.lru_cache(4096)  # as in `pmpp.kernels.convolution_layer.definition.window_of`
def _expected_order(layer: Layer, number: int, by: typing.Any) -> tuple[str, ...]:
    """The algorithms by `expected_times`, on the device of that number and by that cost model."""
    times = expected_times(layer)
    return tuple(sorted(times, key=times.__getitem__))
