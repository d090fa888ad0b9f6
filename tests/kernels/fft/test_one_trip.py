"""FFT in one trip: results against NumPy in float64, forms, factors, arguments, and counters done by hand."""

import functools
import re

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import simt
from pmpp.kernels.common import SHARED_LIMIT
from pmpp.kernels.fft import any_length, exchanges, ladder
from pmpp.kernels.fft import one_trip as room
from pmpp.runtime import device
from tests.kernels.fft import lines
from tests.kernels.fft.lines import noise
from tests.kernels.fft.wrong_one_trip import MOST, RIGHT
from tests.kernels.fft.wrong_one_trip import RUNGS as WRONG
from tests.support.compiled import compile_ptx, launches_of
from tests.support.wrong import name_of, observe, total

each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
C64 = np.complex64
right = functools.partial(lines.right, room)
faults = functools.partial(lines.faults, room, longest=MOST)
counted = functools.partial(lines.counted, room)


# -------------------------------------------------------------------------------------------------------------- results


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


@interpreter_only
@pytest.mark.parametrize("function", RIGHT, ids=lambda function: function.__name__)
def test_what_the_wrong_kernels_are_made_of_is_right(function):
    assert faults(function, {"1 points", "2 points", "8 points", "64 points", "128 points", "no lines"}) == []


@pytest.mark.parametrize("name", room.inputs())
def test_the_reference_is_numpys(name):
    lines.check_the_reference(room, name)


@each_rung
@hypothesis.given(
    batch=st.integers(0, 70), bits=st.integers(0, 8), inverse=st.booleans(), norm=st.sampled_from(any_length.NORMS)
)
@hypothesis.settings(max_examples=4)
def test_any_batch(rung, batch, bits, inverse, norm):
    x = noise(min(batch, 4096 >> bits), 1 << bits)
    assert right(device.to_host(rung(x, inverse, norm)), x, inverse, norm)


# Each takes another way; two rounds are one line of 2^14, or columns of 2048 points.
LARGE = {
    "passes": (room.trip_a_pass, (1, 8192), ["one_pass_kernel"] * 4),
    "a matrix": (room.two_trips, (2, 4096), ["turned_columns_kernel", "columns_in_place_kernel"]),
    "three passes": (room.parts_in_turn, (2, 2048), ["lines_in_a_block_kernel"]),
    "four rows": (room.parts_in_turn, (1, 8192), ["lines_in_a_block_kernel"]),
    "two rounds": (room.in_rounds, (1, 16384), ["lines_in_a_block_kernel"]),
}


@interpreter_only
@pytest.mark.parametrize("name", LARGE)
def test_each_way_is_taken(name, monkeypatch):
    """Without checks: what lines of up to 1024 points do in memory, these do, too."""
    monkeypatch.setenv("PMPP_CHECK", "")
    rung, shape, kernels = LARGE[name]
    x = noise(*shape)
    with simt.record() as reports:
        result = device.to_host(rung(x, True, "ortho"))
    assert right(result, x, True, "ortho")
    assert [report.kernel for report in reports] == kernels


