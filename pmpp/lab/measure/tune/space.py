"""What can be chosen: named parameters with their values, and restrictions that refuse by name."""

from __future__ import annotations

import collections
import itertools
import typing
from collections.abc import Callable, Sequence

__all__ = ["NothingAllowed", "Refused", "Space", "at_most"]

Restriction = Callable[[typing.Any], bool]


class NothingAllowed(ValueError):
    """The restrictions refuse every configuration. The message says which refuses how many."""


class Refused(typing.NamedTuple):
    """A configuration that cannot run: ``by`` is the restriction's name, ``why`` says it in words."""

    configuration: typing.Any
    by: str
    why: str


def at_most(name: str, value: Callable[[typing.Any], float], most: float) -> Restriction:
    """A restriction: ``value(configuration)`` may be at most ``most``. Both numbers stand in what it says.

    >>> threads = at_most("threads", lambda c: c[0] * c[1], 1024)
    >>> threads((32, 32)), threads((64, 32)), threads.why((64, 32))
    (True, False, '2,048 threads, at most 1,024')
    """

    def allows(configuration: typing.Any) -> bool:
        return value(configuration) <= most

    allows.__name__ = name
    allows.why = lambda c: f"{value(c):,} {name.replace('_', ' ')}, at most {most:,}"  # type: ignore[attr-defined]
    return allows


class Space:
    """All configurations of a kernel.

    Args:
        kind: a NamedTuple class; a configuration is one of these, and its fields are the parameters.
        values: for each field, by its name, the values to choose from.
        restrictions: functions of a configuration that return whether it can run. The function's name is what a
            configuration is refused by, and the first line of its docstring says why. `at_most` makes such functions.

    Raises ValueError, naming it, for a field without values, for values without a field, for a value twice, and for two
    restrictions of one name.

    >>> class Tile(typing.NamedTuple):
    ...     side: int
    ...     rows: int
    >>> def whole_columns(tile):
    ...     "Every thread moves equally many elements."
    ...     return tile.side % tile.rows == 0
    >>> space = Space(Tile, {"side": (8, 16), "rows": (8, 16)}, [whole_columns])
    >>> space.allowed()
    [Tile(side=8, rows=8), Tile(side=16, rows=8), Tile(side=16, rows=16)]
    >>> space.refused()[0].by
    'whole_columns'
    """

    def __init__(self, kind: typing.Any, values: dict[str, Sequence], restrictions: Sequence[Restriction] = ()) -> None:
        for name in kind._fields:
            if not values.get(name):
                raise ValueError(f"values must have a value at least for {name!r} of {kind.__name__}, had none")
        for name, choices in values.items():
            if name not in kind._fields:
                raise ValueError(f"values must be for {', '.join(kind._fields)}, was also for {name!r}")
            if len(set(choices)) < len(choices):
                raise ValueError(f"values of {name!r} must differ, were {tuple(choices)}")
        names = [one.__name__ for one in restrictions]
        if len(set(names)) < len(names):
            raise ValueError(f"restrictions must have different names, had {', '.join(names)}")
        self.kind = kind
        self.values = {name: tuple(values[name]) for name in kind._fields}
        self.restrictions = tuple(restrictions)

    def __len__(self) -> int:
        """How many configurations there are, refused ones among them."""
        size = 1
        for choices in self.values.values():
            size *= len(choices)
        return size

    def configurations(self) -> list[typing.Any]:
        """All of them, the last field changing fastest."""
        return [self.kind(*chosen) for chosen in itertools.product(*self.values.values())]

    def refusal(self, configuration: typing.Any) -> Refused | None:
        """The first restriction that refuses a configuration; None if all allow it."""
        for one in self.restrictions:
            if not one(configuration):
                said = getattr(one, "why", None)
                why = said(configuration) if said else (one.__doc__ or one.__name__).partition("\n")[0]
                return Refused(configuration, one.__name__, why)
        return None

    def refused(self) -> list[Refused]:
        """All configurations that a restriction refuses."""
        return [refusal for one in self.configurations() if (refusal := self.refusal(one))]

    def allowed(self) -> list[typing.Any]:
        """All configurations that no restriction refuses.

        Raises NothingAllowed, with the names of the restrictions, if none is left.
        """
        found = [one for one in self.configurations() if self.refusal(one) is None]
        if not found:
            counts = collections.Counter(refusal.by for refusal in self.refused())
            said = ", ".join(f"{name} refuses {many}" for name, many in counts.most_common())
            raise NothingAllowed(f"all {len(self)} configurations of {self.kind.__name__} are refused: {said}")
        return found

    def narrowed(self, **values: Sequence) -> Space:
        """The same space with other values for some parameters."""
        return Space(self.kind, {**self.values, **values}, self.restrictions)
