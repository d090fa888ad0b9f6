"""A host array that is passed twice is copied to the device and back twice: the later copy overwrites the earlier."""

import numpy as np
import pytest

from pmpp import simt
from pmpp.simt import cuda
from pmpp.simt.values.errors import HazardError


@cuda.jit
def doubled_kernel(out, x):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = 2 * x[i]


@cuda.jit
def into_the_last_kernel(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = 2 * x[i]


@cuda.jit
def counted_kernel(count, x):
    if x[cuda.grid(1)] > 0:
        cuda.atomic.add(count, 0, 1)


@cuda.jit
def through_a_tuple_kernel(both):
    i = cuda.grid(1)
    if i < both[1].size:
        both[0][i] = 2 * both[1][i]


PAIR = np.dtype([("a", np.int8), ("b", np.float32)], align=True)


@cuda.jit
def field_kernel(out, x):
    i = cuda.grid(1)
    if i < x.size:
        out[i].b = x[i].b + np.float32(1)


def found(kernel, *arguments, grid=1, block=32):
    with simt.record("check") as reports:
        kernel[grid, block](*arguments)
    return reports[0].hazards


def line_of(kernel, offset):
    return kernel.py_func.__code__.co_firstlineno + offset


def test_a_write_that_is_overwritten_is_reported_with_its_line():
    x = np.arange(1, 40, dtype=np.float32)
    (hazard,) = found(doubled_kernel, x, x, grid=2)
    assert (hazard.kind, hazard.space, hazard.variable) == ("lost_write", "global", "out")
    assert hazard.line == line_of(doubled_kernel, 4)
    assert "thread 0 of block 0 writes an element of out, and the write is lost: x is the same memory" in hazard.message
    np.testing.assert_array_equal(x, np.arange(1, 40))  # as on a GPU


def test_it_is_an_error_where_hazards_are(monkeypatch):
    monkeypatch.setenv("PMPP_CHECK", "1")
    x = np.ones(4, np.float32)
    with pytest.raises(HazardError, match=rf"test_lost_writes\.py:{line_of(doubled_kernel, 4)}: .* lost write: "):
        doubled_kernel[1, 32](x, x)
    monkeypatch.setenv("PMPP_CHECK", "")
    doubled_kernel[1, 32](x, x)


def test_parts_that_overlap_are_the_same_memory_there():
    x = np.arange(1, 33, dtype=np.float32)
    (hazard,) = found(doubled_kernel, x[:20], x[12:])
    assert hazard.thread == (12, 0, 0)  # the first element that both have
    assert not found(doubled_kernel, x[:16], x[16:])


def test_atomics_tuples_and_fields_are_seen():
    x = np.ones(32, np.int32)
    (hazard,) = found(counted_kernel, x, x)
    assert (hazard.variable, hazard.line) == ("count", line_of(counted_kernel, 3))
    x = np.ones(32, np.float32)
    (hazard,) = found(through_a_tuple_kernel, (x, x))
    assert (hazard.variable, hazard.line) == ("both", line_of(through_a_tuple_kernel, 4))
    records = np.zeros(8, PAIR)
    (hazard,) = found(field_kernel, records, records)
    assert (hazard.variable, hazard.line) == ("out", line_of(field_kernel, 4))
    assert hazard.thread == (0, 0, 0)


def test_columns_first_and_what_is_only_copied_back():
    x = np.asfortranarray(np.arange(1, 13, dtype=np.float32).reshape(3, 4))
    flat = x.reshape(-1, order="F")
    assert np.shares_memory(x, flat)
    (hazard,) = found(doubled_kernel, flat, x.T.reshape(-1))
    assert hazard.kind == "lost_write"
    assert found(doubled_kernel, cuda.Out(flat), flat)[0].kind == "lost_write"


def test_what_loses_nothing_is_not_reported():
    x = np.ones(32, np.float32)
    assert not found(into_the_last_kernel, x, x)  # what is written is copied back last
    assert (x == 2).all()
    on_device = cuda.to_device(x)
    assert not found(doubled_kernel, on_device, on_device)
    np.testing.assert_array_equal(on_device.copy_to_host(), 2 * x)
    assert not found(doubled_kernel, x, cuda.In(x))  # which is not copied back
    assert (x == 4).all()
    read_only = x[:]
    read_only.flags.writeable = False
    assert not found(doubled_kernel, x, read_only)
    zeros = np.zeros(32, np.float32)
    assert not found(doubled_kernel, zeros, zeros)  # nothing changes
    assert not found(doubled_kernel, np.zeros(32, np.float32), x)
