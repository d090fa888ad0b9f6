"""The record beside its targets: for each line the geometric mean, the share of wins, the worst shapes and a verdict.

A ratio is the time of the better of PyTorch and CuPy over ours: above 1.0 ours is faster. A shape that the room
refuses, or gets wrong, has no ratio, and its line has missed its target. The target of a mean is about all shapes of
its line: it is not decided before all are measured.
"""

from __future__ import annotations

import math
import typing
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pmpp.lab.measure.shapes.drawing import Shape, drawn

__all__ = ["TARGETS", "Result", "Target", "ratio", "report", "results", "rows_of", "spent"]

Row = Mapping[str, typing.Any]


@dataclass(frozen=True)
class Target:
    """What a line is to reach: the geometric ``mean`` of its ratios, the ``least`` of them, or a share of the ``roof``.

    The roof of a shape is the longer of its bytes and its FLOP over the ceilings that were measured in its run.
    """

    line: str
    mean: float | None = None
    least: float | None = None
    roof: float | None = None

    def __str__(self) -> str:
        words = [f"mean >= {self.mean:g}"] if self.mean is not None else []
        words += [f"each >= {self.least:g}"] if self.least is not None else []
        return ", ".join(words + ([f"each >= {self.roof:g} of the roof"] if self.roof is not None else []))


TARGETS = (  # what each line is held to
    Target("matmul", mean=0.95, least=0.6),
    Target("matrix-vector, 16384^2", roof=0.95),
    Target("matrix-vector", least=1.0),
    Target("matmul, square", least=0.9),
    Target("FFT, powers of two", least=0.9),
    Target("FFT, other lengths", least=0.7),
    Target("FFT, real", least=0.9),
    Target("reduction over axes", mean=1.0, least=0.7),
    Target("sums", least=0.95),
    Target("convolution", mean=1.5, least=0.7),
    Target("depthwise convolution", mean=1.2),
    Target("softmax", least=0.8),
    Target("normalisation", least=0.8),
    Target("pooling", least=0.8),
    Target("scan", least=0.8),
    Target("activation", least=0.8),
    Target("products of float16", mean=0.85, least=0.4),
)


def ratio(row: Row, times: str = "ms") -> float | None:
    """The better library's time over ours; None if either is missing. ``times``: "ms", or "call_us" of the host."""
    found = {who: time for who, time in row[times].items() if time}
    ours = found.pop(row["ours"], None)
    return min(found.values()) / ours if ours and found else None


def share(row: Row) -> float | None:
    """The share of the roof that ours reaches."""
    ours = row["ms"].get(row["ours"])
    return row["bound_us"] / 1e3 / ours if ours else None


@dataclass(frozen=True)
class Result:
    """What is known of a line.

    Attributes:
        values: what its target is about, by shape: ratios, or shares of the roof.
        refused, wrong, unrivalled: shapes that the room refuses, with its words; those where it failed; and those of
            which no library has a time.
        of: how many shapes the line has that are timed on the GPU. measured: how many of them have a row.
        host: the same ratio of host times, of shapes that are kept aside; asides: how many there are.
    """

    target: Target
    values: Mapping[str, float]
    refused: Mapping[str, str]
    wrong: Sequence[str]
    unrivalled: Sequence[str]
    of: int
    measured: int
    host: Mapping[str, float]
    asides: int
    asides_failed: Sequence[str]

    @property
    def mean(self) -> float:
        """The geometric mean; NaN without values."""
        logs = [math.log(value) for value in self.values.values()]
        return math.exp(sum(logs) / len(logs)) if logs else math.nan

    @property
    def at_least_one(self) -> float:
        """The share of values of at least 1.0; NaN without values."""
        return sum(value >= 1 for value in self.values.values()) / len(self.values) if self.values else math.nan

    def worst(self, count: int = 3) -> list[tuple[str, float]]:
        """The shapes with the lowest values, the lowest first."""
        return sorted(self.values.items(), key=lambda one: one[1])[:count]

    @property
    def verdict(self) -> str:
        if not self.measured:
            return "not measured"
        least = self.target.roof if self.target.roof is not None else self.target.least
        if self.refused or self.wrong or (least is not None and any(one < least for one in self.values.values())):
            return "MISSED"
        if not self.values:
            return "undecided"
        behind = self.target.mean is not None and not self.mean >= self.target.mean
        if self.measured < self.of or self.unrivalled:
            return "behind so far" if behind else "met so far"
        return "MISSED" if behind else "met"


def rows_of(record: Mapping[str, typing.Any], key: str = "measured") -> dict[tuple[str, str], Row]:
    """The rows of a record by line and name; ``key="again"`` for those that are being measured again."""
    return {(row["line"], row["name"]): row for block in record[key].values() for row in block["rows"]}


