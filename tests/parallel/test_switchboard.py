"""The switchboard by itself: programs that fit run to their end, others are always found, and errors say where."""

import pickle
import random

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp.parallel.switchboard import (
    WORLD,
    CommunicationError,
    Deadlock,
    Mismatch,
    NotAMember,
    RankEnded,
    Reply,
    Request,
    Switchboard,
)


def call(kind, rank, where="a.py:1", **more):
    """A request; a kind that takes an array has one of three float32."""
    if kind not in ("barrier", "recv", "split"):
        more = {"dtype": "float32", "shape": (3,), "payload": np.full(3, rank, np.float32)} | more
    if kind == "recv":
        more = {"dtype": "float32", "shape": (3,)} | more
    if kind == "all_reduce":
        more = {"op": "sum"} | more
    return Request(kind, rank, more.pop("group", WORLD), where, **more)


def error_of(answers):
    """The one error that all are answered with."""
    assert len({id(error) for _, error in answers}) == 1
    assert isinstance(answers[0][1], CommunicationError)
    return answers[0][1]


# ---------------------------------------------------------------------------------------------------- drawn programs


def program(rng, size, length):
    """A program that is right: for each rank its calls in order. `events` are carried out one after another."""
    groups = [(WORLD, list(range(size)))]
    for colour in range(3):  # some groups, as split would have made them
        members = sorted(rng.sample(range(size), rng.randint(1, size)))
        groups.append((f"part {colour}", members))
    calls = [[] for _ in range(size)]
    for line in range(length):
        name, members = rng.choice(groups)
        where = f"a.py:{line}"
        if rng.random() < 0.5 and len(members) > 1:
            a, b = rng.sample(range(len(members)), 2)
            tag = rng.randint(0, 1)
            calls[members[a]].append(call("send", members[a], where, group=name, peer=b, tag=tag))
            calls[members[b]].append(call("recv", members[b], where, group=name, peer=a, tag=tag))
        else:
            kind = rng.choice(["barrier", "all_reduce", "all_gather"])
            for rank in members:
                calls[rank].append(call(kind, rank, where, group=name))
    return dict(groups), calls


def play(groups, calls, rng):
    """Ranks run in any order. Returns the first error, or None if all come to their end; nobody may be left waiting."""
    board = Switchboard(len(calls))
    board.groups |= {name: tuple(members) for name, members in groups.items()}
    board._made |= {name: [call("split", 0, "a.py:0")] for name in groups}
    left = [list(own) for own in calls]
    able = list(range(len(calls)))
    while able:
        rank = able.pop(rng.randrange(len(able)))
        answers = board.arrive(left[rank].pop(0)) if left[rank] else board.ended(rank, "it returned")
        able += [one for one, _ in answers]
        for _, answer in answers:
            if isinstance(answer, CommunicationError):
                assert board.error is answer
                return answer
    assert not board.waiting
    assert not any(left)
    return None


@hypothesis.settings(max_examples=60)
@hypothesis.given(st.randoms(use_true_random=False), st.integers(1, 6), st.integers(0, 12))
def test_a_program_that_fits_is_left_alone_in_any_order(rng, size, length):
    groups, calls = program(rng, size, length)
    for _ in range(3):
        assert play(groups, calls, rng) is None


@hypothesis.settings(max_examples=60)
@hypothesis.given(st.randoms(use_true_random=False), st.integers(2, 6), st.integers(1, 12))
def test_a_call_that_is_left_out_is_always_found(rng, size, length):
    groups, calls = program(rng, size, length)
    chosen = [(rank, i) for rank, own in enumerate(calls) for i, one in enumerate(own) if len(groups[one.group]) > 1]
    hypothesis.assume(chosen)
    rank, i = rng.choice(chosen)
    del calls[rank][i]
    for _ in range(3):
        assert isinstance(play(groups, calls, rng), CommunicationError)


