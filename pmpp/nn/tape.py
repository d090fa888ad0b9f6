"""The tape: which operations made a tensor, and how a gradient goes back through them.

Every operation on tensors is a `Function`. Its ``forward`` calls kernels. If an input requires a gradient, the
operation is written down as a `Node`: what ``backward`` needs of the inputs, and which nodes the inputs came from. The
nodes are the tape. `Tensor.backward` walks along it from the last operation to the first. Each node turns the gradient
of its outputs into the gradients of its inputs, by the chain rule, and hands them on.

A node keeps the arrays that its function saved, and nothing else of a tensor. So an activation that no ``backward``
needs is freed when the last name for it is gone, and the others as soon as the walk has passed their node.

Chapter: notebooks/88_a_tape.ipynb.  Source: A. Griewank and A. Walther, Evaluating Derivatives (2008), chapter 3.
"""

from __future__ import annotations

import collections
import contextlib
import heapq
import itertools
import math
import operator
import threading
import typing
from collections.abc import Iterator

import numpy as np

from pmpp.runtime import device
from pmpp.runtime.check import as_flag
from pmpp.runtime.dtypes import known

SHORT = tuple(known(("float16", "bfloat16")))  # what `pmpp.nn.amp` makes of float32 for products
FLOATS = (np.dtype("float32"), *SHORT)  # numbers, which have gradients
DTYPES = (*FLOATS, np.dtype("int32"), np.dtype("int64"))  # and labels and indices


class _State(threading.local):
    """What holds for all operations of a thread until it is set otherwise."""

    recording = True  # whether operations are written down
    stream: typing.Any = 0  # on which kernels are queued
    anomaly = False  # whether each result is looked through for NaN and infinity
    capturing = False  # whether a CUDA graph is being recorded
    replaying = True  # whether operations are launched from recordings, see `pmpp.nn.replay`
    path: tuple[str, ...] = ()  # the modules that are being called, the outermost first
    watch: typing.Callable | None = None  # is told of each module's result
    autocast: typing.Any = None  # decides the dtypes of an operation's operands: an `amp.autocast`, or None
    compression: typing.Any = None  # decides what layers keep of their inputs: a `compressed_activations`, or None
    ready: typing.Callable | None = None  # is told of each leaf whose gradient is complete, during a backward pass

    def __init__(self) -> None:
        self.recorded: list[bool] = []  # ``recording`` as it was outside of each `no_grad` that is open


state = _State()


class no_grad(contextlib.ContextDecorator):
    """Within it no operation is written down: for evaluation, and for changing parameters.

    >>> with no_grad():
    ...     (Tensor([1.0], requires_grad=True) * 2).requires_grad
    False
    """

    def __enter__(self) -> None:
        # A stack of the thread: a decorator has one object for all calls, also for those within each other.
        state.recorded.append(state.recording)
        state.recording = False

    def __exit__(self, *_: object) -> None:
        state.recording = state.recorded.pop()


@contextlib.contextmanager
def detect_anomaly() -> Iterator[None]:
    """Within it the first operation whose result or gradient has a NaN or an infinity raises, with its layer's name.

    It reads every result back, so it is slow: use it to find an error that is there.
    """
    before, state.anomaly = state.anomaly, True
    try:
        yield
    finally:
        state.anomaly = before


class Changes:
    """How often a piece of memory was changed in place. Tensors that share the memory share this."""

    count = 0


class Packed:
    """An array that is kept in another form. ``array`` has the bytes, and `unpacked` makes the numbers of it."""

    array: typing.Any

    def unpacked(self) -> typing.Any:
        """The numbers, in new memory."""
        raise NotImplementedError


