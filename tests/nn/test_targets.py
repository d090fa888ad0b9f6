"""The table of targets: each line has a record, ratios are the library's time over ours, what is missing is named."""

from pmpp.lab.measure.record import RecordError
from pmpp.nn.measure import targets


def test_every_target_is_recorded():
    unknown = [line.measured for line in targets.lines() if line.met is None]
    assert not unknown


def test_a_ratio_is_of_the_last_rung_and_the_fastest_library():
    entries = targets.record.load(room="batchnorm_backward").entries("batchnorm_backward", workload="256x64x112x112")
    times = {entry.contender: entry.median_ms for entry in entries}
    expected = min(ms for name, ms in times.items() if name.startswith("torch")) / times["vectorised"]
    assert targets.ratios("batchnorm_backward", workload="256x64x112x112") == {"256x64x112x112": expected}


def test_what_is_missing_is_named(monkeypatch, capsys):
    def missing(name):
        raise RecordError(f"no record {name}.json: run it")

    monkeypatch.setattr(targets, "recorded", missing)
    assert targets._training in targets.LINES
    first = targets.lines()[0]
    assert first.met is None
    assert first.measured == "no record training.json: run it"


def test_steps_in_16_bits_are_judged(monkeypatch):
    ms = {"ours, bfloat16": 4.0, "torch, bfloat16": 3.4, "ours, float32": 6.0}
    steps = {"ResNet-18, batch 128": {"ms": ms}, "transformer, batch 64": {"ms": {"ours, bfloat16": 4.0}}}
    monkeypatch.setattr(targets, "recorded", lambda name: {"steps": steps})
    found = targets.lines(more=True)[-3:]
    assert [line.met for line in found] == [False, True, None]
    assert found[0].measured == "0.85 x, 4.000 ms"


def test_the_command_prints_the_table(capsys):
    assert targets.main([]) == 0
    printed = capsys.readouterr().out
    assert "ResNet-18, batch 128, a step, graph" in printed
    assert "pmpp.nn.examples.digits" in printed
