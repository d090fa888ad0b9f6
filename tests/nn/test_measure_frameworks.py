"""What `python -m pmpp.nn.measure.frameworks` does that needs no clock of a GPU."""

import json

import pytest

from pmpp.lab.measure import record
from pmpp.nn.interop import checks
from pmpp.nn.measure import frameworks
from pmpp.runtime import device

SMALL = {"rows": (6, 16), "logits": (5, 11), "tensors": (3, 50), "small": (2, 5)}


def clock(call):
    call()
    return 0.25


@pytest.mark.parametrize("part", frameworks.PARTS)
def test_each_part_compares_and_times(part, capsys):
    pytest.importorskip(frameworks.PARTS[part][1])
    rows = {}
    frameworks._measure(part, rows, SMALL, clock=clock, backend="aot_eager")
    assert len(rows[part]) >= 2
    for name, row in rows[part].items():
        assert row.get("ms") == 0.25, f"{name}: {row}"
        assert row["off"] < 1e-5, name
    assert "250.0 us" in capsys.readouterr().out
    json.dumps(rows)


def test_a_wrong_result_and_an_error_are_not_timed():
    def fails():
        raise RuntimeError("no such thing")

    calls = {"torch": lambda: 1.0, "wrong": lambda: 2.0, "fails": fails, "not a number": lambda: float("nan")}
    found = frameworks.timed(calls, lambda a, b: abs(a - b) / b, clock)
    assert found["torch"] == {"off": 0.0, "ms": 0.25}
    assert found["wrong"] == {"error": "ValueError: off by 1.0e+00 of the largest"}
    assert found["fails"] == {"error": "RuntimeError: no such thing"}
    assert "error" in found["not a number"]


def test_a_check_that_fails_is_recorded_as_such(monkeypatch, capsys):
    def fails():
        raise RuntimeError("no such thing")

    monkeypatch.setattr(
        checks, "CHECKS", {"one": (fails, ()), "two": (lambda: ["fine"], ()), "three": (fails, ("nowhere",))}
    )
    rows = {"checks": {}}
    frameworks._measure("checks", rows)
    assert rows["checks"] == {"one": ["RuntimeError: no such thing"], "two": ["fine"], "three": ["needs nowhere"]}


def test_without_the_libraries_the_record_speaks(monkeypatch):
    monkeypatch.setattr(frameworks, "present", lambda *names: False)

    def nothing(name):
        raise record.RecordError("none")

    monkeypatch.setattr(frameworks, "recorded", nothing)
    assert frameworks.said("opcheck") == [
        "torch not installed, and not recorded yet: python -m pmpp.nn.measure.frameworks does that on a GPU"
    ]
    kept = {"about": {"gpu": {"name": "GPU"}}, "versions": {"torch": "2"}, "checks": {"opcheck": ["fine"]}}
    monkeypatch.setattr(frameworks, "recorded", lambda name: kept)
    assert frameworks.said("opcheck") == ["recorded on GPU, torch 2:", "fine"]
    assert frameworks.said("formula")[1] == "newer than the record"


def test_what_was_measured_is_shown_or_what_would_measure_it(monkeypatch):
    def nothing(name):
        raise record.RecordError("none")

    monkeypatch.setattr(frameworks, "recorded", nothing)
    assert "not recorded yet" in frameworks.measured("sgd")[0]
    kept = {"about": {"gpu": {"name": "GPU"}}, "versions": {"torch": "2"}, "sgd": {"ours": {"ms": 0.5, "off": 0.0}}}
    monkeypatch.setattr(frameworks, "recorded", lambda name: kept)
    assert frameworks.measured("sgd") == [
        "GPU, torch 2",
        "sgd",
        "  ours                               500.0 us   off by 0e+00",
    ]
    assert "not in the record" in frameworks.measured("calls")[0]


@pytest.mark.skipif(device.on_gpu(), reason="it would measure")
def test_without_a_gpu_it_says_so(capsys):
    assert frameworks.main([]) == 2
    assert "a GPU is needed" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        frameworks.main(["no_part"])


def test_the_record_is_written_after_each_part(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(device, "on_gpu", lambda: True)
    monkeypatch.setattr(frameworks, "write", lambda name, source, rows, out: out.write_text(json.dumps(rows)))
    monkeypatch.setattr(frameworks, "_measure", lambda part, rows: rows.__setitem__(part, "done"))
    out = tmp_path / "frameworks.json"
    assert frameworks.main(["sgd", "checks", "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["sgd"] == found["checks"] == "done"
    assert found["sizes"]["rows"] == [65536, 1024]
