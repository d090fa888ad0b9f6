"""Exercises of notebooks/81_monte_carlo.ipynb: mirrored samples, and an option on a mean over time."""

from __future__ import annotations

import math

import numpy as np

from pmpp import cuda
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 128  # threads a block
EPS = float(np.finfo(np.float32).eps)
OPTION = np.float32([100, 105, 0.03, 0.4, 2])  # spot, strike, rate, volatility, years
SIZES = (1, 5, BLOCK, BLOCK + 1, 3 * BLOCK - 7)


def _blocks(n: int) -> int:
    return -(-n // BLOCK)  # rounded up


# ----------------------------------------------------------------------------------------------- monte_carlo/antithetic


def _paid(z: np.ndarray, option: np.ndarray) -> np.ndarray:
    spot, strike, rate, volatility, years = option.astype(np.float64)
    price = spot * np.exp((rate - volatility**2 / 2) * years + volatility * math.sqrt(years) * z.astype(np.float64))
    return math.exp(-rate * years) * np.maximum(price - strike, 0)


def _antithetic_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for n in SIZES:
        z = rng.normal(size=n).astype(np.float32)
        z[0] = 1.25  # one side pays, and the other does not
        expected = (_paid(z, OPTION) + _paid(-z, OPTION)) / 2
        tolerance = 64 * EPS * (expected + float(OPTION[1]))
        args = z, OPTION, unwritten(n, np.float32)
        cases.append(Case(f"{n} sample{'s' * (n > 1)}", args, _blocks(n), BLOCK, {2: expected}, {2: tolerance}))
    return cases


@cuda.jit
def antithetic_answer(z, option, out):
    i = cuda.grid(1)
    if i < out.size:
        spot, strike, rate, volatility, years = option[0], option[1], option[2], option[3], option[4]
        drift = (rate - np.float32(0.5) * volatility * volatility) * years
        step = volatility * math.sqrt(years) * z[i]
        up = max(spot * math.exp(drift + step) - strike, np.float32(0))
        down = max(spot * math.exp(drift - step) - strike, np.float32(0))
        out[i] = np.float32(0.5) * math.exp(-rate * years) * (up + down)


def _one_side(z, option, out):
    return {2: _paid(z, option)}


def _not_halved(z, option, out):
    return {2: _paid(z, option) + _paid(-z, option)}


def _mean_of_prices(z, option, out):
    """The payoff of the mean price, and not the mean of the payoffs."""
    spot, strike, rate, volatility, years = option.astype(np.float64)
    drift, step = (rate - volatility**2 / 2) * years, volatility * math.sqrt(years) * z.astype(np.float64)
    mean = spot * (np.exp(drift + step) + np.exp(drift - step)) / 2
    return {2: math.exp(-rate * years) * np.maximum(mean - strike, 0)}


# ---------------------------------------------------------------------------------------------------- monte_carlo/asian


def _asian(
    z,
    option,
    out,
    with_today: bool = False,
    without_last: bool = False,
    last_alone: bool = False,
    whole_years: bool = False,
) -> dict:
    spot, strike, rate, volatility, years = option.astype(np.float64)
    step = years if whole_years else years / z.shape[1]
    growth = (rate - volatility**2 / 2) * step + volatility * math.sqrt(step) * z.astype(np.float64)
    prices = spot * np.exp(np.cumsum(growth, axis=1))
    if with_today:
        prices = np.concatenate([np.full((len(z), 1), spot), prices], axis=1)
    if without_last:
        prices = prices[:, :-1]
    mean = prices[:, -1] if last_alone else prices.mean(axis=1)
    return {2: math.exp(-rate * years) * np.maximum(mean - strike, 0)}


def _asian_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for n, steps in ((1, 4), (5, 1), (BLOCK, 3), (BLOCK + 1, 12), (300, 5)):
        z = rng.normal(size=(n, steps)).astype(np.float32)
        z[0] = 1.25  # this one pays
        args = z, OPTION, unwritten(n, np.float32)
        expected = _asian(*args)
        tolerance = 64 * EPS * steps * (expected[2] + float(OPTION[1]))
        name = f"{n} path{'s' * (n > 1)} of {steps} step{'s' * (steps > 1)}"
        cases.append(Case(name, args, _blocks(n), BLOCK, expected, {2: tolerance}))
    return cases


@cuda.jit
def asian_answer(z, option, out):
    i = cuda.grid(1)
    if i < out.size:
        price, strike, rate, volatility, years = option[0], option[1], option[2], option[3], option[4]
        step = years / np.float32(z.shape[1])
        drift = (rate - np.float32(0.5) * volatility * volatility) * step
        spread = volatility * math.sqrt(step)
        total = np.float32(0)
        for k in range(z.shape[1]):
            price *= math.exp(drift + spread * z[i, k])
            total += price
        mean = total / np.float32(z.shape[1])
        out[i] = math.exp(-rate * years) * max(mean - strike, np.float32(0))


EXERCISES = (
    Exercise(
        "monte_carlo/antithetic",
        task="Use every normal number twice: once as z, and once as -z. For each z[i], write to out[i] the mean of the "
        "two payoffs, each discounted by exp(-rate * years). option has spot, strike, rate, volatility and years; all "
        "is float32. A thread takes a number; "
        f"the launch has {BLOCK} threads a block.",
        parameters="z, option, out",
        cases=_antithetic_cases,
        answer=antithetic_answer,
        hints=(
            "The price for z is spot * exp((rate - volatility^2 / 2) * years + volatility * sqrt(years) * z). In a "
            "kernel half of a square is np.float32(0.5) * volatility * volatility.",
            "A payoff is never negative: max(price - strike, np.float32(0)), for each side by itself.",
            "The mean is half of the sum of the two payoffs.",
        ),
        traps=(
            Trap("one side only", "The payoff for -z[i] is missing.", _one_side),
            Trap("sum instead of mean", "Two payoffs are added: half of that is their mean.", _not_halved),
            Trap(
                "payoff of the mean",
                "First the payoff of each side, which is at least 0, and then the mean.",
                _mean_of_prices,
            ),
        ),
    ),
    Exercise(
        "monte_carlo/asian",
        task="An Asian option pays by the mean price over its time. z has a row for each path and a number for each "
        "step of years / steps. The price begins at spot, and each step multiplies it by exp((rate - volatility^2 / 2) "
        "* step + volatility * sqrt(step) * z). Of each path, take the mean of the prices after each step, and write "
        "exp(-rate * years) * max(mean - strike, 0) to out. option has spot, strike, rate, volatility and years; all "
        f"is float32. A thread takes a path; the launch has {BLOCK} threads a block.",
        parameters="z, option, out",
        cases=_asian_cases,
        answer=asian_answer,
        hints=(
            "Price and sum stay in registers while the thread walks through its row of z.",
            "A step takes years / z.shape[1] years, and its spread is volatility * sqrt of that.",
            "The price of today is not one of those whose mean is taken.",
        ),
        traps=(
            Trap(
                "price of today counted",
                "The mean is of the prices after each step, without spot.",
                lambda *args: _asian(*args, with_today=True),
            ),
            Trap(
                "price before the step counted",
                "Step first, and add then: the price of today is not counted, and the last one is.",
                lambda *args: _asian(*args, with_today=True, without_last=True),
            ),
            Trap("last price only", "The mean of all steps counts.", lambda *args: _asian(*args, last_alone=True)),
            Trap(
                "steps as long as all years",
                "A step takes years / steps.",
                lambda *args: _asian(*args, whole_years=True),
            ),
        ),
    ),
)
