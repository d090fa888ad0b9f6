"""The product kernel: every tile with operands that lie either way, split or not, and the plan for a shape."""

import numpy as np
import pytest

from pmpp.kernels.linear import ladder, products
from pmpp.kernels.linear.products import GUARDED, TILES, Form, Matrix, Operand
from pmpp.runtime import device
from tests.support.judge import right
from tests.support.wrong import misaligned, observe, total

F32 = np.float32
NAMES = {name: tile for name, tile in vars(products).items() if isinstance(tile, products.Tile)}
each_tile = pytest.mark.parametrize("tile", NAMES.values(), ids=NAMES)
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")


def multiply(m, n, k, deep, tile, slices, *, sums=False, relu=False, offset=0):
    """Whether the product and the sums are right; and the reports."""
    rng = np.random.default_rng(m + n + k)
    a, b = rng.standard_normal((m, k), dtype=F32), rng.standard_normal((k, n), dtype=F32)
    bias = rng.standard_normal(n, dtype=F32)
    given = [
        Matrix(misaligned(np.ascontiguousarray(x), offset), way)
        for x, way in ((a if deep[0] else a.T, deep[0]), (b.T if deep[1] else b, deep[1]))
    ]
    c = device.to_device(np.full((m, n), np.nan, F32))
    added = device.to_device(np.full(m, np.nan, F32)) if sums else None
    plan = products.slices_of(tile, k, slices)

    def call():
        bias_given = device.to_device(bias)
        products.launch(*given, c, bias=bias_given, relu=relu, sums=added, plan=plan)
        return c

    result, reports = observe(call)
    expected = a.astype(np.float64) @ b + bias
    expected = np.maximum(expected, 0) if relu else expected
    fine = right(result, expected, ladder.tolerance(a, b.T, bias))
    if sums:
        wanted, allowed = a.astype(np.float64).sum(axis=1), ladder.growth(k + 1) * np.abs(a).sum(axis=1)
        fine = fine and right(added.copy_to_host(), wanted, allowed)
    return fine, plan, reports


def test_every_tile_has_a_name_and_is_in_the_choice():
    assert set(NAMES.values()) == set(TILES)
    assert set(GUARDED) < set(TILES)


