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
LOCAL, BARRIERS, FLOPS, DOUBLES = "local memory requests", "barriers", "flops", "flops in float64"
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
EXIT_AND_TWO_LOOPS = Reason(f"the test for the end is an EXIT with a predicate; and {TWO_LOOPS}", "@EXIT", "@BRA")
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
    "1 / n is a routine: an approximate reciprocal, two multiply-adds and a change of sign; and a difference that is"
    " made in two lines is made once",
    "MUFU.RCP", "FFMA",
)  # fmt: skip
A_SHARE = Reason(
    "1 / n is a routine: an approximate reciprocal, two multiply-adds and a change of sign", "MUFU.RCP", "FFMA"
)
ASYNCHRONOUS = Reason(
    "an asynchronous copy is an instruction of its own, and these counts of loads and of stores leave it out",
    "LDGSTS.E.BYPASS.128",
)
ONE_OF_FOUR = Reason(
    "a thread makes four numbers and keeps one: a predicate guards the multiply-adds of some of the others",
    "@FFMA",
)  # fmt: skip
BEYOND = Reason(
    "numbers beyond the end are not stored, and the predicates of their stores guard their arithmetic, too",
    "@FFMA", "@STG.E",
)  # fmt: skip
GUARDED = Reason(
    "a product and a sum under a condition are one multiply-add with a predicate: of a value that is left out no"
    " product is made",
    "@FFMA",
)  # fmt: skip
SUM_OF_BLOCK = Reason(
    "only thread 0 uses the sum of a block: all others leave out the last of their additions, which nobody uses",
    "@EXIT", "DADD",
)  # fmt: skip
OPTIONS = Reason(
    "a square root, a division and an exponential function are routines of products, sums and multiply-adds; and of the"
    " sum of a block the last additions are made by thread 0 alone",
    "MUFU.RSQ", "MUFU.RCP", "FFMA.SAT",
)  # fmt: skip
OPTIONS_EXACT = Reason(
    "square roots, divisions and an exponential function are routines of products, sums and multiply-adds, and a change"
    " of sign is an addition; and of the sum of a block the last additions are made by thread 0 alone",
    "MUFU.RSQ", "MUFU.RCP", "FFMA.SAT", "@FADD",
)  # fmt: skip
OPTIONS_FAST = Reason(
    "square roots, a division and an exponential function are routines of products, sums and multiply-adds, and the"
    " instructions for sine and cosine take their argument in turns, which is a product; of samples that do not count"
    " not all is computed; and of the sum of a block the last additions are made by thread 0 alone",
    "MUFU.RSQ", "MUFU.RCP", "FFMA.SAT", "MUFU.SIN", "FMUL.RZ",
)  # fmt: skip
LANE_0 = Reason(
    "only lane 0 uses the sum of a warp: the other lanes leave out the last two of their additions, which nobody uses",
    "SHFL.BFLY", "FADD",
)  # fmt: skip
SIX_OF_EIGHT = Reason("of the eight numbers that two loads bring six are used: the second load has 64 bits", "LDS.64")
LOOP_OF_LANE_0 = Reason(
    "the loop over long rows is compiled twice, for lane 0, which writes, and for the other lanes: both load the ends",
    "BRA.DIV",
)
ONE_STORE = Reason("four neighbours are stored at once", "STS.128")
TWO_IN_ONE_STORE = Reason("two neighbours are stored at once", "STS.64")

