"""Modules: what they find among their attributes, their names, their states, and layers against NumPy and PyTorch."""

import types

import numpy as np
import pytest

from pmpp import nn
from pmpp.nn import functional as F
from pmpp.nn import init
from pmpp.nn.tape import Tensor
from tests.nn.gradients import gradients_agree


class Net(nn.Module):
    """A network with a module in a module, a buffer and a parameter that is used twice."""

    def __init__(self):
        self.trunk = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Linear(8, 3)
        self.again = self.head.weight

    def forward(self, x):
        return self.head(self.trunk(x).flatten(1))


def test_parameters_are_found_once_and_named_as_in_pytorch():
    assert [(name, p.shape) for name, p in Net().named_parameters()] == [
        ("again", (3, 8)),
        ("trunk.0.weight", (2, 1, 3, 3)),
        ("trunk.0.bias", (2,)),
        ("trunk.1.weight", (2,)),
        ("trunk.1.bias", (2,)),
        ("head.bias", (3,)),
    ]
    assert [name for name, _ in Net().trunk.named_buffers()] == [
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
    ]


def test_training_and_evaluation_reach_all_modules():
    net = Net().eval()
    assert not any(module.training for module in net.modules())
    assert net.train().trunk[1].training
    with pytest.raises(TypeError, match="mode must be True or False, was 1"):
        net.train(1)


def test_a_state_goes_from_one_network_to_another():
    first, second = Net(), Net()
    x = Tensor(np.random.default_rng(0).standard_normal((4, 1, 4, 4), dtype=np.float32))
    first(x)  # changes the running moments
    second.load_state_dict(first.state_dict())
    first.eval(), second.eval()
    np.testing.assert_array_equal(first(x).detach().numpy(), second(x).detach().numpy())
    assert second.trunk[1].batches == 1


def test_a_state_that_does_not_fit_changes_nothing():
    net, other = nn.Sequential(nn.Linear(2, 3)), nn.Linear(2, 3)
    before = net.state_dict()
    with pytest.raises(ValueError, match=r"missing: 0\.bias, 0\.weight; not in this Sequential: bias, weight"):
        net.load_state_dict(other.state_dict())
    wrong = {"0.weight": np.zeros((3, 2), np.float32), "0.bias": np.zeros(4, np.float32)}
    with pytest.raises(ValueError, match=r"0\.bias must be float32\(3,\), was float32\(4,\)"):
        net.load_state_dict(wrong)
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


def test_a_tensor_that_is_used_twice_has_both_names_in_a_state_as_in_pytorch():
    net = Net()
    state = net.state_dict()
    np.testing.assert_array_equal(state["again"], state["head.weight"])
    other = {name: value + 1 for name, value in state.items()}
    with pytest.raises(ValueError, match=r"head\.weight is the same tensor as again, but has other values"):
        net.load_state_dict({**other, "again": state["again"]})
    np.testing.assert_array_equal(net.state_dict()["again"], state["again"])
    net.load_state_dict(other)
    for name in ("again", "head.weight"):  # one of the names is enough
        net.load_state_dict({key: value for key, value in state.items() if key != name})
        np.testing.assert_array_equal(net.head.weight.detach().numpy(), state["again"])
        net.load_state_dict(other)
    neither = {key: value for key, value in state.items() if key not in ("again", "head.weight")}
    with pytest.raises(ValueError, match=r"missing: again, head\.weight$"):
        net.load_state_dict(neither)


def test_a_network_is_printed_as_in_pytorch():
    assert repr(nn.Sequential(nn.Linear(2, 3), nn.ReLU())) == (
        "Sequential(\n  (0): Linear(in_features=2, out_features=3, bias=True)\n  (1): ReLU()\n)"
    )
    assert repr(nn.Conv2d(1, 2, 3)) == "Conv2d(1, 2, kernel_size=(3, 3), stride=(1, 1))"
    assert repr(nn.MaxPool2d(2, padding=1)) == "MaxPool2d(kernel_size=2, stride=None, padding=1, ceil_mode=False)"
    assert repr(nn.AvgPool2d(3)).startswith("AvgPool2d(kernel_size=3, stride=None, padding=0")
    assert (repr(nn.Dropout(0.25)), repr(nn.Embedding(5, 2))) == ("Dropout(p=0.25)", "Embedding(5, 2)")


