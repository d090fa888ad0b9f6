"""Mixed precision: which operation runs in which dtype, the scaler's rules, and that it learns as float32 does."""

import gc
import weakref

import numpy as np
import pytest

from pmpp import nn
from pmpp.nn import functional as F
from pmpp.nn import products
from pmpp.nn.optim import SGD
from pmpp.nn.tape import Tensor, state
from pmpp.runtime import device
from pmpp.runtime.dtypes import known

SHORT = known(("float16", "bfloat16"))
each_dtype = pytest.mark.parametrize("dtype", SHORT, ids=str)


def drawn(*shape, seed=0, requires_grad=True):
    return Tensor(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32), requires_grad=requires_grad)


@each_dtype
def test_each_operation_runs_in_the_dtype_of_the_table(dtype):
    x, w, b = drawn(4, 8), drawn(6, 8, seed=1), drawn(6, seed=2)
    image, filters = drawn(2, 3, 6, 6), drawn(8, 3, 3, 3, seed=3)
    labels = Tensor(np.arange(4))
    with nn.amp.autocast(dtype=dtype):
        y = F.linear(x, w, b)
        seen = F.conv2d(image, filters, padding=1)
        assert [t.dtype for t in (y, seen, x @ w.T, F.relu(y), F.max_pool2d(seen, 2))] == [dtype] * 5
        ones, zeros = Tensor(np.ones(6, np.float32)), Tensor(np.zeros(6, np.float32))
        wide = F.layer_norm(y, ones, zeros), F.softmax(y), F.cross_entropy(y, labels), y.sum(), y.exp(), y + x[:, :6]
        assert [t.dtype for t in wide] == [np.float32] * 6
        with nn.amp.autocast(enabled=False):
            assert F.linear(x, w, b).dtype == np.float32
        assert F.linear(x, w, b).dtype == dtype
    assert state.autocast is None
    assert F.linear(x, w, b).dtype == np.float32


