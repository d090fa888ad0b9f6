"""Chapter 104 as a script: an all-reduce on two levels, as if half of the ranks were in another machine.

python -m pmpp.parallel.run -n 4 -m pmpp.parallel.examples.machines
"""

from __future__ import annotations

import numpy as np

from pmpp.parallel import scaling
from pmpp.parallel.examples.same import EPS, main, within
from pmpp.parallel.group import Group
from pmpp.runtime import device

LENGTH = 1001


def run(group: Group) -> str:
    """Compare the sum with float64, for two machines if the ranks can be halved, else for one."""
    machines = 1 + (group.size % 2 == 0)
    vectors = [np.random.default_rng(rank).normal(size=LENGTH).astype(np.float32) for rank in range(group.size)]
    total = scaling.two_levels(group, vectors[group.rank], group.size // machines)
    group.same(total, "the sum")
    exact, absolute = np.sum(vectors, axis=0, dtype=np.float64), np.abs(vectors).sum(axis=0, dtype=np.float64)
    off = within("the sum on two levels", device.to_host(total), exact, EPS / 2 * group.size * absolute)
    return f"{machines} machines of {group.size // machines} ranks, a sum off by at most {off:.1e}"


if __name__ == "__main__":
    main(run)
