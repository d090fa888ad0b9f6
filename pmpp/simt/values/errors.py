"""What the interpreter says when it will not go on.

Every error carries the kernel's file and line where there is one, because the reader's next move is to look there.
"""

from __future__ import annotations

from dataclasses import dataclass


class SimtError(RuntimeError):
    """Base of every error that the interpreter raises on purpose."""


class UnsupportedError(SimtError):
    """The kernel uses something that a GPU kernel, or this interpreter, does not have."""


class LaunchError(SimtError, ValueError):
    """The launch configuration is impossible: grid, block or shared memory."""


class TraceError(SimtError, ValueError):
    """What is asked of a trace is not in it, or it would take more memory than it may."""


class ArgumentError(SimtError, TypeError):
    """A kernel argument is missing, of the wrong type, or of the wrong dtype."""


@dataclass(frozen=True)
class Hazard:
    """One mistake that a sanitizer would report.

    kind      "race", "out_of_bounds", "uninitialised_read", "divergent_barrier" or "lost_write"
    space     "global", "shared", "local", "const" or "register"
    variable  the array or variable as the kernel's source names it
    line      line of the kernel's file
    block     (x, y, z) of the block
    thread    (x, y, z) of the thread within its block
    message   one sentence for a reader
    """

    kind: str
    space: str
    variable: str
    line: int
    block: tuple[int, int, int]
    thread: tuple[int, int, int]
    message: str

    def __str__(self) -> str:
        return self.message


class HazardError(SimtError):
    """A hazard met where hazards are errors; `.hazard` holds it."""

    def __init__(self, hazard: Hazard, where: str = "") -> None:
        super().__init__(f"{where}{hazard.kind.replace('_', ' ')}: {hazard.message}")
        self.hazard = hazard


class OutOfBoundsError(HazardError, IndexError):
    """An access outside an array."""


def hazard_error(hazard: Hazard, where: str = "") -> HazardError:
    """The exception for `hazard`; out of bounds is an IndexError too, as it is in plain Python."""
    return (OutOfBoundsError if hazard.kind == "out_of_bounds" else HazardError)(hazard, where)
