"""Which GPU for a network? The time of a training step and its memory, computed from shapes and datasheets.

`operations` writes down what a network does to a batch: no kernel runs, only shapes go through the network's own code.
`step` gives each of them the time that its arithmetic and its bytes need at best on a GPU, and adds them up.
`memory` says what a step must keep. `gpus` reads the table ``gpus.json``, where each figure has its source.

Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
import types
import typing
from dataclasses import dataclass
from pathlib import Path

from pmpp.nn.modules import Module, Parameter
from pmpp.runtime.check import as_integer

__all__ = ["OPTIMISERS", "Gpu", "Operation", "Step", "count", "gpus", "memory", "operations", "prices", "step"]

TABLE = Path(__file__).with_name("gpus.json")
FLOAT = 4  # bytes

#: Arrays that an optimiser keeps for each parameter.
OPTIMISERS = {"SGD": 0, "SGD with momentum": 1, "Adam": 2}


@dataclass(frozen=True)
class Gpu:
    """A row of the table; what no document states is None.

    f32        FLOP/s in float32: 2 x cores x clock, or as it is stated
    tf32, f16  FLOP/s of tensor cores, dense, sums in float32
    bandwidth  byte/s of its memory
    memory     bytes
    hour       US dollars for an hour, rented; launch: what it was offered for when it was new
    """

    name: str
    kind: str
    capability: tuple[int, int]
    f32: float
    bandwidth: float
    memory: float
    watts: float
    cores: int | None = None
    tf32: float | None = None
    f16: float | None = None
    hour: float | None = None
    launch: float | None = None
    sources: tuple[dict, ...] = ()

    @property
    def ridge(self) -> float:
        """FLOP a byte above which float32 arithmetic takes longer than memory."""
        return self.f32 / self.bandwidth

    def peak(self, precision: str = "f32") -> float | None:
        """FLOP/s of products of matrices in "f32", "tf32" or "f16"; None if it is not known."""
        if precision not in ("f32", "tf32", "f16"):
            raise ValueError(f"precision must be 'f32', 'tf32' or 'f16', was {precision!r}")
        return getattr(self, precision)


@functools.cache
def _table() -> dict[str, typing.Any]:
    return json.loads(TABLE.read_text(encoding="utf-8"))


def gpus() -> dict[str, Gpu]:
    """The GPUs of the table, by name.

    >>> gpus()["H200"].memory / 1e9
    141.0
    """
    found = {}
    for row in _table()["gpus"]:
        f32 = row.get("f32") or 2.0 * row["cores"] * row["clock"]
        options = {key: row.get(key) for key in ("cores", "tf32", "f16")}
        money = {key: row[key]["usd"] if key in row else None for key in ("hour", "launch")}
        plain = row["bandwidth"], row["memory"], row["watts"]
        found[row["name"]] = Gpu(
            row["name"], row["class"], tuple(row["capability"]), f32, *plain, **options, **money,
            sources=tuple(row["sources"]),
        )  # fmt: skip
    return found


def prices() -> dict[str, dict[str, str]]:
    """The price lists: document, address, and the day for which they are."""
    return _table()["prices"]


# ------------------------------------------------------------------------------------------- what a network does


@dataclass(frozen=True)
class Operation:
    """One operation of a training step, forward and backward, on a batch of one size.

    Attributes:
        name: the function. layer: the path of its module.
        flops, moved: of the forward pass: operations, and bytes read and written once.
        flops_back, moved_back: of the backward pass. kernels: launches of both passes, at least.
        kept: bytes that are saved for the backward pass.
        product: whether its arithmetic is a product of matrices, which tensor cores can do.
    """

    name: str
    layer: str
    flops: float
    moved: float
    flops_back: float
    moved_back: float
    kernels: int
    kept: float
    product: bool


class _Shape:
    """What stands for a tensor: its shape, whether a gradient must come back to it, and whose memory it is in."""

    def __init__(
        self, shape: typing.Sequence[int], trace: _Trace, needs: bool = True, base: _Shape | None = None
    ) -> None:
        self.shape, self.trace, self.needs, self.base = tuple(shape), trace, needs, base or self

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def flatten(self, first: int = 0) -> _Shape:
        return _Shape((*self.shape[:first], math.prod(self.shape[first:])), self.trace, self.needs, self.base)

    def __add__(self, other: _Shape) -> _Shape:
        return self.trace.elementwise("add", self, keeps=None, inputs=2)


class _Trace:
    """Functions with the names of `pmpp.nn.functional` that write down what they would do."""

    def __init__(self) -> None:
        self.found: list[Operation] = []
        self.path: tuple[str, ...] = ()
        self.kept: list[_Shape] = []

    def _keep(self, x: _Shape) -> int:
        """Bytes that must be kept so that x is there in the backward pass: none if it is kept already."""
        if any(x.base is one for one in self.kept):
            return 0
        self.kept.append(x.base)
        return FLOAT * x.size

    def _note(self, name: str, **counts: typing.Any) -> None:
        self.found.append(Operation(name, ".".join(self.path), **counts))

    def elementwise(
        self, name: str, x: _Shape, keeps: str | None = "result", inputs: int = 1, flops: int = 1
    ) -> _Shape:
        size, out = x.size * FLOAT, _Shape(x.shape, self)
        back = 0 if name == "add" else (3 if keeps else 2) * size  # an addition hands its gradient on
        kept = self._keep(out if keeps == "result" else x) if keeps else 0
        self._note(
            name, flops=flops * x.size, moved=(inputs + 1) * size, flops_back=flops * x.size * bool(back),
            moved_back=back, kernels=2 if back else 1, kept=kept, product=False,
        )  # fmt: skip
        return out

    def _product(self, name: str, x: _Shape, weight: typing.Any, bias: typing.Any, out: _Shape, inner: int) -> _Shape:
        flops = 2 * out.size * inner
        weights = math.prod(weight.shape) + (0 if bias is None else math.prod(bias.shape))
        # Two products go back: the gradient of the weights reads x and dy, that of the input reads dy and the weights.
        back = x.size + out.size + weights + (out.size + weights + x.size if x.needs else 0)
        self._note(
            name, flops=flops, moved=FLOAT * (x.size + out.size + weights), flops_back=flops * (1 + x.needs),
            moved_back=FLOAT * back, kernels=2 + x.needs, kept=self._keep(x), product=True,
        )  # fmt: skip
        return out

    def conv2d(self, x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
        stride, padding, dilation = (_pair(value) for value in (stride, padding, dilation))
        kernel = weight.shape[2:]
        sides = [
            (x.shape[2 + i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in range(2)
        ]
        out = _Shape((x.shape[0], weight.shape[0], *sides), self)
        return self._product("conv2d", x, weight, bias, out, math.prod(weight.shape[1:]))

    def linear(self, x, weight, bias=None):
        out = _Shape((*x.shape[:-1], weight.shape[0]), self)
        return self._product("linear", x, weight, bias, out, weight.shape[1])

    def relu(self, x):
        return self.elementwise("relu", x, keeps="input")

    tanh = sigmoid = silu = relu

    def gelu(self, x, approximate="none"):
        return self.elementwise("gelu", x, keeps="input", flops=10)

    def dropout(self, x, p=0.5, training=True):
        return self.elementwise("dropout", x, keeps=None) if training and p else x

    def _pool(self, name, x, kernel_size, stride, padding):
        kernel, padding = _pair(kernel_size), _pair(padding)
        stride = kernel if stride is None else _pair(stride)
        sides = [(x.shape[2 + i] + 2 * padding[i] - kernel[i]) // stride[i] + 1 for i in range(2)]
        out = _Shape((*x.shape[:2], *sides), self)
        # Where the largest element of a window was is kept in a byte for each result.
        kept = out.size if name == "max_pool2d" else 0
        self._note(
            name, flops=out.size * math.prod(kernel), moved=FLOAT * (x.size + out.size) + kept, flops_back=out.size,
            moved_back=FLOAT * (x.size + out.size) + kept, kernels=2, kept=kept, product=False,
        )  # fmt: skip
        return out

    def max_pool2d(self, x, kernel_size, stride=None, padding=0, ceil_mode=False):
        return self._pool("max_pool2d", x, kernel_size, stride, padding)

    def avg_pool2d(self, x, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True):
        return self._pool("avg_pool2d", x, kernel_size, stride, padding)

    def batch_norm(self, x, running_mean, running_var, weight, bias, training=False, momentum=0.1, eps=1e-5):
        size = FLOAT * x.size  # x is read for its moments, then again; going back, x and dy are both read twice
        self._note(
            "batch_norm", flops=8 * x.size, moved=3 * size, flops_back=10 * x.size, moved_back=5 * size, kernels=4,
            kept=self._keep(x), product=False,
        )  # fmt: skip
        return _Shape(x.shape, self)

    def layer_norm(self, x, weight, bias, eps=1e-5):
        return self.elementwise("layer_norm", x, keeps="input", flops=8)

    def cross_entropy(self, scores, labels=None, *options):
        return self.elementwise("cross_entropy", scores, flops=5)


def _pair(value: typing.Any) -> tuple[int, int]:
    return tuple(value) if isinstance(value, tuple | list) else (value, value)


class _Twin:
    """A module whose forward is the module's own code, with `_Trace` in the place of the functions."""

    def __init__(self, net: Module, trace: _Trace, name: str = "") -> None:
        self.__dict__.update(_net=net, _trace=trace, _name=name)

    def __getattr__(self, name: str) -> typing.Any:
        value = getattr(self._net, name)
        return _Twin(value, self._trace, name) if isinstance(value, Module) else value

    def named_children(self) -> typing.Iterator[tuple[str, _Twin]]:
        for name, child in self._net.named_children():
            yield name, _Twin(child, self._trace, name)

    def __call__(self, x: _Shape) -> _Shape:
        before, trace = self._trace.path, self._trace
        trace.path = (*before, self._name) if self._name else before
        forward = inspect.unwrap(type(self._net).forward)
        names = {**forward.__globals__, "F": trace}
        try:
            return types.FunctionType(forward.__code__, names, None, forward.__defaults__, forward.__closure__)(self, x)
        finally:
            trace.path = before


