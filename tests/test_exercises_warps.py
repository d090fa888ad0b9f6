"""The exercises of chapter 4: other right answers pass, and each is a kernel for a GPU, too. What it says of registers.

Wrong answers are in tests/wrong/warps.py; tests/test_exercises.py shows that each is found out for its reason.
"""

import math
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from wrong.warps import ANSWERS

from pmpp import cuda, matmul, simt
from pmpp.exercises.warps import EXERCISES, active_lanes_answer, branch_start, ragged_start, renumber_start
from pmpp.lab import device, notebooks
from pmpp.lab.exercise import check, exercise

WARP, BLOCK, PAIRS, ROWS, COLUMNS = 32, 256, 128, 8, 32
KERNELS = [one for one in EXERCISES if one.inputs[0].grid is not None]
RIGHT = [(one.name, one.answer) for one in EXERCISES]


def right(name):
    return lambda answer: RIGHT.append((name, answer)) or answer


@right("warps/branch")
@cuda.jit
def branch_by_even_and_odd_warps(x, out):
    warp, lane = cuda.grid(1) // WARP, cuda.grid(1) % WARP
    k = warp // 2 * WARP + lane
    if k < x.size:
        if warp % 2 == 0:
            out[0, k] = math.sqrt(x[k])
        else:
            out[1, k] = x[k] * x[k]


@right("warps/branch")
@cuda.jit
def branch_that_returns_early(x, out):
    k = cuda.blockIdx.x * PAIRS + cuda.threadIdx.x % PAIRS
    if k >= x.size:
        return
    value = x[k]
    if cuda.threadIdx.x >= PAIRS:
        out[1, k] = value * value
        return
    out[0, k] = math.sqrt(value)


@right("warps/renumber")
@cuda.jit
def renumber_by_lane_and_warp(x, out):
    y = cuda.threadIdx.y
    row = cuda.blockIdx.y * ROWS + y // 8
    column = cuda.blockIdx.x * COLUMNS + y % 8 * 4 + cuda.threadIdx.x
    if row < x.shape[0] and column < x.shape[1]:
        out[row, column] = -x[row, column]


@right("warps/renumber")
@cuda.jit
def renumber_whole_sectors(x, out):  # a warp is 8 x 4, and 8 float32 are a sector: nothing travels for nothing
    thread = cuda.threadIdx.x * cuda.blockDim.y + cuda.threadIdx.y
    row, column = cuda.blockIdx.y * ROWS + thread // WARP, cuda.blockIdx.x * COLUMNS + thread % WARP
    if row < x.shape[0] and column < x.shape[1]:
        out[row, column] = -x[row, column]


@right("warps/ragged")
@cuda.jit
def ragged_while(x, starts, scale, out):
    row = cuda.blockIdx.x * 8 + cuda.threadIdx.x // WARP
    if row >= scale.size:
        return
    factor, end = scale[row], starts[row + 1]
    j = starts[row] + cuda.laneid
    while j < end:
        out[j] = factor * x[j]
        j += WARP


