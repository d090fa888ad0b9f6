"""Fused and unfused functions beside PyTorch's, on one GPU: ``python -m pmpp.nn.measure.fusing``.

The functions of `pmpp.nn.fuse.examples` run as one generated kernel, with a kernel for each operation, as PyTorch runs
the same text, as torch.compile compiles it, and as the room does it that was written by hand. Each result is compared
with float64 before it is timed, and after. NumPy's time on the host is one run.

It prints a table and writes ``pmpp/recorded/<gpu>/fusing.json`` after each case.
"""

from __future__ import annotations

import argparse
import collections
import importlib.util
import time
import typing
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pmpp import simt
from pmpp.kernels.normalisation import layernorm
from pmpp.kernels.optimiser import adam
from pmpp.kernels.softmax import softmax as softmax_room
from pmpp.lab.measure import arrays, timing
from pmpp.nn.fuse import alone, elementwise_only, errors, examples, fuse, fused, trace
from pmpp.nn.measure import write
from pmpp.runtime import device

RULES = {"fused": fused, "elementwise": elementwise_only, "unfused": alone}
STEP = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "decay": 0.01}
CHAINS = (1, 4, 16, 64, 256)


class Case(typing.NamedTuple):
    """A function, its arguments, and others who compute the same: a function of PyTorch and a room."""

    function: Callable
    arguments: Callable[[], dict]
    torch: Callable | None = None
    room: Callable | None = None


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def masked(rows: int, n: int) -> dict[str, typing.Any]:
    mask = np.float32(np.random.default_rng(2).random((rows, n), dtype=np.float32) > 0.1) / np.float32(0.9)
    return {"x": normal(rows, n), "b": normal(n, seed=1), "mask": mask}


def layered(rows: int, n: int) -> dict[str, typing.Any]:
    return {"x": normal(rows, n), "weight": normal(n, seed=1), "bias": normal(n, seed=2)}


def stepped(n: int) -> dict[str, typing.Any]:
    p, g, m, v = (normal(n, seed=seed) for seed in range(4))
    return {"p": p, "g": g, "m": m, "v": v * v, **STEP, "correction1": 0.1, "correction2": 0.001}


def torch_layer_norm(x: typing.Any, weight: typing.Any, bias: typing.Any) -> typing.Any:
    import torch

    return torch.nn.functional.layer_norm(x, weight.shape, weight, bias, examples.EPSILON)


def torch_softmax(x: typing.Any) -> typing.Any:
    import torch

    return torch.softmax(x, -1)


def adamw_room(p, g, m, v, lr, beta1, beta2, eps, decay, correction1, correction2):  # type: ignore[no-untyped-def]
    """The room's best rung, at the step whose corrections these are: the first."""
    return adam.vectorised(p, g, m, v, lr, (beta1, beta2), eps, decay, True, 1)


