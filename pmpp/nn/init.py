"""First values of parameters, drawn by counters: the same numbers on every machine.

`manual_seed` begins the sequence anew. Each array takes its own part of it, in the order in which layers are made.
"""

from __future__ import annotations

import math
import threading
import typing
from collections.abc import Sequence

from pmpp.kernels import random
from pmpp.kernels.random import kaiming_normal, kaiming_uniform, xavier_normal, xavier_uniform
from pmpp.runtime.check import as_integer

__all__ = [
    "default",
    "kaiming_normal",
    "kaiming_uniform",
    "manual_seed",
    "next_offset",
    "next_rounding",
    "normal",
    "resume",
    "seed",
    "uniform",
    "where",
    "xavier_normal",
    "xavier_uniform",
]


class _Sequence(threading.local):
    seed, drawn, rounded = 0, 0, 0


_sequence = _Sequence()


def manual_seed(number: int) -> None:
    """Begin the sequence of random numbers that layers, dropout and loaders draw from."""
    _sequence.seed, _sequence.drawn, _sequence.rounded = as_integer("number", number, 0, 2**63 - 1), 0, 0


def seed() -> int:
    """The number that `manual_seed` was given; 0 before."""
    return _sequence.seed


def where() -> tuple[int, int, int]:
    """What `resume` goes on from: the seed, and how many parts `next_offset` and `next_rounding` have given."""
    return _sequence.seed, _sequence.drawn, _sequence.rounded


def resume(at: Sequence[int]) -> None:
    """Go on in the sequence from there: three numbers of `where`, or its first two to leave `next_rounding` as it is.

    Raises TypeError or ValueError if ``at`` is nothing that `where` could return; then nothing was changed.
    """
    if not isinstance(at, tuple | list):
        raise TypeError(f"at must be what where() returned, was {at!r}")
    if len(at) not in (2, 3):
        raise ValueError(f"at must be what where() returned, two or three numbers, was {at!r}")
    number, drawn = as_integer("seed", at[0], 0, 2**63 - 1), as_integer("drawn", at[1], 0)
    rounded = as_integer("rounded", at[2], 0) if len(at) == 3 else _sequence.rounded
    _sequence.seed, _sequence.drawn, _sequence.rounded = number, drawn, rounded


def next_offset() -> int:
    """A part of the sequence that nobody else has: 2^32 numbers."""
    _sequence.drawn += 1
    return _sequence.drawn << 32


def next_rounding() -> int:
    """A part of the sequence for what is rounded at random: 2^32 numbers of its second half.

    They have a count of their own. So parameters and dropout are the same with `compressed_activations` and without.
    """
    _sequence.rounded += 1
    return 2**62 + (_sequence.rounded << 32)


def uniform(shape: tuple[int, ...], low: float, high: float) -> typing.Any:
    """A device array of numbers between ``low`` and ``high``, each as likely."""
    from pmpp.kernels import elementwise

    drawn = random.uniform(shape, seed=seed(), offset=next_offset())
    scaled = elementwise.multiply(drawn, high - low, out=drawn)
    return elementwise.add(scaled, low, out=drawn)


def normal(shape: tuple[int, ...], mean: float = 0.0, std: float = 1.0) -> typing.Any:
    """A device array of normal numbers."""
    from pmpp.kernels import elementwise

    drawn = random.normal(shape, seed=seed(), offset=next_offset())
    scaled = elementwise.multiply(drawn, std, out=drawn)
    return elementwise.add(scaled, mean, out=drawn)


def default(shape: tuple[int, ...], fan_in: int) -> typing.Any:
    """What PyTorch's Linear and Conv2d begin with: uniform from -1 / sqrt(fan_in) to 1 / sqrt(fan_in).

    fan_in is the number of inputs that add up to one output.
    """
    bound = 1 / math.sqrt(fan_in)
    return uniform(shape, -bound, bound)
