"""What was tuned: a file for each GPU and subject, ``pmpp/recorded/<gpu>/tuned_<subject>.json``.

It holds a GPU, the run, the digests of all sources that the times depend on, and for each dtype and class of shapes the
shape that was measured and the rows of all configurations that were tried; of those that were refused or pruned it has
the numbers. `best` asks it. A record whose sources have changed is not used, and `make stale` names it. Plain functions
ask `pmpp.runtime.tuned`, which looks at the sources of the kernels alone.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import os
import tempfile
import typing
from collections.abc import Callable, Sequence
from pathlib import Path

from pmpp import simt
from pmpp.lab.measure.record import RECORDED, SHOWN, RecordError, slug
from pmpp.lab.measure.sources import MEASURED, ROOT, Sources, difference
from pmpp.lab.measure.timing import Timing
from pmpp.lab.measure.tune.search import Landscape, Row, Subject, explore
from pmpp.lab.measure.tune.work import Estimate, gpu_of
from pmpp.runtime import device, tuned
from pmpp.runtime.tuned import SCHEMA

__all__ = ["Choice", "best", "key_of", "path_of", "rows_of", "subjects", "write"]

LEFT_OUT = ("refused", "pruned")


class Choice(typing.NamedTuple):
    """What `best` says. ``tuned``: whether it was measured. ``why``: where it is from, in words."""

    configuration: typing.Any
    tuned: bool
    why: str


def subjects() -> dict[str, Subject]:
    """What can be tuned, by name: the ``SUBJECT`` of each module below ``pmpp/kernels/autotuning``."""
    folder = ROOT / "pmpp" / "kernels" / "autotuning"
    found = {}
    for path in sorted(folder.glob("*.py")):
        module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
        if subject := getattr(module, "SUBJECT", None):
            found[subject.name] = subject
    return found


def key_of(subject: Subject, shape: Sequence[int]) -> str:
    """What a record keeps a shape's rows by: dtype and class."""
    return f"{subject.dtype} {subject.shape_class(tuple(shape))}"


def path_of(subject: Subject, gpu: str, folder: Path | None = None) -> Path:
    """The record of a subject on a GPU, by the GPU's name or slug."""
    return (folder or RECORDED) / slug(gpu) / f"tuned_{subject.name}.json"


def here() -> str:
    """The slug of this machine's GPU; without one, that of the GPU that the chapters are about."""
    return slug(device.limits()["name"]) if device.on_gpu() else SHOWN


@functools.lru_cache(maxsize=1)
def _sources() -> Sources:
    return Sources()


def digests(subject: Subject) -> dict[str, str]:
    """Of each source that the subject's times depend on."""
    return _sources().digests(subject.source, within=MEASURED)


# -------------------------------------------------------------------------------------------------------------- writing


def write(landscapes: Sequence[Landscape], path: Path, gpu: dict, run: dict) -> None:
    """Record what was timed. Classes that the file has from the same sources stay, unless they were measured again.

    Args:
        landscapes: of one subject, each with a `best`. gpu, run: as `pmpp.lab.measure.environment` describes them.

    Raises ValueError for a landscape without times, and RecordError if the file is of another GPU.
    """
    subject = landscapes[0].subject
    for one in landscapes:
        if one.best is None:
            raise ValueError(f"{subject.name} {one.shape} has no times: only what was measured on a GPU is recorded")
    sources = digests(subject)
    classes: dict[str, dict] = {}
    if path.exists():
        old = _read(path)
        if old["about"]["gpu"]["name"] != gpu["name"]:
            raise RecordError(f"{path} is of {old['about']['gpu']['name']}, but this machine has {gpu['name']}")
        if not difference(old["about"]["sources"], sources):
            classes = old["classes"]
    for one in landscapes:
        counts = one.counts()
        classes[key_of(subject, one.shape)] = {
            "shape": list(one.shape),
            "date": run["date"],
            **{status: counts[status] for status in LEFT_OUT},
            "rows": [_stored(row) for row in one.rows if row.status not in LEFT_OUT],
        }
    kernels = {name: tuned.digest(ROOT / name) for name in subject.kernels or (subject.source,)}
    about = {"gpu": gpu, "run": run, "measured_by": subject.source, "sources": sources, "kernels": kernels}
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(_dump({"schema": SCHEMA, "subject": subject.name, "about": about, "classes": classes}))
    os.chmod(temporary, 0o644)  # mkstemp gives 0600; the record is shipped
    os.replace(temporary, path)


def _dump(data: dict) -> str:
    """JSON with one configuration a line, so that a diff shows which has changed."""
    parts = []
    for key, block in data["classes"].items():
        head = json.dumps({name: value for name, value in block.items() if name != "rows"})[1:-1]
        rows = ",\n".join(f"   {json.dumps(row)}" for row in block["rows"])
        parts.append(f'  {json.dumps(key)}: {{{head}, "rows": [\n{rows}\n  ]}}')
    head = json.dumps({name: value for name, value in data.items() if name != "classes"})[1:-1]
    return f'{{{head},\n "classes": {{\n' + ",\n".join(parts) + "\n }\n}\n"


