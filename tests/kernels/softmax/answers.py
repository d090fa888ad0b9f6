"""Answers to the exercises of chapter 50: wrong ones with their mistakes, and other right ones."""

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.softmax.exercises import BLOCK, LOWEST, WARPS, ZERO, lane_max, lane_sum, row_max, row_sum
from pmpp.kernels.softmax.rows import append, warp_join
from tests.support.wrong import WrongAnswer, collectors

ONE = np.float32(1)
ANSWERS, ALSO_RIGHT, wrong, right = collectors()


# -- join


def join_with(rescale_first, rescale_second, guard=True, one=ONE):
    @cuda.jit
    def join(m1, s1, m2, s2, m, s):
        i = cuda.grid(1)
        if not guard or i < m.size:
            top = max(m1[i], m2[i])
            m[i] = top
            first = one * s1[i] * (math.exp(m1[i] - top) if rescale_first else ONE)
            s[i] = first + s2[i] * (math.exp(m2[i] - top) if rescale_second else ONE)

    return join


@right("softmax/join")
@cuda.jit
def join_by_the_smaller(m1, s1, m2, s2, m, s):
    i = cuda.grid(1)
    if i < m.size:
        high, low, high_sum, low_sum = m1[i], m2[i], s1[i], s2[i]
        if high < low:
            high, low, high_sum, low_sum = low, high, low_sum, high_sum
        m[i] = high
        s[i] = high_sum + low_sum * math.exp(low - high)


@wrong("softmax/join", "wrong result")
@cuda.jit
def join_through_zero(m1, s1, m2, s2, m, s):
    i = cuda.grid(1)
    if i < m.size:
        m[i] = max(m1[i], m2[i])
        s[i] = (s1[i] * math.exp(m1[i]) + s2[i] * math.exp(m2[i])) / math.exp(m[i])


@wrong("softmax/join", "output not written")
@cuda.jit
def join_without_the_maximum(m1, s1, m2, s2, m, s):
    i = cuda.grid(1)
    if i < m.size:
        top = max(m1[i], m2[i])
        s[i] = s1[i] * math.exp(m1[i] - top) + s2[i] * math.exp(m2[i] - top)


ANSWERS += [
    WrongAnswer("softmax/join", join_with(False, False), "not rescaled"),
    WrongAnswer("softmax/join", join_with(True, False), "not rescaled"),
    WrongAnswer("softmax/join", join_with(True, True, guard=False), "missing guard"),
    WrongAnswer("softmax/join", join_with(True, True, one=1.0), "accidental float64"),
]


@right("softmax/join")
@cuda.jit
def join_in_two_branches(m1, s1, m2, s2, m, s):
    """Half of the lanes load in each branch: sectors are asked for twice, and come from the cache."""
    i = cuda.grid(1)
    if i < m.size:
        if m1[i] > m2[i]:
            m[i] = m1[i]
            s[i] = s1[i] + s2[i] * math.exp(m2[i] - m1[i])
        else:
            m[i] = m2[i]
            s[i] = s2[i] + s1[i] * math.exp(m1[i] - m2[i])


@wrong("softmax/join", "output not written", "the kernel never uses s")
@cuda.jit
def join_without_the_sums(m1, s1, m2, s2, m, s):
    i = cuda.grid(1)
    if i < m.size:
        m[i] = max(m1[i], m2[i])


@wrong("softmax/join", "inaccurate", "maxima around 1000")
@cuda.jit
def join_of_logarithms(m1, s1, m2, s2, m, s):
    i = cuda.grid(1)
    if i < m.size:
        top = max(m1[i], m2[i])
        m[i] = top
        s[i] = math.exp(math.log(s1[i]) + m1[i] - top) + math.exp(math.log(s2[i]) + m2[i] - top)


# -- log


