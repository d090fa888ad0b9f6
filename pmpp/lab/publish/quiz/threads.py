"""Questions about threads: blocks, warps, divergence, what waits, and what an SM holds."""

from __future__ import annotations

import random

import numpy as np

from pmpp import cuda, simt
from pmpp.lab.publish.quiz.model import Number, code, counted, many, question, shown

WARP = "A warp has 32 threads."


@cuda.jit
def guarded(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = 2 * x[i]


@question("04_vector_add")
def idle_threads(draw: random.Random) -> Number:
    """Threads with nothing to do."""
    block = draw.choice((64, 128, 256, 512, 1024))
    n = draw.randrange(2_000, 10_000)
    blocks = -(-n // block)
    idle = blocks * block - n
    return Number(
        f"The vectors `x` and `out` have {n:,} elements each. The kernel is launched with blocks of {block} threads, "
        f"and with as many blocks as are needed for all elements.\n\n{code(guarded)}\n\nHow many threads do not store "
        "anything?",
        idle,
        "threads",
        f"{n:,} / {block} rounded up is {blocks}. {blocks} blocks of {block} threads are {blocks * block:,} threads, "
        f"and {n:,} of them find an element.",
        {
            block - idle: "This is how many threads of the last block work.",
            -n % 32: "Blocks are whole, and not warps alone.",
            0: "A block is always launched whole. This is what the test in the kernel is for.",
        },
        given={"n": n, "block": block},
    )


@cuda.jit
def touch(out):
    out[cuda.grid(1)] = 1


@question("08_warps")
def lanes_on_average(draw: random.Random) -> Number:
    """How full the warps of a block are."""
    threads = draw.choice([n for n in range(33, 400) if n % 32])
    found = counted(touch, 1, threads, np.zeros(threads, np.int32))
    warps = found["global_store_requests"]
    return Number(
        f"One block of {threads} threads runs this kernel. {WARP}\n\n{code(touch)}\n\n"
        "How many of the 32 lanes of a warp work, on average over the warps of the block?",
        found["thread_inst_memory"] / found["inst_memory"],
        "lanes",
        f"The block is cut into {warps} warps, and the last one has {threads % 32} threads: {threads} / {warps}.",
        {
            32.0: "The last warp is not full.",
            float(threads % 32): "This is the last warp alone.",
            threads / 32: "This is the number of warps if a part of a warp could be had.",
        },
        given={"threads": threads},
    )


@question("28_histogram")
def turns_in_copies(draw: random.Random) -> Number:
    """Lanes that want one counter, of several copies."""
    copies = draw.choice((2, 4, 8))
    same = draw.randrange(copies + 1, 33)
    turns = -(-same // copies)
    return Number(
        f"The 32 lanes of a warp add to a histogram in shared memory by atomics. The first {same} lanes have the same "
        f"value, and the others have values of which no two are the same. The block has {copies} copies of the "
        f"counters, and lane l uses copy l modulo {copies}. Lanes that want the same counter of the same copy take "
        "turns. How many turns does the warp need?",
        turns,
        "turns",
        f"The {same} lanes share {copies} copies out evenly: {same} / {copies}, rounded up, meet in the fullest.",
        {
            same: "This is how many it takes with one copy.",
            same // copies: "Round up: the lanes that are left over meet somewhere, too.",
            1: "That takes a copy for each lane.",
        },
        given={"same": same, "copies": copies},
    )


@cuda.jit
def two_ways(x, out, period):
    i = cuda.grid(1)
    if i // period % 2 == 0:
        out[i] = x[i] + 1
    else:
        out[i] = x[i] * 2


@question("08_warps")
def diverging_warps(draw: random.Random) -> Number:
    """Branches that split a warp."""
    warps = draw.choice((2, 4, 8, 16))
    period = draw.choice((1, 2, 4, 8, 16, 32, 64))
    x = np.ones(32 * warps, np.float32)
    found = counted(two_ways, 1, 32 * warps, x, np.zeros_like(x), period)["divergent_branches"]
    same = "all lanes of a warp go the same way" if period >= 32 else "each warp has lanes that go either way"
    return Number(
        f"One block of {32 * warps} threads runs this kernel, with `period` = {period}. {WARP}\n\n{code(two_ways)}\n\n"
        "In how many warps do lanes go different ways at the `if`?",
        found,
        "warps",
        f"`period` says how many neighbours go the same way. With {period}, {same}.",
        {
            warps: "Only within a warp do different ways take turns. Here each warp goes one way.",
            warps // 2: "Two warps may go different ways, and that is no divergence.",
            0: "There are lanes of the same warp with different `i // period % 2`.",
            32 * warps // period: "This is the number of runs of threads that go together, and not of warps.",
        },
        given={"warps": warps, "period": period},
    )


@cuda.jit
def some_lanes(x, few, rounds):
    i = cuda.grid(1)
    value = x[i]
    if i < few:
        for _ in range(rounds):
            value = value * value
    x[i] = value


@question("08_warps")
def one_lane_or_all(draw: random.Random) -> Number:
    """What one lane costs a warp."""
    rounds, lanes = draw.choice((2, 3, 5, 8, 10)), draw.choice((2, 4, 8, 16, 24, 31, 32))
    none, one, some = (
        counted(some_lanes, 1, 32, np.ones(32, np.float32), few, rounds)["warp_instructions"] for few in (0, 1, lanes)
    )
    return Number(
        f"One warp of 32 threads runs this kernel with `rounds` = {rounds}. With `few` = 0 it executes {none} "
        f"instructions, and with `few` = 1 it executes {one}: an instruction counts once for the warp, however many "
        f"lanes take part.\n\n{code(some_lanes)}\n\nHow many instructions does the warp execute with `few` = {lanes}?",
        some,
        "instructions",
        "A warp goes through the `if` as soon as one of its lanes does, and for 32 lanes at the same price.",
        {
            none + lanes * (one - none): "Lanes that go the same way share each instruction.",
            none: "The lanes that enter have to do something.",
            lanes * one: "These are instructions of threads, and not of the warp.",
        },
        given={"rounds": rounds, "lanes": lanes},
    )


@question("08_warps")
def warps_that_hide(draw: random.Random) -> Number:
    """Warps that keep a scheduler busy."""
    work = draw.choice((4, 5, 8, 10, 12, 16, 20))
    wait = work * draw.randrange(6, 40)
    return Number(
        f"Each warp issues {work} instructions, one a cycle, and then waits {wait} cycles for its load, again and "
        "again. In each cycle a scheduler issues one instruction of one warp that is ready. How many warps does it "
        "need at least to be busy all the time?",
        (work + wait) // work,
        "warps",
        f"While one warp waits for {wait} cycles, others must issue {wait} instructions: {wait} / {work} = "
        f"{wait // work} of them, and the one that waits.",
        {
            wait // work: "The warp that waits is missing: these are the others.",
            wait: "Each of the others issues several instructions before it waits as well.",
            (work + wait): "Each warp issues several instructions in a row.",
        },
        given={"work": work, "wait": wait},
    )


@question("08_warps")
def bytes_for_a_thread(draw: random.Random) -> Number:
    """Bytes in flight for each thread."""
    gpu = draw.choice(simt.GPUS)
    latency = draw.choice((400, 500, 600, 700, 800))
    threads = gpu.sms * gpu.architecture.threads
    under_way = gpu.bandwidth * latency * 1e-9
    return Number(
        f"The memory of a GPU delivers {shown(gpu.bandwidth / 1e9)} GB a second (10^9 bytes), and a load takes "
        f"{latency} ns. The GPU holds {threads:,} threads. How many bytes must be in flight for each of them, to keep "
        "the memory busy?",
        under_way / threads,
        "bytes",
        f"What is in flight is the bandwidth times the latency, {under_way:,.0f} bytes, by Little's law. It is divided "
        f"among {threads:,} threads.",
        {
            under_way: "These are the bytes for all threads together.",
            4.0: "It depends on the bandwidth and the latency.",
        },
        within=0.05,
        given={"bandwidth": gpu.bandwidth, "latency": latency, "threads": threads},
    )


@question("08_warps")
def occupancy_by_registers(draw: random.Random) -> Number:
    """What registers leave of the occupancy."""
    threads = draw.choice((128, 256, 512))
    registers = draw.choice((40, 48, 64, 72, 80, 96, 128))
    arch = simt.GPUS[-1].architecture
    found = simt.occupancy(threads, registers=registers, gpu=simt.GPUS[-1])
    fit = arch.registers // (threads * registers)
    return Number(
        f"A multiprocessor holds up to {arch.threads:,} threads and {arch.blocks} blocks, and has {arch.registers:,} "
        f"registers. A block has {threads} threads, and each needs {registers} registers. No shared memory is used. "
        "What occupancy does the kernel reach, in percent of the threads?",
        100 * found.occupancy,
        "%",
        f"A block takes {threads} x {registers} = {threads * registers:,} registers, so there is room for "
        f"{many(fit, 'block')}, with {fit * threads:,} of {arch.threads:,} threads.",
        {
            100 * arch.registers / registers / arch.threads: "A block fits whole or not at all.",
            100.0: "There are not enough registers for that.",
        },
        given={"threads": threads, "registers": registers},
    )


@cuda.jit
def neighbour_sum(x, out):
    tile = cuda.shared.array(1024, np.float32)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    if t + 1 < cuda.blockDim.x:
        out[t] = tile[t] + tile[t + 1]


@question("18_when_a_kernel_is_wrong")
def missing_barrier(draw: random.Random) -> Number:
    """Elements that a missing barrier puts at risk."""
    warps = draw.choice((2, 3, 4, 6, 8, 12, 16, 24, 32))
    threads = 32 * warps
    return Number(
        f"One block of {threads} threads runs this kernel, which lacks a barrier before the `if`. Suppose that the "
        "lanes of a warp execute each statement together, and that warps run in any "
        f"order.\n\n{code(neighbour_sum)}\n\nHow many elements of `out` can come out wrong?",
        warps - 1,
        "elements",
        "Thread t reads what thread t + 1 has written. Only the last lane of a warp has that neighbour in another "
        f"warp, and the last thread of the block has none: {warps} warps have {warps - 1} borders.",
        {
            threads: "Within a warp the neighbour has written before.",
            threads - 1: "Within a warp the neighbour has written before.",
            warps: "There is one border fewer than there are warps.",
            0: "Warps do not wait for each other without a barrier.",
        },
        given={"threads": threads},
    )


@question("22_launches")
def queue_of_launches(draw: random.Random) -> Number:
    """When a row of launches is done."""
    host, count = draw.choice((4, 5, 6, 8, 10)), draw.choice((10, 20, 50, 100))
    kernel = draw.choice([us for us in (1, 2, 3, 12, 15, 20, 25) if us != host])
    done = host * count + kernel if kernel < host else host + kernel * count
    who = "host" if kernel < host else "GPU"
    return Number(
        f"A launch keeps the host busy for {host} us, and only then can its kernel start. A kernel runs for {kernel} "
        "us. Kernels run one after another, and the host goes on without waiting for them. After how many "
        f"microseconds are {count} such launches done, the last kernel included?",
        done,
        "us",
        f"The {who} is the slower of the two and works without a pause. "
        + (
            f"The last kernel starts after {count} x {host} us."
            if who == "host"
            else f"The first kernel starts after {host} us, and the others are queued by the time that they can run."
        ),
        {
            (host + kernel) * count: "The host does not wait for the kernels: both work at the same time.",
            max(host, kernel) * count: f"{'The last kernel' if who == 'host' else 'The first launch'} is missing.",
        },
        given={"host": host, "kernel": kernel, "count": count},
    )


@question("22_launches")
def fused_or_not(draw: random.Random) -> Number:
    """What fusing three kernels gains."""
    launch, bandwidth = draw.choice((4, 5, 8)), draw.choice((1, 2, 3, 4))
    n = draw.choice((1_000, 10_000, 50_000_000, 100_000_000, 200_000_000))
    each = [max(launch, n * size / bandwidth / 1e6) for size in (8, 12, 8, 12)]
    small = each[3] == launch
    return Number(
        f"`out = relu(a * x + y)` for float32 vectors of {n:,} elements. As three kernels it moves 8, 12 and 8 bytes "
        f"an element, and as one kernel 12. Memory moves {bandwidth} x 10^12 bytes a second. A launch takes {launch} "
        "us at least, however short the kernel is; launches and kernels that follow one another overlap, so the "
        "longer of the two counts. How many times as long as the one kernel do the three take?",
        sum(each[:3]) / each[3],
        "times as long",
        "Here launches are the bound, and there are three of them against one."
        if small
        else "Here bytes are the bound: 28 of them against 12.",
        {
            3.0: "The bytes are the bound at this size, and not the launches.",
            28 / 12: "The launches are the bound at this size, and not the bytes.",
            1.0: "All three kernels do the same arithmetic, and that is not what they wait for.",
        },
        given={"launch": launch, "bandwidth": bandwidth, "n": n},
    )


@cuda.jit
def halves(x, out, active):
    i = cuda.grid(1)
    if cuda.threadIdx.x < active:
        out[i] = x[i]


@question("56_clusters")
def sums_told_to_all(draw: random.Random) -> Number:
    """What passes between blocks that push their sums."""
    blocks, threads = draw.choice((2, 4, 8, 16)), draw.choice((128, 256, 512, 1024))
    sums, size = draw.choice((1, 2, 3)), draw.choice((4, 8))
    told = sums * blocks * blocks * size
    times = {1: "once", 2: "twice", 3: "three times"}[sums]
    return Number(
        f"A row is kept by a cluster of {blocks} blocks of {threads} threads. Each block adds up its own part. Then it "
        f"writes its sum, a number of {size} bytes, into the shared memory of every block of the cluster, its own "
        f"included. This is done {times} for the row. How many bytes do all blocks write that way?",
        told,
        "bytes",
        f"Each of {blocks} blocks tells {blocks} blocks a number of {size} bytes, {times}.",
        {
            sums * blocks * size: "Every block is told the sums of all blocks.",
            sums * blocks * (blocks - 1) * size: "A block writes its sum into its own memory, too.",
            blocks * blocks * size: f"It is done {times}.",
            sums * blocks * blocks * threads * size: "A block has one sum, however many threads it has.",
            sums * blocks * blocks: "These are numbers, and not bytes.",
        },
        given={"blocks": blocks, "sums": sums, "size": size},
    )


@question("98_instruments")
def lanes_an_access(draw: random.Random) -> Number:
    """Lanes that take part in an access."""
    warps = draw.choice((2, 4, 8))
    active = draw.choice([n for n in range(8, 32 * warps) if n % 32])
    x = np.ones(32 * warps, np.float32)
    found = counted(halves, 1, 32 * warps, x, np.zeros_like(x), active)
    takes = -(-active // 32)
    return Number(
        f"One block of {32 * warps} threads runs this kernel with `active` = {active}. {WARP} A request is one load or "
        f"store that at least one lane of a warp takes part in.\n\n{code(halves)}\n\n"
        "How many lanes take part in a request, on average?",
        found["thread_inst_memory"] / found["inst_memory"],
        "lanes",
        f"Of {warps} warps {takes} have any thread below {active}. They make the requests: {active} / {takes}.",
        {
            active / warps: "Warps of which no lane enters make no request.",
            32.0: "The last of the warps that enter is not full.",
        },
        given={"warps": warps, "active": active},
    )
