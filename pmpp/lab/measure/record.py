"""The store of measurements: a folder a GPU under ``pmpp/recorded/``, with a JSON file a subject; bench writes it.

A file holds ``runs`` (when, where and with which versions something was measured, and the ceilings of that run) and
``rooms``. A room's block names its run, has the digest of each source that the measurement depends on, and one entry a
workload and contender. A room is replaced whole, so its entries always come from one run. No figure in a file is typed
by hand.
"""

from __future__ import annotations

import functools
import json
import os
import pickle
import re
import tempfile
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from pmpp.lab.measure.parts import run_name
from pmpp.lab.measure.roofline import Ceilings
from pmpp.lab.measure.sources import SHOWN, Sources, difference
from pmpp.runtime.rung import Cost

__all__ = [
    "RECORDED",
    "SHOWN",
    "Entry",
    "Record",
    "RecordError",
    "available",
    "joined",
    "load",
    "merge",
    "slug",
    "write",
]

RECORDED = Path(__file__).parents[2] / "recorded"
SCHEMA = 3
KINDS = ("rung", "library", "numpy", "transfer")
_NUMBER = (int, float)


class RecordError(ValueError):
    """A record is missing, or is not what its schema says. The message names the file and the field."""


@dataclass(frozen=True)
class Entry:
    """One contender on one workload. Times are milliseconds.

    Attributes:
        family: what is computed (``"sum"``); a sweep is one family over its sizes. workload: its size in words.
        sizes: the numbers behind ``workload``; the first is the sweep's horizontal axis.
        cache: ``"cold"`` (inputs come from device memory) or ``"warm"`` (the same inputs again and again).
        contender: a rung's name, a library's call (``"torch.sum"``), or a kind of transfer. kind: see ``KINDS``.
        median_ms, low_ms, high_ms: the median, and the 95 % confidence interval of the median.
        settled: whether that interval became as narrow as was asked for. method: how the time was taken.
        flops, bytes: the least that any version by the definition must do, not what this one did.
        own_flops, own_bytes: the same for the rung's algorithm, where that is another than the definition's.
        error, tolerance: the worst element of the checked output, or None where the result cannot be wrong.
        call_ms: host time of one call, without waiting for the GPU. end_to_end_ms: NumPy arrays in, NumPy array out.
        registers, shared_bytes: of a rung at its design size, the registers of a thread and the static shared memory of
            a block of its first kernel, as it was compiled.
    """

    family: str
    workload: str
    sizes: dict[str, int]
    design: bool
    cache: str
    contender: str
    kind: str
    median_ms: float
    low_ms: float
    high_ms: float
    repeats: int
    batch: int
    settled: bool
    method: str
    flops: int
    bytes: int
    error: float | None = None
    tolerance: float | None = None
    call_ms: float | None = None
    end_to_end_ms: float | None = None
    own_flops: int | None = None
    own_bytes: int | None = None
    registers: int | None = None
    shared_bytes: int | None = None

    @property
    def cost(self) -> Cost:
        """The least work by the definition."""
        return Cost(self.flops, self.bytes)

    @property
    def own(self) -> Cost | None:
        """The least work of the rung's algorithm, if that is another than the definition's."""
        return None if self.own_flops is None or self.own_bytes is None else Cost(self.own_flops, self.own_bytes)

    @property
    def seconds(self) -> float:
        """The median, in seconds."""
        return self.median_ms / 1e3

    @property
    def x(self) -> int:
        """The size that a sweep draws along its horizontal axis."""
        return next(iter(self.sizes.values()))


_ENTRY_TYPES: dict[str, tuple] = {
    **dict.fromkeys(("family", "workload", "cache", "contender", "kind", "method"), (str,)),
    **dict.fromkeys(("design", "settled"), (bool,)),
    **dict.fromkeys(("repeats", "batch", "flops", "bytes"), (int,)),
    **dict.fromkeys(("median_ms", "low_ms", "high_ms"), _NUMBER),
    **dict.fromkeys(("error", "tolerance", "call_ms", "end_to_end_ms"), (*_NUMBER, types.NoneType)),
    **dict.fromkeys(("own_flops", "own_bytes", "registers", "shared_bytes"), (int, types.NoneType)),
    "sizes": (dict,),
}
_OPTIONAL = {"error", "tolerance", "call_ms", "end_to_end_ms", "own_flops", "own_bytes", "registers", "shared_bytes"}
_RUN_FIELDS = ("date", "revision", "driver", "cuda", "cpu", "versions", "ceilings")


