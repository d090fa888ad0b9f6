"""Records of measurements: what survives a file, what is refused, and when they are stale."""

from __future__ import annotations

import dataclasses
import json
import os

import pytest

from pmpp.lab.measure import record, roofline
from pmpp.lab.measure.sources import Sources
from pmpp.runtime.rung import Cost

CEILINGS = roofline.Ceilings(4e12, 60e12, "a test", 2e-6, 15e-6)
GPU = {"name": "NVIDIA Test 1", "compute_capability": [9, 0], "sms": 132, "l2_bytes": 2**26, "memory_bytes": 2**37}


def entry(**changes):
    values = {
        "family": "sum",
        "workload": "2^10",
        "sizes": {"n": 1024},
        "design": True,
        "cache": "cold",
        "contender": "shuffle",
        "kind": "rung",
        "median_ms": 1.0,
        "low_ms": 0.9,
        "high_ms": 1.1,
        "repeats": 12,
        "batch": 1,
        "settled": True,
        "method": "a test",
        "flops": 1023,
        "bytes": 4100,
        "error": 0.0,
        "tolerance": 1.0,
        "call_ms": 0.02,
    }
    return record.Entry(**{**values, **changes})


def run_of(date="2026-11-21T08:00:00Z"):
    return {
        "date": date,
        "revision": "abc1234",
        "driver": "580",
        "cuda": "13.0",
        "cpu": "a CPU",
        "versions": {},
        "ceilings": dataclasses.asdict(CEILINGS),
    }


def block(*entries):
    sources = {"pmpp/kernels/reduction/ladder.py": "0123"}
    return {
        "subject": "reduction",
        "sources": sources,
        "notes": [],
        "entries": [record.as_json(one) for one in entries],
    }


def data(**rooms):
    return record.merge(None, GPU, run_of(), rooms or {"reduction": block(entry())})


def test_runs_from_before_tensor_cores_were_measured_are_read():
    old = data()
    for run in old["runs"].values():
        del run["ceilings"]["tensor"]
    assert record.Record(old, "old").ceilings("reduction").tensor == {}
    for run in old["runs"].values():
        run["ceilings"]["no such"] = 1.0
    with pytest.raises(record.RecordError, match="must have exactly"):
        record.Record(old, "old")


def test_a_record_survives_the_file(tmp_path):
    path = tmp_path / "gpu.json"
    record.write(data(), path)
    found = record.load(path)
    assert found.gpu == "NVIDIA Test 1"
    assert found.entries("reduction") == (entry(),)
    assert found.ceilings("reduction") == CEILINGS
    assert found.footer("reduction") == "Recorded on NVIDIA Test 1, 2026-11-21, revision abc1234"
    assert list(tmp_path.iterdir()) == [path]  # nothing temporary stays


def test_entries_are_found_by_their_fields():
    smaller = entry(workload="2^9", sizes={"n": 512}, design=False)
    rows = smaller, entry(), entry(contender="torch.sum", kind="library")
    found = record.Record(data(reduction=block(*rows)))
    assert [one.contender for one in found.design("reduction")] == ["shuffle", "torch.sum"]
    assert found.entries("reduction", kind="library") == (rows[2],)
    assert found.entries("reduction", design=False)[0].x == 512
    assert found.families("reduction") == ("sum",)


def test_design_sizes_in_the_order_of_the_record():
    first, other = entry(family="rows", workload="a"), entry(family="rows", workload="b")
    rows = first, other, entry(family="rows", workload="a", contender="torch.sum", kind="library")
    found = record.Record(data(reduction=block(*rows, entry(workload="2^9", design=False))))
    assert found.designs("reduction") == [(rows[0], rows[2]), (rows[1],)]


def test_costs_of_the_definition_and_of_the_rungs_own_algorithm(tmp_path):
    record.write(
        data(reduction=block(entry(own_flops=100, own_bytes=4100), entry(contender="plain"))), tmp_path / "a.json"
    )
    less, plain = record.load(tmp_path / "a.json").entries("reduction")
    assert (less.cost, less.own) == (Cost(1023, 4100), Cost(100, 4100))
    assert plain.own is None


