"""Puts a pair to level "check"."""

from __future__ import annotations

from typing import Any

import numpy as np

from pmpp import simt

from . import Pair

#: Lanes a batch: all blocks of a pair together.
TOGETHER = 1 << 20


def run(pair: Pair, mended: bool, *, lanes: int = TOGETHER, level: str = "check", **options: Any) -> tuple[Any, tuple]:
    """The report of the launch, and the arrays afterwards.  Launches that come before it must be without a hazard."""
    args = pair.make(simt.cuda.device_array)
    with simt.batch_lanes(lanes):
        for kernel, grid, block in pair.before:
            earlier = simt.profile(kernel, grid, block, (*args, mended), level=level, collect=True, **options)
            assert earlier.hazards == [], f"before {pair.name}: {earlier.hazards}"
        report = simt.profile(
            pair.kernel, pair.grid, pair.block, (*args, mended), level=level, collect=True, sharedmem=pair.sharedmem,
            cluster=pair.cluster, **options,
        )  # fmt: skip
    return report, args


def faults(pair: Pair, hazards: list, exact: bool = True) -> list[str]:
    """What is wrong with the hazards reported for a bug: nothing, if they name it and it alone.

    exact   on every line marked `# BUG`; else a race may be met at its other end, where the memory may have another
            name, and a read that has come too early finds what nobody has written yet, or leads past a barrier
    """
    if pair.kind == "race" and not exact:
        hazards = [h for h in hazards if h.kind != "divergent_barrier"]
    wanted = (pair.kind, pair.space, pair.variable)
    kinds, names = {pair.kind}, {pair.variable}
    if not exact:
        names |= {pair.alias}
        kinds |= {"uninitialised_read"} if pair.kind == "race" else set()
    other = [h.message for h in hazards if h.kind not in kinds or h.space != pair.space or h.variable not in names]
    if other:
        return [f"besides {wanted}: {message}" for message in other]
    lines = {h.line for h in hazards}
    if not lines:
        return ["nothing is reported"]
    bug, either = pair.lines("BUG"), pair.lines("BUG", "WITH")
    if exact and lines != bug:
        return [f"reported on {sorted(lines)}, planted on {sorted(bug)}: {[h.message for h in hazards]}"]
    return [] if lines <= either else [f"reported on {sorted(lines)}, planted on {sorted(either)}"]


def expected(pair: Pair) -> Any:
    """What the look-alike leaves in its last array; None where that depends on the order of the blocks."""
    if pair.result is None:
        return None
    return pair.result(
        *(a.copy_to_host() if hasattr(a, "copy_to_host") else a for a in pair.make(simt.cuda.device_array))
    )


def wrong(pair: Pair, args: tuple) -> str:
    """How the result of a look-alike differs from what it should be; empty if it does not."""
    wanted, got = expected(pair), args[-1]
    if wanted is None:
        return ""
    got = got.copy_to_host() if hasattr(got, "copy_to_host") else got
    same = np.array_equal(got, np.broadcast_to(wanted, got.shape))
    return "" if same else f"expected {np.asarray(wanted).ravel()[:8]}..., got {got.ravel()[:8]}..."


def caught(pair: Pair) -> bool:
    """Whether the bug is named by kind, space, variable and line, and nothing besides."""
    return not faults(pair, run(pair, False)[0].hazards)


def silent(pair: Pair) -> bool:
    """Whether the look-alike is left alone, and right."""
    report, args = run(pair, True)
    return not report.hazards and not wrong(pair, args)
