"""The tape: gradients against differences, what it refuses, and what it lets go of."""

import gc
import weakref

import numpy as np
import pytest

from pmpp import nn
from pmpp.kernels import elementwise
from pmpp.nn import functional as F
from pmpp.nn.tape import Function, Tensor, detect_anomaly, no_grad, state
from pmpp.runtime import device
from tests.nn.gradients import gradients_agree

# Operations on operands of the given shapes; "positive" ones where a logarithm or a quotient needs it.
OPERATIONS = {
    "add": (lambda a, b: a + b, [(3, 4), (3, 4)]),
    "add, broadcast": (lambda a, b: a + b, [(2, 3, 4), (3, 1)]),
    "subtract, broadcast": (lambda a, b: a - b, [(3, 1), (1, 4)]),
    "multiply, broadcast": (lambda a, b: a * b, [(3, 1), (4,)]),
    "multiply by itself": (lambda a: a * a * a, [(5,)]),
    "a number before": (lambda a: 2 - 3 * a, [(5,)]),
    "negative": (lambda a: -a, [(5,)]),
    "square": (lambda a: a**2, [(3, 3)]),
    "cube": (lambda a: a**3, [(3, 3)]),
    "exp": (lambda a: a.exp(), [(7,)]),
    "absolute": (lambda a: a.abs(), [(7,)]),
    "sum": (lambda a: a.sum(), [(3, 4)]),
    "sum along an axis": (lambda a: a.sum(1), [(3, 4)]),
    "sum along two that are apart": (lambda a: a.sum((0, 2), keepdims=True), [(2, 3, 4)]),
    "mean": (lambda a: a.mean(0), [(3, 4)]),
    "matmul": (lambda a, b: a @ b, [(3, 4), (4, 5)]),
    "reshape": (lambda a: a.reshape(2, -1) * a.reshape(2, 6), [(3, 4)]),
    "flatten": (lambda a: a.flatten(1), [(2, 3, 4)]),
    "permute": (lambda a: a.permute(2, 0, 1) * 2, [(2, 3, 4)]),
    "transpose": (lambda a: a.T @ a, [(3, 2)]),
    "index": (lambda a: a[1], [(3, 4)]),
    "slices": (lambda a: a[1:, ::2] * 3, [(4, 5)]),
    "ellipsis": (lambda a: a[..., -1], [(2, 3, 4)]),
    "a slice of nothing": (lambda a: a[3:3], [(4, 2)]),
    "used twice": (lambda a: (a * 2 + a.exp()).sum(0) * a, [(3, 3)]),
}
POSITIVE = {
    "divide": (lambda a, b: a / b, [(3, 4), (3, 1)]),
    "divide a number": (lambda a: 1 / a, [(5,)]),
    "log": (lambda a: a.log(), [(5,)]),
    "sqrt": (lambda a: a.sqrt(), [(5,)]),
    "root": (lambda a: a**0.5, [(5,)]),
}


@pytest.mark.parametrize("name", OPERATIONS | POSITIVE)
def test_gradients_are_those_of_differences(name):
    operation, shapes = (OPERATIONS | POSITIVE)[name]
    gradients_agree(operation, *shapes, positive=name in POSITIVE)


def wrong(change):
    """A product by 2 whose gradient is changed."""

    class Wrong(Function):
        @staticmethod
        def forward(context, a):
            return elementwise.multiply(a.array, 2)

        @staticmethod
        def backward(context, dy):
            return device.to_device(np.ascontiguousarray(change(2 * device.to_host(dy)), np.float32))

    return Wrong.apply


def one_element(g):
    g[0, 1] *= np.float32(1.1)
    return g


WRONG = {
    "one element": one_element,
    "a factor": lambda g: g * 1.01,
    "a sign": lambda g: -g,
    "nothing": lambda g: 0 * g,
    "two rows exchanged": lambda g: g[[1, 0, 2]],
    "two elements that cancel in a sum": lambda g: g + np.float32([[0.1, -0.1, 0, 0], [0] * 4, [0] * 4]),
    "the mean": lambda g: 0 * g + g.mean(),
}


