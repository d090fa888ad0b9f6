"""The exercises of notebooks/37_autotuning.ipynb: functions that run on the host."""

import math

import numpy as np

from pmpp.lab.teach.exercise import Case, Exercise, Trap

EPS = float(np.finfo(np.float64).eps)
THREADS, SHARED, REGISTERS = 1024, 48 * 1024, 65536  # the most that a block can have


def host(name, args, expected, tolerance=0.0):
    """A case for a function that returns a number or an array."""
    return Case(name, args, None, None, {0: expected}, {0: tolerance})


# ------------------------------------------------------------------------------------------------------- refused_by


def refused_by_answer(side, rows, pad, registers):
    numbers = []
    for i in range(len(side)):
        threads = side[i] * rows[i]
        if side[i] % rows[i] != 0:
            numbers.append(1)
        elif threads > 1024:
            numbers.append(2)
        elif 4 * side[i] * (side[i] + pad[i]) > 48 * 1024:
            numbers.append(3)
        elif threads * registers[i] > 65536:
            numbers.append(4)
        else:
            numbers.append(0)
    return np.array(numbers, dtype=np.int64)


def _refused_cases(rng):
    odd, few, many = int(rng.choice([3, 5, 7, 12, 24])), int(rng.integers(24, 64)), int(rng.integers(65, 200))
    kinds = {
        "a tile that can run": (32, 8, 1, few),
        "rows that do not divide the side": (32, odd, 1, 32),
        "rows beyond the side": (16, 32, 1, 32),
        "1,024 threads": (32, 32, 1, 32),
        "2,048 threads": (64, 32, 1, 24),
        "48 KiB of shared memory": (96, 8, 32, 40),
        "a column beyond 48 KiB": (96, 8, 33, 40),
        "a side of 128": (128, 4, 0, 60),
        "all registers": (32, 16, 1, 128),
        "a register too many": (32, 16, 1, 129),
        "many registers of many threads": (32, 32, 1, many),
        "two faults": (128, 16, 1, 60),
        "threads and rows": (64, 24, 0, 24),
        "shared memory and registers": (128, 8, 0, 100),
        "three faults": (256, 8, 1, 255),
    }

    def case(name, configurations):
        args = tuple(np.array(configurations, np.int64).reshape(-1, 4).T.copy())
        return host(name, args, refused_by_answer(*args))

    several = [list(kinds.values())[i] for i in rng.permutation(len(kinds))]
    cases = [case(name, [one]) for name, one in kinds.items()]
    return [*cases, case("no configuration", []), case("all of them", several)]


def _each(one):
    """Of a function of one configuration a trap for all."""
    return lambda *arrays: {0: np.array([one(*map(int, row)) for row in zip(*arrays, strict=True)], np.int64)}


def _first(side, rows, *over):
    return 1 if side % rows else next((number for number, refused in enumerate(over, start=2) if refused), 0)


def _no_pad(side, rows, pad, each):
    return _first(side, rows, side * rows > THREADS, 4 * side * side > SHARED, side * rows * each > REGISTERS)


def _elements(side, rows, pad, each):
    return _first(side, rows, side * rows > THREADS, side * (side + pad) > SHARED, side * rows * each > REGISTERS)


def _one_thread(side, rows, pad, each):
    return _first(side, rows, side * rows > THREADS, 4 * side * (side + pad) > SHARED, each > REGISTERS)


def _as_many(side, rows, pad, each):
    """Refuses where a limit is just reached."""
    return _first(
        side, rows, side * rows >= THREADS, 4 * side * (side + pad) >= SHARED, side * rows * each >= REGISTERS
    )


def _last(side, rows, pad, each):
    over = side % rows, side * rows > THREADS, 4 * side * (side + pad) > SHARED, side * rows * each > REGISTERS
    return max(number * bool(refused) for number, refused in enumerate(over, start=1))


def _in_order(*numbers):
    """Asks for the restrictions in this order."""

    def one(side, rows, pad, each):
        over = side % rows, side * rows > THREADS, 4 * side * (side + pad) > SHARED, side * rows * each > REGISTERS
        return next((number for number in numbers if over[number - 1]), 0)

    return one


# -------------------------------------------------------------------------------------------------------- predicted


def predicted_answer(nbytes, flops, wavefronts, blocks, sms, clock, bandwidth, peak):
    times = []
    for i in range(len(blocks)):
        tail = math.ceil(blocks[i] / sms) * sms / blocks[i]
        memory = nbytes[i] / bandwidth
        arithmetic = flops[i] / peak * tail
        shared = wavefronts[i] / (sms * clock) * tail
        times.append(max(memory, arithmetic, shared))
    return np.array(times)