@interpreter_only
def test_columns_in_two_rounds():
    """As lines from 2^21 points on have them, in a small matrix, with every access checked."""
    x = noise(1, 128 * 256)
    down = exchanges.Form((16, 8), 2, 16, columns=True, turned=True, rounds=2)
    along = exchanges.Form((16, 16), 2, 8, columns=True, rounds=2)
    p = room.arguments(x)
    _, reports = observe(lambda: room.by_columns(p, down, along) or p.result)
    assert right(device.to_host(p.result), x)
    assert [report.counters["barriers"] for report in reports] == [256 // 16 * 7, 128 // 8 * 7]


@each_rung
def test_a_sum_of_lines_has_the_sum_of_their_transforms(rung):
    lines.check_a_sum_of_lines(room, rung, 64)


@each_rung
@pytest.mark.parametrize("norm", any_length.NORMS)
def test_forward_and_back(rung, norm):
    lines.check_forward_and_back(room, rung, 32, norm)


@each_rung
@pytest.mark.parametrize("n", [4, 16, 32, 64])
def test_an_infinity_spoils_its_own_line_only(rung, n):
    lines.check_what_is_not_finite(room, rung, n)


@each_rung
@pytest.mark.parametrize("n", [8, 128])
def test_output_stream_and_alignment(rung, n):
    lines.check_output_stream_and_alignment(room, rung, n)


# ----------------------------------------------------------------------------------------------------- forms and tables

FORMS = {
    **{f"lines of {1 << bits}": room.lines_of(1 << bits) for bits in range(6, 15)},
    **{f"columns of {1 << bits}": room.columns_of(1 << bits) for bits in range(6, 13)},
    **{f"columns of {1 << bits}, turned": room.columns_of(1 << bits, turned=True) for bits in range(6, 13)},
}


@pytest.mark.parametrize("name", FORMS)
def test_a_form_fits_a_block_and_a_multiprocessor(name):
    form = FORMS[name]
    assert f" {form.n}" in name
    assert set(form.radices) <= {8, 16, 32}
    assert max(form.radices) == exchanges.EIGHT * form.rows
    assert 4 * form.words <= SHARED_LIMIT
    assert 64 <= form.threads <= 1024
    assert form.threads * room.registers(form) <= 65536
    assert not form.columns or 8 * form.lines >= 32  # whole sectors
    last = len(form.radices) - 1  # a thread's results of an exchange in two rounds all belong to one of them
    assert form.rounds == 1 or all(form.butterflies(i) == 1 and form.rows > 1 for i in range(last))


@pytest.mark.parametrize("name", FORMS)
def test_an_exchange_moves_each_point_once_and_to_where_it_is_read(name):
    """In each round, all words that are written are read, and no two are one; and in as few wavefronts as can be."""
    form = FORMS[name]
    threads = np.arange(form.threads)
    for i in range(len(form.radices) - 1):
        pad, step = exchanges.padding(form, i), form.lines if form.columns else 1
        line, t = exchanges.members(form, threads, form.columns)
        s = form.before(i)
        first = exchanges.in_block(form, line, (t - t % s) * form.radices[i] + t % s, form.columns)
        written = np.concatenate([first + o for row in exchanges.results_of(form, i, step) for o in row])
        line, t = exchanges.members(form, threads, form.columns and not exchanges.last_turned(form, i))
        read = [
            exchanges.in_block(form, line, t, form.columns) + o for row in exchanges.offsets_of(form, step) for o in row
        ]
        everything = np.arange(form.lines * form.n)
        np.testing.assert_array_equal(np.sort(written), everything)
        np.testing.assert_array_equal(np.sort(np.concatenate(read)), everything)
        assert len(np.unique(pad.of(everything))) == everything.size
        assert pad.of(everything // form.rounds).max() < form.words


def test_the_tables_of_factors():
    table = device.to_host(exchanges.factors((8, 4, 2))).view(C64)
    m, j = np.meshgrid(np.arange(4), np.arange(8), indexing="ij")
    np.testing.assert_allclose(table[:32], np.exp(-2j * np.pi * m * j / 32).reshape(-1), rtol=0, atol=2**-23.5)
    m, j = np.meshgrid(np.arange(2), np.arange(32), indexing="ij")
    np.testing.assert_allclose(table[32:], np.exp(-2j * np.pi * m * j / 64).reshape(-1), rtol=0, atol=2**-23.5)


def test_the_turns_in_two_tables():
    a, b, radix = 64, 128, 8
    near, far = (device.to_host(table).view(C64).astype(np.complex128) for table in room.turns(a, b, radix))
    s = a // radix
    near, far = near.reshape(b, s), far.reshape(radix, b)
    j, k = np.meshgrid(np.arange(b), np.arange(a), indexing="ij")
    made = near[j, k % s] * far[k // s, j]
    np.testing.assert_allclose(made, np.exp(-2j * np.pi * j * k / (a * b)), rtol=0, atol=2**-22)


def test_the_tolerance_grows_slowly():
    assert room.relative_error(2**13) < 1.3 * ladder.relative_error(2**13)
    assert room.relative_error(2**24) < 2e-5


# ------------------------------------------------------------------------------------------------------------ bad input

BAD = {
    **lines.bad(16),
    "another length": (noise(3, 12), (), ValueError, "the last axis of x must be a power of two, was 12: pad .* to 16"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    lines.check_bad_input(rung, *BAD[name])


@each_rung
def test_a_bad_output(rung):
    lines.check_a_bad_output(rung, 16)


@each_rung
def test_what_begins_between_two_words_is_refused_by_name(rung):
    lines.check_arrays_between_words(rung, 16)


# ------------------------------------------------------------------------------------------------------------- counters


@interpreter_only
@pytest.mark.parametrize(("rung", "shape", "trips"), [
    (room.trip_a_pass, (8, 1024), 3), (room.two_trips, (1, 4096), 2), (room.parts_in_turn, (8, 1024), 1),
    (room.short_lines, (64, 16), 1), (room.short_lines, (128, 2), 1),
])  # fmt: skip
def test_trips_through_device_memory(rung, shape, trips):
    """A trip writes 8 bytes a point, and sectors have 32. The first of several passes scatters sixteen results."""
    stored = [report.counters["global_store_sectors"] for report in counted(rung, noise(*shape))]
    least = shape[0] * shape[1] * 8 // 32
    assert len(stored) == trips
    assert stored[-1] == least
    assert stored[0] == (4 * least if rung is room.trip_a_pass else least)  # 8 bytes in a sector of their own


@interpreter_only
def test_the_banks_are_apart_and_parts_are_half_the_words():
    """A part of a point is a word of 4 bytes: 32 of them are one wavefront."""
    for n in (64, 1024):
        (report,) = counted(room.parts_in_turn, noise(1024 // n, n))
        form = room.lines_of(n)
        assert report.counters["barriers"] == 0  # a line is a warp's
        for kind in ("load", "store"):
            assert report.counters[f"shared_{kind}_wavefronts"] == report.counters[f"shared_{kind}_requests"] > 0
        assert report.shared_bytes == 4 * form.words < 8 * form.lines * n


@interpreter_only
def test_short_lines_lie_an_odd_number_of_words_apart():
    """32 words of 8 bytes are two wavefronts at best."""
    (report,) = counted(room.short_lines, noise(96, 16))
    for kind in ("load", "store"):
        assert report.counters[f"shared_{kind}_wavefronts"] == 2 * report.counters[f"shared_{kind}_requests"] > 0


@interpreter_only
def test_the_arithmetic_of_thirty_two_points():
    """A pass of radix 32 in registers is below the usual count of 5 n log2 n = 25 operations a point."""
    (report,) = counted(room.short_lines, noise(32, 32))
    assert total([report], "flops") < 25 * 1024
    assert total([report], "flops_f64") == 0


@interpreter_only
@pytest.mark.parametrize(("n", "each", "factors"), [(64, 8, 7), (16, 16, 0)])
def test_points_stay_in_registers(n, each, factors):
    """As compiled: a word is one access, no index wraps round, and nothing is computed in float64."""
    pytest.importorskip("numba.cuda")
    ((kernel, [signature]),) = launches_of([lambda: room.short_lines(noise(5, n))]).items()
    ptx = compile_ptx(kernel, *signature, cc=(9, 0))
    assert ".local" not in ptx
    assert not re.search(r"\.f64\b", ptx)
    assert len(re.findall(r"ld\.global\.[ub]64", ptx)) == each + factors
    assert len(re.findall(r"st\.global\.[ub]64", ptx)) == each
    assert len(re.findall(r"selp", ptx)) <= 4


# --------------------------------------------------------------------------------------------------- other libraries


@pytest.mark.gpu
@each_rung
@pytest.mark.parametrize(
    ("shape", "inverse"),
    [
        ((77, 16), True),
        ((3, 2, 1024), False),
        ((5, 8192), True),
        ((3, 2**14), False),
        ((3, 2**18), True),
        ((1, 2**22), False),
    ],
)
def test_cupy_agrees(rung, shape, inverse):
    lines.check_cupy_agrees(room, rung, shape, inverse)