class Record:
    """A checked record, read-only. ``data`` is the JSON as it lies in the file.

    ``checked``: it is known to be what its schema says.
    """

    def __init__(self, data: dict, where: str = "record", *, checked: bool = False) -> None:
        if not checked:
            check_schema(data, where)
        self.data = data
        self.where = where
        self._entries: dict[str, tuple[Entry, ...]] = {}  # of the rooms that were asked for

    @property
    def gpu(self) -> str:
        """The GPU's name, as its driver gives it."""
        return self.data["gpu"]["name"]

    @property
    def l2_bytes(self) -> int:
        return self.data["gpu"]["l2_bytes"]

    def rooms(self) -> tuple[str, ...]:
        """The names of the rooms that have entries."""
        return tuple(self.data["rooms"])

    def entries(self, room: str, **where: typing.Any) -> tuple[Entry, ...]:
        """The room's entries whose fields equal ``where``: ``record.entries("reduction", kind="rung", design=True)``.

        Raises RecordError if the room is not in the record.
        """
        if room not in self.data["rooms"]:
            known = ", ".join(self.data["rooms"]) or "none"
            raise RecordError(f"{self.where} has no measurements of room {room!r}; it has: {known}")
        if room not in self._entries:
            block = self.data["rooms"][room]
            every = [*block["entries"], *(entry for part in block.get("earlier", ()) for entry in part["entries"])]
            # The newest run may have had some sizes alone: families stand as the room's workloads have them.
            place = {family: number for number, family in enumerate(block.get("families", ()))}
            every.sort(key=lambda entry: (place.get(entry["family"], len(place)), not entry["design"]))  # stable
            self._entries[room] = tuple(Entry(**entry) for entry in every)
        return tuple(e for e in self._entries[room] if all(getattr(e, key) == value for key, value in where.items()))

    def families(self, room: str) -> tuple[str, ...]:
        """What was measured in the room, in the order of the record."""
        return tuple(dict.fromkeys(entry.family for entry in self.entries(room)))

    def design(self, room: str, family: str | None = None) -> tuple[Entry, ...]:
        """The contenders at the room's design size: rungs first in ladder order, then libraries.

        ``family`` defaults to the first that has a design size. Raises RecordError if none has.
        """
        found = [e for e in self.entries(room, design=True) if family in (None, e.family)]
        if not found:
            raise RecordError(f"{self.where} has no measurement of {room!r} at its design size")
        return tuple(e for e in found if (e.family, e.workload) == (found[0].family, found[0].workload))

    def designs(self, room: str) -> list[tuple[Entry, ...]]:
        """The contenders at each of the room's design sizes, in the order of the record."""
        found: dict[tuple[str, str], list[Entry]] = {}
        for entry in self.entries(room, design=True):
            found.setdefault((entry.family, entry.workload), []).append(entry)
        return [tuple(entries) for entries in found.values()]

    def run(self, room: str | None = None) -> dict:
        """Date, revision, versions and ceilings of the run that measured ``room``; of the newest run by default."""
        if room is None:
            return max(self.data["runs"].values(), key=lambda run: run["date"])
        self.entries(room)
        return self.data["runs"][self.data["rooms"][room]["run"]]

    def ceilings(self, room: str | None = None) -> Ceilings:
        """The ceilings measured in the same run as ``room``; in the newest run by default."""
        return Ceilings(**self.run(room)["ceilings"])

    def footer(self, room: str | None = None) -> str:
        """Where figures drawn from this record come from, in one line."""
        run = self.run(room)
        said = f"Recorded on {self.gpu}, {run['date'][:10]}, revision {run['revision']}"
        earlier = self.data["rooms"][room].get("earlier", ()) if room is not None else ()
        if earlier:
            dates = sorted({self.data["runs"][part["run"]]["date"][:10] for part in earlier})
            parts = [sizes_of(part["entries"]) for part in earlier]
            count, whole = len(set().union(*parts)), len(sizes_of(map(as_json, self.entries(room))))
            said += f"; {count} of {whole} sizes on {' and '.join(dates)}"
        return said

    def stale(self, room: str, now: Sources) -> list[str]:
        """Why the record no longer describes the room as it is ``now``; empty if it does.

        Raises ValueError, with the names that there are, if there is no such room.
        """
        sources = now.of_room(room)
        if room not in self.data["rooms"]:
            return [f"never measured on {self.gpu}"]
        # At any size: a rung for special shapes is not measured at the size that the others are judged by.
        measured = {entry.contender for entry in self.entries(room, kind="rung")}
        missing = [rung for rung in now.ladder(now.rooms()[room]) if rung not in measured]
        reasons = [f"not measured: {', '.join(missing)}"] if missing else []
        block = self.data["rooms"][room]
        changed = difference(block["sources"], sources)
        reasons += [f"measured {self.run(room)['date'][:10]}; {changed}"] if changed else []
        for part in block.get("earlier", ()):
            sizes = sizes_of(entry for entry in part["entries"] if entry["kind"] not in HOST)
            if sizes and (changed := difference(part["sources"], sources)):
                date = self.data["runs"][part["run"]]["date"][:10]
                reasons.append(f"{len(sizes)} sizes measured {date}; {changed}")
        return reasons

    def current(self, room: str, now: Sources) -> set[tuple[str, str, str]]:
        """What of a room was measured with the sources that are there ``now``: family, workload and contender."""
        block = self.data["rooms"].get(room, {"entries": (), "sources": {}})
        sources = now.of_room(room)
        return {
            (entry["family"], entry["workload"], entry["contender"])
            for part in (block, *block.get("earlier", ()))
            if not difference(part["sources"], sources)
            for entry in part["entries"]
        }