def _predicted_cases(rng):
    def case(name, nbytes, flops, wavefronts, blocks):
        arrays = [np.array(one, np.float64) * rng.uniform(0.95, 1.05) for one in (nbytes, flops, wavefronts)]
        args = *arrays, np.array(blocks), 132, 1.98e9, 4.2e12, 60e12
        exact = predicted_answer(*args)
        return host(name, args, exact, 8 * EPS * exact)

    # In 1 us: 4.2 MB, 60 MFLOP, 261,360 wavefronts.
    many = int(rng.integers(20, 40))
    drawn = 10 ** rng.uniform(5, 10, many), 10 ** rng.uniform(6, 11, many), 10 ** rng.uniform(4, 8, many)
    return [
        case("memory as the bound", [8.4e6], [6e6], [1e4], [1320]),
        case("arithmetic as the bound", [4.2e5], [6e8], [1e5], [1320]),
        case("bank conflicts", [4.2e6], [6e6], [1e6], [13200]),
        case("bank conflicts in a block too many", [4.2e5], [6e6], [1e6], [133]),
        case("a block too many", [4.2e5], [6e8], [1e5], [133]),
        case("few blocks", [4.2e5] * 3, [6e8] * 3, [1e5] * 3, [16, 32, 64]),
        case("few blocks that wait for memory", [8.4e6], [3e6], [1e3], [131]),
        case(f"{many} configurations", *drawn, rng.integers(1, 2000, many)),
    ]


def _parts(nbytes, flops, wavefronts, blocks, sms, clock, bandwidth, peak):
    tail = np.ceil(blocks / sms) * sms / blocks
    return nbytes / bandwidth, flops / peak, wavefronts / (sms * clock), tail


def _sum(*args):
    memory, arithmetic, shared, tail = _parts(*args)
    return {0: memory + (arithmetic + shared) * tail}


def _no_tail(*args):
    memory, arithmetic, shared, _ = _parts(*args)
    return {0: np.maximum(np.maximum(memory, arithmetic), shared)}


def _tail_everywhere(*args):
    memory, arithmetic, shared, tail = _parts(*args)
    return {0: np.maximum(np.maximum(memory, arithmetic), shared) * tail}


def _no_tail_for_shared(*args):
    memory, arithmetic, shared, tail = _parts(*args)
    return {0: np.maximum(np.maximum(memory, arithmetic * tail), shared)}


def _no_tail_for_arithmetic(*args):
    memory, arithmetic, shared, tail = _parts(*args)
    return {0: np.maximum(np.maximum(memory, arithmetic), shared * tail)}


def _one_multiprocessor(nbytes, flops, wavefronts, blocks, sms, clock, bandwidth, peak):
    memory, arithmetic, shared, tail = _parts(nbytes, flops, wavefronts, blocks, sms, clock, bandwidth, peak)
    return {0: np.maximum(memory, np.maximum(arithmetic, shared * sms) * tail)}


# ------------------------------------------------------------------------------------------------------- shape_class


def shape_class_answer(m, n):
    classes = np.empty((len(m), 3), np.int64)
    for i in range(len(m)):
        classes[i] = round(math.log(m[i], 4)), round(math.log(n[i], 4)), n[i] % 4 == 0
    return classes


def _shape_cases(rng):
    def case(name, shapes):
        args = tuple(np.array(shapes, np.int64).reshape(-1, 2).T.copy())
        return host(name, args, shape_class_answer(*args))

    drawn = []
    while len(drawn) < 20:
        shape = [int(2 ** rng.uniform(0, 14)) for _ in range(2)]
        # Between two powers, as 8 is between 4 and 16, the logarithm's last digit would decide.
        if all(abs(math.log(extent, 4) % 1 - 0.5) > 0.01 for extent in shape):
            drawn.append(shape)
    squares = [(1, 1), (4096, 4096), (4095, 4095), (4097, 4097)]
    cases = [case(f"{m} x {n}", [(m, n)]) for m, n in ((4, 16), (3000, 5000), (7, 9), (33, 31), (10, 40), (16384, 6))]
    return [*cases, case("no matrix", []), case("squares", squares), case("20 matrices", drawn)]


def _exponents(of):
    return _each(lambda m, n: (of(m), of(n), n % 4 == 0))


def _nearest_by_difference(extent):
    return min(range(10), key=lambda power: abs(4**power - extent))


def _exponent(extent):
    return round(math.log(extent, 4))


def _rows_aligned(m, n):
    return round(math.log(m, 4)), round(math.log(n, 4)), m % 4 == 0


def _one_class_for_the_size(m, n):
    whole = round(math.log(m * n, 16))
    return whole, whole, n % 4 == 0


