"""What each counter means, and what Nsight Compute calls it.

The interpreter executes source, the profiler executes machine code (SASS).  Requests, sectors, wavefronts, atomics,
barriers and floating-point operations are the kernel's own, and agree unless the compiler merges, hoists or drops an
access.  Instructions are not: one operator here may be no machine instruction, or five.  Compare their mix, not their
number.

A row of METRICS names the metrics whose sum over the launch is the counter; `{ld,st}` stands for each in turn.  Those
of requests, sectors, wavefronts, atomics, divergence, FLOPs and all instructions were read on an H200 and compared
(`pmpp.lab.measure.agreement`); those of bytes, branches and the classes of instructions are named as NVIDIA documents
them.
"""

from __future__ import annotations

from typing import NamedTuple

from pmpp.simt.machine.instructions import CLASSES


class Metric(NamedTuple):
    """One row of METRICS: Nsight Compute's name, what is counted, and the unit.  `ncu` is "" where it has no metric."""

    ncu: str
    meaning: str
    unit: str


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
    "cluster_requests": Metric(
        "", "loads, stores and atomics of shared memory by map_shared_rank, one a warp that executes it", "requests"
    ),
    "cluster_bytes": Metric("", "bytes that these move, added up over the active lanes", "bytes"),
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
        f"{_flops('f')}, and the same of h and d",
        "floating-point operations; a multiply-add is two, a product of complex numbers six",
        "FLOP",
    ),
    "flops_f16": Metric(_flops("h"), "those of them in float16", "FLOP"),
    "flops_f64": Metric(_flops("d"), "those of them in float64", "FLOP"),
    "tensor_flops": Metric(
        "", "operations of tensor cores, of integers too and of no other counter; a multiply-add is two", "FLOP"
    ),
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