def sizes_of(entries: Iterable[Mapping]) -> set[tuple[str, str]]:
    """The workloads that entries are of, by family and name."""
    return {(entry["family"], entry["workload"]) for entry in entries}


HOST = ("numpy", "transfer")  # kinds that the host's clock times: they depend on no kernel


def _with_earlier(new: dict, old: dict, wanted: Callable[[Mapping], bool] | None = None) -> dict:
    """The block of a room with what an older one has besides, as parts of their own with their runs and sources.

    A workload is of one run: what the newer block has is never mixed with older times. What the host's clock timed is
    kept apart, as it depends on no kernel. ``wanted`` says of an entry whether anybody still measures it.
    """
    known = {
        on_host: sizes_of(e for e in new["entries"] if (e["kind"] in HOST) == on_host) for on_host in (False, True)
    }
    earlier = []
    for part in (*new.get("earlier", ()), old, *old.get("earlier", ())):
        kept = []
        for entry in part["entries"]:
            seen = known[entry["kind"] in HOST]
            if (entry["family"], entry["workload"]) not in seen and (wanted is None or wanted(entry)):
                kept.append(entry)
        if kept:
            earlier.append({"run": part["run"], "sources": part["sources"], "entries": kept})
            for entry in kept:
                known[entry["kind"] in HOST].add((entry["family"], entry["workload"]))
    block = {key: value for key, value in new.items() if key != "earlier"}
    return {**block, "earlier": earlier} if earlier else block


def _runs_of(blocks: Iterable[Mapping]) -> set[str]:
    return {part["run"] for block in blocks for part in (block, *block.get("earlier", ()))}


