"""What each counter means, and what Nsight Compute calls it.

The interpreter executes source, the profiler executes machine code (SASS).  Requests, sectors, wavefronts, atomics,
barriers and floating-point operations are the kernel's own, and agree unless the compiler merges, hoists or drops an
access.  Instructions are not: one operator here may be no machine instruction, or five.  Compare their mix, not their
number.

A row of METRICS names the metrics whose sum over the launch is the counter; `{ld,st}` stands for each in turn.  Those
of requests, sectors, wavefronts, atomics, divergence, FLOPs and all instructions were read on an H200 and compared
(pmpp/lab/agreement.py); those of bytes, branches and the classes of instructions are named as NVIDIA documents them.
"""

from __future__ import annotations

from typing import NamedTuple


class Metric(NamedTuple):
    """One row of METRICS: Nsight Compute's name, what is counted, and the unit.  `ncu` is "" where it has no metric."""

    ncu: str
    meaning: str
    unit: str


class Class(NamedTuple):
    """One class of the instruction mix.

    name      the counters' names end in it
    ncu       what Nsight Compute calls it where it counts threads
    members   what belongs to it
    warps     the metric that counts it by warps; XU is the unit of special functions, which converts types as well
    """

    name: str
    ncu: str
    members: str
    warps: str = ""


#: The classes of the instruction mix, in the order of their counters.
CLASSES = (
    Class("integer", "integer", "operators, comparisons and functions of integers and booleans, bits included"),
    Class("fp16", "fp16", "operators, comparisons and functions of float16"),
    Class("fp32", "fp32", "operators, comparisons and functions of float32"),
    Class("fp64", "fp64", "operators, comparisons and functions of float64"),
    Class(
        "special",
        "",
        "division, square root, exponential, logarithm and trigonometry of floats",
        "smsp__inst_executed_pipe_xu.sum",
    ),
    Class("conversion", "conversion", "casts written out, as in np.float32(i)"),
    Class("memory", "memory", "loads, stores and atomics, global and shared"),
    Class("control", "control", "tests of if, while and for, and calls"),
    Class("barrier", "", "barriers of a block, a warp or the grid, and fences"),
    Class("shuffle", "inter_thread_communication", "shuffles, votes and matches between the lanes of a warp"),
)
INTEGER, FP16, FP32, FP64, SPECIAL, CONVERSION, MEMORY, CONTROL, BARRIER, SHUFFLE = range(len(CLASSES))

_LSU = "l1tex__t_{}_pipe_lsu_mem_global_op_{}.sum"
_OP = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"


def _flops(letter: str) -> str:
    return _OP.format("{" + f"{letter}add,{letter}mul" + "}") + " + 2 x " + _OP.format(letter + "fma")


def _space(kind: str, op: str) -> dict[str, Metric]:
    verb = "loads from" if kind == "load" else "stores to"
    return {
        f"global_{kind}_requests": Metric(
            _LSU.format("requests", op), f"{verb} global memory, one a warp that executes it", "requests"
        ),
        f"global_{kind}_sectors": Metric(
            _LSU.format("sectors", op), f"32-byte sectors that these {kind}s touch, request by request", "sectors"
        ),
        f"global_{kind}_bytes": Metric(
            f"smsp__sass_data_bytes_mem_global_op_{op}.sum", f"bytes that the active lanes {kind}", "bytes"
        ),
    }


def _shared(kind: str, op: str) -> dict[str, Metric]:
    verb = "loads from" if kind == "load" else "stores to"
    return {
        f"shared_{kind}_requests": Metric(
            f"smsp__sass_inst_executed_op_shared_{op}.sum",
            f"{verb} shared memory, one a warp that executes it",
            "requests",
        ),
        f"shared_{kind}_wavefronts": Metric(
            f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{op}.sum",
            f"passes through the 32 banks that these {kind}s take",
            "wavefronts",
        ),
        f"shared_{kind}_bank_conflicts": Metric(
            f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{op}.sum",
            "those of them that lanes cause which want different words of one bank",
            "wavefronts",
        ),
    }


