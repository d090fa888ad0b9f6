"""A whole training on the CPU and on the GPU, time and energy: ``python -m pmpp.nn.measure.cpu_gpu``.

Two networks are trained on the same digits, from the same state, with the same batches in the same order: by NumPy and
by PyTorch on the CPU, by this workbook and by PyTorch on the GPU. The first losses of each are compared with NumPy's,
and what differs is not timed. Each step begins with a batch in the host's memory, so a step on the GPU has the copy of
its batch in it.

Energy is what the drivers count: NVML for the GPU, RAPL for the CPU. Where one of them cannot be read, the record says
why. NVML's counter moves about ten times a second, so energy is taken over more than a second.

It prints what it found, and writes the record ``cpu_gpu.json`` after each case.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import statistics
import time
import typing
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pmpp import nn
from pmpp.nn import functional as F
from pmpp.nn.examples import digits
from pmpp.nn.examples.networks import LeNet
from pmpp.nn.examples.numpy_network import DIGITS, LENET, NumpyNetwork
from pmpp.nn.measure import write
from pmpp.nn.measure.steps import _torch_graph, theirs
from pmpp.nn.tape import Tensor
from pmpp.nn.utils.data import TensorDataset
from pmpp.runtime import device

LR, MOMENTUM, BATCH, EPOCHS = 0.02, 0.9, 64, 16
BATCHES = 64, 1, 1024, 8, 256, 4096
ENERGY_BATCHES = 64, 1024
POWERCAP = Path("/sys/class/powercap")
EPS = float(np.finfo(np.float32).eps)


class Case(typing.NamedTuple):
    """A network: how it is made, what its twin in NumPy must know, and how many pixels an image has at a side."""

    kind: Callable[[], nn.Module]
    layers: tuple
    side: int


CASES = {"LeNet-5": Case(LeNet, LENET, 28), "digits": Case(digits.Net, DIGITS, 8)}


def datasets(side: int) -> tuple[TensorDataset, TensorDataset]:
    """scikit-learn's digits to train on, and others: 8 x 8, or each pixel as 3 x 3 with an edge of 2: 28 x 28."""
    made = []
    for dataset in digits.datasets():
        images, labels = dataset.arrays
        if side == 28:
            images = np.kron(images, np.ones((3, 3), np.float32))
            images = np.pad(images, ((0, 0), (0, 0), (2, 2), (2, 2)))
        made.append(TensorDataset(np.ascontiguousarray(images, np.float32), labels))
    return made[0], made[1]


# -------------------------------------------------------------------------------------------------------------- runners


class InNumpy:
    """NumPy on the CPU. With one worker its library for products uses all cores, with several each worker has one."""

    def __init__(self, case: Case, state: dict[str, np.ndarray], workers: int = 1) -> None:
        self.net = NumpyNetwork(case.layers, state, LR, MOMENTUM, workers)
        self.step, self.scores = self.net.step, self.net.scores
        if workers > 1:
            from threadpoolctl import threadpool_limits

            self._limits = threadpool_limits  # set while it steps alone: other runners keep their threads
            self.step = self._alone

    def _alone(self, images: np.ndarray, labels: np.ndarray) -> float:
        with self._limits(limits=1, user_api="blas"):
            return self.net.step(images, labels)

    def loss(self, result: float) -> float:
        """What a step returned, as a number."""
        return result

    def wait(self) -> None:
        """Nothing is queued."""


