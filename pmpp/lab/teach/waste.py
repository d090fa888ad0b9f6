"""What a right answer wastes: counters beyond their limits on the largest case, and the line that is to blame.

Where the exercise sets no limit it follows from what the exercise's own answer needs there. Loads and stores may move
1.5 times its sectors if they are not coalesced, and 2.5 times in any case: the interpreter counts each ``x[i]`` in the
source, and a compiler keeps some in registers. What is loaded again soon, with no store in between, does not count.
Requests to shared memory may take two wavefronts each, or twice those of the answer. There may be 1.5 times as many
atomics, and nothing more in float64. Nor may the source ask for float64 by its name, whether that counts operations or
not: in registers and in shared memory it takes twice the bytes. What one or two lanes of a warp do alone may not take
more instructions than all of the answer, and a quarter of the blocks or warps that work in the answer are too few.
"""

from __future__ import annotations

import collections
import functools
import math
import re
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from pmpp.lab.teach.exercise import Exercise
from pmpp.lab.teach.run import DECLARED, SECTOR, Request, Run, Source, attempt, extent, requests

__all__ = ["Found", "Waste"]

SECTORS, TRAFFIC, WAVEFRONTS, ATOMICS, IDLE = 1.5, 2.5, 2, 1.5, 1.1  # times what the answer needs
WARP = 32
MANY = 20_000  # requests to look at one by one
FEW = 4  # at least so many times fewer blocks or warps than in the exercise's answer are too few
QUOTIENT = re.compile(r": u?int\d+[^;]* / u?int\d+[^;]* gives float64")  # as in an index that is computed with /
KEPT = 8  # loads of which a compiler keeps the values, for certain

# The mistake behind a counter beyond its limit, if no line of the kernel is uncoalesced or has bank conflicts.
BEHIND = {
    "flops_f64": "accidental float64",
    "inst_fp64": "accidental float64",
    "atomic_requests": "too many atomics",
    "divergent_branches": "too much divergence",
    "barriers": "too many barriers",
    "global": "too much traffic",
    "shared": "too much traffic",
    DECLARED: "too much shared memory",
}


@dataclass(frozen=True)
class Found:
    """A mistake, what was seen of it, the exercise's own sentence on it or None, and a line."""

    mistake: str
    seen: str
    sentence: str | None
    line: int | None


