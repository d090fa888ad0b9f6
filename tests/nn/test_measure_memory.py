"""What is predicted of a step's memory, and what is measured: they agree. All that the measuring needs no GPU for."""

import gc
import importlib.util
import json

import numpy as np
import pytest

from pmpp import nn
from pmpp.nn import functional as F
from pmpp.nn.examples.networks import LeNet, ResNet18
from pmpp.nn.measure import memory
from pmpp.nn.tape import Tensor
from pmpp.nn.utils.checkpoint import checkpoint
from pmpp.runtime import device

pytestmark = pytest.mark.usefixtures("collected_once")


@pytest.fixture(autouse=True)
def unchecked(monkeypatch):
    """The launches have been checked elsewhere; without checks they take a fraction of the time."""
    monkeypatch.setenv("PMPP_CHECK", "")


interpreted = pytest.mark.skipif(device.on_gpu(), reason="a pool counts in multiples of 512 bytes")


def tiny():
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3)
    )


def data(batch):
    rng = np.random.default_rng(0)
    return Tensor(rng.standard_normal((batch, 1, 4, 4), dtype=np.float32)), Tensor(np.arange(batch) % 3)


def measured(make):
    """Bytes that are in use because of what ``make`` returns."""
    make()
    gc.collect()
    before = memory.in_use()
    kept = make()
    gc.collect()
    return memory.in_use() - before, kept


@interpreted
@pytest.mark.parametrize("keep", [False, True], ids=["plain", "checkpointed"])
@pytest.mark.parametrize("batch", [1, 5])
def test_the_activations_that_are_predicted_are_those_that_are_measured(batch, keep):
    net = tiny()

    def loss():
        x, y = data(batch)
        parts = net[0], nn.Sequential(net[1], net[2], net[3]), nn.Sequential(net[4], net[5])
        for part in parts:
            x = checkpoint(part, x) if keep else part(x)
        return F.cross_entropy(x, y)

    found, kept = measured(loss)
    assert found == nn.memory(net, kept)["activations"] + 4  # the loss itself


@interpreted
@pytest.mark.parametrize(
    "make", [nn.optim.SGD, lambda p: nn.optim.SGD(p, momentum=0.9), nn.optim.Adam], ids=["sgd", "momentum", "adam"]
)
def test_parameters_gradients_and_the_state_of_an_optimiser_are_as_predicted(make):
    found, net = measured(tiny)
    buffers = sum(buffer.array.nbytes for _, buffer in net.named_buffers())
    x, y = data(4)

    def predicted():
        return nn.memory(net, F.cross_entropy(net(x), y), optimizer)

    optimizer = make(net.parameters())
    assert found == predicted()["parameters"] + buffers
    F.cross_entropy(net(x), y).backward()
    optimizer.step()  # fills what kernels keep
    optimizer.zero_grad()
    gc.collect()
    before = memory.in_use()
    F.cross_entropy(net(x), y).backward()
    gc.collect()
    assert memory.in_use() - before == predicted()["gradients"]
    before, optimizer.state = memory.in_use(), {}
    gc.collect()
    assert before - memory.in_use() == predicted()["optimiser"]


def test_what_is_predicted_follows_groups_and_frozen_parameters():
    net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    net[0].requires_grad_(False)
    groups = [{"params": net[1].parameters()}, {"params": net[0].parameters(), "momentum": 0.0}]
    optimizer = nn.optim.SGD(groups, momentum=0.9)
    x = Tensor(np.ones((5, 4), np.float32))
    found = nn.memory(net, net(x).sum(), optimizer)
    assert found == {"parameters": 4 * 23, "gradients": 4 * 8, "optimiser": 4 * 8, "activations": 4 * 15}
    plain = nn.optim.SGD([{"params": net[0].parameters()}, {"params": net[1].parameters(), "momentum": 0.0}])
    assert nn.memory(net, net(x).sum(), plain)["optimiser"] == 0


def test_two_views_of_one_piece_of_memory_count_once():
    x = Tensor(np.ones((4, 6), np.float32), requires_grad=True)
    y = x * 1.0
    loss = (y * y).sum() + (y.reshape(24) * y.reshape(24)).sum() + (y.reshape(8, 3) * x.reshape(8, 3)).sum()
    assert nn.memory(nn.Sequential(), loss)["activations"] == 2 * 4 * 24
    net = nn.Linear(3, 2)
    loss = (net.weight.reshape(6) * net.weight.reshape(6)).sum()
    assert nn.memory(net, loss)["activations"] == 0


def test_memory_after_backward_says_what_is_wrong():
    net = nn.Linear(3, 2)
    loss = net(Tensor(np.ones((1, 3), np.float32))).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="freed by an earlier backward"):
        nn.memory(net, loss)


def test_the_networks_are_those_of_the_examples(monkeypatch):
    monkeypatch.setattr(nn.init, "default", lambda shape, fan_in: np.zeros(shape, np.float32))

    def parameters(net):
        return [p.shape for p in net.parameters()]

    assert parameters(memory.lenet()) == parameters(LeNet())
    assert parameters(memory.resnet()) == parameters(ResNet18())