class Context:
    """What an operation's ``forward`` leaves for its ``backward``.

    Attributes: needs, a bool for each argument of ``forward``: whether its gradient is wanted. ``forward`` may set
    others, for numbers and shapes; arrays go through `save_for_backward`, so that the tape can free them.
    """

    _saved: tuple | None = ()
    _was: tuple = ()
    _packed = False

    def __init__(self, needs: tuple[bool, ...]) -> None:
        self.needs = needs

    def save_for_backward(self, *values: typing.Any) -> None:
        """Keep tensors or device arrays. A tensor that is changed in place before they are used is an error."""
        self._saved = tuple([value.array if isinstance(value, Tensor) else value for value in values])
        self._was = tuple([(v.changes, v.changes.count) for v in values if isinstance(v, Tensor)])

    def save_input(self, x: Tensor, *others: typing.Any) -> None:
        """As `save_for_backward` for the input of a layer with weights, which `compressed_activations` may pack."""
        if state.compression is not None and self.needs[0]:
            x = state.compression.input(x)
            self._packed = isinstance(x, Packed)
        self.save_for_backward(x, *others)

    def watch(self, results: tuple[Tensor, ...]) -> None:
        """Notice changes in place of results, too, if their arrays were saved."""
        if kept := [id(array) for array in self._saved or ()]:
            self._was += tuple([(made.changes, made.changes.count) for made in results if id(made.array) in kept])

    @property
    def saved(self) -> tuple:
        """The arrays that were saved. Raises RuntimeError if they were freed, or if one was changed since."""
        values = self._values()
        if self._packed:
            return tuple([value.unpacked() if isinstance(value, Packed) else value for value in values])
        return values

    @property
    def held(self) -> tuple:
        """The arrays that hold what was saved, packed where it is. Raises as `saved`."""
        return tuple([value.array if isinstance(value, Packed) else value for value in self._values()])

    def _values(self) -> tuple:
        if self._saved is None:
            raise RuntimeError("what it saved was freed by an earlier backward(): call that with retain_graph=True")
        for changes, count in self._was:
            if changes.count != count:
                times = changes.count - count
                raise RuntimeError(
                    f"a tensor that it saved was changed in place {times} time{'s' * (times > 1)} since: its gradient "
                    "would be wrong. Change it after backward(), or make a new tensor"
                )
        return self._saved

    def free(self) -> None:
        """Let go of the arrays."""
        self._saved = None


class Node:
    """One entry of the tape: an operation that was carried out, or a tensor that gradients are collected for."""

    _numbers = itertools.count()

    def __init__(self, function: type[Function] | None, context: Context | None, inputs: tuple, leaf: Tensor | None):
        self.number = next(Node._numbers)  # an operation's is greater than those of what it was made from
        self.function, self.context, self.inputs, self.leaf = function, context, inputs, leaf
        self.outputs: list[tuple[int, ...]] = []  # their shapes
        self.dtypes: list[np.dtype] = []
        self.path = state.path
        self.feeds_leaves = bool([edge for edge in inputs if edge is not None and edge[0].leaf is not None])

    def __repr__(self) -> str:
        name = self.function.__name__ if self.function else "leaf"
        return f"{name} in {'.'.join(self.path)}" if self.path else name

    def backward(self, gradients: dict[int, typing.Any]) -> tuple:
        """The gradients of the inputs from those of the outputs; an output that nobody used has a gradient of 0."""
        outputs = enumerate(zip(self.outputs, self.dtypes, strict=True))
        upstream = [gradients[i] if i in gradients else zeros(shape, dtype) for i, (shape, dtype) in outputs]
        try:
            made = self.function.backward(self.context, *upstream)
        except RuntimeError as error:
            raise RuntimeError(f"backward of {self}: {error}") from None
        made = made if isinstance(made, tuple) else (made,)
        if len(made) != len(self.inputs):
            raise RuntimeError(
                f"backward of {self} must return a gradient, or None, for each of the {len(self.inputs)} arguments of "
                f"forward; it returned {len(made)}"
            )
        return made


class Function:
    """An operation with a gradient. Derive from it, and write two static methods::

        class Square(Function):
            @staticmethod
            def forward(context, x):             # Tensors and other arguments, as `apply` was given them
                context.save_for_backward(x)
                return elementwise.multiply(x.array, x.array)      # a device array, or a tuple of them

            @staticmethod
            def backward(context, dy):           # the gradient of each result, as a device array
                (x,) = context.saved
                return elementwise.multiply(elementwise.multiply(dy, x), 2)   # one for each argument, or None

    `Square.apply(x)` carries it out and writes it down.
    """

    forward: typing.ClassVar[typing.Callable]
    backward: typing.ClassVar[typing.Callable]

    @classmethod
    def apply(cls, *arguments: typing.Any) -> typing.Any:
        """``forward`` of the arguments as a tensor, or a tuple of tensors."""
        if state.autocast is not None:
            arguments = state.autocast.operands(cls, arguments)
        # Lists, not generators: a network waits for this code, and lists are made without a call for each element.
        edges = tuple([(a.node, a.output) if isinstance(a, Tensor) and a._wanted else None for a in arguments])
        needs = tuple([edge is not None for edge in edges]) if state.recording else (False,) * len(edges)
        context = Context(needs)
        results = cls.forward(context, *arguments)
        several = isinstance(results, tuple)
        results = results if several else (results,)
        node = None
        if any(needs):
            node = Node(cls, context, edges, None)
            node.outputs = [result.shape for result in results]
            node.dtypes = [result.dtype for result in results]
        made = tuple([Tensor._made(result, node, i) for i, result in enumerate(results)])
        if node is not None:
            context.watch(made)
        if state.anomaly:
            for tensor in made:
                _look_through(tensor.array, f"the result of {node or cls.__name__}{_inside(node)}")
        return made if several else made[0]