@pytest.mark.parametrize(("fragments", "channels"), [(False, 2), (True, 2), (True, 8)])
@each_dtype
def test_gradients_are_float32_and_what_those_of_float32_are(dtype, fragments, channels, monkeypatch):
    """Of numbers that 16 bits hold, with sums that they hold: -1, 0 and 1, and gradients that are powers of 2 at first.

    No sum has more than 72 terms, so none needs more than 7 of the 8 bits of a bfloat16: all is exact, in 16 bits too.
    ``fragments``: whether convolutions run on tensor cores, as on a GPU; channels of whole chunks are kept in their
    order.
    """
    monkeypatch.setattr(products, "in_fragments", lambda *_: fragments)
    rng = np.random.default_rng(0)

    def whole(*shape):
        return Tensor(rng.integers(-1, 2, shape).astype(np.float32), requires_grad=True)

    leaves = x, w, b, filters, image = (
        whole(16, 24),
        whole(8, 24),
        whole(8),
        whole(4, channels, 3, 3),
        whole(2, channels, 6, 6),
    )

    def loss():
        return (F.linear(x, w, b) * 0.5).sum() + F.relu(F.conv2d(image, filters)).mean()

    loss().backward()
    exact = [leaf.grad.numpy() for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    with nn.amp.autocast(dtype=dtype):
        short = loss()
    short.backward()
    for leaf, wanted in zip(leaves, exact, strict=True):
        assert leaf.grad.dtype == np.float32
        assert wanted.any()
        np.testing.assert_array_equal(leaf.grad.numpy(), wanted)


@each_dtype
def test_a_shortcut_is_added_in_float32_and_its_gradient_in_16_bits_is_rounded(dtype):
    """In either order. What is broadcast is cast first."""
    wide, whole = drawn(4, 6), Tensor(np.arange(24, dtype=np.float32).reshape(4, 6), requires_grad=True)
    up = np.random.default_rng(7).standard_normal((4, 6)).astype(np.float32)
    for short_first in (False, True):
        wide.grad = whole.grad = None
        short = nn.arithmetic.Cast.apply(whole, str(dtype))
        with nn.amp.autocast(dtype=dtype):
            y = short + wide if short_first else wide + short
            assert (wide + short[0]).dtype == np.float32
        assert y.dtype == np.float32
        np.testing.assert_array_equal(y.detach().numpy(), wide.detach().numpy() + whole.detach().numpy())
        y.backward(up)
        np.testing.assert_array_equal(wide.grad.numpy(), up)
        np.testing.assert_array_equal(whole.grad.numpy(), up.astype(dtype).astype(np.float32))


def test_a_parameter_is_cast_once_and_anew_after_it_has_changed():
    x, w = drawn(2, 8, requires_grad=False), drawn(4, 8, seed=1)
    casts = []
    cast = nn.arithmetic.Cast.forward
    with pytest.MonkeyPatch.context() as patch, nn.amp.autocast(dtype="float16"):
        patch.setattr(nn.arithmetic.Cast, "forward", staticmethod(lambda *a: casts.append(a[1]) or cast(*a)))
        first = F.linear(x, w) + F.linear(x, w)
        assert sum(one is w for one in casts) == 1
        with nn.no_grad():
            w.copy_(2 * w.detach().numpy())
            again = F.linear(x, w)
    assert sum(one is w for one in casts) == 2
    np.testing.assert_array_equal(again.numpy(), first.detach().numpy())


def test_a_scale_saves_what_float16_makes_zero():
    """The gradient 2^-26 is 0 in float16, and 2^12 times as much is not. 2^16 is infinite in float16 itself."""
    x, w = Tensor(np.full((1, 8), 2.0**-13, np.float32)), Tensor(np.ones((1, 8), np.float32), requires_grad=True)

    def gradient(scaler):
        w.grad = None
        with nn.amp.autocast(dtype="float16"):
            loss = (F.linear(x, w) * 2.0**-13).sum()
        scaler.scale(loss).backward()
        optimizer = SGD([w], lr=1.0)
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        return w.grad.numpy()

    lost = nn.amp.GradScaler(init_scale=1.0)
    assert (gradient(lost) == 0).all()
    np.testing.assert_array_equal(
        gradient(nn.amp.GradScaler(init_scale=2.0**12)), np.full((1, 8), 2.0**-26, np.float32)
    )


def test_the_scale_grows_backs_off_and_a_step_is_skipped():
    w = Tensor([1.0], requires_grad=True)
    optimizer, scaler = SGD([w], lr=1.0), nn.amp.GradScaler(init_scale=8.0, growth_interval=2)

    def step(value):
        w.grad = Tensor(np.float32([value * scaler.get_scale()]))
        scaler.step(optimizer)
        scaler.update()
        return w.detach().numpy().item(), scaler.get_scale()

    assert step(0.25) == (0.75, 8)
    assert step(np.inf) == (0.75, 4), "skipped, and smaller; counting begins anew"
    assert step(0.25) == (0.5, 4)
    assert step(np.nan) == (0.5, 2)
    assert step(0.25) == (0.25, 2)
    assert step(0.25) == (0.0, 4), "after two in a row"
    other = nn.amp.GradScaler()
    other.load_state_dict(scaler.state_dict())
    assert other.state_dict() == scaler.state_dict()
    assert set(scaler.state_dict()) == {
        "scale",
        "growth_factor",
        "backoff_factor",
        "growth_interval",
        "_growth_tracker",
    }


def test_the_scaler_says_what_is_wrong():
    w = Tensor([1.0], requires_grad=True)
    optimizer, scaler = SGD([w], lr=1.0), nn.amp.GradScaler()
    with pytest.raises(RuntimeError, match="no gradient was found"):
        scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="before step"):
        scaler.update()
    scaler.scale(w.sum()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="has been called on this optimizer"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match=r"step\(\) has been called"):
        scaler.step(optimizer)
    scaler.update()
    state.capturing = True
    try:
        with pytest.raises(RuntimeError, match="record it with bfloat16"):
            scaler.unscale_(optimizer)
    finally:
        state.capturing = False
    for wrong, name in (({"growth_factor": 1.0}, "growth_factor"), ({"growth_interval": 0}, "growth_interval")):
        with pytest.raises(ValueError, match=name):
            nn.amp.GradScaler(**wrong)
    with pytest.raises(TypeError, match="dtype must be float16 or bfloat16"):
        nn.amp.autocast(dtype="float32")
    with pytest.raises(ValueError, match="device_type"):
        nn.amp.autocast("cpu")


