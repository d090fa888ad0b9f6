"""What was tuned: which records are read, which are refused and why, and how often a file is read."""

import json
from pathlib import Path

import pytest

from pmpp.lab.measure import record
from pmpp.runtime import device, tuned

GPU = "NVIDIA Made Up"
KERNELS = "pmpp/kernels/matmul/fitted.py"


def block(**configurations):
    """A class of shapes, with seconds by configuration: ``side_32=1e-6``."""
    rows = [
        {"configuration": {"side": int(name[5:]), "split": 0}, "status": "timed", "timing": {"median": seconds}}
        for name, seconds in configurations.items()
    ]
    return {"shape": [5, 6], "rows": [*rows, {"configuration": {"side": 1, "split": 0}, "status": "wrong", "why": ""}]}


def data(**about):
    about = {
        "gpu": {"name": GPU},
        "run": {"date": "2026-11-28T12:00:00Z"},
        "kernels": {KERNELS: tuned.digest(tuned.ROOT / KERNELS)},
        **about,
    }
    classes = {"float32 small": block(side_32=3e-6, side_64=2e-6), "float64 small": block(side_8=1e-6)}
    return {"schema": tuned.SCHEMA, "about": about, "classes": classes}


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """``shelf(data)`` makes that the record of tiles on this machine, which has a made-up GPU."""
    path = tmp_path / "nvidia-made-up" / "tuned_tiles.json"
    path.parent.mkdir()
    monkeypatch.setattr(tuned, "RECORDED", tmp_path)
    monkeypatch.setattr(device, "on_gpu", lambda: True)
    monkeypatch.setattr(device, "limits", lambda: {"name": GPU})

    def put(record):
        tuned.read.cache_clear()
        path.write_text(record if isinstance(record, str) else json.dumps(record), encoding="utf-8")
        return path

    return put


def test_times_by_class_and_dtype(shelf):
    shelf(data())
    found = tuned.times("tuned_tiles.json", "float32")
    assert dict(found) == {"small": tuned.Times((5, 6), {(32, 0): 3e-6, (64, 0): 2e-6})}
    assert found["small"].best == (64, 0)
    assert tuned.times("tuned_tiles.json", "float64")["small"].best == (8, 0)
    assert tuned.why("tuned_tiles.json") == "measured on NVIDIA Made Up, 2026-11-28"
    assert tuned.times("tuned_tiles.json", "float16") is None


def test_a_question_reads_no_file_but_the_first(shelf, monkeypatch):
    shelf(data())
    read = []
    original = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path, *a, **b: read.append(path.name) or original(path, *a, **b))
    for _ in range(3):
        tuned.times("tuned_tiles.json", "float32")
        tuned.times("tuned_nothing.json", "float32")
        tuned.why("tuned_tiles.json")
    assert sorted(read) == ["fitted.py", "tuned_tiles.json"]


BROKEN = {
    "stale": (data(kernels={KERNELS: "another"}), f"changed since: {KERNELS}"),
    "of no kernels": (data(kernels={}), "it names no kernels"),
    "of a file that is gone": (data(kernels={"pmpp/gone.py": ""}), "cannot be understood: FileNotFoundError"),
    "of another GPU": (data(gpu={"name": "NVIDIA Another"}), "it is of NVIDIA Another, and this is NVIDIA Made Up"),
    "of another schema": ({**data(), "schema": 1}, "its schema is 1; this version reads 2"),
    "no JSON": ("{", "cannot be understood: JSONDecodeError"),
    "of another form": ("[]", "cannot be understood: TypeError"),
    "without times": ({**data(), "classes": {"float32 small": block()}}, "must be positive and finite, were []"),
    "with a time of 0": ({**data(), "classes": {"float32 small": block(side_32=0.0)}}, "must be positive and finite"),
    "with no number": ({**data(), "classes": {"float32 small": block(side_32=float("nan"))}}, "positive and finite"),
    "without rows": ({**data(), "classes": {"float32 small": {"shape": [1]}}}, "cannot be understood: KeyError"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_record_that_does_not_hold_is_not_used_and_says_why(shelf, name):
    content, said = BROKEN[name]
    shelf(content)
    assert tuned.times("tuned_tiles.json", "float32") is None
    assert tuned.why("tuned_tiles.json").startswith("tuned_tiles.json is not used: ")
    assert said in tuned.why("tuned_tiles.json")


def test_nothing_was_tuned_for_the_interpreter_or_on_another_gpu(shelf, monkeypatch):
    shelf(data())
    assert tuned.times("tuned_others.json", "float32") is None
    assert tuned.why("tuned_others.json") == "there is no tuned_others.json of NVIDIA Made Up"
    monkeypatch.setattr(device, "on_gpu", lambda: False)
    assert tuned.times("tuned_tiles.json", "float32") is None
    assert tuned.why("tuned_tiles.json") == "kernels run in the interpreter"


def test_a_digest_sees_code_alone(tmp_path):
    def of(text):
        (tmp_path / "a.py").write_text(text, encoding="utf-8")
        return tuned.digest(tmp_path / "a.py")

    code = 'def f(x):\n    return x + "# 1"\n'
    assert of(code) == of('"""Says\n\nmuch."""\n\n# f adds\ndef f(x):\n    """Adds."""\n    return x + "# 1"   \n')
    assert of(code) != of(code.replace("1", "2"))
    assert of(code) != of(code.replace("    return", "    '' or f(1)\n    return"))


def test_folders_are_those_of_records():
    for name in ("NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB"):
        assert tuned.slug(name) == record.slug(name)
    assert tuned.RECORDED == record.RECORDED
