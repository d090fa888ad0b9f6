"""Modules: layers with parameters, and networks of them, with PyTorch's names and defaults.

A `Module` finds its parameters, buffers and modules among its attributes, so that a network is written down once: in
``__init__`` what it has, in ``forward`` what it does.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping

import numpy as np

from pmpp.kernels.softmax.cross_entropy_loss import REDUCTIONS
from pmpp.nn import functional as F
from pmpp.nn import init
from pmpp.nn.tape import Tensor, no_grad, state
from pmpp.runtime import device
from pmpp.runtime.check import as_flag, as_integer, as_number, as_pair


class Parameter(Tensor):
    """A tensor that a module is trained by: it requires a gradient, and is found by the module's `parameters`."""

    __slots__ = ()

    def __init__(self, data: typing.Any, requires_grad: bool = True) -> None:
        super().__init__(data, requires_grad)


class Module:
    """A layer or a network. Derive from it, set parameters and modules in ``__init__``, and write ``forward``.

    >>> class Net(Module):
    ...     def __init__(self):
    ...         self.first, self.last = Linear(4, 8), Linear(8, 2)
    ...     def forward(self, x):
    ...         return self.last(F.relu(self.first(x)))
    >>> [(name, p.shape) for name, p in Net().named_parameters()][:2]
    [('first.weight', (8, 4)), ('first.bias', (8,))]
    """

    training = True

    def forward(self, *inputs: typing.Any) -> typing.Any:
        """What the module does."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def __call__(self, *inputs: typing.Any, **options: typing.Any) -> typing.Any:
        before = state.path
        state.path = (*before, self._called())
        try:
            result = self.forward(*inputs, **options)
            if state.watch is not None:
                state.watch(state.path, self, result)
            return result
        except Exception as error:
            if not getattr(error, "__notes__", None):  # the innermost module says where it was
                error.add_note(f"in {'.'.join(state.path)}: {type(self).__name__}({self.extra_repr()})")
            raise
        finally:
            state.path = before

    def _called(self) -> str:
        return self.__dict__.get("_name") or type(self).__name__

    def __setattr__(self, name: str, value: typing.Any) -> None:
        if isinstance(value, Module):
            value.__dict__["_name"] = name
        self.__dict__[name] = value

    # -------------------------------------------------------------------------------------------------- what it has

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules among its attributes, by name."""
        for name, value in self.__dict__.items():
            if isinstance(value, Module):
                yield name, value

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Itself and all modules below it, by path."""
        yield prefix, self
        for name, child in self.named_children():
            yield from child.named_modules(f"{prefix}.{name}" if prefix else name)

    def modules(self) -> Iterator[Module]:
        """Itself and all modules below it."""
        return (module for _, module in self.named_modules())

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """All parameters by path; one that is used twice comes once."""
        seen = set()
        for path, module in self.named_modules():
            for name, value in module.__dict__.items():
                if isinstance(value, Parameter) and id(value) not in seen:
                    seen.add(id(value))
                    yield f"{path}.{name}" if path else name, value

    def parameters(self) -> Iterator[Parameter]:
        """All parameters."""
        return (parameter for _, parameter in self.named_parameters())

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Tensors that are saved with the parameters and not trained, such as running means."""
        for path, module in self.named_modules():
            for name, value in module.__dict__.items():
                if isinstance(value, Tensor) and not isinstance(value, Parameter):
                    yield f"{path}.{name}" if path else name, value

    def _by_every_name(self) -> dict[str, Tensor]:
        """All parameters and buffers by path; one that is used twice has both of its names, as in PyTorch's states."""
        return {
            f"{path}.{name}" if path else name: value
            for path, module in self.named_modules()
            for name, value in module.__dict__.items()
            if isinstance(value, Tensor)
        }

    # --------------------------------------------------------------------------------------------------- what it does

    def train(self, mode: bool = True) -> Module:
        """Set all modules to training, or to evaluation: dropout and batch normalisation differ."""
        for module in self.modules():
            module.training = as_flag("mode", mode)
        return self

    def eval(self) -> Module:
        """Set all modules to evaluation."""
        return self.train(False)

    def zero_grad(self) -> None:
        """Drop the gradients of all parameters."""
        for parameter in self.parameters():
            parameter.grad = None

    def requires_grad_(self, wanted: bool = True) -> Module:
        """Train all parameters, or none of them."""
        wanted = as_flag("wanted", wanted)
        for parameter in self.parameters():
            parameter.requires_grad_(wanted)
        return self

    def settle(self) -> None:
        """Write into the buffers what was counted on the host."""

    def loaded(self) -> None:
        """Read from the buffers what is counted on the host."""

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of all parameters and buffers on the host, by path. The names are PyTorch's.

        A tensor that is used twice is there by each of its names.
        """
        for module in self.modules():
            module.settle()
        return {name: device.to_host(tensor.array).copy() for name, tensor in self._by_every_name().items()}

    def load_state_dict(self, values: Mapping[str, typing.Any]) -> None:
        """Overwrite all parameters and buffers. ``values``: NumPy arrays, or PyTorch's tensors, by path.

        Of a tensor that is used twice one name is enough.
        Raises TypeError if ``values`` is no mapping, and ValueError that names what is missing, what does not belong
        there, what has another shape, and two names of one tensor whose values differ. Then nothing was changed.
        """
        hosts, first = self.check_state_dict(values)
        with no_grad():
            for name, tensor in first.items():
                tensor.copy_(np.ascontiguousarray(hosts[name]).reshape(tensor.shape))
        for module in self.modules():
            module.loaded()

    def check_state_dict(self, values: Mapping[str, typing.Any]) -> tuple[dict[str, np.ndarray], dict[str, Tensor]]:
        """Raise what `load_state_dict` would raise, and change nothing.

        Returns the arrays by path, and each tensor by the first of its paths that has one.
        """
        if not isinstance(values, Mapping):
            raise TypeError(f"values must be a mapping of names to arrays, was {type(values).__name__}")
        found = self._by_every_name()
        hosts = {name: _on_host(value) for name, value in values.items()}
        first: dict[int, str] = {}  # by tensor, the first of its names that has a value
        for name, tensor in found.items():
            if name in hosts:
                first.setdefault(id(tensor), name)
        missing = sorted(name for name, tensor in found.items() if id(tensor) not in first)
        unknown = sorted(hosts.keys() - found.keys())
        misfits = [
            f"{name} must be {found[name].dtype}{found[name].shape}, was {hosts[name].dtype}{hosts[name].shape}"
            for name in found.keys() & hosts.keys()
            if hosts[name].shape != found[name].shape or hosts[name].dtype != found[name].dtype
        ]
        for name in found.keys() & hosts.keys():
            other = first[id(found[name])]
            if other != name and not np.array_equal(hosts[name], hosts[other], equal_nan=True):
                misfits.append(f"{name} is the same tensor as {other}, but has other values")
        faults = [f"missing: {', '.join(missing)}"] * bool(missing)
        faults += [f"not in this {type(self).__name__}: {', '.join(unknown)}"] * bool(unknown) + sorted(misfits)
        if faults:
            raise ValueError("values do not fit the module; " + "; ".join(faults))
        return hosts, {name: found[name] for name in first.values()}

    def __repr__(self) -> str:
        inner = [f"  ({name}): " + repr(child).replace("\n", "\n  ") for name, child in self.named_children()]
        more = self.extra_repr()
        return f"{type(self).__name__}({more})" if not inner else "\n".join([f"{type(self).__name__}(", *inner, ")"])

    def extra_repr(self) -> str:
        """What stands in the brackets when the module is printed."""
        return ""


def _on_host(value: typing.Any) -> np.ndarray:
    if hasattr(value, "detach") and not isinstance(value, Tensor):
        return value.detach().cpu().numpy()  # PyTorch's
    return device.to_host(value.array) if isinstance(value, Tensor) else np.asarray(value)


class Sequential(Module):
    """Modules that are called one after the other; ``net[i]`` is the i-th."""

    def __init__(self, *modules: Module) -> None:
        for i, module in enumerate(modules):
            if not isinstance(module, Module):
                raise TypeError(f"Sequential takes modules, argument {i} was {type(module).__name__}")
            setattr(self, str(i), module)

    def forward(self, x: Tensor) -> Tensor:
        """Each is given what the one before returned."""
        for _, module in self.named_children():
            x = module(x)
        return x

    def __getitem__(self, i: int) -> Module:
        return [module for _, module in self.named_children()][i]

    def __len__(self) -> int:
        return sum(1 for _ in self.named_children())


class Linear(Module):
    """``x @ weight.T + bias``; weight (out_features, in_features)."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        self.in_features = as_integer("in_features", in_features, 1)
        self.out_features = as_integer("out_features", out_features, 1)
        self.weight = Parameter(init.default((out_features, in_features), in_features))
        self.bias = Parameter(init.default((out_features,), in_features)) if as_flag("bias", bias) else None

    def forward(self, x: Tensor) -> Tensor:
        """x of shape (..., in_features)."""
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        """As PyTorch prints it."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Conv2d(Module):
    """A convolution layer; weight (out_channels, in_channels / groups, rows, columns)."""

    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, groups=1, bias=True):
        self.in_channels, self.out_channels = as_integer("in_channels", in_channels, 1), out_channels
        self.groups = as_integer("groups", groups, 1)
        if in_channels % groups or as_integer("out_channels", out_channels, 1) % groups:
            raise ValueError(f"groups must divide in_channels and out_channels, {in_channels} and {out_channels}")
        self.kernel_size = as_pair("kernel_size", kernel_size, 1)
        self.stride, self.dilation = as_pair("stride", stride, 1), as_pair("dilation", dilation, 1)
        self.padding = as_pair("padding", padding, 0)
        fan_in = in_channels // groups * self.kernel_size[0] * self.kernel_size[1]
        self.weight = Parameter(init.default((out_channels, in_channels // groups, *self.kernel_size), fan_in))
        self.bias = Parameter(init.default((out_channels,), fan_in)) if as_flag("bias", bias) else None

    def forward(self, x: Tensor) -> Tensor:
        """x of shape (N, in_channels, H, W)."""
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)

    def extra_repr(self) -> str:
        """As PyTorch prints it."""
        more = [f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"]
        more += [f"padding={self.padding}"] * (self.padding != (0, 0))
        return ", ".join(more)


class BatchNorm2d(Module):
    """Each channel of a batch to mean 0 and variance 1, then scaled and shifted."""

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        n = as_integer("num_features", num_features, 1)
        self.num_features, self.eps = n, float(as_number("eps", eps, 0))
        self.momentum = float(as_number("momentum", momentum, 0, 1, dtype=np.float64))
        self.weight, self.bias = Parameter(np.ones(n, np.float32)), Parameter(np.zeros(n, np.float32))
        self.running_mean, self.running_var = Tensor(np.zeros(n, np.float32)), Tensor(np.ones(n, np.float32))
        self.num_batches_tracked = Tensor(np.zeros((), np.int64))
        self.batches = 0

    def settle(self) -> None:
        """The number of batches stands in a buffer, as PyTorch has it."""
        self.num_batches_tracked.copy_(np.array(self.batches, np.int64))

    def loaded(self) -> None:
        """Go on counting from there."""
        self.batches = self.num_batches_tracked.item()

    def forward(self, x: Tensor) -> Tensor:
        """x of shape (N, num_features, H, W)."""
        moments = self.running_mean, self.running_var
        y = F.batch_norm(x, *moments, self.weight, self.bias, self.training, self.momentum, self.eps)
        self.batches += self.training
        return y

    def extra_repr(self) -> str:
        """As PyTorch prints it."""
        return f"{self.num_features}, eps={self.eps:g}, momentum={self.momentum:g}"


class LayerNorm(Module):
    """The last dimensions of each example to mean 0 and variance 1, then scaled and shifted."""

    def __init__(self, normalized_shape: int | tuple[int, ...], eps: float = 1e-5) -> None:
        given = normalized_shape if isinstance(normalized_shape, tuple | list) else (normalized_shape,)
        shape = tuple([as_integer("normalized_shape", extent, 1) for extent in given])
        if not shape:
            raise ValueError("normalized_shape must have at least one extent, had none")
        self.normalized_shape, self.eps = shape, float(as_number("eps", eps, 0))
        self.weight, self.bias = Parameter(np.ones(shape, np.float32)), Parameter(np.zeros(shape, np.float32))

    def forward(self, x: Tensor) -> Tensor:
        """x of shape (..., *normalized_shape)."""
        return F.layer_norm(x, self.weight, self.bias, self.eps)


def _named(names: tuple[str, ...], values: tuple) -> str:
    return ", ".join(f"{name}={value}" for name, value in zip(names, values, strict=True))


def _check_windows(kernel_size: typing.Any, stride: typing.Any, padding: typing.Any, ceil_mode: typing.Any) -> None:
    """What a pooling layer asks of its arguments before it has seen an image."""
    as_pair("kernel_size", kernel_size, 1)
    if stride is not None:
        as_pair("stride", stride, 1)
    as_pair("padding", padding, 0)
    as_flag("ceil_mode", ceil_mode)


class MaxPool2d(Module):
    """The largest element of each window."""

    def __init__(self, kernel_size, stride=None, padding=0, ceil_mode=False):
        _check_windows(kernel_size, stride, padding, ceil_mode)
        self.options = kernel_size, stride, padding, ceil_mode

    def forward(self, x: Tensor) -> Tensor:
        """x of shape (N, C, H, W)."""
        return F.max_pool2d(x, *self.options)

    def extra_repr(self) -> str:
        """What differs from the defaults is easy to overlook, so all options are named."""
        return _named(("kernel_size", "stride", "padding", "ceil_mode"), self.options)


class AvgPool2d(Module):
    """The mean of each window."""

    def __init__(self, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True):
        _check_windows(kernel_size, stride, padding, ceil_mode)
        as_flag("count_include_pad", count_include_pad)
        self.options = kernel_size, stride, padding, ceil_mode, count_include_pad

    def forward(self, x: Tensor) -> Tensor:
        """x of shape (N, C, H, W)."""
        return F.avg_pool2d(x, *self.options)

    def extra_repr(self) -> str:
        """As of `MaxPool2d`."""
        return _named(("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad"), self.options)


class ReLU(Module):
    """``max(x, 0)``."""

    def forward(self, x: Tensor) -> Tensor:
        """Of each element."""
        return F.relu(x)


class GELU(Module):
    """x times the probability that a standard normal number is below it."""

    def __init__(self, approximate: str = "none") -> None:
        F.check_approximate(approximate)
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        """Of each element."""
        return F.gelu(x, self.approximate)


class Tanh(Module):
    """The hyperbolic tangent."""

    def forward(self, x: Tensor) -> Tensor:
        """Of each element."""
        return F.tanh(x)


class Flatten(Module):
    """All dimensions but the first become one."""

    def forward(self, x: Tensor) -> Tensor:
        """x of shape (N, ...)."""
        return x.flatten(1)


class Dropout(Module):
    """In training each element with probability p becomes 0, and the others become greater by 1 / (1 - p).

    p is from 0 to less than 1.
    """

    def __init__(self, p: float = 0.5) -> None:
        self.p = float(as_number("p", p, 0))
        if self.p >= 1:
            raise ValueError(f"p must be from 0 to less than 1, was {p}")

    def forward(self, x: Tensor) -> Tensor:
        """Of each element."""
        return F.dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        """As PyTorch prints it, but for ``inplace``."""
        return f"p={self.p:g}"


class Embedding(Module):
    """A table of vectors; weight (num_embeddings, embedding_dim), standard normal."""

    def __init__(self, num_embeddings: int, embedding_dim: int) -> None:
        shape = as_integer("num_embeddings", num_embeddings, 1), as_integer("embedding_dim", embedding_dim, 1)
        self.weight = Parameter(init.normal(shape))

    def forward(self, indices: Tensor) -> Tensor:
        """The rows with these indices."""
        return F.embedding(indices, self.weight)

    def extra_repr(self) -> str:
        """As PyTorch prints it."""
        return ", ".join(map(str, self.weight.shape))


class CrossEntropyLoss(Module):
    """`functional.cross_entropy` as a module."""

    def __init__(self, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0) -> None:
        as_integer("ignore_index", ignore_index, -(2**63), 2**63 - 1)
        as_number("label_smoothing", label_smoothing, 0, 1)
        if not isinstance(reduction, str) or reduction not in REDUCTIONS:
            raise ValueError(f"reduction must be one of {', '.join(REDUCTIONS)}, was {reduction!r}")
        self.options = ignore_index, reduction, label_smoothing

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """scores (N, classes), labels (N,)."""
        return F.cross_entropy(scores, labels, *self.options)


class MSELoss(Module):
    """`functional.mse_loss` as a module."""

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Of two tensors of one shape."""
        return F.mse_loss(x, target)
