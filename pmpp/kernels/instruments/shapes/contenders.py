"""What the rooms of this package share: a workload of a drawn shape."""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Mapping

from pmpp.lab.measure.arrays import copied
from pmpp.lab.measure.bench import Workload
from pmpp.lab.measure.shapes.drawing import Shape

__all__ = ["workload"]


def workload(
    shape: Shape,
    name: str,
    ours: Callable,
    libraries: Mapping[str, Callable],
    make: Callable[[int], tuple],
    verify: Callable[..., tuple[float, float]],
    output: Callable[[], typing.Any] | None = None,
) -> Workload:
    """``ours``, called ``name``, beside the libraries. The arguments are those of `pmpp.lab.measure.bench.Workload`.

    ``ours`` is called with what ``make`` makes, and with ``out=`` if there is an ``output``. The input sets, which
    differ in their addresses so that no cache has them, are copies of one another: numbers are drawn once a shape.
    """

    def alone(*inputs: typing.Any) -> typing.Any:
        return ours(*inputs)

    def into(*inputs: typing.Any, out: typing.Any = None) -> typing.Any:
        return ours(*inputs, out=out)

    @functools.cache
    def first() -> tuple:
        return make(1)

    contender = alone if output is None else into
    contender.__name__ = name
    return Workload(
        family=shape.line,
        name=shape.name,
        sizes={"flops": shape.flops, "bytes": shape.bytes},
        cost=shape.cost,
        make=lambda _: tuple(copied(x) for x in first()),
        output=output,
        rungs=(contender,),
        libraries=libraries,
        verify=verify,
        cache="warm" if shape.warm or shape.aside else "cold",  # the host's time does not depend on the GPU's caches
    )
