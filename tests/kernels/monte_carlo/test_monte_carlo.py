"""Monte Carlo: prices against the same samples on the CPU and against the formula, arguments, and traffic."""

import math

import numpy as np
import pytest

from pmpp import cuda
from pmpp.kernels import monte_carlo
from pmpp.kernels.monte_carlo import ladder as room
from pmpp.kernels.monte_carlo import workloads
from pmpp.kernels.random.on_host import philox_words
from pmpp.runtime import device
from tests.kernels.monte_carlo.wrong import RIGHT
from tests.kernels.monte_carlo.wrong import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import name_of, observe, total

each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
each_generator = pytest.mark.parametrize("generator", room.GENERATORS)
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="finds what the interpreter finds")
INPUTS = {name: given for name, given in room.inputs().items() if given[1] < room.STREAMS}


def right(result, *given):
    return judge.right(result, room.reference(*given), room.tolerance(*given), np.float32)


def faults(function):
    """All that is wrong with a version of the room's function on the first input where anything is, worst first.

    Sums in float64 are no fault here.
    """
    for given in INPUTS.values():
        found = judge.faults(function, given, lambda result, given=given: right(result, *given))
        if found := [fault for fault in found if fault != "float64"]:
            return found
    return []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


def test_what_the_wrong_kernels_are_made_of_is_right():
    assert faults(RIGHT) == []


# ------------------------------------------------------------------------------------------------------------- numbers


def test_xorwow_is_marsaglias():
    """One stream, word by word, as Marsaglia's program has it."""
    a, b, c, d = (int(word[0]) for word in philox_words(np.zeros(1, np.uint64), 3 | 1 << 32, 9))
    e, weyl, found = 0x5BD1E995, 6615241, []
    for _ in range(8):
        t = a ^ a >> 2
        a, b, c, d = b, c, d, e
        e = (e ^ e << 4 ^ t ^ t << 1) & 0xFFFFFFFF
        weyl = weyl + 362437 & 0xFFFFFFFF
        found.append(e + weyl & 0xFFFFFFFF)
    ours = room.xorwow_words(room.STREAMS + 1, 3, 9)[[0, -1]].reshape(-1)
    np.testing.assert_array_equal(ours, found)


@each_generator
def test_numbers_of_all_options_look_normal_and_independent(generator):
    z = np.stack([room.normal_numbers(20_000, option, generator, 5) for option in range(4)])
    assert abs(z.mean(1)).max() < 4 / math.sqrt(20_000)
    assert abs(z.std(1) - 1).max() < 4 / math.sqrt(2 * 20_000)
    apart = np.corrcoef(z) - np.eye(4)
    assert abs(apart).max() < 4.5 / math.sqrt(20_000)
    for lag in (1, 2, 4):
        assert abs(np.corrcoef(z[0, lag:], z[0, :-lag])[0, 1]) < 4.5 / math.sqrt(20_000)


# -------------------------------------------------------------------------------------------------------------- prices


def test_the_formula_is_known():
    # J. Hull, Options, futures, and other derivatives: spot 42, strike 40, 10 % a year, volatility 20 %, half a year.
    assert round(float(room.formula(np.float64([[42, 40, 0.1, 0.2, 0.5]]))[0]), 2) == 4.76


def test_the_formula_knows_options_without_chance_and_without_sense():
    """No years, no volatility, no strike, no share; then what is negative, and what is no number."""
    known = [[90, 100, 0, 0.3, 0], [110, 100, 0, 0.3, 0], [100, 80, 0, 0, 2], [100, 0, 0.1, 0.2, 1], [0, 9, 0, 0.2, 1]]
    odd = [[-1, 9, 0, 0.2, 1], [9, -1, 0, 0.2, 1], [9, 9, 0, -0.2, 1], [9, 9, 0, 0.2, -1], [math.nan, 9, 0, 0.2, 1]]
    np.testing.assert_array_equal(room.formula(known + odd), [0, 10, 20, 100, 0, *[math.nan] * 5])


def test_the_formula_has_no_overflow():
    """What is owed would be beyond float64, or a quotient below it."""
    odd = [[100, 100, -1, 0.2, 1000], [1e-300, 1e300, 0, 0.2, 1], [1e300, 1e-300, 0, 0.2, 1], [100, 0, -1, 0.2, 1000]]
    np.testing.assert_allclose(room.formula(odd), [0, 0, 1e300, 100])


@pytest.mark.parametrize(
    ("contracts", "error", "said"),
    [
        ([[1, 2, 3, 4, 5], [1]], ValueError, r"contracts must have shape \(n, 5\), was \[\[1, 2, 3, 4, 5\], \[1\]\]"),
        ([1, 2, 3, 4, 5], ValueError, r"contracts must have shape \(n, 5\), had \(5,\)"),
        (np.ones((2, 4)), ValueError, r"contracts must have shape \(n, 5\), had \(2, 4\)"),
        (np.ones((1, 5), complex), TypeError, "contracts must be real numbers, was complex128"),
        ("abc", TypeError, "contracts must be real numbers, was <U3"),
    ],
)
def test_the_formula_names_bad_input(contracts, error, said):
    with pytest.raises(error, match=said):
        room.formula(contracts)


