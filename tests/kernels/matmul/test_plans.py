"""Plans by what was tuned: which plan a product gets, with a record and without, and that each plan is right."""

import json
import math

import numpy as np
import pytest

from pmpp.kernels import matmul
from pmpp.kernels.autotuning import fitted as subject
from pmpp.kernels.matmul import fitted, plans, tiles
from pmpp.lab.measure import tune
from pmpp.runtime import device, tuned
from tests.support import judge

F32 = np.float32
SMS = 132
CHAPTER_36 = [kind for kind in tiles.KINDS if tiles.TILE_OF[kind[:4]] in fitted.TILES]
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="pretends to be a GPU")


def seconds(shape, **faster):
    """The model's times of the kinds of chapter 36, but for those named, as ``m64n64s0=0.5``: such a factor."""
    m, k, n = shape
    found = {}
    for kind in CHAPTER_36:
        if plan := tiles.plan_of_kind(kind, m, n, k, SMS):
            factor = faster.get(f"m{kind.m}n{kind.n}s{kind.split}", 1.0)
            found[tuple(kind)] = fitted.cycles(plan, m, n, k, SMS) * 1e-9 * factor
    return found


def times(*shapes, **faster):
    return {str(shape): tuned.Times(shape, seconds(shape, **faster)) for shape in shapes}


@pytest.fixture
def tuned_here(monkeypatch):
    """``tuned_here(times)``: this machine has a GPU, on which that was measured."""

    for kept in (plans.here, plans.plan):  # without what is kept of the GPU before
        monkeypatch.setattr(plans, kept.__name__, kept.__wrapped__)
    monkeypatch.setattr(plans, "helps", lambda *_: True)

    def put(found):
        monkeypatch.setattr(tuned, "times", lambda name, dtype: found)
        monkeypatch.setattr(tuned, "why", lambda name: "measured on a made-up GPU")

    return put


# -------------------------------------------------------------------------------------------------------------- a plan


def test_a_kind_has_the_models_best_split_and_nothing_that_cannot_be_launched():
    for m, n, k in ((704, 704, 704), (40, 9000, 100), (8, 8, 100000), (1, 1, 1)):
        of_kinds = [plan for kind in CHAPTER_36 if (plan := tiles.plan_of_kind(kind, m, n, k, SMS))]
        best = min(of_kinds, key=lambda plan: (fitted.cycles(plan, m, n, k, SMS), plan))
        assert best == fitted.plan_for(m, n, k, SMS)
    assert tiles.plan_of_kind(tiles.Kind(128, 8, 4, 2, 1), 64, 64, 32, SMS) is None  # K has one step
    assert tiles.plan_of_kind(tiles.Kind(32, 32, 4, 4, 0), 2**21, 2**21, 1, SMS) is None  # 2^32 blocks
    assert tiles.plan_of_kind(tiles.Kind(128, 128, 16, 1, 0), 2**21, 2**21, 1, SMS).parts == 1


def test_without_times_a_plan_is_the_models_guess(tuned_here):
    tuned_here(None)
    for shape in ((704, 705, 706), (3, 5, 7), (16, 11008, 4096), (5, 6, 0)):
        assert plans.plan(*shape, True) == fitted.plan_for(*shape, device.limits()["multiprocessors"])
    assert plans.here()[1] == "measured on a made-up GPU"


def test_times_that_are_the_models_change_nothing():
    shapes = plans.measured(times((512, 512, 512), (2048, 256, 1024)), True, SMS)
    for m, n, k in ((704, 704, 704), (600, 400, 300), (2000, 900, 300)):
        assert plans.plan_from(m, n, k, shapes, SMS) == fitted.plan_for(m, n, k, SMS)


def test_a_kind_that_was_faster_near_by_is_chosen_there_and_not_far_away():
    shapes = plans.measured(times((512, 512, 512), m64n128s0=0.1), True, SMS)
    near, far = plans.plan_from(704, 704, 704, shapes, SMS), plans.plan_from(16384, 16384, 16384, shapes, SMS)
    assert (str(near.tile), near.parts) == ("64 x 128", 1)
    assert far == fitted.plan_for(16384, 16384, 16384, SMS)