class Ours:
    """This workbook's kernels, each launch by a call, or the whole step as a CUDA graph."""

    def __init__(self, case: Case, state: dict[str, np.ndarray], graph: bool = False) -> None:
        self.net, self.state, self.graph = case.kind(), state, graph
        self.net.load_state_dict(state)
        self.optimizer = nn.optim.SGD(self.net.parameters(), lr=LR, momentum=MOMENTUM)
        self.recorded: dict[int, typing.Any] = {}

    def called(self, x: Tensor, y: Tensor) -> Tensor:
        """The step, launch by launch."""
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.net(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def step(self, images: np.ndarray, labels: np.ndarray) -> Tensor:
        """A step on a batch that lies on the host. Returns the loss without waiting for it."""
        x, y = Tensor(images), Tensor(labels)
        if not self.graph:
            return self.called(x, y)
        if len(labels) not in self.recorded:
            kept = self.net.state_dict()
            self.recorded[len(labels)] = nn.capture(self.called, x, y)
            self.forget(kept)
        return self.recorded[len(labels)](x, y)

    def forget(self, kept: dict[str, np.ndarray]) -> None:
        """Recording carries out steps: undo them in the same memory, which the graph knows."""
        self.net.load_state_dict(kept)
        for arrays in self.optimizer.state.values():
            for array in arrays.values():
                array.copy_to_device(device.to_device(np.zeros(array.shape, np.float32)))

    def loss(self, result: Tensor) -> float:
        """Waits for it."""
        return result.item()

    def wait(self) -> None:
        """Until all that was queued is done."""
        if device.on_gpu():
            device.backend().cuda.synchronize()

    def scores(self, images: np.ndarray) -> np.ndarray:
        """What the network says of images."""
        return digits.scores(self.net, images)


class InTorch:
    """PyTorch on ``where``, "cpu" or "cuda"; on the GPU also as a CUDA graph."""

    def __init__(self, case: Case, state: dict[str, np.ndarray], where: str, graph: bool = False) -> None:
        import torch

        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
        self.torch, self.where, self.graph = torch, where, graph
        ours = case.kind()
        ours.load_state_dict(state)
        self.net = theirs(ours, where)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=LR, momentum=MOMENTUM)
        self.recorded: dict[int, tuple] = {}

    def called(self, x: typing.Any, y: typing.Any) -> typing.Any:
        """The step, launch by launch."""
        self.optimizer.zero_grad()
        loss = self.torch.nn.functional.cross_entropy(self.net(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def step(self, images: np.ndarray, labels: np.ndarray) -> typing.Any:
        """A step on a batch that lies on the host. Returns the loss without waiting for it."""
        x, y = self.torch.from_numpy(images), self.torch.from_numpy(labels)
        if not self.graph:
            return self.called(x.to(self.where), y.to(self.where))
        if len(labels) not in self.recorded:
            kept_x, kept_y, found = x.to(self.where), y.to(self.where), {}
            kept = {name: value.clone() for name, value in self.net.state_dict().items()}

            def whole() -> None:
                found["loss"] = self.called(kept_x, kept_y)

            replay = _torch_graph(whole)
            self.recorded[len(labels)] = kept_x, kept_y, replay, found
            self.forget(kept)
        kept_x, kept_y, replay, found = self.recorded[len(labels)]
        kept_x.copy_(x)
        kept_y.copy_(y)
        replay()
        return found["loss"]

    def forget(self, kept: dict[str, typing.Any]) -> None:
        """Recording carries out steps: undo them in the same memory, which the graph knows."""
        self.net.load_state_dict(kept)
        for arrays in self.optimizer.state.values():
            if arrays.get("momentum_buffer") is not None:
                arrays["momentum_buffer"].zero_()

    def loss(self, result: typing.Any) -> float:
        """Waits for it."""
        return float(result)

    def wait(self) -> None:
        """Until all that was queued is done."""
        if self.where == "cuda":
            self.torch.cuda.synchronize()

    def scores(self, images: np.ndarray) -> np.ndarray:
        """What the network says of images."""
        with self.torch.no_grad():
            return self.net(self.torch.from_numpy(images).to(self.where)).cpu().numpy()


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def runners(gpu: bool) -> dict[str, Callable[[Case, dict], typing.Any]]:
    """What can be measured here, by name. The names of those that use the GPU begin with "GPU"."""
    found: dict[str, Callable[[Case, dict], typing.Any]] = {"CPU, NumPy": InNumpy}
    if cores() > 1:
        found["CPU, NumPy, a thread a core"] = lambda case, state: InNumpy(case, state, cores())
    torch = importlib.util.find_spec("torch") is not None
    if torch:
        found["CPU, PyTorch"] = lambda case, state: InTorch(case, state, "cpu")
    if gpu:
        found["GPU, ours"] = Ours
        found["GPU, ours, graph"] = lambda case, state: Ours(case, state, graph=True)
    if gpu and torch:
        found["GPU, PyTorch"] = lambda case, state: InTorch(case, state, "cuda")
        found["GPU, PyTorch, graph"] = lambda case, state: InTorch(case, state, "cuda", graph=True)
    return found


# -------------------------------------------------------------------------------------------------------------- meters


def nvml(bus: str, library: typing.Any = None) -> tuple[Callable[[], float] | None, str]:
    """How to read the joules that a GPU has taken so far, and in words from where; None, and why it cannot be read.

    Args:
        bus: its PCI address, as "0000:1B:00.0".
        library: NVML, or what has its functions; by default the driver's.
    """
    try:
        library = library or ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        return None, f"no NVML: {error}"
    handle, millijoules = ctypes.c_void_p(), ctypes.c_ulonglong()
    for name, arguments in (
        ("nvmlInit_v2", ()),
        ("nvmlDeviceGetHandleByPciBusId_v2", (bus.encode(), ctypes.byref(handle))),
        ("nvmlDeviceGetTotalEnergyConsumption", (handle, ctypes.byref(millijoules))),
    ):
        code = getattr(library, name)(*arguments)
        if code:
            return None, f"{name} returned {code}"

    def read() -> float:
        library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(millijoules))
        return millijoules.value / 1e3

    return read, "NVML's counter of the whole board"


def rapl(folder: Path = POWERCAP) -> tuple[Callable[[], float] | None, str]:
    """How to read the joules that the processors have taken, and in words from where; None, and why it cannot be read.

    The counters begin again at 0 when they are full, about once in some minutes: read more often than that.
    """
    if not folder.is_dir():
        return None, f"there is no {folder}: the kernel, or the virtual machine, has no RAPL"
    zones = []
    for zone in sorted(folder.glob("*-rapl:*")):
        try:
            if (zone / "name").read_text(encoding="utf-8").startswith("package"):
                zones.append((zone / "energy_uj", int((zone / "max_energy_range_uj").read_text(encoding="utf-8"))))
        except OSError:
            continue
    if not zones:
        return None, f"{folder} has no counter of a processor"
    try:
        last = [int(file.read_text(encoding="utf-8")) for file, _ in zones]
    except OSError as error:
        return None, f"{zones[0][0]} cannot be read: {error.strerror}"
    total = 0.0

    def read() -> float:
        nonlocal total
        for i, (file, full) in enumerate(zones):
            now = int(file.read_text(encoding="utf-8"))
            total += (now - last[i]) % (full + 1) / 1e6
            last[i] = now
        return total

    return read, f"RAPL, {len(zones)} processor{'s' * (len(zones) > 1)} without their memory"


# ------------------------------------------------------------------------------------------------------- measurements


def state_of(case: Case) -> dict[str, np.ndarray]:
    """The state that all runners begin with."""
    nn.manual_seed(1)
    return case.kind().state_dict()


def batches(case: Case, size: int, number: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Batches of examples that are drawn at random, on the host."""
    images, labels = datasets(case.side)[0].arrays
    rng = np.random.default_rng(size)
    chosen = [rng.integers(0, len(labels), size) for _ in range(number)]
    return [(images[one], labels[one]) for one in chosen]


def farthest(case: Case, runner: typing.Any, size: int = BATCH, steps: int = 5) -> float:
    """How far the losses of the first steps are from NumPy's, relatively. Raises ArithmeticError if that is too far.

    The longest sums are the gradients of the first layer's weights: as many terms as a batch has pixels. Their rounding
    errors are independent, so the error grows with the root of that, and in each step anew.
    """
    twin = InNumpy(case, state_of(case))
    pairs = [(runner.loss(runner.step(*b)), twin.step(*b)) for b in batches(case, size, steps)]
    worst = max(abs(a - b) / abs(b) for a, b in pairs)
    limit = EPS * (size * case.side**2) ** 0.5 * steps
    if not worst <= limit:
        raise ArithmeticError(f"losses differ from NumPy's by {worst:.1e}, more than {limit:.1e}")
    return worst


def timed(step: Callable[[], typing.Any], wait: Callable[[], None], seconds: float) -> float:
    """Milliseconds of a step: the median of five runs, which take about ``seconds`` together."""

    def run(n: int) -> float:
        began = time.perf_counter()
        for _ in range(n):
            step()
        wait()
        return (time.perf_counter() - began) / n

    run(2)
    n = max(1, int(seconds / 5 / run(1)))
    return 1e3 * statistics.median(run(n) for _ in range(5))


def cycle(runner: typing.Any, made: list[tuple[np.ndarray, np.ndarray]]) -> Callable[[], typing.Any]:
    """A call without arguments that steps on one batch after the other."""
    at = 0

    def step() -> typing.Any:
        nonlocal at
        at = (at + 1) % len(made)
        return runner.step(*made[at])

    return step


def drawn(
    step: Callable[[], typing.Any],
    wait: Callable[[], None],
    meters: dict[str, Callable[[], float]],
    seconds: float,
) -> dict[str, float]:
    """Run steps for so long. Returns how many, how long they took, and the joules that each meter counted meanwhile.

    The steps before it bring the device to the power at which it works. The queue is waited for now and then, because
    a host that runs far ahead would go on being paid for later.
    """
    chunk = 1

    def run(until: float) -> int:
        nonlocal chunk
        n = 0
        while time.perf_counter() < until:
            began = time.perf_counter()
            for _ in range(chunk):
                step()
            wait()
            n += chunk
            if time.perf_counter() - began < 0.01:
                chunk *= 2
        return n

    run(time.perf_counter() + seconds / 5)
    first = {name: read() for name, read in meters.items()}
    began = time.perf_counter()
    n = run(began + seconds)
    took = time.perf_counter() - began
    return {"steps": n, "seconds": took, **{name: read() - first[name] for name, read in meters.items()}}


def train(
    case: Case,
    make: Callable[[Case, dict], typing.Any],
    *,
    epochs: int = EPOCHS,
    batch: int = BATCH,
    examples: int | None = None,
) -> dict[str, float]:
    """A whole training: seconds until the first step is done, and of the others; the last losses' mean; accuracy."""
    training, held_out = datasets(case.side)
    images, labels = (array[:examples] for array in training.arrays)
    state = state_of(case)
    steps: list[typing.Any] = []
    began = time.perf_counter()
    runner = make(case, state)
    ready = 0.0
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(len(labels))
        for i in range(0, len(labels) - batch + 1, batch):
            chosen = order[i : i + batch]
            result = runner.step(images[chosen], labels[chosen])
            if not ready:
                runner.wait()
                ready = time.perf_counter()
            steps.append(result)
    runner.wait()
    ended = time.perf_counter()
    tests, answers = held_out.arrays
    found = float((runner.scores(tests).argmax(axis=1) == answers).mean())
    return {
        "steps": len(steps),
        "setup": ready - began,
        "seconds": ended - ready,
        "last loss": runner.loss(steps[-1]),
        "accuracy": found,
    }


class Budget:
    """Seconds that are left of a measurement."""

    def __init__(self, seconds: float) -> None:
        self.until = time.perf_counter() + seconds

    def spent(self) -> bool:
        """Whether no further case may begin."""
        return time.perf_counter() > self.until


def measure(
    rows: dict[str, typing.Any],
    keep: Callable[[], typing.Any],
    *,
    gpu: bool,
    budget: float,
    meters: dict[str, Callable[[], float]],
    cases: dict[str, Case] = CASES,
    sizes: typing.Sequence[int] = BATCHES,
    seconds: float = 0.25,
    energy_sizes: typing.Sequence[int] = ENERGY_BATCHES,
    energy_seconds: float = 1.2,
    **options: typing.Any,
) -> None:
    """Fill ``rows``, and call ``keep`` after each case. ``budget`` begins when the kernels have been compiled.

    What fails is recorded as a fault, in words, and has no times.
    """
    every = runners(gpu)
    rows["networks"] = {
        name: {
            "parameters": sum(value.size for value in state_of(case).values()),
            **{kind: {} for kind in ("trainings", "faults", "differs", "ms", "transfer ms", "energy")},
        }
        for name, case in cases.items()
    }
    for name, case in cases.items():
        found = rows["networks"][name]
        for runner, make in every.items():
            try:
                trained = train(case, make, **options)
                found["differs"][runner] = farthest(case, make(case, state_of(case)))
                found["trainings"][runner] = trained
            except Exception as error:  # a runner that fails must not lose the others
                found["faults"][runner] = f"{type(error).__name__}: {error}"
            keep()
    left = Budget(budget)
    for size in sizes:
        for name, case in cases.items():
            found, made = rows["networks"][name], batches(case, size, 4)
            for runner in found["trainings"]:
                if left.spent():
                    return
                one = every[runner](case, state_of(case))
                found["ms"].setdefault(runner, {})[str(size)] = timed(cycle(one, made), one.wait, seconds)
            found["transfer ms"][str(size)] = transfer(case, made, seconds)
            keep()
    if meters:
        rows["idle"] = drawn(lambda: time.sleep(0.005), lambda: None, meters, energy_seconds)
    for name, case in cases.items():
        found = rows["networks"][name]
        for size in energy_sizes:
            for runner in found["trainings"]:
                if left.spent() or not meters:
                    return
                one = every[runner](case, state_of(case))
                what = drawn(cycle(one, batches(case, size, 4)), one.wait, meters, energy_seconds)
                found["energy"].setdefault(runner, {})[str(size)] = what
                keep()


def transfer(case: Case, made: list[tuple[np.ndarray, np.ndarray]], seconds: float) -> float:
    """Milliseconds in which a batch comes to the device, and nothing else is done."""

    class Copies:
        def step(self, images: np.ndarray, labels: np.ndarray) -> tuple:
            return Tensor(images), Tensor(labels)

    return timed(cycle(Copies(), made), lambda: Ours.wait(None), seconds)


def keeper(rows: dict[str, typing.Any], out: Path | None) -> Callable[[], Path]:
    """A call that writes the record as it is now. The digests of the sources take seconds, and are taken once."""
    path = write("cpu_gpu", "pmpp/nn/measure/cpu_gpu.py", rows, out)
    about = json.loads(path.read_text(encoding="utf-8"))["about"]

    def keep() -> Path:
        path.write_text(json.dumps({"about": about, **rows}, indent=1) + "\n", encoding="utf-8")
        return path

    return keep


def show(rows: dict[str, typing.Any]) -> None:
    """Print what was found."""
    for name, found in rows["networks"].items():
        print(f"{name}, {found['parameters']:,} parameters")
        for runner, one in found["trainings"].items():
            print(f"  {runner:<29} setup {one['setup']:7.2f} s, {one['steps']} steps {one['seconds']:7.3f} s, "
                  f"accuracy {one['accuracy']:.1%}, losses differ by {found['differs'][runner]:.1e}")  # fmt: skip
        for runner, why in found["faults"].items():
            print(f"  {runner:<29} {why}")
        for runner, ms in [*found["ms"].items(), ("copy of a batch", found["transfer ms"])]:
            print(f"  {runner:<29} ms:", ", ".join(f"{size}: {value:.3f}" for size, value in ms.items()))
        for runner, sizes in found["energy"].items():
            for size, one in sizes.items():
                words = [f"{kind} {one[kind] / one['seconds']:.0f} W" for kind in ("gpu", "cpu") if kind in one]
                print(f"  {runner:<29} batch {size}: {', '.join(words)}")
    print("energy:", rows["energy"], rows.get("idle", ""))


def main(argv: typing.Sequence[str] | None = None) -> int:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(prog="python -m pmpp.nn.measure.cpu_gpu", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="where to write the record; by default to that of this GPU")
    parser.add_argument("--budget", type=float, default=150, help="seconds, once the kernels are compiled")
    options = parser.parse_args(argv)
    began = time.perf_counter()
    if not device.on_gpu():
        print(f"a GPU is needed: {device.describe()}")
        return 2
    device.to_device(np.zeros(1, np.float32))
    context = time.perf_counter() - began
    import cupy

    found = {"gpu": nvml(cupy.cuda.Device().pci_bus_id), "cpu": rapl()}
    rows: dict[str, typing.Any] = {
        "data": "scikit-learn's digits, for LeNet-5 enlarged to 28 x 28",
        "training": {"lr": LR, "momentum": MOMENTUM, "batch": BATCH, "epochs": EPOCHS, "held out": digits.HELD_OUT},
        "cores": cores(),
        "context seconds": context,
        "energy": {name: words for name, (_, words) in found.items()},
    }
    meters = {name: read for name, (read, _) in found.items() if read is not None}

    keep = keeper(rows, options.out)
    measure(rows, keep, gpu=True, budget=options.budget, meters=meters)
    keep()
    show(rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
