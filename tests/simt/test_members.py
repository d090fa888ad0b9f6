"""Member masks against the definition: random masks of random lanes, in variables, wherever they were taken."""

import numpy as np
import pytest

from pmpp import simt
from pmpp.simt import cuda

BALLOT, ANY, MATCH, SHUFFLE, SYNC = range(5)


@cuda.jit(device=True)
def meet(members, t, kind):
    if kind == BALLOT:
        return cuda.ballot_sync(members, t > 3)
    if kind == ANY:
        return int(cuda.any_sync(members, t > 3))
    if kind == MATCH:
        return cuda.match_any_sync(members, t // 4)
    if kind == SHUFFLE:
        return cuda.shfl_sync(members, t, t % 32)
    cuda.syncwarp(members)
    return 0


@cuda.jit
def given(masks, here, kind, out):
    i = cuda.grid(1)
    members = masks[i]
    if here[i]:
        out[i] = meet(members, cuda.threadIdx.x, kind)


@cuda.jit
def taken_before(masks, here, kind, out):
    i = cuda.grid(1)
    members = cuda.activemask()
    if here[i]:
        out[i] = meet(members, cuda.threadIdx.x, kind)


def as_masks(here, block):
    """For each lane, those of its warp for which a condition holds."""
    lanes = np.arange(here.size) % block % 32
    warp = np.arange(here.size) // block * 32 + np.arange(here.size) % block // 32
    bits = np.where(here, 1 << lanes, 0)
    return np.array([bits[warp == w].sum() for w in warp]), lanes, warp


def allowed(masks, here, lanes, warp):
    """By definition: who calls is in its mask, and all whom it names call with the same mask."""
    for i in np.flatnonzero(here):
        named = (warp == warp[i]) & (masks[i] >> lanes & 1 != 0)
        if not named[i] or (named & (~here | (masks != masks[i]))).any():
            return False
    return True


@pytest.mark.parametrize("kind", [BALLOT, ANY, MATCH, SHUFFLE, SYNC])
@pytest.mark.parametrize("schedule", ["lockstep", "warps"])
def test_a_mask_is_refused_if_and_only_if_it_is_wrong(kind, schedule):
    rng, wrong = np.random.default_rng(kind), 0
    for _ in range(16):
        grid, block = int(rng.integers(1, 3)), int(rng.choice([16, 32, 48, 64]))
        here = rng.random(grid * block) < rng.choice([0.5, 0.9, 1])
        right, lanes, warp = as_masks(here, block)
        everyone, _, _ = as_masks(np.ones_like(here), block)
        odd = np.where(rng.random(here.size) < 0.03, right ^ (1 << lanes), right)
        masks = [right, odd, everyone][rng.integers(3)]
        for kernel, used in ((given, masks), (taken_before, everyone)):
            args = used.astype(np.uint32), here, kind, np.zeros(here.size, np.int64)
            report = simt.profile(kernel, grid, block, args, level="check", collect=True, schedule=schedule)
            expected = allowed(used, here, lanes, warp)
            assert (report.hazards == []) == expected, [h.message for h in report.hazards]
            assert {h.kind for h in report.hazards} <= {"divergent_barrier"}
            wrong += not expected
    assert 5 < wrong < 30


@cuda.jit
def half_of_them_call_with_a_mask_that_lacks_the_others(x, out):
    """All lanes call `syncwarp` with a mask of the lower half: it orders nothing for the upper half."""
    s = cuda.shared.array(32, np.float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncwarp(0xFFFF)
    out[t] = s[t ^ 1] if t < 16 else s[t - 16]


def test_syncwarp_orders_the_lanes_of_its_mask_and_no_others():
    x = np.arange(32, dtype=np.float32)
    report = simt.profile(half_of_them_call_with_a_mask_that_lacks_the_others, 1, 32, (x, x.copy()), level="check")
    assert {(h.kind, h.variable) for h in report.hazards} == {("divergent_barrier", "syncwarp()"), ("race", "s")}
    (race,) = [h for h in report.hazards if h.kind == "race"]
    assert race.thread[0] >= 16
