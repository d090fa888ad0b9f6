"""Exercises of notebooks/105_mixed_precision.ipynb: the rule of a loss scale, and a step with master weights."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator

import numpy as np

from pmpp.nn.exercises import Exercise, Mistake

# ----------------------------------------------------------------------------------------------------------- scaler


def updated(scale: float, good: int, finite: bool, interval: int) -> tuple[float, int]:
    """The scale after a step, and how many steps in a row had finite gradients since it last changed."""
    if not finite:
        return scale / 2, 0
    if good + 1 == interval:
        return scale * 2, 0
    return scale, good + 1


def _pair(found: typing.Any, case: str) -> tuple[float, int]:
    if found is None:
        raise Mistake("not started", "update() returned None")
    if not (isinstance(found, tuple | list) and len(found) == 2):
        raise Mistake("wrong form", f"{case} it must return two things, a scale and a count, was {found!r}")
    return found[0], found[1]


def judge_scaler(answer: Callable) -> str:
    """Single steps first, each with its own mistake; then many steps, of which some are not finite."""
    for scale, good, interval in ((1024.0, 0, 5), (1024.0, 3, 5), (8.0, 4, 5), (0.5, 0, 1)):
        case = f"with scale {scale:g}, {good} good steps, an interval of {interval} and gradients that are not finite"
        now, count = _pair(answer(scale, good, False, interval), case)
        if now != scale / 2:
            raise Mistake("wrong back-off", f"{case} the scale must become {scale / 2:g}, was {now}")
        if count != 0:
            raise Mistake("count goes on", f"{case} the count must begin again at 0, was {count}")
    for scale, good, interval in ((1024.0, 0, 5), (1024.0, 3, 5), (8.0, 4, 5), (0.5, 0, 1), (8.0, 1, 2)):
        case = f"with scale {scale:g}, {good} good steps, an interval of {interval} and finite gradients"
        now, count = _pair(answer(scale, good, True, interval), case)
        must, counted = updated(scale, good, True, interval)
        if now > must:
            raise Mistake("grows too early", f"{case} the scale must be {must:g}, was {now}")
        if now < must:
            raise Mistake("grows too late", f"{case} the scale must be {must:g}, was {now}")
        if count != counted:
            name = "count goes on" if counted == 0 else "does not count"
            raise Mistake(name, f"{case} the count must be {counted}, was {count}")
    finite = np.random.default_rng(2).random(200) > 0.1
    found = must = 2.0**16, 0
    for i, good in enumerate(finite.tolist()):
        found, must = _pair(answer(*found, good, 4), f"in step {i}"), updated(*must, good, 4)
        if tuple(found) != must:
            raise Mistake("wrong sequence", f"in step {i} of many the scale and the count must be {must}, were {found}")
    return "The scale halves at once, and doubles after enough good steps in a row."


# ----------------------------------------------------------------------------------------------------------- master


def stepped(master: np.ndarray, gradients: np.ndarray, scale: float, rate: float) -> np.ndarray:
    """A step of SGD on float32 weights, from scaled float16 gradients; the weights as float16."""
    wide = gradients.astype(np.float32)
    if np.isfinite(wide).all():
        master -= rate * (wide / scale)
    return master.astype(np.float16)


def _called(answer: Callable, master: np.ndarray, gradients: np.ndarray, scale: float, rate: float) -> np.ndarray:
    """The answer's result, after what must hold of every call."""
    was = gradients.copy()
    with np.errstate(all="ignore"):
        found = answer(master, gradients, scale, rate)
    if found is None:
        raise Mistake("not started", "step() returned None")
    if not np.array_equal(gradients, was, equal_nan=True):
        raise Mistake("gradients change", "step() writes into the gradients, which are the caller's")
    if getattr(found, "dtype", None) != np.float16:
        raise Mistake("wrong dtype", f"the result must be an array of float16, was {getattr(found, 'dtype', found)!s}")
    if np.shares_memory(found, master):
        raise Mistake("wrong dtype", "the result must be a new array, not a view of the master weights")
    return found