def test_a_module_without_a_forward_says_so():
    class Empty(nn.Module):
        pass

    with pytest.raises(NotImplementedError, match="Empty has no forward"):
        Empty()(1)
    with pytest.raises(TypeError, match="Sequential takes modules, argument 1 was function"):
        nn.Sequential(nn.ReLU(), F.relu)


def test_an_error_names_the_innermost_module():
    class Net(nn.Module):
        def __init__(self):
            self.body = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))

        def forward(self, x):
            return self.body(x)

    with pytest.raises(ValueError, match="weight must have shape") as caught:
        Net()(Tensor(np.zeros((1, 3), np.float32)))
    assert caught.value.__notes__ == ["in Net.body.1: Linear(in_features=4, out_features=2, bias=True)"]


@pytest.mark.parametrize("value", [np.zeros((2, 3, 4, 4), np.float32), None])
@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("x", lambda x: nn.Conv2d(3, 2, 3)(x)),
        ("x", lambda x: nn.Linear(4, 2)(x)),
        ("x", lambda x: nn.MaxPool2d(2)(x)),
        ("x", lambda x: nn.AvgPool2d(2)(x)),
        ("x", lambda x: nn.BatchNorm2d(3)(x)),
        ("x", lambda x: nn.BatchNorm2d(3).eval()(x)),
        ("x", lambda x: nn.LayerNorm(4)(x)),
        ("x", lambda x: nn.Dropout()(x)),
        ("x", lambda x: nn.Dropout().eval()(x)),
        ("x", F.gelu),
        ("x", F.relu),
        ("x", F.sigmoid),
        ("x", F.silu),
        ("x", F.tanh),
        ("scores", lambda x: F.cross_entropy(x, np.zeros(2, np.int64))),
        ("x", lambda x: F.mse_loss(x, Tensor([1.0]))),
        ("target", lambda x: F.mse_loss(Tensor([1.0]), x)),
    ],
)
def test_what_is_no_tensor_is_refused_by_name(name, layer, value):
    said = "did a forward return nothing" if value is None else r"make it one with Tensor\("
    with pytest.raises(TypeError, match=f"^{name} must be a Tensor, was {type(value).__name__}: {said}"):
        layer(value)


def ones(*shape):
    return Tensor(np.ones(shape, np.float32))


ARRAY = np.ones(3, np.float32)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: F.linear(ones(2, 3), np.ones((2, 3))), TypeError, "weight must be a Tensor, was ndarray"),
        (lambda: F.linear(ones(2, 3), ones(3, 3), ARRAY), TypeError, "bias must be a Tensor, was ndarray"),
        (lambda: F.linear(Tensor(1.0), ones(3, 4)), ValueError, r"x must have the shape \(\.\.\., 4\), had shape \(\)"),
        (lambda: F.conv2d(ones(1, 1, 4, 4), [[1]]), TypeError, "weight must be a Tensor, was list"),
        (lambda: F.conv2d(ones(1, 1, 4, 4), ones(3, 1, 2, 2), ARRAY), TypeError, "bias must be a Tensor, was ndarray"),
        (lambda: F.embedding([0, 1], ones(3, 2)), TypeError, "indices must be a Tensor, was list"),
        (lambda: F.embedding(Tensor(np.arange(2)), np.ones((3, 2))), TypeError, "table must be a Tensor, was ndarray"),
        (lambda: F.layer_norm(ones(2, 3), ARRAY, ones(3)), TypeError, "weight must be a Tensor, was ndarray"),
        (lambda: F.layer_norm(ones(2, 3), ones(3), None), TypeError, "bias must be a Tensor, was NoneType"),
        (
            lambda: F.layer_norm(ones(4, 2, 3), ones(2, 3), ones(3, 2)),
            ValueError,
            r"bias must have the shape of weight, \(2, 3\), had \(3, 2\)",
        ),
        (lambda: norm(weight=None), TypeError, "weight must be a Tensor, was NoneType"),
        (lambda: norm(bias=ARRAY), TypeError, "bias must be a Tensor, was ndarray"),
        (lambda: norm(running_mean=ARRAY), TypeError, "running_mean must be a Tensor, was ndarray"),
        (lambda: norm(weight=None, training=False), TypeError, "weight must be a Tensor, was NoneType"),
        (lambda: norm(running_mean=None, training=False), TypeError, "running_mean must be a Tensor, was NoneType"),
        (lambda: norm(training="no"), TypeError, "training must be True or False, was 'no'"),
        (lambda: F.dropout(ones(3), 0.5, "no"), TypeError, "training must be True or False, was 'no'"),
        (lambda: nn.Linear(1, 1).load_state_dict([1]), TypeError, "values must be a mapping .*, was list"),
        (lambda: nn.Linear(1, 1).requires_grad_("no"), TypeError, "wanted must be True or False, was 'no'"),
        (lambda: nn.BatchNorm2d(1, momentum="0.5"), TypeError, "momentum must be a number, was '0.5'"),
        (lambda: nn.BatchNorm2d(1, momentum=True), TypeError, "momentum must be a number, was True"),
        (lambda: nn.BatchNorm2d(1, momentum=None), TypeError, "momentum must be a number, was None"),
        (lambda: nn.BatchNorm2d(1, momentum=2), ValueError, "momentum must be from 0 to 1, was 2"),
        (lambda: nn.LayerNorm(4.0), TypeError, "normalized_shape must be an integer, was 4.0"),
        (lambda: nn.LayerNorm((2, -1)), ValueError, "normalized_shape must be at least 1, was -1"),
        (lambda: nn.LayerNorm(()), ValueError, "normalized_shape must have at least one extent"),
        (lambda: nn.Dropout(1.0), ValueError, "p must be from 0 to less than 1, was 1.0"),
        (lambda: nn.CrossEntropyLoss(reduction="x"), ValueError, "reduction must be one of mean, sum, none, was 'x'"),
        (lambda: nn.CrossEntropyLoss(label_smoothing=2), ValueError, "label_smoothing must be from 0 to 1, was 2"),
        (lambda: nn.CrossEntropyLoss("a"), TypeError, "ignore_index must be an integer, was 'a'"),
        (lambda: nn.GELU("x"), ValueError, 'approximate must be "none" or "tanh", was \'x\''),
        (lambda: nn.MaxPool2d("a"), ValueError, "kernel_size must be an integer of at least 1 .*, was 'a'"),
        (lambda: nn.AvgPool2d(2, count_include_pad=1), TypeError, "count_include_pad must be True or False, was 1"),
    ],
)
def test_errors_name_the_argument(call, error, words):
    with pytest.raises(error, match=f"^{words}"):
        call()