def slug(gpu: str) -> str:
    """A GPU's name as a file name: ``"NVIDIA H200"`` -> ``"nvidia-h200"``."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")


def available(folder: Path | None = None) -> list[Path]:
    """The folders of the GPUs whose records are shipped: `SHOWN` first, then the newest measurement first."""
    paths = [path for path in sorted((folder or RECORDED).glob("*")) if path.is_dir() and files_of(path)]
    return sorted(paths, key=lambda path: (path.name == SHOWN, load(path).run()["date"]), reverse=True)


def files_of(folder: Path) -> list[Path]:
    """The files with measurements of rooms in a GPU's folder; other records may lie beside them."""
    return [Path(path) for path, *stamp in _files(folder) if _has_rooms(path, *stamp)]


# What a file holds is kept while it is as it was: chapters ask for a record again and again.


def _files(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """The JSON files in a folder, each with what changes when it is written."""
    found = ((path, path.stat()) for path in sorted(folder.glob("*.json")))
    return tuple((str(path), stat.st_mtime_ns, stat.st_size) for path, stat in found)


@functools.lru_cache(maxsize=256)
def _has_rooms(path: str, time: int, size: int) -> bool:
    return "rooms" in _read(Path(path))


def load(source: str | Path | None = None, *, room: str | None = None) -> Record:
    """A record: of a GPU by its slug (``"nvidia-h200"``), from a folder or a file, or by default what fits best.

    The default is this machine's GPU if it has been measured, with a ``room`` if that has been measured on it; else the
    first of `available`, with that room if any has it. Raises RecordError if there is none, or if the file breaks the
    schema.
    """
    if source is not None:
        return _open(Path(source) if isinstance(source, Path) or "/" in source else RECORDED / source)
    here = _own_path()
    if here is not None and here.is_dir() and files_of(here):  # the folder may have other records alone
        own = _open(here)
        if room is None or room in own.rooms():
            return own
    paths = available()
    if not paths:
        raise RecordError(f"no measurements are recorded in {RECORDED}; on a machine with a GPU run: make bench")
    found = (_open(path) for path in paths)
    first = next(found)
    return (
        first if room is None or room in first.rooms() else next((one for one in found if room in one.rooms()), first)
    )


def _open(path: Path) -> Record:
    if not path.is_dir():
        return Record(_read(path), str(path))
    whole = pickle.loads(_checked(str(path), _files(path)))  # a copy: who changes it changes no other's
    return Record(whole, str(path), checked=True)


@functools.lru_cache(maxsize=8)
def _checked(path: str, files: tuple[tuple[str, int, int], ...]) -> bytes:
    """The record of a folder with these files, pickled: this is faster to read than JSON."""
    rooms = [Path(file) for file, *stamp in files if _has_rooms(file, *stamp)]
    parts = [_read(file) for file in rooms]
    if not parts:
        raise RecordError(f"there is no record at {path}")
    whole = {"schema": SCHEMA, "gpu": parts[0].get("gpu"), "runs": {}, "rooms": {}}
    for file, part in zip(rooms, parts, strict=True):
        check_schema(part, str(file))
        if part["gpu"]["name"] != whole["gpu"]["name"]:
            raise RecordError(f"{file} is of {part['gpu']['name']}, but the files beside it of {whole['gpu']['name']}")
        whole["runs"] |= part["runs"]
        whole["rooms"] |= part["rooms"]
    return pickle.dumps(whole)


def _own_path() -> Path | None:
    from pmpp.runtime import device

    if not device.on_gpu():
        return None
    name = device.backend().cuda.get_current_device().name
    return RECORDED / slug(name.decode() if isinstance(name, bytes) else name)


def _read(path: Path) -> dict:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecordError(f"there is no record at {path}") from None
    except json.JSONDecodeError as error:
        raise RecordError(f"{path} is not JSON: {error}") from None


def check_schema(data: typing.Any, where: str) -> None:
    """Raise RecordError, naming the field, unless ``data`` is a record of this schema."""

    def need(ok: bool, what: str) -> None:
        if not ok:
            raise RecordError(f"{where}: {what}")

    need(isinstance(data, dict), "a record is a JSON object")
    need(data.get("schema") == SCHEMA, f"schema is {data.get('schema')!r}; this version reads {SCHEMA}")
    for key in ("gpu", "runs", "rooms"):
        need(isinstance(data.get(key), dict), f"{key!r} is missing or not an object")
    for key, kind in (("name", str), ("l2_bytes", int), ("sms", int), ("memory_bytes", int)):
        need(isinstance(data["gpu"].get(key), kind), f"gpu.{key} is missing or not a {kind.__name__}")
    need(bool(data["runs"]), "'runs' is empty")
    ceilings = {field.name for field in fields(Ceilings)}
    for name, run in data["runs"].items():
        for key in _RUN_FIELDS:
            need(isinstance(run, dict) and key in run, f"runs.{name}.{key} is missing")
        # Those of tensor cores came later than the others.
        need(
            {*run["ceilings"], "tensor"} == ceilings,
            f"runs.{name}.ceilings must have exactly: {', '.join(sorted(ceilings))}",
        )
    for room, block in data["rooms"].items():
        at = f"rooms.{room}"
        need(
            isinstance(block, dict) and {"subject", "run", "sources", "entries"} <= set(block),
            f"{at} lacks subject, run, sources or entries",
        )
        need(isinstance(block["sources"], dict), f"{at}.sources is not an object")
        need(block["run"] in data["runs"], f"{at}.run is {block['run']!r}, which is not in runs")
        for place, part in enumerate((block, *block.get("earlier", ()))):
            here = at if part is block else f"{at}.earlier[{place - 1}]"
            need({"run", "sources", "entries"} <= set(part), f"{here} lacks run, sources or entries")
            need(part["run"] in data["runs"], f"{here}.run is {part['run']!r}, which is not in runs")
            for number, entry in enumerate(part["entries"]):
                _check_entry(entry, f"{where}: {here}.entries[{number}]")


def _check_entry(entry: dict, at: str) -> None:
    unknown = set(entry) - set(_ENTRY_TYPES)
    missing = set(_ENTRY_TYPES) - set(entry) - _OPTIONAL
    if unknown or missing:
        raise RecordError(f"{at}: missing fields {sorted(missing)}, unknown fields {sorted(unknown)}")
    for key, value in entry.items():
        # bool is an int to Python, and a count that reads `true` is a mistake.
        if not isinstance(value, _ENTRY_TYPES[key]) or (isinstance(value, bool) and bool not in _ENTRY_TYPES[key]):
            raise RecordError(f"{at}.{key} is {value!r}, which is not a {_ENTRY_TYPES[key][0].__name__}")
    if entry["kind"] not in KINDS:
        raise RecordError(f"{at}.kind is {entry['kind']!r}; it is one of {', '.join(KINDS)}")
    if not entry["sizes"]:
        raise RecordError(f"{at}.sizes is empty")
    if not 0 < entry["low_ms"] <= entry["median_ms"] <= entry["high_ms"]:
        raise RecordError(f"{at}: low_ms, median_ms and high_ms must be positive and in this order")
    if (entry.get("own_flops") is None) != (entry.get("own_bytes") is None):
        raise RecordError(f"{at}: own_flops and own_bytes must be there both, or neither")
    if entry.get("error") is not None and not entry["error"] <= entry["tolerance"]:
        raise RecordError(f"{at}: the error {entry['error']} is over its tolerance {entry['tolerance']}")


Wanted = Callable[[str, Mapping], bool]  # of a room's name and an entry: whether it is still measured


def _of_room(wanted: Wanted | None, room: str) -> Callable[[Mapping], bool] | None:
    return None if wanted is None else lambda entry: wanted(room, entry)


def merge(old: dict | None, gpu: dict, run: dict, rooms: dict[str, dict], wanted: Wanted | None = None) -> dict:
    """``old`` with ``rooms`` measured in ``run`` put in their place. Other rooms stay, with the runs they came from.

    ``rooms`` maps a room to ``{"subject": ..., "sources": ..., "entries": [...]}``. Sizes that the run left out stay,
    with their run, as ``earlier`` of the room, if they are ``wanted``. Raises RecordError if ``old`` is of another GPU.
    """
    old = old or {"schema": SCHEMA, "gpu": gpu, "runs": {}, "rooms": {}}
    if old["gpu"]["name"] != gpu["name"]:
        raise RecordError(f"the record is of {old['gpu']['name']}, but this machine has {gpu['name']}")
    name = run_name(run)
    merged = dict(old["rooms"])
    for room, block in rooms.items():
        block = {"run": name, **block}
        merged[room] = _with_earlier(block, merged[room], _of_room(wanted, room)) if room in merged else block
    used = _runs_of(merged.values()) | {name}
    runs = {key: value for key, value in {**old["runs"], name: run}.items() if key in used}
    return {"schema": SCHEMA, "gpu": gpu, "runs": runs, "rooms": merged}


def joined(records: Sequence[dict], wanted: Wanted | None = None) -> dict:
    """Records of one GPU, such as those of parts, as one. A room of several is that of the newest run.

    What older runs have of a room besides stays as in `merge`.
    Raises RecordError if they are of several GPUs, or if two runs have the same name and are not the same.
    """
    whole = {**records[0], "runs": {}, "rooms": {}}
    for data in records:
        if data["gpu"]["name"] != whole["gpu"]["name"]:
            raise RecordError(
                f"records of one GPU can be merged; {data['gpu']['name']} and {whole['gpu']['name']} are two"
            )
        for name, run in data["runs"].items():
            if whole["runs"].setdefault(name, run) != run:
                raise RecordError(f"two runs are named {name}: parts are told apart by --part K/N")
        for room, block in data["rooms"].items():
            there = whole["rooms"].get(room, block)
            older, newer = (there, block) if there["run"] <= block["run"] else (block, there)
            # Of one run, too, either may have earlier sizes that the other lacks.
            same = older is newer
            whole["rooms"][room] = newer if same else _with_earlier(newer, older, _of_room(wanted, room))
    used = _runs_of(whole["rooms"].values())
    return {**whole, "runs": {name: run for name, run in whole["runs"].items() if name in used}}


def write(data: dict, path: Path) -> None:
    """Check ``data``, then write it: to one file if ``path`` ends in .json, else a file a subject into that folder.

    Each file is replaced in one step: a reader sees the old one or the new one, never half.
    """
    check_schema(data, str(path))
    if path.suffix == ".json":
        return _replace(data, path)
    for subject in {block["subject"] for block in data["rooms"].values()}:
        rooms = {room: block for room, block in data["rooms"].items() if block["subject"] == subject}
        used = _runs_of(rooms.values())
        runs = {name: run for name, run in data["runs"].items() if name in used}
        _replace({**data, "runs": runs, "rooms": rooms}, path / f"{subject}.json")
    return None


def _replace(data: dict, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(_dump(data))
        os.chmod(temporary, 0o644)  # mkstemp gives 0600; the record is shipped
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _dump(data: dict) -> str:
    """JSON with one entry a line, so that a diff shows which measurement changed."""
    lines = []
    for room, block in data["rooms"].items():
        said = _dump_part({key: value for key, value in block.items() if key != "earlier"})
        parts = ",\n".join(f"  {{{_dump_part(part)}}}" for part in block.get("earlier", ()))
        said += f', "earlier": [\n{parts}\n  ]' if parts else ""
        lines.append(f"  {json.dumps(room)}: {{{said}}}")
    head = json.dumps({key: value for key, value in data.items() if key != "rooms"}, indent=1)[:-2]
    return f'{head},\n "rooms": {{\n' + ",\n".join(lines) + "\n }\n}\n"


def _dump_part(part: dict) -> str:
    head = json.dumps({key: value for key, value in part.items() if key != "entries"})[1:-1]
    rows = ",\n".join(f"   {json.dumps(entry)}" for entry in part["entries"])
    return f'{head}, "entries": [\n{rows}\n  ]'


def as_json(entry: Entry) -> dict:
    """The entry as it is stored: seven significant digits, absent figures left out."""
    stored = {}
    for key, value in asdict(entry).items():
        if value is not None:
            stored[key] = float(f"{value:.7g}") if isinstance(value, float) else value
    return stored
