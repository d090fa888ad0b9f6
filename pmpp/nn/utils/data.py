"""Feeding the GPU: datasets, and a loader that shuffles, makes batches and copies them while the GPU computes."""

from __future__ import annotations

import collections
import contextlib
import sys
import typing
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from pmpp.nn.tape import DTYPES, Tensor, state
from pmpp.runtime import device
from pmpp.runtime.check import as_flag, as_integer

__all__ = ["DataLoader", "TensorDataset"]

_KINDS = f"{', '.join(map(str, DTYPES[:-1]))} or {DTYPES[-1]}"


class TensorDataset:
    """Arrays of one length: example i is the i-th element of each.

    >>> len(TensorDataset(np.zeros((10, 3), np.float32), np.arange(10)))
    10
    """

    def __init__(self, *arrays: np.ndarray) -> None:
        if not arrays:
            raise TypeError("TensorDataset takes at least one array")
        for i, array in enumerate(arrays):
            if not isinstance(array, np.ndarray) or not array.ndim:
                raise TypeError(f"array {i} must be a NumPy array of examples, was {type(array).__name__}")
            if array.dtype not in DTYPES:
                raise TypeError(f"array {i} must be of {_KINDS}, was {array.dtype}")
            if len(array) != len(arrays[0]):
                raise ValueError(f"arrays must have one length, had {len(arrays[0])} and {len(array)}")
        self.arrays = arrays

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, index: typing.Any) -> tuple[np.ndarray, ...]:
        return tuple(array[index] for array in self.arrays)


