"""Launches in clusters of blocks on a GPU: see `pmpp.runtime.clusters`.

Numba has no argument for clusters. The driver has: a launch's configuration carries a list of attributes, one of which
is the extent of a cluster. So these launches never go by Numba, which compiles the kernel all the same.
"""

from __future__ import annotations

import ctypes
import functools
import typing

from numba import cuda
from numba.cuda.cudadrv import devices, driver
from numba.cuda.dispatcher import CUDADispatcher

from pmpp.runtime import array
from pmpp.runtime.launcher import KEPT, NUMBA, Configuration, Launch, Plan, Unknown, allow_shared, describe, plan_of

__all__ = ["ClusterLaunch", "InClusters", "resident"]

CLUSTER_DIMENSION = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
NON_PORTABLE = 14  # CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
PORTABLE = 8  # blocks of a cluster that every GPU with clusters allows


class Attribute(ctypes.Structure):
    """The driver's CUlaunchAttribute: which it is, and a value of 64 bytes at a multiple of 8."""

    _fields_ = (("id", ctypes.c_uint), ("_", ctypes.c_uint), ("value", ctypes.c_uint * 16))


class ClusterLaunch(Launch):
    """``in_clusters(kernel, blocks)[grid, block, stream, shared]``: called with the kernel's arguments, it launches."""

    def __init__(self, kernel: CUDADispatcher, blocks: int, grid, block, stream=0, sharedmem=0) -> None:
        super().__init__(kernel, grid, block, stream, sharedmem)
        if self.griddim[0] % blocks:
            raise ValueError(
                f"the grid is {grid!r}; its first extent must be a multiple of the cluster's {blocks} blocks"
            )
        self.blocks = blocks
        self.attribute = Attribute(CLUSTER_DIMENSION, 0, (ctypes.c_uint * 16)(blocks, 1, 1))
        sizes = *self.griddim, *self.blockdim, self.sharedmem
        at = ctypes.addressof(self.attribute)
        self.configuration = ctypes.byref(Configuration(*sizes, self.handle, at, 1))

    def first(self, args: tuple, key: tuple) -> None:
        """Compile the kernel for arguments of new types, make the plan for them, and launch."""
        for form in key[1:]:
            if isinstance(form, array.Form) and form.device != key[0]:
                where = f"on GPU {key[0]}, the current device"
                raise ValueError(f"an array of GPU {form.device} cannot be given to a kernel {where}")
        types = tuple(self.dispatcher.typeof_pyval(arg) for arg in args)
        plan = self.plan(types, key)
        if len(self.plans) >= KEPT:
            self.plans.clear()
        self.plans[key] = plan
        self(*args)

    def by_numba(self, args: tuple) -> None:
        """What no plan could launch, or the driver did not take: Numba cannot launch clusters."""
        try:
            values, forms = describe(args, self.handle)
        except Unknown:
            kinds = ", ".join(type(arg).__name__ for arg in args)
            raise TypeError(
                f"a launch in clusters takes device arrays, numbers and tuples of them; the arguments were {kinds}: "
                "cuda.to_device copies what lies on the host"
            ) from None
        types = tuple(self.dispatcher.typeof_pyval(arg) for arg in args)
        plan = self.plan(types, (array.device() if self.several else 0, *forms))
        if self.blocks > PORTABLE:
            self.allow_more(plan)
        if not plan.launch(self, values):
            self.refused()

    def plan(self, types: tuple, key: tuple) -> Plan:
        """The plan for arguments of these types."""
        self.dispatcher.compile(types)
        plan = plan_of(self.dispatcher, types, key)
        if plan is NUMBA or plan.cooperative:
            raise TypeError(
                f"{self.dispatcher.__name__} cannot be launched in clusters: it has debug=True, extensions, code that "
                "depends on the launch's configuration, or waits for the whole grid"
            )
        return plan

    @staticmethod
    def allow_more(plan: Plan) -> None:
        """Ask the driver to let this kernel have clusters of more than 8 blocks on this device, from now on."""
        function = plan.kernel._codelibrary.get_cufunc()
        attribute = driver.binding.CUfunction_attribute(NON_PORTABLE)
        here = driver.binding.CUdevice(devices.get_context().device.id)
        driver.binding.cuKernelSetAttribute(attribute, 1, function.handle, here)

    def refused(self) -> typing.NoReturn:
        """Say why the driver did not take the launch, as far as it says."""
        shared = f" with {self.sharedmem:,} bytes of dynamic shared memory each" if self.sharedmem else ""
        raise RuntimeError(
            f"the driver refused {self.dispatcher.__name__} in clusters of {self.blocks} blocks{shared}: a GPU before "
            "compute capability 9.0 has no clusters, and on others the blocks must fit on neighbouring multiprocessors"
        )

    def __getstate__(self) -> dict:
        raise TypeError("a launch in clusters cannot be pickled")


class InClusters:
    """``in_clusters(kernel, blocks)``."""

    def __init__(self, kernel: CUDADispatcher, blocks: int) -> None:
        if not isinstance(kernel, CUDADispatcher):
            raise TypeError(f"kernel must be made by @cuda.jit, was {type(kernel).__name__}")
        self.kernel, self.blocks = kernel, blocks

    def __getitem__(self, configuration: tuple) -> ClusterLaunch:
        if not isinstance(configuration, tuple) or len(configuration) not in (2, 3, 4):
            raise ValueError("a launch is configured as in_clusters(kernel, blocks)[grid, block, stream, sharedmem]")
        kept = self.kernel.__dict__.setdefault("_pmpp_cluster_launches", {})
        key = self.blocks, configuration
        try:
            if key in kept:
                return kept[key]
        except TypeError:  # lists of extents
            return ClusterLaunch(self.kernel, self.blocks, *configuration)
        made = ClusterLaunch(self.kernel, self.blocks, *configuration)
        if len(kept) >= KEPT:
            kept.clear()
        kept[key] = made
        return made


@cuda.jit
def nothing():
    """Asked how many of its clusters the GPU holds."""


def resident(blocks: int, threads: int, shared: int) -> int:
    """How many clusters of blocks with so many threads and bytes of shared memory the current device holds at once."""
    return _resident(array.device(), blocks, threads, shared)


@functools.lru_cache(maxsize=1024)
def _resident(device: int, blocks: int, threads: int, shared: int) -> int:
    launch = InClusters(nothing, blocks)[blocks, threads, 0, shared]
    plan = launch.plan((), (device, ()))
    allow_shared(plan.kernel, shared)
    if blocks > PORTABLE:
        launch.allow_more(plan)
    found = ctypes.c_int()
    code = array.library().cuOccupancyMaxActiveClusters(ctypes.byref(found), plan.function, launch.configuration)
    return 0 if code else found.value
