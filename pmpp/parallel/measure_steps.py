"""Training steps on several GPUs beside PyTorch's: ``python -m pmpp.parallel.measure_steps``.

Every rank has the network and a batch of its own. Five steps are timed, which take turns: ours alone, without a sum of
gradients; ours with one while the backward pass goes on, and with one afterwards; and the first two of PyTorch, whose
`DistributedDataParallel` sums during the backward pass, too. Where we sum during the backward pass, each bucket has an
optimiser of its own, which changes its parameters while later buckets still travel, and the last one is small, since
the backward pass has ended when it is sent. PyTorch gets the options that spare it work which ours does not do either:
its gradients are views of its buckets, and buffers are not sent in each step. The *efficiency* is the time alone over
the time together: 1 if the sum costs nothing. At the end ours are recorded as CUDA graphs (`nn.capture`), the sums of
all ranks included, and timed once more: then the host's part of a step is gone.

Before a step is timed, the losses of the first ones are compared with PyTorch's, and all ranks' networks have to be
equal to the bit. The first steps compile the kernels, which takes longer than all that is timed: the lines that are
printed say how long. Each network is recorded when it is measured, so a run that is ended leaves what it has.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import sys
import time
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from pmpp import nn
from pmpp.nn import functional as F
from pmpp.nn import measure as records
from pmpp.nn.examples.networks import ResNet18
from pmpp.nn.measure.steps import theirs
from pmpp.nn.tape import Tensor
from pmpp.parallel import data, environment, on_gpus, run
from pmpp.parallel.group import Group
from pmpp.parallel.progress import Progress
from pmpp.runtime import device

REPETITIONS = 9
LEAST = 3  # repetitions of which a median is taken; where there is no time for them, nothing is recorded
SECONDS = 0.12  # that a repetition takes, about
APART = 2e-3  # how far a loss of the first steps may be from PyTorch's, of its size: ResNet-18's differ by 6e-4
DDP = 1.0  # PyTorch's time over ours, at least
WIDTH, DEPTH = 4096, 6
BUCKET = 64 << 20  # bytes: few launches, and the backward pass still has layers left while such a sum is under way
LAST = 1 << 20  # bytes of the last bucket: the most that goes in one launch of one kernel (`peers.ROOM` elements)


def mlp() -> nn.Module:
    """A network of 10^8 parameters: six layers of 4096 x 4096."""
    layers: list[nn.Module] = []
    for _ in range(DEPTH):
        layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 10))


class Case(typing.NamedTuple):
    """A network; the shape of a rank's batch; the efficiency that is wanted."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    target: float


CASES = {
    "ResNet-18, batch 128 a GPU": Case(ResNet18, (128, 3, 32, 32), 0.98),
    "MLP of 10^8 parameters, batch 512 a GPU": Case(mlp, (512, WIDTH), 0.9),
}


def took(host: Group, call: Callable[[], None], n: int) -> float:
    """Seconds of one of n calls, which are queued and waited for at the end; of the slowest rank."""
    import torch

    host.barrier()
    began = time.perf_counter()
    for _ in range(n):
        call()
    torch.cuda.synchronize()
    mine = np.array([(time.perf_counter() - began) / n])
    return float(device.to_host(host.all_reduce(mine, "max"))[0])


class Trained(typing.NamedTuple):
    """What is left when the steps of a network were timed: a row of the record, and our steps, to be recorded."""

    row: dict[str, typing.Any]
    alone: Callable
    step: Callable
    together: data.DataParallel


