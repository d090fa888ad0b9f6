"""Chapter 99 as a script: every algorithm sums the ranks' vectors, and all ranks get the same bits.

python -m pmpp.parallel.run -n 4 -m pmpp.parallel.examples.sums
"""

from __future__ import annotations

import numpy as np

from pmpp.parallel import all_reduce
from pmpp.parallel.examples.same import EPS, main, within
from pmpp.parallel.group import Group
from pmpp.runtime import device

LENGTH = 1001  # elements, which few numbers of ranks divide


def run(group: Group) -> str:
    """Compare each sum with float64."""
    vectors = [np.random.default_rng(rank).normal(size=LENGTH).astype(np.float32) for rank in range(group.size)]
    exact, absolute = np.sum(vectors, axis=0, dtype=np.float64), np.abs(vectors).sum(axis=0, dtype=np.float64)
    off = 0.0
    for algorithm in all_reduce.LADDER:
        total = algorithm(group, device.to_device(vectors[group.rank]))
        group.same(total, algorithm.__name__)
        bound = EPS / 2 * group.size * absolute  # size - 1 additions, each off by half an epsilon of what it makes
        off = max(off, within(f"the sum by {algorithm.__name__}", device.to_host(total), exact, bound))
    return f"{len(all_reduce.LADDER)} algorithms, off by at most {off:.1e}, the same bits on all ranks"


if __name__ == "__main__":
    main(run)