def test_differences_let_a_right_gradient_pass():
    gradients_agree(wrong(lambda g: g), (3, 4))


@pytest.mark.parametrize("name", WRONG)
def test_differences_find_a_wrong_gradient(name):
    with pytest.raises(AssertionError, match="operand 0: the slope is"):
        gradients_agree(wrong(WRONG[name]), (3, 4))


@pytest.mark.parametrize("name", OPERATIONS)
def test_results_are_numpys(name):
    operation, shapes = OPERATIONS[name]
    if name in ("exp", "absolute", "flatten", "permute", "used twice"):
        pytest.skip("the method has another name in NumPy")
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]
    result = operation(*map(Tensor, arrays))
    expected = operation(*arrays)
    assert result.shape == expected.shape
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_gradients_add_up_until_they_are_dropped():
    x = Tensor([1.0, 2.0], requires_grad=True)
    for times in (1, 2):
        (x * 3).sum().backward()
        np.testing.assert_array_equal(x.grad.numpy(), np.float32([3, 3]) * times)
    x.grad = None
    (x * 3).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.float32([3, 3]))


def test_a_gradient_can_be_passed_in():
    x = Tensor([1.0, 2.0], requires_grad=True)
    (x * x).backward(np.float32([1, 10]))
    np.testing.assert_array_equal(x.grad.numpy(), np.float32([2, 40]))
    with pytest.raises(ValueError, match=r"gradient must be float32 of shape \(2,\), was float32\(3,\)"):
        (x * x).backward(np.float32([1, 2, 3]))


def test_what_is_computed_within_no_grad_is_not_written_down():
    x = Tensor([1.0], requires_grad=True)
    with no_grad():
        y = x * 2
    assert not y.requires_grad
    with pytest.raises(RuntimeError, match="made from no tensor that requires a gradient"):
        y.backward()
    assert (x.detach() * 2).is_leaf


def test_no_grad_within_itself_ends_with_the_outer_one():
    off = no_grad()
    with off:
        with off:
            pass
        assert not state.recording
    assert state.recording

    @no_grad()
    def factorial(n):
        if n < 0:
            raise ValueError("below 0")
        return n * factorial(n - 1) if n else 1

    assert factorial(4) == 24
    with pytest.raises(ValueError, match="below 0"):
        factorial(1.5)
    assert state.recording


def test_requires_grad_can_be_set_as_an_attribute():
    x = Tensor([1.0, 2.0])
    x.requires_grad = True
    (x * 3).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.float32([3, 3]))
    x.requires_grad = False
    assert not (x * 3).requires_grad
    with pytest.raises(TypeError, match="requires_grad must be True or False, was 'no'"):
        x.requires_grad = "no"
    with pytest.raises(TypeError, match="only float32 tensors have a gradient"):
        Tensor(np.arange(3)).requires_grad = True
    x.requires_grad = True
    with pytest.raises(RuntimeError, match="this tensor was made by Multiply"):
        (x * 3).requires_grad = False


def test_a_loss_that_is_no_scalar_is_refused():
    x = Tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(RuntimeError, match=r"begins at a scalar, this tensor has shape \(2,\): take its sum or mean"):
        (x * 2).backward()


def test_a_graph_is_used_once_unless_it_is_kept():
    x = Tensor([1.0, 2.0], requires_grad=True)
    loss = (x * x).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.float32([4, 8]))
    with pytest.raises(RuntimeError, match=r"backward of Multiply: .* freed by an earlier backward\(\)"):
        loss.backward()


def test_a_change_in_place_of_what_was_saved_is_noticed():
    x = Tensor([1.0, 2.0], requires_grad=True)
    y = x * 1.0
    loss = (y * y).sum()
    y.detach().copy_(np.float32([0, 0]))
    with pytest.raises(RuntimeError, match=r"backward of Multiply: a tensor that it saved was changed in place 1 time"):
        loss.backward()
    with pytest.raises(RuntimeError, match=r"changed in place within no_grad\(\) only"):
        x.copy_(np.float32([0, 0]))


