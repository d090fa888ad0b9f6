"""Plain reads of what other blocks update by atomics: which are meant to find old values, wherever that is written."""

import numpy as np
import pytest

from pmpp import simt
from pmpp.simt import cuda


@cuda.jit(device=True)
def is_up(flags, i):
    return flags[i] != 0


@cuda.jit(device=True)
def acquire():
    cuda.threadfence()


@cuda.jit(device=True)
def offer(best, value):
    cuda.atomic.max(best, 0, value)


@cuda.jit(device=True)
def count(n):
    cuda.atomic.add(n, 0, 1)


@cuda.jit
def waits_by_a_function(flag, data, out):
    if cuda.blockIdx.x == 0:
        while not is_up(flag, 0):
            cuda.threadfence()
        acquire()
        out[0] = data[0]
    else:
        data[0] = 42
        cuda.threadfence()
        cuda.atomic.exch(flag, 0, 1)


@cuda.jit
def waits_by_an_uncached_load(flag, data, out):
    if cuda.blockIdx.x == 0:
        seen = 0
        while seen == 0:
            seen = cuda.ldcv(flag, 0)
        cuda.threadfence()
        out[0] = data[0]
    else:
        data[0] = 42
        cuda.threadfence()
        cuda.atomic.exch(flag, 0, 1)


@cuda.jit
def looks_once_and_fences_in_a_function(flag, data, out):
    if cuda.blockIdx.x == 0:
        data[0] = 42
        cuda.threadfence()
        cuda.atomic.exch(flag, 0, 1)
    elif is_up(flag, 0):
        acquire()
        out[0] = data[0]


@cuda.jit
def looks_fences_and_tests(flag, data, out):
    if cuda.blockIdx.x == 0:
        data[0] = 42
        cuda.threadfence()
        cuda.atomic.exch(flag, 0, 1)
    else:
        seen = flag[0]
        acquire()
        if seen == 1:
            out[0] = data[0]


@cuda.jit
def looks_before_it_offers(flag, data, out):
    value = cuda.blockIdx.x + 1
    if flag[0] < value:
        offer(flag, value)


@cuda.jit
def looks_before_it_counts_within_bounds(flag, data, out):
    if flag[0] < 1:
        mine = cuda.atomic.add(flag, 0, 1)
        if mine < 1:
            out[0] = 42


@pytest.mark.parametrize("kernel", [waits_by_a_function, waits_by_an_uncached_load, looks_once_and_fences_in_a_function,
                                    looks_fences_and_tests, looks_before_it_offers,
                                    looks_before_it_counts_within_bounds])  # fmt: skip
@pytest.mark.parametrize("lanes", [1, 1 << 20])
def test_a_look_that_may_be_outdated_is_no_race(kernel, lanes):
    with simt.batch_lanes(lanes):
        args = np.zeros(1, np.int32), np.zeros(1, np.int32), np.zeros(1, np.int32)
        assert simt.profile(kernel, 2, 1, args, level="check").hazards == []


@cuda.jit
def counts_what_it_has_looked_at(flag, data, out):
    if flag[0] < 1:
        count(data)
    cuda.atomic.add(flag, 0, 1)


@cuda.jit
def asks_a_function(flag, data, out):
    cuda.atomic.add(flag, 0, 1)
    out[cuda.blockIdx.x] = is_up(flag, 0)


@cuda.jit
def fences_only_after_the_result(flag, data, out):
    cuda.atomic.add(flag, 0, 1)
    out[cuda.blockIdx.x] = flag[0]
    cuda.threadfence()


@pytest.mark.parametrize("kernel", [counts_what_it_has_looked_at, asks_a_function, fences_only_after_the_result])
@pytest.mark.parametrize("lanes", [1, 1 << 20])
def test_a_look_that_decides_is_a_race(kernel, lanes):
    with simt.batch_lanes(lanes):
        args = np.zeros(1, np.int32), np.zeros(1, np.int32), np.zeros(2, np.int32)
        hazards = simt.profile(kernel, 2, 1, args, level="check").hazards
    assert {(hazard.kind, hazard.variable) for hazard in hazards} <= {("race", "flag"), ("race", "flags")}
    assert hazards