@wrong("softmax/log", "inaccurate", "values around -1000")
@cuda.jit
def log_with_one_subtraction(x, out):
    row, n, best, total = cuda.blockIdx.x, x.shape[1], LOWEST, ZERO
    for i in range(cuda.threadIdx.x, n, BLOCK):
        best = max(best, x[row, i])
    best = row_max(best)
    for i in range(cuda.threadIdx.x, n, BLOCK):
        total += math.exp(x[row, i] - best)
    both = best + math.log(row_sum(total))
    for i in range(cuda.threadIdx.x, n, BLOCK):
        out[row, i] = x[row, i] - both


@wrong("softmax/log", "accidental float64", "because of -math.inf on line")
@cuda.jit
def log_from_minus_infinity_in_float64(x, out):
    row, n, best, total = cuda.blockIdx.x, x.shape[1], -math.inf, ZERO
    for i in range(cuda.threadIdx.x, n, BLOCK):
        best = max(best, x[row, i])
    best = row_max(best)
    for i in range(cuda.threadIdx.x, n, BLOCK):
        total += math.exp(x[row, i] - best)
    total = math.log(row_sum(total))
    for i in range(cuda.threadIdx.x, n, BLOCK):
        out[row, i] = x[row, i] - best - total


@right("softmax/log")
@cuda.jit
def log_of_a_row_of_its_own(x, out):
    row, into, best, total = x[cuda.blockIdx.x], out[cuda.blockIdx.x], np.float32(-math.inf), ZERO
    for i in range(cuda.threadIdx.x, row.size, BLOCK):
        best = max(best, row[i])
    best = row_max(best)
    for i in range(cuda.threadIdx.x, row.size, BLOCK):
        total += math.exp(row[i] - best)
    total = math.log(row_sum(total))
    for i in range(cuda.threadIdx.x, row.size, BLOCK):
        into[i] = (row[i] - best) - total


def log_with(start=LOWEST, shift=True, share=False, log=True, step=BLOCK, one=ONE, extra=False):
    @cuda.jit
    def log_softmax(x, out):
        row, n, best, total = cuda.blockIdx.x, x.shape[1], start, ZERO
        for i in range(cuda.threadIdx.x, n, step):
            best = max(best, x[row, i])
        best = row_max(best)
        if extra:
            cuda.syncthreads()
        best = best if shift else ZERO
        for i in range(cuda.threadIdx.x, n, step):
            total += one * math.exp(x[row, i] - best)
        total = row_sum(total)
        for i in range(cuda.threadIdx.x, n, BLOCK):
            if share:
                e = math.exp(x[row, i] - best) / total
                out[row, i] = math.log(e) if log and e > ZERO else (-np.float32(np.inf) if log else e)
            else:
                out[row, i] = x[row, i] - best - math.log(total)

    return log_softmax


@right("softmax/log")
@cuda.jit
def log_online(x, out):
    row, n, best, total = cuda.blockIdx.x, x.shape[1], LOWEST, ZERO
    for i in range(cuda.threadIdx.x, n, BLOCK):
        top = max(best, x[row, i])
        total = total * math.exp(best - top) + math.exp(x[row, i] - top)
        best = top
    whole = row_max(best)
    total = math.log(row_sum(total * math.exp(best - whole)))
    for i in range(cuda.threadIdx.x, n, BLOCK):
        out[row, i] = x[row, i] - whole - total


@wrong("softmax/log", "inactive lanes")
@cuda.jit
def log_with_reductions_in_a_branch(x, out):
    row, n, i = cuda.blockIdx.x, x.shape[1], cuda.threadIdx.x
    if i < n:
        best, total = LOWEST, ZERO
        while i < n:
            best = max(best, x[row, i])
            i += BLOCK
        best = row_max(best)
        i = cuda.threadIdx.x
        while i < n:
            total += math.exp(x[row, i] - best)
            i += BLOCK
        total = math.log(row_sum(total))
        i = cuda.threadIdx.x
        while i < n:
            out[row, i] = x[row, i] - best - total
            i += BLOCK


