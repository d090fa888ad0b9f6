"""Attention on a cache: results for caches of every kind, parts, arguments, and counters against counts by hand."""

import functools
import types

import numpy as np
import pytest

from pmpp.kernels import attention as subject
from pmpp.kernels.attention import decode as room
from pmpp.kernels.attention import decode_fed, ladder
from pmpp.runtime import device
from pmpp.runtime.dtypes import known
from tests.kernels.attention import results
from tests.kernels.attention.wrong_decode import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import misaligned, name_of, observe, result_of, total

each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
hopper_only = pytest.mark.skipif(
    device.limits()["compute_capability"] != decode_fed.CAPABILITY, reason="an engine needs compute capability 9.0"
)
F32 = np.float32
SOME = ["no key yet", "pages", "different lengths"]  # those first that show most and take least
right = functools.partial(results.right, room)


def arrays(batch, heads, groups, keys, size, seed=4):
    rng = np.random.default_rng(seed)
    shapes = (batch, heads, size), (batch, groups, keys, size), (batch, groups, keys, size)
    return *(rng.standard_normal(shape, dtype=F32) for shape in shapes), np.full(batch, keys, np.int32)


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert results.faults(room, wrong.function, SOME)[:1] == [wrong.reason]


@pytest.mark.parametrize(
    ("groups", "shared", "size", "lengths", "most", "parts"),
    [
        (2, 3, 4, [70, 1], 1, 4),
        (2, 2, 3, [33], room.MOST_HEADS, 3),
        (1, 5, 8, [0, 70], room.MOST_HEADS, 5),  # the fifth head has a block of its own
        (1, 3, 3, [70], room.MOST_HEADS, 1),
        (1, 1, 4, [17], room.MOST_HEADS, 2),
    ],
    ids=str,
)
def test_any_number_of_parts_and_heads(groups, shared, size, lengths, most, parts):
    """What a large GPU would choose for a long cache. Some parts begin behind the end of a text."""
    lengths = np.int32(lengths)
    q, k, v, _ = arrays(lengths.size, groups * shared, groups, 70, size)
    p = room.arguments(q, k, v, lengths)
    result = result_of(lambda: room.launch(p, most, parts) or p.result)
    assert right(result, q, k, v, lengths)


@pytest.mark.parametrize(("kind", "dtype"), [("ahead", "float16"), ("matrices", "float16"), ("matrices", "bfloat16")])
def test_heads_and_parts_of_copied_keys(kind, dtype):
    """Nine heads are two blocks, and of three parts the last begin behind the end of a text, or are all there is."""
    if dtype not in map(str, known(room.DTYPES)):
        pytest.skip("this machine has no such type")
    lengths = np.int32([0, 70])
    q, k, v = (x.astype(dtype) for x in arrays(2, 9, 1, 70, 8)[:3])
    p = room.arguments(q, k, v, lengths)
    result = result_of(lambda: room.launch(p, room.MOST_HEADS, 3, kind) or p.result)
    given = q, k, v, lengths
    assert judge.right(result, room.reference(*given), room.tolerance(*given), q.dtype)


@each_rung
def test_arrays_that_begin_anywhere(rung):
    q, k, v, lengths = arrays(1, 2, 1, 9, 8)
    assert right(device.to_host(rung(q, misaligned(k, 1), v, lengths)), q, k, v, lengths)


def test_axes_of_one_element_with_the_stride_0():
    """As NumPy's ``x[None]`` has them. Numba reshapes no such array."""
    q, k, v, lengths = arrays(1, 2, 1, 9, 4)
    given = [x[0][None] for x in (q, k, v)]
    assert all(x.strides[0] == 0 for x in given)
    assert right(device.to_host(room.split(*given, lengths)), q, k, v, lengths)


def test_a_paged_cache_is_the_same_cache():
    q, k, v, _ = arrays(2, 2, 1, 24, 4)
    lengths, table = np.int32([20, 24]), np.int32([[4, 0, 5], [1, 3, 2]])
    pages = np.empty((2, 6, 1, 8, 4), F32)
    for text, j in np.ndindex(2, 3):
        pages[:, table[text, j]] = k[text, :, 8 * j : 8 * j + 8], v[text, :, 8 * j : 8 * j + 8]
    plain = device.to_host(room.split(q, k, v, lengths))
    np.testing.assert_array_equal(device.to_host(room.split(q, *pages, lengths, table)), plain)


def test_one_query_of_the_other_room():
    """The last query with a causal mask sees all keys."""
    q, k, v, lengths = arrays(1, 4, 2, 30, 8)
    theirs = ladder.reference(q[:, :, None], k, v, True)[:, :, 0]
    result = device.to_host(subject.attention_with_cache(q, k, v, lengths))
    assert judge.right(result, theirs, room.tolerance(q, k, v, lengths))


