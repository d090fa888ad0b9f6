"""All-reduce on several GPUs, our kernels beside NCCL: ``python -m pmpp.parallel.measure``.

It starts a rank for each GPU, two by default, and prints a table. Two GPUs have targets, which are printed below it. As
ranks that somebody else has started it does the same, which is how the starters are compared::

    torchrun --nproc-per-node 2 -m pmpp.parallel.measure --print
    mpirun -n 2 python -m pmpp.parallel.measure --print

Each result is compared with float64 before it is timed, and again afterwards. Three times are taken of each length:

    graph     one of many that a CUDA graph repeats: what the GPUs need
    queued    one of many calls that are queued, and waited for at the end: what a training sees
    call      one call that is waited for: from host to host

Ours are two: an array and a result that lie anywhere, and an array of `Group.shared` in place. NCCL and they take
turns. A time is that of the slower rank, the median of several repetitions.

The lengths of the targets come first. Each length is recorded when it is measured, so a run that is ended, or has
``--seconds`` for a part of them alone, leaves what it has. `pmpp.parallel.targets` measures the rest as well.
"""

from __future__ import annotations

import argparse
import sys
import time
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from pmpp.nn import measure as nn_measure
from pmpp.parallel import environment, on_gpus, records, run
from pmpp.parallel.group import Group
from pmpp.parallel.progress import Progress
from pmpp.parallel.traffic import Links
from pmpp.runtime import device

__all__ = ["Line", "fit", "lines", "main", "measure", "recorded"]

LENGTHS = tuple([1 << k for k in range(10, 31, 2)])  # bytes: 1 KiB to 1 GiB
SHORT = 256 << 10  # bytes up to which latency is what counts
IN_GRAPHS = 4 << 20  # bytes up to which graphs are measured
OF_TARGETS = (*(one for one in LENGTHS if one <= SHORT), 64 << 20, 1 << 30)
REPETITIONS = 7
RECORDED = 20  # calls in a graph
SECONDS = 0.03  # that a repetition takes, about
TILE = 999_983  # elements after which the arrays repeat: a prime, so that no block of a kernel sees the same numbers


# ----------------------------------------------------------------------------------------------------------- the ranks


def numbers(rank: int, n: int) -> np.ndarray:
    """What a rank passes: n float32."""
    return np.resize(np.random.default_rng(rank).standard_normal(TILE, dtype=np.float32), n)


def verify(out: typing.Any, size: int, divisor: int = 1) -> None:
    """Compare a sum of `numbers`, divided by a power of 2, with float64. Raises AssertionError.

    The last of the ``size - 1`` additions rounds the sum, and each one before a sum of at most all absolute values.
    """
    parts = [numbers(rank, min(TILE, out.size)).astype(np.float64) for rank in range(size)]
    wanted = sum(parts)
    bound = 1.000001 * 2.0**-24 * (np.abs(wanted) + (size - 2) * sum(map(np.abs, parts)))
    got = device.to_host(out)
    for begin in range(0, out.size, TILE):
        part = divisor * got[begin : begin + TILE]
        assert (np.abs(part - wanted[: part.size]) <= bound[: part.size]).all(), f"a wrong sum from {begin} on"


class Way(typing.NamedTuple):
    """A group to measure, and its name; whether in place, in an array of `Group.shared`: then it takes means."""

    name: str
    group: Group
    in_place: bool = False


def slowest(host: Group, times: Sequence[float]) -> float:
    """The median of the repetitions, each as long as on the slowest rank, in microseconds."""
    all_times = device.to_host(host.all_gather(np.array(times, np.float64)))
    return float(f"{1e6 * np.median(all_times.max(axis=0)):.4g}")


def took(host: Group, call: Callable[[], None], stream: typing.Any, n: int) -> float:
    """Seconds of one of n calls, which are queued and waited for at the end.

    One call goes before: the ranks leave it at the same time, as they do not leave a barrier of the host.
    """
    host.barrier()
    call()
    stream.synchronize()
    began = time.perf_counter()
    for _ in range(n):
        call()
    stream.synchronize()
    return (time.perf_counter() - began) / n


def how_many(host: Group, call: Callable[[], None], stream: typing.Any) -> int:
    """How many calls take `SECONDS`; the same on all ranks."""
    call()
    one = min(took(host, call, stream, 3) for _ in range(2))
    wish = np.array([max(3, min(500, int(SECONDS / one)))])
    return int(device.to_host(host.all_reduce(wish, "min"))[0])