def test_the_scale_stays_in_the_range_of_float32():
    w = Tensor([1.0], requires_grad=True)
    optimizer = SGD([w], lr=0.0)
    for first, value, end in ((2.0**-125, np.nan, 2.0**-126), (2.0**126, 1.0, 2.0**127)):
        scaler = nn.amp.GradScaler(init_scale=first, growth_interval=1)
        for _ in range(3):
            w.grad = Tensor(np.float32([value]))
            scaler.step(optimizer)
            scaler.update()
            scaler.scale(Tensor([1.0]))
        assert scaler.get_scale() == end


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        ({"scale": 0.0}, ValueError, "scale must be from"),
        ({"scale": np.nan}, ValueError, "scale must be a finite number"),
        ({"scale": -4}, ValueError, "scale must be from"),
        ({"scale": "7"}, TypeError, "scale must be a number"),
        ({"scale": True}, TypeError, "scale must be a number"),
        ({"growth_interval": 2.7}, TypeError, "growth_interval must be an integer"),
        ({"growth_interval": 0}, ValueError, "growth_interval must be at least 1"),
        ({"backoff_factor": 3}, ValueError, "backoff_factor must be from 0"),
        ({"growth_factor": 1}, ValueError, "growth_factor must be above 1"),
        ({"_growth_tracker": 2000}, ValueError, "_growth_tracker must be from 0 to 1999"),
    ],
)
def test_a_state_that_no_scaler_has_is_refused_and_changes_nothing(wrong, error, said):
    scaler = nn.amp.GradScaler()
    before = scaler.state_dict()
    with pytest.raises(error, match=said):
        scaler.load_state_dict({**before, "scale": 8.0, **wrong})
    assert scaler.state_dict() == before


def test_the_scaler_knows_an_optimizer_from_a_later_one_at_its_address():
    """It keeps the optimiser until the update, so that no other one has its identity."""
    w, scaler = Tensor([1.0], requires_grad=True), nn.amp.GradScaler()
    w.grad = Tensor([1.0])
    optimizer = SGD([w], lr=0.0)
    kept = weakref.ref(optimizer)
    scaler.step(optimizer)
    del optimizer
    gc.collect()
    assert kept() is not None
    scaler.update()
    gc.collect()
    assert kept() is None
    with pytest.raises(TypeError, match=r"optimizer must be one of pmpp\.nn\.optim, was str"):
        scaler.unscale_("x")


def test_nothing_happens_where_it_is_not_enabled():
    w = Tensor([1.0], requires_grad=True)
    scaler, optimizer = nn.amp.GradScaler(enabled=False), SGD([w], lr=1.0)
    loss = w.sum()
    assert scaler.scale(loss) is loss
    assert scaler.get_scale() == 1
    assert scaler.state_dict() == {}
    loss.backward()
    scaler.step(optimizer)
    scaler.update()
    assert w.detach().numpy().item() == 0


