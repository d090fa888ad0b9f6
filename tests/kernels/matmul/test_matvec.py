"""Matrix-vector product: results on every path, plans of every kind, arguments, and counters against counts by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda
from pmpp.kernels.common import blocks, round_up
from pmpp.kernels.common.arrivals import ARRIVALS, arrivals_for
from pmpp.kernels.matmul import matvec as room
from pmpp.runtime import device
from pmpp.runtime.views import strided
from tests.kernels.matmul.wrong_matvec import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import misaligned, name_of, observe, result_of, total

each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
F32 = np.float32
INPUTS = room.inputs()
SOME = [  # of each kind one
    "one",
    "a warp and one",
    "short odd rows",
    "whole vectors",
    "by columns, tall, odd",
    "by columns, wide",
    "cancellation",
    "non-finite",
]


def placed(a, offset, order):
    """A device array with the values of ``a``, in C or Fortran order, ``offset`` elements behind a 16-byte boundary."""
    m, n = a.shape
    if not a.size:
        return device.to_device(np.asarray(a, order=order))
    flat = device.to_device(np.concatenate([np.zeros(offset, F32), a.ravel(order)]))
    return strided(flat, (m, n), (n, 1) if order == "C" else (1, m), offset)


def whole(m, n, seed=8):
    """Whole numbers: every partial sum is exact, in any order, and one lost or doubled product shows."""
    rng = np.random.default_rng(seed)
    return (rng.integers(1, 5, (m, n)) * rng.choice([-1, 1], (m, n))).astype(F32), rng.integers(1, 5, n).astype(F32)


# -------------------------------------------------------------------------------------------------------------- results


def right(result, a, x):
    return judge.right(result, room.reference(a, x), room.tolerance(a, x))


def faults(function, names=SOME):
    """All that is wrong on the first input where anything is, worst first; and with a matrix that begins elsewhere."""
    for a, x in (INPUTS[name] for name in names):
        found = judge.faults(function, (a, x), lambda result, a=a, x=x: right(result, a, x))
        if found:
            return found
    a, x = INPUTS["whole vectors"]
    return judge.faults(function, (misaligned(a, 1), x), lambda result: right(result, a, x))


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


@each_rung
def test_a_rung_has_none_of_these_faults(rung):
    assert faults(rung) == []


@each_rung
@hypothesis.given(data=st.data())
@hypothesis.settings(max_examples=15)
def test_any_shape_order_and_alignment(rung, data):
    extents = st.sampled_from([0, 1, 2, 3, 4, 7, 12, 31, 64, 129, 300, 1100])
    m, n = data.draw(extents), data.draw(extents)
    hypothesis.assume(m * n <= 20_000)
    rng = np.random.default_rng(1)
    a, x = rng.standard_normal((m, n), dtype=F32), rng.standard_normal(n, dtype=F32)
    order, offsets = data.draw(st.sampled_from("CF")), st.integers(0, 3)
    result = rung(placed(a, data.draw(offsets), order), misaligned(x, data.draw(offsets)))
    assert right(device.to_host(result), a, x)


@hypothesis.given(data=st.data())
@hypothesis.settings(max_examples=40)
def test_any_plan_gives_the_product(data):
    """Whatever shape a plan is for: those of a large matrix are not reached by matrices that can be tested."""
    m, n = data.draw(st.sampled_from([1, 2, 3, 6, 64, 130])), data.draw(st.sampled_from([1, 2, 3, 36, 130, 1000]))
    order, offset = data.draw(st.sampled_from("CF")), data.draw(st.sampled_from([0, 1, 2]))
    a, x = whole(m, n)
    p = room.arguments(placed(a, offset, order), x)
    wide, parts = room.whole_vectors(p), data.draw(st.integers(1, 5))
    if p.by_rows:
        across = 2 ** data.draw(st.integers(0, 8))
        along = data.draw(st.sampled_from([1, 2])) * max(32 // across, 1) if across <= 32 else 1
    else:
        across = 2 ** data.draw(st.integers(0 if wide else 1, 6))
        along = 2 ** data.draw(st.integers(0 if wide else 2, 3))
    part = round_up(blocks(n, parts), 4)
    result = result_of(lambda: room.launch(p, room.Plan(across, along, blocks(n, part), part, wide)) or p.result)
    np.testing.assert_array_equal(result, a @ x)


@hypothesis.given(data=st.data())
@hypothesis.settings(max_examples=25)
def test_any_plan_for_rows_that_begin_anywhere(data):
    """Two rows to a team, with and without the second one; parts; and what lies before the vectors and behind them."""
    m, n = data.draw(st.sampled_from([1, 3, 5, 8, 9, 17])), data.draw(st.sampled_from([1, 3, 7, 130, 515, 1031]))
    a, x = whole(m, n)
    p = room.arguments(placed(a, data.draw(st.integers(0, 3)), "C"), x)
    team, parts = data.draw(st.sampled_from([32, 64, 128])), data.draw(st.integers(1, 4))
    along, part = data.draw(st.sampled_from([1, 4])) if team == 32 else 1, round_up(blocks(n, parts), 4)
    plan = room.Plan(team, along, blocks(n, part), part, False)
    result = result_of(lambda: room.launch_shifted(p, plan) or p.result)
    np.testing.assert_array_equal(result, a @ x)


@hypothesis.given(data=st.data())
@hypothesis.settings(max_examples=30)
def test_any_plan_with_a_last_block(data):
    """Tiles of any height and width, many parts and one, and what lies before whole vectors and behind them."""
    m, n = data.draw(st.sampled_from([2, 3, 6, 64, 130])), data.draw(st.sampled_from([2, 3, 36, 130, 1000]))
    a, x = whole(m, n)
    p = room.arguments(placed(a, data.draw(st.integers(0, 3)), "F"), x)
    wide, parts = room.whole_vectors(p), data.draw(st.integers(1, 12))
    across, along = 2 ** data.draw(st.integers(0, 6)), 2 ** data.draw(st.integers(0 if wide else 2, 3))
    part = round_up(blocks(n, parts), 4)
    plan = room.Plan(across, along, blocks(n, part), part, wide)
    result, reports = observe(lambda: room.launch_last_block(p, plan) or p.result)
    np.testing.assert_array_equal(result, a @ x)
    assert not device.to_host(arrivals_for(0)).any()  # as the next launch needs them
    counted = plan.parts * blocks(m, 4 * across - room.spare_rows(p)) if plan.parts > 1 else 0
    assert device.on_gpu() or total(reports, "atomic_requests") == counted


@interpreter_only
def test_the_last_block_needs_no_second_launch():
    for m, n in ((8, 17_000), (9, 9001), (130, 9001)):
        a, x = whole(m, n)
        result, reports = observe(room.last_block, np.asfortranarray(a), x)
        np.testing.assert_array_equal(result, a @ x)
        assert [report.kernel for report in reports] == ["last_block_kernel"]


@hypothesis.given(data=st.data())
@hypothesis.settings(max_examples=30)
def test_a_thread_for_whole_rows_whatever_the_shape(data):
    """Whole rounds, rounds with fewer columns, and threads with fewer rows, of shapes that other rungs take, too."""
    m, n = data.draw(st.sampled_from([1, 2, 5, 128, 129, 300, 513])), data.draw(st.integers(1, 70))
    a, x = whole(m, n)
    a[-1, -1], x[-1] = data.draw(st.sampled_from([1, np.inf])), 1
    p = room.arguments(placed(a, data.draw(st.integers(0, 3)), "F"), misaligned(x, data.draw(st.integers(0, 3))))
    rows = data.draw(st.sampled_from([1, 2, 4]))
    result, reports = observe(lambda: room.launch_undivided(p, rows) or p.result)
    np.testing.assert_array_equal(result, a @ x)
    assert device.on_gpu() or total(reports, "barriers") == 0


@interpreter_only
def test_few_columns_are_not_shared():
    """One launch, and no barrier. A warp asks for each of its rows' columns once, and for x once for all its rows."""

    def launched(m, n, offset=0, order="F"):
        a, x = whole(m, n)
        result, reports = observe(room.undivided, placed(a, offset, order), x)
        np.testing.assert_array_equal(result, a @ x)
        return [report.kernel for report in reports], total(reports, "global_load_requests")

    for offset in (0, 1):
        assert launched(512, 2, offset) == (["whole_rows_kernel"], 4 * (4 + 1) * 2)  # four warps, each with four rows
        assert launched(512, 7, offset) == (["whole_rows_kernel"], 8 * (2 + 1) * 7)
        assert launched(512, 16, offset) == (["whole_rows_kernel"], 16 * (1 + 1) * 16)
        assert launched(512, 64, offset) == (["whole_rows_kernel"], 16 * (1 + 1) * 64)
    assert launched(512, 65)[0] == ["last_block_kernel"]
    assert launched(512, 16, order="C")[0] == ["rows_kernel"]


