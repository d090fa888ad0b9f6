"""The search: refuse, count, prune, verify, and on a GPU time."""

from __future__ import annotations

import collections
import math
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pmpp import simt
from pmpp.lab.measure import timing
from pmpp.lab.measure.arrays import view
from pmpp.lab.measure.bench import fill_with_nan, input_sets
from pmpp.lab.measure.tune.space import Space
from pmpp.lab.measure.tune.work import Estimate, Probe, Work, count, gpu_of, roofline_time
from pmpp.runtime import device
from pmpp.runtime.rung import Cost

__all__ = ["Landscape", "Row", "Subject", "explore", "predictions", "tune", "wrong_result"]

Shape = tuple[int, ...]
Model = Callable[[Work, Cost, simt.Gpu], Estimate]
FACTOR = 1.5  # what is predicted to take longer than the best by this much is not tried
SECONDS = 0.3  # of GPU time for a configuration


@dataclass(frozen=True, eq=False)
class Subject:
    """What is tuned: a kernel factory, and what has to be known to try it. All functions are a module's own.

    Attributes:
        name: of its record. source: its file, relative to the repository. dtype: of what it works on.
        space: the configurations.
        make: ``make(shape, seed)`` -> the inputs, device arrays. output: ``output(shape)`` -> a device array.
        run: ``run(configuration, *inputs, out)`` enqueues the work and returns ``out``.
        verify: ``verify(result, *inputs) -> (error, tolerance)``, as of a `bench.Workload`.
        shapes: awkward small shapes that each configuration has to get right.
        probes: ``probes(configuration, shape)`` -> small launches that count a large one.
        registers: ``registers(configuration)`` -> the most that a thread may have, or None.
        cost: ``cost(shape)`` -> the least work of the definition.
        shape_class: ``shape_class(shape)`` -> a name; shapes with the same name share what was tuned.
        measured: the shapes that are tuned on a GPU, one of each class that matters.
        kernels: the files, as ``source``, whose kernels are tuned: `pmpp.runtime.tuned` uses no record of others. By
            default ``source`` alone.
        compiled: ``compiled(configuration)`` -> what is the same for configurations that share a compiled kernel: one
            process tries them all. By default they share none.
        predicted: ``predicted(configuration, shape, gpu)`` -> an `Estimate`, or ValueError if it cannot run: a formula
            instead of counts and a model.
        options: of `tune`, where this subject needs others than most: ``factor``, ``most`` and ``seconds``.
    """

    name: str
    source: str
    dtype: str
    space: Space
    make: Callable[[Shape, int], tuple]
    output: Callable[[Shape], typing.Any]
    run: Callable[..., typing.Any]
    verify: Callable[..., tuple[float, float]]
    shapes: Sequence[Shape]
    probes: Callable[[typing.Any, Shape], Sequence[Probe]]
    registers: Callable[[typing.Any], int | None]
    cost: Callable[[Shape], Cost]
    shape_class: Callable[[Shape], str]
    measured: Sequence[Shape]
    kernels: Sequence[str] = ()
    compiled: Callable[[typing.Any], typing.Hashable] = lambda configuration: configuration
    predicted: Callable[[typing.Any, Shape, simt.Gpu], Estimate] | None = None
    options: Mapping[str, float] = field(default_factory=dict)


class Row(typing.NamedTuple):
    """What became of a configuration.

    status      "refused", "pruned", "wrong", "failed", "verified" or "timed"
    why         what refused it or what was wrong; "" for the last two
    estimate    what was predicted, or None if it was refused
    timing      what was measured, or None
    """

    configuration: typing.Any
    status: str
    why: str = ""
    estimate: Estimate | None = None
    timing: timing.Timing | None = None


