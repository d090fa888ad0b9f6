"""Divided parameters: a rank keeps a part of each layer, and has the whole layer only while it computes with it.

`data.ShardedOptimizer` divides the optimiser's state, which is ZeRO's first stage. `FullySharded` divides gradients and
parameters, too::

    net = sharded.FullySharded(group, [nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)])
    optimizer = nn.optim.Adam(net.parameters(), lr=1e-3)
    for indices in data.batches(len(dataset), 16, group.rank, group.size, epoch=0):
        optimizer.zero_grad()
        loss(net, indices).backward()
        optimizer.step()

It is made of two ideas that this workbook has elsewhere. All ranks' parts become a layer's parameters by an all-gather,
and the gradient of an all-gather is a reduce-scatter: so the tape divides the gradients. And what is gathered is not
kept but gathered once more for the backward pass, as a checkpoint computes once more what it does not keep.

Chapter: notebooks/100_data_parallelism.ipynb.
Source: S. Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models (2020), sections 5.2
and 5.3; Y. Zhao et al., PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel (2023).
"""

from __future__ import annotations

import contextlib
import functools
import typing
from collections.abc import Iterator, Sequence

import numpy as np

from pmpp import nn
from pmpp.kernels import elementwise
from pmpp.nn.tape import Function, Tensor, state
from pmpp.nn.utils.checkpoint import checkpoint
from pmpp.parallel.group import Group
from pmpp.runtime import device
from pmpp.runtime.check import as_flag

__all__ = ["FullySharded", "Gathered", "Place", "places_of"]

ALIGNED = 4  # a parameter begins at a multiple of so many floats, where kernels can load 128 bits at once


class Place(typing.NamedTuple):
    """Where a parameter is in its layer's vector, and the modules that have it, under which names."""

    shape: tuple[int, ...]
    begin: int
    end: int
    owners: tuple[tuple[nn.Module, str], ...]


