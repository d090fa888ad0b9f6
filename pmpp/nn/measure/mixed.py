"""Training steps in mixed precision beside PyTorch's, on one GPU: ``python -m pmpp.nn.measure.mixed``.

Two steps, each in float32 and in 16 bits, each recorded as a CUDA graph: ResNet-18 on images of 32 x 32, and the
transformer of `pmpp.nn.examples.transformer` with 6 layers, width 384, 256 tokens and 64 texts. PyTorch runs the same
networks with the same parameters under ``torch.autocast``: ResNet-18 with its cuDNN in benchmark mode, the transformer
with ``scaled_dot_product_attention`` and the fused AdamW. In float32 it runs without TF32. The 16 bits are bfloat16 for
both, since a step with a `GradScaler` cannot be recorded.

A step is a *part*: a network, whose step it is, and a dtype. ``--list`` prints their names, and ``--only`` takes some
of them, or how they begin. Our steps compile some dozens of kernels each, so every part has a process. All compile at
once, and they take turns on the GPU: nobody computes while another one is timed.

It prints what each part does with the seconds that it took, then a table, and records it. On SIGTERM, and when
``--seconds`` are used up, it ends the parts that are not done, and prints and records what it has. ``--profile`` also
says which kernels a step spends its time in.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import tempfile
import time
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from pmpp import nn
from pmpp.lab.measure.turns import Spent
from pmpp.nn import functional as F
from pmpp.nn.examples import transformer
from pmpp.nn.examples.networks import ResNet18
from pmpp.nn.measure import processes, write
from pmpp.nn.measure.steps import _torch_graph, milliseconds, theirs
from pmpp.nn.tape import Tensor
from pmpp.runtime import device

LAYERS, WIDTH, HEADS, LENGTH, TEXTS = 6, 384, 6, 256, 64
IMAGES = 128
DTYPE = "bfloat16"
STEPS = 5  # whose losses are compared
#: The issue's targets: PyTorch's time over ours in 16 bits, and our time in float32 over that.
TARGETS = {"ResNet-18, batch 128": (0.9, 1.5), "transformer, batch 64": (0.8, None)}


def torch_transformer(net: transformer.Transformer, where: str = "cuda") -> typing.Any:
    """The same network in PyTorch, with the same state."""
    import torch
    from torch import nn as tnn

    class Block(tnn.Module):
        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.heads = heads
            self.norm1, self.norm2 = tnn.LayerNorm(width), tnn.LayerNorm(width)
            self.qkv, self.out = tnn.Linear(width, 3 * width), tnn.Linear(width, width)
            self.up, self.down = tnn.Linear(width, 4 * width), tnn.Linear(4 * width, width)

        def forward(self, x: typing.Any) -> typing.Any:
            texts, length, width = x.shape
            shape = texts, length, 3, self.heads, width // self.heads
            q, k, v = self.qkv(self.norm1(x)).view(shape).permute(2, 0, 3, 1, 4)
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(texts, length, width))
            return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))

    class Twin(tnn.Module):
        def __init__(self) -> None:
            super().__init__()
            vocabulary, width = net.tokens.weight.shape
            self.tokens, self.places = tnn.Embedding(vocabulary, width), tnn.Embedding(net.length, width)
            for i in range(net.layers):
                setattr(self, f"block{i}", Block(width, net.heads))
            self.norm = tnn.LayerNorm(width)

        def forward(self, tokens: typing.Any, places: typing.Any) -> typing.Any:
            x = self.tokens(tokens) + self.places(places)
            for i in range(net.layers):
                x = getattr(self, f"block{i}")(x)
            return torch.nn.functional.linear(self.norm(x), self.tokens.weight)

    made = Twin()
    made.load_state_dict({name: torch.from_numpy(value) for name, value in net.state_dict().items()})
    return made.to(where)


def resnet(whose: str, dtype: str) -> tuple[Callable, tuple]:
    """The step of ResNet-18 and its inputs: "ours", or "torch", which has them already."""
    nn.manual_seed(0)
    net = ResNet18()
    rng = np.random.default_rng(0)
    images = rng.standard_normal((IMAGES, 3, 32, 32), dtype=np.float32)
    labels = rng.integers(0, 10, IMAGES)
    if whose == "torch":
        return torch_resnet(net, images, labels, dtype), ()
    mine = nn.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    def step(x: Tensor, y: Tensor) -> Tensor:
        mine.zero_grad()
        with nn.amp.autocast(dtype=DTYPE, enabled=dtype == DTYPE):
            loss = F.cross_entropy(net(x), y)
        loss.backward()
        mine.step()
        return loss

    return step, (Tensor(images), Tensor(labels))


def torch_resnet(net: ResNet18, images: np.ndarray, labels: np.ndarray, dtype: str) -> Callable:
    """PyTorch's step."""
    import torch

    torch.backends.cudnn.benchmark = True
    other = theirs(net)
    x, y = torch.from_numpy(images).cuda(), torch.from_numpy(labels).cuda()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.01, momentum=0.9)

    def step() -> typing.Any:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype == DTYPE):
            loss = torch.nn.functional.cross_entropy(other(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def text(whose: str, dtype: str) -> tuple[Callable, tuple]:
    """As `resnet`, of the transformer."""
    nn.manual_seed(0)
    net = transformer.Transformer(LAYERS, WIDTH, HEADS, LENGTH)
    (tokens, following), places = next(transformer.batches(transformer.text(), 1, TEXTS, LENGTH)), np.arange(LENGTH)
    options = {"lr": 1e-3, "betas": (0.9, 0.95), "weight_decay": 0.1}
    if whose == "torch":
        return torch_text(net, [np.ascontiguousarray(x) for x in (tokens, following, places)], options, dtype), ()
    mine = nn.optim.AdamW(net.parameters(), **options)

    def step(tokens: Tensor, following: Tensor, places: Tensor) -> Tensor:
        mine.zero_grad()
        with nn.amp.autocast(dtype=DTYPE, enabled=dtype == DTYPE):
            loss = transformer.loss_of(net, tokens, following, places)
        loss.backward()
        mine.step()
        return loss

    return step, tuple(map(Tensor, (tokens, following, places)))


def torch_text(net: transformer.Transformer, inputs: list, options: dict, dtype: str) -> Callable:
    """PyTorch's step."""
    import torch

    other = torch_transformer(net)
    tokens, following, places = (torch.from_numpy(x).cuda() for x in inputs)
    optimizer = torch.optim.AdamW(other.parameters(), **options, fused=True, capturable=True)

    def step() -> typing.Any:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype == DTYPE):
            scores = other(tokens, places)
            loss = torch.nn.functional.cross_entropy(scores.view(-1, scores.shape[-1]), following.view(-1))
        loss.backward()
        optimizer.step()
        return loss

    return step


CASES = {"ResNet-18, batch 128": resnet, "transformer, batch 64": text}


class Part(typing.NamedTuple):
    """A step: of a network of `CASES`, "ours" or "torch", in "bfloat16" or "float32"."""

    case: str
    whose: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.case.split(',')[0].lower()}-{self.whose}-{self.dtype}"


