"""The shapes to measure: a rule, three seeds, and nothing chosen by hand but the named ones.

Each drawn line takes a third of its shapes from each generator ``numpy.random.default_rng(s)``, s in `SEEDS`. A shape
whose least time, by the roofline of `BANDWIDTH` and `RATE`, is under `SHORTEST` would measure little but a launch: it
is kept aside, reported by the host time of a call, and another one is drawn in its place. A shape that was
drawn already, or one above `MOST_BYTES`, is drawn again, too. Log-uniform: each doubling of a size is as likely as any
other.

What the issue leaves open was decided by what users have:

- *aligned* extents are log-uniform, and in three cases of four those from 8 on are rounded down to a multiple of 8:
  people choose round numbers of channels and features, and data brings the others.
- *matrix-vector*: a row times a matrix, or a matrix times a column, of extents from 1024 to 16384. 16384^2 is named.
- *FFT*: lines of each length, 2^26 points in all. Real transforms go both ways, with every other power of two.
- *reduction over axes*: the sum, the mean or the maximum of 2^20 to 2^28 elements in 2 to 4 dimensions, over any of the
  sets of axes that are not empty. The logarithm of the size is divided among the dimensions at random.
- *softmax*: 2^20 to 2^27 elements in rows of 2 to 262,144; one in five along another axis than the last.
- *normalisation*: a third each of batches in training, batches in inference, and layers: 2^20 to 2^27 elements in rows
  of 16 to 65,536. A batch has 1 to 256 images of 3 to 2048 channels and square planes of 1 to 224.
- *pooling*: the maximum or the mean, windows of 2, 3, 5 or 7 on planes of 7 to 512, strides of 1, 2 or the window,
  padding of half a window in one case of two; one in ten is the mean of the whole plane.
- *scan*: running sums of 2^20 to 2^27 float32 (three in five), int32 or int64.
- *activation*: each function of the room, on a vector, a matrix or images of 2^20 to 2^27 elements; with a bias in half
  of those that have channels.
- *convolution*: 1 to 64 images of 7 to 224, 8 to 1024 channels and filters (one in ten has 3 channels), windows 1
  (three in ten), 3 (five), 5 and 7, stride 2 in a quarter, padding of half a window in nine of ten, groups in one of
  ten; under 2^36 multiplications and 2^29 bytes.
- *depthwise convolution*: as many groups as channels, 16 to 2048, windows of 3 (three in five), 5 and 7.
- *products of float16*, with a result in float16: extents log-uniform from 8 to 16384, rounded down to a multiple of 8.
  Their rate is that of the tensor cores.

Only uniform numbers of the generator are used, whose stream NumPy has never changed, and a test holds the digest.
"""

from __future__ import annotations

import hashlib
import json
import math
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np

from pmpp.runtime.rung import Cost

__all__ = ["LINES", "SEEDS", "Line", "Shape", "digest", "drawn", "least_seconds", "part", "rooms"]

SEEDS = (20261122, 20261123, 20261124)
SHORTEST = 5e-6  # seconds
# Of an H200, rounded, so that a new measurement of these does not change which shapes are drawn.
BANDWIDTH, RATE = 4.2e12, 62e12  # byte/s of a copy, FLOP/s of multiply-adds
RATES = {"warpgroups": 700e12}  # FLOP/s of rooms that multiply on tensor cores, by what cuBLAS reaches, rounded
MOST_BYTES = 1.25 * 2**30  # read and written by one call; inputs, rotated copies and the check take six times as much
POINTS = 2**26  # of the transforms of one length


@dataclass(frozen=True)
class Shape:
    """One problem.

    Attributes:
        line: the line of the report that it belongs to. room: by whom it is computed.
        name: the shape in words, different from all others of its line.
        sizes: the same as numbers and words, from which its inputs are made.
        flops, bytes: the least work by the definition, as `pmpp.runtime.rung.Cost`.
        seed: of the generator that drew it; None if it is named. aside: too short to be timed on the GPU.
        warm: measured with its inputs in the cache, as the same named sizes are in the room's own record.
    """

    line: str
    room: str
    name: str
    sizes: Mapping[str, typing.Any]
    flops: int
    bytes: int
    seed: int | None = None
    aside: bool = False
    warm: bool = False

    @property
    def cost(self) -> Cost:
        return Cost(self.flops, self.bytes)

    @property
    def key(self) -> str:
        return f"{self.line}: {self.name}"


