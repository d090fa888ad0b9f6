"""The messages between ranks and the exchange, and the exchange with ranks that are threads of this process."""

import json
import os
import sys
import threading
import time
from multiprocessing import Pipe

import numpy as np
import pytest

from pmpp.parallel import processes
from pmpp.parallel.processes import Connected, Exchange, answer_of, described, receive, request_of, send
from pmpp.parallel.switchboard import CommunicationError, Deadlock, Mismatch, RankEnded, Reply, Request
from pmpp.runtime import device

pytestmark = [
    pytest.mark.native("processes"),
    pytest.mark.skipif(os.name == "nt", reason="ranks are processes of Unix here"),
]


def through(header, array=None):
    """What arrives of a message."""
    one, other = Pipe()
    thread = threading.Thread(target=send, args=(one, header, array))
    thread.start()
    found = receive(other)
    thread.join()
    return found


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64", "bool"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (5,), (2, 3)])
def test_an_array_arrives_as_it_was(shape, dtype):
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    header, found = through({"text": "é" * len(shape)}, array)
    assert header == {"text": "é" * len(shape)}
    np.testing.assert_array_equal(found, array, strict=True)


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_long_array_arrives_in_pieces(more):
    array = np.arange(3 * processes.PIECE + more) % 251
    for sent in (array.astype(np.uint8), array.astype(np.float64)[::-1]):
        _, found = through({}, sent)
        np.testing.assert_array_equal(found, sent, strict=True)


def test_a_message_is_data_and_no_program():
    one, other = Pipe()
    send(one, {"kind": "recv"})
    assert json.loads(other.recv_bytes()) == [{"kind": "recv"}, None]


def test_requests_and_answers_arrive_as_they_were():
    request = Request("recv", 3, "world/2:1", "train.py:7", number=4, peer=1, tag=9, dtype="float32", shape=(2, 3))
    assert request_of(*through(request._asdict())) == request
    assert request_of(*through(Request("barrier", 0, "world", "a.py:1")._asdict())).shape is None
    reply = Reply(None, "world/0:5", (2, 0))
    assert answer_of(*through(*described(reply))) == reply
    for kind in (CommunicationError, Mismatch, Deadlock, RankEnded):
        found = answer_of(*through(*described(kind("so it is", (2, 1)))))
        assert (type(found), str(found), found.ranks) == (kind, "so it is", (2, 1))


@pytest.fixture
def exchange():
    failures = []
    made = Exchange(2, failures.append)
    made.failures = failures
    yield made
    made.close()


def connected(exchange, rank):
    given = exchange.environment
    client = processes.Client(given["PMPP_ADDRESS"], authkey=bytes.fromhex(given["PMPP_KEY"]))
    return Connected(rank, int(given["PMPP_SIZE"]), client, lambda: None)


def until(condition):
    """Wait for another thread."""
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("nothing has happened in half a minute")


def both(first, second):
    """Two ranks at once: what they return or raise."""
    results = [None, None]

    def run(k, function):
        try:
            results[k] = function()
        except Exception as error:
            results[k] = error

    thread = threading.Thread(target=run, args=(1, second))
    thread.start()
    run(0, first)
    thread.join()
    return results


@pytest.mark.parametrize("last", [0, 1])
def test_rank_0_is_told_last(exchange, last, monkeypatch):
    """Behind a call it may keep all other threads of its process from running, and these have the answers."""
    ranks = [connected(exchange, rank).group() for rank in range(2)]
    told, tell = [], exchange.tell
    monkeypatch.setattr(exchange, "tell", lambda rank, *answer: told.append(rank) or tell(rank, *answer))
    thread = threading.Thread(target=ranks[1 - last].barrier)
    thread.start()
    until(lambda: 1 - last in exchange.board.waiting)
    ranks[last].barrier()
    thread.join()
    assert told == [1, 0]