def places_of(layer: nn.Module) -> list[Place]:
    """The places of a layer's parameters. One that several modules of the layer share has one place.

    >>> [(place.shape, place.begin, place.end) for place in places_of(nn.Linear(3, 2))]
    [((2, 3), 0, 6), ((2,), 8, 10)]
    """
    owners: dict[int, tuple[nn.Parameter, list]] = {}
    for module in layer.modules():
        for name, value in vars(module).items():
            if isinstance(value, nn.Parameter):
                owners.setdefault(id(value), (value, []))[1].append((module, name))
    places, begin = [], 0
    for parameter, who in owners.values():
        places.append(Place(parameter.shape, begin, begin + parameter.size, tuple(who)))
        begin = -(-places[-1].end // ALIGNED) * ALIGNED
    return places


class Gathered(Function):
    """A layer's parameters from the parts of all ranks. Their gradients go back as the mean of all ranks', in parts."""

    @staticmethod
    def forward(context: typing.Any, part: Tensor, group: Group, places: Sequence[Place]) -> tuple:
        context.group, context.places, context.shape = group, places, (group.size, part.size)
        vector = group.all_gather(part.array, stream=state.stream).reshape(-1)
        return tuple([vector[one.begin : one.end].reshape(one.shape) for one in places])

    @staticmethod
    def backward(context: typing.Any, *gradients: typing.Any) -> tuple:
        rows = elementwise.full(context.shape, 0.0, stream=state.stream)  # what no parameter fills stays zero
        for place, gradient in zip(context.places, gradients, strict=True):
            into = rows.reshape(-1)[place.begin : place.end]
            elementwise.assign(into, gradient.reshape(-1), stream=state.stream)
        return context.group.reduce_scatter(rows, "mean", stream=state.stream), None, None


class FullySharded(nn.Module):
    """Layers that are computed one after another, whose parameters are divided among the ranks: ZeRO's third stage.

    Args:
        group: the ranks.
        layers: modules, each of which takes what the one before returns. Their parameters become those of rank 0. A
            layer may be a network of its own: what is in it is gathered at once.
        reshard_after_forward: whether a layer's parameters are let go after the forward pass, and gathered and computed
            once more for the backward pass. False keeps them until then, so that gradients and the optimiser's state
            are divided alone: the second stage.

    A rank has 1 / size of all parameters, of their gradients and of the optimiser's state, and beside them one whole
    layer at a time. With ``reshard_after_forward`` it sends half as many bytes again as `data.DataParallel`, and
    computes the forward pass twice. The gradients are averaged over the ranks when ``backward`` returns. Where they are
    accumulated over several passes, each pass sends them. All ranks have to call everything alike.

    Attributes: layers; parts, this rank's part of each layer's parameters (`parameters` has these alone, and none for a
    layer without parameters).

    Raises ValueError if two layers share a parameter, TypeError for what is no module.

    >>> from pmpp import parallel
    >>> def kept(group):
    ...     net = FullySharded(group, [nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)])
    ...     return [part.size for part in net.parameters()]
    >>> parallel.ranks(4, kept)[0]
    [18, 9]
    """

    def __init__(self, group: Group, layers: Sequence[nn.Module], *, reshard_after_forward: bool = True) -> None:
        self.group, self.reshard_after_forward = group, as_flag("reshard_after_forward", reshard_after_forward)
        for k, layer in enumerate(layers):
            if not isinstance(layer, nn.Module):
                raise TypeError(f"layers must be modules, layers[{k}] was {type(layer).__name__}")
        _refuse_shared(layers)
        self.layers = nn.Sequential(*layers)
        self.parts: list[nn.Parameter | None] = []
        self._places = [places_of(layer) for layer in layers]
        for layer, places in zip(layers, self._places, strict=True):
            self.parts.append(self._divide(places) if places else None)
            for buffer in dict(layer.named_buffers()).values():
                group.broadcast(buffer.array, out=buffer.array)
                buffer.changed()

    def _divide(self, places: Sequence[Place]) -> nn.Parameter:
        """This rank's part of a layer, which has no parameters from here on."""
        rows = elementwise.full((self.group.size, -(-places[-1].end // self.group.size)), 0.0)
        for place in places:
            module, name = place.owners[0]
            elementwise.assign(rows.reshape(-1)[place.begin : place.end], vars(module)[name].array.reshape(-1))
        self.group.broadcast(rows, out=rows)
        _lend(places, [None] * len(places))
        return nn.Parameter(device.to_host(rows[self.group.rank]))

    def forward(self, x: Tensor) -> Tensor:
        """What the last layer says. Called by all ranks."""
        for k, part in enumerate(self.parts):
            run = functools.partial(self._run, k)
            if part is None:
                x = self.layers[k](x)
            elif self.reshard_after_forward and state.recording:
                x = checkpoint(run, x, part)
            else:
                x = run(x, part)
        return x

    def _run(self, k: int, x: Tensor, part: Tensor) -> Tensor:
        """Gather a layer, and compute with it."""
        gathered = Gathered.apply(part, self.group, self._places[k])
        with _lent(self._places[k], gathered):
            return self.layers[k](x)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """This rank's parts, by the numbers of their layers."""
        return ((f"parts.{k}", part) for k, part in enumerate(self.parts) if part is not None)

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of all parameters and buffers of all layers, on the host, under the names of ``nn.Sequential``.

        Called by all ranks; all get everything. So a training goes on with another number of ranks.
        """
        found = {}
        for k, (layer, part) in enumerate(zip(self.layers, self.parts, strict=True)):
            with nn.no_grad():
                whole = () if part is None else Gathered.apply(part, self.group, self._places[k])
            with _lent(self._places[k], [nn.Parameter(device.to_host(one.array)) for one in whole]):
                found |= {f"{k}.{name}": value for name, value in layer.state_dict().items()}
        return found

    def load_state_dict(self, values: typing.Any) -> None:
        """Not here: load into the layers before they are divided."""
        raise NotImplementedError("load the state into the layers, nn.Sequential(*layers), before they are divided")


def _refuse_shared(layers: Sequence[nn.Module]) -> None:
    """Raise ValueError if two layers have one parameter: each would divide it, and step with it."""
    seen: dict[int, str] = {}
    for k, layer in enumerate(layers):
        for name, parameter in layer.named_parameters():
            if id(parameter) in seen:
                raise ValueError(
                    f"layers must not share parameters: {k}.{name} is {seen[id(parameter)]}. Put both into one layer"
                )
        seen |= {id(parameter): f"{k}.{name}" for name, parameter in layer.named_parameters()}


def _lend(places: Sequence[Place], values: Sequence[Tensor | None]) -> None:
    for place, value in zip(places, values, strict=True):
        for module, name in place.owners:
            vars(module)[name] = value


@contextlib.contextmanager
def _lent(places: Sequence[Place], values: Sequence[Tensor]) -> Iterator[None]:
    """Within it the modules have these tensors as their parameters."""
    _lend(places, values)
    try:
        yield
    finally:
        _lend(places, [None] * len(places))