def measure(host: Group, group: Group, name: str, progress: Progress) -> Trained | None:
    """The times of the steps, in milliseconds; None if the time is over before there are `LEAST` repetitions.

    Raises RuntimeError if a loss differs from PyTorch's by more than `APART`.
    """
    import torch

    case = CASES[name]
    torch.backends.cudnn.benchmark = len(case.shape) == 4
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    progress.say(f"{name}: five networks, of all ranks alike")
    nn.manual_seed(0)
    net = case.make()
    local = torch.cuda.current_device()
    other, other_alone = theirs(net, f"cuda:{local}"), theirs(net, f"cuda:{local}")
    alone = case.make()
    alone.load_state_dict(net.state_dict())
    together = data.DataParallel(group, net, bucket=BUCKET, last=LAST)
    ddp = torch.nn.parallel.DistributedDataParallel(
        other, device_ids=[local], gradient_as_bucket_view=True, broadcast_buffers=False
    )
    rng = np.random.default_rng(host.rank)
    images, labels = rng.standard_normal(case.shape, dtype=np.float32), rng.integers(0, 10, case.shape[0])
    x, y = Tensor(images), Tensor(labels)
    tx, ty = torch.from_numpy(images).cuda(), torch.from_numpy(labels).cuda()

    def sgd(parameters: Iterable[Tensor]) -> nn.optim.SGD:
        return nn.optim.SGD(parameters, lr=0.01, momentum=0.9)

    def ours(
        net: nn.Module, backward: Callable[[Tensor], None], optimizers: Sequence[nn.optim.SGD], averaged: Callable
    ) -> Callable[[], Tensor]:
        def step(say: Callable[[str], None] = lambda part: None) -> Tensor:
            for optimizer in optimizers:
                optimizer.zero_grad()
            say("forward")
            loss = F.cross_entropy(net(x), y)
            say("backward")
            backward(loss)
            say("optimiser")
            for _, optimizer in zip(averaged(), optimizers, strict=True):
                optimizer.step()
            return loss

        return step

    def afterwards() -> Iterator[None]:
        together.average_gradients()
        yield

    def pytorchs(net: typing.Any) -> Callable[[], typing.Any]:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

        def step() -> typing.Any:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(tx), ty)
            loss.backward()
            optimizer.step()
            return loss

        return step

    steps = {
        "ours, alone": ours(alone, Tensor.backward, [sgd(alone.parameters())], lambda: [None]),
        "ours": ours(together, together.backward, [sgd(bucket) for bucket in together.buckets], together.averaged),
        "ours, summed afterwards": ours(together, Tensor.backward, [sgd(together.parameters())], afterwards),
        "torch, alone": pytorchs(other_alone),
        "torch": pytorchs(ddp),
    }
    progress.say(f"{name}: PyTorch's first step")
    losses = [(0.0, steps["torch"]().item())]
    first = steps["ours"](lambda part: progress.say(f"{name}: our first step, which compiles the kernels: {part}"))
    losses[0] = (first.item(), losses[0][1])
    progress.say(f"{name}: four more steps, whose losses are compared")
    losses += [(steps["ours"]().item(), steps["torch"]().item()) for _ in range(4)]
    farthest = max(abs(a - b) / abs(b) for a, b in losses)
    if not farthest <= APART:
        raise RuntimeError(
            f"{name}: a loss is {farthest:.1e} of its size from PyTorch's, more than {APART:g}: {losses}"
        )
    together.check()
    progress.say(f"{name}: losses differ by {farthest:.1e}; all ranks have the same bits; warming up")
    for step in steps.values():
        took(host, step, 3)
    counts = {one: max(3, int(SECONDS / took(host, step, 5))) for one, step in steps.items()}
    progress.say(f"{name}: timing, {sum(counts.values())} steps a repetition")
    times, done = by_turns(host, steps, counts, progress)
    if done < LEAST:
        progress.say(f"{name}: no time for {LEAST} repetitions")
        return None
    together.check()
    row = {"ms": times, "farthest": farthest, "repetitions": done}
    row["parameters"] = sum(parameter.size for parameter in net.parameters())
    return Trained(row, steps["ours, alone"], steps["ours"], together)


def by_turns(
    host: Group, steps: dict[str, Callable], counts: dict[str, int], progress: Progress
) -> tuple[dict[str, float], int]:
    """The median times of some steps in milliseconds, and of how many repetitions."""
    times: dict[str, list[float]] = {one: [] for one in steps}
    done = 0
    while done < REPETITIONS and progress.time_left():
        for one, step in steps.items():
            times[one].append(took(host, step, counts[one]))
        done += 1
    return {one: float(f"{1e3 * statistics.median(found):.5g}") for one, found in times.items() if found}, done


def recorded(host: Group, name: str, trained: Trained, progress: Progress) -> dict[str, float] | None:
    """The times of our steps as graphs; None if there is no time for `LEAST` repetitions."""
    progress.say(f"{name}: recording two graphs")
    steps = {"ours, alone, graph": nn.capture(trained.alone), "ours, graph": nn.capture(trained.step)}
    for step in steps.values():
        took(host, step, 3)
    counts = {one: max(3, int(SECONDS / took(host, step, 5))) for one, step in steps.items()}
    progress.say(f"{name}: timing, {sum(counts.values())} graphs a repetition")
    times, done = by_turns(host, steps, counts, progress)
    trained.together.check()
    return times if done >= LEAST else None


def efficiency(row: dict, who: str = "ours", how: str = "") -> float:
    """The time alone over the time together; ``how`` is "" for steps as they are called, or ", graph".

    >>> efficiency({"ms": {"ours, alone": 9.0, "ours": 10.0}})
    0.9
    """
    return row["ms"][f"{who}, alone{how}"] / row["ms"][f"{who}{how}"]


