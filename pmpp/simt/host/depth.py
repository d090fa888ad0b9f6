"""Room for calls within calls: Python's recursion limit while a kernel with device functions runs.

Each call in a kernel nests several Python calls here, so 128 calls deep (front/calls.py) need more than Python's usual
limit of 1,000.  The limit is the whole process's, and launches in several threads may overlap: the first one in raises
it, the last one out puts it back.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

#: Python calls that 128 nested calls of a kernel can take.
DEEP = 20_000

_lock = threading.Lock()
_inside = 0  # launches that need the room now
_usual = 0  # the limit before the first of them


@contextlib.contextmanager
def deep_calls() -> Iterator[None]:
    """Inside, Python nests at least DEEP calls; then as many as before, unless somebody else changed the limit."""
    global _inside, _usual  # noqa: PLW0603
    with _lock:
        if _inside == 0:
            _usual = sys.getrecursionlimit()
        _inside += 1
        raised = max(_usual, DEEP)
        sys.setrecursionlimit(max(raised, sys.getrecursionlimit()))
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0 and sys.getrecursionlimit() == raised:
                sys.setrecursionlimit(_usual)
