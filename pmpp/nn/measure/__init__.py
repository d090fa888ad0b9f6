"""What training costs on a GPU, measured: one module a question, and one record for each.

Each module is a command, ``python -m pmpp.nn.measure.steps``. It prints what it found. On a GPU it also writes the
record ``pmpp/recorded/<gpu>/<name>.json``, which chapters read with `recorded`.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Sequence
from pathlib import Path

from pmpp.lab.measure import environment, record
from pmpp.lab.measure.sources import MEASURED, SHOWN, Sources
from pmpp.runtime import device

__all__ = ["recorded", "write"]

WITHIN = [*MEASURED, "pmpp/nn/"]


def write(
    name: str,
    source: str,
    rows: dict[str, typing.Any],
    out: Path | None = None,
    within: Sequence[str] = WITHIN,
) -> Path:
    """Write the record ``name`` of this GPU: where, when and with what it was measured, and what was found.

    Args:
        name: the file's name without ".json".
        source: the module that measured, as "pmpp/nn/measure/steps.py". If a file that it depends on changes,
            ``make stale`` names the record.
        rows: what was found, as JSON.
        out: another file to write.
        within: the folders whose files count as sources.

    Returns the file. Without a GPU, ``cpu`` stands for its name: such a record is for trying, not for keeping.
    """
    gpu = environment.describe_gpu() if device.on_gpu() else {"name": "cpu"}
    about = {"gpu": gpu, "run": environment.describe_machine(), "measured_by": source, "within": list(within)}
    about["sources"] = Sources().digests(source, within=within)
    out = out or record.RECORDED / record.slug(gpu["name"]) / f"{name}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"about": about, **rows}, indent=1) + "\n", encoding="utf-8")
    return out


def recorded(name: str) -> dict[str, typing.Any]:
    """The record ``name``: that of this GPU if there is one, else that of the GPU that the chapters are written about.

    Its "about" says where and when it was measured. Raises `pmpp.lab.measure.record.RecordError` if there is none.
    """
    folders = [SHOWN, *sorted(path.name for path in record.RECORDED.glob("*") if path.is_dir())]
    if device.on_gpu():
        folders.insert(0, record.slug(environment.describe_gpu()["name"]))
    for folder in folders:
        path = record.RECORDED / folder / f"{name}.json"
        if path.is_file():
            return json.loads(path.read_text(encoding="utf-8"))
    raise record.RecordError(
        f"no record {name}.json in {record.RECORDED}: on a GPU run python -m pmpp.nn.measure.{name}"
    )
