"""This workbook's kernels inside PyTorch and JAX, on one GPU: ``python -m pmpp.nn.measure.frameworks``.

It makes the checks of `pmpp.nn.interop.checks` and keeps what they say. Then it measures, forward and backward pass
together: layer normalisation and cross-entropy as PyTorch's own, as our operator, and both compiled; a step of gradient
descent; what a call costs the host in each form; what it costs to hand an array over; and the two ways into JAX. Each
result is compared with PyTorch's before it is timed.

It prints what it finds, and writes the record ``frameworks`` after each part.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import time
import typing
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pmpp.kernels import normalisation
from pmpp.lab.measure import record
from pmpp.nn.interop import checks, dlpack
from pmpp.nn.measure import recorded, write
from pmpp.runtime import device

NAME, SOURCE = "frameworks", "pmpp/nn/measure/frameworks.py"
SIZES = {"rows": (65536, 1024), "logits": (8192, 50257), "tensors": (100, 10**6), "small": (32, 64)}
LIBRARIES = ("torch", "jax", "cupy")
Clock = Callable[[Callable], float]


def present(*names: str) -> bool:
    """Whether all these libraries are installed."""
    return all(importlib.util.find_spec(name) for name in names)


def said(name: str) -> list[str]:
    """What a check says: found out here, if its libraries are installed; else as the record has it."""
    check, needs = checks.CHECKS[name]
    if present(*needs):
        return check()
    try:
        kept = recorded(NAME)
    except record.RecordError:
        missing = ", ".join(one for one in needs if not present(one))
        return [f"{missing} not installed, and not recorded yet: python -m pmpp.nn.measure.{NAME} does that on a GPU"]
    about = kept["about"]["gpu"]["name"], *(f"{one} {kept['versions'].get(one, '')}" for one in needs)
    return [f"recorded on {', '.join(about)}:", *kept["checks"].get(name, ["newer than the record"])]


def measured(part: str) -> list[str]:
    """A part of the record as a table, or what would make one."""
    try:
        kept = recorded(NAME)
    except record.RecordError:
        return [f"{part}: not recorded yet; python -m pmpp.nn.measure.{NAME} measures it on a GPU"]
    if part not in kept:
        return [f"{part}: not in the record; python -m pmpp.nn.measure.{NAME} {part} measures it"]
    versions = ", ".join(f"{name} {version}" for name, version in kept["versions"].items())
    return [f"{kept['about']['gpu']['name']}, {versions}", *lines_of(part, kept[part])]


def versions() -> dict[str, str]:
    """Of the libraries that are installed."""
    found = {}
    for name in LIBRARIES:
        if present(name):
            try:
                found[name] = __import__(name).__version__
            except Exception as error:  # it is there, and does not work: worth a line in the record
                found[name] = f"does not import ({type(error).__name__})"
    return found


def milliseconds(call: Callable, at_least: float = 0.1, repetitions: int = 7) -> float:
    """The median time of a call from host to host: many calls are queued, and waited for at the end."""
    import torch

    def run(n: int) -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(n):
            call()
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / n

    run(3)
    n = max(3, int(at_least / run(3)))
    return 1e3 * statistics.median(run(n) for _ in range(repetitions))


def timed(calls: dict[str, Callable], agree: Callable[[typing.Any, typing.Any], float], clock: Clock) -> dict:
    """The milliseconds of each call. The first is PyTorch's: how far the others' results are from its is kept, too.

    One that fails has its error in the place of a time.
    """
    wanted, found = next(iter(calls.values()))(), {}
    for name, call in calls.items():
        try:
            off = agree(call(), wanted)
            if not off < 1e-3:
                raise ValueError(f"off by {off:.1e} of the largest")
            found[name] = {"off": off, "ms": clock(call)}
        except Exception as error:  # the others are still worth their times
            found[name] = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
    return found


def farthest(found: tuple, wanted: tuple) -> float:
    """The largest difference between tensors, each as a part of the largest of what is wanted."""
    pairs = zip(found, wanted, strict=True)
    return max(float((a - b).detach().abs().max() / b.detach().abs().max().clamp_min(1e-30)) for a, b in pairs)


def graphed(call: Callable) -> Callable:
    """The call as a CUDA graph, recorded when it is first wanted: the host does next to nothing for a replay."""
    kept: list[typing.Any] = []

    def replay() -> typing.Any:
        import torch

        if not kept:
            side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    call()
            torch.cuda.current_stream().wait_stream(side)
            # On the stream of the warm-up: our pool keeps memory by stream, and while a graph is recorded an empty pool
            # cannot ask the driver for more.
            with torch.cuda.graph(graph, stream=side):
                kept[:] = graph, call()
        kept[0].replay()
        return kept[1]

    return replay


# ------------------------------------------------------------------------------------------------- what is measured


def layer_norm(sizes: dict, clock: Clock, backend: str = "inductor") -> dict:
    """Forward and backward."""
    return _layer_norm(sizes["rows"], clock, backend)


def calls(sizes: dict, clock: Clock, backend: str = "inductor") -> dict:
    """The same of a small matrix: the time is what a call costs the host."""
    return _layer_norm(sizes["small"], clock, backend)


def _layer_norm(shape: tuple[int, int], clock: Clock, backend: str) -> dict:
    import torch

    from pmpp.nn.interop import operators

    ops, plain = operators.register(), checks.as_function()
    x, weight, bias, upstream = checks.tensors(shape, shape[1:], shape[1:], shape)
    upstream = upstream.detach()

    def both(forward: Callable) -> Callable:
        def call() -> tuple:
            return torch.autograd.grad(forward(x, weight, bias), (x, weight, bias), upstream)

        return call

    def theirs(x: typing.Any, weight: typing.Any, bias: typing.Any) -> typing.Any:
        return torch.nn.functional.layer_norm(x, weight.shape, weight, bias, 1e-5)

    def ours(x: typing.Any, weight: typing.Any, bias: typing.Any) -> typing.Any:
        return ops.layer_norm(x, weight, bias, 1e-5)

    torch._dynamo.reset()
    made = {
        "torch": both(theirs),
        "ours, Function": both(plain.apply),
        "ours, operator": both(ours),
        "ours, operator, compiled": both(torch.compile(ours, fullgraph=True, backend=backend)),
        "torch, compiled": both(torch.compile(theirs, fullgraph=True, backend=backend)),
    }
    if device.on_gpu():  # ours last: its scratch memory goes back to our pool, and nobody may take it meanwhile
        made |= {"torch, graph": graphed(both(theirs)), "ours, operator, graph": graphed(both(ours))}
    return timed(made, farthest, clock)


def cross_entropy(sizes: dict, clock: Clock, backend: str = "inductor") -> dict:
    """Forward and backward."""
    import torch

    from pmpp.nn.interop import operators

    ops, (n, classes) = operators.register(), sizes["logits"]
    (logits,) = checks.tensors((n, classes))
    labels = torch.from_numpy(np.random.default_rng(1).integers(0, classes, n)).to(checks.here())

    def both(forward: Callable) -> Callable:
        return lambda: torch.autograd.grad(forward(logits, labels), logits)

    def ours(logits: typing.Any, labels: typing.Any) -> typing.Any:
        return ops.cross_entropy(logits, labels)[0]

    theirs = torch.nn.functional.cross_entropy
    torch._dynamo.reset()
    made = {
        "torch": both(theirs),
        "ours, operator": both(ours),
        "ours, operator, compiled": both(torch.compile(ours, fullgraph=True, backend=backend)),
        "torch, compiled": both(torch.compile(theirs, fullgraph=True, backend=backend)),
    }
    return timed(made, farthest, clock)


def sgd(sizes: dict, clock: Clock, backend: str = "inductor") -> dict:
    """A step with momentum, in place: PyTorch's fused optimiser, and our operator."""
    import torch

    from pmpp.nn.interop import operators

    ops, (n, size) = operators.register(), sizes["tensors"]
    mine, their = (checks.tensors(*[(size,)] * n) for _ in range(2))
    gradients = [x.detach() for x in checks.tensors(*[(size,)] * n, seed=1)]
    for x, gradient in zip(their, gradients, strict=True):
        x.grad = gradient
    momenta = [torch.zeros_like(x) for x in gradients]
    kinds = {"fused": True} if device.on_gpu() else {}
    optimizer = torch.optim.SGD(their, lr=1e-3, momentum=0.9, **kinds)
    plain = [x.detach() for x in mine]

    def theirs() -> list:
        optimizer.step()
        return their

    def ours() -> list:
        ops.sgd_(plain, gradients, momenta, 1e-3, 0.9)
        return plain

    off = farthest(tuple(ours()), tuple(theirs()))  # after one step: `timed` makes different numbers of them
    return timed({"torch, fused": theirs, "ours, operator": ours}, lambda *_: off, clock)