def test_a_change_in_place_of_a_result_that_was_saved_is_noticed():
    """exp keeps its result, which is another tensor than its argument."""
    x = Tensor([1.0, 2.0], requires_grad=True)
    y = x.exp()
    loss = y.sum()
    y.detach().copy_(np.float32([0, 0]))
    with pytest.raises(RuntimeError, match=r"backward of Exp: a tensor that it saved was changed in place 1 time"):
        loss.backward()


@pytest.mark.parametrize("view", [lambda x: x.reshape(3, 1), Tensor.flatten])
def test_a_change_in_place_is_noticed_through_a_view(view):
    x = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    loss = (view(x) ** 2).sum()
    with no_grad():
        x.copy_(np.float32([10, 20, 30]))
    with pytest.raises(RuntimeError, match="changed in place 1 time since"):
        loss.backward()
    loss = (x**2).sum()
    with no_grad():
        view(x).copy_(view(x) + 1)
    with pytest.raises(RuntimeError, match="changed in place 1 time since"):
        loss.backward()


def test_a_change_in_place_of_a_numbers_quotient_is_noticed():
    x = Tensor([1.0, 2.0], requires_grad=True)
    y = 1 / x
    y.detach().copy_(Tensor([9.0, 9.0]))
    with pytest.raises(RuntimeError, match="backward of Divide: a tensor that it saved was changed in place 1 time"):
        y.sum().backward()


def test_each_gradient_has_memory_of_its_own():
    """A sum hands its gradient on as it is. Clipping changes gradients in place, each by itself."""
    a, b, c = (Tensor(np.ones((2, 2), np.float32), requires_grad=True) for _ in range(3))
    upstream = device.to_device(np.float32([[3, 0], [0, 4]]))
    (a + (b + c.reshape(4).reshape(2, 2))).backward(upstream)
    nn.clip_grad_norm_([a], 1.0)
    np.testing.assert_allclose(a.grad.numpy(), np.float32([[0.6, 0], [0, 0.8]]), rtol=1e-5)
    for other in (b.grad.numpy(), c.grad.numpy(), upstream.copy_to_host()):
        np.testing.assert_array_equal(other, np.float32([[3, 0], [0, 4]]))
    a.backward(upstream)
    a.grad = None
    a.backward(upstream)
    nn.clip_grad_norm_([a], 1.0)
    np.testing.assert_array_equal(upstream.copy_to_host(), np.float32([[3, 0], [0, 4]]))


def test_the_power_of_zero():
    x = Tensor([0.0, 2.0], requires_grad=True)
    (x**0).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.float32([0, 0]))


def test_activations_are_freed_as_early_as_they_can_be():
    x = Tensor(np.ones(8, np.float32), requires_grad=True)
    y = x + 1  # its backward needs nothing
    gone = weakref.ref(y.array)
    z = y + 1
    del y
    gc.collect()
    assert gone() is None
    y = z.exp()
    kept = weakref.ref(y.array)
    loss = y.sum()
    del y
    assert kept() is not None
    loss.backward()
    gc.collect()
    assert kept() is None


def test_anomaly_mode_names_the_layer_where_it_began():
    class Net(nn.Module):
        def __init__(self):
            self.first, self.second = Logarithm(), Double()

        def forward(self, x):
            return self.second(self.first(x))

    class Logarithm(nn.Module):
        def forward(self, x):
            return x.log()

    class Double(nn.Module):
        def forward(self, x):
            return x * 2

    x = Tensor([1.0, 0.0, 2.0], requires_grad=True)
    with (
        detect_anomaly(),
        pytest.raises(FloatingPointError, match=r"Log in Net\.first has 1 of 3 .*the first at \(1,\)"),
    ):
        Net()(x)
    with detect_anomaly():
        y = Net()(Tensor([1.0, 3.0], requires_grad=True)).sum()
        y.backward()
    x = Tensor([0.0], requires_grad=True)
    with detect_anomaly(), pytest.raises(FloatingPointError, match="gradient that Sqrt computed"):
        x.sqrt().sum().backward()


class Square(Function):
    """The example of the docstring."""

    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return elementwise.multiply(x.array, x.array)

    @staticmethod
    def backward(context, dy):
        (x,) = context.saved
        return elementwise.multiply(elementwise.multiply(dy, x), 2)