#: Counters that are kept by source line, and added up.
LINE_METRICS: dict[str, Metric] = {
    **_space("load", "ld"),
    **_space("store", "st"),
    **_shared("load", "ld"),
    **_shared("store", "st"),
    "atomic_requests": Metric(
        "smsp__sass_inst_executed_op_{global_atom,global_red,shared_atom}.sum",
        "atomics, one a warp that executes it; RED is an atomic whose old value nobody uses",
        "requests",
    ),
    "atomic_lanes": Metric("", "atomics, one an active lane", "operations"),
    "atomic_passes": Metric(
        "", "turns that atomics take when the lanes of a warp on one address follow one another", "turns"
    ),
    "global_atomic_sectors": Metric(
        "smsp__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_{atom,red}.sum",
        "32-byte sectors that global atomics touch, request by request", "sectors"
    ),
    "branches": Metric("smsp__inst_executed_op_branch.sum", "tests of if, while and for, one a warp", "branches"),
    "divergent_branches": Metric(
        "smsp__sass_branch_targets_threads_divergent.sum", "tests after which a warp has lanes on both sides",
        "branches",
    ),
    "warp_instructions": Metric("smsp__inst_executed.sum", "instructions, one a warp that executes it", "instructions"),
    "thread_instructions": Metric(
        "smsp__thread_inst_executed.sum", "instructions, one an active lane that executes it", "instructions"
    ),
    "flops": Metric(
        f"{_flops('f')}, and the same of h and d", "floating-point operations; a multiply-add is two", "FLOP"
    ),
    "flops_f16": Metric(_flops("h"), "those of them in float16", "FLOP"),
    "flops_f64": Metric(_flops("d"), "those of them in float64", "FLOP"),
    "barriers": Metric("", "barriers, one a block that passes; the profiler's BAR is one a warp", "barriers"),
    **{f"inst_{c.name}": Metric(c.warps, f"{c.members}: one a warp", "instructions") for c in CLASSES},
    **{
        f"thread_inst_{c.name}": Metric(
            _OP.format(c.ncu) if c.ncu else "", f"{c.members}: one an active lane", "instructions"
        )
        for c in CLASSES
    },
}  # fmt: skip

#: Counters of the whole launch, which no line can be charged with.
LAUNCH_METRICS: dict[str, Metric] = {
    "unique_load_sectors": Metric("", "different sectors loaded: the traffic of caches that never forget", "sectors"),
    "unique_store_sectors": Metric("", "different sectors stored to, atomics included", "sectors"),
}

#: Name of the counter -> Metric(ncu, meaning, unit).
METRICS: dict[str, Metric] = LINE_METRICS | LAUNCH_METRICS

#: Functions that the special function unit takes part in, or that the compiler makes of many instructions.
_NAMES = """
    sqrt rsqrt rcp cbrt rcbrt exp exp2 exp10 expm1 log log2 log10 log1p sin cos tan sincos sinpi cospi sincospi tanh
    sinh cosh asin acos atan atan2 asinh acosh atanh pow powi hypot erf erfc erfcx erfinv tgamma gamma lgamma div
    fdivide truediv j0 j1 y0 y1 normcdf normcdfinv
"""
_SPECIAL = frozenset(_NAMES.split())
_BARRIERS = ("syncthreads", "syncwarp", "threadfence")
_CONVERSIONS = ("2half", "2bfloat16", "2float", "2double", "2int", "2uint", "2ll", "2ull")


def classify(name: str) -> int | None:
    """The class of a function by its name ("math.exp", "shfl_sync", "libdevice.fast_expf"); None: by its type."""
    last = name.rpartition(".")[2]
    if last.startswith(("shfl_", "match_", "activemask", "lanemask", "vote")) or last in (
        "all_sync", "any_sync", "eq_sync", "ballot_sync",
    ):  # fmt: skip
        return SHUFFLE
    if last.startswith(_BARRIERS):
        return BARRIER
    bare = last.removeprefix("fast_")
    if name.startswith(("fp16.", "bf16.")):
        bare = bare.removeprefix("h")
    if bare in _SPECIAL or (bare[-1:] == "f" and bare[:-1] in _SPECIAL):
        return SPECIAL
    for mark in ("_rn", "_rz", "_ru", "_rd"):
        if bare.endswith(mark) and bare.removesuffix(mark).lstrip("fd") in ("div", "sqrt", "rcp", "rsqrt", "iv"):
            return SPECIAL
    if last in ("int", "float", "bool", "round") or any(mark in bare for mark in _CONVERSIONS):
        return CONVERSION
    return None
