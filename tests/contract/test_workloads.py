"""The checks of `make bench`: no time is recorded without them, so they let right results pass, and wrong ones not."""

import importlib

import numpy as np
import pytest

from pmpp.lab.measure import bench
from pmpp.lab.rooms import rooms, workload_modules
from pmpp.runtime import device
from pmpp.runtime.rung import room_name

SMALL = 2**19  # bytes and operations that the least of a family may need, to be run here


def smallest_of_families():
    for room in rooms():
        name = room_name(room)
        workloads = importlib.import_module(workload_modules()[name]).WORKLOADS
        checked = [one for one in workloads if one.rungs and one.verify]
        for family in dict.fromkeys(one.family for one in checked):
            least = min((one for one in checked if one.family == family), key=lambda one: one.cost.bytes)
            if max(least.cost.bytes, least.cost.flops) <= SMALL:
                yield pytest.param(least, id=f"{name}: {least.label}")


def smallest_on_the_host():
    """The least workload of each family that NumPy gets, too."""
    for name, module in workload_modules().items():
        workloads = importlib.import_module(module).WORKLOADS
        shared = [one for one in workloads if one.host and one.verify and one.cost.bytes <= 16 * SMALL]
        for family in dict.fromkeys(one.family for one in shared):
            least = min((one for one in shared if one.family == family), key=lambda one: one.cost.bytes)
            for contender in least.host:
                yield pytest.param(least, contender, id=f"{name}: {least.label}, {contender}")


SMALLEST = list(smallest_of_families())
ON_HOST = list(smallest_on_the_host())


def passes(workload, result, inputs):
    error, tolerance = bench._check(workload, result, inputs)
    return error <= tolerance


def wrong_values(right):
    """What a result's element is not: NaN and two per cent farther from 0, and of integers the neighbours there are."""
    if right.dtype.kind not in "iu":
        return np.nan, 1.02 * right + 0.02 * (right / abs(right) if right else 1)
    known = np.iinfo(right.dtype)
    return [value for value in (int(right) - 1, int(right) + 1) if known.min <= value <= known.max]


def test_rooms_have_a_small_workload():
    assert len({one.id.partition(":")[0] for one in SMALLEST}) >= 10


@pytest.mark.parametrize("workload", SMALLEST)
def test_right_results_pass_and_wrong_ones_do_not(workload):
    inputs = workload.make(1)
    *_, rung = workload.rungs
    result = device.to_host(rung(*inputs))
    assert passes(workload, result, inputs)
    for place in {0, result.size // 2, result.size - 1}:
        for value in wrong_values(result.flat[place]):
            wrong = result.copy()
            wrong.flat[place] = value
            assert not passes(workload, wrong, inputs), f"element {place} is {value}, not {result.flat[place]}"


@pytest.mark.parametrize("workload", [one for one in SMALLEST if one.values[0].probe])
def test_a_probe_sees_one_lost_element(workload):
    *_, rung = workload.rungs
    workload.probe(rung)

    def forgetful(*inputs):
        first, *others = (device.to_host(x) for x in inputs)
        last = np.flatnonzero(first)[-1]
        first.flat[last] = 0
        return rung(device.to_device(first), *map(device.to_device, others))

    with pytest.raises(bench.WrongResult):
        workload.probe(forgetful)


@pytest.mark.skipif(device.on_gpu(), reason="there the check takes CuPy's arrays, and make bench runs it")
@pytest.mark.parametrize(("workload", "contender"), ON_HOST)
def test_the_host_computes_what_the_rungs_do(workload, contender):
    inputs = workload.make(1)
    result = workload.host[contender](*(workload.host_args or bench._numpy)(*inputs))
    assert passes(workload, np.asarray(result), inputs)
    wrong = np.array(result)
    wrong.flat[-1] = wrong_values(wrong.flat[-1])[-1]
    assert not passes(workload, wrong, inputs)
