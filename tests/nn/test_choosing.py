"""The step that is computed from shapes: against counts by hand, and against the tape."""

import datetime
import json
import math

import numpy as np
import pytest

from pmpp.nn import functional as F
from pmpp.nn import init
from pmpp.nn.examples import choosing
from pmpp.nn.examples.digits import Net
from pmpp.nn.examples.networks import LeNet, ResNet18
from pmpp.nn.tape import Tensor
from pmpp.runtime import device

GPUS = choosing.gpus()
ANY = choosing.Gpu("any", "desktop", (9, 0), 1e12, 1e11, 1e9, 100, tf32=4e12)


def test_every_row_has_what_the_model_needs_and_a_source():
    table = json.loads(choosing.TABLE.read_text(encoding="utf-8"))
    datetime.date.fromisoformat(table["read"])
    assert 12 <= len(GPUS) == len(table["gpus"]) <= 16
    for row, gpu in zip(table["gpus"], GPUS.values(), strict=True):
        assert gpu.capability >= (7, 5), "CUDA 13 supports it"
        assert 1e12 < gpu.f32 < 2e14, gpu.name
        assert 1e11 < gpu.bandwidth < 1e13, gpu.name
        assert gpu.memory >= 8e9, gpu.name
        for source in row["sources"]:
            assert source["of"], gpu.name
            assert source["document"], gpu.name
        if "launch" in row:
            datetime.date.fromisoformat(row["launch"]["day"])
        if "hour" in row:
            assert row["hour"]["list"] in table["prices"]
    for prices in table["prices"].values():
        assert datetime.date.fromisoformat(prices["day"]) <= datetime.date.fromisoformat(table["read"])


def test_the_table_agrees_with_that_of_the_interpreter():
    from pmpp import simt

    both = [(GPUS[gpu.name], gpu) for gpu in simt.GPUS if gpu.name in GPUS]
    assert len(both) >= 8
    for mine, other in both:
        assert mine.capability == other.compute_capability
        assert mine.f32 == pytest.approx(other.fp32, rel=0.01), mine.name
        assert mine.bandwidth == pytest.approx(other.bandwidth, rel=0.01), mine.name


def test_operations_of_lenet_by_hand():
    found = choosing.operations(LeNet(), (2, 1, 28, 28))
    layers = [op.layer for op in found if op.product]
    assert layers == ["conv1", "conv2", "fc1", "fc2", "fc3"]
    per_image = 6 * 28 * 28 * 25 + 16 * 100 * 6 * 25 + 400 * 120 + 120 * 84 + 84 * 10
    assert sum(op.flops for op in found if op.product) == 2 * 2 * per_image
    conv1, conv2 = (op for op in found if op.name == "conv2d")
    assert conv1.flops_back == conv1.flops, "the images need no gradient"
    assert conv2.flops_back == 2 * conv2.flops
    assert conv1.moved == 4 * (2 * 784 + 2 * 6 * 784 + 6 * 25 + 6)
    assert conv2.moved_back == 4 * (2 * (2 * 6 * 196 + 2 * 16 * 100) + 2 * (16 * 150 + 16))


def test_resnet_goes_through_with_its_shortcuts(monkeypatch):
    monkeypatch.setattr(init, "default", lambda shape, fan_in: np.zeros(shape, np.float32))  # 11 million numbers
    found = choosing.operations(ResNet18(), (1, 3, 32, 32))
    assert sum(op.name == "conv2d" for op in found) == 20
    assert sum(op.name == "batch_norm" for op in found) == 20
    assert sum(op.name == "add" for op in found) == 8
    assert sum(op.flops for op in found if op.product) == pytest.approx(1.11e9, rel=0.01)


def kept_by_the_tape(loss):
    """Bytes of the memory that the tape keeps, each address once, parameters apart."""
    waiting, seen, found = [loss.node], set(), {}
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for array in node.context.saved if node.context is not None else ():
            found[device.address(array)] = math.prod(array.shape) * array.dtype.itemsize
        waiting += [edge[0] for edge in node.inputs if edge is not None]
    return found


@pytest.mark.parametrize(("kind", "shape"), [(Net, (4, 1, 8, 8)), (LeNet, (2, 1, 28, 28))])
def test_what_is_kept_is_what_the_tape_keeps(kind, shape):
    net = kind()
    loss = F.cross_entropy(net(Tensor(np.zeros(shape, np.float32))), Tensor(np.zeros(shape[0], np.int64)))
    kept = kept_by_the_tape(loss)
    for parameter in net.parameters():
        kept.pop(device.address(parameter.array), None)
    computed = choosing.memory(choosing.operations(net, shape), choosing.count(net))
    assert computed["activations"] == sum(kept.values())


def test_activations_grow_with_the_batch_and_parameters_do_not():
    net = LeNet()
    small, large = (choosing.memory(choosing.operations(net, (n, 1, 28, 28)), choosing.count(net)) for n in (3, 12))
    assert large["activations"] == 4 * small["activations"]
    assert large["parameters"] == small["parameters"] == 4 * 61706


def test_a_step_adds_the_longer_of_two_times():
    op = choosing.Operation("conv2d", "", 2e9, 1e8, 4e9, 1e9, kernels=3, kept=0, product=True)
    got = choosing.step([op], 0, ANY, optimiser="SGD")
    assert got.compute == pytest.approx(2e-3)
    assert got.memory == pytest.approx(1e-2)
    assert got.seconds == pytest.approx(1.2e-2)
    quick = choosing.step([op], 0, ANY, optimiser="SGD", precision="tf32")
    assert quick.compute == 0
    assert quick.memory == pytest.approx(1.1e-2)


def test_only_products_use_tensor_cores():
    op = choosing.Operation("relu", "", 2e12, 1, 0, 0, kernels=1, kept=0, product=False)
    assert choosing.step([op], 0, ANY, precision="tf32").compute == pytest.approx(2)


def test_no_kernel_is_shorter_than_the_floor():
    op = choosing.Operation("relu", "", 1, 1, 1, 1, kernels=2, kept=0, product=False)
    got = choosing.step([op, op], 10, ANY, floor=2e-6)
    assert got.launches == pytest.approx(5 * 2e-6)
    assert got.memory == got.compute == 0


def test_an_optimiser_moves_its_arrays():
    assert choosing.step([], 1000, ANY, optimiser="SGD").memory == pytest.approx(12e3 / 1e11)
    assert choosing.step([], 1000, ANY, optimiser="Adam").memory == pytest.approx(28e3 / 1e11)


def test_what_is_not_known_is_refused_by_name():
    with pytest.raises(ValueError, match="'f16' of any"):
        choosing.step([], 1, ANY, precision="f16")
    with pytest.raises(ValueError, match="precision must be"):
        choosing.step([], 1, ANY, precision="bf16")
    with pytest.raises(ValueError, match="optimiser must be one of"):
        choosing.step([], 1, ANY, optimiser="Lion")
    with pytest.raises(ValueError, match="optimiser must be one of"):
        choosing.memory([], 1, optimiser="Lion")
    with pytest.raises(TypeError, match="net must be a Module"):
        choosing.operations("LeNet", (1, 1, 28, 28))
    with pytest.raises(ValueError, match=r"shape\[0\]"):
        choosing.operations(LeNet(), (0, 1, 28, 28))
