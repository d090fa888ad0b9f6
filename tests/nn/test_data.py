"""Loaders: orders, batches, errors; and files: what is saved and what is refused."""

import gc
import json
import weakref

import numpy as np
import pytest

from pmpp import nn
from pmpp.nn import lr_scheduler
from pmpp.nn.optim import SGD, Adam
from pmpp.nn.tape import Tensor
from pmpp.nn.utils.data import DataLoader, TensorDataset

pytestmark = pytest.mark.usefixtures("unchecked")

NUMBERS = TensorDataset(np.arange(20, dtype=np.float32).reshape(10, 2), np.arange(10))


def test_batches_are_the_examples_in_order():
    batches = list(DataLoader(NUMBERS, 4))
    assert [images.shape for images, _ in batches] == [(4, 2), (4, 2), (2, 2)]
    np.testing.assert_array_equal(np.concatenate([labels.numpy() for _, labels in batches]), np.arange(10))
    np.testing.assert_array_equal(np.concatenate([images.numpy() for images, _ in batches]), NUMBERS.arrays[0])


def test_a_short_batch_can_be_left_out():
    loader = DataLoader(NUMBERS, 4, drop_last=True)
    assert len(loader) == len(list(loader)) == 2


def test_orders_differ_from_epoch_to_epoch_and_not_from_run_to_run():
    first, second = DataLoader(NUMBERS, 10, shuffle=True, seed=1), DataLoader(NUMBERS, 10, shuffle=True, seed=1)
    epochs = [next(iter(first))[1].numpy() for _ in range(3)]
    assert (epochs[0] != epochs[1]).any()
    for epoch in epochs:
        assert sorted(epoch) == list(range(10))
        np.testing.assert_array_equal(next(iter(second))[1].numpy(), epoch)


def test_batches_that_are_kept_stay_as_they_were():
    batches = list(DataLoader(NUMBERS, 2, prefetch=3))
    np.testing.assert_array_equal(np.concatenate([labels.numpy() for _, labels in batches]), np.arange(10))


def test_a_dataset_of_ones_own():
    class Squares:
        def __len__(self):
            return 5

        def __getitem__(self, i):
            return np.float32([i, i * i]), i

    images, labels = next(iter(DataLoader(Squares(), 3)))
    np.testing.assert_array_equal(images.numpy(), np.float32([[0, 0], [1, 1], [2, 4]]))
    assert labels.dtype == np.int64


@pytest.mark.parametrize("options", [{"prefetch": 0}, {}, {"thread": True}])
def test_a_tensor_dataset_with_a_getitem_of_its_own_is_asked_by_it(options):
    class Doubled(TensorDataset):
        def __getitem__(self, index):
            numbers, labels = super().__getitem__(index)
            return 2 * numbers, labels

    class Named(TensorDataset):
        pass

    for kind, factor in ((Doubled, 2), (Named, 1)):
        batches = list(DataLoader(kind(*NUMBERS.arrays), 4, **options))
        found = np.concatenate([numbers.numpy() for numbers, _ in batches])
        np.testing.assert_array_equal(found, factor * NUMBERS.arrays[0])


@pytest.mark.parametrize(
    "make, error, words",
    [
        (lambda: TensorDataset(), TypeError, "at least one array"),
        (lambda: TensorDataset(np.zeros(3)), TypeError, "array 0 must be of float32, float16, .*int32 or int64"),
        (lambda: TensorDataset([1, 2]), TypeError, "array 0 must be a NumPy array of examples, was list"),
        (lambda: TensorDataset(np.arange(3), np.arange(4)), ValueError, "one length, had 3 and 4"),
        (lambda: DataLoader(NUMBERS, 0), ValueError, "batch_size must be at least 1"),
        (lambda: DataLoader(None), TypeError, "dataset must have a length and give examples by number, was NoneType"),
        (lambda: DataLoader(5), TypeError, "dataset must have a length and give examples by number, was int"),
        (lambda: DataLoader(NUMBERS, 1, shuffle=1), TypeError, "shuffle must be True or False"),
    ],
)
def test_errors_name_the_argument(make, error, words):
    with pytest.raises(error, match=words):
        make()


# ---------------------------------------------------------------------------------------------------------------- files


def network():
    return nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.2), nn.Linear(8, 10))


def parts(kind=SGD, **options):
    nn.manual_seed(7)
    net = network()
    optimizer = kind(net.parameters(), lr=0.05, **options)
    schedule = lr_scheduler.StepLR(optimizer, 1, 0.5)
    return {"model": net, "optimizer": optimizer, "schedule": schedule, "loader": DataLoader(NUMBERS, 5, shuffle=True)}


def train(model, optimizer, schedule, loader):
    """An epoch."""
    for images, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    schedule.step()


