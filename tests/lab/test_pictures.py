"""The pictures say what the trace says: sectors, words, masks and counts as drawn, titles, and errors in words."""

import re

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from pmpp import simt
from pmpp.kernels import matmul, reduction, transpose
from pmpp.lab.draw import palette, pictures, plots, style
from pmpp.simt import cuda
from tests.support.texts import no_texts_meet, words

SIDE = 64


@cuda.jit
def probe(memory, first, stride, seen):
    lane = cuda.threadIdx.x
    seen[lane] = memory[first + stride * lane]


@cuda.jit
def stencil(x, out):
    j, i = cuda.grid(2)
    if 0 < i < x.shape[0] - 1 and 0 < j < x.shape[1] - 1:
        out[i, j] = x[i, j] + x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1]


@cuda.jit
def both(x):
    i = cuda.grid(1)
    for k in range(3):
        x[i + 32 * k] += 1.0


def warp(first, stride):
    memory = np.arange(2048, dtype=np.int32)
    return simt.profile(probe, 1, 32, (memory, first, stride, np.empty(32, np.int32)), trace=True)


def turned(kernel, block=(32, 32), tile=32):
    x = np.zeros((SIDE, SIDE), np.float32)
    return simt.profile(kernel, (SIDE // tile,) * 2, block, (x, np.empty_like(x)), trace=True)


def product(kernel):
    a, b = np.ones((2, SIDE, SIDE), np.float32)
    return simt.profile(kernel, (2, 2), (32, 32), (a, b, np.empty_like(a)), trace=True)


def summed(kernel):
    x = np.ones(1024, np.float32)
    return simt.profile(kernel, 1, 1024, (x, np.empty_like(x), np.zeros(1, np.float32), reduction.SUM), trace=True)


@pytest.fixture(scope="module")
def reports():
    square = np.ones((32, 32), np.float32)
    return {
        "naive": turned(transpose.naive_kernel),
        "tiled": turned(transpose.tiled_kernel),
        "padded": turned(transpose.padded_kernel),
        "quads": turned(transpose.quads_kernel, (16, 16), 64),
        "matmul naive": product(matmul.naive_kernel),
        "matmul tiled": product(matmul.tiled_kernel),
        "interleaved": summed(reduction.interleaved_kernel),
        "sequential": summed(reduction.sequential_kernel),
        "stencil": simt.profile(stencil, (1, 2), (32, 16), (square, np.zeros_like(square)), trace=True),
        "both": simt.profile(both, 1, 32, (np.zeros(96, np.float32),), trace=True),
    }


PROBES = {"coalesced": (0, 1, 4), "misaligned": (1, 1, 5), "every second": (0, 2, 8), "every 33rd": (0, 33, 32)}
FIGURES = {
    "scattered store": lambda r: plots.access(r["naive"], "out"),
    "128-bit load": lambda r: plots.access(r["quads"], "x", line="a, b, c, d ="),
    "probes": lambda r: plots.access({name: warp(*PROBES[name][:2]) for name in PROBES}, "memory"),
    "both ways": lambda r: plots.access(r["both"], "x", nth=2),
    "tiles": lambda r: plots.banks({name: r[name] for name in ("tiled", "padded")}, "tile", kind="load"),
    "three tiles": lambda r: plots.banks({str(k): r["padded"] for k in range(3)}, "tile", kind="load"),
    "vectors": lambda r: plots.banks(r["quads"], "tile", line="place, (a"),
    "one warp": lambda r: plots.divergence(r["interleaved"]),
    "eight warps": lambda r: plots.divergence(r["sequential"], warp=range(8)),
    "some steps": lambda r: plots.divergence(r["interleaved"], first=10, steps=20),
    "products": lambda r: plots.heat({n: r[f"matmul {n}"] for n in ("naive", "tiled")}, "a"),
    "a block's part": lambda r: plots.heat({n: r[f"matmul {n}"] for n in ("naive", "tiled")}, ["a", "b", "c"], block=0),
    "stencil": lambda r: plots.heat(r["stencil"], ["x", "out"]),
    "in which order": lambda r: plots.heat(r["naive"], ["x", "out"], by="order"),
    "vector": lambda r: plots.heat(r["interleaved"], "work"),
}


@pytest.fixture(scope="module", params=FIGURES)
def figure(request, reports):
    return FIGURES[request.param](reports)


def titles(figure):
    found = [ax.get_title(loc="left") for ax in figure.axes]
    return [title.replace("\n", " ") for title in found if title]


def patches(ax, mark):
    return [patch for patch in ax.patches if patch.get_gid() == mark]


def sectors_drawn(ax):
    """Boxes that are touched, by their strong edge."""
    strong = matplotlib.colors.to_rgba(palette.INK)
    return [patch for patch in ax.patches if patch.get_width() == 32 and patch.get_edgecolor() == strong]


# -------------------------------------------------------------------------------------------------------- every figure


def test_no_two_texts_meet_and_none_is_cut_off(figure):
    no_texts_meet(figure)


@pytest.mark.parametrize(
    ("places", "said"), [([0.5, 0.502], "'one' meets 'two'"), ([0.1, 0.99], "two"), ([0.1, 0.5], "")]
)
def test_texts_that_meet_or_are_cut_off_are_found(places, said):
    figure = Figure()
    for x, label in zip(places, ("one", "two"), strict=True):
        figure.text(x, 0.5, label)
    if said:
        with pytest.raises(AssertionError, match=said):
            no_texts_meet(figure)
    else:
        no_texts_meet(figure)


def test_it_can_be_read_and_says_where_it_is_from(figure):
    assert min(text.get_fontsize() for text in words(figure)) >= style.FOOTER
    assert figure.get_supxlabel().startswith("Counted by the interpreter")
    assert figure.get_figwidth() == pytest.approx(7.8)


@pytest.mark.parametrize("name", ["scattered store", "tiles", "one warp", "stencil"])
def test_it_can_be_saved(reports, name, tmp_path):
    FIGURES[name](reports).savefig(tmp_path / "figure.png", dpi=50)
    assert (tmp_path / "figure.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_no_state_of_the_session_is_left(reports):
    before = dict(matplotlib.rcParams)
    plots.access(reports["naive"], "x")
    assert dict(matplotlib.rcParams) == before


def test_a_lane_has_one_colour_of_its_own():
    assert len(set(pictures.LANES)) == 32
    # Their lightness rises from lane to lane, so that they can be told apart without colour.
    light = [0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b, _ in pictures.LANES]
    assert (np.diff(light) > 0).all()


# ------------------------------------------------------------------------------------------------------------ sectors


@pytest.mark.parametrize("name", PROBES)
def test_as_many_boxes_as_sectors(name):
    first, stride, sectors = PROBES[name]
    (ax,) = plots.access(warp(first, stride), "memory").axes
    assert len(sectors_drawn(ax)) == sectors
    assert f"{sectors} sectors a request, 32 at worst; 128 of {32 * sectors:,} bytes used" in ax.get_title(loc="left")


def test_a_lane_is_drawn_at_its_bytes_in_its_colour(reports):
    (ax,) = plots.access(warp(31, -1), "memory").axes
    used = sorted(patches(ax, "used"), key=lambda patch: patch.get_x())
    assert [patch.get_x() for patch in used] == [4 * i for i in range(32)]
    assert [patch.get_facecolor() for patch in used] == list(pictures.LANES[::-1])
    (lines,) = ax.collections
    assert [tuple(c) for c in lines.get_colors()] == list(pictures.LANES[::-1])
    ends = [path.vertices[-1][0] for path in lines.get_paths()]  # from lane 31 to lane 0
    assert ends == [4 * i + 2 for i in range(32)]


def test_broadcast_is_one_sector():
    (ax,) = plots.access(warp(7, 0), "memory").axes
    assert len(sectors_drawn(ax)) == 1
    assert "1 sector a request, 32 at worst; 4 of 32 bytes used" in ax.get_title(loc="left")
    assert {patch.get_x() for patch in patches(ax, "used")} == {28}


def test_transpose_loads_rows_and_stores_columns(reports):
    load, store = plots.access(reports["naive"], ["x", "out"]).axes
    assert re.fullmatch(r"Line \d+, load of x: 4 sectors a request, .*", load.get_title(loc="left"))
    assert re.fullmatch(r"Line \d+, store to out: 32 sectors a request, .*", store.get_title(loc="left"))
    assert (len(sectors_drawn(load)), len(sectors_drawn(store))) == (4, 32)
    assert store.get_xticklabels()[0].get_text() == "0"
    assert "warp 0 of block 0" in load.figure.get_supxlabel()


def test_wide_loads_and_pieces_in_two_sectors(reports):
    ax = plots.access(reports["quads"], "x").axes[0]
    assert len(sectors_drawn(ax)) == 16
    assert sum(patch.get_width() for patch in patches(ax, "used")) == 512
    # An allocation begins at a multiple of 32 bytes; a view of it need not: elements 1 to 32 reach into a fifth.
    whole = cuda.to_device(np.zeros(64, np.float64))
    report = simt.profile(probe, 1, 32, (whole[1:], 0, 1, np.empty(32, np.float64)), trace=True)
    (ax,) = plots.access(report, "memory").axes
    assert len(sectors_drawn(ax)) == 9


def test_one_row_for_each_kind_and_line(reports):
    figure = plots.access(reports["both"], "x")
    assert [title.split(":")[0].split(", ")[1] for title in titles(figure)] == ["load of x", "store to x"]
    last = plots.access(reports["both"], "x", kind="load", nth=2)
    assert last.axes[0].get_xticklabels()[0].get_text() == "256"


# -------------------------------------------------------------------------------------------------------------- banks


def test_a_column_of_a_tile_in_one_bank_or_in_all(reports):
    figure = plots.banks({name: reports[name] for name in ("tiled", "padded")}, "tile", kind="load")
    assert titles(figure) == ["tiled: 32 wavefronts a request", "padded: 1 wavefront a request"]
    tiled, padded = (patches(ax, "word") for ax in figure.axes[:2])
    assert {cell.get_x() + 0.5 for cell in tiled} == {0}
    assert sorted(cell.get_x() + 0.5 for cell in padded) == list(range(32))
    assert len(tiled) == len(padded) == 32
    by_row = sorted(padded, key=lambda cell: cell.get_y())
    assert [cell.get_facecolor() for cell in by_row] == list(pictures.LANES)  # lane i asks for row i
    heights = [[bar.get_height() for bar in ax.patches] for ax in figure.axes[2:]]
    assert heights == [[32] + [0] * 31, [1] * 32]


@cuda.jit
def by_five(out):
    tile = cuda.shared.array(1024, np.int32)
    lane = cuda.laneid
    if lane < 5:
        tile[32 * lane] = 1
    cuda.syncwarp()
    out[lane] = tile[0]


def test_no_more_wavefronts_than_lanes_that_ask():
    report = simt.profile(by_five, 1, 32, (np.empty(32, np.int32),), trace=True)
    (title,) = titles(plots.banks(report, "tile", kind="store"))
    assert title.endswith("5 wavefronts a request, 5 at worst")


def test_a_map_of_banks_says_which_colour_is_which_lane(reports):
    (legend,) = plots.banks(reports["padded"], "tile", kind="load").legends
    named = {
        text.get_text(): patch.get_facecolor()
        for text, patch in zip(legend.get_texts(), legend.get_patches(), strict=True)
    }
    assert {"lane 0", "lane 31"} <= named.keys()
    assert all(colour == pictures.LANES[int(name.removeprefix("lane "))] for name, colour in named.items())


def test_wide_accesses_are_drawn_as_they_are_served(reports):
    figure = plots.banks(reports["quads"], "tile", line="place, (a")
    assert titles(figure)[0].endswith("store to tile: 4 wavefronts a request, 32 at worst")
    cells = patches(figure.axes[0], "word")
    assert sorted(cell.get_x() + 0.5 for cell in cells) == list(range(32))  # 8 lanes of 4 words
    assert {cell.get_facecolor() for cell in cells} == set(pictures.LANES[:8])
    assert "Served 8 lanes at a time: drawn are lanes 0 to 7" in figure.get_supxlabel()


# --------------------------------------------------------------------------------------------------------- divergence


def test_masks_are_drawn_as_they_were(reports):
    figure = plots.divergence(reports["interleaved"])
    steps = reports["interleaved"].trace.steps(warp=0)
    shades = figure.axes[0].images[0].get_array()
    assert shades.shape == (32, len(steps))
    np.testing.assert_array_equal(shades.T == 2, [step.active for step in steps])
    assert (shades > 0).all()
    split = sum(step.diverges for step in steps)
    tests = sum(step.taken is not None for step in steps)
    mean = np.mean([step.active.sum() for step in steps])
    said = f"interleaved_kernel: {mean:.1f} of 32 lanes active on average; {split} of {tests} branches diverge"
    assert titles(figure) == [said]
    marks, crosses = figure.axes[1].get_lines()
    assert len(marks.get_xdata()) == len(steps)
    assert len(crosses.get_xdata()) == split
    assert any("while stride < BLOCK:" in label.get_text() for label in figure.axes[1].get_yticklabels())


def test_warps_that_rest_are_white(reports):
    shades = plots.divergence(reports["sequential"], warp=[0, 31]).axes[0].images[0].get_array()
    assert shades.shape[0] == 64
    idle = plots.divergence(reports["interleaved"], warp=[0, 31]).axes[0].images[0].get_array()
    # Warp 31 adds at the first levels of `interleaved`, with few lanes, and never in `sequential`.
    assert (idle[32:] == 1).any()
    assert not (shades[32:] == 1).any()
    assert (shades[32:] == 0).any()


def test_part_of_a_long_trace(reports):
    figure = plots.divergence(reports["interleaved"], first=10, steps=20)
    assert figure.axes[0].images[0].get_array().shape == (32, 20)
    assert "steps 10 to 29 of 81" in figure.get_supxlabel()


# --------------------------------------------------------------------------------------------------------------- heat


def test_how_often_a_product_reads_a_matrix(reports):
    figure = plots.heat({name: reports[f"matmul {name}"] for name in ("naive", "tiled")}, "a")
    assert titles(figure) == [f"naive, a: read {SIDE} times each", "tiled, a: read 2 times each"]
    naive, tiled = (ax.images[0].get_array() for ax in figure.axes[:2])
    assert (naive == SIDE).all()
    assert (tiled == SIDE // 32).all()
    assert figure.axes[0].images[0].norm is figure.axes[1].images[0].norm


def test_what_one_block_reads(reports):
    figure = plots.heat(reports["matmul tiled"], ["a", "b", "c"], block=0)
    a, b, c = (ax.images[0].get_array() for ax in figure.axes[:3])
    assert a.mask[32:].all()
    assert (a[:32] == 1).all()
    assert b.mask[:, 32:].all()
    assert (c[:32, :32] == 1).all()
    assert titles(figure)[0] == "a: read once each (2,048 elements)"
    assert "block 0" in figure.get_supxlabel()


def test_a_stencil_reads_its_middle_five_times(reports):
    figure = plots.heat(reports["stencil"], ["x", "out"])
    x = figure.axes[0].images[0].get_array()
    assert (x[2:-2, 2:-2] == 5).all()
    assert x.mask[0, 0]
    assert x[0, 1] == 1
    assert titles(figure) == ["x: read 1 to 5 times (1,020 elements)", "out: written once each (900 elements)"]


def test_who_and_in_which_order(reports):
    blocks = plots.heat(reports["naive"], "out", by="block").axes[0].images[0].get_array()
    assert blocks[0, -1] == 1 or blocks[-1, 0] == 1
    assert set(np.unique(blocks)) == {0, 1, 2, 3}
    x, out = (ax.images[0].get_array() for ax in plots.heat(reports["naive"], ["x", "out"], by="order").axes[:2])
    assert (x[:32, :32] == np.arange(32)[:, None]).all()  # a warp reads a row
    assert (out[:32, :32] == np.arange(32)).all()  # and writes a column


# ------------------------------------------------------------------------------------------------------ what it refuses


def test_without_a_trace():
    report = simt.profile(probe, 1, 32, (np.zeros(32, np.int32), 0, 1, np.empty(32, np.int32)))
    for draw in (lambda: plots.access(report, "memory"), lambda: plots.heat({"mine": report}, "memory"),
                 lambda: plots.divergence(report), lambda: plots.banks(report, "tile")):  # fmt: skip
        with pytest.raises(
            simt.TraceError, match=r"no trace of probe was kept: run it with simt.profile\(\.\.\., trace=True\)"
        ):
            draw()


@pytest.mark.parametrize(
    ("draw", "says"),
    [
        (lambda r: plots.access(r, "y"), "has no array named 'y'; there are x, out, tile"),
        (lambda r: plots.access(r, "tile"), "tile is in shared memory: draw it with plots.banks"),
        (lambda r: plots.banks(r, "x"), "x is in global memory: draw it with plots.access"),
        (lambda r: plots.access(r, "x", line="tile[tx"), r"has no access of x; lines with one are \d+"),
        (lambda r: plots.access(r, "x", kind="store"), "warp 0 of block 0 has no store of x; lines with one are: none"),
        (lambda r: plots.access(r, "x", nth=1), r"nth is 1; on line \d+ the warp has 1 requests"),
        (lambda r: plots.access(r, "x", block=1), "block 1 was not traced, only 0"),
        (lambda r: plots.divergence(r, first=1000), r"first is 1000; warp \[0\] of block 0 executes \d+ steps"),
        (lambda r: plots.heat(r, "tile"), "heat is kept for arguments, and tile is not one; there are x, out"),
        (lambda r: plots.heat(r, "x", by="colour"), "by is 'colour'; it must be 'reads', 'writes', 'block' or 'order'"),
    ],
)  # fmt: skip
def test_errors_say_what_there_is(reports, draw, says):
    with pytest.raises(simt.TraceError, match=says):
        draw(reports["padded"])
