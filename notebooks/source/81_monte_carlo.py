# ---
# jupyter:
#   jupytext:
#     text_representation:
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 81. Monte Carlo
#
# *Means over random futures, their standard error, streams of random numbers, work without traffic, fast special
# functions. Read chapters [30](30_reduction.ipynb) and [80](80_random_numbers.ipynb) before. 30 minutes. PMPP 4e:
# chapters 5 and 10; 5e: chapters 5 and 10. The code is
# [pmpp/kernels/monte_carlo/ladder.py](../pmpp/kernels/monte_carlo/ladder.py).*
#
# A *call option* is the right to buy a share at a price that is fixed today, the *strike*, after some years. If the
# share costs more by then, the option pays the difference. If not, it pays nothing. What is this right worth today?
# What it pays on the mean over all futures, less the interest until then.
#
# Nobody knows the future, but there is a model: the logarithm of a share's growth in a year is a normal number, with a
# known mean and a known spread, the *volatility*. So draw futures at random, and take the mean. This is *Monte Carlo*.
# It works for integrals, for light in a scene and for neutrons in a reactor as well. The samples do not depend on each
# other, and there can never be enough of them: a GPU has something to do.
#
# **The question of this chapter: how much does a random sample cost, if it never has to go to memory?**

# %%
import math

import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict
from pmpp.kernels import monte_carlo
from pmpp.kernels.monte_carlo import workloads
from pmpp.lab.draw import palette, plots
from pmpp.lab.draw.style import STYLE, chart
from pmpp.lab.measure import record
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device

plt.rcParams.update(STYLE)  # the workbook's look
print(device.describe().splitlines()[0])

# %% [markdown]
# ## What an option pays
#
# F. Black and M. Scholes take the price after some years as spot * exp((rate - volatility^2 / 2) * years + volatility *
# sqrt(years) * z), with a normal number z. Money that is paid later is worth less today, by exp(-rate * years). So the
# rate cancels in what a future price is worth today, and stays in the strike, which `discounted_strike` computes.

# %%
show(monte_carlo.payoffs)

# %%
contract = np.float32([[100, 105, 0.03, 0.3, 2]])  # spot, strike, rate, volatility, years
z = monte_carlo.normal_numbers(8, 0, "philox", seed=1)
paid = monte_carlo.payoffs(contract[0], z)
print("normal numbers", z.round(2))
print("payoffs       ", paid.round(2))
print(f"mean {paid.mean():.2f}")

# %% [markdown]
# In this model the mean over *all* futures is an integral that can be solved. That is the formula of Black and Scholes.
# We take it to see how wrong the samples are. For most of what people trade there is no formula, and the exercises have
# such an option.

# %%
exact = float(monte_carlo.formula(contract)[0])
print(f"by the formula: {exact:.3f}")

# %% [markdown]
# ## How wrong is a mean?
#
# The payoffs have a spread s. The mean of N of them has a spread, too: the *standard error* s / sqrt(N). It can be
# estimated from the same samples, by their squares. So each option gives two numbers, the price and its standard error.
#
# **Predict, then run.** A thousand samples give a price to a certain error. How many samples does it take to make the
# error ten times as small?

# %%
guess = None  # samples

spread = float(workloads.spread_of_payoffs(contract)[0])
error = spread / 1000**0.5
predict(guess, round((spread / (error / 10)) ** 2), unit="samples")

# %%
sizes = [2**k for k in range(6, 17)]


def errors():
    figure, ax = chart(3.2)
    for generator, colour, marker in zip(monte_carlo.GENERATORS, palette.COLOURS, "os", strict=False):
        off = []
        for samples in sizes:
            prices = [
                float(device.to_host(monte_carlo.prices(contract, samples, seed, generator))[0, 0]) for seed in range(8)
            ]
            off.append(np.sqrt(np.mean((np.array(prices) - exact) ** 2)))
        ax.plot(sizes, off, color=colour, marker=marker, linestyle="", label=f"{generator}, eight seeds")
    ax.plot(sizes, spread / np.sqrt(sizes), color=palette.INK, linestyle="--", label="spread / sqrt(N)")
    ax.set(xscale="log", yscale="log", xlabel="samples", ylabel="error of the price", title="one option")
    ax.legend()
    return figure


plots.drawn(errors)

# %% [markdown]
# Each point is from eight seeds only, so it scatters about the line. With Philox more samples begin with the same ones,
# so neighbouring points lie on the same side for a while. A digit more costs a hundred times as many samples. That is
# slow, and it is the same with one normal number for a sample or with a thousand. Sums over a grid of points become
# hopeless in many dimensions, and Monte Carlo does not.
#
# ## Two kinds of generators
#
# *Philox* of [chapter 80](80_random_numbers.ipynb) is a function of a counter. A thread asks for the numbers of its
# samples, and has no state.
#
# The other kind is a chain. *Xorshift* keeps five words. The next word is made from two of them by shifts and exclusive
# ors, and the oldest is dropped. *XORWOW* adds a counter to it, a *Weyl sequence*; cuRAND takes it if nothing else is
# asked for.

