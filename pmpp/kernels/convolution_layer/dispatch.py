"""Convolution layers: one call for five algorithms, and how to choose between them.

Chapter: notebooks/72_choosing_a_convolution.ipynb.  PMPP 4e ch. 16.

No algorithm is the fastest for all layers: they trade multiplications for traffic and workspace. `convolution` runs the
one that it is told, or chooses: what `pmpp.kernels.convolution_layer.find` measured for such a layer on this device
before, else what `predict` says from the shape alone. cuDNN has the same two ways: its functions with Get and with Find
in their names (S. Chetlur and others, "cuDNN: efficient primitives for deep learning", 2014).
"""

from __future__ import annotations

import typing
from collections.abc import Sequence

import numpy as np

from pmpp.kernels.convolution_layer import by_fft, direct, im2col, implicit, winograd
from pmpp.kernels.convolution_layer.cost_model import guess
from pmpp.kernels.convolution_layer.definition import Layer, Problem, problem_of
from pmpp.runtime import device

ROOMS = {
    "direct": direct,
    "im2col": im2col,
    "implicit": implicit,
    "winograd": winograd,
    "fft": by_fft,
}
ALGORITHMS = tuple(ROOMS)


def refuses(algorithm: str, layer: Layer) -> str | None:
    """Why the algorithm cannot compute the layer, or None."""
    return ROOMS[algorithm].refuses(layer)


def workspace_bytes(algorithm: str, layer: Layer) -> int:
    """Device memory that the algorithm takes for intermediate results, and gives back."""
    return ROOMS[algorithm].workspace_bytes(layer)


def convolution(
    x: typing.Any,
    w: typing.Any,
    bias: typing.Any = None,
    stride: typing.Any = 1,
    padding: typing.Any = 0,
    dilation: typing.Any = 1,
    groups: int = 1,
    relu: bool = False,
    *,
    algorithm: str = "auto",
    workspace_limit: int | None = None,
    out: typing.Any = None,
    stream: typing.Any = 0,
) -> typing.Any:
    """The output of a convolution layer, by the algorithm of that name or by the one that is likely the fastest.

    Args:
        x: images of shape (N, C, H, W), float32, contiguous.
        w: weights of shape (K, C / groups, R, S), float32, contiguous.
        bias: K numbers in float32, or None.
        stride, padding, dilation: an integer, or a pair for rows and columns. Padding is with zeros, on all sides.
        groups: of channels and filters, each group a layer of its own.
        relu: whether negative results become 0.
        algorithm: "auto" or one of `ALGORITHMS`.
        workspace_limit: bytes of device memory that "auto" may take besides the result; None for no limit. Where memory
            is short all the same, "auto" goes on with the next algorithm.
        out: a device array for the result, apart from the arguments, or None to allocate one.
        stream: the stream to work on.

    Returns a device array of shape (N, K, P, Q) without waiting for the work to be done. Raises TypeError or ValueError
    that names the argument at fault, ValueError if the algorithm named cannot compute the layer, and MemoryError if
    there is no room for its workspace, before anything is written. With "direct", "im2col" and "implicit" NaN and
    infinity reach only the outputs that see them; "winograd" and "fft" may spread them over a tile. Source: PMPP 4e
    chapter 16.
    """
    options = stride, padding, dilation, groups, relu
    problem = problem_of(x, w, bias, *options, out, stream)
    if not isinstance(algorithm, str) or algorithm not in ("auto", *ALGORITHMS):
        raise ValueError(f"algorithm must be 'auto' or one of {', '.join(ALGORITHMS)}, was {algorithm!r}")
    check_limit(workspace_limit)
    if algorithm != "auto":
        if why := refuses(algorithm, problem.layer):
            raise ValueError(f"algorithm must be able to compute the layer, was {algorithm!r}: {why}")
        return run(algorithm, problem)
    names = [name for name in choose(problem.layer) if fits(name, problem.layer, workspace_limit)]
    for name in names[:-1]:
        try:
            return run(name, problem)
        except MemoryError:
            continue  # nothing has been written
    return run(names[-1], problem)


def run(name: str, p: Problem) -> typing.Any:
    """The problem's output by the fastest rung of the algorithm."""
    layer = p.layer
    bias = p.bias if p.bias.size else None
    options = bias, layer.stride, layer.padding, layer.dilation, layer.groups, p.relu
    return ROOMS[name].LADDER[-1](p.x, p.w, *options, out=p.out, stream=p.stream)


def check_limit(limit: typing.Any) -> None:
    """Raise ValueError unless ``limit`` is None or a number of bytes."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | np.integer) or limit < 0):
        raise ValueError(f"workspace_limit must be None or bytes, an integer of at least 0, was {limit!r}")


def fits(name: str, layer: Layer, limit: int | None) -> bool:
    """Whether the algorithm needs at most ``limit`` bytes of workspace for the layer."""
    return limit is None or workspace_bytes(name, layer) <= limit


# ---------------------------------------------------------------------------------------------------------- by guessing


def predict(layer: Layer) -> dict[str, float]:
    """Milliseconds that each algorithm will take, about; without those that refuse the layer."""
    return {name: guess(name, layer) for name in ALGORITHMS if not refuses(name, layer)}


_MEASURED: dict[tuple[str, Layer], tuple[str, ...]] = {}  # by device and layer


def remember(layer: Layer, algorithms: Sequence[str]) -> None:
    """Let `choose` give this order, the fastest first, for the layer on this device."""
    _MEASURED[device_name(), layer] = tuple(algorithms)


def device_name() -> str:
    """The GPU's name, or "the interpreter": a measured order holds for one device."""
    if not device.on_gpu():
        return "the interpreter"
    name = device.backend().cuda.get_current_device().name
    return name.decode() if isinstance(name, bytes) else name


def choose(layer: Layer) -> list[str]:
    """The algorithms that can compute the layer, the likely fastest first: as remembered, else by `predict`."""
    if (measured := _MEASURED.get((device_name(), layer))) is not None:
        return list(measured)
    times = predict(layer)
    return sorted(times, key=times.__getitem__)