def test_how_many_rows_a_thread_has_for_itself():
    """As many as make a round of sixteen elements, or four; and none where it should share one."""
    columns = (2, 3, 4, 5, 8, 9, 16, 17, 64, 65, 2**31)
    assert [room.rows_of_a_thread(n) for n in columns] == [4, 4, 4, 2, 2, 1, 1, 1, 1, 0, 0]


@interpreter_only
def test_which_rows_are_taken_two_at_a_time():
    def kernels(m, n, offset=0, order="C"):
        a, x = whole(m, n)
        result, reports = observe(room.shifted, placed(a, offset, order), x)
        np.testing.assert_array_equal(result, a @ x)
        return [report.kernel for report in reports]

    assert kernels(9, 513) == kernels(8, 514) == kernels(9, 512, offset=1) == ["shifted_kernel"]
    assert kernels(9, 512) == ["rows_kernel"]
    assert kernels(7, 513) == kernels(9, 511) == ["odd_rows_kernel"]
    assert kernels(513, 9, order="F") == ["columns_kernel"]


@interpreter_only
def test_counts_of_rows_that_begin_anywhere():
    """256 rows of 513 elements, two to a warp."""
    p = room.arguments(np.ones((256, 513), F32), np.ones(513, F32))
    _, reports = observe(lambda: room.launch_shifted(p, room.Plan(32, 4, 1, 516, False)) or p.result)
    requests, barriers = (total(reports, name) for name in ("global_load_requests", "barriers"))
    assert barriers == 0
    # A pair has 128 vectors in each row, which a warp takes in two rounds of four loads of A and eight of x. One more
    # load of both rows and of x is for what is left. If two or three elements lie before the vectors there are 127:
    # then a lane has one vector in its last round, and takes it alone.
    assert requests == 128 * (2 * (4 + 8) + 3) + 64 * (2 + 4)


