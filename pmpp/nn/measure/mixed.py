"""Training steps in mixed precision beside PyTorch's, on one GPU: ``python -m pmpp.nn.measure.mixed``.

Two steps, each in float32 and in 16 bits, each recorded as a CUDA graph: ResNet-18 on images of 32 x 32, and the
transformer of `pmpp.nn.examples.transformer` with 6 layers, width 384, 256 tokens and 64 texts. PyTorch runs the same
networks with the same parameters under ``torch.autocast``: ResNet-18 with its cuDNN in benchmark mode, the transformer
with ``scaled_dot_product_attention`` and the fused AdamW. In float32 it runs without TF32. The 16 bits are bfloat16 for
both, since a step with a `GradScaler` cannot be recorded.

The losses of both are compared before a step is timed. It prints a table, and records it after each network.
"""

from __future__ import annotations

import argparse
import typing
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pmpp import nn
from pmpp.nn import functional as F
from pmpp.nn.examples import transformer
from pmpp.nn.examples.networks import ResNet18
from pmpp.nn.measure import write
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


def resnet(dtype: str | None) -> tuple[Callable, tuple, Callable]:
    """Our step and its inputs, and PyTorch's step, of ResNet-18; ``dtype``: None for float32."""
    import torch

    torch.backends.cudnn.benchmark = True
    nn.manual_seed(0)
    net = ResNet18()
    other = theirs(net)
    rng = np.random.default_rng(0)
    images = rng.standard_normal((IMAGES, 3, 32, 32), dtype=np.float32)
    labels = rng.integers(0, 10, IMAGES)
    tx, ty = torch.from_numpy(images).cuda(), torch.from_numpy(labels).cuda()
    mine = nn.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    their = torch.optim.SGD(other.parameters(), lr=0.01, momentum=0.9)

    def step(x: Tensor, y: Tensor) -> Tensor:
        mine.zero_grad()
        with nn.amp.autocast(dtype=DTYPE, enabled=dtype is not None):
            loss = F.cross_entropy(net(x), y)
        loss.backward()
        mine.step()
        return loss

    def their_step() -> typing.Any:
        their.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype is not None, cache_enabled=True):
            loss = torch.nn.functional.cross_entropy(other(tx), ty)
        loss.backward()
        their.step()
        return loss

    return step, (Tensor(images), Tensor(labels)), their_step


def text(dtype: str | None) -> tuple[Callable, tuple, Callable]:
    """As `resnet`, of the transformer."""
    import torch

    nn.manual_seed(0)
    net = transformer.Transformer(LAYERS, WIDTH, HEADS, LENGTH)
    other = torch_transformer(net)
    (tokens, following), places = next(transformer.batches(transformer.text(), 1, TEXTS, LENGTH)), np.arange(LENGTH)
    given = [torch.from_numpy(np.ascontiguousarray(x)).cuda() for x in (tokens, following, places)]
    options = {"lr": 1e-3, "betas": (0.9, 0.95), "weight_decay": 0.1}
    mine = nn.optim.AdamW(net.parameters(), **options)
    their = torch.optim.AdamW(other.parameters(), **options, fused=True, capturable=True)

    def step(tokens: Tensor, following: Tensor, places: Tensor) -> Tensor:
        mine.zero_grad()
        with nn.amp.autocast(dtype=DTYPE, enabled=dtype is not None):
            loss = transformer.loss_of(net, tokens, following, places)
        loss.backward()
        mine.step()
        return loss

    def their_step() -> typing.Any:
        their.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype is not None):
            scores = other(given[0], given[2])
            loss = torch.nn.functional.cross_entropy(scores.view(-1, scores.shape[-1]), given[1].view(-1))
        loss.backward()
        their.step()
        return loss

    return step, tuple(map(Tensor, (tokens, following, places))), their_step


CASES = {"ResNet-18, batch 128": resnet, "transformer, batch 64": text}


def measure(name: str) -> dict[str, typing.Any]:
    """Times of one network: ours and PyTorch's, in float32 and in 16 bits."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    row: dict[str, typing.Any] = {"ms": {}, "losses": {}}
    for dtype in (DTYPE, None):
        step, given, their_step = CASES[name](dtype)
        kind = dtype or "float32"
        row["losses"][kind] = [(step(*given).item(), their_step().item()) for _ in range(STEPS)]
        recorded, theirs_recorded = nn.capture(step, *given), _torch_graph(their_step)
        times = milliseconds(lambda: recorded(*given), theirs_recorded)  # noqa: B023
        row["ms"][f"ours, {kind}"], row["ms"][f"torch, {kind}"] = times
    return row


def lines(rows: dict[str, typing.Any]) -> list[str]:
    """The table."""
    made = [f"{'step, as a graph':<24}{'dtype':<10}{'ours ms':>9}{'torch ms':>10}{'ratio':>7}  losses differ by"]
    for name, row in rows.items():
        for kind in (DTYPE, "float32"):
            mine, other = row["ms"][f"ours, {kind}"], row["ms"][f"torch, {kind}"]
            off = max(abs(a - b) / abs(b) for a, b in row["losses"][kind])
            made.append(f"{name:<24}{kind:<10}{mine:9.3f}{other:10.3f}{other / mine:7.2f}  {off:.1e}")
        ratio = row["ms"][f"torch, {DTYPE}"] / row["ms"][f"ours, {DTYPE}"]
        won = row["ms"]["ours, float32"] / row["ms"][f"ours, {DTYPE}"]
        least, most = TARGETS[name]
        words = f"{ratio:.2f} x PyTorch, target {least}: {'met' if ratio >= least else 'MISSED'}"
        if most:
            words += f"; {won:.2f} x our float32, target {most}: {'met' if won >= most else 'MISSED'}"
        made.append(f"{'':<24}{words}")
    return made


def main(argv: typing.Sequence[str] | None = None) -> int:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(prog="python -m pmpp.nn.measure.mixed", description=__doc__.split("\n")[0])
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)} (default: all)")
    parser.add_argument("--out", type=Path, help="where to write the record; by default among those of this GPU")
    options = parser.parse_args(argv)
    if not device.on_gpu():
        print(f"a GPU is needed: {device.describe()}")
        return 2
    rows: dict[str, typing.Any] = {}
    for name in options.cases or CASES:
        rows[name] = measure(name)
        print("\n".join(lines({name: rows[name]})), flush=True)
        path = write("mixed", "pmpp/nn/measure/mixed.py", {"steps": rows}, options.out)
    print(f"recorded in {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
