"""The measurement of layers: which operations a step has, their least work, and all of it but the GPU's clock."""

import numpy as np
import pytest

from pmpp import lab, nn
from pmpp.lab.measure import timing
from pmpp.nn import functional as F
from pmpp.nn.examples.networks import Block
from pmpp.nn.measure import layers
from pmpp.runtime import device
from pmpp.runtime.rung import Cost

pytestmark = pytest.mark.usefixtures("unchecked")


class Small(nn.Module):
    """Each kind of operation that LeNet-5 and ResNet-18 have, on images of 4 x 4."""

    def __init__(self):
        self.block = Block(2, 3, 2)
        self.fc = nn.Linear(3, 10)

    def forward(self, x):
        x = F.max_pool2d(self.block(x), 2)
        return self.fc(F.avg_pool2d(x, x.shape[2:]).flatten(1))


@pytest.fixture
def case(monkeypatch):
    monkeypatch.setitem(layers.CASES, "small", (Small, (3, 2, 4, 4)))
    nn.manual_seed(0)
    return Small(), *layers.batch((3, 2, 4, 4))


def untimed(call, expected, cost, seconds):
    """What `layers.side` does, without the clock."""
    error, tolerance = layers.same(expected)(call())
    assert error <= tolerance
    return {"us": 2.0, **layers.least(cost)}


def test_the_operations_of_a_step_in_order(case):
    found, _ = layers.operations(*case)
    assert [(one.layer, one.name) for one in found] == [
        ("block.conv1", "Conv2d"),
        ("block.bn1", "BatchNorm"),
        ("block", "Activation"),
        ("block.conv2", "Conv2d"),
        ("block.bn2", "BatchNorm"),
        ("block.shortcut.0", "Conv2d"),
        ("block.shortcut.1", "BatchNorm"),
        ("block", "Add"),
        ("block", "Activation"),
        ("-", "MaxPool2d"),
        ("-", "AvgPool2d"),
        ("fc", "Linear"),
        ("-", "CrossEntropy"),
    ]


def test_nothing_is_kept_afterwards(case):
    before = nn.Function.__dict__["apply"]
    layers.operations(*case)
    assert nn.Function.__dict__["apply"] is before


def test_the_least_work_by_hand(case):
    found, _ = layers.operations(*case)
    conv1, conv2, fc = found[0], found[3], found[11]
    # (3, 2, 4, 4) by 3 filters of 2 x 3 x 3 with stride 2 to (3, 3, 2, 2)
    moved = 4 * (96 + 54 + 36)
    assert conv1.costs == (Cost(2 * 36 * 18, moved), Cost(2 * 36 * 18, moved)), "the images need no gradient"
    assert conv2.costs[1].flops == 2 * conv2.costs[0].flops
    assert fc.costs[0] == Cost(2 * 3 * 3 * 10, 4 * (9 + 30 + 10 + 30))
    assert fc.costs[1].flops == 2 * fc.costs[0].flops
    assert found[7].costs == (Cost(12 * 3, 4 * 3 * 36), Cost(0, 0))
    for one in found:
        assert one.costs[0].bytes > 0


def test_an_unknown_operation_is_named():
    x = nn.Tensor(np.ones((2, 10), np.float32), requires_grad=True)
    with layers.kept() as found:
        x.exp()
    with pytest.raises(NotImplementedError, match="least work of Exp in -"):
        _ = found[0].costs


def test_all_of_a_measurement_but_the_clock(case, unchecked):
    row = layers.measure("small", where="cpu", side=untimed)
    assert len(row["operations"]) == 13
    assert row["operations"][7]["backward"] is None
    assert row["update"]["bytes"] == 20 * sum(p.size for p in Small().parameters())
    row["step us"] = layers.whole_step("small", 1)
    said = layers.table("small", row)
    assert "all 26: 52 us" in said
    assert "memory" in said


def test_a_wrong_gradient_is_found(case, monkeypatch):
    pytest.importorskip("torch")
    assert layers.verify(*case, "cpu")["ours"] < 1e-5
    right = F.MaxPool2d.backward

    def wrong(context, dy):
        dx, *others = right(context, dy)
        return device.to_device(device.to_host(dx) * np.float32(1.001)), *others

    monkeypatch.setattr(F.MaxPool2d, "backward", staticmethod(wrong))
    with pytest.raises(timing.WrongResult, match="a gradient of Small is off by"):
        layers.verify(*case, "cpu")


def test_another_result_than_in_the_step_is_found():
    check = layers.same((np.float32([1, 2]), None))
    assert check((np.float32([1, 2]), None))[0] == 0
    error, tolerance = check((np.float32([1, 2.001]), None))
    assert error > tolerance


def test_the_interpreter_counts_layers():
    images, labels = layers.batch((2, 1, 8, 8))
    rows = lab.count(layers.counted, images, labels).result
    assert [(row["layer"], row["operation"]) for row in rows][:3] == [
        ("conv1", "Conv2d"),
        ("-", "Activation"),
        ("pool", "MaxPool2d"),
    ]
    assert [row["shape"] for row in rows] == [
        (2, 8, 8, 8), (2, 8, 8, 8), (2, 8, 4, 4), (2, 16, 4, 4), (2, 16, 4, 4), (2, 16, 2, 2), (2, 10), ()
    ]  # fmt: skip
    for row in rows:
        for direction in ("forward", "backward"):
            assert row[direction]["instructions"] > 0
            assert row[direction]["bytes"] > 0
            assert row[direction]["launches"] > 0


@pytest.mark.skipif(device.on_gpu(), reason="it would measure")
def test_without_a_gpu_it_says_so(capsys):
    assert layers.main([]) == 2
    assert "a GPU is needed" in capsys.readouterr().out