# %%
show(monte_carlo.shifted)
show(monte_carlo.stream_next)

# %% [markdown]
# That is far less arithmetic than the ten rounds of Philox. But a chain has an order. If all threads are to draw at the
# same time, each needs a *stream* of its own. Neighbouring seeds are no good beginning: after a few steps such streams
# still resemble each other. Here Philox makes the first state of a stream, from the number of the thread and of the
# option.

# %%
show(monte_carlo.seeded)

# %% [markdown]
# What a sample is then depends on how many streams there are. So that number belongs to the definition: it is 65,536
# for each option, on every GPU. With Philox any number of threads draws the same samples.
#
# ## The bound
#
# An option is five numbers, and what comes out of it two. The million samples in between need not be in memory. So
# there is no bound by the memory, if the samples stay in registers. If they do not, each is written and read: eight
# bytes.
#
# **Predict, then run.** An H200 moves about 4.2 TB in a second. How long does it take at least to write and read 2^28
# normal numbers of float32?

# %%
guess = None  # milliseconds

samples = 2**28
predict(guess, 1e3 * samples * 2 * np.float32().nbytes / 4.2e12, unit="ms")

# %% [markdown]
# ### Rung 1: `from_memory`
#
# One kernel draws, another one uses. With a library of arrays it cannot be otherwise: `standard_normal` returns one. In
# the kernel `begin` makes the state of a generator, and `go_on` draws four words; both are compiled into it.

# %%
show(monte_carlo.numbers_kernel)
show(monte_carlo.from_memory_kernel)

# %% [markdown]
# The sums are in float64, since millions of payoffs are added. They are not added one by one: four come together in
# float32 before. In `store_sums` every block leaves two sums, and `finish_kernel` adds those of an option.
#
# The second sum is for the spread: the mean of the squares, less the square of the mean. Where an option pays nearly
# the same in all futures, these two are nearly equal, and a float32 has 24 bits for each ([chapter
# 38](38_numerics.ipynb)). So a thread does not add up payoffs, but what they are beyond the payoff without chance. That
# costs no instruction: a kernel subtracts one number and compares with another anyway. It counts in prices of today's
# share, too, so that no payoff is too large for float32.

# %%
show(monte_carlo.beyond)


# %%
def spread_by_squares(values):
    """The spread of float32 values, by their squares in float32 and sums in float64."""
    values = values.astype(np.float32)
    mean, of_squares = (each.mean(dtype=np.float64) for each in (values, values * values))
    return math.sqrt(max(of_squares - mean * mean, 0))


hardly = np.float32([1000, 900, 0, 1e-6, 1])  # a volatility of a millionth
paid = monte_carlo.payoffs(hardly, monte_carlo.normal_numbers(4096, 0, "philox", seed=1))
print(f"spread in float64             {paid.std():.6f}")
print(f"by squares of payoffs         {spread_by_squares(paid):.6f}")
print(f"by squares of what is beyond  {spread_by_squares(paid - (1000 - 900)):.6f}")

# %% [markdown]
# ### Rung 2: `in_registers`
#
# The thread that uses a number draws it.

# %%
show(monte_carlo.summing_kernel)

# %%
for samples in (2**12, 2**20):
    for rung in monte_carlo.LADDER:
        counters = lab.count(rung, contract, samples).counters
        sectors = counters["global_load_sectors"] + counters["global_store_sectors"]
        print(f"{samples:9,} samples, {rung.name:15} {32 * sectors / samples:6.3f} bytes a sample")

# %% [markdown]
# What is left of the traffic is options and sums. There are at most 65,536 threads for an option, and from then on
# these bytes do not grow with the number of samples.
#
# ### Rung 3: `fast_functions`
#
# Now arithmetic is the bound, and much of it goes into normal numbers that are right to the last bits. Does a sample
# need that? Its own error is 30 or 40, and the sample is one of a million. The special function units of a GPU compute
# logarithm, sine and cosine in one instruction each, to some 22 bits.

# %%
show(monte_carlo.fast_pair)

# %%
many = 2**16
prices = {rung.name: device.to_host(rung(contract, many))[0] for rung in monte_carlo.LADDER}
for name, (price, error) in prices.items():
    print(f"{name:15} {price:.5f} with a standard error of {error:.5f}")

# %% [markdown]
# The three draw the same samples. In the interpreter the fast functions are as accurate as the others, so a last digit
# that differs comes from rounding alone. On a GPU logarithm, sine and cosine are off by about 2^-21. Run the cell
# there: is the change small beside the standard error?
#
# ## Measured
#
# Sixteen options with 2^24 samples each, which is 2^28 samples in all:

# %%
plots.drawn(plots.ladder, "monte_carlo")