@hypothesis.settings(max_examples=60)
@hypothesis.given(st.randoms(use_true_random=False), st.integers(2, 5), st.integers(2, 12))
def test_calls_in_any_order_end_in_a_fit_or_in_an_error(rng, size, length):
    """Ranks shuffle their calls. Whatever comes of it, nobody is left waiting: `play` asserts that."""
    groups, calls = program(rng, size, length)
    for own in calls:
        rng.shuffle(own)
    play(groups, calls, rng)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 40])
def test_a_ring_of_sends_of_any_length_is_found_by_its_last_call(size):
    board = Switchboard(size)
    order = random.Random(size).sample(range(size), size)
    for rank in order[:-1]:
        assert board.arrive(call("send", rank, f"a.py:{rank}", peer=(rank + 1) % size)) == []
    answers = board.arrive(call("send", order[-1], f"a.py:{order[-1]}", peer=(order[-1] + 1) % size))
    error = error_of(answers)
    assert type(error) is Deadlock
    assert [rank for rank, _ in answers] == list(range(size))
    assert error.ranks == tuple(range(size))
    assert str(error).startswith(f"deadlock: rank 0 sends to {1 % size} at a.py:0")


# ------------------------------------------------------------------------------------------------------ what errors say


def test_the_fewest_are_named_first_each_with_its_line():
    board = Switchboard(4)
    for rank in (0, 1, 3):
        assert board.arrive(call("broadcast", rank, f"train.py:{30 + (rank == 3)}", root=0)) == []
    error = error_of(board.arrive(call("all_reduce", 2, "train.py:40")))
    assert str(error) == (
        "ranks disagree: rank 2 calls all_reduce at train.py:40, "
        "ranks 0, 1 and 3 call broadcast(root=0) at train.py:30 and train.py:31"
    )
    assert error.ranks == (2, 0, 1, 3)


def test_of_many_ranks_a_message_names_a_few():
    board = Switchboard(20)
    for rank in range(19):
        board.arrive(call("barrier", rank))
    error = error_of(board.arrive(call("all_reduce", 19)))
    assert "ranks 0, 1, 2, 3, 4, 5 and 13 more call barrier" in str(error)


def test_after_an_error_everybody_is_told_the_same():
    board = Switchboard(3)
    board.arrive(call("barrier", 0))
    error = error_of(board.ended(2, "it returned"))
    assert type(error) is RankEnded
    assert str(error) == (
        "rank 2 has ended (it returned before it communicated), and rank 0 waits for it in barrier at a.py:1"
    )
    assert board.arrive(call("barrier", 1)) == [(1, error)]
    assert board.ended(1, "it returned") == []
    assert board.error is error


def test_who_waits_for_one_that_has_ended_is_told_when_it_calls():
    board = Switchboard(2)
    board.arrive(call("barrier", 0, "a.py:1"))
    board.arrive(call("barrier", 1, "a.py:2"))
    assert board.ended(1, "it raised ValueError at a.py:3") == []
    error = error_of(board.arrive(call("recv", 0, "a.py:9", peer=1, tag=4)))
    assert str(error) == (
        "rank 1 has ended (it raised ValueError at a.py:3 after barrier at a.py:2), and rank 0 waits for it in "
        "recv(source=1, tag=4) at a.py:9"
    )


def test_a_message_says_where_ranks_may_have_parted():
    board = Switchboard(2)
    for number, line in enumerate((1, 1, 2)):
        board.arrive(call("barrier", 0, "a.py:1", number=number))
        board.arrive(call("barrier", 1, f"a.py:{line}", number=number))
    board.ended(1, "it returned")
    error = error_of(board.arrive(call("barrier", 0, "a.py:9", number=3)))
    assert str(error) == (
        "rank 1 has ended (it returned after barrier at a.py:2), and rank 0 waits for it in barrier at a.py:9. "
        "Before, collective 3 was called from several lines: rank 0 at a.py:1, rank 1 at a.py:2"
    )