def test_merging_keeps_other_rooms_and_the_runs_they_came_from():
    first = data(reduction=block(entry()), matmul=block(entry(family="matmul")))
    second = record.merge(
        first, GPU, run_of("2026-12-01T00:00:00Z"), {"matmul": block(entry(family="matmul", median_ms=1.05))}
    )
    assert second["rooms"]["reduction"] == first["rooms"]["reduction"]
    assert second["rooms"]["matmul"]["run"] == "2026-12-01T00:00:00Z"
    assert len(second["runs"]) == 2
    third = record.merge(second, GPU, run_of("2026-12-02T00:00:00Z"), {"reduction": block(entry())})
    assert sorted(third["runs"]) == ["2026-12-01T00:00:00Z", "2026-12-02T00:00:00Z"]  # a run without rooms goes
    assert record.Record(third).run()["date"] == "2026-12-02T00:00:00Z"


SMALL = {"workload": "2^5", "sizes": {"n": 32}, "design": False}
OLDER = (
    entry(),
    entry(contender="numpy.sum", kind="numpy"),
    entry(**SMALL, median_ms=0.95),
    entry(**SMALL, contender="numpy.sum", kind="numpy"),
    entry(workload="2^6", sizes={"n": 64}, design=False, contender="gone"),
)


def shorter(wanted=None):
    """A record of five entries, and a later run that has but one of them: the design size, without NumPy."""
    first = record.merge(None, GPU, run_of(), {"reduction": block(*OLDER)})
    new = {**block(entry(median_ms=1.02)), "sources": {"pmpp/kernels/reduction/ladder.py": "4567"}}
    return record.merge(first, GPU, run_of("2026-12-01T00:00:00Z"), {"reduction": new}, wanted)


def test_what_a_shorter_run_left_out_stays_with_its_own_run_and_sources(tmp_path):
    data = shorter(lambda room, one: (room, one["contender"]) != ("reduction", "gone"))
    record.write(data, tmp_path / "nvidia-test-1")
    found = record.load(tmp_path / "nvidia-test-1")
    assert sorted(found.data["runs"]) == ["2026-11-21T08:00:00Z", "2026-12-01T00:00:00Z"]
    # At the design size the rung is of the new run alone; NumPy's time, which depends on no kernel, is of the old one.
    times = [(one.workload, one.contender, one.median_ms) for one in found.entries("reduction")]
    assert times == [
        ("2^10", "shuffle", 1.02),
        ("2^10", "numpy.sum", 1.0),
        ("2^5", "shuffle", 0.95),
        ("2^5", "numpy.sum", 1.0),
    ]
    (part,) = found.data["rooms"]["reduction"]["earlier"]
    assert part["run"] == "2026-11-21T08:00:00Z"
    assert part["sources"] == {"pmpp/kernels/reduction/ladder.py": "0123"}
    footer = "Recorded on NVIDIA Test 1, 2026-12-01, revision abc1234; 2 of 2 sizes on 2026-11-21"
    assert found.footer("reduction") == footer
    assert found.run("reduction")["date"] == "2026-12-01T00:00:00Z"


def test_earlier_times_go_when_their_size_is_measured_again():
    again = {**block(entry(median_ms=1.04), entry(**SMALL)), "sources": {}}
    data = record.merge(shorter(), GPU, run_of("2026-12-02T00:00:00Z"), {"reduction": again})
    kept = data["rooms"]["reduction"]["earlier"]
    assert [one["contender"] for part in kept for one in part["entries"]] == ["numpy.sum", "numpy.sum", "gone"]
    assert "2026-12-01T00:00:00Z" not in data["runs"]  # nothing of it is left


