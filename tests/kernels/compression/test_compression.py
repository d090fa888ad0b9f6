"""Compression: every length, what rounding does to the mean, what is not finite, the way back, bits, and traffic."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp.kernels import compression as room
from pmpp.runtime import device
from tests.kernels.compression.wrong import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import misaligned, name_of, observe, total, watch

each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
each_bits = pytest.mark.parametrize("bits", room.BITS)
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
F32 = np.float32


def right(result, *arguments):
    return judge.right(result, room.reference(*arguments), room.tolerance(*arguments), np.uint32)


def faults(compress):
    """All that is wrong with a version of the room on the first input where anything is, worst first."""
    for arguments in room.inputs().values():
        found = judge.faults(compress, arguments, lambda result, arguments=arguments: right(result, *arguments))
        if found:
            return found
    return []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


@each_rung
@hypothesis.given(
    n=st.integers(0, 1100),
    begin=st.integers(0, 3),
    bits=st.sampled_from(room.BITS),
    seed=st.integers(0, 2**64 - 1),
    offset=st.integers(0, 2**40),
    scale=st.sampled_from([1e-30, 1, 1e30]),
)
@hypothesis.settings(max_examples=12)
def test_any_length_and_alignment(rung, n, begin, bits, seed, offset, scale):
    x = np.random.default_rng(n).standard_normal(n).astype(F32) * F32(scale)
    arguments = bits, seed, 4 * offset
    assert right(device.to_host(rung(misaligned(x, begin), *arguments)), x, *arguments)


@each_rung
@each_bits
@pytest.mark.parametrize("begin", [1, 2])
def test_into_memory_that_is_there(rung, bits, begin):
    x = np.linspace(-3, 3, 700, dtype=F32)
    out = misaligned(np.zeros(room.words_of(700, bits), np.uint32), begin)
    observe(rung, device.to_device(x), bits, 7, out=out)
    assert right(out.copy_to_host(), x, bits, 7)


# ------------------------------------------------------------------------------------------------------- the way back


def there_and_back(x, bits, seed=0, offset=0):
    return device.to_host(room.decompress(room.compress(x, bits, seed, offset), x.shape, bits))


def steps_of(x, bits):
    """The step of each element's group."""
    groups = [x.reshape(-1)[i : i + room.GROUP] for i in range(0, x.size, room.GROUP)]
    steps = [(group.max() - group.min()) / F32(2**bits - 1) for group in groups]
    return np.repeat(steps, room.GROUP)[: x.size].reshape(x.shape)


@each_bits
@hypothesis.given(shape=st.lists(st.integers(0, 12), min_size=1, max_size=3), begin=st.integers(0, 3))
@hypothesis.settings(max_examples=15)
def test_there_and_back_is_off_by_less_than_a_step(bits, shape, begin):
    """And a place is rounded to 2^-15 steps, a product and a sum, each with half an ulp of the range."""
    x = np.random.default_rng(2).standard_normal(shape).astype(F32)
    words = room.compress(x, bits, 5)
    out = misaligned(np.zeros(x.shape, F32), begin)
    observe(room.decompress, words, x.shape, bits, out=out)
    step = steps_of(x, bits).astype(np.float64) if x.size else 0.0
    allowed = step * (1 + 2.0**-15) + 2.0**-22 * np.max(abs(x), initial=0)
    assert judge.right(out.copy_to_host(), x, allowed)


@each_bits
def test_the_ends_of_a_group_come_back(bits):
    """The least value is exact. The largest is q step above it: a quotient, a product and a sum, rounded each."""
    x = np.random.default_rng(3).standard_normal(5 * room.GROUP).astype(F32)
    back, groups = there_and_back(x, bits).reshape(5, -1), x.reshape(5, -1)
    np.testing.assert_array_equal(back.min(axis=1), groups.min(axis=1))
    assert np.all(abs(back.max(axis=1) - groups.max(axis=1)) <= 3 * 2.0**-23 * abs(groups).max())