@wrong("softmax/log", "missing guard")
@cuda.jit
def log_without_guard(x, out):
    row, best, total = cuda.blockIdx.x, LOWEST, ZERO
    for first in range(0, x.shape[1], BLOCK):
        best = max(best, x[row, first + cuda.threadIdx.x])
    best = row_max(best)
    for first in range(0, x.shape[1], BLOCK):
        total += math.exp(x[row, first + cuda.threadIdx.x] - best)
    total = math.log(row_sum(total))
    for first in range(0, x.shape[1], BLOCK):
        out[row, first + cuda.threadIdx.x] = x[row, first + cuda.threadIdx.x] - best - total


@wrong("softmax/log", "one element a thread", "5 rows of 129.* It is right with .*3 rows of 128")
@cuda.jit
def log_of_rows_that_fit_the_block(x, out):
    row, i = cuda.blockIdx.x, cuda.threadIdx.x
    value = x[row, i] if i < x.shape[1] else LOWEST
    best = row_max(value)
    total = row_sum(math.exp(value - best) if i < x.shape[1] else ZERO)
    if i < x.shape[1]:
        out[row, i] = value - best - math.log(total)


@wrong("softmax/log", "too much traffic", "Let a thread go over its own share of the row")
@cuda.jit
def log_with_the_whole_row_in_each_thread(x, out):
    row, n, best, total = cuda.blockIdx.x, x.shape[1], LOWEST, ZERO
    for i in range(n):
        best = max(best, x[row, i])
    for i in range(n):
        total += math.exp(x[row, i] - best)
    for i in range(cuda.threadIdx.x, n, BLOCK):
        out[row, i] = x[row, i] - best - math.log(total)


ANSWERS += [
    WrongAnswer("softmax/log", log_with(shift=False), "wrong result"),
    WrongAnswer("softmax/log", log_with(start=ZERO), "wrong result"),
    WrongAnswer("softmax/log", log_with(step=2 * BLOCK), "wrong result"),
    WrongAnswer("softmax/log", log_with(share=True), "log of an underflow"),
    WrongAnswer("softmax/log", log_with(share=True, log=False), "log missing"),
    WrongAnswer("softmax/log", log_with(one=1.0), "accidental float64"),
    WrongAnswer("softmax/log", log_with(extra=True), "too many barriers"),
]


# -- causal


@wrong(
    "softmax/causal", "wrong result", "out.0, 0. is nan, and should be 1; .* a number too large, or of a division by 0"
)
@cuda.jit
def causal_with_the_maximum_of_all(x, out):
    row, n = cuda.blockIdx.x * WARPS + cuda.threadIdx.x // 32, x.shape[0]
    if row < n:
        best, total = LOWEST, ZERO
        for i in range(cuda.laneid, n, 32):
            best = max(best, x[row, i])
        best = lane_max(best)
        for i in range(cuda.laneid, row + 1, 32):
            total += math.exp(x[row, i] - best)
        total = lane_sum(total)
        for i in range(cuda.laneid, n, 32):
            out[row, i] = math.exp(x[row, i] - best) / total if i <= row else ZERO


@wrong("softmax/causal", "uncoalesced")
@cuda.jit
def causal_a_thread_a_row(x, out):
    row, best, total = cuda.grid(1), LOWEST, ZERO
    if row < x.shape[0]:
        for i in range(row + 1):
            best = max(best, x[row, i])
        for i in range(row + 1):
            total += math.exp(x[row, i] - best)
        for i in range(x.shape[0]):
            out[row, i] = math.exp(x[row, i] - best) / total if i <= row else ZERO


@right("softmax/causal")
@cuda.jit
def causal_in_one_pass(x, out):
    row, n, best, total = cuda.grid(1) // 32, x.shape[0], LOWEST, ZERO
    if row >= n:
        return
    for i in range(cuda.laneid, row + 1, 32):
        top = max(best, x[row, i])
        total = total * math.exp(best - top) + math.exp(x[row, i] - top)
        best = top
    top = lane_max(best)
    share = ONE / lane_sum(total * math.exp(best - top))
    for i in range(cuda.laneid, n, 32):
        out[row, i] = math.exp(x[row, i] - top) * share if i <= row else ZERO


