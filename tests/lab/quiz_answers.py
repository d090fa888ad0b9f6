"""The answers of the quiz bank once more: by counting one by one, by a simulation, or from a room's own cost.

A function has the name of the template whose answer it computes, and takes what that template has drawn. Templates
whose answer comes from the interpreter's counters have none.
"""

import itertools
import math

import numpy as np

from pmpp import nn, parallel, simt
from pmpp.kernels import attention, matmul, mri, reduction, transpose, vector_add
from pmpp.kernels.convolution_layer.definition import Layer
from pmpp.kernels.matmul import fused, matvec
from pmpp.kernels.memory_or_compute import polynomial
from pmpp.lab.publish.quiz import threads as quiz_threads
from pmpp.parallel import all_reduce, halo, tensor
from pmpp.parallel import data as data_parallel
from pmpp.parallel import pipeline as pipeline_parallel

# ------------------------------------------------------------------------------------------------------------- threads


def idle_threads(n, block):
    x, blocks = np.ones(n, np.float32), math.ceil(n / block)
    counters = simt.profile(quiz_threads.guarded, blocks, block, (x, np.zeros_like(x))).counters
    return blocks * block - counters["global_store_bytes"] // 4


def warps_that_hide(work, wait):
    def busy(warps):
        ready, left = [0] * warps, [work] * warps
        idle = 0
        for cycle in range(4 * (work + wait)):
            able = [warp for warp in range(warps) if ready[warp] <= cycle]
            if not able:
                idle += cycle >= work + wait  # after the beginning
                continue
            warp = min(able, key=lambda one: (left[one] == work, ready[one]))  # goes on with the one that has begun
            left[warp] -= 1
            if left[warp] == 0:
                left[warp], ready[warp] = work, cycle + 1 + wait
        return idle == 0

    return next(warps for warps in range(1, 100) if busy(warps))


def bytes_for_a_thread(bandwidth, latency, threads):
    return bandwidth / (threads / (latency / 1e9))


