"""Monte Carlo: the price of an option is the mean of what it pays, over many futures drawn at random.

Chapter: notebooks/81_monte_carlo.ipynb.  PMPP 4e ch. 5 and 10.

The price of a share after some years is ``spot * exp((rate - volatility^2 / 2) * years + volatility * sqrt(years) *
z)``, where z is a normal number: the model of Black and Scholes. A call option pays what that is above ``strike``, or
nothing. Some bytes describe an option, and two numbers come out of it. What is between, as many samples as one likes,
needs no memory. So arithmetic is the bound, unless the random numbers are stored.

A *generator* is where bits come from: "philox" computes them from the number of a sample, and "xorwow" has a state that
each number changes. Of the second kind every thread needs a stream of its own.
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np
from scipy.special import log_ndtr, ndtr

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.common.reductions import block_sum
from pmpp.kernels.random.generator import OF_24_BITS, normals, philox, unit
from pmpp.kernels.random.on_host import philox_words
from pmpp.runtime import device
from pmpp.runtime.check import as_integer
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128, store128

GENERATORS = ("philox", "xorwow")
BLOCK = 256  # threads a block
STREAMS = 2**16  # threads, and with "xorwow" streams, that share the samples of an option
MOST = 2**40  # samples of an option
FIFTH, WEYL, WEYL_STEP = 0x5BD1E995, 6615241, 362437  # of a state, what is not drawn
WORD = 0xFFFFFFFF
LOG2_E = np.float32(math.log2(math.e))
NAN = np.float64(math.nan)
f0, f1, half, minus_2_log_2 = np.float32(0), np.float32(1), np.float32(0.5), np.float32(-2 * math.log(2))
TURN = np.float32(2 * math.pi)
WIDEST = np.float32(1e9)  # a spread with which all samples are 0; its square is a float32, and no NaN comes of it


def xorwow_words(groups: int, option: int, seed: int) -> np.ndarray:
    """For each group of four samples its four words, (groups, 4), of streams that take turns. Marsaglia (2003)."""
    streams = np.arange(min(groups, STREAMS), dtype=np.uint64)
    first = philox_words(streams, option | 1 << 32, seed)
    state = [*first, *(np.full_like(streams, word) for word in (FIFTH, WEYL))]
    made = np.empty((blocks(groups, STREAMS), 4, len(streams)), np.uint64)
    for turn, k in np.ndindex(made.shape[:2]):
        t = state[0] ^ state[0] >> 2
        last = (state[4] ^ state[4] << 4 ^ t ^ t << 1) & WORD
        state = [*state[1:5], last, state[5] + WEYL_STEP & WORD]
        made[turn, k] = last + state[5] & WORD
    return made.transpose(0, 2, 1).reshape(-1, 4)[:groups]


def normal_numbers(samples: int, option: int, generator: str, seed: int) -> np.ndarray:
    """The normal numbers (samples,) of an option in float64, by Box and Muller, of the upper 24 bits of words."""
    groups = blocks(samples, 4)
    if generator == "philox":
        words = np.stack(philox_words(np.arange(groups, dtype=np.uint64), option, seed), axis=1)
    else:
        words = xorwow_words(groups, option, seed)
    bits = (words >> 8).astype(np.float64).reshape(-1, 2)
    root, turn = np.sqrt(-2 * np.log((bits[:, 0] + 1) * 2.0**-24)), 2 * np.pi * bits[:, 1] * 2.0**-24
    return np.stack([root * np.cos(turn), root * np.sin(turn)], axis=1).reshape(-1)[:samples]


def discounted_strike(contract: np.ndarray) -> float:
    """The strike as it is worth today, in float64. It may be infinite."""
    _, strike, rate, _, years = contract.astype(np.float64)
    with np.errstate(over="ignore"):
        return float(strike * np.exp(-rate * years)) if strike else 0.0


def payoffs(contract: np.ndarray, z: np.ndarray) -> np.ndarray:
    """What an option pays for each normal number, discounted to today, in float64."""
    spot, _, _, volatility, years = contract.astype(np.float64)
    price = spot * np.exp(-(volatility**2) / 2 * years + volatility * math.sqrt(years) * z)
    return np.maximum(price - discounted_strike(contract), 0)


def sensible(contract: np.ndarray) -> bool:
    """Whether all of an option is finite, and its price, strike, volatility and years are not negative."""
    return bool(np.isfinite(contract).all() and min(contract[[0, 1, 3, 4]]) >= 0)


def reference(contracts: np.ndarray, samples: int, seed: int = 0, generator: str = "philox") -> np.ndarray:
    """For each option its price and the standard error of that, (n, 2) in float64; see `arguments`."""
    found = np.empty((len(contracts), 2))
    for option, contract in enumerate(contracts):
        if not sensible(contract):
            found[option] = math.nan
            continue
        paid = payoffs(contract, normal_numbers(samples, option, generator, seed))
        found[option] = paid.mean(), paid.std() / math.sqrt(samples)
    return found


def formula(contracts: np.ndarray) -> np.ndarray:
    """The exact prices (n,) in float64, by the formula of Black and Scholes, of options (n, 5).

    Raises TypeError or ValueError that names ``contracts``. An option that `arguments` does not accept has the price
    NaN.

    >>> formula(np.float32([[100, 90, 0, 0.2, 1], [100, 90, 0, 0.2, 0]])).round(2)
    array([13.59, 10.  ])
    """
    try:
        contracts = np.asarray(contracts)
    except ValueError:  # NumPy's, of rows that are not equally long
        raise ValueError(f"contracts must have shape (n, 5), was {contracts!r}") from None
    if contracts.dtype.kind not in "fiu":
        raise TypeError(f"contracts must be real numbers, was {contracts.dtype}")
    if contracts.ndim != 2 or contracts.shape[1] != 5:
        raise ValueError(f"contracts must have shape (n, 5), had {contracts.shape}")
    made = np.full(len(contracts), math.nan)
    for option, contract in enumerate(contracts.astype(np.float64)):
        if sensible(contract):
            spot, strike, rate, volatility, years = contract.tolist()
            spread = volatility * math.sqrt(years)
            made[option] = max(spot - discounted_strike(contract), 0)  # if nothing is left to chance
            if spot and strike and spread:
                owed = math.log(strike) - rate * years  # a logarithm, since the number itself may be too large
                d = (math.log(spot) - owed) / spread + spread / 2
                made[option] = spot * ndtr(d) - math.exp(owed + log_ndtr(d - spread))
    return made


def drawn(n: int, rng: np.random.Generator) -> np.ndarray:
    """``n`` options at random, (n, 5): a share at 100, and strikes, rates, volatilities and years of every day."""
    low, high = np.float32([100, 70, 0, 0.1, 0.2]), np.float32([100, 140, 0.08, 0.6, 3])
    return (low + (high - low) * rng.random((n, 5), dtype=np.float32)).astype(np.float32)


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and ``(contracts, samples, seed, generator)``."""
    rng = np.random.default_rng(81) if rng is None else rng
    cases = {"no option": (0, 8), "one of one": (1, 1), "three samples": (2, 3), "a group and one": (1, 5)}
    cases |= {"a block of threads": (3, 4 * BLOCK), "and one": (2, 4 * BLOCK + 1), "many options": (40, 6)}
    made: dict[str, tuple] = {
        f"{name}, {generator}": (drawn(n, rng), samples, 2**40 + 3, generator)
        for name, (n, samples) in cases.items()
        for generator in GENERATORS
    }
    made["more groups than streams"] = drawn(1, rng), 4 * STREAMS + 9, 5, "xorwow"
    made["never pays"] = np.float32([[100, 1e6, 0.02, 0.2, 1]]), 400, 1, "philox"
    made["always pays"] = np.float32([[100, 1e-3, 0.02, 0.2, 1]]), 400, 1, "philox"
    made["no time"] = np.float32([[100, 90, 0.05, 0.3, 0]]), 50, 1, "philox"
    made["large and small"] = (
        np.float32(
            [
                [100, 100, 0.9, 0.2, 100],  # what it pays then is beyond float32, and what that is worth today is not
                [1e20, 1e20, 0, 0.2, 1],
                [1e-23, 1e-23, 0, 0.2, 1],
                [1e-20, 1e30, 2, 0.2, 100],
                [100, 0, -1, 0.2, 1000],
                [100, 90, 0, 1e20, 0],
                [0, 0, 0, 0.2, 1],
            ]
        ),
        40,
        1,
        "philox",
    )
    odd = np.tile(np.float32([100, 100, 0.05, 0.2, 1]), (7, 1))
    odd[range(1, 7), [0, 1, 3, 4, 0, 2]] = np.nan, -1, -0.2, -1, np.inf, -np.inf
    made["some make no sense"] = odd, 40, 1, "philox"
    return made