def norm(training=True, **others):
    given = {name: ones(3) for name in ("running_mean", "running_var", "weight", "bias")} | others
    return F.batch_norm(ones(2, 3, 2, 2), **given, training=training)


def test_a_linear_layer_of_no_inputs_gives_its_bias():
    x, weight = (Tensor(np.ones(shape, np.float32), requires_grad=True) for shape in ((2, 3, 0), (4, 0)))
    y = F.linear(x, weight, Tensor(np.arange(4, dtype=np.float32)))
    np.testing.assert_array_equal(y.detach().numpy(), np.tile(np.arange(4, dtype=np.float32), (2, 3, 1)))
    y.sum().backward()
    assert (x.grad.shape, weight.grad.shape) == ((2, 3, 0), (4, 0))


def test_a_batch_that_fails_is_not_counted():
    layer = nn.BatchNorm2d(3)
    with pytest.raises(ValueError, match=r"weight must have shape \(4,\), had \(3,\)"):
        layer(ones(2, 4, 2, 2))
    layer(ones(2, 3, 2, 2))
    assert layer.state_dict()["num_batches_tracked"] == 1


def images(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


LAYERS = {
    "linear": (F.linear, [(5, 7), (3, 7), (3,)]),
    "linear of more dimensions": (F.linear, [(2, 3, 5), (4, 5), (4,)]),
    "linear without a bias": (lambda x, w: F.linear(x, w), [(5, 7), (3, 7)]),
    "conv2d": (F.conv2d, [(2, 2, 5, 6), (3, 2, 3, 3), (3,)]),
    "conv2d, stride and padding": (lambda x, w: F.conv2d(x, w, None, 2, 1), [(2, 2, 5, 5), (2, 2, 3, 3)]),
    "conv2d, groups": (lambda x, w: F.conv2d(x, w, groups=2), [(1, 4, 4, 4), (4, 2, 2, 2)]),
    "conv2d, depthwise": (lambda x, w, b: F.conv2d(x, w, b, 2, 1, groups=3), [(2, 3, 5, 6), (3, 1, 3, 3), (3,)]),
    "conv2d, two filters a channel": (lambda x, w: F.conv2d(x, w, padding=1, groups=2), [(1, 2, 4, 5), (4, 1, 3, 3)]),
    "relu": (F.relu, [(3, 7)]),
    "gelu": (F.gelu, [(3, 7)]),
    "tanh": (F.tanh, [(3, 7)]),
    "silu": (F.silu, [(3, 7)]),
    "sigmoid": (F.sigmoid, [(3, 7)]),
    "average pooling": (lambda x: F.avg_pool2d(x, 2), [(2, 1, 4, 4)]),
    "maximum pooling": (lambda x: F.max_pool2d(x * 10, 2), [(2, 1, 4, 4)]),
    "layer norm": (F.layer_norm, [(4, 9), (9,), (9,)]),
    "batch norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), [(4, 3, 2, 2), (3,), (3,)]),
    "mean squared error": (F.mse_loss, [(3, 4), (3, 4)]),
}


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_of_layers_are_those_of_differences(name):
    operation, shapes = LAYERS[name]
    gradients_agree(operation, *shapes)


def test_a_depthwise_network_learns(unchecked):
    """Depthwise and pointwise layers in turn, as in MobileNet: which half of an image is bright."""
    nn.manual_seed(1)
    net = nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(4, 4, 3, stride=2, padding=1, groups=4, bias=False), nn.Conv2d(4, 8, 1), nn.ReLU()),
        *(nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.Conv2d(8, 8, 1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(8 * 16, 2)),
    )
    labels = np.arange(16) % 2
    pictures = images(16, 1, 8, 8) * 0.5
    pictures[labels == 0, :, :4] += 1
    pictures[labels == 1, :, 4:] += 1
    optimizer, losses = nn.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), []
    for _ in range(12):
        loss = F.cross_entropy(net(Tensor(pictures)), Tensor(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]
    assert all(np.abs(p.grad.numpy()).max() > 0 for p in net.parameters())


def test_the_loss_and_its_gradient():
    labels = Tensor(np.array([2, 0, 1, 2]))
    gradients_agree(lambda x: F.cross_entropy(x, labels), (4, 3))
    gradients_agree(lambda x: F.cross_entropy(x, labels, label_smoothing=0.1, reduction="sum"), (4, 3))
    gradients_agree(lambda x: F.cross_entropy(x, labels, reduction="none"), (4, 3))
    loss = F.cross_entropy(Tensor(np.zeros((4, 3), np.float32)), labels)
    assert loss.item() == pytest.approx(np.log(3), rel=1e-6)


def test_batch_norm_in_evaluation_uses_the_running_moments():
    layer = nn.BatchNorm2d(3)
    x = images(4, 3, 2, 2) * 3 + 1
    for _ in range(3):
        layer(Tensor(x))
    layer.eval()
    moments = layer.running_mean.numpy(), layer.running_var.numpy()
    expected = (x - moments[0].reshape(1, 3, 1, 1)) / np.sqrt(moments[1].reshape(1, 3, 1, 1) + 1e-5)
    with nn.no_grad():
        np.testing.assert_allclose(layer(Tensor(x)).numpy(), expected, rtol=1e-4, atol=1e-5)
    frozen = Tensor(x, requires_grad=True)
    y = layer(frozen)
    np.testing.assert_allclose(y.detach().numpy(), expected, rtol=1e-4, atol=1e-5)
    y.sum().backward()
    assert frozen.grad.shape == x.shape


def test_dropout_draws_another_mask_each_time_and_the_same_one_backwards():
    nn.manual_seed(3)
    x = Tensor(np.ones((20, 50), np.float32), requires_grad=True)
    layer = nn.Dropout(0.25)
    first, second = layer(x), layer(x)
    assert (first.detach().numpy() != second.detach().numpy()).any()
    assert set(np.unique(first.detach().numpy())) == {np.float32(0), np.float32(1 / 0.75)}
    first.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), first.detach().numpy())
    layer.eval()
    assert layer(x) is x
    nn.manual_seed(3)
    np.testing.assert_array_equal(nn.Dropout(0.25)(x).detach().numpy(), first.detach().numpy())