#: What the last rung plans for a matrix, on an H200. Fields: see `matvec.Plan`.
PLANS = {
    "a thread for a short row": ((4096, 16), True, (1, 128, 1)),
    "lanes for rows of a few vectors": ((4096, 64), True, (4, 32, 1)),
    "a warp a row": ((4096, 1024), True, (32, 4, 1)),
    "few rows": ((128, 65536), True, (512, 1, 1)),
    "few rows, too short for a second launch": ((16, 16384), True, (1024, 1, 1)),
    "a row for many blocks": ((1, 2**24), True, (1024, 1, 66)),
    "few columns": ((2**20, 16), False, (32, 4, 1)),
    "three columns": ((2**20, 3), False, (128, 1, 1)),
    "a square": ((16384, 16384), False, (32, 16, 1)),
    "many columns for many blocks": ((16, 16384), False, (4, 128, 32)),
}


@pytest.mark.parametrize("name", PLANS)
def test_what_the_last_rung_plans(name):
    (m, n), by_rows, expected = PLANS[name]
    assert room.plan_of(m, n, by_rows, True, 132, room.PARTS)[:3] == expected


@hypothesis.given(
    m=st.integers(1, 2**31),
    n=st.integers(1, 2**31),
    by_rows=st.booleans(),
    wide=st.booleans(),
    sms=st.sampled_from([1, 132]),
    most=st.sampled_from([1, room.PARTS]),
)
def test_a_plan_has_a_place_for_everything(m, n, by_rows, wide, sms, most):
    if wide:
        m, n = (m, round_up(n, 4)) if by_rows else (round_up(m, 4), n)
    plan = room.plan_of(m, n, by_rows, wide, sms, most)
    assert plan.parts <= most
    assert (plan.parts - 1) * plan.part < n <= plan.parts * plan.part  # no part is empty
    assert plan.part % 4 == 0  # so each begins at a multiple of 16 bytes if its row does
    assert plan.across & (plan.across - 1) == 0
    assert plan.across * plan.along <= (room.MOST if wide or not by_rows else room.MOST // 2)
    if by_rows:
        assert plan.across * plan.along % 32 == 0  # lanes of a warp that are not there could not shuffle
        assert plan.along == 1 or plan.across <= 32
    else:
        assert plan.along & (plan.along - 1) == 0
        assert plan.along >= (1 if wide else 4)  # a thread's columns are shifted alike
        assert plan.across > (0 if wide else 1)
        assert plan.across * plan.along <= room.COLUMNS


@hypothesis.given(
    m=st.integers(1, 2**31),
    n=st.integers(1, 2**31),
    spare=st.sampled_from([0, 2, 3]),
    sms=st.sampled_from([1, 20, 132]),
)
def test_a_plan_with_a_last_block_has_a_place_for_everything(m, n, spare, sms):
    plan = room.last_block_plan(m, n, spare, sms, room.PARTS)
    assert plan.parts <= room.PARTS
    assert plan.parts == 1 or blocks(m, 4 * plan.across - spare) <= ARRIVALS  # each tile has a count
    assert (plan.parts - 1) * plan.part < n <= plan.parts * plan.part  # no part is empty
    assert plan.part % 4 == 0  # so a thread's columns are shifted alike in all parts
    assert plan.across & (plan.across - 1) == plan.along & (plan.along - 1) == 0
    assert plan.along >= (4 if spare else 1)
    assert 4 * plan.across * plan.along <= room.SUMS


@pytest.mark.parametrize("shape", [(8066, 5041), (2868, 10776), (1266, 15683), (4096, 4096), (128, 65536)])
def test_all_blocks_of_a_plan_with_a_last_block_run_at_the_same_time(shape):
    m, n = shape
    spare = 2 if m % 4 else 0
    plan = room.last_block_plan(m, n, spare, 132, room.PARTS)
    fit = 132 * (room.RESIDENT // 2 // (plan.across * plan.along))
    assert 64 <= blocks(m, 4 * plan.across - spare) * plan.parts <= fit


@pytest.mark.parametrize("shape", [(512, 512), (1024, 1024), (1001, 1001), (676, 948), (333, 777), (300, 2000)])
def test_a_small_matrix_has_narrow_tiles(shape):
    """A multiprocessor takes in less than twice its share of the bandwidth: blocks of 32 rows would be too few."""
    m, n = shape
    spare = (0, 3, 2, 3)[m % 4]
    plan = room.last_block_plan(m, n, spare, 132, room.PARTS)
    assert plan.parts == 1  # to add up parts takes longer than the rest
    assert blocks(m, 4 * plan.across - spare) >= m // 16
    assert n // plan.along >= room.ROUND - 4  # and hardly any load is left out


@each_rung
def test_one_lost_product_shows(rung):
    """Nothing is added by atomics either, whose order varies from run to run."""
    for m, n in ((3, 700), (70, 33), (129, 20)):
        a, x = whole(m, n)
        for given in (a, np.asfortranarray(a)):
            result, reports = observe(rung, given, x)
            np.testing.assert_array_equal(result, a @ x)
            if rung not in (room.last_block, room.undivided):  # whose blocks count themselves
                assert total(reports, "atomic_requests") == 0


def test_a_second_launch_adds_up_what_parts_leave():
    for m, n, order in ((1, 263_000, "C"), (1, 131_073, "C"), (8, 17_000, "F"), (9, 9001, "F")):
        a, x = whole(m, n)
        p = room.arguments(placed(a, 0, order), x)
        plan = room.plan_of(m, n, p.by_rows, room.whole_vectors(p), 132, room.PARTS)
        assert plan.parts > 1
        result, reports = observe(lambda p=p, plan=plan: room.launch(p, plan) or p.result)
        assert device.on_gpu() or len(reports) == 2
        np.testing.assert_array_equal(result, a @ x)


@pytest.mark.gpu
@each_rung
def test_the_same_bits_in_every_run(rung):
    for m, n, order in ((3, 1_000_000, "C"), (5000, 700, "F"), (16, 100_001, "F"), (4000, 4000, "C")):
        rng = np.random.default_rng(5)
        a = placed(rng.standard_normal((m, n), dtype=F32), 0, order)
        x = device.to_device(rng.standard_normal(n, dtype=F32))
        first = device.to_host(rung(a, x))
        assert all(np.array_equal(device.to_host(rung(a, x)), first) for _ in range(20))


@each_rung
def test_a_transposed_view_is_the_other_product(rung):
    a, x = whole(40, 24)
    np.testing.assert_array_equal(device.to_host(rung(a.T, a[:, 0].copy())), a.T @ a[:, 0])
    np.testing.assert_array_equal(device.to_host(rung(a, x)), a @ x)


@each_rung
def test_out_and_stream(rung):
    a, x = whole(7, 30)
    stream, out = cuda.stream(), device.empty(7, F32)
    result = rung(device.to_device(a), device.to_device(x), out=out, stream=stream)
    stream.synchronize()
    assert result is out
    np.testing.assert_array_equal(device.to_host(out), a @ x)


def test_the_reference_by_hand():
    assert room.reference(F32([[1, 2], [3, 4]]), F32([10, 1])).tolist() == [12, 34]
    assert room.reference(np.zeros((2, 0), F32), np.zeros(0, F32)).tolist() == [0, 0]


@pytest.mark.parametrize("name", INPUTS)
def test_the_reference_agrees_with_numpy(name):
    a, x = INPUTS[name]
    with np.errstate(all="ignore"):
        expected = a.astype(np.float64) @ x.astype(np.float64)
    assert judge.right(expected.astype(np.float64), room.reference(a, x), 1e-3 * room.tolerance(a, x), np.float64)


# ------------------------------------------------------------------------------------------------------------ bad input


MATRIX, VECTOR = np.ones((4, 6), F32), np.ones(6, F32)
BAD = {
    "a vector for a": ((VECTOR, VECTOR), ValueError, "a must have 2 dimensions"),
    "another length": ((MATRIX, VECTOR[:5]), ValueError, r"x must have shape \(6,\), had \(5,\)"),
    "a matrix for x": ((MATRIX, VECTOR[:, None]), ValueError, "x must have 1 dimension"),
    "another dtype": ((MATRIX.astype(np.float64), VECTOR), TypeError, "a must be float32, was float64"),
    "whole numbers": ((MATRIX, VECTOR.astype(np.int32)), TypeError, "x must be float32, was int32"),
    "strides": ((MATRIX[:, ::2], VECTOR[:3]), ValueError, "a must be contiguous in C or Fortran order"),
    "strides of x": ((MATRIX[:, :3].copy(), VECTOR[::2]), ValueError, "x must be contiguous in C order"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments)


@each_rung
def test_a_bad_out(rung):
    with pytest.raises(ValueError, match=r"out must have shape \(4,\), had \(6,\)"):
        rung(MATRIX, VECTOR, out=device.empty(6, F32))
    x = device.to_device(np.ones(4, F32))
    with pytest.raises(ValueError, match="out must share no memory with x"):
        rung(device.to_device(MATRIX[:, :4].copy()), x, out=x)


# ------------------------------------------------------------------------------------------------------------- counters


def counted(rung, a, x):
    """Kernels; requests and sectors of loads; barriers."""
    _, reports = observe(rung, a, x)
    names = ("global_load_requests", "global_load_sectors", "barriers")
    return [report.kernel for report in reports], tuple(total(reports, name) for name in names)


@interpreter_only
def test_counts_of_rows():
    """256 rows of 512: 2^17 elements are 2^14 sectors, and x is 64."""
    a, x = np.ones((256, 512), F32), np.ones(512, F32)
    # Eight warps, 512 steps: a request of 32 rows, 32 sectors, and one of x, which is the same for all lanes.
    kernels, counts = counted(room.thread_per_row, a, x)
    assert (kernels, counts) == (["thread_kernel"], (2 * 8 * 512, 8 * 512 * 33, 0))
    # A warp a row, 16 steps: four sectors of A and four of x.
    kernels, counts = counted(room.coalesced, a, x)
    assert (kernels, counts) == (["warp_kernel"], (256 * 2 * 16, 256 * 16 * 8, 0))
    # The same sectors by a quarter of the requests.
    kernels, counts = counted(room.vectorised, a, x)
    assert (kernels, counts) == (["rows_kernel"], (256 * 2 * 4, 256 * 16 * 8, 0))


@interpreter_only
def test_counts_of_columns():
    """1024 rows, 64 columns: 2^16 elements are 2^13 sectors."""
    a, x = np.ones((1024, 64), F32, order="F"), np.ones(64, F32)
    kernels, counts = counted(room.coalesced, a, x)
    assert (kernels, counts) == (["thread_kernel"], (2 * 32 * 64, 32 * 64 * 5, 0))
    # Eight blocks of four warps: a warp has 128 rows and 16 of the columns, by 128-bit loads of 16 sectors. What
    # the warps have is added up in two steps, each behind a barrier.
    kernels, counts = counted(room.vectorised, a, x)
    assert (kernels, counts) == (["columns_kernel"], (8 * 4 * 2 * 16, 8 * 4 * 16 * 17, 8 * 2))


@interpreter_only
def test_odd_columns_are_read_by_wide_loads():
    """1023 rows: nine blocks with 124 rows each. Of 64 columns the first and the last are read element by element."""
    a, x = np.ones((1023, 64), F32, order="F"), np.ones(64, F32)
    _, (requests, _, _) = counted(room.vectorised, a, x)
    # A block has four warps with 16 columns each. The outer columns are four loads each, and not one.
    assert requests == 9 * (4 * 16 * 2 + 2 * 3)


# ---------------------------------------------------------------------------------------------------------------- torch


@pytest.mark.gpu
@each_rung
@pytest.mark.parametrize("name", INPUTS)
def test_torch_agrees(rung, name):
    torch = pytest.importorskip("torch")
    a, x = INPUTS[name]
    theirs = torch.mv(torch.from_numpy(a).double().cuda(), torch.from_numpy(x).double().cuda())
    ours = device.to_host(rung(torch.from_numpy(a).cuda(), torch.from_numpy(x).cuda()))
    assert judge.right(ours, theirs.cpu().numpy(), room.tolerance(a, x))
