"""Questions about whole programs: what overlaps, what waits, and what crosses the bus."""

from __future__ import annotations

import random

import numpy as np

from pmpp.lab.publish.quiz.model import Choice, Number, question, shown


@question("22_launches")
def strides_of_a_view(draw: random.Random) -> Choice:
    """The strides of a transposed view."""
    dtype = np.dtype(draw.choice(("float32", "float64", "int16")))
    rows, columns = draw.randrange(2, 9), draw.randrange(10, 40)
    array = np.zeros((rows, columns), dtype)
    options = {
        str(array.strides): "These are the strides of the array itself.",
        str(np.zeros((columns, rows), dtype).strides): "This would be so if the elements had been copied.",
        str((1, columns)): "Strides are bytes here, and not elements.",
        str(
            (dtype.itemsize * rows, dtype.itemsize * columns)
        ): "A neighbour in a column of the view is a neighbour in memory.",
    }
    right = str(array.T.strides)
    options.pop(right, None)
    return Choice(
        f"`x` is a NumPy array of the shape ({rows}, {columns}), of type {dtype.name}, in C order. What are the "
        "strides of `x.T`, in bytes?",
        right,
        f"`x.T` copies nothing. One row further in the view is one element further in `x`, {dtype.itemsize} bytes, "
        "and one column further is a row of `x`.",
        options,
        given={"rows": rows, "columns": columns, "itemsize": dtype.itemsize},
    )


@question("90_feeding_the_gpu")
def pipeline(draw: random.Random) -> Number:
    """How long a pipeline takes."""
    load, copy, compute = (10 * draw.randrange(2, 10) for _ in range(3))
    steps = draw.choice((4, 8, 10, 20))
    slowest = max(load, copy, compute)
    whole = load + copy + compute + (steps - 1) * slowest
    return Number(
        f"A training step loads a batch ({load} us), copies it to the GPU ({copy} us), and computes with it "
        f"({compute} us). Each of the three works on one batch at a time, and all three can work at the same time, on "
        f"different batches, as far ahead as they like. After how many microseconds are {steps} steps done?",
        whole,
        "us",
        f"The slowest part takes {slowest} us and never pauses once it has begun. The first batch goes through all "
        f"three, and then a batch is done every {slowest} us.",
        {
            steps * (load + copy + compute): "This is so if nothing overlaps.",
            steps * slowest: "The first batch has to get there, and the last one to get through.",
        },
        given={"load": load, "copy": copy, "compute": compute, "steps": steps},
    )


@question("90_feeding_the_gpu")
def batch_on_the_bus(draw: random.Random) -> Number:
    """How long a batch is on its way."""
    rows, side, channels = draw.choice((64, 128, 256, 512)), draw.choice((28, 32, 64, 224)), draw.choice((1, 3))
    kind, bus = np.dtype(draw.choice(("uint8", "float32"))), draw.choice((12, 25, 50))
    size = rows * side * side * channels * kind.itemsize
    return Number(
        f"A batch has {rows} images of {channels} x {side} x {side} numbers of type {kind.name}. It is copied from "
        f"pinned memory over a bus of {bus} GB a second (10^9 bytes). How many microseconds is it on its way?",
        size / bus / 1e3,
        "us",
        f"{size:,} bytes, divided by {bus} x 10^9 bytes a second.",
        {
            size
            / kind.itemsize
            / bus
            / 1e3
            * (
                4 if kind.itemsize == 1 else 1
            ): f"A {kind.name} has {kind.itemsize} byte{'s' if kind.itemsize > 1 else ''}.",
            size / bus / 1e3 / rows: "This is one image.",
        },
        within=0.02,
        given={"rows": rows, "side": side, "channels": channels, "itemsize": kind.itemsize, "bus": bus},
    )


@question("92_finding_the_bottleneck")
def wait_in_each_step(draw: random.Random) -> Number:
    """What waiting in each step costs."""
    host, kernel = draw.choice((4, 5, 8)), draw.choice((10, 12, 16, 20, 30))
    launches, steps = draw.choice((5, 10, 20)), draw.choice((5, 10))
    one = host + launches * kernel
    never = host + steps * launches * kernel
    return Number(
        f"A step launches {launches} kernels of {kernel} us each, one after another. A launch keeps the host busy for "
        f"{host} us, and a kernel can start when its launch is over and the kernel before it is done. After each step "
        f"the host waits until the GPU is done. How many microseconds longer do {steps} steps take than if the host "
        "never waited?",
        steps * one - never,
        "us",
        f"A step by itself takes {host} + {launches} x {kernel} = {one} us: before its first kernel the GPU has "
        f"nothing to do for {host} us. Without waiting this happens once.",
        {
            steps * host: "The first launch costs the same in both.",
            (steps - 1) * host * launches: "Within a step the launches are hidden behind the kernels.",
            0: "After a wait the GPU has nothing to do until the next launch.",
        },
        given={"host": host, "kernel": kernel, "launches": launches, "steps": steps},
    )


