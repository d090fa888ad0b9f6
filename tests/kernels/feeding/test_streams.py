"""The model of streams: orders, races, times."""

import itertools

import numpy as np
import pytest

from pmpp.kernels.feeding.streams import Program, describe


def fed(program, wait=True):
    program.fill("pinned", 0, us=5)
    program.copy("pinned", "there", "copies", us=7)
    if wait:
        program.wait("compute", program.record("copies"))
    program.kernel("there", "compute", us=4)
    return program


def test_an_event_orders_two_streams():
    assert fed(Program()).races() == []
    assert fed(Program()).us == 16
    (race,) = fed(Program(), wait=False).races()
    assert (race.first, race.second, race.memory, race.kind) == (1, 2, "there", "used too early")
    words = "operation 1, copy on copies, and 2, kernel on compute: there is used too early"
    assert describe(fed(Program(), wait=False), race) == words
    assert fed(Program(), wait=False).us == 12


def test_the_host_runs_ahead_of_copies_until_it_waits():
    program = fed(Program())
    program.fill("pinned", 1)
    assert [race.kind for race in program.races()] == ["filled too early"]
    waiting = Program()
    waiting.fill("pinned", 0)
    waiting.copy("pinned", "there", "copies", us=7)
    waiting.synchronize(waiting.record("copies"))
    waiting.fill("pinned", 1, us=2)
    assert waiting.races() == []
    assert waiting.us == 10
    assert ("host", "wait", 1.0, 8.0) in waiting.spans()


def test_an_event_before_anything_was_queued_orders_nothing():
    program = Program()
    program.wait("compute", program.record("copies"))
    program.copy("pinned", "there", "copies")
    program.kernel("there", "compute")
    assert [race.kind for race in program.races()] == ["used too early"]


def test_an_event_is_behind_what_its_stream_waits_for():
    program = Program()
    program.copy("pinned", "there", "copies")
    program.wait("middle", program.record("copies"))
    program.wait("compute", program.record("middle"))
    program.kernel("there", "compute")
    assert program.races() == []


def test_a_direction_has_one_engine():
    program = Program()
    for k in range(3):
        program.copy("x", f"there {k}", f"stream {k}", us=10)
        program.copy_back(f"other {k}", f"out {k}", f"back {k}", us=10)
    assert program.us == 30


def test_a_launch_keeps_the_host_busy():
    program = Program(launch=3)
    for _ in range(4):
        program.kernel("x", "compute", us=1)
    assert program.us == 13
    assert [span for span in program.spans() if span[0] == "host"] == [
        ("host", "launch", 3 * k, 3.0 * k + 3) for k in range(4)
    ]


def test_what_kernels_see():
    program = Program()
    for batch in (4, 5):
        program.fill("pinned", batch)
        program.copy("pinned", "there", "stream")
        program.kernel("there", "stream", writes="result")
        program.kernel("result", "stream")
    assert program.seen() == [4, 4, 5, 5]


@pytest.mark.parametrize("seed", range(20))
def test_races_are_those_that_some_order_shows(seed):
    """Of random programs: two operations have no order exactly if a schedule exists that exchanges them."""
    rng = np.random.default_rng(seed)
    program, events = Program(), []
    for _ in range(9):
        stream = f"s{rng.integers(3)}"
        what = rng.integers(4)
        if what == 0:
            program.copy("x", f"m{rng.integers(2)}", stream)
        elif what == 1:
            program.kernel(f"m{rng.integers(2)}", stream)
        elif what == 2 or not events:
            events.append(program.record(stream))
        else:
            program.wait(stream, events[rng.integers(len(events))])
    n = len(program.operations)
    reachable = np.eye(n, dtype=bool)
    for j, operation in enumerate(program.operations):
        for i in operation.after:
            reachable[:, j] |= reachable[:, i]
    for i, j in itertools.combinations(range(n), 2):
        assert program.ordered(i, j) == reachable[i, j]