def operations(net: Module, shape: typing.Sequence[int]) -> list[Operation]:
    """What a training step with cross-entropy does to a batch of this shape, in the order of the forward pass.

    Nothing is computed: shapes go through the ``forward`` of each module. It may use `pmpp.nn.functional` by the name
    ``F``, modules, additions, ``shape`` and ``flatten``. Raises AttributeError for what is not known here.

    >>> from pmpp.nn.examples.networks import LeNet
    >>> [op.name for op in operations(LeNet(), (1, 1, 28, 28))][:3]
    ['conv2d', 'relu', 'max_pool2d']
    """
    if not isinstance(net, Module):
        raise TypeError(f"net must be a Module, was {type(net).__name__}")
    sizes = tuple(as_integer(f"shape[{i}]", size, 1) for i, size in enumerate(shape))
    trace = _Trace()
    trace.cross_entropy(_Twin(net, trace)(_Shape(sizes, trace, needs=False)))
    return trace.found


# ------------------------------------------------------------------------------------------------- what it costs


class Step(typing.NamedTuple):
    """The time of a step in parts, in seconds.

    memory, compute    of operations whose bytes, or whose arithmetic, take longer
    launches           of kernels that are shorter than the shortest kernel
    """

    memory: float
    compute: float
    launches: float

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.memory + self.compute + self.launches


