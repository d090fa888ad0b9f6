"""Checkpointing: memory for time. What a part of a network computes is not kept, and is computed again when needed."""

from __future__ import annotations

import contextlib
import typing

from pmpp.nn import init
from pmpp.nn.modules import Module
from pmpp.nn.tape import Function, Node, Tensor, state, walk

__all__ = ["checkpoint"]


class _Checkpoint(Function):
    """A function whose inputs alone are saved.

    The ``parameters`` behind the inputs are there for the tape: they make it lead here where no input requires a
    gradient. Theirs is collected when ``function`` is computed again.
    """

    @staticmethod
    def forward(context, function, n, *inputs_and_parameters):
        inputs = inputs_and_parameters[:n]
        context.function, context.began, context.autocast = function, init.where()[:2], state.autocast
        context.tensors = tuple(isinstance(x, Tensor) for x in inputs)
        context.others = tuple(None if isinstance(x, Tensor) else x for x in inputs)
        context.save_for_backward(*(x for x in inputs if isinstance(x, Tensor)))
        before, state.recording = state.recording, False
        try:
            result = function(*inputs)
        finally:
            state.recording = before
        if not isinstance(result, Tensor):
            raise TypeError(f"function must return a Tensor, returned {type(result).__name__}")
        return result.array

    @staticmethod
    def backward(context, dy):
        saved, needs = iter(context.saved), context.needs[2:]
        inputs = []
        for is_tensor, other, need in zip(context.tensors, context.others, needs, strict=False):
            inputs.append(_leaf(next(saved), need) if is_tensor else other)
        now = init.where()[:2]  # what is rounded at random goes on: the forward pass has rounded nothing
        init.resume(context.began)  # dropout draws the same numbers again
        before, state.recording = state.recording, True
        try:
            with contextlib.nullcontext() if context.autocast is None else context.autocast.again():
                result = context.function(*inputs)
            if result.node is None:
                raise RuntimeError("the function that was checkpointed made its result of nothing that has a gradient")
            node, output = result.node, result.output
            del result  # only what made it is needed
            walk(node, output, dy, False)
        finally:
            state.recording = before
            init.resume(now)
        found = [x.grad.array if isinstance(x, Tensor) and x.grad is not None else None for x in inputs]
        for x in inputs:
            if isinstance(x, Tensor):
                x.node = None  # a leaf and its node name each other, and would wait for the garbage collector
        return None, None, *found, *[None] * (len(needs) - len(found))


def _leaf(array: typing.Any, need: bool) -> Tensor:
    """A tensor that the walk ends at. A parameter is float32, but what a layer was given may have 16 bits."""
    made = Tensor(array)
    if need:
        made._wanted, made.node = True, Node(None, None, (), made)  # requires_grad_ takes float32 only
    return made


def checkpoint(function: typing.Callable, *inputs: typing.Any) -> Tensor:
    """``function(*inputs)``, a tensor, of which only the inputs are kept until the backward pass computes it again.

    The function must do the same the second time. Batch normalisation updates its running moments twice. If no input
    requires a gradient, as of a batch of images, the function must be a `Module`: its parameters say what the tape
    leads to. A tensor that an operation made, and that has a gradient, must be among the inputs: of others the function
    may use parameters only. The tape behind another tensor would be walked, and freed, before its turn.
    Raises RuntimeError if nothing requires a gradient; TypeError if the function cannot be called, or returns anything
    but a tensor.
    Source: T. Chen and others, Training Deep Nets with Sublinear Memory Cost (arXiv:1604.06174).
    """
    if not callable(function):
        raise TypeError(f"function must be a function or a module, was {type(function).__name__}")
    parameters: list = []
    if state.recording and not any(isinstance(x, Tensor) and x.requires_grad for x in inputs):
        parameters = [p for p in function.parameters() if p.requires_grad] if isinstance(function, Module) else []
        if not parameters:
            raise RuntimeError(
                "checkpoint() needs an input that requires a gradient, or a module with such parameters: else call "
                "the function as it is"
            )
    return _Checkpoint.apply(function, len(inputs), *inputs, *parameters)
