"""Products of every type on Hopper's tensor cores: all types, cuts and edges, bits, and the arguments."""

import functools

import numpy as np
import pytest

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.matmul import products as room
from pmpp.kernels.matmul import warpgroups
from pmpp.runtime import device
from pmpp.runtime.dtypes import known, rounding
from pmpp.simt.values import tensor_cores
from tests.support.wrong import hazards, misaligned, result_of, watch

pytestmark = pytest.mark.skipif(
    device.limits()["compute_capability"] != warpgroups.CAPABILITY, reason="needs compute capability 9.0"
)
SMALL = warpgroups.Tile(64, 64, 3)
NUMBERS = tensor_cores.values_of_8_bits("e4m3")
KINDS = ["float16", "float32", "int8", "uint8", *map(str, known(("bfloat16",)))]


def pair(seed, m, n, k, kind):
    """A matrix and the columns of another one."""
    rng = np.random.default_rng(seed)
    if kind == "int8":
        return tuple(rng.integers(-128, 128, shape).astype(np.int8) for shape in ((m, k), (n, k)))
    if kind == "uint8":  # e4m3 of both signs, up to 7.5, with zeros and subnormal numbers
        bits = (rng.integers(0, 0x50, shape) | rng.integers(0, 2, shape) << 7 for shape in ((m, k), (n, k)))
        return tuple(x.astype(np.uint8) for x in bits)
    (dtype,) = known((kind,))
    return tuple(rng.standard_normal(shape).astype(np.float32).astype(dtype) for shape in ((m, k), (n, k)))


def as_given(columns):
    """The second matrix as `product` wants it: in C order for 16 bits, and else in Fortran order."""
    return np.ascontiguousarray(columns.T) if columns.dtype.itemsize == 2 else columns.T


def values(x):
    return NUMBERS[x] if x.dtype == np.uint8 else x.astype(np.float64)


def allowed(kind, a, b):
    """How far from the exact result a right one may be."""
    size, steps = abs(values(a)) @ abs(values(b)).T, blocks(a.shape[1], 32 if kind == "uint8" else 16) + 1
    if kind == "int8":
        return 0.0 * size
    if kind == "float32":  # both numbers are cut after 10 bits; then sums of 8 products
        return (2 * 2.0**-10 + 9 * 2 * steps * 2.0**-23) * size
    if kind == "uint8":  # each of 33 summands loses up to a part of 2**-13 of the largest, and the sum as well
        return 34 * steps * 2.0**-13 * np.maximum(size, 1)
    return 17 * steps * 2.0**-23 * size


def by_plan(tile, parts, whole=None, **more):
    """The product with some whole tiles, by default all of them or none, and parts of the others."""

    def run(a, b):
        p = room.arguments(a, b, **more)
        tiles = blocks(p.result.shape[0], tile.m) * blocks(p.result.shape[1], tile.n)
        all_or_none = tiles if parts == 1 else 0
        room.launch(p, warpgroups.Cut(tile, 2, all_or_none if whole is None else whole, parts))
        return p.result

    return run


def is_right(result, kind, a, b):
    found, exact = device.to_host(result).astype(np.float64), values(a) @ values(b).T
    return bool((abs(found - exact) <= allowed(kind, a, b)).all())


# -------------------------------------------------------------------------------------------------------------- results


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_every_type_with_edges_and_parts(kind, parts):
    for m, n, k in ((72, 40, 136), (5, 7, 299)):  # rows that begin at multiples of 16 bytes, and others
        a, b = pair(m, m, n, k, kind)
        result = result_of(by_plan(SMALL, parts), a, as_given(b))
        assert result.dtype == (np.int32 if kind == "int8" else np.float32)
        assert is_right(result, kind, a, b)
        assert not is_right(np.roll(device.to_host(result), 1, axis=0), kind, a, b)


