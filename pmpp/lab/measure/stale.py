"""What has changed since it passed or was measured on a GPU: test files, chapters and measurements, by name and why.

    python -m pmpp.lab.measure.stale            print it; nothing, if all is attested as it is now (make stale)
    python -m pmpp.lab.measure.stale --check    the same, and exit with 1 if there is anything

It reads sources and records, runs no kernel, and needs no GPU. `pmpp.lab.measure.attest` writes what it reads.

The interpreter runs none of a GPU's kernels, and each change of it is tested without one. So the files of `pmpp.simt`
count only for its own tests, and for what compares its counters with a GPU's.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pmpp.lab.measure import record
from pmpp.lab.measure.sources import ATTESTATIONS, MEASURED, ROOT, Sources, difference, key_of

__all__ = ["chapters", "fault", "main", "read", "stale", "suites"]

SCHEMA = 2
INTERPRETER = "pmpp/simt/"
INTERPRETED = ("tests/simt/", "tests/lab/test_agreement.py")  # whose results change with it


def suites(root: Path = ROOT) -> dict[str, str]:
    """All test files: ``{"tests/kernels/scan/test_scan.py": "tests/kernels/scan/test_scan.py"}``, as `chapters`."""
    found = sorted(path.relative_to(root).as_posix() for path in (root / "tests").rglob("test_*.py"))
    return dict(zip(found, found, strict=True))


def chapters(root: Path = ROOT) -> dict[str, str]:
    """All chapters in reading order, and their sources: ``{"notebooks/34_scan": "notebooks/source/34_scan.py"}``."""
    found = sorted((root / "notebooks" / "source").glob("*.py"))
    return {f"notebooks/{path.stem}": path.relative_to(root).as_posix() for path in found}


def read(path: Path) -> dict | None:
    """A record of attestations; None if there is none. Raises ValueError if it is of another schema or no JSON.

    Of a record of schema 1 the results are kept, and not what they depended on: it was recorded a run, not a result.
    """
    if not path.exists():
        return None
    data = json.loads(path.read_text(encoding="utf-8"))
    if data.get("schema") == 1:
        runs = {
            name: {key: value for key, value in run.items() if key != "sources"} for name, run in data["runs"].items()
        }
        for entry in (*data["tests"].values(), *data["chapters"].values()):
            entry.pop("digest")
        return {**data, "schema": SCHEMA, "runs": runs, "sources": {}}
    if data.get("schema") != SCHEMA:
        raise ValueError(f"{path}: schema is {data.get('schema')!r}; this version reads {SCHEMA}")
    return data


def stale(root: Path = ROOT) -> dict[str, str]:
    """What is not attested as it is now, and why: test files, chapters and measured rooms; empty if all is.

    A test file or a chapter may be attested on any of the recorded GPUs; why not is said of the newest attempt. Each
    GPU's measurements are judged for themselves: those of rooms, and other files that say in ``about`` by which file
    they were ``measured_by``, with which ``sources``. Of this repository, not of another ``root``, the workloads are
    imported too, to name each design size that a record lacks, and kernels whose hardware counts are older than they.
    """
    now, recorded = Sources(root), root / "pmpp" / "recorded"
    records = [data for path in sorted(recorded.glob(f"*/{ATTESTATIONS}")) if (data := read(path))]
    found = {}
    for kind, existing in (("tests", suites(root)), ("chapters", chapters(root))):
        for name, start in existing.items():
            attempts = [(data, data[kind][name]) for data in records if name in data[kind]]
            attempts.sort(key=lambda attempt: attempt[1]["run"])
            reasons = [_reason(data, entry, _digests(now, start)) for data, entry in attempts]
            if not attempts:
                found[name] = "never attested"
            elif all(reasons):
                found[name] = reasons[-1]
    for folder in sorted({path.parent for path in recorded.glob("*/*.json")}):
        if record.files_of(folder):
            measured = record.load(folder)
            for room in now.rooms():
                reasons = measured.stale(room, now)
                if root == ROOT and room in measured.rooms() and (lacking := _lacking(measured, room)):
                    reasons.append(f"design sizes not measured: {', '.join(lacking)}")
                if reasons:
                    found[f"{folder.relative_to(root).as_posix()}: {room}"] = "; ".join(reasons)
    if root == ROOT:
        from pmpp.lab.measure import agreement

        path = agreement.RECORD.relative_to(root).as_posix()
        for name in agreement.older(agreement.recorded()[1]):
            found[f"{path}: {name}"] = "its kernel or its arguments changed since Nsight Compute counted"
    for path in sorted(recorded.glob("*/*.json")):
        about = json.loads(path.read_text(encoding="utf-8")).get("about", {})
        if isinstance(about, dict) and "measured_by" in about:
            within = about.get("within", MEASURED)
            changed = difference(about["sources"], now.digests(about["measured_by"], within=within))
            if changed:
                found[path.relative_to(root).as_posix()] = f"measured {about['run']['date'][:10]}; {changed}"
    return found


def _lacking(measured: record.Record, room: str) -> list[str]:
    from pmpp.lab.measure import bench
    from pmpp.lab.rooms import workload_modules

    return bench.missing(measured, room, importlib.import_module(workload_modules()[room]).WORKLOADS)


def _digests(now: Sources, start: str) -> dict[str, str]:
    """Of each file that the test file or chapter depends on."""
    counts = start.startswith(INTERPRETED)
    return {path: one for path, one in now.digests(start).items() if counts or not path.startswith(INTERPRETER)}


def _reason(data: dict, entry: dict, now: Mapping[str, str]) -> str:
    """Why an entry attests nothing about the sources as they are now; ``""`` if it does."""
    run = data["runs"][entry["run"]]
    where = f"on {data['gpu']['name']}, {run['date'][:10]}"
    if "sources" not in entry:
        return f"run {where}; it was not recorded then which sources this result depends on"
    then = {data["sources"][key]: key for key in entry["sources"].split()}
    if changed := difference(then, {path: key_of(path, digest) for path, digest in now.items()}):
        return f"run {where}; {changed}"
    return f"{fault(entry)} {where}" if fault(entry) else ""


def fault(entry: Mapping) -> str:
    """Why a result attests nothing: ``"2 tests failed"``; ``""`` if it passed. Tests that are skipped did not fail."""
    if "failed" not in entry:
        return "" if entry["passed"] else f"failed ({entry.get('error')})"
    if entry["failed"]:
        return f"{entry['failed']} test{'s' if entry['failed'] > 1 else ''} failed"
    return "" if entry["passed"] + entry["skipped"] else "no test ran"


def main(argv: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """The command line. Returns 0; with ``--check``, 1 if anything is stale."""
    parser = argparse.ArgumentParser(
        prog="python -m pmpp.lab.measure.stale", description="What has changed since it was attested on a GPU."
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 if anything is stale")
    options = parser.parse_args(argv)
    found = stale(root)
    print("".join(f"{name}: {why}\n" for name, why in found.items()), end="")
    return int(bool(found) and options.check)


if __name__ == "__main__":
    sys.exit(main())
