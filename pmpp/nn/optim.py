"""Optimisers: one launch changes all parameters of a group. Names, formulas and defaults are PyTorch's.

An optimiser has groups of parameters, each with options of its own::

    SGD(net.parameters(), lr=0.1, momentum=0.9)
    AdamW([{"params": net.trunk.parameters(), "lr": 1e-4}, {"params": net.head.parameters()}], lr=1e-3)
"""

from __future__ import annotations

import itertools
import math
import typing
from collections.abc import Iterable, Mapping

import numpy as np

from pmpp.kernels import optimiser
from pmpp.nn.modules import Parameter
from pmpp.nn.tape import Tensor, state, zeros
from pmpp.runtime import device
from pmpp.runtime.check import as_flag, as_number

__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "clip_grad_norm_"]


def number(name: str, value: typing.Any, low: float = -math.inf, high: float = math.inf) -> float:
    """An option as a float from ``low`` to ``high``. Raises as `pmpp.runtime.check.as_number`."""
    return float(as_number(name, value, low, high, dtype=np.float64))


class Optimizer:
    """What optimisers share: groups of parameters, and what is kept for each parameter.

    Attributes: param_groups, dicts with "params" and the options; state, device arrays by parameter and name.
    """

    kept: typing.ClassVar[tuple[str, ...]] = ()  # names of the arrays that are kept for each parameter

    def __init__(self, params: Iterable, **defaults: typing.Any) -> None:
        if not isinstance(params, Iterable):
            raise TypeError(f"params must be several parameters, as net.parameters(), was {type(params).__name__}")
        given = list(params)
        if not given:
            raise ValueError(
                "params must have a parameter, was empty. A module does not look for layers in a list: put them into "
                "nn.Sequential"
            )
        groups = given if isinstance(given[0], Mapping) else [{"params": given}]
        self.param_groups: list[dict[str, typing.Any]] = []
        self.state: dict[Tensor, dict[str, typing.Any]] = {}
        self.defaults = self.checked(defaults)
        for group in groups:
            options = {name: value for name, value in group.items() if name != "params"}
            unknown = sorted(options.keys() - defaults.keys())
            if unknown:
                raise TypeError(f"{unknown[0]} is no option of {type(self).__name__}: it has {', '.join(defaults)}")
            members = list(group["params"])
            for i, member in enumerate(members):
                if not isinstance(member, Tensor) or not member.is_leaf:
                    raise TypeError(f"params must be parameters, element {i} was {type(member).__name__}")
            self.param_groups.append({"params": members, **self.checked({**defaults, **options})})
        everyone = [id(member) for group in self.param_groups for member in group["params"]]
        if len(set(everyone)) < len(everyone):
            raise ValueError("params must have each parameter once; one is there twice")

    def checked(self, options: dict[str, typing.Any]) -> dict[str, typing.Any]:
        """The options, each checked."""
        raise NotImplementedError

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def step(self) -> None:
        """Change all parameters that have a gradient."""
        for group in self.param_groups:
            members = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not members:
                continue
            group["step"] = group.get("step", 0) + 1
            for parameter in members:
                if parameter not in self.state:
                    self.state[parameter] = {name: zeros(parameter.shape) for name in self.wanted(group)}
            self.update(group, members)
            for parameter in members:
                parameter.changed()

    def wanted(self, group: Mapping) -> tuple[str, ...]:
        """The names of the arrays that a parameter of this group needs."""
        return self.kept

    def update(self, group: Mapping, members: list) -> None:
        """One launch."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, typing.Any]:
        """All that is needed to go on later, on the host: options and steps by group, arrays by position."""
        everyone = list(itertools.chain.from_iterable(group["params"] for group in self.param_groups))
        arrays = {
            f"{i}.{name}": device.to_host(array).copy()
            for i, parameter in enumerate(everyone)
            for name, array in self.state.get(parameter, {}).items()
        }
        for group in self.param_groups:
            if "counter" in group:
                group["step"] = int(device.to_host(group["counter"])[0])
        groups = [{k: v for k, v in group.items() if k not in ("params", "counter")} for group in self.param_groups]
        return {"groups": groups, "arrays": arrays}

    def load_state_dict(self, values: Mapping[str, typing.Any]) -> None:
        """Go on from what `state_dict` returned. Raises ValueError if it was made for other parameters."""
        everyone = list(itertools.chain.from_iterable(group["params"] for group in self.param_groups))
        if len(values["groups"]) != len(self.param_groups):
            raise ValueError(f"values must have {len(self.param_groups)} groups, had {len(values['groups'])}")
        made: dict[Tensor, dict[str, typing.Any]] = {}
        for key, array in values["arrays"].items():
            i, _, name = key.partition(".")
            if int(i) >= len(everyone) or everyone[int(i)].shape != array.shape:
                raise ValueError(f"values must fit the parameters; {key} of shape {array.shape} does not")
            made.setdefault(everyone[int(i)], {})[name] = device.to_device(array)
        self.state = made
        for group, options in zip(self.param_groups, values["groups"], strict=True):
            group.pop("counter", None)
            group.update(options)


def _arrays(tensors: Iterable) -> list:
    return [tensor.array for tensor in tensors]


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum (also Nesterov's) and weight decay.

    ``d = gradient + weight_decay * p``; with momentum ``b = momentum * b + (1 - dampening) * d``, the first time
    ``b = d``, and d becomes b, or ``d + momentum * b`` with nesterov; ``p -= lr * d``.
    """

    def __init__(self, params, lr=1e-3, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False):
        options = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        super().__init__(params, **options, nesterov=nesterov)

    def checked(self, options):
        """The options, each checked."""
        made = {name: number(name, options[name], 0) for name in ("lr", "momentum", "weight_decay")}
        made |= {"dampening": number("dampening", options["dampening"])}
        made |= {"nesterov": as_flag("nesterov", options["nesterov"])}
        if made["nesterov"] and (made["momentum"] == 0 or made["dampening"] != 0):
            raise ValueError("nesterov needs a momentum and no dampening")
        return made

    def wanted(self, group):
        """The velocity, if there is momentum."""
        return ("momentum_buffer",) if group["momentum"] else ()

    def update(self, group, members):
        """One launch for all parameters of the group."""
        momenta = [self.state[p]["momentum_buffer"] for p in members] if group["momentum"] else None
        options = {k: v for k, v in group.items() if k not in ("params",)}
        optimiser.sgd_(_arrays(members), _arrays(p.grad for p in members), momenta, **options, stream=state.stream)


