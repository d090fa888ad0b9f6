"""Chapter 101 as a script: two linear layers and the classes of a loss are cut, and gradients are those of the whole.

python -m pmpp.parallel.run -n 4 -m pmpp.parallel.examples.layers
"""

from __future__ import annotations

import numpy as np

from pmpp import nn
from pmpp.nn import functional as F
from pmpp.parallel import tensor
from pmpp.parallel.examples.same import EPS, main, within
from pmpp.parallel.group import Group

ROWS, INPUTS, WIDTH = 5, 7, 24  # WIDTH: of what is cut, so 2, 3, 4, 6, 8, 12 or 24 ranks can do it


def run(group: Group) -> str:
    """Compare the loss and the gradient of the input with those of whole layers."""
    nn.manual_seed(1)
    first, second, last = nn.Linear(INPUTS, WIDTH), nn.Linear(WIDTH, INPUTS), nn.Linear(INPUTS, WIDTH)
    rng = np.random.default_rng(0)
    numbers, labels = rng.normal(size=(ROWS, INPUTS)).astype(np.float32), rng.integers(0, WIDTH, ROWS)

    whole = nn.Tensor(numbers, requires_grad=True)
    wanted = F.cross_entropy(last(second(F.relu(first(whole)))), nn.Tensor(labels.astype(np.int64)))
    wanted.backward()

    x = nn.Tensor(numbers, requires_grad=True)
    hidden = F.relu(tensor.ColumnLinear(group, first)(x))
    scores = tensor.ColumnLinear(group, last)(tensor.RowLinear(group, second)(hidden))
    loss = tensor.cross_entropy(group, scores, labels)
    loss.backward()

    # The longest sum has WIDTH terms, and three layers follow one another, forwards and backwards.
    rounding = 6 * WIDTH * EPS / 2
    off = within("the loss", loss.item(), wanted.item(), rounding * max(1.0, wanted.item()))
    largest = np.abs(whole.grad.numpy()).max()
    within("the gradient of the input", x.grad.numpy(), whole.grad.numpy(), rounding * max(1.0, largest))
    return f"three layers and a loss in {group.size} parts, loss {loss.item():.4f}, off by {off:.1e}"


if __name__ == "__main__":
    main(run)
