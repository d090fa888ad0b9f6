"""Questions about bounds: bytes, operations, the ridge, and what fusing saves."""

from __future__ import annotations

import math
import random

from pmpp import simt
from pmpp.lab.publish.quiz.model import Choice, Number, question, shown


def machine(draw: random.Random) -> tuple[float, float, str]:
    """The float32 rate in FLOP/s and the bandwidth in bytes a second of a GPU, and a sentence that says both."""
    flops = draw.choice((8, 12, 16, 20, 24, 30, 40, 60, 80)) * 1e12
    bandwidth = draw.choice((0.3, 0.4, 0.5, 0.8, 1, 1.5, 2, 3, 4)) * 1e12
    said = (
        f"A GPU does {shown(flops / 1e12)} x 10^12 float32 operations a second at most (a multiply-add is two), and "
        f"its memory moves {shown(bandwidth / 1e12)} x 10^12 bytes a second."
    )
    return flops, bandwidth, said


@question("00_start_here")
def product_of_squares(draw: random.Random) -> Number:
    """From which size on a matrix product is compute-bound."""
    flops, bandwidth, said = machine(draw)
    n = math.floor(6 * flops / bandwidth) + 1
    return Number(
        f"{said} The product of two n x n matrices of float32 is 2 n^3 operations. Each matrix is read once, and the "
        "result is written once. From which n on is the product compute-bound?",
        n,
        "n",
        f"12 n^2 bytes, so n / 6 FLOP a byte. The ridge is {shown(flops / bandwidth)} FLOP a byte, and n is six times "
        "that.",
        {
            round(flops / bandwidth): "This is the ridge, in FLOP a byte.",
            round(4 * flops / bandwidth): "Two matrices are read and one is written: 12 bytes for 2 n FLOP.",
            round(12 * flops / bandwidth): "A multiply-add counts as two.",
            round(1.5 * flops / bandwidth): "An element has 4 bytes.",
        },
        within=0.05,
        given={"flops": flops, "bandwidth": bandwidth},
    )


@question("00_start_here")
def side_of_the_ridge(draw: random.Random) -> Choice:
    """Which work is compute-bound."""
    flops, bandwidth, said = machine(draw)
    ridge = flops / bandwidth
    n, terms = draw.choice((16, 32, 64, 128, 256, 512, 1024, 2048)), draw.choice((4, 16, 64, 256, 1024))
    works = {
        "the sum of a long vector": 1 / 4,
        "the sum of two long vectors": 1 / 12,
        f"the product of two {n} x {n} matrices": n / 6,
        f"a polynomial of degree {terms} at each element of a long vector, which is read and replaced": terms / 4,
    }
    bound = [name for name, intensity in works.items() if intensity > ridge]
    right = {0: "none of them", 1: bound[0] if bound else "", 2: "both the product and the polynomial"}[len(bound)]
    below = f"FLOP a byte, and lies below the ridge, which is {shown(ridge)}."
    options = {
        name: "This is compute-bound, and another one is as well."
        if name in bound
        else f"It is {shown(intensity)} {below}"
        for name, intensity in list(works.items())[1:]
    }
    options["none of them"] = f"The ridge is {shown(ridge)} FLOP a byte. Count what each of them does for a byte."
    options["both the product and the polynomial"] = (
        "Both lie below the ridge." if not bound else "One of them lies below the ridge."
    )
    options.pop(right)
    listed = "; ".join(f"{name}" for name in works)
    return Choice(
        f"{said} All numbers are float32. Each input is read once, and each result is written once. Which of these are "
        f"compute-bound? {listed}.",
        right,
        f"The ridge is {shown(ridge)} FLOP a byte. In FLOP a byte, "
        + "; ".join(f"{name}: {shown(intensity)}" for name, intensity in works.items())
        + ".",
        options,
        given={"ridge": ridge, "works": works},
    )