def tolerance(contracts: np.ndarray, samples: int, seed: int = 0, generator: str = "philox") -> np.ndarray:
    """How far from the reference is right: (n, 2).

    A fast logarithm is off by 2^-22 of its own, so the radius r of Box and Muller by 2^-21 / r, and its sine by 2^-20.
    A normal number is off by as much, and rounded terms of the exponent add some 2^-22 of it. A payoff is off by that
    times the price, and by 2^-21 of price and strike for what is rounded besides. What it would pay without chance is
    taken off, and of that 2^-22 may be lost. The variance is a mean of squares, rounded to float32, less the square of
    a mean, so its root is off by 2^-11 of the root of that mean at most: where there is a single sample, and the two
    should be equal.
    """
    made = np.empty((len(contracts), 2))
    for option, contract in enumerate(contracts):
        if not sensible(contract):
            made[option] = 0
            continue
        spot, _, rate, volatility, years = contract.astype(np.float64)
        z, owed = normal_numbers(samples, option, generator, seed), discounted_strike(contract)
        pair = np.resize(z, samples + samples % 2).reshape(-1, 2)
        radius = np.repeat(np.hypot(*pair.T), 2)[:samples]
        off = 2.0**-20 * (1 / np.maximum(radius, 2.0**-10) + radius)
        price = payoffs(np.array([spot, 0, rate, volatility, years]), z)
        spread = volatility * math.sqrt(years)
        each = price * (spread * off + 2.0**-21 * (2 + spread**2 + spread * abs(z)))
        certain = max(spot - owed, 0)
        each += 2.0**-21 * (1 + abs(rate) * years) * owed + 2.0**-22 * certain
        by_chance = np.maximum(price - owed, 0) - certain
        error = 2 * each.max() + 2.0**-11 * math.sqrt((by_chance**2).mean())
        made[option] = each.mean() + 1e-30, error / math.sqrt(samples) + 1e-30
    return made


