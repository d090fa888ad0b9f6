"""What `pmpp.nn.measure.feeding` does between its clocks, at sizes that the interpreter can do."""

import json

import numpy as np
import pytest

from pmpp import nn
from pmpp.nn import functional as F
from pmpp.nn.measure import feeding
from pmpp.nn.utils import data
from pmpp.nn.utils.data import DataLoader

pytestmark = pytest.mark.usefixtures("unchecked")

SHAPE = (1, 4, 4)


class Tiny(nn.Module):
    """One layer."""

    def __init__(self):
        self.fc = nn.Linear(16, 10)

    def forward(self, x):
        return self.fc(F.relu(x.flatten(1)))


class Forward(feeding.Training):
    """A step of a forward pass alone: few kernels, and the same loss."""

    def step(self, x, y, trace=None):
        with nn.no_grad():
            return F.cross_entropy(self.net(x), y)


DATASET = feeding.images(24, SHAPE)


@pytest.fixture(autouse=True)
def once(monkeypatch):
    """No test needs a median, nor PyTorch."""
    monkeypatch.setattr(feeding, "torch_has_gpu", lambda: False)
    monkeypatch.setattr(feeding, "REPETITIONS", 1)
    monkeypatch.setattr(feeding.median_us, "__defaults__", (0.0,))
    monkeypatch.setattr(feeding.queued_us, "__defaults__", (0.0,))


def test_copies_are_measured_in_both_directions():
    rows = feeding.copies(64)
    assert [(row["memory"], row["direction"]) for row in rows] == [
        ("pageable", "to the GPU"),
        ("pageable", "from the GPU"),
        ("pinned", "to the GPU"),
        ("pinned", "from the GPU"),
    ]
    assert all(row["us"] > 0 and feeding.told("copies", row) for row in rows)


@pytest.mark.parametrize("pieces", [1, 3, 7])
def test_a_split_copy_has_the_result_of_the_whole(pieces):
    x, out = np.linspace(0.1, 0.9, 50, dtype=np.float32), np.zeros(50, np.float32)
    feeding.chunked(x, out, 2, pieces, [data._copy_stream()] * 3)()
    expected = x.astype(np.float64)
    for _ in range(2):
        expected = 3.5 * expected * (1 - expected)
    np.testing.assert_allclose(out, expected, rtol=2**-19)


def test_pieces_are_measured():
    (row,) = feeding.chunks(64, [3], turns=2)
    assert row["pieces"] == 3
    assert set(row["alone_us"]) == {"to the GPU", "from the GPU", "kernel"}


@pytest.mark.parametrize("way", feeding.WAYS)
def test_every_way_of_loading_gives_the_batches_of_the_dataset(way):
    options = dict(feeding.WAYS[way])
    make = options.pop("make")
    loader = DataLoader(DATASET, 5, shuffle=True, drop_last=True, seed=3, **options)
    parts = feeding._parts(loader)
    batches = list(make(loader))
    assert len(batches) == len(parts) == 4
    for part, tensors in zip(parts, batches, strict=True):
        for tensor, array in zip(tensors, DATASET.arrays, strict=True):
            np.testing.assert_array_equal(tensor.numpy(), array[part])
    feeding._verified(loader, make)


def test_a_wrong_batch_is_no_measurement():
    loader = DataLoader(DATASET, 5, shuffle=True)
    with pytest.raises(AssertionError, match="not what the dataset has"):
        feeding._verified(loader, lambda loader: feeding.in_step(DataLoader(DATASET, 5, shuffle=True, seed=9)))


def test_steps_and_loading_are_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(feeding, "Training", Forward)

    def rows():
        yield "steps", feeding.steps(2, Tiny, SHAPE)
        for row in feeding.loading(DATASET, 4, Tiny, seconds=0.01):
            yield "loading", row

    assert feeding.measure(rows(), 100, tmp_path / "record.json") == 0
    found = json.loads((tmp_path / "record.json").read_text())
    assert [row["way"] for row in found["loading"]] == ["there already", *feeding.WAYS]
    (row,) = found["steps"]
    assert min(row["called"]["host_us"], row["captured"]["step_us"], row["gpu_us"]) > 0


def test_what_was_measured_is_written_when_the_budget_ends(tmp_path, capsys):
    rows = iter([("copies", row) for row in feeding.copies(8)])
    assert feeding.measure(rows, 0, tmp_path / "record.json") == 1
    assert len(json.loads((tmp_path / "record.json").read_text())["copies"]) == 1
    assert "stopped" in capsys.readouterr().out


@pytest.mark.parametrize(("way", "captured"), [*((way, True) for way in feeding.WAYS), ("prefetched", False)])
def test_a_timeline_has_the_spans_of_each_step(way, captured, monkeypatch):
    if captured:
        monkeypatch.setattr(feeding, "Training", Forward)
    row = feeding.timeline(DATASET, 4, way, captured, Tiny, count=2)
    spans = row["spans"]
    assert all(span["from"] <= span["to"] for span in spans)
    kernels = [span["what"] for span in spans if span["row"] == "kernels"]
    assert kernels == (["step"] if captured else ["forward", "backward", "update"]) * 2
    assert sum(span["what"] == "load" for span in spans) == 2
    assert sum(span["row"] == "copies" for span in spans) >= 2
    assert any(span["row"] == "thread" for span in spans) == (way == "prefetched by a thread")
    assert data._Slot.__name__ == "_Slot"


def test_without_a_gpu_the_command_says_so(capsys):
    from pmpp.runtime import device

    if not device.on_gpu():
        assert feeding.main([]) == 2
        assert "a GPU is needed" in capsys.readouterr().out