@right("warps/active_lanes")
def lanes_by_padding(trips, block):
    warps = -(-block // WARP)
    padded = np.zeros((trips.size // block, warps * WARP), np.int64)
    padded[:, :block] = trips.reshape(-1, block)
    return trips.sum() / padded.reshape(-1, WARP).max(axis=1).sum()


@pytest.mark.parametrize(("name", "answer"), RIGHT, ids=lambda value: getattr(value, "__name__", None))
def test_a_right_answer_passes(name, answer):
    verdict = check(name, answer)
    assert verdict, verdict.message


@pytest.mark.parametrize(("name", "answer"), RIGHT, ids=lambda value: getattr(value, "__name__", None))
def test_a_right_answer_is_one_for_a_gpu_too(name, answer, ptx):
    case = exercise(name).inputs[0]
    if case.grid is not None:
        assert ".entry" in ptx(answer, *case.args)


@pytest.mark.parametrize("start", [branch_start, renumber_start, ragged_start])
def test_what_the_reader_starts_from_is_right_but_wasteful(start, ptx):
    name = f"warps/{start.py_func.__name__.removesuffix('_start')}"
    for case in exercise(name).inputs:
        args = [arg.copy() if isinstance(arg, np.ndarray) else arg for arg in case.args]
        simt.profile(start, case.grid, case.block, args, level="check")
        for index, expected in case.expected.items():
            np.testing.assert_array_equal(args[index], np.asarray(expected, args[index].dtype))
    assert ".entry" in ptx(start, *case.args)
    assert check(name, start).mistake in ("too much divergence", "uncoalesced")


def test_each_exercise_has_five_wrong_answers_and_every_trap_springs():
    count = Counter(wrong.exercise for wrong in ANSWERS)
    for one in EXERCISES:
        assert count[one.name] >= 5
        found = {wrong.mistake for wrong in ANSWERS if wrong.exercise == one.name}
        assert {trap.mistake for trap in one.traps} <= found


@cuda.jit
def rounds(trips, done):
    i = cuda.grid(1)
    for _ in range(trips[i]):
        done[i] += 1


@pytest.mark.parametrize("case", exercise("warps/active_lanes").inputs, ids=lambda case: case.name)
def test_active_lanes_are_those_that_the_interpreter_counts(case):
    trips, block = case.args
    report = simt.profile(rounds, trips.size // block, block, (trips, np.zeros_like(trips)))
    body = max(report.by_line)  # the last line of the kernel
    counts = report.by_line[body]
    assert active_lanes_answer(trips, block) == counts["thread_inst_memory"] / counts["inst_memory"]


# ------------------------------------------------------------------------ what the chapter says of matrix products


@pytest.fixture(scope="module")
def chapter():
    """The names that the cell with the registers of the matrix products defines."""
    pytest.importorskip("jupytext", reason="chapters need the extra 'lab'")
    notebook = notebooks.read_source(Path(__file__).parents[1] / "notebooks" / "source" / "04_warps.py")
    (cell,) = (cell for cell in notebook.cells if cell.source.startswith("TAKES = {"))
    names = {"matmul": matmul, "simt": simt}
    exec(cell.source, names)
    return names


@pytest.mark.skipif(device.on_gpu(), reason="the interpreter reports what it launches")
@pytest.mark.parametrize("rung", matmul.LADDER, ids=lambda rung: rung.name)
def test_the_occupancy_of_a_matrix_product_is_that_of_its_launch(chapter, rung):
    a = np.ones((128, 128), np.float32)
    with simt.record("run") as reports:
        rung(a, a)
    (report,) = reports
    found = chapter["ladder"][rung.name]
    assert found.threads == math.prod(report.block)
    copies = 2 if rung.name == "prefetched" else 1  # compiled once for the usual case and once for the others
    assert found.shared_bytes == copies * report.shared_bytes


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="needs ptxas, of the CUDA toolkit")
@pytest.mark.parametrize("name", ["coarsened", "prefetched"])
def test_the_registers_of_a_matrix_product_are_those_that_the_compiler_reports(chapter, ptx, tmp_path, name):
    """Compared by the blocks that fit: another compiler takes some registers more or fewer."""
    a = np.ones((128, 128), np.float32)
    kernel = getattr(matmul, f"{name}_kernel")
    text = ptx(kernel, a, a, a, *((True, True) if name == "prefetched" else ()), cc=(9, 0))
    version = subprocess.run(["ptxas", "-V"], check=True, capture_output=True, text=True).stdout
    major, minor = re.search(r"release (\d+)\.(\d+)", version).groups()
    # An older ptxas refuses the number of a newer language, not what is written in it: CUDA 13.0 reads PTX 9.0.
    text = re.sub(r"\.version .*", f".version {int(major) - 4}.{minor}", text)
    (tmp_path / "kernel.ptx").write_text(text)
    command = ["ptxas", "-v", "-arch=sm_90", "kernel.ptx", "-o", "kernel.cubin"]
    said = subprocess.run(command, check=True, cwd=tmp_path, capture_output=True, text=True)
    registers = int(re.search(r"Used (\d+) registers", said.stdout + said.stderr)[1])
    stated = chapter["ladder"][name]
    assert simt.occupancy(stated.threads, stated.shared_bytes, registers).blocks == stated.blocks
