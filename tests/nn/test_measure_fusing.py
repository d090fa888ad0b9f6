"""What measures fused functions, without a GPU: all but the clock."""

import json

import pytest

from pmpp.lab.measure import timing
from pmpp.nn.measure import fusing, write
from pmpp.runtime import device

pytestmark = pytest.mark.usefixtures("unchecked")


class Clock:
    """Runs what it is to time, and says a millisecond each."""

    l2_bytes = 0

    def synchronize(self):
        pass

    def sample(self, calls, **options):
        for call in calls:
            call()
        return timing.Sample(1e-3, 1e-6, True)


@pytest.mark.parametrize(
    "name", [name for name in fusing.cases() if name not in ("chain of 16", "chain of 64", "chain of 256")]
)
def test_a_case(name, monkeypatch):
    monkeypatch.setattr(timing, "Rule", lambda **options: SHORT)
    row = fusing.measure(name, fusing.cases(16384)[name], Clock())
    assert not row["failed"]
    assert {"fused", "unfused"} <= row["ms"].keys()
    assert ("the room" in row["ms"]) == (fusing.cases()[name].room is not None)
    assert row["bytes"]["fused"] < row["bytes"]["unfused"]
    assert row["kernels"]["fused"] == 1
    assert name.partition(" ")[2] in fusing.table({name: row})


SHORT = timing.Rule(min_repeats=1, max_repeats=1, at_least=1)


def test_a_wrong_result_gets_no_time(monkeypatch):
    case = fusing.cases(16384)["softmax 65536x1024"]
    wrong = case._replace(room=lambda x: device.to_device(device.to_host(fusing.softmax_room(x)) * 1.001))
    monkeypatch.setattr(timing, "Rule", lambda **options: SHORT)
    row = fusing.measure("softmax", wrong, Clock())
    assert "the room" not in row["ms"]
    assert "WrongResult" in row["failed"]["the room"]


def test_counters():
    x = fusing.normal(16, 256)
    one, more = (fusing.counted(fusing.examples.softmax, fusing.RULES[rule], x) for rule in ("fused", "elementwise"))
    assert one["launches"] == 1
    assert one["global_load_bytes"] == one["global_store_bytes"] == x.nbytes
    assert more["launches"] == 4
    assert more["global_store_bytes"] == 2 * x.nbytes + 2 * 16 * 4


def test_the_record_has_what_was_measured(tmp_path):
    write("fusing", "pmpp/nn/measure/fusing.py", {"cases": {}}, tmp_path / "record.json")
    assert json.loads((tmp_path / "record.json").read_text())["cases"] == {}


@pytest.mark.skipif(device.on_gpu(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys):
    assert fusing.main([]) == 2
    assert "a GPU is needed" in capsys.readouterr().out