def measure(host: Group, ways: Sequence[Way], nbytes: int) -> dict[str, typing.Any]:
    """The times of all ways for one length, in microseconds, after a check of each result."""
    import cupy

    from pmpp.lab.measure.graphs import capture

    n = nbytes // 4
    mine = numbers(host.rank, n)
    x, out = device.to_device(mine), device.empty(n, np.float32)
    shared = next((way.group.shared(n, np.float32) for way in ways if way.in_place), None)
    stream = cupy.cuda.Stream(non_blocking=True)
    calls: dict[str, dict[str, tuple[Callable[[], None], typing.Any, int]]] = {}

    def all_reduce(way: Way, stream: typing.Any) -> None:
        if way.in_place:  # a mean of equal numbers is that number, however often it is taken
            way.group.all_reduce(shared, "mean", out=shared, stream=stream)
        else:
            way.group.all_reduce(x, out=out, stream=stream)

    def check(way: Way) -> None:
        if way.in_place:
            shared.copy_to_device(mine)
        else:
            out.copy_to_device(np.full(n, np.nan, np.float32))
        device.backend().cuda.synchronize()
        all_reduce(way, stream)
        stream.synchronize()
        verify(shared if way.in_place else out, host.size, host.size if way.in_place else 1)

    for way in ways:
        check(way)

        def queued(way: Way = way) -> None:
            all_reduce(way, stream)

        def waited_for(way: Way = way) -> None:
            all_reduce(way, stream)
            stream.synchronize()

        many = how_many(host, queued, stream)
        calls[way.name] = {"queued": (queued, stream, many), "call": (waited_for, stream, many)}
        if nbytes <= IN_GRAPHS:

            def several(stream: typing.Any, way: Way = way) -> None:
                for _ in range(RECORDED):
                    all_reduce(way, stream)

            recorded = capture(several)
            calls[way.name]["graph"] = (recorded.replay, recorded, max(1, many // RECORDED))
    times: dict[str, dict[str, list[float]]] = {name: {kind: [] for kind in kinds} for name, kinds in calls.items()}
    for _ in range(REPETITIONS):
        for name, kinds in calls.items():
            for kind, (call, waits, many) in kinds.items():
                times[name][kind].append(took(host, call, waits, many) / (RECORDED if kind == "graph" else 1))
    for way in ways:
        check(way)
    return {"bytes": nbytes} | {
        name: {kind: slowest(host, found) for kind, found in kinds.items()} for name, kinds in times.items()
    }


# ----------------------------------------------------------------------------------------------------------- the table


def recorded(ranks: int = 2) -> dict[str, typing.Any]:
    """The record of so many ranks that this module has written. Raises RecordError if there is none."""
    return records.recorded("parallel", ranks, f"pmpp.parallel.measure -n {ranks}")


def fit(pairs: Sequence[tuple[int, float]]) -> Links:
    """The latency and bandwidth of the alpha-beta model that fit pairs of bytes and seconds best.

    The errors are taken relative to the times, as short and long arrays are to count alike.

    >>> fit([(1000, 2e-6 + 1e-6), (2000, 2e-6 + 2e-6), (9000, 2e-6 + 9e-6)])
    Links(latency=2e-06, bandwidth=1000000000.0)
    """
    nbytes, seconds = np.array(pairs, np.float64).T
    parts = np.stack([1 / seconds, nbytes / seconds], axis=1)
    alpha, beta = np.linalg.lstsq(parts, np.ones(len(seconds)), rcond=None)[0]
    return Links(float(f"{max(alpha, 0.0):.4g}"), float(f"{1 / beta:.4g}"))


class Line(typing.NamedTuple):
    """A line of the table. A ratio is NCCL's time over ours: more is better; the smallest of several lengths."""

    what: str
    target: float
    ratio: float
    ours: str
    nccl: str

    @property
    def met(self) -> bool:
        """Whether the target is reached."""
        return self.ratio >= self.target


#: What is to be reached: by name the time of NCCL over ours, at least, for all lengths of the line.
TARGETS = {
    "1 KiB to 256 KiB, in a graph": 2.0,
    "1 KiB to 256 KiB, queued": 2.0,
    "1 KiB to 256 KiB, host to host": 1.0,
    "64 MiB": 1.1,
    "64 MiB, shared": 1.1,
    "1 GiB": 1.05,
    "1 GiB, shared": 1.05,
}


def lines(rows: Sequence[dict]) -> list[Line]:
    """The targets of the issue beside what was measured; of lengths that were not, none."""
    short = [row for row in rows if row["bytes"] <= SHORT]
    middle, long = ([row for row in rows if row["bytes"] == nbytes] for nbytes in (64 << 20, 1 << 30))
    where = [
        (short, "graph", "peer"),
        (short, "queued", "peer"),
        (short, "call", "peer"),
        (middle, "queued", "peer"),
        (middle, "queued", "shared"),
        (long, "queued", "peer"),
        (long, "queued", "shared"),
    ]
    found = []
    for (what, target), (some, kind, who) in zip(TARGETS.items(), where, strict=True):
        if some:
            ratio = min(row["nccl"][kind] / row[who][kind] for row in some)
            ours, nccl = (span([row[one][kind] for row in some]) for one in (who, "nccl"))
            found.append(Line(what, target, ratio, ours, nccl))
    return found


def span(times: Sequence[float]) -> str:
    """The shortest and the longest of some times in microseconds."""
    low, high = f"{min(times):.4g}", f"{max(times):.4g}"
    return low if low == high else f"{low} to {high}"


def table(rows: Sequence[dict]) -> str:
    """All times."""
    kinds, heads = ("graph", "queued", "call"), []
    for kind in kinds:
        heads += [f"{kind} {who}" for who in ("ours", "shared", "NCCL")]
    text = [f"{'bytes':>13}" + "".join(f"{head:>15}" for head in heads) + "   µs"]
    for row in rows:
        cells = [row[who].get(kind) for kind in kinds for who in ("peer", "shared", "nccl")]
        text.append(f"{row['bytes']:13,}" + "".join(f"{'-' if cell is None else f'{cell:.4g}':>15}" for cell in cells))
    return "\n".join(text)


def targets(rows: Sequence[dict]) -> str:
    """The lines as text."""
    text = [f"{'all-reduce of float32':<32}{'ours µs':>18}{'NCCL µs':>18}{'ratio':>8}{'target':>8}"]
    for line in lines(rows):
        verdict = "reached" if line.met else "missed"
        text.append(f"{line.what:<32}{line.ours:>18}{line.nccl:>18}{line.ratio:8.2f}{line.target:8.2f}  {verdict}")
    return "\n".join(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Start the ranks, or be one of them."""
    parser = argparse.ArgumentParser(prog="python -m pmpp.parallel.measure", description=__doc__.split("\n")[0])
    parser.add_argument("-n", type=int, default=2, metavar="N", help="how many GPUs, if no ranks were started yet")
    parser.add_argument("--longest", type=int, default=LENGTHS[-1], metavar="BYTES", help="leave out longer arrays")
    parser.add_argument("--seconds", type=float, help="for all of it; what does not fit is left out, and said")
    parser.add_argument("--print", action="store_true", help="record nothing")
    parser.add_argument("--out", type=Path, help="where to write the record; by default among those of this GPU")
    options = parser.parse_args(argv)
    if not device.on_gpu():
        print(f"GPUs are needed: {device.describe()}")
        return 2
    found = environment.place()
    if found is None:
        given = list(sys.argv[1:] if argv is None else argv)
        return run.main(["-n", str(options.n), "--timeout", "900", "-m", "pmpp.parallel.measure", *given])
    host = environment.group()
    if host is None or host.size < 2:
        print("at least two ranks are needed")
        return 2
    rows: list[dict] = []
    for rows in measured(host, Progress(host, options.seconds), options.longest):
        if host.rank == 0 and not options.print:
            path = write(rows, host.size, found.starter.name, options.out)
    if host.rank == 0:
        print(f"\n{host.size} x {device.limits()['name']}, ranks of {found.starter.name}")
        print(table(rows), *[targets(rows)] * (host.size == 2), sep="\n\n", flush=True)
        if rows and not options.print:
            print(f"recorded in {path}")
    host.barrier()
    return 0


def measured(host: Group, progress: Progress, longest: int = LENGTHS[-1]) -> Iterator[list[dict]]:
    """What was found so far, after each length, in the order of lengths. Called by all ranks."""
    progress.say(f"all-reduces of {host.size} ranks: they meet by NCCL and by peer memory")
    ways = [Way(name, on_gpus.group(host, name)) for name in environment.BACKENDS]
    ways.append(Way("shared", ways[-1].group, in_place=True))
    rows: list[dict] = []
    for nbytes in sorted(LENGTHS, key=lambda one: (one not in OF_TARGETS, one)):
        if nbytes > longest:
            continue
        if not progress.time_left():
            progress.say(f"all-reduce of {nbytes:,} bytes: left out, the time is over")
            continue
        progress.say(f"all-reduce of {nbytes:,} bytes")
        rows = sorted([*rows, measure(host, ways, nbytes)], key=lambda row: row["bytes"])
        yield rows


def write(rows: Sequence[dict], ranks: int, starter: str, out: Path | None = None) -> Path:
    """Write the record of what was measured; return its file."""
    more = {"ranks": ranks, "starter": starter, "all_reduce": list(rows)}
    within = [*nn_measure.WITHIN, "pmpp/parallel/"]
    return nn_measure.write(records.name_of("parallel", ranks), "pmpp/parallel/measure.py", more, out, within)


if __name__ == "__main__":
    run.stop_on_signals()
    raise SystemExit(main())
