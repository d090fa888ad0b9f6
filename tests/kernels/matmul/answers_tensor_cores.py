"""Answers to the exercises of chapter 40: wrong ones with their mistakes, and other right ones."""

from pmpp import cuda
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
FRAGMENT, SWIZZLE, STAGES = "tensor_cores/fragment", "tensor_cores/swizzle", "tensor_cores/stages"


def named(name, kernel):
    kernel.py_func.__name__ = name
    return kernel


# -- fragment


@right(FRAGMENT)
@cuda.jit
def fragment_written_out(a, out):
    lane, i = cuda.threadIdx.x, cuda.blockIdx.x
    g, t = lane >> 2, (lane & 3) << 1
    for half in range(2):
        out[i, lane, 0, half] = a[i, g, t + half]
        out[i, lane, 1, half] = a[i, g + 8, t + half]
        out[i, lane, 2, half] = a[i, g, t + 8 + half]
        out[i, lane, 3, half] = a[i, g + 8, t + 8 + half]


@right(FRAGMENT)
@cuda.jit
def fragment_by_elements(a, out):
    for element in range(7, -1, -1):
        word, half = element // 2, element % 2
        row = cuda.threadIdx.x // 4 + (8 if word & 1 else 0)
        column = cuda.threadIdx.x % 4 * 2 + half + (8 if word >= 2 else 0)
        out[cuda.blockIdx.x, cuda.threadIdx.x, word, half] = a[cuda.blockIdx.x, row, column]