def causal_with(end=1, ahead=0, width=0):
    """The first loops end at row + end or at n, the last one masks from row + ahead on."""

    @cuda.jit
    def causal(x, out):
        row, n = cuda.blockIdx.x * WARPS + cuda.threadIdx.x // 32, x.shape[0]
        if row < n:
            best, total = LOWEST, ZERO
            last = n if width else row + end
            for i in range(cuda.laneid, last, 32):
                best = max(best, x[row, i])
            best = lane_max(best)
            for i in range(cuda.laneid, last, 32):
                total += math.exp(x[row, i] - best)
            total = lane_sum(total)
            for i in range(cuda.laneid, n, 32):
                out[row, i] = math.exp(x[row, i] - best) / total if i <= row + ahead else ZERO

    return causal


@wrong("softmax/causal", "output not written")
@cuda.jit
def causal_without_the_zeros(x, out):
    row = cuda.blockIdx.x * WARPS + cuda.threadIdx.x // 32
    if row < x.shape[0]:
        best, total = LOWEST, ZERO
        for i in range(cuda.laneid, row + 1, 32):
            best = max(best, x[row, i])
        best = lane_max(best)
        for i in range(cuda.laneid, row + 1, 32):
            total += math.exp(x[row, i] - best)
        total = lane_sum(total)
        for i in range(cuda.laneid, row + 1, 32):
            out[row, i] = math.exp(x[row, i] - best) / total


@wrong("softmax/causal", "inactive lanes")
@cuda.jit
def causal_with_idle_lanes_left_out(x, out):
    row, n, i = cuda.blockIdx.x * WARPS + cuda.threadIdx.x // 32, x.shape[0], cuda.laneid
    if row < n:
        if i <= row:
            best, total = LOWEST, ZERO
            while i <= row:
                best = max(best, x[row, i])
                i += 32
            best = lane_max(best)
            i = cuda.laneid
            while i <= row:
                total += math.exp(x[row, i] - best)
                i += 32
            total = lane_sum(total)
            i = cuda.laneid
            while i <= row:
                out[row, i] = math.exp(x[row, i] - best) / total
                i += 32
        i = row + 1 + cuda.laneid
        while i < n:
            out[row, i] = ZERO
            i += 32


@wrong("softmax/causal", "missing guard")
@cuda.jit
def causal_without_guard(x, out):
    row, n = cuda.blockIdx.x * WARPS + cuda.threadIdx.x // 32, x.shape[0]
    best, total = LOWEST, ZERO
    for i in range(cuda.laneid, row + 1, 32):
        best = max(best, x[row, i])
    best = lane_max(best)
    for i in range(cuda.laneid, row + 1, 32):
        total += math.exp(x[row, i] - best)
    total = lane_sum(total)
    for i in range(cuda.laneid, n, 32):
        out[row, i] = math.exp(x[row, i] - best) / total if i <= row else ZERO


@wrong("softmax/causal", "too much traffic", "every 32nd element of a row")
@cuda.jit
def causal_with_the_whole_row_in_each_lane(x, out):
    row, n, best, total = cuda.grid(1) // 32, x.shape[0], LOWEST, ZERO
    if row < n:
        for i in range(row + 1):
            best = max(best, x[row, i])
        for i in range(row + 1):
            total += math.exp(x[row, i] - best)
        for i in range(cuda.laneid, n, 32):
            out[row, i] = math.exp(x[row, i] - best) / total if i <= row else ZERO


ANSWERS += [
    WrongAnswer("softmax/causal", causal_with(width=1, ahead=1000), "looks ahead"),
    WrongAnswer("softmax/causal", causal_with(width=1), "looks ahead"),
    WrongAnswer("softmax/causal", causal_with(end=0, ahead=-1), "diagonal missing"),
    WrongAnswer("softmax/causal", causal_with(end=0), "wrong result"),
]


# -- columns


def columns_with(start=LOWEST, shift=True, divide=True, guard=True, one=ONE, skip=0):
    @cuda.jit
    def columns(x, out):
        column = cuda.grid(1)
        if not guard or column < x.shape[1]:
            best, total = start, ZERO
            for i in range(x.shape[0]):
                best = max(best, x[i, column])
            best = best if shift else ZERO
            for i in range(skip, x.shape[0]):
                total += one * math.exp(x[i, column] - best)
            for i in range(x.shape[0]):
                out[i, column] = math.exp(x[i, column] - best) / (total if divide else ONE)

    return columns