@dataclass(frozen=True)
class Landscape:
    """What `tune` found for a shape: a row for each configuration, in the order of the space.

    gpu: what was predicted for. device: what was measured on, or "" if nothing was timed.
    """

    subject: Subject
    shape: Shape
    gpu: simt.Gpu
    device: str
    rows: tuple[Row, ...]

    def of(self, *statuses: str) -> list[Row]:
        """The rows of these statuses, those that are predicted to be fastest first."""
        found = [row for row in self.rows if row.status in statuses]
        return sorted(found, key=lambda row: row.estimate.order if row.estimate else (math.inf,))

    @property
    def best(self) -> Row | None:
        """The row with the least measured time; None if nothing was timed."""
        return min(self.of("timed"), key=lambda row: row.timing.median, default=None)

    @property
    def guess(self) -> Row:
        """The verified row with the least predicted time. Raises RuntimeError if no configuration was right."""
        right = self.of("timed", "verified")
        if not right:
            raise RuntimeError(f"no configuration of {self.subject.name} was right: {dict(self.counts())}")
        return right[0]

    def counts(self) -> collections.Counter[str]:
        """How many configurations have which status."""
        return collections.Counter(row.status for row in self.rows)

    def table(self, most: int = 12) -> str:
        """The rows that were not refused, as text: those with a time first, then by what is predicted."""
        rows = [row for row in self.rows if row.estimate]
        rows.sort(key=lambda row: (row.timing.median if row.timing else math.inf, row.estimate.order))
        heads = " ".join(f"{name:>8}" for name in self.subject.space.kind._fields)
        lines = [f"{heads}   predicted  by          measured"]
        for row in rows[:most]:
            numbers = " ".join(f"{value:8}" for value in row.configuration)
            measured = f"{row.timing.median * 1e6:8.1f} us" if row.timing else f"{row.status} {row.why}".strip()
            lines.append(f"{numbers} {row.estimate.seconds * 1e6:8.1f} us  {row.estimate.part:11} {measured}")
        if len(rows) > most:
            lines.append(f"and {len(rows) - most} more")
        return "\n".join(lines)


def wrong_result(subject: Subject, configuration: typing.Any, shapes: Sequence[Shape] | None = None) -> str:
    """What is wrong with a configuration on the subject's awkward shapes; "" if nothing is.

    Outputs are filled with NaN beforehand. In the interpreter every access is checked, too.
    """
    for shape in subject.shapes if shapes is None else shapes:
        inputs, out = subject.make(shape, 1), subject.output(shape)
        fill_with_nan(out)
        hazards: list = []
        try:
            if device.on_gpu():
                result = subject.run(configuration, *inputs, out)
            else:
                with simt.record("check") as reports:
                    result = subject.run(configuration, *inputs, out)
                hazards = [hazard for report in reports for hazard in report.hazards]
            error, tolerance = subject.verify(view(result), *map(view, inputs))
        except Exception as failure:  # whatever a configuration raises, the others are to be tried
            return f"shape {shape}: {type(failure).__name__}: {failure}".partition("\n")[0]
        if hazards:
            return f"shape {shape}: {hazards[0]}".partition("\n")[0]
        if not error <= tolerance:  # NaN is wrong too
            return f"shape {shape}: off by {error:.3g}, {tolerance:.3g} is allowed"
    return ""


def predictions(
    subject: Subject, shape: Shape, *, gpu: str | simt.Gpu | None = None, model: Model = roofline_time
) -> dict[typing.Any, Estimate | str]:
    """What is predicted for each configuration that no restriction refuses; a string says why one cannot run.

    Arguments and errors are those of `explore`. Nothing is verified, so there may be wrong configurations among them.
    """
    predicted_for = gpu_of(gpu or (device.limits()["name"] if device.on_gpu() else "H200"))
    cost, found = subject.cost(shape), {}
    for one in subject.space.allowed():
        try:
            if subject.predicted:
                found[one] = subject.predicted(one, shape, predicted_for)
            else:
                found[one] = model(count(subject, one, shape), cost, predicted_for)
        except ValueError as reason:
            found[one] = f"{getattr(subject.predicted or model, '__name__', 'model')}: {reason}"
    return found


