"""The interpreter counts what the hardware counted, or it is said why not: the shipped record, and the tool itself."""

import dataclasses
import json
import os

import numpy as np
import pytest

from pmpp import cuda
from pmpp.kernels.instruments import agreement_rungs_reasons as reasons
from pmpp.kernels.instruments.agreement_rungs import RUNGS as OF_RUNGS
from pmpp.lab.measure import agreement, nsight
from pmpp.lab.measure.agreement import Case, Reason
from pmpp.lab.measure.sources import bare_source
from pmpp.runtime import device

FACTOR = 2
RUNGS = {case.name for case in OF_RUNGS}


@cuda.jit(device=True)
def scaled(value):
    return value * FACTOR


@cuda.jit
def scale(x, out):
    i = cuda.grid(1)
    out[i] = scaled(x[i])


@pytest.fixture(scope="module")
def counted():
    return agreement.interpret()


@pytest.fixture(scope="module")
def launches():
    return agreement.recorded()[1]


# --------------------------------------------------------------------------------------------------- the shipped record


def test_every_difference_has_a_reason(launches, counted):
    found = agreement.faults(launches, counted)
    assert not found, "\n".join([*found, "measure on a GPU: python -m pmpp.lab.measure.agreement --gpu RECORD --stale"])


def test_the_record_is_wide(launches):
    assert len({run.kernel for run in launches.values()}) >= 24
    rungs = {name for name in launches if name.startswith(("vector_add:", "matmul:", "reduction:", "transpose:"))}
    assert len(rungs) >= 22
    runs = agreement.recorded()[0]
    assert all({"gpu", "revision", "ncu", "versions"} <= run.keys() for run in runs.values())


def test_without_a_reason_the_counts_are_the_same(launches, counted):
    every = agreement.rows(launches, counted)
    assert {row.metric for row in every} == {metric.name for metric in agreement.METRICS}
    for row in every:
        assert row.hardware == row.interpreter or row.reason, row
    # Barriers and operations in float64 are never merged or dropped: one reason each is good enough. Stores are not
    # dropped, but neighbours may be one store, and lanes that are apart store apart: `reasons.STORED` says which.
    good = {"barriers": reasons.GRID, "flops in float64": reasons.SUM_OF_BLOCK}
    for row in every:
        if row.metric in good:
            assert row.hardware == row.interpreter or row.reason == good[row.metric], row
        if row.metric.startswith(("global store requests", "shared store")):
            assert row.hardware == row.interpreter or row.reason in reasons.STORED, row
    for name in {row.case for row in every}:
        stored = launches[name].moved("STG") + launches[name].moved("ST")  # ST: the compiler knows not which memory
        assert stored == counted[name]["counters"]["global_store_bytes"], name
    # What makes tests vanish can only take branches away.
    for row in every:
        if row.reason == reasons.FEWER_BRANCHES:
            assert row.hardware < row.interpreter, row
    # Floating-point operations are the same, but for routines, a loop of compare-and-swap, and what is not due.
    other_flops = {row.case for row in every if row.metric == "flops" and row.differs and row.case not in RUNGS}
    assert other_flops == {"division", "square root", "atomic, float sum, shared", "shuffle"}


def test_the_counters_of_the_caches_agree_with_the_machine_code(launches):
    # A barrier of a grid has no machine code to compare with: the next test is about it.
    shown = [run for name, run in launches.items() if not name.startswith("graph:")]
    pairs = [(m, run) for m in agreement.METRICS if m.unit for run in shown]
    assert sum(metric.hardware(run) == run.values[metric.unit] for metric, run in pairs) >= 0.98 * len(pairs)


def test_the_barrier_of_a_grid_loads_one_word(launches, counted):
    """What only the memory unit has counted is as many sectors as ncu has missed barriers."""
    loads = next(metric for metric in agreement.METRICS if metric.name == "global load sectors")
    missed = [row for row in agreement.rows(launches, counted) if row.reason == reasons.GRID]
    assert missed
    for row in missed:
        run = launches[row.case]
        assert run.values[loads.unit] - loads.hardware(run) == row.interpreter - row.hardware, row


# -------------------------------------------------------------------------------------------------------- what it finds


