"""Records of measured trainings: what is written, what is read, and what is said where there is none."""

import json
import types

import pytest

from pmpp.lab.measure import environment, record
from pmpp.lab.measure.sources import SHOWN, Sources
from pmpp.nn import measure
from pmpp.runtime import device

SOURCE = "pmpp/nn/measure/steps.py"
ROWS = {"steps": {"one": {"ms": 1.5}}, "memory": [1, 2]}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of records of which no GPU has one yet."""
    monkeypatch.setattr(record, "RECORDED", tmp_path / "recorded")
    return tmp_path / "recorded"


@pytest.fixture
def on(monkeypatch):
    """``on(name)``: as on a GPU of that name; ``on(None)``: as on a machine without one."""

    def pretend(name):
        monkeypatch.setattr(measure, "device", types.SimpleNamespace(on_gpu=lambda: name is not None))
        monkeypatch.setattr(environment, "describe_gpu", lambda: {"name": name})

    return pretend


def put(folder, gpu, number):
    (folder / gpu).mkdir(parents=True, exist_ok=True)
    (folder / gpu / "try.json").write_text(json.dumps({"about": {}, "number": number}), encoding="utf-8")


def test_a_record_says_what_was_found_and_where_and_with_which_sources(tmp_path, folder):
    out = tmp_path / "a folder that is not there" / "try.json"
    assert measure.write("try", SOURCE, ROWS, out=out) == out
    assert not folder.exists(), "nothing is written beside the file that is asked for"
    data = json.loads(out.read_text(encoding="utf-8"))
    about = data.pop("about")
    assert data == ROWS
    assert bool(about["gpu"]["name"] != "cpu") == device.on_gpu()
    assert about["measured_by"] == SOURCE
    assert about["within"] == measure.WITHIN
    assert about["run"]
    assert about["sources"] == Sources().digests(SOURCE, within=measure.WITHIN)
    assert {SOURCE, "pmpp/nn/tape.py"} <= set(about["sources"])


def test_a_record_is_replaced_by_the_next(tmp_path):
    out = tmp_path / "try.json"
    for k in (1, 2):
        measure.write("try", SOURCE, {"k": k}, out=out)
    assert json.loads(out.read_text(encoding="utf-8"))["k"] == 2
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("gpu, name", [("NVIDIA Try 9", "nvidia-try-9"), (None, "cpu")])
def test_what_is_written_is_what_is_read_on_the_same_machine(folder, on, gpu, name):
    on(gpu)
    assert measure.write("try", SOURCE, ROWS) == folder / name / "try.json"
    assert measure.recorded("try")["steps"] == ROWS["steps"]


def test_the_gpu_that_is_here_comes_first_then_that_of_the_chapters_then_any(folder, on):
    put(folder, "another-gpu", 3)
    on("NVIDIA Try 9")
    assert measure.recorded("try")["number"] == 3
    put(folder, SHOWN, 2)
    assert measure.recorded("try")["number"] == 2
    put(folder, "nvidia-try-9", 1)
    assert measure.recorded("try")["number"] == 1
    on(None)
    assert measure.recorded("try")["number"] == 2


def test_where_there_is_none_the_error_says_how_to_make_it(folder, on):
    put(folder, SHOWN, 1)
    on(None)
    with pytest.raises(record.RecordError, match=r"no record other\.json in .*run python -m pmpp\.nn\.measure\.other$"):
        measure.recorded("other")
