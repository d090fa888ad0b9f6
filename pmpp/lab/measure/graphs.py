"""CUDA graphs: what a function queues on a stream, recorded once and launched as a whole.

::

    from pmpp.lab.measure.graphs import capture

    recorded = capture(lambda stream: softmax.softmax(x, out=out, stream=stream))
    x.copy_to_device(other)
    recorded.replay()                  # the same kernels, on what x holds now
    recorded.synchronize()

While a stream is captured, nothing runs: the driver writes down each kernel with its arguments. A replay hands all of
them to the GPU by one call. What that costs is recorded: see `pmpp.lab.measure.calls` and notebooks/22_launches.ipynb.
The addresses are those of the capture. So all arrays must stay where they are. `Captured` keeps the result and what
rungs allocated in between, in a pool of its own; the caller keeps the inputs. A rung that reads a result on the host
cannot be captured. CuPy makes the stream and the graph. Source: CUDA C++ programming guide, "CUDA Graphs".
"""

from __future__ import annotations

import typing
from collections.abc import Callable

__all__ = ["Captured", "capture"]


class Captured:
    """A recorded call. ``result`` is what it returned: each replay writes it anew.

    Attributes: result, stream (CuPy's, on which it is replayed).
    """

    def __init__(self, graph: typing.Any, stream: typing.Any, pool: typing.Any, result: typing.Any) -> None:
        self.result, self.stream = result, stream
        self._graph, self._pool = graph, pool

    def replay(self) -> None:
        """Queue all that was recorded, without waiting for it."""
        self._graph.launch(self.stream)

    def synchronize(self) -> None:
        """Wait until all replays are done."""
        self.stream.synchronize()


def capture(call: Callable[[typing.Any], typing.Any]) -> Captured:
    """Record what ``call(stream)`` queues on the stream that it is given.

    It is called twice. The first call compiles its kernels and fills the caches of its room; the second is recorded.

    Raises ImportError without CuPy, RuntimeError where there is no GPU, and what the driver says of a call that waits
    for the GPU.
    """
    from pmpp.runtime import device, garbage

    if not device.on_gpu():
        raise RuntimeError(f"a CUDA graph needs an NVIDIA GPU, but {device.backend().why}")
    import cupy

    stream, pool = cupy.cuda.Stream(non_blocking=True), cupy.cuda.MemoryPool()
    cupy.cuda.Device().synchronize()  # what was queued elsewhere may still write the arguments
    with cupy.cuda.using_allocator(pool.malloc), stream:
        call(stream)
        stream.synchronize()
        with garbage.paused():
            stream.begin_capture()
            try:
                result = call(stream)
            finally:
                graph = stream.end_capture()
    return Captured(graph, stream, pool, result)
