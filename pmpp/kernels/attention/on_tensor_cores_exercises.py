"""Exercise of notebooks/87_attention_on_tensor_cores.ipynb: where a weight has to be for the second product."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

LANES, REGISTERS = 32, 4


def _words(w: np.ndarray, *, columns_first: bool = False, down: bool = False, along: bool = False) -> np.ndarray:
    """What each lane has in each half of each register, of matrices of 16 x 16 below each other."""
    matrix, lane, register, half = np.ogrid[: w.shape[0] // 16, :LANES, :REGISTERS, :2]
    below, beside = (register // 2, register % 2) if columns_first else (register % 2, register // 2)
    first, second = (lane % 4 * 2, lane // 4) if along else (lane // 4, lane % 4 * 2)
    row, column = first + 8 * below, second + 8 * beside
    row, column = (row + half, column) if down else (row, column + half)
    return w[16 * matrix + row % 16, column % 16]


def _cases(rng: np.random.Generator) -> list[Case]:
    def case(matrices: int) -> Case:
        w = (rng.permutation(256 * matrices) + 1).astype(np.float32).reshape(-1, 16)
        out = unwritten((matrices, LANES, REGISTERS, 2), np.float32)
        return Case(f"{matrices} matri{'x' if matrices == 1 else 'ces'}", (w, out), matrices, LANES, {1: _words(w)})

    return [case(n) for n in (1, 2, 5, int(rng.integers(6, 20)))]


@cuda.jit
def operand_answer(w, out):
    matrix, lane = cuda.blockIdx.x, cuda.threadIdx.x
    for register in range(4):
        row = 16 * matrix + lane // 4 + 8 * (register % 2)
        column = lane % 4 * 2 + 8 * (register // 2)
        for half in range(2):
            out[matrix, lane, register, half] = w[row, column + half]


OPERAND = Exercise(
    name="on_tensor_cores/operand",
    task="Weights are the first operand of the second product. w has matrices of 16 x 16 weights below each other, and "
    "a block of 32 threads has one of them: block b has rows 16 b to 16 b + 15. Write down what lane l holds of it in "
    "the lower and the upper half of each of its four registers: out[b, l, register, half]. Lane 4 g + t has rows g "
    "and g + 8, and in each half of the columns the two neighbours from 2 t on. Registers 0 and 1 are of the first 8 "
    "columns, 2 and 3 of the others; 0 and 2 are of row g, 1 and 3 of row g + 8.",
    parameters="w, out",
    cases=_cases,
    budget=lambda case: dict.fromkeys(
        [f"global_{way}_{what}" for way in ("load", "store") for what in ("sectors", "requests")], (float("inf"), "")
    ),
    hints=(
        "g is lane // 4, and t is lane % 4.",
        "The number of the register says row and column: register % 2 the one, register // 2 the other.",
    ),
    answer=operand_answer,
    traps=(
        Trap(
            "columns before rows",
            "registers 1 and 2 are exchanged: the second register is of the row 8 below",
            lambda w, out: {1: _words(w, columns_first=True)},
        ),
        Trap(
            "pairs down a column",
            "the halves of a register are neighbours in a column: in the first operand they are neighbours in a row",
            lambda w, out: {1: _words(w, down=True)},
        ),
        Trap(
            "rows by lane % 4",
            "rows and columns of the lanes are exchanged: four lanes that follow each other share a row",
            lambda w, out: {1: _words(w, along=True)},
        ),
    ),
)

EXERCISES = (OPERAND,)