def test_joining_keeps_what_the_older_record_has_besides_whatever_the_order():
    older = record.merge(None, GPU, run_of(), {"reduction": block(*OLDER)})
    newer = record.merge(None, GPU, run_of("2026-12-01T00:00:00Z"), {"reduction": block(entry(median_ms=1.02))})
    one, other = record.joined([older, newer]), record.joined([newer, older])
    assert one["rooms"] == other["rooms"]
    assert [part["run"] for part in one["rooms"]["reduction"]["earlier"]] == ["2026-11-21T08:00:00Z"]
    assert record.joined([one, one])["rooms"] == one["rooms"]
    assert record.joined([one, newer])["rooms"] == one["rooms"]  # a part that is merged a second time


def test_earlier_parts_are_checked_too():
    data = shorter()
    data["rooms"]["reduction"]["earlier"][0]["run"] = "never"
    with pytest.raises(record.RecordError, match=r"rooms.reduction.earlier\[0\].run is 'never'"):
        record.check_schema(data, "a record")


def test_merging_another_gpu_is_refused():
    with pytest.raises(record.RecordError, match="NVIDIA Test 1, but this machine has NVIDIA Test 2"):
        record.merge(data(), {**GPU, "name": "NVIDIA Test 2"}, run_of(), {})


def broken(change):
    found = json.loads(json.dumps(data()))
    change(found, found["rooms"]["reduction"]["entries"][0])
    return found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda all, one: all.update(schema=0), "schema is 0"),
        (lambda all, one: all.pop("runs"), "'runs' is missing"),
        (lambda all, one: all["gpu"].pop("l2_bytes"), "gpu.l2_bytes"),
        (lambda all, one: next(iter(all["runs"].values())).pop("driver"), "driver is missing"),
        (lambda all, one: next(iter(all["runs"].values()))["ceilings"].pop("launch"), "ceilings must have exactly"),
        (lambda all, one: all["rooms"]["reduction"].update(run="never"), "not in runs"),
        (lambda all, one: one.pop("median_ms"), r"entries\[0\].*missing fields \['median_ms'\]"),
        (lambda all, one: one.update(speed=1), r"unknown fields \['speed'\]"),
        (lambda all, one: one.update(repeats=True), "repeats is True"),
        (lambda all, one: one.update(median_ms="1"), "median_ms is '1'"),
        (lambda all, one: one.update(kind="guess"), "kind is 'guess'"),
        (lambda all, one: one.update(low_ms=2.0), "in this order"),
        (lambda all, one: one.update(low_ms=0.0), "positive"),
        (lambda all, one: one.update(error=2.0), "over its tolerance"),
        (lambda all, one: one.update(sizes={}), "sizes is empty"),
        (lambda all, one: one.update(own_flops=1), "own_flops and own_bytes must be there both"),
        (lambda all, one: one.update(own_flops=1.5, own_bytes=1), "own_flops is 1.5"),
        (lambda all, one: one.update(registers="many"), "registers is 'many'"),
    ],
)
def test_schema_names_the_fault(change, message):
    with pytest.raises(record.RecordError, match=message):
        record.Record(broken(change), "a.json")


def test_broken_data_never_reach_the_file(tmp_path):
    path = tmp_path / "gpu.json"
    record.write(data(), path)
    before = path.read_text(encoding="utf-8")
    with pytest.raises(record.RecordError):
        record.write(broken(lambda all, one: one.update(kind="guess")), path)
    assert path.read_text(encoding="utf-8") == before


def test_missing_and_unreadable_records_are_named(tmp_path, monkeypatch):
    with pytest.raises(record.RecordError, match="there is no record at"):
        record.load(tmp_path / "none.json")
    (tmp_path / "half.json").write_text("{", encoding="utf-8")
    with pytest.raises(record.RecordError, match="not JSON"):
        record.load(tmp_path / "half.json")
    monkeypatch.setattr(record, "RECORDED", tmp_path / "empty")
    monkeypatch.setattr(record, "_own_path", lambda: None)
    with pytest.raises(record.RecordError, match="make bench"):
        record.load()
    with pytest.raises(record.RecordError, match="no measurements of room 'scan'"):
        record.Record(data()).entries("scan")


