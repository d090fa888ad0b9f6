"""Timing and the bench command, without a GPU: clocks and events are fakes."""

from __future__ import annotations

import math
import os
import signal
import statistics

import numpy as np
import pytest

from pmpp.lab import rooms
from pmpp.lab.measure import arrays, bench, environment, record, timing
from pmpp.runtime import device, dtypes
from pmpp.runtime.rung import Cost
from tests.lab.test_record import CEILINGS, GPU, block, data, entry, run_of


class FakeTimer:
    """Hands out scripted seconds a call, and runs the calls so that results and order can be looked at."""

    MOST_DELAY = 0.05

    def __init__(self, script=None, queued=True, l2_bytes=1000):
        self.script, self.queued, self.l2_bytes = iter(script or ()), queued, l2_bytes
        self.samples, self.flushed, self.delays, self.warmed = [], [], [], 0

    def synchronize(self):
        pass

    def sample(self, calls, *, before=None, flush=False, delay=0.0):
        if before is not None:
            before()
            self.warmed += 1
        for call in calls:
            call()
        self.samples.append(len(calls))
        self.flushed.append(flush)
        self.delays.append(delay)
        queued = self.queued(delay) if callable(self.queued) else self.queued
        return timing.Sample(next(self.script, 1e-3), 2e-5, queued)


class FakeClock:
    """Every look at the clock takes ``step`` seconds."""

    def __init__(self, step=0.01):
        self.now, self.step = 0.0, step

    def __call__(self):
        self.now += self.step
        return self.now


# ------------------------------------------------------------------------------------------------------- statistics


def test_interval_of_the_median_by_hand():
    # n = 6: P(all on one side) = 2 / 64 < 5 %, so the extremes; n = 12: k = 3, since 2 (1 + 12 + 66) / 4096 = 3.9 %.
    assert timing.median_interval([3, 1, 2, 6, 5, 4]) == (1, 6)
    assert timing.median_interval(range(1, 13)) == (3, 10)
    assert timing.median_interval([7]) == (7, 7)
    assert timing.median_interval([1, 2, 3]) == (1, 3)
    with pytest.raises(ValueError, match="no samples"):
        timing.median_interval([])


@pytest.mark.parametrize("n", [6, 9, 25, 100, 400])
def test_interval_covers_the_median_as_often_as_it_says(n):
    samples = np.random.default_rng(n).exponential(size=(2000, n))
    covered = [low <= math.log(2) <= high for low, high in map(timing.median_interval, samples)]
    assert np.mean(covered) > 0.935  # 95 %, less three standard errors of 2000 trials


def test_rule_stops_when_the_spread_is_known():
    rule = timing.Rule(spread=0.02, min_repeats=12, max_seconds=1.0)
    assert not rule.stop([1.0] * 11, spent=0.1)
    assert rule.stop([1.0] * 12, spent=0.1)
    assert not rule.stop([1.0, 1.1] * 6, spent=0.1)


def test_rule_stops_when_the_time_is_used_up_but_never_after_one_sample():
    rule = timing.Rule(max_seconds=1.0, at_least=3)
    assert not rule.stop([1.0, 2.0], spent=5.0)
    assert rule.stop([1.0, 2.0, 3.0], spent=5.0)
    assert rule.stop([1.0, 2.0] * 150, spent=0.1)  # max_repeats


def test_rule_gives_fast_contenders_their_seconds():
    rule = timing.Rule(min_seconds=0.2)
    assert not rule.stop([1.0] * 20, spent=0.1)
    assert rule.stop([1.0] * 20, spent=0.2)


# -------------------------------------------------------------------------------------------------------- measuring


def test_median_spread_and_host_time_of_scripted_samples():
    # The first sample chooses the batch and is not counted.
    timer = FakeTimer([1e-3, *[1e-3 * (1 + i / 1000) for i in range(40)]])
    timed = timing.measure(lambda x: x, [(1,), (2,)], timer=timer, clock=FakeClock(1e-6), spread=0.01)
    counted = [1e-3 * (1 + i / 1000) for i in range(timed.repeats)]
    assert timed.median == pytest.approx(statistics.median(counted))
    assert timed.low <= timed.median <= timed.high
    assert timed.settled
    assert timed.call == 2e-5
    assert timed.batch == 1
    assert "queued behind a delay kernel" in timed.method