@pytest.mark.parametrize(
    ("kind", "whole", "rounded"), [("float16", 1, True), ("float16", 3, False), ("int8", 2, False)]
)
def test_some_tiles_are_whole_and_the_others_in_parts(kind, whole, rounded):
    a, b = pair(9, 66, 72, 144, kind)  # 2 x 2 tiles
    result = result_of(by_plan(SMALL, 2, whole, rounded=rounded), a, as_given(b))
    plain = device.to_host(by_plan(SMALL, 1)(a, as_given(b)))
    tolerance = 2e-3 if rounded else 1e-5
    np.testing.assert_allclose(device.to_host(result), plain, rtol=tolerance, atol=50 * tolerance)


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("whole", [4, 3, 0])
def test_a_block_computes_several_units(monkeypatch, whole, rounded):
    """Boxes of the next tile come into the same buffers, and stages and phases go on."""
    limits = dict(device.limits()) | {"multiprocessors": 1}
    monkeypatch.setattr(warpgroups.device, "limits", lambda: limits)
    a, b = pair(10, 9, 256, 72, "float16")  # 1 x 4 tiles of one box each, where they are rounded
    result = result_of(by_plan(SMALL, 2 if whole < 4 else 1, whole, rounded=rounded), a, as_given(b))
    np.testing.assert_allclose(device.to_host(result), values(a) @ values(b).T, rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize("tile", room.TILES, ids=str)
def test_every_tile(tile):
    a, b = pair(1, tile.m + 1, tile.n - 3, 72, "float16")
    assert is_right(result_of(by_plan(tile, 1), a, as_given(b)), "float16", a, b)


@pytest.mark.parametrize("kind", ["float16", *map(str, known(("bfloat16",)))])
@pytest.mark.parametrize("parts", [1, 2])
def test_sums_are_rounded_once(kind, parts):
    a, b = pair(2, 19, 72, 136, kind)
    (dtype,) = known((kind,))
    plain = device.to_host(by_plan(SMALL, parts)(a, as_given(b)))
    result = device.to_host(result_of(by_plan(SMALL, parts, rounded=True), a, as_given(b)))
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, plain.astype(dtype))
    assert (abs(result.astype(np.float64) - plain) <= rounding(plain, kind)).all()


def test_parts_are_added_once_more_and_recorded(monkeypatch):
    """Each launch leaves its counts at zero for the next one; one that is recorded has counts of its own."""
    a, b = pair(11, 70, 40, 200, "float16")
    results = [device.to_host(by_plan(SMALL, parts)(a, as_given(b))) for parts in (3, 2, 3)]
    monkeypatch.setattr(warpgroups, "is_recorded", lambda stream: True)
    results.append(device.to_host(by_plan(SMALL, 3)(a, as_given(b))))
    for other in results[2:]:
        np.testing.assert_array_equal(other, results[0])
    assert is_right(results[1], "float16", a, b)


@cuda.jit(device=True)
def is_first(arrivals, at, parts):
    """Adds what others have not kept yet."""
    cuda.threadfence()
    cuda.syncwarp()
    before = cuda.atomic.inc(arrivals, at, np.uint32(parts - 1)) if cuda.threadIdx.x % 32 == 0 else np.uint32(0)
    first = cuda.shfl_sync(0xFFFFFFFF, np.int32(before), 0) == 0
    cuda.threadfence()
    cuda.syncwarp()
    return first


@cuda.jit(device=True)
def is_last_but_the_warp_does_not_meet(arrivals, at, parts):
    """Lane 0 knows that the others have kept theirs, and the other lanes do not."""
    cuda.threadfence()
    cuda.syncwarp()
    before = cuda.atomic.inc(arrivals, at, np.uint32(parts - 1)) if cuda.threadIdx.x % 32 == 0 else np.uint32(0)
    return cuda.shfl_sync(0xFFFFFFFF, np.int32(before), 0) == parts - 1


@pytest.mark.skipif(device.on_gpu(), reason="the interpreter finds what a GPU does by chance")
@pytest.mark.parametrize("wrong", [is_first, is_last_but_the_warp_does_not_meet], ids=lambda one: one.__name__)
def test_who_adds_too_early_is_found(monkeypatch, wrong):
    monkeypatch.setattr(warpgroups, "is_last", wrong)
    monkeypatch.setattr(warpgroups, "stored_kernel", functools.cache(warpgroups.stored_kernel.__wrapped__))
    a, b = pair(13, 16, 8, 200, "float16")
    _, reports = watch(by_plan(SMALL, 2), a, as_given(b))
    assert set(hazards(reports)) & {"race", "uninitialized"}


def test_more_parts_than_there_are_counts_are_refused(monkeypatch):
    monkeypatch.setattr(warpgroups, "ARRIVALS", 4)
    a, b = pair(12, 65, 8, 200, "float16")
    with pytest.raises(ValueError, match="at most 1 tiles of 64 x 64 x 64, 3 stages can be cut, not 2"):
        by_plan(SMALL, 2)(a, as_given(b))


def test_e4m3_has_the_bits_of_the_hardware():
    """Those of the instruction, step by step: tests/runtime/test_hopper_by_columns.py asks a GPU for them."""
    a, b = pair(3, 16, 24, 96, "uint8")
    sums = np.zeros((16, 24), np.float32)
    for k in range(0, 96, 32):
        sums = tensor_cores.multiply_tiles("wgmma_e4m3", a[:, k : k + 32], b[:, k : k + 32].T, sums)
    np.testing.assert_array_equal(device.to_host(by_plan(SMALL, 1)(a, b.T)), sums)