class Adam(Optimizer):
    """Adam: the mean of the gradients and of their squares decide how far each parameter goes.

    Source: D. Kingma and J. Ba, Adam: A Method for Stochastic Optimization (arXiv:1412.6980).
    """

    kept = ("exp_avg", "exp_avg_sq")
    decoupled = False

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    def checked(self, options):
        """The options, each checked."""
        betas = options["betas"]
        if not isinstance(betas, tuple | list) or len(betas) != 2:
            raise ValueError(f"betas must be two numbers, was {betas!r}")
        made = {name: number(name, options[name], 0) for name in ("lr", "eps", "weight_decay")}
        return made | {"betas": tuple(number("betas", beta, 0, 1) for beta in betas)}

    def update(self, group, members):
        """One launch for all parameters of the group."""
        options = {k: v for k, v in group.items() if k not in ("params", "counter")}
        if state.capturing and "counter" not in group:  # a graph repeats its numbers, so the device counts
            group["counter"] = device.to_device(np.array([group["step"] - 1]))
        options["step"] = group.get("counter", group["step"])
        optimiser.adam_(
            _arrays(members),
            _arrays(p.grad for p in members),
            *([self.state[p][name] for p in members] for name in self.kept),
            **options,
            decoupled=self.decoupled,
            stream=state.stream,
        )


class AdamW(Adam):
    """Adam with weight decay that does not go through its means.

    Source: I. Loshchilov and F. Hutter, Decoupled Weight Decay Regularization (arXiv:1711.05101).
    """

    decoupled = True

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        super().__init__(params, lr, betas, eps, weight_decay)


def clip_grad_norm_(parameters: Iterable[Parameter], max_norm: float) -> Tensor:
    """Scale all gradients so that their norm, taken together, is at most ``max_norm``. Returns the norm before."""
    found = [p.grad for p in parameters if p.grad is not None]
    if not found:
        return Tensor(np.zeros((), np.float32))
    norm = optimiser.clip_norm_(_arrays(found), max_norm, stream=state.stream)
    for gradient in found:
        gradient.changed()
    return Tensor(norm)
