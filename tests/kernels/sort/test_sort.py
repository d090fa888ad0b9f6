"""Sort: results, arguments, and the counters of each rung against counts done by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda, simt
from pmpp.kernels import sort as subject
from pmpp.kernels.sort import digits
from pmpp.kernels.sort import ladder as room
from pmpp.runtime import device
from tests.kernels.sort.wrong import RIGHT
from tests.kernels.sort.wrong import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import misaligned, name_of, observe, total

INPUTS = room.inputs()
DECISIVE = ("a warp and one", "a section +1", "a tile +1", "-0, NaN, and not finite")  # the contract runs all of them
NETWORKS = (room.bitonic, room.bitonic_shared)
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="finds what the interpreter finds")


# -------------------------------------------------------------------------------------------------------------- results


def right(result, x, stable=True):
    """The same as NumPy's; if ``stable`` to the last bit, so that -0 and 0 show whether their order was kept."""
    expected = np.sort(x, kind="stable")
    if not stable:
        return result.dtype == x.dtype and np.array_equal(result, expected, equal_nan=x.dtype.kind == "f")
    return result.dtype == x.dtype and result.tobytes() == expected.tobytes()


def faults(function, stable=True, names=DECISIVE):
    """All that is wrong with a sort on the first input where anything is, worst first."""
    for name in names:
        (x,) = INPUTS[name]
        if found := judge.faults(function, (x,), lambda result, x=x: right(result, x, stable)):
            return found
    return []


@each_rung
def test_a_rung_is_stable(rung):
    """On all other inputs the contract compares it with the reference."""
    assert faults(rung, rung not in NETWORKS, DECISIVE[-1:]) == []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


@interpreter_only
@pytest.mark.parametrize("function", RIGHT, ids=lambda function: function.__name__)
def test_what_the_wrong_kernels_are_made_of_is_right(function):
    assert faults(function, function.__name__ != "network", DECISIVE[2:]) == []


@pytest.mark.parametrize("name", INPUTS)
def test_the_reference_is_numpys(name):
    (x,) = INPUTS[name]
    assert right(room.reference(x), x)


@each_rung
@hypothesis.given(
    n=st.one_of(st.integers(0, 70), st.integers(room.SECTION + 1, 2 * room.SECTION + 70)),
    values=st.sampled_from([1, 5, 300, 2**31]),
    dtype=st.sampled_from(room.DTYPES),
    offset=st.integers(0, 3),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=2)
def test_any_length_values_type_and_place(rung, n, values, dtype, offset, seed):
    rng = np.random.default_rng(seed)
    x = rng.integers(-values if dtype != "uint32" else 0, values, n).astype(dtype)
    assert right(device.to_host(rung(misaligned(x, offset))), x, rung not in NETWORKS)


def test_words_of_64_bits():
    """What vectors of 2^30 keys and more need, tried on a short one."""
    (x,) = INPUTS["a tile +1"]
    p = room.arguments(x)
    starts, tiles = room.starts_of(p), room.blocks(x.size, room.TILE)
    assert room.words_for(tiles, 2**30 - 1, 0)[0].dtype == np.uint32
    words, bit = room.words_for(tiles, 2**30, 0)
    assert (words.dtype, bit) == (np.int64, digits_bit(words))
    given, out = digits.as_digits(p.x), digits.as_digits(p.out)
    room.one_sweep_kernel[tiles, room.TILE_BLOCK](given, out, starts[0], words[0], bit, 0, p.turn)
    by_first_digit = np.argsort((x.view(np.uint32) & 255).astype(np.int32), kind="stable")
    np.testing.assert_array_equal(device.to_host(p.out), x[by_first_digit])


def digits_bit(words):
    """The bit at which the state begins: counts of 2^30 and more fit below it, and two bits above."""
    return words.dtype.itemsize * 8 - 4


@interpreter_only
def test_the_result_does_not_depend_on_the_batch():
    (x,) = INPUTS["a tile +1"]
    with simt.batch_lanes(room.TILE_BLOCK):  # a block at a time: the other tests run several at once
        assert right(device.to_host(room.one_sweep(x)), x)


def test_a_stream_and_an_output_that_are_given():
    for rung in room.LADDER:
        (x,) = INPUTS["a section +1" if rung is room.one_sweep else "a warp and one"]
        out, stream = device.to_device(np.zeros_like(x)), cuda.stream()
        assert rung(device.to_device(x), out=out, stream=stream) is not None
        stream.synchronize()
        assert right(device.to_host(out), x)


