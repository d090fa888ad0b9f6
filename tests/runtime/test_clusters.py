"""Clusters of blocks: what Numba emits, what is refused, and results that both backends must have."""

import re
import subprocess
import sys

import numpy as np
import pytest

import tests.support.clusters  # noqa: F401 (lets Numba compile these kernels without a GPU)
from pmpp import cuda
from pmpp.runtime import clusters, device
from pmpp.runtime.clusters import cluster_rank, cluster_size, cluster_sync, in_clusters, map_shared_rank
from pmpp.runtime.vector import load128, store128

has_clusters = pytest.mark.skipif(device.limits()["compute_capability"] < (9, 0), reason="needs clusters: 9.0 or more")
SIZES = (1, 2, 3, 4, 8, 16)


def zeros(shape, dtype=np.int32):
    return device.to_device(np.zeros(shape, dtype))


def host(x):
    return x.copy_to_host()


# ---------------------------------------------------------------------------------------------------- what Numba emits


def all_four(out):
    mine = cuda.shared.array(32, np.float32)
    mine[cuda.threadIdx.x] = cluster_rank()
    cluster_sync()
    theirs = map_shared_rank(mine, (cluster_rank() + 1) % cluster_size())
    cuda.atomic.add(theirs, 0, np.float32(1))
    out[cuda.grid(1)] = theirs[cuda.threadIdx.x]
    cluster_sync()


@pytest.mark.parametrize("cc", [(9, 0), (10, 0)])
def test_each_name_is_one_instruction(ptx, cc):
    text = ptx(all_four, np.zeros(32, np.float32), cc=cc)
    registers = re.findall(r"mov\.u32 +%r\d+, +%(cluster_\w+);", text)
    assert set(registers) == {"cluster_ctarank", "cluster_nctarank"}
    assert len(re.findall(r"mapa\.u64", text)) == 1
    assert len(re.findall(r"barrier\.cluster\.arrive\.aligned; *barrier\.cluster\.wait\.aligned;", text)) == 2


def test_an_access_to_a_mapped_array_is_generic(ptx):
    """mapa gives an address of the shared window of the cluster: an access that says ``shared`` would be to its own."""
    text = ptx(all_four, np.zeros(32, np.float32), cc=(9, 0))
    behind = text[text.index("mapa.u64") :]
    assert re.search(r"\n\s*(atom|red)\.add\.f32", behind)
    assert not re.search(r"(ld|atom|red)\.shared", behind)


def test_no_access_moves_across_the_barrier(ptx):
    def twice(x, out):
        out[0] = x[0]
        cluster_sync()
        out[1] = x[0]

    text = ptx(twice, np.zeros(1, np.int32), np.zeros(2, np.int32), cc=(9, 0))
    before, behind = text.split("barrier.cluster.arrive.aligned")
    for part in (before, behind):  # a value of before is not kept, as another block may have changed it
        assert len(re.findall(r"ld\.global", part)) == len(re.findall(r"st\.global", part)) == 1


def rank_only(out):
    out[0] = cluster_rank()


def size_only(out):
    out[0] = cluster_size()


def sync_only():
    cluster_sync()


def map_only(x, rank, out):
    out[0] = map_shared_rank(x, rank)[0]


def error_of(ptx, kernel, *arguments, cc=(9, 0)):
    while_typing, later = (pytest.importorskip(f"{name}.core.errors") for name in ("numba", "numba.cuda"))
    with pytest.raises((while_typing.TypingError, later.TypingError)) as caught:
        ptx(kernel, *arguments, cc=cc)
    return str(caught.value)


OUT = np.zeros(4, np.int32)


@pytest.mark.parametrize(
    ("name", "kernel", "arguments"),
    [
        ("cluster_rank", rank_only, (OUT,)),
        ("cluster_size", size_only, (OUT,)),
        ("cluster_sync", sync_only, ()),
        ("map_shared_rank", map_only, (OUT, 0, OUT)),
    ],
)
def test_an_older_gpu_is_refused_by_name(ptx, name, kernel, arguments):
    said = f"{name} needs a GPU of compute capability 9.0 or more, and compiles for 8.0"
    assert said in error_of(ptx, kernel, *arguments, cc=(8, 0))
    ptx(kernel, *arguments, cc=(9, 0))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((1.5, 0, OUT), "map_shared_rank: array must be an array in shared memory, was float64"),
        (((1, 2), 0, OUT), r"map_shared_rank: array must be an array in shared memory, was UniTuple\(int64"),
        ((OUT, 1.0, OUT), "map_shared_rank: rank must be one integer, was float64"),
        ((OUT, (0, 1), OUT), r"map_shared_rank: rank must be one integer, was UniTuple\(int64"),
        ((OUT, OUT, OUT), "map_shared_rank: rank must be one integer, was array"),
    ],
)
def test_what_cannot_be_mapped_is_a_typing_error(ptx, arguments, sentence):
    assert re.search(sentence, error_of(ptx, map_only, *arguments))