def results(rows: Mapping[tuple[str, str], Row], shapes: Iterable[Shape] | None = None) -> list[Result]:
    """A result for each target whose line has shapes. ``shapes`` are all that should be measured."""
    found = []
    shapes = list(drawn() if shapes is None else shapes)
    for target in TARGETS:
        mine = [shape for shape in shapes if shape.line == target.line]
        if mine:
            found.append(_result(target, mine, rows))
    return found


def _result(target: Target, shapes: Sequence[Shape], rows: Mapping[tuple[str, str], Row]) -> Result:
    values, refused, wrong, unrivalled, host, asides_failed = {}, {}, [], [], {}, []
    there = [(shape, rows[shape.line, shape.name]) for shape in shapes if (shape.line, shape.name) in rows]
    for shape, row in there:
        failed = row["refused"] is not None or row["ours"] not in row["ms"]
        if shape.aside:
            value = ratio(row, "call_us")
            if failed:
                asides_failed.append(shape.name)
            elif value is not None:
                host[shape.name] = value
            continue
        value = share(row) if target.roof is not None else ratio(row)
        if row["refused"] is not None:
            refused[shape.name] = row["refused"]
        elif failed:
            wrong.append(shape.name)
        elif value is None:
            unrivalled.append(shape.name)
        else:
            values[shape.name] = value
    timed = [shape for shape in shapes if not shape.aside]
    measured = sum(not shape.aside for shape, _ in there)
    more = len(timed), measured, host, len(shapes) - len(timed), asides_failed
    return Result(target, values, refused, wrong, unrivalled, *more)


# ------------------------------------------------------------------------------------------------------------- in words


def report(record: Mapping[str, typing.Any], key: str = "measured", shapes: Iterable[Shape] | None = None) -> str:
    """The table, what is behind it, and the host times of shapes that are kept aside."""
    found = results(rows_of(record, key), shapes)
    about = record["about"]
    lines = [f"{about['gpu']['name']}, {about['run']['date'][:10]}, revision {about['run']['revision']}"]
    head = f"{'line':<23}{'target':<24}{'mean':>6}{'>= 1.0':>8}{'least':>7}  {'measured':<12}verdict"
    lines += [head, "-" * len(head)]
    lines += [_line(one) for one in found]
    met = sum(one.verdict == "met" for one in found)
    lines += [f"{met} of {len(found)} targets are met", ""]
    lines += [text for one in found for text in _details(one)]
    asides = [text for one in found for text in _host(one)]
    if asides:
        lines += ["", "Shapes whose least time is under 5 us, by the host time of a call: library's over ours", *asides]
    return "\n".join(lines)


def spent(rows: Iterable[Row]) -> str:
    """Where the time of a run went, by line: seconds on the GPU and seconds of compiling, all shapes together."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if "turn_s" in row:
            lines.setdefault(row["line"] + ", aside" * row["aside"], []).append((row["turn_s"], row["compile_s"]))
    words = [f"{'line':<31}{'shapes':>7}{'GPU s':>8}{'each':>8}{'compiling s':>13}"]
    for line, found in lines.items():
        turns, compiling = (sum(part) for part in zip(*found, strict=True))
        words.append(f"{line:<31}{len(found):7}{turns:8.1f}{turns / len(found):8.3f}{compiling:13.1f}")
    return "\n".join(words)


def _line(one: Result) -> str:
    least = min(one.values.values(), default=math.nan)
    figures = f"{one.mean:6.2f}{one.at_least_one:8.0%}{least:7.2f}" if one.values else f"{'-':>6}{'-':>8}{'-':>7}"
    return f"{one.target.line:<23}{one.target!s:<24}{figures}  {f'{one.measured} of {one.of}':<12}{one.verdict}"


def _details(one: Result) -> list[str]:
    lines = []
    if one.values:
        worst = "; ".join(f"{name} {value:.2f}" for name, value in one.worst(5))
        lines.append(f"{one.target.line}, worst: {worst}")
    for words, count in Counter(map(_without_numbers, one.refused.values())).most_common():
        example = next(name for name, text in one.refused.items() if _without_numbers(text) == words)
        lines.append(f"{one.target.line}, refused {count}: {one.refused[example]} ({example})")
    if one.wrong:
        lines.append(f"{one.target.line}, failed {len(one.wrong)}: {'; '.join(one.wrong)}")
    if one.unrivalled:
        lines.append(f"{one.target.line}, without a library's time {len(one.unrivalled)}: {'; '.join(one.unrivalled)}")
    return lines


def _without_numbers(words: str) -> str:
    return "".join(letter for letter in words if not letter.isdigit())


def _host(one: Result) -> list[str]:
    if not one.host and not one.asides_failed:
        return []
    ordered = sorted(one.host.items(), key=lambda pair: pair[1])
    words = f"{len(one.host) + len(one.asides_failed)} of {one.asides}"
    if ordered:
        middle, (worst, value) = ordered[len(ordered) // 2][1], ordered[0]
        words += f", median {middle:.2f}, worst {value:.2f} ({worst})"
    if one.asides_failed:
        words += f", refused or failed {len(one.asides_failed)}"
    return [f"{one.target.line}: {words}"]
