"""Drawn shapes: what is drawn, how it is verified, how the record grows, and what the report says. No GPU is needed."""

from __future__ import annotations

import importlib
import itertools
import json
import math
import os
import time
import types
from dataclasses import replace

import numpy as np
import pytest
import scipy.special

from pmpp.lab.draw import shapes as pictures
from pmpp.lab.measure import arrays, bench, record
from pmpp.lab.measure import turns as turn_taking
from pmpp.lab.measure.shapes import __main__ as command
from pmpp.lab.measure.shapes import drawing, report, running, together
from pmpp.lab.measure.shapes.drawing import LINES, SEEDS, Shape, digest, drawn, least_seconds
from pmpp.lab.measure.sources import MEASURED, Sources
from pmpp.runtime import device
from tests.lab.test_bench import FakeClock, FakeTimer
from tests.lab.test_record import CEILINGS

CATALOGUE = importlib.import_module(running.CATALOGUE)
ROOF = CEILINGS
ALL = drawn()

# --------------------------------------------------------------------------------------------------------- the drawing


def test_the_shapes_are_the_same_everywhere():
    """If this fails, the shapes are others than those that were drawn before kernels were changed for them."""
    assert digest(ALL) == "d907cc9302d603c4"
    assert digest(reversed(ALL)) == digest(ALL)
    assert digest(ALL[1:]) != digest(ALL)


def test_every_line_has_its_count_a_third_from_each_seed():
    for line in LINES:
        mine = [shape for shape in ALL if shape.line == line.name]
        timed = [shape for shape in mine if not shape.aside]
        assert all(shape.room == line.room for shape in mine)
        assert len({shape.name for shape in mine}) == len(mine)
        assert len(timed) == (line.count or len(line.named))
        if line.draw:
            each = [sum(shape.seed == seed for shape in timed) for seed in SEEDS]
            assert max(each) - min(each) <= 1
        else:
            assert all(shape.seed is None and not shape.aside for shape in mine)


def test_what_is_short_is_kept_aside_and_nothing_is_too_large():
    for shape in ALL:
        assert shape.seed is None or shape.aside == (least_seconds(shape) < 5e-6)
        assert 0 < shape.bytes <= drawing.MOST_BYTES
        assert 6 * shape.bytes <= 8.1e9  # two sets of inputs, and the check in float64


def test_the_products_are_those_of_the_issue():
    extents = np.array([[shape.sizes[key] for key in "mnk"] for shape in ALL if shape.line == "matmul"])
    assert extents.min() >= 1
    assert extents.max() <= 16384
    assert max(math.prod(map(int, row)) for row in extents) < 2**38


def test_log_uniform_numbers_reach_both_ends_and_halve_in_the_middle():
    dice = drawing.Dice(1)
    found = np.array([dice.log(1, 4) for _ in range(4000)])
    # Each doubling is as likely: of the interval [1, 5), 1 has log 2 / log 5 of all.
    expected = [math.log((value + 1) / value) / math.log(5) for value in (1, 2, 3, 4)]
    assert np.allclose(np.bincount(found, minlength=5)[1:] / 4000, expected, atol=0.03)


def test_the_drawing_goes_by_about_what_an_h200_can_do():
    measured = record.load("nvidia-h200").ceilings("matmul")
    assert measured.bandwidth == pytest.approx(drawing.BANDWIDTH, rel=0.05)
    assert measured.fma_f32 == pytest.approx(drawing.RATE, rel=0.05)


@pytest.mark.parametrize("parts", [1, 4, 7])
def test_parts_are_all_shapes_once_and_each_has_its_share_of_every_line(parts):
    found = [drawing.part(ALL, number, parts) for number in range(1, parts + 1)]
    assert sorted(shape.key for one in found for shape in one) == sorted(shape.key for shape in ALL)
    for line in LINES:
        for aside in (False, True):
            counts = [sum((shape.line, shape.aside) == (line.name, aside) for shape in one) for one in found]
            assert max(counts) - min(counts) <= 1
    assert max(map(len, found)) - min(map(len, found)) <= 12  # of lines that do not divide, not all give to one part


def test_shapes_that_share_kernels_are_in_one_part():
    lengths = [
        [shape.sizes["n"] for shape in drawing.part(drawn(["fft"]), k, 4) if shape.line == "FFT, powers of two"]
        for k in (1, 2, 3, 4)
    ]
    assert sorted(lengths) == sorted(lengths, key=max)  # a run each
    assert sorted(itertools.chain(*lengths)) == [2**k for k in range(4, 23)]


@pytest.mark.parametrize(("number", "parts"), [(0, 4), (5, 4), (1, 0)])
def test_a_part_that_does_not_exist_is_refused(number, parts):
    with pytest.raises(ValueError, match=f"from 1 to {parts}, was {number}"):
        drawing.part(ALL, number, parts)


