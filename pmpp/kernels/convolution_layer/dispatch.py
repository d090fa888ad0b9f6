"""Convolution layers: one call for five algorithms, and how to choose between them.

Chapter: notebooks/72_choosing_a_convolution.ipynb.  PMPP 4e ch. 16.

No algorithm is the fastest for all layers: they trade multiplications for traffic and workspace. `convolution` runs the
one that it is told, or chooses: what `find` measured for such a layer on this device before, else what `predict` says
from the shape alone. cuDNN has the same two ways: its functions with Get and with Find in their names (S. Chetlur and
others, "cuDNN: efficient primitives for deep learning", 2014).
"""

from __future__ import annotations

import time
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pmpp import cuda
from pmpp.kernels.convolution_layer import by_fft, direct, im2col, implicit, winograd
from pmpp.kernels.convolution_layer.cost_model import guess
from pmpp.kernels.convolution_layer.definition import Layer, Problem, problem_of
from pmpp.lab.measure import timing
from pmpp.runtime import device

ROOMS = {
    "direct": direct,
    "im2col": im2col,
    "implicit": implicit,
    "winograd": winograd,
    "fft": by_fft,
}
ALGORITHMS = tuple(ROOMS)
SAMPLES = 256  # outputs that `find` compares with float64


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
    _check_limit(workspace_limit)
    if algorithm != "auto":
        if why := refuses(algorithm, problem.layer):
            raise ValueError(f"algorithm must be able to compute the layer, was {algorithm!r}: {why}")
        return run(algorithm, problem)
    names = [name for name in choose(problem.layer) if _fits(name, problem.layer, workspace_limit)]
    for name in names[:-1]:
        try:
            return run(name, problem)
        except MemoryError:
            continue  # nothing has been written
    return run(names[-1], problem)


def run(name: str, p: Problem) -> typing.Any:
    layer = p.layer
    bias = p.bias if p.bias.size else None
    options = bias, layer.stride, layer.padding, layer.dilation, layer.groups, p.relu
    return ROOMS[name].LADDER[-1](p.x, p.w, *options, out=p.out, stream=p.stream)


def _check_limit(limit: typing.Any) -> None:
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | np.integer) or limit < 0):
        raise ValueError(f"workspace_limit must be None or bytes, an integer of at least 0, was {limit!r}")


def _fits(name: str, layer: Layer, limit: int | None) -> bool:
    return limit is None or workspace_bytes(name, layer) <= limit


# --------------------------------------------------------------------------------------------------------- by measuring


class Candidate(typing.NamedTuple):
    """An algorithm and what was found. ``seconds`` and ``error`` are NaN where ``note`` says why it did not run.

    ``error`` is the largest of `SAMPLES` outputs' differences from float64, each as a fraction of the sum of the sizes
    of that output's terms: a number that does not depend on the layer's scale.
    """

    algorithm: str
    seconds: float
    workspace: int
    error: float
    note: str = ""


@dataclass(frozen=True)
class Ranking:
    """What `find` found for a layer: ``candidates``, the fastest first, and on what ``device`` it was measured."""

    layer: Layer
    device: str
    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate:
        """The fastest."""
        return self.candidates[0]

    def __str__(self) -> str:
        lines = [f"{self.layer} on {self.device}", f"{'algorithm':10}{'time':>12}{'workspace':>13}{'error':>10}"]
        for one in self.candidates:
            figures = one.note or f"{one.seconds * 1e3:9.4f} ms{one.workspace / 2**20:9.1f} MiB{one.error:10.1e}"
            lines.append(f"{one.algorithm:10}{'' if one.note else ' '}{figures}")
        return "\n".join(lines)


_FOUND: dict[tuple[str, Layer], Ranking] = {}


def find(
    x: typing.Any,
    w: typing.Any,
    bias: typing.Any = None,
    stride: typing.Any = 1,
    padding: typing.Any = 0,
    dilation: typing.Any = 1,
    groups: int = 1,
    relu: bool = False,
    *,
    algorithms: Sequence[str] = ALGORITHMS,
    workspace_limit: int | None = None,
    seconds: float = 0.2,
) -> Ranking:
    """Run every algorithm on these arrays, rank them by time, and let `convolution` remember it for such a layer.

    On a GPU the time is the median of the kernels' time with a cold L2 cache, as in `pmpp.lab.measure.timing`. In the
    interpreter it is the interpreter's own, which ranks nothing but the interpreter.

    Args:
        x, w, bias, stride, padding, dilation, groups, relu: as in `convolution`.
        algorithms: the candidates.
        workspace_limit: bytes of device memory beyond which a candidate is not run; None for no limit.
        seconds: of measuring for each candidate, about.

    Returns the `Ranking`. A candidate that cannot compute the layer, or finds no memory, stands last with the reason. A
    ranking of some of the algorithms, or under a limit, is not remembered.
    Raises TypeError or ValueError that names the argument at fault.
    """
    p = problem_of(x, w, bias, stride, padding, dilation, groups, relu, None, 0)
    unknown = [name for name in algorithms if name not in ALGORITHMS]
    if unknown or isinstance(algorithms, str) or not len(algorithms):
        raise ValueError(f"algorithms must be some of {', '.join(ALGORITHMS)}, was {algorithms!r}")
    _check_limit(workspace_limit)
    if not p.out.size:
        raise ValueError("x must have an image at least, had none: there is nothing to measure")
    samples = samples_of(p)
    found = [_candidate(name, p, samples, workspace_limit, seconds) for name in algorithms]
    ran = sorted((one for one in found if not one.note), key=lambda one: one.seconds)
    ranking = Ranking(p.layer, _device_name(), (*ran, *(one for one in found if one.note)))
    if ran and workspace_limit is None and set(algorithms) == set(ALGORITHMS):
        _FOUND[_device_name(), p.layer] = ranking
    return ranking