class DataLoader:
    """Batches of a dataset as tensors on the device.

    Args:
        dataset: a `TensorDataset`, or what has a length and gives examples: tuples of NumPy arrays, or numbers. A
            class that is derived from `TensorDataset` is asked for a whole batch, by an array of indices.
        batch_size: examples in a batch; the last may have fewer.
        shuffle: True for another order in each epoch.
        drop_last: True to leave out a last batch that is not full.
        seed: of the orders. The n-th epoch has the same order in every run.
        prefetch: batches that are made and copied ahead of the one that is in use. They go through pinned memory, on a
            stream of their own, while kernels compute. 0 makes and copies each when it is asked for, and waits.
        thread: True to make the batches in a thread of the loader's own. It helps where the host is busy with the step
            for as long as a batch takes to be made. The dataset is then indexed in that thread, in the same order. An
            error there is raised where the batch is asked for. Needs ``prefetch``.

    Raises TypeError or ValueError that names the argument.
    Source: PyTorch's torch.utils.data.DataLoader.
    """

    def __init__(
        self,
        dataset: typing.Any,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        *,
        seed: int = 0,
        prefetch: int = 2,
        thread: bool = False,
    ) -> None:
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise TypeError(f"dataset must have a length and give examples by number, was {type(dataset).__name__}")
        self.dataset, self.batch_size = dataset, as_integer("batch_size", batch_size, 1)
        self.shuffle, self.drop_last = as_flag("shuffle", shuffle), as_flag("drop_last", drop_last)
        self.seed, self.prefetch = as_integer("seed", seed, 0), as_integer("prefetch", prefetch, 0)
        self.thread = as_flag("thread", thread)
        if self.thread and not self.prefetch:
            raise ValueError("thread=True makes batches ahead, so prefetch must be at least 1, was 0")
        self.epoch = 0
        #: By device, of iterators that have ended: pinned memory is slow to allocate.
        self._rings: dict[int, list[list[_Slot]]] = {}

    def state_dict(self) -> dict[str, int]:
        """What is needed to go on later: how many epochs have begun."""
        return {"epoch": self.epoch}

    def load_state_dict(self, values: typing.Mapping[str, int]) -> None:
        """Go on with the epoch after those. Raises TypeError or ValueError for what `state_dict` cannot return."""
        self.epoch = self.check_state_dict(values)

    def check_state_dict(self, values: typing.Mapping[str, int]) -> int:
        """Raise what `load_state_dict` would raise, and change nothing. Returns how many epochs have begun."""
        if not isinstance(values, typing.Mapping):
            raise TypeError(f"values must be what state_dict() returned, was {type(values).__name__}")
        if "epoch" not in values:
            raise ValueError("values must be what state_dict() returned, lacks epoch")
        return as_integer("epoch", values["epoch"], 0)

    def __len__(self) -> int:
        n = len(self.dataset)
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        n = len(self.dataset)
        order = np.random.default_rng([self.seed, self.epoch]).permutation(n) if self.shuffle else np.arange(n)
        self.epoch += 1
        parts = [order[i : i + self.batch_size] for i in range(0, n, self.batch_size)][: len(self)]
        if self.prefetch:
            return self._ahead(parts)
        return (tuple(Tensor(array) for array in self._batch(part)) for part in parts)

    def _batch(self, indices: np.ndarray) -> tuple[np.ndarray, ...]:
        """A batch on the host."""
        if isinstance(self.dataset, TensorDataset):
            return self.dataset[indices]
        return collate([self.dataset[int(i)] for i in indices], indices)

    def _fill(self, indices: np.ndarray, buffers: list[np.ndarray]) -> Sequence[np.ndarray]:
        """A batch on the host; that of a `TensorDataset` in the buffers. It queues nothing on the GPU."""
        if not buffers:
            return self._batch(indices)
        for array, buffer in zip(self.dataset.arrays, buffers, strict=True):
            if array.flags.c_contiguous:
                np.take(array, indices, axis=0, out=buffer, mode="clip")  # "raise" would go through another buffer
            else:
                buffer[...] = array[indices]  # take would first copy the whole array
        return buffers

    def _ahead(self, parts: list[np.ndarray]) -> Iterator[tuple[Tensor, ...]]:
        """Batches that are made and copied `prefetch` ahead of the one that is in use.

        Three things must not happen, and each has its event. A pinned buffer is filled again when the copy from it is
        done: the host waits. A batch is used when its copy is done: the stream that computes waits, on the device. A
        batch's memory comes from that stream's pool and may still be used by what was queued there, so the copy waits
        for that. For the same reason the stream waits at the end for all copies, also of batches that nobody took:
        their memory goes back to its pool.
        """
        from pmpp import cuda

        stream, copies = state.stream, _copy_stream()
        computes = stream or cuda.default_stream()
        rings = self._rings.setdefault(device.current(), [])
        slots = rings.pop() if rings else []
        if len(slots) != self.prefetch + 1:
            slots = [_Slot() for _ in range(self.prefetch + 1)]
        _in_use[id(slots)] = slots, computes
        worker = ThreadPoolExecutor(1, "DataLoader") if self.thread else None
        submit = worker.submit if worker else _at_once
        filling: collections.deque[tuple[_Slot, Future]] = collections.deque()
        copied: collections.deque[tuple[_Slot, list]] = collections.deque()
        begun = 0
        try:
            for number in range(len(parts)):
                while begun < min(number + len(slots), len(parts)):
                    slot, part = slots[begun % len(slots)], parts[begun]
                    slot.done.synchronize()
                    buffers = slot.fit(self._forms(len(part)))
                    filling.append((slot, submit(self._fill, part, buffers)))
                    begun += 1
                while filling and (not copied or filling[0][1].done()):
                    slot, made = filling.popleft()
                    copied.append((slot, slot.send(made.result(), stream, computes, copies)))
                slot, arrays = copied.popleft()
                slot.done.wait(computes)
                yield tuple(map(Tensor, arrays))
        finally:
            if worker:
                worker.shutdown(cancel_futures=True)
            if not sys.is_finalizing():  # then there may be no driver to ask
                for slot in slots:
                    slot.done.wait(computes)
            rings.append(slots)
            del _in_use[id(slots)]

    def _forms(self, n: int) -> list[tuple[tuple[int, ...], np.dtype]]:
        """Shapes and dtypes of a batch of n examples, as far as they are known before it is made."""
        if type(self.dataset).__getitem__ is not TensorDataset.__getitem__:  # one's own makes what only it knows
            return []
        return [((n, *array.shape[1:]), array.dtype) for array in self.dataset.arrays]


#: The slots and the streams of loaders that are being read, by the slots' identity. An iterator that is not read to its
#: end asks their events when it is thrown away. Where it is part of circular garbage, Python first destroys the events
#: of the same garbage, and the driver would be asked for one that is gone. What is reachable from here is no garbage.
_in_use: dict[int, tuple] = {}


