"""Answers to the exercises of chapter 34: wrong ones with their mistakes, and other right ones."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP
from pmpp.kernels.scan.exercises import BLOCK, block_scan
from tests.support.wrong import WrongAnswer

f0 = np.float32(0)
ANSWERS: list[WrongAnswer] = []
ALSO_RIGHT: list[tuple[str, object]] = []


def wrong(name, mistake):
    """The decorated kernel is a wrong answer to ``name``, and ``check`` must say ``mistake``."""
    return lambda kernel: ANSWERS.append(WrongAnswer(name, kernel, mistake)) or kernel


def right(name):
    return lambda kernel: ALSO_RIGHT.append((name, kernel)) or kernel


@cuda.jit(device=True)
def hasty_scan(scanned):
    """One barrier per step: some threads write before others have read."""
    thread, distance = cuda.threadIdx.x, 1
    cuda.syncthreads()
    while distance < BLOCK:
        if thread >= distance:
            scanned[thread] += scanned[thread - distance]
        cuda.syncthreads()
        distance *= 2


@cuda.jit(device=True)
def warp_sums(value):
    for distance in (1, 2, 4, 8, 16):
        earlier = cuda.shfl_up_sync(FULL_WARP, value, distance)
        if cuda.laneid >= distance:
            value += earlier
    return value


# -- exclusive


@right("scan/exclusive")
@cuda.jit
def exclusive_by_subtraction(x, out):
    """Right for whole numbers."""
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    scanned = cuda.shared.array(BLOCK, np.float32)
    value = x[i] if i < x.size else f0
    scanned[thread] = value
    block_scan(scanned)
    if i < x.size:
        out[i] = scanned[thread] - value


@right("scan/exclusive")
@cuda.jit
def exclusive_shifted_on_the_way_in(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    scanned = cuda.shared.array(BLOCK, np.float32)
    scanned[thread] = x[i - 1] if thread > 0 and i <= x.size else f0
    block_scan(scanned)
    if i < x.size:
        out[i] = scanned[thread]


@wrong("scan/exclusive", "inclusive")
@wrong("scan/reverse", "forwards")
@cuda.jit
def inclusive_and_forwards(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    scanned = cuda.shared.array(BLOCK, np.float32)
    scanned[thread] = x[i] if i < x.size else f0
    block_scan(scanned)
    if i < x.size:
        out[i] = scanned[thread]


@wrong("scan/exclusive", "negative index")
@cuda.jit
def exclusive_that_wraps_around(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    scanned = cuda.shared.array(BLOCK, np.float32)
    scanned[thread] = x[i] if i < x.size else f0
    block_scan(scanned)
    if i < x.size:
        out[i] = scanned[thread - 1]


@wrong("scan/exclusive", "missing guard")
@cuda.jit
def exclusive_without_guard(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    scanned = cuda.shared.array(BLOCK, np.float32)
    scanned[thread] = x[i]
    block_scan(scanned)
    out[i] = scanned[thread - 1] if thread > 0 else f0


@wrong("scan/exclusive", "missing barrier")
@cuda.jit
def exclusive_in_haste(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    scanned = cuda.shared.array(BLOCK, np.float32)
    scanned[thread] = x[i] if i < x.size else f0
    hasty_scan(scanned)
    if i < x.size:
        out[i] = scanned[thread - 1] if thread > 0 else f0


@wrong("scan/exclusive", "uninitialised memory")
@cuda.jit
def exclusive_with_threads_that_leave(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    scanned = cuda.shared.array(BLOCK, np.float32)
    if i < x.size:
        scanned[thread] = x[i]
    block_scan(scanned)
    if i < x.size:
        out[i] = scanned[thread - 1] if thread > 0 else f0


@wrong("scan/exclusive", "accidental float64")
@cuda.jit
def exclusive_in_float64(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    scanned = cuda.shared.array(BLOCK, np.float64)
    scanned[thread] = x[i] if i < x.size else 0.0
    block_scan(scanned)
    if i < x.size:
        out[i] = scanned[thread - 1] if thread > 0 else 0.0


# -- reverse


@wrong("scan/reverse", "mirrored once")
@cuda.jit
def reverse_mirrored_once(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    scanned = cuda.shared.array(BLOCK, np.float32)
    scanned[BLOCK - 1 - thread] = x[i] if i < x.size else f0
    block_scan(scanned)
    if i < x.size:
        out[i] = scanned[thread]


@wrong("scan/reverse", "index out of bounds")
@cuda.jit
def reverse_off_by_one(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    scanned = cuda.shared.array(BLOCK, np.float32)
    scanned[BLOCK - thread] = x[i] if i < x.size else f0
    block_scan(scanned)
    if i < x.size:
        out[i] = scanned[BLOCK - thread]


@wrong("scan/reverse", "missing guard")
@cuda.jit
def reverse_without_guard(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    scanned = cuda.shared.array(BLOCK, np.float32)
    scanned[BLOCK - 1 - thread] = x[i]
    block_scan(scanned)
    out[i] = scanned[BLOCK - 1 - thread]


@wrong("scan/reverse", "missing barrier")
@cuda.jit
def reverse_in_haste(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    scanned = cuda.shared.array(BLOCK, np.float32)
    scanned[BLOCK - 1 - thread] = x[i] if i < x.size else f0
    hasty_scan(scanned)
    if i < x.size:
        out[i] = scanned[BLOCK - 1 - thread]


@right("scan/reverse")
@cuda.jit
def reverse_by_the_total(x, out):
    """The total less what stands before: right for whole numbers."""
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    scanned = cuda.shared.array(BLOCK, np.float32)
    value = x[i] if i < x.size else f0
    scanned[thread] = value
    block_scan(scanned)
    if i < x.size:
        out[i] = scanned[BLOCK - 1] - scanned[thread] + value


# -- segmented


@right("scan/segmented")
@cuda.jit
def segmented_with_an_or(x, heads, out):
    """The pair operator as it is written in the book."""
    thread, i, distance = cuda.threadIdx.x, cuda.grid(1), 1
    scanned, head = cuda.shared.array(BLOCK, np.float32), cuda.shared.array(BLOCK, np.uint8)
    scanned[thread] = x[i] if i < x.size else f0
    head[thread] = heads[i] if i < x.size else 0
    cuda.syncthreads()
    while distance < BLOCK:
        value, seen = scanned[thread], head[thread]
        if thread >= distance:
            if seen == 0:
                value += scanned[thread - distance]
            seen |= head[thread - distance]
        cuda.syncthreads()
        scanned[thread], head[thread] = value, seen
        cuda.syncthreads()
        distance *= 2
    if i < x.size:
        out[i] = scanned[thread]


@wrong("scan/segmented", "heads ignored")
@cuda.jit
def segmented_without_heads(x, heads, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    scanned = cuda.shared.array(BLOCK, np.float32)
    scanned[thread] = x[i] if i < x.size else f0
    block_scan(scanned)
    if i < x.size:
        out[i] = scanned[thread]


@wrong("scan/segmented", "wrong result")
@cuda.jit
def segmented_that_forgets_heads_it_has_passed(x, heads, out):
    thread, i, distance = cuda.threadIdx.x, cuda.grid(1), 1
    scanned = cuda.shared.array(BLOCK, np.float32)
    scanned[thread] = x[i] if i < x.size else f0
    seen = heads[i] if i < x.size else 1
    cuda.syncthreads()
    while distance < BLOCK:
        value = scanned[thread]
        if thread >= distance and seen == 0:
            value += scanned[thread - distance]
        cuda.syncthreads()
        scanned[thread] = value
        cuda.syncthreads()
        distance *= 2
    if i < x.size:
        out[i] = scanned[thread]


@wrong("scan/segmented", "missing barrier")
@cuda.jit
def segmented_with_one_barrier(x, heads, out):
    thread, i, distance = cuda.threadIdx.x, cuda.grid(1), 1
    scanned, head = cuda.shared.array(BLOCK, np.float32), cuda.shared.array(BLOCK, np.uint8)
    scanned[thread] = x[i] if i < x.size else f0
    head[thread] = heads[i] if i < x.size else 1
    cuda.syncthreads()
    while distance < BLOCK:
        if thread >= distance and head[thread] == 0:
            scanned[thread] += scanned[thread - distance]
            head[thread] = head[thread - distance]
        cuda.syncthreads()
        distance *= 2
    if i < x.size:
        out[i] = scanned[thread]


@wrong("scan/segmented", "missing guard")
@cuda.jit
def segmented_without_guard(x, heads, out):
    thread, i, distance = cuda.threadIdx.x, cuda.grid(1), 1
    scanned, head = cuda.shared.array(BLOCK, np.float32), cuda.shared.array(BLOCK, np.uint8)
    scanned[thread], head[thread] = x[i], heads[i]
    cuda.syncthreads()
    while distance < BLOCK:
        value, seen = scanned[thread], head[thread]
        if thread >= distance and seen == 0:
            value += scanned[thread - distance]
            seen = head[thread - distance]
        cuda.syncthreads()
        scanned[thread], head[thread] = value, seen
        cuda.syncthreads()
        distance *= 2
    out[i] = scanned[thread]


@wrong("scan/segmented", "uncoalesced")
@cuda.jit
def segmented_by_walking_back(x, heads, out):
    """Right, and each thread reads its segment again."""
    i = cuda.grid(1)
    if i < x.size:
        j, value = i, x[i]
        while heads[j] == 0 and j % BLOCK > 0:
            j -= 1
            value += x[j]
        out[i] = value


# -- compact


@right("scan/compact")
@cuda.jit
def compact_with_a_grid_stride(x, before, out):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        if x[i] > f0:
            out[before[i]] = x[i]


@wrong("scan/compact", "missing guard")
@cuda.jit
def compact_without_guard(x, before, out):
    i = cuda.grid(1)
    if x[i] > 0:
        out[before[i]] = x[i]


@wrong("scan/compact", "race")
@cuda.jit
def compact_everything(x, before, out):
    i = cuda.grid(1)
    if i < x.size:
        out[before[i]] = x[i]


@wrong("scan/compact", "one place too far")
@cuda.jit
def compact_inclusive(x, before, out):
    i = cuda.grid(1)
    if i < x.size and x[i] > 0:
        out[before[i] + 1] = x[i]


@wrong("scan/compact", "not moved")
@cuda.jit
def compact_in_place(x, before, out):
    i = cuda.grid(1)
    if i < x.size and x[i] > 0:
        out[i] = x[i]


@wrong("scan/compact", "race between blocks")
@cuda.jit
def compact_with_zeros(x, before, out):
    i = cuda.grid(1)
    if i < x.size and x[i] >= 0:
        out[before[i]] = x[i]