def cost(n: int, samples: int) -> Cost:
    """Of ``n`` options with so many samples each: five numbers are read of each and two written, and nothing between.

    A sample takes 5 FLOP: a product and a sum for the exponent, a product for the price, a difference, and the sum. The
    exponential function, what makes its normal number, and the integers of its generator are not counted.
    """
    return Cost(flops=5 * n * samples, bytes=28 * n)


def arguments(contracts, samples, seed=0, generator="philox", *, out=None, stream=0) -> Problem:
    """The prices of European call options, by Monte Carlo.

    Args:
        contracts: float32 of shape (n, 5) in C order. A row is an option: the price of the share today, the strike, the
            rate of interest a year, the volatility for a year, and the years until it ends. All must be finite, and
            price, strike, volatility and years not negative. Otherwise both numbers that come out are NaN.
        samples: futures for each option, from 1 to 2^40.
        seed: from 0 to 2^64 - 1. Every seed has samples of its own.
        generator: "philox" or "xorwow", where the random bits come from.
        out: a float32 device array of shape (n, 2) in C order, apart from ``contracts``, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done: for each option the mean payoff, discounted to today, and
    the standard error of that mean. The samples are the same on every backend and GPU.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: F. Black and M. Scholes, The pricing of options and corporate liabilities (1973); P. Boyle, Options: a Monte
    Carlo approach (1977).

    >>> from pmpp.kernels import monte_carlo
    >>> contract = np.float32([[100, 100, 0.05, 0.2, 1]])
    >>> monte_carlo.in_registers(contract, 100_000).copy_to_host().round(2), monte_carlo.formula(contract).round(2)
    (array([[10.4 ,  0.05]], dtype=float32), array([10.45]))
    """
    stream = device.as_stream(stream)
    contracts = device.as_input("contracts", contracts, dtypes=np.float32, shape=(None, 5), stream=stream)
    samples = as_integer("samples", samples, 1, MOST)
    seed = as_integer("seed", seed, 0, 2**64 - 1)
    if not isinstance(generator, str) or generator not in GENERATORS:
        raise ValueError(f"generator must be one of {', '.join(GENERATORS)}, was {generator!r}")
    n = contracts.shape[0]
    if n > 65535:
        raise ValueError(f"contracts must have at most 65535 rows, had {n}")
    out = device.as_output("out", out, shape=(n, 2), dtype=np.float32, apart={"contracts": contracts}, stream=stream)
    threads = min(STREAMS, blocks(blocks(samples, 4), BLOCK) * BLOCK)
    return Problem(
        out,
        stream=stream,
        contracts=contracts,
        samples=np.int64(samples),
        seed=np.uint64(seed),
        generator=str(generator),
        grid=(threads // BLOCK, n),
    )


# ----------------------------------------------------------------------------------------------------------- generators


class Counted(typing.NamedTuple):
    """The place in the sequence of an option, of which "philox" makes words: the next group, the option, the key."""

    group: np.uint64
    option: np.uint64
    key: np.uint64


class Stream(typing.NamedTuple):
    """The state of "xorwow": five words that shift into each other, and one that counts."""

    a: np.uint32
    b: np.uint32
    c: np.uint32
    d: np.uint32
    e: np.uint32
    weyl: np.uint32


@cuda.jit(device=True)
def counted(thread, option, key):
    """Where a thread begins. Nothing has to be computed for it."""
    return Counted(np.uint64(thread), np.uint64(option), key)


@cuda.jit(device=True)
def counted_next(state):
    """Four words, and the place of the thread's next four."""
    words = philox(state.group, state.option, state.key)
    return words, Counted(np.uint64(state.group + np.uint64(STREAMS)), state.option, state.key)


@cuda.jit(device=True)
def seeded(thread, option, key):
    """The state of a stream as it begins. Philox makes it, so that no two streams begin near each other."""
    a, b, c, d = philox(np.uint64(thread), np.uint64(option) | np.uint64(1 << 32), key)
    return Stream(a, b, c, d, np.uint32(FIFTH), np.uint32(WEYL))


@cuda.jit(device=True)
def shifted(state):
    """The next state of a stream: Marsaglia's xorshift of 160 bits, and a step of the counter."""
    t = np.uint32(state.a ^ np.uint32(state.a >> np.uint32(2)))
    last = np.uint32(state.e ^ np.uint32(state.e << np.uint32(4)))
    last = np.uint32(last ^ np.uint32(t ^ np.uint32(t << np.uint32(1))))
    return Stream(state.b, state.c, state.d, state.e, last, np.uint32(state.weyl + np.uint32(WEYL_STEP)))


@cuda.jit(device=True)
def stream_next(state):
    """Four words of a stream, one after another, and the state behind them."""
    first = shifted(state)
    second = shifted(first)
    third = shifted(second)
    fourth = shifted(third)
    words = (
        np.uint32(first.e + first.weyl),
        np.uint32(second.e + second.weyl),
        np.uint32(third.e + third.weyl),
        np.uint32(fourth.e + fourth.weyl),
    )
    return words, fourth


#: By generator: how a thread begins, and how it goes on.
BITS = {"philox": (counted, counted_next), "xorwow": (seeded, stream_next)}

# ------------------------------------------------------------------------------------------------------------- payoffs


class Option(typing.NamedTuple):
    """An option as a thread needs it. Its unit is today's price of the share, so that no payoff is too large.

    Discounted to today, the share is worth ``2^(drift + spread z)`` in a future. The option pays what that is above the
    discounted strike. If the share grew just by the interest, it would pay ``certain``. What a future pays beyond that
    is summed up: the share's worth less ``above``, and at least ``-certain``.
    """

    drift: np.float32
    spread: np.float32
    above: np.float32
    certain: np.float32


@cuda.jit(device=True)
def option_of(contracts, row):
    """An option of the table. All that does not depend on z is computed once."""
    spot, strike, rate, years = contracts[row, 0], contracts[row, 1], contracts[row, 2], contracts[row, 4]
    spread = min(contracts[row, 3] * math.sqrt(years), WIDEST)
    strike = strike * math.exp(-rate * years) / spot if strike > 0 and spot > 0 else f0
    return Option(-half * spread * spread * LOG2_E, spread * LOG2_E, max(strike, f1), max(f1 - strike, f0))


@cuda.jit(device=True)
def beyond(option, z):
    """What the option pays in the future that z stands for, beyond what is certain.

    Squares of these are small where chance changes little. Those of whole payoffs would be nearly equal then, and
    their spread would be lost by rounding.
    """
    return max(cuda.libdevice.exp2f(cuda.fma(option.spread, z, option.drift)) - option.above, -option.certain)


@cuda.jit(device=True)
def added(total, squares, option, z, left):
    """The sums with what four normal numbers pay, of which the first ``left`` count."""
    a = beyond(option, z[0])
    b = beyond(option, z[1]) if left > 1 else f0
    c = beyond(option, z[2]) if left > 2 else f0
    d = beyond(option, z[3]) if left > 3 else f0
    four, squared = (a + b) + (c + d), (a * a + b * b) + (c * c + d * d)
    return total + np.float64(four), squares + np.float64(squared)


@cuda.jit(device=True)
def of_block(total, squares):
    """Both sums over all threads of the block. Thread 0 has them."""
    partial = cuda.shared.array(32, np.float64)
    total = block_sum(total, partial)
    cuda.syncthreads()  # all have read the parts of the first sum
    return total, block_sum(squares, partial)


@cuda.jit(device=True)
def store_sums(sums, row, total, squares):
    """Leave the block's sums for `finish_kernel`."""
    total, squares = of_block(total, squares)
    if cuda.threadIdx.x == 0:
        sums[row, cuda.blockIdx.x, 0] = total
        sums[row, cuda.blockIdx.x, 1] = squares


@cuda.jit(device=True)
def is_sensible(contracts, row):
    """As `sensible`, of an option of the table. No comparison with a NaN is true."""
    good = abs(contracts[row, 2]) < math.inf
    for column in (0, 1, 3, 4):
        good = good and 0 <= contracts[row, column] < math.inf
    return good


@cuda.jit
def finish_kernel(sums, contracts, samples, out):
    row, thread = cuda.blockIdx.x, cuda.threadIdx.x
    total, squares = np.float64(0), np.float64(0)
    for block in range(thread, sums.shape[1], BLOCK):
        total += sums[row, block, 0]
        squares += sums[row, block, 1]
    total, squares = of_block(total, squares)
    if thread == 0:
        mean = total / samples
        variance = max(squares / samples - mean * mean, np.float64(0))
        spot = np.float64(contracts[row, 0]) if is_sensible(contracts, row) else NAN
        out[row, 0] = spot * (option_of(contracts, row).certain + mean)
        out[row, 1] = spot * math.sqrt(variance / samples)


def _sums(p: Problem) -> typing.Any:
    return device.empty((p.grid[1], p.grid[0], 2), np.float64, stream=p.stream)


def _finish(p: Problem, sums: typing.Any) -> None:
    finish_kernel[p.grid[1], BLOCK, p.stream](sums, p.contracts, p.samples, p.result)


# ----------------------------------------------------------------------------------------------- numbers through memory


@cuda.jit(device=True)
def four_normals(words):
    """Four normal numbers of four words, right to 2 ulp."""
    a, b = normals(words[0], words[1])
    c, d = normals(words[2], words[3])
    return a, b, c, d


@functools.cache
def numbers_kernel(generator):
    """The kernel for a generator. A row of ``numbers`` has an option's, a whole number of groups of four."""
    begin, go_on = BITS[generator]

    @cuda.jit
    def numbers_kernel(numbers, seed):
        thread, option = cuda.grid(1), cuda.blockIdx.y
        state = begin(thread, option, seed)
        for first in range(4 * np.int64(thread), numbers.shape[1], 4 * STREAMS):
            words, state = go_on(state)
            store128(numbers[option], first, four_normals(words))

    return numbers_kernel


@cuda.jit
def from_memory_kernel(numbers, contracts, samples, sums):
    thread, row = cuda.grid(1), cuda.blockIdx.y
    option = option_of(contracts, row)
    total, squares = np.float64(0), np.float64(0)
    for first in range(4 * np.int64(thread), samples, 4 * STREAMS):
        total, squares = added(total, squares, option, load128(numbers[row], first), samples - first)
    store_sums(sums, row, total, squares)


@rung(from_memory_kernel, numbers_kernel, finish_kernel)
def from_memory(p):
    """One kernel stores all normal numbers. A second one reads them, and adds up what an option pays.

    That is what one does with a library: ask it for numbers, then compute with them.

    Leaves: four bytes are written and read for each sample, and as many must have room at a time.
    """
    numbers, sums = device.empty((p.grid[1], blocks(int(p.samples), 4) * 4), np.float32, stream=p.stream), _sums(p)
    numbers_kernel(p.generator)[p.grid, BLOCK, p.stream](numbers, p.seed)
    from_memory_kernel[p.grid, BLOCK, p.stream](numbers, p.contracts, p.samples, sums)
    _finish(p, sums)


# ------------------------------------------------------------------------------------------------- numbers in registers


@functools.cache
def summing_kernel(generator, four):
    """The kernel for a generator, and for ``four``, which makes four normal numbers of four words."""
    begin, go_on = BITS[generator]

    @cuda.jit
    def summing(contracts, samples, seed, sums):
        thread, row = cuda.grid(1), cuda.blockIdx.y
        option, state = option_of(contracts, row), begin(thread, row, seed)
        total, squares = np.float64(0), np.float64(0)
        for first in range(4 * np.int64(thread), samples, 4 * STREAMS):
            words, state = go_on(state)
            total, squares = added(total, squares, option, four(words), samples - first)
        store_sums(sums, row, total, squares)

    return summing


@rung(summing_kernel, finish_kernel)
def in_registers(p):
    """A thread draws its numbers where it uses them. Only sums leave a block.

    The sums are of float64, and of groups of four in float32 before: a double addition for each sample would cost as
    much as the rest of its arithmetic.

    Source: PMPP 4e section 5.1, on operations for each byte; L. Howes and D. Thomas, GPU Gems 3 ch. 37.

    Leaves: a normal number that is right to 2 ulp takes two polynomials, some fifty instructions.
    """
    sums = _sums(p)
    summing_kernel(p.generator, four_normals)[p.grid, BLOCK, p.stream](p.contracts, p.samples, p.seed, sums)
    _finish(p, sums)


# ------------------------------------------------------------------------------------------------------- fast functions


@cuda.jit(device=True)
def fast_pair(bits, angle):
    """Two normal numbers by the special function units, which know logarithm, root, sine and cosine to 22 bits."""
    u = np.float32(np.uint32(bits >> np.uint32(8)) + np.uint32(1)) * OF_24_BITS
    root = math.sqrt(minus_2_log_2 * cuda.libdevice.fast_log2f(u))
    turn = TURN * (unit(angle) - half)  # from -pi to pi, where the fast functions are best; half a turn too much
    return -root * cuda.libdevice.fast_cosf(turn), -root * cuda.libdevice.fast_sinf(turn)


@cuda.jit(device=True)
def fast_normals(words):
    """Four normal numbers of four words, to some 20 bits."""
    a, b = fast_pair(words[0], words[1])
    c, d = fast_pair(words[2], words[3])
    return a, b, c, d


@rung(summing_kernel, finish_kernel)
def fast_functions(p):
    """Logarithm, sine and cosine come from the special function units, in one instruction each.

    A sample is then off by some 10^-6 of its price. The mean of N samples is off by its standard error, which is
    1 / sqrt(N) of the spread: that would be as small only from 10^12 samples on.

    Source: PMPP 4e section 17.3, on special functions.
    """
    sums = _sums(p)
    summing_kernel(p.generator, fast_normals)[p.grid, BLOCK, p.stream](p.contracts, p.samples, p.seed, sums)
    _finish(p, sums)


LADDER = (from_memory, in_registers, fast_functions)