@right("softmax/columns")
@cuda.jit
def columns_online(x, out):
    column = cuda.grid(1)
    if column < x.shape[1]:
        best, total = LOWEST, ZERO
        for i in range(x.shape[0]):
            top = max(best, x[i, column])
            total = total * math.exp(best - top) + math.exp(x[i, column] - top)
            best = top
        for i in range(x.shape[0]):
            out[i, column] = math.exp(x[i, column] - best) / total


@wrong("softmax/columns", "along the rows")
@cuda.jit
def columns_that_are_rows(x, out):
    row = cuda.grid(1)
    if row < x.shape[0]:
        best, total = LOWEST, ZERO
        for i in range(x.shape[1]):
            best = max(best, x[row, i])
        for i in range(x.shape[1]):
            total += math.exp(x[row, i] - best)
        for i in range(x.shape[1]):
            out[row, i] = math.exp(x[row, i] - best) / total


@wrong("softmax/columns", "only right for one block")
@cuda.jit
def columns_of_the_first_block(x, out):
    column = cuda.threadIdx.x
    if column < x.shape[1] and cuda.blockIdx.x == 0:
        best, total = LOWEST, ZERO
        for i in range(x.shape[0]):
            best = max(best, x[i, column])
        for i in range(x.shape[0]):
            total += math.exp(x[i, column] - best)
        for i in range(x.shape[0]):
            out[i, column] = math.exp(x[i, column] - best) / total


ANSWERS += [
    WrongAnswer("softmax/columns", columns_with(start=ZERO), "wrong result"),
    WrongAnswer("softmax/columns", columns_with(shift=False), "wrong result"),
    WrongAnswer("softmax/columns", columns_with(skip=1), "wrong result"),
    WrongAnswer("softmax/columns", columns_with(divide=False), "not divided"),
    WrongAnswer("softmax/columns", columns_with(guard=False), "missing guard"),
    WrongAnswer("softmax/columns", columns_with(one=1.0), "accidental float64"),
]


# -- loss


def loss_with(sign=ONE, log=True, far=True, label=True, rescale=True, guard=True, one=ONE):
    @cuda.jit
    def loss(x, labels, out):
        row = cuda.blockIdx.x * WARPS + cuda.threadIdx.x // 32
        if not guard or row < x.shape[0]:
            best, total = LOWEST, ZERO
            for i in range(cuda.laneid, x.shape[1], 32):
                value = x[row, i]
                top = max(best, value)
                total = total * math.exp(best - top) + one * math.exp(value - top)
                best = top
            whole = lane_max(best)
            total = lane_sum(total * math.exp(best - whole) if rescale else total)
            if cuda.laneid == 0:
                below = (x[row, labels[row]] if label else ZERO) - whole
                share = math.exp(below) / total
                if not log:
                    out[row] = share
                elif far:
                    out[row] = sign * (math.log(total) - below)
                else:
                    out[row] = -math.log(share) if share > ZERO else np.float32(np.inf)

    return loss


@right("softmax/loss")
@cuda.jit
def loss_by_shuffles(x, labels, out):
    """Pairs of a maximum and a sum are joined in a tree."""
    row = cuda.blockIdx.x * WARPS + cuda.threadIdx.x // 32
    if row < x.shape[0]:
        best, total = LOWEST, ZERO
        for i in range(cuda.laneid, x.shape[1], 32):
            best, total = append(best, total, x[row, i])
        best, total = warp_join(best, total)
        if cuda.laneid == 0:
            out[row] = best + math.log(total) - x[row, labels[row]]


