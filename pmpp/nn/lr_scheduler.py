"""Schedules of the learning rate: `step` after each epoch, or each batch, sets that of every group anew.

A schedule is a function of the number of steps so far, and so can be drawn, tested and resumed. Names are PyTorch's.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable

from pmpp.nn.optim import Optimizer, number
from pmpp.runtime.check import as_integer

__all__ = ["CosineAnnealingLR", "LambdaLR", "LinearLR", "OneCycleLR", "Scheduler", "StepLR"]


class Scheduler:
    """A schedule. Attributes: last_epoch, how often `step` was called; base_lrs, the rates at the beginning."""

    def __init__(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer must be an Optimizer, was {type(optimizer).__name__}")
        self.optimizer, self.last_epoch = optimizer, 0
        self.base_lrs = [group["lr"] for group in optimizer.param_groups]
        self._set()

    def rate(self, base: float, n: int) -> float:
        """The learning rate after n steps."""
        raise NotImplementedError

    def step(self) -> None:
        """One step further."""
        self.last_epoch += 1
        self._set()

    def get_last_lr(self) -> list[float]:
        """The rates that are set."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, typing.Any]:
        """What is needed to go on later."""
        return {"last_epoch": self.last_epoch, "base_lrs": list(self.base_lrs)}

    def load_state_dict(self, values: typing.Mapping[str, typing.Any]) -> None:
        """Go on from there."""
        self.last_epoch, self.base_lrs = values["last_epoch"], list(values["base_lrs"])
        self._set()

    def _set(self) -> None:
        for group, base in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = self.rate(base, self.last_epoch)


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
        self.step_size, self.gamma = as_integer("step_size", step_size, 1), number("gamma", gamma)
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
        self.start_factor, self.end_factor = start_factor, end_factor
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
        self.div_factor, self.final_div_factor = div_factor, final_div_factor
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