IN_64_BITS = Reason(
    "the first run of the tile and its last one are one load of 64 bits, before the loops and not once a trip; a total"
    " that nobody uses is not loaded; and the last loop is unrolled: lanes with different numbers of trips load apart",
    "LDS.64", "@BRA",
)  # fmt: skip
TOTAL_OF_THREAD_0 = Reason(
    "what comes before a thread is not loaded, as nobody uses it, and the total only by the warp of the thread that"
    " uses it",
    "LDS.64",
)  # fmt: skip
HELD_AND_TOTAL = Reason(
    "how many vertices are held is loaded once, where the source asks twice, and the total of a scan only by the warp"
    " of the thread that uses it",
    "LDS",
)  # fmt: skip
UNIT = Reason(
    "the counter is the memory unit's, and it is more than the sum over all instructions: that stands in ncu's page of"
    " machine code, and is the interpreter's number",
    "LDS",
)  # fmt: skip
UNIT_OF_TILES = Reason(
    "the counter is the memory unit's: for the same loads, those of `in_boxes`, it is the interpreter's number",
    "LDS.U16",
)
TOTALS_AND_UNIT = Reason(
    f"{TOTALS_AND_GAP}; of what is left the memory unit counts more than ncu's page of machine code, which has the"
    " interpreter's number",
    "LDS",
)  # fmt: skip
GRID = Reason(
    "the barrier of the whole grid is a function that ncu shows no machine code of: there its own barriers are not"
    " counted, and here it is one",
    "STL", "LDL",
)  # fmt: skip
GRID_SAVES = Reason(
    "the barrier of the whole grid is a function: it keeps its caller's registers in local memory, and what the caller"
    " needs behind it may wait there, too",
    "STL", "LDL",
)  # fmt: skip
GRID_LOADS = Reason(
    "in the barrier of the whole grid one thread loads a word, to see whether all blocks have come",
    "STL", "LDL",
)  # fmt: skip
GRID_APART = Reason(
    "the loop over neighbours is unrolled, with the remainder one by one: lanes with different numbers of trips are not"
    " at the same trip, and ask apart; and in the barrier of the whole grid one thread loads a word",
    "@BRA", "STL",
)  # fmt: skip
GRID_AND_FIRSTS = Reason(
    "an element for which the source asks three times is loaded once; and in the barrier of the whole grid one thread"
    " loads a word",
    "LDG.E.64", "STL",
)  # fmt: skip
NO_TRIP = Reason(
    "lanes without a trip part twice: where the others divide to find out how many trips they have, and at the loop",
    "@BRA",
)  # fmt: skip
NO_TRIP_AND_FOUR = Reason(
    f"{NO_TRIP}; and the loop over neighbours is unrolled by four, with the remainder one by one",
    "@BRA",
)  # fmt: skip
NO_TRIP_AND_ONE = Reason(f"{NO_TRIP}; and tests for one thread guard their store by a predicate", "@BRA", "@STS")
NO_TRIP_AND_LATE = Reason(
    f"{NO_TRIP}; but some warps that parted there meet again only behind the next tests; and the test for the first"
    " thread of all guards its store by a predicate",
    "@BRA", "@STG.E",
)  # fmt: skip
WHO_IS_FIRST = Reason(
    "which warp comes first decides which place in the list a vertex gets, and so which sectors are touched: with"
    " another order of the warps, simt.schedule('shuffled'), there are other numbers here, too",
    "ATOMG",
)  # fmt: skip
FIRSTS_AND_WHO = Reason(
    "an element for which the source asks three times is loaded once; and which warp comes first decides which place in"
    " the list a vertex gets, and so which sectors are touched",
    "LDG.E.64", "ATOMG",
)  # fmt: skip

#: Reasons for other stores than in the source.
STORED = {PIECES, ONE_STORE, TWO_IN_ONE_STORE, APART, ASYNCHRONOUS}