def test_the_nearest_weighs_most():
    slow = plans.Measured(plans.place_of(1024, 1024, 1024), {tiles.Kind(64, 64, 8, 2, 0): 1.0})
    fast = plans.Measured(plans.place_of(256, 256, 256), {tiles.Kind(64, 64, 8, 2, 0): 0.0})
    for n, low, high in ((1024, 0.9, 1.0), (512, 0.49, 0.51), (256, 0.0, 0.1)):
        assert low <= plans.corrections_near(n, n, n, [slow, fast])[tiles.Kind(64, 64, 8, 2, 0)] <= high


def test_whole_vectors_and_single_elements_have_times_of_their_own(tuned_here):
    tuned_here({**times((512, 512, 512), m32n64s0=0.2), **times((513, 513, 513), m128n32s0=0.2)})
    assert str(plans.plan(600, 600, 600, True).tile) == "32 x 64"
    assert str(plans.plan(600, 600, 600, False).tile) == "128 x 32"


@pytest.mark.parametrize("kind", [(48, 48, 8, 2, 0), (64, 64, 8, 2, 2), (64, 64, 0), (64, 64, 8, 2, 0, 1)], ids=str)
def test_a_record_of_a_plan_that_does_not_exist_is_refused(tuned_here, kind):
    tuned_here({"some": tuned.Times((512, 512, 512), {(64, 64, 8, 2, 0): 1e-6, kind: 1e-9})})
    found, why = plans.here()
    assert found == {True: (), False: ()}
    assert why.startswith("tuned_fitted.json is not used: ")
    assert plans.plan(704, 704, 704, True) == fitted.plan_for(704, 704, 704, device.limits()["multiprocessors"])


def test_a_record_of_a_plan_that_its_shape_has_not_is_refused():
    with pytest.raises(
        ValueError, match=r"has a time of Kind\(m=64, n=64, thread_n=8, groups=2, split=1\), of which there is no plan"
    ):
        plans.measured({"short": tuned.Times((512, 8, 512), {(64, 64, 8, 2, 1): 1e-6})}, True, SMS)


# ----------------------------------------------------------------------------------------------------- what comes of it


def one_time(tuned_here, kind):
    """A small shape for which a record has one time, of that kind: odd extents for a split, and else whole vectors."""
    extra = 1 if kind.split else 4
    shape = kind.m // 8 * 4 + extra, 36 + extra, kind.n // 8 * 4 + extra
    tuned_here({"one": tuned.Times(shape, {tuple(kind): 1e-6})})
    return shape


def test_the_record_decides_the_kind(tuned_here):
    for kind in tiles.KINDS:
        m, k, n = one_time(tuned_here, kind)
        assert tiles.kind_of(plans.plan(m, n, k, not kind.split)) == kind


MADE = [kind for kind in tiles.KINDS if kind not in CHAPTER_36]


@pytest.mark.parametrize("kind", [*MADE, *CHAPTER_36[::5]], ids=str)
def test_whichever_plan_the_record_names_the_product_is_right(tuned_here, kind):
    """`test_fitted` has all tiles of chapter 36, at their edges."""
    m, k, n = one_time(tuned_here, kind)
    rng = np.random.default_rng(k)
    a, b = rng.standard_normal((m, k), dtype=F32), rng.standard_normal((k, n), dtype=F32)
    result = device.to_host(matmul.matmul(a, b))
    assert judge.right(result, a.astype(np.float64) @ b.astype(np.float64), fitted.tolerance(a, b))


def test_the_layout_says_whether_rows_are_whole_vectors(monkeypatch):
    asked = []
    monkeypatch.setattr(plans, "plan", lambda *given: asked.append(given) or fitted.plan_of(fitted.SMALL, given[2], 1))
    a, b = np.ones((6, 8), F32), np.ones((8, 12), F32)
    for x, y in ((a, b), (np.asfortranarray(a), b), (a, np.asfortranarray(b))):
        matmul.matmul(device.to_device(x), device.to_device(y))
    assert asked == [(6, 12, 8, True), (6, 12, 8, False), (6, 12, 8, True)]


def test_a_plan_is_worked_out_once():
    assert plans.plan(33, 34, 35, False) is plans.plan(33, 34, 35, False)


# ------------------------------------------------------------------------------------------------------- what is tuned


