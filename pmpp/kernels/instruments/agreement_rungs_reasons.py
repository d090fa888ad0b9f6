"""Why the hardware's counts differ from the interpreter's for the rungs of `agreement_rungs`.

They were read from the machine code; `agreement_reasons` says of which compiler. Many launches share a reason, so the
table is by reason: of which metrics, and in which launches. The machine instructions that a reason names are among
those that each of these launches executed.
"""

from __future__ import annotations

from pmpp.lab.measure.agreement import Reason

DIVERGENT, ATOMICS, ATOMIC_SECTORS = "divergent branches", "atomic requests", "global atomic sectors"
LOADS, LOAD_SECTORS = "global load requests", "global load sectors"
STORES, STORE_SECTORS = "global store requests", "global store sectors"
SHARED, WAVEFRONTS, CONFLICTS = "shared load requests", "shared load wavefronts", "shared load bank conflicts"
FLOPS = "flops"
SHARED_STORES = ("shared store requests", "shared store wavefronts", "shared store bank conflicts")

FEWER_BRANCHES = Reason(
    "tests that are no branches: a predicate guards the few instructions behind them, a select takes one of two values,"
    " or lanes leave by an EXIT with a predicate; and an unrolled loop asks less often whether it goes on",
    "@",
)  # fmt: skip
APART = Reason(
    "the loop is unrolled, with the remainder in a loop of its own: lanes with different numbers of trips are not at"
    " the same trip, and ask apart",
    "@BRA",
)  # fmt: skip
PIECES = Reason(
    "the loop over a piece is unrolled by four, the remainder one by one, and its two tests are two branches: a lane"
    " with another remainder, or with nothing left of a, loads and stores apart from its neighbours",
    "@BRA", "STG.E",
)  # fmt: skip
ENDS = Reason(
    "the two ends of a section, of which one is used three times, are four loads in the source and one of 128 bits"
    " here; and the loop over a piece is unrolled by four, with lanes of another remainder apart",
    "LDS.128",
)  # fmt: skip
COMPARED = Reason(
    "the element that is stored is the one that was compared, and is still in a register; and the two ends of a section"
    " are one load of 128 bits instead of four",
    "LDS.128",
)  # fmt: skip
TWO_ENDS = Reason(
    "the two ends of a section, of which one is used three times, are four loads in the source and one of 128 bits"
    " here",
    "LDS.128",
)  # fmt: skip
ONE_ADDRESS = Reason(
    "a conditional expression with a load on either side: a select takes one of the two addresses, and a warp with"
    " lanes on both sides loads once",
    "LDG.E",
)  # fmt: skip
FIRST_WARP = Reason("only the first warp uses the total of the block, and only it loads it", "LDS")
POLLS = Reason(
    "a block asks by atomics whether the block before it has published, until it has: how often differs from run to"
    " run",
    "ATOMG.E.ADD.64",
)  # fmt: skip
NOT_TAKEN = Reason(
    "rows of the border keep their values: a branch goes around the sums, which the source makes and does not take",
    "@BRA", "FADD",
)  # fmt: skip
REMADE = Reason(
    "a distance to a point of the grid, i * spacing - x, is one multiply-add in the innermost loop, two operations"
    " where the source has a subtraction there and the product before the loop",
    "FFMA",
)  # fmt: skip
ONCE_A_PLANE = Reason(
    "dz * dz + square is the same for a whole plane, and is made before the loop over its rows", "FFMA"
)
SINE = Reason("sine and cosine are routines of multiply-adds; here they are no operations", "FFMA", "@FFMA")
SIX_OF_EIGHT = Reason("of the eight numbers that two loads bring six are used: the second load has 64 bits", "LDS.64")
ONE_STORE = Reason("four neighbours are stored at once", "STS.128")

#: Reasons for other stores than in the source.
STORED = {PIECES, ONE_STORE}

#: By reason: for each metric the cases, with commas between them.
_TABLE: dict[Reason, dict[str, str]] = {
    FEWER_BRANCHES: {
        DIVERGENT: """stencil: basic, merge: tiled, merge: circular_buffer, sort: merge_sort, sort.selection: by_digits,
            sparse: by_element, sparse: by_row, sparse: staged, wavefront.alignment: many_pairs, potential: scattered,
            potential: in_tiles, potential: coarsened, potential: on_both_units, potential.cutoff: all_asked,
            mri: fissioned, mri: in_tiles""",
    },
    APART: {
        LOADS: "sparse: by_row",
        LOAD_SECTORS: "sparse: by_row, merge: tiled, merge: circular_buffer",
        SHARED: "sparse: staged",
        WAVEFRONTS: "sparse: staged",
        CONFLICTS: "sparse: staged",
    },
    PIECES: {STORES: "merge: tiled, merge: circular_buffer"},
    ENDS: {SHARED: "merge: tiled", WAVEFRONTS: "merge: tiled"},
    COMPARED: dict.fromkeys((SHARED, WAVEFRONTS, CONFLICTS), "merge: circular_buffer"),
    TWO_ENDS: {SHARED: "sort: merge_sort", WAVEFRONTS: "sort: merge_sort"},
    ONE_ADDRESS: {LOADS: "sort: merge_sort"},
    FIRST_WARP: {SHARED: "sort.selection: by_digits", WAVEFRONTS: "sort.selection: by_digits"},
    POLLS: {ATOMICS: "sort.selection: by_digits", ATOMIC_SECTORS: "sort.selection: by_digits"},
    NOT_TAKEN: {FLOPS: "stencil: temporal"},
    REMADE: {
        FLOPS: """potential: in_tiles, potential: coarsened, potential: on_both_units, potential.cutoff: all_asked""",
    },
    ONCE_A_PLANE: {FLOPS: "potential: scattered"},
    SINE: {FLOPS: "mri: fissioned, mri: in_tiles"},
    SIX_OF_EIGHT: {WAVEFRONTS: "mri: in_tiles"},
    ONE_STORE: dict.fromkeys(SHARED_STORES, "potential: on_both_units"),
}

#: By case and by metric.
DIFFERS: dict[str, dict[str, Reason]] = {}
for _reason, _metrics in _TABLE.items():
    for _metric, _cases in _metrics.items():
        for _case in " ".join(_cases.split()).split(", "):
            if _metric in DIFFERS.setdefault(_case, {}):
                raise ValueError(f"{_case}: {_metric}: there are two reasons")
            DIFFERS[_case][_metric] = _reason
