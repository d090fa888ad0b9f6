"""With the records of a second GPU beside those that are shown: who shows which, and what is named as stale."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from pmpp.lab.draw import plots
from pmpp.lab.measure import calls, record, roofline, stale
from pmpp.lab.measure.sources import Sources
from pmpp.lab.publish import readme
from pmpp.lab.rooms import rooms
from pmpp.runtime import device

OTHER = "NVIDIA H100 80GB HBM3"
ROOM = "pmpp/kernels/scan/ladder.py"


@pytest.fixture
def both(tmp_path, monkeypatch):
    """The shipped folder, and a copy of it as that of a GPU that was measured later and is twice as slow."""
    shown, other = tmp_path / record.SHOWN, tmp_path / record.slug(OTHER)
    for folder in (shown, other):
        shutil.copytree(record.RECORDED / record.SHOWN, folder)
    for path in other.glob("*.json"):
        text = path.read_text(encoding="utf-8").replace("NVIDIA H200", OTHER).replace("2026-", "2027-")
        path.write_text(text, encoding="utf-8")
    for path in record.files_of(other):
        found = json.loads(path.read_text(encoding="utf-8"))
        for block in found["rooms"].values():
            for part in (block, *block.get("earlier", ())):
                for entry in part["entries"]:
                    entry |= {key: 2 * entry[key] for key in ("median_ms", "low_ms", "high_ms")}
        record.write(found, path)
    monkeypatch.setattr(record, "RECORDED", tmp_path)
    monkeypatch.setattr(record, "_own_path", lambda: None)
    return shown, other


def test_figures_and_numbers_are_of_the_gpu_that_is_shown(both):
    assert record.load().gpu == "NVIDIA H200"
    assert "NVIDIA H200" in plots.ladder("reduction").get_supxlabel()
    if not device.on_gpu():
        assert roofline.ceilings("reduction") == record.load(record.SHOWN).ceilings("reduction")
        assert calls.recorded()[0]["gpu"] == record.SHOWN


def test_figures_of_the_other_are_drawn_where_they_are_asked_for(both):
    _, other = both
    found = record.load(other.name)
    assert found.gpu == OTHER
    for draw in (plots.ladder, plots.roofline, plots.sweep, plots.cpu_gpu):
        assert OTHER in draw("reduction", record=found).get_supxlabel()
    assert calls.recorded(other.name)[0]["gpu"] == other.name


def test_on_the_other_gpu_its_own_figures_are_shown(both, monkeypatch):
    monkeypatch.setattr(record, "_own_path", lambda: both[1])
    assert OTHER in plots.ladder("reduction").get_supxlabel()
    (both[1] / "reduction.json").unlink()
    assert "NVIDIA H200" in plots.ladder("reduction").get_supxlabel()
    assert OTHER in plots.ladder("scan").get_supxlabel()


def test_readme_has_both(both):
    shown, others = readme._load()
    assert shown.gpu == "NVIDIA H200"
    assert [one.gpu for one in others] == [OTHER]
    first, second = readme.table(shown, readme._calls(shown)), readme.other_gpus(others)
    share, half = (int(re.search(r"\| \[?reduction\b.*?(\d+)%", text)[1]) for text in (first, second))
    assert half == pytest.approx(share / 2, abs=1)
    for text in (first, second):
        assert text.count("| not measured | not measured |") == len(rooms()) - len(shown.rooms())


def test_what_is_stale_names_the_gpu(tmp_path):
    """Each GPU's measurements are judged for themselves, and one may have no attestations."""
    (tmp_path / ROOM).parent.mkdir(parents=True)
    (tmp_path / ROOM).write_text("LADDER = (plain,)\n")
    entry = {
        "family": "scan", "workload": "8", "sizes": {"n": 8}, "design": True, "cache": "cold", "contender": "plain",
        "kind": "rung", "median_ms": 1.0, "low_ms": 1.0, "high_ms": 1.0, "repeats": 3, "batch": 1, "settled": True,
        "method": "a test", "flops": 1, "bytes": 1,
    }  # fmt: skip
    ceilings = {"bandwidth": 1.0, "fma_f32": 1.0, "source": "a test", "empty_kernel": 1.0, "launch": 1.0}
    run = {"date": "2026-11-22", "revision": "a", "driver": "1", "cuda": "13", "cpu": "one", "versions": {}}

    def measured(gpu):
        about = {"name": gpu, "sms": 1, "l2_bytes": 1, "memory_bytes": 1}
        block = {"subject": "scan", "sources": Sources(tmp_path).of_room("scan"), "entries": [entry]}
        found = record.merge(None, about, {**run, "ceilings": ceilings}, {"scan": block})
        record.write(found, tmp_path / "pmpp/recorded" / record.slug(gpu))

    measured("NVIDIA H200")
    assert stale.stale(tmp_path) == {}
    (tmp_path / ROOM).write_text("LADDER = (plain,)\nX = 1\n")
    measured(OTHER)
    why = f"measured 2026-11-22; changed since: {ROOM}"
    assert stale.stale(tmp_path) == {"pmpp/recorded/nvidia-h200: scan": why}
    (tmp_path / ROOM).write_text("LADDER = (plain, faster)\n")
    assert stale.stale(tmp_path) == {
        f"pmpp/recorded/{folder}: scan": f"not measured: faster; {why}"
        for folder in (record.slug(OTHER), "nvidia-h200")
    }


def test_a_design_size_that_a_record_lacks_is_reported(both):
    """Of the real workloads: what is not in the record is named, with the GPU's folder."""
    shown, other = both
    found = json.loads((other / "softmax.json").read_text(encoding="utf-8"))
    block = found["rooms"]["softmax"]
    for part in (block, *block.get("earlier", ())):
        part["entries"] = [
            one
            for one in part["entries"]
            if one["family"] != "rows of 64" and (one["family"], one["kind"]) != ("rows of 1024", "library")
        ]
    record.write(found, other / "softmax.json")
    # Workloads may have grown since the shipped record was made: what counts is what is lacking besides.
    lacking = [stale._lacking(record.load(folder), "softmax") for folder in (other, shown)]
    gone = {"rows of 64 1048576 x 64 (everything)", "rows of 1024 65536 x 1024 (a library)"}
    assert set(lacking[0]) - set(lacking[1]) == gone
