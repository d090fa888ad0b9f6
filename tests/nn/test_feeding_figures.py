"""The figures of chapter 90: with a record and without, and where two curves cross."""

import pytest

from pmpp.kernels.feeding.streams import Program
from pmpp.nn.measure import feeding_figures as figures

TIMES = {"host_us": 400.0, "step_us": 420.0}
SPANS = [
    {"row": "host", "what": "load", "from": 0.0, "to": 5.0},
    {"row": "thread", "what": "make a batch", "from": 0.0, "to": 4.0},
    {"row": "copies", "what": "copy", "from": 5.0, "to": 9.0},
    {"row": "host", "what": "launch", "from": 5.0, "to": 6.0},
    {"row": "kernels", "what": "step", "from": 9.0, "to": 19.0},
]


def step(batch, gpu_us):
    torch = {"called": TIMES, "captured": TIMES}
    captured = {"host_us": 30.0, "step_us": gpu_us}
    return {"batch": batch, "gpu_us": gpu_us, "called": TIMES, "captured": captured, "torch": torch, "nodes": {}}


RECORD = {
    "about": {"gpu": {"name": "a GPU"}, "run": {"date": "2026-01-01T00:00"}},
    "copies": [
        {"memory": memory, "direction": direction, "bytes": n, "us": 5 + n / 4e4, "returns_us": 3.0}
        for memory in ("pageable", "pinned")
        for direction in ("to the GPU", "from the GPU")
        for n in (1024, 2**20)
    ],
    "chunks": [{"pieces": pieces, "us": 300.0 / pieces} for pieces in (1, 2)],
    "loading": [{"batch": n, "way": way, "images_s": 1e6} for n in (64, 256) for way in ("prefetched", "PyTorch's")],
    "steps": [step(1, 100.0), step(100, 200.0), step(400, 800.0), step(1600, 3200.0)],
    "timelines": [
        {"batch": 64, "way": "prefetched", "captured": captured, "spans": SPANS} for captured in (True, False)
    ],
}


PARTLY = {"about": RECORD["about"], "copies": RECORD["copies"], "timelines": []}


@pytest.mark.parametrize("kept", [RECORD, PARTLY, {}], ids=["a record", "a part of one", "no record"])
def test_every_figure_can_be_drawn(kept, capsys):
    drawn = [
        figures.fed(kept),
        figures.steps(kept),
        figures.timelines(kept, captured=True),
        figures.timelines(kept, captured=False),
    ]
    assert [figure is not None for figure in drawn] == [kept is RECORD] * 4
    assert ("The record has no rows for timelines" in capsys.readouterr().out) == (kept is not RECORD)
    for figure in (figures.bandwidths(kept, {1024: 1.0, 2048: 2.0}), figures.pieces(kept, {1: 3.0, 2: 2.0}), *drawn):
        if figure is not None:
            assert figure._repr_png_()


def test_a_schedule_is_drawn():
    program = Program()
    program.fill("pinned", 0)
    program.copy("pinned", "there", "copies")
    program.synchronize(program.record("copies"))
    assert figures.schedules(("one", program), ("again", program))._repr_png_()


def test_the_crossing_is_between_its_neighbours():
    assert figures.crossing(RECORD, "called") == pytest.approx(200)
    assert figures.crossing(RECORD, "captured") is None
    assert figures.crossing({}, "called") is None


def test_means_leave_out_the_first():
    spans = [{"what": "load", "from": 0.0, "to": length} for length in (9.0, 9.0, 1.0, 3.0)]
    assert figures.mean_us(spans, "load") == 2
    assert figures.mean_us(spans, "copy") == 0