def test_ranks_that_are_connected_communicate_and_are_told_errors(exchange):
    one, two = connected(exchange, 0).group(), connected(exchange, 1).group()
    assert (repr(one), repr(two)) == ("<rank 0 of 2, simulated>", "<rank 1 of 2, simulated>")
    x = np.arange(100_000, dtype=np.float32)
    found = both(lambda: device.to_host(one.all_reduce(x)), lambda: device.to_host(two.all_reduce(x)))
    for result in found:
        np.testing.assert_array_equal(result, 2 * x)
    assert exchange.report().nbytes == {(0, 1): x.nbytes, (1, 0): x.nbytes}
    found = both(lambda: one.send(x, to=1), lambda: two.send(x, to=0))
    assert [type(error) for error in found] == [Deadlock, Deadlock]
    assert str(found[0]) == str(found[1]) == str(exchange.board.error)
    assert "test_processes.py" in str(found[0])


def test_a_thread_that_calls_while_another_one_waits_is_refused(exchange):
    transport = connected(exchange, 0)
    group = transport.group()
    found = []

    def wait():
        try:
            group.barrier()
        except RankEnded as error:
            found.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: 0 in exchange.board.waiting)
    with pytest.raises(
        CommunicationError, match=r"rank 0 calls barrier at .* while another thread of it is in barrier"
    ):
        group.barrier()
    exchange.ended(1, "it was never there")
    thread.join()
    assert "rank 1 has ended (it was never there" in str(found[0])


def test_memory_that_nobody_has_written_to_is_refused(exchange):
    if device.on_gpu():
        pytest.skip("only the interpreter knows what was written")
    with pytest.raises(CommunicationError, match="nobody has written to"):
        connected(exchange, 0).group().all_gather(device.empty(3, np.float32))


def test_a_second_process_with_the_number_of_a_rank_is_not_let_in(exchange):
    connected(exchange, 0).note("waits")
    until(lambda: 0 in exchange.notes)
    given = exchange.environment
    second = processes.Client(given["PMPP_ADDRESS"], authkey=bytes.fromhex(given["PMPP_KEY"]))
    send(second, {"rank": 0})
    with pytest.raises((EOFError, OSError)):
        second.recv_bytes()
    with pytest.raises(processes.AuthenticationError):
        processes.Client(given["PMPP_ADDRESS"], authkey=b"another")


def test_a_mistake_of_the_switchboard_ends_the_run_and_is_shown(exchange, monkeypatch):
    def broken(request):
        raise KeyError("a mistake")

    monkeypatch.setattr(exchange.board, "arrive", broken)
    connected(exchange, 1)._send(Request("barrier", 1, "world", "a.py:1")._asdict())
    until(lambda: exchange.failures)
    assert exchange.failures == [1]
    assert "KeyError: 'a mistake'" in exchange.notes[1]["traceback"]


def test_where_an_error_came_from(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys\n\ndef f():\n    raise ValueError('so')\n\n\nf()\n", encoding="utf-8")
    before = sys.argv[:], sys.path[:], sys.modules["__main__"]
    try:
        with pytest.raises(ValueError, match="so") as caught:
            processes.execute([str(script), "argument"])
        assert sys.argv == [str(script), "argument"]
        assert sys.path[0] == str(tmp_path)
        script.write_text("def f(:\n", encoding="utf-8")
        with pytest.raises(SyntaxError) as wrong:
            processes.execute([str(script)])
    finally:
        sys.argv[:], sys.path[:], sys.modules["__main__"] = before
    assert processes.ending(caught.value) == ("raised ValueError at script.py:4", True)
    told = processes.told(caught.value).splitlines()
    assert told[0] == "Traceback (most recent call last):"
    assert told[1].endswith(", line 7, in <module>")
    assert told[-1] == "ValueError: so"
    assert processes.ending(wrong.value) == ("raised SyntaxError at script.py:1", True)
    assert not processes.ending(SystemExit(0))[1]
    assert not processes.ending(SystemExit())[1]
    assert processes.ending(SystemExit("text"))[1]