def test_short_kernels_are_timed_in_batches():
    timer = FakeTimer([1e-5] * 100)
    timed = timing.measure(lambda: None, [()], timer=timer, clock=FakeClock(1e-6))
    assert timed.batch == 20
    assert set(timer.samples[1:]) == {20}
    assert "20 launches a sample" in timed.method


def test_cold_inputs_rotate():
    seen = []
    timer = FakeTimer()
    timing.measure(seen.append, [(1,), (2,), (3,)], timer=timer, set_bytes=1000, clock=FakeClock(1e-6))
    assert seen[:6] == [1, 2, 3, 1, 2, 3]
    assert not any(timer.flushed)


def test_cache_is_overwritten_where_rotation_is_not_enough():
    timer = FakeTimer([1e-6] * 100)
    timed = timing.measure(lambda x: None, [(1,), (2,)], timer=timer, set_bytes=10, clock=FakeClock(1e-6))
    assert all(timer.flushed)
    assert timed.batch == 1  # the second launch of a batch would find the cache warm
    assert "L2 overwritten" in timed.method


def test_warm_inputs_are_used_once_before_each_sample():
    timer = FakeTimer()
    timed = timing.measure(lambda x: None, [(1,)], timer=timer, cache="warm", clock=FakeClock(1e-6))
    assert timer.warmed == len(timer.samples)
    assert not any(timer.flushed)
    assert "warm" in timed.method


def test_delay_grows_until_everything_is_queued():
    timer = FakeTimer(queued=lambda delay: delay > 1e-3)
    timed = timing.measure(lambda: None, [()], timer=timer, clock=FakeClock(1e-6))
    assert max(timer.delays) < 3e-3
    assert "queued behind" in timed.method


def test_a_contender_that_waits_for_the_gpu_is_said_to():
    timed = timing.measure(lambda: None, [()], timer=FakeTimer(queued=False), clock=FakeClock(1e-6))
    assert "host time included" in timed.method


@pytest.mark.parametrize(("step", "calls"), [(1e-6, 3), (0.06, 1)], ids=["fast", "slow"])
def test_who_takes_long_is_warm_after_one_call(step, calls):
    made = []

    class Noting(FakeTimer):
        def sample(self, *args, **more):
            made.append("sample")
            return super().sample(*args, **more)

    timing.measure(lambda x: made.append("call"), [(1,), (2,)], timer=Noting(), clock=FakeClock(step))
    assert made.index("sample") == 1 + calls  # the first is verified


def test_wrong_result_gets_no_time():
    timer = FakeTimer()
    with pytest.raises(timing.WrongResult, match="off by 2, and 1 is allowed"):
        timing.measure(lambda: 3, [()], timer=timer, check=lambda result: (2.0, 1.0))
    assert timer.samples == []


def test_nan_is_wrong():
    with pytest.raises(timing.WrongResult):
        timing.measure(lambda: 3, [()], timer=FakeTimer(), check=lambda result: (math.nan, 1.0))


def test_the_last_timed_output_was_poisoned_and_is_checked():
    # Right the first time, and then it writes nothing: only the poison tells.
    out = np.zeros(1)
    calls = []

    def lazy(out):
        if not calls:
            out[0] = 1
        calls.append(1)
        return out

    def poison(out):
        out[0] = math.nan

    with pytest.raises(timing.WrongResult):
        timing.measure(
            lazy,
            [(out,)],
            timer=FakeTimer(),
            clock=FakeClock(1e-6),
            check=lambda result, out: (abs(result[0] - 1), 0.0),
            poison=poison,
        )
    assert len(calls) > 12