def handing_over(sizes: dict, clock: Clock, backend: str = "inductor") -> dict:
    """An array of PyTorch's to another library, and what a copy by way of the host takes for comparison."""
    import torch

    x = torch.zeros(sizes["rows"], device=checks.here())
    mine = device.to_device(np.zeros(sizes["rows"], np.float32))
    made: dict[str, Callable] = {"torch, x + 1": lambda: x + 1, "through the host": lambda: x.cpu().to(x.device)}
    for name, (_, borrow, _) in checks.arrays_of().items():
        if name != "PyTorch":
            made[f"torch to {name}"] = lambda borrow=borrow: borrow(x)
    if device.on_gpu():
        made["pmpp to torch, DLPack"] = lambda: torch.from_dlpack(dlpack.lend(mine))
        made["pmpp to torch, as_tensor"] = lambda: torch.as_tensor(mine, device="cuda")
    return timed(made, lambda *_: 0.0, clock)


def in_jax(sizes: dict, clock: Clock, backend: str = "inductor") -> dict:
    """Layer normalisation in JAX, forward alone: JAX's own formula compiled, and our kernel in both ways."""
    import jax
    import jax.numpy as jnp

    from pmpp.nn.interop import jax_functions

    rng, (rows, columns) = np.random.default_rng(0), sizes["rows"]
    x, weight, bias = (
        jnp.asarray(rng.standard_normal(s, dtype=np.float32)) for s in ((rows, columns), (columns,), (columns,))
    )

    def formula(x: typing.Any, weight: typing.Any, bias: typing.Any) -> typing.Any:
        return (x - x.mean(1, keepdims=True)) / jnp.sqrt(x.var(1, keepdims=True) + 1e-5) * weight + bias

    def run(function: Callable) -> Callable:
        compiled = jax.jit(function)
        return lambda: compiled(x, weight, bias).block_until_ready()

    def by_dlpack() -> typing.Any:
        """Outside of `jax.jit`: JAX is waited for, then a kernel runs on its memory, then JAX borrows the result."""
        x.block_until_ready()
        return jax.dlpack.from_dlpack(dlpack.lend(normalisation.layer_norm(x, weight, bias))).block_until_ready()

    made = {"jax, compiled": run(formula)}
    for way in (jax_functions.in_place, jax_functions.through_host):
        made[f"ours, {way.__name__}"] = run(jax_functions.layer_norm(way))
    if device.on_gpu():
        made["ours, outside of jit"] = by_dlpack
    return timed(made, lambda a, b: float(abs(a - b).max() / abs(b).max()), clock)


