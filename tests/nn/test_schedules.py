"""Schedules of the learning rate, and options of optimisers."""

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
        (lambda: lr_scheduler.StepLR(None, 2), TypeError, "optimizer must be an Optimizer"),
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
