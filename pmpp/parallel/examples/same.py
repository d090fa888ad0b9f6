"""What the scripts share: a comparison with one rank that fails loudly, and the line that rank 0 prints."""

from __future__ import annotations

import types
import typing

import numpy as np

from pmpp import parallel

__all__ = ["EPS", "main", "within"]

EPS = float(np.finfo(np.float32).eps)


def within(what: str, found: typing.Any, wanted: typing.Any, bound: typing.Any) -> float:
    """The largest difference. Raises RuntimeError if one is above its bound, or is no number.

    >>> within("a sum", np.float32([1, 2.5]), [1, 2], 0.6)
    0.5
    """
    apart = np.abs(np.asarray(found, np.float64) - np.asarray(wanted, np.float64))
    if not (apart <= bound).all():
        raise RuntimeError(f"{what} of several ranks is not that of one: off by {apart.max():.3g}")
    return float(apart.max(initial=0.0))


def main(*scripts: typing.Any) -> None:
    """Be a rank of the scripts, or of the one that is executed: each has ``run(group)``, which returns a line."""
    group = parallel.init()
    for script in scripts:
        name = script.__spec__.name if isinstance(script, types.ModuleType) else ""
        line = (script.run if name else script)(group)
        group.barrier()
        if group.rank == 0:
            print(f"{name.rpartition('.')[2]:9}{group.size} ranks, {group.backend}: {line}".lstrip(), flush=True)