def least_seconds(shape: Shape) -> float:
    """The least time by the roofline that the drawing goes by."""
    return max(shape.bytes / BANDWIDTH, shape.flops / RATES.get(shape.room, RATE))


class Dice:
    """What is drawn, from uniform numbers of one generator."""

    def __init__(self, seed: int) -> None:
        self.uniform = np.random.default_rng(seed).random

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * float(self.uniform())

    def log(self, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``, log-uniform."""
        return min(high, int(low * ((high + 1) / low) ** float(self.uniform())))

    def pick(self, *options: typing.Any) -> typing.Any:
        return options[int(len(options) * float(self.uniform()))]

    def aligned(self, low: int, high: int) -> int:
        """The same; from 8 on a multiple of 8 in three cases of four."""
        return self.round(self.log(low, high))

    def round(self, extent: int) -> int:
        down = self.uniform() < 0.75
        return extent // 8 * 8 if down and extent >= 8 else extent


# ------------------------------------------------------------------------------------------------------------ one line


def _product(line: str, m: int, n: int, k: int, **more: typing.Any) -> Shape:
    sizes = {"m": m, "n": n, "k": k}
    name = f"{m}x{k}x{n}"  # as it is multiplied: (m, k) by (k, n)
    return Shape(line, "matmul", name, sizes, 2 * m * n * k, 4 * (m * k + k * n + m * n), **more)


def _matmul(dice: Dice) -> Shape | None:
    m, k, n = (dice.log(1, 16384) for _ in range(3))
    return _product("matmul", m, n, k) if m * k * n < 2**38 else None


def _halves(dice: Dice) -> Shape | None:
    m, k, n = (dice.log(8, 16384) // 8 * 8 for _ in range(3))
    if m * k * n >= 2**38:
        return None
    sizes, moved = {"m": m, "n": n, "k": k}, 2 * (m * k + k * n + m * n)
    return Shape("products of float16", "warpgroups", f"{m}x{k}x{n}", sizes, 2 * m * n * k, moved)


def _vector(dice: Dice) -> Shape:
    row, long, other = dice.pick(True, False), dice.log(1024, 16384), dice.log(1024, 16384)
    return _product("matrix-vector", *((1, other, long) if row else (other, 1, long)))


def _lines(n: int, line: str) -> Shape:
    lines = max(1, POINTS // n)
    points = lines * n
    sizes = {"lines": lines, "n": n, "kind": "fft"}
    return Shape(line, "fft", f"{lines}x{n}", sizes, int(5 * points * math.log2(max(n, 2))), 16 * points)


def _real(n: int, kind: str) -> Shape:
    lines = max(1, POINTS // n)
    sizes = {"lines": lines, "n": n, "kind": kind}
    flops = int(2.5 * lines * n * math.log2(n))  # half of a complex transform
    return Shape("FFT, real", "fft", f"{kind} {lines}x{n}", sizes, flops, lines * (4 * n + 8 * (n // 2 + 1)))


def _axes(dice: Dice) -> Shape | None:
    op, ndim = dice.pick("sum", "mean", "max"), dice.pick(2, 3, 4)
    bits = dice.between(20, 28)
    shares = [float(dice.uniform()) for _ in range(ndim)]
    shape = [dice.round(max(1, int(2 ** (bits * share / sum(shares))))) for share in shares]
    chosen = dice.pick(*range(1, 2**ndim))
    axes = [d for d in range(ndim) if chosen >> d & 1]
    size = math.prod(shape)
    results = size // math.prod(shape[d] for d in axes)
    name = f"{op} {_by(shape)} over {', '.join(map(str, axes))}"
    sizes = {"op": op, "shape": shape, "axes": axes}
    return Shape("reduction over axes", "reduction", name, sizes, size - results, 4 * (size + results))


def _sum(n: int) -> Shape:
    sizes = {"op": "sum", "shape": [n], "axes": None}
    return Shape("sums", "reduction", f"sum 2^{n.bit_length() - 1}", sizes, n - 1, 4 * (n + 1), warm=True)


def _softmax(dice: Dice) -> Shape:
    n, bits, across = dice.aligned(2, 262_144), dice.between(20, 27), dice.uniform() < 0.2
    rows = max(1, int(2**bits) // n)
    if across:
        inner = min(rows, dice.log(2, 1024))
        shape = [max(1, rows // inner), n, inner]
    else:
        shape = [rows, n]
    size = math.prod(shape)
    name = _by(shape) + (" along 1" if across else "")
    return Shape("softmax", "softmax", name, {"shape": shape, "axis": 1}, 5 * size, 8 * size)


def _normalisation(dice: Dice) -> Shape | None:
    kind = dice.pick("batch, training", "batch, inference", "layer")
    if kind == "layer":
        columns = dice.aligned(16, 65536)
        shape = [max(1, int(2 ** dice.between(20, 27)) // columns), columns]
        per, channels = 8, columns
    else:
        shape = _images(dice, 1, 224)
        per, channels = 9 if kind == "batch, training" else 4, shape[1]
    size = math.prod(shape)
    if kind == "batch, training" and size == channels:
        return None  # one value a channel, which has no variance
    sizes = {"kind": kind, "shape": shape}
    name = f"{kind} {_by(shape)}"
    return Shape("normalisation", "normalisation", name, sizes, per * size, 8 * size + 8 * channels)


def _pooling(dice: Dice) -> Shape | None:
    shape, op, window = _images(dice, 7, 512), dice.pick("max", "average"), dice.pick(2, 2, 2, 3, 3, 3, 5, 7)
    stride, padded, whole = dice.pick(1, 2, window, window), dice.pick(True, False), dice.uniform() < 0.1
    extent = shape[2]
    if whole:
        op, window, stride, padding = "average", extent, extent, 0
    else:
        padding = window // 2 if padded else 0
    out = (extent + 2 * padding - window) // stride + 1
    planes = shape[0] * shape[1]
    sizes = {"op": op, "shape": shape, "window": window, "stride": stride, "padding": padding}
    name = f"{op} {_by(shape)} " + ("whole" if whole else f"{window}x{window} s{stride} p{padding}")
    work = planes * out**2 * (window**2 - 1), 4 * planes * (extent**2 + out**2)
    return Shape("pooling", "pooling", name, sizes, *work)


def _scan(dice: Dice) -> Shape:
    n, dtype = dice.log(2**20, 2**27), dice.pick("float32", "float32", "float32", "int32", "int64")
    each = 2 * np.dtype(dtype).itemsize
    return Shape("scan", "scan", f"{dtype} {n}", {"n": n, "dtype": dtype}, n - 1, each * n)


FUNCTIONS = ("relu", "leaky_relu", "sigmoid", "tanh", "gelu", "gelu_tanh", "silu")


def _activation(dice: Dice) -> Shape:
    function, kind, biased = dice.pick(*FUNCTIONS), dice.pick("vector", "matrix", "images"), dice.pick(True, False)
    if kind == "images":
        shape = _images(dice, 1, 224)
    else:
        size = int(2 ** dice.between(20, 27))
        columns = dice.aligned(8, 16384)
        shape = [size] if kind == "vector" else [max(1, size // columns), columns]
    biased = biased and kind != "vector"
    size, sizes = math.prod(shape), {"function": function, "shape": shape, "bias": biased}
    return Shape("activation", "activation", f"{function} {_by(shape)}{' bias' * biased}", sizes, size, 8 * size)


def _convolution(dice: Dice) -> Shape | None:
    n, extent = dice.log(1, 64), dice.log(7, 224)
    c, k = (dice.aligned(8, 1024) for _ in "ck")
    if dice.uniform() < 0.1:
        c = 3
    r, stride = dice.pick(1, 1, 1, 3, 3, 3, 3, 3, 5, 7), dice.pick(1, 1, 1, 2)
    padding = r // 2 if dice.uniform() < 0.9 else 0
    grouped, groups = dice.uniform() < 0.1, dice.pick(2, 4, 8, 32)
    if not grouped or c % groups or k % groups:
        groups = 1
    return _layer("convolution", n, c, extent, k, r, stride, padding, groups)


def _depthwise(dice: Dice) -> Shape | None:
    n, extent, c = dice.log(1, 64), dice.log(7, 224), dice.aligned(16, 2048)
    r, stride = dice.pick(3, 3, 3, 5, 7), dice.pick(1, 1, 2)
    return _layer("depthwise convolution", n, c, extent, c, r, stride, r // 2, c)


def _layer(line: str, n: int, c: int, h: int, k: int, r: int, stride: int, padding: int, groups: int) -> Shape | None:
    out = (h + 2 * padding - r) // stride + 1
    terms = c // groups * r * r
    multiplications, moved = n * k * out**2 * terms, 4 * (n * c * h * h + k * terms + n * k * out**2)
    if multiplications >= 2**36 or moved > 2**29:
        return None
    sizes = {"n": n, "c": c, "h": h, "k": k, "r": r, "stride": stride, "padding": padding, "groups": groups}
    usual = {"s": (stride, 1), "p": (padding, 0), "g": (groups, 1)}
    words = [f"{letter}{value}" for letter, (value, common) in usual.items() if value != common]
    name = " ".join([f"n{n} c{c} h{h} k{k} {r}x{r}", *words])
    return Shape(line, "convolution_layer", name, sizes, 2 * multiplications, moved)


def _images(dice: Dice, low: int, high: int) -> list[int]:
    extent = dice.log(low, high)
    return [dice.log(1, 256), dice.aligned(3, 2048), extent, extent]


def _by(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape))


# ----------------------------------------------------------------------------------------------------------- all lines


@dataclass(frozen=True)
class Line:
    """A line of the report: so many shapes drawn by a rule, or those that are named."""

    name: str
    room: str
    count: int = 0
    draw: Callable[[Dice], Shape | None] | None = None
    named: tuple[Shape, ...] = ()

    def shapes(self) -> Iterator[Shape]:
        """In the order of the seeds; those that are kept aside where they were drawn."""
        yield from self.named
        seen = {shape.name for shape in self.named}
        for place, seed in enumerate(SEEDS if self.draw else ()):
            dice, left = Dice(seed), self.count // 3 + (place < self.count % 3)
            while left:
                shape = self.draw(dice) if self.draw else None
                if shape is None or shape.bytes > MOST_BYTES or shape.name in seen:
                    continue
                seen.add(shape.name)
                aside = least_seconds(shape) < SHORTEST
                left -= not aside
                yield replace(shape, seed=seed, aside=aside)


LENGTHS = (100, 243, 1000, 1001, 1009, 4095, 10007, 121, 169, 1331, 2197)  # the last four: radices 11 and 13
SIDES = (256, 384, 512, 640, 768, 896, 1024)
REAL = (*(2**k for k in range(4, 23, 2)), 1000, 4095)
NAMED_VECTORS = (_product("matrix-vector, 16384^2", *extents, 16384) for extents in ((16384, 1), (1, 16384)))

LINES = (
    Line("matmul", "matmul", 200, _matmul),
    Line("matrix-vector, 16384^2", "matmul", named=tuple(NAMED_VECTORS)),
    Line("matrix-vector", "matmul", 24, _vector),
    Line("matmul, square", "matmul", named=tuple(_product("matmul, square", n, n, n, warm=True) for n in SIDES)),
    Line("FFT, powers of two", "fft", named=tuple(_lines(2**k, "FFT, powers of two") for k in range(4, 23))),
    Line("FFT, other lengths", "fft", named=tuple(_lines(n, "FFT, other lengths") for n in LENGTHS)),
    Line("FFT, real", "fft", named=tuple(_real(n, kind) for n in REAL for kind in ("rfft", "irfft"))),
    Line("reduction over axes", "reduction", 100, _axes),
    Line("sums", "reduction", named=tuple(_sum(2**k) for k in range(10, 15))),
    Line("convolution", "convolution_layer", 100, _convolution),
    Line("depthwise convolution", "convolution_layer", 30, _depthwise),
    Line("softmax", "softmax", 100, _softmax),
    Line("normalisation", "normalisation", 100, _normalisation),
    Line("pooling", "pooling", 100, _pooling),
    Line("scan", "scan", 100, _scan),
    Line("activation", "activation", 100, _activation),
    Line("products of float16", "warpgroups", 50, _halves),
)


def rooms() -> tuple[str, ...]:
    """The rooms that shapes are drawn for."""
    return tuple(dict.fromkeys(line.room for line in LINES))


def drawn(only: Iterable[str] | None = None) -> list[Shape]:
    """All shapes of some rooms, by default of all.

    >>> [shape.name for shape in drawn(["convolution_layer"])][:2]
    ['n1 c944 h59 k8 3x3 p1', 'n49 c8 h13 k332 1x1']
    """
    wanted = rooms() if only is None else tuple(only)
    return [shape for line in LINES if line.room in wanted for shape in line.shapes()]


def part(shapes: Iterable[Shape], number: int, parts: int) -> list[Shape]:
    """Part ``number`` of ``parts``, from 1 on: a run of each line, those that are kept aside apart.

    Every part has its share of every line. Within a line shapes that call for the same kernels stand together, so that
    few kernels are compiled in more than one part. Together the parts are all shapes, each once. Raises ValueError
    unless 1 <= number <= parts.

    >>> [len(part(drawn(["scan"]), number, 4)) for number in (1, 2, 3, 4)]
    [30, 31, 31, 31]
    """
    if not 1 <= number <= parts:
        raise ValueError(f"a part must be from 1 to {parts}, was {number}")
    lines: dict[tuple[str, bool], list[Shape]] = {}
    for shape in shapes:
        lines.setdefault((shape.line, shape.aside), []).append(shape)
    found = []
    # A line of two shapes fills no four parts: each line begins at another part, so that none has all such lines.
    for place, line in enumerate(lines.values()):
        turn = (number - 1 + place) % parts
        alike = sorted(line, key=lambda shape: (_kernels(shape), shape.name))
        found += alike[len(alike) * turn // parts : len(alike) * (turn + 1) // parts]
    return found


def _kernels(shape: Shape) -> tuple:
    """What decides which kernels are compiled for a shape, about: numbers that shapes of a line can be sorted by."""
    sizes = shape.sizes
    if shape.room in ("matmul", "warpgroups"):
        return (min(sizes["m"], sizes["n"]),)
    if shape.room == "fft":
        return sizes["kind"], sizes["n"]
    if shape.room == "convolution_layer":
        outer = (1,) if sizes["groups"] == sizes["c"] else (0, sizes["groups"])
        return *outer, sizes["r"], sizes["stride"], sizes["c"] if outer[0] == 0 else sizes["h"]
    if shape.room == "softmax":
        return len(sizes["shape"]), sizes["shape"][1]
    if shape.room == "normalisation":
        return sizes["kind"], sizes["shape"][1] if sizes["kind"] == "layer" else math.prod(sizes["shape"][2:])
    if shape.room == "reduction":
        return len(sizes["shape"]), str(sizes["axes"]), sizes["op"]
    if shape.room == "pooling":
        return sizes["op"], sizes["window"], sizes["stride"]
    if shape.room == "scan":
        return sizes["dtype"], sizes["n"]
    return ()


def digest(shapes: Iterable[Shape]) -> str:
    """Of all that makes the shapes: the same wherever they are drawn.

    The order of lines does not count, so that another line changes the digest of no room.
    """
    rows = sorted(json.dumps(asdict(shape), sort_keys=True) for shape in shapes)
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:16]