#: The steps that targets are about come first.
PARTS = tuple(
    Part(case, whose, dtype)
    for dtype, whose in ((DTYPE, "ours"), (DTYPE, "torch"), ("float32", "ours"), ("float32", "torch"))
    for case in CASES
)


def chosen(names: Sequence[str] | None) -> tuple[Part, ...]:
    """The parts whose names begin with one of ``names``; all for None. Raises ValueError for a name of none.

    >>> [str(part) for part in chosen(["transformer-ours"])]
    ['transformer-ours-bfloat16', 'transformer-ours-float32']
    """
    for name in names or ():
        if not any(str(part).startswith(name) for part in PARTS):
            raise ValueError(f"--only must be the beginning of one of {', '.join(map(str, PARTS))}, was {name}")
    return tuple(part for part in PARTS if names is None or str(part).startswith(tuple(names)))


# ------------------------------------------------------------------------------------------------------- one part


def measure(
    part: Part, turn: contextlib.AbstractContextManager, say: Callable[[str], object]
) -> tuple[dict[str, typing.Any], Callable]:
    """The losses of a part's first steps and the milliseconds of one as a graph, and what replays the graph.

    The GPU is used within ``turn``.
    """
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    began = time.perf_counter()

    spent = getattr(turn, "spent", Spent())

    def passed(what: str) -> float:
        """Say what has taken how long, and how much of that was compiling, and waiting for others to leave the GPU."""
        nonlocal began, spent
        seconds, began = time.perf_counter() - began, time.perf_counter()
        since, spent = getattr(turn, "spent", Spent()) - spent, getattr(turn, "spent", Spent())
        say(f"{what}: {seconds:.1f} s, compiled {since.compiled:.1f} s, waited {since.waited:.1f} s")
        return round(seconds, 2)

    with turn:
        passed("the GPU is free")
        step, given = CASES[part.case](part.whose, part.dtype)
        passed("network and inputs")
        losses = [step(*given).item()]
        row: dict[str, typing.Any] = {"first_step_s": passed("the first step, which compiles")}
        losses += [step(*given).item() for _ in range(STEPS - 1)]
        passed(f"{STEPS - 1} more steps")
        if part.whose == "ours":
            recorded = nn.capture(step, *given)
            replay: Callable = lambda: recorded(*given)  # noqa: E731
        else:
            replay = _torch_graph(step)
        passed("recorded as a graph")
        (ms,) = milliseconds(replay, at_least=0.05)
        passed(f"timed: {ms:.3f} ms a step")
    return row | {"losses": losses, "ms": ms}, replay