def test_the_largest_sums_of_int8():
    a = np.full((3, 200), -128, np.int8)
    np.testing.assert_array_equal(device.to_host(by_plan(SMALL, 2)(a, a.T)), np.full((3, 3), 200 << 14))


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_that_begin_anywhere(kind):
    a, b = pair(4, 9, 16, 32, kind)
    given = misaligned(as_given(b), 1) if b.dtype.itemsize == 2 else device.to_device(b.T)
    result = by_plan(SMALL, 1, out=misaligned_output(9, 16, kind))(misaligned(a, 1), given)
    assert is_right(result, kind, a, b)


def misaligned_output(m, n, kind):
    return misaligned(np.zeros((m, n), np.int32 if kind == "int8" else np.float32), 1)


@pytest.mark.parametrize("kind", KINDS)
def test_extents_of_zero(kind):
    for m, n, k in ((0, 4, 3), (4, 0, 3), (3, 5, 0)):
        a, b = pair(5, m, n, k, kind)
        result = device.to_host(room.product(a, as_given(b)))
        assert result.shape == (m, n)
        assert not result.any()


def test_of_one_row_or_column_both_orders_are_one():
    for m, n, k in ((3, 1, 40), (3, 4, 1)):
        a, b = pair(6, m, n, k, "int8")
        expected = a.astype(np.int64) @ b.astype(np.int64).T
        np.testing.assert_array_equal(device.to_host(room.product(a, np.ascontiguousarray(b.T))), expected)


# ---------------------------------------------------------------------------------------------------------------- plans

SHAPES = [(4096, 4096, 4096), (8, 16384, 8192), (128, 128, 16384), (12288, 6144, 16), (1, 1, 1), (100, 9000, 300)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", room.KINDS.values())
def test_a_plan_fits(shape, kind):
    m, n, k = shape
    cut = room.plan_for(m, n, k * 2, kind, 4, 132)
    tiles, steps = blocks(m, cut.tile.m) * blocks(n, cut.tile.n), blocks(2 * k, 128)
    assert cut.tile in room.TILES
    assert 0 <= cut.whole <= tiles
    assert 1 <= cut.parts <= steps
    assert (cut.parts == 1) == (cut.whole == tiles)
    assert warpgroups.shared_with_buffers(cut.tile) + 16 * cut.tile.stages + 1024 <= 227 * 1024


def test_plans_follow_the_shape():
    large = room.plan_for(8192, 8192, 16384, "float16", 4, 132)
    assert large.tile == room.TILES[0]
    assert large.whole >= 15 * 132  # of 2048 tiles
    assert room.plan_for(64, 64, 2 * 16384, "float16", 4, 132).parts > 1  # one tile, and a long sum
    assert room.plan_for(8192, 8192, 32, "float16", 4, 132).parts == 1
    assert room.plan_for(64, 4096, 8192, "float16", 4, 132).tile.m == 64


def test_what_is_left_of_the_last_round_is_shared():
    """136 tiles of 128 x 256 for 132 multiprocessors: four are cut, or others taken, so that all have equally much."""
    cut = room.plan_for(17 * 128, 8 * 256, 2 * 16384, "float16", 4, 132)
    if cut.tile == room.TILES[0]:
        assert cut.whole == 132
        assert cut.parts > 8
    units = cut.whole + (blocks(17 * 128, cut.tile.m) * blocks(8 * 256, cut.tile.n) - cut.whole) * cut.parts
    assert units >= 132


# ------------------------------------------------------------------------------------------------------------ arguments


def test_bad_arguments_are_named():
    a, b = pair(7, 3, 5, 4, "int8")
    with pytest.raises(ValueError, match=r"b must be in Fortran order, as w\.T is, for int8, was in C order"):
        room.product(a, np.ascontiguousarray(b.T))
    with pytest.raises(ValueError, match="rounded must be False for a and b of int8"):
        room.product(a, b.T, rounded=True)
    with pytest.raises(TypeError, match=r"a must .*float16.*float64"):
        room.product(a.astype(np.float64), b.T)
    with pytest.raises(TypeError, match=r"b must .*int8.*uint8"):
        room.product(a, b.view(np.uint8).T)
    with pytest.raises(ValueError, match=r"b must have shape \(4, any\), had \(3, 5\)"):
        room.product(a, np.asfortranarray(b.T[:3]))
    with pytest.raises(TypeError, match=r"out must .*int32.*float32"):
        room.product(a, b.T, out=device.empty((3, 5), np.float32))


@pytest.mark.parametrize("capability", [(8, 0), (10, 0)])
def test_another_gpu_is_refused_by_name(monkeypatch, capability):
    monkeypatch.setattr(room.device, "limits", lambda: {"compute_capability": capability, "multiprocessors": 1})
    said = ".".join(map(str, capability))
    with pytest.raises(RuntimeError, match=rf"compute capability 9.0, this one has {said}"):
        room.product(*pair(8, 2, 3, 4, "float16"))
