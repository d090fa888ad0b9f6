"""The survey's command without a GPU: what its budget leaves out, what it writes, and NumPy's part."""

import dataclasses
import functools
import json

import numpy as np
import pytest

from pmpp.kernels.convolution_layer import dispatch, survey
from pmpp.kernels.convolution_layer.definition import Layer, arguments
from pmpp.kernels.convolution_layer.find import samples_of
from pmpp.kernels.convolution_layer.layers_on_cpu import on_cpu
from pmpp.lab.measure import environment, roofline, timing
from pmpp.runtime import device
from tests.lab.test_bench import FakeTimer

GPU = json.loads(survey.RECORD.read_text(encoding="utf-8"))["about"]["gpu"]


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def measuring(clock, seconds, calls):
    """In place of `survey.measure_layer`: every layer takes so many ``seconds``."""

    def measure(layer, share, numpy):
        calls.append((layer, share, numpy))
        clock.now += seconds
        return {"ms": {"direct": 1.0}, "workspace": {"direct": 0}, "error": {"direct": 0.0}, "notes": {}}

    return measure


def surveyed(budget, seconds, wanted=None):
    clock, calls = Clock(), []
    rows = list(survey.measured(wanted or survey.sets(), budget, measuring(clock, seconds, calls), clock))
    return rows, calls


def test_with_time_enough_every_layer_is_measured_in_the_order_of_the_sets():
    rows, calls = surveyed(1e6, 1.0)
    wanted = [(name, dataclasses.asdict(layer)) for name, several in survey.sets().items() for layer in several]
    assert [(row["set"], row["layer"]) for row in rows] == wanted
    assert {share for _, share, _ in calls} == {survey.RULE.max_seconds}


def test_a_short_budget_gives_fewer_repetitions_and_spares_what_has_not_begun():
    wanted = {"grid": survey.grid()[:10]}
    rows, calls = surveyed(1.0, 0.11, wanted)
    shares = [share for _, share, _ in calls]
    assert len(rows) == 10
    assert shares[0] == pytest.approx(survey.SHARE * 1.0 / (7 * 10))  # six algorithms and cuDNN
    assert shares[-1] == pytest.approx(survey.SHARE * (1 - 9 * 0.11) / 7)
    rows, _ = surveyed(1.0, 0.3, wanted)
    assert len(rows) == 4  # at 0, 0.3, 0.6 and 0.9 seconds


@pytest.mark.parametrize("budget", [0.0, -5.0])
def test_no_budget_is_too_short_for_the_design_layers(budget):
    rows, calls = surveyed(budget, 1.0)
    assert [layer for layer, *_ in calls] == survey.sets()["design"]
    assert {row["set"] for row in rows} == {"design"}
    assert {share for _, share, _ in calls} == {survey.RULE.max_seconds}


def test_numpy_computes_the_design_layers_that_take_it_no_seconds():
    _, calls = surveyed(1e6, 0.0)
    by_numpy = [layer for layer, _, numpy in calls if numpy]
    assert by_numpy == [layer for layer in survey.sets()["design"] if layer.cost.flops <= survey.ON_CPU]
    assert len(by_numpy) == 6
    assert all(layer.groups == 1 and layer.dilation == (1, 1) for layer in by_numpy)


def test_numpy_is_timed_and_compared():
    layer = Layer(2, 3, 9, 8, 4, 3, 3, (2, 1), (1, 1))
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape, dtype=np.float32) for shape in ((2, 3, 9, 8), (4, 3, 3, 3)))
    problem = arguments(x, w, None, layer.stride, layer.padding)
    samples, errors = samples_of(problem), []

    def check(result):
        errors.append(samples.error(device.as_input("out", result, dtypes=np.float32)))
        return errors[-1], survey.LOOSE

    timed = survey.time_numpy(problem, check)
    assert timed.repeats >= 3
    assert errors[-1] <= 1e-6


class Tensor(np.ndarray):
    """What the survey asks of PyTorch's output."""

    def contiguous(self):
        return np.ascontiguousarray(self)


@pytest.mark.parametrize("numpy", [False, True])
def test_a_row_has_every_contender_with_its_error(monkeypatch, numpy):
    layer = Layer(1, 2, 5, 4, 3, 5, 3, padding=(1, 1))

    def conv2d(torch, x, w, out):
        return on_cpu(layer)["numpy"](device.to_host(x), device.to_host(w)).view(Tensor)

    monkeypatch.setattr(survey, "adapter", lambda package: (None, lambda x: x))
    monkeypatch.setattr(survey, "torch_conv2d", lambda layer: {"torch.conv2d": conv2d})
    monkeypatch.setattr(survey, "free_bytes", lambda: 0)
    monkeypatch.setattr(timing, "gpu_timer", FakeTimer)
    # One rung for all algorithms, since it is quick in the interpreter: what the survey does with them is in question.
    monkeypatch.setattr(dispatch, "run", lambda name, p: dispatch.ROOMS["direct"].LADDER[0].run(p))
    row = survey.measure_layer(layer, seconds=0.0, numpy=numpy)
    expected = {"direct", "im2col", "implicit", "fft", "cudnn"} | ({"numpy"} if numpy else set())
    assert row["ms"].keys() == row["error"].keys() == expected
    assert row["workspace"].keys() == expected - {"cudnn", "numpy"}
    assert row["notes"] == {name: dispatch.refuses(name, layer) for name in ("winograd", "depthwise")}
    assert max(row["error"].values()) <= 1e-5
    read = survey.Measured(set="design", layer=layer, **row)
    assert read.ours.keys() == row["workspace"].keys()


