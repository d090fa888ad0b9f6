"""Schedules of the learning rate, and options of optimisers."""

import json
import math

import numpy as np
import pytest

from pmpp import nn
from pmpp.nn import lr_scheduler
from pmpp.nn.optim import SGD, Adam, AdamW


def optimizer(lr=0.1):
    return SGD([nn.Parameter(np.zeros(1, np.float32))], lr=lr)


def rates(make, steps, lr=0.1):
    """The rates before each of so many steps."""
    scheduler = make(optimizer(lr))
    found = []
    for _ in range(steps):
        found.append(scheduler.get_last_lr()[0])
        scheduler.step()
    return found


def test_steps():
    assert rates(lambda o: lr_scheduler.StepLR(o, 2, 0.5), 5) == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.025])


def test_cosine():
    found = rates(lambda o: lr_scheduler.CosineAnnealingLR(o, 10, 0.01), 11)
    assert found == pytest.approx([0.01 + 0.09 * (1 + math.cos(math.pi * n / 10)) / 2 for n in range(11)])


def test_warm_up():
    assert rates(lambda o: lr_scheduler.LinearLR(o, 0.5, total_iters=2), 4) == pytest.approx([0.05, 0.075, 0.1, 0.1])


def test_a_function():
    assert rates(lambda o: lr_scheduler.LambdaLR(o, lambda n: 1 / (1 + n)), 3) == pytest.approx([0.1, 0.05, 0.1 / 3])


def test_one_cycle():
    found = rates(lambda o: lr_scheduler.OneCycleLR(o, 1.0, 10), 10)
    assert found[0] == pytest.approx(0.04)
    assert max(found) == found[2] == pytest.approx(1.0)
    assert found[-1] == pytest.approx(0.04 / 1e4)
    assert found[:3] == sorted(found[:3])
    assert found[2:] == sorted(found[2:], reverse=True)


@pytest.mark.parametrize(
    "mine, theirs, options",
    [
        ("StepLR", "StepLR", {"step_size": 3, "gamma": 0.5}),
        ("CosineAnnealingLR", "CosineAnnealingLR", {"T_max": 7, "eta_min": 0.001}),
        ("LinearLR", "LinearLR", {"start_factor": 0.2, "total_iters": 4}),
        ("OneCycleLR", "OneCycleLR", {"max_lr": 0.5, "total_steps": 12}),
    ],
)
def test_pytorchs_schedules_are_the_same(mine, theirs, options):
    torch = pytest.importorskip("torch")
    other = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    schedule = getattr(torch.optim.lr_scheduler, theirs)(other, **options)
    expected = []
    for _ in range(12):
        expected.append(schedule.get_last_lr()[0])
        other.step()
        schedule.step() if len(expected) < 12 else None
    assert rates(lambda o: getattr(lr_scheduler, mine)(o, **options), 12) == pytest.approx(expected, rel=1e-6)


def test_a_schedule_goes_on_where_it_was():
    first = lr_scheduler.StepLR(optimizer(), 2, 0.5)
    for _ in range(3):
        first.step()
    second = lr_scheduler.StepLR(optimizer(), 2, 0.5)
    second.load_state_dict(first.state_dict())
    assert second.get_last_lr() == first.get_last_lr()


PARAMETER = [nn.Parameter(np.zeros(2, np.float32))]


