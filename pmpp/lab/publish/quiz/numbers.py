"""Questions about floats: their steps, what sums lose, and where functions leave their range."""

from __future__ import annotations

import itertools
import random

import numpy as np

from pmpp.lab.publish.quiz.model import Number, question, shown


@question("30_reduction")
def sum_that_stands_still(draw: random.Random) -> Number:
    """Where a running sum in float32 stops."""
    power = draw.randrange(-3, 8)
    term = np.float32(2.0**power)
    total = term
    while total + total > total and np.float32(total + term) != total:  # only powers of two: where the steps change
        total = np.float32(total + total)
    stops = float(total)
    return Number(
        f"A loop in float32 adds the number {shown(2.0**power)} to a running sum, which begins at 0, a hundred "
        "million times. A float32 has 24 significant bits, and a sum in the middle between two float32 is rounded to "
        "the one whose last bit is 0. At which value does the sum stand still?",
        int(stops) if stops.is_integer() else stops,
        "value",
        f"From 2^{24 + power} on neighbours are {shown(2.0 ** (power + 1))} apart, twice the term. The sum of "
        f"2^{24 + power} and the term lies in the middle, and is rounded back.",
        {
            int(2.0 ** (23 + power)): "Here neighbours are as far apart as the term, so the sum is exact.",
            int(2.0**24): "It depends on the term.",
            int(1e8 * 2.0**power): "It does not get that far.",
            int(2.0 ** (25 + power)): "It stops before.",
        },
        within=0.001,
        given={"power": power},
    )


@question("38_numerics")
def next_float(draw: random.Random) -> Number:
    """The distance to the next float."""
    kind = draw.choice(("float16", "float32"))
    bits = {"float16": 11, "float32": 24}[kind]
    value = draw.choice((3, 10, 100, 1000, 5000, 20000) if kind == "float16" else (3, 10, 1000, 50_000, 10**6, 10**8))
    step = float(np.spacing(np.dtype(kind).type(value)))
    return Number(
        f"A {kind} has {bits} significant bits. How far is the next larger {kind} above {value:,}?",
        int(step) if step.is_integer() else step,
        "distance",
        f"{value:,} lies between 2^{value.bit_length() - 1} and 2^{value.bit_length()}, so its last bit is worth "
        f"2^({value.bit_length() - 1} - {bits - 1}) = {step:g}.",
        {
            step * 2: "This is one bit too few.",
            step / 2: "This is one bit too many.",
            2.0 ** (1 - bits): "This is so at 1.",
        },
        within=0.01,
        given={"kind": kind, "value": value},
    )