def test_embedding():
    table = nn.Embedding(5, 3)
    indices = Tensor(np.array([[1, 1], [4, 0]]))
    y = table(indices)
    assert y.shape == (2, 2, 3)
    y.sum().backward()
    np.testing.assert_array_equal(table.weight.grad.numpy()[:, 0], np.float32([1, 2, 0, 0, 1]))


def test_indices_that_are_changed_in_place_are_noticed():
    table, indices = nn.Embedding(5, 3), Tensor(np.array([1, 2]))
    loss = table(indices).sum()
    indices.copy_(np.array([0, 0]))
    with pytest.raises(RuntimeError, match="a tensor that it saved was changed in place 1 time"):
        loss.backward()


def test_initial_values_are_within_pytorchs_bounds_and_the_same_for_a_seed():
    nn.manual_seed(5)
    first = nn.Linear(100, 50).weight.detach().numpy()
    nn.manual_seed(5)
    assert (nn.Linear(100, 50).weight.detach().numpy() == first).all()
    assert abs(first).max() <= 0.1
    assert first.std() == pytest.approx(0.1 / 3**0.5, rel=0.05)


def test_a_summary_lists_the_layers_that_are_called():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    lines = nn.summary(net, Tensor(np.zeros((5, 4), np.float32))).splitlines()
    assert [line.split()[-1] for line in lines[1:]] == ["40", "0", "18", "58"]
    assert lines[1].split()[:2] == ["0", "Linear"]


