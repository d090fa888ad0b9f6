"""What the interpreter's sanitizers find beside NVIDIA's compute-sanitizer, on the same planted bugs.

The bugs are those of ``tests/corpus``: small kernels, each with the nearest correct one. The record says which of them
each tool of compute-sanitizer named on a real GPU, and which the interpreter names at level "check". It is written by
``python -m tests.corpus.hardware``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from pmpp.lab.measure.record import RECORDED

__all__ = ["RECORD", "TOOLS", "recorded", "rows", "table"]

RECORD = RECORDED / "nvidia-h200" / "sanitizers.json"

#: compute-sanitizer's tools and what each is for.
TOOLS = {
    "racecheck": "races in shared memory",
    "memcheck": "accesses outside an allocation",
    "initcheck": "reads of device memory that nobody wrote",
    "synccheck": "barriers that not all threads reach",
}


def recorded(path: Path = RECORD) -> dict:
    """The record: ``about`` (device, driver, versions, date, revision), ``subjects`` and ``pairs`` by name.

    A pair has ``subject``, ``kind`` and ``space`` of its bug; ``launched``: whether the bug could be run on the GPU at
    all (some may hang there); ``tools``: those that name the kernel of the bug, ``tools_by_line``: those that name the
    right line as well; ``interpreter``: whether level "check" names kind, variable and line, and nothing besides. Its
    ``look_alike`` has those that are silent on the correct kernel.
    """
    return json.loads(path.read_text(encoding="utf-8"))


def rows(record: dict | None = None) -> list[dict]:
    """A row a subject, and one for all: ``title``, ``bugs``, how many each tool and the interpreter name, and how many
    look-alikes are left alone by all of compute-sanitizer's tools (``silent_hardware``) and by the interpreter."""
    record = record or recorded()
    pairs = list(record["pairs"].values())
    groups = [(title, [p for p in pairs if p["subject"] == name]) for name, title in record["subjects"].items()]
    return [_row(title, group) for title, group in [*groups, ("all", pairs)]]


def _row(title: str, pairs: list[dict]) -> dict:
    def count(found: Iterable) -> int:
        return sum(map(bool, found))

    return {
        "title": title,
        "bugs": len(pairs),
        **{tool: count(tool in p["tools"] for p in pairs) for tool in TOOLS},
        "any_tool": count(p["tools"] for p in pairs),
        "interpreter": count(p["interpreter"] for p in pairs),
        "silent_hardware": count(len(p["look_alike"]["tools"]) == len(TOOLS) for p in pairs),
        "silent_interpreter": count(p["look_alike"]["interpreter"] for p in pairs),
    }


def table(record: dict | None = None) -> str:
    """The rows as text, with where and when they come from."""
    record = record or recorded()
    about = record["about"]
    columns = ["bugs", *TOOLS, "any_tool", "interpreter"]
    lines = [f"{'planted bugs named':45}" + "".join(f"{name.replace('_', ' '):>12}" for name in columns)]
    for row in rows(record):
        lines.append(f"{row['title']:45}" + "".join(f"{row[name]:>12}" for name in columns))
    last = rows(record)[-1]
    lines.append(
        f"look-alikes left alone: {last['silent_hardware']} of {last['bugs']} by compute-sanitizer, "
        f"{last['silent_interpreter']} by the interpreter"
    )
    lines.append(
        f"{about['device']}, compute-sanitizer {about['compute_sanitizer']}, numba-cuda {about['numba_cuda']}, "
        f"{about['date']}, revision {about['revision']}"
    )
    return "\n".join(lines)