def test_rivals_take_turns_and_a_failure_costs_only_itself():
    order = []

    def broken():
        raise ValueError("no such kernel")

    contenders = {
        "a": timing.Contender(lambda: order.append("a"), [()]),
        "broken": timing.Contender(broken, [()]),
        "b": timing.Contender(lambda: order.append("b"), [()]),
    }
    outcome = timing.measure_together(contenders, timer=FakeTimer(), clock=FakeClock(1e-6))
    assert list(outcome) == ["a", "broken", "b"]
    assert isinstance(outcome["broken"], ValueError)
    assert isinstance(outcome["a"], timing.Timing)
    timed = "".join(order)
    assert "abababab" in timed


def test_probe_comes_before_timing():
    def probe():
        raise timing.WrongResult("lost an element")

    timer = FakeTimer()
    outcome = timing.measure_together({"a": timing.Contender(lambda: None, [()], probe=probe)}, timer=timer)
    assert str(outcome["a"]) == "lost an element"
    assert timer.samples == []


def test_measure_host_by_a_fake_clock():
    timed = timing.measure_host(lambda: 7, check=lambda result: (0.0, 0.0), clock=FakeClock(0.5), min_repeats=7)
    assert timed.median == pytest.approx(0.5)
    assert timed.repeats == 3  # 0.5 s each: the time is used up
    assert not timed.settled
    assert timed.call is None
    with pytest.raises(timing.WrongResult):
        timing.measure_host(lambda: 7, check=lambda result: (1.0, 0.5), clock=FakeClock(0.5))


def test_timing_without_a_gpu_is_refused():
    if device.on_gpu():
        pytest.skip("there is a GPU")
    with pytest.raises(RuntimeError, match="timing needs a GPU"):
        timing.measure(lambda: None, [()])


# ------------------------------------------------------------------------------------------------------------ running


def workload(**changes):
    values = {
        "family": "add", "name": "8", "sizes": {"n": 8}, "cost": Cost(8, 96), "cache": "warm",
        "make": lambda seed: (np.full(8, seed, np.float32), np.ones(8, np.float32)),
        "rungs": (lambda x, y: x + y,),
        "verify": lambda result, x, y: (float(abs(result - (x + y)).max()), 0.0),
    }  # fmt: skip
    return bench.Workload(**{**values, **changes})


@pytest.fixture
def plenty(monkeypatch):
    monkeypatch.setattr(bench, "free_bytes", lambda wanted: 2**40)


def right(x, y):
    return x + y


def wrong(x, y):
    return x - y


def test_run_gives_entries_and_says_what_failed(plenty):
    work = workload(rungs=(right, wrong), host={"numpy.add": np.add}, design=True)
    entries, notes = bench.run([work], timer=FakeTimer(), clock=FakeClock(0.01))
    assert [(one.contender, one.kind) for one in entries] == [("right", "rung"), ("numpy.add", "numpy")]
    assert entries[0].error == 0
    assert entries[0].design
    assert len(notes) == 1
    assert notes[0].startswith("wrong on add 8 FAILED: WrongResult")


@pytest.mark.parametrize(("kind", "waits"), [("numpy", 0), ("transfer", 1)])
def test_the_gpu_is_waited_for_only_where_it_works(plenty, kind, waits):
    events = []

    class Counting(FakeTimer):
        def synchronize(self):
            events.append("wait")

    def transfer(x, y):
        events.append("call")
        return x + y

    bench.run([workload(host={"host": transfer}, host_kind=kind)], timer=Counting(), clock=FakeClock(0.01))
    begun = events.index("call")
    assert events[begun - 1] == "wait"  # before the first
    assert events[begun + 1 :].count("wait") == waits * (events.count("call") - 1)  # the first call warms up


class Compiled:
    """A version of a kernel, with what the driver says of it."""

    def __init__(self, registers, shared):
        self.regs_per_thread, self.shared_mem_per_block = registers, shared


def adding(**kernels):
    """A contender like a rung, whose kernels have been compiled in these versions."""

    def add(x, y):
        return x + y

    add.kernels = [type("Kernel", (), {"overloads": dict(enumerate(versions))}) for versions in kernels.values()]
    return add


