"""Copies with hints to the L2 cache: what Numba emits and refuses, and one function for both in the interpreter."""

from unittest import mock

import numpy as np
import pytest

from pmpp.runtime import copies, device, matrix
from pmpp.simt.api import intrinsics


def emitted(shared_dtype="uint32", start="int64", cc=(9, 0)):
    """PTX of one copy. The intrinsic itself: tests.support.compiled has its twin of `matrix` in its place."""
    numba_cuda = pytest.importorskip("numba.cuda")
    copy, dtype, count = copies.numba_intrinsics()["copy_async_once"], np.dtype(shared_dtype), getattr(np, start)

    def one(x):
        shared = numba_cuda.shared.array(128, dtype)
        copy(shared, 4, x, count(4), 3)

    device_of = "numba.cuda.dispatcher.get_current_device"
    with mock.patch(device_of, return_value=mock.Mock(compute_capability=cc)):
        return numba_cuda.compile_ptx(one, (numba_cuda.types.uint32[::1],), cc=cc)[0]


def test_the_instruction_and_its_hints():
    assert "createpolicy.fractional.L2::evict_first.b64" in emitted()
    assert "cp.async.cg.shared.global.L2::cache_hint.L2::128B" in emitted()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"cc": (7, 5)}, "copy_async_once needs compute capability 8.0, and compiles for 7.5"),
        ({"shared_dtype": "float32"}, "shared and x must have one dtype, were float32 and uint32"),
        ({"start": "float32"}, "j must be an integer, was float32"),
    ],
)
def test_what_is_refused(given, said):
    errors = pytest.importorskip("numba.core.errors"), pytest.importorskip("numba.cuda.core.errors")
    with pytest.raises(tuple(module.TypingError for module in errors), match=said):
        emitted(**given)


@pytest.mark.skipif(device.on_gpu(), reason="about the interpreter")
def test_the_interpreter_copies_as_ever():
    assert copies.copy_async_once is matrix.copy_async


def test_the_interpreter_finds_its_twin():
    """When it profiles a kernel that was written for the GPU."""
    pytest.importorskip("numba.cuda")
    assert intrinsics.device_path(copies.numba_intrinsics()["copy_async_once"]) == "copy_async"


def test_no_other_name_is_made():
    with pytest.raises(AttributeError, match="copy_async_page"):
        copies.copy_async_page  # noqa: B018