@pytest.mark.parametrize(
    ("batch", "heads", "groups", "keys", "parts"),
    [
        (1, 32, 8, 2**17, 16),  # 128 blocks
        (1, 32, 1, 2**17, 16),  # 32 heads on one of keys are eight blocks a part
        (1, 32, 8, 512, 4),  # shorter ones would not pay
        (1, 4, 1, 2**17, 128),  # a part has a multiple of 64 keys
        (16, 32, 8, 8192, 1),
        (64, 32, 8, 8192, 1),  # 512 blocks in two turns of 264
        (20, 32, 8, 8192, 8),  # 160 blocks would leave many places empty, and 1,280 are nearly five turns
        (0, 4, 2, 512, 4),
    ],
)
def test_parts_leave_few_multiprocessors_without_work(monkeypatch, batch, heads, groups, keys, parts):
    """On a GPU of 132 multiprocessors, where each has two blocks at a time."""
    monkeypatch.setattr(device, "limits", lambda: {"multiprocessors": 132})
    p = types.SimpleNamespace(shape=(batch, heads, groups, 1, 128), q=np.zeros(0, F32), most=keys)
    assert room.long_parts(p) == parts


@pytest.mark.parametrize(
    ("kib", "dtype", "kind", "chosen"),
    [
        (228, "float16", "matrices", "matrix_kernel"),
        (100, "float16", "matrices", "ahead_kernel"),  # compute capability 8.6 and 8.9
        (100, "float32", "ahead", "ahead_kernel"),
        (64, "float16", "matrices", "part_kernel"),
        (64, "float32", "ahead", "part_kernel"),
    ],
)
def test_where_a_kernel_has_no_room_a_rung_before_does_the_work(monkeypatch, kib, dtype, kind, chosen):
    """New GPUs have all instructions, and some less than half the shared memory of an H200."""
    q, k, v, lengths = arrays(1, 2, 1, 20, 8)
    p = room.arguments(*(x.astype(dtype) for x in (q, k, v)), lengths)
    found = []
    for name in ("matrix_kernel", "ahead_kernel", "part_kernel"):
        made = getattr(room, name)
        monkeypatch.setattr(room, name, lambda *a, made=made, name=name: found.append(name) or made(*a))
    small = device.limits() | {"max_shared_memory_per_multiprocessor": 1024 * kib}
    monkeypatch.setattr(device, "limits", lambda: small)
    room.launch(p, room.MOST_HEADS, 1, kind)
    assert found == [chosen]


def cache_of(lengths, heads, groups, size, page=0, dtype="float16"):
    """A cache with room for 140 keys, NaN beyond the lengths, and pages in another order if there are any."""
    rng = np.random.default_rng(8)
    shape = len(lengths), groups, 2 * page or 140, size
    q = rng.standard_normal((len(lengths), heads, size), dtype=F32)
    k, v = (rng.standard_normal(shape, dtype=F32) for _ in range(2))
    for text, length in enumerate(lengths):
        k[text, :, length:] = v[text, :, length:] = np.nan
    table = ()
    if page:
        count = shape[2] // page
        order = rng.permutation(shape[0] * count)
        k, v = (x.reshape(shape[0], groups, count, page, size).swapaxes(1, 2) for x in (k, v))
        k, v = (x.reshape(-1, groups, page, size)[order] for x in (k, v))
        table = (np.argsort(order).astype(np.int32).reshape(shape[0], count),)
    return *(x.astype(dtype) for x in (q, k, v)), np.int32(lengths), *table


def by_engine(given):
    p = room.arguments(*given)
    assert room.can_feed(p)
    result = result_of(lambda: room.launch_fed(p) or p.result)
    there = [np.where(np.isnan(x), np.zeros_like(x), x) for x in given]
    return judge.right(result, room.reference(*there), room.tolerance(*there), given[0].dtype)


@hopper_only
@pytest.mark.parametrize(
    ("lengths", "heads", "groups", "size", "page"),
    [
        ([128, 1], 1, 1, 64, 0),  # a tile and a key
        ([0, 17], 4, 2, 64, 0),  # a text without a key has work, too
        ([129], 9, 1, 64, 0),  # nine heads are those of two blocks
        ([130, 256], 2, 1, 64, 128),
        ([140], 3, 1, 128, 0),
    ],
    ids=str,
)
def test_an_engine_brings_the_keys(monkeypatch, lengths, heads, groups, size, page):
    """It also brings what lies beyond the last key, here NaN. A block takes several texts and groups."""
    few = device.limits() | {"multiprocessors": 1}
    monkeypatch.setattr(device, "limits", lambda: few)
    assert by_engine(cache_of(lengths, heads, groups, size, page))


@hopper_only
def test_an_engine_for_bfloat16():
    if "bfloat16" not in map(str, known(room.DTYPES)):
        pytest.skip("this machine has no such type")
    assert by_engine(cache_of([70], 2, 1, 64, 0, "bfloat16"))