def test_a_rung_at_its_design_size_says_what_its_kernel_takes(plenty):
    rung = adding(first=[Compiled(32, 8192), Compiled(40, 4096)], other=[Compiled(255, 0)])
    (entry,), _ = bench.run([workload(rungs=(rung,), design=True)], timer=FakeTimer(), clock=FakeClock(0.01))
    assert (entry.registers, entry.shared_bytes) == (40, 4096)
    assert record.as_json(entry)["registers"] == 40
    (swept,), _ = bench.run([workload(rungs=(rung,))], timer=FakeTimer(), clock=FakeClock(0.01))
    assert (swept.registers, swept.shared_bytes) == (None, None)


@pytest.mark.parametrize("rung", [right, adding(), adding(first=[])], ids=["a function", "no kernel", "not compiled"])
def test_what_was_not_compiled_takes_nothing_that_is_known(rung):
    assert bench.resources(rung) == {}


def test_end_to_end_goes_from_numpy_to_numpy(plenty, monkeypatch):
    monkeypatch.setattr(device, "to_host", np.asarray)
    seen = []

    def slow(x, y):
        seen.append(type(x))
        return right(x, y)

    def with_output(x, y, out):
        return np.add(x, y, out=out)

    work = workload(
        rungs=(right, slow),
        end_to_end=True,
        host={"numpy.add": with_output},
        host_args=lambda x, y: (x, y, np.zeros(8, np.float32)),
    )
    entries, notes = bench.run([work], timer=FakeTimer(), clock=FakeClock(0.01))
    assert notes == []
    assert [one.contender for one in entries] == ["right", "slow", "numpy.add"]
    assert entries[0].end_to_end_ms is None
    assert entries[1].end_to_end_ms > 0
    assert set(seen) == {np.ndarray}


def test_what_a_call_changes_stays_where_it_is_end_to_end(plenty, monkeypatch):
    monkeypatch.setattr(device, "to_host", np.array)
    seen = []

    def step(x, y):
        seen.append((x, y))
        return x + y

    pairs = [(np.full(8, 1.0, np.float32), np.ones(8, np.float32))]
    work = workload(rungs=(step,), end_to_end=True, state=1, make=lambda seed: pairs[0])
    (entry,), notes = bench.run([work], timer=FakeTimer(), clock=FakeClock(0.01))
    assert notes == []
    assert entry.end_to_end_ms > 0
    x, y = seen[-1]
    assert x is not pairs[0][0]
    assert y is pairs[0][1]


def test_a_failure_on_the_host_costs_only_itself(plenty):
    def breaks(x, y):
        raise MemoryError("none left")

    work = workload(rungs=(right,), host={"numpy.add": breaks, "numpy.sum": wrong})
    entries, notes = bench.run([work], timer=FakeTimer(), clock=FakeClock(0.01))
    assert [one.contender for one in entries] == ["right"]
    assert notes[0] == "numpy.add on add 8 FAILED: MemoryError: none left"
    assert "numpy.sum on add 8 FAILED: WrongResult" in notes[1]


def test_run_leaves_out_libraries_that_are_not_installed(plenty):
    work = workload(rungs=(right,), libraries={"no_such_package.add": lambda package, x, y: x + y})
    entries, notes = bench.run([work], timer=FakeTimer(), clock=FakeClock(0.01))
    assert len(entries) == 1
    assert "no_such_package.add was left out" in notes[0]


def test_run_does_the_design_size_first_and_says_what_the_budget_left_out(plenty):
    works = [workload(name="4", rungs=(right,)), workload(name="8", rungs=(right,), design=True)]
    clock = FakeClock(1.0)
    entries, notes = bench.run(works, timer=FakeTimer(), clock=clock, budget=1.5)
    assert [one.workload for one in entries] == ["8"]
    assert notes == ["add 4 was left out: the budget of 2 s is used up"]


