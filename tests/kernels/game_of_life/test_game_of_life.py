"""Game of life: results, arguments, and the counters of each rung against counts done by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda, simt
from pmpp.kernels import game_of_life as subject
from pmpp.kernels.game_of_life import ladder as room
from pmpp.kernels.game_of_life import workloads
from pmpp.lab.measure.arrays import view
from pmpp.runtime import device
from tests.kernels.game_of_life.wrong import RIGHT
from tests.kernels.game_of_life.wrong import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import name_of, observe, total

INPUTS = room.inputs()
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="finds what the interpreter finds")


def right(result, *arguments):
    return judge.right(result, room.reference(*arguments), room.tolerance(*arguments), np.dtype("uint8"))


def faults(function):
    """All that is wrong with a version of the room's function on the first input where anything is, worst first."""
    for arguments in INPUTS.values():
        if found := judge.faults(function, arguments, lambda result, arguments=arguments: right(result, *arguments)):
            return found
    return []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


@pytest.mark.parametrize("function", RIGHT, ids=lambda function: function.__name__)
def test_what_the_wrong_kernels_are_made_of_is_right(function):
    assert faults(function) == []


@pytest.mark.parametrize("steps", [1, 5])
def test_the_reference_is_scipys(steps):
    signal = pytest.importorskip("scipy.signal")
    board = expected = room.drawn((23, 17), np.random.default_rng(0))
    for _ in range(steps):
        near = signal.convolve2d(expected, np.ones((3, 3), int), "same") - expected
        expected = ((near == 3) | ((near == 2) & (expected == 1))).astype(np.uint8)
    np.testing.assert_array_equal(room.reference(board, steps), expected)


@each_rung
@hypothesis.given(
    height=st.sampled_from([1, 2, 7, 16, 17, 33]),
    width=st.sampled_from([1, 2, 31, 32, 33, 65, 96]),
    steps=st.integers(0, 4),
    share=st.sampled_from([0.1, 0.4, 0.7]),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=5)
def test_any_board(rung, height, width, steps, share, seed):
    board = room.drawn((height, width), np.random.default_rng(seed), share)
    assert right(device.to_host(rung(board, steps)), board, steps)


def test_a_square_of_three_by_three_decides_alone():
    """All 512 squares, each with dead cells around it, on one board: the rule itself."""
    board = np.zeros((512, 5, 5), np.uint8)
    for k in range(9):
        board[:, 1 + k // 3, 1 + k % 3] = np.arange(512) >> k & 1
    wide = np.ascontiguousarray(board.transpose(1, 0, 2).reshape(5, -1))
    near = board.reshape(512, -1).sum(axis=1) - board[:, 2, 2]
    expected = (near == 3) | ((near == 2) & (board[:, 2, 2] == 1))
    for rung in room.LADDER:
        np.testing.assert_array_equal(device.to_host(rung(wide))[2].reshape(512, 5)[:, 2], expected)


@each_rung
def test_a_glider_moves_and_a_block_stays(rung):
    board = room.glider((20, 40), 2, 3)
    board[15:17, 35:37] = 1
    moved = room.glider((20, 40), 6, 7)
    moved[15:17, 35:37] = 1
    np.testing.assert_array_equal(device.to_host(rung(board, 16)), moved)


@each_rung
def test_out_and_stream(rung):
    board, stream = INPUTS["several blocks"][0], cuda.stream()
    out = device.to_device(np.full(board.shape, 7, np.uint8))
    assert rung(device.to_device(board), 3, out=out, stream=stream) is out
    stream.synchronize()
    assert right(device.to_host(out), board, 3)


def test_the_plain_function(monkeypatch):
    """Each word has a thread as long as the GPU runs so many at the same time: here one multiprocessor with 32."""
    few = {"multiprocessors": 1, "max_threads_per_multiprocessor": 32}
    chosen = {(16, 64): room.packed, (32, 1): room.packed, (33, 1): room.in_strips, (1, 1056): room.packed}
    for shape, expected in chosen.items():
        with monkeypatch.context() as patch:
            patch.setattr(room.device, "limits", lambda: few)
            assert room.best_for(shape) is expected
        board, stream = room.drawn(shape, np.random.default_rng(1)), cuda.stream()
        out = device.to_device(np.full(shape, 7, np.uint8))
        assert subject.play(device.to_device(board), 3, out=out, stream=stream) is out
        stream.synchronize()
        assert right(device.to_host(out), board, 3)
    with pytest.raises(TypeError, match="board must be uint8, was float32"):
        subject.play(np.ones((2, 2), np.float32))


@interpreter_only
def test_the_plain_function_launches_the_rung_that_it_chose(monkeypatch):
    for threads, kernel in ((1024, "packed_kernel"), (1, "in_strips_kernel")):
        limits = {**device.limits(), "multiprocessors": 1, "max_threads_per_multiprocessor": threads}
        with monkeypatch.context() as patch:
            patch.setattr(device, "_limits_of", lambda number, limits=limits: limits)
            with simt.record("count") as reports:
                subject.play(INPUTS["several blocks"][0])
        assert any(kernel in report.kernel for report in reports)


@interpreter_only
@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((np.ones((2, 2), np.float32),), TypeError, "board must be uint8, was float32"),
        ((np.ones(4, np.uint8),), ValueError, "board must have 2 dimensions"),
        ((np.ones((2, 2), np.uint8), -1), ValueError, "steps must be"),
        ((np.ones((2, 2), np.uint8), 1.5), TypeError, "steps must be"),
        ((np.ones((2, 2), np.uint8), 10**7), ValueError, "steps must be"),
    ],
)
def test_errors_name_the_argument(arguments, error, words):
    with pytest.raises(error, match=words):
        room.by_cell(*arguments)


