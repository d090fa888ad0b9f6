"""What was tuned on the GPU in use: the times of a kernel's configurations, read from ``pmpp/recorded``.

`pmpp.lab.measure.tune` writes ``pmpp/recorded/<gpu>/tuned_<subject>.json``. A plain function asks here which
configuration was the fastest, and falls back on its own guess where nothing was tuned: on another GPU, in the
interpreter, and where a kernel has changed since. A file is read at the first question alone.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import math
import re
import typing
from collections.abc import Mapping
from pathlib import Path

from pmpp.runtime import device

__all__ = ["RECORDED", "SCHEMA", "Times", "digest", "slug", "times", "why"]

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "pmpp" / "recorded"
SCHEMA = 2

Configuration = tuple[int, ...]  # the numbers of a configuration, in the order of its names


class Times(typing.NamedTuple):
    """What was measured for a class of shapes: with which shape, and seconds by configuration."""

    shape: tuple[int, ...]
    seconds: Mapping[Configuration, float]

    @property
    def best(self) -> Configuration:
        """The configuration that took least time."""
        return min(self.seconds, key=lambda one: self.seconds[one])


def times(record: str, dtype: str) -> Mapping[str, Times] | None:
    """The times of a kernel's configurations on the current device, by class of shapes; None where there are none.

    Args:
        record: the name of the file, such as ``"tuned_fitted.json"``. dtype: of what the kernel works on.

    `why` says what there is, or why there is nothing. The answer is kept: asking again reads no file.

    >>> times("tuned_nothing.json", "float32") is None
    True
    """
    return _of_device(record)[0].get(dtype)


def why(record: str) -> str:
    """Where the times in a record are from, or why there are none, in words.

    >>> bool(why("tuned_nothing.json"))
    True
    """
    return _of_device(record)[1]


def slug(gpu: str) -> str:
    """A GPU's name as the name of its folder.

    >>> slug("NVIDIA H200")
    'nvidia-h200'
    """
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")


def digest(path: Path) -> str:
    """A digest of a Python source without its docstrings, blank lines, and lines that are a comment."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or 0) - node.lineno + 1)
    code = [line.rstrip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return hashlib.sha256("\n".join(code).encode()).hexdigest()[:16]


def _of_device(record: str) -> tuple[Mapping[str, Mapping[str, Times]], str]:
    if not device.on_gpu():
        return {}, "kernels run in the interpreter"
    return read(record, device.limits()["name"], RECORDED)


@functools.lru_cache(maxsize=64)
def read(record: str, gpu: str, folder: Path) -> tuple[Mapping[str, Mapping[str, Times]], str]:
    """A record's times by dtype and class of shapes, and where they are from; or nothing, and why it is not used.

    It is used only if it is of this GPU, and if the kernels' sources are those that were measured. What cannot be
    understood is not used either: a wrong record costs time, and no product its result.
    """
    path = folder / slug(gpu) / record
    if not path.exists():
        return {}, f"there is no {record} of {gpu}"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            return {}, f"{path.name} is not used: its schema is {data['schema']!r}; this version reads {SCHEMA}"
        about = data["about"]
        if about["gpu"]["name"] != gpu:
            return {}, f"{path.name} is not used: it is of {about['gpu']['name']}, and this is {gpu}"
        changed = [name for name, was in about["kernels"].items() if digest(ROOT / name) != was]
        if changed or not about["kernels"]:
            said = f"changed since: {', '.join(changed)}" if changed else "it names no kernels"
            return {}, f"{path.name} is not used: {said}"
        found: dict[str, dict[str, Times]] = {}
        for key, block in data["classes"].items():
            dtype, _, shape_class = key.partition(" ")
            found.setdefault(dtype, {})[shape_class] = _times(block)
        return found, f"measured on {gpu}, {about['run']['date'][:10]}"
    except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        return {}, f"{path.name} is not used: it cannot be understood: {type(error).__name__}: {error}"


def _times(block: dict) -> Times:
    seconds = {
        tuple(row["configuration"].values()): float(row["timing"]["median"])
        for row in block["rows"]
        if row["status"] == "timed"
    }
    if not seconds or not all(0 < one < math.inf for one in seconds.values()):
        raise ValueError(f"the times of {block['shape']} must be positive and finite, were {list(seconds.values())}")
    return Times(tuple(map(int, block["shape"])), seconds)