@pytest.mark.parametrize("budget", [0.0, -5.0])
def test_no_design_size_is_left_out_however_short_the_budget(plenty, budget):
    """Each contender of each gets its fewest samples, the slow ones too."""
    works = [workload(name=str(n), rungs=(right, lambda x, y: y + x), design=n != 4) for n in (4, 8, 16, 32)]
    entries, notes = bench.run(works, timer=FakeTimer(), clock=FakeClock(1.0), budget=budget)
    assert [(one.workload, one.contender) for one in entries] == [
        (size, name) for size in ("8", "16", "32") for name in ("right", "<lambda>")
    ]
    assert {one.repeats for one in entries} == {timing.Rule().at_least + 1}  # and the one that is checked
    assert len(notes) == 1


def test_the_design_sizes_of_all_rooms_come_before_the_rest_of_any(plenty):
    order = []

    def rung(label):
        def contender(x, y):
            order.append(label) if label not in order else None
            return x + y

        return contender

    plan = {
        room: [workload(name=name, rungs=(rung((room, name)),), design=design) for name, design in sizes]
        for room, sizes in {
            "light": [("2", False), ("1", True)],
            "heavy": [("4", False), ("3", True), ("5", True)],
            "none": [("6", False)],
        }.items()
    }
    found = bench.run_rooms(plan, budget=600, timer=FakeTimer(), clock=FakeClock(0.01))
    designs = [("light", "1"), ("heavy", "3"), ("heavy", "5")]
    assert order == [*designs, ("light", "2"), ("heavy", "4"), ("none", "6")]
    # In the record they stand as in the workloads.
    assert [one.workload for one in found["heavy"].entries] == ["4", "3", "5"]
    assert all(one.notes == [] and one.seconds > 0 for one in found.values())
    found = bench.run_rooms(plan, budget=0, timer=FakeTimer(), clock=FakeClock(0.01))
    assert [(room, one.workload) for room, of_it in found.items() for one in of_it.entries] == designs
    assert [len(one.notes) for one in found.values()] == [1, 1, 1]


def test_a_run_that_is_told_to_stop_keeps_what_it_has(plenty):
    def stops(x, y):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
        return x + y

    plan = {
        "first": [workload(name="1", rungs=(right,), design=True)],
        "second": [workload(name="2", rungs=(right,), design=True), workload(name="3", rungs=(stops,))],
        "third": [workload(name="4", rungs=(right,), design=True), workload(name="5", rungs=(right,))],
    }
    # Of two signals, as `timeout` sends them, the second changes nothing.
    before = signal.getsignal(signal.SIGTERM)
    with bench._interrupted_by_sigterm():
        found = bench.run_rooms(plan, budget=600, timer=FakeTimer(), clock=FakeClock(0.01))
    assert signal.getsignal(signal.SIGTERM) == before
    assert [[one.workload for one in of_it.entries] for of_it in found.values()] == [["1"], ["2"], ["4"]]
    said = ["the run was told to stop before all was measured"]
    assert [one.notes for one in found.values()] == [[], said, said]


def test_parts_measure_all_rooms_each_once(monkeypatch, tmp_path):
    known = rooms.workload_modules()
    parts = [bench._of_part(list(known), bench.Part(k, 3)) for k in (1, 2, 3)]
    assert sorted(room for part in parts for room in part) == sorted(known)
    assert all(parts)
    # What a room took is taken from the record.
    blocks = {"reduction": {**block(entry()), "seconds": 1e6}}
    record.write(record.merge(None, GPU, run_of(), blocks), tmp_path / "nvidia-test-1")
    monkeypatch.setattr(record, "RECORDED", tmp_path)
    assert bench._of_part(["scan", "reduction", "softmax"], bench.Part(1, 2)) == ["reduction"]


