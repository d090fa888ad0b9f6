"""Chapter 100 as a script: the ranks train one network, each on its part of each batch, as one rank trains it alone.

python -m pmpp.parallel.run -n 4 -m pmpp.parallel.examples.digits
"""

from __future__ import annotations

import numpy as np

from pmpp import nn
from pmpp.nn import functional as F
from pmpp.nn.examples import digits
from pmpp.parallel import data, simulated
from pmpp.parallel.examples.same import EPS, main, within
from pmpp.parallel.group import Group
from pmpp.runtime import device

BATCH, STEPS, RATE = 24, 4, 0.2


def train(group: Group) -> list[float]:
    """The losses of the joined batches. Gradients are summed during the backward pass."""
    images, labels = digits.datasets()[0][: BATCH * STEPS]
    labels = labels.astype(np.int64)
    nn.manual_seed(group.rank)  # those of rank 0 count
    layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    net = data.DataParallel(group, layers, bucket=2048)
    optimizer = nn.optim.SGD(net.parameters(), lr=RATE, momentum=0.9)
    losses = []
    for mine in data.batches(len(labels), BATCH, group.rank, group.size):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(nn.Tensor(images[mine])), nn.Tensor(labels[mine]))
        net.backward(loss)
        net.average_gradients()
        optimizer.step()
        losses.append(device.to_host(group.all_reduce(loss.array, "mean")).item())
    net.check()
    return losses


def run(group: Group) -> str:
    """Compare the losses with those of one rank. Each step may round sums of a batch, or of 64 places, otherwise."""
    losses, alone = train(group), train(simulated.alone())
    bounds = [(step + 1) * BATCH * 64 * EPS / 2 * loss for step, loss in enumerate(alone)]
    off = within("a loss", losses, alone, bounds)
    return f"loss {losses[0]:.4f} to {losses[-1]:.4f} in {STEPS} steps, off by at most {off:.1e} from one rank"


if __name__ == "__main__":
    main(run)