@pytest.mark.parametrize("kind, options", [(SGD, {"momentum": 0.9}), (Adam, {})])
def test_a_training_goes_on_to_the_same_bits(tmp_path, kind, options):
    whole = parts(kind, **options)
    train(**whole)
    nn.save(tmp_path / "half.safetensors", **whole)
    train(**whole)
    resumed = parts(kind, **options)
    nn.manual_seed(1)  # whatever came between
    nn.load(tmp_path / "half.safetensors", **resumed)
    train(**resumed)
    for (name, mine), other in zip(
        resumed["model"].state_dict().items(), whole["model"].state_dict().values(), strict=True
    ):
        np.testing.assert_array_equal(mine, other, err_msg=name)
    assert resumed["schedule"].get_last_lr() == whole["schedule"].get_last_lr()


def test_a_network_alone_has_the_names_that_pytorch_knows(tmp_path):
    from safetensors.numpy import load_file, save_file

    net = nn.Sequential(nn.Linear(2, 3))
    nn.save(tmp_path / "net.safetensors", model=net)
    found = load_file(tmp_path / "net.safetensors")
    assert set(found) == {"0.weight", "0.bias"}
    save_file({name: value * 2 for name, value in found.items()}, tmp_path / "theirs.safetensors")
    nn.load(tmp_path / "theirs.safetensors", model=net)
    np.testing.assert_array_equal(net.state_dict()["0.weight"], found["0.weight"] * 2)


def test_what_is_wrong_with_a_file_is_said_and_nothing_is_lost(tmp_path):
    net = nn.Sequential(nn.Linear(2, 3))
    path = tmp_path / "net.safetensors"
    with pytest.raises(FileNotFoundError, match="there is no file"):
        nn.load(path, model=net)
    nn.save(path, model=net)
    (tmp_path / "half.safetensors").write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match="no whole safetensors file"):
        nn.load(tmp_path / "half.safetensors", model=net)
    with pytest.raises(ValueError, match="do not fit the module"):
        nn.load(path, model=nn.Sequential(nn.Linear(2, 4)))
    with pytest.raises(ValueError, match=r"has no part 'optimizer'; it has model"):
        nn.load(path, model=net, optimizer=SGD(net.parameters(), 0.1))
    with pytest.raises(TypeError, match=r"model must have a state_dict\(\), was int"):
        nn.save(path, model=3)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["half.safetensors", "net.safetensors"]
    nn.load(path, model=net)


def test_nothing_is_loaded_if_a_part_does_not_fit(tmp_path):
    path = tmp_path / "parts.safetensors"
    nn.save(path, a=nn.Linear(2, 2), b=nn.Linear(3, 3))
    a = nn.Linear(2, 2)
    before = a.state_dict()
    with pytest.raises(ValueError, match="do not fit the module"):
        nn.load(path, a=a, b=nn.Linear(4, 4))
    given = parts(SGD, momentum=0.9)
    train(**given)
    nn.save(path, **given)
    for name, wrong in (
        ("optimizer", lambda net: Adam(net.parameters())),
        ("schedule", lambda net: lr_scheduler.StepLR(SGD([{"params": [p]} for p in net.parameters()]), 1)),
        ("loader", lambda net: net),
    ):
        other = parts(SGD, momentum=0.9)
        kept, at = other["model"].state_dict(), nn.init.where()
        with pytest.raises(ValueError, match=r"those of Adam with 4 parameters|base_lrs must be|has under 'loader'"):
            nn.load(path, **other | {name: wrong(other["model"])})
        assert all(np.array_equal(other["model"].state_dict()[key], array) for key, array in kept.items())
        assert nn.init.where() == at
        assert other["loader"].epoch == 0
    assert all(np.array_equal(a.state_dict()[key], array) for key, array in before.items())


def test_a_part_of_another_kind_is_refused(tmp_path):
    path, net = tmp_path / "parts.safetensors", nn.Linear(2, 2)
    nn.save(path, model=net, optimizer=SGD(net.parameters()))
    with pytest.raises(ValueError, match="has under 'model' the state of a module, but model is a SGD"):
        nn.load(path, model=SGD(net.parameters()))
    with pytest.raises(ValueError, match="has under 'optimizer' the state of no module, but optimizer is a Linear"):
        nn.load(path, optimizer=net)
    with pytest.raises(TypeError, match=r"model must have a load_state_dict\(\), was int"):
        nn.load(path, model=3)
    loader = DataLoader(NUMBERS, 5)
    for values, error, said in (
        ({}, ValueError, "lacks epoch"),
        (3, TypeError, "was int"),
        ({"epoch": -1}, ValueError, "at least 0"),
    ):
        with pytest.raises(error, match=said):
            loader.load_state_dict(values)


