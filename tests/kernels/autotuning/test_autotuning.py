"""The two subjects of chapter 37: every configuration that may win is right, and counts what it does."""

import math

import numpy as np
import pytest

from pmpp import lab, simt
from pmpp.kernels.autotuning import products, transposes
from pmpp.kernels.matmul import fitted
from pmpp.lab.measure import tune
from pmpp.runtime import device

SUBJECTS = [transposes.SUBJECT, products.SUBJECT]
each_subject = pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="sees each access")


@pytest.mark.parametrize("configuration", transposes.SPACE.allowed(), ids=str)
def test_every_transpose_is_right(configuration):
    assert tune.wrong_result(transposes.SUBJECT, configuration, [(33, 70)]) == ""


# Each value of each parameter occurs, with the smallest and the largest blocks. A search verifies all that it times.
PRODUCTS = (32, 64, 8, 2), (128, 32, 16, 1), (64, 32, 8, 4), (128, 128, 16, 1)


@pytest.mark.parametrize("configuration", [products.Configuration(*c) for c in PRODUCTS], ids=str)
def test_products_are_right(configuration):
    assert products.SPACE.refusal(configuration) is None
    assert tune.wrong_result(products.SUBJECT, configuration, [(35, 9, 66)]) == ""


def test_transposes_of_every_shape():
    rng = np.random.default_rng(37)
    for shape in ((1, 1), (1, 90), (90, 1), (8, 8), (31, 33), (65, 40)):
        x = rng.standard_normal(shape, dtype=np.float32)
        out = transposes.run(transposes.Configuration(16, 4, 1), device.to_device(x), transposes.output(shape))
        np.testing.assert_array_equal(device.to_host(out), x.T)


def test_verifying_a_transpose_finds_each_wrong_element():
    x = np.random.default_rng(1).standard_normal((5, 7), dtype=np.float32)
    assert transposes.verify(x.T.copy(), x) == (0.0, 0.0)
    assert transposes.verify(x, x)[0] == math.inf
    for value in (np.float32(9), np.nan):
        wrong = x.T.copy()
        wrong[6, 4] = value
        error, tolerance = transposes.verify(wrong, x)
        assert not error <= tolerance


@each_subject
def test_a_configuration_that_may_run_fits_on_an_h200(subject):
    for configuration in subject.space.allowed():
        work = tune.Work(1, *_block(subject, configuration), subject.registers(configuration), {})
        fit = simt.occupancy(work.threads, work.shared_bytes, work.registers, "H200")
        assert fit.blocks >= 1, configuration


def _block(subject, c):
    if subject is transposes.SUBJECT:
        return c.side * c.rows, 4 * c.side * (c.side + c.pad)
    return products.threads(c), 8 * products.DEPTH * c.groups * (c.m + 4 + c.n)


@interpreter_only
@pytest.mark.parametrize("configuration", [(32, 8, 0), (16, 2, 1), (8, 4, 1)])
def test_a_transpose_of_whole_tiles_is_counted_by_one(configuration):
    configuration, shape = transposes.Configuration(*configuration), (64, 96)
    told = tune.count(transposes.SUBJECT, configuration, shape)
    reports = lab.count(transposes.run, configuration, *transposes.make(shape, 3), transposes.output(shape)).reports
    assert (told.blocks, told.threads) == (math.prod(reports[0].grid), math.prod(reports[0].block))
    assert (told.threads, told.shared_bytes) == _block(transposes.SUBJECT, configuration)
    counters = reports[0].counters
    # By hand: each element is loaded once and stored once, in whole sectors of 8.
    assert told.counters["global_load_sectors"] == 64 * 96 / 8 == counters["global_load_sectors"]
    assert told.counters["global_store_sectors"] == 64 * 96 / 8 == counters["global_store_sectors"]
    assert told.counters["shared_load_wavefronts"] == counters["shared_load_wavefronts"]
    assert told.counters["barriers"] == told.blocks == counters["barriers"]


@interpreter_only
@pytest.mark.parametrize("k", [16, 32, 80])
def test_a_product_is_counted_by_one_step_and_two(k):
    configuration, shape = products.Configuration(32, 64, 8, 2), (64, k, 64)
    told = tune.count(products.SUBJECT, configuration, shape)
    counted = lab.count(products.run, configuration, *products.make(shape, 3), products.output(shape))
    assert told.shared_bytes == counted.reports[0].shared_bytes == _block(products.SUBJECT, configuration)[1]
    for name in ("flops", "global_load_sectors", "global_store_sectors", "shared_load_wavefronts", "barriers"):
        assert told.counters[name] == counted.counters[name], name
    # A multiply-add counts as two, and the two groups' sums are added once.
    assert told.counters["flops"] == 2 * 64 * k * 64 + 64 * 64


@pytest.mark.parametrize("configuration", products.SPACE.allowed(), ids=str)
def test_a_warp_of_lanes_fits_into_the_tile(configuration):
    tile = products.tile_of(configuration)
    lanes_n = 32 // tile.lanes_m
    assert tile.m % (tile.lanes_m * tile.thread_m) == 0
    assert tile.n % (lanes_n * tile.thread_n) == 0
    assert tile.threads == products.threads(configuration)
    assert tile.threads // tile.groups * tile.thread_m * tile.thread_n == tile.m * tile.n


def test_tiles_chosen_by_hand_are_in_the_space():
    made = {products.tile_of(c) for c in products.SPACE.allowed()}
    assert fitted.LARGE in made
    assert {fitted.MIDDLE, fitted.NARROW, fitted.LOW} <= made


@interpreter_only
def test_fewer_threads_than_columns_are_wrong_and_only_an_odd_shape_shows_it():
    small = products.Configuration(m=32, n=64, thread_n=8, groups=1)
    assert products.SPACE.refusal(small).by == "whole_lines"
    assert "nothing has written" in tune.wrong_result(products.SUBJECT, small, [(35, 21, 70)])
    assert tune.wrong_result(products.SUBJECT, small, [(36, 8, 68)]) == ""


@each_subject
def test_classes_tell_apart_what_changes_the_winner(subject):
    names = [subject.shape_class(shape) for shape in subject.measured]
    assert len(set(names)) == len(names)
    longer = [tuple(16 * extent for extent in shape) for shape in subject.measured]
    assert not set(names) & {subject.shape_class(shape) for shape in longer[:1]}


def test_products_whose_rows_are_no_whole_vectors_are_a_class_of_their_own():
    assert products.shape_class((4096, 4096, 4096)) == products.shape_class((5000, 4100, 3000))
    assert products.shape_class((4096, 4096, 4096)) != products.shape_class((4096, 4096, 4095))
    assert products.shape_class((4096, 4096, 4096)) != products.shape_class((4096, 4095, 4096))


def test_the_kernels_compile_without_local_memory_or_float64(ptx):
    square = np.zeros((8, 8), np.float32)
    for configuration in ((32, 8, 1), (64, 4, 1), (16, 2, 0)):
        text = ptx(transposes.transpose_kernel(*configuration), square, square)
        assert ".entry" in text
        assert "ld.local" not in text
        assert ".f64" not in text