@question("38_numerics")
def rounded_sum(draw: random.Random) -> Number:
    """A sum that is rounded."""
    power, add = draw.choice((24, 25, 26)), draw.randrange(1, 16)
    big = np.float32(2**power)
    total = int(big + np.float32(add))
    gap = 2 ** (power - 23)
    return Number(
        f"From 2^{power} = {2**power:,} on, the float32 are {gap} apart. If a sum lies in the middle between two of "
        f"them, it is rounded to the one whose last bit is 0. What is 2^{power} + {add} in float32?",
        total,
        "value",
        f"The exact sum is {2**power + add:,}, and the float32 next to it is {total:,}.",
        {
            2**power + add: "This is no float32, unless it is a multiple of the distance.",
            2**power: "It is not lost altogether.",
            2**power + add // gap * gap: "It is rounded to the nearest, and not down.",
            2**power + -(-add // gap) * gap: "It is rounded to the nearest, or to the even one, and not up.",
        },
        given={"power": power, "add": add},
    )


@question("38_numerics")
def integers_in_a_bin(draw: random.Random) -> Number:
    """How many integers an accumulator takes."""
    bits, wide = draw.choice((16, 20, 24, 31, 39, 40)), draw.choice((32, 64))
    if bits >= wide - 2:
        bits = 24
    count = (2 ** (wide - 1) - 1) // (2**bits - 1)
    return Number(
        f"Integers of up to {bits} bits, besides their sign, are added up in an int{wide}. How many of the largest "
        "can be added before the sum overflows?",
        count,
        "numbers",
        f"An int{wide} holds up to 2^{wide - 1} - 1, and the largest integer is 2^{bits} - 1. The quotient is about "
        f"2^{wide - 1 - bits}.",
        {
            (2**wide - 1) // (2**bits - 1): "One bit is the sign.",
            wide - 1 - bits: "This is the power of two.",
        },
        within=0.01,
        given={"bits": bits, "wide": wide},
    )


@question("50_softmax")
def exponential_overflow(draw: random.Random) -> Number:
    """Where an exponential overflows."""
    kind, base = draw.choice(("float16", "float32", "float64")), draw.choice((2, 10, "e"))
    highest = float(np.finfo(kind).max)
    x = float(np.log(highest) / (1 if base == "e" else np.log(base)))
    return Number(
        f"The largest {kind} is about {highest:.3g}. From about which x on is {base}^x larger than that?",
        x,
        "x",
        f"It is the logarithm of the largest number, to the base {base}. This is why softmax subtracts the largest "
        "score first.",
        {
            float(np.log(highest)): "This is the natural logarithm.",
            float(np.log2(highest)): "This is the logarithm to the base 2.",
        },
        within=0.02,
        given={"kind": kind, "base": base},
    )


@question("54_normalisation")
def merged_moments(draw: random.Random) -> Number:
    """Two partial variances as one."""
    first = [draw.randrange(0, 20) for _ in range(2)]
    second = [draw.randrange(0, 20) for _ in range(2)]

    def squares(values: list[int]) -> float:
        mean = sum(values) / len(values)
        return sum((value - mean) ** 2 for value in values)

    both = squares(first + second)
    ours, theirs = squares(first), squares(second)
    apart = sum(second) / 2 - sum(first) / 2
    return Number(
        f"One thread has seen the values {first[0]} and {first[1]}, another {second[0]} and {second[1]}. Each keeps "
        f"its count, its mean, and the sum M of the squared distances from its own mean: {shown(ours)} and "
        f"{shown(theirs)}. What is M for all four values?",
        both,
        "M",
        f"{shown(ours)} + {shown(theirs)}, and the square of the distance of the means, {shown(apart)}, times 2 x 2 / "
        "4.",
        {
            ours + theirs: "The means differ, and that counts, too.",
            ours + theirs + apart**2 * 4: "The weight is the product of the counts divided by their sum.",
            both / 4: "This is the variance.",
        },
        given={"first": first, "second": second},
    )


@question("78_gradients_of_pooling_and_activations")
def sums_in_any_order(draw: random.Random) -> Number:
    """How many sums an order can give."""
    big = draw.choice((10**8, 3 * 10**8, 5 * 10**8, 10**9))
    small = draw.sample((1, 2, 3, 5, 6, 7), 2)
    values = [small[0], big, -big, small[1]]
    sums = set()
    for order in itertools.permutations(values):
        total = np.float32(0)
        for value in order:
            total += np.float32(value)
        sums.add(float(total))
    listed = sorted(sums)
    return Number(
        f"Atomic additions bring the values {small[0]}, {big:,}, {-big:,} and {small[1]} to a float32 that is 0 at "
        f"first, in any order. Near {big:,} the float32 are {shown(float(np.spacing(np.float32(big))))} apart. How "
        "many different sums can come out?",
        len(sums),
        "sums",
        "What is added while the sum is large may be rounded away or up. The sums are "
        f"{', '.join(map(shown, listed))}.",
        {1: "Addition of floats depends on the order.", 24: "Many of the 24 orders give the same sum."},
        given={"values": values},
    )


@question("86_gradients_of_softmax")
def infinite_loss(draw: random.Random) -> Number:
    """From where on a careless loss is infinite."""
    kind, others = draw.choice(("float32", "float64")), draw.choice((1, 9, 99, 999))
    least = float(np.nextafter(np.dtype(kind).type(0), np.dtype(kind).type(1)))
    x = float(np.log(2) - np.log(least))
    return Number(
        f"A program computes softmax in {kind} and takes the logarithm of the result. A row has {others + 1} logits: "
        f"one is 0, and the others are all equal, x below it, with x large. The smallest {kind} above 0 is "
        f"{least:.2g}, and what is less than half of it becomes 0. From about which x on is the loss of one of the "
        "others infinite?",
        x,
        "x",
        f"e^(-x) is 0 from x = -ln({least:.2g} / 2) on, and the logarithm of 0 is minus infinity. The sum that it is "
        "divided by is about 1, however many they are. A loss that subtracts the logarithm of the sum stays finite.",
        {float(np.log(np.finfo(kind).max)): "This is where e^x overflows."},
        within=0.02,
        given={"kind": kind, "others": others},
    )


@question("95_inside_other_libraries")
def error_of_a_difference(draw: random.Random) -> Number:
    """How far off a numerical slope is."""
    step = 10.0 ** -draw.randrange(2, 7)
    size, slope = draw.choice((1.0, 2.0, 10.0)), draw.choice((0.1, 0.5, 1.0, 2.0))
    error = float(np.spacing(np.float32(size))) / 2
    off = 100 * 2 * error / (2 * step) / slope
    return Number(
        f"A slope is measured as (f(x + h) - f(x - h)) / (2 h) in float32 with h = {step:.0e}. The values of f are "
        f"about {shown(size)}, and each may be off by {error:.2g}, half of its last bit. The slope is {shown(slope)}. "
        "By up to how many percent can rounding make it wrong?",
        off,
        "%",
        f"Two errors of {error:.2g} are divided by 2 h: {2 * error / (2 * step):.2g}, against a slope of "
        f"{shown(slope)}.",
        {
            off * 2: "It is divided by 2 h, and not by h.",
            off / 2: "Both values may be off.",
            off / 100: "This is a share, not percent.",
        },
        within=0.1,
        given={"step": step, "size": size, "slope": slope},
    )
