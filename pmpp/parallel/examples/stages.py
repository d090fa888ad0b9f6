"""Chapter 102 as a script: each rank has some of the layers, and micro-batches go through them.

python -m pmpp.parallel.run -n 4 -m pmpp.parallel.examples.stages
"""

from __future__ import annotations

import numpy as np

from pmpp import nn
from pmpp.parallel import pipeline, simulated
from pmpp.parallel.examples.same import EPS, main, within
from pmpp.parallel.group import Group

LAYERS, WIDTH = 12, 6  # 2, 3, 4, 6 or 12 ranks have equally many layers
COUNT, EACH = 4, 2  # micro-batches, and examples in each


def inputs() -> list[np.ndarray]:
    """The micro-batches."""
    return [np.random.default_rng(k).normal(size=(EACH, WIDTH)).astype(np.float32) for k in range(COUNT)]


def gradients(group: Group) -> tuple[list[np.ndarray], int]:
    """Of this rank's layers, and of how many micro-batches it kept activations at once."""
    if LAYERS % group.size:
        raise ValueError(f"the ranks must divide {LAYERS} layers, were {group.size}")
    nn.manual_seed(2)
    share = LAYERS // group.size
    mine = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)][group.rank * share : (group.rank + 1) * share]
    net = nn.Sequential(*mine)
    stage = pipeline.Stage(group, net, (EACH, WIDTH), inputs(), lambda y, k: (y * y).sum())
    pipeline.one_forward_one_backward(stage, COUNT)
    return [parameter.grad.numpy() for parameter in net.parameters()], stage.most


def run(group: Group) -> str:
    """Compare the gradients with those of all layers on one rank."""
    found, most = gradients(group)
    alone, _ = gradients(simulated.alone())
    wanted = alone[group.rank * len(found) : (group.rank + 1) * len(found)]
    off = 0.0
    for mine, whole in zip(found, wanted, strict=True):
        bound = 2 * LAYERS * COUNT * EACH * WIDTH * EPS / 2 * max(1.0, np.abs(whole).max())
        off = max(off, within("a gradient", mine, whole, bound))
    return f"{LAYERS} layers, {COUNT} micro-batches of which rank 0 keeps {most}; gradients off by at most {off:.1e}"


if __name__ == "__main__":
    main(run)
