"""Exercises of notebooks/43_warpgroups.ipynb: where a chunk of a tile lies, and which phases are waited for."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

STEPS = 64  # of a block of threads in warpgroups/phases: a thread writes the plan of a step
WIDE = 64  # columns of a panel
THREADS = 128  # of a block in warpgroups/panels: a thread moves elements of its own


# ------------------------------------------------------------------------------------------------- warpgroups/phases


def _plan(
    steps: int, stages: int, *, by_step: bool = False, same: bool = False, flipped: bool = False, uses: bool = False
) -> np.ndarray:
    """For each step: its stage, the parity that a consumer waits for, and the one that the producer waits for."""
    step = np.arange(steps)
    used = step // stages
    parity = step % 2 if by_step else used if uses else used % 2
    full, empty = parity, parity if same else 1 - parity
    return np.stack([step % stages, *((empty, full) if flipped else (full, empty))], axis=1).astype(np.int32)


def _phases_cases(rng: np.random.Generator) -> list[Case]:
    def case(steps: int, stages: int) -> Case:
        out = unwritten((steps, 3), np.int32)
        name = f"{steps} step{'s' * (steps > 1)} and {stages} stages"
        args = np.int32(stages), out
        return Case(name, args, blocks(steps, STEPS), STEPS, {1: _plan(steps, stages)})

    drawn = int(rng.integers(66, 4096)), int(rng.integers(3, 9))
    return [case(*one) for one in ((64, 4), (1, 3), (5, 4), (65, 3), (130, 5), (192, 2), drawn)]


@cuda.jit
def phases_answer(stages, out):
    step = cuda.grid(1)
    if step < out.shape[0]:
        parity = step // stages % 2
        out[step, 0] = step % stages
        out[step, 1] = parity
        out[step, 2] = 1 - parity


PHASES = Exercise(
    name="warpgroups/phases",
    task="A producer copies the tiles of step s to stage s % stages, and consumers multiply them. Each stage has two "
    "mbarriers. full ends a phase each time that the stage has been filled, and empty each time that the consumers "
    "have used it. wait(parity) goes on when the phase of this parity has ended; the first phase has parity 0, the "
    "second 1, the third 0. A barrier whose first phase is under way counts as one whose phase of parity 1 has ended, "
    "so the producer need not wait before it fills a stage for the first time. Write down for each step: out[s] = (the "
    "stage, the parity with which a consumer waits at full, the parity with which the producer waits at empty). A "
    "thread writes those of a step.",
    parameters="stages, out",
    cases=_phases_cases,
    budget=lambda case: dict.fromkeys(("global_store_sectors", "global_store_requests"), (float("inf"), "")),
    hints=(
        "How often has a stage been used before step s? That number also counts the phases of its barriers.",
        "For the first use the consumer waits with 0, and the producer must pass: with 1.",
    ),
    answer=phases_answer,
    traps=(
        Trap(
            "parity of the step",
            "the parity changes with every step: a barrier belongs to a stage, and counts the uses of that stage",
            lambda stages, out: {1: _plan(len(out), int(stages), by_step=True)},
        ),
        Trap(
            "same parity",
            "producer and consumers wait with the same parity: then both wait for ever, each for the other",
            lambda stages, out: {1: _plan(len(out), int(stages), same=True)},
        ),
        Trap(
            "exchanged",
            "the parities of consumer and producer are exchanged: in its first step the consumer would not wait at all",
            lambda stages, out: {1: _plan(len(out), int(stages), flipped=True)},
        ),
        Trap(
            "number of the phase",
            "the number of the phase is written and not its parity, which is 0 or 1",
            lambda stages, out: {1: _plan(len(out), int(stages), uses=True)},
        ),
    ),
)


# ------------------------------------------------------------------------------------------------- warpgroups/panels


def _panels(
    b: np.ndarray, *, swizzled: bool = True, panels: bool = True, column: bool = False, inside: bool = False
) -> np.ndarray:
    rows, columns = b.shape
    row, at = np.ogrid[:rows, :columns]
    panel, within = (at // WIDE, at % WIDE) if panels else (0 * at, at)
    moved = (at if column else row) % 8 if swizzled else 0
    chunk, rest = (within // 8, at % 8 ^ moved) if inside else (within // 8 ^ moved, at % 8)
    width = WIDE if panels else columns
    out = np.full(b.size, np.nan, np.float32)
    out[(panel * rows * WIDE + row * width + chunk * 8 + rest).reshape(-1)] = b.reshape(-1)
    return out


def _panels_cases(rng: np.random.Generator) -> list[Case]:
    def case(rows: int, columns: int) -> Case:
        b = (rng.permutation(rows * columns) + 1).astype(np.float32).reshape(rows, columns)
        out = unwritten(b.size, np.float32)
        return Case(f"{rows} x {columns}", (b, out), blocks(b.size, 8 * THREADS), THREADS, {1: _panels(b)})

    return [case(*one) for one in ((64, 128), (16, 64), (8, 256), (24, 192))]


@cuda.jit
def panels_answer(b, out):
    rows = b.shape[0]
    for i in range(cuda.grid(1), b.size, cuda.gridsize(1)):
        row, column = i // b.shape[1], i % b.shape[1]
        chunk = column % 64 // 8 ^ row % 8
        out[column // 64 * rows * 64 + row * 64 + chunk * 8 + column % 8] = b[row, column]


PANELS = Exercise(
    name="warpgroups/panels",
    task="Put a tile b, of rows x columns, where wgmma reads its second operand. The columns are a multiple of 64. The "
    "tile is cut into panels of 64 columns. In out, the first panel comes first, row after row, then the second one, "
    "and so on. So each row of a panel has 64 elements: 8 chunks of 8. Within its row, chunk c of row r goes to place "
    "c ^ (r % 8). A grid of any size must do.",
    parameters="b, out",
    cases=_panels_cases,
    budget=lambda case: dict.fromkeys(
        [f"global_{way}_{what}" for way in ("load", "store") for what in ("sectors", "requests")], (float("inf"), "")
    ),
    hints=(
        "A panel has rows * 64 elements, and column // 64 is the panel of a column.",
        "In its panel, an element is in column % 64, so in chunk column % 64 // 8.",
    ),
    answer=panels_answer,
    traps=(
        Trap(
            "straight",
            "no chunk has moved: the exclusive or is missing",
            lambda b, out: {1: _panels(b, swizzled=False)},
        ),
        Trap(
            "by the column",
            "the exclusive or is one with the column: with the number of the row the rows of a chunk meet all banks",
            lambda b, out: {1: _panels(b, column=True)},
        ),
        Trap(
            "inside of chunks",
            "elements have moved inside of their chunk: whole chunks are to move",
            lambda b, out: {1: _panels(b, inside=True)},
        ),
        Trap(
            "whole rows",
            "rows are stored whole: a panel of 64 columns comes after the other",
            lambda b, out: {1: _panels(b, panels=False, swizzled=False)},
        ),
    ),
)

EXERCISES = (PHASES, PANELS)