def _with(monkeypatch, name, **changes):
    changed = tuple(dataclasses.replace(c, **changes) if c.name == name else c for c in agreement.cases())
    monkeypatch.setattr(agreement, "cases", lambda: changed)


def test_a_difference_without_a_reason_is_a_fault(launches, counted, monkeypatch):
    _with(monkeypatch, "shuffle", differs={})
    found = agreement.faults(launches, counted)
    assert "shuffle: flops: 16512 on the hardware, 20480 here, and no reason" in found
    assert len(found) == 2  # and the divergent branches
    assert "UNEXPLAINED" in agreement.table(agreement.rows(launches, counted))


def test_a_reason_without_a_difference_is_a_fault(launches, counted, monkeypatch):
    _with(monkeypatch, "load, coalesced", differs={"barriers": Reason("so it seems", "BAR.SYNC")})
    assert agreement.faults(launches, counted) == [
        "load, coalesced: barriers: a reason, but no difference",
        "load, coalesced: barriers: the reason speaks of BAR.SYNC, which it did not execute",
    ]


def test_a_changed_kernel_makes_its_record_stale(launches, counted, monkeypatch):
    before = agreement.older(launches)
    _with(monkeypatch, "load, coalesced", target=scale)
    assert set(agreement.older(launches)) == {*before, "load, coalesced"}
    assert agreement.faults(launches, counted) == []
    assert "load, coalesced" not in {row.case for row in agreement.rows(launches, counted)}


def test_what_is_not_recorded_and_what_is_no_more(launches, counted):
    some = {name: run for name, run in launches.items() if name != "vote"}
    some["gone"] = launches["vote"]
    found = agreement.faults(some, counted)
    assert found == ["gone: recorded, but no longer in the catalogue", "vote: not recorded"]


def test_a_wrong_counter_is_found(launches, counted):
    counters = counted["load, off by one"]["counters"]
    wrong = counted | {
        "load, off by one": counted["load, off by one"] | {"counters": counters | {"global_load_sectors": 512}}
    }
    found = agreement.faults(launches, wrong)
    assert found == ["load, off by one: global load sectors: 640 on the hardware, 512 here, and no reason"]


def test_the_digest_sees_source_constants_functions_and_arguments(monkeypatch):
    x = np.arange(4.0)
    case = Case("scale", scale, lambda: (x, x), 1, 4)
    digest = case.digest
    assert dataclasses.replace(case, name="other", differs={"flops": Reason("because")}).digest == digest
    assert dataclasses.replace(case, grid=2).digest != digest
    assert dataclasses.replace(case, args=lambda: (x, x + 1)).digest != digest
    assert dataclasses.replace(case, args=lambda: (x.astype("f4"), x)).digest != digest
    monkeypatch.setitem(scaled.py_func.__globals__, "FACTOR", 3)
    assert case.digest != digest  # it is read by a function that the kernel calls


def test_the_digest_is_of_the_kernel_that_is_compared():
    kernels = {case.name: case.kernel for case in OF_RUNGS}
    assert kernels["filter.partition: by_scan"].__name__ == "scatter_both_kernel"  # not of the first that is launched
    assert kernels["sparse.spmm: balanced"].__name__ == "balanced_of"  # which makes it


def test_comments_and_layout_are_not_source():
    one = "def f(x):  # why\n    # how\n    return x\n"
    other = 'def f(x):\n    """What,\n    and how."""\n\n    return x\n'
    assert bare_source(one) == bare_source(other) == "def f(x):\n    return x"


# ------------------------------------------------------------------------------------------------------------- commands


def test_the_command_prints_the_table(capsys, counted, monkeypatch):
    monkeypatch.setattr(agreement, "interpret", lambda: counted)
    assert agreement.main([]) == 0
    out, err = capsys.readouterr()
    assert not err
    assert "0 of them unexplained" in out
    assert "grid-stride loop\n  global load sectors" in out


def test_the_command_names_what_has_changed(tmp_path, capsys, counted, monkeypatch):
    monkeypatch.setattr(agreement, "interpret", lambda: counted)
    data = json.loads(agreement.RECORD.read_text(encoding="utf-8"))
    data["launches"]["vote"]["digest"] = "of another kernel"
    path = tmp_path / "record.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    assert agreement.main(["--record", str(path)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("changed since")]
    assert "vote" in line.partition(": ")[2].split(", ")


