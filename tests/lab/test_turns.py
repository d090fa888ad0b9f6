"""Several processes in turns on one GPU, and `bench --processes`: clocks, events and GPUs are fakes."""

from __future__ import annotations

import itertools
import os
import threading
import types

import numpy as np
import pytest

from pmpp.lab.measure import bench, processes, turns
from tests.lab.test_bench import FakeClock, FakeTimer, right, workload

unix = pytest.mark.skipif(not turns.possible(), reason="turns are taken by a lock of Unix")
PLENTY = 2**40


@unix
def test_one_has_the_gpu_at_a_time_and_gives_it_up_while_compiling(tmp_path):
    mine, theirs = turns.Turns(tmp_path / "lock"), turns.Turns(tmp_path / "lock")
    got = threading.Event()

    def other():
        with theirs:
            got.set()

    with mine:
        thread = threading.Thread(target=other)
        thread.start()
        assert not got.wait(0.05)
        with mine.others():
            assert got.wait(10)
    thread.join()
    with mine.others():  # who has no turn gives nothing up
        assert not mine.has
    for one in (mine, theirs):
        os.close(one.file)


@unix
def test_seconds_with_the_gpu_without_it_and_waiting_are_told_apart(tmp_path):
    mine = turns.Turns(tmp_path / "lock", clock=itertools.count().__next__)  # each look takes a second
    with mine, mine.others():  # asks at 0, has it at 1, leaves at 2, compiles from 3 to 4, asks at 5, has it at 6
        pass
    # leaves at 7
    assert mine.spent == turns.Spent(held=2, compiled=1, waited=2)
    assert mine.spent - (1, 1, 1) + (1, 1, 1) == mine.spent
    os.close(mine.file)


@unix
def test_kernels_are_compiled_without_the_gpu_and_what_is_compiled_keeps_it(tmp_path):
    mine, seen = turns.Turns(tmp_path / "lock"), []

    class Dispatcher:
        overloads = types.MappingProxyType({"known": 1})

        def compile(self, signature):
            seen.append((signature, mine.has))
            return signature

    cupy = types.SimpleNamespace()
    setattr(cupy, turns.CUPY_COMPILES, lambda source, *, arch: seen.append((source, arch, mine.has)))
    turns.compile_apart(mine, Dispatcher, cupy, lambda: seen.append("idle"))
    with mine:
        assert [Dispatcher().compile(one) for one in ("known", "new")] == ["known", "new"]
        getattr(cupy, turns.CUPY_COMPILES)("source", arch=90)
        assert mine.has
    assert seen == [("known", True), "idle", ("new", False), "idle", ("source", 90, False)]
    os.close(mine.file)


# ------------------------------------------------------------------------------------------------ who measures what


def sizes(designs, others):
    return [workload(name=str(number), design=number < designs) for number in range(designs + others)]


def test_a_process_stays_with_its_rooms_and_the_design_sizes_of_all_come_first():
    plan = processes.Plan({"long": sizes(1, 5), "short": sizes(2, 1), "last": sizes(1, 0)})
    assert plan.next(0) == ("long", 0)
    assert plan.next(1) == ("short", 0)
    assert plan.next(0) == ("last", 0)
    assert plan.next(0) == ("long", 1)  # no room is without a process
    assert plan.next(1) == ("short", 1)
    assert plan.next(1) == ("short", 2)
    assert plan.next(1) == ("long", 5)  # four are left: one is taken from the end
    assert plan.next(1) is None  # three are left: their own process has them sooner
    assert [plan.next(0) for _ in range(4)] == [("long", 2), ("long", 3), ("long", 4), None]


def test_when_it_is_late_only_design_sizes_are_handed_out():
    plan = processes.Plan({"long": sizes(5, 5), "short": sizes(0, 1)})
    assert plan.next(0, late=True) == ("long", 0)
    assert plan.next(1, late=True) == ("long", 4)  # the last of its design sizes
    assert [plan.next(0, late=True) for _ in range(4)] == [("long", 1), ("long", 2), ("long", 3), None]
    assert plan.left == {"long": [5, 6, 7, 8, 9], "short": [0]}


def test_what_is_not_wanted_is_not_handed_out():
    plan = processes.Plan({"one": sizes(1, 2), "two": sizes(1, 0)}, lambda room, one: room == "one" and one.name != "1")
    assert plan.left == {"one": [0, 2], "two": []}
    assert [plan.next(0), plan.next(0), plan.next(0)] == [("one", 0), ("one", 2), None]


def test_the_rooms_of_a_process_that_ends_go_to_others():
    plan = processes.Plan({"one": sizes(1, 2)})
    assert plan.next(0) == ("one", 0)
    assert plan.next(1) is None
    plan.ended(0)
    assert plan.next(1) == ("one", 1)
    assert plan.next(0) is None
    assert plan.next(1) == ("one", 2)


