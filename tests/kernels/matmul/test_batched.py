"""Batched matrix products: results over shapes, alignments and epilogues, the choice of a tile, and the arguments."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp.kernels.matmul import batched as part
from pmpp.runtime import device
from tests.support.wrong import misaligned, observe, result_of, total

F32 = np.float32
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")


def drawn(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape, dtype=F32) for shape in shapes]


def assert_right(result, a, b, bias=None, relu=False):
    """Each sum of K products and a bias is rounded K + 1 times at most (Higham, section 3.1), and K + 1 products."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    bias = np.zeros(a.shape[1]) if bias is None else bias.astype(np.float64)
    expected = a @ b + bias[:, None]
    expected = np.maximum(expected, 0) if relu else expected
    allowed = (a.shape[2] + 2) * 2.0**-24 * (abs(a) @ abs(b) + abs(bias)[:, None]) + 2.0**-149
    assert result.dtype == F32
    assert result.shape == expected.shape
    assert (abs(result - expected) <= allowed).all()


EACH = [(tile, True) for tile in part.TILES] + [(tile, False) for tile in part.GUARDED]


@pytest.mark.parametrize(("tile", "aligned"), EACH, ids=[f"{t.m}x{t.n}{'' if a else ', guarded'}" for t, a in EACH])
def test_every_tile_at_its_edges(tile, aligned, monkeypatch):
    monkeypatch.setattr(part, "tile_for", lambda *_: tile)
    m, n, k = (tile.m + 1, tile.n + 4, 24) if aligned else (tile.m + 1, tile.n - 1, 19)
    a, b, bias = drawn(1, (2, m, k), (2, k, n), m)
    given_a, given_b = device.to_device(a), device.to_device(b)
    result = result_of(part.multiply, given_a, given_b, bias, True)
    assert_right(result, a, b, bias, True)
    np.testing.assert_array_equal(given_a.copy_to_host(), a)
    np.testing.assert_array_equal(given_b.copy_to_host(), b)


@hypothesis.given(
    batch=st.integers(1, 3),
    shape=st.tuples(st.integers(1, 70), st.integers(1, 70), st.integers(0, 20)),
    shared=st.sampled_from(["", "a", "b"]),
    offsets=st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)),
    bias=st.booleans(),
    relu=st.booleans(),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=12)
def test_any_shape_sharing_and_alignment(batch, shape, shared, offsets, bias, relu, seed):
    m, n, k = shape
    a, b, bias_values = drawn(seed, (1 if shared == "a" else batch, m, k), (1 if shared == "b" else batch, k, n), m)
    out = misaligned(np.full((batch, m, n), np.nan, F32), offsets[2])
    bias_values = bias_values if bias else None
    result = part.multiply(misaligned(a, offsets[0]), misaligned(b, offsets[1]), bias_values, relu, out=out)
    assert result is out
    assert_right(out.copy_to_host(), a, b, bias_values, relu)


def test_one_matrix_serves_all_on_both_paths():
    for m, n, k in ((9, 12, 16), (9, 13, 5)):
        a, b = drawn(3, (1, m, k), (3, k, n))
        assert_right(device.to_host(part.multiply(a, b)), a, b)
        a, b = drawn(4, (3, m, k), (1, k, n))
        assert_right(device.to_host(part.multiply(a, b)), a, b)


def test_what_is_not_finite_stays_in_its_row_and_column():
    for k, n in ((8, 8), (5, 7)):  # a guarded load gives 0 beyond the edge, and 0 times what is there
        a, b = drawn(5, (1, 6, k), (1, k, n))
        a[0, 2, 1], a[0, 4, k - 1], b[0, 3, 4] = np.nan, np.inf, -np.inf
        with np.errstate(invalid="ignore"):
            expected = a @ b
        for relu in (False, True):
            result = device.to_host(part.multiply(a, b, None, relu))
            wanted = np.where(expected < 0, F32(0), expected) if relu else expected
            np.testing.assert_array_equal(np.isnan(result), np.isnan(wanted))
            np.testing.assert_array_equal(np.isinf(result), np.isinf(wanted))