# ---------------------------------------------------------------------------------------- results that both must have


@cuda.jit
def ring(out, sizes):
    """Each thread adds what the next block's thread of the same number has."""
    mine = cuda.shared.array(64, np.int32)
    t = cuda.threadIdx.x
    mine[t] = 100 * cuda.blockIdx.x + t
    cluster_sync()
    theirs = map_shared_rank(mine, (cluster_rank() + 1) % cluster_size())
    out[cuda.grid(1)] = theirs[t]
    cluster_sync()
    if t == 0:
        sizes[cuda.blockIdx.x] = cluster_rank() * 100 + cluster_size()


@has_clusters
@pytest.mark.parametrize("blocks", SIZES)
def test_a_ring(blocks):
    grid = 3 * blocks
    out, sizes = zeros(64 * grid), zeros(grid)
    in_clusters(ring, blocks)[grid, 64](out, sizes)
    b = np.arange(grid)
    source = b // blocks * blocks + (b % blocks + 1) % blocks
    np.testing.assert_array_equal(host(out).reshape(grid, 64), 100 * source[:, None] + np.arange(64))
    np.testing.assert_array_equal(host(sizes), b % blocks * 100 + blocks)


@has_clusters
def test_a_plain_launch_is_in_clusters_of_one():
    out, sizes = zeros(64 * 5), zeros(5)
    ring[5, 64](out, sizes)
    np.testing.assert_array_equal(host(out).reshape(5, 64), 100 * np.arange(5)[:, None] + np.arange(64))
    assert host(sizes).tolist() == [1] * 5


@has_clusters
@pytest.mark.parametrize("order", [(2, 4), (4, 2)])
def test_one_kernel_may_be_launched_in_different_clusters(order):
    for blocks in (*order, 1, *order):
        out, sizes = zeros(64 * 8), zeros(8)
        in_clusters(ring, blocks)[8, 64](out, sizes)
        np.testing.assert_array_equal(host(sizes), np.arange(8) % blocks * 100 + blocks)
        ring[8, 64](out, sizes)
        assert host(sizes).tolist() == [1] * 8


@has_clusters
def test_many_launches():
    """Configurations and plans are kept, and the one that was left out is made again."""
    launch = in_clusters(ring, 2)
    for k in range(300):
        out, sizes = zeros(64 * 2), zeros(2)
        launch[2, 64, 0, 16 * k](out, sizes)
        if k % 50 == 0:
            assert host(out)[[0, 64]].tolist() == [100, 0]
    launch[2, 64](out, sizes)
    assert host(sizes).tolist() == [2, 102]


@has_clusters
@pytest.mark.parametrize("extents", [(8, 32), ([8], [32]), ((8, 1), (32, 1, 1)), (np.int64(8), 32)])
def test_extents_in_each_form(extents):
    out, sizes = zeros(64 * 8), zeros(8)
    in_clusters(ring, np.int64(4))[extents](out, sizes)
    np.testing.assert_array_equal(host(sizes), np.arange(8) % 4 * 100 + 4)


@has_clusters
def test_a_launch_goes_into_its_stream():
    stream = cuda.stream()
    out, sizes = zeros(64 * 4), zeros(4)
    in_clusters(ring, 4)[4, 64, stream](out, sizes)
    stream.synchronize()
    assert host(sizes).tolist() == [4, 104, 204, 304]