def lines(rows: dict[str, dict]) -> str:
    """The table beside its targets."""
    text = [f"{'step':<50}{'alone ms':>10}{'ms':>9}{'efficiency':>12}{'target':>8}{'DDP ms':>9}{'ratio':>7}"]
    for name, row in rows.items():
        ms = row["ms"]
        for how in ("", ", graph"):
            if f"ours{how}" in ms:
                text.append(
                    f"{name + how:<50}{ms[f'ours, alone{how}']:10.3f}{ms[f'ours{how}']:9.3f}"
                    f"{efficiency(row, how=how):12.3f}{CASES[name].target:8.2f}{ms['torch']:9.3f}"
                    f"{ms['torch'] / ms[f'ours{how}']:7.2f}"
                )
        beside = f"PyTorch's efficiency {efficiency(row, 'torch'):.3f}, losses differ by {row['farthest']:.1e}"
        text.append(f"  {beside}, ours summed afterwards {ms['ours, summed afterwards']:.3f} ms")
    return "\n".join(text)


def meet_as_pytorch(host: Group) -> None:
    """Let PyTorch's ranks meet, at a free port that rank 0 finds.

    Rank 0 opens the store itself. By an address alone ranks of torchrun would look for one that torchrun has opened.
    """
    import torch

    torch.cuda.set_device(device.current())
    port = np.zeros(1, np.int64)
    if host.rank == 0:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port[0] = free.getsockname()[1]
    port = int(device.to_host(host.broadcast(port))[0])
    store = torch.distributed.TCPStore("127.0.0.1", port, host.size, is_master=host.rank == 0)
    torch.distributed.init_process_group("nccl", store=store, rank=host.rank, world_size=host.size)


def main(argv: Sequence[str] | None = None) -> int:
    """Start the ranks, or be one of them."""
    parser = argparse.ArgumentParser(prog="python -m pmpp.parallel.measure_steps", description=__doc__.split("\n")[0])
    parser.add_argument("-n", type=int, default=2, metavar="N", help="how many GPUs, if no ranks were started yet")
    parser.add_argument("--group", choices=environment.BACKENDS, default="peer", help="who sums the gradients")
    parser.add_argument("--seconds", type=float, help="for all of it; what does not fit is left out, and said")
    parser.add_argument("--only", help="the network whose name begins with this")
    parser.add_argument("--print", action="store_true", help="record nothing")
    parser.add_argument("--out", type=Path, help="where to write the record; by default among those of this GPU")
    options = parser.parse_args(argv)
    if not device.on_gpu():
        print(f"GPUs are needed: {device.describe()}")
        return 2
    found = environment.place()
    if found is None:
        given = list(sys.argv[1:] if argv is None else argv)
        return run.main(["-n", str(options.n), "--timeout", "900", "-m", "pmpp.parallel.measure_steps", *given])
    host = environment.group()
    if host is None or host.size < 2:
        print("at least two ranks are needed")
        return 2
    progress = Progress(host, options.seconds)
    rows: dict[str, dict] = {}
    chosen = [name for name in CASES if name.startswith(options.only or "")]
    for rows in measured(host, progress, options.group, chosen):
        if host.rank == 0:
            print(lines(rows), flush=True)
            if not options.print:
                print(f"recorded in {write(rows, host.size, found.starter.name, options.group, options.out)}")
    host.barrier()
    return 0 if len(rows) == len(chosen) else 1


def measured(
    host: Group, progress: Progress, who: str = "peer", cases: Sequence[str] = tuple(CASES)
) -> Iterator[dict[str, dict]]:
    """What was found so far, after each network. Called by all ranks.

    Args:
        host: the ranks.
        progress: of the measurement.
        who: "peer" or "nccl", who sums our gradients.
        cases: names of `CASES`.
    """
    progress.say(f"{host.size} ranks meet, ours by {who!r}, and PyTorch's")
    group = on_gpus.group(host, who)
    meet_as_pytorch(host)
    rows: dict[str, dict] = {}
    kept: dict[str, Trained] = {}
    for name in cases:
        if not progress.time_left():
            progress.say(f"{name}: left out, the time is over")
        elif (trained := measure(host, group, name, progress)) is not None:
            rows[name], kept[name] = trained.row, trained
            yield rows
    for name, trained in kept.items():
        if not progress.time_left():
            progress.say(f"{name}, graph: left out, the time is over")
        elif (times := recorded(host, name, trained, progress)) is not None:
            rows[name]["ms"] |= times
            yield rows


def write(rows: dict[str, dict], ranks: int, starter: str, group: str = "peer", out: Path | None = None) -> Path:
    """Write the record of what was measured; return its file."""
    more = {"ranks": ranks, "starter": starter, "group": group, "steps": rows}
    source, within = "pmpp/parallel/measure_steps.py", [*records.WITHIN, "pmpp/parallel/"]
    return records.write("parallel_steps", source, more, out, within)


if __name__ == "__main__":
    run.stop_on_signals()
    raise SystemExit(main())