def test_each_drawn_shape_is_a_class_of_its_own():
    shapes = subject.drawn()
    assert len({tune.key_of(subject.SUBJECT, shape) for shape in shapes}) == len(shapes) >= 2 * subject.SHAPES
    whole = [all(extent % 4 == 0 for extent in shape) for shape in shapes]
    assert sum(whole) * 2 == len(shapes)
    assert all(
        extent % 2 for shape, of_vectors in zip(shapes, whole, strict=True) if not of_vectors for extent in shape
    )
    assert shapes[:2] == ((1288, 992, 24), (1289, 993, 25))  # NumPy's uniform numbers do not change


def test_what_is_tuned_is_what_the_plain_product_reads():
    assert tune.path_of(subject.SUBJECT, "NVIDIA H200").name == plans.RECORD
    for gpu in ("nvidia-h200", "nvidia-h100-80gb-hbm3"):
        path = tuned.RECORDED / gpu / plans.RECORD
        if path.exists():
            name = json.loads(path.read_text(encoding="utf-8"))["about"]["gpu"]["name"]
            found, why = tuned.read(plans.RECORD, name, tuned.RECORDED)
            assert found or "changed since" in why  # which `make stale` reports
            assert not found or all(plans.measured(found["float32"], whole, SMS) for whole in (True, False))


def test_the_space_has_each_kind_and_the_guess_is_the_plain_products():
    assert tuple(sorted(subject.SUBJECT.space.allowed())) == tuple(sorted(tiles.KINDS))
    for shape in subject.drawn()[:10]:
        found = tune.explore(subject.SUBJECT, shape, gpu="H200", wrong=lambda *_: "")
        m, k, n = shape
        best = tiles.plan_of_kind(found.guess.configuration, m, n, k, SMS)
        assert math.isclose(found.guess.estimate.seconds * 1.98e9, fitted.cycles(best, m, n, k, SMS))
        assert fitted.cycles(best, m, n, k, SMS) <= fitted.cycles(fitted.plan_for(m, n, k, SMS), m, n, k, SMS)
    short = tune.predictions(subject.SUBJECT, (512, 8, 512), gpu="H200")
    assert short[tiles.Kind(64, 64, 8, 2, 1)] == "predicted: K has too few steps for a split"


@pytest.mark.parametrize("kind", [(64, 128, 8, 1, 0), (8, 128, 4, 2, 1)], ids=str)
def test_what_is_timed_is_right_and_of_that_kind(kind):
    assert tune.wrong_result(subject.SUBJECT, tiles.Kind(*kind), [(35, 70, 37)]) == ""


def test_a_shape_is_judged_by_the_other_shapes_times():
    """Two shapes have a kind that takes a tenth of the model's time; of the third, it takes ten times as long."""
    liked, hated = times((512, 512, 512), (600, 512, 512), m64n128s0=0.1), times((550, 512, 512), m64n128s0=10.0)
    liked = {**liked, **times((513, 513, 513))}  # odd extents have nobody to ask, and keep the guess
    found = {one.shape: one for one in plans.held_out({**liked, **hated}, SMS)}
    assert {shape: one.whole for shape, one in found.items()} == {
        (512, 512, 512): True, (600, 512, 512): True, (550, 512, 512): True, (513, 513, 513): False
    }  # fmt: skip
    odd, misled = found[513, 513, 513], found[550, 512, 512]
    assert odd.guess == odd.chosen == odd.best
    assert misled.chosen == seconds((550, 512, 512), m64n128s0=10.0)[64, 128, 8, 1, 0] > misled.guess == misled.best
    assert plans.ratio([misled, odd], "chosen", "guess") == pytest.approx(math.sqrt(misled.chosen / misled.guess))


def test_a_record_that_does_not_help_is_not_used(monkeypatch):
    shapes = (512, 512, 512), (600, 512, 512), (550, 512, 512)
    assert not plans.helps(times(*shapes), SMS)  # it has what the model says
    assert not plans.helps(times(shapes[0]), SMS)  # nothing can be left out
    assert plans.helps(times(*shapes, m64n128s0=0.1), SMS)
    misleading = {**times(*shapes[:2], m64n128s0=0.1), **times((550, 512, 512), (580, 500, 500), m64n128s0=30.0)}
    assert not plans.helps(misleading, SMS)
    monkeypatch.setattr(tuned, "times", lambda name, dtype: times(*shapes))
    found, why = plans.here.__wrapped__()
    assert found == {True: (), False: ()}
    assert (
        why == "tuned_fitted.json is not used: for shapes that are left out it chooses no better than the model alone"
    )
