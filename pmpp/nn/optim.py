"""Optimisers: one launch changes all parameters of a group. Names, formulas and defaults are PyTorch's.

One thing differs from PyTorch: steps are counted for each group, and not for each parameter. A step counts for a group
if one of its parameters has a gradient. So a parameter whose first gradient comes in a later step has the bias
corrections of that step in `Adam`, and no first step of its own in `SGD` with momentum and dampening. A parameter that
is trained from a later step on, as one that was frozen, should have a group of its own.

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
from pmpp.nn.tape import Tensor, state, vector, zeros
from pmpp.runtime import device
from pmpp.runtime.check import as_flag, as_integer, as_number

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
        for n, group in enumerate(groups):
            if not isinstance(group, Mapping):
                kind = type(group).__name__
                raise TypeError(f"params must be all parameters, or all groups of them, element {n} was {kind}")
            if "params" not in group:
                raise ValueError(f'group {n} must have "params", had {", ".join(map(str, group)) or "nothing"}')
            options = {name: value for name, value in group.items() if name != "params"}
            unknown = sorted(options.keys() - defaults.keys())
            if unknown:
                raise TypeError(f"{unknown[0]} is no option of {type(self).__name__}: it has {', '.join(defaults)}")
            members = group["params"]
            if isinstance(members, Tensor) or not isinstance(members, Iterable):
                raise TypeError(f'"params" of group {n} must be several parameters, was {type(members).__name__}')
            members = list(members)
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
        """Change all parameters that have a gradient. A step that raises does not count for its group."""
        for group in self.param_groups:
            members = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not members:
                continue
            before, wanted = group.get("step", 0), self.wanted(group)
            for parameter in members:
                kept = self.state.setdefault(parameter, {})
                if len(kept) < len(wanted):
                    kept.update({name: zeros(parameter.shape) for name in wanted if name not in kept})
            group["step"] = before + 1
            try:
                self.update(group, members)
            except BaseException:
                group["step"] = before
                raise
            for parameter in members:
                parameter.changed()

    def wanted(self, group: Mapping) -> tuple[str, ...]:
        """The names of the arrays that a parameter of this group needs."""
        return self.kept

    def update(self, group: Mapping, members: list) -> None:
        """One launch."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, typing.Any]:
        """All that is needed to go on later, on the host.

        Returns "groups", a dict for each with its options, "step" if it has made one, and "params", the positions of
        its parameters; and "arrays" by position and name, as "0.exp_avg", float32 of the parameter's shape.
        """
        arrays = {
            f"{i}.{name}": device.to_host(array).copy()
            for i, parameter in enumerate(self._everyone())
            for name, array in self.state.get(parameter, {}).items()
        }
        for group in self.param_groups:
            if "counter" in group:
                group["step"] = int(device.to_host(group["counter"])[0])
        groups = [
            {"params": places} | {k: v for k, v in group.items() if k not in ("params", "counter")}
            for group, places in zip(self.param_groups, self._places(), strict=True)
        ]
        return {"groups": groups, "arrays": arrays}

    def _everyone(self) -> list[Tensor]:
        return list(itertools.chain.from_iterable(group["params"] for group in self.param_groups))

    def _places(self) -> list[list[int]]:
        """For each group the positions of its parameters among all."""
        numbers = itertools.count()
        return [list(itertools.islice(numbers, len(group["params"]))) for group in self.param_groups]

    def check_state_dict(self, values: Mapping[str, typing.Any]) -> tuple[list[dict], dict[Tensor, dict]]:
        """Raise what `load_state_dict` would raise, and change nothing.

        Returns the options of each group, and host arrays by parameter and name.
        """
        if not isinstance(values, Mapping):
            raise TypeError(f"values must be what state_dict() returned, was {type(values).__name__}")
        missing = [name for name in ("groups", "arrays") if name not in values]
        if missing:
            raise ValueError(f"values must be what state_dict() returned, lacks {' and '.join(missing)}")
        groups, arrays = values["groups"], values["arrays"]
        if not isinstance(groups, list | tuple) or not isinstance(arrays, Mapping):
            kinds = f"{type(groups).__name__} and {type(arrays).__name__}"
            raise TypeError(f"groups and arrays of values must be a list and a dict, were {kinds}")
        if len(groups) != len(self.param_groups):
            raise ValueError(f"values must have {len(self.param_groups)} groups, had {len(groups)}")
        everyone = self._everyone()
        made: dict[Tensor, dict[str, typing.Any]] = {}
        for key, array in arrays.items():
            i, _, name = key.partition(".")
            if not (i.isascii() and i.isdigit() and int(i) < len(everyone)) or name not in self.kept:
                kept = " and ".join(self.kept) or "no arrays"
                raise ValueError(
                    f"values must be those of {type(self).__name__} with {len(everyone)} parameters, which keeps "
                    f"{kept} by position; {key} is none of these"
                )
            parameter = everyone[int(i)]
            if not isinstance(array, np.ndarray):
                raise TypeError(f"{key} must be a NumPy array, was {type(array).__name__}")
            if array.dtype != np.float32 or array.shape != parameter.shape:
                raise ValueError(
                    f"values must fit the parameters; {key} must be float32{parameter.shape}, was "
                    f"{array.dtype}{array.shape}"
                )
            made.setdefault(parameter, {})[name] = array
        all_places = self._places()
        options = [self._check_group(n, given, all_places[n], made) for n, given in enumerate(groups)]
        return options, made

    def _check_group(self, n: int, given: typing.Any, places: list[int], made: dict) -> dict:
        """The options and the step of group n, checked. ``made``: the arrays that were given, by parameter."""
        members = self.param_groups[n]["params"]
        if not isinstance(given, Mapping):
            raise TypeError(f"group {n} of values must be a dict of options, was {type(given).__name__}")
        missing = sorted(self.defaults.keys() - given.keys())
        unknown = sorted(map(str, given.keys() - self.defaults.keys() - {"params", "step"}))
        if missing or unknown:
            fault = f"lacks {missing[0]}" if missing else f"has {unknown[0]}"
            words = f"the options of {type(self).__name__}, {', '.join(self.defaults)}"
            raise ValueError(f"group {n} of values must have {words}; it {fault}")
        if given.get("params", places) != places:  # files of earlier versions do not have them
            raise ValueError(f"group {n} of values must be of the parameters {places}, was of {given['params']}")
        options = self.checked({name: given[name] for name in self.defaults})
        if "step" in given:
            options["step"] = as_integer("step", given["step"], 0)
        wanted = self.wanted(options)
        for place, parameter in zip(places, members, strict=True):
            lost = [name for name in wanted if parameter in made and name not in made[parameter]]
            if lost:
                raise ValueError(f"values must have {place}.{lost[0]}, which belongs to what they have of {place}")
        if wanted and options.get("step") and members and not any(parameter in made for parameter in members):
            raise ValueError(f"values must have {wanted[0]} of group {n}, which has made {options['step']} steps")
        return options

    def load_state_dict(self, values: Mapping[str, typing.Any]) -> None:
        """Go on from what `state_dict` returned.

        Raises TypeError or ValueError if it was made by another optimiser or for other parameters, or is not whole: if
        an option, a step or an array is missing, or is none that this optimiser could have. Then nothing was changed.
        """
        groups, arrays = self.check_state_dict(values)
        self.state = {
            parameter: {
                name: device.to_device(np.ascontiguousarray(array).reshape(array.shape)) for name, array in kept.items()
            }
            for parameter, kept in arrays.items()
        }
        for group, options in zip(self.param_groups, groups, strict=True):
            group.pop("counter", None)
            group.pop("step", None)
            group.update(options)


