"""The table of targets: each that is shipped is about a workload that exists, and the arithmetic is right."""

import importlib

import pytest

from pmpp.lab.measure import record, targets
from pmpp.lab.measure.targets import Target, line
from pmpp.lab.rooms import workload_modules

RUN = {
    "date": "2026-11-27T10:00:00Z",
    "revision": "0",
    "driver": "0",
    "cuda": "13.0",
    "cpu": "none",
    "versions": {},
    "ceilings": {"bandwidth": 4e12, "fma_f32": 60e12, "source": "a test", "empty_kernel": 1e-6, "launch": 4e-6},
}


def entry(contender, kind, ms, *, workload="big", nbytes=4_000_000_000, **more):
    return {
        "family": "all", "workload": workload, "sizes": {"n": 1}, "design": True, "cache": "cold",
        "contender": contender, "kind": kind, "median_ms": ms, "low_ms": ms, "high_ms": ms, "repeats": 5, "batch": 1,
        "settled": True, "method": "a test", "flops": 0, "bytes": nbytes,
    } | more  # fmt: skip


RECORD = record.Record(
    {
        "schema": record.SCHEMA,
        "gpu": {"name": "a GPU", "compute_capability": [9, 0], "sms": 132, "l2_bytes": 1, "memory_bytes": 1},
        "runs": {"one": RUN},
        "rooms": {
            "room": {
                "subject": "subject",
                "run": "one",
                "sources": {},
                "entries": [
                    entry("plain", "rung", 4.0),
                    entry("fast", "rung", 1.25),
                    entry("torch.it", "library", 2.5),
                    entry("cupy.it", "library", 2.0),
                    entry("fast", "rung", 1.0, workload="less", own_flops=0, own_bytes=2_000_000_000),
                ],
            }
        },
    }
)
ROOM = Target("subject", "words", "room", "all", "big")


@pytest.mark.parametrize(
    ("changes", "met", "said"),
    [
        ({"ratio": 1.6}, True, "1.6 x cupy.it, 2 ms"),
        ({"ratio": 1.61}, False, "1.25 ms by fast"),
        ({"ratio": 2.0, "against": ("torch.it",)}, True, "2 x torch.it"),
        ({"ratio": 0.5, "rungs": ("plain",)}, True, "4 ms by plain"),
        ({"roof": 0.8}, True, "80% of the roof"),
        ({"roof": 0.81}, False, "80% of the roof"),
        ({"ratio": 1.6, "roof": 0.9}, False, "1.6 x cupy.it"),
        ({"roof": 0.5, "workload": "less"}, True, "50% of the roof"),  # of what the rung itself moves
        ({"ratio": 1.0, "workload": "less"}, None, "not recorded: any library"),
        ({"ratio": 1.0, "workload": "none"}, None, "not recorded: all, none"),
        ({"ratio": 1.0, "room": "other"}, None, "not recorded"),
        ({"ratio": 1.0, "rungs": ("other",)}, None, "not recorded: other"),
        ({"ratio": 1.0, "against": ("other",)}, None, "not recorded: other"),
    ],
)
def test_a_line(changes, met, said):
    found = line(ROOM._replace(**changes), RECORD)
    assert found.met is met
    assert said in found.measured


def test_a_target_says_what_it_asks_for():
    assert str(ROOM._replace(ratio=1.5, roof=0.85)) == "1.5 x, 85% of the roof"
    assert str(ROOM._replace(roof=0.9)) == "90% of the roof"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[target]]\nwhat = "a"\nroom = "b"\nfamily = "c"\nworkload = "d"\n', "needs a ratio or a roof"),
        ('[[target]]\nwhat = "a"\nroom = "b"\nfamily = "c"\nratio = 1.0\n', "lacks workload"),
        ('[[target]]\nwhat = "a"\nroof = 1.0\nratoi = 2.0\n', "has ratoi"),
    ],
)
def test_an_entry_that_is_no_target_is_named(tmp_path, text, said):
    (tmp_path / "subject").mkdir()
    (tmp_path / "subject" / "targets.toml").write_text(text)
    with pytest.raises(ValueError, match=said):
        targets.targets(folder=tmp_path)


def test_a_subject_without_targets_is_named(capsys):
    assert targets.main(["nothing"]) == 2
    assert "nothing: no such subject has targets" in capsys.readouterr().err


@pytest.mark.parametrize("target", targets.targets(), ids=lambda one: one.what)
def test_a_shipped_target_is_about_a_workload(target):
    module = importlib.import_module(workload_modules()[target.room])
    assert module.__name__.split(".")[-2] == target.subject
    workloads = [one for one in module.WORKLOADS if (one.family, one.name) == (target.family, target.workload)]
    assert workloads, f"{target.room} has no workload {target.family}, {target.workload}"
    assert set(target.against) <= set(workloads[0].libraries)
    assert set(target.rungs) <= {one.__name__ for one in workloads[0].rungs}


def test_the_command_prints_a_line_for_each(capsys):
    assert targets.main([]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 1 + len(targets.targets())
    assert all(any(f" {verdict} " in row for verdict in ("met", "missed", "?")) for row in printed[1:])
