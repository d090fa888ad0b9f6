"""Code that may have to wait: closures that are generators.

A thread that waits for another one must stop in the middle of its kernel and go on later.  Here it needs no
operating-system thread for that (a browser has none): every closure inside which a thread may have to wait is a
generator, and where it must wait, it yields.  The scheduler goes on with it when its turn comes.  What cannot wait,
which is most of a kernel, remains plain calls.  In lockstep nobody yields, and `through` runs a generator to its end.

Where may a thread wait?  At a barrier, after a round of a loop, and inside a call of a function with one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

#: What a closure that may wait returns: it yields nothing, and ends with the closure's result.
Waits = Generator[None, None, Any]


def suspending(function: Callable[..., Waits]) -> Callable[..., Waits]:
    """Marks a function that returns such a generator."""
    function.suspends = True  # type: ignore[attr-defined]
    return function


def suspends(function: Callable) -> bool:
    """Whether a function is marked so."""
    return getattr(function, "suspends", False)


def through(generator: Waits) -> Any:
    """The result of code that could wait but does not: in lockstep, and in a dry run."""
    try:
        next(generator)
    except StopIteration as end:
        return end.value
    raise AssertionError("a thread waits although no threads take turns")


def plain(function: Callable) -> Callable:
    """The function as one that returns its result, run through if it could wait."""
    return (lambda *args: through(function(*args))) if suspends(function) else function