class Tensor:
    """An array on the device, with the gradient of a loss with respect to it.

    Args:
        data: numbers in lists, a NumPy array, or a device array (of CuPy or PyTorch, too), float32, float16, bfloat16,
            int32 or int64. Python's numbers become float32. A device array is not copied.
        requires_grad: whether `backward` shall collect the gradient in ``grad``. float32 only: what is trained is kept
            in float32, and `pmpp.nn.amp` makes 16 bits of it where they do.

    Attributes: array, the device array; grad, a Tensor or None; requires_grad, which a leaf can be given as by
    `requires_grad_`; shape, ndim, size, dtype.
    Raises TypeError for other data, and for a ``requires_grad`` that is neither True nor False.
    Source: PyTorch's torch.Tensor, whose names and rules it follows.

    >>> x = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    >>> (x * x).sum().backward()
    >>> x.grad.numpy()
    array([2., 4., 6.], dtype=float32)
    """

    __slots__ = ("__weakref__", "_wanted", "array", "changes", "grad", "node", "output")
    __array_priority__ = 1000  # NumPy leaves `array * tensor` to the tensor

    def __init__(self, data: typing.Any, requires_grad: bool = False) -> None:
        self.array = as_array(data)
        self.grad: Tensor | None = None
        self.changes = Changes()
        self.node, self.output, self._wanted = None, 0, False
        if requires_grad is not False:
            self.requires_grad_(requires_grad)

    @classmethod
    def _made(cls, array: typing.Any, node: Node | None, output: int) -> Tensor:
        """The result of an operation."""
        tensor = object.__new__(Tensor)
        tensor.array, tensor.grad, tensor.changes = array, None, Changes()
        tensor.node, tensor.output, tensor._wanted = node, output, node is not None
        return tensor

    shape = property(lambda self: self.array.shape)
    ndim = property(lambda self: self.array.ndim)
    size = property(lambda self: self.array.size)
    dtype = property(lambda self: self.array.dtype)

    @property
    def is_leaf(self) -> bool:
        """Whether no operation on the tape made it."""
        return self.node is None or self.node.leaf is not None

    def requires_grad_(self, wanted: bool = True) -> Tensor:
        """Begin, or stop, collecting the gradient of a tensor that no operation on the tape made.

        Raises TypeError for a tensor that is not float32, and if ``wanted`` is neither True nor False; RuntimeError for
        the result of an operation.
        """
        wanted = as_flag("requires_grad", wanted)
        if not self.is_leaf:
            raise RuntimeError(f"only a leaf's requires_grad can be set; this tensor was made by {self.node}")
        if wanted and self.dtype != np.float32:
            raise TypeError(f"only float32 tensors have a gradient, this one is {self.dtype}")
        self._wanted = wanted
        self.node = Node(None, None, (), self) if wanted else None
        return self

    # Read by a slot's own function, without a call in Python. The tape itself reads the slot.
    requires_grad = property(operator.attrgetter("_wanted"), requires_grad_)

    def detach(self) -> Tensor:
        """The same memory as a tensor that no operation is written down for."""
        tensor = Tensor._made(self.array, None, 0)
        tensor.changes = self.changes
        return tensor

    def numpy(self) -> np.ndarray:
        """A copy on the host, made once all that was queued is done. RuntimeError if a gradient is required."""
        if self.requires_grad:
            raise RuntimeError("this tensor requires a gradient, which NumPy would lose: use .detach().numpy()")
        return self._on_host()

    def item(self) -> float | int:
        """The only element, on the host."""
        if self.size != 1:
            raise ValueError(f"only a tensor of one element is one number, this one has shape {self.shape}")
        return self._on_host().reshape(-1)[0].item()

    def _on_host(self) -> np.ndarray:
        if state.capturing:
            raise RuntimeError("a step that is being recorded cannot read a result on the host: read it after the call")
        return device.to_host(self.array)

    def changed(self) -> None:
        """Say that the memory was changed in place, by a kernel that the tape does not know of."""
        self.changes.count += 1

    def copy_(self, other: typing.Any) -> Tensor:
        """Overwrite the elements with those of an array or a tensor of the same shape and dtype."""
        if self.requires_grad and state.recording:
            raise RuntimeError("a tensor that requires a gradient is changed in place within no_grad() only")
        source = other.array if isinstance(other, Tensor) else other
        if not hasattr(source, "shape") or not hasattr(source, "dtype"):
            raise TypeError(f"other must be a Tensor or an array, was {type(other).__name__}")
        if tuple(source.shape) != self.shape or source.dtype != self.dtype:
            given = f"{source.dtype}{tuple(source.shape)}"
            raise ValueError(f"other must be like the tensor, {self.dtype}{self.shape}, was {given}")
        self.array.copy_to_device(source)
        self.changed()
        return self

    def backward(self, gradient: typing.Any = None, *, retain_graph: bool = False) -> None:
        """Add the gradient of this tensor, a loss, to the ``grad`` of every leaf that it was made from.

        Args:
            gradient: of what lies behind this tensor with respect to it, of its shape; None for 1, if it is a scalar.
            retain_graph: keep what the operations saved, so that `backward` can be called once more.

        Raises RuntimeError if nothing was written down, for a tensor of several elements without ``gradient``, for a
        graph that was used before, and where a saved tensor was changed in place; ValueError for another shape;
        TypeError if ``retain_graph`` is neither True nor False.
        """
        retain_graph = as_flag("retain_graph", retain_graph)
        if self.node is None:
            raise RuntimeError("this tensor was made from no tensor that requires a gradient, or within no_grad()")
        if gradient is None:
            if self.size != 1:
                raise RuntimeError(
                    f"backward() begins at a scalar, this tensor has shape {self.shape}: take its sum or mean, or "
                    "pass the gradient with respect to it"
                )
            gradient = one(self.shape) if self.dtype == np.float32 else cast(one(self.shape), self.dtype)
        else:
            gradient = gradient.array if isinstance(gradient, Tensor) else as_array(gradient)
            if gradient.shape != self.shape or gradient.dtype != self.dtype:
                raise ValueError(
                    f"gradient must be {self.dtype} of shape {self.shape}, was {gradient.dtype}{gradient.shape}"
                )
        walk(self.node, self.output, gradient, retain_graph)

    def __repr__(self) -> str:
        more = f", made by {self.node}" if not self.is_leaf else ", requires_grad=True" if self.requires_grad else ""
        values = np.array2string(device.to_host(self.array), separator=", ", threshold=50, prefix="Tensor(")
        return f"Tensor({values}{more})"

    def __len__(self) -> int:
        return len(self.array)

    def __bool__(self) -> bool:
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())


