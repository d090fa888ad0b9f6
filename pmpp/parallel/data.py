"""Data parallelism: every rank has the whole network, and its own part of each batch.

The loss of a batch is a mean over its examples, so its gradient is the mean of the gradients of the parts. After the
backward pass the ranks average their gradients, and each makes the same step. All networks stay equal to the bit, since
an all-reduce gives all ranks the same bits::

    net = data.DataParallel(group, digits.Net())
    optimizer = nn.optim.SGD(net.parameters(), lr=0.1)
    for indices in data.batches(len(dataset), 16, group.rank, group.size, epoch=0):
        optimizer.zero_grad()
        loss(net, indices).backward()
        net.average_gradients()
        optimizer.step()

`ShardedOptimizer` lets each rank keep the optimiser's state of one part of the parameters alone. `SyncBatchNorm2d`
takes the moments of the joined batch. `batches` says which examples are a rank's own.

Here gradients are averaged after the backward pass. With ``net.backward(loss)`` in the place of ``loss.backward()`` a
bucket is sent as soon as the backward pass has all its gradients, while that goes on: `pmpp.parallel.overlap` predicts
what it saves. `DataParallel.averaged` hands over bucket by bucket, so that the first ones are changed while the last
one travels. Where the group moves arrays from GPU to GPU (`pmpp.parallel.on_gpus`), both run at the same time.

Source: S. Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training (2020), for the buckets;
S. Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models (2020), section 5.1.
"""

from __future__ import annotations

import itertools
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np

from pmpp import nn
from pmpp.kernels import elementwise
from pmpp.kernels.optimiser import copies, tensors
from pmpp.nn.tape import Function, Tensor, copy, state
from pmpp.parallel.environment import BACKENDS
from pmpp.parallel.group import Group
from pmpp.parallel.streams import Mark, sending_stream, wait_for
from pmpp.runtime import device
from pmpp.runtime.check import as_flag, as_integer
from pmpp.runtime.graphs import is_recorded

__all__ = ["AllSum", "DataParallel", "ShardedOptimizer", "SyncBatchNorm2d", "batches", "buckets_of", "grouped"]

BUCKET = 1 << 20  # bytes
SENT = ("float32", "float16")  # dtypes in which gradients are sent
KEPT = 16  # tables of a bucket; then all are forgotten
LONG = 1 << 22  # elements from which on a gradient has a sum of its own: a copy takes longer than the launches
ALIGNED = 8  # a gradient begins at a multiple of so many elements, where kernels can load 128 bits at once


# ------------------------------------------------------------------------------------------------ which examples


def batches(
    length: int,
    batch: int,
    rank: int,
    size: int,
    *,
    epoch: int = 0,
    seed: int = 0,
    shuffle: bool = True,
) -> Iterator[np.ndarray]:
    """The indices of a rank's part of each batch of an epoch.

    Args:
        length: of the dataset.
        batch: examples in the batch of all ranks together; each rank has ``batch / size`` of them.
        rank, size: whose part, and of how many.
        epoch, seed: another order for each of them, the same on all ranks.
        shuffle: False for the order of the dataset.

    Together the ranks have the batches of one rank, whatever their number: so a training goes on with another number of
    ranks. The last examples, which fill no batch, are left out of this epoch. Raises ValueError if ``size`` does not
    divide ``batch``.

    >>> [indices.tolist() for indices in batches(10, 4, 1, 2, shuffle=False)]
    [[2, 3], [6, 7]]
    """
    length, size = as_integer("length", length, 1), as_integer("size", size, 1)
    batch, rank = as_integer("batch", batch, 1, length), as_integer("rank", rank, 0, size - 1)
    if batch % size:
        raise ValueError(f"batch must be a multiple of the {size} ranks, was {batch}")
    seeds = as_integer("seed", seed, 0), as_integer("epoch", epoch, 0)
    order = np.random.default_rng(seeds).permutation(length) if as_flag("shuffle", shuffle) else np.arange(length)
    share = batch // size
    for first in range(0, length - batch + 1, batch):
        yield order[first + rank * share : first + (rank + 1) * share]