def test_memory_is_reserved_and_nobody_overtakes_who_waits():
    cells = [0] * 4
    a, b, c = (processes.Ledger(cells, number, 100) for number in range(3))
    assert a.reserve(60)
    assert not b.reserve(50)
    assert not c.reserve(1)  # it would fit, but b waits
    a.release()
    assert not c.reserve(1)
    assert b.reserve(50)
    assert c.reserve(50)
    b.release()
    assert not a.reserve(101)
    c.release()
    assert a.reserve(101)  # alone, it gets what it wants
    a.release()
    assert a.reserve(1)
    assert not b.reserve(100)
    b.release()  # it waits no longer
    assert c.reserve(1)


# ----------------------------------------------------------------------------------------------- a workload in a turn


@pytest.fixture
def plenty(monkeypatch):
    monkeypatch.setattr(bench, "free_bytes", lambda wanted=0: PLENTY)


def alone(tmp_path, **changes):
    ledger = processes.Ledger([0, 0], 0, PLENTY)
    values = {"turns": turns.Turns(tmp_path / "lock"), "ledger": ledger, "timer": FakeTimer(), "until": 1e9}
    return values | {"timed_by": FakeClock(1e-4), "nap": lambda seconds: None} | changes


@unix
@pytest.mark.usefixtures("plenty")
def test_no_kernel_runs_while_another_process_computes(tmp_path):
    """Two of them, each with its own descriptor of the lock. Each call looks whether the other is in one."""
    inside, overlaps, compiled = set(), [], []

    class Watching(FakeTimer):
        def sample(self, calls, **more):
            with computing(threading.get_ident()):
                return super().sample(calls, **more)

    class computing:
        def __init__(self, who):
            self.who = who

        def __enter__(self):
            overlaps.extend(inside - {self.who})
            self.outer = self.who in inside
            inside.add(self.who)

        def __exit__(self, *_):
            if not self.outer:
                inside.discard(self.who)

    both = threading.Barrier(2, timeout=20)

    def process(number):
        mine = turns.Turns(tmp_path / "lock")

        def kernel(x, y):
            if not compiled[number]:
                with mine.others():
                    both.wait()  # both compile at the same time: neither keeps the GPU
                    compiled[number] = True
            assert mine.has
            with computing(threading.get_ident()):
                return x + y

        def make(seed):
            assert mine.has
            return np.full(8, seed, np.float32), np.ones(8, np.float32)

        def verify(result, x, y):
            with computing(threading.get_ident()):
                return float(abs(result - x - y).max()), 0.0

        ledger = processes.Ledger(cells, number, PLENTY)
        work = workload(rungs=(kernel,), make=make, verify=verify)
        got[number] = processes.measure_in_turn(work, **alone(tmp_path, turns=mine, ledger=ledger, timer=Watching()))
        os.close(mine.file)

    cells, compiled, got = [0] * 3, [False, False], {}
    threads = [threading.Thread(target=process, args=(number,)) for number in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert overlaps == []
    assert [(got[number].notes, len(got[number].entries)) for number in range(2)] == [([], 1)] * 2
    assert all(got[number].spent.compiled > 0 for number in range(2))
    assert cells == [0, 0, 0]


@unix
@pytest.mark.usefixtures("plenty")
def test_a_contender_has_a_fixed_time_and_a_short_one_when_it_is_late(tmp_path):
    def repeats(**changes):
        noisy = FakeTimer(itertools.cycle([1e-3, 2e-3]))  # it never settles
        more = {"timer": noisy, "timed_by": FakeClock(0.005)} | changes
        got = processes.measure_in_turn(
            workload(rungs=(right,), design=changes.pop("design", True)), **alone(tmp_path, **more)
        )
        return got.entries[0].repeats

    # A sample takes a step of the clock; one more is checked.
    assert repeats() == processes.DESIGN_SECONDS / 0.005 + 1
    assert repeats(until=-1.0) == bench.SHORTEST / 0.005 + 1


@unix
@pytest.mark.usefixtures("plenty")
def test_who_finds_no_memory_leaves_its_turn_and_tries_again_until_the_time_is_used_up(tmp_path):
    cells, naps = [0, 0, 0], []
    mine, theirs = (processes.Ledger(cells, number, 100) for number in range(2))
    assert theirs.reserve(90)

    def nap(seconds):
        assert not given["turns"].has
        naps.append(seconds)
        if len(naps) == 3:
            theirs.release()

    given = alone(tmp_path, ledger=mine, nap=nap)
    assert len(processes.measure_in_turn(workload(rungs=(right,)), **given).entries) == 1
    assert len(naps) == 3
    assert theirs.reserve(90)
    got = processes.measure_in_turn(workload(rungs=(right,)), **given | {"until": -1.0})
    assert got.notes == ["add 8 was left out: it waited for memory until the time was used up"]
    assert cells == [0, 90, 0]


@unix
def test_what_is_too_large_for_the_gpu_alone_is_left_out_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "free_bytes", lambda wanted=0: 100)
    got = processes.measure_in_turn(workload(rungs=(right,)), **alone(tmp_path))
    assert got.entries == []
    assert "GiB of GPU memory" in got.notes[0]