@question("92_finding_the_bottleneck")
def bytes_of_a_chain(draw: random.Random) -> Number:
    """Bytes of a formula in single kernels."""
    one, two = draw.randrange(2, 6), draw.randrange(2, 6)
    size = draw.choice((2, 4))
    return Number(
        f"A formula is computed by {one + two} kernels, one for each operation. {one} of them read one array and "
        f"write one, and {two} read two different arrays and write one. All arrays have the same length, with {size} "
        "bytes an element. How many bytes do the kernels move for each element?",
        size * (2 * one + 3 * two),
        "bytes",
        f"{one} x 2 + {two} x 3 = {2 * one + 3 * two} numbers of {size} bytes.",
        {
            2 * size: "This is for one kernel with one input that does all of it.",
            size * (one + 2 * two): "Results are written, too.",
            2 * one + 3 * two: "These are numbers, and not bytes.",
        },
        given={"one": one, "two": two, "size": size},
    )


@question("95_inside_other_libraries")
def bytes_to_a_view(draw: random.Random) -> Number:
    """Where a view begins."""
    dtype = np.dtype(draw.choice(("uint8", "int16", "float32", "float64")))
    columns, row, column, step = draw.randrange(5, 12), draw.randrange(1, 5), draw.randrange(1, 4), draw.choice((1, 2))
    x = np.zeros((8, columns), dtype)
    view = x[row:, column::step]
    found = view.__array_interface__["data"][0] - x.__array_interface__["data"][0]
    return Number(
        f"`x` is a NumPy array of the shape (8, {columns}), of type {dtype.name} ({dtype.itemsize} "
        f"byte{'s' if dtype.itemsize > 1 else ''}), in C order. `view` is `x[{row}:, {column}::{step}]`. How many "
        "bytes lie between the address of `x` and the address of `view`?",
        int(found),
        "bytes",
        f"The view begins at row {row} and column {column}: {row} x {columns} + {column} = {row * columns + column} "
        "elements further. The step does not matter for the first one.",
        {
            row * columns + column: "These are elements, and not bytes.",
            row * columns * dtype.itemsize: "The view begins in another column, too.",
            (row + column) * dtype.itemsize: "A row has more than one element.",
            (row * columns + column * step) * dtype.itemsize: "The first element of the view is not moved by the step.",
        },
        given={"columns": columns, "row": row, "column": column, "step": step, "itemsize": dtype.itemsize},
    )


@question("96_cpu_against_gpu")
def worth_the_journey(draw: random.Random) -> Number:
    """When the journey to the GPU is worth it."""
    send, cpu, gpu = draw.choice((40, 80, 150, 300)), draw.choice((8, 10, 20, 25)), draw.choice((0.5, 1, 2, 4))
    times = next(n for n in range(1, 10**4) if send + n * gpu < n * cpu)
    return Number(
        f"To send the data to the GPU takes {send} ms, once. There an operation on it takes {shown(gpu)} ms, and on "
        f"the CPU {cpu} ms. How often must the operation be done, at least, for the GPU to be done first? The results "
        "stay where they are.",
        times,
        "times",
        f"Each time saves {shown(cpu - gpu)} ms, and the journey costs {send}.",
        {
            1: "The journey takes longer than that saves.",
            -(-send // cpu): "The GPU takes some time as well.",
            round(cpu / gpu): "This is how many times as fast the operation is.",
        },
        given={"send": send, "cpu": cpu, "gpu": gpu},
    )


@question("96_cpu_against_gpu")
def part_that_stays(draw: random.Random) -> Number:
    """What the part that stays on the CPU allows."""
    share, times = draw.choice((50, 60, 70, 80, 90, 95)), draw.choice((10, 20, 50, 100))
    gain = 100 / (100 - share + share / times)
    return Number(
        f"A program spends {share} % of its time in a part that becomes {times} times as fast on a GPU. The rest "
        "stays on the CPU, and the two do not overlap. How many times as fast is the whole program?",
        gain,
        "times as fast",
        f"{100 - share} % stay, and {share} % become {shown(share / times)} %: this is Amdahl's law.",
        {
            float(times): "The rest does not become faster.",
            times * share / 100: "Times add up, and not rates.",
            100 / (100 - share): "This would be so if the part took no time at all.",
        },
        within=0.01,
        given={"share": share, "times": times},
    )