@cuda.jit
def histogram(x, out, biggest, total):
    """The bins lie spread over the blocks of a cluster, and each thread updates the block that has its bin."""
    bins = cuda.shared.array(16, np.int32)
    most = cuda.shared.array(1, np.int32)
    sums = cuda.shared.array(1, np.float32)
    t, size = cuda.threadIdx.x, cluster_size()
    if t < 16:
        bins[t] = 0
    if t == 0:
        most[0] = -1
        sums[0] = 0
    cluster_sync()
    i = cuda.grid(1)
    while i < x.size:
        bin_ = x[i]
        cuda.atomic.add(map_shared_rank(bins, bin_ // 16 % size), bin_ % 16, 1)
        cuda.atomic.max(map_shared_rank(most, 0), 0, bin_)
        cuda.atomic.add(map_shared_rank(sums, size - 1), 0, np.float32(bin_))
        i += cuda.gridsize(1)
    cluster_sync()
    if t < 16:
        out[cuda.blockIdx.x * 16 + t] = bins[t]
    if t == 0:
        biggest[cuda.blockIdx.x] = most[0]
        total[cuda.blockIdx.x] = sums[0]


@has_clusters
@pytest.mark.parametrize("blocks", [2, 3, 8])
def test_atomics_on_the_memory_of_other_blocks(rng, blocks):
    x = rng.integers(0, 16 * blocks, 3000).astype(np.int32)
    out, biggest, total = zeros(16 * blocks), zeros(blocks), zeros(blocks, np.float32)
    in_clusters(histogram, blocks)[blocks, 96](device.to_device(x), out, biggest, total)
    np.testing.assert_array_equal(host(out), np.bincount(x, minlength=16 * blocks))
    assert host(biggest).tolist() == [x.max()] + [-1] * (blocks - 1)
    assert host(total).tolist() == [0] * (blocks - 1) + [x.sum()]  # all sums are below 2^24: exact


@cuda.jit
def scatter(x, out):
    """A block writes its elements where they belong: into the block with the mirrored rank, from the end on."""
    mine = cuda.shared.array(32, np.float64)
    t = cuda.threadIdx.x
    cluster_sync()
    map_shared_rank(mine, cluster_size() - 1 - cluster_rank())[31 - t] = x[cuda.grid(1)]
    cluster_sync()
    out[cuda.grid(1)] = mine[t]


@has_clusters
@pytest.mark.parametrize("blocks", [2, 5, 8])
def test_stores_into_another_block(blocks):
    x = np.arange(2 * blocks * 32) + 0.5
    out = zeros(x.size, np.float64)
    in_clusters(scatter, blocks)[2 * blocks, 32](device.to_device(x), out)
    np.testing.assert_array_equal(host(out).reshape(2, -1), x.reshape(2, -1)[:, ::-1])


@cuda.jit
def transposed(x, out):
    """A row of blocks holds a matrix by columns of tiles; each reads its tile of the transposed matrix."""
    tile = cuda.shared.array((4, 8, 8), np.float32)
    i, j, size = cuda.threadIdx.y, cuda.threadIdx.x, cluster_size()
    for k in range(size):
        tile[k, i, j] = x[8 * k + i, 8 * cluster_rank() + j]
    cluster_sync()
    for k in range(size):
        theirs = map_shared_rank(tile, k)
        part = theirs[cluster_rank()]
        out[8 * k + j, 8 * cluster_rank() + i] = part[i, j]
        row = map_shared_rank(tile[cluster_rank(), i, 2:], k)  # a part of one is mapped as well
        if j >= 2 and row[j - 2] != part[i, j]:
            out[0, 0] = -1
        if theirs.shape[0] != 4 or part.shape[1] != 8 or row.size != 6:
            out[0, 0] = -2
    cluster_sync()


@has_clusters
def test_matrices_and_parts_of_them():
    x = np.arange(32 * 32, dtype=np.float32).reshape(32, 32) + 1
    out = zeros((32, 32), np.float32)
    in_clusters(transposed, 4)[4, (8, 8)](device.to_device(x), out)
    np.testing.assert_array_equal(host(out), x.T)


@cuda.jit
def in_dynamic_memory(out):
    """Two arrays that lie in the same dynamic memory, of which the second begins behind the first."""
    whole = cuda.shared.array(0, np.int32)
    t = cuda.threadIdx.x
    mine = whole[32:64]
    whole[t] = -1
    mine[t] = 1000 * cluster_rank() + t
    cluster_sync()
    out[cuda.grid(1)] = map_shared_rank(mine, cluster_rank() ^ 1)[31 - t]
    first = map_shared_rank(whole, cluster_rank() ^ 1)
    if first[t] != -1 or first[32 + t] != 1000 * (cluster_rank() ^ 1) + t:
        out[cuda.grid(1)] = -7
    cluster_sync()


@has_clusters
@pytest.mark.parametrize("size", [256, 64 * 1024])
def test_dynamic_shared_memory(size):
    out = zeros(4 * 32)
    in_clusters(in_dynamic_memory, 2)[4, 32, 0, size](out)
    expected = 1000 * np.array([1, 0, 1, 0])[:, None] + np.arange(31, -1, -1)
    np.testing.assert_array_equal(host(out).reshape(4, 32), expected)


@cuda.jit
def where_they_are(out):
    mine = cuda.shared.array(1, np.int32)
    mine[0] = cuda.blockIdx.y * 100 + cuda.blockIdx.x + 10000 * cuda.blockIdx.z
    cluster_sync()
    out[cuda.blockIdx.z, cuda.blockIdx.y, cuda.blockIdx.x] = map_shared_rank(mine, 2)[0]
    cluster_sync()


@has_clusters
def test_a_cluster_lies_along_x_of_a_grid_of_three_axes():
    out = zeros((2, 4, 6))
    in_clusters(where_they_are, 3)[(6, 4, 2), 1](out)
    z, y, x = np.indices((2, 4, 6))
    np.testing.assert_array_equal(host(out), 10000 * z + 100 * y + x // 3 * 3 + 2)


@cuda.jit
def a_rank_for_each_lane(out):
    mine = cuda.shared.array(32, np.int32)
    t = cuda.threadIdx.x
    mine[t] = 100 * cluster_rank() + t
    cluster_sync()
    theirs = map_shared_rank(mine, (t + cluster_rank()) % cluster_size())
    out[cuda.grid(1)] = theirs[t // 2]
    cluster_sync()


@has_clusters
@pytest.mark.parametrize("blocks", [3, 8])
def test_the_rank_may_differ_between_lanes(blocks):
    out = zeros(32 * blocks)
    in_clusters(a_rank_for_each_lane, blocks)[blocks, 32](out)
    b, t = np.indices((blocks, 32))
    np.testing.assert_array_equal(host(out).reshape(blocks, 32), (t + b) % blocks * 100 + t // 2)


@cuda.jit(device=True)
def element_of(array, rank, i):
    return map_shared_rank(array, rank)[i]


@cuda.jit
def chosen(out, ranks):
    """One of two arrays, by a branch, in a device function, in a loop, and with ranks of several types."""
    a, b = cuda.shared.array(32, np.int32), cuda.shared.array(32, np.int32)
    t = cuda.threadIdx.x
    a[t] = 1000 * cluster_rank() + t
    b[t] = -a[t]
    cluster_sync()
    total = 0
    for k in range(cluster_size()):
        if ranks[k] % 2 == 0:
            total += element_of(a, ranks[k], t)
        else:
            total += element_of(b, ranks[k], t)
    out[cuda.grid(1)] = total
    cluster_sync()


@has_clusters
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64])
def test_ranks_of_each_type_and_in_a_device_function(dtype):
    out = zeros(32 * 4)
    in_clusters(chosen, 4)[4, 32](out, device.to_device(np.array([3, 2, 0, 1], dtype)))
    np.testing.assert_array_equal(host(out).reshape(4, 32), np.full((4, 32), (0 - 1000 + 2000 - 3000)))


@cuda.jit
def sixteen_bytes(x, out):
    mine = cuda.shared.array(128, np.float32, alignment=16)
    back = cuda.shared.array(128, np.float32, alignment=16)
    t = cuda.threadIdx.x
    store128(mine, 4 * t, load128(x, 4 * cuda.grid(1)))
    cluster_sync()
    other = (cluster_rank() + 1) % cluster_size()
    a, b, c, d = load128(map_shared_rank(mine, other), 4 * t)
    store128(map_shared_rank(back, other), 4 * t, (d, c, b, a))
    cluster_sync()
    store128(out, 4 * cuda.grid(1), load128(back, 4 * t))


@has_clusters
@pytest.mark.parametrize("blocks", [2, 4])
def test_sixteen_bytes_at_once(blocks):
    x = np.arange(128 * blocks, dtype=np.float32)
    out = zeros(x.size, np.float32)
    in_clusters(sixteen_bytes, blocks)[blocks, 32](device.to_device(x), out)
    np.testing.assert_array_equal(host(out).reshape(-1, 4), x.reshape(-1, 4)[:, ::-1])


@cuda.jit
def some_return(out):
    """A thread that has returned is not waited for; neither is a block of which no thread is left."""
    mine = cuda.shared.array(64, np.int32)
    t = cuda.threadIdx.x
    if cluster_rank() == 1 or t >= 40:
        return
    mine[t] = 10 * cluster_rank()
    cluster_sync()
    out[cuda.grid(1)] = 1 + map_shared_rank(mine, 2 - cluster_rank())[t]
    cluster_sync()


@has_clusters
def test_threads_that_have_returned_are_not_waited_for():
    out = zeros(3 * 64)
    in_clusters(some_return, 3)[3, 64](out)
    expected = np.zeros((3, 64))
    expected[0, :40], expected[2, :40] = 21, 1
    np.testing.assert_array_equal(host(out).reshape(3, 64), expected)


@cuda.jit
def sums_of_pairs(x, scale, pair, out):
    i = cuda.grid(1)
    mine = cuda.shared.array(32, np.float32)
    mine[cuda.threadIdx.x] = x[i] * scale + pair[0][i] + pair[1]
    cluster_sync()
    out[i] = map_shared_rank(mine, 0)[cuda.threadIdx.x] + map_shared_rank(mine, 1)[cuda.threadIdx.x]
    cluster_sync()


@has_clusters
def test_arguments_are_arrays_numbers_and_tuples_of_them():
    x = np.arange(64, dtype=np.float32)
    out = zeros(64, np.float32)
    for scale in (np.float32(2), 2, 2.0, True):  # a plan for each
        pair = (device.to_device(np.ones(64, np.float32)), 3)
        in_clusters(sums_of_pairs, 2)[2, 32](device.to_device(x), scale, pair, out)
        both = (x * np.float32(scale) + 4).reshape(2, 32).sum(axis=0)
        np.testing.assert_array_equal(host(out), np.r_[both, both])


# -------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("blocks", "error", "sentence"),
    [
        (0, ValueError, "blocks must be from 1 to 16, was 0"),
        (17, ValueError, "blocks must be from 1 to 16, was 17"),
        (-2, ValueError, "blocks must be from 1 to 16, was -2"),
        (True, TypeError, "blocks must be an integer, was True"),
        (2.0, TypeError, r"blocks must be an integer, was 2\.0"),
        ("2", TypeError, "blocks must be an integer, was '2'"),
        (None, TypeError, "blocks must be an integer, was None"),
    ],
)
def test_a_cluster_that_is_none_is_refused(blocks, error, sentence):
    with pytest.raises(error, match=sentence):
        in_clusters(ring, blocks)


@pytest.mark.parametrize("kernel", [all_four, None, ring[4, 32], "ring"])
def test_what_is_no_kernel_is_refused(kernel):
    with pytest.raises(TypeError, match=f"kernel must be made by @cuda.jit, was {type(kernel).__name__}"):
        in_clusters(kernel, 2)


@pytest.mark.skipif(device.on_gpu(), reason="Numba says so only when it is launched")
def test_a_device_function_is_refused():
    with pytest.raises((TypeError, ValueError), match="device function"):
        in_clusters(element_of, 2)[4, 32]


@pytest.mark.parametrize("grid", [1, 5, (5, 2), (3, 4, 2), [9, 2]])
def test_a_grid_that_is_not_whole_clusters_is_refused(grid):
    with pytest.raises(ValueError, match=r"first extent must be a multiple of the cluster's 2 blocks"):
        in_clusters(ring, 2)[grid, 32]


@pytest.mark.parametrize("configuration", [4, (4,), (), (4, 32, 0, 0, 0), [4, 32]])
def test_a_configuration_of_a_wrong_length_is_refused(configuration):
    with pytest.raises(ValueError, match="a launch is configured as in_clusters"):
        in_clusters(ring, 2)[configuration]


@has_clusters
@pytest.mark.parametrize("wrong", [np.zeros(128, np.int32), (np.zeros(128, np.int32), 1), ((1, np.zeros(3)), 1)])
def test_numpy_arguments_are_refused(wrong):
    kinds = f"the arguments were {type(wrong).__name__}, "
    with pytest.raises(TypeError, match=f"takes device arrays, numbers and tuples of them; {kinds}"):
        in_clusters(ring, 2)[2, 64](wrong, zeros(2))


@has_clusters
@pytest.mark.parametrize("wrong", ["text", None, [1, 2]])
def test_arguments_that_are_nothing_of_it_are_refused(wrong):
    with pytest.raises(TypeError):
        in_clusters(ring, 2)[2, 64](wrong, zeros(2))


# ----------------------------------------------------------------------------------------------------------- the module


def test_the_interpreter_needs_no_numba():
    script = (
        "import sys; from pmpp.runtime import clusters; from pmpp import cuda\n"
        "assert all(getattr(clusters, name) is getattr(cuda, name) for name in clusters.NAMES)\n"
        "kernel = cuda.jit(lambda: None)\n"
        "clusters.in_clusters(kernel, 2)[2, 1]\n"
        "assert not {'numba', 'llvmlite', 'numba_cuda'} & set(sys.modules), 'Numba was imported'"
    )
    environment = {"PMPP_BACKEND": "simt", "PATH": ""}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment, timeout=60)


def test_the_intrinsics_are_known_by_name():
    pytest.importorskip("numba_cuda")
    # The interpreter, profiling a kernel that was written for the GPU, finds the twins by these names.
    assert {name: made._name for name, made in clusters.numba_intrinsics().items()} == {n: n for n in clusters.NAMES}


def test_no_other_name_is_made():
    with pytest.raises(AttributeError, match="cluster_index"):
        clusters.cluster_index  # noqa: B018