def test_stale_is_what_a_record_lacks_or_has_of_other_sources(monkeypatch, tmp_path):
    monkeypatch.setattr(bench.environment, "describe_gpu", lambda: GPU)
    monkeypatch.setattr(record, "RECORDED", tmp_path)
    one = workload(family="sum", name="2^10", rungs=(right,), libraries={"torch.sum": right})
    assert bench._stale()("reduction", one)  # there is no record
    rung = entry(contender=bench.name_of(right))
    library = entry(contender="torch.sum", kind="library")
    now = bench.Sources().of_room("reduction")
    for entries, sources, stale in (
        ([rung, library], now, False),
        ([rung], now, True),
        ([library], now, True),
        ([rung, library], {**now, next(iter(now)): "0123"}, True),
    ):
        blocks = {"reduction": {**block(*entries), "sources": sources}}
        record.write(record.merge(None, GPU, run_of(), blocks), tmp_path / "nvidia-test-1")
        assert bench._stale()("reduction", one) == stale
        assert bench._stale()("scan", one)


def test_the_records_of_parts_are_merged(tmp_path, capsys):
    folders = [tmp_path / "1", tmp_path / "2"]
    for number, (room, folder) in enumerate(zip(("reduction", "scan"), folders, strict=True), 1):
        blocks = {room: {**block(entry()), "subject": room}}
        record.write(record.merge(None, GPU, {**run_of(), "part": f"{number}/2"}, blocks), folder)
    assert bench.main(["--merge", *map(str, folders), "--into", str(tmp_path / "whole")]) == 0
    assert "2 rooms of 2 records" in capsys.readouterr().out
    whole = record.load(tmp_path / "whole")
    assert whole.rooms() == ("reduction", "scan")
    assert [whole.run(room)["part"] for room in whole.rooms()] == ["1/2", "2/2"]
    assert bench.main(["--merge", str(tmp_path / "none")]) == 2
    assert "there is no record at" in capsys.readouterr().err


def test_what_a_record_lacks_of_the_design_sizes_is_named():
    def sum_of(name, design=True):
        libraries = {"torch.sum": right, "cupy.sum": right}
        return workload(family="sum", name=name, rungs=(right, wrong), libraries=libraries, design=design)

    rows = [entry(workload="a", contender=name) for name in ("right", "wrong")]
    rows += [entry(workload="a", contender="cupy.sum", kind="library"), entry(workload="b", contender="right")]
    rec = record.Record(data(reduction=block(*rows)))
    works = [sum_of("a"), sum_of("b"), sum_of("c"), sum_of("d", design=False)]
    assert bench.missing(rec, "reduction", works) == ["sum b (wrong, a library)", "sum c (everything)"]
    assert bench.missing(rec, "reduction", works[:1]) == []
    with pytest.raises(record.RecordError, match="no measurements of room 'scan'"):
        bench.missing(rec, "scan", works)


def test_the_own_cost_is_that_of_rungs_and_of_no_library(plenty):
    work = workload(rungs=(right,), libraries={"cuda.add": lambda cuda, x, y: x + y}, own=Cost(3, 96))
    entries, _ = bench.run([work], timer=FakeTimer(), clock=FakeClock(0.01))
    assert [(one.kind, one.own) for one in entries] == [("rung", Cost(3, 96)), ("library", None)]
    rec = record.Record(data(reduction=block(entry(own_flops=40_000_000, own_bytes=4100))))
    assert "0.1% of its own roof" in bench.table(rec)  # 40 MFLOP at 60 TFLOP/s are 0.67 us of 1 ms


def test_run_leaves_out_what_does_not_fit(monkeypatch):
    monkeypatch.setattr(bench, "free_bytes", lambda wanted: 100)
    entries, notes = bench.run([workload(rungs=(right,))], timer=FakeTimer(), clock=FakeClock(1e-6))
    assert not entries
    assert "of GPU memory" in notes[0]


def test_number_of_input_sets():
    assert bench.input_sets(10, 1000, "warm") == 1
    assert bench.input_sets(10**9, 1000, "cold") == 2
    assert bench.input_sets(500, 1000, "cold") == 4
    assert bench.input_sets(1, 1000, "cold") == bench.MOST_SETS


def test_out_is_given_only_to_rungs_that_take_it():
    def takes(x, *, out=None):
        return out

    def makes(x):
        return x

    assert bench.rung_call(takes, True)(1, 2) == 2
    assert bench.rung_call(makes, True)(1, 2) == 1
    assert bench.rung_call(makes, False)(1) == 1