def cost_by_the_room(shape):
    """The least work as the room's own ``cost`` counts it."""
    from pmpp.kernels.activation import ladder as activation
    from pmpp.kernels.fft import ladder as fft
    from pmpp.kernels.matmul import ladder as matmul
    from pmpp.kernels.matmul import products
    from pmpp.kernels.normalisation import batchnorm, layernorm
    from pmpp.kernels.pooling import ladder as pooling
    from pmpp.kernels.reduction import axis_sum
    from pmpp.kernels.scan import ladder as scan
    from pmpp.kernels.softmax import ladder as softmax

    sizes = shape.sizes
    extents = sizes.get("shape", ())
    size = math.prod(extents)
    if shape.room == "matmul":
        return matmul.cost(**sizes)
    if shape.room == "warpgroups":
        return products.cost(**sizes, itemsize=2, result=2)
    if shape.room == "fft":
        return fft.cost(sizes["lines"], sizes["n"]) if sizes["kind"] == "fft" else None
    if shape.room == "reduction":
        axes = range(len(extents)) if sizes["axes"] is None else sizes["axes"]
        return axis_sum.cost(size, math.prod(n for d, n in enumerate(extents) if d not in axes))
    if shape.room == "convolution_layer":
        return CATALOGUE.convolution_layer.layer_of(shape).cost
    if shape.room == "softmax":
        return softmax.cost(size // extents[1], extents[1])
    if shape.room == "normalisation" and sizes["kind"] == "layer":
        return layernorm.cost(*extents)
    if shape.room == "normalisation":
        n, c, *inner = extents
        return batchnorm.cost(n, c, math.prod(inner), sizes["kind"] == "batch, training")
    if shape.room == "pooling":
        options = sizes["window"], sizes["stride"], sizes["padding"]
        return pooling.cost(extents[0] * extents[1], *extents[2:], *options)
    if shape.room == "scan":
        return scan.cost(sizes["n"], np.dtype(sizes["dtype"]).itemsize)
    return activation.cost(size)


def test_the_least_work_is_what_the_rooms_say():
    for shape in ALL:
        assert (cost_by_the_room(shape) or shape.cost) == shape.cost, shape.key


def test_a_layer_is_named_as_its_room_names_it():
    for shape in ALL:
        if shape.room == "convolution_layer":
            assert str(CATALOGUE.convolution_layer.layer_of(shape)) == shape.name


# ----------------------------------------------------------------------------------------------- tiny ones, verified


def stand_in(line, room, **sizes):
    return Shape(line, room, " ".join(map(str, sizes.values())), sizes, 1000, 1000)


TINY = [
    stand_in("matmul", "matmul", m=5, n=7, k=9),
    stand_in("matrix-vector", "matmul", m=1, n=7, k=9),
    stand_in("FFT, powers of two", "fft", lines=3, n=16, kind="fft"),
    stand_in("FFT, real", "fft", lines=3, n=16, kind="rfft"),
    stand_in("FFT, real", "fft", lines=3, n=16, kind="irfft"),
    stand_in("FFT, real", "fft", lines=3, n=15, kind="irfft"),
    stand_in("FFT, other lengths", "fft", lines=3, n=100, kind="fft"),
    stand_in("reduction over axes", "reduction", op="sum", shape=[3, 4, 5], axes=[0, 2]),
    stand_in("reduction over axes", "reduction", op="mean", shape=[3, 4], axes=[0]),
    stand_in("reduction over axes", "reduction", op="max", shape=[3, 4], axes=[0]),
    stand_in("sums", "reduction", op="sum", shape=[300], axes=None),
    stand_in("convolution", "convolution_layer", n=2, c=8, h=7, k=6, r=3, stride=2, padding=1, groups=2),
    stand_in("depthwise convolution", "convolution_layer", n=2, c=8, h=7, k=8, r=3, stride=1, padding=1, groups=8),
    stand_in("softmax", "softmax", shape=[3, 4, 5], axis=1),
    stand_in("normalisation", "normalisation", kind="layer", shape=[5, 17]),
    stand_in("normalisation", "normalisation", kind="batch, training", shape=[3, 4, 5, 5]),
    stand_in("normalisation", "normalisation", kind="batch, inference", shape=[3, 4, 5, 5]),
    stand_in("pooling", "pooling", op="max", shape=[2, 3, 7, 7], window=3, stride=2, padding=1),
    stand_in("pooling", "pooling", op="average", shape=[2, 3, 7, 7], window=2, stride=1, padding=1),
    stand_in("pooling", "pooling", op="average", shape=[2, 3, 7, 7], window=7, stride=7, padding=0),
    *(stand_in("scan", "scan", n=1000, dtype=dtype) for dtype in ("float32", "int32", "int64")),
    stand_in("products of float16", "warpgroups", m=24, n=8, k=16),
    *(stand_in("activation", "activation", function=one, shape=[3, 4, 5], bias=True) for one in drawing.FUNCTIONS),
    stand_in("activation", "activation", function="relu", shape=[77], bias=False),
]
REFUSED = [(stand_in("scan", "scan", n=1000, dtype="int8"), "int8")]


@pytest.fixture
def _memory(monkeypatch):
    monkeypatch.setattr(bench, "free_bytes", lambda wanted: 2**40)  # the interpreter keeps no account


def measured(shape, **more):
    return running.measure(shape, ROOF, timer=FakeTimer(), clock=FakeClock(), **more)


def workload(shape):
    return CATALOGUE.workload(shape)


def test_tiny_shapes_have_every_line_and_room():
    lines = {shape.line for shape in TINY} | {shape.line for shape, _ in REFUSED}
    assert lines | {"matmul, square", "matrix-vector, 16384^2"} == {line.name for line in LINES}
    assert set(CATALOGUE.ROOMS) == set(drawing.rooms())
    for line in LINES:  # a stand-in has the same fields, in the same order
        one = next(line.shapes())
        kin = [shape for shape in [*TINY, *(shape for shape, _ in REFUSED)] if shape.room == line.room]
        assert list(one.sizes) in [list(shape.sizes) for shape in kin]


@pytest.mark.usefixtures("_memory")
@pytest.mark.parametrize("shape", TINY, ids=lambda shape: shape.key)
def test_a_right_result_is_timed(shape):
    row = measured(shape)
    assert row["refused"] is None
    assert not [note for note in row["notes"] if "FAILED" in note]  # on a GPU the libraries are verified, too
    assert row["ms"][row["ours"]] > 0
    error, tolerance = row["error"][row["ours"]]
    assert error <= tolerance
    assert json.loads(json.dumps(row)) == row


@pytest.mark.parametrize("shape", TINY, ids=lambda shape: shape.key)
def test_verification_rejects_one_wrong_element_and_a_wrong_shape(shape):
    one = workload(shape)
    inputs = one.make(1)
    output = () if one.output is None else (one.output(),)
    found = np.array(device.to_host(bench.rung_call(one.rungs[0], bool(output))(*inputs, *output)))
    given = [arrays.view(x) for x in inputs]
    error, tolerance = one.verify(arrays.view(found), *given)
    assert error <= tolerance
    for value in (found.flat[-1] + 1, np.nan if found.dtype.kind in "fc" else found.flat[-1] - 1):
        wrong = found.copy()
        wrong.flat[-1] = value
        error, tolerance = one.verify(arrays.view(wrong), *given)
        assert not error <= tolerance
    if found.size > 1:
        error, tolerance = one.verify(arrays.view(np.concatenate([found, found])), *given)
        assert not error <= tolerance


# NumPy under the names by which the libraries are called: it shows that axes, lengths and dtypes are handed over right.
TORCH = types.SimpleNamespace(
    matmul=np.matmul,
    fft=types.SimpleNamespace(fft=lambda x, out: np.fft.fft(x), rfft=np.fft.rfft, irfft=np.fft.irfft),
    sum=lambda x, dim=None: x.sum(axis=dim),
    mean=lambda x, dim: x.mean(axis=dim),
    amax=lambda x, dim: x.max(axis=dim),
    softmax=lambda x, axis, out: scipy.special.softmax(x, axis),
    cumsum=np.cumsum,
)
LIBRARIES = {"torch": TORCH, "cupy": np}
KNOWN = {
    "torch": [*vars(TORCH), "fft", "rfft", "irfft"],
    "cupy": ["matmul", "rfft", "irfft", "sum", "mean", "max", "cumsum"],
}


@pytest.mark.skipif(device.on_gpu(), reason="there the libraries themselves are called")
@pytest.mark.parametrize("shape", [*TINY, *(shape for shape, _ in REFUSED)], ids=lambda shape: shape.key)
def test_libraries_are_asked_for_the_same(shape):
    one = workload(shape)
    inputs = [device.to_host(x) for x in one.make(1)]
    output = [] if one.output is None else [device.to_host(one.output())]
    for name, function in one.libraries.items():
        package, _, called = name.partition(".")
        assert package in LIBRARIES
        if called in KNOWN[package]:
            error, tolerance = one.verify(function(LIBRARIES[package], *inputs, *output), *inputs)
            assert error <= tolerance, name


@pytest.mark.usefixtures("_memory")
def test_a_wrong_kernel_gets_no_time():
    one = workload(TINY[0])

    def wrong(a, b, *, out=None):
        result = one.rungs[0](a, b, out=out)
        result.copy_to_device(result.copy_to_host() * np.float32(1.001))
        return result

    wrong.__name__ = "matmul.matmul"
    row = measured(TINY[0], workload=replace(one, rungs=(wrong,), libraries={}))
    assert row["ms"] == {}
    assert any("FAILED: WrongResult" in note for note in row["notes"])
    (result,) = [one for one in report.results({("matmul", row["name"]): row}, [TINY[0]]) if one.measured]
    assert result.verdict == "MISSED"
    assert list(result.wrong) == [TINY[0].name]


@pytest.mark.skipif(device.on_gpu(), reason="NumPy reads no device memory")
@pytest.mark.usefixtures("_memory")
def test_a_rival_is_timed_beside_it_and_verified_too():
    one = replace(
        workload(TINY[0]),
        libraries={
            "numpy.matmul": lambda numpy, a, b, out: numpy.matmul(a, b),
            "numpy.wrong": lambda numpy, a, b, out: numpy.matmul(a, b) + 1,
        },
    )
    row = measured(TINY[0], workload=one)
    assert set(row["ms"]) == {"matmul.matmul", "numpy.matmul"}
    assert [note for note in row["notes"] if note.startswith("numpy.wrong") and "WrongResult" in note]
    assert report.ratio(row) == pytest.approx(1)


@pytest.mark.usefixtures("_memory")
@pytest.mark.parametrize(("shape", "words"), REFUSED, ids=lambda one: getattr(one, "key", ""))
def test_what_a_room_refuses_is_recorded_in_its_words(shape, words):
    row = measured(shape)
    assert words in row["refused"]
    assert row["ms"] == {}
    (result,) = report.results({(row["line"], row["name"]): row}, [shape])
    assert result.verdict == "MISSED"
    assert words in report.report({"about": ABOUT, "measured": {"": {"rows": [row]}}}, shapes=[shape])


def test_a_failure_is_no_refusal():
    def broken(a, b, *, out=None):
        raise RuntimeError("an illegal address")

    assert running.refusal(replace(workload(TINY[0]), rungs=(broken,))) is None


# ---------------------------------------------------------------------------------------------------------- the record

GPU, RUN = {"name": "NVIDIA Toy"}, {"date": "2026-11-23T00:00:00Z", "revision": "abc"}
ABOUT = {"gpu": GPU, "run": RUN}
SOME = [
    *(replace(TINY[0], name=f"matmul {number}") for number in range(6)),
    *(replace(TINY[-1], name=f"relu {number}") for number in range(3)),
    replace(TINY[-1], name="short", aside=True),
]
OLD = {"matmul": {"a.py": "1", "shared.py": "1"}, "activation": {"b.py": "1", "shared.py": "1"}}
NEW = OLD | {"matmul": {"a.py": "2", "shared.py": "1"}}


def row_of(shape, ms=1.0, library=2.0, **more):
    times = {"ours": ms, "torch.it": library}
    common = {"line": shape.line, "name": shape.name, "aside": shape.aside, "ours": "ours", "bound_us": 500.0}
    common |= {"flops": shape.flops, "bytes": shape.bytes, "refused": None, "notes": [], "ms": times}
    return common | {"call_us": {"ours": 10.0, "torch.it": 5.0}} | more


def book_of(path, sources=OLD, shapes=SOME, gpu=GPU):
    now = {file: value for one in sources.values() for file, value in one.items()}
    return running.Book(path, gpu, RUN, sources, now, shapes)


def run(book, budget=1e9, measure=row_of, clock=None, **more):
    return running.run(book, budget, measure, clock=clock or FakeClock(1.0), progress=lambda _: None, **more)


def places(block):
    return [row["name"] for row in block["rows"]]


def test_lines_take_turns_and_what_is_aside_comes_last():
    found = [shape.name for shape in running.order(SOME)]
    assert found[:3] == ["matmul 0", "relu 0", "matmul 1"]
    assert found[-1] == "short"
    assert sorted(found) == sorted(shape.name for shape in SOME)


def test_a_budget_ends_a_run_and_the_next_goes_on(tmp_path):
    path, seen = tmp_path / "shapes.json", []

    def measure(shape):
        seen.append(shape.name)
        return row_of(shape)

    assert run(book_of(path), budget=4.5, measure=measure) == 6  # a look at the clock takes a second
    assert len(seen) == 4
    assert sum(map(len, map(places, running.load(path)["measured"].values()))) == 4
    assert run(book_of(path), measure=measure) == 0
    assert sorted(seen) == sorted(shape.name for shape in SOME)
    kept = running.load(path)
    assert places(kept["measured"]["matmul"]) == [f"matmul {number}" for number in range(6)]  # as they are drawn
    assert kept["again"] == {}
    assert run(book_of(path), measure=measure) == 0
    assert len(seen) == len(SOME)


def test_every_shape_is_written_as_soon_as_it_is_measured(tmp_path):
    path = tmp_path / "shapes.json"

    def measure(shape):
        if shape.name == "matmul 1":
            raise KeyboardInterrupt
        return row_of(shape)

    with pytest.raises(KeyboardInterrupt):
        run(book_of(path), measure=measure)
    assert places(running.load(path)["measured"]["matmul"]) == ["matmul 0"]


def test_a_full_record_is_not_replaced_by_a_thin_one(tmp_path):
    path = tmp_path / "shapes.json"
    run(book_of(path))
    run(book_of(path, NEW), budget=2.5, measure=lambda shape: row_of(shape, ms=9.0))
    kept = running.load(path)
    assert len(kept["measured"]["matmul"]["rows"]) == 6
    assert kept["measured"]["matmul"]["sources"] == OLD["matmul"]
    assert places(kept["again"]["matmul"]) == ["matmul 0", "matmul 1"]
    assert kept["about"]["sources"] == {"a.py": "1", "b.py": "1", "shared.py": "1"}  # stale: a.py is 2 by now
    run(book_of(path, NEW), measure=lambda shape: row_of(shape, ms=9.0))
    kept = running.load(path)
    assert kept["again"] == {}
    assert {row["ms"]["ours"] for row in kept["measured"]["matmul"]["rows"]} == {9.0}
    assert {row["ms"]["ours"] for row in kept["measured"]["activation"]["rows"]} == {1.0}  # its sources are the same
    assert kept["about"]["sources"] == {"a.py": "2", "b.py": "1", "shared.py": "1"}


def test_sources_that_change_again_begin_anew_and_those_that_come_back_need_nothing(tmp_path):
    path = tmp_path / "shapes.json"
    run(book_of(path))
    run(book_of(path, NEW), budget=2.5)
    newest = NEW | {"matmul": {"a.py": "3", "shared.py": "1"}}
    run(book_of(path, newest), budget=1.5)
    assert places(running.load(path)["again"]["matmul"]) == ["matmul 0"]
    assert run(book_of(path, OLD)) == 0
    assert book_of(path, OLD).lacking("matmul") == []


def test_a_part_of_the_rooms_leaves_the_others_as_they_are(tmp_path):
    path = tmp_path / "shapes.json"
    run(book_of(path))
    matmul = [shape for shape in SOME if shape.room == "matmul"]
    assert run(book_of(path, {"matmul": NEW["matmul"]}, matmul)) == 0
    assert len(running.load(path)["measured"]["activation"]["rows"]) == 4


def test_shapes_that_are_no_longer_drawn_leave_the_record(tmp_path):
    path = tmp_path / "shapes.json"
    run(book_of(path))
    changed = [replace(SOME[0], flops=7), *SOME[2:]]
    book = book_of(path, shapes=changed)
    assert [shape.name for shape in book.lacking("matmul")] == ["matmul 0"]
    run(book)
    assert places(running.load(path)["measured"]["matmul"]) == ["matmul 0", *(f"matmul {k}" for k in (2, 3, 4, 5))]


def test_another_gpu_and_another_file_are_refused(tmp_path):
    path = tmp_path / "shapes.json"
    run(book_of(path))
    with pytest.raises(record.RecordError, match="of NVIDIA Toy, and this is Other"):
        book_of(path, gpu={"name": "Other"})
    path.write_text("[]")
    with pytest.raises(record.RecordError, match="no record of shapes"):
        book_of(path)


def test_an_error_costs_one_shape_and_a_broken_gpu_ends_the_run(tmp_path):
    path, said = tmp_path / "shapes.json", []

    def measure(shape):
        if shape.name == "matmul 2":
            raise ValueError("no such input")
        return row_of(shape)

    assert running.run(book_of(path), 1e9, measure, clock=FakeClock(1.0), progress=said.append) == 1
    assert any("matmul 2 is not recorded: ValueError: no such input" in line for line in said)
    assert len(book_of(path).lacking("matmul")) == 1
    path.unlink()
    looks = itertools.count()

    def healthy():
        if next(looks) == 2:
            raise RuntimeError("an illegal address")

    assert running.run(book_of(path), 1e9, row_of, clock=FakeClock(1.0), progress=said.append, healthy=healthy) == 8
    assert "unusable" in said[-1]
    assert sum(map(len, map(places, running.load(path)["measured"].values()))) == 2


def test_what_is_left_out_for_want_of_memory_is_tried_again(tmp_path):
    path = tmp_path / "shapes.json"
    run(book_of(path), measure=lambda shape: row_of(shape, ms=None) | {"ms": {}, "notes": ["it was left out"]})
    assert len(book_of(path).lacking("matmul")) == 6


def halves(tmp_path, sources=OLD, ms=1.0, date="2026-11-23T00:00:00Z", gpu=GPU):
    """The records of two parts of the shapes that were measured beside each other."""
    paths = []
    for number in (1, 2):
        paths.append(tmp_path / f"{date[:13]}-{number}.json")
        now = {file: value for one in sources.values() for file, value in one.items()}
        book = running.Book(paths[-1], gpu, RUN | {"date": date}, sources, now, SOME, wanted=SOME[number - 1 :: 2])
        assert run(book, measure=lambda shape: row_of(shape, ms=ms)) == 0
        assert sum(map(len, map(places, running.load(paths[-1])["measured"].values()))) == len(SOME) / 2
    return paths


def test_parts_merge_into_one_record_and_once_more_adds_nothing(tmp_path):
    out = tmp_path / "shapes.json"
    first, second = halves(tmp_path)
    assert running.merge([first], out, SOME) == [
        "matmul: 3 more shapes, 3 lacking",
        "activation: 2 more shapes, 2 lacking",
    ]
    said = running.merge([second, first], out, SOME)
    assert said == ["matmul: 3 more shapes, 0 lacking", "activation: 2 more shapes, 0 lacking"]
    kept = running.load(out)
    assert places(kept["measured"]["matmul"]) == [f"matmul {number}" for number in range(6)]
    assert kept["about"]["sources"] == {"a.py": "1", "b.py": "1", "shared.py": "1"}
    assert running.merge([first, second], out, SOME)[0] == "matmul: 0 more shapes, 0 lacking"
    assert running.load(out) == kept


def test_merged_parts_of_other_sources_stand_beside_a_full_record_until_they_are_complete(tmp_path):
    out = tmp_path / "shapes.json"
    running.merge(halves(tmp_path), out, SOME)
    first, second = halves(tmp_path, NEW, ms=9.0, date="2026-11-24T00:00:00Z")
    running.merge([first], out, SOME)
    kept = running.load(out)
    assert {row["ms"]["ours"] for row in kept["measured"]["matmul"]["rows"]} == {1.0}
    assert len(kept["again"]["matmul"]["rows"]) == 3
    running.merge([second], out, SOME)
    kept = running.load(out)
    assert kept["again"] == {}
    assert {row["ms"]["ours"] for row in kept["measured"]["matmul"]["rows"]} == {9.0}


def test_a_run_goes_on_from_the_shipped_record_and_writes_to_its_own(tmp_path):
    shipped, out = tmp_path / "shipped.json", tmp_path / "out.json"
    run(book_of(shipped), budget=3.5)
    kept = shipped.read_text()
    now = {file: value for one in OLD.values() for file, value in one.items()}
    assert run(running.Book(out, GPU, RUN, OLD, now, SOME, begin=shipped)) == 0
    assert sum(map(len, map(places, running.load(out)["measured"].values()))) == len(SOME)
    assert shipped.read_text() == kept


def test_records_of_two_gpus_do_not_merge(tmp_path):
    here, there = halves(tmp_path), halves(tmp_path, date="2026-11-25T00:00:00Z", gpu={"name": "Other"})
    with pytest.raises(record.RecordError, match="these are of NVIDIA Toy, Other"):
        running.merge([*here, *there], tmp_path / "shapes.json", SOME)
    assert not (tmp_path / "shapes.json").exists()


# ------------------------------------------------------------------------------------------------- a process a room

unix = pytest.mark.skipif(not turn_taking.possible(), reason="turns are taken by a lock of Unix")


@unix
def test_a_room_leaves_what_is_aside_to_the_end_and_says_what_a_shape_took(tmp_path):
    turns, said = turn_taking.Turns(tmp_path / "lock"), []

    def measure(shape):
        assert turns.has
        with turns.others():
            time.sleep(0.002)
        return row_of(shape)

    shapes = [SOME[-1], *SOME[6:9]]
    together.work(shapes, 1e9, measure, turns, said.append, lambda left: said.append("waited"), clock=FakeClock(1.0))
    assert [one if one in (None, "waited") else one["name"] for one in said] == [
        "relu 0", "relu 1", "relu 2", None, "waited", "short",
    ]  # fmt: skip
    assert all(one["compile_s"] >= 0.002 > one["turn_s"] for one in said[:3])
    assert "activation" in report.spent(said[:3])
    assert "aside" in report.spent(said[-1:])
    os.close(turns.file)


def stand_in_process(room, shapes, until, ceilings, seconds, lock, asides, rows):
    """What a room's process does, without a GPU; that of matmul dies after its third shape."""
    measured = []

    def measure(shape):
        if room == "matmul" and len(measured) == 3:
            rows.close()
            rows.join_thread()  # what was reported arrives
            os._exit(7)
        measured.append(shape)
        return row_of(shape)

    together.work(shapes, until, measure, turn_taking.Turns(lock), lambda row: rows.put((room, row)), asides.wait)


@unix
@pytest.mark.native("processes")
def test_a_process_that_dies_costs_its_own_room_and_its_rows_are_kept(tmp_path):
    path, said = tmp_path / "shapes.json", []
    left = together.rooms_at_once(book_of(path), 60, None, 0.1, process=stand_in_process, progress=said.append)
    assert left == 3
    assert said == ["the process of matmul ended with code 7"]
    kept = running.load(path)["measured"]
    assert {room: len(block["rows"]) for room, block in kept.items()} == {"matmul": 3, "activation": 4}
    assert all(row["revision"] == "abc" for block in kept.values() for row in block["rows"])


def test_a_room_has_a_process_for_each_of_its_lines():
    shapes = drawing.drawn(["fft"])
    parts = together._parts("fft", shapes)
    assert list(parts) == ["fft, 1 of 3", "fft, 2 of 3", "fft, 3 of 3"]
    assert sorted(one.key for some in parts.values() for one in some) == sorted(one.key for one in shapes)
    assert all({one.line for one in some} == {one.line for one in shapes} for some in parts.values())
    one, other = shapes[0], next(shape for shape in shapes if shape.line != shapes[0].line)
    assert sum(map(len, together._parts("fft", [one, other]).values())) == 2
    assert together._parts("fft", [one, one]) == {"fft": [one, one]}
    assert together._parts("fft", []) == {}


# ---------------------------------------------------------------------------------------------------------- the record


def test_a_record_is_stale_when_a_plain_function_changes():
    now = Sources()
    files = running.sources_of("matmul", now)
    assert {"pmpp/kernels/matmul/__init__.py", "pmpp/kernels/matmul/ladder.py"} <= set(files)
    assert "pmpp/kernels/fft/__init__.py" not in files
    whole = now.digests(running.MEASURED_BY, within=MEASURED)
    for room in drawing.rooms():
        assert running.sources_of(room, now).items() <= whole.items()


# ---------------------------------------------------------------------------------------------------------- the report


def made_up(line="matmul", values=(0.5, 1.0, 2.0), of=3, **more):
    shapes = [replace(TINY[0], line=line, name=f"shape {k}") for k in range(of)]
    rows = {(line, f"shape {k}"): row_of(shapes[k], ms=1.0, library=value, **more) for k, value in enumerate(values)}
    (result,) = report.results(rows, shapes)
    return result


def test_means_shares_and_the_worst_by_hand():
    found = made_up()
    assert found.mean == pytest.approx(1.0)  # the root of 0.5 x 1 x 2
    assert found.at_least_one == pytest.approx(2 / 3)
    assert found.worst(2) == [("shape 0", 0.5), ("shape 1", 1.0)]
    assert found.verdict == "MISSED"  # none under 0.6


@pytest.mark.parametrize(
    ("line", "values", "of", "verdict"),
    [
        ("matmul", (0.6, 1.5, 2.0), 3, "met"),
        ("matmul", (0.6, 0.6, 0.6), 3, "MISSED"),
        ("matmul", (0.6, 1.6), 3, "met so far"),
        ("matmul", (0.6, 0.7), 3, "behind so far"),
        ("matmul", (0.59, 9.0), 3, "MISSED"),
        ("matmul", (), 3, "not measured"),
        ("scan", (0.8, 0.8), 2, "met"),
        ("depthwise convolution", (0.1, 20.0), 2, "met"),
        ("matrix-vector, 16384^2", (0.1,), 1, "MISSED"),  # a share of the roof: 0.5 ms of 1
    ],
)
def test_verdicts(line, values, of, verdict):
    assert made_up(line, values, of).verdict == verdict


def test_a_share_of_the_roof():
    assert made_up("matrix-vector, 16384^2", (0.1,), 1, bound_us=960.0).values == {"shape 0": pytest.approx(0.96)}
    assert made_up("matrix-vector, 16384^2", (0.1,), 1, bound_us=960.0).verdict == "met"


def test_the_better_library_counts_and_a_missing_one_does_not():
    shape = SOME[0]
    assert report.ratio(row_of(shape) | {"ms": {"ours": 2.0, "torch.it": 5.0, "cupy.it": 3.0}}) == 1.5
    assert report.ratio(row_of(shape) | {"ms": {"ours": 2.0}}) is None
    assert report.ratio(row_of(shape) | {"ms": {"torch.it": 2.0}}) is None
    alone = row_of(shape) | {"ms": {"ours": 2.0}}
    (result,) = report.results({(shape.line, shape.name): alone}, [shape])
    assert list(result.unrivalled) == [shape.name]
    assert result.verdict == "undecided"


def test_every_line_has_one_target():
    assert [target.line for target in report.TARGETS] == [line.name for line in LINES]


def test_the_report_names_targets_verdicts_the_worst_and_host_times():
    rows = [row_of(shape, library=0.5 + place / 4) for place, shape in enumerate(SOME)]
    text = report.report({"about": ABOUT, "measured": {"": {"rows": rows}}}, shapes=SOME)
    assert "NVIDIA Toy, 2026-11-23, revision abc" in text
    (line,) = [line for line in text.splitlines() if line.startswith("matmul ")]
    assert "mean >= 0.95, each >= 0.6" in line
    assert "6 of 6" in line
    assert line.endswith("MISSED")
    assert "matmul, worst: matmul 0 0.50; matmul 1 0.75" in text
    assert "activation: 1 of 1, median 0.50, worst 0.50 (short)" in text
    assert "1 of 2 targets are met" in text


# --------------------------------------------------------------------------------------------------- the command line


def test_the_shapes_are_printed_without_a_gpu(capsys):
    assert command.main(["--draw", "--rooms", "reduction"]) == 0
    found = capsys.readouterr().out.splitlines()
    assert len(found) == 1 + len(drawn(["reduction"]))
    assert digest(drawn(["reduction"])) in found[-1]


@pytest.mark.parametrize("part", ["0/4", "5/4", "2", "a/b", "1/-4"])
def test_a_part_is_a_number_of_so_many(part, capsys):
    with pytest.raises(SystemExit):
        command.main(["--draw", "--part", part])
    assert "1 <= K <= N" in capsys.readouterr().err


def test_the_command_merges_without_a_gpu(capsys, tmp_path):
    out = tmp_path / "shapes.json"
    matmul = [shape for shape in ALL if shape.room == "matmul"][:2]
    for number, shape in enumerate(matmul):
        run(book_of(tmp_path / f"{number}.json", shapes=[shape]))
    files = [str(tmp_path / f"{number}.json") for number in (0, 1)]
    assert command.main(["--merge", *files, "--out", str(out)]) == 0
    assert "matmul: 2 more shapes" in capsys.readouterr().out
    assert len(running.load(out)["measured"]["matmul"]["rows"]) == 2


@pytest.mark.skipif(device.on_gpu(), reason="it would measure")
def test_without_a_gpu_nothing_is_measured(capsys, tmp_path):
    assert command.main(["--out", str(tmp_path / "shapes.json")]) == 2
    assert "NVIDIA GPU" in capsys.readouterr().err


@pytest.mark.skipif(device.on_gpu(), reason="it would measure")
@pytest.mark.usefixtures("_memory")
def test_the_whole_command_on_tiny_shapes(capsys, monkeypatch, tmp_path):
    """All of it, but for the GPU: its name, its ceilings, and its clock."""
    tiny = [shape for shape in [*TINY, *(shape for shape, _ in REFUSED)] if shape.room in ("matmul", "fft")]
    monkeypatch.setattr(command, "_obstacle", lambda: None)
    monkeypatch.setattr(drawing, "drawn", lambda only: tiny)
    monkeypatch.setattr(command.environment, "describe_gpu", lambda: {"name": "NVIDIA Toy"})
    monkeypatch.setattr(command.roofline, "measure_ceilings", lambda max_seconds: CEILINGS)
    monkeypatch.setattr(command.timing, "gpu_timer", FakeTimer)
    path = tmp_path / "shapes.json"
    assert command.main(["--rooms", "matmul", "fft", "--alone", "--seconds", "0", "--out", str(path)]) == 0
    assert not path.exists()
    assert command.main(["--rooms", "matmul", "fft", "--alone", "--out", str(path)]) == 0
    said = capsys.readouterr().out
    assert "NVIDIA Toy" in said
    assert f"0 of {len(tiny)} shapes are left" in said
    kept = running.load(path)
    assert {row["name"] for block in kept["measured"].values() for row in block["rows"]} == {one.name for one in tiny}
    now = Sources().digests(kept["about"]["measured_by"], within=MEASURED)
    assert kept["about"]["sources"] == now  # as `make stale` looks at it


def test_a_record_is_reported_without_a_gpu(capsys, tmp_path):
    path = tmp_path / "shapes.json"
    run(book_of(path))
    run(book_of(path, NEW), budget=1.5)
    assert command.main(["--report", "--out", str(path)]) == 0
    found = capsys.readouterr().out
    assert "not complete" in found
    assert command.main(["--report", "--out", str(tmp_path / "none.json")]) == 2


# ---------------------------------------------------------------------------------------------------------- the figure


def picture(count=60):
    rng = np.random.default_rng(3)
    blocks = {}
    for place, room in enumerate(drawing.rooms()):
        rows = []
        for shape in [one for one in ALL if one.room == room and not one.aside][:count]:
            bound = max(shape.bytes / 4.2e6, shape.flops / 62e6)
            ratio = float(np.exp(rng.normal(0.1 * place - 0.4, 0.5)))
            rows.append(row_of(shape, ms=1.0, library=ratio, bound_us=bound))
        blocks[room] = {"rows": rows}
    blocks["fft"]["rows"][0] |= {"refused": "no", "ms": {}}
    return {"about": ABOUT, "measured": blocks, "again": {}}


def test_a_panel_a_line_and_a_dot_a_shape_in_the_colour_of_its_room():
    made = picture()
    figure = pictures.ratios(made)
    assert len(figure.axes) == len(LINES)
    clouds = [cloud for ax in figure.axes for cloud in ax.collections]
    dots = sum(len(cloud.get_offsets()) for cloud in clouds)
    assert dots == sum(len(block["rows"]) for block in made["measured"].values()) - 1
    assert len({tuple(cloud.get_facecolor()[0]) for cloud in clouds}) == len(drawing.rooms())
    for ax, target in zip(figure.axes, report.TARGETS, strict=True):
        assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
        assert ax.get_title(loc="left").startswith(target.line)
        heights = [line.get_ydata()[0] for line in ax.lines]
        assert heights == [1] + [value for value in (target.least, target.mean) if value is not None and ax.collections]
    assert "microseconds" in figure.get_supxlabel()
    assert "without a time: 1." in figure.get_supxlabel()


def test_a_line_that_was_not_measured_is_named_as_such():
    made = picture()
    del made["measured"]["scan"]
    made["measured"]["fft"]["rows"] = [row for row in made["measured"]["fft"]["rows"] if row["line"] != "FFT, real"]
    panels = {ax.get_title(loc="left").partition("\n")[0]: ax for ax in pictures.ratios(made).axes}
    for name in ("scan", "FFT, real"):
        assert [text.get_text() for text in panels[name].texts] == ["not recorded\non NVIDIA Toy"]
        assert not panels[name].collections
    assert "not recorded" not in panels["softmax"].texts[0].get_text()


def test_the_figure_of_one_room_has_its_mean_its_least_and_how_many():
    made = picture()
    rows = made["measured"]["scan"]["rows"] = made["measured"]["scan"]["rows"][:3]
    for row, value in zip(rows, (0.5, 1.0, 2.0), strict=True):
        row["ms"] = {"ours": 1.0, "torch.it": value}
    (ax,) = pictures.ratios(made, room="scan").axes
    assert ax.get_title(loc="left") == "scan\nmean 1.00, least 0.50"
    assert [text.get_text() for text in ax.texts] == ["3 of 100"]
    assert sorted(ax.collections[0].get_offsets()[:, 1]) == [0.5, 1.0, 2.0]


def test_the_lines_that_the_words_name_are_within_the_axes():
    made = picture()
    for row in made["measured"]["warpgroups"]["rows"]:
        row["ms"] = {"ours": 1.0, "torch.it": 1.0}
    (ax,) = pictures.ratios(made, room="warpgroups").axes
    low, high = ax.get_ylim()
    assert all(low < line.get_ydata()[0] < high for line in ax.lines)


def test_a_figure_needs_a_ratio():
    with pytest.raises(ValueError, match="at least one"):
        pictures.ratios({"about": ABOUT, "measured": {}})