@each_tile
@pytest.mark.parametrize("deep", [(True, True), (True, False), (False, False)], ids=["y", "dx", "dW"])
def test_every_tile_reads_operands_either_way(tile, deep):
    """An edge in each direction, and a depth that ends within a step."""
    k = tile.depth * tile.groups + 4
    fine, _, _ = multiply(tile.m // 2 + 4, tile.n + 4, k, deep, tile, 1, sums=not deep[0], relu=True)
    assert fine


@each_tile
def test_every_tile_is_split_and_put_together(tile):
    fine, plan, reports = multiply(20, 24, 2 * tile.depth * tile.groups + 8, (False, False), tile, 3, sums=True)
    assert fine
    assert plan.slices == 3
    assert [report.kernel for report in reports] == ["product_kernel", "add_kernel"] or device.on_gpu()


@pytest.mark.parametrize("tile", GUARDED, ids=lambda tile: f"{tile.m}x{tile.n}x{tile.groups}")
@pytest.mark.parametrize("deep", [(True, True), (True, False), (False, False)], ids=["y", "dx", "dW"])
def test_odd_extents_and_addresses(tile, deep):
    for slices in (2,) if deep[0] else (1,):
        fine, _, _ = multiply(
            tile.m // 2 + 1, 7, 2 * tile.groups * tile.depth - 3, deep, tile, slices, sums=not deep[0], offset=1
        )
        assert fine


@interpreter_only
@each_tile
def test_shared_memory_is_read_without_bank_conflicts(tile):
    for deep in ((True, True), (False, False)):
        fine, _, (report,) = multiply(tile.m, tile.n, tile.depth * tile.groups, deep, tile, 1)
        assert fine
        counted = report.counters
        assert counted["shared_load_bank_conflicts"] == counted["shared_store_bank_conflicts"] == 0
        elements = tile.m * tile.n
        assert counted["flops"] == elements * (2 * tile.depth * tile.groups + tile.groups)  # bias, and the groups
        assert counted["global_store_sectors"] == elements // 8
        # Each operand is read once, in whole sectors; and the bias by each row of lanes.
        assert counted["global_load_sectors"] >= (tile.m + tile.n) * tile.depth * tile.groups // 8
    assert total([report], "flops_f64") == 0


# ------------------------------------------------------------------------------------------------------------- the plan

H200 = 132
SHAPES = {  # m, n, k
    "LeNet's first": (256, 120, 400),
    "its weights": (120, 400, 256),
    "perceptron": (512, 1024, 1024),
    "16 rows": (16, 11008, 4096),
    "head": (128, 10, 512),
    "long sum": (512, 512, 32768),
    "square": (4096, 4096, 4096),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_plan_covers_all_of_k_once_and_fills_the_gpu_where_it_can(name):
    m, n, k = SHAPES[name]
    plan = products.plan_for(m, n, k, True, H200)
    part = plan.length * plan.tile.groups
    assert plan.length % plan.tile.depth == 0
    assert (plan.slices - 1) * part < k <= plan.slices * part, "no slice is empty, and nothing is left out"
    tiles = -(-m // plan.tile.m) * -(-n // plan.tile.n)
    work = m * n * k / (products.MULTIPLY_ADDS * H200)  # cycles, were it spread evenly
    if work > 10 * products.ADDITION:
        assert tiles * plan.slices >= 0.9 * H200
    assert products.cycles(plan, m, n, k, H200) < products.cycles(
        products.slices_of(products.MIDDLE, k, 1), m, n, k, H200
    )


def test_what_fills_the_gpu_is_not_split():
    assert products.plan_for(4096, 4096, 4096, True, H200).slices == 1
    assert products.plan_for(4096, 4096, 4096, True, H200).tile == products.LARGE
    assert products.plan_for(512, 512, 32768, True, H200).slices > 1
    assert products.plan_for(16, 11008, 4096, True, H200).tile.m == 16


def test_what_is_small_takes_one_launch():
    """LeNet-5's layers and gradients."""
    for m, n, k in (
        (256, 120, 400),
        (120, 400, 256),
        (256, 84, 120),
        (256, 10, 84),
        (256, 400, 120),
        (84, 120, 256),
        (10, 84, 256),
    ):
        plan = products.plan_for(m, n, k, True, H200)
        assert plan.slices == 1
        assert plan.tile.groups > 1


def test_plans_are_kept():
    products.plan_for(7, 8, 9, True, 3)
    before = products.plan_for.cache_info().hits
    products.plan_for(7, 8, 9, True, 3)
    assert products.plan_for.cache_info().hits == before + 1


def test_too_many_elements_are_refused_by_name():
    class Large:
        size, shape = 2**32, (2**16, 2**16)

    with pytest.raises(ValueError, match="weight must have fewer than 2\\^32 elements, had 4294967296"):
        products.check_sizes(x=None, weight=Large())


# --------------------------------------------------------------------------------------------------------- the compiler


@pytest.mark.parametrize("name", ["LARGE", "ROWS_16", "SMALL_IN_GROUPS"])
def test_the_kernels_compile_and_move_vectors(name, ptx):
    tile = NAMES[name]
    a, none = np.zeros((8, 8), F32), np.zeros(0, F32)
    form = Form(Operand(True, True), Operand(True, True), stores=True, whole=True, sums=False)
    code = ptx(products.kernel_for(tile, form), a, a, none, a, none, False, products.Sizes(8, 8, 8, 8, 1))
    assert code.count("fma.rn.f32") >= tile.depth * tile.rows * tile.columns  # the steps are written out
    for instruction in ("ld.global.v4.f32", "ld.shared.v4.f32", "st.global.v4.f32"):
        assert instruction in code
    assert ".local" not in code
    assert ".f64" not in code


def test_few_rows_compile_to_vectors_in_registers(ptx):
    a, none = np.zeros((8, 8), F32), np.zeros(0, F32)
    for rows in (1, 8):
        code = ptx(products.few_rows_kernel_for(rows), a, a, none, a, False)
        assert code.count("ld.global.v4.f32") >= 4 * products.OUTPUTS + rows
        assert ".local" not in code
        assert ".f64" not in code