def _agree(found: np.ndarray, master: np.ndarray, case: str) -> None:
    if not np.array_equal(found, master.astype(np.float16)):
        raise Mistake("wrong weights", f"{case} the result must be the master weights as they now are, in float16")


def judge_master(answer: Callable) -> str:
    """A step that 16 bits hold, then steps that are lost, gradients that vanish, and some that are not finite."""
    master, gradients = np.array([1.0, 2.0], np.float32), np.array([512.0, -1024.0], np.float16)
    found = _called(answer, master, gradients, 1024.0, 0.5)
    case = "with weights [1, 2], gradients [512, -1024], scale 1024 and rate 0.5"
    if not np.allclose(master, [0.75, 2.5]):
        if np.array_equal(master, [1.0, 2.0]):
            raise Mistake("master is not changed", f"{case} the master weights are still [1, 2]: write into them")
        if np.allclose(master, [1 - 256, 2 + 512]):
            raise Mistake("not unscaled", f"{case} the step is {1024} times too large: divide by the scale")
        raise Mistake("wrong step", f"{case} the master weights must be [0.75, 2.5], were {master.tolist()}")
    _agree(found, master, case)

    master, gradients = np.ones(3, np.float32), np.full(3, 0.1024, np.float16)
    for _ in range(10):
        found = _called(answer, master, gradients, 1024.0, 1.0)
    case = "after ten steps of about 1e-4 from 1"
    if not np.allclose(master, 1 - 10 * np.float32(gradients[0]) / 1024, rtol=0, atol=1e-5):
        raise Mistake("updates are lost", f"{case} the master weights must be about 0.999, were {master[0]:.6f}")
    _agree(found, master, case)

    master, gradients = np.ones(3, np.float32), np.full(3, 2.0**-14, np.float16)
    _called(answer, master, gradients, 2.0**16, 2.0**28)
    if not np.allclose(master, 0.75):
        why = "dividing 2**-14 by a scale of 2**16 gives 2**-30, which float16 does not have"
        raise Mistake("gradients vanish", f"{why}: the master weights must be 0.75, were {master[0]}")

    for bad in (np.inf, -np.inf, np.nan):
        master, gradients = np.ones(3, np.float32), np.array([1.0, bad, 1.0], np.float16)
        found = _called(answer, master, gradients, 1024.0, 0.5)
        if not np.array_equal(master, np.ones(3)):
            raise Mistake("takes a bad step", f"with a gradient of {bad} no weight may change, were {master.tolist()}")
        _agree(found, master, f"with a gradient of {bad}")
    return "Small steps add up, small gradients count, and a step that is not finite is skipped."


def _all() -> Iterator[Exercise]:
    yield Exercise(
        "mixed_precision/scaler",
        "Write the rule of a dynamic loss scale. After a step whose gradients are not all finite the scale halves, and "
        "the count of good steps begins again. After `interval` good steps in a row it doubles, and the count begins "
        "again, too. `good` is how many there have been before this one.",
        "update(scale, good, finite, interval) -> (scale, good)",
        judge_scaler,
        (
            "There are three cases: a bad step, the last good one of an interval, and any other good one.",
            "This step counts: with interval 1 every good step doubles the scale.",
        ),
        updated,
    )
    yield Exercise(
        "mixed_precision/master",
        "Write a step of SGD with master weights. `master` is a float32 array, which changes in place. `gradients` is "
        "a float16 array of gradients times `scale`, and stays as it is. If one of them is not finite, no weight "
        "changes. Return the weights as a new float16 array.",
        "step(master, gradients, scale, rate) -> array of float16",
        judge_master,
        (
            "In which dtype does a division of a float16 array take place? astype makes another one.",
            "np.isfinite(array).all() says whether the step may be taken. `master -= ...` writes in place.",
        ),
        stepped,
    )


EXERCISES = tuple(_all())
