"""All targets of several GPUs beside what is measured: ``python -m pmpp.parallel.targets``.

It starts a rank for each of two GPUs, measures three parts, and prints one table. With ``-n 4`` it measures four, whose
records are others, and which have no targets. As ranks that somebody else has started it does the same::

    torchrun --nproc-per-node 2 -m pmpp.parallel.targets --print
    mpirun -n 2 python -m pmpp.parallel.targets --print

    all_reduce    sums of our kernels beside NCCL's              `pmpp.parallel.measure`
    halo          Jacobi's steps on one GPU and on several       `pmpp.parallel.measure_halo`
    steps         training steps beside PyTorch's DDP            `pmpp.parallel.measure_steps`

``--parts`` takes some of them, and ``--seconds`` limits all: what does not fit is left out, and stands in the table as
not measured. Each part writes its record as its own command does, unless ``--print`` is given. ``--recorded`` measures
nothing: it prints the table of the records, on any machine.

Where a target may be reached in two ways, both have a line: queued or in a graph, anywhere or in a shared array, as it
is called or as a graph. Between more than two ranks long arrays are NCCL's, unless they are shared (`peers`): there the
lines of 64 MiB and 1 GiB anywhere compare NCCL with itself.

The GPUs of a halo are those of one process. Rank 0 has them all for that part, while the others wait.
"""

from __future__ import annotations

import argparse
import sys
import typing
from collections.abc import Sequence

from pmpp.lab.measure.record import RecordError
from pmpp.parallel import environment, measure, measure_halo, measure_steps, records, run
from pmpp.parallel.group import Group
from pmpp.parallel.progress import Progress
from pmpp.runtime import device

__all__ = ["PARTS", "Line", "lines", "main", "table"]

PARTS = ("all_reduce", "halo", "steps")
RECORDS = {"all_reduce": "parallel", "halo": "halo", "steps": "parallel_steps"}
SIDE = 16384  # of the plate that has a target


class Line(typing.NamedTuple):
    """A line of the table. ``value`` is a ratio or an efficiency: more is better; None where nothing is measured."""

    what: str
    unit: str
    target: float
    value: float | None = None
    ours: str = ""
    other: str = ""

    @property
    def verdict(self) -> str:
        """Whether the target is reached."""
        if self.value is None:
            return "not measured"
        return "reached" if self.value >= self.target else "missed"


def lines(found: typing.Mapping[str, typing.Any]) -> list[Line]:
    """A line for each target, whatever was measured.

    Args:
        found: by part, what its record has: {"all_reduce": rows, "halo": {"jacobi": ...}, "steps": {...}}. Parts that
            were not measured are missing.
    """
    sums = {one.what: one for one in measure.lines(found.get("all_reduce", ()))}
    table = []
    for what, target in measure.TARGETS.items():
        line = Line(f"all-reduce of {what}", "NCCL / ours", target)
        if (one := sums.get(what)) is not None:
            line = line._replace(value=one.ratio, ours=f"{one.ours} µs", other=f"{one.nccl} µs")
        table.append(line)
    line = Line(f"Jacobi, side {SIDE}, peer stores", "efficiency", measure_halo.TARGET)
    plate = found.get("halo", {}).get("jacobi", {})
    if plate.get("side") == SIDE and plate["gpus"] > 1:
        one, several = (f"{1e6 * plate['ways'][way]['seconds']:.4g} µs" for way in ("one_gpu", "peer_stores"))
        line = line._replace(value=measure_halo.efficiency(plate, "peer_stores"), ours=several, other=f"alone {one}")
    table.append(line)
    for name, case in measure_steps.CASES.items():
        ms = found.get("steps", {}).get(name, {}).get("ms", {})
        for how in ("", ", graph"):
            pair = (
                Line(f"{name}{how}", "efficiency", case.target),
                Line(f"{name}{how}", "DDP / ours", measure_steps.DDP),
            )
            if (ours := ms.get(f"ours{how}")) is not None:
                alone = ms[f"ours, alone{how}"]
                pair = (
                    pair[0]._replace(value=alone / ours, ours=f"{ours:.4g} ms", other=f"alone {alone:.4g} ms"),
                    pair[1]._replace(value=ms["torch"] / ours, ours=f"{ours:.4g} ms", other=f"{ms['torch']:.4g} ms"),
                )
            table += pair
    return table