@unix
@pytest.mark.usefixtures("plenty")
def test_a_gpu_that_is_broken_ends_the_process_and_is_named(tmp_path, monkeypatch):
    class Broken(FakeTimer):
        def synchronize(self):
            monkeypatch.setattr(bench, "free_bytes", self.synchronize)
            raise RuntimeError("an illegal memory access was encountered")

    got = processes.measure_in_turn(workload(rungs=(right,)), **alone(tmp_path, timer=Broken()))
    assert not got.usable
    assert "add 8 FAILED: it left the GPU unusable: RuntimeError: an illegal" in got.notes[-1]


@unix
@pytest.mark.usefixtures("plenty")
def test_the_hosts_times_join_the_entries_of_before(tmp_path, monkeypatch):
    monkeypatch.setattr("pmpp.runtime.device.to_host", np.asarray)
    given = alone(tmp_path)
    work = workload(rungs=(right,), host={"numpy.add": np.add}, end_to_end=True)
    before = processes.measure_in_turn(work, **given).entries
    assert [(one.kind, one.end_to_end_ms) for one in before] == [("rung", None)]
    more = {key: given[key] for key in ("turns", "timer")}
    got = processes.measure_on_host(work, before, 0.4, **more, timed_by=FakeClock(1.0))
    assert [(one.kind, one.repeats) for one in got.entries] == [("rung", before[0].repeats), ("numpy", 1)]
    assert got.entries[0].end_to_end_ms == 1000.0
    assert got.notes == []


# ------------------------------------------------------------------------------------------------- several processes


def made_up():
    """Two rooms: one has times by the host's clock, and the other kills its process."""
    return {
        "matmul": [
            workload(name="1", rungs=(right,), design=True, host={"numpy.add": np.add}),
            workload(name="2", rungs=(right,), host={"numpy.add": np.add}),
        ],
        "scan": [workload(name="3", rungs=(right,), design=True), workload(name="4", rungs=(dies,))],
    }


def dies(x, y):
    os._exit(7)


def stand_in(parent, number, cells, capacity, lock, until, quick):
    """What a process does, without a GPU."""
    bench.free_bytes = lambda wanted=0: PLENTY
    given = {"turns": turns.Turns(lock), "timer": FakeTimer(), "timed_by": FakeClock(1e-3)}
    ledger = processes.Ledger(cells, number, capacity)
    processes.serve(
        parent,
        made_up().__getitem__,
        lambda work: processes.measure_in_turn(work, ledger=ledger, until=until, **given),
        lambda work, entries, seconds: processes.measure_on_host(work, entries, seconds, **given),
    )


@unix
@pytest.mark.native("processes")
def test_processes_measure_all_rooms_and_one_that_dies_costs_what_it_measured(tmp_path):
    said = []
    found = processes.run_rooms(
        made_up(), 2, budget=1e6, memory=2**40, quiet=processes.Quiet(tmp_path / "quiet"),
        process=stand_in, progress=said.append,
    )  # fmt: skip
    assert [(one.workload, one.contender) for one in found["matmul"].entries] == [
        ("1", "right"), ("1", "numpy.add"), ("2", "right"), ("2", "numpy.add"),
    ]  # fmt: skip
    assert [one.workload for one in found["scan"].entries] == ["3"]
    assert found["matmul"].notes == []
    assert found["scan"].notes == ["add 4 FAILED: the process that measured it ended"]
    assert any(words.startswith("the host's times were taken") for words in said)
    assert any("s, matmul: " in words for words in said)
    assert said[0].startswith("2 processes are ready after")


@unix
@pytest.mark.native("processes")
def test_a_machine_that_never_becomes_quiet_costs_the_hosts_times_alone(tmp_path):
    quiet, rooms = processes.Quiet(tmp_path / "quiet", seconds=0.0), {"matmul": made_up()["matmul"]}
    with processes.Quiet(tmp_path / "quiet").shared():  # another part measures
        found = processes.run_rooms(
            rooms, 1, budget=0.0, memory=2**40, quiet=quiet, process=stand_in, progress=lambda words: None
        )
    assert [(one.workload, one.contender) for one in found["matmul"].entries] == [("1", "right")]
    assert found["matmul"].notes == [
        "add 2 was left out: the time was used up",
        "add 1 was not timed by the host's clock: the machine did not become quiet",
    ]


@unix
def test_who_needs_quiet_waits_for_all_who_measure(tmp_path):
    first, second = processes.Quiet(tmp_path / "quiet"), processes.Quiet(tmp_path / "quiet")
    with first.shared() as mine:
        with second.shared() as theirs:
            assert not first.wait(mine, 0.0, clock=lambda: 1.0)
            assert second.wait(theirs, 1e9)  # the first measures no more: it waits
            assert not first.wait(mine, 0.0, clock=lambda: 1.0)
        assert first.wait(mine, 1e9)
