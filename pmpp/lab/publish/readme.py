"""The tables of README.md and its roofline, from the code, the chapters and the recorded measurements.

::

    python -m pmpp.lab.publish.readme            write them anew (make readme)
    python -m pmpp.lab.publish.readme --check    exit with 1 if any is stale

The text between the markers of a table is replaced, everything else is written by hand. The picture carries a digest of
what it was drawn from, so that checking it needs neither the fonts nor the matplotlib that drew it.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import re
import sys
import types
from collections.abc import Iterable, Sequence
from pathlib import Path

from pmpp.lab.measure import calls, roofline, units
from pmpp.lab.measure import record as store
from pmpp.lab.measure.record import Entry, Record
from pmpp.lab.publish import book, notebooks
from pmpp.lab.publish.notebooks import NOTEBOOKS, sources
from pmpp.lab.rooms import chapter_of, pmpp_section, rooms, subject_of
from pmpp.runtime.rung import room_name

__all__ = ["count_tests", "main", "other_gpus", "picture_is_current", "table", "without_room"]

ROOT = Path(__file__).parents[3]
README = ROOT / "README.md"
LIBRARIES = {"cupy": "CuPy", "torch": "PyTorch"}  # packages, as `bench.Workload.libraries` names them
PICTURE = store.RECORDED / "roofline.svg"
MARKERS = {name: (f"<!-- {name}: written by make readme -->", f"<!-- end of {name} -->") for name in ("rooms", "book")}


def count_tests(path: Path) -> int:
    """The test functions in a file. Parameters and drawn examples make each one many more cases."""
    if not path.is_file():
        return 0
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return sum(isinstance(node, ast.FunctionDef) and node.name.startswith("test_") for node in ast.walk(tree))


def table(record: Record | None, called: Sequence[dict] = ()) -> str:
    """The table of the rooms in Markdown; without a record the measured columns say so.

    ``called``: the rows of `pmpp.lab.measure.calls`.
    """
    lines = [
        "| Room | Chapter | PMPP | Tests | Of the roof | Against the best library | A small call |",
        "|---|---|---|--:|--:|--:|--:|",
    ]
    for room in rooms():
        name, subject = room_name(room), subject_of(room)
        chapter, tests = chapter_of(room), f"tests/kernels/{subject}/test_{name}.py"
        cells = [
            f"[{name}]({room.__name__.replace('.', '/')}.py)",
            f"[{Path(chapter).stem}]({chapter})",
            pmpp_section(room),
            f"[{count_tests(ROOT / tests)}]({tests})",
            *_measured(room, record),
            _called(name, called),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    if record:
        lines += ["", _caption(record)]
    return "\n".join(lines)


def without_room(folder: Path = NOTEBOOKS) -> str:
    """The chapters that teach no room, in reading order, as a sentence with links; "" if there is none."""
    taught = {Path(chapter_of(room)).stem for room in rooms()}
    links = []
    for path in sources(folder=folder):
        if path.stem not in taught:
            found = re.search(r"^# # (?:\d+\. )?(.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            links.append(f"[{found[1] if found else path.stem}](notebooks/{path.stem}.ipynb)")
    return f"Chapters without a room: {', '.join(links)}." if links else ""


def _dates(record: Record) -> str:
    return " and ".join(sorted({record.run(room)["date"][:10] for room in record.rooms()}))


def _caption(record: Record) -> str:
    runs = [record.run(room) for room in record.rooms()]
    names = {"cupy-cuda13x": "CuPy", "cupy-cuda12x": "CuPy", **LIBRARIES}
    found = {
        f"{names[name]} {version}": None
        for run in runs
        for name, version in run["versions"].items()
        if name in names and version
    }
    beside = f", with {' and '.join(found)}" if found else ""
    return (
        f"A room and its libraries were measured in the same run, on one {record.gpu}, {_dates(record)}{beside}; "
        "`make bench` measures yours. The last column is the time until a call with device arrays returns, for the "
        "smallest input of the room that is measured, and that of the library's call."
    )


def other_gpus(records: Sequence[Record]) -> str:
    """A table of what was measured on other GPUs than the one of `table`, in Markdown; "" if there is none."""
    if not records:
        return ""
    heads = "".join(f" {_short(record.gpu)}: of the roof | against the best library |" for record in records)
    lines = [f"| Room |{heads}", "|---|" + "--:|--:|" * len(records)]
    for room in rooms():
        cells = [cell for record in records for cell in _measured(room, record)]
        lines.append("| " + " | ".join([room_name(room), *cells]) + " |")
    said = "; ".join(f"one {record.gpu}, {_dates(record)}" for record in records)
    return "\n".join([f"The same, measured on {said}:", "", *lines])


def _short(gpu: str) -> str:
    """A GPU's name without its maker and its memory: ``"NVIDIA H100 80GB HBM3"`` -> ``"H100"``."""
    return re.sub(r"^NVIDIA\s+|\s+\d+\s?GB.*$", "", gpu)