def _device_name() -> str:
    if not device.on_gpu():
        return "the interpreter"
    name = device.backend().cuda.get_current_device().name
    return name.decode() if isinstance(name, bytes) else name


def _candidate(name: str, p: Problem, samples: Samples, limit: int | None, seconds: float) -> Candidate:
    nothing = float("nan")
    if why := refuses(name, p.layer):
        return Candidate(name, nothing, 0, nothing, why)
    wanted = workspace_bytes(name, p.layer)
    if not _fits(name, p.layer, limit):
        return Candidate(name, nothing, wanted, nothing, f"wants {wanted:,} bytes of workspace, {limit:,} are allowed")
    try:
        taken = _time(lambda: run(name, p), p.layer, seconds)
    except MemoryError as error:
        return Candidate(name, nothing, wanted, nothing, str(error))
    return Candidate(name, taken, wanted, samples.error(p.out))


def _time(call: Callable[[], typing.Any], layer: Layer, seconds: float) -> float:
    if device.on_gpu():
        options = {"set_bytes": layer.cost.bytes, "spread": 0.02, "min_repeats": 7, "max_seconds": seconds}
        return timing.measure(call, [()], **options).median
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


@cuda.jit
def exact_kernel(x, w, bias, places, exact, size, extent, kernel, stride, padding, dilation, filters, relu):
    """Outputs in float64, one a thread, straight from the definition, and the sums of their terms' sizes."""
    i = cuda.grid(1)
    if i < places.size:
        column, at = places[i] % extent[3], places[i] // extent[3]
        row, at = at % extent[2], at // extent[2]
        k, n = at % extent[1], at // extent[1]
        total, sizes = np.float64(0), np.float64(0)
        c = 0
        while c < w.shape[1]:
            r = 0
            while r < kernel[0]:
                y = row * stride[0] + r * dilation[0] - padding[0]
                s = 0
                while s < kernel[1]:
                    z = column * stride[1] + s * dilation[1] - padding[1]
                    if 0 <= y < x.shape[2] and 0 <= z < x.shape[3]:
                        term = np.float64(x[n, k // filters * w.shape[1] + c, y, z]) * np.float64(w[k, c, r, s])
                        total += term
                        sizes += abs(term)
                    s += 1
                r += 1
            c += 1
        if bias.size:
            total += np.float64(bias[k])
            sizes += abs(np.float64(bias[k]))
        exact[i] = np.float64(0) if relu and total < 0 else total
        size[i] = sizes


@cuda.jit
def gather_kernel(source, places, target):
    i = cuda.grid(1)
    if i < places.size:
        target[i] = source[places[i]]


class Samples(typing.NamedTuple):
    """Some places of an output, the first and the last among them, and in float64 what belongs there."""

    places: typing.Any
    exact: np.ndarray
    size: np.ndarray  # sums of the terms' sizes

    def error(self, out: typing.Any) -> float:
        """The largest error of ``out`` at these places: see `Candidate`."""
        got = device.empty(self.places.size, np.float32)
        gather_kernel[-(-self.places.size // 32), 32](out.reshape(-1), self.places, got)
        off = np.abs(device.to_host(got) - self.exact)
        return float(np.max(off / np.maximum(self.size, np.finfo(np.float32).tiny)))


def samples_of(p: Problem) -> Samples:
    """Up to `SAMPLES` places of the problem's output, the same ones each time."""
    layer, count = p.layer, p.out.size
    drawn = np.random.default_rng(0).integers(0, count, SAMPLES - 2)
    places = device.to_device(np.unique([0, count - 1, *drawn]))
    exact, size = (device.empty(places.size, np.float64) for _ in range(2))
    sizes = layer.shape, (layer.r, layer.s), layer.stride, layer.padding, layer.dilation, layer.k // layer.groups
    exact_kernel[-(-places.size // 32), 32](p.x, p.w, p.bias, places, exact, size, *sizes, p.relu)
    return Samples(places, device.to_host(exact), device.to_host(size))


# ---------------------------------------------------------------------------------------------------------- by guessing


def predict(layer: Layer) -> dict[str, float]:
    """Milliseconds that each algorithm will take, about; without those that refuse the layer."""
    return {name: guess(name, layer) for name in ALGORITHMS if not refuses(name, layer)}


def choose(layer: Layer) -> list[str]:
    """The algorithms that can compute the layer, the likely fastest first: by `find` if it has been, else `predict`."""
    found = _FOUND.get((_device_name(), layer))
    if found is not None:
        return [one.algorithm for one in found.candidates if not one.note]
    times = predict(layer)
    return sorted(times, key=times.__getitem__)