def step(
    found: typing.Iterable[Operation],
    parameters: int,
    gpu: Gpu,
    *,
    precision: str = "f32",
    optimiser: str = "SGD with momentum",
    floor: float = 0.0,
) -> Step:
    """The least time of a training step.

    Args:
        found: of `operations`. parameters: their number.
        precision: "f32", "tf32" or "f16", of products of matrices. All else is float32, and so are all bytes.
        optimiser: of `OPTIMISERS`: parameters and what it keeps are read and written, gradients are read.
        floor: seconds of the shortest kernel.

    Raises ValueError if the GPU's rate in this precision is not known.
    """
    peak = gpu.peak(precision)
    if peak is None:
        raise ValueError(f"precision {precision!r} of {gpu.name} is not in the table")
    if optimiser not in OPTIMISERS:
        raise ValueError(f"optimiser must be one of {', '.join(OPTIMISERS)}, was {optimiser!r}")
    spent = {"memory": 0.0, "compute": 0.0, "launches": 0.0}

    def add(flops: float, moved: float, product: bool, kernels: int) -> None:
        times = {"compute": flops / (peak if product else gpu.f32), "memory": moved / gpu.bandwidth}
        times["launches"] = floor * kernels
        longest = max(times, key=times.__getitem__)
        spent[longest] += times[longest]

    for op in found:
        backward = op.kernels - 1
        add(op.flops, op.moved, op.product, 1)
        if backward:
            add(op.flops_back, op.moved_back, op.product, backward)
    arrays = 1 + OPTIMISERS[optimiser]
    add(4.0 * arrays * parameters, FLOAT * (2 * arrays + 1) * parameters, False, 1)
    return Step(**spent)


def memory(
    found: typing.Iterable[Operation], parameters: int, optimiser: str = "SGD with momentum"
) -> dict[str, float]:
    """Bytes that a step keeps: parameters, gradients, what the optimiser keeps, activations.

    It is what must be there at the end of the forward pass. Libraries, contexts and work space come on top.
    """
    size = FLOAT * parameters
    if optimiser not in OPTIMISERS:
        raise ValueError(f"optimiser must be one of {', '.join(OPTIMISERS)}, was {optimiser!r}")
    return {
        "parameters": size,
        "gradients": size,
        "optimiser": OPTIMISERS[optimiser] * size,
        "activations": sum(op.kept for op in found),
    }


def count(net: Module) -> int:
    """How many numbers a network is trained by."""
    return sum(math.prod(p.shape) for p in net.parameters() if isinstance(p, Parameter) and p.requires_grad)