def _arrays(tensors: Iterable) -> list:
    return [vector(tensor.array) for tensor in tensors]


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum (also Nesterov's) and weight decay.

    ``d = gradient + weight_decay * p``; with momentum ``b = momentum * b + (1 - dampening) * d``, in the group's first
    step ``b = d``, and d becomes b, or ``d + momentum * b`` with nesterov; ``p -= lr * d``. For a parameter whose first
    gradient comes in a later step of its group, and where momentum is set later, b is 0 before. PyTorch has ``b = d``
    there, which is the same without dampening.
    """

    kept = ("momentum_buffer",)

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
        momenta = [vector(self.state[p]["momentum_buffer"]) for p in members] if group["momentum"] else None
        options = {k: v for k, v in group.items() if k not in ("params",)}
        optimiser.sgd_(_arrays(members), _arrays(p.grad for p in members), momenta, **options, stream=state.stream)


class Adam(Optimizer):
    """Adam: the mean of the gradients and of their squares decide how far each parameter goes.

    The bias corrections are those of the group's step, also for a parameter whose first gradient comes later. PyTorch
    counts the steps of each parameter.
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
            *([vector(self.state[p][name]) for p in members] for name in self.kept),
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


def clip_grad_norm_(parameters: Tensor | Iterable[Parameter], max_norm: float) -> Tensor:
    """Scale all gradients so that their norm, taken together, is at most ``max_norm``. Returns the norm before.

    Args:
        parameters: tensors, or one; those without a gradient are left out.
        max_norm: a number of at least 0.

    The norm is a float32 tensor with one element. Raises TypeError or ValueError that names the argument at fault.
    """
    if not isinstance(parameters, Iterable) and not isinstance(parameters, Tensor):
        raise TypeError(f"parameters must be tensors, as net.parameters(), was {type(parameters).__name__}")
    found = []
    for i, parameter in enumerate([parameters] if isinstance(parameters, Tensor) else parameters):
        if not isinstance(parameter, Tensor):
            raise TypeError(f"parameters must be tensors, element {i} was {type(parameter).__name__}")
        if parameter.grad is not None:
            found.append(parameter.grad)
    if not found:
        as_number("max_norm", max_norm, 0)
        return Tensor(np.zeros((), np.float32))
    norm = optimiser.clip_norm_(_arrays(found), max_norm, stream=state.stream)
    for gradient in found:
        gradient.changed()
    return Tensor(norm)