def _measured(room: types.ModuleType, record: Record | None) -> tuple[str, str]:
    """The share of the roof, and the speed against the best library, from the least to the greatest of the room."""
    name = room_name(room)
    if record is None or name not in record.rooms():
        return "not measured", "not measured"
    roof, shares, factors, own = units.roof(record, name), [], [], False
    rivals: dict[str, None] = {}
    for entries in record.designs(name):
        others = [entry for entry in entries if not units.is_roof(entry)]
        best, library = _fastest(entries, "rung"), _fastest(others, "library")
        if best is None:
            continue
        own |= best.own is not None
        if roof.known:  # a share of another unit's roof would say nothing
            shares.append(roofline.share(best.own or best.cost, best.seconds, roof.ceilings))
        if library is not None:
            factors.append(library.seconds / best.seconds)
            rivals[library.contender] = None
    if not shares and not factors:
        return "not measured", "not measured"
    share = "not measured"
    if shares:
        share = _range(f"{100 * value:.0f}" for value in (min(shares), max(shares))) + "%" + " of its own" * own
        share += " of tensor cores" if roof.tensor else ""
    if not factors:
        return share, "none measured"
    # One call is named; of several the packages are, or the column would be too wide.
    packages = dict.fromkeys(LIBRARIES[rival.partition(".")[0]] for rival in rivals)
    against = f"`{next(iter(rivals))}`" if len(rivals) == 1 else ", ".join(packages)
    return share, f"{_range(f'{value:.2f}' for value in (min(factors), max(factors)))} × {against}"


def _range(ends: Iterable[str]) -> str:
    return " to ".join(dict.fromkeys(ends))


def _called(name: str, rows: Sequence[dict]) -> str:
    """What the smallest call of a room's best rung costs the host, and a library's."""
    found = [row for row in rows if (row["room"], row.get("size")) == (name, "tiny") and "us" in row]
    own = [row for row in found if row["kind"] == "rung" and row["form"] == "device array"]
    library = min((row for row in found if row["kind"] == "library"), key=lambda row: row["us"], default=None)
    if not own:
        return "not measured"
    beside = f"; `{library['who']}` {library['us']:.0f} µs" if library else ""
    return f"{own[0]['us']:.0f} µs{beside}"


def _calls(record: Record | None) -> list[dict]:
    try:
        return calls.recorded(Path(record.where).name)[1] if record else []
    except store.RecordError:
        return []


def _fastest(entries: Sequence[Entry], kind: str) -> Entry | None:
    return min((entry for entry in entries if entry.kind == kind), key=lambda entry: entry.median_ms, default=None)


def _load() -> tuple[Record | None, list[Record]]:
    """The record of the GPU that is shown, and those of the others."""
    shown, *others = [store.load(path) for path in store.available()] or [None]
    return shown, [record for record in others if record]


def _digest(record: Record) -> str:
    where = Path(record.where)
    files = store.files_of(where) if where.is_dir() else [where]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def _mark(record: Record) -> str:
    return f"<!-- drawn by make readme from {Path(record.where).name}, sha256 {_digest(record)} -->"


def picture_is_current(record: Record, picture: Path = PICTURE) -> bool:
    """Whether the picture was drawn from this very record."""
    return picture.is_file() and _mark(record) in picture.read_text(encoding="utf-8")


def _draw(record: Record, picture: Path) -> None:
    import matplotlib

    from pmpp.lab.draw import plots

    # The same bytes from the same record: no date, and ids from a fixed salt.
    with matplotlib.rc_context({"svg.hashsalt": "pmpp", "svg.fonttype": "path"}):
        figure = plots.roofline(record=record)
        figure.savefig(picture, format="svg", metadata={"Date": None, "Creator": None}, bbox_inches="tight")
    text = re.sub(r"[ \t]+$", "", picture.read_text(encoding="utf-8"), flags=re.MULTILINE)
    head, tag, body = text.partition("<svg ")
    picture.write_text(f"{head}{_mark(record)}\n{tag}{body}", encoding="utf-8")


def _with_table(text: str, name: str, new: str) -> str:
    first, last = MARKERS[name]
    begin, end = text.find(first), text.find(last)
    if begin < 0 or end < begin:
        raise SystemExit(f"README.md has lost its markers: it needs {first} and, after it, {last}")
    return f"{text[: begin + len(first)]}\n\n{new}\n\n{text[end:]}"


def main(arguments: Sequence[str] | None = None, readme: Path = README, picture: Path = PICTURE) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m pmpp.lab.publish.readme", description="Write the tables of README.md and its picture."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if anything is stale")
    chosen = parser.parse_args(arguments)

    record, others = _load()
    text = readme.read_text(encoding="utf-8")
    parts = table(record, _calls(record)), other_gpus(others), without_room()
    new = _with_table(text, "rooms", "\n\n".join(filter(None, parts)))
    new = _with_table(new, "book", book.table(notebooks.sources()))
    stale = [readme.name] if new != text else []
    if record and not picture_is_current(record, picture):
        stale.append(picture.name)
    if chosen.check:
        if stale:
            print(f"stale: {', '.join(stale)}. Run: make readme", file=sys.stderr)
        return int(bool(stale))
    readme.write_text(new, encoding="utf-8")
    if picture.name in stale:
        _draw(record, picture)
    print(f"written: {', '.join(stale)}" if stale else "nothing to do")
    return 0


if __name__ == "__main__":
    sys.exit(main())
