"""Exercises of notebooks/40_tensor_cores.ipynb: fragments, swizzled chunks, and the slots of a pipeline."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

SIDE, WORDS = 16, 4  # of a fragment of A, which is square; words that a lane has of it
CHUNKS, CHUNK = 8, 8  # in a row of a tile; elements in a chunk
ROWS = 8  # of a block of threads in tensor_cores/swizzle: a thread moves a chunk
STEPS = 64  # of a block of threads in tensor_cores/stages: a thread writes the plan of a step


# ---------------------------------------------------------------------------------------------- tensor_cores/fragment


def _fragments(a: np.ndarray, *, exchanged: bool = False, down: bool = False, lanes: bool = False) -> np.ndarray:
    """What the lanes hold of each matrix: (matrix, lane, word, half)."""
    lane, word, half = np.ogrid[:32, :WORDS, :2]
    group, pair = (lane % 8, lane // 8 * 2) if lanes else (lane // 4, lane % 4 * 2)
    below, right = (word // 2, word % 2) if exchanged else (word % 2, word // 2)
    rows, columns = group + 8 * below, pair + half + 8 * right
    rows, columns = np.broadcast_arrays(rows, columns)
    return a[:, columns, rows] if down else a[:, rows, columns]


def _fragment_cases(rng: np.random.Generator) -> list[Case]:
    def case(count: int) -> Case:
        a = (rng.permutation(count * SIDE * SIDE) + 1).astype(np.float32).reshape(count, SIDE, SIDE)
        args = a, unwritten((count, 32, WORDS, 2), np.float32)
        return Case(f"{count} matri{'ces' if count > 1 else 'x'}", args, count, 32, {1: _fragments(a)})

    return [case(count) for count in (1, 2, 5)]


@cuda.jit
def fragment_answer(a, out):
    lane, matrix = cuda.threadIdx.x, cuda.blockIdx.x
    for word in range(4):
        row, column = lane // 4 + word % 2 * 8, lane % 4 * 2 + word // 2 * 8
        out[matrix, lane, word, 0] = a[matrix, row, column]
        out[matrix, lane, word, 1] = a[matrix, row, column + 1]


FRAGMENT = Exercise(
    name="tensor_cores/fragment",
    task="A warp is to multiply by 16 x 16 matrices a[0], a[1], ..., and block i has one warp, for matrix i. Write "
    "down what a lane holds of it as an operand of mma.sync: out[i, lane, word, half]. Half 0 is the element of the "
    "lower column. Lane 4 g + t holds elements of rows g and g + 8, and of columns 2 t, 2 t + 1, 2 t + 8 and 2 t + 9. "
    "Words 0 and 1 are of the left half of the matrix, and words 1 and 3 of row g + 8.",
    parameters="a, out",
    cases=_fragment_cases,
    hints=(
        "g is lane // 4, and t is lane % 4.",
        "The number of a word has two bits. The lower one says which row, and the upper one which half.",
    ),
    answer=fragment_answer,
    traps=(
        Trap(
            "words exchanged",
            "words 1 and 2 are exchanged: word 1 is below word 0, and word 2 to the right of it",
            lambda a, out: {1: _fragments(a, exchanged=True)},
        ),
        Trap(
            "transposed",
            "the fragments are those of the transposed matrix: the two halves of a word are neighbours in a row of A",
            lambda a, out: {1: _fragments(a, down=True)},
        ),
        Trap(
            "lanes down",
            "lanes are counted down the rows: four lanes that follow each other share a row",
            lambda a, out: {1: _fragments(a, lanes=True)},
        ),
        Trap(
            "first matrix",
            "all blocks have written the first matrix: blockIdx.x counts the matrices",
            lambda a, out: {1: _fragments(np.repeat(a[:1], len(a), 0))},
        ),
    ),
)


# ----------------------------------------------------------------------------------------------- tensor_cores/swizzle


def _swizzled(x: np.ndarray, to: np.ndarray) -> np.ndarray:
    """The rows of ``x``, with chunk c of row r in place to[r, c]."""
    rows = np.arange(len(x))[:, None]
    out = np.full(x.shape, np.nan, x.dtype).reshape(len(x), CHUNKS, CHUNK)
    out[rows, to] = x.reshape(len(x), CHUNKS, CHUNK)
    return out.reshape(-1)


def _places(rows: int) -> tuple[np.ndarray, np.ndarray]:
    row, chunk = np.ogrid[:rows, :CHUNKS]
    return np.broadcast_to(row, (rows, CHUNKS)), np.broadcast_to(chunk, (rows, CHUNKS))


def _rightly(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    row, chunk = _places(len(x))
    return {1: _swizzled(x, chunk ^ row % CHUNKS)}


def _unmoved(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {1: x.reshape(-1)}


def _rotated(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    row, chunk = _places(len(x))
    return {1: _swizzled(x, (chunk + row) % CHUNKS)}


def _in_a_chunk(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    row, column = np.ogrid[: len(x), : x.shape[1]]
    found = np.empty_like(x)
    found[row, column ^ row % CHUNK] = x
    return {1: found.reshape(-1)}


def _by_chunk_alone(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    row, chunk = _places(len(x))
    return {1: _swizzled(x, chunk ^ row // CHUNKS % CHUNKS)}


def _swizzle_cases(rng: np.random.Generator) -> list[Case]:
    def case(rows: int) -> Case:
        x = (rng.permutation(rows * CHUNKS * CHUNK) + 1).astype(np.float32).reshape(rows, CHUNKS * CHUNK)
        out = unwritten(x.size, np.float32)
        return Case(f"{rows} row{'s' * (rows > 1)}", (x, out), blocks(rows, ROWS), (CHUNKS, ROWS), _rightly(x, out))

    return [case(rows) for rows in (8, 1, 5, 16, 19, 40)]


@cuda.jit
def swizzle_answer(x, out):
    chunk, row = cuda.threadIdx.x, cuda.blockIdx.x * 8 + cuda.threadIdx.y
    if row < x.shape[0]:
        place = row * 8 + (chunk ^ row % 8)
        for i in range(8):
            out[place * 8 + i] = x[row, chunk * 8 + i]


SWIZZLE = Exercise(
    name="tensor_cores/swizzle",
    task="Copy a tile x into the vector out, row after row. A row has 64 elements, that is 8 chunks of 8. Within its "
    "row, chunk c of row r goes to place c ^ (r % 8). A block has 8 x 8 threads: threadIdx.x is the chunk that a "
    "thread copies, and threadIdx.y the row, of the 8 rows of a block. There may be fewer rows than threads for them.",
    parameters="x, out",
    cases=_swizzle_cases,
    budget=lambda case: dict.fromkeys(
        [f"global_{way}_{what}" for way in ("load", "store") for what in ("sectors", "requests")], (float("inf"), "")
    ),
    hints=(
        "The row's number counts over all blocks: blockIdx.x * 8 + threadIdx.y.",
        "The exclusive or is one of numbers of chunks. An element keeps its place in its chunk.",
    ),
    answer=swizzle_answer,
    traps=(
        Trap("straight", "no chunk has moved: the exclusive or is missing", _unmoved),
        Trap(
            "rotated",
            "chunks are moved on by the row's number: that meets all banks as well, but the task is an exclusive or",
            _rotated,
        ),
        Trap("inside of chunks", "elements have moved inside of their chunk: whole chunks are to move", _in_a_chunk),
        Trap("every eighth row", "the order changes after 8 rows only: r % 8, not r // 8", _by_chunk_alone),
    ),
)


# ------------------------------------------------------------------------------------------------- tensor_cores/stages


def _plan(steps: int, stages: int, *, ahead: int, ends: bool = True, into: int | None = None) -> np.ndarray:
    """For each step: the slot that is read, the step whose tiles are copied, or -1, and the slot that they go to."""
    step = np.arange(steps)
    coming = step + ahead
    there = coming < steps if ends else np.ones(steps, np.bool_)
    to = coming % stages if into is None else (step + into) % stages
    return np.stack([step % stages, np.where(there, coming, -1), np.where(there, to, -1)], axis=1).astype(np.int32)


def _stages_cases(rng: np.random.Generator) -> list[Case]:
    def case(steps: int, stages: int) -> Case:
        out = unwritten((steps, 3), np.int32)
        expected = {1: _plan(steps, stages, ahead=stages - 1)}
        name = f"{steps} step{'s' * (steps > 1)} and {stages} slots"
        return Case(name, (np.int32(stages), out), blocks(steps, STEPS), STEPS, expected)

    drawn = int(rng.integers(66, 4096)), int(rng.integers(2, 9))
    return [case(*one) for one in ((64, 3), (1, 2), (5, 4), (2, 4), (65, 3), (130, 5), (192, 4), drawn)]


@cuda.jit
def stages_answer(stages, out):
    step = cuda.grid(1)
    if step < out.shape[0]:
        coming = step + stages - 1
        out[step, 0] = step % stages
        out[step, 1] = coming if coming < out.shape[0] else -1
        out[step, 2] = coming % stages if coming < out.shape[0] else -1


STAGES = Exercise(
    name="tensor_cores/stages",
    task="A product takes a number of steps, each with tiles of its own, and shared memory has slots for the tiles of "
    "several stages. The tiles of step s go to slot s % stages. In each step, a block first waits for the tiles of "
    "that step and for all threads. Then it begins to copy the tiles of a later step, the furthest one whose slot "
    "nobody reads any more, and multiplies. Write the plan: out[s] = (the slot that step s reads, the step whose tiles "
    "it begins to copy, the slot that they go to). Beyond the last step nothing is copied: write -1 for both. A "
    "thread plans a step.",
    parameters="stages, out",
    cases=_stages_cases,
    budget=lambda case: dict.fromkeys(("global_store_sectors", "global_store_requests"), (float("inf"), "")),
    hints=(
        "When all threads have passed the barrier of step s, nobody reads the slot of step s - 1.",
        "The next step that uses the slot of step s - 1 is s - 1 + stages.",
    ),
    answer=stages_answer,
    traps=(
        Trap(
            "one too far",
            "step s copies the tiles of step s + stages: these go to the slot that it reads itself",
            lambda stages, out: {1: _plan(len(out), int(stages), ahead=int(stages))},
        ),
        Trap(
            "one ahead",
            "step s copies the tiles of the next step: with more slots they can be further ahead",
            lambda stages, out: {1: _plan(len(out), int(stages), ahead=1)},
        ),
        Trap(
            "no end",
            "tiles beyond the last step are copied",
            lambda stages, out: {1: _plan(len(out), int(stages), ahead=int(stages) - 1, ends=False)},
        ),
        Trap(
            "slot of the step",
            "the tiles go to the slot that the step reads: their own slot is that of their own step",
            lambda stages, out: {1: _plan(len(out), int(stages), ahead=int(stages) - 1, into=0)},
        ),
    ),
)

EXERCISES = (FRAGMENT, SWIZZLE, STAGES)
