"""The model of a step: its all-reduces against clocks of ranks, against a simulation in ticks, and at its limits."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import parallel
from pmpp.parallel import Links, all_reduce
from pmpp.parallel.data import grouped
from pmpp.parallel.overlap import Layer, Step, step, timeline

LINKS = Links(latency=2e-6, bandwidth=10e9)


@pytest.mark.native("threads")
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("bucket", [64, 256, 1 << 20])
def test_without_overlap_the_clocks_of_ranks_agree(size, bucket):
    layers = [Layer(64 * k, 1e-6 * k) for k in (1, 2, 3)]

    def function(group):
        parallel.work(sum(layer.seconds for layer in layers))
        for places in grouped([layer.nbytes for layer in layers], bucket):
            nbytes = sum(layers[k].nbytes for k in places)
            group.all_reduce(np.zeros(nbytes // 4, np.float32), "mean")

    clocks = parallel.ranks(size, function, links=LINKS).report.seconds
    predicted = timeline(layers, bucket, size, LINKS, overlap=False)[-1].end
    assert clocks == pytest.approx([predicted] * size)


def in_ticks(layers, bucket, took):
    """The end of each bucket, by a clock that ticks: one gradient or one piece of a bucket's sum a tick."""
    waiting = grouped([layer.nbytes for layer in layers], bucket)
    left = [int(layer.seconds) for layer in layers]
    done, at, tick, ends, busy = set(), len(layers) - 1, 0, [], 0
    while waiting:
        if not busy and done.issuperset(waiting[0]):
            busy = took(sum(layers[k].nbytes for k in waiting[0]))
        tick += 1
        if at >= 0:
            left[at] -= 1
            if not left[at]:
                done.add(at)
                at -= 1
        if busy:
            busy -= 1
            if not busy:
                waiting.pop(0)
                ends.append(tick)
    return ends


@hypothesis.given(
    parts=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 6)), min_size=1, max_size=6),
    bucket=st.integers(1, 12),
    latency=st.integers(0, 3),
)
def test_with_overlap_a_simulation_in_ticks_agrees(parts, bucket, latency):
    layers = [Layer(nbytes, float(seconds)) for nbytes, seconds in parts]
    links = Links(float(latency), 1.0)
    found = timeline(layers, bucket, 2, links)
    ends = in_ticks(layers, bucket, lambda nbytes: int(all_reduce.seconds(all_reduce.ring, 2, nbytes, links)))
    assert [one.end for one in found] == ends
    assert all(one.begin >= one.ready for one in found)
    assert sum(one.nbytes for one in found) == sum(layer.nbytes for layer in layers)


def test_overlap_never_makes_a_step_longer_and_hides_no_more_than_the_backward_pass():
    layers = [Layer(1 << 20, 1e-4)] * 8
    for bucket in (1, 1 << 21, 1 << 24):
        one, other = (step(layers, 1, 8, LINKS, bucket=bucket, overlap=overlap) for overlap in (True, False))
        assert one.compute == other.compute == pytest.approx(12e-4)
        assert 0 < one.waiting <= other.waiting <= one.waiting + 8e-4


def test_one_rank_waits_for_nobody():
    assert step([Layer(1 << 20, 1e-3)] * 2, 4, 1, LINKS) == Step(12e-3, 12e-3)