def kernels_of(replay: Callable, most: int = 40) -> str:
    """The kernels of a step and the microseconds in each, by PyTorch's profiler."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        for _ in range(3):
            replay()
        torch.cuda.synchronize()
    totals: dict[str, list] = {}
    for event in found.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            entry = totals.setdefault(_short(event.name), [0, 0.0])
            entry[0] += 1
            entry[1] += event.self_device_time_total
    rows = sorted(totals.items(), key=lambda item: -item[1][1])
    total = sum(time for _, (_, time) in rows) / 3
    shown = [f"{us / 3:10.1f} us {count / 3:6.1f} x  {name}" for name, (count, us) in rows[:most]]
    return "\n".join([f"{total:10.1f} us in kernels", *shown])


def _short(symbol: str) -> str:
    """A kernel's name for a table: of one that Numba made only the last part, without its types."""
    if symbol.startswith("_ZN"):
        from pmpp.nn.replay import unmangled

        return unmangled(symbol)
    return symbol[:110]


def _process(part: Part, lock: Path, profile: bool) -> None:
    """A part in a process of its own."""
    turns = processes.turns(lock)
    row, replay = measure(part, turns, lambda words: print(words, flush=True))
    processes.answer(row)
    if profile:
        with turns:
            print(kernels_of(replay), flush=True)


# ---------------------------------------------------------------------------------------------- all parts, and a table


def together(parts: Sequence[Part], seconds: float, profile: bool = False) -> Iterator[tuple[Part, dict]]:
    """Each part and what it found, as they come to their ends. Those that have not after ``seconds`` are ended."""
    with tempfile.TemporaryDirectory() as folder:
        own = ["--lock", str(Path(folder) / "gpu.lock"), *(["--profile"] if profile else [])]
        commands = {str(part): ["pmpp.nn.measure.mixed", "--here", str(part), *own] for part in parts}
        with contextlib.closing(processes.answers(commands, seconds)) as coming:
            for name, one in coming:
                yield next(part for part in parts if str(part) == name), one