class _Slot:
    """Pinned buffers for a batch, and the event that says when the copy from them is done."""

    def __init__(self) -> None:
        from pmpp import cuda

        self.buffers: list[np.ndarray] = []
        self.done, self.allocated = cuda.event(timing=False), cuda.event(timing=False)
        # A copy may still read the buffers when nobody has the slot. Unlike __del__ this keeps the event until then.
        weakref.finalize(self, _wait_for, self.done, self.buffers).atexit = False

    def fit(self, forms: Sequence[tuple[tuple[int, ...], np.dtype]]) -> list[np.ndarray]:
        """Buffers of these shapes and dtypes: those from before where they are large enough."""
        from pmpp import cuda

        fitting = []
        for i, (shape, dtype) in enumerate(forms):
            known = self.buffers[i] if i < len(self.buffers) else None
            if known is None or known.shape[1:] != shape[1:] or known.dtype != dtype or len(known) < shape[0]:
                known = cuda.pinned_array(shape, dtype) if 0 not in shape else np.empty(shape, dtype)
                self.buffers[i : i + 1] = [known]
            fitting.append(known[: shape[0]])
        return fitting

    def send(self, arrays: Sequence[np.ndarray], stream: typing.Any, computes: typing.Any, copies: typing.Any) -> list:
        """Queue the copy of a batch to new memory of the stream that computes. Returns the arrays there."""
        for i, array in enumerate(arrays):
            if array.dtype not in DTYPES:
                raise TypeError(f"array {i} of a batch must be of {_KINDS}, was {array.dtype}")
        buffers = self.fit([(array.shape, array.dtype) for array in arrays])
        for buffer, array in zip(buffers, arrays, strict=True):
            if not np.may_share_memory(buffer, array):
                buffer[...] = array
        targets = [device.empty(buffer.shape, buffer.dtype, stream=stream) for buffer in buffers]
        self.allocated.record(computes)
        self.allocated.wait(copies)
        try:
            self.copy(buffers, targets, copies)
        finally:
            self.done.record(copies)
        return targets

    def copy(self, buffers: list[np.ndarray], targets: list, copies: typing.Any) -> None:
        """Queue the copies themselves."""
        for buffer, target in zip(buffers, targets, strict=True):
            target.copy_to_device(buffer, stream=copies)


def _wait_for(done: typing.Any, buffers: list[np.ndarray]) -> None:
    """Wait until a copy is done. Its buffers can be freed then."""
    with contextlib.suppress(Exception):
        done.synchronize()
    buffers.clear()


def _at_once(function: Callable, *arguments: typing.Any) -> Future:
    """As an executor's ``submit``, but in this thread, and now."""
    future: Future = Future()
    future.set_result(function(*arguments))
    return future


@device.cached(1)
def _copy_stream() -> typing.Any:
    """The stream for copies, one for each device."""
    return _non_blocking_stream()


def _non_blocking_stream() -> typing.Any:
    """A new stream that has no order with the default stream; it is kept until the program ends.

    ``cuda.stream()`` makes one that waits for the default stream, and that the default stream waits for. A copy on such
    a stream never overlaps with kernels on the default stream.
    """
    from pmpp import cuda

    if not device.on_gpu():
        return cuda.stream()
    from numba.cuda.cudadrv import driver

    cuda.current_context()
    flag = driver.binding.CUstream_flags.CU_STREAM_NON_BLOCKING
    return cuda.external_stream(int(driver.driver.cuStreamCreate(flag.value)))


def collate(examples: Sequence[tuple], indices: Sequence[int] | None = None) -> tuple[np.ndarray, ...]:
    """Examples as arrays with one more dimension. Python's numbers become float32 and int64.

    Raises TypeError or ValueError for an example that is no tuple, or not like the first; ``indices`` are their names.
    """
    names = range(len(examples)) if indices is None else indices
    columns: list[list[np.ndarray]] = []
    for name, example in zip(names, examples, strict=True):
        if not isinstance(example, tuple | list):
            raise TypeError(f"example {name} must be a tuple of arrays or numbers, was {type(example).__name__}")
        columns = columns or [[] for _ in example]
        if len(example) != len(columns):
            raise ValueError(f"example {name} has {len(example)} parts, and example {names[0]} has {len(columns)}")
        for part, (value, column) in enumerate(zip(example, columns, strict=True)):
            array = np.asarray(value, _dtype_of(value))
            if column and (array.shape, array.dtype) != (column[0].shape, column[0].dtype):
                raise ValueError(
                    f"part {part} of example {name} is {array.dtype}{array.shape}, and that of example {names[0]} is "
                    f"{column[0].dtype}{column[0].shape}"
                )
            column.append(array)
    return tuple(np.stack(column) for column in columns)


def _dtype_of(value: typing.Any) -> type | None:
    return {float: np.float32, int: np.int64}.get(type(value))
