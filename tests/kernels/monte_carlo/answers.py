"""Answers to the exercises of chapter 81: wrong ones with their mistakes, and other right ones."""

import math

import numpy as np

from pmpp import cuda
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()

# -- antithetic


def antithetic(guard=True, other=True, half=0.5, discounted=True, drift_sign=-1, clipped=True):
    """The mean of both sides, with what is wrong."""
    half, drift_sign = np.float32(half), np.float32(drift_sign)

    @cuda.jit
    def kernel(z, option, out):
        i = cuda.grid(1)
        if not guard or i < out.size:
            rate, volatility, years = option[2], option[3], option[4]
            drift = (rate + drift_sign * np.float32(0.5) * volatility * volatility) * years
            total = np.float32(0)
            for side in range(2):
                if side == 0 or other:
                    sign = np.float32(1 - 2 * side)
                    price = option[0] * math.exp(drift + sign * volatility * math.sqrt(years) * z[i])
                    if not clipped or price > option[1]:
                        total += price - option[1]
            out[i] = half * total * (math.exp(-rate * years) if discounted else np.float32(1))

    return kernel


right("monte_carlo/antithetic")(antithetic())


@right("monte_carlo/antithetic")
@cuda.jit
def antithetic_by_a_quotient(z, option, out):
    """What goes up by a factor goes down by the same factor."""
    i = cuda.grid(1)
    if i < out.size:
        spot, strike, rate, volatility, years = option[0], option[1], option[2], option[3], option[4]
        middle = spot * math.exp((rate - volatility * volatility / np.float32(2)) * years)
        factor = math.exp(volatility * math.sqrt(years) * z[i])
        up, down = middle * factor, middle / factor
        paid = max(up - strike, np.float32(0)) + max(down - strike, np.float32(0))
        out[i] = paid / np.float32(2) / math.exp(rate * years)


@cuda.jit
def payoff_of_the_mean(z, option, out):
    i = cuda.grid(1)
    if i < out.size:
        spot, strike, rate, volatility, years = option[0], option[1], option[2], option[3], option[4]
        drift = (rate - np.float32(0.5) * volatility * volatility) * years
        step = volatility * math.sqrt(years) * z[i]
        mean = np.float32(0.5) * spot * (math.exp(drift + step) + math.exp(drift - step))
        out[i] = math.exp(-rate * years) * max(mean - strike, np.float32(0))


wrong("monte_carlo/antithetic", "missing guard")(antithetic(guard=False))
wrong("monte_carlo/antithetic", "one side only")(antithetic(other=False, half=1))
wrong("monte_carlo/antithetic", "sum instead of mean")(antithetic(half=1))
wrong("monte_carlo/antithetic", "payoff of the mean")(payoff_of_the_mean)
wrong("monte_carlo/antithetic", "wrong result")(antithetic(discounted=False))
wrong("monte_carlo/antithetic", "wrong result")(antithetic(drift_sign=1))
wrong("monte_carlo/antithetic", "wrong result")(antithetic(clipped=False))

# -- asian


def asian(guard=True, today=False, early=False, last=False, whole=False, discounted=True, drift=True):
    """The option on a mean, with what is wrong."""

    @cuda.jit
    def kernel(z, option, out):
        i = cuda.grid(1)
        if not guard or i < out.size:
            price, strike, rate, volatility, years = option[0], option[1], option[2], option[3], option[4]
            steps = z.shape[1]
            step = years if whole else years / np.float32(steps)
            total, count = (price, steps + 1) if today else (np.float32(0), steps)
            for k in range(steps):
                growth = volatility * math.sqrt(step) * z[i, k]
                if drift:
                    growth += (rate - np.float32(0.5) * volatility * volatility) * step
                if early:
                    total += price
                price *= math.exp(growth)
                if not early:
                    total += price
            mean = price if last else total / np.float32(count)
            paid = max(mean - strike, np.float32(0))
            out[i] = paid * math.exp(-rate * years) if discounted else paid

    return kernel


right("monte_carlo/asian")(asian())


@right("monte_carlo/asian")
@cuda.jit
def asian_by_logarithms(z, option, out):
    """The sum of all growth so far, and its exponential at each step."""
    i = cuda.grid(1)
    if i < out.size:
        spot, strike, rate, volatility, years = option[0], option[1], option[2], option[3], option[4]
        step = years / np.float32(z.shape[1])
        growth, mean = np.float32(0), np.float32(0)
        for k in range(z.shape[1]):
            growth += (rate - volatility * volatility / np.float32(2)) * step + volatility * math.sqrt(step) * z[i, k]
            mean += spot * math.exp(growth) / np.float32(z.shape[1])
        out[i] = max(mean - strike, np.float32(0)) * math.exp(-rate * years)


wrong("monte_carlo/asian", "missing guard")(asian(guard=False))
wrong("monte_carlo/asian", "price of today counted")(asian(today=True))
wrong("monte_carlo/asian", "price before the step counted")(asian(early=True))
wrong("monte_carlo/asian", "last price only")(asian(last=True))
wrong("monte_carlo/asian", "steps as long as all years")(asian(whole=True))
wrong("monte_carlo/asian", "wrong result")(asian(discounted=False))
wrong("monte_carlo/asian", "wrong result")(asian(drift=False))