@pytest.fixture
def gpus(tmp_path, monkeypatch):
    """``gpus(name=date) -> None``: records of reduction on these GPUs, and this machine has none of them."""

    def put(**dates):
        for name, date in dates.items():
            gpu = {**GPU, "name": f"NVIDIA {name}"}
            rooms = {"reduction": block(entry())}
            record.write(record.merge(None, gpu, run_of(date), rooms), tmp_path / record.slug(gpu["name"]))

    monkeypatch.setattr(record, "RECORDED", tmp_path)
    monkeypatch.setattr(record, "_own_path", lambda: None)
    return put


def test_the_gpu_that_is_shown_is_the_default_and_then_the_newest(gpus, monkeypatch):
    gpus(old="2025-01-01T00:00:00Z", new="2026-01-01T00:00:00Z", middle="2025-06-01T00:00:00Z")
    assert record.load().gpu == "NVIDIA new"
    assert record.load("nvidia-old").gpu == "NVIDIA old"
    monkeypatch.setattr(record, "SHOWN", "nvidia-old")
    assert [path.name for path in record.available()] == ["nvidia-old", "nvidia-new", "nvidia-middle"]
    assert record.load().gpu == "NVIDIA old"


def test_this_machines_gpu_goes_first_where_it_has_what_is_asked_for(gpus, tmp_path, monkeypatch):
    gpus(mine="2025-01-01T00:00:00Z", other="2026-01-01T00:00:00Z")
    monkeypatch.setattr(record, "_own_path", lambda: tmp_path / "nvidia-mine")
    assert record.load().gpu == record.load(room="reduction").gpu == "NVIDIA mine"
    assert record.load(room="scan").gpu == "NVIDIA other", "of a room that was not measured here others are shown"
    (tmp_path / "nvidia-mine/reduction.json").unlink()
    (tmp_path / "nvidia-mine/attested.json").write_text("{}")
    assert record.load().gpu == "NVIDIA other", "a folder with attestations alone is no record"


def test_a_room_is_shown_of_the_first_gpu_that_has_it(gpus, tmp_path, monkeypatch):
    gpus(shown="2026-01-01T00:00:00Z", other="2025-01-01T00:00:00Z")
    monkeypatch.setattr(record, "SHOWN", "nvidia-shown")
    rooms = {"new": block(entry())}
    record.write(
        record.merge(None, {**GPU, "name": "NVIDIA third"}, run_of("2024-01-01T00:00:00Z"), rooms),
        tmp_path / "nvidia-third",
    )
    assert record.load(room="reduction").gpu == "NVIDIA shown"
    assert record.load(room="new").gpu == "NVIDIA third"
    assert record.load(room="nowhere").gpu == record.load().gpu == "NVIDIA shown"


LADDER = "pmpp/kernels/reduction/ladder.py"


def test_a_record_is_read_once_and_again_when_it_is_written_and_no_copy_is_shared(tmp_path, monkeypatch):
    read, folder = [], tmp_path / "nvidia-mine"
    reading = record._read
    monkeypatch.setattr(record, "_read", lambda path: read.append(path.name) or reading(path))
    for date in ("2026-11-21T08:00:00Z", "2026-11-22T08:00:00Z"):
        record.write(record.merge(None, GPU, run_of(date), {"reduction": block(entry())}), folder)
        os.utime(folder / "reduction.json", ns=(0, int(date[8:10])))  # the disk's clock may be coarse
        first, second = record.load(folder), record.load(folder)
        assert first.run()["date"] == second.run()["date"] == date
        assert set(read) == {"reduction.json"}
        assert len(read) == 2  # whether it has rooms, and what they are
        read.clear()
    first.data["rooms"]["reduction"]["entries"].clear()
    first.entries("reduction")
    assert len(second.entries("reduction")) == len(record.load(folder).entries("reduction")) == 1


def room(root, text, rungs="shuffle,"):
    """A repository with one room."""
    (root / LADDER).parent.mkdir(parents=True, exist_ok=True)
    (root / LADDER).write_text(f"{text}\nLADDER = ({rungs})\n", encoding="utf-8")
    return Sources(root)


