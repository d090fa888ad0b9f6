"""Signals against the definition: random programs of stores, loads, fences and flags, and who knows of what."""

import itertools

import numpy as np
import pytest

from pmpp import simt
from pmpp.simt import cuda
from tests.corpus import judge, pairs

IDLE, STORE, LOAD, FENCE, SIGNAL, LOOK = range(6)
NOTHING, WARP_BARRIER, BARRIER, BY_HALVES = range(4)


@cuda.jit
def program(action, element, after, data, flag, out):
    i = cuda.grid(1)
    for k in range(after.size):
        if action[k, i] == STORE:
            data[element[k, i]] = 1000 * k + i + 1
        if action[k, i] == LOAD:
            out[i] += data[element[k, i]]
        if action[k, i] == FENCE:
            cuda.threadfence()
        if action[k, i] == SIGNAL:
            cuda.atomic.add(flag, element[k, i], 1)
        if action[k, i] == LOOK:
            while flag[element[k, i]] < 0:
                pass
        if after[k] == WARP_BARRIER:
            cuda.syncwarp()
        if after[k] == BY_HALVES:
            cuda.syncwarp(0xFFFF if cuda.laneid < 16 else 0xFFFF0000)
        if after[k] == BARRIER:
            cuda.syncthreads()


def programs(seed, grid, block):
    """A message or two that is handed over more or less rightly: the actions, and what follows each step."""
    rng = np.random.default_rng(seed)
    action, element, after = [], [], []

    def step(kind, thread, where=0, then=(0.4, 0.2, 0.3, 0.1)):
        action.append(np.zeros(grid * block, np.int64))
        element.append(np.zeros(grid * block, np.int64))
        action[-1][thread], element[-1][thread] = kind, where
        after.append(rng.choice([NOTHING, WARP_BARRIER, BARRIER, BY_HALVES], p=then))

    def close_to(thread):
        """Mostly the same thread, else one of its warp or block."""
        reach = rng.choice([1, 32, block], p=[0.8, 0.1, 0.1])
        return thread // reach * reach + rng.integers(reach)

    for _ in range(rng.integers(1, 3)):
        source = rng.integers(2) * block
        writer, reader = source + rng.integers(block), block - source + rng.integers(block)
        place, flag = rng.integers(0, 2, 2)
        step(STORE, writer, place)
        leader = close_to(writer)
        if rng.random() < 0.85:
            step(FENCE, leader)
        step(SIGNAL, close_to(leader) if rng.random() < 0.3 else leader, flag)
        looker = close_to(reader)
        wanted = flag if rng.random() < 0.9 else 1 - flag
        if rng.random() < 0.5:
            step(SIGNAL, looker, wanted)
        else:
            step(LOOK, looker, wanted)
            if rng.random() < 0.85:
                step(FENCE, looker if rng.random() < 0.8 else reader)
        step(LOAD, reader, place)
    return np.array(action), np.array(element), np.array(after)


class Knowledge:
    """What each thread knows of each other one's past, by the definition: clocks, one a thread."""

    def __init__(self, threads, flags):
        self.known = np.zeros((threads, threads), np.int64)
        self.fenced, self.looked = np.zeros_like(self.known), np.zeros_like(self.known)
        self.said = np.zeros((flags, threads), np.int64)

    def fence(self, t):
        self.known[t] = np.maximum(self.known[t], self.looked[t])
        self.fenced[t] = np.maximum(self.fenced[t], self.known[t])

    def signal(self, pairs):
        for t, e in pairs:
            self.said[e] = np.maximum(self.said[e], self.fenced[t])
        for t, e in pairs:
            self.known[t] = np.maximum(self.known[t], self.said[e])

    def meet(self, group):
        for each in (self.known, self.fenced, self.looked):
            each[group] = each[group].max(axis=0)


def races(action, element, after, grid, block):
    """The pairs of accesses that nothing orders, as (thread, thread)."""
    knowledge, accesses = Knowledge(grid * block, 2), []
    found, steps = [], itertools.product(range(after.size), [STORE, LOAD, FENCE, SIGNAL, LOOK, None])
    for now, (k, kind) in enumerate(steps, start=1):
        np.fill_diagonal(knowledge.known, now)
        who = np.flatnonzero(action[k] == kind).tolist() if kind is not None else []
        if kind in (STORE, LOAD):
            new = [(now, t, kind, element[k, t]) for t in who]
            for (then, t, a, e), (_, u, b, f) in itertools.product(accesses + new, new):
                if t != u and e == f and STORE in (a, b) and (then == now or then > knowledge.known[u, t]):
                    found.append((t, u))
            accesses += new
        for t in who if kind == FENCE else ():
            knowledge.fence(t)
        if kind == SIGNAL:
            knowledge.signal([(t, element[k, t]) for t in who])
        for t in who if kind == LOOK else ():
            knowledge.looked[t] = np.maximum(knowledge.looked[t], knowledge.said[element[k, t]])
        size = {WARP_BARRIER: 32, BY_HALVES: 16, BARRIER: block}.get(after[k]) if kind is None else None
        for first in range(0, grid * block, size) if size else ():
            knowledge.meet(np.arange(first, first + size))
    return found


@pytest.mark.parametrize("grid, block", [(2, 32), (2, 64)])
def test_messages_between_blocks(grid, block):
    """Nothing is reported that is no race, and nearly every race is.  (Of a block is not kept who signalled.)"""
    racy = quiet = missed = 0
    for seed in range(60):
        action, element, after = programs(seed, grid, block)
        expected = races(action, element, after, grid, block)
        args = action, element, after, np.zeros(2, np.int64), np.zeros(2, np.int64), np.zeros(grid * block, np.int64)
        report = simt.profile(program, grid, block, args, level="check", collect=True, schedule="lockstep")
        assert {h.variable for h in report.hazards} <= {"data"}
        assert expected or not report.hazards, (seed, [h.message for h in report.hazards])
        racy += bool(expected)
        quiet += not expected
        missed += bool(expected) and not report.hazards
    assert racy > 20
    assert quiet > 10
    assert missed <= 1, (racy, missed)


CAUSES = {
    "message_without_a_fence": "an atomic in between orders them only with a fence before it",
    "fence_behind_the_signal": "no fence came between it and the signal",
    "shared_flag_without_a_fence": "no fence came between it and the signal",
    "one_thread_fences_and_another_signals": "thread 32 of block 0 fenced it, and gave no signal after that",
    "leader_publishes_for_lanes_it_has_not_met": "thread 0 of block 0 fenced, and had not met that thread at a barrier",
    "waiting_by_compare_and_swap": "thread 0 of block 1 fenced, and had not met that thread at a barrier",
    "one_warp_waits_for_the_block": "thread 0 of block 1 has seen the signal, and this thread has not met it",
    "one_lane_waits_on_shared_memory": "thread 0 of block 0 has seen the signal, and this thread has not met it",
    "second_message_under_the_first_flag": "has looked at a signal, and not at the one that was given for this",
    "reader_fences_behind_the_data": "has read the signal by a plain load, and passed no fence after that",
    "message_read_without_a_look_at_the_flag": "a signal was given, and no thread of this block has looked at it since",
}


@pytest.mark.parametrize("name", CAUSES)
def test_the_message_says_what_is_missing(name):
    (pair,) = [pair for pair in pairs() if pair.name == name]
    (hazard,) = judge.run(pair, False)[0].hazards
    assert CAUSES[name] in hazard.message