# ------------------------------------------------------------------------------------------------ gradients


def buckets_of(parameters: Iterable[Tensor], nbytes: int, last: int | None = None) -> list[list[Tensor]]:
    """Parameters in buckets of at most ``nbytes``, the last parameter first; a larger one has a bucket of its own.

    The backward pass reaches the last layer first, so that the first bucket could be sent first. With ``last`` the last
    bucket has that many bytes at most, or one parameter: nothing hides its sum.

    >>> sizes = [nn.Parameter(np.zeros(n, np.float32)) for n in (1, 2, 3, 4)]
    >>> [[p.size for p in bucket] for bucket in buckets_of(sizes, 20)]
    [[4], [3, 2], [1]]
    >>> [[p.size for p in bucket] for bucket in buckets_of(sizes, 40, last=12)]
    [[4, 3], [2, 1]]
    """
    listed = list(parameters)
    return [[listed[k] for k in bucket] for bucket in grouped([one.array.nbytes for one in listed], nbytes, last)]


def grouped(sizes: Sequence[int], nbytes: int, last: int | None = None) -> list[list[int]]:
    """The rule of `buckets_of` for sizes in bytes: the places of each bucket's parameters, the last one first.

    >>> grouped([4, 8, 12, 16], 20), grouped([4, 8, 12, 16], 40, last=12)
    ([[3], [2, 1], [0]], [[3, 2], [1, 0]])
    """
    nbytes = as_integer("nbytes", nbytes, 1)
    apart = 0  # parameters of a last bucket that has a limit of its own
    if last is not None:
        left = as_integer("last", last, 1, nbytes)
        while apart < len(sizes) and (sizes[apart] <= left or not apart):
            left -= sizes[apart]
            apart += 1
    found: list[list[int]] = []
    room = 0
    for k in reversed(range(apart, len(sizes))):
        if not found or sizes[k] > room:
            found.append([])
            room = nbytes
        found[-1].append(k)
        room -= sizes[k]
    return found + [list(reversed(range(apart)))] * bool(apart)


