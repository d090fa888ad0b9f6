"""Streams that really are asynchronous, without a GPU: what is queued runs as late, or as early, as its order allows.

A test queues work as a program does. `Late` carries an operation out when somebody waits for it, and not before; then a
buffer that is filled again too early, or memory that is used before its copy, shows in the results. ``eager`` streams
carry out what they can at once; then a copy that does not wait for the kernel that still uses its target shows.
"""

import collections
import types
import weakref

import numpy as np


class Stream:
    """A queue of functions; ``eager`` runs each as soon as nothing in front of it has to wait for another stream."""

    def __init__(self, eager=False):
        self.queue, self.done, self.count, self.eager = collections.deque(), 0, 0, eager

    def add(self, function, waits_for=None):
        self.queue.append((function, waits_for))
        self.count += 1
        if self.eager:
            self.run_free()

    def run_free(self):
        while self.queue:
            _, waits_for = self.queue[0]
            if waits_for and waits_for[0].done < waits_for[1]:
                return
            self._next()

    def run(self, until=None):
        until = self.count if until is None else until
        while self.done < until:
            self._next()

    def _next(self):
        function, waits_for = self.queue.popleft()
        if waits_for:
            waits_for[0].run(waits_for[1])
        if function:
            function()
        self.done += 1

    def synchronize(self):
        self.run()


class Event:
    def __init__(self, timing=True):
        self.mark = None

    def record(self, stream):
        self.mark = stream, stream.count

    def wait(self, stream):
        if self.mark and self.mark[0] is not stream:
            stream.add(None, self.mark)

    def synchronize(self):
        if self.mark:
            self.mark[0].run(self.mark[1])


class Array:
    """Memory of a pool. It goes back when the array is gone, as in the order of the stream that computes."""

    def __init__(self, memory):
        self.memory, self.shape, self.dtype = memory, memory.shape, memory.dtype

    def copy_to_device(self, source, stream):
        memory = self.memory
        stream.add(lambda: memory.__setitem__(..., source))


class Machine:
    """A GPU with a stream that computes and one that copies. `install` puts it below a `DataLoader`."""

    def __init__(self, eager_copies):
        self.computes, self.copies = Stream(), Stream(eager_copies)
        self.pool = collections.defaultdict(list)
        self.pinned = 0

    def empty(self, shape, dtype, stream):
        free = self.pool[tuple(shape), np.dtype(dtype)]
        memory = free.pop() if free else np.full(shape, -1, dtype)
        array = Array(memory)
        weakref.finalize(array, free.append, memory)
        return array

    def pinned_array(self, shape, dtype):
        self.pinned += 1
        return np.full(shape, -2, dtype)

    def sum_of(self, array, found):
        """Queue a kernel that reads an array."""
        memory = array.memory
        self.computes.add(lambda: found.append(float(memory.sum())))

    def install(self, monkeypatch, data):
        import pmpp

        cuda = types.SimpleNamespace(event=Event, pinned_array=self.pinned_array, default_stream=lambda: self.computes)
        monkeypatch.setattr(pmpp, "cuda", cuda)
        monkeypatch.setattr(data, "_copy_stream", lambda: self.copies)
        monkeypatch.setattr(data.device, "empty", self.empty)
        monkeypatch.setattr(data, "Tensor", lambda array: array)
        return self