def occupancy_by_registers(threads, registers):
    return 100 * threads * (65536 // (threads * registers)) / 2048


def flops_for_a_byte_of_a_stencil(axes, order, steps):
    additions = sum(1 for _ in range(order) for _ in range(2 * axes))  # each neighbour is added to something
    products = order + 1
    return steps * (additions + products) / (4 + 4)


def bytes_of_a_filter(millions, percent):
    x = np.arange(100, dtype=np.float32)
    kept = x[x < percent]
    return (x.nbytes + kept.nbytes) * millions / 100


def co_rank_of_a_merge(a, b, k):
    order = np.argsort(np.concatenate([a, b]), kind="stable")
    return int((order[:k] < len(a)).sum())


def bytes_of_a_radix_sort(bits, width):
    trips = 1 + 2 * len(range(0, bits, width))  # to count; then one to read and one to write for each digit
    return trips * np.dtype(f"uint{bits}").itemsize


def edges_that_are_looked_at(frontier, left, each):
    pushed = sum(1 for _ in range(frontier) for _ in range(each))
    on_frontier = [True] + [False] * (each - 1)  # of each list of those without a level
    pulled = sum(on_frontier.index(True) + 1 for _ in range(left))
    return pushed - pulled


def bytes_of_compressed_rows(rows, each):
    starts = np.arange(0, rows * each + 1, each, dtype=np.int32)
    values, columns = np.zeros(starts[-1], np.float32), np.zeros(starts[-1], np.int32)
    return values.nbytes + columns.nbytes + starts.nbytes


def roots_and_instructions(instructions, roots):
    left, cycles = [1000 * instructions, 1000 * roots], 0
    while max(left) > 0:
        left, cycles = [left[0] - 128, left[1] - 16], cycles + 1
    return cycles


def products_before_and_after_fission(samples, voxels):
    return mri.cost(samples, 0).flops * voxels - mri.cost(samples, 0).flops


def bytes_of_packed_steps(side, steps):
    board, bits = np.zeros((side, side), np.uint8).nbytes, np.zeros((side, side // 32), np.uint32).nbytes
    return sum([board, bits, bits, board]) + sum(2 * bits for _ in range(steps))


def launches_of_tiles(m, n, tile):
    return len({i // tile + j // tile for i in range(m) for j in (0, n - 1)} | {j // tile for j in range(n)})


def turns_in_copies(same, copies):
    values = [0 if lane < same else lane for lane in range(32)]
    places = [(value, lane % copies) for lane, value in enumerate(values)]
    return max(map(places.count, places))


def missing_barrier(threads):
    x = np.arange(1, threads + 1, dtype=np.float32)
    right, wrong = x[:-1] + x[1:], np.zeros(threads - 1, bool)
    for seed in range(8):
        out = np.zeros_like(x)
        simt.profile(quiz_threads.neighbour_sum, 1, threads, (x, out), schedule="shuffled", seed=seed, level="run")
        wrong |= out[:-1] != right
    assert {*np.flatnonzero(wrong)} <= {*range(31, threads - 1, 32)}
    return threads // 32 - 1 if wrong.any() else 0


def queue_of_launches(host, kernel, count):
    launched = done = 0
    for _ in range(count):
        launched += host
        done = max(done, launched) + kernel
    return done


def fused_or_not(launch, bandwidth, n):
    def us(numbers):
        return max(launch, n * 4 * numbers / (bandwidth * 1e12) * 1e6)

    return (us(2) + us(3) + us(2)) / us(3)


# -------------------------------------------------------------------------------------------------------------- memory


def too_long_for_the_cache(mib, vectors, size):
    k = 0
    while vectors * (size << k) <= mib << 20:
        k += 1
    return k


def place_of_a_byte(w, row, column, colour):
    image = np.zeros((row + 1, w, 3), np.uint8)
    image[row, column, colour] = 1
    return int(np.flatnonzero(image)[0])


def tile_intensity(side, size):
    a, b = (np.zeros((side, side), f"f{size}" if size > 2 else np.float16) for _ in range(2))
    return 2 * a.shape[0] * a.shape[1] * b.shape[1] / (a.nbytes + b.nbytes)


def share_of_the_halo(side, mask, axes):
    loaded = np.ones((side + mask - 1,) * axes, bool)
    loaded[(slice(mask // 2, mask // 2 + side),) * axes] = False
    return 100 * loaded.mean()


def separable_mask(rows, columns):
    mask = np.outer(np.ones(rows), np.ones(columns))
    return mask.size / sum(mask.shape)


def sectors_along_an_axis(n, inner):
    at = np.arange(32 * n * inner).reshape(32, n, inner) // 8  # the sector of each element
    return len({*at[:, 0].ravel()[:32]})


# --------------------------------------------------------------------------------------------------------------- speed


def product_of_squares(flops, bandwidth):
    return next(n for n in range(1, 10**5) if matmul.cost(n, n, n).intensity > flops / bandwidth)


def side_of_the_ridge(ridge, works):
    costs = [reduction.cost(10**9), vector_add.cost(10**9)]
    for name in [*works][2:]:
        number = next(int(word) for word in name.split() if word.rstrip(",").isdigit())
        costs.append(matmul.cost(*[number] * 3) if "product" in name else polynomial.cost(10**9, number))
    over = [name for name, cost in zip(works, costs, strict=True) if cost.intensity > ridge]
    return over[0] if len(over) == 1 else "both the product and the polynomial" if over else "none of them"


def least_time_of_an_addition(bandwidth, millions, size):
    return vector_add.cost(millions * 10**6, size).bytes / (bandwidth * 1e12) * 1e6


def flat_product(flops, bandwidth, side):
    return next(k for k in range(1, 10**5) if matmul.cost(side, side, k).intensity > flops / bandwidth)


def wasted_tiles(rows, columns, side):
    computed = np.zeros((math.ceil(rows / side) * side, math.ceil(columns / side) * side), bool)
    computed[:rows, :columns] = True
    return 100 * computed.mean()


def useful_time_of_waves(n, side, sms):
    places, useful = [0] * sms, 0
    for row, column in itertools.product(range(0, n, side), repeat=2):
        first = places.index(min(places))
        places[first] += 1
        useful += min(side, n - row) * min(side, n - column)
    return 100 * useful / (max(places) * sms * side**2)


def seconds_of_a_search(choices, refused, pruned, classes, compiling, timing):
    configurations = list(itertools.product(*map(range, choices)))
    seconds = 0
    for _ in configurations[refused + pruned :]:
        seconds += compiling
        for _ in range(classes):
            seconds += timing
    return seconds


def passes_behind_a_product(flops, bandwidth, m, n, k, passes):
    product = fused.cost(1, m, n, k).flops / flops
    read_and_written = np.empty((2, m, n), np.float32).nbytes
    return 100 * sum(read_and_written / bandwidth for _ in range(passes)) / product


def operations_a_byte_of_a_tile(m, n, depth):
    a, b = np.empty((m, depth), np.float16), np.empty((depth, n), np.float16)
    return sum(2 for _ in np.ndindex(m, n)) * depth / (a.nbytes + b.nbytes)


def stages_without_a_gap(products, latency):
    def gaps(stages, steps=200):
        ends = []  # of the products of each step
        for step in range(steps):
            arrived = (ends[step - stages] if step >= stages else 0) + latency
            ends.append(max(arrived, ends[-1] if ends else 0) + products)
        return ends[-1] - ends[steps // 2] > products * (steps - 1 - steps // 2)

    return next(stages for stages in itertools.count(1) if not gaps(stages))


def least_time_of_a_transpose(side, size, bandwidth):
    return transpose.cost(side, side, size).bytes / bandwidth / 1e6


def degree_at_the_ridge(flops, bandwidth, size):
    n = 10**9
    return next(d for d in range(1, 10**5) if polynomial.cost(n, d).flops / (2 * size * n) > flops / bandwidth)


def double_precision(degree, gpus):
    rates = {gpu.name: (gpu.fp64, gpu.bandwidth) for gpu in simt.GPUS if gpu.name in gpus}
    return ", ".join(name for name in gpus if 16 / rates[name][1] < 2 * degree / rates[name][0]) or "none of them"


def activation_apart(steps, pairs, size):
    kernels = [["x", "second", "y"] if step < pairs else ["x", "y"] for step in range(steps)]
    return sum(map(len, kernels)) / len(["x", "y", *["second"] * pairs])


def sums_told_to_all(blocks, sums, size):
    told = [(giver, taker) for giver in range(blocks) for taker in range(blocks) for _ in range(sums)]
    return size * len(told)


def cluster_for_a_row(columns, threads, values):
    return next(2**k for k in range(20) if 2**k * threads * values >= columns)


def training_and_inference(reads):
    return len([*["read"] * reads, "write"]) / len(["read", "write"])


def long_fused_chain(flops, bandwidth, each):
    return next(k for k in range(1, 10**5) if k * each / flops > 8 / bandwidth)


def words_a_second(billions, size, bandwidth):
    side, matrices = 10**6, billions / 1e3  # as many weights, in matrices of a million rows and columns
    vectors = matvec.cost(side, 0, size).bytes + matvec.cost(0, side, size).bytes
    seconds = matrices * (matvec.cost(side, side, size).bytes - vectors) / (bandwidth * 1e12)
    return 1 / seconds


def words_of_few_bits(billions, bits, group, size, bandwidth):
    groups = billions * 1e9 / group
    seconds = groups * (group * bits / 8) / (bandwidth * 1e12) + groups * size / (bandwidth * 1e12)
    return 1 / seconds


def another_gpu(parts, faster):
    return 1 / ((1 - parts / 100) + parts / 100 / faster)


# ---------------------------------------------------------------------------------------------------------- algorithms


def kogge_stone_additions(n):
    sums, additions, distance = np.ones(n, int), 0, 1
    while distance < n:
        sums[distance:] += sums[:-distance].copy()
        additions += n - distance
        distance *= 2
    assert (sums == np.arange(1, n + 1)).all()
    return additions


def brent_kung_steps(n):
    sums, steps, distance = np.ones(n, int), 0, 1
    while distance < n:
        sums[2 * distance - 1 :: 2 * distance] += sums[distance - 1 :: 2 * distance]
        steps, distance = steps + 1, 2 * distance
    distance = n // 4
    while distance:
        sums[3 * distance - 1 :: 2 * distance] += sums[2 * distance - 1 : n - distance : 2 * distance]
        steps, distance = steps + 1, distance // 2
    assert (sums == np.arange(1, n + 1)).all()
    return steps


def fft_against_definition(n):
    def flops(points):
        return 2 * flops(points // 2) + points // 2 * 10 if points > 1 else 0

    return 8 * n**2 / flops(n)


def convolution_for_a_prime(n):
    m = 1
    while len({(k - j) % m for k in (0, n - 1) for j in range(n)}) < 2 * n - 1:
        m *= 2
    return 2 * m * np.log(m) / (n * np.log(n))


def blocks_that_hold_lines(n, each, registers):
    threads, registers_left, memory, held = 0, 65536, 228 * 1024, -1
    while registers_left >= 0 and memory >= 0 and threads <= 2048:
        held += 1
        threads += n // each
        registers_left -= n // each * registers
        memory -= 4 * n + 1024
    return held


def layer_of(given):
    side, window, channels, filters = (given[name] for name in ("side", "window", "channels", "filters"))
    stride, padding = [given["stride"]] * 2, [given["padding"]] * 2
    return Layer(1, channels, side, side, filters, window, window, stride=stride, padding=padding)


def rows_of_the_output(**given):
    return layer_of(given).p


def products_of_a_layer(**given):
    return layer_of(given).cost.flops / 2 / 1e6


def matrix_of_columns(**given):
    layer = layer_of(given)
    return 4 * layer.terms * layer.p * layer.q / 1e6


def place_in_the_image(window, stride, out, row, column):
    rows = itertools.product(range(16), range(window), range(window))
    _, r, _ = next(itertools.islice(rows, row, None))
    p, _ = next(itertools.islice(itertools.product(range(out), repeat=2), column, None))
    return p * stride + r


def winograd_saves(m, r):
    inputs = {(p + i, q + j) for p in range(m) for q in range(m) for i in range(r) for j in range(r)}
    return (m * r) ** 2 / len(inputs)


def spectra_of_filters(side, window):
    mask = np.ones((window, window), np.float32)
    return np.fft.rfft2(mask, (side, side)).astype(np.complex64).nbytes / mask.nbytes


def loads_of_a_strip(window, rows, columns):
    seen = {(y + r, z + s) for y, z in np.ndindex(rows, columns) for r, s in np.ndindex(window, window)}
    return len(seen) / (rows * columns)


def spread_of_a_nan(window, m, out, place):
    image = np.zeros((out + window - 1,) * 2)
    image[place, place] = np.nan
    spoilt = 0
    for y, x in itertools.product(range(0, out, m), repeat=2):
        spoilt += m * m * np.isnan(image[y : y + m + window - 1, x : x + m + window - 1]).any()
    return spoilt


def comparisons_in_groups(common, words, each):
    tokens = np.repeat(np.arange(words + 1), [common, *[each] * words])
    return int((np.unique(tokens, return_counts=True)[1].astype(np.int64) ** 2).sum())


# ------------------------------------------------------------------------------------------------------------- numbers


def sum_that_stands_still(power):
    term = np.float32(2.0**power)
    stands = [value for value in (np.float32(2.0**k) for k in range(60)) if value + term == value]
    below = np.nextafter(stands[0], np.float32(0))
    assert below + term == stands[0]  # and up to there each sum is exact
    return float(stands[0])


def next_float(kind, value):
    kind = np.dtype(kind).type
    return float(np.nextafter(kind(value), kind(np.inf)) - kind(value))


def rounded_sum(power, add):
    gap = 2 ** (power - 23)
    return round((2**power + add) / gap) * gap  # Python rounds to even, too


def integers_in_a_bin(bits, wide):
    return np.iinfo(f"int{wide}").max // ((1 << bits) - 1)


def exponential_overflow(kind, base):
    base = math.e if base == "e" else base
    return math.log(float(np.finfo(kind).max), base)


def merged_moments(first, second):
    return 4 * float(np.var(first + second))


def sums_in_any_order(values):
    orders = np.array([*itertools.permutations(values)], np.float32)
    return len({*np.cumsum(orders, axis=1, dtype=np.float32)[:, -1]})


def infinite_loss(kind, others):
    numbers = np.arange(1, 2000).astype(kind)
    with np.errstate(under="ignore"):
        gone = np.exp(-numbers) / (1 + others * np.exp(-numbers)) == 0
    return float(numbers[gone][0])  # the first whole number


def error_of_a_difference(step, size, slope):
    error = float(np.nextafter(np.float32(size), np.float32(np.inf)) - np.float32(size)) / 2
    measured = ((size + step * slope + error) - (size - step * slope - error)) / (2 * step)
    return 100 * (measured / slope - 1)


# ------------------------------------------------------------------------------------------------------------ networks


def one_row_through_a_layer(rows, features, outputs):
    return matmul.cost(rows, outputs, features).intensity


def idle_multiprocessors(rows, outputs, tile, sms):
    tiles = len([*itertools.product(range(0, rows, tile), range(0, outputs, tile))])
    return len([*range(sms)][tiles:])


def products_with_zeros(stride, out):
    wide = np.zeros(((out - 1) * stride + 1,) * 2)
    wide[::stride, ::stride] = 1
    assert wide.sum() == out**2
    return wide.size / out**2


def windows_of_an_element(window, stride):
    axis = np.zeros(40 * stride)
    for start in range(0, axis.size - window + 1, stride):
        axis[start : start + window] += 1
    return float(axis[10 * stride : 20 * stride].mean() ** 2)


def mask_that_is_stored(size, mask):
    apart = {"written": 4, "read": 4, "mask written": mask, "mask read": mask, "x": size, "y": size}
    return sum(apart.values()) / (apart["x"] + apart["y"])


def samples_for_an_error(samples, factor, error):
    spread = error * math.sqrt(samples)  # of one sample
    return round((spread / (error / factor)) ** 2)


def launches_of_an_optimiser(tensors, kernels, launch):
    return sum(launch for _ in itertools.product(range(tensors), range(kernels))) - launch


def read_once_or_twice(inputs, again):
    return (sum(1 + again for _ in range(inputs)) + 1) / (inputs + 1)


def bytes_of_codes(bits, group, size):
    numbers = np.zeros(512 * group, np.float32)
    codes = np.packbits(np.zeros((numbers.size, bits), np.bool_))
    ranges = np.zeros((numbers.size // group, 2), f"f{size}")
    return 100 * (codes.nbytes + ranges.nbytes) / numbers.nbytes


def slope_of_a_square(w, x, b, t):
    weight = nn.Tensor(np.float32([w]), requires_grad=True)
    error = weight * float(x) + float(b - t)
    (error * error).sum().backward()
    return float(weight.grad.numpy()[0])


def gradient_of_a_broadcast(rows, columns, factor):
    bias = nn.Tensor(np.zeros(columns, np.float32), requires_grad=True)
    ((nn.Tensor(np.ones((rows, columns), np.float32)) + bias) * float(factor)).sum().backward()
    return float(bias.grad.numpy()[0])


def first_loss(classes):
    return float(-np.log(np.full(classes, 1 / classes)).mean())


def parameters_of_a_convolution(channels, filters, window):
    return sum(one.size for one in nn.Conv2d(channels, filters, window).parameters())


def state_of_adam(features, hidden, classes):
    net = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, classes))
    return sum(4 * 4 * one.size for one in net.parameters())


def fragmented_pool(pieces, wanted):
    free = [index % 2 == 0 for index in range(pieces)]
    runs = [len([*group]) for is_free, group in itertools.groupby(free) if is_free]
    return pieces + (wanted if max(runs) < wanted else 0)


def frozen_trunk(rows, features, classes):
    return np.empty((rows, features), np.float32).nbytes + np.empty((rows, classes), np.float32).nbytes


def when_the_other_is_faster(side, wide, fast, slow):
    n = np.arange(1, 2000)
    flops, nbytes = 2.0 * n * side**2, 4.0 * (side**2 + 2.0 * side * n)
    first = np.maximum(flops / slow, nbytes / wide)
    other = np.maximum(flops / fast, nbytes)
    return int(n[other < first][0])


# ------------------------------------------------------------------------------------------------------------ programs


def strides_of_a_view(rows, columns, itemsize):
    return str((itemsize, itemsize * columns))


def pipeline(load, copy, compute, steps):
    free = [0, 0, 0]
    for _ in range(steps):
        ready = 0
        for part, takes in enumerate((load, copy, compute)):
            ready = free[part] = max(ready, free[part]) + takes
    return free[-1]


def batch_on_the_bus(rows, side, channels, itemsize, bus):
    return np.empty((rows, channels, side, side), f"V{itemsize}").nbytes / (bus * 1e9) * 1e6


def wait_in_each_step(host, kernel, launches, steps):
    def run(waits):
        now = done = 0
        for _ in range(steps):
            for _ in range(launches):
                now += host
                done = max(done, now) + kernel
            now = done if waits else now
        return done

    return run(True) - run(False)


def bytes_of_a_chain(one, two, size):
    return size * sum([2] * one + [3] * two)


def bytes_to_a_view(columns, row, column, step, itemsize):
    places = np.arange(8 * columns).reshape(8, columns)
    return int(places[row:, column::step][0, 0]) * itemsize


def worth_the_journey(send, cpu, gpu):
    on_cpu, on_gpu = 0, send
    for times in itertools.count(1):
        on_cpu, on_gpu = on_cpu + cpu, on_gpu + gpu
        if on_gpu < on_cpu:
            return times
    raise AssertionError


def part_that_stays(share, times):
    return 1 / (1 - share / 100 + share / 100 / times)


def scores_beside_the_inputs(heads, keys, size):
    scores = sum(4 * keys for _ in range(heads) for _ in range(keys))
    return scores / attention.cost(1, heads, heads, keys, keys, size).bytes


def registers_of_a_lane(size, keys, rows):
    held = np.zeros((rows, size), np.float32).nbytes + np.zeros((rows, keys), np.float32).nbytes
    held += np.zeros((rows, size), np.float16).nbytes
    return held / 4 / 32


def bytes_around_a_ring(ranks, mib):
    """Run it, with a kibibyte in the place of a mebibyte."""
    length = 256 * mib - 256 * mib % ranks
    found = parallel.ranks(ranks, lambda group: all_reduce.ring(group, np.ones(length, np.float32)))
    (sent,) = set(found.report.nbytes.values())
    return sent / 1024


def bytes_of_a_sharded_optimiser(ranks, millions):
    """Run it, with a parameter in the place of a million."""

    def kept(group):
        parameter = nn.Parameter(np.zeros(millions, np.float32))
        parameter.grad = nn.Tensor(np.ones(millions, np.float32))
        optimizer = data_parallel.ShardedOptimizer(group, [parameter], lambda params: nn.optim.Adam(params, lr=0.1))
        optimizer.step()
        return parameter.array.nbytes + parameter.grad.array.nbytes + optimizer.state_bytes()

    (nbytes,) = set(parallel.ranks(ranks, kept))
    return nbytes


def bytes_of_two_cut_layers(ranks, width, rows):
    """Run it with fewer rows and features, and scale the bytes."""
    small, few = ranks * max(1, width // 1000), max(1, rows // 250)

    def both(group):
        first, second = nn.Linear(small, 4 * small, bias=False), nn.Linear(4 * small, small, bias=False)
        first, second = tensor.ColumnLinear(group, first), tensor.RowLinear(group, second)
        x = nn.Tensor(np.ones((few, small), np.float32), requires_grad=True)
        second(first(x)).sum().backward()

    sent = sum(parallel.ranks(ranks, both).report.nbytes.values()) / ranks
    return sent * (rows / few) * (width / small) / 1e6


def step_of_a_pipeline(stages, count, forward, backward):
    """From the clocks of ranks."""

    def step(group):
        net, one = nn.Linear(1, 1), np.ones((1, 1), np.float32)
        stage = pipeline_parallel.Stage(group, net, (1, 1), [one] * count, lambda y, k: y.sum(), (forward, backward))
        pipeline_parallel.gpipe(stage, count)

    links = parallel.Links(latency=0.0, bandwidth=1e30)
    return round(max(parallel.ranks(stages, step, links=links).report.seconds), 6)


def step_of_a_halo_exchange(ranks, rows, columns, latency, cell):
    """From the clock of a rank in the middle, with a tenth of the columns, and a cell and a byte that take ten times as
    long."""
    narrow = columns // 10
    grid = np.zeros((ranks * rows + 2, narrow + 2), np.float32)

    def step(group):
        halo.solve(group, grid, halo.overlapped, most=1, every=2, cell=10e-9 * cell)

    # A row is sent with the two cells at its ends, which belong to the edge of the grid.
    nbytes, sent = 4 * columns, 4 * (narrow + 2)
    links = parallel.Links(latency=latency * 1e-6, bandwidth=1e10 * sent / nbytes)
    return round(1e6 * max(parallel.ranks(ranks, step, links=links).report.seconds), 6)


def checkpoints_of_many(gpus, years, writes):
    """The best of many intervals, by what each of them loses."""
    between = years * 8766 * 3600 / gpus
    minutes = np.geomspace(0.5, 2000, 400_000)
    return minutes[np.argmin(writes / (60 * minutes) + 60 * minutes / (2 * between))]


def where_a_weight_stands_still(name, k):
    """Step by step: a bfloat16 is a float32 that is rounded at its upper half."""
    weight, step = np.float32(0), np.float32(1.25 * 2.0**-k)
    while True:
        if name == "float16":
            after = np.float32(np.float16(weight + step))
        else:
            bits = int((weight + step).view(np.uint32))
            after = np.uint32((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)
        if after == weight:
            return float(weight)
        weight = after


def tokens_that_the_memory_allows(billions, bits, rate):
    """In bits: those that come in a second, over those of all weights."""
    return 8 * rate * 1e12 / (billions * 1e9 * bits)


def bytes_with_sparsity(n, m, bits):
    """A row of four weights after another, as they are stored."""
    each = sum(bits + 2 for kept in (True, False, False, True) if kept)
    return n * m / 4 * each / 8 / 1e6


def bytes_of_a_cache(layers, width, texts, length):
    """The arrays of one layer and token, as often as there are layers and tokens."""
    one = sum(np.empty((texts, width), np.float16).nbytes for _ in ("keys", "values"))
    return sum(one for _ in range(layers)) * length / 1e9