def explore(
    subject: Subject,
    shape: Shape,
    *,
    gpu: str | simt.Gpu | None = None,
    factor: float | None = FACTOR,
    most: int | None = None,
    model: Model = roofline_time,
    wrong: Callable[[Subject, typing.Any], str] | None = None,
) -> Landscape:
    """All of `tune` but the times: refuse, count, prune and verify. It runs anywhere.

    Args:
        subject: what is tuned. shape: of the problem that is predicted for.
        gpu: what to predict for: a name of ``simt.GPUS``, or a ``simt.Gpu``. By default this machine's, else an H200.
        factor: configurations that are predicted to take longer than this many times the best right one are pruned.
            None is the cautious rule: pruned is what takes longer at least, by its longest part, than a right one at
            most, by all its parts one after the other.
        most: so many right ones are enough, those that are predicted to be fastest; by default all within the factor.
        model: makes a prediction of what was counted. A ValueError of it says that a configuration cannot run.
        wrong: says what is wrong with a configuration, instead of `wrong_result`.

    Raises `NothingAllowed` if the restrictions refuse all configurations, ValueError for a factor below 1, and
    pmpp.simt.LaunchError for a GPU that is not in the table.
    """
    if factor is not None and not factor >= 1:
        raise ValueError(f"factor must be at least 1, was {factor!r}")
    if most is not None and most < 1:
        raise ValueError(f"most must be at least 1, was {most!r}")
    predicted_for = gpu_of(gpu or (device.limits()["name"] if device.on_gpu() else "H200"))
    found = {
        one.configuration: Row(one.configuration, "refused", f"{one.by}: {one.why}") for one in subject.space.refused()
    }
    estimates: dict[typing.Any, Estimate] = {}
    for one, said in predictions(subject, shape, gpu=predicted_for, model=model).items():
        if isinstance(said, str):
            found[one] = Row(one, "refused", said)
        else:
            estimates[one] = said

    # A wrong configuration may leave out work and look fast. So the bar is set by the first that is right.
    bar, least, right = math.inf, math.inf, 0
    for one, estimate in sorted(estimates.items(), key=lambda pair: pair[1].order):
        if estimate.seconds > bar:
            times = f"predicted at {estimate.seconds / least:.2f} x the best"
            found[one] = Row(one, "pruned", times, estimate)
        elif right == most:
            found[one] = Row(one, "pruned", f"{most} are predicted to be faster", estimate)
        elif why := (wrong or wrong_result)(subject, one):
            found[one] = Row(one, "wrong", why, estimate)
        else:
            found[one] = Row(one, "verified", "", estimate)
            allowed = sum(estimate.parts.values()) if factor is None else factor * estimate.seconds
            bar, least, right = min(bar, allowed), min(least, estimate.seconds), right + 1
    return Landscape(subject, shape, predicted_for, "", tuple(found[one] for one in subject.space.configurations()))


def tune(
    subject: Subject,
    shape: Shape,
    *,
    timer: timing.GpuTimer | None = None,
    seconds: float = SECONDS,
    **options: typing.Any,
) -> Landscape:
    """Find the fastest configuration for a shape: `explore`, and then time what is left, on a GPU.

    In the interpreter it is `explore` alone: its clock says nothing about a GPU, so nothing is timed, and
    `Landscape.best` is None.

    Args:
        subject, shape, options: as of `explore`.
        timer: what takes the times; by default the GPU's events. Tests pass another.
        seconds: of measuring for each configuration.
    """
    landscape = explore(subject, shape, **options)
    where = device.limits()["name"] if device.on_gpu() else "a timer of the caller"
    if timer is None and device.on_gpu():
        timer = timing.gpu_timer()
    if timer is None:
        return landscape
    found = {row.configuration: row for row in landscape.rows}
    time_rows(subject, shape, found, timer, seconds)
    return replace(landscape, device=where, rows=tuple(found.values()))


def time_rows(subject: Subject, shape: Shape, found: dict, timer: timing.GpuTimer, seconds: float) -> None:
    """Give each verified row its time, in place. Its result on this shape is checked again, before and after."""
    cost = subject.cost(shape)
    inputs = [subject.make(shape, seed + 1) for seed in range(input_sets(cost.bytes, timer.l2_bytes, "cold"))]
    sets = [(*one, subject.output(shape)) for one in inputs]

    def check(result: typing.Any, *args: typing.Any) -> tuple[float, float]:
        return subject.verify(view(result), *map(view, args[:-1]))

    def contender(one: typing.Any) -> timing.Contender:
        return timing.Contender(
            lambda *args: subject.run(one, *args),
            sets,
            check=check,
            poison=lambda *args: fill_with_nan(args[-1]),
            set_bytes=cost.bytes,
        )

    verified = {one: row for one, row in found.items() if row.status == "verified"}
    outcome = timing.measure_together(
        {str(one): contender(one) for one in verified}, timer=timer, rule=timing.Rule(max_seconds=seconds)
    )
    for one, row in verified.items():
        timed = outcome[str(one)]
        if isinstance(timed, timing.WrongResult):
            found[one] = row._replace(status="wrong", why=f"shape {shape}: {timed}")
        elif isinstance(timed, Exception):
            found[one] = row._replace(status="failed", why=f"{type(timed).__name__}: {timed}".partition("\n")[0])
        else:
            found[one] = row._replace(status="timed", timing=timed)
