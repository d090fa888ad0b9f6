"""What training with these kernels was to reach, beside what was measured: ``python -m pmpp.nn.measure.targets``.

It reads the records of this GPU, or of the one that the chapters are written about, and measures nothing. What is not
recorded is named with the command that records it. ``--measure`` runs these commands first; it needs a GPU, and half an
hour.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import typing

from pmpp.lab.measure import record
from pmpp.nn.measure import recorded
from pmpp.nn.measure.training import SEEDS, averages

ROOMS = ("batchnorm_backward", "layernorm_backward", "cross_entropy_loss", "pooling_backward", "adam")
CONVOLUTIONS = ("input_gradients", "weight_gradients")
COMMANDS = (
    ("pmpp.lab.measure.bench", *ROOMS, *CONVOLUTIONS),
    ("pmpp.nn.measure.training",),
    ("pmpp.nn.measure.steps",),
    ("pmpp.nn.measure.memory",),
    ("pmpp.nn.measure.mixed",),
    ("pmpp.nn.measure.int8",),
)
RESNET = ("ResNet-50", "3x3 c128 h28", "3x3 s2 c128 h56")  # the families of its 23 layers


class Line(typing.NamedTuple):
    """A line of the table. A ratio is the library's time over ours: more is better."""

    what: str
    target: str
    measured: str
    met: bool | None


def ratios(room: str, **where: typing.Any) -> dict[str, float]:
    """For each workload of a room: the fastest library's time over that of the room's last measured rung."""
    entries = record.load(room=room).entries(room, **where)
    found = {}
    for name in dict.fromkeys(entry.workload for entry in entries):
        mine = [entry.median_ms for entry in entries if entry.workload == name and entry.kind == "rung"]
        theirs = [entry.median_ms for entry in entries if entry.workload == name and entry.kind == "library"]
        if mine and theirs:
            found[name] = min(theirs) / mine[-1]
    return found


def _room(what: str, target: float, room: str, family: str, workload: str) -> Line:
    ratio = ratios(room, family=family, workload=workload)[workload]
    return Line(what, f"{target:.1f} x", f"{ratio:.2f} x", ratio >= target)


def _adam() -> Line:
    room = record.load(room="adam")
    (last,) = room.entries("adam", workload="100 x 10^6", contender="vectorised")
    ratio = ratios("adam", workload="100 x 10^6")["100 x 10^6"]
    share = last.bytes / last.median_ms * 1e3 / room.ceilings("adam").bandwidth
    words = f"{ratio:.2f} x, {share:.0%} of the roof"
    return Line(
        "AdamW, 10^8 parameters in 100 tensors", "1.0 x fused, 90 % of the roof", words, ratio >= 1 <= share / 0.9
    )


def _convolutions(what: str, room: str, target: float) -> Line:
    found = {name: one for family in RESNET for name, one in ratios(room, family=family).items()}
    mean = math.exp(sum(map(math.log, found.values())) / len(found))
    worst = min(found, key=lambda name: found[name])
    measured = f"{mean:.2f} x; {found[worst]:.2f} x for {worst}"
    return Line(what, f"mean {target:.1f} x, none under 0.6", measured, mean >= target and found[worst] >= 0.6)


def _training() -> Line:
    record = recorded("training")
    ours, torch = (record["medians"][who]["accuracy"] for who in ("ours", "torch"))
    words, every = f"{ours:.1%}, PyTorch {torch:.1%}", [*record["seeds"], *record.get("more", ())]
    if len(every) > SEEDS:
        means = averages(every)
        words += f"; the mean of {len(every)} seeds {means['ours'][0]:.2f} and {means['torch'][0]:.2f} %"
    return Line(
        "LeNet-5 on MNIST, median of 5 seeds", "97 %, at most 0.3 % below", words, ours >= max(0.97, torch - 0.003)
    )


def _step(network: str, kind: str, target: float) -> Line:
    row = recorded("steps")["steps"][network]
    ms = row["ms"]
    ratio = ms[f"torch{kind}"] / ms[f"ours{kind}"]
    words = f"{ratio:.2f} x, {ms['ours' + kind]:.3f} ms"
    if not kind:  # which a slow host makes slower, ours by more than PyTorch's
        words += f", where the host's loop takes {row['host loop ms']:.1f} ms"
    return Line(f"{network}, a step, {kind[2:] or 'as called'}", f"{target:.1f} x", words, ratio >= target)