def test_a_curve_rises_forwards_and_falls_backwards():
    net, (x, y) = tiny(), data(5)
    F.cross_entropy(net(x), y).backward()
    net.zero_grad()
    with memory.curve() as seen:
        F.cross_entropy(net(x), y).backward()
    paths = [path for direction, path, _ in seen.points if direction == "forward"]
    assert paths == ["0", "1", "2", "3", "4", "5"]
    assert [path.rpartition(".")[2] for way, path, _ in seen.points if way == "backward"] == [
        "CrossEntropy", "Linear", "Reshape", "MaxPool2d", "Activation", "BatchNorm", "Conv2d",
    ]  # fmt: skip
    sizes = [size for _, _, size in seen.points]
    assert seen.before <= sizes[0] <= sizes[2]
    assert max(sizes) <= seen.peak
    assert sizes[-1] < max(sizes)
    from pmpp.nn import tape

    assert tape.state.watch is None
    assert tape.Node.backward.__name__ == "backward"


def tiny_cases():
    def kind():
        first, last = nn.Sequential(nn.Conv2d(1, 1, 3), nn.ReLU()), nn.Sequential(nn.Flatten(), nn.Linear(4, 10))
        return nn.Sequential(first, last)

    return {"tiny": (kind, (1, 4, 4), (4,))}


def test_a_row_has_all_that_the_table_and_the_chapter_need(monkeypatch):
    monkeypatch.setattr(memory, "CASES", tiny_cases())
    monkeypatch.setattr(memory, "milliseconds", lambda step, synchronize: step().item())
    row = memory.measure("tiny", 4, "plain")
    json.dumps(row)
    assert row["ours"]["points"]
    assert row["ours"]["peak"] >= row["ours"]["before"]
    assert ("torch" in row) == (importlib.util.find_spec("torch") is not None)
    assert len(memory.table({"tiny, batch 4, plain": row}).splitlines()) == 2


def test_variants_have_the_same_gradients_and_fewer_activations(monkeypatch):
    monkeypatch.setattr(memory, "milliseconds", lambda step, synchronize: 0.0)

    def kind():
        first = nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU())
        return nn.Sequential(first, nn.Sequential(nn.Flatten(), nn.Linear(4, 10)))

    rows = {variant: memory.ours(kind, (1, 2, 2), 4, variant) for variant in memory.VARIANTS}
    for variant in ("checkpointed", "accumulated"):
        np.testing.assert_allclose(rows[variant]["gradient"], rows["plain"]["gradient"], rtol=1e-4, atol=1e-6)
        if not device.on_gpu():  # where the pool rounds arrays up, so small ones have one size
            assert rows[variant]["after forward"] < rows["plain"]["after forward"]
    assert rows["plain"]["loss"] == pytest.approx(rows["accumulated"]["loss"], rel=1e-5)


def test_a_batch_is_cut_into_equal_parts():
    assert [part.shape for part in memory.cut(np.zeros((6, 2)), 3)] == [(2, 2)] * 3
    with pytest.raises(ValueError, match="parts must divide the batch, 6, was 4"):
        memory.cut(np.zeros(6), 4)


def test_memory_stays_flat(monkeypatch):
    class Small(nn.Module):
        def __init__(self):
            self.fc = nn.Linear(784, 10)

        def forward(self, x):
            return self.fc(x.flatten(1))

    monkeypatch.setattr(memory, "LeNet", Small)
    found = memory.flat(6)
    # In the interpreter no address comes twice, so the optimiser's tables of addresses are made anew: a few are kept.
    assert found["after step 6"] - found["after step 2"] < 4 * 784


def test_without_a_gpu_it_says_so(capsys):
    if not device.on_gpu():
        assert memory.main([]) == 2
        assert "a GPU is needed" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        memory.main(["VGG"])


def test_the_command_measures_prints_and_records(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(memory, "CASES", tiny_cases())
    monkeypatch.setattr(memory, "measure", lambda *case: {"ours": {"predicted": {"activations": 1}, "peak": 2,
                                                                   "after forward": 3, "ms": 4.0}})  # fmt: skip
    monkeypatch.setattr(memory, "flat", lambda: {"after step 2": 5})
    monkeypatch.setattr(device, "on_gpu", lambda: True)
    written = []
    monkeypatch.setattr(memory, "write", lambda *parts: written.append(json.dumps(parts[2])) or parts[3])
    assert memory.main(["--out", str(tmp_path / "memory.json")]) == 0
    assert len(written) == len(memory.VARIANTS)
    assert json.loads(written[-1])["flat"] == {"after step 2": 5}
    assert "tiny, batch 4, accumulated" in capsys.readouterr().out
    assert memory.main(["--budget", "-1"]) == 0
    assert "the budget is spent" in capsys.readouterr().out
