"""The table of all targets: what was measured stands beside its target, and what was not is named."""

import re

import pytest

from pmpp import parallel
from pmpp.lab.measure.record import RecordError
from pmpp.nn import measure as records
from pmpp.parallel import measure, measure_halo, measure_steps, targets
from pmpp.parallel.progress import Progress
from pmpp.runtime import device
from tests.parallel.test_measure import rows

HALO = {
    "jacobi": {
        "side": targets.SIDE,
        "gpus": 2,
        "ways": {"one_gpu": {"seconds": 1.0e-3}, "peer_stores": {"seconds": 0.52e-3}},
    },
    "smaller": [],
}
MS = {"ours, alone": 9.0, "ours": 9.1, "ours, summed afterwards": 10.0, "torch, alone": 8.0, "torch": 9.0}
RESNET, MLP = measure_steps.CASES


def test_every_target_has_a_line_whatever_was_measured():
    nothing = targets.lines({})
    assert len(nothing) == len(measure.TARGETS) + 1 + 4 * len(measure_steps.CASES)
    assert {line.verdict for line in nothing} == {"not measured"}
    something = targets.lines({"all_reduce": rows(1.5), "halo": HALO, "steps": {MLP: {"ms": MS}}})
    assert [(line.what, line.target) for line in something] == [(line.what, line.target) for line in nothing]


def test_each_value_is_judged_by_its_own_target():
    graphs = MS | {"ours, alone, graph": 7.0, "ours, graph": 8.0}
    found = targets.lines({"all_reduce": rows(1.5), "halo": HALO, "steps": {RESNET: {"ms": MS}, MLP: {"ms": graphs}}})
    assert [line.verdict for line in found[: len(measure.TARGETS)]] == ["missed", "missed", *["reached"] * 5]
    jacobi, *steps = found[len(measure.TARGETS) :]
    assert (jacobi.value, jacobi.verdict) == (pytest.approx(1 / 1.04), "missed")
    assert (jacobi.ours, jacobi.other) == ("520 µs", "alone 1000 µs")
    assert [(line.what.endswith("graph"), line.unit, line.verdict) for line in steps] == [
        (False, "efficiency", "reached"),
        (False, "DDP / ours", "missed"),
        (True, "efficiency", "not measured"),
        (True, "DDP / ours", "not measured"),
        (False, "efficiency", "reached"),
        (False, "DDP / ours", "missed"),
        (True, "efficiency", "missed"),
        (True, "DDP / ours", "reached"),
    ]
    assert steps[1].value == pytest.approx(9.0 / 9.1)
    assert steps[6].value == pytest.approx(7.0 / 8.0)


def test_a_target_that_is_just_reached_is_reached():
    line = targets.Line("", "", 0.97, 0.97)
    assert (line.verdict, line._replace(value=0.9699).verdict) == ("reached", "missed")


def test_a_plate_of_another_side_or_on_one_gpu_is_not_taken_for_the_target():
    for changed in ({"side": 8192}, {"gpus": 1}):
        found = targets.lines({"halo": HALO | {"jacobi": HALO["jacobi"] | changed}})
        assert {line.verdict for line in found} == {"not measured"}


def test_the_table_of_records(monkeypatch, capsys):
    about = {"about": {"gpu": {"name": "GPU A"}, "run": {"date": "2026-11-28T08:00:00Z"}}}
    kept = {"parallel": about | {"all_reduce": rows(2)}, "halo": about | HALO, "halo_4": about | HALO}

    def recorded(name):
        if name not in kept:
            raise RecordError(name)
        return kept[name]

    monkeypatch.setattr(records, "recorded", recorded)
    assert targets.main(["--recorded"]) == 0
    out = capsys.readouterr().out
    assert "all_reduce: GPU A, 2026-11-28T08:00:00Z" in out
    assert out.count("not measured") == 4 * len(measure_steps.CASES)
    assert "Jacobi, side 16384, peer stores" in out
    assert "0.97  missed" in out
    assert targets.main(["--recorded", "-n", "4"]) == 0
    out = capsys.readouterr().out
    assert "0.962" in out, "what four GPUs measured"
    assert "halo: GPU A" in out
    assert not {"all_reduce: GPU A", "target", "missed", "reached"} & set(re.findall(r"all_reduce: GPU A|[a-z]+", out))


@pytest.mark.skipif(device.on_gpu(), reason="there it measures")
def test_without_a_gpu_it_says_what_can_be_had(capsys):
    assert targets.main([]) == 2
    out = capsys.readouterr().out
    assert "GPUs are needed" in out
    assert "--recorded" in out


class Enough:
    """A clock with time for so many parts."""

    def __init__(self, parts):
        self.left, self.said = parts, []

    def say(self, what):
        self.said.append(what)

    def time_left(self):
        self.left -= 1
        return self.left >= 0


def test_the_lengths_of_the_targets_come_first_and_what_does_not_fit_is_said(monkeypatch):
    monkeypatch.setattr(measure.on_gpus, "group", lambda host, name: None)
    monkeypatch.setattr(measure, "measure", lambda host, ways, nbytes: {"bytes": nbytes})
    clock = Enough(7)
    *_, found = measure.measured(type("Host", (), {"rank": 0, "size": 1}), clock)
    assert [row["bytes"] for row in found] == sorted(measure.OF_TARGETS)
    assert sum("left out" in said for said in clock.said) == len(measure.LENGTHS) - 7


@pytest.mark.native("threads")
def test_if_one_rank_has_no_time_left_none_has():
    def left(group):
        return [Progress(group, seconds).time_left() for seconds in (None, 60.0, 0.0 if group.rank == 1 else 60.0)]

    assert parallel.ranks(2, left) == [[True, True, False]] * 2


@pytest.mark.native("threads")
def test_rank_0_alone_speaks(capsys):
    parallel.ranks(2, lambda group: Progress(group).say("a part"))
    assert capsys.readouterr().out.count("s  a part") == 1


def test_what_is_measured_first_is_what_the_targets_need():
    short = {one for one in measure.LENGTHS if one <= measure.SHORT}
    assert set(measure.OF_TARGETS) == short | {64 << 20, 1 << 30}
    assert measure_halo.SMALLER[-1] < targets.SIDE