EXERCISES = (
    Exercise(
        "autotuning/refused_by",
        "In configuration i a block of side[i] x rows[i] threads transposes a tile of side[i] x side[i] elements of 4 "
        "bytes. Each row of the tile has pad[i] unused elements behind it, and each thread has registers[i] registers. "
        "Return an array with the number of the first restriction that refuses configuration i: 1 if rows does not "
        "divide side, 2 if it has more than 1,024 threads, 3 if it takes more than 48 KiB of shared memory, 4 if it "
        "takes more than 65,536 registers, and 0 if it can run.",
        parameters="side, rows, pad, registers",
        cases=_refused_cases,
        hints=(
            "Ask in the order of the numbers, and return at the first that refuses.",
            "The registers of a block are those of all its threads.",
            "A limit that is just reached refuses nothing.",
        ),
        answer=refused_by_answer,
        traps=(
            Trap(
                "pad forgotten",
                "The tile in shared memory has side rows of side + pad elements.",
                _each(_no_pad),
            ),
            Trap(
                "elements for bytes",
                "Shared memory is counted in bytes, and an element has 4.",
                _each(_elements),
            ),
            Trap(
                "registers of a thread",
                "All threads of the block share 65,536 registers.",
                _each(_one_thread),
            ),
            Trap("limit refused", "At most 1,024 means that 1,024 can run: compare with >, not >=.", _each(_as_many)),
            Trap("last restriction", "Of several restrictions the first is asked for.", _each(_last)),
            Trap("order of 1 and 2", "Restriction 1 is asked for before restriction 2.", _each(_in_order(2, 1, 3, 4))),
            Trap("order of 3 and 4", "Restriction 3 is asked for before restriction 4.", _each(_in_order(1, 2, 4, 3))),
        ),
    ),
    Exercise(
        "autotuning/predicted",
        "Return an array with the predicted seconds of each configuration i: the longest of three times. Memory moves "
        "nbytes[i] at bandwidth byte/s. Arithmetic does flops[i] at peak FLOP/s. Shared memory passes wavefronts[i], "
        "one a cycle in each of sms multiprocessors, at clock cycles a second. The last two are those of the busiest "
        "multiprocessor: longer by ceil(blocks[i] / sms) * sms / blocks[i].",
        parameters="nbytes, flops, wavefronts, blocks, sms, clock, bandwidth, peak",
        cases=_predicted_cases,
        hints=(
            "All parts of a GPU work at the same time: the longest time counts.",
            "All multiprocessors share the memory, so its time does not depend on who has most blocks.",
        ),
        answer=predicted_answer,
        traps=(
            Trap("times added", "Memory, arithmetic and shared memory work at the same time.", _sum),
            Trap("tail forgotten", "The busiest multiprocessor has ceil(blocks / sms) blocks.", _no_tail),
            Trap(
                "no tail for shared memory",
                "The busiest multiprocessor has more wavefronts than the others, too.",
                _no_tail_for_shared,
            ),
            Trap(
                "no tail for arithmetic",
                "The busiest multiprocessor has more arithmetic than the others, too.",
                _no_tail_for_arithmetic,
            ),
            Trap("tail for memory", "Memory is shared by all: its time has no tail.", _tail_everywhere),
            Trap(
                "one multiprocessor",
                "Each multiprocessor passes a wavefront a cycle: there are sms.",
                _one_multiprocessor,
            ),
        ),
    ),
    Exercise(
        "autotuning/shape_class",
        "Return the classes by which tuned configurations of matrices are kept, an array with a row of three integers "
        "for each. Matrix i has m[i] x n[i] elements. Its class has the exponents of the powers of 4 that are nearest "
        "to m[i] and to n[i] by ratio, and 1 if n[i] is a multiple of 4, else 0. 9 is nearer to 16 than to 4, since "
        "16 / 9 < 9 / 4.",
        parameters="m, n",
        cases=_shape_cases,
        hints=("The ratio is nearest where the difference of logarithms is least.", "math.log(m, 4) takes the base."),
        answer=shape_class_answer,
        traps=(
            Trap(
                "nearest by difference",
                "9 is 5 away from 4 and 7 from 16, but 16 / 9 is less than 9 / 4.",
                _exponents(_nearest_by_difference),
            ),
            Trap(
                "rounded up",
                "The nearest power is asked for, not the next.",
                _exponents(lambda n: math.ceil(round(math.log(n, 4), 9))),
            ),
            Trap(
                "rounded down",
                "The nearest power is asked for, not the last.",
                _exponents(lambda n: math.floor(round(math.log(n, 4), 9))),
            ),
            Trap(
                "exponents exchanged",
                "The exponent for m comes first, then that for n.",
                _each(lambda m, n: (_exponent(n), _exponent(m), n % 4 == 0)),
            ),
            Trap(
                "powers for exponents",
                "A class has the exponents of the powers: 2 for 16.",
                _each(lambda m, n: (4 ** _exponent(m), 4 ** _exponent(n), n % 4 == 0)),
            ),
            Trap("powers of 2", "The classes are powers of 4.", _exponents(lambda n: round(math.log2(n)))),
            Trap(
                "the other extent", "Rows begin at multiples of 16 bytes if n is a multiple of 4.", _each(_rows_aligned)
            ),
            Trap(
                "one size",
                "A narrow matrix and a square one of equal size are of two classes.",
                _each(_one_class_for_the_size),
            ),
        ),
    ),
)
