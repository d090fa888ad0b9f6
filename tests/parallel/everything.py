"""Every call of a group, in many forms. However the ranks were started, the results have the same bits.

`results` is run by ranks in one process, by processes and by MPI. As a script it writes what its rank got to a file:

    python -m pmpp.parallel.run -n 3 -m tests.parallel.everything folder
"""

import json
import pathlib
import sys
import zlib

import numpy as np

from pmpp import parallel
from pmpp.parallel import environment, halo
from pmpp.runtime import device

DTYPES = ("float16", "float32", "float64", "int32", "int64")


def given(rank, shape, dtype):
    """What a rank passes. Sums of it round, and their bits depend on their order."""
    values = np.random.default_rng([rank, len(shape)]).normal(size=shape) * 10
    return np.asarray(values > 0 if dtype == "bool" else values).astype(dtype)


def described(result):
    """A result in a form that can be compared and printed: dtype, shape, and a digest of the bits."""
    if result is None:
        return None
    array = device.to_host(result)
    return [str(array.dtype), list(array.shape), zlib.crc32(array.tobytes())]


def results(group):
    """Call by call what this rank got.

    On GPUs a rank that is sent an array has to say of which shape, and NCCL may lose a NaN: these two are left out.
    """
    direct = group.backend in environment.BACKENDS
    found, size, rank = {}, group.size, group.rank

    def keep(name, result):
        found[name] = described(result)

    group.barrier()
    for dtype in (*DTYPES, "bool"):
        for shape in ((), (0,), (2,), (3, 5)):
            mine, rows = given(rank, shape, dtype), given(rank, (size, *shape), dtype)
            ops = ["max", "min"] if dtype == "bool" else ["sum", "prod", "max", "min"] + ["mean"] * ("float" in dtype)
            for op in ops if shape == (3, 5) else ops[:1]:
                keep(f"all_reduce {op} {dtype} {shape}", group.all_reduce(mine, op=op))
                keep(f"reduce_scatter {op} {dtype} {shape}", group.reduce_scatter(rows, op=op))
                keep(f"reduce {op} {dtype} {shape}", group.reduce(mine, root=size - 1, op=op))
            keep(f"all_gather {dtype} {shape}", group.all_gather(mine))
            keep(f"all_to_all {dtype} {shape}", group.all_to_all(rows))
            keep(f"broadcast {dtype} {shape}", group.broadcast(mine, root=size // 2))
            if not direct:
                keep(f"broadcast from one {dtype} {shape}", group.broadcast(mine if rank == 0 else None))
            if size > 1:
                box = device.empty(shape, dtype)
                if rank == 0:
                    group.send(mine, to=1, tag=5)
                elif rank == 1:
                    keep(f"recv {dtype} {shape}", group.recv(box, source=0, tag=5))
            if size > 1:  # around a ring, with parts of another length each
                box = device.empty((1 + (rank - 1) % size, *shape), dtype)
                part = given(rank, (1 + rank, *shape), dtype)
                keep(f"send_recv {dtype} {shape}", group.send_recv(part, (rank + 1) % size, box, (rank - 1) % size))
    x = device.to_device(given(rank, (4,), "float32"))
    group.all_reduce(x, out=x)
    keep("in place", x)
    odd = np.array([np.nan, -0.0, np.inf, 1.0][rank:] + [2.0] * rank, np.float32)
    if not direct:
        keep("not finite", group.all_reduce(odd, op="max"))
    plate = given(0, (3 * size + 2, 7), "float32")
    for step, width in ((halo.even_odd, 1), (halo.both_ways, 1), (halo.wide, 2)):
        keep(f"halo {step.__name__}", halo.solve(group, plate, step, most=3, every=2, halo=width).cells)
    half = group.split(colour=None if rank == 0 else 7, key=-rank)
    found["half"] = None if half is None else [half.rank, half.size, list(half.members)]
    if half is not None:
        keep("in half", half.all_gather(given(rank, (2,), "int64")))
        pair = half.split(colour=half.rank)
        keep("alone", pair.all_reduce(given(rank, (2,), "float64")))
    keep("afterwards", group.all_gather(np.array(rank)))
    return found


def by_ranks(size, function=results):
    """What ranks in one process get."""
    return json.loads(json.dumps(list(parallel.ranks(size, function))))


def on_gpus(found):
    """Of what ranks in one process get, that which ranks with a GPU each get as well."""
    return [
        {name: one for name, one in each.items() if "from one" not in name and name != "not finite"} for each in found
    ]


def main():
    group = parallel.init()
    folder = pathlib.Path(sys.argv[1])
    (folder / f"{group.rank}.json").write_text(json.dumps(results(group)), encoding="utf-8")
    print(f"rank {group.rank} of {group.size}, {group.backend}")


if __name__ == "__main__":
    main()