SHAPE = 64, 128  # two words and two strips along each axis, at least


def counted(rung, steps=1):
    _, reports = observe(rung, room.drawn(SHAPE, np.random.default_rng(0)), steps)
    return {name: total(reports, name) for name in ("global_load_bytes", "global_store_bytes")}


@interpreter_only
def test_counters_of_a_thread_a_cell():
    """Nine cells for each, but for those at a border: 3 h - 2 rows by 3 w - 2 columns in all, a byte each."""
    found = counted(room.by_cell)
    h, w = SHAPE
    assert found["global_load_bytes"] == (3 * h - 2) * (3 * w - 2) + h * w  # and itself again
    assert found["global_store_bytes"] == h * w


@interpreter_only
def test_counters_of_tiles():
    """A block of 32 x 8 cells brings 34 x 10, without those beyond the board."""
    found = counted(room.tiled)
    h, w = SHAPE
    rows = h + 2 * (h // room.HEIGHT - 1)
    columns = w + 2 * (w // room.WIDTH - 1)
    assert found["global_load_bytes"] == rows * columns
    assert found["global_store_bytes"] == h * w


@interpreter_only
@pytest.mark.parametrize("rung", [room.packed, room.in_strips], ids=lambda rung: rung.name)
def test_counters_of_words(rung):
    """Packed and unpacked once: a byte in and out, a bit out and in. In each step nine words a word, or fewer."""
    steps = 3
    found = counted(rung, steps)
    h, words = SHAPE[0], SHAPE[1] // 32
    rows = 3 * h - 2 if rung is room.packed else h + 2 * (h // room.STRIP) - 2
    of_a_step = 4 * rows * (3 * words - 2)
    # A warp that unpacks reads its word with all lanes.
    assert found["global_load_bytes"] == h * SHAPE[1] + steps * of_a_step + 4 * h * SHAPE[1]
    assert found["global_store_bytes"] == h * SHAPE[1] + (steps + 1) * 4 * h * words


def test_what_is_measured_is_verified():
    work = next(one for one in workloads.WORKLOADS if one.sizes["cells"] == 64**2)
    (board,) = work.make(1)
    assert work.verify(work.rungs[-1](board), view(board)) == (0, 0)
    assert work.verify(board, view(board))[0] > 0
    np.testing.assert_array_equal(
        work.host["numpy.pad"](device.to_host(board)), room.reference(device.to_host(board), 64)
    )
