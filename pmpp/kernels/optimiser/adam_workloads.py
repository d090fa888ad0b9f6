"""What is measured of ``adam``: AdamW for networks of many sizes, in place, as training does it.

The networks, and the contenders that go on step by step, are also those of the rooms beside it.
"""

from __future__ import annotations

import functools
import itertools
import math
import typing
import weakref
from collections.abc import Callable

import numpy as np

from pmpp.kernels.optimiser import adam as room
from pmpp.lab.measure.arrays import chunks, normal, view, worst, worst_of, xp
from pmpp.lab.measure.bench import Workload
from pmpp.runtime import device
from pmpp.runtime.rung import Problem


def _resnet_18() -> list[tuple[int, ...]]:
    """The shapes of its parameters, for images of 32 x 32."""
    shapes: list[tuple[int, ...]] = [(64, 3, 3, 3), (64,), (64,)] + 4 * [(64, 64, 3, 3), (64,), (64,)]
    for c in (128, 256, 512):
        shapes += [(c, c // 2, 3, 3), (c,), (c,), (c, c // 2, 1, 1), (c,), (c,)] + 3 * [(c, c, 3, 3), (c,), (c,)]
    return [*shapes, (10, 512), (10,)]


LENET_5 = [(6, 1, 5, 5), (6,), (16, 6, 5, 5), (16,), (120, 400), (120,), (84, 120), (84,), (10, 84), (10,)]
NETWORKS = {
    "100 x 10^6": (1_000_000,) * 100,
    "ResNet-18": tuple(map(math.prod, _resnet_18())),
    "LeNet-5": tuple(map(math.prod, LENET_5)),
    "one of 2^10": (2**10,),
    "one of 2^14": (2**14,),
}
DESIGN = "100 x 10^6"


def state(arrays: int, n: int) -> Callable[[int], tuple]:
    """Makes that many arrays of ``n`` normal numbers."""
    return lambda seed: tuple(normal(n, 100 * seed + k) for k in range(arrays))


@functools.cache
def ends(sizes: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Where each tensor begins and ends in one array of them all."""
    last = np.cumsum((0, *sizes)).tolist()
    return tuple(itertools.pairwise(last))


def ours(x: typing.Any) -> typing.Any:
    """A copy of a device array, with memory of its own."""
    made = device.empty(x.shape, np.float32)
    made.copy_to_device(x)
    return made


def joined(parts: list) -> typing.Any:
    """A copy of all tensors in one array."""
    whole = device.empty(sum(one.size for one in parts), np.float32)
    begin = 0
    for one in parts:
        whole[begin : begin + one.size].copy_to_device(one)
        begin += one.size
    return whole


def in_place(name: str, sizes: tuple[int, ...], begin: Callable, clone: Callable, join: Callable) -> Callable:
    """A contender that goes on step by step from copies of its inputs, as training does.

    ``begin(*lists)`` gives a function that makes a step. What the contender returns, and what is verified, is a copy of
    the parameters after the first step: later ones start from what is there.
    """
    kept: dict[int, tuple[Callable, typing.Any]] = {}

    def call(*arrays: typing.Any) -> typing.Any:
        found = kept.get(id(arrays[0]))
        if found is None:
            lists = [[clone(x[first:last]) for first, last in ends(sizes)] for x in arrays]
            step = begin(*lists)
            step()
            kept[id(arrays[0])] = step, join(lists[0])
            weakref.finalize(arrays[0], kept.pop, id(arrays[0]), None)
            return kept[id(arrays[0])][1]
        step, result = found
        step()
        return result

    call.__name__ = name
    return call


def torch_contender(name: str, sizes: tuple[int, ...], begin: Callable) -> Callable:
    """The same for PyTorch: ``begin(torch, *lists)``."""
    calls: dict[str, Callable] = {}

    def library(torch: typing.Any, *arrays: typing.Any) -> typing.Any:
        if not calls:
            calls[name] = in_place(name, sizes, lambda *lists: begin(torch, *lists), lambda x: x.clone(), torch.cat)
        return calls[name](*arrays)

    return library


HYPER = 1e-3, (0.9, 0.999), 1e-8, 0.01, True
# How far off PyTorch's step may be, as a share of it: it has 1 - beta in float32, where the difference of near numbers
# keeps the roundings of both. tests/kernels/optimiser/test_adam.py derives it, and holds the rungs to less.
CORRECTIONS = sum(2.0**-24 * (10 * beta / (1 - beta) + 1) / k for k, beta in enumerate(HYPER[1], 1))


def verify(result: typing.Any, p: typing.Any, g: typing.Any, m: typing.Any, v: typing.Any) -> tuple[float, float]:
    """The parameters after one step, every element against float64. The moments enter into them."""
    if result.shape != p.shape:
        return float("inf"), 0.0
    lr, betas, eps, decay, _ = HYPER
    found = []
    for part in chunks(p.size):
        old, grad, first, second = (x[part].astype(np.float64) for x in (p, g, m, v))
        first = first + (1 - betas[0]) * (grad - first)
        second = betas[1] * second + (1 - betas[1]) * grad * grad
        size, root = lr / (1 - betas[0]), xp().sqrt(second / (1 - betas[1])) + eps
        moved = size * first / root
        expected = old * (1 - lr * decay) - moved
        # As in the room's tolerance, with the worst of what its terms may be.
        allowed = 2.0**-24 * (6 * abs(old) + 20 * size * (abs(first) + abs(grad)) / root)
        found.append(worst(abs(result[part] - expected), allowed + abs(moved) * CORRECTIONS))
    return worst_of(found)


def make(n: int) -> Callable[[int], tuple]:
    """Parameters, gradients and moments. Second moments are positive."""
    drawn = state(4, n)

    def made(seed: int) -> tuple:
        p, g, m, v = drawn(seed)
        if xp() is np:
            return p, g, m, device.to_device(device.to_host(v) ** 2)
        squares = view(v)
        squares *= squares
        return p, g, m, v

    return made


def step_of(rung: typing.Any) -> Callable:
    """A step of a rung, in place."""

    def begin(p: list, g: list, m: list, v: list) -> Callable:
        p, g, m, v = (tuple(one) for one in (p, g, m, v))
        numbers = room.hyper(*HYPER, 1)
        return lambda: rung.run(Problem(None, read=(p, g, m, v), written=(p, m, v), hyper=numbers, factors=room.none()))

    return begin


def fused(torch: typing.Any, p: list, g: list, m: list, v: list) -> Callable:
    """PyTorch's fused AdamW, without the Python around it."""
    lr, betas, eps, decay, _ = HYPER
    steps = [torch.ones((), device="cuda") for _ in p]
    options = {"lr": lr, "beta1": betas[0], "beta2": betas[1], "weight_decay": decay, "eps": eps}
    return lambda: torch._fused_adamw_(p, g, m, v, [], steps, **options, amsgrad=False, maximize=False)


def _workload(name: str, sizes: tuple[int, ...]) -> Workload:
    n = sum(sizes)
    return Workload(
        family="AdamW",
        name=name,
        sizes={"n": n, "tensors": len(sizes)},
        cost=room.cost(n),
        make=make(n),
        rungs=tuple(in_place(rung.name, sizes, step_of(rung), ours, joined) for rung in room.LADDER),
        libraries={"torch.fused_adamw": torch_contender("fused", sizes, fused)},
        verify=verify,
        design=name == DESIGN,
        cache="cold" if n > 2**20 else "warm",
        quick=name == DESIGN,
    )


WORKLOADS = [_workload(name, sizes) for name, sizes in NETWORKS.items()]