@question("04_vector_add")
def least_time_of_an_addition(draw: random.Random) -> Number:
    """The least time of a vector addition."""
    bandwidth = draw.choice((0.3, 0.5, 0.9, 1.5, 2, 3.35, 4.8))
    millions, size = draw.choice((10, 20, 50, 100, 200, 500)), draw.choice((4, 8))
    least = 3 * size * millions / bandwidth
    return Number(
        f"Two vectors of {millions} million numbers of {size} bytes are added, and the result is a third vector. The "
        f"memory moves {shown(bandwidth)} x 10^12 bytes a second. How many microseconds does that take at least?",
        least,
        "us",
        f"Two vectors are read and one is written: 3 x {size} x {millions} million bytes, divided by the bandwidth.",
        {
            least * 2 / 3: "The result has to be written, too.",
            least / 3: "There are three vectors.",
            least / size: "These would be numbers of one byte.",
        },
        within=0.02,
        given={"bandwidth": bandwidth, "millions": millions, "size": size},
    )


@question("12_matmul")
def flat_product(draw: random.Random) -> Number:
    """From which inner size on a flat product is compute-bound."""
    flops, bandwidth, said = machine(draw)
    side = draw.choice((4096, 8192, 16384))
    # 2 m m k FLOP, 4 (m m + 2 m k) bytes
    ridge = flops / bandwidth
    border = next(k for k in range(1, 10**6) if 2 * side * k > ridge * 4 * (side + 2 * k))
    return Number(
        f"{said} A matrix of {side} x K is multiplied by one of K x {side}, all in float32. Each input is read once, "
        "and the result is written once. From which K on is the product compute-bound?",
        border,
        "K",
        f"2 x {side}^2 x K operations on 4 x ({side}^2 + 2 x {side} x K) bytes. The bytes of the result are the most, "
        f"so K is a little more than twice the ridge of {shown(ridge)} FLOP a byte.",
        {
            round(ridge): "An element has 4 bytes, and a multiply-add is two FLOP.",
            round(6 * ridge): "It is not a square.",
        },
        within=0.1,
        given={"flops": flops, "bandwidth": bandwidth, "side": side},
    )