def measured(now, *entries):
    return record.Record(data(reduction={**block(*(entries or [entry()])), "sources": now.of_room("reduction")}))


def test_staleness_follows_the_code_and_not_its_prose(tmp_path):
    code = '"""A docstring."""\nX = "text"  # why\n\n\ndef f(x):\n    """Doc."""\n    return f"{x} {X}"\n'
    prose = '"""Another."""\nX = "text"\ndef f(x):\n    """Doc, longer."""\n\n    # because\n    return f"{x} {X}"\n'
    now = room(tmp_path, code)
    found = measured(now)
    assert found.stale("reduction", now) == []
    assert found.stale("reduction", room(tmp_path, prose)) == []
    assert found.stale("reduction", room(tmp_path, code.replace('"text"', '"other"'))) == [
        f"measured 2026-11-21; changed since: {LADDER}"
    ]


def test_a_rung_that_was_never_measured_makes_a_record_stale(tmp_path):
    now = room(tmp_path, "", "shuffle, faster")
    assert measured(now).stale("reduction", now) == ["not measured: faster"]
    # Measured at another size than the design's is measured; and what is no rung may be measured beside them.
    beside = entry(contender="faster", design=False), entry(contender="relu apart")
    assert measured(now, entry(), *beside).stale("reduction", now) == []
    assert record.Record(data(matmul=block(entry()))).stale("reduction", now) == ["never measured on NVIDIA Test 1"]
    with pytest.raises(ValueError, match="room must be one of reduction, was 'attic'"):
        measured(now).stale("attic", now)


def test_earlier_times_are_stale_by_themselves(tmp_path):
    now = room(tmp_path, "")
    old = {**block(*OLDER), "sources": {LADDER: "0123"}}
    new = {**block(entry(median_ms=1.02)), "sources": now.of_room("reduction")}
    first = record.merge(None, GPU, run_of(), {"reduction": old})
    found = record.Record(record.merge(first, GPU, run_of("2026-12-01T00:00:00Z"), {"reduction": new}))
    assert found.stale("reduction", now) == [f"2 sizes measured 2026-11-21; changed since: {LADDER}"]
    assert found.current("reduction", now) == {("sum", "2^10", "shuffle")}


def test_times_of_numpy_do_not_become_stale(tmp_path):
    now = room(tmp_path, "")
    numpy = [one for one in OLDER if one.kind == "numpy" and one.workload == "2^10"]
    old = {**block(entry(), *numpy), "sources": {LADDER: "0123"}}
    new = {**block(entry(median_ms=1.02)), "sources": now.of_room("reduction")}
    first = record.merge(None, GPU, run_of(), {"reduction": old})
    found = record.Record(record.merge(first, GPU, run_of("2026-12-01T00:00:00Z"), {"reduction": new}))
    assert [one.kind for one in found.entries("reduction")] == ["rung", "numpy"]
    assert found.stale("reduction", now) == []


def test_families_stand_as_the_room_has_them_though_the_newest_run_had_another_alone():
    first = record.merge(None, GPU, run_of(), {"reduction": block(entry())})
    new = {**block(entry(family="another")), "families": ["sum", "another"]}
    found = record.Record(record.merge(first, GPU, run_of("2026-12-01T00:00:00Z"), {"reduction": new}))
    assert found.families("reduction") == ("sum", "another")
    assert found.design("reduction")[0].family == "sum"


def test_stored_figures_are_numbers_of_json():
    stored = record.as_json(entry(median_ms=1 / 3, error=None, tolerance=None))
    assert stored["median_ms"] == 0.3333333
    assert "error" not in stored
    assert record.Entry(**stored).error is None


def test_shipped_records_hold_the_schema():
    folders = record.available()
    assert folders
    for folder in folders:
        found = record.load(folder)
        assert folder.name == record.slug(found.gpu)
        for name in found.rooms():
            assert found.design(name)
