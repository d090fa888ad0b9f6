"""Questions about algorithms: trees, scans, transforms, and the ways to compute a convolution layer."""

from __future__ import annotations

import math
import random

import numpy as np

from pmpp import cuda
from pmpp.lab.publish.quiz.model import Number, code, counted, question


@cuda.jit
def tree_of_neighbours(x, out):
    work = cuda.shared.array(1024, np.float32)
    t = cuda.threadIdx.x
    work[t] = x[t]
    stride = 1
    while stride < cuda.blockDim.x:
        cuda.syncthreads()
        if t % (2 * stride) == 0:
            work[t] += work[t + stride]
        stride *= 2
    if t == 0:
        out[0] = work[0]


@cuda.jit
def tree_of_halves(x, out):
    work = cuda.shared.array(1024, np.float32)
    t = cuda.threadIdx.x
    work[t] = x[t]
    stride = cuda.blockDim.x // 2
    while stride > 0:
        cuda.syncthreads()
        if t < stride:
            work[t] += work[t + stride]
        stride //= 2
    if t == 0:
        out[0] = work[0]


@question("30_reduction")
def divergent_tree(draw: random.Random) -> Number:
    """Branches of a reduction tree that split a warp."""
    threads = draw.choice((64, 128, 256, 512, 1024))
    kernel = draw.choice((tree_of_neighbours, tree_of_halves))
    found = counted(kernel, 1, threads, np.ones(threads, np.float32), np.zeros(1, np.float32))["divergent_branches"]
    warps, levels = threads // 32, int(math.log2(threads))
    neighbours = kernel is tree_of_neighbours
    why = (
        "At each level with a stride up to 16 every warp has lanes that add and lanes that do not. Later a warp has "
        "one lane that adds, or none."
        if neighbours
        else "Half of the remaining threads add, and they are the first ones. Only when 16 or fewer "
        "add is that a part of a warp."
    )
    return Number(
        f"One block of {threads} threads runs this kernel. A warp has 32 threads. A branch is counted each time that "
        "a warp comes to an `if` or to the test of the `while`, and it diverges if lanes of the warp go different "
        f"ways.\n\n{code(kernel)}\n\nHow many branches diverge?",
        found,
        "branches",
        f"{why} The last `if` splits warp 0. The `while` never splits a warp.",
        {
            found - 1: "The last `if` splits a warp, too.",
            levels * warps: "Not every warp is split at every level.",
            levels: "A branch is counted for each warp."
            if neighbours
            else "At the first levels whole warps work or wait.",
        },
        given={"threads": threads, "neighbours": neighbours},
    )


@cuda.jit
def pass_down(out, distance):
    lane = cuda.laneid
    out[lane] = cuda.shfl_down_sync(0xFFFFFFFF, 10 * lane, distance)


@question("30_reduction")
def shuffled_down(draw: random.Random) -> Number:
    """What a lane gets from a shuffle."""
    distance, lane = draw.choice((1, 2, 4, 8, 16)), draw.randrange(32)
    out = np.zeros(32, np.int32)
    counted(pass_down, 1, 32, out, distance)
    there = lane + distance < 32
    return Number(
        f"One warp of 32 threads runs this kernel with `distance` = {distance}. A lane whose partner would lie beyond "
        f"the last lane gets its own value back.\n\n{code(pass_down)}\n\nWhat is `out[{lane}]` afterwards?",
        int(out[lane]),
        "value",
        f"Lane {lane} asks lane {lane + distance}, which has {10 * (lane + distance)}."
        if there
        else f"There is no lane {lane + distance}, so lane {lane} gets its own {10 * lane}.",
        {
            10 * (lane - distance): "`down` passes values to lower lanes: a lane gets that of a higher one.",
            10 * ((lane + distance) % 32): "It does not begin at lane 0 again.",
            10 * lane: "This is the lane's own value.",
            10 * (lane + distance): "There is no such lane.",
        },
        given={"distance": distance, "lane": lane},
    )