# ------------------------------------------------------------------------------------------------- machine and command


def test_revision_is_given_by_the_environment_where_there_is_no_git(monkeypatch):
    monkeypatch.setenv("PMPP_REVISION", "abc1234-dirty")
    assert environment.revision() == "abc1234-dirty"
    monkeypatch.delenv("PMPP_REVISION")
    monkeypatch.setattr(environment, "_output", lambda *command: "")
    assert environment.revision() == "unknown"
    monkeypatch.setattr(
        environment, "_output", lambda *command: "1234567" if "rev-parse" in command else " M pmpp/a.py"
    )
    assert environment.revision() == "1234567-dirty"


def test_versions_name_what_is_installed():
    assert environment.versions()["numpy"] == np.__version__


def test_the_table_shows_share_library_and_doubt():
    rows = entry(settled=False), entry(contender="torch.sum", kind="library", median_ms=0.95)
    text = bench.table(record.Record(data(reduction=block(*rows))))
    assert "0.950" in text  # the best library over the rung
    assert "1.00000  10.0*" in text
    assert "20.0" in text  # microseconds of host time
    assert text.endswith("when the time was used up")


@pytest.mark.parametrize(
    ("flops", "moved", "ms", "expected"),
    [
        (1, 4 * 10**9, 1.0, "4 TB/s"),
        (60 * 10**9, 1, 1.0, "60 TFLOP/s"),
        (0, 2000, 1.0, "2 MB/s"),
        (0, 2, 1.0, "2e+03 B/s"),
    ],
)
def test_rate_in_words(flops, moved, ms, expected):
    assert bench.rate(entry(flops=flops, bytes=moved, median_ms=ms, low_ms=ms, high_ms=ms), CEILINGS) == expected


def test_bench_without_a_gpu_says_so_in_one_sentence(capsys):
    if device.on_gpu():
        pytest.skip("there is a GPU")
    assert bench.main([]) == 2
    said = capsys.readouterr().err
    assert said.startswith("bench needs an NVIDIA GPU, but ")
    assert said.count("\n") == 1


def test_bench_finds_what_is_measured_of_each_room():
    for room in rooms.workload_modules():
        every, few = bench.workloads_of(room, quick=False), bench.workloads_of(room, quick=True)
        assert few == [one for one in every if one.quick]
        assert all(isinstance(one, bench.Workload) for one in every)
        assert any(one.design for one in every), room


def test_bench_names_the_rooms_it_knows(capsys):
    assert bench.main(["attic"]) == 2
    assert "no workloads for attic" in capsys.readouterr().err


def test_bench_refuses_a_backend_that_is_none(monkeypatch, capsys):
    def refuse():
        raise device.BackendError("PMPP_BACKEND must be 'numba' or 'simt', was 'x'.")

    monkeypatch.setattr(device, "on_gpu", refuse)
    assert bench.main([]) == 2
    assert "PMPP_BACKEND" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_inputs_of_16_bits_are_rounded_and_seen_exactly(name):
    if name == "bfloat16":
        pytest.importorskip("ml_dtypes")
    dtype = dtypes.dtype_of(name)
    x = arrays.normal(1001, 3, dtype)
    exact = arrays.view(arrays.normal(1001, 3))
    assert x.dtype == dtype
    seen = arrays.view(x)
    assert seen.dtype == (np.float16 if name == "float16" else np.float32)
    error = abs(seen.astype(np.float64) - exact)
    assert bool((error <= dtypes.rounding(exact, name)).all())
    assert bool((error > 0).any()) == (name != "float32")
    bench.fill_with_nan(x)
    assert bool(np.isnan(device.to_host(x).astype(np.float32)).all())


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64])
def test_whole_numbers_are_overwritten_with_the_greatest(dtype):
    x = device.to_device(np.arange(5, dtype=dtype))
    bench.fill_with_nan(x)
    assert (device.to_host(x) == np.iinfo(dtype).max).all()
