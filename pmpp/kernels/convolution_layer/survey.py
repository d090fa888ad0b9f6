"""Which convolution algorithm is the fastest for which layer: measured on a GPU, kept, and read by the chapter.

    python -m pmpp.kernels.convolution_layer.survey --out FILE    on a machine with an NVIDIA GPU: measures all layers
    python -m pmpp.kernels.convolution_layer.survey --fit         anywhere: fits the cost model to the H200's record

The layers: those of ResNet-50, shapes drawn at random (forty to judge the choice by, others to fit it to), and a grid
of channels x image size x kernel size. Each is run by every algorithm and by cuDNN (PyTorch, benchmark mode, TF32 off),
in turn, in one process; every output is compared with float64 at the places of
`pmpp.kernels.convolution_layer.find.samples_of`.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import sys
import time
import typing
import warnings
from pathlib import Path

import numpy as np

from pmpp.kernels.convolution_layer import cost_model
from pmpp.kernels.convolution_layer.definition import Layer, arguments, resnet50
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
    """What is measured, by the name that it has in the record."""
    return {
        "design": list(DESIGN),
        "resnet50": list(resnet50(32)),
        "judge": random_layers(40, seed=2026),
        "grid": grid(),
        "fit": random_layers(80, seed=7),
    }


# -------------------------------------------------------------------------------------------------------------- measure


def measure_layer(layer: Layer) -> dict[str, typing.Any]:
    """A row of the record: milliseconds, workspace and error by algorithm, ``"cudnn"`` among them, and reasons."""
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

    def contender(name: str, call: typing.Callable) -> timing.Contender:
        def check(result: typing.Any) -> tuple[float, float]:
            result = result.contiguous() if name == "cudnn" else result
            error = samples.error(device.as_input("out", result, dtypes=np.float32))
            row["error"][name] = float(f"{error:.2g}")
            return error, LOOSE

        options = {"poison": lambda: fill_with_nan(problem.result), "set_bytes": layer.cost.bytes}
        return timing.Contender(call, [()], check, **options)

    contenders = {}
    for name in dispatch.ALGORITHMS:
        if why := dispatch.refuses(name, layer):
            row["notes"][name] = why
        else:
            contenders[name] = contender(name, functools.partial(dispatch.run, name, problem))
            row["workspace"][name] = dispatch.workspace_bytes(name, layer)
    contenders["cudnn"] = contender("cudnn", lambda: library(torch, *tensors, None))
    for name, found in timing.measure_together(contenders, timer=timing.gpu_timer(), rule=RULE).items():
        if isinstance(found, Exception):
            row["notes"][name] = f"{type(found).__name__}: {found}".partition("\n")[0]
        else:
            row["ms"][name] = float(f"{found.median * 1e3:.5g}")
    return row


def main(argv: typing.Sequence[str] | None = None) -> int:
    """The command line. Returns 0, 1 if an algorithm gave a wrong result or failed, 2 if it cannot do what is asked."""
    parser = argparse.ArgumentParser(prog="python -m pmpp.kernels.convolution_layer.survey", description=__doc__)
    parser.add_argument(
        "--out", type=Path, help="the record to write (default: beside those of this GPU), or to fit to"
    )
    parser.add_argument("--sets", nargs="*", choices=list(sets()), default=list(sets()), help="what to measure")
    parser.add_argument("--fit", action="store_true", help="fit the prices to the record; measure nothing")
    parser.add_argument("--budget", type=float, default=400.0, help="seconds after which the rest is left out")
    options = parser.parse_args(argv)
    if options.fit:
        return _write_prices(options.out or RECORD)
    if not device.on_gpu():
        print(f"the map needs an NVIDIA GPU, but {device.backend().why}.", file=sys.stderr)
        return 2
    warnings.filterwarnings("ignore", message=".*Grid size .* under-utilization")
    sources = Sources().digests(SOURCE, within=MEASURED)
    began, rows, left_out = time.perf_counter(), [], 0
    for name in options.sets:
        for layer in sets()[name]:
            if time.perf_counter() - began > options.budget:
                left_out += 1
                continue
            rows.append({"set": name, "layer": dataclasses.asdict(layer), **measure_layer(layer)})
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
    about = {"gpu": environment.describe_gpu(), "run": environment.describe_run(roofline.measure_ceilings())}
    about |= {"left_out": left_out, "measured_by": SOURCE, "sources": sources}
    out = options.out or RECORDED / slug(about["gpu"]["name"]) / RECORD.name
    out.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(row) for row in rows)
    out.write_text(f'{{"about": {json.dumps(about)},\n"layers": [\n{lines}\n]}}\n', encoding="utf-8")
    bad = [row for row in rows if any("Error" in note or "Wrong" in note for note in row["notes"].values())]
    for row in bad:
        print(row["layer"], row["notes"])
    return int(bool(bad))


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
        return {name: ms for name, ms in self.ms.items() if name != "cudnn"}

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


# ------------------------------------------------------------------------------------------------------------------ fit


def fit(rows: typing.Sequence[Measured]) -> dict[str, dict[str, float]]:
    """Prices, none below 0, that make the squares of the relative errors of the guesses least over ``rows``.

    An error counts less the slower the algorithm is beside the best: where it is not in question it may be far off.
    """
    from scipy.optimize import nnls

    found = {}
    for algorithm, amounts_of in cost_model.AMOUNTS.items():
        seen = [row for row in rows if algorithm in row.ms]
        amounts = [amounts_of(row.layer) for row in seen]
        names = list(dict.fromkeys(name for row in amounts for name in row))
        matrix = np.array([[row.get(name, 0) for name in names] for row in amounts], np.float64)
        times = np.array([row.ms[algorithm] for row in seen])
        weights = np.array([row.ours[row.best] for row in seen]) / times
        scale = np.maximum(matrix.max(axis=0), 1e-30)
        solved, _ = nnls(matrix / scale * (weights / times)[:, None], weights)
        found[algorithm] = {name: float(f"{price:.4g}") for name, price in zip(names, solved / scale, strict=True)}
    return found


def losses(rows: typing.Sequence[Measured]) -> list[float]:
    """For each layer, the time of the algorithm that the cost model puts first over that of the best: 1 is a hit."""
    from pmpp.kernels.convolution_layer import dispatch

    found = []
    for row in rows:
        times = {name: ms for name, ms in dispatch.expected_times(row.layer).items() if name in row.ours}
        found.append(row.ours[min(times, key=times.__getitem__)] / row.ours[row.best])
    return found


def _write_prices(path: Path) -> int:
    about, rows = load(path)
    name, folder = about["gpu"]["name"], cost_model.PRICES.parent.name
    if slug(name) != folder:
        print(
            f"--fit takes a record of {folder}, by whose prices `convolution` chooses on every GPU. {path} was "
            f"measured on {name}, and nothing was written.",
            file=sys.stderr,
        )
        return 2
    prices = fit([row for row in rows if row.set in ("fit", "grid")])
    run = about["run"]
    kept = {"gpu": name, "date": run["date"], "revision": run["revision"], "prices": prices}
    cost_model.PRICES.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    cost_model.prices.cache_clear()
    cost_model.guess.cache_clear()
    for each in sorted({row.set for row in rows}):
        found = np.array(losses([row for row in rows if row.set == each]))
        print(f"{each:10}{len(found):5} layers: within 10 % of the best on {np.mean(found <= 1.1):.0%}", end="")
        print(f", {found.mean():.3f} times its time on average, {found.max():.2f} at most")
    return 0


if __name__ == "__main__":
    sys.exit(main())