@cuda.jit
def along_the_axis(x, out, n, inner):
    i = cuda.grid(1)
    if i < out.size:
        total = np.float32(0)
        for k in range(n):
            total += x[(i // inner * n + k) * inner + i % inner]
        out[i] = total


@question("33_reduction_over_axes")
def sectors_along_an_axis(draw: random.Random) -> Number:
    """Sectors that a warp touches when it reduces an axis."""
    n, inner = draw.choice((4, 8, 16, 32)), draw.choice((1, 2, 4, 8, 16, 32))
    x, out = np.ones(32 * n * inner, np.float32), np.zeros(32, np.float32)
    counters = counted(along_the_axis, 1, 32, x, out, n, inner)
    found = counters["global_load_sectors"] // counters["global_load_requests"]
    together = min(32, inner)
    return Number(
        f"An array of shape (32, {n}, {inner}) in C order is given to this kernel as the vector `x` of float32, which "
        "begins at a multiple of 128 bytes. One warp of 32 threads sums its middle axis, for the first 32 results."
        f"\n\n{code(along_the_axis)}\n\nMemory is read in sectors of 32 bytes. How many sectors does each load of "
        "the warp touch?",
        found,
        "sectors",
        f"Results that are neighbours read neighbours, as long as they have the same `i // inner`: {together} of them "
        f"read {4 * together} bytes. The next of such results lie {4 * n * inner} bytes further."
        if inner > 1
        else f"Each lane reads its own row, and rows are {4 * n} bytes apart.",
        {
            32: "Lanes that read neighbours share a sector.",
            4: "That is so if all 32 lanes read neighbours.",
            32 * found: "Lanes of a warp that read the same sector cause one access together.",
            1: "A sector has eight float32.",
        },
        given={"n": n, "inner": inner},
    )


@question("34_scan")
def kogge_stone_additions(draw: random.Random) -> Number:
    """Additions of a Kogge-Stone scan."""
    n = draw.choice((32, 64, 128, 256, 512, 1024))
    levels = int(math.log2(n))
    additions = sum(n - 2**level for level in range(levels))
    return Number(
        f"A scan of {n} elements goes by distances of 1, 2, 4 and so on below {n}. At each distance d, each element "
        "from the one with index d on adds the element that is d before it. How many additions is that all together?",
        additions,
        "additions",
        f"There are {levels} steps, with {n} - d additions each: {levels} x {n} - {n - 1}. One after another it would "
        f"be {n - 1}.",
        {
            n * levels: "The first d elements add nothing.",
            n - 1: "This is the number if one adds from left to right.",
            n * levels // 2: "This is the number of a scheme in which half of the elements add at each step.",
        },
        given={"n": n},
    )


@question("34_scan")
def brent_kung_steps(draw: random.Random) -> Number:
    """Steps of a Brent-Kung scan."""
    n = 2 ** draw.randrange(4, 13)
    up = int(math.log2(n))
    return Number(
        f"A scan of {n} elements by the scheme of Brent and Kung goes up a tree of sums, by distances of 1, 2, 4 and "
        f"so on up to {n // 2}, and down again by distances of {n // 4}, ..., 2, 1. Each distance is a step. How many "
        "steps are there, up and down together?",
        2 * up - 1,
        "steps",
        f"{up} steps go up, and {up - 1} go down.",
        {
            2 * up: "The longest distance is not repeated on the way down.",
            up: "This is one way alone.",
            n - 1: "Steps are parallel.",
        },
        given={"n": n},
    )


@cuda.jit
def store_runs(out, run):
    work = cuda.shared.array(2048, np.float32)
    t = cuda.threadIdx.x
    work[t * run] = t
    cuda.syncthreads()
    out[t] = work[t * run]


@question("34_scan")
def runs_in_shared_memory(draw: random.Random) -> Number:
    """Bank conflicts of threads with a run each."""
    run = draw.randrange(2, 49)
    found = counted(store_runs, 1, 32, np.zeros(32, np.float32), run)["shared_store_wavefronts"]
    common = math.gcd(run, 32)
    return Number(
        f"Each of the 32 lanes of a warp owns a run of {run} float32 in shared memory, one run behind the other, and "
        "stores to the first element of its run. Shared memory has 32 banks of 4 bytes: word i lies in bank i mod "
        "32, and in a wavefront each bank takes one word. How many wavefronts does the store take?",
        found,
        "wavefronts",
        f"The lanes' words are {run} apart. gcd({run}, 32) = {common}, so {common} of them lie in each bank in use.",
        {
            run: "Only what the distance has in common with 32 counts.",
            32: "They do not all lie in one bank.",
            1: "Some lie in one bank.",
        },
        given={"run": run},
    )


@question("26_stencil")
def flops_for_a_byte_of_a_stencil(draw: random.Random) -> Number:
    """The arithmetic intensity of several steps in one trip through memory."""
    axes, order, steps = draw.choice((2, 3)), draw.randrange(1, 5), draw.choice((1, 2, 4, 8))
    flops = order * (2 * axes + 1) + 1
    return Number(
        f"A star-shaped stencil of order {order} in {axes} dimensions has one coefficient for the centre and one for "
        "each distance. For a cell, the neighbours at each distance are added up, and then multiplied by their "
        f"coefficient. The grid is float32. A kernel reads it once, makes {steps} step{'s' if steps > 1 else ''}, and "
        "writes it once. How many FLOP does it do for each byte, borders and coefficients left aside?",
        steps * flops / 8,
        "FLOP a byte",
        f"A distance has {2 * axes} neighbours: {2 * axes - 1} additions, a multiplication and one more addition. With "
        f"the centre's multiplication that is {flops} a step, and 8 bytes are moved for all {steps}.",
        {
            steps * flops / 4: "The grid is read, and also written.",
            steps * (4 * axes * order + 1) / 8: "Neighbours at one distance share a multiplication.",
        },
        given={"axes": axes, "order": order, "steps": steps},
        within=0.001,
    )


@question("35_filter")
def bytes_of_a_filter(draw: random.Random) -> Number:
    """The least traffic of a filter."""
    millions, percent = draw.randrange(10, 400, 10), draw.choice((10, 20, 30, 40, 60, 70, 80, 90))
    read, written = 4 * millions, 4 * millions * percent / 100
    return Number(
        f"A filter reads {millions} million float32 and keeps {percent} % of them. How many megabytes (10^6 bytes) "
        "does it have to move to and from memory, at least?",
        read + written,
        "MB",
        f"All are read, {read} MB, and what is kept is written, {written:g} MB.",
        {
            2 * read: "Only what is kept is written.",
            written: "Each element has to be read, kept or not.",
            2 * written: "Each element has to be read, kept or not.",
        },
        given={"millions": millions, "percent": percent},
        within=0.001,
    )


@question("41_merge")
def co_rank_of_a_merge(draw: random.Random) -> Number:
    """Where a piece of a merge begins."""
    a, b = (sorted(draw.randrange(10, 60) for _ in range(8)) for _ in range(2))
    k = draw.randrange(5, 12)
    taken, i = 0, 0
    while taken < k:
        if i < len(a) and (taken - i >= len(b) or a[i] <= b[taken - i]):
            i += 1
        taken += 1
    said = [" ".join(map(str, one)) for one in (a, b)]
    return Number(
        f"Two sorted vectors are merged, and of equal elements those of a come first: a is {said[0]}, and b is "
        f"{said[1]}. Number the outputs from 0. A thread begins with output {k}. With which element of a does it "
        "begin: what is its index, from 0? That is the co-rank.",
        i,
        "",
        f"Of the first {k} outputs {i} come from a, and {k - i} from b.",
        {k - i: "That is the index in b."} if k != 2 * i else {},
        given={"a": a, "b": b, "k": k},
    )


@question("42_sorting")
def bytes_of_a_radix_sort(draw: random.Random) -> Number:
    """What a radix sort moves."""
    bits, width = draw.choice((32, 64)), draw.choice((4, 8, 16))
    passes, size = bits // width, bits // 8
    return Number(
        f"Keys of {bits} bits are sorted by digits of {width} bits. First all digits are counted in one trip over the "
        "keys. Then each pass reads every key once and writes it once. How many bytes is that for a key, in all?",
        size + passes * 2 * size,
        "bytes",
        f"{bits} / {width} = {passes} passes of {2 * size} bytes, and {size} bytes to count.",
        {
            passes * 2 * size: "The keys are also read to be counted.",
            size + passes * size: "A pass reads a key, and also writes it.",
            passes * 3 * size: "The keys are counted once, not in each pass.",
        },
        given={"bits": bits, "width": width},
    )


@question("44_sparse")
def bytes_of_compressed_rows(draw: random.Random) -> Number:
    """What a sparse matrix takes in memory."""
    rows, each = draw.choice((1000, 2000, 5000)), draw.randrange(3, 12)
    stored = rows * each
    return Number(
        f"A matrix of {rows} x {rows} has {each} values in each row. It is stored by compressed rows: the values are "
        "float32, and their columns and where rows start are int32. How many bytes is that?",
        8 * stored + 4 * (rows + 1),
        "bytes",
        f"{stored} values and columns of 4 bytes each, and {rows + 1} starts: the last one says where the values end.",
        {
            8 * stored + 4 * rows: "There is one start more than there are rows.",
            12 * stored: "The row of each value is stored in the format COO. Here a row has one start.",
            4 * stored + 4 * (rows + 1): "Each value has its column beside it.",
        },
        given={"rows": rows, "each": each},
        within=0,
    )


@question("45_graphs")
def edges_that_are_looked_at(draw: random.Random) -> Number:
    """What pulling saves in the largest level of a search."""
    frontier, left, each = draw.choice((2000, 3000, 5000)), draw.choice((500, 1000, 1500)), draw.randrange(8, 33)
    return Number(
        f"In an undirected graph each vertex has {each} neighbours. The frontier has {frontier:,} vertices, and "
        f"{left:,} vertices have no level. Each of these has a vertex of the frontier as its first neighbour. How many "
        "fewer edges are looked at if those without a level pull than if the frontier pushes?",
        frontier * each - left,
        "edges",
        f"The frontier would look at {frontier:,} x {each} = {frontier * each:,} edges. Who pulls stops at the first "
        f"neighbour on the frontier: {left:,} edges.",
        {
            (frontier - left) * each: "Who pulls does not look at the whole list: the first neighbour is enough.",
            frontier * each: "Each vertex that pulls looks at one edge.",
        },
        given={"frontier": frontier, "left": left, "each": each},
        within=0,
    )


@question("48_electrostatic_potential")
def roots_and_instructions(draw: random.Random) -> Number:
    """Which of two units is the bound of a pair."""
    instructions, roots = draw.randrange(3, 30), draw.choice((1, 2))
    return Number(
        "A multiprocessor does 128 multiply-adds in a cycle, and in its special function unit, at the same time, 16 "
        f"reciprocal square roots. A pair of an atom and a point needs {instructions} multiply-adds and {roots} "
        f"root{'s' * (roots > 1)}. How many cycles do a thousand pairs take at least?",
        1000 * max(instructions / 128, roots / 16),
        "cycles",
        f"Multiply-adds take {1000 * instructions / 128:g} cycles, and roots {1000 * roots / 16:g}. Both go on at the "
        "same time, so the longer one counts.",
        {
            1000 * (instructions / 128 + roots / 16): "Both units work at the same time.",
            1000 * (instructions + roots) / 128: "Roots have a unit of their own, with an eighth of the lanes.",
        },
        within=0.02,
        given={"instructions": instructions, "roots": roots},
    )


@question("49_mri")
def products_before_and_after_fission(draw: random.Random) -> Number:
    """What loop fission saves."""
    samples, voxels = 2 ** draw.randrange(8, 14), 2 ** draw.randrange(10, 16)
    each, product = draw.randrange(10, 20), 9
    saved = product * samples * (voxels - 1)
    return Number(
        f"An image has {voxels:,} voxels and is made of {samples:,} samples. In a loop over samples, inside one over "
        f"voxels, {product} FLOP depend on the sample alone, and {each} on both. Loop fission computes the former in a "
        "loop of their own, once. How many FLOP does it save?",
        saved,
        "FLOP",
        f"The {product} FLOP were done {voxels:,} times for each of {samples:,} samples, and are done once now.",
        {
            product * samples * voxels: "Once they must be done.",
            (each + product) * samples * (voxels - 1): "What depends on the voxel, too, must be done for each pair.",
        },
        within=0.0001,
        given={"samples": samples, "voxels": voxels},
    )


@question("51_game_of_life")
def bytes_of_packed_steps(draw: random.Random) -> Number:
    """What a step moves where a cell is a bit."""
    side, steps = draw.choice((1024, 2048, 4096)), draw.randrange(4, 40)
    return Number(
        f"A board of {side} x {side} cells, a byte each, is packed into bits, played for {steps} steps, and unpacked. "
        "Each step reads and writes the board of bits once, packing reads the bytes and writes the bits, and unpacking "
        "does the opposite. How many bytes are read and written in all?",
        side**2 * (8 + 1 + 2 * steps + 1 + 8) // 8,
        "bytes",
        f"The board is {side**2:,} bytes, and {side**2 // 8:,} as bits: two of the former, and 2 + 2 x {steps} of the "
        "latter.",
        {
            2 * side**2 * steps: "A step moves bits, and no bytes.",
            side**2 * (8 + 1 + steps + 1 + 8) // 8: "A step reads a board and writes one.",
            side**2 * 2 * steps // 8: "Packing and unpacking move bytes, too.",
        },
        given={"side": side, "steps": steps},
        within=0,
    )


@question("47_wavefronts")
def launches_of_tiles(draw: random.Random) -> Number:
    """How many steps a table takes that is computed tile by tile."""
    tile = draw.choice((32, 64, 128))
    down, across = draw.randrange(3, 9), draw.randrange(10, 30)
    m, n = down * tile - draw.randrange(tile), across * tile
    return Number(
        f"A table has {m} x {n} cells, and each waits for its neighbours over it and on its left. It is cut into "
        f"tiles of {tile} x {tile} cells, and a launch computes all tiles on one anti-diagonal. How many launches is "
        "that?",
        down + across - 1,
        "launches",
        f"There are {down} x {across} tiles, and so {down} + {across} - 1 diagonals of them.",
        {
            down * across: "Tiles on one diagonal are computed at the same time.",
            m + n - 1: "That is a launch for each diagonal of cells.",
            down + across: "The first row and the first column share a tile.",
            across: "The last diagonals begin below the first row of tiles.",
        },
        given={"m": m, "n": n, "tile": tile},
        within=0,
    )


@question("58_fft")
def fft_against_definition(draw: random.Random) -> Number:
    """What the FFT saves."""
    n = 2 ** draw.randrange(4, 15)
    stages = int(math.log2(n))
    ratio = 8 * n * n / (n // 2 * stages * 10)
    return Number(
        f"A discrete Fourier transform of {n:,} complex points by its definition takes 8 FLOP for each of {n:,} x "
        f"{n:,} pairs. The FFT by pairs takes log2(n) stages of n / 2 butterflies with 10 FLOP each. How many times "
        "as many FLOP has the definition?",
        ratio,
        "times as many",
        f"8 x {n:,}^2 = {8 * n * n:,}, and {n // 2:,} x {stages} x 10 = {n // 2 * stages * 10:,}.",
        {ratio / 2: "A stage has n / 2 butterflies.", n / stages: "Count the FLOP of a pair and of a butterfly."},
        within=0.02,
        given={"n": n},
    )


@question("60_fft_of_any_length")
def convolution_for_a_prime(draw: random.Random) -> Number:
    """What a transform of a prime length costs as a convolution."""
    n = draw.choice((17, 31, 67, 127, 131, 251, 257, 509, 521, 1009, 1031, 2039, 4099))
    m = 1 << (2 * n - 2).bit_length()
    ratio = 2 * m * math.log2(m) / (n * math.log2(n))
    return Number(
        f"A Fourier transform of {n:,} points is done as a convolution around a circle, by two transforms of m points. "
        f"The circle must have a place of its own for each difference of two of the {n:,} places, and m is the "
        "smallest power of two that is enough. How many times as many FLOP are these two transforms, with "
        f"5 m log2(m) each, as 5 n log2(n) with n = {n:,}?",
        ratio,
        "times as many",
        f"There are 2 x {n:,} - 1 = {2 * n - 1:,} differences, so m = {m:,}. Two transforms are "
        f"2 x 5 x {m:,} x {int(math.log2(m))} FLOP.",
        {ratio / 2: "There is a transform there and one back.", m / n * 2: "The logarithm of m is larger, too."},
        within=0.02,
        given={"n": n},
    )


@question("61_fft_in_one_trip")
def blocks_that_hold_lines(draw: random.Random) -> Number:
    """How many lines a multiprocessor holds in registers, and in shared memory as parts."""
    n, each, registers = 2 ** draw.randrange(9, 15), draw.choice((16, 32)), draw.choice((64, 96, 128))
    if each == 32:
        registers = max(registers, 96)
    threads = n // each
    by_registers, by_memory = 65536 // (threads * registers), 228 * 1024 // (4 * n + 1024)
    return Number(
        f"A block transforms a line of {n:,} complex numbers of 8 bytes. Each thread holds {each} of them and has "
        f"{registers} registers. Points change threads through shared memory, real parts first and imaginary parts "
        "then, so the block has 4 bytes there for each point, and 1,024 bytes besides. A multiprocessor has 65,536 "
        "registers and 228 KiB of shared memory for blocks. How many of these blocks have room on it at a time?",
        min(by_registers, by_memory, 2048 // threads),
        "blocks",
        f"A block has {n:,} / {each} = {threads} threads with {threads * registers:,} registers, so there is room for "
        f"{by_registers}. It takes {4 * n + 1024:,} bytes of shared memory, which is room for {by_memory}. And a "
        "multiprocessor has at most 2,048 threads.",
        {
            by_memory: "Registers are the limit here: count those of all threads of a block.",
            by_registers: "Shared memory is the limit here.",
            228 * 1024 // (8 * n + 1024): "Only one part of each number is in shared memory at a time.",
        },
        given={"n": n, "each": each, "registers": registers},
    )


def layer(draw: random.Random) -> dict[str, int]:
    """Numbers of a convolution layer, and its output."""
    window, stride = draw.choice(((1, 1), (3, 1), (3, 2), (5, 1), (5, 2), (7, 2), (11, 4)))
    side = draw.choice((28, 32, 56, 64, 112, 224))
    padding = draw.choice((0, window // 2))
    return {
        "channels": draw.choice((1, 3, 16, 32, 64)),
        "filters": draw.choice((16, 32, 64, 96, 128)),
        "side": side,
        "window": window,
        "stride": stride,
        "padding": padding,
        "out": (side + 2 * padding - window) // stride + 1,
    }


def described(of: dict[str, int]) -> str:
    """A sentence that says which layer it is."""
    side, window = f"{of['side']} x {of['side']}", f"{of['window']} x {of['window']}"
    return (
        f"A convolution layer takes images of {side} pixels with {of['channels']} channel{'s'[: of['channels'] - 1]}. "
        f"It has {of['filters']} filters with windows of {window}, a stride of {of['stride']}, and a padding of "
        f"{of['padding']} on each side."
    )


@question("62_direct_convolution")
def rows_of_the_output(draw: random.Random) -> Number:
    """How many rows a convolution makes."""
    of = layer(draw)
    side, window, stride, padding, out = (of[name] for name in ("side", "window", "stride", "padding", "out"))
    return Number(
        f"{described(of)} How many rows does an output channel have?",
        out,
        "rows",
        f"({side} + 2 x {padding} - {window}) / {stride} is {(side + 2 * padding - window) / stride:.4g}. Cut off "
        "what follows the point, and add 1.",
        {
            out - 1: "The window at the start counts, too.",
            (side - window) // stride + 1: "The image is padded on both sides.",
            (side + padding - window) // stride + 1: "The image is padded on both sides.",
            side + 2 * padding - window + 1: "The window moves by the stride.",
        },
        given=of,
    )


@question("62_direct_convolution")
def products_of_a_layer(draw: random.Random) -> Number:
    """How much a convolution layer multiplies."""
    of = layer(draw)
    products = of["filters"] * of["channels"] * (of["out"] * of["window"]) ** 2
    return Number(
        f"{described(of)} An output channel has {of['out']} x {of['out']} pixels. How many million multiplications "
        "does the layer do for one image, by the definition?",
        products / 1e6,
        "million",
        f"Each of {of['filters']} x {of['out']} x {of['out']} outputs is a sum of {of['channels']} x {of['window']} x "
        f"{of['window']} products.",
        {
            2 * products / 1e6: "These are FLOP: additions count, too.",
            products / of["channels"] / 1e6: "Each filter has weights for all channels.",
            products / of["filters"] / 1e6: "This is for one filter.",
        },
        within=0.02,
        given=of,
    )


@question("64_im2col")
def matrix_of_columns(draw: random.Random) -> Number:
    """How large the matrix of im2col is."""
    of = layer(draw)
    size = 4 * of["channels"] * (of["window"] * of["out"]) ** 2
    return Number(
        f"{described(of)} An output channel has {of['out']} x {of['out']} pixels. im2col writes all inputs of each "
        "output, in float32, as a column of a matrix. How many MB (10^6 bytes) is the matrix for one image?",
        size / 1e6,
        "MB",
        f"{of['channels']} x {of['window']} x {of['window']} rows and {of['out']} x {of['out']} columns of 4 bytes.",
        {
            size / 4e6: "An element has 4 bytes.",
            size * of["filters"] / 1e6: "The filters share the matrix.",
            4 * of["channels"] * of["side"] ** 2 / 1e6: "This is the image itself.",
        },
        within=0.02,
        given=of,
    )


@question("66_implicit_gemm")
def place_in_the_image(draw: random.Random) -> Number:
    """Which element of the image belongs to an element of the matrix."""
    window, stride, out = draw.choice((3, 5, 7)), draw.choice((1, 2)), draw.choice((7, 14, 28, 56))
    channels = draw.choice((4, 8, 16))
    row, column = draw.randrange(channels * window * window), draw.randrange(out * out)
    down = column // out * stride + row % (window * window) // window
    across = column % out * stride + row % window
    return Number(
        f"In implicit GEMM a matrix has a row for each channel and each place (r, s) in a window of {window} x "
        f"{window}, and a column for each output (p, q) of {out} x {out}. Rows count s fastest, then r, then the "
        f"channel; columns count q fastest. All begin at 0. The stride is {stride}, and there is no padding. In which "
        f"row of the image does the element in row {row} and column {column} of the matrix lie?",
        down,
        "row",
        f"Row {row} of the matrix is channel {row // window**2}, r = {row % window**2 // window}, s = {row % window}. "
        f"Column {column} is p = {column // out}, q = {column % out}. The row of the image is p x {stride} + r.",
        {across: "This is the column of the image.", column // out: "The place in the window counts, too."},
        given={"window": window, "stride": stride, "out": out, "row": row, "column": column},
    )


@question("68_winograd")
def winograd_saves(draw: random.Random) -> Number:
    """What Winograd's algorithm saves."""
    m, r = draw.choice((2, 3, 4, 5, 6)), draw.choice((3, 4, 5, 7))
    ratio = (m * r) ** 2 / (m + r - 1) ** 2
    return Number(
        f"Winograd's algorithm F({m} x {m}, {r} x {r}) makes {m} x {m} outputs of a convolution with a window of {r} "
        f"x {r} by one product for each of the inputs that they need. How many times fewer products is that than by "
        "the definition, for a channel and a filter?",
        ratio,
        "times fewer",
        f"{m * m} outputs take {m * m} x {r * r} = {(m * r) ** 2} products by the definition, and ({m} + {r} - 1)^2 = "
        f"{(m + r - 1) ** 2} here.",
        {
            math.sqrt(ratio): "This is in one dimension.",
            float(r * r): "An output does not take a single product.",
            (m * r) ** 2 / (m + r) ** 2: f"Along an axis {m} outputs need {m} + {r} - 1 inputs.",
        },
        given={"m": m, "r": r},
    )


@question("70_convolution_by_fft")
def spectra_of_filters(draw: random.Random) -> Number:
    """How large the spectra of filters are."""
    side, window = draw.choice((16, 32, 64)), draw.choice((3, 5, 7, 9, 11, 15))
    ratio = 2 * side * (side // 2 + 1) / window**2
    return Number(
        f"A filter of {window} x {window} float32 is put into a tile of {side} x {side}, filled up with zeros. Its "
        f"Fourier transform has {side} x ({side} / 2 + 1) different complex numbers, of two float32 each. How many "
        "times as many bytes as the filter has the transform?",
        ratio,
        "times as many",
        f"{side * (side // 2 + 1)} complex numbers of 8 bytes, and {window**2} weights of 4.",
        {
            ratio / 2: "A complex number is two float32.",
            2 * side**2 / window**2: "Half of the numbers of a real signal are known from the others.",
        },
        given={"side": side, "window": window},
    )


@question("71_depthwise_convolution")
def loads_of_a_strip(draw: random.Random) -> Number:
    """How many elements a thread loads that computes several outputs."""
    window, rows, columns = draw.choice((3, 5, 7)), draw.choice((2, 4, 8)), draw.choice((1, 2, 4))
    height, width = rows + window - 1, columns + window - 1
    return Number(
        f"A thread computes {rows} x {columns} outputs of a depthwise layer, {rows} one below the other and {columns} "
        f"side by side, with a window of {window} x {window} and a stride of 1. It loads each element of x that they "
        "need once. How many elements is that for each output?",
        height * width / (rows * columns),
        "elements for each output",
        f"The outputs need ({rows} + {window} - 1) x ({columns} + {window} - 1) = {height * width} elements, and are "
        f"{rows * columns}.",
        {
            float(window**2): "This is what a thread for each output loads.",
            float(height * width): "These are the elements of all outputs of the thread.",
            (rows + window) * (columns + window) / (rows * columns): "The first output needs a window, not one more.",
        },
        given={"window": window, "rows": rows, "columns": columns},
    )


@question("72_choosing_a_convolution")
def spread_of_a_nan(draw: random.Random) -> Number:
    """How far one NaN spreads."""
    window, m = draw.choice((3, 5)), draw.choice((2, 4, 6))
    out = m * draw.choice((4, 5, 6, 8))
    place = draw.randrange(window, out - 1)
    first, last = place - window + 1, place  # outputs by the definition, without padding
    tiles = [tile for tile in range(0, out, m) if tile <= place < tile + m + window - 1]
    return Number(
        f"A convolution with a window of {window} x {window}, a stride of 1 and no padding makes {out} x {out} "
        f"outputs. Winograd's algorithm cuts them into tiles of {m} x {m}; the first begins at (0, 0), and each "
        f"output of a tile depends on all inputs of the tile, {m + window - 1} x {m + window - 1} of them. The input "
        f"in row {place} and column {place} is NaN; counts begin at 0. How many outputs of a filter become NaN?",
        (len(tiles) * m) ** 2,
        "outputs",
        f"Along an axis the tiles that begin at {', '.join(map(str, tiles))} contain place {place}. By the definition "
        f"it would be the outputs {first} to {last} along each axis, {window**2} in all.",
        {
            window**2: "This is so by the definition.",
            m**2: "Inputs of neighbouring tiles overlap.",
            (m + window - 1) ** 2: "These are inputs of a tile.",
        },
        given={"window": window, "m": m, "out": out, "place": place},
    )


@question("86_gradients_of_softmax")
def comparisons_in_groups(draw: random.Random) -> Number:
    """How unequal groups cost more."""
    tokens, words = draw.choice((1024, 4096, 8192)), draw.choice((64, 128, 256))
    share = draw.choice((10, 20, 25, 50))
    common = tokens * share // 100
    rest = tokens - common
    each = rest // words
    rest = each * words
    tokens = common + rest
    total = common**2 + words * each**2
    return Number(
        f"{tokens:,} tokens fall into groups of equal words: one word occurs {common:,} times, and {words} others "
        f"occur {each} times each. Within its group each token is compared with every token of the group, itself "
        "included. How many comparisons is that?",
        total,
        "comparisons",
        f"{common:,}^2 + {words} x {each}^2: the one common word has {100 * common**2 / total:.1f} % of them.",
        {
            tokens**2: "Tokens of different groups are not compared.",
            words * each**2: "The common word is missing.",
            tokens: "Each token is compared with more than itself.",
        },
        within=0.01,
        given={"common": common, "words": words, "each": each},
    )
