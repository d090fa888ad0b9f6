"""Schedules of the learning rate: `step` after each epoch, or each batch, sets that of every group anew.

A schedule is a function of the number of steps so far, and so can be drawn, tested and resumed. Names are PyTorch's.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable

import numpy as np

from pmpp.nn.optim import Optimizer, number
from pmpp.runtime.check import as_integer

__all__ = ["CosineAnnealingLR", "LambdaLR", "LinearLR", "OneCycleLR", "Scheduler", "StepLR"]

LARGEST = float(np.finfo(np.float32).max)  # of a rate


def positive(name: str, value: typing.Any) -> float:
    """An option as a float above 0. Raises TypeError or ValueError."""
    made = number(name, value, 0)
    if not made:
        raise ValueError(f"{name} must be above 0, was {value}")
    return made


class Scheduler:
    """A schedule. Attributes: last_epoch, how often `step` was called; base_lrs, the rates at the beginning.

    A rate that float32 rounds to 0 is set as 0, since kernels have it in float32. `step` and `load_state_dict` raise
    TypeError or ValueError if the schedule has no rate there from 0 to the largest float32. Then nothing was changed.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer must be an Optimizer, was {type(optimizer).__name__}")
        self.optimizer, self.last_epoch = optimizer, 0
        self.base_lrs = [group["lr"] for group in optimizer.param_groups]
        self._set(0, self.base_lrs)

    def rate(self, base: float, n: int) -> float:
        """The learning rate after n steps."""
        raise NotImplementedError

    def step(self) -> None:
        """One step further."""
        self._set(self.last_epoch + 1, self.base_lrs)

    def get_last_lr(self) -> list[float]:
        """The rates that are set."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, typing.Any]:
        """What is needed to go on later."""
        return {"last_epoch": self.last_epoch, "base_lrs": list(self.base_lrs)}

    def load_state_dict(self, values: typing.Mapping[str, typing.Any]) -> None:
        """Go on from there. Raises TypeError or ValueError for what `state_dict` cannot return."""
        self._set(*self.check_state_dict(values))

    def check_state_dict(self, values: typing.Mapping[str, typing.Any]) -> tuple[int, list[float]]:
        """Raise what `load_state_dict` would raise, and change nothing. Returns last_epoch and base_lrs."""
        if not isinstance(values, typing.Mapping):
            raise TypeError(f"values must be what state_dict() returned, was {type(values).__name__}")
        missing = [name for name in ("last_epoch", "base_lrs") if name not in values]
        if missing:
            raise ValueError(f"values must be what state_dict() returned, lacks {' and '.join(missing)}")
        groups, bases = len(self.optimizer.param_groups), values["base_lrs"]
        if not isinstance(bases, tuple | list) or len(bases) != groups:
            raise ValueError(f"base_lrs must be a list with a rate for each of {groups} groups, was {bases!r}")
        last, bases = as_integer("last_epoch", values["last_epoch"], 0), [number("base_lrs", x, 0) for x in bases]
        self._rates(last, bases)
        return last, bases

    def _rates(self, n: int, bases: list[float]) -> list[float]:
        """The rates after n steps, checked."""
        name = f"the learning rate after {n} steps"
        try:
            rates = [number(name, self.rate(base, n), 0, LARGEST) for base in bases]
        except OverflowError:
            raise ValueError(f"{name} must be from 0 to {LARGEST}, was larger than any float") from None
        return [rate if np.float32(rate) else 0.0 for rate in rates]

    def _set(self, n: int, bases: list[float]) -> None:
        """Set the rates after n steps, all or none."""
        rates = self._rates(n, bases)
        self.last_epoch, self.base_lrs = n, bases
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


class LambdaLR(Scheduler):
    """The rate at the beginning, times a function of the number of steps."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Callable[[int], float]) -> None:
        self.factor = lr_lambda
        super().__init__(optimizer)

    def rate(self, base: float, n: int) -> float:
        """The learning rate after n steps."""
        return base * self.factor(n)


class StepLR(Scheduler):
    """Times ``gamma`` every ``step_size`` steps."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1) -> None:
        self.step_size, self.gamma = as_integer("step_size", step_size, 1), number("gamma", gamma, 0)
        super().__init__(optimizer)

    def rate(self, base: float, n: int) -> float:
        """The learning rate after n steps."""
        return base * self.gamma ** (n // self.step_size)


class CosineAnnealingLR(Scheduler):
    """Half a cosine from the rate at the beginning to ``eta_min`` in ``T_max`` steps, and back again."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0) -> None:
        self.T_max, self.eta_min = as_integer("T_max", T_max, 1), number("eta_min", eta_min, 0)
        super().__init__(optimizer)

    def rate(self, base: float, n: int) -> float:
        """The learning rate after n steps."""
        return self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * n / self.T_max)) / 2


class LinearLR(Scheduler):
    """A warm-up: from ``start_factor`` to ``end_factor`` times the rate in ``total_iters`` steps, then constant."""

    def __init__(
        self, optimizer: Optimizer, start_factor: float = 1 / 3, end_factor: float = 1.0, total_iters: int = 5
    ) -> None:
        self.start_factor, self.end_factor = (
            number("start_factor", start_factor, 0),
            number("end_factor", end_factor, 0),
        )
        self.total_iters = as_integer("total_iters", total_iters, 1)
        super().__init__(optimizer)

    def rate(self, base: float, n: int) -> float:
        """The learning rate after n steps."""
        share = min(n, self.total_iters) / self.total_iters
        return base * (self.start_factor + (self.end_factor - self.start_factor) * share)


class OneCycleLR(Scheduler):
    """Up from ``max_lr / div_factor`` to ``max_lr``, and down to ``1 / final_div_factor`` of that, by cosines.

    Source: L. Smith and N. Topin, Super-Convergence (arXiv:1708.07120); PyTorch's OneCycleLR, without its momentum.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float,
        total_steps: int,
        pct_start: float = 0.3,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
    ) -> None:
        self.max_lr, self.total_steps = number("max_lr", max_lr, 0), as_integer("total_steps", total_steps, 2)
        self.pct_start = number("pct_start", pct_start, 0, 1)
        self.div_factor = positive("div_factor", div_factor)
        self.final_div_factor = positive("final_div_factor", final_div_factor)
        super().__init__(optimizer)

    def rate(self, base: float, n: int) -> float:
        """The learning rate after n steps. ``base`` is not used."""
        if n > self.total_steps:
            raise ValueError(f"step() was called {n} times, total_steps is {self.total_steps}")
        first = self.max_lr / self.div_factor
        top, end = self.pct_start * self.total_steps - 1, self.total_steps - 1
        if n < top:
            return self.max_lr + (first - self.max_lr) * (1 + math.cos(math.pi * n / top)) / 2
        last, share = first / self.final_div_factor, min((n - top) / (end - top), 1) if end > top else 0.0
        return last + (self.max_lr - last) * (1 + math.cos(math.pi * share)) / 2