def cases(scale: int = 1) -> dict[str, Case]:
    """What is measured, by name; ``scale`` divides the rows."""
    rows, many = 65536 // scale, max(1000, 2**26 // scale**2)
    made = {
        "gelu 65536x1024": Case(examples.gelu_with_mask, lambda: masked(rows, 1024)),
        "softmax 65536x1024": Case(examples.softmax, lambda: {"x": normal(rows, 1024)}, torch_softmax, softmax_room),
        "layernorm 65536x1024": Case(
            examples.layer_norm,
            lambda: layered(rows, 1024),
            torch_layer_norm,
            lambda x, weight, bias: layernorm.vectorised(x, weight, bias, examples.EPSILON),
        ),
        "AdamW 2^26": Case(examples.adamw, lambda: stepped(many), None, adamw_room),
        "softmax 2048x32768": Case(
            examples.softmax,
            lambda: {"x": normal(max(2, 2048 // scale), max(40, 32768 // scale))},
            torch_softmax,
            softmax_room,
        ),
        "softmax 16x2^20": Case(
            examples.softmax,
            lambda: {"x": normal(max(2, 16 // scale), 2**20 // scale)},
            torch_softmax,
            softmax_room,
        ),
    }
    for k in CHAINS:
        made[f"chain of {k}"] = Case(examples.chain(k), lambda: {"x": normal(many), "a": 0.5})
    return made


def contenders(case: Case, given: dict[str, typing.Any], nbytes: int) -> dict[str, timing.Contender]:
    """Everybody who computes it, each with a check of all results against float64."""
    shapes = [np.shape(x) for x in given.values()]
    graph = trace(case.function, list(given), shapes)
    xp, bounds = arrays.xp(), {}

    def check(result: typing.Any, *_: typing.Any) -> tuple[float, float]:
        results = [arrays.view(one) for one in (result if isinstance(result, tuple | list) else [result])]
        if len(results) < len(graph.results):  # the optimiser's room stacks them
            results = list(results[0])
        if not bounds:
            inputs = {name: xp.asarray(x) for name, x in given.items()}
            bounds[0] = errors.bounded(graph, inputs, xp=xp, fast=True)
        return errors.worst(results, bounds[0], xp)

    here = [device.to_device(x) if np.ndim(x) else x for x in given.values()]
    outs = tuple(device.empty(value.shape, np.float32) for value in graph.results)

    def poison(*_: typing.Any) -> None:
        for one in outs:
            one.copy_to_device(np.full(one.shape, np.nan, np.float32))

    def ours(function: Callable) -> Callable:
        return lambda *arguments: function(*arguments, out=outs if len(outs) > 1 else outs[0])

    made = {
        name: timing.Contender(ours(fuse(case.function, rule=rule)), [tuple(here)], check, poison, set_bytes=nbytes)
        for name, rule in RULES.items()
    }
    if case.room:
        made["the room"] = timing.Contender(case.room, [tuple(here)], check, set_bytes=nbytes)
    if importlib.util.find_spec("torch") is None:
        return made
    import torch
    import torch._dynamo

    torch._dynamo.reset()  # cases share functions, of which it compiles no more than a few variants
    where = "cuda" if device.on_gpu() else "cpu"
    tensors = tuple(torch.from_numpy(x).to(where) if np.ndim(x) else x for x in given.values())

    def torch_poison(*_: typing.Any) -> None:
        for value in graph.results:
            torch.full(value.shape, torch.nan, device=where)  # freed at once: what the pool hands out next

    text = examples.on(torch, case.function)
    others = {"PyTorch": text, "torch.compile": torch.compile(text, dynamic=False), "PyTorch's own": case.torch}
    for name, call in others.items():
        if call is not None and (where == "cuda" or name != "torch.compile"):
            made[name] = timing.Contender(call, [tensors], check, torch_poison, set_bytes=nbytes)
    return made


def measure(name: str, case: Case, timer: typing.Any, seconds: float = 0.3) -> dict[str, typing.Any]:
    """One row of the record: bytes and kernels by rule, milliseconds of everybody, and who failed."""
    given = case.arguments()
    programs = {rule: fuse(case.function, rule=how).program(*given.values()) for rule, how in RULES.items()}
    row: dict[str, typing.Any] = {
        "shapes": [list(np.shape(x)) for x in given.values()],
        "bytes": {rule: program.nbytes for rule, program in programs.items()},
        "kernels": {rule: len(program.parts) for rule, program in programs.items()},
        "registers": [one.registers for one in programs["fused"].written],
        "ms": {},
        "low": {},
        "high": {},
        "error": {},
        "failed": {},
    }
    kernels_before = generated_by_torch()
    rule = timing.Rule(spread=0.01, max_seconds=seconds)
    found = timing.measure_together(contenders(case, given, row["bytes"]["fused"]), timer=timer, rule=rule)
    for who, one in found.items():
        if isinstance(one, Exception):
            row["failed"][who] = f"{type(one).__name__}: {one}".partition("\n")[0][:300]
            continue
        row["ms"][who], row["low"][who], row["high"][who] = 1e3 * one.median, 1e3 * one.low, 1e3 * one.high
        row["error"][who] = [one.error, one.tolerance]
    if "torch.compile" in row["ms"] and kernels_before is not None:
        row["kernels"]["torch.compile"] = generated_by_torch() - kernels_before
    if arrays.xp() is not np:
        arrays.xp().get_default_memory_pool().free_all_blocks()  # PyTorch has a pool of its own
    if not name.startswith("chain"):
        began = time.perf_counter()
        with np.errstate(all="ignore"):
            case.function(*given.values())
        row["ms"]["NumPy"] = 1e3 * (time.perf_counter() - began)
    return row


def counted(function: Callable, rule: Callable, *arguments: typing.Any) -> collections.Counter:
    """What the interpreter counts while a function's kernels run, on a machine with a GPU, too. Use small arguments."""
    program = fuse(function, rule=rule).program(*arguments)
    known = dict(zip(program.graph.inputs, arguments, strict=True))
    found: collections.Counter = collections.Counter()
    for one, kernel in zip(program.written, program.kernels, strict=True):
        known |= {value: np.empty(value.shape, program.dtype) for value in one.targets}
        read, made = ([known[value].reshape(-1) for value in some] for some in (one.loads, one.targets))
        numbers = [program.dtype.type(known[value]) for value in one.numbers]
        report = simt.profile(kernel, one.grid, one.block, (*read, *numbers, *made, one.extent))
        found.update({"launches": 1, **report.counters})
    return found


def generated_by_torch() -> int | None:
    """How many kernels torch.compile has written in this process; None if it does not say."""
    if importlib.util.find_spec("torch") is None or not device.on_gpu():
        return None
    try:
        from torch._inductor import metrics
    except ImportError:
        return None
    return int(metrics.generated_kernel_count)


def table(rows: dict[str, dict]) -> str:
    """The record as text, a column for each case: milliseconds, and the bytes of the fused kernels over their time."""
    who = list(dict.fromkeys(one for row in rows.values() for one in (*row["ms"], *row["failed"])))
    names = [name.partition(" ") for name in rows]
    lines = [f"{title:<14}" + "".join(f"{name[part]:>13}" for name in names) for title, part in (("", 0), ("ms", 2))]
    for one in who:
        cells = [
            f"{row['ms'][one]:.3f}" if one in row["ms"] else "failed" * (one in row["failed"]) for row in rows.values()
        ]
        lines.append(f"{one:<14}" + "".join(f"{cell:>13}" for cell in cells))
    rates = [row["bytes"]["fused"] / row["ms"]["fused"] / 1e6 if "fused" in row["ms"] else 0 for row in rows.values()]
    lines.append(f"{'fused, GB/s':<14}" + "".join(f"{rate:>13,.0f}" for rate in rates))
    lines += [f"{name}, {one}: {why}" for name, row in rows.items() for one, why in row["failed"].items()]
    return "\n".join(lines)


def main(argv: typing.Sequence[str] | None = None) -> int:
    """Measure, print and record."""
    every = cases()
    parser = argparse.ArgumentParser(prog="python -m pmpp.nn.measure.fusing", description=__doc__.split("\n")[0])
    parser.add_argument("cases", nargs="*", help="parts of the names of cases (default: all)")
    parser.add_argument("--out", type=Path, help="where to write the record; by default beside the others of this GPU")
    parser.add_argument("--budget", type=float, default=50, help="seconds after which no further case begins")
    options = parser.parse_args(argv)
    if not device.on_gpu():
        print(f"a GPU is needed: {device.describe()}")
        return 2
    wanted = {n: case for n, case in every.items() if not options.cases or any(part in n for part in options.cases)}
    began, rows, timer = time.monotonic(), {}, timing.gpu_timer()
    for name, case in wanted.items():
        if time.monotonic() - began > options.budget:
            print(f"the budget is spent: {name} and what follows were not measured")
            break
        rows[name] = measure(name, case, timer)
        print(table({name: rows[name]}), flush=True)
        write("fusing", "pmpp/nn/measure/fusing.py", {"cases": rows}, options.out)
    print(table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
