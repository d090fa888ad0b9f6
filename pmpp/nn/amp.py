"""Mixed precision: products in 16 bits, everything that adds up in float32, and a scale that keeps gradients from 0.

Names and behaviour are those of ``torch.amp``::

    scaler = nn.amp.GradScaler()
    for images, labels in loader:
        optimizer.zero_grad()
        with nn.amp.autocast(dtype="float16"):
            loss = F.cross_entropy(net(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

The parameters stay in float32: they are the master weights. An update is often a thousandth of a parameter or less,
and a float16 has 11 bits, so added to a float16 it would be rounded away. `autocast` makes 16 bits of them for
each product, and the gradients come back as float32.

With bfloat16 no scaler is needed: it has the exponents of float32.

Source: P. Micikevicius and others, Mixed Precision Training
(arXiv:1710.03740); PyTorch's torch.amp, whose table `TABLE` follows.
"""

from __future__ import annotations

import contextlib
import typing
from collections.abc import Mapping

import numpy as np

from pmpp.kernels import elementwise, optimiser
from pmpp.nn import arithmetic, functional
from pmpp.nn.optim import Optimizer
from pmpp.nn.tape import FLOATS, SHORT, Function, Tensor, state, vector
from pmpp.runtime import device
from pmpp.runtime.check import as_flag, as_integer, as_number
from pmpp.runtime.dtypes import dtype_of

__all__ = ["TABLE", "GradScaler", "autocast"]

LEAST, LARGEST = 2.0**-126, float(np.finfo(np.float32).max)  # of a scale: float32 has it and its reciprocal

SHORTENED, FLOAT32, WIDEST = "16 bits", "float32", "the widest"

#: In which dtype `autocast` runs an operation. One that is not named runs in the dtype of what it is given, as ReLU and
#: pooling do; batch normalisation does so, too, and computes in float32 within its kernel.
TABLE: Mapping[type[Function], str] = {
    # Tensor cores multiply 16 bits, and add up in float32.
    functional.Linear: SHORTENED,
    functional.Conv2d: SHORTENED,
    functional.SelfAttention: SHORTENED,
    arithmetic.MatMul: SHORTENED,
    # Sums lose small terms in 16 bits. Exponentials and powers leave the range of float16.
    functional.LayerNorm: FLOAT32,
    functional.Softmax: FLOAT32,
    functional.CrossEntropy: FLOAT32,
    functional.Dropout: FLOAT32,
    arithmetic.Sum: FLOAT32,
    arithmetic.Exp: FLOAT32,
    arithmetic.Log: FLOAT32,
    arithmetic.Power: FLOAT32,
    # Operands that differ are made float32. A sum of one shape, as in a residual connection, does so in its kernel.
    arithmetic.Add: WIDEST,
    arithmetic.Subtract: WIDEST,
    arithmetic.Multiply: WIDEST,
    arithmetic.Divide: WIDEST,
}