def rows_of(found: dict[Part, dict]) -> dict[str, typing.Any]:
    """What the parts have found, by network: the times, and the losses of both where both have some."""
    rows: dict[str, typing.Any] = {}
    for part, one in found.items():
        row = rows.setdefault(part.case, {"ms": {}, "losses": {}, "first_step_s": {}})
        row["ms"][f"{part.whose}, {part.dtype}"] = one["ms"]
        row["first_step_s"][f"{part.whose}, {part.dtype}"] = one["first_step_s"]
        other = found.get(part._replace(whose="torch"))
        if part.whose == "ours" and other:
            row["losses"][part.dtype] = list(zip(one["losses"], other["losses"], strict=True))
    return rows


def lines(rows: dict[str, typing.Any]) -> list[str]:
    """The table. What was not measured is a dash."""
    made = [f"{'step, as a graph':<24}{'dtype':<10}{'ours ms':>9}{'torch ms':>10}{'ratio':>7}  losses differ by"]
    for name, row in rows.items():
        for kind in (DTYPE, "float32"):
            mine, other = row["ms"].get(f"ours, {kind}"), row["ms"].get(f"torch, {kind}")
            pairs = row["losses"].get(kind)
            off = f"{max(abs(a - b) / abs(b) for a, b in pairs):.1e}" if pairs else "-"
            words = [f"{ms:.3f}" if ms else "-" for ms in (mine, other)]
            ratio = f"{other / mine:.2f}" if mine and other else "-"
            made.append(f"{name:<24}{kind:<10}{words[0]:>9}{words[1]:>10}{ratio:>7}  {off}")
        least, most = TARGETS[name]
        said = [_judged(row["ms"], f"torch, {DTYPE}", f"ours, {DTYPE}", "PyTorch", least)]
        if most:
            said.append(_judged(row["ms"], "ours, float32", f"ours, {DTYPE}", "our float32", most))
        made.append(f"{'':<24}{'; '.join(said)}")
    return made


def _judged(ms: dict[str, float], slow: str, fast: str, of: str, target: float) -> str:
    if slow not in ms or fast not in ms:
        return f"beside {of} not measured, target {target}"
    ratio = ms[slow] / ms[fast]
    return f"{ratio:.2f} x {of}, target {target}: {'met' if ratio >= target else 'MISSED'}"


def main(argv: typing.Sequence[str] | None = None) -> int:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(prog="python -m pmpp.nn.measure.mixed", description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="PART", help="parts, or how their names begin (default: all)")
    parser.add_argument("--list", action="store_true", help="print the names of the parts")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long it may take (default: 600)")
    parser.add_argument("--profile", action="store_true", help="also print the time in each kernel of a step")
    parser.add_argument("--out", type=Path, help="where to write the record; by default among those of this GPU")
    parser.add_argument("--here", help=argparse.SUPPRESS)  # one part in this process, and the file that is the lock
    parser.add_argument("--lock", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.list:
        print("\n".join(map(str, PARTS)))
        return 0
    try:
        parts = chosen([options.here] if options.here else options.only)
    except ValueError as error:
        parser.error(str(error))
    if not device.on_gpu():
        print(f"a GPU is needed: {device.describe()}")
        return 2
    if options.here:
        _process(parts[0], options.lock, options.profile)
        return 0
    found: dict[Part, dict] = {}
    with stopped_by_sigterm(), contextlib.closing(together(parts, options.seconds, options.profile)) as coming:
        try:
            for part, one in coming:
                found[part] = one
                print(f"{part}: {one['ms']:.3f} ms", flush=True)
        except KeyboardInterrupt:
            print("told to stop", flush=True)
    rows = rows_of(found)
    print("\n".join(lines(rows)), flush=True)
    if found:
        print(f"recorded in {write('mixed', 'pmpp/nn/measure/mixed.py', {'steps': rows}, options.out)}")
    return 0 if len(found) == len(parts) else 1


@contextlib.contextmanager
def stopped_by_sigterm() -> Iterator[None]:
    """Within it SIGTERM raises KeyboardInterrupt, as SIGINT does."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    raise SystemExit(main())
