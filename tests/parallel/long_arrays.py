"""All-reduces of long arrays by ranks with a GPU each, beside NumPy: through areas, in place, on parts of the ranks.

python -m pmpp.parallel.run -n 2 --backend peer -m tests.parallel.long_arrays
"""

import numpy as np

from pmpp import parallel
from pmpp.runtime import device

UFUNCS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum, "mean": np.add}
KINDS = (("float32", "sum"), ("float32", "mean"), ("int32", "sum"), ("float32", "max"), ("float64", "sum"))
LENGTHS = (511, 262_144, 262_145, 1_000_000, 1_000_003)


def given(rank, n, dtype):
    return (np.random.default_rng([rank, n]).normal(size=n) * 100).astype(dtype)


def wanted(size, n, dtype, op="sum"):
    """What all ranks get: from two ranks the very bits, since there is one order."""
    with np.errstate(all="ignore"):
        total = given(0, n, dtype)
        for rank in range(1, size):
            total = UFUNCS[op](total, given(rank, n, dtype))
        return total / total.dtype.type(size) if op == "mean" else total


def close(found, right, size):
    found = device.to_host(found)
    if size > 2 and found.dtype.kind == "f":
        np.testing.assert_allclose(found, right, rtol=size * 2**-20, atol=size * 1e-4)
    else:
        np.testing.assert_array_equal(found, right)


def check(group):
    size, rank, cuda = group.size, group.rank, device.backend().cuda
    for n in LENGTHS:
        for dtype, op in (
            ("float32", "sum"),
            ("float32", "mean"),
            ("int32", "sum"),
            ("float32", "max"),
            ("float64", "sum"),
        ):
            x, right = device.to_device(given(rank, n, dtype)), wanted(size, n, dtype, op)
            close(group.all_reduce(x, op), right, size)
            out = device.to_device(np.full(n, -1, dtype))
            group.all_reduce(x, op, out=out)
            close(out, right, size)
            group.all_reduce(x, op, out=x)
            close(x, right, size)
        longer = device.to_device(np.r_[np.float32(0), given(rank, n, "float32")])  # not at a multiple of 16 bytes
        close(group.all_reduce(longer[1:]), wanted(size, n, "float32"), size)
        if rank == 0:  # one rank's own affair
            close(group.all_reduce(longer[1:], out=longer[1:]), wanted(size, n, "float32"), size)
        else:
            close(group.all_reduce(device.to_device(given(rank, n, "float32"))), wanted(size, n, "float32"), size)
        boxes = [group.shared(n, np.float32, beside_work=beside) for beside in (False, True)]
        for box in boxes * 2:  # between two ranks by a kernel, and by copies
            box.copy_to_device(given(rank, n, "float32"))
            group.all_reduce(box, out=box)
            close(box, wanted(size, n, "float32"), size)
            close(group.all_reduce(device.to_device(given(rank, n, "float32"))), wanted(size, n, "float32"), size)
        grid = group.shared((1, n), np.int32)
        grid.copy_to_device(given(rank, n, "int32").reshape(1, n))
        group.all_reduce(grid, "min", out=grid)
        close(grid.reshape(-1), wanted(size, n, "int32", "min"), size)
        stream = cuda.stream()
        cuda.synchronize()
        x = device.to_device(given(rank, n, "float32"), stream=stream)
        found = [group.all_reduce(x, stream=stream) for _ in range(8)]
        stream.synchronize()
        for one in found:
            close(one, wanted(size, n, "float32"), size)
    halves = group.split(colour=rank % 2)
    mine = device.to_device(np.full(300_001, rank + 1, np.float32))
    total = sum(other + 1 for other in range(size) if other % 2 == rank % 2)
    assert (device.to_host(halves.all_reduce(mine)) == total).all()
    group.barrier()


if __name__ == "__main__":
    here = parallel.init()
    check(here)
    print(f"rank {here.rank} of {here.size}, {here.backend}: right")
