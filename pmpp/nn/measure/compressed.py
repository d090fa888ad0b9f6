"""What a network learns if its layers' inputs are kept in few bits: ``python -m pmpp.nn.measure.compressed``.

The network of `pmpp.nn.examples.digits` is trained on 1,437 real digits, from several seeds, with what its layers keep
as it is and in each of the `WAYS`. For each it records how many of the other 360 digits the network knows, and the
bytes that the tape keeps. Then come the gradients of one batch: how far they are from those of what is kept as it is,
once and in the mean of several. And of two larger networks the bytes that a forward pass leaves, the most that a step
needs, and its time. Losses are compared before anything is recorded: forwards nothing may change.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import statistics
import time
import typing
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pmpp import nn
from pmpp.nn import functional as F
from pmpp.nn.examples import digits
from pmpp.nn.measure import write
from pmpp.nn.measure.memory import CASES, Differs, curve, data_of, in_use, milliseconds
from pmpp.nn.tape import Tensor
from pmpp.nn.utils.data import TensorDataset
from pmpp.runtime import device

#: How inputs are kept: bits, and whether they are rounded to the nearest code. None: `compressed_activations` is not
#: used at all, and with 32 bits for ReLU alone.
WAYS: dict[str, tuple[int, bool] | None] = {
    "as it is": None,
    "a bit for ReLU": (32, False),
    "8 bits": (8, False),
    "4 bits": (4, False),
    "2 bits": (2, False),
    "4 bits, nearest": (4, True),
    "2 bits, nearest": (2, True),
}
SEEDS = 8
MANY = 32  # gradients of which the mean is taken
NETWORKS = (("LeNet-5", 4096), ("ResNet-18", 128))
FARTHEST = 1e-5  # between two losses, relative: sums that atomics may add in another order


@contextlib.contextmanager
def kept(way: str) -> Iterator[None]:
    """Within it layers keep their inputs in that way."""
    chosen = WAYS[way]
    if chosen is None:
        yield
        return
    with nn.compressed_activations(chosen[0], nearest=chosen[1]):
        yield


def trained(way: str, seed: int, data: tuple[TensorDataset, TensorDataset], epochs: int = digits.EPOCHS) -> dict:
    """A training from a seed: the accuracy, the loss of the last epoch, and the bytes that a forward pass keeps."""
    training, held_out = data
    nn.manual_seed(seed)
    net = digits.Net()
    with kept(way):
        loss = [loss for _, loss in digits.train(net, training, epochs, seed=seed)][-1]
        images, labels = (Tensor(part[: digits.BATCH]) for part in training.arrays)
        activations = nn.memory(net, F.cross_entropy(net(images), labels))["activations"]
    batch = images.array.nbytes
    return {"accuracy": digits.accuracy(net, held_out), "loss": loss, "kept": activations - batch}


def gradient(net: nn.Module, x: Tensor, y: Tensor) -> tuple[float, np.ndarray]:
    """The loss of a batch and its gradient, as one vector in float64."""
    net.zero_grad()
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    parts = [p.grad.numpy().astype(np.float64).ravel() for p in net.parameters()]
    return loss.item(), np.concatenate(parts)


def agree(what: str, loss: float, expected: float) -> None:
    """Raise Differs if a loss is not that of a network whose layers keep what they need as it is."""
    if not abs(loss / expected - 1) <= FARTHEST:
        raise Differs(f"{what}: the loss is {loss}, and {expected} with what is kept as it is")


def noise(data: tuple[TensorDataset, TensorDataset], many: int = MANY) -> dict[str, dict[str, float]]:
    """How far gradients of a network that has begun to learn are from the exact ones, as a share of their length.

    Of each way, "one" is the mean distance of a gradient, and "mean" that of the mean of ``many``. Raises Differs.
    """
    nn.manual_seed(0)
    net = digits.Net()
    for _ in digits.train(net, data[0], 1):
        pass
    x, y = (Tensor(part[: digits.BATCH]) for part in data[0].arrays)
    loss, exact = gradient(net, x, y)
    length, found = np.linalg.norm(exact), {}
    for way in WAYS:
        nn.manual_seed(1)
        with kept(way):
            made = [gradient(net, x, y) for _ in range(many)]
        agree(way, made[0][0], loss)
        vectors = [vector for _, vector in made]
        one = statistics.mean(float(np.linalg.norm(vector - exact) / length) for vector in vectors)
        found[way] = {"one": one, "mean": float(np.linalg.norm(np.mean(vectors, axis=0) - exact) / length)}
    return found


def step_of(name: str, batch: int, way: str) -> dict[str, float]:
    """Of a training step of a larger network: the loss, bytes kept, the most bytes in use, and milliseconds."""
    kind, shape, _ = CASES[name]
    gc.collect()
    nn.manual_seed(0)
    nothing = in_use()
    net = kind()
    optimizer = nn.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    x, y = map(Tensor, data_of(shape, batch))

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    with kept(way):
        row = {"loss": step().item()}  # compiles, and fills the tables of addresses
        step()
        optimizer.zero_grad()
        before = in_use()
        loss = F.cross_entropy(net(x), y)
        row["kept"] = in_use() - before
        del loss
        with curve() as seen:
            step()
        row["peak"] = seen.peak - nothing
        row["ms"] = milliseconds(step, device.backend().cuda.synchronize)
    return row


def table(found: dict[str, typing.Any]) -> str:
    """What was found, as text."""
    lines = [f"{'':<18}{'accuracy':>10}{'seeds':>7}{'kept, bytes':>13}{'gradient off by':>17}{'mean of many':>14}"]
    for way, rows in found.get("training", {}).items():
        mean = statistics.mean(row["accuracy"] for row in rows)
        off = found.get("gradient", {}).get(way, {"one": float("nan"), "mean": float("nan")})
        kept_bytes = f"{rows[0]['kept']:13,}"
        lines.append(f"{way:<18}{mean:10.2%}{len(rows):7}{kept_bytes}{off['one']:17.2%}{off['mean']:14.2%}")
    for name, ways in found.get("networks", {}).items():
        lines.append(f"{name:<18}" + "".join(f"{what:>14}" for what in ("kept, MiB", "peak, MiB", "ms")))
        for way, row in ways.items():
            sizes = "".join(f"{row[what] / 2**20:14.1f}" for what in ("kept", "peak"))
            lines.append(f"  {way:<16}{sizes}{row['ms']:14.2f}")
    return "\n".join(lines)


def measure(budget: float, seeds: int, note: typing.Callable[[dict], None]) -> dict[str, typing.Any]:
    """All that is recorded; ``note`` is told of it whenever there is more. Seeds come in rounds of all ways.

    The first round always comes to its end: it compiles most of the kernels. Gradients begin before ``budget`` seconds
    have passed, further rounds before 60 % of them, and each larger network before all of them.
    """
    began, data = time.perf_counter(), digits.datasets()
    found: dict[str, typing.Any] = {"digits": len(data[1]), "batch": digits.BATCH, "many": MANY}
    found["training"], found["gradient"], found["networks"] = {way: [] for way in WAYS}, {}, {}

    def goes_on(what: str, share: float = 1.0) -> bool:
        passed = time.perf_counter() - began
        print(f"{passed:6.1f} s: {what}{'' if passed < share * budget else ' is left out'}", flush=True)
        return passed < share * budget

    def one_round(seed: int) -> None:
        for way in WAYS:
            found["training"][way].append(trained(way, seed, data))
        note(found)

    one_round(0)
    if goes_on("gradients"):
        found["gradient"] = noise(data)
        note(found)
    for seed in range(1, seeds):
        if not goes_on(f"seed {seed}", 0.6):
            break
        one_round(seed)
    for name, batch in NETWORKS:
        for way in (way for way, chosen in WAYS.items() if chosen is None or not chosen[1]):
            if goes_on(f"{name}, {way}"):
                rows = found["networks"].setdefault(f"{name}, batch {batch}", {})
                rows[way] = step_of(name, batch, way)
                agree(f"{name}, {way}", rows[way]["loss"], next(iter(rows.values()))["loss"])
                note(found)
    return found


def main(argv: typing.Sequence[str] | None = None) -> int:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(prog="python -m pmpp.nn.measure.compressed", description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=SEEDS, help="trainings of each kind (default: %(default)s)")
    parser.add_argument("--budget", type=float, default=50.0, help="seconds after which nothing more is begun")
    parser.add_argument("--out", type=Path, help="where to write the record; by default among those of this GPU")
    options = parser.parse_args(argv)
    if options.seeds < 1:
        parser.error(f"--seeds must be at least 1, was {options.seeds}")
    if not device.on_gpu():
        print(f"a GPU is needed: {device.describe()}")
        return 2

    def note(found: dict) -> None:
        write("compressed", "pmpp/nn/measure/compressed.py", found, options.out)

    print(table(measure(options.budget, options.seeds, note)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