def table(found: typing.Mapping[str, typing.Any], ranks: int = 2) -> str:
    """The lines as text. The targets are for two GPUs: for others there is no verdict."""
    judged = ranks == 2
    text = [f"{'what':<50}{'ours':>18}{'other':>18}  {'':<12}{'measured':>9}" + f"{'target':>8}" * judged]
    for line in lines(found):
        value = "-" if line.value is None else f"{line.value:.3f}"
        times = f"{line.what:<50}{line.ours:>18}{line.other:>18}  {line.unit:<12}{value:>9}"
        text.append(times + f"{line.target:8.2f}  {line.verdict}" * judged)
    return "\n".join(text)


def recorded(ranks: int = 2) -> dict[str, typing.Any]:
    """By part what the record of so many ranks has, of this GPU or of the one that chapters show.

    Parts without a record are missing.
    """
    found: dict[str, typing.Any] = {}
    for part, name in RECORDS.items():
        try:
            kept = records.recorded(name, ranks, f"pmpp.parallel.targets -n {ranks}")
        except RecordError:
            continue
        print(f"{part}: {kept['about']['gpu']['name']}, {kept['about']['run']['date']}")
        found[part] = kept if part == "halo" else kept[part]
    return found


def measured(host: Group, starter: str, parts: Sequence[str], progress: Progress, keep: bool) -> dict[str, typing.Any]:
    """Measure the parts; return by part what there is of it. Called by all ranks; rank 0 has the halo alone."""
    found: dict[str, typing.Any] = {}
    for part in PARTS:
        if part not in parts:
            continue
        if not progress.time_left():
            progress.say(f"{part}: left out, the time is over")
            continue
        if part == "halo":
            if host.rank == 0:
                mine = progress.alone()
                for found[part] in measure_halo.everything(SIDE, 200, 9, mine, smaller=keep, gpus=host.size):
                    if keep:
                        measure_halo.write(found[part])
            host.barrier()
            continue
        module = measure if part == "all_reduce" else measure_steps
        for found[part] in module.measured(host, progress):
            if host.rank == 0 and keep:
                module.write(found[part], host.size, starter, out=records.file_of(RECORDS[part], host.size))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Start the ranks, or be one of them."""
    parser = argparse.ArgumentParser(prog="python -m pmpp.parallel.targets", description=__doc__.split("\n")[0])
    parser.add_argument("-n", type=int, default=2, metavar="N", help="how many GPUs (default: two)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="which parts (default: all)")
    parser.add_argument("--seconds", type=float, help="for all of it; what does not fit is left out, and said")
    parser.add_argument("--print", action="store_true", help="record nothing")
    parser.add_argument("--recorded", action="store_true", help="measure nothing, and print what is recorded")
    options = parser.parse_args(argv)
    if options.recorded:
        print(table(recorded(options.n), options.n))
        return 0
    if not device.on_gpu():
        print(f"GPUs are needed: {device.describe()}\n--recorded prints what was measured elsewhere")
        return 2
    place = environment.place()
    if place is None:
        given = list(sys.argv[1:] if argv is None else argv)
        return run.main(["-n", str(options.n), "--timeout", "900", "-m", "pmpp.parallel.targets", *given])
    host = environment.group()
    if host is None or host.size < 2:
        print("at least two ranks are needed")
        return 2
    found = measured(host, place.starter.name, options.parts, Progress(host, options.seconds), not options.print)
    if host.rank == 0:
        name, rows = device.limits()["name"], table(found, host.size)
        print(f"\n{host.size} x {name}, ranks of {place.starter.name}\n{rows}", flush=True)
    host.barrier()
    return 0


if __name__ == "__main__":
    run.stop_on_signals()
    raise SystemExit(main())
