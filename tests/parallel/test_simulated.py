"""Ranks in one process: their order, what they send and when it arrives, what is their own, and how they end."""

import _thread
import math
import os
import random
import re
import signal
import sys
import threading

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import nn, parallel
from pmpp.parallel import group, simulated, traffic
from pmpp.parallel.owners import ForeignMemory, UnwrittenMemory
from pmpp.parallel.switchboard import Deadlock, NotAMember, RankEnded
from pmpp.runtime import device

pytestmark = pytest.mark.native("threads")


in_the_interpreter = pytest.mark.skipif(device.on_gpu(), reason="arrays have owners in the interpreter only")


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("rank ")] == []


def report_of(size, function, **options):
    return parallel.ranks(size, function, **options).report


# --------------------------------------------------------------------------------------------------------------- turns


def test_a_rank_runs_until_it_communicates():
    def step(group, said):
        for k in range(3):
            said.append((k, group.rank))
            group.barrier()

    said = []
    parallel.ranks(3, step, said)
    assert said == [(0, 0), (0, 1), (0, 2), *[(k, rank) for k in (1, 2) for rank in range(3)]]


def test_one_rank_runs_at_a_time():
    def step(group, inside):
        for _ in range(5):
            inside.append(group.rank)
            assert len(inside) == 1
            sum(range(100_000))  # Python changes threads meanwhile, if another one is able to run
            inside.pop()
            group.barrier()

    parallel.ranks(4, step, [])


def test_a_browser_has_no_ranks(monkeypatch):
    monkeypatch.setattr(sys, "platform", "emscripten")
    with pytest.raises(RuntimeError, match="ranks are threads, and a browser has none"):
        parallel.ranks(2, lambda group: group.rank)


def test_results_come_by_rank_and_arguments_go_to_all():
    assert parallel.ranks(3, lambda group, a, b: (a, b, group.rank), 1, "two") == [
        (1, "two", rank) for rank in range(3)
    ]