def begins_of(sizes: Sequence[int]) -> list[int]:
    """Where gradients of these sizes begin in a vector: at multiples of `ALIGNED` elements.

    >>> begins_of([10, 40, 4])
    [0, 16, 56]
    """
    return list(itertools.accumulate([-(-size // ALIGNED) * ALIGNED for size in sizes[:-1]], initial=0))


def parts_of(sizes: Sequence[int], total: int, least: int | None) -> list[tuple[int, int, int | None]]:
    """The sums of a bucket: where each begins and ends, and the place of the one gradient that it has, or None.

    A gradient of ``least`` elements or more has a sum of its own. It is sent from where it lies, and not copied into
    the bucket first. The others are summed there together. ``total``: elements of the bucket.

    >>> parts_of([10, 400, 4, 3], 432, 100), parts_of([10, 400], 416, None)
    ([(0, 16, None), (16, 416, 1), (416, 432, None)], [(0, 416, None)])
    """
    begins = [*begins_of(sizes), total]
    found: list[tuple[int, int, int | None]] = []
    begin = 0
    for place, size in enumerate(sizes):
        if least is not None and size >= least:
            found += [(begin, begins[place], None)] * (begin < begins[place])
            found.append((begins[place], begins[place] + size, place))
            begin = begins[place + 1]
    return found + [(begin, total, None)] * (begin < total)


class DataParallel(nn.Module):
    """A network of which every rank has a copy, trained as one.

    Args:
        group: the ranks.
        net: this rank's network. Its parameters and buffers become those of rank 0.
        bucket: bytes of gradients that are sent at a time. Few large messages cost fewer alphas than many small ones.
        last: bytes of the last bucket, ``bucket`` at most. The backward pass has ended when it is sent, so a rank waits
            for it; a small one takes the shortest time. None for no limit of its own.
        dtype: "float16" sends gradients in half as many bytes, and sums them so. Each is rounded to 11 bits; what is
            smaller than 3e-8 becomes 0, and a sum beyond 65,504 infinite. With `nn.amp.GradScaler` the first becomes
            rare, and after the second it leaves the step out. Parameters and the step are float32 in any case.

    Attributes: net; buckets, lists of parameters.
    """

    def __init__(
        self, group: Group, net: nn.Module, bucket: int = BUCKET, dtype: str = "float32", last: int | None = None
    ) -> None:
        if dtype not in SENT:
            raise ValueError(f"dtype must be {' or '.join(map(repr, SENT))}, was {dtype!r}")
        self.group, self.net, self.dtype = group, net, np.dtype(dtype)
        for _, tensor in (*net.named_parameters(), *net.named_buffers()):
            group.broadcast(tensor.array, out=tensor.array)
            tensor.changed()
        narrower = 4 // self.dtype.itemsize  # so many more gradients go into a bucket
        bucket = as_integer("bucket", bucket, 1)
        last = None if last is None else narrower * as_integer("last", last, 1, bucket)
        self.buckets = buckets_of(net.parameters(), narrower * bucket, last)
        self._begins = [begins_of([parameter.size for parameter in bucket]) for bucket in self.buckets]
        sizes = [begins[-1] + bucket[-1].size for begins, bucket in zip(self._begins, self.buckets, strict=True)]
        self._flat: list[typing.Any] = [group.shared(size, self.dtype, beside_work=True) for size in sizes]
        for flat in self._flat:  # what lies between gradients is summed, too
            flat.copy_to_device(np.zeros(flat.size, self.dtype))
        # The gradients that an optimiser sees: the same memory, or float32 beside it.
        self._wide = self._flat if narrower == 1 else [device.empty(size, np.float32) for size in sizes]
        self._places = dict(self._lay_out(self._flat))
        shapes = {id(parameter): parameter.shape for bucket in self.buckets for parameter in bucket}
        self._gradients = {key: Tensor(part.reshape(shapes[key])) for key, part in self._lay_out(self._wide)}
        self._bucket_of = {id(one): k for k, bucket in enumerate(self.buckets) for one in bucket}
        self._missing = [len(bucket) for bucket in self.buckets]  # gradients that are not complete yet, of this step
        # By a parameter's identity: gradients that are complete but not in their bucket yet; and all that are complete.
        self._found: dict[int, typing.Any] = {}
        self._written: set[int] = set()
        self._tables: list[dict[tuple, tensors.Tables]] = [{} for _ in self.buckets]  # by the gradients' addresses
        self._sent = 0  # buckets, of this step
        # Where arrays travel from GPU to GPU: the stream on which they do, what is read there until a step is over, and
        # by bucket where its sum ends on that stream.
        self._queue = sending_stream() if group.backend in BACKENDS else None
        self._travelling: list[typing.Any] = []
        self._marks = [Mark() for _ in self.buckets if self._queue is not None]
        # Between more than two ranks our own kernels sum a whole bucket in place: they have to know where it lies.
        least = LONG if narrower == 1 and (group.backend != "peer" or group.size == 2) else None
        self._parts = [
            parts_of([parameter.size for parameter in bucket], flat.size, least)
            for bucket, flat in zip(self.buckets, self._flat, strict=True)
        ]

    def _lay_out(self, vectors: Sequence[typing.Any]) -> Iterator[tuple[int, typing.Any]]:
        """By a parameter's identity, where its gradient goes: a part of its bucket's vector."""
        for bucket, begins, flat in zip(self.buckets, self._begins, vectors, strict=True):
            for parameter, begin in zip(bucket, begins, strict=True):
                yield id(parameter), flat[begin : begin + parameter.size]

    def forward(self, *arguments: typing.Any) -> typing.Any:
        """What the network says."""
        return self.net(*arguments)

    def backward(self, loss: Tensor) -> None:
        """The backward pass of a loss, in which each bucket is sent as soon as it is complete.

        Then call `average_gradients`, which waits for the buckets. If gradients are accumulated over several backward
        passes, this is the last one of a step: those before are ``loss.backward()``. All ranks have to call it alike.
        """
        before, state.ready = state.ready, self._ready
        try:
            loss.backward()
        finally:
            state.ready = before

    def _ready(self, parameter: Tensor, gradient: typing.Any) -> None:
        """A gradient is complete. Send what can be sent."""
        key = id(parameter)
        bucket = self._bucket_of.get(key)
        if bucket is None:
            return
        if parameter.grad is not None:  # of the passes before
            gradient = elementwise.add(parameter.grad.array, gradient, stream=state.stream)
        self._found[key] = gradient
        self._written.add(key)
        self._missing[bucket] -= 1
        # Buckets are sent in their order: then it is the same on all ranks, whatever is ready when.
        while self._sent < len(self.buckets) and not self._missing[self._sent]:
            self._send()

    def _send(self) -> None:
        """Put gradients into the next bucket, and queue its sum."""
        k = self._sent
        self._sent += 1
        if self._queue is None:
            self._fill(k)
            self.group.all_reduce(self._flat[k], "mean", out=self._flat[k], stream=state.stream)
            return
        taken = self._long_gradients(k)
        self._fill(k, taken)
        wait_for(state.stream, self._queue)
        for begin, end, place in self._parts[k]:
            part = self._flat[k][begin:end]
            self.group.all_reduce(taken.get(place, part), "mean", out=part, stream=self._queue)
        self._marks[k].set(self._queue)

    def _long_gradients(self, k: int) -> dict[int | None, typing.Any]:
        """By place in bucket k the gradients that are sent from where they lie, as vectors."""
        found = {}
        for _, _, place in self._parts[k]:
            key = None if place is None else id(self.buckets[k][place])
            gradient = self._found.get(key)
            if gradient is not None and gradient.is_c_contiguous():
                found[place] = self._found.pop(key).reshape(-1)
        self._travelling += found.values()
        return found

    def _fill(self, k: int, but: Collection[int] = ()) -> None:
        """The gradients of bucket k to their places, but for some: all in one launch, where they are not cast."""
        some = [parameter for place, parameter in enumerate(self.buckets[k]) if place not in but]
        gradients = [self._found.pop(id(parameter), None) for parameter in some]
        places = [self._places[id(parameter)] for parameter in some]
        if self.dtype != np.float32 or any(one is None for one in gradients):
            for place, gradient in zip(places, gradients, strict=True):
                write(place, None if gradient is None else gradient.reshape(-1), state.stream)
            return
        # A gradient of an expanded or transposed tensor may have strides.
        gradients = [one if one.is_c_contiguous() else copy(one) for one in gradients]
        if not gradients:
            return
        # In the steps of a training gradients come back to the same addresses, and to look at all of them takes longer
        # than the launch. What a graph is to repeat brings its tables along.
        key = None if is_recorded(state.stream) else tuple(map(device.address, gradients))
        made = self._tables[k].get(key)
        if made is None:
            made = copies.tables(places, [one.reshape(-1) for one in gradients], state.stream)
            if key is not None and made is not None:
                if len(self._tables[k]) >= KEPT:
                    self._tables[k].clear()
                self._tables[k][key] = made
        if made is not None:
            copies.launch(made, state.stream)

    def average_gradients(self) -> None:
        """Replace each gradient by the mean of all ranks'. Called once for each step of the optimiser.

        To accumulate gradients over several backward passes, call it after the last one alone: until then nothing is
        sent. A parameter without a gradient counts as one of zeros. The ranks' parts of a batch have to be of one size.
        """
        for _ in self.averaged():
            pass

    def averaged(self) -> Iterator[list[Tensor]]:
        """As `average_gradients`, but bucket by bucket: its parameters, whose gradients are the means by then.

        While a bucket is changed by an optimiser of its own, the later ones still travel::

            optimizers = [nn.optim.SGD(bucket, lr=0.1) for bucket in net.buckets]
            ...
            net.backward(loss)
            for _, optimizer in zip(net.averaged(), optimizers):
                optimizer.step()

        The step is over when all buckets were taken.
        """
        while self._sent < len(self.buckets):
            for parameter in self.buckets[self._sent]:
                if id(parameter) not in self._written and parameter.grad is not None:
                    self._found[id(parameter)] = parameter.grad.array
            self._send()
        for k, bucket in enumerate(self.buckets):
            flat, wide = self._flat[k], self._wide[k]
            if self._queue is not None:
                self._marks[k].wait(state.stream)
            if wide is not flat:
                elementwise.cast(flat, "float32", out=wide, stream=state.stream)
            for parameter in bucket:
                # The gradient is from here on a view of the bucket, and not copied back: the next step writes over it.
                parameter.grad = self._gradients[id(parameter)]
            yield bucket
        self._sent, self._written, self._found, self._travelling = 0, set(), {}, []
        self._missing = [len(bucket) for bucket in self.buckets]

    def check(self) -> None:
        """Raise `switchboard.Stale` if a parameter is not the same on all ranks. Sends a digest for each."""
        for name, parameter in self.net.named_parameters():
            self.group.same(parameter.array, name)


def write(part: typing.Any, gradient: typing.Any, stream: typing.Any = 0) -> None:
    """A gradient, an array of one dimension, into its place in a vector, in the vector's dtype; zeros for None."""
    if gradient is None:
        gradient = elementwise.full(part.shape, 0.0, stream=stream)
    if part.dtype == gradient.dtype:
        elementwise.assign(part, gradient, stream=stream)
    else:
        elementwise.cast(gradient, part.dtype.name, out=part, stream=stream)


# ------------------------------------------------------------------------------------------------ the optimiser's state


class ShardedOptimizer:
    """An optimiser whose state is divided among the ranks: ZeRO's first stage.

    All parameters lie in a vector, which is cut into as many parts as there are ranks. A step is: rank k gets the mean
    gradient of part k (`Group.reduce_scatter`), changes part k, and all ranks get all parts (`Group.all_gather`). That
    sends as many bytes as an all-reduce of the gradients does, which is these two in turn.

    Args:
        group: the ranks.
        params: the parameters, equal on all ranks.
        make: makes the optimiser of a list of parameters, as ``lambda params: nn.optim.Adam(params, lr=1e-3)``. Its
            rule has to treat each element alike, as that of `SGD`, `Adam` and `AdamW`.

    Attributes: inner, the optimiser of this rank's part; param_groups, its groups, for a schedule.
    """

    def __init__(self, group: Group, params: Iterable[Tensor], make: Callable[[list], nn.optim.Optimizer]) -> None:
        self.group, self.params = group, list(params)
        self.count = sum(parameter.size for parameter in self.params)
        self.share = -(-self.count // group.size)  # the last part is filled with zeros
        self._flat = device.to_device(np.zeros((group.size, self.share), np.float32))
        for parameter, part in self._places():
            elementwise.assign(part, parameter.array.reshape(-1))
        self.mine = nn.Parameter(device.to_host(self._flat[group.rank]))
        self.inner = make([self.mine])

    param_groups = property(lambda self: self.inner.param_groups)

    def _places(self) -> Iterator[tuple[Tensor, typing.Any]]:
        vector, begin = self._flat.reshape(-1), 0
        for parameter in self.params:
            yield parameter, vector[begin : begin + parameter.size]
            begin += parameter.size

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for parameter in self.params:
            parameter.grad = None

    def step(self) -> None:
        """Average the gradients, change all parameters, and let all ranks have them. Called by all ranks."""
        for parameter, part in self._places():
            write(part, None if parameter.grad is None else parameter.grad.array.reshape(-1))
        self.mine.grad = Tensor(self.group.reduce_scatter(self._flat, "mean"))
        self.inner.step()
        self.group.all_gather(self.mine.array, out=self._flat)
        for parameter, part in self._places():
            elementwise.assign(parameter.array.reshape(-1), part)
            parameter.changed()

    def state_bytes(self) -> int:
        """Bytes of state that this rank keeps."""
        return state_bytes(self.inner)

    def state_dict(self) -> dict[str, typing.Any]:
        """All that is needed to go on later, on the host: what the optimiser of one rank says, of whole parameters.

        Called by all ranks; all get everything. So a training goes on with another number of ranks, or with one.
        """
        parts = self.inner.state_dict()
        arrays: dict[str, np.ndarray] = {}
        for key, part in parts["arrays"].items():  # "0.exp_avg" and the like: this rank's part is one parameter
            name = key.partition(".")[2]
            vector, begin = device.to_host(self.group.all_gather(part)).reshape(-1), 0
            for k, parameter in enumerate(self.params):
                arrays[f"{k}.{name}"] = vector[begin : begin + parameter.size].reshape(parameter.shape).copy()
                begin += parameter.size
        groups = [group | {"params": list(range(len(self.params)))} for group in parts["groups"]]
        return {"groups": groups, "arrays": arrays}

    def load_state_dict(self, values: Mapping[str, typing.Any]) -> None:
        """Go on from what `state_dict` returned, with any number of ranks, or from that of an optimiser without them.

        Raises ValueError if it was made for other parameters.
        """
        shapes = {f"{k}": parameter.shape for k, parameter in enumerate(self.params)}
        rows: dict[str, np.ndarray] = {}
        for key, array in values["arrays"].items():
            k, _, name = key.partition(".")
            if shapes.get(k) != array.shape:
                raise ValueError(f"values must fit the parameters; {key} of shape {array.shape} does not")
            begin = sum(parameter.size for parameter in self.params[: int(k)])
            vector = rows.setdefault(name, np.zeros(self._flat.size, np.float32))
            vector[begin : begin + array.size] = array.reshape(-1)
        mine = slice(self.group.rank * self.share, (self.group.rank + 1) * self.share)
        arrays = {f"0.{name}": vector[mine].copy() for name, vector in rows.items()}
        # The inner optimiser has one parameter, which is a part of all.
        groups = [{name: option for name, option in group.items() if name != "params"} for group in values["groups"]]
        self.inner.load_state_dict({"groups": groups, "arrays": arrays})


def state_bytes(optimizer: nn.optim.Optimizer) -> int:
    """Bytes of what an optimiser keeps from one step to the next."""
    return sum(array.nbytes for kept in optimizer.state.values() for array in kept.values())


# ------------------------------------------------------------------------------------------------ moments of all


class AllSum(Function):
    """The sum of all ranks' tensors. Every rank's loss depends on it, so the gradient is the sum of all gradients."""

    @staticmethod
    def forward(context: typing.Any, x: Tensor, group: Group) -> typing.Any:
        context.group = group
        return group.all_reduce(x.array)

    @staticmethod
    def backward(context: typing.Any, dy: typing.Any) -> tuple:
        return context.group.all_reduce(dy), None


class SyncBatchNorm2d(nn.BatchNorm2d):
    """`nn.BatchNorm2d` with the moments of the joined batch of all ranks.

    A rank whose part has few examples has poor moments of its own. In training three small arrays are summed in the
    forward pass, and their gradients in the backward pass. All ranks have to call it, in the same order. Evaluation
    sends nothing.

    The gradients are right for a loss that is the sum of the ranks' losses, or their mean: what `DataParallel` makes.

    Args:
        group: the ranks.
        num_features, eps, momentum: as for `nn.BatchNorm2d`.
    """

    def __init__(self, group: Group, num_features: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__(num_features, eps, momentum)
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        """x of shape (N, num_features, H, W); N may differ from rank to rank."""
        if not self.training:
            return super().forward(x)
        self.batches += 1
        shape, size = (1, self.num_features, 1, 1), x.size // self.num_features
        count = float(device.to_host(self.group.all_reduce(np.array([size], np.int64)))[0])
        mean = AllSum.apply(x.sum((0, 2, 3)), self.group) / count
        centred = x - mean.reshape(shape)
        var = AllSum.apply((centred * centred).sum((0, 2, 3)), self.group) / count
        with nn.no_grad():
            keep = 1 - self.momentum
            unbiased = var.detach() * (count / max(count - 1, 1))
            self.running_mean.copy_(self.running_mean * keep + mean.detach() * self.momentum)
            self.running_var.copy_(self.running_var * keep + unbiased * self.momentum)
        scale = self.weight / (var + self.eps).sqrt()
        return centred * scale.reshape(shape) + self.bias.reshape(shape)
