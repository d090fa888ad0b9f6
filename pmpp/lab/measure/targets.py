"""What rooms were to reach, beside what was measured: ``python -m pmpp.lab.measure.targets [subject ...]``.

A subject's targets stand in ``targets.toml`` beside its rooms, one table ``[[target]]`` each::

    [[target]]
    what = "half kept, 2^28 floats"     # in words
    room = "filter"
    family = "half kept"                # of the workload
    workload = "2^28"
    ratio = 4.0                         # the time of the fastest library over that of the fastest rung, at least
    against = ["torch.index"]           # only these libraries; all that were measured, if it is missing
    roof = 0.6                          # the time that the roofline needs over that of the fastest rung, at least
    rungs = ["single_pass"]             # only these rungs; all, if it is missing

A target has ``ratio``, ``roof`` or both. The roofline's time is that of the workload's cost, of the rung's own if it
has one, at the ceilings that were measured in the same run. The command reads the records of a GPU and measures
nothing: of this machine's GPU, of the one that ``--gpu`` names, or else of the one that the chapters are written about.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path

from pmpp.lab.measure import record
from pmpp.lab.measure.record import Entry, Record, RecordError
from pmpp.lab.measure.roofline import Ceilings

__all__ = ["Line", "Target", "fault", "line", "lines", "main", "targets"]

KERNELS = Path(__file__).parents[2] / "kernels"


class Target(typing.NamedTuple):
    """An entry of a ``targets.toml``, and the subject that it belongs to."""

    subject: str
    what: str
    room: str
    family: str
    workload: str
    ratio: float | None = None
    roof: float | None = None
    against: tuple[str, ...] = ()
    rungs: tuple[str, ...] = ()

    def __str__(self) -> str:
        words = [f"{self.ratio:g} x"] if self.ratio is not None else []
        return ", ".join(words + ([f"{self.roof:.0%} of the roof"] if self.roof is not None else []))


class Line(typing.NamedTuple):
    """A line of the table; ``met`` is None where nothing was measured."""

    what: str
    target: str
    measured: str
    met: bool | None


def targets(subjects: Sequence[str] = (), folder: Path = KERNELS) -> list[Target]:
    """The targets of the subjects; of all that have any, if none is named.

    Raises ValueError for a subject without targets, and for an entry that says something else than `Target` knows.
    """
    found = {path.parent.name: path for path in sorted(folder.glob("*/targets.toml"))}
    if unknown := [name for name in subjects if name not in found]:
        raise ValueError(f"{', '.join(unknown)}: no such subject has targets; there is {', '.join(found)}")
    return [one for name in subjects or found for one in _read(name, found[name])]


def _read(subject: str, path: Path) -> Iterator[Target]:
    for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("target", []):
        where = f"{path}: {entry.get('what', entry)!r}"
        if unknown := set(entry) - set(Target._fields[1:]):
            raise ValueError(f"{where} has {', '.join(sorted(unknown))}, which no target has")
        if missing := [name for name in ("what", "room", "family", "workload") if name not in entry]:
            raise ValueError(f"{where} lacks {', '.join(missing)}")
        if not {"ratio", "roof"} & set(entry):
            raise ValueError(f"{where} needs a ratio or a roof")
        lists = {name: tuple(entry[name]) for name in ("against", "rungs") if name in entry}
        yield Target(subject, **(entry | lists))


def fault(target: Target, entries: Sequence[Entry]) -> str:
    """Why a target cannot be judged by these entries of its room; ``""`` if it can."""
    if not entries:
        return f"not recorded: {target.family}, {target.workload}"
    rungs = {one.contender for one in entries if one.kind == "rung"}
    libraries = {one.contender for one in entries if one.kind == "library"}
    if missing := [name for name in target.rungs if name not in rungs] or ([] if rungs else ["any rung"]):
        return f"not recorded: {', '.join(missing)}"
    if target.ratio is None:
        return ""
    if missing := [name for name in target.against if name not in libraries] or ([] if libraries else ["any library"]):
        return f"not recorded: {', '.join(missing)}"
    return ""


def line(target: Target, found: Record) -> Line:
    """A target beside what a record says."""
    try:
        entries = found.entries(target.room, family=target.family, workload=target.workload)
    except RecordError:
        entries = ()
    if why := fault(target, entries):
        return Line(target.what, str(target), why, None)
    rungs = [one for one in entries if one.kind == "rung" and (not target.rungs or one.contender in target.rungs)]
    best = min(rungs, key=lambda one: one.median_ms)
    met, words = True, [f"{best.median_ms:.4g} ms by {best.contender}"]
    if target.ratio is not None:
        rivals = [one for one in entries if one.kind == "library"]
        rival = min(
            (one for one in rivals if not target.against or one.contender in target.against),
            key=lambda one: one.median_ms,
        )
        ratio = rival.median_ms / best.median_ms
        met &= ratio >= target.ratio
        words.append(f"{ratio:.3g} x {rival.contender}, {rival.median_ms:.4g} ms")
    if target.roof is not None:
        share = _needed(best, found.ceilings(target.room)) / best.seconds
        met &= share >= target.roof
        words.append(f"{share:.0%} of the roof")
    return Line(target.what, str(target), "; ".join(words), met)


def _needed(entry: Entry, ceilings: Ceilings) -> float:
    """The seconds that the roofline needs for what the rung does."""
    cost = entry.own or entry.cost
    return max(cost.bytes / ceilings.bandwidth, cost.flops / ceilings.fma_f32)


def lines(found: Record, subjects: Sequence[str] = ()) -> list[Line]:
    """The table of a record."""
    return [line(target, found) for target in targets(subjects)]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table. Returns 0, or 2 for a subject without targets and a GPU without a record."""
    parser = argparse.ArgumentParser(prog="python -m pmpp.lab.measure.targets", description=__doc__.split("\n")[0])
    parser.add_argument("subjects", nargs="*", help="whose targets (default: all)")
    parser.add_argument("--gpu", help="a folder of pmpp/recorded, as nvidia-h200")
    options = parser.parse_args(argv)
    try:
        found = record.load(options.gpu)
        made = lines(found, options.subjects)
    except (ValueError, RecordError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{found.gpu}; x: the library's time over ours")
    wide, narrow = (max(len(one[k]) for one in made) + 2 for k in (0, 1))
    for one in made:
        verdict = {True: "met", False: "missed", None: "?"}[one.met]
        print(f"{one.what:<{wide}}{one.target:<{narrow}}{verdict:<8}{one.measured}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
