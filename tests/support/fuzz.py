"""Random expressions in the interpreter and in Numba's own code.

    python -m tests.support.fuzz --count 10000 --seed 1

prints each case in which the two differ.  tests/support/fuzz_cases.py writes the cases, and tests/support/lowered.py
runs what Numba makes of them for a GPU on this machine.  The types of both results must be the same, and the values
equal in each bit, but for the sign and payload of NaN.  What Numba refuses must be refused.  `KNOWN` and `OPTIMISED`
name where the interpreter differs on purpose, and why.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import pickle
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from pmpp import simt
from pmpp.simt.front.compiler import compile_function
from pmpp.simt.host.launch import _Arguments
from pmpp.simt.machine.frames import Frame
from pmpp.simt.machine.machine import Launch, Machine
from pmpp.simt.machine.turns import plain
from pmpp.simt.values import complexes
from tests.support import fuzz_cases, lowered
from tests.support.compiled import CACHE, compiler_versions
from tests.support.fuzz_cases import ROWS, Case
from tests.support.lowered import Outcome

#: Cases a function, and those that may raise an exception: one that does is found by halving.
BATCH, RISKY_BATCH = 16, 6


class Known(NamedTuple):
    """A difference that is meant: what it is called, its reason, and whether it explains a case."""

    name: str
    reason: str
    explains: Callable[[Case, Any, Outcome], bool]


KNOWN = (
    Known(
        "division in place of integers",
        "Numba gives `i /= j` the type int64 and the value float64.  It compiles where nothing uses the result, and "
        "only there; the interpreter refuses it wherever a thread executes it.",
        lambda case, ours, theirs: "/= on two integers" in str(ours) and not theirs.refused,
    ),
    Known(
        "types where no thread is",
        "The interpreter types what it runs.  Numba also refuses a function for an operator that no thread reaches, or "
        "whose operand has no fitting type in another round of a loop.",
        lambda case, ours, theirs: bool(theirs.refused) and case.has_paths(),
    ),
    Known(
        "types that Numba's inference left behind",
        "In a loop Numba types an expression anew when its operands have got other types, and unifies all the types "
        "that it had: `v >>= 1` of a uint8 that becomes an int64 is float64.",
        lambda case, ours, theirs: case.has_loops() and _wider(theirs, ours),
    ),
)


def _wider(theirs: Outcome, ours: Any) -> bool:
    return isinstance(ours, np.ndarray) and ours.dtype != theirs.dtype == np.promote_types(ours.dtype, theirs.dtype)


#: Rules of the interpreter that come of optimisation, which Numba's own code knows nothing of: names to put others in
#: the place of, and why.
OPTIMISED = {
    "fused complex products": (
        "NVIDIA's compiler fuses the products and sums of a complex product or quotient, as an H200 shows "
        "(tests/simt/test_edges_gpu.py).",
        mock.patch.multiple(
            complexes,
            _fma=lambda a, b, c: a * b + c,
            _multiply128=lambda a, b: complexes._complex(
                -(a.imag * b.imag) + a.real * b.real, a.real * b.imag + a.imag * b.real
            ),
        ),
    ),
}


# -- the interpreter -------------------------------------------------------------------------------------------------


def interpreted(
    cases: list[Case], seed: int, folder: Path, rows: Sequence[int] = range(ROWS)
) -> dict[int, np.ndarray | Exception]:
    """What the interpreter makes of each case: a result for each of these rows, or the error that it raised."""
    path = folder / f"kernel_{cases[0].number}_{len(cases)}.py"
    path.write_text(fuzz_cases.module(cases, kernel=True))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    arrays = [np.array(rows, np.int64), *fuzz_cases.arguments(fuzz_cases.parameters(cases), seed)]
    try:
        found = _results(module.run, arrays, [f"r{case.number}" for case in cases])
    except (simt.SimtError, TypeError) as error:
        if len(cases) == 1:
            return {cases[0].number: error}
        half = len(cases) // 2
        return interpreted(cases[:half], seed, folder, rows) | interpreted(cases[half:], seed, folder, rows)
    return {case.number: found[f"r{case.number}"] for case in cases}


def _results(kernel: Any, arrays: list[np.ndarray], names: list[str]) -> dict[str, np.ndarray]:
    """Variables of a kernel at its end, a thread a row."""
    function, count = compile_function(kernel.py_func), arrays[0].size
    arguments = _Arguments(function, tuple(arrays), None).values
    m = Machine(Launch("fuzz", function.file, function.source_file, (1, 1, 1), (count, 1, 1), arguments=arguments))
    lanes = next(m.batches())
    frame = Frame(m, function, lanes.full)
    frame.vars.update(arguments)
    with np.errstate(all="ignore"):
        plain(function.body)(frame)
    found = {}
    for name in names:
        value = frame.vars[name]
        value = value.read(frame, lanes.full, 0) if hasattr(value, "read") else value
        found[name] = np.broadcast_to(value, (1, lanes.width))[0, :count]
    return found


# -- Numba -----------------------------------------------------------------------------------------------------------


def by_numba(batches: list[list[Case]], seed: int, folder: Path) -> dict[int, Outcome]:
    """What Numba makes of each case, kept as compiled PTX is."""
    said = [Path(module.__file__).read_bytes() for module in (fuzz_cases, lowered)]
    asked = [[case.text for case in cases] for cases in batches], seed, compiler_versions()
    kept = CACHE.parent / "fuzz" / hashlib.sha256(b"".join([repr(asked).encode(), *said])).hexdigest()
    with contextlib.suppress(FileNotFoundError):
        return pickle.loads(kept.read_bytes())
    found: dict[int, Outcome] = {}
    compiler = lowered.Compiler()
    for cases in batches:
        found |= lowered.outcomes(compiler, cases, seed, folder)
    kept.parent.mkdir(parents=True, exist_ok=True)
    new = folder / "outcomes"
    new.write_bytes(pickle.dumps(found))
    shutil.move(new, kept)
    return found


# -- differences -----------------------------------------------------------------------------------------------------


def difference(case: Case, ours: Any, theirs: Outcome, seed: int, folder: Path) -> str:
    """In words, how the interpreter's result differs from Numba's; empty if it does not."""
    if theirs.refused:
        return "" if isinstance(ours, Exception) else f"Numba refuses it: {theirs.refused[:200]!r}"
    raised = theirs.raised
    if raised.any():
        if not isinstance(ours, Exception):
            return f"Numba raises an exception in row {np.argmax(raised)}"
        if raised.all():
            return ""
        ours = interpreted([case], seed, folder, np.flatnonzero(~raised).tolist())[case.number]
    if isinstance(ours, Exception):
        return f"Numba takes it ({theirs.dtype}); here: {type(ours).__name__}: {ours}"
    if str(ours.dtype) != theirs.dtype:
        return f"the type is {ours.dtype}, Numba's {theirs.dtype}"
    wanted = theirs.values[~raised]
    same = _same(ours, wanted, case.tolerant)
    if same.all():
        return ""
    row = int(np.argmin(same))
    where = f"{np.count_nonzero(~same)} rows, the first {np.flatnonzero(~raised)[row]}"
    return f"{where}: {ours[row]!r}, Numba {wanted[row]!r}"


def _same(ours: np.ndarray, wanted: np.ndarray, tolerant: bool) -> np.ndarray:
    if ours.dtype.kind == "c":
        return _same(ours.real, wanted.real, tolerant) & _same(ours.imag, wanted.imag, tolerant)
    if ours.dtype.kind != "f":
        return ours == wanted
    same = (ours == wanted) & (np.signbit(ours) == np.signbit(wanted)) | (np.isnan(ours) & np.isnan(wanted))
    if tolerant:  # a few units in the last place, from two libraries
        with np.errstate(all="ignore"):
            same |= np.abs(ours - wanted) <= 8 * np.spacing(np.abs(wanted))
    return same


def differences(
    count: int, seed: int, start: int = 0, half: bool = False, at_once: int = 400
) -> Iterator[tuple[Case, str, str]]:
    """The cases in which the interpreter and Numba differ, how, and the name of what explains it, or ""."""
    for first in range(start, start + count, at_once):
        numbers = range(first, min(first + at_once, start + count))
        yield from _differences([fuzz_cases.case(seed, number, half) for number in numbers], seed)


def _differences(cases: list[Case], seed: int) -> Iterator[tuple[Case, str, str]]:
    batches = []
    for risky, size in ((False, BATCH), (True, RISKY_BATCH)):
        chosen = [case for case in cases if case.may_raise == risky]
        batches += [chosen[k : k + size] for k in range(0, len(chosen), size)]
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as patches:
        folder = Path(name)
        theirs = by_numba(batches, seed, folder)
        for _, patch in OPTIMISED.values():
            patches.enter_context(patch)
        for batch in batches:
            ours = interpreted(batch, seed, folder)
            for case in batch:
                mine, other = ours[case.number], theirs[case.number]
                what = difference(case, mine, other, seed, folder)
                if what:
                    yield case, what, next((known.name for known in KNOWN if known.explains(case, mine, other)), "")


def main() -> None:
    """See the top of this file."""
    parser = argparse.ArgumentParser(description="Random expressions in the interpreter and in Numba's own code.")
    parser.add_argument("--count", type=int, default=300, help="cases")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", type=int, default=0, help="the number of the first case")
    parser.add_argument("--half", action="store_true", help="with float16")
    given = parser.parse_args()
    explained: Counter[str] = Counter()
    for case, what, name in differences(given.count, given.seed, given.start, given.half):
        explained[name] += 1
        if not name:
            print(f"\n# case {case.number}: {what}\n{case.text}", flush=True)
    print(f"\n{given.count:,} cases, {explained.pop('', 0)} differ")
    for known in KNOWN:
        if explained[known.name]:
            print(f"{explained[known.name]} more: {known.name}. {known.reason}")
    for name, (reason, _) in OPTIMISED.items():
        print(f"left out: {name}. {reason}")


if __name__ == "__main__":
    main()
