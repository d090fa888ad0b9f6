"""Figures with knobs: right at points known by hand, and a picture in the notebook with and without sliders."""

import ast
import importlib.util
import itertools
import types
from pathlib import Path

import numpy as np
import pytest

from pmpp import cuda, simt
from pmpp.kernels import convolution
from pmpp.kernels.convolution.borders import BORDERS
from pmpp.lab.draw import knobs, plots
from pmpp.lab.measure.roofline import Ceilings
from pmpp.lab.publish import notebooks
from tests.support.texts import no_texts_meet

SM, GHZ = 132, 1.98e9  # an H200's, from its whitepaper
H200 = Ceilings(bandwidth=16 * SM * GHZ, fma_f32=256 * SM * GHZ, source="made up", empty_kernel=2e-6, launch=1e-5)
RECORD = types.SimpleNamespace(ceilings=lambda: H200, footer=lambda: "Made up")  # 16 bytes a cycle for each SM


def title(figure):
    axes = figure.axes[0]
    return figure.get_suptitle() or axes.get_title(loc="left")


def dot(ax):
    """Where the reader's numbers are marked."""
    (found,) = [line for line in ax.get_lines() if line.get_marker() == "o"]
    return found.get_xdata().item() if hasattr(found.get_xdata(), "item") else found.get_xdata()[0], found.get_ydata()[
        0
    ]


# --------------------------------------------------------------------------------------------------------- occupancy


@pytest.mark.parametrize(
    ("threads", "registers", "shared_kib", "fit", "said"),
    [
        # 2048 threads, 32 blocks, 228 KiB of which each block has 1 more, 4 x 16384 registers in units of 256 a warp
        (
            256,
            40,
            40,
            [8, 32, 5, 6],
            "5 blocks of 256 threads, 40 of 64 warps: occupancy 62.5 %, limited by shared memory",
        ),
        (
            256,
            65,
            0,
            [8, 32, 228, 3],
            "3 blocks of 256 threads, 24 of 64 warps: occupancy 37.5 %, limited by registers",
        ),
        (
            1024,
            64,
            0,
            [2, 32, 228, 1],
            "1 block of 1,024 threads, 32 of 64 warps: occupancy 50 %, limited by registers",
        ),
        (32, 16, 0, [64, 32, 228, 128], "32 blocks of 32 threads, 32 of 64 warps: occupancy 50 %, limited by blocks"),
        (256, 32, 0, [8, 32, 228, 8], "8 blocks of 256 threads, 64 of 64 warps: occupancy 100 %, limited by threads"),
        (1024, 65, 227, [2, 32, 1, 0], "A block of 1,024 threads does not fit: registers"),
    ],
)
def test_occupancy_by_hand(threads, registers, shared_kib, fit, said):
    figure = knobs.occupancy(threads, registers, shared_kib)
    bars, left, right = figure.axes
    assert [bar.get_width() for bar in bars.patches] == fit
    assert title(figure) == said
    warps = 0 if 0 in fit else min(fit) * threads // 32
    assert dot(left) == (registers, 100 * warps / 64)
    assert dot(right) == (shared_kib, 100 * warps / 64)


def test_shared_memory_that_a_gpu_does_not_have():
    figure = knobs.occupancy(256, 40, 200, "RTX 4090")
    assert title(figure) == "A block of 256 threads does not fit: shared memory"
    assert [line for line in figure.axes[2].get_lines() if line.get_marker() == "o"] == []


# ------------------------------------------------------------------------------------------------------ Little's law


@pytest.mark.parametrize(
    ("warps", "nbytes", "share", "full"),
    [
        (10, 16, 0.5, "full from 20 warps on"),
        (40, 16, 1, "full from 20"),
        (64, 4, 0.8, "never full: that takes 80 warps"),
    ],
)
def test_bytes_under_way_by_hand(warps, nbytes, share, full):
    figure = knobs.under_way(warps, nbytes, latency=640, record=RECORD)  # 16 bytes a cycle for 640 cycles: 10,240 bytes
    (ax,) = figure.axes
    said = f"{warps} warps x 32 threads x {nbytes} bytes = {32 * warps * nbytes:,} bytes under way, 10,240 needed"
    assert title(figure) == f"{said}: {share:.0%}"
    assert dot(ax) == (warps, pytest.approx(share * H200.bandwidth / 1e12))
    assert full in ax.get_xlabel()
    line = ax.get_lines()[0]
    assert np.interp(20 * 16 / nbytes if nbytes == 16 else 64, *line.get_data()) == pytest.approx(
        min(1, 64 * 32 * nbytes / 10240) * H200.bandwidth / 1e12
    )


# ---------------------------------------------------------------------------------------------------------- roofline


