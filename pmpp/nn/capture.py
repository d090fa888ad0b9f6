"""A whole training step as one CUDA graph: its launches are recorded once, and queued by one call from then on."""

from __future__ import annotations

import contextlib
import typing
from collections.abc import Callable

from pmpp.nn.tape import Tensor, state
from pmpp.runtime import device, garbage

__all__ = ["Captured", "capture"]


class Captured:
    """A recorded step: call it with batches of the shapes that it was recorded with.

    Attributes: inputs, the tensors that each call overwrites; result, what the step returned: each call writes it anew.
    """

    def __init__(self, step: Callable, inputs: tuple[Tensor, ...]) -> None:
        self.step, self.inputs, self.result = step, inputs, None
        self._graph: typing.Any = None

    def __call__(self, *inputs: Tensor) -> typing.Any:
        """The step on these inputs. Returns what the step returned, with the new values, without waiting for them."""
        if len(inputs) != len(self.inputs):
            raise TypeError(f"the step was recorded with {len(self.inputs)} inputs, was given {len(inputs)}")
        for i, (kept, given) in enumerate(zip(self.inputs, inputs, strict=True)):
            _check(i, given)
            if (given.shape, given.dtype) != (kept.shape, kept.dtype):
                was = f"{given.dtype}{given.shape}"
                raise ValueError(f"input {i} must be {kept.dtype}{kept.shape}, as it was recorded, was {was}")
        for kept, given in zip(self.inputs, inputs, strict=True):
            if given is not kept:
                _copy_to(kept.array, given.array)
        if device.on_gpu():
            self._graph.launch(self._stream)
        else:
            self.result = self.step(*self.inputs)
        return self.result

    def _record(self) -> None:
        import cupy

        # Not a stream that is apart from the default one: what is queued there comes before the step, or after it.
        self._stream, self._pool = cupy.cuda.Stream(), cupy.cuda.MemoryPool()
        cupy.cuda.Device().synchronize()
        with cupy.cuda.using_allocator(self._pool.malloc), self._stream:
            before, state.stream, state.capturing = state.stream, device.as_stream(self._stream), True
            try:
                # Compiles the kernels and fills the caches, neither of which can be done while a graph is recorded.
                for _ in range(3):
                    self.step(*self.inputs)
                self._stream.synchronize()
                with garbage.paused():
                    self._stream.begin_capture()
                    try:
                        self.result = self.step(*self.inputs)
                    except BaseException:
                        with contextlib.suppress(Exception):  # the driver's complaint that the capture was cut short
                            self._stream.end_capture()
                        raise
                    self._graph = self._stream.end_capture()
            finally:
                state.stream, state.capturing = before, False


def capture(step: Callable, *inputs: Tensor) -> Captured:
    """Record ``step(*inputs)``: forward and backward passes and the change of the parameters.

    The step is carried out three times before it is recorded, on these inputs. It must not wait for the GPU or read a
    result on the host, and must do the same each time. Learning rates are those of the recording. Without a GPU the
    result carries out the step as it is, with the same checks.

    Raises ImportError without CuPy, RuntimeError for what cannot be recorded, TypeError for a step that cannot be
    called and for an input that is no tensor, and ValueError for one that requires a gradient: a replay would add to
    that gradient of its own copy.
    """
    if not callable(step):
        raise TypeError(f"step must be a function, was {type(step).__name__}")
    for i, x in enumerate(inputs):
        _check(i, x)
        if x.requires_grad:
            raise ValueError(f"input {i} requires a gradient, but a recorded step copies its inputs: detach() it")
    recorded = Captured(step, tuple(Tensor(_copy(x)) for x in inputs))
    if device.on_gpu():
        recorded._record()
    return recorded


def _copy(tensor: Tensor) -> typing.Any:
    copied = device.empty(tensor.shape, tensor.dtype)
    copied.copy_to_device(tensor.array)
    return copied


def _copy_to(kept: typing.Any, given: typing.Any) -> None:
    """Queue a copy on the default stream, which waits for the last replay, as the next one will wait for the copy."""
    if not device.on_gpu() or getattr(given, "layout", None) is not kept.layout:
        kept.copy_to_device(given)
        return
    # Numba's way is mostly Python, and two of its copies cost the host more than the replay.
    from cupy.cuda import runtime

    runtime.memcpyAsync(kept.pointer, given.pointer, kept.alloc_size, runtime.memcpyDeviceToDevice, 0)


def _check(i: int, given: typing.Any) -> None:
    if not isinstance(given, Tensor):
        raise TypeError(f"input {i} must be a Tensor, was {type(given).__name__}")