PARTS = {
    "calls": (calls, "torch"),
    "layer_norm": (layer_norm, "torch"),
    "sgd": (sgd, "torch"),
    "handing_over": (handing_over, "torch"),
    "in_jax": (in_jax, "jax"),
    "cross_entropy": (cross_entropy, "torch"),
}


def lines_of(part: str, found: dict) -> list[str]:
    """A part of the record as a table."""
    lines = [part]
    for name, row in found.items():
        said = f"{1e3 * row['ms']:12,.1f} us   off by {row['off']:.0e}" if "ms" in row else row["error"]
        lines.append(f"  {name:28}{said}")
    return lines


def main(argv: typing.Sequence[str] | None = None) -> int:
    """Check, measure, print and record."""
    parser = argparse.ArgumentParser(prog=f"python -m pmpp.nn.measure.{NAME}", description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", help=f"of checks, {', '.join(PARTS)} (default: all)")
    parser.add_argument("--out", type=Path, help="another file for the record")
    parser.add_argument("--budget", type=float, default=120, help="seconds after which no further part is begun")
    options = parser.parse_args(argv)
    wrong = [part for part in options.parts if part not in ("checks", *PARTS)]
    if wrong:
        parser.error(f"parts must be of checks, {', '.join(PARTS)}, was {wrong[0]!r}")
    if not device.on_gpu():
        print(f"a GPU is needed: {device.describe()}")
        return 2
    began = time.perf_counter()
    parts = options.parts or ["checks", *PARTS]
    rows: dict[str, typing.Any] = {"versions": versions(), "sizes": {k: list(v) for k, v in SIZES.items()}}
    rows["checks"] = {name: ["not checked"] for name in checks.CHECKS}
    print(json.dumps(rows["versions"]))
    for part in sorted(parts, key=lambda part: part != "checks"):  # these first
        if time.perf_counter() - began > options.budget:
            print(f"{part}: not begun, after {options.budget:g} s")
            continue
        _measure(part, rows)
        write(NAME, SOURCE, rows, options.out)
    return 0


def _measure(part: str, rows: dict[str, typing.Any], sizes: dict = SIZES, **how: typing.Any) -> None:
    """Carry a part out, put what it found into ``rows``, and print it."""
    if part == "checks":
        for name, (check, needs) in checks.CHECKS.items():
            try:
                rows["checks"][name] = check() if present(*needs) else [f"needs {' and '.join(needs)}"]
            except Exception as error:  # to be read in the record
                rows["checks"][name] = [" ".join(f"{type(error).__name__}: {error}".split())[:300]]
            print(name, *rows["checks"][name], sep="\n  ")
        return
    function, needs = PARTS[part]
    try:
        if not present(needs):
            raise ImportError(f"{needs} is not installed")
        rows[part] = function(sizes, how.pop("clock", milliseconds), **how)
    except Exception as error:
        rows[part] = {"all": {"error": " ".join(f"{type(error).__name__}: {error}".split())[:300]}}
    print(*lines_of(part, rows[part]), sep="\n")


if __name__ == "__main__":
    raise SystemExit(main())