class autocast(contextlib.ContextDecorator):
    """Within it operations run in the dtypes that `TABLE` says: products in ``dtype``, sums in float32.

    Args:
        device_type: "cuda", as for PyTorch.
        dtype: "float16" or "bfloat16", or the ``numpy.dtype`` of one.
        enabled: False to run a part in the dtypes of its operands.
        cache_enabled: whether a parameter is cast once, and not for each use.

    Leave it before ``backward()``: gradients have the dtypes of what they belong to. It is a decorator, too.
    Raises TypeError or ValueError for other arguments.

    >>> a = Tensor([[1.0, 2.0]])
    >>> with autocast(dtype="float16"):
    ...     (a @ Tensor([[3.0], [4.0]])).dtype
    dtype('float16')
    """

    def __init__(
        self, device_type: str = "cuda", dtype: typing.Any = "float16", enabled: bool = True, cache_enabled: bool = True
    ) -> None:
        if device_type != "cuda":
            raise ValueError(f'device_type must be "cuda", was {device_type!r}')
        try:
            self.dtype = dtype_of(dtype)
        except TypeError as error:
            raise TypeError(f"dtype must be float16 or bfloat16, was {dtype!r}: {error}") from None
        if self.dtype not in SHORT:
            raise TypeError(f"dtype must be float16 or bfloat16, was {dtype!r}")
        self.enabled, self.cached = as_flag("enabled", enabled), as_flag("cache_enabled", cache_enabled)
        self._outer: list[autocast | None] = []
        self._casts: dict[tuple, tuple] = {}

    def __enter__(self) -> autocast:
        self._outer.append(state.autocast)
        state.autocast = self if self.enabled else None
        return self

    def __exit__(self, *_: object) -> None:
        state.autocast = self._outer.pop()
        if not self._outer:
            self._casts.clear()

    def again(self) -> autocast:
        """Another one with the same options: for what is computed once more after this one was left."""
        return autocast(dtype=self.dtype, cache_enabled=self.cached)

    def operands(self, function: type[Function], arguments: tuple) -> tuple:
        """The arguments of an operation, its tensors in the dtype that the operation runs in."""
        how = TABLE.get(function)
        if how is None:
            return arguments
        floats = [a.dtype for a in arguments if isinstance(a, Tensor) and a.dtype in FLOATS]
        if how == WIDEST:
            if len(set(floats)) < 2 or (function is arithmetic.Add and arithmetic.widens(*arguments)):
                return arguments
            wanted = np.dtype("float32")
        else:
            wanted = self.dtype if how == SHORTENED else np.dtype("float32")
        if all(dtype == wanted for dtype in floats):
            return arguments
        return tuple([self._cast(a, wanted) if isinstance(a, Tensor) else a for a in arguments])

    def _cast(self, tensor: Tensor, dtype: np.dtype) -> Tensor:
        if tensor.dtype == dtype or tensor.dtype not in FLOATS:
            return tensor
        if not (self.cached and tensor.requires_grad and tensor.is_leaf):
            return arithmetic.Cast.apply(tensor, dtype.name)
        # A parameter. It is kept here, so that its id is not given to another one.
        key = id(tensor), tensor.changes.count, dtype.name, state.recording
        if key not in self._casts:
            self._casts[key] = tensor, arithmetic.Cast.apply(tensor, dtype.name)
        return self._casts[key][1]