def test_numpy_that_is_wrong_gets_a_note_and_no_time(monkeypatch):
    layer = Layer(1, 2, 9, 8, 4, 5, 5)
    problem = arguments(*(np.ones(shape, np.float32) for shape in ((1, 2, 9, 8), (4, 2, 5, 5))))
    monkeypatch.setattr(survey, "on_cpu", lambda layer: {"numpy": lambda x, w: np.zeros(layer.shape, np.float32)})
    samples = samples_of(problem)
    assert problem.layer == layer
    failed = survey.time_numpy(problem, lambda result: (samples.error(device.to_device(result)), survey.LOOSE))
    assert isinstance(failed, timing.WrongResult)


# ------------------------------------------------------------------------------------------------------- the command


@pytest.fixture
def on_a_gpu(monkeypatch):
    """A GPU's name without a GPU, 20 layers, and each measured in no time."""
    few = {name: layers[:4] for name, layers in survey.sets().items()}
    monkeypatch.setattr(survey, "sets", lambda: few)
    monkeypatch.setattr(device, "on_gpu", lambda: True)
    monkeypatch.setattr(environment, "describe_gpu", lambda: GPU)
    monkeypatch.setattr(environment, "describe_run", lambda ceilings: {"date": "2026-01-01", "revision": "abc"})
    monkeypatch.setattr(roofline, "measure_ceilings", lambda: None)
    monkeypatch.setattr(survey.Sources, "digests", lambda self, *starts, within: dict.fromkeys(starts, "digest"))
    measure = measuring(Clock(), 0.0, [])
    monkeypatch.setattr(survey, "measured", functools.partial(survey.measured, measure=measure, clock=Clock()))


def test_a_thin_record_does_not_take_the_place_of_a_full_one(on_a_gpu, tmp_path, capsys):
    out, part = tmp_path / "survey.json", tmp_path / "survey.json.part"
    assert survey.main(["--out", str(out), "--budget", "1e9"]) == 0
    full = out.read_bytes()
    about, rows = survey.load(out)
    assert (about["left_out"], len(rows)) == (0, 20)
    assert about["sources"] == {survey.SOURCE: "digest"}
    assert not part.exists()
    capsys.readouterr()

    assert survey.main(["--out", str(out), "--budget", "0"]) == 2
    said = capsys.readouterr()
    assert "left out" in said.out
    assert str(part) in said.err
    assert out.read_bytes() == full
    about, rows = survey.load(part)
    assert {row.set for row in rows} == {"design"}
    assert about["left_out"] == 16

    assert survey.main(["--out", str(out), "--sets", "grid", "design", "--budget", "1e9"]) == 2
    assert out.read_bytes() == full


def test_a_record_may_grow(on_a_gpu, tmp_path):
    out = tmp_path / "new" / "survey.json"
    assert survey.main(["--out", str(out), "--budget", "0"]) == 0
    assert len(survey.load(out)[1]) == 4
    assert survey.main(["--out", str(out), "--budget", "1e9"]) == 0
    assert len(survey.load(out)[1]) == 20
    assert [path.name for path in out.parent.iterdir()] == ["survey.json"]


def test_what_was_measured_is_there_when_the_run_ends_early(on_a_gpu, monkeypatch, tmp_path):
    out, complete = tmp_path / "survey.json", survey.measured

    def stopped(*arguments):
        for place, row in enumerate(complete(*arguments)):
            if place == 5:
                raise KeyboardInterrupt
            yield row

    monkeypatch.setattr(survey, "measured", stopped)
    with pytest.raises(KeyboardInterrupt):
        survey.main(["--out", str(out), "--budget", "1e9"])
    about, rows = survey.load(tmp_path / "survey.json.part")
    assert (len(rows), about["left_out"]) == (5, 15)
    assert not out.exists()


def test_a_broken_record_and_nothing_to_measure_are_said(on_a_gpu, tmp_path, capsys):
    out = tmp_path / "survey.json"
    assert survey.main(["--out", str(out), "--sets", "fit", "--budget", "0"]) == 2
    assert "nothing was measured" in capsys.readouterr().err
    out.write_text("{", encoding="utf-8")
    with pytest.raises(json.JSONDecodeError):
        survey.main(["--out", str(out)])


def test_the_record_judges_the_choice(capsys):
    assert survey.main(["--judge"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("NVIDIA H200, with the figures of ")
    assert [line.split()[0] for line in said[1:]] == list(survey.sets())


def test_a_room_that_has_changed_is_not_judged_by_an_older_record(tmp_path):
    record = json.loads(survey.RECORD.read_text(encoding="utf-8"))
    file = "pmpp/kernels/convolution_layer/winograd.py"
    now = survey.Sources().digest(file)
    for digest, judged in ((now, True), ("another", False)):
        record["about"]["sources"][file] = digest
        path = tmp_path / f"{digest}.json"
        path.write_text(json.dumps(record), encoding="utf-8")
        assert ("winograd" in survey.as_measured(path)) is judged


def test_a_loss_is_the_time_of_the_choice_over_the_least():
    _, rows = survey.load()
    row = dataclasses.replace(rows[0], ms={"direct": 3.0, "implicit": 2.0, "fft": 4.0, "cudnn": 1.0})
    guesses = dispatch.expected_times(row.layer)
    first = min(("direct", "implicit", "fft"), key=guesses.__getitem__)
    assert survey.losses([row], {"direct", "implicit", "fft"}) == [row.ms[first] / 2]
    assert survey.losses([row], {"direct"}) == [1]
    assert survey.losses([row], {"winograd"}) == []


def test_layers_that_are_no_longer_surveyed_are_not_missed():
    _, rows = survey.load()
    gone = dataclasses.replace(rows[0], layer=Layer(1, 1, 1, 1, 1, 1, 1))
    assert survey.lacking(rows, [*rows, gone]) == []
    assert survey.lacking(rows[1:], [*rows, gone]) == rows[:1]
