"""Member masks that are computed: of which lanes they speak, and which lanes arrive.

CUDA C++ programming guide, "Warp vote", "Warp shuffle" and "Synchronization functions": each lane that calls must be in
its mask, and every lane of the mask that has not exited must call the same function with the same mask, or the result
is undefined.  `activemask()` says who was there when it was called, and nothing of a later place.
"""

import numpy as np

from pmpp import cuda

from . import pair, ramp, zeros

FULL = 0xFFFFFFFF


@pair("divergent_barrier", "register", "shfl_xor_sync()", block=32,
      result=lambda x, out: np.r_[x[8:16], x[:8], np.zeros(16)])  # fmt: skip
@cuda.jit
def mask_taken_before_the_branch(x, out, mended):
    """All lanes are active before the branch, and half of them inside."""
    t = cuda.threadIdx.x
    members = cuda.activemask()
    if t < 16:
        if mended:
            members = cuda.activemask()
        out[t] = cuda.shfl_xor_sync(members, x[t], 8)  # BUG


@pair(
    "divergent_barrier",
    "register",
    "shfl_sync()",
    grid=2,
    result=lambda x, out: np.tile(np.r_[np.full(16, 5), np.zeros(16)], 4),
)
@cuda.jit
def mask_of_a_vote_on_something_else(x, out, mended):
    """The vote asked who is below 20, and who is below 16 goes on."""
    t = cuda.threadIdx.x
    lane = t % 32
    members = cuda.ballot_sync(FULL, lane < (16 if mended else 20))
    if lane < 16:
        out[cuda.grid(1)] = cuda.shfl_sync(members, lane + 5, 0)  # BUG


@pair("divergent_barrier", "register", "any_sync()", block=32, result=lambda x, out: np.r_[0, np.ones(31)])
@cuda.jit
def mask_without_the_caller(x, out, mended):
    """Lane 0 calls, and is not in the mask that it passes."""
    t = cuda.threadIdx.x
    members = cuda.ballot_sync(FULL, t > 0)
    if t > 0 or not mended:
        out[t] = cuda.any_sync(members, x[t] > 30)  # BUG


@pair("divergent_barrier", "register", "shfl_down_sync()", block=32, result=lambda x, out: np.full(32, 3))
@cuda.jit
def mask_taken_before_a_loop_of_many_lengths(x, out, mended):
    """Lanes leave the loop one after the other, and the mask still names them."""
    t = cuda.threadIdx.x
    members = cuda.activemask()
    rounds = 0
    for _ in range(3 if mended else 1 + t % 3):
        rounds += cuda.shfl_down_sync(members, 1, 1)  # BUG
    out[t] = rounds


@pair("divergent_barrier", "register", "ballot_sync()", grid=2, block=32,
      result=lambda x, out: np.tile(np.r_[np.full(16, 8), np.zeros(16)], 2))  # fmt: skip
@cuda.jit
def mask_that_is_right_in_one_block(x, out, mended):
    """The mask depends on the block, and the branch does not."""
    t = cuda.threadIdx.x
    members = 0xFFFF if mended or cuda.blockIdx.x == 0 else FULL
    if t < 16:
        out[cuda.grid(1)] = cuda.popc(cuda.ballot_sync(members, t % 2))  # BUG


