"""Questions about memory: sectors, strides, banks, tiles and their halo."""

from __future__ import annotations

import math
import random

import numpy as np

from pmpp import cuda
from pmpp.lab.publish.quiz.model import Choice, Number, code, counted, many, question, shown

SECTOR = "A sector is 32 bytes that begin at a multiple of 32, and arrays begin at one."
BANKS = (
    "Shared memory has 32 banks of 4 bytes: word i lies in bank i mod 32. In a wavefront each bank delivers one word."
)


@cuda.jit
def strided_store(out, stride):
    i = cuda.grid(1)
    out[i * stride] = 1


@question("04_vector_add")
def sectors_of_a_stride(draw: random.Random) -> Number:
    """Sectors of a strided store."""
    dtype = np.dtype(draw.choice(("float32", "float64", "uint8", "int16")))
    stride = draw.choice((1, 2, 3, 4, 5, 6, 8, 16))
    found = counted(strided_store, 1, 32, np.zeros(32 * stride, dtype), stride)["global_store_sectors"]
    size = dtype.itemsize
    return Number(
        f"One warp of 32 threads runs this kernel with `stride` = {stride}. `out` has elements of type {dtype.name}, "
        f"{size} byte{'s' if size > 1 else ''} each. {SECTOR}\n\n{code(strided_store)}\n\n"
        "How many sectors does the store touch?",
        found,
        "sectors",
        f"From one address to the next: {stride * size} byte{'s' if stride * size > 1 else ''}. "
        + (
            "That is no less than a sector, so each lane has one of its own."
            if stride * size >= 32
            else f"From the first byte to the last they cover {31 * stride * size + size} bytes."
        ),
        {
            32: "Neighbours still share a sector here.",
            32 * size // 32: "This would be enough if the addresses were side by side.",
            32 * stride: "A sector is counted once for the request, and bytes that nobody asks for need none.",
            32 * size * stride: "These are bytes.",
        },
        given={"stride": stride, "size": size},
    )


@question("04_vector_add")
def too_long_for_the_cache(draw: random.Random) -> Number:
    """When vectors no longer fit in the cache."""
    mib, vectors = draw.choice((2, 4, 6, 24, 32, 40, 48, 50, 60, 72, 96)), draw.choice((2, 3, 4))
    size = draw.choice((4, 8))
    k = next(k for k in range(64) if vectors * size * 2**k > mib * 2**20)
    return Number(
        f"A cache has {mib} MiB (1 MiB = 2^20 bytes). There are {vectors} vectors of 2^k elements of {size} bytes. "
        "What is the smallest whole k at which all of them together no longer fit?",
        k,
        "k",
        f"2^{k} elements of {vectors} vectors are {vectors * size * 2**k / 2**20:g} MiB, and half as many elements are "
        f"{vectors * size * 2**k / 2**21:g} MiB.",
        {
            k - 1: "These still fit.",
            next(j for j in range(64) if size * 2**j > mib * 2**20): "This is for one vector alone.",
            next(j for j in range(64) if vectors * 2**j > mib * 2**20): "This is for elements of one byte.",
        },
        given={"mib": mib, "vectors": vectors, "size": size},
    )


@question("10_images")
def place_of_a_byte(draw: random.Random) -> Number:
    """A byte of an image in row-major order."""
    w, row, column, colour = draw.randrange(100, 2000), draw.randrange(2, 90), draw.randrange(3, 99), draw.randrange(3)
    name = ("first", "second", "third")[colour]
    place = 3 * (row * w + column) + colour
    return Number(
        f"An image of bytes has {w} columns. It lies in memory in row-major order, with red, green and blue of each "
        f"pixel side by side. Rows and columns count from 0. How many bytes come before the {name} byte of the pixel "
        f"in row {row} and column {column}?",
        place,
        "bytes",
        f"{row} whole rows and {column} pixels come before: {row} * {w} + {column} = {row * w + column:,} pixels of "
        f"three bytes. Within the pixel {colour} come before.",
        {
            row * w + column: "This is the number of pixels before. Each has three bytes.",
            row * w + 3 * column + colour: "A row has three bytes for each of its columns, too.",
            3 * (column * w + row) + colour: "Row and column are exchanged.",
        },
        given={"w": w, "row": row, "column": column, "colour": colour},
    )


@cuda.jit
def read_row_and_column(a, b, out):
    column, row = cuda.grid(2)
    out[row, column] = a[column, 0] + b[0, column]