@interpreter_only
def test_the_arithmetic_is_that_of_whole_tiles(monkeypatch):
    monkeypatch.setattr(part, "tile_for", lambda *_: part.TILES[-1])
    a, b = drawn(6, (2, 64, 16), (2, 16, 128))
    result, reports = observe(part.multiply, a, b)
    assert_right(result, a, b)
    products = 2 * 2 * 64 * 128 * 16
    assert total(reports, "flops") == products + 2 * 64 * 128  # and the bias of nought, once an element
    assert total(reports, "flops_f64") == 0


def test_the_fast_path_is_taken_where_it_can_be(monkeypatch):
    chosen = []
    kernel_for = part.kernel_for
    monkeypatch.setattr(
        part, "kernel_for", lambda tile, aligned: (chosen.append(aligned), kernel_for(tile, aligned))[1]
    )
    a, b = drawn(7, (1, 3, 8), (1, 8, 4))
    part.multiply(a, b)
    part.multiply(a[:, :, :7].copy(), b[:, :7].copy())
    part.multiply(a, b[:, :, :3].copy())
    part.multiply(misaligned(a, 1), b)
    part.multiply(a, misaligned(b, 2))
    assert chosen == [True, False, False, False, False]


def test_tiles_fill_a_large_gpu(monkeypatch):
    monkeypatch.setattr(device, "limits", lambda: {"multiprocessors": 132})
    sizes = {
        name: part.tile_for(*shape)[:2]
        for name, shape in {"large": (1, 4096, 4096, 64), "few": (1, 128, 512, 64)}.items()
    }
    assert sizes == {"large": (128, 128), "few": (64, 64)}
    assert part.tile_for(36, 64, 6272, 64).m == 64, "no half of a tile is thrown away"


def test_extents_of_nothing():
    assert part.multiply(np.zeros((0, 3, 4), F32), np.zeros((0, 4, 5), F32)).shape == (0, 3, 5)
    assert part.multiply(np.zeros((2, 0, 4), F32), np.zeros((2, 4, 5), F32)).shape == (2, 0, 5)
    bias = np.array([-1, 2], F32)
    result = device.to_host(part.multiply(np.zeros((2, 2, 0), F32), np.zeros((1, 0, 3), F32), bias, True))
    np.testing.assert_array_equal(result, np.broadcast_to(F32([[0], [2]]), (2, 2, 3)))


A, B = np.zeros((2, 3, 4), F32), np.zeros((2, 4, 5), F32)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((A.astype(np.float64), B), TypeError, "a must be float32"),
        ((A[0], B), ValueError, "a must have 3 dimensions"),
        ((A, B[:, :3].copy()), ValueError, r"b must have shape \(any, 4, any\)"),
        ((A, np.zeros((3, 4, 5), F32)), ValueError, "b must have 2 matrices, as a, or 1, had 3"),
        ((A, B, np.zeros(5, F32)), ValueError, r"bias must have shape \(3,\)"),
    ],
)
def test_what_is_wrong_is_named(arguments, error, words):
    with pytest.raises(error, match=words):
        part.multiply(*arguments)


def test_an_out_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="out must have shape"):
        part.multiply(A, B, out=device.empty((2, 3, 4), F32))


@pytest.mark.parametrize("aligned", [True, False])
def test_the_kernels_compile_and_move_vectors(ptx, aligned):
    a, b, bias = np.zeros((1, 8, 8), F32), np.zeros((1, 8, 8), F32), np.zeros(0, F32)
    for tile in part.TILES[-1:] if aligned else part.GUARDED[-1:]:
        code = ptx(part.kernel_for(tile, aligned), a, b, bias, a, False, part.Sizes(1, 1, 8, 8, 8))
        assert code.count("fma.rn.f32") >= 8 * 8 * tile.columns  # eight steps are written out
        assert ("ld.global.v4.f32" in code) == aligned
        assert "ld.shared.v4.f32" in code
        assert ".local" not in code
        assert ".f64" not in code