@pytest.mark.parametrize(
    "make, error, words",
    [
        (lambda: SGD([], 0.1), ValueError, "params must have a parameter"),
        (lambda: SGD(nn.Linear(2, 1), 0.1), TypeError, r"as net.parameters\(\), was Linear"),
        (lambda: SGD([1], 0.1), TypeError, "element 0 was int"),
        (lambda: SGD(PARAMETER * 2, 0.1), ValueError, "one is there twice"),
        (lambda: SGD(PARAMETER, -0.1), ValueError, "lr must not be negative"),
        (lambda: SGD(PARAMETER, "a"), TypeError, "lr must be a number"),
        (lambda: SGD(PARAMETER, 0.1, nesterov=True), ValueError, "nesterov needs a momentum"),
        (lambda: Adam(PARAMETER, betas=(0.9,)), ValueError, "betas must be two numbers"),
        (lambda: AdamW(PARAMETER, betas=(0.9, 2.0)), ValueError, "betas must be from 0 to 1"),
        (lambda: SGD([{"params": PARAMETER, "rate": 1}], 0.1), TypeError, "rate is no option of SGD: it has lr"),
        (lambda: SGD([{"lr": 1}]), ValueError, 'group 0 must have "params", had lr'),
        (lambda: SGD([{"params": 3}]), TypeError, '"params" of group 0 must be several parameters, was int'),
        (lambda: SGD([{"params": PARAMETER}, 3]), TypeError, "or all groups of them, element 1 was int"),
        (lambda: lr_scheduler.StepLR(None, 2), TypeError, "optimizer must be an Optimizer"),
        (lambda: lr_scheduler.StepLR(optimizer(), 1, -1), ValueError, "gamma must not be negative"),
        (lambda: lr_scheduler.LinearLR(optimizer(), math.nan), ValueError, "start_factor must be a finite number"),
        (lambda: lr_scheduler.LinearLR(optimizer(), end_factor=-3), ValueError, "end_factor must not be negative"),
        (lambda: lr_scheduler.LinearLR(optimizer(), True), TypeError, "start_factor must be a number"),
        (lambda: lr_scheduler.OneCycleLR(optimizer(), 1, 9, div_factor=0), ValueError, "div_factor must be above 0"),
        (lambda: lr_scheduler.OneCycleLR(optimizer(), 1, 9, div_factor="a"), TypeError, "div_factor must be a number"),
        (lambda: lr_scheduler.OneCycleLR(optimizer(), 1, 9, final_div_factor=-2), ValueError, "final_div_factor must"),
        (lambda: nn.clip_grad_norm_(PARAMETER, "x"), TypeError, "max_norm must be a number"),
        (lambda: nn.clip_grad_norm_([1, 2], 1.0), TypeError, "parameters must be tensors, element 0 was int"),
        (lambda: nn.clip_grad_norm_(nn.Linear(1, 1), 1.0), TypeError, r"as net.parameters\(\), was Linear"),
        (lambda: lr_scheduler.StepLR(optimizer(), 0), ValueError, "step_size must be at least 1"),
    ],
)
def test_errors_name_the_option(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_groups_have_options_of_their_own():
    first, second = nn.Parameter(np.zeros(1, np.float32)), nn.Parameter(np.zeros(1, np.float32))
    made = SGD([{"params": [first], "lr": 0.5}, {"params": [second]}], lr=0.1)
    assert [group["lr"] for group in made.param_groups] == [0.5, 0.1]
    scheduler = lr_scheduler.StepLR(made, 1, 0.5)
    scheduler.step()
    assert scheduler.get_last_lr() == [0.25, 0.05]


@pytest.mark.parametrize(("total", "rise"), [(5, 0.2), (3, 0.0), (2, 0.2), (4, 1.0)])
def test_one_cycle_with_no_room_to_rise_begins_at_the_top_and_ends_low(total, rise):
    """A fifth of five steps is one, and the way up from the first step to the first step has no length."""
    optimizer = nn.optim.SGD([nn.Parameter(np.zeros(1, np.float32))], lr=1.0)
    schedule = nn.lr_scheduler.OneCycleLR(optimizer, 1.0, total, pct_start=rise)
    rates = [schedule.rate(1.0, n) for n in range(total)]
    assert max(rates) <= 1.0
    assert rates[-1] == (1.0 if rise == 1 else pytest.approx(1 / 25 / 1e4))
    if rise < 1:
        assert rates == sorted(rates, reverse=True)


def test_a_rate_that_cannot_be_is_refused_and_the_step_does_not_count():
    schedule = lr_scheduler.StepLR(optimizer(), 1, 10.0)
    schedule.last_epoch = 39
    with pytest.raises(ValueError, match="the learning rate after 40 steps must be from 0 to"):
        schedule.step()
    schedule.last_epoch = 400
    with pytest.raises(ValueError, match=r"after 401 steps .* larger than any float"):
        schedule.step()
    assert schedule.last_epoch == 400
    schedule = lr_scheduler.OneCycleLR(optimizer(), 1.0, 2)
    schedule.step()
    schedule.step()
    last = schedule.get_last_lr()
    with pytest.raises(ValueError, match="was called 3 times, total_steps is 2"):
        schedule.step()
    assert (schedule.last_epoch, schedule.get_last_lr()) == (2, last)


def test_a_rate_that_float32_rounds_to_zero_is_zero():
    made = optimizer()
    schedule = lr_scheduler.StepLR(made, 1, 1e-30)
    schedule.step()
    assert schedule.get_last_lr() == [0.1 * 1e-30]
    schedule.step()
    assert schedule.get_last_lr() == [0.0]
    made.param_groups[0]["params"][0].grad = nn.Tensor([1.0])
    made.step()


def test_a_function_may_return_numbers_of_numpy():
    schedule = lr_scheduler.LambdaLR(optimizer(), lambda n: np.float32(0.5))
    assert json.loads(json.dumps(schedule.optimizer.state_dict()["groups"]))[0]["lr"] == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("values", "error", "said"),
    [
        ({"last_epoch": 5, "base_lrs": [1.0, 2.0]}, ValueError, "base_lrs must be a list with a rate for each of 1"),
        ({"last_epoch": -3, "base_lrs": [1.0]}, ValueError, "last_epoch must be at least 0"),
        ({"last_epoch": 2.5, "base_lrs": [1.0]}, TypeError, "last_epoch must be an integer"),
        ({"last_epoch": 5, "base_lrs": [math.nan]}, ValueError, "base_lrs must be a finite number"),
        ({"last_epoch": 5}, ValueError, "lacks base_lrs"),
        (3, TypeError, "was int"),
    ],
)
def test_a_state_that_no_schedule_has_is_refused_and_changes_nothing(values, error, said):
    schedule = lr_scheduler.StepLR(optimizer(), 2, 0.5)
    with pytest.raises(error, match=said):
        schedule.load_state_dict(values)
    assert (schedule.state_dict(), schedule.get_last_lr()) == ({"last_epoch": 0, "base_lrs": [0.1]}, [0.1])