def test_a_rank_that_is_killed_while_it_waits_is_awaited_again():
    board = Switchboard(3)
    board.arrive(call("barrier", 0))
    board.arrive(call("barrier", 1))
    answers = board.ended(1, "it was killed")
    assert [rank for rank, _ in answers] == [0]
    error = error_of(answers)
    assert str(error) == (
        "rank 1 has ended (it was killed before it communicated), and rank 0 waits for it in barrier at a.py:1"
    )
    board = Switchboard(3)
    board.arrive(call("send", 0, peer=1))
    assert board.ended(0, "it was killed") == []
    error = error_of(board.arrive(call("recv", 1, "a.py:2", peer=0)))
    assert str(error).endswith("and rank 1 waits for it in recv(source=0) at a.py:2")


def test_calls_that_disagree_are_the_error_also_where_a_rank_has_ended():
    board = Switchboard(3)
    board.arrive(call("barrier", 0))
    board.arrive(call("all_reduce", 1, "a.py:2"))
    error = error_of(board.ended(2, "it returned"))
    assert type(error) is Mismatch
    assert str(error) == "ranks disagree: rank 0 calls barrier at a.py:1, rank 1 calls all_reduce at a.py:2"


def test_calls_that_disagree_are_the_error_also_in_a_deadlock():
    board = Switchboard(3)
    board.arrive(call("barrier", 0))
    board.arrive(call("all_reduce", 1))
    assert type(error_of(board.arrive(call("send", 2, peer=0)))) is Mismatch


def test_several_lines_are_no_error_by_themselves():
    board = Switchboard(2)
    for line in range(3):
        board.arrive(call("all_reduce", 0, f"a.py:{line}"))
        (_, first), (_, second) = board.arrive(call("all_reduce", 1, f"b.py:{line}"))
        assert first.payload.tolist() == second.payload.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "name, values, says",
    [
        ("op", ("sum", "max"), "rank 0 asks for sum at a.py:1, rank 1 asks for max at a.py:1"),
        ("dtype", ("float32", "float64"), "rank 0 passes float32 at a.py:1, rank 1 passes float64 at a.py:1"),
        ("shape", ((3,), (4,)), r"rank 0 passes (3,) at a.py:1, rank 1 passes (4,) at a.py:1"),
    ],
)
def test_what_has_to_agree(name, values, says):
    board = Switchboard(2)
    board.arrive(call("all_reduce", 0, **{name: values[0]}))
    error = error_of(board.arrive(call("all_reduce", 1, **{name: values[1]})))
    assert str(error) == f"ranks disagree on the {name} of all_reduce: {says}"


def test_in_a_broadcast_only_the_root_has_to_pass_an_array():
    board = Switchboard(2)
    board.arrive(call("broadcast", 0, root=1, dtype="", shape=None, payload=None))
    answers = board.arrive(call("broadcast", 1, root=1))
    assert [answer.payload.tolist() for _, answer in answers] == [[1, 1, 1]] * 2


def test_a_send_and_a_receive_of_two_groups_do_not_meet():
    board = Switchboard(2)
    for rank in range(2):
        wish = np.array([1, 0, 0])
        answers = board.arrive(call("split", rank, payload=wish))
    assert answers == [(rank, Reply(None, "world/0:0", (0, 1))) for rank in range(2)]
    board.arrive(call("send", 0, "a.py:5", peer=1))
    error = error_of(board.arrive(call("recv", 1, "a.py:6", group="world/0:0", peer=0)))
    assert str(error) == (
        "groups do not meet: rank 0 sends to rank 1 at a.py:5, and rank 1 waits for a message from rank 0 in another "
        "group at a.py:6"
    )


def test_a_rank_that_is_no_member():
    board = Switchboard(3)
    for rank, colour in enumerate((0, 0, 1)):
        board.arrive(call("split", rank, payload=np.array([1, colour, 0])))
    board.arrive(call("barrier", 0, group="world/0:0"))
    answers = board.arrive(call("barrier", 2, "a.py:7", group="world/0:0"))
    error = error_of(answers)
    assert type(error) is NotAMember
    assert [rank for rank, _ in answers] == [0, 2]
    assert str(error) == "rank 2 calls barrier at a.py:7, of a group that it is not in: its members are ranks 0 and 1"


def test_errors_can_be_sent_to_other_processes():
    board = Switchboard(1)
    error = error_of(board.arrive(call("recv", 0, peer=0)))
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.ranks) == (Deadlock, str(error), (0,))