class GradScaler:
    """Multiplies the loss, so that small gradients are not 0 in float16, and divides the gradients before the step.

    Args:
        device: "cuda", as for PyTorch.
        init_scale: the first scale.
        growth_factor, backoff_factor: the scale is multiplied by the first after ``growth_interval`` steps in a row
            whose gradients were finite, and by the second after a step with one that was not. That step is skipped.
        growth_interval: in steps.
        enabled: False to do nothing, so that one program serves all dtypes.

    Whether a step is skipped is decided on the host, which waits for the gradients. So a step with a scaler cannot be
    recorded by `pmpp.nn.capture`, which says so; bfloat16 needs none.
    Raises TypeError or ValueError that names the argument at fault.

    >>> weight = Tensor([2.0], requires_grad=True)
    >>> from pmpp.nn.optim import SGD
    >>> optimizer, scaler = SGD([weight], lr=0.5), GradScaler(init_scale=1024.0)
    >>> scaler.scale((weight * weight).sum()).backward()
    >>> weight.grad.numpy(), scaler.step(optimizer), scaler.update()
    (array([4096.], dtype=float32), None, None)
    >>> weight.detach().numpy(), scaler.get_scale()
    (array([0.], dtype=float32), 1024.0)
    """

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        if device != "cuda":
            raise ValueError(f'device must be "cuda", was {device!r}')
        self._scale = float(as_number("init_scale", init_scale, LEAST))
        self._growth, self._backoff = factors(growth_factor, backoff_factor)
        self._interval = as_integer("growth_interval", growth_interval, 1)
        self._enabled = as_flag("enabled", enabled)
        self._good = 0  # steps in a row whose gradients were finite
        self._found: dict[Optimizer, bool] = {}  # whether one of its gradients is not finite
        self._stepped: set[Optimizer] = set()

    def is_enabled(self) -> bool:
        """Whether it does anything."""
        return self._enabled

    def get_scale(self) -> float:
        """The scale; 1 if it is not enabled."""
        return self._scale if self._enabled else 1.0

    def scale(self, loss: Tensor) -> Tensor:
        """The loss, or each of several in a list or tuple, times the scale."""
        if isinstance(loss, list | tuple):
            return type(loss)(self.scale(one) for one in loss)
        if not isinstance(loss, Tensor):
            raise TypeError(f"loss must be a Tensor, or several in a list, was {type(loss).__name__}")
        # In float32, whatever is around it: the scale is more than the greatest float16.
        return loss.float() * self._scale if self._enabled else loss

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of an optimiser's parameters by the scale: before they are clipped, once a step."""
        of_kind(optimizer)
        if not self._enabled:
            return
        if optimizer in self._stepped:
            raise RuntimeError("unscale_() was called after step()")
        if optimizer in self._found:
            raise RuntimeError("unscale_() has been called on this optimizer since the last update()")
        if state.capturing:
            raise RuntimeError(
                "a recorded step cannot decide on the host whether it is skipped: record it with bfloat16, "
                "which needs no GradScaler"
            )
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if not grads:
            raise RuntimeError("no gradient was found for this optimizer: call scaler.scale(loss).backward() first")
        arrays = [vector(grad.array) for grad in grads]
        for grad, array in zip(grads, arrays, strict=True):
            elementwise.multiply(array, 1 / self._scale, out=array, stream=state.stream)
            grad.changed()
        statistics = device.to_host(optimiser.gradient_norm.vectorised(arrays, stream=state.stream))
        self._found[optimizer] = bool(statistics[-1, 3])  # how many elements are not finite

    def step(self, optimizer: Optimizer) -> None:
        """The optimiser's step, or none if a gradient is not finite. The gradients are unscaled if they were not."""
        of_kind(optimizer)
        if not self._enabled:
            optimizer.step()
            return
        if optimizer in self._stepped:
            raise RuntimeError("step() has been called on this optimizer since the last update()")
        if optimizer not in self._found:
            self.unscale_(optimizer)
        self._stepped.add(optimizer)
        if not self._found[optimizer]:
            optimizer.step()

    def update(self, new_scale: float | None = None) -> None:
        """Change the scale after a step: smaller if it was skipped, and greater after many that were not.

        It stays from 2^-126 to the largest float32: it is not made smaller than that, and does not grow beyond.

        ``new_scale``: a scale to go on with instead.
        """
        if not self._enabled:
            return
        if new_scale is not None:
            self._scale = float(as_number("new_scale", new_scale, LEAST))
        elif not self._found:
            raise RuntimeError("update() was called before step()")
        elif any(self._found.values()):
            self._scale, self._good = max(self._scale * self._backoff, LEAST), 0
        else:
            self._good += 1
            if self._good == self._interval:
                grown = self._scale * self._growth
                self._scale, self._good = grown if grown <= LARGEST else self._scale, 0
        self._found.clear()
        self._stepped.clear()

    def state_dict(self) -> dict[str, float | int]:
        """What `load_state_dict` goes on from; empty if it is not enabled. The names are PyTorch's."""
        if not self._enabled:
            return {}
        return {
            "scale": self._scale,
            "growth_factor": self._growth,
            "backoff_factor": self._backoff,
            "growth_interval": self._interval,
            "_growth_tracker": self._good,
        }

    def load_state_dict(self, values: Mapping[str, typing.Any]) -> None:
        """Go on from what `state_dict` returned.

        Raises TypeError or ValueError if something is missing, or is nothing that it could return. Then nothing was
        changed.
        """
        if self._enabled:
            self._scale, self._growth, self._backoff, self._interval, self._good = self.check_state_dict(values)

    def check_state_dict(self, values: Mapping[str, typing.Any]) -> tuple:
        """Raise what `load_state_dict` would raise, and change nothing. Returns the values of what is kept."""
        if not self._enabled:
            return ()
        if not isinstance(values, Mapping):
            raise TypeError(f"values must be what state_dict() returned, was {type(values).__name__}")
        missing = sorted(self.state_dict().keys() - values.keys())
        if missing:
            raise ValueError(f"values must be what state_dict() returned, lacks {', '.join(missing)}")
        # In float64: products of factors are more exact than a float32.
        scale = float(as_number("scale", values["scale"], LEAST, LARGEST, dtype=np.float64))
        interval = as_integer("growth_interval", values["growth_interval"], 1)
        good = as_integer("_growth_tracker", values["_growth_tracker"], 0, interval - 1)
        return scale, *factors(values["growth_factor"], values["backoff_factor"]), interval, good


def factors(growth_factor: typing.Any, backoff_factor: typing.Any) -> tuple[float, float]:
    """The two, as floats. Raises TypeError or ValueError unless one makes a scale greater, and the other smaller."""
    growth = float(as_number("growth_factor", growth_factor, 1))
    backoff = float(as_number("backoff_factor", backoff_factor, 0, 1))
    if growth == 1 or backoff in (0, 1):
        words = f"{growth:g} and {backoff:g}"
        raise ValueError(f"growth_factor must be above 1, and backoff_factor between 0 and 1, were {words}")
    return growth, backoff


def of_kind(optimizer: typing.Any) -> None:
    """Raise TypeError for what is no optimiser."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must be one of pmpp.nn.optim, was {type(optimizer).__name__}")