def _mixed(network: str, slow: str, target: float) -> Line:
    """A step in bfloat16 beside PyTorch's, or beside ours in float32."""
    ms = recorded("mixed")["steps"][network]["ms"]
    ratio = ms[slow] / ms["ours, bfloat16"]
    beside = "PyTorch" if slow.startswith("torch") else "our float32"
    words = f"{ratio:.2f} x, {ms['ours, bfloat16']:.3f} ms"
    return Line(f"{network}, bfloat16, {beside}", f"{target:.1f} x", words, ratio >= target)


def _int8() -> Line:
    row = recorded("int8")["networks"]["LeNet-5 on MNIST"]
    lost, count = row["lost"]["range"], len(row["seeds"])
    words = f"{lost:.2f} points, {row['digits']:,} digits, {count} seeds"
    return Line("LeNet-5 on MNIST in int8", "at most 0.5 points lost", words, lost <= 0.5 and count >= SEEDS)


def _memory() -> Line:
    after, last = recorded("memory")["flat"].values()
    words = f"{after:,} bytes after the second, {last:,} after the last"
    # What may come later: the optimiser keeps 64 tables of addresses at most. For LeNet-5's ten parameters one has 720
    # bytes, for which the pool takes 1,024.
    return Line("1,000 steps", "flat after the second", words, last <= after + 2**16)


#: Each line, made from the records.
LINES: tuple[typing.Callable[[], Line], ...] = (
    _training,
    lambda: _step("LeNet-5, batch 256", "", 2.5),
    lambda: _step("LeNet-5, batch 256", ", graph", 1.2),
    lambda: _step("ResNet-18, batch 128", ", graph", 1.0),
    lambda: _room("batch normalisation backward", 3.0, "batchnorm_backward", "gradients", "256x64x112x112"),
    lambda: _room("layer normalisation backward", 1.3, "layernorm_backward", "gradients", "65536x1024"),
    lambda: _room("cross-entropy and its gradient", 2.0, "cross_entropy_loss", "50257 classes", "8192 x 50257"),
    lambda: _room("max-pool backward, 3x3 s2 p1", 2.0, "pooling_backward", "max 3x3", "256x64x112x112"),
    _adam,
    lambda: _convolutions("ResNet-50's layers, gradient by the input", "input_gradients", 1.1),
    lambda: _convolutions("ResNet-50's layers, gradient by the weights", "weight_gradients", 1.0),
    _memory,
)
#: Those of a record that a GPU may not have yet.
MIXED: tuple[typing.Callable[[], Line], ...] = (
    _int8,
    lambda: _mixed("ResNet-18, batch 128", "torch, bfloat16", 0.9),
    lambda: _mixed("ResNet-18, batch 128", "ours, float32", 1.5),
    lambda: _mixed("transformer, batch 64", "torch, bfloat16", 0.8),
)


def lines(more: bool = False) -> list[Line]:
    """The table. A line whose record is missing says so. ``more``: also those of `MIXED`."""
    made = []
    for make in (*LINES, *MIXED) if more else LINES:
        try:
            made.append(make())
        except (record.RecordError, KeyError, ValueError) as error:
            made.append(Line("not recorded", "", str(error), None))
    return made


def main(argv: typing.Sequence[str] | None = None) -> int:
    """Print the table. Returns 0, or with ``--measure`` 1 if a command failed."""
    parser = argparse.ArgumentParser(prog="python -m pmpp.nn.measure.targets", description=__doc__.split("\n")[0])
    parser.add_argument("--measure", action="store_true", help="measure all of it first")
    options = parser.parse_args(argv)
    failed = 0
    for command in COMMANDS if options.measure else ():
        failed |= subprocess.run([sys.executable, "-m", *command], check=False).returncode != 0
    about = recorded("steps")["about"]
    print(f"{about['gpu']['name']}, {about['run']['date'][:10]}; x: the library's time over ours")
    for line in lines(more=True):
        verdict = {True: "met", False: "missed", None: "?"}[line.met]
        print(f"{line.what:<44}{line.target:<31}{verdict:<8}{line.measured}")
    print("digits in the interpreter: python -m pmpp.nn.examples.digits")
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