@right(FRAGMENT)
@cuda.jit
def fragment_row_by_row(a, out):
    lane, matrix = cuda.grid(1) % 32, cuda.grid(1) // 32
    for below in range(2):
        for right_half in range(2):
            for half in range(2):
                value = a[matrix, lane // 4 + 8 * below, 2 * (lane % 4) + 8 * right_half + half]
                out[matrix, lane, below + 2 * right_half, half] = value


@right(FRAGMENT)
@cuda.jit
def fragment_of_a_view(a, out):
    mine, theirs, lane = a[cuda.blockIdx.x], out[cuda.blockIdx.x], cuda.threadIdx.x
    for word in range(4):
        theirs[lane, word, 0] = mine[lane // 4 + word % 2 * 8, lane % 4 * 2 + word // 2 * 8]
        theirs[lane, word, 1] = mine[lane // 4 + word % 2 * 8, lane % 4 * 2 + word // 2 * 8 + 1]


@right(FRAGMENT)
@cuda.jit
def fragment_by_a_loop(a, out):
    lane, word = cuda.threadIdx.x, 0
    while word < 4:
        row, column = (lane >> 2) | ((word & 1) << 3), ((lane & 3) << 1) | ((word >> 1) << 3)
        out[cuda.blockIdx.x, lane, word, 1] = a[cuda.blockIdx.x, row, column | 1]
        out[cuda.blockIdx.x, lane, word, 0] = a[cuda.blockIdx.x, row, column]
        word += 1


def fragment_with(name, *, exchanged=False, down=False, lanes=False, first=False, halves=2, apart=8):
    @cuda.jit
    def kernel(a, out):
        lane = cuda.threadIdx.x
        matrix = 0 if first else cuda.blockIdx.x
        for word in range(4):
            below, beside = (word // 2, word % 2) if exchanged else (word % 2, word // 2)
            group, pair = (lane % 8, lane // 8 * 2) if lanes else (lane // 4, lane % 4 * 2)
            for half in range(halves):
                row, column = group + below * 8, pair + half + beside * apart
                out[cuda.blockIdx.x, lane, word, half] = a[matrix, column, row] if down else a[matrix, row, column]

    return named(name, kernel)


wrong(FRAGMENT, "words exchanged")(fragment_with("fragment_with_words_exchanged", exchanged=True))
wrong(FRAGMENT, "transposed")(fragment_with("fragment_of_the_transposed", down=True))
wrong(FRAGMENT, "lanes down")(fragment_with("fragment_with_lanes_down", lanes=True))
wrong(FRAGMENT, "first matrix")(fragment_with("fragment_of_the_first_matrix", first=True))
wrong(FRAGMENT, "output not written")(fragment_with("fragment_of_one_half", halves=1))
wrong(FRAGMENT, "index out of bounds")(fragment_with("fragment_too_far_right", apart=10))


# -- swizzle


@right(SWIZZLE)
@cuda.jit
def swizzle_by_masks(x, out):
    row = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
    if row >= x.shape[0]:
        return
    begin = row << 6 | (cuda.threadIdx.x ^ row & 7) << 3
    for i in range(8):
        out[begin + i] = x[row, cuda.threadIdx.x << 3 | i]


@right(SWIZZLE)
@cuda.jit
def swizzle_from_the_place(x, out):
    """A thread is that of a place: the exclusive or leads back, too."""
    place, row = cuda.threadIdx.x, cuda.grid(2)[1] + cuda.blockIdx.x * 8
    if row < x.shape[0]:
        chunk = place ^ cuda.threadIdx.y
        for i in range(7, -1, -1):
            out[row * 64 + place * 8 + i] = x[row, chunk * 8 + i]


@right(SWIZZLE)
@cuda.jit
def swizzle_element_by_element(x, out):
    thread, first = cuda.threadIdx.y * 8 + cuda.threadIdx.x, cuda.blockIdx.x * 8
    for row in range(first, min(first + 8, x.shape[0])):
        out[row * 64 + (thread // 8 ^ row % 8) * 8 + thread % 8] = x[row, thread]


@right(SWIZZLE)
@cuda.jit
def swizzle_of_columns(x, out):
    row = cuda.blockIdx.x * 8 + cuda.threadIdx.y
    if row < x.shape[0]:
        for column in range(cuda.threadIdx.x * 8, cuda.threadIdx.x * 8 + 8):
            out[row * 64 + (column ^ row % 8 * 8)] = x[row, column]


@right(SWIZZLE)
@cuda.jit
def swizzle_into_a_view(x, out):
    row, chunk = cuda.blockIdx.x * 8 + cuda.threadIdx.y, cuda.threadIdx.x
    if row < x.shape[0]:
        tile = out.reshape(x.shape[0], 8, 8)
        for i in range(8):
            tile[row, (row & 7) ^ chunk, i] = x[row, chunk * 8 + i]


def swizzle_with(name, *, how="xor", guard=True, count=8):
    straight, rotated, inside, eighth = (how == one for one in ("straight", "rotated", "inside", "eighth"))

    @cuda.jit
    def kernel(x, out):
        chunk, row = cuda.threadIdx.x, cuda.blockIdx.x * 8 + cuda.threadIdx.y
        if not guard or row < x.shape[0]:
            place = chunk ^ row % 8
            if straight or inside:
                place = chunk
            if rotated:
                place = (chunk + row) % 8
            if eighth:
                place = chunk ^ row // 8 % 8
            for i in range(count):
                out[row * 64 + place * 8 + (i ^ row % 8 if inside else i)] = x[row, chunk * 8 + i]

    return named(name, kernel)


wrong(SWIZZLE, "straight")(swizzle_with("swizzle_that_is_none", how="straight"))
wrong(SWIZZLE, "rotated")(swizzle_with("swizzle_by_turning", how="rotated"))
wrong(SWIZZLE, "inside of chunks")(swizzle_with("swizzle_inside_of_chunks", how="inside"))
wrong(SWIZZLE, "every eighth row")(swizzle_with("swizzle_every_eighth_row", how="eighth"))
wrong(SWIZZLE, "missing guard")(swizzle_with("swizzle_without_guard", guard=False))
wrong(SWIZZLE, "output not written")(swizzle_with("swizzle_of_half_a_chunk", count=4))


# -- stages


@right(STAGES)
@cuda.jit
def stages_by_the_slot_before(stages, out):
    step = cuda.grid(1)
    if step >= out.shape[0]:
        return
    out[step, 0] = step % stages
    more = step + stages <= out.shape[0]
    out[step, 1] = step - 1 + stages if more else -1
    out[step, 2] = (step + stages - 1) % stages if more else -1


@right(STAGES)
@cuda.jit
def stages_that_begin_with_nothing(stages, out):
    step = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if step < out.shape[0]:
        out[step, 0] = step - step // stages * stages
        out[step, 1], out[step, 2] = -1, -1
        coming = step + (stages - 1)
        if coming < out.shape[0]:
            out[step, 1] = coming
            out[step, 2] = coming - coming // stages * stages


@right(STAGES)
@cuda.jit
def stages_by_counting(stages, out):
    step, slot = cuda.grid(1), 0
    for _ in range(step):
        slot = slot + 1 if slot + 1 < stages else 0
    if step < out.shape[0]:
        inside = step + stages - 1 < out.shape[0]
        out[step, 0] = slot
        out[step, 1] = step + stages - 1 if inside else -1
        out[step, 2] = (slot - 1 if slot > 0 else stages - 1) if inside else -1


@cuda.jit(device=True)
def slot_of(step, stages):
    return step % stages


@right(STAGES)
@cuda.jit
def stages_by_a_device_function(stages, out):
    step = cuda.grid(1)
    if step < out.shape[0]:
        out[step, 0] = slot_of(step, stages)
        last = step > out.shape[0] - stages
        out[step, 1] = -1 if last else step + stages - 1
        out[step, 2] = -1 if last else slot_of(step + stages - 1, stages)


@right(STAGES)
@cuda.jit
def stages_with_strides(stages, out):
    for step in range(cuda.grid(1), out.shape[0], cuda.gridsize(1)):
        coming = step + stages - 1
        inside = coming < out.shape[0]
        out[step, 2] = coming % stages if inside else -1
        out[step, 1] = coming if inside else -1
        out[step, 0] = step % stages


def stages_with(name, *, ahead=-1, furthest=True, ends=True, own=False, guard=True):
    @cuda.jit
    def kernel(stages, out):
        step = cuda.grid(1)
        if not guard or step < out.shape[0]:
            coming = step + (stages + ahead if furthest else 1)
            inside = coming < out.shape[0] or not ends
            out[step, 0] = step % stages
            out[step, 1] = coming if inside else -1
            out[step, 2] = (step % stages if own else coming % stages) if inside else -1

    return named(name, kernel)


wrong(STAGES, "one too far")(stages_with("stages_one_too_far", ahead=0))
wrong(STAGES, "one ahead")(stages_with("stages_one_ahead", furthest=False))
wrong(STAGES, "no end")(stages_with("stages_without_end", ends=False))
wrong(STAGES, "slot of the step")(stages_with("stages_into_the_slot_that_is_read", own=True))
wrong(STAGES, "missing guard")(stages_with("stages_without_guard", guard=False))
