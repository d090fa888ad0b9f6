"""Imported, it lets `tests.support.compiled` translate what `pmpp.runtime.clusters` gives a kernel."""

from pmpp.runtime import clusters
from tests.support import compiled

if clusters not in compiled.INTRINSICS:
    compiled.INTRINSICS = (*compiled.INTRINSICS, clusters)