# %% [markdown]
# The libraries write the normal numbers, and then run a kernel for each operation of the payoff. Why CuPy takes so much
# longer than PyTorch was not measured. Its generator alone is not the reason: it has a bar in
# [chapter 80](80_random_numbers.ipynb).
#
# Do not take the percentages for a verdict. They count five FLOP for a sample, against a roof of multiply-adds. Most of
# what a sample costs is integers of its generator and special functions, and neither is a FLOP. Compare the times with
# your prediction instead. Without the trip through memory less is saved than the traffic would take by itself: most of
# it went on while other warps computed. The fast functions save more. With them a sample takes about as long as it
# would take to write and read its number.
#
# And what do the two generators cost? The next figure has the time for a sample on one GPU, by generator and rung.


# %%
def by_generator():
    kept = record.load(room="monte_carlo")
    figure, ax = chart(3.0)
    names = [rung.name for rung in monte_carlo.LADDER]
    for k, (family, label) in enumerate((("prices", "philox"), ("prices, xorwow", "xorwow"))):
        found = {
            entry.contender: entry.median_ms
            for entry in kept.entries("monte_carlo", family=family)
            if entry.sizes["samples"] == workloads.DESIGN
        }
        samples = workloads.OPTIONS * workloads.DESIGN
        bars = [1e9 * found[name] / samples for name in names]
        ax.bar(np.arange(len(names)) + 0.4 * k - 0.2, bars, 0.36, color=palette.COLOURS[k], label=label)
    ax.set(xticks=range(len(names)), xticklabels=names, ylabel="time for a sample (ps)", title="2^28 samples")
    ax.legend()
    return figure


plots.drawn(by_generator)

# %% [markdown]
# XORWOW is shorter, and saves about the same time in each rung. Where little else is left, that is a larger part.
# Beginning a stream is not free, because Philox makes its first state. With few samples for each thread nothing is
# saved: at 2^16 samples of an option a thread draws four numbers, and the record has Philox ahead.
#
# NumPy on the CPU, beside the kernel alone, for 2^16 to 2^20 samples of each option. The axis counts those of all
# sixteen options. (If the record has no times of the CPU, the cell says so.)

# %%
plots.drawn(plots.cpu_gpu, "monte_carlo", xlabel="samples")

# %% [markdown]
# ## What to take along
#
# A mean of N samples is off by their spread over sqrt(N), and that can be told from the samples themselves. A sample
# need not be more accurate than the standard error of the mean. Numbers that are used once are drawn where they are
# used. A generator without a state gives the same samples to any number of threads. One with a state needs a stream for
# each thread, and streams need beginnings that have nothing to do with each other.
#
# ## Exercises
#
# `check` runs your kernel in the interpreter. Replace `pass` by your code.
#
# ### 1. Antithetic samples
#
# If z is a normal number, so is -z. When one of the two pays much, the other pays little, and their mean has a smaller
# spread than that of two independent samples.

# %%
exercise("monte_carlo/antithetic")


# %%
@cuda.jit
def antithetic(z, option, out):
    pass  # your code


check("monte_carlo/antithetic", antithetic)

# %% [markdown]
# ### 2. An Asian option
#
# This one has no formula: it pays by the mean of the prices on the way.

# %%
exercise("monte_carlo/asian")


# %%
@cuda.jit
def asian(z, option, out):
    pass  # your code


check("monte_carlo/asian", asian)

# %% [markdown]
# ### More, without a check
#
# - By how much do antithetic samples reduce the standard error of our option? Compare 2,000 pairs with 4,000 samples.
# - The z of `asian` come from memory. Write a kernel that draws them by `monte_carlo.counted_next`. How many bytes does
#   it move?
#
# ## Answers
#
# Open a cell only after you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
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


assert check("monte_carlo/antithetic", antithetic_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
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


assert check("monte_carlo/asian", asian_answer)

# %% jupyter={"source_hidden": true} tags=["answer"]
z = monte_carlo.normal_numbers(4000, 0, "philox", seed=3)
one_by_one = monte_carlo.payoffs(contract[0], z)
pairs = (monte_carlo.payoffs(contract[0], z[:2000]) + monte_carlo.payoffs(contract[0], -z[:2000])) / 2
print(f"4,000 samples: standard error {one_by_one.std() / 4000**0.5:.3f}")
print(f"2,000 pairs:   standard error {pairs.std() / 2000**0.5:.3f}")

# %% [markdown]
# *Antithetic.* Both compute 4,000 payoffs. To reach the smaller error without pairs would take a quarter more of them.
# For an option that pays in nearly every future the gain is much larger: there up and down cancel.
#
# *A kernel that draws.* Each thread begins with `monte_carlo.counted(thread, 0, seed)`, and after four steps asks for
# the next four words. It reads five numbers and writes one, however many steps there are.
#
# Go on with [chapter 82](82_optimisers.ipynb): what the gradients are for.