def test_a_summary_leaves_the_network_as_it_was():
    class Two(nn.Module):
        def forward(self, x):
            return x, (x.sum(), None)

    net = nn.Sequential(nn.BatchNorm2d(2), nn.Dropout(0.5), Two())
    net[1].eval()
    before, where = net.state_dict(), init.where()
    lines = nn.summary(net, Tensor(images(3, 2, 4, 4))).splitlines()
    assert "(3, 2, 4, 4), (), NoneType" in lines[3]
    with pytest.raises(ValueError, match=r"weight must have shape \(1,\), had \(2,\)"):
        nn.summary(net, Tensor(images(3, 1, 4, 4)))
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)
    assert init.where() == where
    assert [module.training for module in net.modules()] == [True, True, False, True]


def test_the_memory_of_a_step():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    loss = net(Tensor(np.zeros((5, 4), np.float32))).sum()
    found = nn.memory(net, loss, nn.optim.Adam(net.parameters()))
    assert found["parameters"] == found["gradients"] == 4 * 58
    assert found["optimiser"] == 8 * 58
    assert found["activations"] == 4 * (5 * 4 + 5 * 8 + 5 * 8)  # the input, and what went into ReLU and the last layer


def test_the_interpreters_linear_layer_is_the_gpus(monkeypatch):
    rng = np.random.default_rng(5)
    x, weight, bias, dy = (rng.standard_normal(shape, dtype=np.float32) for shape in ((5, 7), (3, 7), (3,), (5, 3)))
    for trained in ("x", "weight", "bias", ("x", "weight", "bias")):
        found = []
        for on_gpu in (False, True):
            monkeypatch.setattr(F, "device", types.SimpleNamespace(on_gpu=lambda on_gpu=on_gpu: on_gpu))
            tensors = {n: Tensor(v, n in trained) for n, v in (("x", x), ("weight", weight), ("bias", bias))}
            y = F.linear(*tensors.values())
            y.backward(dy)
            grads = [None if t.grad is None else t.grad.numpy() for t in tensors.values()]
            assert [g is not None for g in grads] == [n in trained for n in tensors]
            found.append([y.detach().numpy(), *(g for g in grads if g is not None)])
        for mine, other in zip(*found, strict=True):
            # Sums of 7 or fewer products in two orders: a rounding each, of numbers below 4.
            np.testing.assert_allclose(mine, other, rtol=0, atol=7 * 7 * 4 * 2.0**-23)


def test_pytorch_computes_the_same_from_the_same_state():
    torch = pytest.importorskip("torch")
    mine = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3))
    tnn = torch.nn
    theirs = tnn.Sequential(
        tnn.Conv2d(1, 4, 3, padding=1), tnn.ReLU(), tnn.MaxPool2d(2), tnn.Flatten(), tnn.Linear(16, 3)
    )
    theirs.load_state_dict({name: torch.from_numpy(value) for name, value in mine.state_dict().items()})
    x, labels = images(6, 1, 4, 4), np.array([0, 1, 2, 0, 1, 2])
    first = nn.optim.SGD(mine.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    second = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    for _ in range(5):
        first.zero_grad(), second.zero_grad()
        loss = F.cross_entropy(mine(Tensor(x)), Tensor(labels))
        other = tnn.functional.cross_entropy(theirs(torch.from_numpy(x)), torch.from_numpy(labels))
        loss.backward(), other.backward()
        first.step(), second.step()
        assert loss.item() == pytest.approx(other.item(), rel=1e-4)
    mine.load_state_dict(theirs.state_dict())
