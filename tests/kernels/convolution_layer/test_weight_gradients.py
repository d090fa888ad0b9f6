"""Gradients by the weights and the bias: finite differences, any layer, tiles, parts, the same bits twice."""

import hypothesis
import numpy as np
import pytest

from pmpp.kernels import convolution_layer
from pmpp.kernels.convolution_layer import bias_gradients, definition, weight_strips, winograd_adjoints
from pmpp.kernels.convolution_layer import weight_gradients as room
from pmpp.kernels.convolution_layer.definition import Layer
from pmpp.kernels.convolution_layer.direct_tiles import numbers_of
from pmpp.kernels.convolution_layer.measured_gradients import weight_sums
from pmpp.kernels.convolution_layer.weight_tiles import GATHERED, VECTORS_OF_DY, VECTORS_OF_X
from pmpp.kernels.convolution_layer.winograd_transforms import cook_toom
from pmpp.runtime import device
from tests.kernels.convolution_layer.gradients import LAYERS, differences, drawn, layers, losses
from tests.kernels.convolution_layer.wrong_weight_gradients import RIGHT, RIGHT_STRIPS
from tests.kernels.convolution_layer.wrong_weight_gradients import RUNGS as WRONG
from tests.support import judge
from tests.support.compiled import compile_ptx
from tests.support.wrong import misaligned, name_of, observe, total

F32 = np.float32
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
INPUTS = room.inputs()


def options_of(a):
    return (a.r, a.s), a.stride, a.padding, a.dilation, a.groups


# ------------------------------------------------------------------------------------------------------- the reference


