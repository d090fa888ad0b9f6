"""The model of many GPUs: formulas against clocks of simulated ranks, sums by hand, and figures that are drawn."""

import numpy as np
import pytest

from pmpp import parallel
from pmpp.parallel import Links, Nodes, all_reduce, scaling, scaling_figures
from pmpp.parallel.scaling import Machine, Memory, Network, Plan, Step, memory, step, two_levels

pytestmark = [pytest.mark.native("threads"), pytest.mark.usefixtures("unchecked")]

SLOW = Nodes(2, Links(0.0, 10e9), Links(0.0, 1e9))
SMALL = Network(layers=4, width=64, vocabulary=256, length=32)
MACHINE = Machine(1e12, 1e9, Nodes(8, Links(1e-6, 100e9), Links(2e-6, 10e9)))


def sums(group, function, shape, *args):
    x = np.random.default_rng(group.rank).normal(size=shape).astype(np.float32)
    return function(group, x, *args).copy_to_host(), x


@pytest.mark.parametrize("size, per_node", [(1, 1), (4, 2), (6, 3), (6, 2), (4, 4), (3, 1)])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5)])
def test_two_levels_sum(size, per_node, shape):
    found = parallel.ranks(size, sums, two_levels, shape, per_node)
    arrays = [x.astype(np.float64) for _, x in found]
    for total, _ in found:
        assert total.shape == shape
        assert total.tobytes() == found[0][0].tobytes()  # the same bits on all ranks
        bound = size * np.finfo(np.float32).eps * sum(map(np.abs, arrays))
        assert (np.abs(total - sum(arrays)) <= bound).all()


def test_two_levels_names_what_does_not_divide():
    with pytest.raises(ValueError, match="per_node must divide the 4 ranks of the group, was 3"):
        parallel.ranks(4, sums, two_levels, (8,), 3)


def test_links_of_machines_name_what_is_wrong():
    with pytest.raises(TypeError, match="between must be Links"):
        Nodes(2, Links(0.0, 1.0), 5)
    with pytest.raises(ValueError, match="size"):
        Nodes(0, Links(0.0, 1.0), Links(0.0, 1.0))


@pytest.mark.parametrize("nodes, per_node", [(1, 4), (2, 2), (3, 2), (4, 1)])
def test_clocks_of_ranks_agree(nodes, per_node):
    """A message's alpha is left out, since `split` sends some, too: the clocks show bytes."""
    links, size, count = Nodes(per_node, SLOW.inside, SLOW.between), nodes * per_node, 12_000
    clocks = parallel.ranks(size, sums, all_reduce.ring, (count,), links=links).report.seconds
    assert max(clocks) == pytest.approx(scaling.ring_seconds(4 * count, size, links))
    clocks = parallel.ranks(size, sums, two_levels, (count,), per_node, links=links).report.seconds
    # What `split` passes round are three numbers of 8 bytes from each rank.
    words = 2 * 24 * (size - 1) / SLOW.between.bandwidth
    assert scaling.two_levels_seconds(4 * count, size, links) <= max(clocks) + 1e-12
    assert max(clocks) <= scaling.two_levels_seconds(4 * count, size, links) + words + 1e-12


def test_one_kind_of_links_is_a_ring_and_trees_have_fewer_alphas():
    links = Links(1e-6, 1e9)
    assert scaling.two_levels_seconds(1e6, 8, links) == scaling.ring_seconds(1e6, 8, links)
    assert scaling.ring_seconds(1e6, 8, links) == pytest.approx(
        all_reduce.seconds(all_reduce.ring, 8, 1_000_000, links)
    )
    assert scaling.double_tree_seconds(8, 1024, links) < scaling.ring_seconds(8, 1024, links) / 50
    assert scaling.double_tree_seconds(8, 1, links) == scaling.ring_seconds(8, 1, links) == 0


