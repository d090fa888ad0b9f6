"""Programs as they are written for several GPUs: no call of them is taken for a mistake, and the results are right."""

import numpy as np
import pytest

from pmpp import parallel
from pmpp.kernels import elementwise
from pmpp.kernels.matmul import fitted
from pmpp.runtime import device

pytestmark = pytest.mark.native("threads")


def host(x):
    return device.to_host(x)


# ------------------------------------------------------------------------------------------------- halos of a 1-D grid


def swap(group, inside, edge, other, tag):
    """Exchange the cells at one border with a neighbour: the even rank sends first."""
    if not 0 <= other < group.size:
        return
    if group.rank % 2:
        group.recv(edge, other, tag=tag)
        group.send(inside, other, tag=tag)
    else:
        group.send(inside, other, tag=tag)
        group.recv(edge, other, tag=tag)


def jacobi(group, start, steps):
    """Every cell becomes the mean of its two neighbours. A rank has its cells and one more on either side."""
    count = (len(start) - 2) // group.size
    first = count * group.rank
    x = device.to_device(start[first : first + count + 2])
    for _ in range(steps):
        swap(group, x[1:2], x[0:1], group.rank - 1, tag=1 if group.rank % 2 else 2)
        swap(group, x[count : count + 1], x[count + 1 : count + 2], group.rank + 1, tag=2 if group.rank % 2 else 1)
        cells = host(x)
        x[1 : count + 1].copy_to_device((cells[:-2] + cells[2:]) / 2)
    return host(group.all_gather(x[1 : count + 1])).reshape(-1)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_stencil_with_halos(size, rng):
    start = rng.random(26)
    wanted = start.copy()
    for _ in range(5):
        wanted[1:-1] = (wanted[:-2] + wanted[2:]) / 2
    for found in parallel.ranks(size, jacobi, start, 5):
        np.testing.assert_array_equal(found, wanted[1:-1])


# ----------------------------------------------------------------------------------------------- a product on a mesh


def summa(group, a, b):
    """C = A B on a square mesh. In step k, column k of A's blocks goes along rows, row k of B's down columns."""
    side = int(group.size**0.5)
    row, column = divmod(group.rank, side)
    rows, columns = group.split(row), group.split(column)
    n = len(a) // side
    mine = [x[row * n : (row + 1) * n, column * n : (column + 1) * n].copy() for x in (a, b)]
    total = device.to_device(np.zeros((n, n), np.float32))
    for k in range(side):
        left = rows.broadcast(mine[0] if column == k else None, k)
        above = columns.broadcast(mine[1] if row == k else None, k)
        elementwise.add(total, fitted.LADDER[-1](left, above), out=total)
    return host(total)


def test_a_product_on_a_mesh(rng):
    a, b = (rng.integers(-3, 4, (8, 8)).astype(np.float32) for _ in range(2))
    blocks = parallel.ranks(4, summa, a, b)
    np.testing.assert_array_equal(np.block([blocks[:2], blocks[2:]]), a @ b)


# ------------------------------------------------------------------------------------------------ stages of a pipeline


def pipeline(group, batches):
    """Rank r adds 10^r to each batch and passes it on. The first and the last have a neighbour on one side only."""
    results, box = [], device.empty(batches.shape[1:], batches.dtype)
    for batch in batches:
        x = device.to_device(batch) if group.rank == 0 else group.recv(box, group.rank - 1)
        parallel.work(1.0)
        elementwise.add(x, 10.0**group.rank, out=x)
        if group.rank + 1 < group.size:
            group.send(x, group.rank + 1)
        else:
            results.append(host(x).copy())
    return results


@pytest.mark.parametrize("stages, count", [(1, 3), (3, 1), (3, 4)])
def test_a_pipeline(stages, count):
    batches = np.arange(2.0 * count, dtype=np.float32).reshape(count, 2)
    links = parallel.Links(latency=0.0, bandwidth=1e30)
    results = parallel.ranks(stages, pipeline, batches, links=links)
    np.testing.assert_array_equal(results[-1], batches + sum(10.0**k for k in range(stages)))
    # A batch takes a second in each stage: the last one leaves the last stage after count + stages - 1 seconds.
    assert results.report.seconds[-1] == pytest.approx(count + stages - 1)


# ------------------------------------------------------------------------------------ parts whose sizes only ranks know


def sample_sort(group, values):
    """Sort: cut everybody's numbers at the same places, and send each part to its rank, after the sizes."""
    mine = np.sort(values[group.rank :: group.size])
    edges = np.linspace(0, 1, group.size + 1)[1:-1]
    parts = np.split(mine, np.searchsorted(mine, edges))
    sizes = host(group.all_to_all(np.array([[len(part)] for part in parts])))[:, 0]
    found = [parts[group.rank]]
    for distance in range(1, group.size):
        right, left = (group.rank + distance) % group.size, (group.rank - distance) % group.size
        box = device.empty(int(sizes[left]), np.float64)
        # Around a ring of any length somebody has to receive first: whoever sends past the end.
        for sends in (right > group.rank, right < group.rank):
            if sends:
                group.send(parts[right], right)
            else:
                group.recv(box, left)
        found.append(host(box))
    return np.sort(np.concatenate(found))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_sort_with_parts_of_many_sizes(size, rng):
    values = rng.random(23)
    found = parallel.ranks(size, sample_sort, values)
    np.testing.assert_array_equal(np.concatenate(found), np.sort(values))


# ---------------------------------------------------------------------------------------------- who asks, and who works


def farm(group, tasks):
    """Rank 0 deals out tasks in turn, -1 at the end; the others square them. Workers leave when they are told to."""
    number = device.empty((), np.int64)
    if group.rank == 0:
        answers = []
        for k, task in enumerate([*tasks, *[-1] * (group.size - 1)]):
            worker = 1 + k % (group.size - 1)
            group.send(np.array(task), worker, tag=1)
            if task >= 0:
                answers.append(int(host(group.recv(number, worker, tag=2))))
        return answers
    done = 0
    while (task := int(host(group.recv(number, 0, tag=1)))) >= 0:
        group.send(np.array(task**2), 0, tag=2)
        done += 1
    return done


def test_a_farm_of_tasks():
    assert parallel.ranks(4, farm, range(7)) == [[k**2 for k in range(7)], 3, 2, 2]


# ----------------------------------------------------------------------------------------------------- groups of groups


def nested(group):
    """A sum in two levels: within a node, then between the first ranks of the nodes, then back within each node."""
    node = group.split(group.rank // 2)
    leaders = group.split(0 if node.rank == 0 else None)
    x = device.to_device(np.array([group.rank + 1]))
    total = node.reduce(x)
    if leaders is not None:
        leaders.all_reduce(total, out=total)
    return int(host(node.broadcast(total))[0])


def test_a_sum_in_two_levels():
    assert parallel.ranks(5, nested) == [15] * 5


def test_arrays_of_one_run_go_on_in_another():
    first = parallel.ranks(2, lambda group: device.to_device(np.full(2, group.rank)))
    found = parallel.ranks(2, lambda group: host(group.all_reduce(first[group.rank], out=first[group.rank])).tolist())
    assert found == [[1, 1]] * 2