def test_a_function_of_ones_own():
    gradients_agree(Square.apply, (3, 4))


def test_a_function_that_returns_too_few_gradients_is_named():
    class Wrong(Function):
        forward = staticmethod(lambda context, a, b: elementwise.add(a.array, b.array))
        backward = staticmethod(lambda context, dy: dy)

    a, b = Tensor([1.0], requires_grad=True), Tensor([1.0], requires_grad=True)
    with pytest.raises(RuntimeError, match="backward of Wrong must return a gradient, or None, for each of the 2"):
        Wrong.apply(a, b).backward()


def test_a_gradient_of_another_shape_is_named():
    class Wrong(Function):
        forward = staticmethod(lambda context, a: elementwise.copy(a.array))
        backward = staticmethod(lambda context, dy: dy.reshape(4))

    with pytest.raises(RuntimeError, match=r"shape \(2, 2\) was given a gradient of shape \(4,\)"):
        Wrong.apply(Tensor(np.ones((2, 2), np.float32), requires_grad=True)).sum().backward()


@pytest.mark.parametrize(
    "make, error, words",
    [
        (lambda: Tensor(np.zeros(3)), TypeError, "must be of float32, .*int32 or int64, was float64"),
        (lambda: Tensor("a"), TypeError, "must be of float32"),
        (lambda: Tensor(Tensor([1.0])), TypeError, "was a Tensor"),
        (lambda: Tensor(np.arange(3), requires_grad=True), TypeError, "only float32 tensors have a gradient"),
        (lambda: Tensor([1.0]) + "a", TypeError, "must be a tensor or a number, was str"),
        (lambda: Tensor([1.0]) * Tensor(np.arange(1)), TypeError, "labels have no arithmetic"),
        (lambda: Tensor([1.0, 2.0]) + Tensor([1.0, 2.0, 3.0]), ValueError, r"\(2,\) and \(3,\)"),
        (lambda: Tensor([1.0]) @ Tensor([1.0]), ValueError, "needs matrices"),
        (lambda: Tensor([1.0])[::-1], ValueError, "positive step"),
        (lambda: Tensor([1.0])[2], IndexError, "index 2 is out of range"),
        (lambda: Tensor([1.0])[[0]], TypeError, "must be an integer or a slice"),
        (lambda: Tensor([1.0, 2.0]).item(), ValueError, "only a tensor of one element"),
        (lambda: Tensor([1.0], requires_grad=True).numpy(), RuntimeError, "use .detach"),
        (lambda: Tensor([1.0]) ** Tensor([2.0]), TypeError, "exponent must be a number"),
        (lambda: Tensor([[1.0]]).permute(0), ValueError, "each of the 2 dimensions once"),
        (lambda: F.mse_loss(Tensor([1.0]), Tensor([1.0, 2.0])), ValueError, "target must have the shape of x"),
        (lambda: Tensor([1.0], requires_grad="no"), TypeError, "requires_grad must be True or False, was 'no'"),
        (lambda: Tensor([1.0]).requires_grad_(1), TypeError, "requires_grad must be True or False, was 1"),
        (
            lambda: Tensor([1.0], requires_grad=True).backward(retain_graph="no"),
            TypeError,
            "retain_graph must be True or False, was 'no'",
        ),
        (lambda: Tensor([1.0]).copy_([1.0]), TypeError, "other must be a Tensor or an array, was list"),
        (lambda: Tensor([[1.0]]).flatten(5), ValueError, "start_dim must be from -2 to 1, was 5"),
        (lambda: Tensor([[1.0]]).flatten(1.0), TypeError, "start_dim must be an integer, was 1.0"),
    ],
)
def test_errors_say_what_is_accepted(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_a_gradient_that_was_saved_is_not_a_leafs_own():
    """Cross-entropy saves its gradient. A leaf that is changed in place must not change what a second walk reads."""
    scores = Tensor(np.float32([[1, 2, 0], [0, 1, 3]]), requires_grad=True)
    loss = F.cross_entropy(scores, Tensor(np.array([1, 0])))
    loss.backward(retain_graph=True)
    wanted = scores.grad.numpy()
    scores.grad.copy_(np.zeros((2, 3), np.float32))
    scores.grad = None
    loss.backward()
    np.testing.assert_array_equal(scores.grad.numpy(), wanted)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_loss_that_is_scaled_scales_its_gradient(reduction):
    def gradient(factor):
        scores = Tensor(np.float32([[1, 2, 0], [0, 1, 3]]), requires_grad=True)
        loss = F.cross_entropy(scores, Tensor(np.array([1, 0])), reduction=reduction)
        (loss if factor is None else loss * factor).sum().backward()
        return scores.grad.numpy()

    np.testing.assert_array_equal(gradient(4.0), 4 * gradient(None))
    one = Tensor(np.float32([[1, 2, 0]]), requires_grad=True)
    F.cross_entropy(one, Tensor(np.array([1])), reduction=reduction).backward(
        np.full((1,) * (reduction == "none"), 3, np.float32)
    )
    again = Tensor(np.float32([[1, 2, 0]]), requires_grad=True)
    F.cross_entropy(again, Tensor(np.array([1])), reduction=reduction).backward()
    np.testing.assert_array_equal(one.grad.numpy(), 3 * again.grad.numpy())


def test_a_leaf_is_ready_once_when_all_of_its_gradient_is_there(monkeypatch):
    weight, other, unused = (Tensor([1.0, 2.0], requires_grad=True) for _ in range(3))
    found = []
    monkeypatch.setattr(state, "ready", lambda leaf, gradient: found.append((leaf, device.to_host(gradient))))
    hidden = weight * other
    ((hidden * weight).sum() + weight.sum() + unused.detach().sum()).backward()
    assert [leaf for leaf, _ in found if leaf is weight] == [weight]
    assert {id(leaf) for leaf, _ in found} == {id(weight), id(other)}
    for leaf, gradient in found:
        np.testing.assert_array_equal(gradient, leaf.grad.numpy())


@pytest.mark.parametrize(
    ("shape", "axes"), [((2, 2, 2, 2, 2), (0, 2, 4)), ((2, 3, 2, 3, 2), (1, 3)), ((2, 0, 2, 3, 2), (1, 3))]
)
def test_a_sum_over_every_other_of_five_dimensions(shape, axes):
    x = np.random.default_rng(5).standard_normal(shape, dtype=np.float32)
    given = Tensor(x, requires_grad=True)
    y = given.sum(axes)
    np.testing.assert_allclose(y.detach().numpy(), x.sum(axes), rtol=1e-5, atol=1e-5)
    slope = np.random.default_rng(6).standard_normal(y.shape).astype(np.float32)
    y.backward(slope)
    np.testing.assert_array_equal(given.grad.numpy(), np.broadcast_to(np.expand_dims(slope, axes), shape))


@pytest.mark.parametrize("make", [nn.optim.SGD, nn.optim.Adam, nn.optim.AdamW])
def test_a_parameter_of_no_dimension_learns_as_one_of_one_element(make):
    made = []
    for shape in ((), (1,)):
        x = nn.Parameter(np.full(shape, 2, np.float32))
        optimizer = make([x], lr=0.1, weight_decay=0.01)
        for _ in range(3):
            (x * x).sum().backward()
            assert nn.optim.clip_grad_norm_([x], 3.0).numpy()[0] > 2
            optimizer.step()
            optimizer.zero_grad()
        assert x.shape == shape
        made.append(float(x.detach().numpy().reshape(())))
    assert made[0] == made[1] < 1.9


@pytest.mark.parametrize("function", [F.relu, F.gelu, lambda x: F.dropout(x, 0.0)], ids=["relu", "gelu", "dropout"])
def test_functions_of_a_tensor_of_no_dimension(function):
    x, same = Tensor(np.float32(1.5), requires_grad=True), Tensor(np.float32([1.5]), requires_grad=True)
    y = function(x)
    assert y.shape == ()
    y.backward()
    function(same).backward(np.ones(1, np.float32))
    assert y.detach().numpy() == function(same).detach().numpy()[0]
    assert x.grad.shape == ()
    assert x.grad.numpy() == same.grad.numpy()[0]
