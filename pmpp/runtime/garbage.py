"""No search for garbage while a CUDA graph is recorded.

What Python finds in circles it destroys at any moment, and so perhaps between the beginning and the end of a capture:
a graph of another training that is not needed any more, say, with its memory. The driver refuses to free memory then.
The memory would be lost, and a message printed that nobody can explain.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["paused"]


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """No search until the block has ended. Within another such block nothing is done.

    >>> with paused():
    ...     gc.isenabled()
    False
    """
    searching = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if searching:
            gc.enable()