@question("12_matmul")
def down_a_column(draw: random.Random) -> Number:
    """Sectors of a walk down a column."""
    across = draw.choice((8, 16, 32))
    width = draw.choice((24, 32, 48, 64, 100, 128))
    a, b = np.ones((32, width), np.float32), np.ones((width, 32), np.float32)
    out = np.zeros((32 // across, 32), np.float32)
    found = counted(read_row_and_column, 1, (across, 32 // across), a, b, out)["global_load_sectors"]
    along = across * 4 // 32
    return Number(
        f"One warp, a block of {across} x {32 // across} threads, runs this kernel. `threadIdx.x` counts fastest, and "
        f"`cuda.grid(2)` gives x first. `a` has the shape (32, {width}), `b` has the shape ({width}, 32), both are "
        f"float32 and lie row by row. {SECTOR}\n\n{code(read_row_and_column)}\n\nHow many sectors do the two loads "
        "touch together?",
        found,
        "sectors",
        f"`a[column, 0]`: {across} different rows, {4 * width} bytes apart, are {across} sectors. `b[0, column]`: "
        f"{across} neighbours are {across * 4} bytes, {many(along, 'sector')}. Lanes that ask for the same element "
        "share it.",
        {
            2 * across: "Neighbours in a row share sectors.",
            2 * along: "Neighbours in a column lie a whole row apart.",
            across: "The second load is missing.",
            32 + 4: "Lanes with the same `column` ask for the same element.",
        },
        given={"across": across, "width": width},
    )


@question("12_matmul")
def tile_intensity(draw: random.Random) -> Number:
    """How much a tile saves."""
    side = draw.choice((8, 16, 24, 32, 64, 128))
    size = draw.choice((2, 4, 8))
    flops, nbytes = 2 * side**3, 2 * size * side**2
    return Number(
        f"A kernel multiplies matrices by tiles. In each step a block loads a tile of {side} x {side} elements of A "
        f"and one of B, with {size} bytes an element, and does the {side} multiply-adds for each of {side} x {side} "
        "results that these tiles allow. How many FLOP are that for each byte that it loads? (A multiply-add is two "
        "FLOP.)",
        flops / nbytes,
        "FLOP/byte",
        f"2 x {side}^3 = {flops:,} FLOP for 2 x {size} x {side}^2 = {nbytes:,} bytes, so it is the side divided by "
        "the size.",
        {
            flops / nbytes / 2: "A multiply-add counts as two.",
            2 * flops / nbytes: "Two tiles are loaded.",
            flops * size / nbytes: "This is for each element, and not for each byte.",
        },
        given={"side": side, "size": size},
    )


@cuda.jit
def column_of_a_tile(out, pitch):
    tile = cuda.shared.array(4096, np.float32)
    t = cuda.threadIdx.x
    tile[t * pitch] = t
    out[t] = tile[t * pitch]


@question("16_transpose")
def column_at_a_pitch(draw: random.Random) -> Number:
    """Wavefronts of a column."""
    pitch = draw.choice((*range(33, 65), 72, 80, 96, 100))
    found = counted(column_of_a_tile, 1, 32, np.zeros(32, np.float32), pitch)["shared_load_wavefronts"]
    return Number(
        f"A tile in shared memory has rows of {pitch} words of 4 bytes. The 32 lanes of a warp read one column of it, "
        f"a lane a row. {BANKS} How many wavefronts does the load take?",
        found,
        "wavefronts",
        f"The lanes' words are {pitch} apart. gcd({pitch}, 32) = {math.gcd(pitch, 32)}, so they fall into "
        f"{32 // math.gcd(pitch, 32)} different banks, {found} in each.",
        {
            32: "The words lie in several banks.",
            1: "Some of the words lie in the same bank.",
            32 // found: "This is the number of different banks.",
            pitch - 32: "Count how many lanes meet in one bank.",
        },
        given={"pitch": pitch},
    )


@cuda.jit
def first_field(points, out):
    i = cuda.grid(1)
    out[i] = points[i, 0]


@question("16_transpose")
def fields_of_a_structure(draw: random.Random) -> Number:
    """Sectors of one field of a structure."""
    fields = draw.choice((2, 3, 4, 5, 6, 7, 8, 12, 16))
    points, out = np.ones((32, fields), np.float32), np.zeros(32, np.float32)
    found = counted(first_field, 1, 32, points, out)["global_load_sectors"]
    return Number(
        f"`points` has the shape (n, {fields}): the {fields} float32 fields of an item lie side by side, item after "
        f"item. One warp of 32 threads runs this kernel. {SECTOR}\n\n{code(first_field)}\n\nHow many sectors does the "
        "load touch?",
        found,
        "sectors",
        f"The addresses are {4 * fields} bytes apart and cover {31 * 4 * fields + 4} bytes. In an array of its own "
        "the field would take 4 sectors.",
        {
            4: "This would be so in a structure of arrays.",
            32: "Neighbours still share a sector here.",
            4 * fields: "The end of the last item is not touched, or sectors between the fields are not.",
        },
        given={"fields": fields},
    )


@cuda.jit
def transpose_naive(x, out):
    column, row = cuda.grid(2)
    out[column, row] = x[row, column]


@question("16_transpose")
def rectangle_of_a_warp(draw: random.Random) -> Number:
    """Sectors of a warp that is a rectangle."""
    across = draw.choice((4, 8, 16, 32))
    size = draw.choice((4, 8))
    x = np.ones((64, 64), np.float32 if size == 4 else np.float64)
    found = counted(transpose_naive, (64 // across, 64 * across // 32), (across, 32 // across), x, np.zeros_like(x))
    warps = 64 * 64 // 32
    each = (found["global_load_sectors"] + found["global_store_sectors"]) // warps
    load, store = found["global_load_sectors"] // warps, found["global_store_sectors"] // warps
    return Number(
        f"The matrices are 64 x 64, with elements of {size} bytes, and lie row by row. Blocks have {across} x "
        f"{32 // across} threads, so a warp is a rectangle, {across} across and {32 // across} down. "
        f"{SECTOR}\n\n{code(transpose_naive)}\n\nHow many sectors do the load and the store of one warp touch "
        "together?",
        each,
        "sectors",
        f"The load has {many(32 // across, 'row')} of {across} neighbours: {many(load, 'sector')}. The store "
        f"has {across} rows of {many(32 // across, 'neighbour')}: {many(store, 'sector')}.",
        {
            2 * load: "The store goes across the rows of the other matrix.",
            2 * store: "The load goes along the rows.",
            load: "This is the load alone.",
            64: "Neighbours in a row share a sector.",
        },
        given={"across": across, "size": size},
    )


@cuda.jit
def gathered(x, places, out):
    lane = cuda.threadIdx.x
    out[lane] = x[places[lane]]


@question("16_transpose")
def pattern_of_lanes(draw: random.Random) -> Choice:
    """Which pattern is dearest."""
    lane, x, out = np.arange(32), np.ones(200, np.float32), np.zeros(32, np.float32)
    shift, far, step, part = (
        draw.randrange(1, 8),
        8 * draw.randrange(1, 5),
        draw.randrange(2, 7),
        draw.choice((2, 4, 8)),
    )
    places = {
        f"`x[i + {shift}]`": lane + shift,
        f"`x[i + {far}]`": lane + far,
        "`x[31 - i]`": 31 - lane,
        f"`x[i // {part}]`": lane // part,
        f"`x[{step} * i]`": step * lane,
    }
    chosen = draw.sample([*places], 4)
    sectors = {}
    for name in chosen:
        found = counted(gathered, 1, 32, x, places[name].astype(np.int32), out)
        sectors[name] = found["global_load_sectors"] - 4  # the indices themselves are four sectors
    dearest = max(sectors, key=sectors.get)
    said = ", ".join(f"{name} {count}" for name, count in sectors.items())
    return Choice(
        f"The 32 lanes of a warp load float32 elements of `x`, and i is the lane. {SECTOR} Which of these loads "
        "touches the most sectors?",
        dearest,
        f"The sectors of each: {said}. The order of the lanes does not matter, and lanes that read the same element "
        "share it. A range that begins in the middle of a sector also ends in the middle of one.",
        {name: f"This one touches {count}." for name, count in sectors.items() if count < sectors[dearest]},
        given={"sectors": sectors},
    )


@question("24_convolution")
def share_of_the_halo(draw: random.Random) -> Number:
    """What share of a tile is halo."""
    side, mask = draw.choice((8, 16, 32, 64)), draw.choice((3, 5, 7, 9, 11))
    axes = draw.choice((2, 3)) if side <= 16 else 2
    loaded = (side + mask - 1) ** axes
    what = " x ".join([str(side)] * axes)
    masks = " x ".join([str(mask)] * axes)
    return Number(
        f"A block computes {what} outputs of a convolution with a mask of {masks}. It first loads all inputs that it "
        "needs. What share of what it loads is halo, that is, lies outside the places of its own outputs?",
        100 * (1 - side**axes / loaded),
        "%",
        f"Along each axis it needs {side} + {mask} - 1 = {side + mask - 1} elements: {loaded:,} in all, of which "
        f"{side**axes:,} are in the places of outputs.",
        {
            100 * (1 - side / (side + mask - 1)): "This is for one axis.",
            100 * (loaded / side**axes - 1): "This is against the outputs, and not against what is loaded.",
            100
            * (1 - side**axes / (side + 2 * mask - 2) ** axes): "The mask reaches over by half its side at each end.",
        },
        given={"side": side, "mask": mask, "axes": axes},
    )


@question("24_convolution")
def separable_mask(draw: random.Random) -> Number:
    """What a separable mask saves."""
    rows, columns = draw.choice((3, 5, 7, 9, 11, 15)), draw.choice((5, 7, 9, 13, 17, 31))
    return Number(
        f"A mask of {rows} x {columns} weights is a column times a row. So an image can be convolved with the row "
        "first, and the result with the column. How many times fewer multiply-adds does an output take in two passes "
        "than in one?",
        rows * columns / (rows + columns),
        "times fewer",
        f"{rows} x {columns} = {rows * columns} multiply-adds in one pass, {rows} + {columns} = {rows + columns} in "
        "two.",
        {
            float(rows): "The first pass costs something as well.",
            float(columns): "The second pass costs something as well.",
            rows * columns / 2: "It is not two multiply-adds, but two passes.",
        },
        given={"rows": rows, "columns": columns},
    )


@cuda.jit
def along_the_middle(x, out):
    image, column = cuda.blockIdx.x, cuda.blockIdx.y
    lane = cuda.threadIdx.x
    out[image, lane, column] = x[image, lane, column]


@question("50_softmax")
def axis_that_is_not_the_last(draw: random.Random) -> Number:
    """Sectors along an axis that is not the last."""
    last = draw.choice((1, 2, 3, 4, 5, 6, 8, 16, 64))
    x = np.ones((1, 32, last), np.float32)
    found = counted(along_the_middle, (1, 1), 32, x, np.zeros_like(x))["global_load_sectors"]
    return Number(
        f"`x` has the shape (8, 32, {last}), is float32 and lies in C order: the last axis has neighbours. The 32 "
        f"lanes of a warp read the 32 elements along the *middle* axis, at one place of the others. {SECTOR} How many "
        f"sectors does the load of block (0, 0) touch?\n\n{code(along_the_middle)}",
        found,
        "sectors",
        f"Neighbours along the middle axis are {last} elements, {4 * last} bytes, apart.",
        {
            4: "This is so along the last axis, or where the last axis has one element.",
            32: "Neighbours still share a sector here.",
            4 * last: "Sectors that nobody asks for are not touched.",
        },
        given={"last": last},
    )


@question("56_clusters")
def cluster_for_a_row(draw: random.Random) -> Number:
    """How many blocks must keep a row."""
    threads, values = draw.choice((256, 512, 1024)), draw.choice((8, 16, 24, 32))
    columns = threads * values * draw.choice((1, 2, 4, 8)) + 4 * draw.randrange(1, threads * values // 4)
    needed = -(-columns // (threads * values))
    size = 1 << (needed - 1).bit_length()
    return Number(
        f"The blocks of a cluster keep a row of {columns:,} numbers in their registers. A block has {threads} threads, "
        f"and a thread keeps at most {values} of the numbers. The number of blocks is to be a power of two. How many "
        "blocks are enough?",
        size,
        "blocks",
        f"A block keeps {threads} x {values} = {threads * values:,} numbers, so {needed} blocks are needed, and "
        f"{'that is a power of two' if size == needed else f'{size} is the next power of two'}.",
        {
            columns // (threads * values): "The last numbers have no place then.",
            needed: "Enough, but no power of two.",
            size // 2: "Half as many blocks do not keep the row.",
            1 << (-(-columns // (1024 * values)) - 1).bit_length(): "Not every block has 1024 threads.",
        },
        given={"columns": columns, "threads": threads, "values": values},
    )


@question("75_attention")
def scores_beside_the_inputs(draw: random.Random) -> Number:
    """How many scores there are."""
    heads, keys, size = draw.choice((1, 8, 12, 16)), 2 ** draw.randrange(8, 15), draw.choice((32, 64, 128))
    ratio = keys / (4 * size)
    return Number(
        f"A layer of attention has {heads} heads, {keys:,} queries and {keys:,} keys of {size} elements, and as many "
        "values. It writes a result of the shape of the queries. All numbers are of 4 bytes. How many times as many "
        "bytes are all scores as queries, keys, values and result together?",
        ratio,
        "times as many",
        f"For each head {keys:,} x {keys:,} scores, and 4 x {keys:,} x {size} other numbers.",
        {
            4 * ratio: "There are four such arrays: queries, keys, values and the result.",
            4 * ratio / 3: "The result counts, too.",
            keys * ratio: "A head has a score for each query and each key, and no more.",
        },
        within=0.02,
        given={"heads": heads, "keys": keys, "size": size},
    )


@question("87_attention_on_tensor_cores")
def registers_of_a_lane(draw: random.Random) -> Number:
    """How many registers attention's fragments take."""
    size, keys, rows = draw.choice((32, 64, 96, 128)), draw.choice((16, 32, 64, 128)), draw.choice((16, 32))
    sums, scores, queries = (rows * columns // 32 for columns in (size, keys, size // 2))
    return Number(
        f"On tensor cores a warp computes attention for {rows} queries of {size} float16 elements. It holds these "
        f"queries, their {rows} x {keys} float32 scores of a tile of {keys} keys, and the {rows} x {size} float32 sums "
        "of the result in its registers. A register has 4 bytes, and nothing is held twice. How many registers of a "
        "lane are that?",
        sums + scores + queries,
        "registers",
        f"A lane has a 32nd of each: {sums} of sums, {scores} of scores, and {queries} of queries, two in a register.",
        {
            sums + scores + 2 * queries: "Two float16 numbers share a register.",
            sums + scores: "The queries stay in registers, too.",
            32 * (sums + scores + queries): "These are the registers of the whole warp.",
        },
        given={"size": size, "keys": keys, "rows": rows},
    )


@question("80_random_numbers")
def four_stores(draw: random.Random) -> Number:
    """Sectors of a thread that stores several neighbours."""
    each = draw.choice((2, 3, 4, 5, 6, 8))
    out = np.zeros(32 * each, np.float32)
    found = counted(strided_store, 1, 32, out, each)["global_store_sectors"]
    least = 4 * each
    return Number(
        f"Each of the 32 threads of a warp has made {each} float32 numbers, and stores them side by side: thread t "
        f"stores to `out[{each} * t]` first, then to the element behind it, and so on, with {each} stores of one "
        f"number. {SECTOR} How many sectors does the first of these stores touch?",
        found,
        "sectors",
        f"The lanes' addresses are {4 * each} bytes apart. All {each} stores write the same {least} sectors, and each "
        f"of them touches {found}.",
        {
            4: "Neighbouring lanes do not store to neighbouring addresses.",
            32: "Neighbours still share a sector here.",
            each * found: "These are the sectors of all stores together.",
        },
        given={"each": each},
    )


@cuda.jit
def read_one_each(x, out):
    i = cuda.grid(1)
    out[i] = x[i]


@question("98_instruments")
def sectors_by_type(draw: random.Random) -> Number:
    """Sectors by the size of an element."""
    dtype = np.dtype(draw.choice(("uint8", "int16", "float32", "float64", "complex64")))
    threads = draw.choice((32, 64, 128, 256))
    x = np.zeros(threads, dtype)
    found = counted(read_one_each, 1, threads, x, np.zeros_like(x))
    total = found["global_load_sectors"] + found["global_store_sectors"]
    size = dtype.itemsize
    return Number(
        f"A block of {threads} threads runs this kernel. `x` and `out` have elements of type {dtype.name}, {size} "
        f"byte{'s' if size > 1 else ''} each. {SECTOR} A sector counts once for each request, and a request is "
        f"one load or store of a warp of 32 threads.\n\n{code(read_one_each)}\n\n"
        "How many sectors are counted, loads and stores together?",
        total,
        "sectors",
        f"A request is for 32 x {size} = {32 * size} bytes, {many(size, 'sector')}. There are {threads // 32} "
        "warps with a load and a store each.",
        {
            total // 2: "Stores count, too.",
            size: "This is one request.",
            2 * threads: "Neighbours share sectors.",
            8 * threads // 32: f"This is for elements of 4 bytes: here they have {shown(size)}.",
        },
        given={"size": size, "threads": threads},
    )
