"""Launches in clusters of blocks: see `pmpp.runtime.clusters`."""

from __future__ import annotations

from typing import Any

import numpy as np

from pmpp.simt.host.cuda import Configured, Kernel
from pmpp.simt.machine.gpus import occupancy
from pmpp.simt.machine.scheduler import GPU
from pmpp.simt.values.errors import LaunchError


class InClusters:
    """``in_clusters(kernel, blocks)``."""

    def __init__(self, kernel: Kernel, blocks: int) -> None:
        if not isinstance(kernel, Kernel):
            raise TypeError(f"kernel must be made by @cuda.jit, was {type(kernel).__name__}")
        self.kernel, self.blocks = kernel, blocks

    def __getitem__(self, configuration: Any) -> ClusterLaunch:
        if not isinstance(configuration, tuple) or len(configuration) not in (2, 3, 4):
            raise LaunchError(
                "a launch is configured as in_clusters(kernel, blocks)[grid, block, stream, sharedmem], not with "
                f"{configuration!r}"
            )
        found = self.kernel[configuration]
        first = found.grid[0] if isinstance(found.grid, (tuple, list)) else found.grid
        if first % self.blocks:
            raise LaunchError(
                f"the grid is {found.grid!r}; its first extent must be a multiple of the cluster's {self.blocks} blocks"
            )
        return ClusterLaunch(found.kernel, found.grid, found.block, found.sharedmem, self.blocks)


class ClusterLaunch(Configured):
    """``in_clusters(kernel, blocks)[grid, block, stream, shared]``: called with the kernel's arguments, it launches."""

    def __call__(self, *args: Any) -> None:
        if any(isinstance(each, (np.ndarray, np.void)) for each in _flat(args)):
            kinds = ", ".join(type(arg).__name__ for arg in args)
            raise TypeError(
                f"a launch in clusters takes device arrays, numbers and tuples of them; the arguments were {kinds}: "
                "cuda.to_device copies what lies on the host"
            )
        super().__call__(*args)


def _flat(args: tuple) -> list:
    return [each for arg in args for each in (_flat(arg) if isinstance(arg, tuple) else [arg])]


def resident(blocks: int, threads: int, shared: int) -> int:
    """How many clusters of blocks with so many threads and bytes of shared memory the imagined GPU holds at once."""
    return GPU.sms * occupancy(threads, shared, gpu=GPU).blocks // blocks