# -------------------------------------------------------------------------------------------- order, and plain function


@pytest.mark.parametrize("dtype", room.DTYPES)
@pytest.mark.parametrize("descending", [False, True])
def test_ordered_bits_are_in_the_order_of_the_keys(dtype, descending):
    if dtype == "float32":
        keys = np.float32([-np.inf, -3e38, -1, -1e-45, -0.0, 0.0, 1e-45, 1, 3e38, np.inf, np.nan, -np.nan])
        same = np.array([0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1])
    else:
        limits = np.iinfo(dtype)
        keys = np.array([limits.min, limits.min + 1, limits.max // 2, limits.max - 1, limits.max], dtype)
        same = np.zeros(4)

    @cuda.jit
    def bits_of(x, out, turn):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = digits.ordered(x[i], turn)

    out = device.to_device(np.zeros(keys.size, np.uint32))
    given, turn = digits.as_digits(device.to_device(keys)), digits.turn_of(keys.dtype, descending)
    bits_of[1, 32](given, out, turn)
    steps = np.diff(device.to_host(out).astype(np.int64))
    assert ((steps == 0) == (same == 1)).all()
    assert (steps[same == 0] < 0 if descending else steps[same == 0] > 0).all()


def test_the_plain_function():
    (x,) = INPUTS["-0, NaN, and not finite"]
    assert right(device.to_host(subject.sort(x)), x)
    # Descending and stable: the reversed vector ascending, reversed. NaN comes first.
    expected = np.sort(x[::-1], kind="stable")[::-1]
    assert device.to_host(subject.sort(x, descending=True)).tobytes() == expected.tobytes()
    np.testing.assert_array_equal(device.to_host(subject.sort(np.uint32([1, 2**32 - 1, 0]), True)), [2**32 - 1, 1, 0])


# ------------------------------------------------------------------------------------------------------------ bad input

VECTOR = np.arange(5, dtype=np.float32)
BAD = {
    "another dtype": (VECTOR.astype(np.float64), TypeError, "x must be int32, uint32 or float32, was float64"),
    "a matrix": (np.ones((2, 3), np.float32), ValueError, "x must have 1 dimension, had 2"),
    "every other": (np.arange(10, dtype=np.float32)[::2], ValueError, "x must be contiguous in C order"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    x, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(x)


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"out must have shape \(5,\)"):
        subject.sort(VECTOR, out=device.to_device(VECTOR[:4]))
    with pytest.raises(TypeError, match="out must be float32, was int32"):
        subject.sort(VECTOR, out=device.to_device(np.zeros(5, np.int32)))
    with pytest.raises(TypeError, match="descending must be True or False"):
        subject.sort(VECTOR, descending="yes")


# ------------------------------------------------------------------------------------------------------------- counters
#
# Two tiles and a bit, which no rung divides evenly, of random keys.

N = 2 * room.TILE
KEYS = np.random.default_rng(7).integers(-(2**31), 2**31, N, dtype=np.int32)
WARPS = N // 32  # requests of 32 neighbours that cover all keys once


def reports_of(rung, x=KEYS):
    result, reports = observe(rung, x)
    assert right(result, x, rung not in NETWORKS)
    assert total(reports, "flops") == 0
    return reports


def launched(reports, name):
    return [report for report in reports if name in report.kernel]


@interpreter_only
def test_the_networks_launch_a_step_at_a_time():
    """2^k keys need k (k + 1) / 2 steps. Those of the first stages are one launch, and so are the last of each."""
    k, inside = (N - 1).bit_length(), room.SECTION.bit_length() - 1
    steps = reports_of(room.bitonic)
    assert len(steps) == k * (k + 1) // 2
    assert total(steps, "global_store_bytes") == len(steps) * 4 * N
    outside = k - inside
    launches = reports_of(room.bitonic_shared)
    assert len(launched(launches, "section")) == 1 + outside
    assert len(launches) == 1 + outside + outside * (outside + 1) // 2


@interpreter_only
def test_merge_sort_goes_through_memory_once_for_each_doubling():
    reports = reports_of(room.merge_sort)
    passes = (-(-N // room.SECTION) - 1).bit_length()
    assert len(reports) == 1 + passes
    assert total(reports, "global_store_bytes") == (1 + passes) * 4 * N
    assert total(reports, "global_store_requests") == (1 + passes) * WARPS


@interpreter_only
def test_one_bit_moves_32_bytes_for_a_key_and_bit():
    reports = reports_of(room.one_bit)
    stored = total(reports, "global_store_bytes")
    assert stored - 32 * 3 * 4 * N == pytest.approx(0, abs=32 * 4096)  # what the tiles of the scan tell each other
    loaded = total(launched(reports, "bit_kernel") + launched(reports, "split"), "global_load_bytes")
    assert loaded == 32 * 4 * 4 * N + 32 * 2 * 4 * N  # the bits, the keys; and every thread reads the number of ones


@interpreter_only
def test_counters_of_one_sweep():
    reports = reports_of(room.one_sweep)
    sweeps, (counting,) = launched(reports, "one_sweep"), launched(reports, "all_digits")
    assert len(sweeps) == 4
    assert counting.counters["global_load_bytes"] == 4 * N
    # A pass reads each key once; 256 threads a tile read where their digit begins, and all the tile's last key.
    tiles = N // room.TILE
    assert total(sweeps, "global_load_bytes") == 4 * (4 * N + tiles * (8 * 256 + 4 * room.TILE_BLOCK))
    assert total(sweeps, "global_store_bytes") == 4 * 4 * N
    assert total(sweeps, "global_store_requests") == 4 * WARPS
    # A warp's 32 keys lie in two or three digits of a sorted tile: about 4 + 2 sectors, not 32.
    assert total(sweeps, "global_store_sectors") < 8 * 4 * WARPS


@interpreter_only
def test_keys_that_are_all_equal_need_no_atomics_in_shared_memory():
    """The lanes of a warp would meet at one counter."""
    equal = np.full(N, 5, np.int32)
    different, same = (
        total(launched(reports_of(room.one_sweep, x), "one_sweep"), "atomic_requests") for x in (KEYS, equal)
    )
    # Of each of two tiles: its number, 256 words published twice, and of the second one those of the first looked at.
    assert same == 4 * (2 + 2 * 2 * 8 + 8)
    assert different == same + 4 * WARPS


@interpreter_only
def test_counters_of_local_and_ranked():
    """What goes through memory besides keys is a table of the tiles."""
    sections, tiles = -(-N // room.SECTION), N // room.TILE
    sorting, scattering = (launched(reports_of(room.local), name) for name in ("local", "runs_to_places"))
    assert len(sorting) == len(scattering) == 8
    assert total(sorting, "global_load_bytes") == 8 * 4 * N
    assert total(sorting, "global_store_bytes") == 8 * (4 * N + sections * 16 * (8 + 4))
    assert total(scattering, "global_load_bytes") == 8 * (4 + 8 + 4) * N  # a key, and two entries of the table
    counting, ranking = (launched(reports_of(room.ranked), name) for name in ("digits", "ranked"))
    assert len(counting) == len(ranking) == 4
    assert total(counting, "global_load_bytes") == 4 * 4 * N
    assert total(ranking, "global_load_bytes") == 4 * (4 * N + tiles * (8 * 256 + 4 * room.TILE_BLOCK))
    assert total(ranking, "global_store_requests") == 4 * WARPS


# --------------------------------------------------------------------------------------------------- other libraries


def test_torch_on_the_cpu_agrees():
    torch = pytest.importorskip("torch")
    (x,) = INPUTS["-0, NaN, and not finite"]
    for descending in (False, True):
        expected = torch.sort(torch.from_numpy(x), descending=descending, stable=True).values
        np.testing.assert_array_equal(device.to_host(subject.sort(x, descending)), expected.numpy())


@pytest.mark.gpu
@each_rung
@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_another_library_agrees(rung, library):
    module = pytest.importorskip(library)
    rng = np.random.default_rng(3)
    for n in (5000, 1_000_003):
        x = rng.integers(-(2**31), 2**31, n, dtype=np.int32)
        if library == "cupy":
            given = module.asarray(x)
            expected = module.sort(given)
        else:
            given = module.from_numpy(x).cuda()
            expected = module.sort(given).values
        assert bool((expected == module.asarray(rung(given))).all())


@pytest.mark.gpu
@pytest.mark.parametrize("rung", [room.merge_sort, room.ranked, room.one_sweep], ids=lambda rung: rung.name)
def test_more_than_32_bits_count(rung):
    """More than 2^31 keys: places beyond 32 bits."""
    cupy = pytest.importorskip("cupy")
    n = 2**31 + 5
    if cupy.cuda.runtime.memGetInfo()[0] < 20 * n:
        pytest.skip("too little memory")
    x = cupy.arange(n, dtype=cupy.uint32)[::-1].copy()
    result = cupy.asarray(rung(x))
    assert bool((result == cupy.arange(n, dtype=cupy.uint32)).all())
