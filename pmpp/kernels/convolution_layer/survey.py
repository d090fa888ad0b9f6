"""Which convolution algorithm is the fastest for which layer: measured on a GPU, kept, and read by the chapter.

    python -m pmpp.kernels.convolution_layer.survey --out FILE    on a machine with an NVIDIA GPU: measures all layers
    python -m pmpp.kernels.convolution_layer.survey --judge       anywhere: how good the choice is on the H200's record

The layers: those of ResNet-50, two sets of shapes drawn at random, and a grid of channels x image size x kernel size.
Each is run by every algorithm and by cuDNN (PyTorch, benchmark mode, TF32 off), in turn, in one process; every output
is compared with float64 at the places of `pmpp.kernels.convolution_layer.find.samples_of`. The design layers are also
computed by NumPy on the CPU, but for those that would take it seconds.

``--budget`` is how long all of it may take. The design layers come first and are always measured in full. The less
time is left for the others, the fewer repetitions each gets, and when none is left the rest is left out. After each
layer all rows are written to ``FILE.part``. At the end that file becomes the record, unless the record has layers that
it lacks.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import sys
import time
import typing
import warnings
from pathlib import Path

import numpy as np

from pmpp.kernels.convolution_layer.definition import Layer, Problem, arguments, resnet50
from pmpp.kernels.convolution_layer.dispatch import ALGORITHMS, ROOMS, expected_times
from pmpp.kernels.convolution_layer.layers_on_cpu import on_cpu
from pmpp.kernels.convolution_layer.measured_layers import DESIGN, torch_conv2d
from pmpp.lab.measure import environment, roofline, timing
from pmpp.lab.measure.arrays import normal
from pmpp.lab.measure.bench import adapter, fill_with_nan, free_bytes
from pmpp.lab.measure.record import RECORDED, slug
from pmpp.lab.measure.sources import MEASURED, ROOT, Sources
from pmpp.runtime import device

RECORD = RECORDED / "nvidia-h200" / "convolution_survey.json"
SOURCE = Path(__file__).relative_to(ROOT).as_posix()  # with all that it imports, what the record depends on
CHANNELS, EXTENTS, KERNELS = (4, 16, 64, 256), (7, 14, 28, 56, 112, 224), (1, 3, 5, 7, 11, 15)
WORK = 1e11  # FLOP of a layer of the grid, at most, if that leaves it an image
RULE = timing.Rule(spread=0.02, min_repeats=7, max_repeats=15, max_seconds=0.05)
SHARE = 0.4  # of the budget goes to repetitions; the rest compiles, allocates, checks, and searches in cuDNN
RIVALS = ("cudnn", "numpy")  # beside the algorithms
ON_CPU = 1e10  # FLOP of a layer, at most, that NumPy computes, too: that takes it 0.3 s beside an H200
LOOSE = 1e-4  # an error of this fraction of the terms' sizes is a wrong result for any of the algorithms


def grid() -> list[Layer]:
    """A layer for each of channels x extent x kernel, with 32 images or as many as `WORK` allows."""
    found = []
    for kernel in KERNELS:
        for channels in CHANNELS:
            for extent in EXTENTS:
                sizes = channels, extent, extent, channels, kernel, kernel
                padding = (kernel // 2, kernel // 2)
                one = Layer(1, *sizes, padding=padding)
                found.append(Layer(int(min(32, max(1, WORK // one.cost.flops))), *sizes, padding=padding))
    return found


def random_layers(count: int, seed: int) -> list[Layer]:
    """Layers of 10^7 to 2 x 10^11 FLOP with everything drawn: sizes, kernels, strides, groups."""
    rng, found = np.random.default_rng(seed), []
    while len(found) < count:
        c, k = (int(rng.choice([1, 3, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512])) for _ in "ck")
        r = s = int(rng.choice([1, 1, 2, 3, 3, 3, 3, 4, 5, 5, 7, 9, 11, 15]))
        extent, n = int(np.exp(rng.uniform(np.log(4), np.log(257)))), int(rng.choice([1, 2, 4, 8, 16, 32, 64]))
        stride, groups = int(rng.choice([1, 1, 1, 2])), int(rng.choice([1, 1, 1, 1, 1, 2, 4, c]))
        if c % groups or k % groups or (groups > 4 and k != c):
            continue
        padding = int(rng.choice([0, r // 2, r // 2, r // 2]))
        layer = Layer(n, c, extent, extent, k, r, s, (stride, stride), (padding, padding), groups=groups)
        if min(layer.p, layer.q) > 0 and 1e7 <= layer.cost.flops <= 2e11 and layer.cost.bytes < 2**30:
            found.append(layer)
    return found


def sets() -> dict[str, list[Layer]]:
    """What is measured, by the name that it has in the record: what the chapter draws and the fit needs comes first."""
    return {
        "design": list(DESIGN),
        "resnet50": list(resnet50(32)),
        "grid": grid(),
        "fit": random_layers(80, seed=7),
        "judge": random_layers(40, seed=2026),
    }


# -------------------------------------------------------------------------------------------------------------- measure


def measure_layer(layer: Layer, seconds: float = RULE.max_seconds, numpy: bool = False) -> dict[str, typing.Any]:
    """A row of the record: milliseconds, workspace and error by algorithm, `RIVALS` among them, and reasons.

    ``seconds`` is for the repetitions of each contender, and ``numpy`` says whether NumPy is one.
    """
    from pmpp.kernels.convolution_layer import dispatch
    from pmpp.kernels.convolution_layer.find import samples_of

    free_bytes()  # what the pools keep of the layer before
    x = normal((layer.n, layer.c, layer.h, layer.w), 1)
    w = normal((layer.k, layer.c // layer.groups, layer.r, layer.s), 2)
    options = layer.stride, layer.padding, layer.dilation, layer.groups
    problem = arguments(x, w, None, *options)
    torch, as_tensor = adapter("torch")
    tensors = as_tensor(x), as_tensor(w)
    library = next(iter(torch_conv2d(layer).values()))

    samples = samples_of(problem)
    row: dict[str, typing.Any] = {"ms": {}, "workspace": {}, "error": {}, "notes": {}}

    def check_of(name: str) -> typing.Callable[..., tuple[float, float]]:
        def check(result: typing.Any) -> tuple[float, float]:
            result = result.contiguous() if name == "cudnn" else result
            error = samples.error(device.as_input("out", result, dtypes=np.float32))
            row["error"][name] = float(f"{error:.2g}")
            return error, LOOSE

        return check

    def contender(name: str, call: typing.Callable) -> timing.Contender:
        options = {"poison": lambda: fill_with_nan(problem.result), "set_bytes": layer.cost.bytes}
        return timing.Contender(call, [()], check_of(name), **options)

    contenders = {}
    for name in dispatch.ALGORITHMS:
        if why := dispatch.refuses(name, layer):
            row["notes"][name] = why
        else:
            contenders[name] = contender(name, functools.partial(dispatch.run, name, problem))
            row["workspace"][name] = dispatch.workspace_bytes(name, layer)
    contenders["cudnn"] = contender("cudnn", lambda: library(torch, *tensors, None))
    rule, timer = dataclasses.replace(RULE, max_seconds=seconds), timing.gpu_timer()
    outcome = timing.measure_together(contenders, timer=timer, rule=rule)
    if numpy:
        timer.synchronize()  # what the GPU still does is none of NumPy's time
        outcome["numpy"] = time_numpy(problem, check_of("numpy"))
    for name, found in outcome.items():
        if isinstance(found, Exception):
            row["notes"][name] = f"{type(found).__name__}: {found}".partition("\n")[0]
        else:
            row["ms"][name] = float(f"{found.median * 1e3:.5g}")
    return row


def time_numpy(problem: Problem, check: typing.Callable[..., tuple[float, float]]) -> timing.Timing | Exception:
    """How long NumPy takes for the problem on the CPU, or why it has no time."""
    x, w = device.to_host(problem.x), device.to_host(problem.w)
    call = on_cpu(problem.layer)["numpy"]
    try:
        return timing.measure_host(lambda: call(x, w), check=check, max_seconds=0.5)
    except Exception as error:  # as in measure_together: who fails gets no time, and costs the others nothing
        return error


def measured(
    wanted: typing.Mapping[str, typing.Sequence[Layer]],
    budget: float,
    measure: typing.Callable[..., dict[str, typing.Any]] = measure_layer,
    clock: typing.Callable[[], float] = time.perf_counter,
) -> typing.Iterator[dict[str, typing.Any]]:
    """Rows of the record, a layer after the other, in about ``budget`` seconds, which the design layers may exceed."""
    began, layers = clock(), [(name, layer) for name, several in wanted.items() for layer in several]
    for place, (name, layer) in enumerate(layers):
        design, left = name == "design", budget - (clock() - began)
        if design or left > 0:
            contenders = (len(ALGORITHMS) + 1) * (len(layers) - place)
            seconds = RULE.max_seconds if design else min(RULE.max_seconds, SHARE * left / contenders)
            row = measure(layer, seconds, design and layer.cost.flops <= ON_CPU)
            yield {"set": name, "layer": dataclasses.asdict(layer), **row}


def main(argv: typing.Sequence[str] | None = None) -> int:
    """The command line.

    Returns 0; 1 if an algorithm gave a wrong result or failed; 2 if it cannot do what is asked, or lacks layers that
    the record has.
    """
    parser = argparse.ArgumentParser(prog="python -m pmpp.kernels.convolution_layer.survey", description=__doc__)
    parser.add_argument(
        "--out", type=Path, help="the record to write (default: beside those of this GPU), or to judge by"
    )
    parser.add_argument("--sets", nargs="*", choices=list(sets()), default=list(sets()), help="what to measure")
    parser.add_argument("--judge", action="store_true", help="judge the choice by the record; measure nothing")
    parser.add_argument("--budget", type=float, default=100.0, help="seconds, about, for all (default: %(default)g)")
    options = parser.parse_args(argv)
    if options.judge:
        return _judge(options.out or RECORD)
    if not device.on_gpu():
        print(f"the map needs an NVIDIA GPU, but {device.backend().why}.", file=sys.stderr)
        return 2
    return _survey(options)


def _survey(options: argparse.Namespace) -> int:
    warnings.filterwarnings("ignore", message=".*Grid size .* under-utilization")
    began, gpu = time.perf_counter(), environment.describe_gpu()
    out = options.out or RECORDED / slug(gpu["name"]) / RECORD.name
    old = load(out)[1] if out.exists() else []  # now: a broken file should not cost a run
    part = out.with_name(f"{out.name}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    about = {"gpu": gpu, "run": environment.describe_run(roofline.measure_ceilings())}
    about |= {"measured_by": SOURCE, "sources": Sources().digests(SOURCE, within=MEASURED)}
    wanted = {name: sets()[name] for name in options.sets}
    total, rows, lines = sum(map(len, wanted.values())), [], []
    for row in measured(wanted, options.budget - (time.perf_counter() - began)):
        rows.append(row)
        lines.append(json.dumps(row))
        seconds = round(time.perf_counter() - began)
        _write(about | {"seconds": seconds, "left_out": total - len(rows)}, lines, part)
        if sum(one["set"] == row["set"] for one in rows) == len(wanted[row["set"]]):
            print(f"{row['set']}: {seconds} s", flush=True)
    if not rows:
        print("nothing was measured, and nothing is recorded", file=sys.stderr)
        return 2
    bad = [row for row in rows if any("Error" in note or "Wrong" in note for note in row["notes"].values())]
    for row in bad:
        print(row["layer"], row["notes"])
    if total > len(rows):
        print(f"{total - len(rows)} of {total} layers were left out: the budget of {options.budget:g} s is used up")
    if missing := lacking(load(part)[1], old):
        print(f"{out} has {len(missing)} layers that {part} lacks, and stays as it is.", file=sys.stderr)
        return 2
    os.replace(part, out)
    return int(bool(bad))


def _write(about: dict[str, typing.Any], lines: typing.Sequence[str], path: Path) -> None:
    """The record with a row a line. Whoever stops the program leaves the file of before or the new one."""
    layers = ",\n".join(lines)
    whole = path.with_name(f"{path.name}.tmp")
    whole.write_text(f'{{"about": {json.dumps(about)},\n"layers": [\n{layers}\n]}}\n', encoding="utf-8")
    os.replace(whole, path)


# ----------------------------------------------------------------------------------------------------------------- read


@dataclasses.dataclass(frozen=True)
class Measured:
    """A layer of the record: ``ms``, ``workspace`` and ``error`` by algorithm, ``notes`` for those without."""

    set: str
    layer: Layer
    ms: dict[str, float]
    workspace: dict[str, int]
    error: dict[str, float]
    notes: dict[str, str]

    @property
    def ours(self) -> dict[str, float]:
        """Milliseconds of the project's own algorithms."""
        return {name: ms for name, ms in self.ms.items() if name not in RIVALS}

    @property
    def best(self) -> str:
        """The fastest of ours."""
        return min(self.ours, key=self.ours.__getitem__)