@each_bits
def test_the_mean_over_many_seeds_is_the_number(bits):
    """Rounding up with probability p varies by p (1 - p) steps squared. A place is rounded to 2^-15 steps before."""
    x = np.random.default_rng(4).standard_normal(2 * room.GROUP).astype(F32)
    seeds, copies, step = 400, 10, steps_of(x, bits).astype(np.float64)  # a copy draws its own numbers, as a seed does
    back = [there_and_back(np.tile(x, copies), bits, seed).astype(np.float64) for seed in range(seeds // copies)]
    mean = np.mean(np.reshape(back, (seeds, x.size)), axis=0)
    low = np.repeat(x.reshape(2, -1).min(axis=1), room.GROUP)
    share = ((x - low) / step) % 1
    spread = step * np.sqrt(np.maximum(share * (1 - share), 1 / seeds) / seeds)
    assert np.all(abs(mean - x) < 5 * spread + 2.0**-15 * step)
    of_all = np.sqrt(np.sum(spread**2)) / x.size
    assert abs(np.mean(mean - x)) < 5 * of_all + 2.0**-15 * step.max()


@each_bits
def test_without_a_seed_the_nearest_code_is_taken(bits):
    x = np.random.default_rng(4).standard_normal(2 * room.GROUP).astype(F32)
    step, back = steps_of(x, bits), there_and_back(x, bits, None)
    assert np.all(abs(back - x) <= step * (0.5 + 2.0**-15))
    assert np.max(abs(back - x) / step) > 0.4, "and stays so far, however often it is done"
    np.testing.assert_array_equal(back, there_and_back(x, bits, None, 2**32))


def test_another_offset_rounds_otherwise():
    x = np.random.default_rng(5).standard_normal(1000).astype(F32)
    first, again, other = (there_and_back(x, 4, 1, offset) for offset in (0, 0, 2**32))
    np.testing.assert_array_equal(first, again)
    assert 0.3 < np.mean(first != other) < 0.5, "p (1 - p), twice, is a third in the mean over all p"


def test_what_is_not_finite_makes_its_group_nan():
    x = np.ones(3 * room.GROUP, F32)
    x[room.GROUP + 3] = np.inf
    back = there_and_back(x, 8).reshape(3, -1)
    assert np.isnan(back[1]).all()
    np.testing.assert_array_equal(back[[0, 2]], 1)


# ------------------------------------------------------------------------------------------------------- a bit a number


@hypothesis.given(shape=st.lists(st.integers(0, 40), min_size=1, max_size=2), begin=st.integers(0, 3))
@hypothesis.settings(max_examples=25)
def test_signs_and_the_gradient_of_relu(shape, begin):
    rng = np.random.default_rng(6)
    x, dy = rng.integers(-2, 3, (2, *shape)).astype(F32)
    words, _ = watch(room.signs, misaligned(x, begin))
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    np.testing.assert_array_equal(bits[: x.size], (x > 0).reshape(-1))
    assert not bits[x.size :].any()
    dx, _ = watch(room.masked, misaligned(dy, begin), words)
    np.testing.assert_array_equal(dx, np.where(x > 0, dy, 0))
    given = device.to_device(dy)
    assert room.masked(given, words, out=given) is given
    np.testing.assert_array_equal(given.copy_to_host(), np.where(x > 0, dy, 0))


def test_signs_of_what_is_not_finite():
    x = F32([np.nan, np.inf, -np.inf, 0, -0.0, 1e-45])
    assert room.signs(x).copy_to_host().tolist() == [0b100010]
    dx = room.masked(F32([np.nan, np.nan, np.nan, 1, 1, np.inf]), room.signs(x)).copy_to_host()
    np.testing.assert_array_equal(dx, F32([0, np.nan, 0, 0, 0, np.inf]))


# ------------------------------------------------------------------------------------------------------------ arguments

X = np.ones((2, 3), F32)
BAD = {
    "a dtype": ((X.astype(np.float16),), TypeError, "x must be float32, was float16"),
    "not contiguous": ((X[:, ::2],), ValueError, "x must be contiguous in C order"),
    "bits": ((X, 3), ValueError, "bits must be 8, 4 or 2, was 3"),
    "bits as a word": ((X, "8"), TypeError, "bits must be an integer, was '8'"),
    "a seed": ((X, 8, -1), ValueError, "seed must be from 0 to 18446744073709551615, was -1"),
    "an offset": ((X, 8, 0, 2), ValueError, "offset must be a multiple of 4, was 2"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments)


@pytest.mark.parametrize(("bits", "low"), [(8, 8.2623291e37), (4, 1.3232019e38), (2, 2.7320211e37)])
def test_what_is_finite_comes_back_finite(bits, low):
    """Here the step is rounded up, and that many of it from the lowest number on are beyond float32."""
    x = np.float32([low, np.finfo(np.float32).max])
    back = device.to_host(room.decompress(room.compress(x, bits), 2, bits))
    assert (np.abs(back - x) <= 2.0**-22 * x).all()


def test_bad_input_on_the_way_back():
    words = room.compress(X, 4)
    for shape, bits, error, said in (
        ((2, 3), 5, ValueError, "bits must be 8, 4 or 2, was 5"),
        ((2, 3), 8, ValueError, r"words must have 66 elements with shape=\(2, 3\) and bits=8, had 34"),
        ((2, -3), 4, ValueError, "shape must have no negative extent"),
        ("six", 4, TypeError, "shape must be"),
        ((), 4, TypeError, r"shape must be an integer or a tuple of integers, was \(\)"),
        ((0, 2**62), 4, ValueError, r"shape must have fewer than 2\^60 elements"),
        ((2**32, 2**32), 4, ValueError, r"shape must have fewer than 2\^60 elements"),  # 0 of them in 64 bits
    ):
        with pytest.raises(error, match=said):
            room.decompress(words, shape, bits)
    with pytest.raises(ValueError, match=r"words must have shape \(1,\), had \(2,\)"):
        room.masked(X, np.zeros(2, np.uint32))


# ------------------------------------------------------------------------------------------------------------- counters


@interpreter_only
@each_bits
def test_counters(bits):
    """4,096 numbers are 512 sectors, and 16 groups. Codes are stored once."""
    x = np.random.default_rng(7).standard_normal(4096).astype(F32)
    codes, moved = 4096 * bits // 8 // 32, {}
    for rung in room.LADDER:
        _, reports = watch(rung, device.to_device(x), bits)
        assert total(reports, "flops_f64") == 0
        ways = ("load_requests", "load_sectors", "store_requests", "store_sectors")
        moved[rung.name] = [total(reports, f"global_{way}") for way in ways]
    # A warp asks for 1 KiB by two loads, each of half of all its sectors twice; and stores codes and two numbers.
    assert moved["vectorised"] == moved["paired"] == [32, 2 * 512, 16 + 2 * 16, codes + 2 * 16]
    assert moved["warp_per_group"][:2] == [128, 512]
    assert moved["warp_per_group"][2:] == [(2 if bits == 8 else 1) * 16 + 2 * 16, codes + 2 * 16]
    # A lane a group: each number of 16 groups is a sector of its own, and is read three times.
    assert moved["thread_per_group"][1] >= 2 * 4096


@interpreter_only
@pytest.mark.parametrize(("n", "launches"), [(512, 1), (511, 1), (256, 1), (513, 2), (768, 2), (1024, 1)])
def test_what_is_left_behind_whole_pairs_has_a_launch_of_its_own(n, launches):
    x = np.random.default_rng(n).standard_normal(n).astype(F32)
    words, reports = watch(room.paired, device.to_device(x), 4, 3, 8)
    assert len(reports) == launches
    assert right(words, x, 4, 3, 8)


@interpreter_only
def test_counters_of_bits():
    """4,096 numbers are 512 sectors, their bits 16; ReLU's gradient reads both and writes 512."""
    x = np.random.default_rng(8).standard_normal(4096).astype(F32)
    words, reports = watch(room.signs, device.to_device(x))
    assert (total(reports, "global_load_sectors"), total(reports, "global_store_sectors")) == (512, 16)
    _, reports = watch(room.masked, device.to_device(x), words)
    assert total(reports, "global_load_sectors") == 512 + 32, "a warp needs four words, half a sector"
    assert total(reports, "global_store_sectors") == 512