@pytest.mark.parametrize("dtype", [None, *SHORT], ids=str)
def test_each_step_lowers_the_loss_by_what_its_gradient_promises(dtype, unchecked):
    """A linear layer and cross entropy are convex, and their slope changes by at most L along a unit of way: half the
    greatest eigenvalue of x^T x / n, with a column of ones for the bias. So a step of 1 / L along a gradient g that is
    off by e lowers the loss by at least (|g|^2 - |e|^2) / 2L. Of the loss itself float32 knows about 2^-22.
    """
    rng = np.random.default_rng(5)
    x = rng.standard_normal((64, 8), dtype=np.float32)
    y = Tensor((x[:, :4] ** 2).argmax(axis=1))
    steep = 0.5 * np.linalg.norm(np.hstack([x, np.ones((64, 1))]), 2) ** 2 / 64
    nn.manual_seed(1)
    net, images = nn.Linear(8, 4), Tensor(x)
    optimizer, scaler = SGD(net.parameters(), lr=1 / steep), nn.amp.GradScaler(enabled=dtype == np.float16)

    def slope(enabled):
        optimizer.zero_grad()
        with nn.amp.autocast(dtype=dtype or "float16", enabled=enabled):
            loss = F.cross_entropy(net(images), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        return loss.item(), np.concatenate([p.grad.numpy().ravel() for p in net.parameters()])

    promised = 0.0
    for _ in range(6):
        before, exact = slope(False)
        scaler.update()
        _, found = slope(dtype is not None)
        least = ((exact**2).sum() - ((found - exact) ** 2).sum()) / (2 * steep)
        promised += least
        scaler.step(optimizer)
        scaler.update()
        with nn.no_grad():
            after = F.cross_entropy(net(images), y).item()
        assert after <= before - least + 2.0**-22
        assert all(p.dtype == np.float32 for p in net.parameters())
    assert promised > 0, "gradients in 16 bits are nearer to the exact ones than 0 is"


def test_a_step_in_bfloat16_can_be_recorded():
    if "bfloat16" not in map(str, SHORT):
        pytest.skip("bfloat16 needs ml_dtypes")
    nn.manual_seed(2)
    x, y = drawn(8, 16, requires_grad=False), Tensor(np.arange(8) % 4)

    def training():
        nn.manual_seed(2)
        net = nn.Linear(16, 4)
        optimizer = SGD(net.parameters(), lr=0.1)

        def step(x, y):
            optimizer.zero_grad()
            with nn.amp.autocast(dtype="bfloat16"):
                loss = F.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            return loss

        return step

    called, captured = training(), nn.capture(training(), x, y)
    for _ in range(3 if device.on_gpu() else 0):
        called(x, y)
    assert [called(x, y).item() for _ in range(3)] == [captured(x, y).item() for _ in range(3)]


def test_what_is_checkpointed_is_computed_again_in_the_same_dtypes():
    x, w, v = drawn(4, 8), drawn(8, 8, seed=1), drawn(8, 8, seed=2)
    found = []

    def last(t):
        return F.relu(F.linear(t, v))

    for kept in (True, False):
        for leaf in (x, w, v):
            leaf.grad = None
        with nn.amp.autocast(dtype="float16"):
            inner = F.linear(x, w)
            y = last(inner) if kept else nn.utils.checkpoint.checkpoint(last, inner)
            assert y.dtype == np.float16
            loss = y.sum()
        loss.backward()
        found.append([leaf.grad.numpy() for leaf in (x, w, v)])
    for mine, other in zip(*found, strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("dtype", known(("float16", "bfloat16")), ids=str)
def test_a_number_before_16_bits(dtype):
    """As behind them, the result has their dtype, and is rounded once."""
    for operation, expected, slope in ((lambda x: 1 - x, [0, -1], [-1, -1]), (lambda x: 1 / x, [1, 0.5], [-1, -0.25])):
        x = Tensor(np.float32([1, 2]), requires_grad=True)
        y = operation(x.to(str(dtype)))
        assert y.dtype == dtype
        np.testing.assert_array_equal(y.detach().numpy().astype(np.float32), expected)
        y.to("float32").backward(np.ones(2, np.float32))
        np.testing.assert_array_equal(x.grad.numpy().astype(np.float32), slope)


def test_a_scale_with_a_parameter_of_no_dimension():
    x = nn.Parameter(np.float32(2))
    optimizer, scaler = SGD([x], lr=0.1), nn.amp.GradScaler(init_scale=4.0)
    scaler.scale(x * x).backward()
    scaler.step(optimizer)
    np.testing.assert_allclose(x.detach().numpy(), 1.6, rtol=1e-6)