@pytest.mark.skipif(device.on_gpu(), reason="there is a GPU")
def test_measuring_needs_a_gpu(tmp_path):
    with pytest.raises(RuntimeError, match="kernels run in the interpreter"):
        agreement.measure(tmp_path / "record.json")


def test_what_one_profiler_cannot_measure_costs_the_others_nothing(monkeypatch):
    def profile(command, names, environment, keep):
        chosen = json.loads(command[-1])
        if "vote" in chosen:
            raise RuntimeError("ncu failed")
        return [{"kernel": case.kernel_name} for case in agreement.cases() if case.name in chosen]

    monkeypatch.setattr(nsight, "profile", profile)
    some = [case for case in agreement.cases() if case.name in ("shuffle", "vote", "block count", "division")]
    measured, failed = agreement._profiled(some, [], None, 2)
    assert set(measured) == {case.name for case in some} - {case.name for case in some[1::2]}
    assert "vote" in {case.name for case in some[1::2]}
    assert failed == ["ncu failed"]
    measured, failed = agreement._profiled(some[:1], [], None, 8)
    assert (set(measured), failed) == ({"shuffle"}, [])


# --------------------------------------------------------------------------------------------------------------- nsight

RAW = """"ID","Kernel Name","Block Size","Grid Size","Device","one.sum","other.ratio"
"","","","","","inst",""
"0","room::first_kernel[abi:v1,abc](Array<float, 1, C>)","(32, 4, 1)","(5, 3, 1)","0","1,024","2.50"
"1","cudapy::second(long)","(256, 1, 1)","(1, 1, 1)","0","0","7"
"""
SOURCE = """"Kernel Name","lab::room::first_kernel[abi:v1,abc](Array<float, (int)1, C>)"

"Address","Source","# Samples","Instructions Executed","Predicated-On Thread Instructions Executed"
"0x0","      LDC R1, c[0x0][0x28]","2","8","256"
"0x1","@P0   EXIT","2","8","56"
"0x2","      LDG.E R2, desc[UR4][R2.64]","2","7","200"
"0x3","@!P1  LDG.E R2, desc[UR4][R2.64]","2","7","100"
"0x4","      LDG.E R2, desc[UR4][R2.64]","2","7","200"
"0x5","      STG.E desc[UR4][R2.64], R3","2","0","0"
"Kernel Name","wait_for_all"
"Address","Source","Instructions Executed","Predicated-On Thread Instructions Executed"
"0x0","      BAR.SYNC.DEFER_BLOCKING 0x0","2","64"
"Kernel Name","cudapy::second(long)"
"Address","Source","Instructions Executed","Predicated-On Thread Instructions Executed"
"0x0","      BAR.SYNC.DEFER_BLOCKING 0x0","3","96"
"""


def test_reading_a_report():
    first, second = nsight._launches(RAW, SOURCE, ["one.sum", "other.ratio"])
    assert first == {
        "kernel": "first_kernel",
        "grid": [5, 3, 1],
        "block": [32, 4, 1],
        "values": [1024, 2.5],
        "opcodes": {"@EXIT": [8, 56], "LDG.E": [14, 400], "@LDG.E": [7, 100]},  # no constants, nothing that never ran
    }
    assert second["kernel"] == "second"
    assert second["opcodes"] == {"BAR.SYNC.DEFER_BLOCKING": [5, 160]}  # of the kernel and of the function that it calls
    with pytest.raises(RuntimeError, match="no machine code of second"):
        list(nsight._launches(RAW, SOURCE.replace("cudapy::second", "cudapy::third"), ["one.sum", "other.ratio"]))


def test_without_the_profiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="ncu is not on the path"):
        nsight.version()


@pytest.mark.skipif(os.name == "nt", reason="the profiler's stand-in is a Unix script")
def test_a_failing_profiler_is_quoted(monkeypatch, tmp_path):
    fake = tmp_path / "ncu"
    fake.write_text("#!/bin/sh\necho '==ERROR== no permission to read the counters'\nexit 9\n", encoding="utf-8")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="status 9:\n==ERROR== no permission"):
        nsight.profile(["true"], ["a"], {})