def test_parts_that_cannot_be_checked_are_loaded_first(tmp_path):
    class Own:
        def state_dict(self):
            return {}

        def load_state_dict(self, values):
            raise ValueError("not mine")

    path, net = tmp_path / "parts.safetensors", nn.Linear(2, 2)
    nn.save(path, model=net, own=Own())
    other = nn.Linear(2, 2)
    before = other.state_dict()
    with pytest.raises(ValueError, match="not mine"):
        nn.load(path, model=other, own=Own())
    assert all(np.array_equal(other.state_dict()[key], array) for key, array in before.items())


def test_random_rounding_goes_on_to_the_same_bits(tmp_path):
    """And a file that was written before has two numbers of the sequence."""
    from safetensors import safe_open
    from safetensors.numpy import load_file, save_file

    def gradient():
        x = Tensor(np.linspace(-1, 1, 1200, dtype=np.float32).reshape(4, 300), requires_grad=True)
        with nn.compressed_activations(2):
            loss = (net(x) ** 2).sum()
        net.zero_grad()
        loss.backward()
        return net.weight.grad.numpy().copy()

    path = tmp_path / "net.safetensors"
    nn.manual_seed(7)
    net = nn.Linear(300, 2)
    gradient()
    nn.save(path, model=net)
    expected = gradient()
    nn.manual_seed(1)
    nn.load(path, model=net)
    np.testing.assert_array_equal(gradient(), expected)
    with safe_open(str(path), framework="numpy") as file:
        old = json.loads(file.metadata()["pmpp"])
    old["sequence"] = old["sequence"][:2]
    save_file(load_file(path), path, metadata={"pmpp": json.dumps(old)})
    nn.load(path, model=net)
    assert nn.init.where() == (*old["sequence"], 2)


def test_a_file_is_replaced_as_a_whole(tmp_path, monkeypatch):
    import os

    net = nn.Sequential(nn.Linear(2, 3))
    path = tmp_path / "net.safetensors"
    nn.save(path, model=net)
    before = path.read_bytes()

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        nn.save(path, model=nn.Sequential(nn.Linear(2, 3)))
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["net.safetensors"]


def test_a_checkpointed_part_has_the_same_gradients():
    nn.manual_seed(2)
    body = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4))
    data = np.random.default_rng(0).standard_normal((8, 4), dtype=np.float32)
    found = []
    for use in (False, True):
        nn.manual_seed(4)
        body.zero_grad()
        x = Tensor(data, requires_grad=True)
        y = nn.checkpoint.checkpoint(body, x) if use else body(x)
        (y * y).sum().backward()
        found.append([x.grad.numpy(), *(p.grad.numpy() for p in body.parameters())])
    for plain, again in zip(*found, strict=True):
        np.testing.assert_array_equal(plain, again)
    with pytest.raises(RuntimeError, match="needs an input that requires a gradient"):
        nn.checkpoint.checkpoint(lambda x: body(x), Tensor(data))
    with pytest.raises(RuntimeError, match="needs an input that requires a gradient"):
        nn.checkpoint.checkpoint(nn.ReLU(), Tensor(data))
    with pytest.raises(RuntimeError, match="made its result of nothing that has a gradient"):
        nn.checkpoint.checkpoint(Tensor.detach, Tensor(data, requires_grad=True)).backward(data)
    with pytest.raises(TypeError, match="function must return a Tensor, returned tuple"):
        nn.checkpoint.checkpoint(lambda x: (x, x), Tensor(data, requires_grad=True))
    with pytest.raises(TypeError, match="function must be a function or a module, was Tensor"):
        nn.checkpoint.checkpoint(Tensor(data, requires_grad=True), body)


def test_a_checkpointed_first_layer_is_trained_though_images_have_no_gradient():
    body = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    body[2].bias.requires_grad_(False)
    x, found = Tensor(np.random.default_rng(0).standard_normal((5, 4), dtype=np.float32)), []
    for use in (False, True):
        body.zero_grad()
        y = nn.checkpoint.checkpoint(body, x) if use else body(x)
        (y * y).sum().backward()
        assert x.grad is None
        assert body[2].bias.grad is None
        found.append([p.grad.numpy() for p in body.parameters() if p.requires_grad])
    for plain, again in zip(*found, strict=True):
        np.testing.assert_array_equal(plain, again)


def test_what_a_checkpointed_part_computed_again_is_freed_without_the_garbage_collector():
    body = nn.Linear(4, 4)
    x = Tensor(np.ones((2, 4), np.float32), requires_grad=True)
    before, inside = x * 2, []

    def function(x):
        inside.append(weakref.ref(x))
        return body(x)

    gc.collect()
    gc.disable()
    try:
        nn.checkpoint.checkpoint(function, before).sum().backward()
        assert inside[1]() is None
    finally:
        gc.enable()