_MERGES = "merge: tiled, merge: circular_buffer"
_TEAMS = "sparse: by_row, sparse: warp_per_row, sparse: team_per_row"
_FILTERS = "filter: atomic, filter: warp_aggregated, filter: privatised"
_WITH_POLLS = "sort.selection: by_digits, filter: single_pass, filter.partition: single_pass, filter.runs: single_pass"
_SPMM = "sparse.spmm: column_by_column, sparse.spmm: across_lanes, sparse.spmm: vectorised"
_PUSHED = "graph: by_vertex, graph: frontier, graph: privatised"
_GRAPH = f"{_PUSHED}, graph: pulled, graph: by_edge, graph: balanced, graph: marked, graph: direction_optimising"
_OPTIONS = "monte_carlo: from_memory, monte_carlo: in_registers, monte_carlo: fast_functions"
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
            mri: fast_trigonometry, random: one_each, random: four_each, random: vectorised, images.blur: fused,
            images.rotation: in_rows, images.rotation: in_patches, images.rotation: in_words,
            images.rotation: in_boxes, images.rotation: in_pieces, images.rotation: by_dots, images.rotation: ahead,
            images.blur: circular_buffer, filter: single_pass, filter.partition: by_scan, filter.partition: single_pass,
            filter.runs: by_scan, filter.runs: single_pass, filter.repeat: by_search, filter.repeat: by_tiles,
            sort: ranked, sort.segments: by_digits, sort.segments: in_blocks, sort.segments: in_warps,
            sparse.spmm: column_by_column, sparse.spmm: balanced, graph: balanced, graph: marked,
            graph: direction_optimising, monte_carlo: from_memory, monte_carlo: in_registers,
            monte_carlo: fast_functions, game_of_life: by_cell, game_of_life: tiled, game_of_life: packed""",
    },
    TWO_LOOPS: {
        DIVERGENT: """images.blur: separable, histogram: coarsened, histogram: wide_bytes, sparse: team_per_row,
            sparse.spmm: across_lanes""",
    },
    EXIT_AND_TWO_LOOPS: {DIVERGENT: "sparse.spmm: vectorised"},
    ELSE: {DIVERGENT: "wavefront.shortest_paths: blocked"},
    APART: {
        LOADS: f"""images.blur: separable, images.blur: running, {_TEAMS}, potential.cutoff: binned, {_SPMM},
            filter.repeat: by_tiles, game_of_life: in_strips""",
        LOAD_SECTORS: f"""images.blur: separable, {_TEAMS}, {_MERGES}, potential.cutoff: binned, {_SPMM},
            filter.repeat: by_tiles, {_PUSHED}""",
        STORES: "filter.repeat: by_tiles, game_of_life: in_strips, graph: frontier",
        STORE_SECTORS: "filter.repeat: by_tiles, graph: frontier",
        **dict.fromkeys((ATOMICS, ATOMIC_SECTORS), _PUSHED),
        **dict.fromkeys(SHARED_STORES[:2], "graph: privatised"),
        **dict.fromkeys((SHARED, WAVEFRONTS, CONFLICTS), "sparse: staged, sparse: merged"),
    },
    SAME: {
        **dict.fromkeys(
            (LOADS, LOAD_SECTORS), "filter: atomic, sort: one_bit, sort.pairs: one_bit, filter.partition: by_scan"
        ),
        **dict.fromkeys((SHARED, WAVEFRONTS), f"{_FLUSHED}, sort: local, game_of_life: tiled"),
    },
    PIECES: {LOADS: "merge: co_ranked", LOAD_SECTORS: "merge: co_ranked", STORES: f"{_MERGES}, merge: co_ranked"},
    ENDS: dict.fromkeys((SHARED, WAVEFRONTS), "merge: tiled"),
    COMPARED_ENDS: dict.fromkeys((SHARED, WAVEFRONTS, CONFLICTS), "merge: circular_buffer"),
    COMPARED: dict.fromkeys((SHARED, WAVEFRONTS, CONFLICTS), "sort: bitonic_shared, sort.segments: in_blocks"),
    TWO_ENDS: dict.fromkeys((SHARED, WAVEFRONTS), "sort: merge_sort"),
    ONE_ADDRESS: {LOADS: "sort: merge_sort"},
    GREATEST: dict.fromkeys((LOADS, LOAD_SECTORS), "merge: partitioned, merge: vectorised"),
    NO_NEXT: dict.fromkeys((SHARED, WAVEFRONTS, CONFLICTS), "merge: partitioned, merge: vectorised"),
    TOTALS: dict.fromkeys((SHARED, WAVEFRONTS), "sort.pairs: one_sweep"),
    TOTALS_AND_GAP: {SHARED: "sort: one_sweep, sort: ranked", WAVEFRONTS: "sort: one_sweep"},
    TOTALS_AND_UNIT: {WAVEFRONTS: "sort: ranked"},
    UNIT: {
        WAVEFRONTS: "filter: single_pass, filter.runs: single_pass",
        CONFLICTS: "filter: single_pass, filter.runs: single_pass, sort: ranked",
    },
    UNIT_OF_TILES: dict.fromkeys((WAVEFRONTS, CONFLICTS), "images.rotation: ahead"),
    IN_64_BITS: dict.fromkeys((SHARED, WAVEFRONTS), "filter.repeat: by_tiles"),
    TOTAL_OF_THREAD_0: dict.fromkeys((SHARED, WAVEFRONTS), "graph: direction_optimising"),
    HELD_AND_TOTAL: dict.fromkeys((SHARED, WAVEFRONTS), "graph: balanced"),
    GRID: {BARRIERS: _GRAPH},
    GRID_SAVES: {LOCAL: _GRAPH},
    GRID_LOADS: {LOADS: "graph: pulled, graph: by_edge, graph: marked, graph: direction_optimising"},
    GRID_APART: {LOADS: _PUSHED},
    GRID_AND_FIRSTS: {LOADS: "graph: balanced"},
    NO_TRIP: {DIVERGENT: "graph: pulled, graph: by_edge"},
    NO_TRIP_AND_FOUR: {DIVERGENT: "graph: by_vertex"},
    NO_TRIP_AND_ONE: {DIVERGENT: "graph: privatised"},
    NO_TRIP_AND_LATE: {DIVERGENT: "graph: frontier"},
    WHO_IS_FIRST: {
        LOAD_SECTORS: "graph: marked",
        STORE_SECTORS: "graph: marked",
        ATOMIC_SECTORS: "graph: balanced",
    },
    FIRSTS_AND_WHO: {LOAD_SECTORS: "graph: balanced"},
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
    A_SHARE: {FLOPS: "images.blur: circular_buffer"},
    ASYNCHRONOUS: dict.fromkeys((LOAD_SECTORS, *SHARED_STORES[:2]), "images.blur: circular_buffer"),
    ONE_OF_FOUR: {FLOPS: "random: one_each"},
    BEYOND: {FLOPS: "random: four_each"},
    GUARDED: {FLOPS: "sparse: batched"},
    LANE_0: {FLOPS: "sparse: merged"},
    LOOP_OF_LANE_0: dict.fromkeys((LOADS, LOAD_SECTORS), "sparse: merged"),
    SUM_OF_BLOCK: {DOUBLES: _OPTIONS},
    OPTIONS: {FLOPS: "monte_carlo: from_memory"},
    OPTIONS_EXACT: {FLOPS: "monte_carlo: in_registers"},
    OPTIONS_FAST: {FLOPS: "monte_carlo: fast_functions"},
    SIX_OF_EIGHT: {WAVEFRONTS: f"mri: in_tiles, {_FAST}"},
    TWO_IN_ONE_STORE: dict.fromkeys(SHARED_STORES[:2], "sparse: merged"),
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