class Waste:
    """The judge of the counters of one run, whose results are right."""

    def __init__(self, exercise: Exercise, answer: typing.Any, source: Source, run: Run) -> None:
        self.exercise, self.answer, self.source, self.run = exercise, answer, source, run
        self.on_host = run.case.grid is None
        self.lines = run.by_line()

    @functools.cached_property
    def own(self) -> Run:
        """What the exercise's own answer does on the same case."""
        return attempt(self.exercise.answer, self.run.case)

    def found(self) -> Found | None:
        budget = self.exercise.budget(self.run.case) if self.exercise.budget else {}
        if (found := self.deliberate_float64(*budget.get("flops_f64", (0, None))[:1])) is not None:
            return found
        for counter, (limit, sentence) in budget.items():
            if self.run.counter(counter) > limit:
                return self.beyond(counter, limit, sentence)
        if self.exercise.answer is None or self.on_host:
            return None
        if (found := self.repeated_work(budget)) is not None:
            return found
        for counter, (limit, enough) in self.limits().items():
            used = self.run.counter(counter)
            if counter in budget or used <= limit:
                continue
            if counter != "global_load_sectors" or self.lanes(counter)[1] < 4 or used * self.loaded_anew() > limit:
                return self.beyond(counter, enough)
        return (
            self.float64_without_flops(*budget.get("flops_f64", (0, None)))
            or self.idle_threads()
            or self.idle_blocks()
            or self.idle_warps()
        )

    def limits(self) -> dict[str, tuple[float, float]]:
        """{counter: (its limit, what is told to be enough)}"""
        own, run = self.own.counter, self.run.counter
        limits = {
            "flops_f64": (own("flops_f64"), own("flops_f64")),
            "atomic_requests": (ATOMICS * own("atomic_requests"), own("atomic_requests")),
        }
        for sectors in ("global_load_sectors", "global_store_sectors"):
            uncoalesced = run(sectors) > SECTORS * own(sectors) and self.worst(sectors) is not None
            enough = own(sectors) or own(sectors.replace("load", "store"))  # a kernel without loads may have some
            limits[sectors] = (SECTORS if uncoalesced else TRAFFIC) * enough, own(sectors)
        for way in ("load", "store"):
            wavefronts, served = f"shared_{way}_wavefronts", run(f"shared_{way}_requests")
            limits[wavefronts] = WAVEFRONTS * max(own(wavefronts), served), served
        return limits

    def deliberate_float64(self, limit: float) -> Found | None:
        """float64 that is asked for by its name, where neither an argument nor the exercise's own answer has any."""
        named = self.source.names_float64()
        wide = any(np.result_type(arg) in (np.float64, np.complex128) for arg in self.run.case.arrays)
        if named is None or self.on_host or wide or limit == math.inf or self.exercise.answer is None:
            return None
        if Source(getattr(self.exercise.answer, "py_func", self.exercise.answer)).names_float64() is not None:
            return None
        (line, name), used = named, self.run.counter("flops_f64")
        seen = f"line {line} asks for {name}"
        seen += f"; {_counted('flops_f64', used)} where 0 will do." if used else "."
        complex_too = "The arrays are complex64, and complex128 is float64 in both parts: write np.complex64."
        return Found("deliberate float64", seen, complex_too if name == "complex128" else None, line)

    def float64_without_flops(self, limit: float, sentence: str | None) -> Found | None:
        """float64 that counts no operation, as in a maximum. Of a mere choice a compiler makes float32."""
        if limit == math.inf or self.own.warnings:
            return None
        for warning in self.run.warnings:
            if not re.search(r"^line \d+: \S.* or \S.* gives float64", warning.message):
                return Found("accidental float64", f"{warning.message}.", sentence, warning.line)
        return None

    def loaded_anew(self) -> float:
        """The share of the loaded sectors that a compiler loads: it keeps what was loaded just before."""
        kept: dict[tuple[int, int], collections.deque] = {}
        total = needed = 0
        for request in self.requests:
            access = request.access
            known = kept.setdefault((access.block, access.warp), collections.deque(maxlen=KEPT))
            if access.kind == "store":  # of any array: the compiler does not know that it is another
                known.clear()
                continue
            asked = request.argument, access.addresses.tobytes(), access.active.tobytes()
            total += len(request.sectors)
            needed += 0 if asked in known else len(request.sectors)
            known.append(asked)
        return needed / max(1, total)

    def repeated_work(self, budget: Mapping) -> Found | None:
        """If several threads write the same elements, each all of what the others write."""
        stored, enough = (run.counter("global_store_bytes") for run in (self.run, self.own))
        stores = [request for request in self.requests if request.access.kind == "store"] if stored > 2 * enough else []
        if not stores:
            return None
        elements, threads = (np.concatenate(parts) for parts in zip(*map(_written, stores), strict=True))
        different, numbers = np.unique(elements, return_inverse=True)
        if np.unique(threads * different.size + numbers).size <= 2 * different.size:
            return None
        line = max(self.lines, key=lambda line: self.lines[line]["global_store_bytes"])
        seen = f"{_counted('global_store_bytes', stored)} where {_number(enough)} will do, most on line {line}: "
        seen += "several threads write the same elements."
        sentence, blocks = budget.get("global_store_bytes", (0, None))[1], threads >> 10
        pairs = np.unique(blocks * different.size + numbers).size
        if sentence is None and np.unique(blocks).size == pairs == different.size:
            sentence = "A block has one result here: let one of its threads write it."
        return Found("repeated work", seen, sentence, line)

    def idle_threads(self) -> Found | None:
        alone = {
            line: counts["warp_instructions"]
            for line, counts in self.lines.items()
            if 0 < counts["thread_instructions"] <= 2 * counts["warp_instructions"]
        }
        total, enough = sum(alone.values()), self.own.counter("warp_instructions")
        if total <= IDLE * enough:
            return None
        line = max(alone, key=alone.__getitem__)
        seen = (
            f"warps execute {_number(total)} instructions for one or two of their {WARP} threads, most on line {line}, "
            f"where {_number(enough)} are enough for everything."
        )
        return Found("idle threads", seen, None, line)

    def idle_blocks(self) -> Found | None:
        """If a few blocks do the work that the exercise's own answer gives to all."""
        blocks = math.prod(extent(self.run.case.grid))
        looked_at = max(1, int(self.share * blocks))
        if looked_at < FEW:
            return None
        busy = {request.access.block for request in self.requests}
        if FEW * len(busy) > looked_at:
            return None
        needed = {request.access.block for request in requests(self.exercise.answer, self.run.case, self.share)}
        if FEW * len(busy) > len(needed):
            return None
        line = max(self.lines, key=lambda line: self.lines[line]["warp_instructions"])
        seen = f"only {len(busy)} of the {blocks} blocks of the launch {'do' if len(busy) > 1 else 'does'} any work."
        return Found("idle blocks", seen, None, line)

    def idle_warps(self) -> Found | None:
        """If a few warps of the blocks do the work that the exercise's own answer gives to all."""
        if self.share < 1:
            return None
        case, busy = self.run.case, len(_warps(self.requests))
        launched = math.prod(extent(case.grid)) * -(-math.prod(extent(case.block)) // WARP)
        if busy == 0 or FEW * busy > launched:
            return None
        needed = len(_warps(requests(self.exercise.answer, case, self.share)))
        if FEW * busy > needed:
            return None
        line = max(self.lines, key=lambda line: self.lines[line]["warp_instructions"])
        seen = f"only {busy} of the {needed} warps that could share the work load or store anything."
        return Found("idle threads", seen, "Give each warp of a block its own part of the work.", line)

    # -- a counter beyond its limit

    def beyond(self, counter: str, limit: float, sentence: str | None = None) -> Found:
        """The line that does most of it, and what it does there."""
        space = counter.partition("_")[0]
        if counter.endswith("_bank_conflicts"):  # told as wavefronts, of which conflicts are a part
            line = max(self.lines, key=lambda line: self.lines[line][counter])
            wavefronts = counter.replace("bank_conflicts", "wavefronts")
            total = self.run.counter(wavefronts)
            used = f"{_counted(wavefronts, total)} where {_number(total - self.run.counter(counter) + limit)} will do"
            return Found("bank conflicts", f"{self.each_request(wavefronts, line)}; {used}.", sentence, line)
        used = f"{_counted(counter, self.run.counter(counter))} where {_number(limit)} will do"
        mistake = BEHIND.get(counter) or BEHIND.get(space, "too much work")
        if counter == DECLARED:
            return Found(mistake, f"{used}.", sentence, self.source.makes_shared())
        if counter.endswith(("sectors", "wavefronts")) and (line := self.worst(counter)) is not None:
            mistake = "uncoalesced" if space == "global" else "bank conflicts"
            return Found(mistake, f"{self.each_request(counter, line)}; {used}.", sentence, line)
        conflicts = counter.replace("wavefronts", "bank_conflicts")
        if conflicts != counter and self.run.counter(counter) - self.run.counter(conflicts) <= limit:
            line = max(self.lines, key=lambda line: self.lines[line][conflicts])
            return Found("bank conflicts", f"{self.each_request(counter, line)}; {used}.", sentence, line)
        if BEHIND.get(counter) == "accidental float64" and self.run.warnings:  # the interpreter knows why
            cause = self.run.warnings[0]
            whole = ", or // for a whole number" if QUOTIENT.search(cause.message) else ""
            # Where the exercise has its own advice, its author knows better what to write there.
            own = mistake in self.exercise.advice
            why = cause.message.partition(": write ")[0] if own else f"{cause.message}{whole}"
            return Found(mistake, f"{why}; {used}.", sentence, cause.line)
        if counter == "flops_f64" and sentence is None and any(x.dtype == np.complex64 for x in self.run.case.arrays):
            sentence = (
                "A complex64 with a Python number is complex128: write np.float32(2), np.complex64(1j) and the like."
            )
        line, active = self.lanes(counter)
        if space == "global" and active < 4:
            seen = f"on line {line} only {_number(active)} of the {WARP} threads of a warp work at a time; {used}."
            return Found("idle threads", seen, None, line)
        if (excess := self.excess(counter)) is not None:
            line, more = excess
            used += more
        return Found(mistake, f"{used}, most on line {line}.", sentence, line)

    def lanes(self, counter: str) -> tuple[int, float]:
        """The line with most of a counter, and how many lanes execute it at a time."""
        # Of equal ones a barrier in the source, and not a function that has one.
        line = max(self.lines, key=lambda line: (self.lines[line][counter], "syncthreads" in self.source.code(line)))
        return line, self.lines[line]["thread_instructions"] / max(1, self.lines[line]["warp_instructions"])

    def each_request(self, counter: str, line: int) -> str:
        """What a request takes on a line where it takes too much."""
        counts, whose = self.lines[line], ""
        space, kind, _ = counter.split("_")
        served = counts[f"{space}_{kind}_requests"]
        each, enough = counts[counter] / served, _useful(counts, counter) / served
        if space == "shared":
            return f"line {line} takes {_number(each)} wavefronts a request where 1 does"
        parts = {
            index: (lines[line][1] / lines[line][0], lines[line][2] / SECTOR / lines[line][0])
            for index, lines in self.by_argument(kind).items()
            if line in lines
        }
        wasted = [sectors / useful for sectors, useful in parts.values()]
        if wasted and max(wasted) > 1.5 * min(wasted):  # the average of the line is that of none of its arrays
            index = max(parts, key=lambda index: parts[index][0] / parts[index][1])
            (each, enough), whose = parts[index], f" to {self.source.parameters[index]}"
        enough = max(1, round(enough))
        do = "do" if enough > 1 else "does"
        return f"line {line} moves {_number(each)} sectors a request{whose} where {enough} {do}"

    def excess(self, counter: str) -> tuple[int, str] | None:
        """Of traffic with global memory: the line with most of it, in the array with most that is not needed."""
        if not counter.startswith("global") or self.exercise.answer is None or self.on_host:
            return None
        _, kind, unit = counter.split("_")
        part = ("requests", "sectors", "bytes").index(unit)
        moved = self.by_argument(kind)
        if not moved:
            return None
        needed = _by_argument(requests(self.exercise.answer, self.run.case, self.share), kind)
        used, enough = (
            {index: sum(line[part] for line in each.get(index, {}).values()) for index in moved}
            for each in (moved, needed)
        )
        worst = max(moved, key=lambda index: used[index] - enough[index])
        line = max(moved[worst], key=lambda line: (moved[worst][line][part], line))  # of equal ones the last
        name = self.source.parameters[worst]
        more = f"; for {name} alone it is {_number(used[worst])} where {_number(enough[worst])} will do"
        return line, more if len(moved) > 1 and self.share == 1 else ""

    # -- lines

    @functools.cached_property
    def share(self) -> float:
        """The share of the requests to look at one by one: all if they are not too many, else a tenth of so many."""
        total = self.run.counter("global_load_requests") + self.run.counter("global_store_requests")
        return 1.0 if total <= MANY else 0.1 * MANY / total

    @functools.cached_property
    def requests(self) -> list[Request]:
        return [] if self.on_host else requests(self.answer, self.run.case, self.share)

    def by_argument(self, kind: str) -> dict[int, dict[int, tuple[int, int, int]]]:
        return _by_argument(self.requests, kind)

    def worst(self, counter: str) -> int | None:
        """The line that wastes most sectors or wavefronts, of those that use half as many again as would be useful."""
        served = counter.replace("sectors", "requests").replace("wavefronts", "requests")
        if counter.startswith("global") and self.exercise.answer is not None and not self.on_host:
            ideal = sum(
                min(counts[counter], max(_useful(counts, counter), counts[served])) for counts in self.lines.values()
            )
            used = self.run.counter(counter)
            if used < 4 * ideal and used / ideal < ideal / max(1, self.own.counter(counter)):
                return None  # that there are so many requests costs more than how they are spread
        excess = {
            line: counts[counter] - _useful(counts, counter)
            for line, counts in self.lines.items()
            if counts[counter] > 1.5 * max(_useful(counts, counter), counts[served])
        }
        for line in sorted(excess, key=excess.__getitem__, reverse=True):
            if counter.startswith("shared") or not self.diverged(counter, line):
                return line
        return None

    def diverged(self, counter: str, line: int) -> bool:
        """Whether what a line asks for would be coalesced if the lanes that took another branch had come along."""
        sectors = useful = 0.0
        for group in _together(self.requests, counter.split("_")[1]):
            if any(request.access.line == line for request in group):
                sectors += len(frozenset.union(*(request.sectors for request in group)))
                useful += max(1.0, _with_all_lanes(group))
        return 0 < sectors <= 1.5 * useful


def _warps(requests: list[Request]) -> set[tuple[int, int]]:
    """The warps that load or store anything, each with its block."""
    return {(request.access.block, request.access.warp) for request in requests}


def _written(request: Request) -> tuple[np.ndarray, np.ndarray]:
    """For each active lane of a store: a number for the element, and one for the thread."""
    access, lanes = request.access, np.flatnonzero(request.access.active)
    return (request.argument << 48) + access.addresses[lanes], (access.block << 10) + access.warp * WARP + lanes


def _with_all_lanes(group: list[Request]) -> float:
    """Sectors of the bytes of a request if the lanes in between take part that would ask for what lies in between."""
    width = max(request.access.width for request in group)
    lanes = np.concatenate([np.flatnonzero(request.access.active) for request in group])
    first = np.concatenate([request.access.addresses[request.access.active] for request in group]) - lanes * width
    found = 0
    for start in np.unique(first):
        alike = lanes[first == start]
        found += alike.max() - alike.min() + 1
    return found * width / SECTOR


def _together(requests: list[Request], kind: str) -> Iterator[list[Request]]:
    """Requests of one warp to one array that follow one another on different lines, by different lanes."""
    open_groups: dict[tuple[int, int, int], list[Request]] = {}
    for request in requests:
        access = request.access
        if access.kind != kind:
            continue
        group = open_groups.setdefault((request.argument, access.block, access.warp), [])
        others = [other.access for other in group]
        if any(access.line == other.line or (access.active & other.active).any() for other in others):
            yield list(group)
            group.clear()
        group.append(request)
    yield from open_groups.values()


def _by_argument(requests: list[Request], kind: str) -> dict[int, dict[int, tuple[int, int, int]]]:
    """{argument: {line: (requests, sectors, bytes)}}"""
    found: dict[int, dict[int, tuple[int, int, int]]] = {}
    for request in requests:
        if request.access.kind == kind:
            lines = found.setdefault(request.argument, {})
            served, sectors, size = lines.get(request.access.line, (0, 0, 0))
            lines[request.access.line] = served + 1, sectors + len(request.sectors), size + request.size
    return found


def _useful(counts: Mapping[str, int], counter: str) -> float:
    """Sectors that the bytes would fill, or wavefronts without a conflict: one a request."""
    if counter.startswith("global"):
        return counts[counter.replace("sectors", "bytes")] / SECTOR
    return counts[counter.replace("wavefronts", "requests")]


# ---------------------------------------------------------------------------------------------------------------- words

COUNTED = {
    "flops_f64": "{} operations are in float64",
    "inst_fp64": "{} instructions are in float64",
    "atomic_requests": "warps execute {} atomics",
    "divergent_branches": "{} branches diverge",
    "barriers": "blocks pass {} barriers",
    "inst_special": "warps compute {} quotients, roots, powers or the like",
    "flops": "there are {} floating-point operations",
    "global_load_sectors": "loads move {} sectors",
    "global_store_sectors": "stores move {} sectors",
    "global_load_bytes": "loads ask for {} bytes",
    "global_load_requests": "warps load from global memory {} times",
    "global_store_requests": "warps store to global memory {} times",
    "global_store_bytes": "stores write {} bytes",
    "shared_load_requests": "warps load from shared memory {} times",
    "shared_store_requests": "warps store to shared memory {} times",
    "shared_load_wavefronts": "loads from shared memory take {} wavefronts",
    "shared_store_wavefronts": "stores to shared memory take {} wavefronts",
    DECLARED: "the kernel takes {} bytes of shared memory itself",
}


def _counted(counter: str, count: int) -> str:
    return COUNTED.get(counter, f"{counter.replace('_', ' ')} are {{}}").format(_number(count))


def _number(value: float) -> str:
    return f"{value:,.0f}" if round(float(value), 1).is_integer() or value >= 100 else f"{value:.1f}"