def walk(root: Node, output: int, gradient: typing.Any, retain_graph: bool) -> None:
    """Hand a gradient from node to node, against the order in which the operations were carried out.

    The node with the greatest number is next. All that used its outputs have greater numbers, so its gradient is
    complete by then, however often its outputs were used. Leaves come last: if an operation fails, they are as before.
    """
    gradients: dict[Node, dict[int, typing.Any]] = {root: {output: gradient if root.leaf is None else copy(gradient)}}
    waiting = [(-root.number, root)] if root.leaf is None else []
    anomaly, ready = state.anomaly, state.ready
    uses = leaf_uses(root) if ready is not None else {}
    del gradient
    with no_grad():
        while waiting:
            _, node = heapq.heappop(waiting)
            upstream = gradients.pop(node)
            made = node.backward(upstream)
            if not retain_graph:
                node.context.free()
            # Who else has what is handed on: other nodes, as behind a sum, and this one, if it is to be used again.
            users = [*upstream.values(), *(node.context.held if retain_graph else ())] if node.feeds_leaves else ()
            elsewhere = {device.address(array) for array in users if array is not None}
            del upstream, users
            for edge, part in zip(node.inputs, made, strict=True):
                if edge is None:
                    continue
                parent, i = edge
                if part is not None:
                    if anomaly:
                        _look_through(part, f"the gradient that {node} computed")
                    if node.feeds_leaves:  # a leaf's gradient is changed in place, so nobody else may have it
                        if parent.leaf is not None and device.address(part) in elsewhere:
                            part = copy(part)
                        elsewhere.add(device.address(part))
                    if (found := gradients.get(parent)) is not None:
                        found[i] = part if i not in found else add(found[i], part)
                    else:
                        gradients[parent] = {i: part}
                        if parent.leaf is None:
                            heapq.heappush(waiting, (-parent.number, parent))
                if parent in uses:
                    uses[parent] -= 1
                    if not uses[parent] and parent in gradients:
                        ready(parent.leaf, gradients[parent][0])
        for node, found in gradients.items():
            collect(node.leaf, found[0])


