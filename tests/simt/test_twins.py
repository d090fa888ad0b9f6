"""Numba's own objects have twins: on a GPU the interpreter profiles kernels that were made with those."""

import importlib
import pkgutil

import numpy as np
import pytest

from pmpp import runtime, simt
from pmpp.simt.api.intrinsics import DEVICE, device_path

FOUND = [importlib.import_module(info.name) for info in pkgutil.iter_modules(runtime.__path__, "pmpp.runtime.")
         if info.name not in ("pmpp.runtime.launcher", "pmpp.runtime.cluster_launcher")]  # fmt: skip
GIVERS = [module for module in FOUND if hasattr(module, "numba_intrinsics")]


@pytest.mark.parametrize("module", GIVERS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_each_intrinsic_of_numba_has_its_twin(module):
    pytest.importorskip("numba_cuda")
    for name, intrinsic in module.numba_intrinsics().items():
        path = device_path(intrinsic)
        assert path in DEVICE, f"{module.__name__}.{name} is no name of the interpreter"


def test_a_kernel_of_numba_in_clusters():
    numba = pytest.importorskip("numba.cuda")
    from pmpp.runtime import clusters

    cluster_rank, cluster_size, cluster_sync, map_shared_rank = (
        clusters.numba_intrinsics()[name] for name in clusters.NAMES
    )

    @numba.jit
    def ring(x, out):
        mine = numba.shared.array(32, np.float32)
        mine[numba.threadIdx.x] = x[numba.grid(1)]
        cluster_sync()
        out[numba.grid(1)] = map_shared_rank(mine, (cluster_rank() + 1) % cluster_size())[numba.threadIdx.x]
        cluster_sync()

    x, out = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    report = simt.profile(ring, 4, 32, (x, out), level="check", cluster=2)
    assert report.hazards == []
    np.testing.assert_array_equal(out.reshape(2, 2, 32), x.reshape(2, 2, 32)[:, ::-1])