def load(path: Path = RECORD) -> tuple[dict, list[Measured]]:
    """The record: about the run, and its layers."""
    data = json.loads(path.read_text(encoding="utf-8"))
    pairs = ("stride", "padding", "dilation")
    rows = []
    for row in data["layers"]:
        sizes = {key: tuple(value) if key in pairs else value for key, value in row["layer"].items()}
        rows.append(Measured(**(row | {"layer": Layer(**sizes)})))
    return data["about"], rows


def lacking(new: typing.Sequence[Measured], old: typing.Sequence[Measured]) -> list[Measured]:
    """The rows of ``old`` for layers that `sets` still has and that ``new`` lacks."""
    wanted = {(name, layer) for name, layers in sets().items() for layer in layers}
    wanted -= {(row.set, row.layer) for row in new}
    return [row for row in old if (row.set, row.layer) in wanted]


# ---------------------------------------------------------------------------------------------------------------- judge


@functools.cache
def as_measured(path: Path = RECORD) -> frozenset[str]:
    """The algorithms whose rooms are today as they were when the record was made. Only these can be judged by it."""
    then = json.loads(path.read_text(encoding="utf-8"))["about"].get("sources", {})
    sources = Sources()
    files = {
        name: f"pmpp/kernels/convolution_layer/{room.__name__.rpartition('.')[2]}.py" for name, room in ROOMS.items()
    }
    return frozenset(name for name, file in files.items() if file in then and then[file] == sources.digest(file))


def losses(rows: typing.Sequence[Measured], among: typing.Collection[str] | None = None) -> list[float]:
    """For each layer, the time of the algorithm that the cost model puts first over that of the best: 1 is a hit.

    ``among``: the algorithms to choose from; by default `as_measured`. A layer that none of them has a time for is left
    out.
    """
    among, found = as_measured() if among is None else among, []
    for row in rows:
        ours = {name: ms for name, ms in row.ours.items() if name in among}
        if ours:
            guesses = expected_times(row.layer)
            found.append(ours[min(ours, key=guesses.__getitem__)] / min(ours.values()))
    return found


def _judge(path: Path) -> int:
    about, rows = load(path)
    among = as_measured(path)
    print(f"{about['gpu']['name']}, with the figures of {device.limits()['name']}: {', '.join(sorted(among))}")
    for each in dict.fromkeys(row.set for row in rows):
        found = np.array(losses([row for row in rows if row.set == each], among))
        if len(found):
            print(f"{each:10}{len(found):5} layers: within 10 % of the best on {np.mean(found <= 1.1):.0%}", end="")
            print(f", {found.mean():.3f} times its time on average, {found.max():.2f} at most")
    return 0


if __name__ == "__main__":
    sys.exit(main())