def _stored(row: Row) -> dict:
    stored: dict[str, typing.Any] = {"configuration": row.configuration._asdict(), "status": row.status}
    if row.why:
        stored["why"] = row.why
    if row.estimate:
        stored["estimate"] = _short(dataclasses.asdict(row.estimate))
    if row.timing:
        stored["timing"] = _short(dataclasses.asdict(row.timing))
    return stored


def _short(value: typing.Any) -> typing.Any:
    """Floats with seven significant digits."""
    if isinstance(value, dict):
        return {key: _short(one) for key, one in value.items()}
    return float(f"{value:.7g}") if isinstance(value, float) else value


# -------------------------------------------------------------------------------------------------------------- reading


def _read(path: Path) -> dict:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecordError(f"there is no record at {path}") from None
    except json.JSONDecodeError as error:
        raise RecordError(f"{path} is not JSON: {error}") from None
    if data.get("schema") != SCHEMA:
        raise RecordError(f"{path}: schema is {data.get('schema')!r}; this version reads {SCHEMA}")
    return data


@functools.lru_cache(maxsize=64)
def _usable(subject: Subject, path: Path, changed: int) -> tuple[dict, str]:
    """The classes of a record, and ``""``; or nothing, and why it cannot be used. ``changed``: when the file was."""
    data = _read(path)
    differs = difference(data["about"]["sources"], digests(subject))
    return ({}, f"the record of {data['about']['gpu']['name']} is not used: {differs}") if differs else (data, "")


def _block(subject: Subject, shape: Sequence[int], gpu: str, folder: Path | None) -> tuple[dict | None, str]:
    """What was measured for the class of a shape; or None, and why there is nothing."""
    path, key = path_of(subject, gpu, folder), key_of(subject, shape)
    if not path.exists():
        return None, f"{subject.name} was never tuned on {slug(gpu)}"
    data, why = _usable(subject, path, path.stat().st_mtime_ns)
    if why:
        return None, why
    if key not in data["classes"]:
        return None, f"{subject.name} was not tuned for {key} on {slug(gpu)}"
    block = data["classes"][key]
    shown = " x ".join(map(str, block["shape"]))
    return block, f"measured on {data['about']['gpu']['name']}, {block['date'][:10]}, with {shown}"


def rows_of(
    subject: Subject, shape: Sequence[int], *, gpu: str | None = None, folder: Path | None = None
) -> tuple[list[Row], str]:
    """The recorded rows for the class of a shape, and where they are from; or no rows, and why there are none.

    They are of the configurations that were tried: those that were refused or pruned are not recorded one by one.
    """
    block, why = _block(subject, shape, gpu or here(), folder)
    return ([] if block is None else [_row(subject, one) for one in block["rows"]]), why


def _row(subject: Subject, stored: dict) -> Row:
    return Row(
        subject.space.kind(**stored["configuration"]),
        stored["status"],
        stored.get("why", ""),
        Estimate(**stored["estimate"]) if "estimate" in stored else None,
        Timing(**stored["timing"]) if "timing" in stored else None,
    )


def best(
    subject: Subject,
    shape: Sequence[int],
    *,
    gpu: str | None = None,
    guess: Callable[[tuple[int, ...]], typing.Any] | None = None,
    folder: Path | None = None,
) -> Choice:
    """The configuration to use for a shape: what was tuned for its class on a GPU, or a guess where nothing was.

    Args:
        gpu: a GPU's name or slug. By default this machine's, and without a GPU that of the chapters.
        guess: ``guess(shape)`` -> a configuration, for what was not tuned. By default the one with the least predicted
            time, which is counted in the interpreter: seconds at the first call, for each subject.
        folder: of the records, instead of ``pmpp/recorded``.

    >>> from pmpp.kernels.autotuning import transposes
    >>> choice = best(transposes.SUBJECT, (4096, 4096), gpu="a GPU of next year", guess=lambda shape: "mine")
    >>> choice.configuration, choice.tuned, choice.why
    ('mine', False, 'transposes was never tuned on a-gpu-of-next-year')
    """
    shape, gpu = tuple(shape), gpu or here()
    block, why = _block(subject, shape, gpu, folder)
    if block is not None:
        timed = [row for row in block["rows"] if row["status"] == "timed"]
        fastest = min(timed, key=lambda row: row["timing"]["median"])
        return Choice(subject.space.kind(**fastest["configuration"]), True, why)
    return Choice(guess(shape) if guess else _roofline_guess(subject, shape, gpu), False, why)


@functools.lru_cache(maxsize=1024)
def _roofline_guess(subject: Subject, shape: tuple[int, ...], gpu: str) -> typing.Any:
    """The verified configuration with the least predicted time. A GPU that is in no table is taken for an H200."""
    try:
        known = gpu_of(gpu)
    except simt.LaunchError:
        known = gpu_of(SHOWN)
    return explore(subject, shape, gpu=known, factor=1, most=1).guess.configuration