def stepped(kind, sizes=(1, 2), steps=1, **options):
    """An optimiser with groups of so many parameters, each of two elements."""
    groups = [{"params": [nn.Parameter(np.ones(2, np.float32)) for _ in range(size)]} for size in sizes]
    made = kind(groups, lr=0.1, **options)
    for _ in range(steps):
        for group in made.param_groups:
            for parameter in group["params"]:
                parameter.grad = nn.Tensor([1.0, 2.0])
        made.step()
    return made


def without(values, key):
    return {name: value for name, value in values.items() if name != key}


@pytest.mark.parametrize(
    ("spoil", "error", "said"),
    [
        (lambda v: stepped(SGD, momentum=0.9).state_dict(), ValueError, "those of Adam with 3 parameters"),
        (lambda v: stepped(SGD).state_dict(), ValueError, "must have the options of Adam.* lacks betas"),
        (lambda v: v | {"arrays": {"-1.exp_avg": np.zeros(2, np.float32)}}, ValueError, "-1.exp_avg is none of these"),
        (lambda v: v | {"arrays": {"a": np.zeros(2, np.float32)}}, ValueError, "a is none of these"),
        (lambda v: v | {"arrays": {}}, ValueError, "must have exp_avg of group 0, which has made 1 steps"),
        (lambda v: v | {"arrays": without(v["arrays"], "2.exp_avg_sq")}, ValueError, "must have 2.exp_avg_sq"),
        (lambda v: v | {"arrays": v["arrays"] | {"0.exp_avg": np.zeros(2)}}, ValueError, "was float64"),
        (lambda v: v | {"arrays": v["arrays"] | {"0.exp_avg": [0, 0]}}, TypeError, "0.exp_avg must be a NumPy array"),
        (lambda v: stepped(Adam, (2, 1)).state_dict(), ValueError, r"of the parameters \[0\], was of \[0, 1\]"),
        (lambda v: v | {"groups": [v["groups"][0] | {"params": []}, v["groups"][1]]}, ValueError, r"was of \[\]"),
        (lambda v: v | {"groups": [v["groups"][0], v["groups"][1] | {"lr": math.nan}]}, ValueError, "lr must be a fin"),
        (lambda v: v | {"groups": [v["groups"][0] | {"step": "3"}, v["groups"][1]]}, TypeError, "step must be an int"),
        (
            lambda v: v | {"groups": [v["groups"][0] | {"step": -5}, v["groups"][1]]},
            ValueError,
            "step must be at least",
        ),
        (lambda v: v | {"groups": [v["groups"][0] | {"rate": 1}, v["groups"][1]]}, ValueError, "it has rate"),
        (lambda v: v | {"groups": [v["groups"][0]]}, ValueError, "must have 2 groups, had 1"),
        (lambda v: v | {"groups": [3, 4]}, TypeError, "group 0 of values must be a dict of options, was int"),
        (lambda v: v | {"groups": 3}, TypeError, "must be a list and a dict, were int and dict"),
        (lambda v: {}, ValueError, "lacks groups and arrays"),
        (lambda v: 3, TypeError, r"must be what state_dict\(\) returned, was int"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(spoil, error, said):
    made = stepped(Adam)
    before = made.state_dict()
    with pytest.raises(error, match=said):
        made.load_state_dict(spoil(stepped(Adam).state_dict()))
    after = made.state_dict()
    assert after["groups"] == before["groups"]
    assert all(np.array_equal(after["arrays"][key], array) for key, array in before["arrays"].items())


def test_adams_state_is_refused_by_sgd():
    with pytest.raises(ValueError, match=r"SGD with 3 parameters, which keeps momentum_buffer by position; 0\.exp_avg"):
        stepped(SGD).load_state_dict(stepped(Adam).state_dict())


def test_a_state_from_before_the_first_step_takes_back_the_steps():
    made = stepped(Adam, steps=2)
    first = stepped(Adam, steps=0).state_dict()
    for group in first["groups"]:
        del group["params"]  # as earlier versions wrote it
    made.load_state_dict(first)
    assert made.state_dict() == stepped(Adam, steps=0).state_dict()


def test_a_step_that_fails_does_not_count():
    made = stepped(Adam, (1,))
    (parameter,) = made.param_groups[0]["params"]
    parameter.grad = nn.Tensor([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="gradients"):
        made.step()
    assert made.param_groups[0]["step"] == 1


def test_momentum_can_be_set_after_a_step():
    made = stepped(SGD, (1,))
    made.param_groups[0]["momentum"] = 0.9
    (parameter,) = made.param_groups[0]["params"]
    before = parameter.detach().numpy().copy()
    for n in (1.0, 1.9):
        made.step()
        after = parameter.detach().numpy().copy()
        np.testing.assert_allclose(before - after, 0.1 * n * np.float32([1, 2]), rtol=1e-5)
        before = after


def test_clipping_takes_one_tensor():
    parameter = nn.Parameter(np.zeros(2, np.float32))
    parameter.grad = nn.Tensor([3.0, 4.0])
    assert nn.clip_grad_norm_(parameter, 1.0).numpy() == pytest.approx(5.0)
    np.testing.assert_allclose(parameter.grad.numpy(), [0.6, 0.8], rtol=1e-5)