def test_many_ranks():
    found = parallel.ranks(64, lambda group: device.to_host(group.all_reduce(np.array(group.rank))).item())
    assert found == [64 * 63 // 2] * 64


def test_ranks_within_a_rank():
    def inner(group):
        return device.to_host(group.all_reduce(np.array(group.rank))).item()

    def outer(group):
        return parallel.ranks(3, inner), device.to_host(group.all_reduce(np.array(1))).item()

    assert parallel.ranks(2, outer) == [([3, 3, 3], 2)] * 2


def test_init_knows_the_rank():
    def step(group):
        assert parallel.init() is group
        return repr(parallel.init())

    assert parallel.ranks(2, step) == ["<rank 0 of 2, simulated>", "<rank 1 of 2, simulated>"]
    assert parallel.init().size == 1


@pytest.mark.parametrize(
    "arguments, options, error, says",
    [
        ((0, print), {}, ValueError, "size must be at least 1, was 0"),
        ((2.0, print), {}, TypeError, r"size must be an integer, was 2\.0"),
        ((2, "train"), {}, TypeError, "function must be what every rank calls, was str"),
        ((2, print), {"links": 1e9}, TypeError, "links must be Links"),
    ],
)
def test_a_wrong_argument_is_named(arguments, options, error, says):
    with pytest.raises(error, match=says):
        parallel.ranks(*arguments, **options)


@pytest.mark.parametrize(
    "arguments, says",
    [
        ((-1e-6, 1e9), "latency must not be negative"),
        ((1e-6, 0), "bandwidth must be greater than 0"),
        ((1e-6, -1), "bandwidth must not be negative"),
        ((math.nan, 1), "latency must be a finite number"),
    ],
)
def test_wrong_links_are_named(arguments, says):
    with pytest.raises(ValueError, match=says):
        parallel.Links(*arguments)


# -------------------------------------------------------------------------------------------------------------- traffic

ALPHA, BETA = 1e-6, 1e-9  # seconds a message, seconds a byte
LINKS = parallel.Links(ALPHA, 1 / BETA)
N = 120  # bytes of the array: a multiple of the sizes below


def logarithm(size):
    return math.ceil(math.log2(size))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize(
    "call, messages, nbytes, steps, longest",
    [  # by size: messages and bytes in all; and the steps one after another, each of messages of so many bytes
        (lambda g, x: g.barrier(), lambda p: p * logarithm(p), lambda p: 0, logarithm, lambda p: 0),
        (lambda g, x: g.broadcast(x, 0), lambda p: p - 1, lambda p: (p - 1) * N, logarithm, lambda p: N),
        (lambda g, x: g.reduce(x, g.size - 1), lambda p: p - 1, lambda p: (p - 1) * N, logarithm, lambda p: N),
        (lambda g, x: g.all_reduce(x), lambda p: 2 * p * (p - 1), lambda p: 2 * (p - 1) * N, lambda p: 2 * (p - 1),
         lambda p: N // p),
        (lambda g, x: g.reduce_scatter(x.reshape(g.size, -1)), lambda p: p * (p - 1), lambda p: (p - 1) * N,
         lambda p: p - 1, lambda p: N // p),
        (lambda g, x: g.all_gather(x), lambda p: p * (p - 1), lambda p: p * (p - 1) * N, lambda p: p - 1, lambda p: N),
        (lambda g, x: g.all_to_all(x.reshape(g.size, -1)), lambda p: p * (p - 1), lambda p: (p - 1) * N,
         lambda p: p - 1, lambda p: N // p),
    ],
    ids=["barrier", "broadcast", "reduce", "all_reduce", "reduce_scatter", "all_gather", "all_to_all"],
)  # fmt: skip
def test_a_collective_sends_and_takes_what_its_formula_says(size, call, messages, nbytes, steps, longest):
    if N // 2 % size:
        pytest.skip("the parts would differ in size")
    report = report_of(size, lambda group: call(group, np.ones(N // 2, np.float16)), links=LINKS)
    assert sum(report.messages.values()) == messages(size)
    assert sum(report.nbytes.values()) == nbytes(size)
    assert max(report.seconds) == pytest.approx(steps(size) * (ALPHA + longest(size) * BETA), rel=1e-12)
    ((_, counted),) = report.kinds.items()
    assert counted == (1, messages(size), nbytes(size))


def test_a_ring_uses_the_links_to_the_right_neighbours_alone():
    report = report_of(4, lambda group: group.all_reduce(np.ones(6, np.int64)))
    assert report.messages == {(0, 1): 6, (1, 2): 6, (2, 3): 6, (3, 0): 6}
    # Parts of 2, 2, 1 and 1 elements. In the first half rank r sends all but part r, in the second all but r + 1.
    parts = np.array([2, 2, 1, 1])
    sent = [12 - parts[rank] - parts[(rank + 1) % 4] for rank in range(4)]
    assert report.nbytes == {(rank, (rank + 1) % 4): 8 * sent[rank] for rank in range(4)}
    assert report.seconds is None


def test_a_tree_begins_at_its_root():
    report = report_of(5, lambda group: group.broadcast(np.ones(1), 2))
    assert set(report.messages) == {(2, 3), (2, 4), (3, 0), (2, 1)}
    report = report_of(5, lambda group: group.reduce(np.ones(1), 2))
    assert set(report.messages) == {(3, 2), (4, 2), (0, 3), (1, 2)}


def test_messages_of_a_smaller_group_count_for_the_ranks_among_all():
    def step(group):
        part = group.split(group.rank % 2)
        before = dict(simulated._here.run.traffic.messages)
        part.all_reduce(np.ones(2))
        return before

    results = parallel.ranks(4, step)
    extra = {link: n - results[0].get(link, 0) for link, n in results.report.messages.items()}
    assert {link: n for link, n in extra.items() if n} == {(0, 2): 2, (2, 0): 2, (1, 3): 2, (3, 1): 2}


def test_a_clock_waits_for_the_later_of_the_two():
    def step(group):
        box = device.empty(10, np.int8 if group.rank > 9 else np.float16)
        if group.rank == 0:
            parallel.work(5.0)
            group.send(np.zeros(10, np.float16), 1)
        if group.rank == 1:
            parallel.work(1.0)
            group.recv(box, 0)
        if group.rank == 2:
            parallel.work(0.5)

    report = report_of(3, step, links=parallel.Links(latency=2.0, bandwidth=20.0))
    assert report.seconds == (8.0, 8.0, 0.5)


def test_work_outside_of_a_rank_does_nothing_and_is_checked():
    assert parallel.work(1.0) is None
    with pytest.raises(ValueError, match="seconds must not be negative"):
        parallel.work(-1.0)


def test_the_report_is_text_and_a_page():
    report = report_of(2, lambda group: group.all_reduce(np.ones(1000)), links=LINKS)
    assert str(report).splitlines() == [
        "2 ranks: 4 messages, 16,000 bytes",
        "from  to  messages  bytes",
        "0     1          2  8,000",
        "1     0          2  8,000",
        "",
        "By call",
        "call        times  messages   bytes",
        "all_reduce      1         4  16,000",
        "",
        "Clocks",
        "rank     µs",
        "0     10.00",
        "1     10.00",
    ]
    page = report._repr_html_()
    assert page.count("<table>") == 3
    assert "8,000" in page


def test_a_report_of_many_links_adds_up_the_idle_ones():
    report = report_of(7, lambda group: group.all_to_all(np.ones((7, 1))))
    lines = str(report).splitlines()
    assert lines[2 + traffic.ROWS].split() == ["others", "18", "links", "18", "144"]


# ------------------------------------------------------------------------------------------------- what is a rank's own


def test_random_numbers_are_a_ranks_own_and_the_callers_go_on():
    def step(group):
        np.random.seed(group.rank)  # noqa: NPY002 - programs do
        random.seed(group.rank)
        drawn = []
        for _ in range(3):
            group.barrier()
            drawn.append((np.random.rand(), random.random()))  # noqa: NPY002
        return drawn

    def by_itself(rank):
        legacy, plain = np.random.RandomState(rank), random.Random(rank)
        return [(legacy.rand(), plain.random()) for _ in range(3)]

    random.seed(3)
    before = random.getstate()
    assert parallel.ranks(3, step) == [by_itself(rank) for rank in range(3)]
    assert random.getstate() == before


def test_the_state_of_networks_is_a_ranks_own():
    def step(group):
        found = [nn.init.where(), nn.tape.state.recording]
        nn.manual_seed(10 + group.rank)
        with nn.no_grad():
            group.barrier()
            if group.rank == 0:
                nn.tape.state.recording = True
            group.barrier()
            return [*found, nn.init.where(), nn.tape.state.recording]

    nn.manual_seed(7)
    assert parallel.ranks(2, step) == [
        [(0, 0, 0), True, (10, 0, 0), True],
        [(0, 0, 0), True, (11, 0, 0), False],
    ]
    assert nn.init.where() == (7, 0, 0)


def test_what_the_caller_has_set_for_numpy_holds_in_ranks():
    with np.errstate(over="raise"):
        assert parallel.ranks(2, lambda group: np.geterr()["over"]) == ["raise", "raise"]


def foreign(function, size=2, **given):
    with pytest.raises(ForeignMemory) as found:
        parallel.ranks(size, function, *given.values())
    return str(found.value)


def ours(group):
    return device.to_device(np.arange(4.0) + group.rank)


@in_the_interpreter
@pytest.mark.parametrize(
    "use",
    [
        lambda group, x: group.all_reduce(x),
        lambda group, x: group.all_reduce(x[1:3]),
        lambda group, x: group.broadcast(x.reshape(2, 2), 1),
        lambda group, x: group.broadcast(None, 0, out=x) if group.rank else group.broadcast(x, 0),
        lambda group, x: group.recv(x, 0) if group.rank else group.send(x, 1),
        lambda group, x: group.send(x, 0) if group.rank else group.recv(ours(group), 1),
    ],
)
def test_an_array_of_another_rank_is_refused(use):
    def step(group, shelf):
        x = shelf.setdefault("x", ours(group))
        use(group, x)

    assert "rank 1 passes an array that rank 0 made" in foreign(step, shelf={})


@in_the_interpreter
def test_an_array_belongs_to_the_rank_whose_turn_it_was():
    def step(group, shelf):
        for _ in range(3):
            shelf[group.rank] = ours(group)
            group.barrier()
            x = shelf[group.rank]
            assert group.all_reduce(x, out=x) is x
        return group.all_reduce(shelf[1 if group.rank == 2 else group.rank])

    assert "rank 2 passes an array that rank 1 made" in foreign(step, size=3, shelf={})


def test_what_was_there_before_may_be_read_by_all():
    x = device.to_device(np.arange(3.0))
    found = parallel.ranks(3, lambda group, x: device.to_host(group.all_reduce(x)).tolist(), x)
    assert found == [[0, 3, 6]] * 3


def test_what_was_there_before_may_be_written_by_one_rank():
    rows = [device.to_device(np.zeros(2)) for _ in range(2)]
    parallel.ranks(2, lambda group: group.all_reduce(np.ones(2), out=rows[group.rank]))
    assert [row.copy_to_host().tolist() for row in rows] == [[2, 2]] * 2
    whole = device.to_device(np.zeros((2, 2)))
    parallel.ranks(2, lambda group: group.all_reduce(np.ones(2), out=whole[group.rank]))
    assert whole.copy_to_host().tolist() == [[2, 2]] * 2


@in_the_interpreter
def test_what_was_there_before_may_not_be_written_by_one_and_used_by_another():
    def neighbours(group, x):
        part = x[group.rank : group.rank + 2]  # ranks share an element
        return group.all_reduce(np.ones(2), out=part)

    assert "rank 1 and rank 0 have the same memory: out of" in foreign(neighbours, x=device.to_device(np.zeros(3)))

    def read_and_write(group, x):
        return group.broadcast(x, out=None if group.rank == 0 else x)

    assert "have the same memory: out of broadcast at " in foreign(read_and_write, x=device.to_device(np.zeros(3)))


@in_the_interpreter
def test_memory_that_nobody_wrote_is_not_sent():
    def step(group):
        x = device.empty(4, np.float32)
        x[:1].copy_to_device(np.ones(1, np.float32))
        group.all_reduce(x)  # a buffer that is filled in part is sent: padding is no mistake
        group.broadcast(device.empty(4, np.float32) if group.rank else x, 0)  # what others pass does not matter
        group.all_reduce(x[2:])

    with pytest.raises(UnwrittenMemory, match=r"rank 0 sends memory that nobody has written to: x of all_reduce at "):
        parallel.ranks(2, step)


# ---------------------------------------------------------------------------------------------------------- their ends


def test_an_error_is_raised_with_its_rank_and_the_others_are_stopped():
    ended = []

    def step(group):
        try:
            if group.rank == 1:
                raise KeyError("weights")
            try:
                group.barrier()
            except Exception:
                ended.append("caught")
        finally:
            ended.append(group.rank)

    with pytest.raises(KeyError, match="weights") as found:
        parallel.ranks(4, step)
    (note,) = found.value.__notes__
    assert re.fullmatch(r"raised by rank 1 of 4 at .*test_simulated\.py:\d+", note)
    assert [entry.name for entry in found.traceback][-1] == "step"
    assert ended == [1, 0]  # ranks 2 and 3 had not begun


def test_a_rank_that_is_stopped_cannot_communicate_any_more():
    def step(group, tried):
        try:
            group.barrier()
            if group.rank == 1:
                raise KeyError
            group.barrier()
        finally:
            tried.append(group.rank)
            group.barrier()

    tried = []
    with pytest.raises(KeyError):
        parallel.ranks(2, step, tried)
    assert sorted(tried) == [0, 1]


def test_a_communication_error_comes_from_the_rank_that_made_the_mistake():
    def step(group):
        group.all_reduce(np.ones(2 if group.rank == 2 else 3))

    with pytest.raises(parallel.CommunicationError, match="rank 2 passes") as found:
        parallel.ranks(4, step)
    assert found.value.__notes__[0].startswith("raised by rank 2 of 4 at ")


def test_a_rank_may_catch_a_communication_error():
    def step(group):
        for _ in range(2):
            with pytest.raises(Deadlock, match=r"deadlock: rank 0 sends to 1 at .*, rank 1 sends to 0 at ") as found:
                group.send(np.ones(1), 1 - group.rank)
        return found.value

    one, other = parallel.ranks(2, step)
    assert one is not other  # or one would have the traceback of both


def test_ending_by_itself_is_told_to_those_who_wait():
    def step(group):
        if group.rank:
            raise SystemExit(3)
        group.barrier()

    with pytest.raises(SystemExit) as found:
        parallel.ranks(2, step)
    assert found.value.code == 3

    with pytest.raises(RankEnded, match=r"rank 1 has ended \(it returned before it communicated\)"):
        parallel.ranks(2, lambda group: None if group.rank else group.barrier())


@pytest.mark.parametrize("where", ["computing", "between calls"])
def test_ctrl_c_ends_all_ranks(where):
    stopped = []

    def step(group):
        try:
            group.barrier()
            if group.rank == 0:  # it is the first behind the barrier
                _thread.interrupt_main()
            while True:
                if where == "between calls":
                    group.barrier()
        finally:
            stopped.append(group.rank)

    # A process that a shell began in the background ignores the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            parallel.ranks(3, step)
    finally:
        signal.signal(signal.SIGINT, before)
    assert sorted(stopped) == [0, 1, 2]


def test_a_thread_that_is_no_rank_is_refused():
    def step(group):
        said = []

        def other():
            with pytest.raises(
                NotAMember, match=f"a thread that is no rank uses a group of rank {group.rank}, in barrier"
            ):
                group.barrier()
            said.append("refused")

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        group.barrier()
        return said

    assert parallel.ranks(2, step) == [["refused"]] * 2


def test_a_group_that_outlives_its_run_is_refused():
    (group,) = parallel.ranks(1, lambda group: group)
    with pytest.raises(NotAMember, match="a thread that is no rank uses a group of rank 0"):
        group.barrier()


@hypothesis.settings(max_examples=15)
@hypothesis.given(st.integers(2, 5), st.integers(0, 2**32 - 1))
def test_a_run_is_the_same_every_time(size, seed):
    """Calls by chance, most of which do not fit: the same error, or the same results, and the same traffic."""

    def step(group, said):
        rng = random.Random(seed + group.rank % 2)
        for _ in range(6):
            said.append(group.rank)
            other = (group.rank + rng.choice([1, -1])) % size
            rng.choice([
                group.barrier,
                lambda: group.all_reduce(np.ones(2)),
                lambda to=other: group.send(np.ones(1), to),
                lambda source=other: group.recv(device.empty(1, np.float64), source),
            ])()  # fmt: skip

    def run():
        said = []
        try:
            return said, parallel.ranks(size, step, said).report.messages
        except parallel.CommunicationError as error:
            return said, str(error), error.__notes__

    assert run() == run()


# ---------------------------------------------------------------------------------------------------------------- lines


def run_as(path, text, **given):
    """Run code as if it stood in a file."""
    space = dict(given)
    exec(compile(text, path, "exec"), space)
    return space


@pytest.mark.parametrize(
    "path, shown",
    [
        (os.path.join(os.getcwd(), "lessons", "train.py"), os.path.join("lessons", "train.py")),
        ("/elsewhere/train.py", "train.py"),
        ("/tmp/ipykernel_4711/123.py", "cell"),
        ("<stdin>", "<stdin>"),
    ],
)
def test_a_line_is_named_by_its_file(path, shown):
    found = run_as(path, "\n\nwhere = caller()", caller=group.caller)
    assert found["where"] == f"{shown}:3"


def test_an_error_arose_in_the_program_and_not_in_a_library():
    space = run_as(
        "/elsewhere/train.py", "\ndef f():\n    device.empty(-1, 'int8')\ndef g():\n    1 / 0", device=device
    )
    for name, line in (("f", 3), ("g", 5)):
        with pytest.raises(Exception) as found:  # noqa: PT011 - whatever it is
            space[name]()
        assert group.place_of(found.value) == f"train.py:{line}"


# ------------------------------------------------------------------------------------------------ both ways at a time


def passed_on(group, lengths):
    """A step of a ring: 10 a rank and unequal lengths."""
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    box = device.empty(lengths[left], np.int32)
    group.send_recv(np.full(lengths[group.rank], group.rank, np.int32), right, box, left)
    return device.to_host(box).tolist()


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_ring_exchanges_at_once_in_the_time_of_its_messages(size):
    lengths = list(range(1, size + 1))
    found = parallel.ranks(size, passed_on, lengths, links=parallel.Links(1.0, 4.0))
    assert found == [[(rank - 1) % size] * lengths[rank - 1] for rank in range(size)]
    assert sum(found.report.messages.values()) == size
    # 1 second for a message, and one for each element: a rank is done with what it sends and what it receives.
    assert found.report.seconds == tuple(1.0 + max(lengths[rank], lengths[rank - 1]) for rank in range(size))


def test_send_recv_meets_send_and_recv_one_after_the_other():
    """Rank 1's two halves are met by different ranks; neither rank 0 nor rank 2 waits for the other."""

    def step(group):
        box = device.empty(1, np.int64)
        mine = np.array([group.rank])
        if group.rank == 0:
            group.send(mine, 1)
            group.send(mine + 10, 2)
        elif group.rank == 1:
            group.send_recv(mine, 2, box, 0)
        else:
            group.recv(box, 0)
            first = device.to_host(box)[0]
            group.recv(box, 1)
            return [int(first), int(device.to_host(box)[0])]
        return device.to_host(box).tolist() if group.rank else None

    assert parallel.ranks(3, step) == [None, [0], [10, 1]]


def test_half_of_it_is_met_and_the_other_can_never_be():
    def step(group):
        box = device.empty(1, np.int64)
        if group.rank == 0:
            group.send_recv(np.array([1]), 1, box, 1)
        else:
            group.recv(box, 0)

    with pytest.raises(RankEnded, match=r"rank 1 has ended .* rank 0 waits for it in send_recv\(to=1, source=1\)"):
        parallel.ranks(2, step)


def test_what_is_sent_is_not_what_is_filled():
    def step(group, apart):
        x = device.to_device(np.zeros(4))
        group.send_recv(x[:2], 1 - group.rank, x[2:] if apart else x[1:3] if apart is None else x[:2], 1 - group.rank)

    parallel.ranks(2, step, True)
    for apart in (False, None):
        with pytest.raises(ValueError, match="out"):
            parallel.ranks(2, step, apart)
    with pytest.raises(TypeError, match="out must be a device array to receive into, was None"):
        parallel.init().send_recv(np.zeros(1), 0, None, 0)