def test_memory_by_hand():
    n, tokens = SMALL.parameters, 1024
    assert n == 12 * 4 * 64**2 + 256 * 64
    assert memory(SMALL, Plan(), tokens) == Memory(2 * n, 2 * n, 12 * n, 34 * tokens * 64 * 4)
    for shard, divided in ((1, (1, 1, 8)), (2, (1, 8, 8)), (3, (8, 8, 8))):
        found = memory(SMALL, Plan(8, shard=shard), tokens)
        assert found[:3] == tuple(k * n / d for k, d in zip((2, 2, 12), divided, strict=True))
        assert found.activations == 34 * tokens / 8 * 64 * 4
    # Two stages keep two micro-batches of half the layers each; with one micro-batch they keep one.
    assert memory(SMALL, Plan(pipeline=2, micro_batches=4), tokens).activations == 34 * tokens / 4 * 64 * 2 * 2
    assert memory(SMALL, Plan(pipeline=2), tokens).activations == 34 * tokens * 64 * 2
    assert memory(SMALL, Plan(tensor=4), tokens).total == memory(SMALL, Plan(), tokens).total / 4


def test_a_step_by_hand():
    tokens = 1024
    compute = SMALL.flops * tokens / 1e12
    assert step(SMALL, Plan(), MACHINE, tokens) == Step(compute, 0, 0, 0, 0)
    shared = step(SMALL, Plan(tensor=4), MACHINE, tokens)
    assert shared.compute == pytest.approx(compute / 4)
    one = scaling.ring_seconds(2 * tokens * 64, 4, MACHINE.links.inside)
    assert shared.tensor == pytest.approx(4 * 4 * one)
    piped = step(SMALL, Plan(pipeline=4, micro_batches=4), MACHINE, tokens)
    assert piped.compute == pytest.approx(compute / 4)
    assert piped.bubble / (piped.compute + piped.bubble) == pytest.approx(3 / 7)
    assert piped.stages == pytest.approx(2 * MACHINE.links.between.seconds(2 * tokens / 4 * 64) * 7)
    summed = scaling.two_levels_seconds(2 * SMALL.parameters, 16, MACHINE.links)
    replicas = step(SMALL, Plan(16), MACHINE, 16)
    assert replicas.data == pytest.approx(summed - 2 / 3 * replicas.compute)
    assert step(SMALL, Plan(16), MACHINE, 1e9).data == 0  # hidden behind so much work
    assert step(SMALL, Plan(16, shard=3), MACHINE, 16).data == pytest.approx(1.5 * summed - replicas.compute)


@pytest.mark.parametrize(
    "plan, said",
    [(Plan(0), "data"), (Plan(1, 2.5), "tensor"), (Plan(1, 1, 1, 0), "micro_batches"), (Plan(shard=4), "shard")],
)
def test_a_plan_names_what_is_wrong(plan, said):
    for function in (lambda: memory(SMALL, plan, 8), lambda: step(SMALL, plan, MACHINE, 8)):
        with pytest.raises((TypeError, ValueError), match=said):
            function()


def test_the_interval_is_the_best_of_many():
    between, writes = 40_000.0, 60.0
    best = scaling.checkpoint_interval(writes, between)
    many = np.geomspace(10, between, 500)
    share = [scaling.kept(t, writes, between, 0.0) for t in many]
    # Young's formula is of first order in writes / between.
    assert scaling.kept(best, writes, between, 0.0) >= max(share) - 2 * writes / between
    assert scaling.kept(between, writes, between / 10, 0.0) == 0.0


def test_what_is_kept_is_what_a_simulation_keeps():
    rng, between, interval, writes, restart = np.random.default_rng(3), 10_000.0, 900.0, 50.0, 200.0
    worked = now = 0.0
    for life in rng.exponential(between, 4000):
        worked += life // (interval + writes) * interval
        now += life + restart
    assert scaling.kept(interval, writes, between, restart) == pytest.approx(worked / now, abs=0.02)


def test_figures_are_drawn():
    found = {n: step(SMALL, Plan(n, micro_batches=2), MACHINE, 1024) for n in (2, 4)}
    for figure in (
        scaling_figures.collectives([1024, 2**20], [2, 8, 64], MACHINE.links),
        scaling_figures.memories({"all": memory(SMALL, Plan(), 64), "half": memory(SMALL, Plan(2), 64)}, 1e9),
        scaling_figures.steps(found),
        scaling_figures.machines({"CPU": 1e-3, "1 GPU": 1e-6}, 1e12),
        scaling_figures.checkpoints((8, 64), 1e7, 60.0, 100.0),
    ):
        assert figure.axes
        assert all(ax.get_xlabel() for ax in figure.axes)