@pair(
    "divergent_barrier", "register", "shfl_sync()", result=lambda x, out: np.r_[np.zeros(32), np.ones(16), np.zeros(16)]
)
@cuda.jit
def mask_that_is_right_in_one_warp(x, out, mended):
    """The second warp has 16 lanes behind the guard, and the mask of a whole one."""
    t = cuda.threadIdx.x
    members = FULL
    if mended and t >= 32:
        members = 0xFFFF
    if t < 48:
        out[t] = cuda.shfl_sync(members, t // 32, 0)  # BUG


@pair("divergent_barrier", "register", "shfl_sync()", block=32,
      make=lambda new: (ramp(32), zeros(1, np.int32), zeros(32)),
      result=lambda x, n, out: np.r_[np.zeros(8), np.arange(24)])  # fmt: skip
@cuda.jit
def leader_chosen_before_the_branch(x, n, out, mended):
    """One lane adds for all that take part; it is chosen from lanes of which not all do."""
    t = cuda.threadIdx.x
    members = cuda.activemask()
    if x[t] >= 8:
        if mended:
            members = cuda.activemask()
        leader = cuda.ffs(members) - 1
        first = 0
        if t == leader:
            first = cuda.atomic.add(n, 0, cuda.popc(members))
        first = cuda.shfl_sync(members, first, leader)  # BUG
        out[t] = first + cuda.popc(members & ((1 << t) - 1))


@pair(
    "divergent_barrier", "register", "syncwarp()", block=32, result=lambda x, out: np.r_[x[8:16], x[:8], np.zeros(16)]
)
@cuda.jit
def barrier_with_a_mask_from_outside(x, out, mended):
    """`syncwarp` waits for every lane of its mask, and sixteen never come."""
    s = cuda.shared.array(32, np.float32)
    t = cuda.threadIdx.x
    members = cuda.activemask()
    if t < 16:
        s[t] = x[t]
        cuda.syncwarp(0xFFFF if mended else members)  # BUG
        out[t] = s[t ^ 8]


@pair("race", "shared", "s", block=32, result=lambda x, out: x[::-1])
@cuda.jit
def barrier_of_each_half_for_the_other(x, out, mended):
    """All lanes call `syncwarp`, each half with its own mask: that orders nothing between the halves."""
    s = cuda.shared.array(32, np.float32)
    t = cuda.threadIdx.x
    members = 0xFFFF if t < 16 else 0xFFFF0000
    if mended:
        members = FULL
    s[t] = x[t]  # WITH
    cuda.syncwarp(members)
    out[t] = s[31 - t]  # BUG


@pair("race", "shared", "s", block=32, make=lambda new: (ramp(32, np.int32) // 8, zeros(32)),
      result=lambda x, out: np.r_[1:8, 0, 9:16, 8, 17:24, 16, 25:32, 24])  # fmt: skip
@cuda.jit
def barrier_of_a_group_for_its_neighbour(x, out, mended):
    """`match_any_sync` gives each group of eight its mask, and the last lane reads from the next group."""
    s = cuda.shared.array(32, np.float32)
    t = cuda.threadIdx.x
    group = cuda.match_any_sync(FULL, x[t])
    s[t] = t  # WITH
    cuda.syncwarp(group)
    out[t] = s[t // 8 * 8 + (t + 1) % 8 if mended else (t + 1) % 32]  # BUG


@pair("race", "shared", "s", block=32, result=lambda x, out: np.r_[x[16:], np.zeros(16)])
@cuda.jit
def barrier_of_those_who_are_there(x, out, mended):
    """The mask is right, and the lanes whose values are read are not in it."""
    s = cuda.shared.array(32, np.float32)
    t = cuda.threadIdx.x
    s[t] = x[t]  # WITH
    if mended:
        cuda.syncwarp()
    if t < 16:
        members = cuda.activemask()
        cuda.syncwarp(members)
        out[t] = s[t + 16]  # BUG


@pair("race", "shared", "s", block=32, result=lambda x, out: np.r_[x[:16], x[:16]])
@cuda.jit
def two_barriers_of_halves_are_none_of_the_whole(x, out, mended):
    """Each half meets by itself, one after the other; no lane of one meets a lane of the other."""
    s = cuda.shared.array(32, np.float32)
    t = cuda.threadIdx.x
    members = cuda.ballot_sync(FULL, t < 16)
    if t < 16:
        s[t] = x[t]  # WITH
        cuda.syncwarp(members)
    else:
        cuda.syncwarp(~members)
    if mended:
        cuda.syncwarp()
    out[t] = s[t % 16]  # BUG
