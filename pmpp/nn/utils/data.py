"""Feeding the GPU: datasets, and a loader that shuffles, makes batches and copies them while the GPU computes."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Sequence

import numpy as np

from pmpp.nn.tape import DTYPES, Tensor, state
from pmpp.runtime import device
from pmpp.runtime.check import as_flag, as_integer

__all__ = ["DataLoader", "TensorDataset"]


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
                raise TypeError(f"array {i} must be of float32, int32 or int64, was {array.dtype}")
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
        dataset: a `TensorDataset`, or what has a length and gives examples: tuples of NumPy arrays, or numbers.
        batch_size: examples in a batch; the last may have fewer.
        shuffle: True for another order in each epoch.
        drop_last: True to leave out a last batch that is not full.
        seed: of the orders. The n-th epoch has the same order in every run.
        prefetch: batches that are copied ahead. On a GPU they go through pinned memory, on a stream of their own, while
            kernels compute. 0 copies each when it is asked for.

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
    ) -> None:
        self.dataset, self.batch_size = dataset, as_integer("batch_size", batch_size, 1)
        self.shuffle, self.drop_last = as_flag("shuffle", shuffle), as_flag("drop_last", drop_last)
        self.seed, self.prefetch = as_integer("seed", seed, 0), as_integer("prefetch", prefetch, 0)
        self.epoch = 0

    def state_dict(self) -> dict[str, int]:
        """What is needed to go on later: how many epochs have begun."""
        return {"epoch": self.epoch}

    def load_state_dict(self, values: typing.Mapping[str, int]) -> None:
        """Go on with the epoch after those."""
        self.epoch = values["epoch"]

    def __len__(self) -> int:
        n = len(self.dataset)
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        n = len(self.dataset)
        order = np.random.default_rng([self.seed, self.epoch]).permutation(n) if self.shuffle else np.arange(n)
        self.epoch += 1
        parts = [order[i : i + self.batch_size] for i in range(0, n, self.batch_size)][: len(self)]
        if self.prefetch and device.on_gpu():
            return _ahead(self._batch, parts, self.prefetch)
        return (tuple(Tensor(array) for array in self._batch(part)) for part in parts)

    def _batch(self, indices: np.ndarray) -> tuple[np.ndarray, ...]:
        if isinstance(self.dataset, TensorDataset):
            return self.dataset[indices]
        return collate([self.dataset[int(i)] for i in indices])


def collate(examples: Sequence[tuple]) -> tuple[np.ndarray, ...]:
    """Examples as arrays with one more dimension. Python's numbers become float32 and int64."""
    columns = [np.stack([np.asarray(value) for value in column]) for column in zip(*examples, strict=True)]
    return tuple(column.astype(np.float32) if column.dtype == np.float64 else column for column in columns)


def _ahead(batch: typing.Callable, parts: list[np.ndarray], ahead: int) -> Iterator[tuple[Tensor, ...]]:
    """Batches that are copied on a stream of their own, ``ahead`` of the one that is in use.

    A pinned buffer is filled again when the copy from it is done, which an event says. The stream that computes waits
    on the device for the copy of its batch. A batch's memory is allocated in the order of that stream, so the copy
    waits until what was queued there before is done: the memory may have been used by it.
    """
    from pmpp import cuda

    computes = state.stream or cuda.default_stream()
    copies = cuda.stream()
    ring: list[dict[typing.Any, typing.Any]] = [{} for _ in range(ahead + 1)]
    waiting: list[tuple[tuple, typing.Any]] = []

    def arrived(arrays: tuple, done: typing.Any) -> tuple[Tensor, ...]:
        done.wait(computes)
        return tuple(Tensor(array) for array in arrays)

    for number, part in enumerate(parts):
        slot = ring[number % len(ring)]
        if "done" in slot:
            slot["done"].synchronize()
        arrays = batch(part)
        targets = tuple(device.empty(array.shape, array.dtype, stream=state.stream) for array in arrays)
        allocated = cuda.event(timing=False)
        allocated.record(computes)
        allocated.wait(copies)
        for i, (array, target) in enumerate(zip(arrays, targets, strict=True)):
            pinned = slot.get(i)
            if pinned is None or pinned.shape != array.shape or pinned.dtype != array.dtype:
                pinned = slot[i] = cuda.pinned_array(array.shape, array.dtype)
            pinned[...] = array
            target.copy_to_device(pinned, stream=copies)
        done = slot["done"] = cuda.event(timing=False)
        done.record(copies)
        waiting.append((targets, done))
        if len(waiting) > ahead:
            yield arrived(*waiting.pop(0))
    for one in waiting:
        yield arrived(*one)