def leaf_uses(root: Node) -> collections.Counter[Node]:
    """How often operations behind a node use each leaf: so many gradients it is handed."""
    found: collections.Counter[Node] = collections.Counter()
    seen, left = {root}, [root]
    while left:
        for parent, _ in filter(None, left.pop().inputs):
            if parent.leaf is not None:
                found[parent] += 1
            elif parent not in seen:
                seen.add(parent)
                left.append(parent)
    return found


def collect(leaf: Tensor, gradient: typing.Any) -> None:
    """Add to a leaf's ``grad``."""
    if tuple(gradient.shape) != leaf.shape:
        raise RuntimeError(f"a tensor of shape {leaf.shape} was given a gradient of shape {tuple(gradient.shape)}")
    if leaf.grad is None:
        leaf.grad = Tensor._made(gradient, None, 0)
    else:
        leaf.grad = Tensor._made(add(leaf.grad.array, gradient), None, 0)


# ------------------------------------------------------------------------------------------------------------- arrays


def as_array(data: typing.Any) -> typing.Any:
    """A device array of a dtype that tensors have."""
    if isinstance(data, Tensor):
        raise TypeError("data must be an array or numbers, was a Tensor: use it as it is, or .detach()")
    if not hasattr(data, "__cuda_array_interface__"):
        host = np.asarray(data)
        if not isinstance(data, np.ndarray | np.generic) and host.dtype in (np.float64, np.int64):
            host = host.astype(np.float32)  # Python's numbers, as in PyTorch
        if host.dtype not in DTYPES:
            words = ", ".join(map(str, DTYPES[:-1]))
            raise TypeError(f"data must be of {words} or int64, was {host.dtype}: convert it with .astype()")
        return device.to_device(np.ascontiguousarray(host).reshape(host.shape))
    array = device.as_input("data", data, dtypes=DTYPES, ndim=tuple(range(33)), stream=state.stream)
    # A view of CuPy's or PyTorch's memory is made for one call, and does not keep it. A tensor lives longer.
    return array.owned_by(data) if getattr(array, "owner", data) is None and array.size else array


def full(shape: tuple[int, ...], value: float) -> typing.Any:
    """A device array of one value, filled on the device."""
    from pmpp.kernels import elementwise
    from pmpp.nn.replay import call

    return call(elementwise.full, shape, value)


def zeros(shape: tuple[int, ...], dtype: typing.Any = np.float32) -> typing.Any:
    """A device array of zeros."""
    made = full(shape, 0.0)
    return made if dtype == np.float32 else cast(made, dtype)


def vector(array: typing.Any) -> typing.Any:
    """The same memory with at least one dimension, as kernels take it."""
    return array if array.ndim else array.reshape(1)


def shaped_like(x: typing.Any, made: typing.Any) -> typing.Any:
    """What a kernel has made of a `vector` of ``x``, in the shape of ``x``."""
    return made if x.ndim else made.reshape(())


def cast(array: typing.Any, dtype: typing.Any) -> typing.Any:
    """The numbers in another dtype, each rounded once."""
    from pmpp.kernels import elementwise
    from pmpp.nn.replay import call

    return call(elementwise.cast, array, str(dtype))


@device.cached(8)
def one(shape: tuple[int, ...]) -> typing.Any:
    """The gradient that `Tensor.backward` begins with: an array of the one number 1, which nobody changes."""
    return device.to_device(np.ones(shape, np.float32))


def add(a: typing.Any, b: typing.Any) -> typing.Any:
    """The sum of two gradients, in new memory: each may be in use elsewhere."""
    from pmpp.kernels import elementwise
    from pmpp.nn.replay import call

    return call(elementwise.add, a, b)


def copy(array: typing.Any) -> typing.Any:
    """The same numbers in new memory."""
    from pmpp.kernels import elementwise
    from pmpp.nn.replay import call

    return call(elementwise.copy, array)


def _look_through(array: typing.Any, what: str) -> None:
    values = device.to_host(array)
    wrong = values.size - int(np.isfinite(values).sum()) if values.dtype in FLOATS else 0
    if wrong:
        first = np.argwhere(~np.isfinite(values))[0] if values.ndim else ()
        at = f" (the first at {tuple(map(int, first))})" if math.prod(values.shape) > 1 else ""
        raise FloatingPointError(f"{what} has {wrong} of {values.size} elements that are not finite{at}")


def _inside(node: Node | None) -> str:
    return "" if node or not state.path else f" in {'.'.join(state.path)}"