@pytest.mark.parametrize(
    ("flops", "nbytes", "said", "share"),
    [
        (32, 8, "32 FLOP for 8 bytes: 4 FLOP/byte, memory-bound", 0.25),
        (32, 16, "32 FLOP for 16 bytes: 2 FLOP/byte, memory-bound", 0.125),
        (128, 8, "128 FLOP for 8 bytes: 16 FLOP/byte, memory-bound", 1),  # at the ridge both take equally long
        (1024, 8, "1,024 FLOP for 8 bytes: 128 FLOP/byte, compute-bound", 1),
    ],
)
def test_the_roof_by_hand(flops, nbytes, said, share):
    figure = knobs.roof(flops, nbytes, record=RECORD)
    assert title(figure).startswith(f"{said}, at most {share * H200.fma_f32 / 1e12:.3g} TFLOP/s")
    assert dot(figure.axes[0]) == (flops / nbytes, pytest.approx(share * H200.fma_f32 / 1e12))


# ------------------------------------------------------------------------------------------------------------- tiles


@pytest.mark.parametrize("side", [4, 8, 16])
def test_tiles_agree_with_the_counters_of_the_kernel(side):
    x, mask = np.ones((32, 32), np.float32), np.ones((5, 5), np.float32)
    blocks, shared = (32 // side) ** 2, 4 * (25 + (side + 4) ** 2)
    args = x, mask, np.empty_like(x), BORDERS["edge"]
    count = simt.profile(convolution.tiled_kernel, blocks, (side, side), args, sharedmem=shared).counters
    of_x = count["global_load_bytes"] - blocks * mask.nbytes
    figure = knobs.tiles(side, 5, 96)
    assert dot(figure.axes[1]) == (side, pytest.approx(count["flops"] / of_x))
    assert f"{of_x / x.nbytes:.2f} loads an output" in title(figure)


@pytest.mark.parametrize(("side", "image", "wasted"), [(8, 20, 1 - 400 / 576), (5, 20, 0), (16, 20, 1 - 400 / 1024)])
def test_wasted_threads_are_those_that_do_not_store(side, image, wasted):
    x, mask = np.ones((image, image), np.float32), np.ones((3, 3), np.float32)
    blocks, shared = (-(-image // side)) ** 2, 4 * (9 + (side + 2) ** 2)
    args = x, mask, np.empty_like(x), BORDERS["edge"]
    count = simt.profile(convolution.tiled_kernel, blocks, (side, side), args, sharedmem=shared).counters
    assert 1 - count["global_store_bytes"] / (4 * blocks * side**2) == pytest.approx(wasted)
    figure = knobs.tiles(side, 3, image)
    assert dot(figure.axes[2]) == (side, pytest.approx(100 * wasted))
    areas = {patch.get_gid(): patch.get_width() for patch in figure.axes[0].patches}
    assert areas == {"threads": -(-image // side) * side, "image": image, "halo": side + 2, "block": side}


# --------------------------------------------------------------------------------- the chapters: sectors, banks, form


def defined(chapter, *names):
    """What a chapter's source defines by these names, without running the rest of it."""
    path = notebooks.NOTEBOOKS / "source" / f"{chapter}.py"
    space = {"cuda": cuda, "np": np, "plots": plots, "simt": simt}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        targets = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        called = (
            {node.name} if isinstance(node, ast.FunctionDef) else targets if isinstance(node, ast.Assign) else set()
        )
        if called & {*names}:
            exec(compile(ast.Module([node], []), path, "exec"), space)
    return space


@pytest.mark.parametrize(
    ("stride", "first", "sectors"),
    [(0, 0, 1), (1, 0, 4), (1, 1, 5), (2, 0, 8), (5, 0, 20), (5, 5, 21), (8, 7, 32), (9, 0, 32), (32, 0, 32)],
)
def test_sectors_of_a_stride(stride, first, sectors):
    space = defined("16_transpose", "probe", "lane", "warp", "strided")
    assert f" {sectors} sector" in title(space["strided"](stride, first))


@pytest.mark.parametrize(
    ("pitch", "wavefronts"), [(32, 32), (33, 1), (34, 2), (36, 4), (40, 8), (47, 1), (48, 16), (64, 32)]
)
def test_wavefronts_of_a_pitch(pitch, wavefronts):
    space = defined("16_transpose", "first_column", "MOST", "column")
    figure = plots.banks({"": space["column"](pitch)}, "tile", kind="load")
    assert f" {wavefronts} wavefront" in title(figure).replace("\n", " ")


def turned():
    """Each cell of a chapter that turns knobs, and its call."""
    for path in notebooks.sources():
        for cell in path.read_text(encoding="utf-8").split("\n# %%"):
            if "knobs.turn(" in cell:
                code = ast.parse(cell.partition("\n")[2])
                yield path.stem, code, code.body[-1].value


def test_each_knob_is_a_plain_variable_of_its_cell():
    found = [*turned()]
    assert len(found) >= 6
    for chapter, code, call in found:
        (names,) = code.body[0].targets  # the cell begins with them
        plain = {node.id for node in ast.walk(names) if isinstance(node, ast.Name)}
        assert ast.unparse(call.func) == "knobs.turn", chapter
        assert {knob.value.elts[0].id for knob in call.keywords} == plain, chapter


# --------------------------------------------------------------------------------------------------------------- turn

ENDS = {
    knobs.occupancy: ((32, 1024), (16, 255), (0, 227), ("H200", "T4")),
    knobs.under_way: ((1, 64), (4, 64), (300, 1500)),
    knobs.roof: ((1, 1024), (4, 64)),
    knobs.tiles: ((4, 32), (1, 31), (64, 160)),
}


@pytest.mark.parametrize(
    ("draw", "values"),
    [(draw, values) for draw, ends in ENDS.items() for values in itertools.product(*ends)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_no_two_texts_meet_and_none_is_cut_off_at_the_ends_of_each_knob(draw, values):
    no_texts_meet(draw(*values))


def drawing(calls):
    def draw(**values):
        calls.append(values)
        return knobs.roof(record=RECORD, **values)

    return draw


@pytest.mark.parametrize("without", ["a kernel", "ipywidgets", "consent"])
def test_without_sliders_it_is_drawn_once(monkeypatch, without):
    ipython = pytest.importorskip("IPython", reason="sliders need Jupyter")
    if without != "a kernel":
        monkeypatch.setattr(ipython, "get_ipython", lambda: types.SimpleNamespace(kernel=object()))
    if without == "ipywidgets":
        monkeypatch.setitem(knobs.sys.modules, "ipywidgets", None)
    if without == "consent":
        monkeypatch.setenv(knobs.SLIDERS, "0")
    calls = []
    figure = knobs.turn(drawing(calls), flops=(16, [8, 16]), nbytes=(8, range(4, 65, 4)))
    assert calls == [{"flops": 16, "nbytes": 8}]
    assert figure._repr_png_()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    ("knob", "error", "said"),
    [
        ((3, range(4, 9)), ValueError, "flops is 3; it must be from 4 to 8"),
        ((3, range(4, 9, 2)), ValueError, "flops is 3; it must be from 4 to 8 in steps of 2"),
        ((3, ["a", "b"]), ValueError, "flops is 3; it must be one of a, b"),
        (3, TypeError, r"flops must be a pair \(value, choices\), was 3"),
        ((3, 8), TypeError, r"flops must be a pair \(value, choices\), was \(3, 8\)"),
        ((1, 2, 3), TypeError, "flops must be a pair"),
    ],
)
def test_what_is_no_knob(knob, error, said):
    with pytest.raises(error, match=said):
        knobs.turn(knobs.roof, flops=knob, nbytes=(8, [8]))


TURN = """\
# %%
from pmpp.lab.draw import knobs
flops, nbytes = 16, 8
knobs.turn(knobs.roof, flops=(flops, [8, 16, 32]), nbytes=(nbytes, range(4, 65, 4)))

# %%
import sys
moved = [each for each in sys.modules["ipywidgets.widgets.widget"]._instances.values() if hasattr(each, "options")]
print([slider.description for slider in moved])
moved[0].value = 32
"""


@pytest.mark.parametrize("sliders", [True, False])
def test_in_a_notebook(tmp_path, monkeypatch, sliders):
    """With sliders the picture is drawn again in its place; as a chapter is executed, there are none."""
    if importlib.util.find_spec("ipywidgets") is None:
        pytest.skip("sliders need ipywidgets")
    for package in ("jupytext", "nbclient", "ipykernel"):
        pytest.importorskip(package, reason="chapters need the extra 'lab'")
    import nbclient

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    path = tmp_path / "00_turn.py"
    path.write_text(TURN if sliders else TURN.partition("\n\n")[0], encoding="utf-8")
    if not sliders:
        notebook, _ = notebooks.execute(path)
        (output,) = notebook.cells[0].outputs
        assert {*output.data} == {"image/png", "text/plain"}
        return
    notebook = notebooks.read_source(path)
    client = nbclient.NotebookClient(notebook, kernel_name="python3")
    before = []
    with client.setup_kernel():
        client.execute_cell(notebook.cells[0], 0)
        before += [output.data.get("image/png") for output in notebook.cells[0].outputs]
        client.execute_cell(notebook.cells[1], 1)
    view, picture = notebook.cells[0].outputs
    assert notebooks.WIDGET in view.data
    assert notebook.cells[1].outputs[0].text == "['flops', 'nbytes']\n"
    assert before[1] is not None
    assert picture.data["image/png"] != before[1]