@wrong("softmax/loss", "too much traffic")
@cuda.jit
def loss_in_two_passes(x, labels, out):
    row = cuda.blockIdx.x * WARPS + cuda.threadIdx.x // 32
    if row < x.shape[0]:
        best, total = LOWEST, ZERO
        for i in range(cuda.laneid, x.shape[1], 32):
            best = max(best, x[row, i])
        best = lane_max(best)
        for i in range(cuda.laneid, x.shape[1], 32):
            total += math.exp(x[row, i] - best)
        total = lane_sum(total)
        if cuda.laneid == 0:
            out[row] = best - x[row, labels[row]] + math.log(total)


@wrong("softmax/loss", "too much traffic", "One lane reads a score, once")
@cuda.jit
def loss_with_the_whole_row_in_each_lane(x, labels, out):
    row, best, total = cuda.grid(1) // 32, LOWEST, ZERO
    if row < x.shape[0]:
        for i in range(x.shape[1]):
            best, total = append(best, total, x[row, i])
        if cuda.laneid == 0:
            out[row] = best + math.log(total) - x[row, labels[row]]


@wrong("softmax/log", "idle threads", "only 20 of the 80 warps")
@cuda.jit
def log_by_the_first_warp(x, out):
    row, n, best, total = cuda.blockIdx.x, x.shape[1], LOWEST, ZERO
    if cuda.threadIdx.x < 32:
        for i in range(cuda.laneid, n, 32):
            best = max(best, x[row, i])
        best = lane_max(best)
        for i in range(cuda.laneid, n, 32):
            total += math.exp(x[row, i] - best)
        total = math.log(lane_sum(total))
        for i in range(cuda.laneid, n, 32):
            out[row, i] = x[row, i] - best - total


@wrong("softmax/loss", "repeated work", "let one of them write it")
@cuda.jit
def loss_written_by_all_lanes(x, labels, out):
    row = cuda.blockIdx.x * WARPS + cuda.threadIdx.x // 32
    if row < x.shape[0]:
        best, total = LOWEST, ZERO
        for i in range(cuda.laneid, x.shape[1], 32):
            best, total = append(best, total, x[row, i])
        best, total = warp_join(best, total)
        out[row] = best + math.log(total) - x[row, labels[row]]


ANSWERS += [
    WrongAnswer("softmax/loss", loss_with(sign=-ONE), "sign kept"),
    WrongAnswer("softmax/loss", loss_with(log=False), "share itself"),
    WrongAnswer("softmax/loss", loss_with(far=False), "log of an underflow"),
    WrongAnswer("softmax/loss", loss_with(label=False), "label missing"),
    WrongAnswer("softmax/loss", loss_with(rescale=False), "wrong result"),
    WrongAnswer("softmax/loss", loss_with(guard=False), "missing guard"),
    WrongAnswer("softmax/loss", loss_with(one=1.0), "accidental float64"),
]


# -- exchanged


@wrong("softmax/join", "not rescaled", "The first sum is still relative to m1")
@cuda.jit
def join_rescales_only_the_second(m1, s1, m2, s2, m, s):
    i = cuda.grid(1)
    if i < m.size:
        m[i] = max(m1[i], m2[i])
        s[i] = s1[i] + s2[i] * math.exp(m2[i] - m[i])


@wrong("softmax/join", "outputs exchanged", "m holds what belongs into s")
@cuda.jit
def join_into_the_other(m1, s1, m2, s2, m, s):
    i = cuda.grid(1)
    if i < m.size:
        top = max(m1[i], m2[i])
        s[i], m[i] = top, s1[i] * math.exp(m1[i] - top) + s2[i] * math.exp(m2[i] - top)


@wrong("softmax/causal", "axes exchanged", r"with n = 4, out\[i, j\] holds what belongs into out\[j, i\]")
@cuda.jit
def causal_stored_down_the_columns(x, out):
    row, n, best, total = cuda.grid(1) // 32, x.shape[0], LOWEST, ZERO
    if row < n:
        for i in range(cuda.laneid, row + 1, 32):
            best = max(best, x[row, i])
        best = lane_max(best)
        for i in range(cuda.laneid, row + 1, 32):
            total += math.exp(x[row, i] - best)
        total = lane_sum(total)
        for i in range(cuda.laneid, n, 32):
            out[i, row] = math.exp(x[row, i] - best) / total if i <= row else ZERO
