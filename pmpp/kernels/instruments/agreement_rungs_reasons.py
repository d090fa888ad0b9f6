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
LOCAL, FLOPS = "local memory requests", "flops"
SHARED_STORES = ("shared store requests", "shared store wavefronts", "shared store bank conflicts")

FEWER_BRANCHES = Reason(
    "tests that are no branches: a predicate guards the few instructions behind them, a select takes one of two"
    " values, or lanes leave by an EXIT with a predicate; and an unrolled loop asks less often whether it goes on",
    "@",
)  # fmt: skip
APART = Reason(
    "the loop is unrolled, with the remainder in a loop of its own: lanes with different numbers of trips are not at"
    " the same trip, and ask apart",
    "@BRA",
)  # fmt: skip
TWO_LOOPS = Reason(
    "the loop is unrolled, with the remainder in a loop of its own: lanes with different numbers of trips part in both",
    "@BRA",
)  # fmt: skip
ELSE = Reason(
    "a conditional expression around loads is a branch here, and the source has no statement that branches there;"
    " the last test is an EXIT with a predicate",
    "@BRA", "@EXIT",
)  # fmt: skip
SAME = Reason(
    "an element for which the source asks twice, in two lines or on both sides of a condition, is loaded once",
    "LD",
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
COMPARED_ENDS = Reason(
    "the element that is stored is the one that was compared, and is still in a register; and the two ends of a"
    " section are one load of 128 bits instead of four",
    "LDS.128",
)  # fmt: skip
COMPARED = Reason(
    "the elements that are swapped are those that were compared, and are still in registers",
    "LDS",
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
GREATEST = Reason(
    "the greatest element, the last of a or of b, is loaded before the loop that fills the rest of the tile with it,"
    " and not once a trip",
    "LDG.E",
)  # fmt: skip
NO_NEXT = Reason("the last trip of a loop loads the element of a next one; nobody uses it, and it is not loaded", "LDS")
TOTALS = Reason(
    "a total that nobody uses is not loaded, nor is the last counter of a sum that only moves the others on",
    "LDS",
)  # fmt: skip
TOTALS_AND_GAP = Reason(
    "where the gap begins is loaded before the loop, and not twice a trip; and a total that nobody uses is not"
    " loaded, nor is the last counter of a sum that only moves the others on",
    "LDS",
)  # fmt: skip
FIRST_WARP = Reason("only the first warp uses the total of the block, and only it loads it", "LDS")
QUADS = Reason(
    "the loop is unrolled, and four neighbours in a row of the tile to the left are one load of 128 bits",
    "LDS.128",
)  # fmt: skip
BESIDE = Reason(
    "of the four numbers on its side a lane needs one, the last or the first: two loads of 32 bits, one for either"
    " side, take the place of one of 128",
    "LDG.E.128", "LDG.E",
)  # fmt: skip
ONE_BESIDE = Reason(
    "of the four numbers beside a lane's own one is used and loaded, of 32 bits: lanes that are 16 bytes apart meet"
    " in a bank; and warps outside the array load none, since their sums are not stored",
    "LDS", "@BRA",
)  # fmt: skip
COMPLEX = Reason("a complex number is one load in the source, and here one for each of its halves", "LDG.E")
ORDER = Reason(
    "which warp comes first decides where its elements go, and so how many sectors it touches: that differs from run"
    " to run",
    "ATOMG",
)  # fmt: skip
POLLS = Reason(
    "a block asks by atomics whether the block before it has published, until it has: how often differs from run to"
    " run",
    "ATOMG.E.ADD.64",
)  # fmt: skip
SPILLED = Reason(
    "there are more values than registers: some wait in local memory, which is device memory; here every value has a"
    " register",
    "STL", "LDL",
)  # fmt: skip
NOT_TAKEN = Reason(
    "the source makes sums for all threads, and then does not take those of cells of the border or outside the"
    " array; here they are made behind the tests, and left out",
    "@BRA", "FADD",
)  # fmt: skip
REMADE = Reason(
    "a coordinate, i * spacing, is made anew where a number is subtracted from it: one multiply-add, two operations,"
    " where the source has a subtraction, and the product before the loop",
    "FFMA",
)  # fmt: skip
ONCE_A_PLANE = Reason("dz * dz + square is the same in a whole plane, made before the loop over rows", "FFMA")
SINE = Reason("sine and cosine are routines of multiply-adds; here they are no operations", "FFMA", "@FFMA")
TURNS = Reason(
    "the instructions for sine and cosine take their argument in turns, and the product with 1 / 2 pi that makes it"
    " so is an operation; here they are none",
    "MUFU.SIN", "FMUL.RZ",
)  # fmt: skip
RECIPROCAL = Reason(
    "1 / n is a routine: an approximate reciprocal, two multiply-adds and a change of sign; and the first term of a"
    " sum is not added to 0",
    "MUFU.RCP", "FFMA",
)  # fmt: skip
ONE_OF_FOUR = Reason(
    "a thread makes four numbers and keeps one: a predicate guards the multiply-adds of some of the others",
    "@FFMA",
)  # fmt: skip
LANE_0 = Reason(
    "only lane 0 uses the sum of a warp: the other lanes leave out the last two of their additions, which nobody uses",
    "SHFL.BFLY", "FADD",
)  # fmt: skip
SIX_OF_EIGHT = Reason("of the eight numbers that two loads bring six are used: the second load has 64 bits", "LDS.64")
ONE_STORE = Reason("four neighbours are stored at once", "STS.128")

#: Reasons for other stores than in the source.
STORED = {PIECES, ONE_STORE}

_MERGES = "merge: tiled, merge: circular_buffer"
_TEAMS = "sparse: by_row, sparse: warp_per_row, sparse: team_per_row"
_FILTERS = "filter: atomic, filter: warp_aggregated, filter: privatised"
_WITH_POLLS = "sort.selection: by_digits"
_FLUSHED = "histogram: privatised, histogram: coarsened, histogram: aggregated"
_FAST = "mri: fast_trigonometry, mri: several_voxels, mri: in_parts, mri: unreduced"

#: By reason: for each metric the cases, with commas between them.
_TABLE: dict[Reason, dict[str, str]] = {
    FEWER_BRANCHES: {
        DIVERGENT: """images.grey: rows_first, images.grey: columns_first, images.grey: sixteen_each,
            images.blur: direct, images.blur: running, stencil: basic, stencil: tiled, stencil: register_tiled,
            stencil: in_flight, histogram: global_atomics, histogram: per_thread, filter: atomic,
            filter: warp_aggregated, filter: privatised, filter: by_scan, filter: tiled,
            merge: co_ranked, merge: tiled, merge: circular_buffer, merge: partitioned, merge: vectorised,
            sort: bitonic, sort: bitonic_shared, sort: merge_sort, sort: one_bit, sort: local,
            sort: one_sweep, sort.pairs: one_bit, sort.pairs: one_sweep, sort.selection: by_sorting,
            sort.selection: by_digits, sparse: by_element, sparse: by_row, sparse: batched, sparse: warp_per_row,
            sparse: staged, sparse: merged, wavefront.alignment: by_diagonal, wavefront.alignment: one_launch,
            wavefront.alignment: many_pairs, wavefront.shortest_paths: by_vertex,
            wavefront.shortest_paths: in_pieces, wavefront.shortest_paths: by_fours, potential: scattered,
            potential: gathered, potential: in_tiles, potential: coarsened, potential: coalesced,
            potential: on_both_units, potential.cutoff: all_asked, potential.cutoff: binned,
            potential.cutoff: by_box, mri: scattered, mri: interchanged, mri: fissioned, mri: in_tiles,
            mri: fast_trigonometry, random: one_each""",
    },
    TWO_LOOPS: {
        DIVERGENT: """images.blur: separable, histogram: coarsened, histogram: wide_bytes, sparse: team_per_row""",
    },
    ELSE: {DIVERGENT: "wavefront.shortest_paths: blocked"},
    APART: {
        LOADS: f"images.blur: separable, images.blur: running, {_TEAMS}, potential.cutoff: binned",
        LOAD_SECTORS: f"images.blur: separable, {_TEAMS}, {_MERGES}, potential.cutoff: binned",
        **dict.fromkeys((SHARED, WAVEFRONTS, CONFLICTS), "sparse: staged, sparse: merged"),
    },
    SAME: {
        **dict.fromkeys((LOADS, LOAD_SECTORS), "filter: atomic, sort: one_bit, sort.pairs: one_bit"),
        **dict.fromkeys((SHARED, WAVEFRONTS), f"{_FLUSHED}, sort: local"),
    },
    PIECES: {LOADS: "merge: co_ranked", LOAD_SECTORS: "merge: co_ranked", STORES: f"{_MERGES}, merge: co_ranked"},
    ENDS: dict.fromkeys((SHARED, WAVEFRONTS), "merge: tiled"),
    COMPARED_ENDS: dict.fromkeys((SHARED, WAVEFRONTS, CONFLICTS), "merge: circular_buffer"),
    COMPARED: dict.fromkeys((SHARED, WAVEFRONTS, CONFLICTS), "sort: bitonic_shared"),
    TWO_ENDS: dict.fromkeys((SHARED, WAVEFRONTS), "sort: merge_sort"),
    ONE_ADDRESS: {LOADS: "sort: merge_sort"},
    GREATEST: dict.fromkeys((LOADS, LOAD_SECTORS), "merge: partitioned, merge: vectorised"),
    NO_NEXT: dict.fromkeys((SHARED, WAVEFRONTS, CONFLICTS), "merge: partitioned, merge: vectorised"),
    TOTALS: dict.fromkeys((SHARED, WAVEFRONTS), "sort.pairs: one_sweep"),
    TOTALS_AND_GAP: dict.fromkeys((SHARED, WAVEFRONTS), "sort: one_sweep"),
    FIRST_WARP: dict.fromkeys((SHARED, WAVEFRONTS), "sort.selection: by_digits"),
    QUADS: dict.fromkeys((SHARED, WAVEFRONTS), "wavefront.shortest_paths: blocked"),
    BESIDE: dict.fromkeys((LOADS, LOAD_SECTORS), "stencil: in_flight"),
    ONE_BESIDE: dict.fromkeys((SHARED, WAVEFRONTS, CONFLICTS), "stencil: register_tiled"),
    COMPLEX: dict.fromkeys((LOADS, LOAD_SECTORS), "mri: scattered, mri: interchanged"),
    ORDER: {STORE_SECTORS: _FILTERS},
    POLLS: dict.fromkeys((ATOMICS, ATOMIC_SECTORS), _WITH_POLLS),
    SPILLED: {LOCAL: "sort: one_sweep, wavefront.shortest_paths: by_fours"},
    NOT_TAKEN: {FLOPS: "stencil: register_tiled, stencil: in_flight, stencil: temporal"},
    REMADE: {
        FLOPS: """potential: gathered, potential: in_tiles, potential: coarsened, potential: coalesced,
            potential: on_both_units, potential.cutoff: all_asked, potential.cutoff: binned,
            potential.cutoff: by_box""",
    },
    ONCE_A_PLANE: {FLOPS: "potential: scattered"},
    SINE: {FLOPS: "mri: scattered, mri: interchanged, mri: fissioned, mri: in_tiles"},
    TURNS: {FLOPS: _FAST},
    RECIPROCAL: {FLOPS: "images.blur: fused"},
    ONE_OF_FOUR: {FLOPS: "random: one_each"},
    LANE_0: {FLOPS: "sparse: merged"},
    SIX_OF_EIGHT: {WAVEFRONTS: f"mri: in_tiles, {_FAST}"},
    ONE_STORE: dict.fromkeys(SHARED_STORES, "potential: coalesced, potential: on_both_units"),
}

#: By case and by metric.
DIFFERS: dict[str, dict[str, Reason]] = {}
for _reason, _metrics in _TABLE.items():
    for _metric, _cases in _metrics.items():
        for _case in " ".join(_cases.split()).split(", "):
            if _metric in DIFFERS.setdefault(_case, {}):
                raise ValueError(f"{_case}: {_metric}: there are two reasons")
            DIFFERS[_case][_metric] = _reason
