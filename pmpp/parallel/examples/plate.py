"""Chapter 103 as a script: Jacobi's method on a plate that is hot on one side, to a tolerance, by every way of a halo.

python -m pmpp.parallel.run -n 4 -m pmpp.parallel.examples.plate
"""

from __future__ import annotations

import numpy as np

from pmpp.parallel import halo
from pmpp.parallel.examples.same import main
from pmpp.parallel.group import Group

ROWS, COLUMNS = 20, 18


def run(group: Group) -> str:
    """Compare the bits of this rank's part with the plate of one rank."""
    plate = np.zeros((ROWS, COLUMNS), np.float32)
    plate[0] = 100
    ways = [step for step in halo.LADDER if step is not halo.one_sided or group._transport.windows]
    for step in ways:
        wide = 2 if step is halo.wide else 1
        found = halo.solve(group, plate, step, tolerance=0.5, most=100, every=20, halo=wide)
        (top, left), (rows, columns) = found.place, found.cells.shape
        wanted = halo.reference(plate, found.steps)[top : top + rows, left : left + columns]
        if (found.cells != wanted).any():
            raise RuntimeError(f"rank {group.rank} has other bits than one rank, by {step.__name__}")
    return f"{len(ways)} ways, {found.steps} steps to a change of {found.change:.3f}, the bits of one rank"


if __name__ == "__main__":
    main(run)