@pytest.mark.parametrize("name", LAYERS)
def test_the_reference_is_the_gradient_of_the_forward_reference(name):
    a, dy, x, w, loss = losses(name)
    exact = differences(lambda w: loss(x, w), w)
    np.testing.assert_allclose(room.reference(dy, x, *options_of(a)), exact, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", LAYERS)
def test_the_reference_agrees_with_pytorch(name):
    torch = pytest.importorskip("torch")
    a, dy, x, w, _ = losses(name)
    w = torch.tensor(w, requires_grad=True)
    out = torch.nn.functional.conv2d(torch.tensor(x), w, None, a.stride, a.padding, a.dilation, a.groups)
    out.backward(torch.tensor(dy))
    np.testing.assert_allclose(room.reference(dy, x, *options_of(a)), w.grad.numpy(), rtol=1e-11, atol=1e-11)


# -------------------------------------------------------------------------------------------------------------- results


def is_right(result, dy, x, a):
    exact, size = weight_sums(dy, x, a), weight_sums(abs(dy), abs(x), a)
    return judge.right(device.to_host(result), exact, room.allowed(dy, x, size, a))


@hypothesis.given(a=layers(), rung=hypothesis.strategies.sampled_from(room.LADDER))
@hypothesis.settings(max_examples=8)
def test_any_layer(a, rung):
    dy, x, _ = drawn(a)
    assert is_right(rung(dy, x, *options_of(a)), dy, x, a)


@pytest.fixture
def tiles(monkeypatch):
    """Have `by_shape` take the product's tiles for every layer, of one width if one is given, and short parts."""
    of_shape = room.plan_of

    def take(*sides):
        monkeypatch.setattr(room, "is_thin", lambda a: False)
        monkeypatch.setattr(room, "plan_of", lambda a, all_sides: of_shape(a, sides or all_sides))
        monkeypatch.setattr(room, "LEAST_STEPS", 2)
        room._plan_of.cache_clear()

    yield take
    room._plan_of.cache_clear()


@pytest.fixture
def transforms(tiles, monkeypatch):
    """Have `tiled` transform every layer that it can, in passes over one image at a time."""
    tiles()
    monkeypatch.setattr(room, "pays", lambda a: True)
    monkeypatch.setattr(room.winograd, "AT_ONCE", 1)
    room.tiling_of.cache_clear()
    yield
    room.tiling_of.cache_clear()


TILED = (
    Layer(2, 5, 4, 8, 6, 3, 3, padding=(1, 1)),  # whole tiles, both read in vectors
    Layer(1, 3, 7, 9, 17, 3, 3, padding=(1, 1)),  # tiles that reach beyond the edges
    Layer(2, 4, 8, 7, 4, 3, 3, padding=(0, 2), groups=2),
    Layer(1, 1, 3, 3, 1, 3, 3),  # a single output
    Layer(1, 2, 2, 3, 2, 3, 3, padding=(5, 6)),  # padding of a tile
    Layer(3, 17, 5, 6, 2, 3, 3, padding=(1, 1)),
)


@pytest.mark.parametrize("a", TILED, ids=str)
def test_winograds_algorithm_is_right(a, transforms):
    dy, x, _ = drawn(a)
    once, again = (device.to_host(room.tiled(dy, x, *options_of(a))) for _ in range(2))
    assert is_right(once, dy, x, a)
    np.testing.assert_array_equal(once, again)
    assert is_right(room.tiled(misaligned(dy, 1), misaligned(x, 3), *options_of(a)), dy, x, a)


def test_the_bound_of_winograds_algorithm_is_of_its_size():
    """Against the transforms of the sizes, tile by tile, as products of matrices."""
    a = Layer(2, 2, 6, 6, 3, 3, 3, padding=(1, 1))
    dy, x, _ = drawn(a)
    a_t, g, b_t = (abs(matrix).astype(float) for matrix in cook_toom(4))
    wide_x = np.pad(abs(x).astype(float), ((0, 0), (0, 0), (1, 3), (1, 3)))
    wide_dy = np.pad(abs(dy).astype(float), ((0, 0), (0, 0), (0, 2), (0, 2)))
    size = np.zeros((3, 2, 3, 3))
    for n, k, c, row, column in np.ndindex(2, 3, 2, 2, 2):
        tile_dy = a_t.T @ wide_dy[n, k, 4 * row :, 4 * column :][:4, :4] @ a_t
        tile_x = b_t @ wide_x[n, c, 4 * row :, 4 * column :][:6, :6] @ b_t.T
        size[k, c] += g.T @ (tile_dy * tile_x) @ g
    roundings = 3 * 2 * 4 + 8 + 2  # of three transforms in two dimensions, and of a sum over eight tiles
    expected = roundings * 2.0**-24 * size + 2.0**-149
    np.testing.assert_allclose(winograd_adjoints.bound(dy, x, a), expected, rtol=1e-12)


def test_winograds_algorithm_is_taken_where_it_pays():
    assert room.pays(Layer(32, 128, 28, 28, 128, 3, 3, padding=(1, 1)))
    assert not room.pays(Layer(1, 8, 4, 4, 8, 3, 3, padding=(1, 1)))
    for a in (Layer(2, 8, 8, 8, 8, 3, 3, (2, 2), (1, 1)), Layer(2, 8, 8, 8, 8, 5, 5), Layer(0, 8, 8, 8, 8, 3, 3)):
        assert not room.is_tiled(a)


ODD = Layer(1, 9, 3, 5, 66, 3, 3, (1, 2), (1, 1))
EVEN = Layer(2, 3, 4, 6, 4, 3, 2, (1, 1), (1, 0))
PLAIN = Layer(2, 66, 2, 4, 5, 1, 1)


@pytest.mark.parametrize("side", [64, 128])
@pytest.mark.parametrize("a", [ODD, EVEN, PLAIN], ids=str)
def test_each_width_of_tile_is_right_for_each_way_to_load(a, side, tiles):
    tiles(side)
    dy, x, _ = drawn(a)
    assert is_right(room.by_shape(dy, x, *options_of(a)), dy, x, a)


def modes_of(monkeypatch, dy, x, a):
    seen = []
    of = room.kernel_for
    monkeypatch.setattr(room, "kernel_for", lambda side, mode: seen.append(mode) or of(side, mode))
    assert is_right(room.by_shape(dy, x, *options_of(a)), device.to_host(dy), device.to_host(x), a)
    return seen


def test_vectors_are_loaded_where_they_can_be(tiles, monkeypatch):
    tiles()
    dy, x, _ = map(device.to_device, drawn(PLAIN))
    odd_dy, odd_x = misaligned(device.to_host(dy), 1), misaligned(device.to_host(x), 3)
    assert modes_of(monkeypatch, dy, x, PLAIN) == [VECTORS_OF_DY | VECTORS_OF_X]
    assert modes_of(monkeypatch, dy, odd_x, PLAIN) == [VECTORS_OF_DY]
    assert modes_of(monkeypatch, odd_dy, x, PLAIN) == [GATHERED]
    assert modes_of(monkeypatch, *map(device.to_device, drawn(ODD)[:2]), ODD) == [GATHERED]  # 9 pixels
    assert modes_of(monkeypatch, *map(device.to_device, drawn(EVEN)[:2]), EVEN) == [VECTORS_OF_DY]


@pytest.mark.parametrize("rung", [room.reduced, room.divided, room.by_shape], ids=lambda rung: rung.name)
@pytest.mark.parametrize("many", [1, 16])
def test_sums_in_parts_are_right_and_two_runs_give_the_same_bits(rung, many, tiles, monkeypatch):
    tiles()
    monkeypatch.setattr(room, "LEAST", 16)
    monkeypatch.setattr(room, "MANY", many)  # parts from which on several threads share a sum
    a = Layer(2, 2, 7, 9, 3, 2, 2)
    dy, x, _ = drawn(a)
    out = misaligned(np.full((3, 2, 2, 2), np.nan, F32), 1)
    once = rung(dy, x, *options_of(a), out=out)
    assert once is out
    assert is_right(once, dy, x, a)
    assert device.to_host(rung(dy, x, *options_of(a))).tobytes() == device.to_host(once).tobytes()


@pytest.mark.parametrize("rung", room.LADDER, ids=lambda rung: rung.name)
def test_two_runs_give_the_same_bits(rung):
    arguments = INPUTS["1x1 s2"]
    once, again = (device.to_host(rung(*arguments)) for _ in range(2))
    assert once.tobytes() == again.tobytes()


def faults(rung):
    """All that is wrong with a gradient on the first input where anything is, worst first."""
    for name in ("3x3 p1", "3x2 s2x1 p1x0 d1x2", "two groups", "depthwise", "no images", "shift"):
        arguments = INPUTS[name]
        exact, allowed = room.reference(*arguments), room.tolerance(*arguments)
        if found := judge.faults(rung, arguments, lambda result, e=exact, a=allowed: judge.right(result, e, a)):
            return found
    return []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


@interpreter_only
def test_what_the_wrong_kernels_are_made_of_is_right():
    assert faults(RIGHT) == faults(RIGHT_STRIPS) == []


# ----------------------------------------------------------------------------------------------------- plans and counts


@pytest.fixture
def h200(monkeypatch):
    """Plans as for an H200, with its 132 multiprocessors."""
    room._plan_of.cache_clear()
    monkeypatch.setattr(device, "limits", lambda: {"multiprocessors": 132})
    yield
    room._plan_of.cache_clear()


@pytest.mark.parametrize("a", definition.resnet50(32), ids=str)
def test_a_plan_takes_every_place_once_and_fills_the_gpu(a, h200):
    plan = room.plan_of(a, (64, 128))
    steps = -(-a.n * a.p * a.q // 8)
    assert (plan.parts - 1) * plan.steps < steps <= plan.parts * plan.steps
    busiest = -(-plan.blocks // 132) * 132
    assert plan.blocks / busiest > 0.8
    assert 4 * plan.parts * a.k * a.terms < 2**28  # bytes of workspace


def test_thin_layers_are_those_without_reuse():
    assert room.is_thin(Layer(32, 144, 56, 56, 144, 3, 3, groups=144))
    assert room.is_thin(Layer(256, 1, 28, 28, 6, 5, 5))
    assert not room.is_thin(Layer(256, 6, 14, 14, 16, 5, 5))
    assert not any(map(room.is_thin, definition.resnet50(32)))


@interpreter_only
def test_a_block_of_reduced_reads_dy_once_for_nine_taps():
    a = Layer(1, 2, 6, 6, 3, 3, 3)
    dy, x, _ = drawn(a)
    result, reports = observe(room.reduced, dy, x, *options_of(a))
    assert is_right(result, dy, x, a)
    assert total(reports, "flops") >= 2 * a.k * a.c * 9 * 16
    loads = a.k * a.c * 16 * (1 + 9)  # for each filter and channel, of each place: one element of dy, nine of x
    assert total(reports, "global_load_bytes") == 4 * loads


# --------------------------------------------------------------------------------------------------------------- strips

FEW = [
    Layer(2, 3, 9, 12, 3, 3, 3, padding=(1, 1), groups=3),  # strips of five rows, the second of which has four
    Layer(3, 4, 9, 7, 8, 5, 5, (2, 2), (2, 2), groups=2),  # two channels and four filters a group
    Layer(1, 2, 8, 33, 2, 7, 7, padding=(3, 3), groups=2),
    Layer(1, 2, 17, 9, 4, 3, 2, (1, 2), (2, 0), (2, 3), groups=2),  # rows of x that meet every other output
    Layer(1, 2, 9, 9, 2, 2, 2, (5, 4), groups=2),  # rows of x that meet none
    Layer(4, 2, 9, 40, 2, 3, 3, padding=(1, 1), groups=2),  # more strips than a block has threads
]


@pytest.mark.parametrize("a", FEW, ids=str)
@pytest.mark.parametrize("enough", [0, 16])
def test_strips_are_right_in_one_part_and_in_several(a, enough, monkeypatch):
    weight_strips.plan_of.cache_clear()
    monkeypatch.setattr(weight_strips, "ENOUGH", enough)
    dy, x, _ = drawn(a)
    result, reports = observe(room.strips, dy, x, *options_of(a))
    assert is_right(result, dy, x, a)
    if not device.on_gpu():  # a GPU tells nothing of its launches
        assert reports[0].kernel == "strips_of_gradients"
        assert len(reports) == (2 if enough and a.n == 4 else 1)
    weight_strips.plan_of.cache_clear()


def test_strips_are_for_groups_of_few_channels(monkeypatch):
    ran = []
    monkeypatch.setattr(room.tiled, "launch", lambda p: ran.append(p.layer))
    for a in (
        Layer(1, 18, 4, 4, 18, 3, 3, groups=2),
        Layer(1, 2, 12, 12, 2, 9, 9, groups=2),
        Layer(1, 3, 5, 5, 3, 3, 3),
    ):
        room.strips(*drawn(a)[:2], *options_of(a))
    assert len(ran) == 3


@interpreter_only
def test_strips_multiply_nothing_but_what_is_wanted_and_read_dy_once():
    a = Layer(1, 2, 8, 32, 2, 3, 3, padding=(1, 1), groups=2)  # one strip of eight rows, a column a thread
    dy, x, _ = drawn(a)
    result, reports = observe(room.strips, dy, x, *options_of(a))
    assert is_right(result, dy, x, a)
    of_sums = 2 * 9 * (128 * 5 + 3)  # shuffles add in all threads of the block, and then its warps are added
    assert total(reports, "flops") == 2 * a.k * 8 * 32 * 9 + of_sums
    assert total(reports, "global_load_bytes") == 4 * a.k * 32 * (8 + 10 * 3)  # dy, and ten rows of x by three columns


def test_the_sums_of_strips_are_registers():
    a = Layer(2, 4, 20, 20, 4, 5, 5, (2, 2), (1, 1), groups=4)
    form, array = weight_strips.plan_of(a, 132).form, np.ones(4, F32)
    text = compile_ptx(
        weight_strips.strips_kernel(form), array, array, array, *numbers_of(a), weight_strips.plan_of(a, 132).work
    )
    assert ".local" not in text
    assert text.count("fma.rn.f32") == form.rows * a.r * a.s


# ------------------------------------------------------------------------------------------------------------- the bias


@pytest.mark.parametrize(
    "shape", [(0, 2, 3, 3), (1, 1, 1, 1), (2, 3, 5, 7), (3, 2, 4, 4), (2, 1, 50, 60), (1, 0, 2, 2)]
)
@pytest.mark.parametrize("offset", [0, 1])
def test_the_bias_gets_the_sum_of_its_filters_outputs(shape, offset):
    dy = np.random.default_rng(3).standard_normal(shape, dtype=F32)
    allowed = dy.size // max(1, shape[1]) * 2.0**-24 * abs(dy.astype(np.float64)).sum((0, 2, 3))
    given = misaligned(dy, 1) if offset else dy
    once, again = (convolution_layer.bias_gradient(given) for _ in range(2))
    assert judge.right(device.to_host(once), dy.astype(np.float64).sum((0, 2, 3)), allowed)
    assert device.to_host(once).tobytes() == device.to_host(again).tobytes()


@interpreter_only
def test_the_bias_is_summed_in_parts_if_there_are_few_filters():
    dy = np.ones((2, 1, 50, 60), F32)
    _, reports = observe(bias_gradients.bias_gradient, dy)
    assert [report.kernel for report in reports] == ["sums_kernel", "parts_kernel"]


# ------------------------------------------------------------------------------------------------------------ arguments


def test_the_plain_function_is_the_last_rung():
    assert convolution_layer.weight_gradient is room.LADDER[-1]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"kernel_size": 2}, r"dy must have shape \(1, 4, 9, 9\) for kernel_size=2"),
        ({"kernel_size": 0}, "kernel_size must be an integer of at least 1"),
        ({"kernel_size": 11}, "x must have room for a kernel"),
        ({"stride": 2}, r"dy must have shape \(1, 4, 4, 4\).*stride=2"),
        ({"groups": 3}, "groups must divide the 4 filters of dy, was 3"),
        ({"groups": 4}, "groups must divide the 2 channels of x, was 4"),
        ({"dy": np.ones((1, 0, 8, 8), F32)}, "dy must have filters"),
        ({"x": np.ones((1, 0, 8, 8), F32)}, "x must have channels"),
        ({"dy": np.ones((2, 4, 8, 8), F32)}, r"dy must have shape \(1, 4, 8, 8\)"),
        ({"x": np.ones((1, 2, 8, 8))}, "x must be float32, was float64"),
    ],
)
def test_bad_arguments_are_named(changed, said):
    right = {"dy": np.ones((1, 4, 8, 8), F32), "x": np.ones((1, 2, 8, 8), F32), "kernel_size": 3, "padding": 1}
    room.naive(**right)
    with pytest.raises((TypeError, ValueError), match=said):
        room.naive(**right | changed)
