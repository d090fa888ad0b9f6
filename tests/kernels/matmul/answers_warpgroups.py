"""Answers to the exercises of chapter 43: wrong ones with their mistakes, and right ones written differently."""

from pmpp import cuda
from tests.support.wrong import collectors

PHASES, PANELS = "warpgroups/phases", "warpgroups/panels"
ANSWERS, ALSO_RIGHT, wrong, right = collectors()


def named(name, kernel):
    kernel.py_func.__name__ = name
    return kernel


# ------------------------------------------------------------------------------------------------- warpgroups/phases


@right(PHASES)
@cuda.jit
def phases_by_counting(stages, out):
    step, stage, parity = cuda.grid(1), 0, 0
    for _ in range(step):
        stage += 1
        if stage == stages:
            stage, parity = 0, parity ^ 1
    if step < out.shape[0]:
        out[step, 0], out[step, 1], out[step, 2] = stage, parity, parity ^ 1


@right(PHASES)
@cuda.jit
def phases_by_twice_the_stages(stages, out):
    step = cuda.grid(1)
    if step < out.shape[0]:
        second = step % (2 * stages) >= stages
        out[step, 0] = step % (2 * stages) - (stages if second else 0)
        out[step, 1] = 1 if second else 0
        out[step, 2] = 0 if second else 1


@right(PHASES)
@cuda.jit
def phases_with_strides(stages, out):
    for step in range(cuda.grid(1), out.shape[0], cuda.gridsize(1)):
        out[step, 2] = (step // stages + 1) & 1
        out[step, 1] = step // stages & 1
        out[step, 0] = step - step // stages * stages


@cuda.jit(device=True)
def uses_of(step, stages):
    return step // stages


@right(PHASES)
@cuda.jit
def phases_by_a_device_function(stages, out):
    step = cuda.grid(1)
    if step >= out.shape[0]:
        return
    out[step, 0] = step % stages
    out[step, 1] = uses_of(step, stages) % 2
    out[step, 2] = uses_of(step + stages, stages) % 2


@right(PHASES)
@cuda.jit
def phases_one_after_the_other(stages, out):
    i = cuda.grid(1)
    row = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < out.shape[0]:
        odd = row // stages % 2 == 1
        for k in range(3):
            out[row, k] = row % stages if k == 0 else (k == 1) == odd


def phases_with(name, *, by_step=False, same=False, flipped=False, modulo=True, guard=True):
    @cuda.jit
    def kernel(stages, out):
        step = cuda.grid(1)
        if not guard or step < out.shape[0]:
            parity = step % 2 if by_step else step // stages
            if modulo:
                parity %= 2
            empty = parity if same else 1 - parity
            out[step, 0] = step % stages
            out[step, 1] = empty if flipped else parity
            out[step, 2] = parity if flipped else empty

    return named(name, kernel)


wrong(PHASES, "parity of the step")(phases_with("parities_of_the_step", by_step=True))
wrong(PHASES, "same parity")(phases_with("one_parity_for_both", same=True))
wrong(PHASES, "exchanged")(phases_with("parities_exchanged", flipped=True))
wrong(PHASES, "number of the phase")(phases_with("numbers_of_the_phases", modulo=False))
wrong(PHASES, "missing guard")(phases_with("phases_without_guard", guard=False))


# ------------------------------------------------------------------------------------------------- warpgroups/panels


@right(PANELS)
@cuda.jit
def panels_while_some_are_left(b, out):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    while i < b.size:
        row, column = i // b.shape[1], i % b.shape[1]
        panel, within = column // 64, column % 64
        place = within // 8 ^ row & 7
        out[(panel * b.shape[0] + row) * 64 + place * 8 + within % 8] = b[row, column]
        i += cuda.blockDim.x * cuda.gridDim.x


@right(PANELS)
@cuda.jit
def panels_from_where_they_go(b, out):
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        row, panel = i // 64 % b.shape[0], i // (64 * b.shape[0])
        chunk = i % 64 // 8 ^ row % 8  # the exclusive or leads back as well
        out[i] = b[row, panel * 64 + chunk * 8 + i % 8]


@right(PANELS)
@cuda.jit
def panels_by_bytes(b, out):
    for i in range(cuda.grid(1), b.size, cuda.gridsize(1)):
        row, column = i // b.shape[1], i % b.shape[1]
        address = ((column // 64 * b.shape[0] + row) * 64 + column % 64) * 2
        out[(address ^ (address >> 7 & 7) << 4) // 2] = b[row, column]


@right(PANELS)
@cuda.jit
def panels_chunk_by_chunk(b, out):
    chunks = b.shape[1] // 8
    for i in range(cuda.grid(1), b.shape[0] * chunks, cuda.gridsize(1)):
        row, chunk = i // chunks, i % chunks
        begin = (chunk // 8 * b.shape[0] + row) * 64 + ((chunk % 8) ^ (row % 8)) * 8
        for k in range(8):
            out[begin + k] = b[row, chunk * 8 + k]


@right(PANELS)
@cuda.jit
def panels_panel_by_panel(b, out):
    for panel in range(b.shape[1] // 64):
        for i in range(cuda.grid(1), b.shape[0] * 64, cuda.gridsize(1)):
            row, column = i // 64, i % 64
            out[panel * b.shape[0] * 64 + row * 64 + (column ^ row % 8 * 8)] = b[row, panel * 64 + column]


def panels_with(name, *, swizzled=True, by_column=False, inside=False, panels=True, strides=True):
    @cuda.jit
    def kernel(b, out):
        rows, width = b.shape[0], 64 if panels else b.shape[1]
        for i in range(cuda.grid(1), b.size, cuda.gridsize(1) if strides else b.size):
            row, column = i // b.shape[1], i % b.shape[1]
            chunk, rest = column % width // 8, column % 8
            if inside:
                rest ^= row % 8
            elif swizzled:
                chunk ^= (column if by_column else row) % 8
            panel = column // 64 * rows * 64 if panels else 0
            out[panel + row * width + chunk * 8 + rest] = b[row, column]

    return named(name, kernel)


wrong(PANELS, "straight")(panels_with("chunks_that_stay", swizzled=False))
wrong(PANELS, "by the column")(panels_with("chunks_by_the_column", by_column=True))
wrong(PANELS, "whole rows")(panels_with("rows_in_one_piece", panels=False, swizzled=False))
wrong(PANELS, "inside of chunks")(panels_with("elements_that_move", inside=True))
wrong(PANELS, "output not written")(panels_with("the_first_elements_only", strides=False))