@each_generator
def test_prices_come_near_the_formula(generator):
    contracts = room.drawn(6, np.random.default_rng(2))
    price, error = device.to_host(monte_carlo.prices(contracts, 20_000, 3, generator)).astype(np.float64).T
    assert (abs(price - monte_carlo.formula(contracts)) < 4.5 * error).all()
    np.testing.assert_allclose(error, workloads.spread_of_payoffs(contracts) / math.sqrt(20_000), rtol=0.15)


@each_rung
def test_the_error_of_a_price_is_right_where_chance_is_little(rung):
    """Whole payoffs have nearly equal squares here, whose difference has no digit left."""
    volatilities = [0, 1e-5, 1e-4, 1e-3]
    contracts = np.float32(
        [[1234.5678, strike, 0.02, volatility, 1] for strike in (0, 900) for volatility in volatilities]
    )
    error = device.to_host(rung(contracts, 4000))[:, 1]
    assert not error[[0, 4]].any()  # without chance; the reference rounds there, to some 1e-15
    np.testing.assert_allclose(error, room.reference(contracts, 4000)[:, 1], rtol=0.01, atol=1e-12)


def test_other_seeds_are_other_samples():
    contracts = room.drawn(1, np.random.default_rng(2))
    one, other = (device.to_host(monte_carlo.prices(contracts, 400, seed))[0, 0] for seed in (1, 2**63 + 1))
    assert one != other


@each_rung
def test_output_and_stream(rung):
    contracts, stream = room.drawn(3, np.random.default_rng(4)), cuda.stream()
    out = device.empty((3, 2), np.float32)
    assert rung(contracts, 70, out=out, stream=stream) is out
    stream.synchronize()
    assert right(out.copy_to_host(), contracts, 70)


ONE = np.float32([[100, 100, 0.05, 0.2, 1]])
BAD = {
    "float64": ((ONE.astype(np.float64), 8), TypeError, "contracts must be float32, was float64"),
    "four columns": ((np.zeros((2, 4), np.float32), 8), ValueError, r"contracts must have shape \(.*5\)"),
    "no sample": ((ONE, 0), ValueError, "samples must be from 1 to 1099511627776, was 0"),
    "half a sample": ((ONE, 1.5), TypeError, "samples must be an integer, was 1.5"),
    "a negative seed": ((ONE, 8, -1), ValueError, "seed must be from 0"),
    "another generator": ((ONE, 8, 0, "mt19937"), ValueError, "generator must be one of philox, xorwow, was 'mt19937'"),
    "many options": ((np.zeros((65536, 5), np.float32), 8), ValueError, "contracts must have at most 65535 rows"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(rung, name):
    arguments, error, said = BAD[name]
    with pytest.raises(error, match=said):
        rung(*arguments)


# ------------------------------------------------------------------------------------------------------------- counters


@interpreter_only
@each_generator
def test_samples_move_no_bytes_unless_they_are_stored(generator):
    contracts, moved = room.drawn(2, np.random.default_rng(4)), {}
    for rung in room.LADDER:
        for samples in (1024, 4096):
            result, reports = observe(rung, contracts, samples, 1, generator)
            assert right(result, contracts, samples, 1, generator)
            blocks = samples // 4 // room.BLOCK
            sums = 2 * blocks * 2 * 8  # of two options, two sums of each block, written and read
            loaded, stored = (total(reports, f"global_{way}_bytes") for way in ("load", "store"))
            # A thread reads its option, and the last kernel twice, with the price once more.
            options = 2 * (20 * 4 * blocks * 64 + 44)
            moved[rung.name, samples] = loaded - options - sums, stored - sums - 2 * 8
    for (name, samples), found in moved.items():
        assert found == ((2 * 4 * samples,) * 2 if name == "from_memory" else (0, 0))


@pytest.mark.gpu
@each_rung
def test_cupy_and_torch_agree(rung):
    cupy, torch = pytest.importorskip("cupy"), pytest.importorskip("torch")
    contracts, samples = workloads._contracts(1), 2**16
    price, error = device.to_host(rung(contracts, samples)).astype(np.float64).T
    by_cupy = cupy.asnumpy(workloads._cupy(samples)(cupy, cupy.asarray(contracts)))
    by_torch = workloads._torch(samples)(torch, torch.from_numpy(contracts).cuda()).cpu().numpy()
    for other in (by_cupy, by_torch):
        assert (abs(price - other[:, 0]) < 8 * error).all()
        np.testing.assert_allclose(error, other[:, 1], rtol=0.2)