@question("12_matmul")
def wasted_tiles(draw: random.Random) -> Number:
    """What tiles compute beyond the edge."""
    rows, columns = draw.randrange(200, 1500), draw.choice((10, 20, 50, 100, 150, 200, 300))
    side = draw.choice((32, 64, 128))
    blocks = -(-rows // side) * -(-columns // side)
    share = 100 * rows * columns / (blocks * side**2)
    return Number(
        f"A matrix product has {rows} x {columns} results. Blocks compute tiles of {side} x {side} of them, and tiles "
        "cover all. How many percent of the elements that blocks compute are results?",
        share,
        "%",
        f"{-(-rows // side)} x {-(-columns // side)} = {blocks} tiles have {blocks * side**2:,} elements, and "
        f"{rows * columns:,} are results.",
        {
            100 - share: "This is what is wasted.",
            100 * columns / (-(-columns // side) * side): "The other axis is cut off, too.",
            100.0: "Tiles reach beyond the edge.",
        },
        within=0.01,
        given={"rows": rows, "columns": columns, "side": side},
    )


@question("36_products_of_any_shape")
def useful_time_of_waves(draw: random.Random) -> Number:
    """What waves and edges leave of the multiprocessors' time."""
    n, side, sms = draw.randrange(700, 4000), draw.choice((64, 128)), draw.choice((58, 80, 108, 132, 144))
    tiles = (-(-n // side)) ** 2
    waves = -(-tiles // sms)
    share = 100 * n * n / (waves * sms * side**2)
    return Number(
        f"A matrix product has {n} x {n} results, in tiles of {side} x {side} that cover all of them. A block computes "
        f"one tile. The GPU has {sms} multiprocessors, each takes one block at a time, and all blocks take equally "
        "long. In how many percent of the multiprocessors' time, from the beginning to the end, are results computed?",
        share,
        "%",
        f"{-(-n // side)} x {-(-n // side)} = {tiles} blocks run in {waves} waves of {sms}, which have room for "
        f"{waves * sms * side**2:,} elements; {n * n:,} of them are results.",
        {
            100 * tiles / (waves * sms): "Tiles reach beyond the edge, too.",
            100 * n * n / (tiles * side**2): "The last wave is not full.",
        },
        within=0.01,
        given={"n": n, "side": side, "sms": sms},
    )


@question("37_autotuning")
def seconds_of_a_search(draw: random.Random) -> Number:
    """What a search costs with pruning, where each kernel is compiled once and timed for each class."""
    choices = [draw.choice((2, 3, 4, 5)) for _ in range(3)]
    size = choices[0] * choices[1] * choices[2]
    refused = draw.randrange(1, size // 2)
    pruned = draw.randrange(1, (size - refused) // 2 + 1)
    classes, compiling, timing = draw.randrange(3, 13), draw.choice((2, 3, 4)), draw.choice((0.25, 0.5))
    left = size - refused - pruned
    cost = left * (compiling + classes * timing)
    return Number(
        f"A kernel has three numbers to tune, with {choices[0]}, {choices[1]} and {choices[2]} choices. Restrictions "
        f"refuse {refused} configurations, and a model prunes {pruned} of the others. What is left is compiled once, "
        f"{compiling} s each, and timed for {classes} classes of shapes, {shown(timing)} s each. How many seconds does "
        "the search take?",
        cost,
        "s",
        f"{size} - {refused} - {pruned} = {left} configurations are left, and each takes {compiling} s and "
        f"{classes} x {shown(timing)} s.",
        {
            left * classes * (compiling + timing): "A kernel is compiled once for all classes.",
            (size - refused) * (compiling + classes * timing): "What is pruned is never tried.",
            left * (compiling + timing): "Each class is timed.",
        },
        within=0.01,
        given={
            "choices": choices,
            "refused": refused,
            "pruned": pruned,
            "classes": classes,
            "compiling": compiling,
            "timing": timing,
        },
    )


@question("39_fused_and_batched_products")
def passes_behind_a_product(draw: random.Random) -> Number:
    """What passes over a product's result take, compared with the product."""
    flops, bandwidth, said = machine(draw)
    k, passes = draw.choice((64, 128, 256, 512, 768, 1024, 2048, 4096)), draw.choice((1, 2, 3, 4))
    m, n = draw.choice((2048, 4096, 8192)), draw.choice((1024, 3072, 4096))
    share = 100 * passes * 4 * flops / (bandwidth * k)
    did = f"{passes} further kernels read and write" if passes > 1 else "a further kernel reads and writes"
    return Number(
        f"{said} A matrix of {m} x {k} is multiplied by one of {k} x {n}, at the full rate of the arithmetic. Then "
        f"{did} every float32 of the result, at the full rate of the memory. How long does it take, in percent of the "
        "product's time?",
        share,
        "%",
        f"{passes} x 8 bytes for each element, and 2 x {k} operations: the sizes of the result cancel. That is "
        f"{4 * passes} times the ridge, divided by {k}.",
        {
            share / 2: "An element is read, and it is written: 8 bytes.",
            share * 2: "A multiply-add is two operations.",
            share / 4: "An element has 4 bytes.",
        }
        | ({share / passes: "This is one pass."} if passes > 1 else {}),
        within=0.02,
        given={"flops": flops, "bandwidth": bandwidth, "m": m, "n": n, "k": k, "passes": passes},
    )


@question("40_tensor_cores")
def operations_a_byte_of_a_tile(draw: random.Random) -> Number:
    """What a block that computes a tile of float16 operands does for each byte that it fetches."""
    m, n, depth = draw.choice((32, 64, 128, 256)), draw.choice((48, 96, 192)), draw.choice((16, 32, 64))
    each = m * n / (m + n)
    return Number(
        f"A block computes {m} x {n} elements of a matrix product. In a step it fetches {m} x {depth} elements of A "
        f"and {depth} x {n} of B, all in float16. How many operations does it do for each byte? A multiply-add counts "
        "as two.",
        each,
        "FLOP/byte",
        f"2 x {m} x {n} x {depth} operations for 2 x {depth} x ({m} + {n}) bytes: the depth cancels.",
        {each / 2: "A multiply-add is two operations.", each * 2: "An element has two bytes."},
        within=0.02,
        given={"m": m, "n": n, "depth": depth},
    )


@question("43_warpgroups")
def stages_without_a_gap(draw: random.Random) -> Number:
    """How many stages keep the tensor cores busy."""
    products, times = draw.choice((2, 3, 4, 5)), draw.choice((2, 3, 4, 5, 6))
    latency = products * times - draw.choice((0, 1))
    stages = -(-(latency + products) // products)
    return Number(
        f"A producer fills the stages of a ring in shared memory, and consumers multiply what is there. A copy takes "
        f"{latency} units of time until it has arrived, and several may be under way. The products of a step take "
        f"{products} units, and then its stage is free. How many stages are needed at least, so that in the long run "
        "the products follow each other without a gap?",
        stages,
        "stages",
        f"A stage is taken for {latency} + {products} units, and every {products} units one is used up.",
        {
            stages - 1: "While its products last, a stage is not free either.",
            latency + products: "That is how long a stage is taken.",
        },
        given={"products": products, "latency": latency},
    )


@question("16_transpose")
def least_time_of_a_transpose(draw: random.Random) -> Number:
    """The least time of a transpose."""
    side, size = draw.choice((2048, 4096, 8192, 16384)), draw.choice((2, 4, 8))
    bandwidth = draw.choice((0.5, 0.9, 1.5, 2, 3.35, 4.8))
    least = 2 * size * side**2 / bandwidth / 1e6
    return Number(
        f"A matrix of {side} x {side} elements of {size} bytes is transposed into another one. The memory moves "
        f"{shown(bandwidth)} x 10^12 bytes a second. How many microseconds does that take at least?",
        least,
        "us",
        f"Each element is read once and written once: 2 x {size} x {side}^2 bytes.",
        {least / 2: "It has to be written, too.", least / size: "These would be elements of one byte."},
        within=0.02,
        given={"side": side, "size": size, "bandwidth": bandwidth},
    )


@question("20_memory_or_compute")
def degree_at_the_ridge(draw: random.Random) -> Number:
    """From which degree on a polynomial is compute-bound."""
    flops, bandwidth, said = machine(draw)
    size = draw.choice((4, 8))
    if size == 8:
        said = said.replace("float32", "float64")
    degree = math.floor(size * flops / bandwidth) + 1
    return Number(
        f"{said} A polynomial is evaluated at each element of a long vector of float{8 * size} by Horner's rule, one "
        "multiply-add for each degree. Each element is read once, and its result is written once; the coefficients "
        "are few. From which degree on is that compute-bound?",
        degree,
        "degree",
        f"Degree d is 2 d FLOP on {2 * size} bytes. The ridge is {shown(flops / bandwidth)} FLOP a byte.",
        {
            round(flops / bandwidth): "This is the ridge, in FLOP a byte.",
            round(2 * size * flops / bandwidth): "A multiply-add counts as two.",
            round(size * flops / bandwidth / 2): "The result is written, too.",
        },
        within=0.05,
        given={"flops": flops, "bandwidth": bandwidth, "size": size},
    )


@question("20_memory_or_compute")
def double_precision(draw: random.Random) -> Choice:
    """On which GPU double precision is compute-bound."""
    degree = draw.randrange(2, 40)
    gpus = draw.sample(list(simt.GPUS), 4)
    intensity = 2 * degree / 16
    ridges = {gpu.name: gpu.fp64 / gpu.bandwidth for gpu in gpus}
    slow = [name for name, ridge in ridges.items() if ridge < intensity]
    listed = "; ".join(
        f"{gpu.name}: {shown(gpu.fp64 / 1e12)} x 10^12 FLOP/s, {shown(gpu.bandwidth / 1e12)} x 10^12 bytes/s"
        for gpu in gpus
    )
    right = ", ".join(slow) or "none of them"
    others = {
        ", ".join(name for name in ridges if name not in slow) or "none of them": "On these memory is the bound.",
        ", ".join(ridges): "Compare FLOP a byte with each ridge.",
        "none of them": "Compare FLOP a byte with each ridge.",
        ", ".join(name for name in ridges if ridges[name] < 2 * intensity)
        or "none of them": "The result is written, too.",
    }
    others.pop(right, None)
    return Choice(
        f"A polynomial of degree {degree} is evaluated at each element of a long float64 vector, with a multiply-add "
        f"for each degree, and the result is written to another vector. Rates of float64 and of the memory: {listed}. "
        "On which of these GPUs is that compute-bound?",
        right,
        f"{2 * degree} FLOP on 16 bytes are {shown(intensity)} FLOP a byte. The ridges: "
        + ", ".join(f"{name} {shown(ridge)}" for name, ridge in ridges.items())
        + ".",
        others,
        given={"degree": degree, "gpus": [gpu.name for gpu in gpus]},
    )


@question("46_pooling_and_activations")
def activation_apart(draw: random.Random) -> Number:
    """What a chain of elementwise kernels moves."""
    steps, size = draw.choice((2, 3, 4, 5, 6)), draw.choice((2, 4))
    pairs = draw.randrange(0, steps)
    alone = (2 * steps + pairs) * size
    fused = (2 + pairs) * size
    second = {
        0: "",
        1: "One of them takes a second array of the same size as well. ",
    }.get(pairs, f"{pairs} of them take a second array of the same size as well, each another one. ")
    return Number(
        f"A program applies {steps} operations to a long array, one after another. {second}An element has {size} "
        "bytes. With a kernel for each operation, every kernel reads its inputs and writes its result. How many "
        "times the bytes of one kernel that does all of it is that?",
        alone / fused,
        "times the bytes",
        f"An element takes 2 x {steps} + {pairs} = {2 * steps + pairs} numbers in kernels of their own, and 2 + "
        f"{pairs} = {2 + pairs} in one kernel."
        if pairs
        else f"An element takes 2 x {steps} = {2 * steps} numbers in kernels of their own, and 2 in one kernel.",
        {float(steps): "The second arrays are read once in both.", (2 * steps - 1) / 1.0: "Results are written, too."},
        given={"steps": steps, "pairs": pairs, "size": size},
    )


@question("54_normalisation")
def training_and_inference(draw: random.Random) -> Number:
    """What a second read costs."""
    reads, size = draw.choice((2, 3, 4)), draw.choice((2, 4))
    millions = draw.choice((16, 64, 100, 200))
    return Number(
        f"A layer normalises a tensor of {millions} million numbers of {size} bytes, which fits into no cache. For "
        f"inference it reads each number once and writes one. A kernel for training reads each number {reads} times, "
        "since it needs the mean and the variance first, and writes one. Memory is the bound of both. How many times "
        "as long does training take?",
        (reads + 1) / 2,
        "times as long",
        f"{reads} reads and one write are {(reads + 1) * size} bytes a number, against {2 * size}.",
        {float(reads): "The write is the same in both.", reads - 1.0: "The first read is needed in both."},
        given={"reads": reads},
    )


@question("91_a_fusing_compiler")
def long_fused_chain(draw: random.Random) -> Number:
    """When a fused chain becomes compute-bound."""
    flops, bandwidth, said = machine(draw)
    each = draw.choice((1, 2, 4))
    border = math.floor(flops / bandwidth * 8 / each) + 1
    return Number(
        f"{said} A fused kernel reads a float32, applies k steps of {each} FLOP each to it, and writes it back. From "
        "which k on is it compute-bound?",
        border,
        "steps",
        f"8 bytes take as long as {shown(8 * flops / bandwidth)} FLOP, and a step is {each}.",
        {
            round(flops / bandwidth): "This is the ridge, in FLOP a byte.",
            round(flops / bandwidth * 4 / each): "It is written, too.",
        },
        within=0.05,
        given={"flops": flops, "bandwidth": bandwidth, "each": each},
    )


@question("32_matrix_vector")
def words_a_second(draw: random.Random) -> Number:
    """How many words a model can write in a second."""
    billions, size = draw.choice((1, 3, 7, 8, 13, 30, 70)), draw.choice((1, 2, 4))
    bandwidth = draw.choice((0.3, 0.5, 0.8, 1, 1.5, 2, 3, 4))
    words = bandwidth * 1e12 / (billions * 1e9 * size)
    return Number(
        f"A language model has {billions} x 10^9 weights of {size} byte{'s' if size > 1 else ''} each. For each word "
        "that it writes, it multiplies all its matrices by one vector. The memory delivers "
        f"{shown(bandwidth)} x 10^12 bytes a second. How many words a second can it write, at most?",
        words,
        "words a second",
        f"Each weight is read once a word: {shown(billions * size)} x 10^9 bytes, which take "
        f"{shown(billions * size / bandwidth)} ms.",
        {
            bandwidth * 1e12 / (billions * 1e9): f"A weight has {size} bytes.",
            bandwidth * 1e12 / (2 * billions * 1e9 * size): "The two operations of a multiply-add use one weight.",
            billions * size / bandwidth: "These are milliseconds a word.",
        },
        within=0.02,
        given={"billions": billions, "size": size, "bandwidth": bandwidth},
    )


@question("77_quantisation")
def words_of_few_bits(draw: random.Random) -> Number:
    """How many words a model can write in a second if its weights are quantised."""
    billions, bits = draw.choice((7, 8, 13, 30, 70)), draw.choice((4, 8))
    group, size = draw.choice((32, 64, 128)), draw.choice((2, 4))
    bandwidth = draw.choice((0.5, 1, 1.5, 2, 3, 4))
    each = bits + 8 * size / group
    words = bandwidth * 1e12 / (billions * 1e9 * each / 8)
    return Number(
        f"A language model has {billions} x 10^9 weights of {bits} bits, and {group} neighbours share a scale "
        f"of {size} bytes. It reads all of them for each word that it writes. The memory delivers {shown(bandwidth)} x "
        "10^12 bytes a second. How many words a second can it write, at most?",
        words,
        "words a second",
        f"A weight and its share of the scale are {bits} + {8 * size} / {group} = {shown(each)} bits. That makes "
        f"{shown(billions * each / 8)} x 10^9 bytes a word.",
        {
            bandwidth * 1e12 / (billions * 1e9 * bits / 8): "The scales are read, too.",
            bandwidth * 1e12 / (billions * 1e9 * each): "A byte has 8 bits.",
            bandwidth * 1e12 / (billions * 1e9 * 2): "That is a model in float16.",
        },
        within=0.01,
        given={"billions": billions, "bits": bits, "group": group, "size": size, "bandwidth": bandwidth},
    )


@question("79_sparsity")
def bytes_with_sparsity(draw: random.Random) -> Number:
    """What is stored of a matrix with 2:4 sparsity."""
    n, m, bits = 1024 * draw.randrange(2, 9), 1024 * draw.randrange(2, 9), draw.choice((8, 16))
    nbytes = n * m // 2 * (bits + 2) / 8 / 1e6
    dense = n * m * bits / 8 / 1e6
    return Number(
        f"Of a matrix of {n:,} x {m:,} weights two of each four neighbours are stored, with {bits} bits each. Each "
        "stored weight has two bits more, which say where it belongs. How many megabytes (10^6 bytes) is that in all?",
        nbytes,
        "MB",
        f"{n:,} x {m:,} / 2 weights are stored, with {bits} + 2 bits each: {nbytes:.4g} MB, of {dense:.4g} MB with "
        "the zeros.",
        {
            dense / 2: "The places have to be stored, too.",
            dense: "Half of the weights are not stored.",
            dense / 2 + n * m / 8 / 1e6 * 2: "Two bits are for each weight that is stored, and not for each of all.",
            2 * nbytes: "Half of the weights are not stored.",
        },
        within=0.01,
        given={"n": n, "m": m, "bits": bits},
    )


@question("97_choosing_a_gpu")
def another_gpu(draw: random.Random) -> Number:
    """How much faster another GPU is."""
    parts = draw.randrange(2, 9) * 10
    faster = draw.choice((1.25, 1.4, 1.5, 1.6, 2, 2.5))
    gain = 100 / (100 - parts + parts / faster)
    return Number(
        f"A training step spends {parts} % of its time in kernels that wait for memory, and the rest in kernels that "
        f"wait for arithmetic. Another GPU has {shown(faster)} times the bandwidth and the same arithmetic rate. How "
        "many times as fast is the step there?",
        gain,
        "times as fast",
        f"Of 100 % the part of {100 - parts} % stays, and {parts} % become {parts} / {shown(faster)} = "
        f"{shown(parts / faster)} %.",
        {
            float(faster): "Arithmetic does not become faster.",
            1 + parts / 100 * (faster - 1): "Times add up, and not rates.",
        },
        within=0.01,
        given={"parts": parts, "faster": faster},
    )
