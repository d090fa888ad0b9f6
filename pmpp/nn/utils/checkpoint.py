"""Checkpointing: memory for time. What a part of a network computes is not kept, and is computed again when needed."""

from __future__ import annotations

import typing

from pmpp.nn import init
from pmpp.nn.tape import Function, Tensor, state

__all__ = ["checkpoint"]


class _Checkpoint(Function):
    """A function whose inputs alone are saved."""

    @staticmethod
    def forward(context, function, *inputs):
        context.function, context.began = function, init.where()
        context.tensors = tuple(isinstance(x, Tensor) for x in inputs)
        context.others = tuple(None if isinstance(x, Tensor) else x for x in inputs)
        context.save_for_backward(*(x for x in inputs if isinstance(x, Tensor)))
        before, state.recording = state.recording, False
        try:
            return function(*inputs).array
        finally:
            state.recording = before

    @staticmethod
    def backward(context, dy):
        saved = iter(context.saved)
        inputs = []
        for is_tensor, other, need in zip(context.tensors, context.others, context.needs[1:], strict=True):
            inputs.append(Tensor(next(saved), requires_grad=need) if is_tensor else other)
        now = init.where()
        init.resume(context.began)  # dropout draws the same numbers again
        before, state.recording = state.recording, True
        try:
            context.function(*inputs).backward(Tensor(dy))
        finally:
            state.recording = before
            init.resume(now)
        return None, *(x.grad.array if isinstance(x, Tensor) and x.grad is not None else None for x in inputs)


def checkpoint(function: typing.Callable, *inputs: typing.Any) -> Tensor:
    """``function(*inputs)``, a tensor, of which only the inputs are kept until the backward pass computes it again.

    The function must do the same the second time. Batch normalisation updates its running moments twice. Raises
    RuntimeError if no input requires a gradient: the tape would lead to nothing inside.
    Source: T. Chen and others, Training Deep Nets with Sublinear Memory Cost (arXiv:1604.06174).
    """
    if state.recording and not any(isinstance(x, Tensor) and x.requires_grad for x in inputs):
        raise RuntimeError("checkpoint() needs an input that requires a gradient: call the function as it is")
    return _Checkpoint.apply(function, *inputs)
