"""Why the hardware's counts differ from the interpreter's, case by case, as read from the machine code.

The machine code is Numba 0.68's (numba-cuda 0.30) for compute capability 9.0; another compiler may decide otherwise.
`Reason` names the machine instructions that show it: they must be among those that the recorded launch executed.
"""

from __future__ import annotations

from pmpp.lab.measure.agreement import Reason

DIVERGENT, ATOMICS = "divergent branches", "atomic requests"
LOADS, LOAD_SECTORS = "global load requests", "global load sectors"
SHARED, WAVEFRONTS, CONFLICTS = "shared load requests", "shared load wavefronts", "shared load bank conflicts"

EXIT = Reason("lanes that fail the last test leave by an EXIT with a predicate, and that is no branch", "@EXIT")
EXIT_AND_PREDICATE = Reason(
    "the last test is an EXIT with a predicate, the guard of a load is a predicate of the load: neither is a branch",
    "@EXIT", "@LDG",
)  # fmt: skip
MERGED = Reason("two loads of one element are one", "LDG.E")
QUADS = Reason("the loop is unrolled, and four neighbours in a row of A's tile are one load", "LDS.128")
PAIRS = Reason("the loop is unrolled by two, and two neighbours in a row of A's tile are one load", "LDS.64")
UNROLLED = Reason(
    "unrolled by four, the remainder first: the one lane that has a trip more than its warp is an element behind its"
    " neighbours from then on, and touches a sector of its own",
    "LDG.E",
)
BEFORE = Reason("x[i] is loaded on both sides of the branch, here once before it", "LDG.E")
HOISTED = Reason("trips[i] is loaded once, before the loop, which is unrolled by four with the remainder last", "LDG.E")
FOUR = Reason("the loop is unrolled by four: one test where there were four", "@BRA")
SWAPS = Reason(
    "the maximum of floats is a loop of compare-and-swap, and stops at once where it would change nothing; how often it"
    " goes round depends on who comes first, and differs from run to run",
    "ATOMG.E.CAS",
)
SPINS = Reason(
    "shared memory cannot add floats: a loop of LDS, FADD and compare-and-swap, until no other lane got in between;"
    " how often it goes round differs from run to run",
    "ATOMS.CAST.SPIN",
)
FORWARDED = Reason("the value that was just stored is still in a register, and is not loaded", "STS.128")
SUNK = Reason("only lane 0 needs the last addition: it comes after the other lanes have left", "@EXIT", "SHFL.DOWN")
DIVISION = Reason("a division is a routine: an approximate reciprocal and five multiply-adds", "MUFU.RCP", "FFMA")
ROOT = Reason(
    "a square root is a routine: an approximate one, two products and two multiply-adds; here it is no operation",
    "MUFU.RSQ", "FFMA",
)  # fmt: skip
UNIT = Reason(
    "the counter is the memory unit's, and it is another number in each run; for the instructions one by one, ncu's"
    " page of machine code has the interpreter's number",
    "LDS",
)  # fmt: skip
LOCAL = Reason(
    "registers have no index, so the array lies in local memory, which is device memory; here every local array is"
    " registers",
    "STL", "LDL",
)  # fmt: skip

_EXITS = """
vector_add: one_thread_each, vector_add: vectorised, matmul: naive, matmul: coalesced, matmul: tiled, matmul: coarsened,
matmul: vectorised, reduction: interleaved, reduction: sequential, reduction: shared_tree, reduction: vectorised,
reduction: deterministic, transpose: naive, transpose: tiled, transpose: padded, transpose: coarsened,
transpose: vectorised, shuffle, vote, block count, early return
"""
_MORE_EXITS = (
    "load, last warp partial", "stencil, 3 points", "stencil, 5 points", "shared load, float64, 240 patterns",
    "shared load, 128 bits, 240 patterns", "shared store, 128 bits, 240 patterns",
)  # fmt: skip

#: By case and by metric.
DIFFERS: dict[str, dict[str, Reason]] = {
    name: {DIVERGENT: EXIT} for name in (*_EXITS.strip().replace("\n", " ").split(", "), *_MORE_EXITS)
}

_OTHERS = {
    "matmul: tiled": {SHARED: QUADS, WAVEFRONTS: QUADS},
    "matmul: coarsened": {SHARED: PAIRS, WAVEFRONTS: PAIRS},
    "reduction: coarsened": {DIVERGENT: EXIT_AND_PREDICATE},
    "reduction: shuffle": {DIVERGENT: EXIT_AND_PREDICATE},
    "reduction: vectorised": {WAVEFRONTS: UNIT, CONFLICTS: UNIT},
    "grid-stride loop": {LOAD_SECTORS: UNROLLED, "global store sectors": UNROLLED},
    "one load for two": {LOADS: MERGED, LOAD_SECTORS: MERGED},
    "stencil, 3 points": {LOADS: MERGED, LOAD_SECTORS: MERGED},
    "shared store, 128 bits, 240 patterns": {SHARED: FORWARDED, WAVEFRONTS: FORWARDED, CONFLICTS: FORWARDED},
    "atomic, float sum, shared": dict.fromkeys((SHARED, WAVEFRONTS, ATOMICS, DIVERGENT, "flops"), SPINS),
    "atomic, float maximum": dict.fromkeys((LOADS, LOAD_SECTORS, ATOMICS, "global atomic sectors", DIVERGENT), SWAPS),
    "shuffle": {"flops": SUNK},
    "branch by lane, short": {LOADS: BEFORE, LOAD_SECTORS: BEFORE},
    "loop, a count for each lane": {LOADS: HOISTED, LOAD_SECTORS: HOISTED, DIVERGENT: FOUR},
    "division": {"flops": DIVISION},
    "square root": {"flops": ROOT},
    "local array, in memory": {"local memory requests": LOCAL},
}
for _name, _reasons in _OTHERS.items():
    DIFFERS[_name] = DIFFERS.get(_name, {}) | _reasons