@hopper_only
def test_what_counts_work_is_0_in_the_end(monkeypatch):
    """The next launch on the stream counts there, too. Enough texts go by the engine, fewer by the rung before."""
    given = cache_of([10, 20, 30], 2, 1, 64)
    few = device.limits() | {"multiprocessors": 1}
    before = device.to_host(room.as_matrices(*given))
    made, found = room.fed_kernel, []
    monkeypatch.setattr(room, "fed_kernel", lambda *args: found.append(args) or made(*args))
    np.testing.assert_array_equal(device.to_host(room.fed(*given)), before)
    assert not found
    monkeypatch.setattr(device, "limits", lambda: few)
    first, second = (device.to_host(room.fed(*given)) for _ in range(2))
    assert found
    np.testing.assert_array_equal(first, second)
    assert not device.to_host(room.counts_for(room.arguments(*given).stream)).any()


@hopper_only
def test_what_an_engine_cannot_bring_goes_by_the_rung_before(monkeypatch):
    """Its tiles are 128 keys of one page, in whole lines of 128 bytes."""
    half = np.float16
    taken = {
        "as it is": (np.ones((1, 2, 64), half), np.ones((1, 1, 5, 64), half), ()),
        "pages of tiles": (np.ones((1, 2, 64), half), np.ones((2, 1, 128, 64), half), (np.int32([[0, 1]]),)),
        "small pages": (np.ones((1, 2, 64), half), np.ones((2, 1, 64, 64), half), (np.int32([[0, 1]]),)),
        "size 80": (np.ones((1, 2, 80), half), np.ones((1, 1, 5, 80), half), ()),
        "float32": (np.ones((1, 2, 64), F32), np.ones((1, 1, 5, 64), F32), ()),
        "begins anywhere": (np.ones((1, 2, 64), half), misaligned(np.ones((1, 1, 5, 64), half), 1), ()),
    }
    found = {}
    for name, (q, k, table) in taken.items():
        found[name] = room.can_feed(room.arguments(q, k, k, np.int32([5]), *table))
    assert found == {name: name in ("as it is", "pages of tiles") for name in taken}
    older = device.limits() | {"compute_capability": (8, 0)}
    q, k, _ = taken["as it is"]
    monkeypatch.setattr(device, "limits", lambda: older)
    assert not room.can_feed(room.arguments(q, k, k, np.int32([5])))


def test_out_and_stream():
    results.check_out_and_stream(room, room.split, *arrays(1, 1, 1, 5, 4))


# ------------------------------------------------------------------------------------------------------------ bad input

Q, K, N = np.ones((2, 4, 8), F32), np.ones((2, 2, 5, 8), F32), np.int32([5, 5])
BAD = {
    "four dimensions": ((Q[None], K, K, N), ValueError, "q must have 3 dimensions"),
    "another batch": ((Q, K[:1], K[:1], N), ValueError, "k must have shape"),
    "groups": ((Q, np.ones((2, 3, 5, 8), F32), K, N), ValueError, "k must have a number of heads that divides the 4"),
    "no head of q": ((Q[:, :0].copy(), K, K, N), ValueError, "k must have no head, as q"),
    "no head of k": ((Q, K[:, :0].copy(), K[:, :0].copy(), N), ValueError, "k must have at least one head, as q"),
    "no room": ((Q, K[:, :, :0], K[:, :, :0], N), ValueError, "k must have room"),
    "other values": ((Q, K, K[:, :1].copy(), N), ValueError, "v must have shape"),
    "large heads": ((np.ones((1, 1, 129), F32), K, K, N), ValueError, "q must have a size from 1 to 128"),
    "64-bit lengths": ((Q, K, K, N.astype(np.int64)), TypeError, "lengths must be int32, was int64"),
    "lengths of others": ((Q, K, K, N[:1]), ValueError, "lengths must have shape"),
    "a flat table": ((Q, K, K, N, N), ValueError, "pages must have 2 dimensions"),
    "a large scale": ((Q, K, K, N, None, 2.1e38), ValueError, r"scale must be from -2e\+38 to 2e\+38"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    given, error, words = BAD[name]
    with pytest.raises(error, match=words):
        room.split(*given)


# ------------------------------------------------------------------------------------------------------------- counters


@interpreter_only
def test_keys_are_read_once_for_heads_that_share_them():
    """Four heads, 32 keys and values of 8: 32 bytes each. Two of a team's eight lanes have something to load."""
    q, k, v, lengths = arrays(1, 4, 1, 32, 8)
    for rung, times in ((room.head_by_head, 4), (room.grouped, 1), (room.ahead, 1)):
        _, (report,) = observe(rung, q, k, v, lengths)
        small = report.counters["global_load_bytes"] - times * 2 * 32 * 32
        teams, words = room.TEAMS, 4 * room.BLOCK
        # The query, by each team; the length; the table, once a round of 16 keys.
        assert small == 4 * teams * 32 + times * (words + 2 * words)


@interpreter_only
def test_a_second_kernel_joins_the_parts():
    q, k, v, lengths = arrays(1, 1, 1, 600, 4)
    result, reports = observe(room.split, q, k, v, lengths)
    assert [report.kernel for report in reports] == ["kernel", "combine_kernel"]
    assert total(reports[1:], "global_store_bytes") == 4 * 4
    assert right(result, q, k, v, lengths)
