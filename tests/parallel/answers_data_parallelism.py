"""Answers to the exercises of chapter 100: wrong ones with their mistakes, and other right ones."""

import numpy as np

from pmpp import nn
from pmpp.kernels import elementwise
from pmpp.nn import functional as F
from pmpp.parallel import data
from pmpp.runtime import device

# ------------------------------------------------------------------------------------------------ unequal parts


def by_two_sums(group, gradient, count):
    total = device.to_host(group.all_reduce(np.array([count], np.int64)))[0]
    return group.all_reduce(gradient * np.float32(count / total))


def by_the_mean_of_products(group, gradient, count):
    """Both means are divided by the number of ranks, which cancels."""
    products = device.to_host(group.all_reduce(gradient * np.float32(count), "mean"))
    return products / device.to_host(group.all_reduce(np.float32([count]), "mean"))


def by_gathering(group, gradient, count):
    gradients = device.to_host(group.all_gather(gradient))
    return np.average(gradients, axis=0, weights=device.to_host(group.all_gather(np.array(count))))


def with_a_kernel(group, gradient, count):
    scaled = elementwise.multiply(device.to_device(gradient), float(count))
    group.all_reduce(scaled, out=scaled)
    total = int(device.to_host(group.all_reduce(np.array([count], np.int32)))[0])
    return elementwise.multiply(scaled, 1 / total)


def at_rank_0(group, gradient, count):
    """Rank 0 makes the sum and tells it to all."""
    total = group.reduce(np.append(gradient * np.float32(count), np.float32(count)), root=0)
    box = device.empty(gradient.size + 1, np.float32) if total is None else total
    found = device.to_host(group.broadcast(box if group.rank else total, out=box))
    return found[:-1] / found[-1]


def summed(group, gradient, count):
    return group.all_reduce(gradient)


def mean_of_means(group, gradient, count):
    return group.all_reduce(gradient, "mean")


def not_divided(group, gradient, count):
    return group.all_reduce(gradient * np.float32(count))


def divided_by_the_ranks(group, gradient, count):
    return group.all_reduce(gradient * np.float32(count), "mean")


def divided_by_its_own_count(group, gradient, count):
    with np.errstate(divide="ignore", invalid="ignore"):
        return device.to_host(group.all_reduce(gradient * np.float32(count))) / np.float32(count * group.size)


def divided_by_its_own_count_alone(group, gradient, count):
    return device.to_host(group.all_reduce(gradient * np.float32(count))) / np.float32(max(count, 1))


def the_mean_at_rank_0(group, gradient, count):
    found = by_two_sums(group, gradient, count)
    return 0 * gradient if group.rank else found


def its_own(group, gradient, count):
    return gradient


def only_rank_0_sums(group, gradient, count):
    if group.rank == 0:
        return group.all_reduce(gradient * np.float32(count))
    return gradient


def says_nothing(group, gradient, count):
    group.all_reduce(gradient, "mean")


# ------------------------------------------------------------------------------------------------ a whole training


def loss_of(net, piece):
    images, labels = piece
    return F.cross_entropy(net(nn.Tensor(images)), nn.Tensor(labels))


def by_data_parallel(group, net, steps, lr):
    net = data.DataParallel(group, net)
    optimizer = nn.optim.SGD(net.parameters(), lr=lr)
    for pieces in steps:
        optimizer.zero_grad()
        for piece in pieces:
            (loss_of(net, piece) * (1 / len(pieces))).backward()
        net.average_gradients()
        optimizer.step()


def by_a_sharded_optimiser(group, net, steps, lr):
    data.DataParallel(group, net)
    optimizer = data.ShardedOptimizer(group, net.parameters(), lambda params: nn.optim.SGD(params, lr=lr))
    for pieces in steps:
        optimizer.zero_grad()
        for piece in pieces:
            (loss_of(net, piece) * (1 / len(pieces))).backward()
        optimizer.step()


def by_a_smaller_rate(group, net, steps, lr):
    """The sum of all gradients of all pieces, with a rate divided by how many these are."""
    begin_alike(group, net)
    for pieces in steps:
        for parameter in net.parameters():
            parameter.grad = None
        for piece in pieces:
            loss_of(net, piece).backward()
        optimizer = nn.optim.SGD(net.parameters(), lr=lr / (group.size * len(pieces)))
        reduce_gradients(group, net, "sum")
        optimizer.step()


def in_one_batch(group, net, steps, lr):
    """The pieces of a step joined on each rank."""
    begin_alike(group, net)
    optimizer = nn.optim.SGD(net.parameters(), lr=lr)
    for pieces in steps:
        optimizer.zero_grad()
        joined = [np.concatenate(parts) for parts in zip(*pieces, strict=True)]
        loss_of(net, joined).backward()
        reduce_gradients(group, net, "mean")
        optimizer.step()


def from_numpy(group, net, steps, lr):
    """Parameters from a gathered array, and steps by NumPy."""
    for parameter in net.parameters():
        gathered = device.to_host(group.all_gather(parameter.array))
        with nn.no_grad():
            parameter.copy_(nn.Tensor(np.ascontiguousarray(gathered[0])))
    for pieces in steps:
        for parameter in net.parameters():
            parameter.grad = None
        for piece in pieces:
            loss_of(net, piece).backward()
        for parameter in net.parameters():
            mean = device.to_host(group.all_reduce(parameter.grad.array, "mean")) / np.float32(len(pieces))
            with nn.no_grad():
                parameter.copy_(nn.Tensor(parameter.detach().numpy() - np.float32(lr) * mean))


def begin_alike(group, net):
    for parameter in net.parameters():
        group.broadcast(parameter.array, out=parameter.array)
        parameter.changed()


def reduce_gradients(group, net, op):
    for parameter in net.parameters():
        group.all_reduce(parameter.grad.array, op, out=parameter.grad.array)


def training(*, begin=True, op="mean", divide=True, when="last", clear=True, step=True, each=""):
    """A training with mistakes; ``each`` names what is done for each piece instead of for each step."""

    def answer(group, net, steps, lr):
        if begin:
            begin_alike(group, net)
        optimizer = nn.optim.SGD(net.parameters(), lr=lr)
        for pieces in steps:
            if clear:
                optimizer.zero_grad()
            for k, piece in enumerate(pieces):
                if "zero_grad" in each:
                    optimizer.zero_grad()
                (loss_of(net, piece) * (1 / len(pieces) if divide else 1)).backward()
                if {"first": k == 0, "last": k == len(pieces) - 1, "each": True, "never": False}[when]:
                    reduce_gradients(group, net, op)
                if "step" in each:
                    optimizer.step()
            if step:
                optimizer.step()

    return answer


not_broadcast = training(begin=False)
with_the_sum = training(op="sum")
pieces_not_divided = training(divide=False)
averaged_after_the_first_piece = training(when="first")
averaged_after_each_piece = training(when="each")
never_averaged = training(when="never")
gradients_kept = training(clear=False)
never_steps = training(step=False)
two_mistakes = training(begin=False, op="sum")
a_step_for_each_piece = training(when="each", each="step", step=False)
a_whole_step_for_each_piece = training(when="each", each="zero_grad step", step=False, divide=False)
zeroed_for_each_piece = training(each="zero_grad")
zeroed_and_not_divided = training(each="zero_grad", divide=False)


def averages_the_parameters(group, net, steps, lr):
    """A step of its own, and then the mean of the parameters: equal for SGD, so it is right, if all begin alike."""
    begin_alike(group, net)
    optimizer = nn.optim.SGD(net.parameters(), lr=lr)
    for pieces in steps:
        optimizer.zero_grad()
        for piece in pieces:
            (loss_of(net, piece) * (1 / len(pieces))).backward()
        optimizer.step()
        for parameter in net.parameters():
            group.all_reduce(parameter.array, "mean", out=parameter.array)
            parameter.changed()


def a_smaller_start(group, net, steps, lr):
    begin_alike(group, net)
    with nn.no_grad():
        for parameter in net.parameters():
            parameter.copy_(parameter * 0.5)
    training()(group, net, steps, lr)


def the_mean_of_the_first_parameters(group, net, steps, lr):
    for parameter in net.parameters():
        group.all_reduce(parameter.array, "mean", out=parameter.array)
        parameter.changed()
    training(begin=False)(group, net, steps, lr)


# ------------------------------------------------------------------------------------------------ a sharded step


def sharded(*, op="mean", up=True, gather=True, whole=False, momentum=0.9):
    """A sharded step with mistakes."""

    def answer(group, weights, gradient, lr, state):
        n, p = weights.size, group.size
        share = -(-n // p) if up else n // p
        if not share:
            return weights
        padded = np.zeros(max(n, share * p), np.float32)
        padded[:n] = gradient
        rows = padded[: share * p].reshape(p, share)
        mine = device.to_host(group.reduce_scatter(rows, op))
        if whole:
            state["all"] = np.zeros(n, np.float32)
        state["v"] = momentum * state.get("v", 0) + mine
        first = share * group.rank
        new = weights.copy()
        part = new[first : first + share]
        part -= lr * state["v"][: part.size]
        if not gather:
            return new
        row = np.zeros(share, np.float32)
        row[: part.size] = part
        joined = device.to_host(group.all_gather(row)).reshape(-1)
        new[: min(n, joined.size)] = joined[:n]
        return new

    return answer


in_parts = sharded()
the_sum = sharded(op="sum")
too_short = sharded(up=False)
own_part_alone = sharded(gather=False)
keeps_everything = sharded(whole=True)
without_momentum = sharded(momentum=0.0)
another_momentum = sharded(momentum=0.5)


def by_the_optimiser(group, weights, gradient, lr, state):
    """The library's: its optimiser is made anew in each step, and gets the momentum that was kept."""
    if "v" in state:
        before = state["v"]
    else:
        before = np.zeros(-(-weights.size // group.size), np.float32)
    parameter = nn.Parameter(weights)
    parameter.grad = nn.Tensor(gradient)
    rows = np.zeros((group.size, before.size), np.float32)
    rows.reshape(-1)[: weights.size] = gradient
    state["v"] = 0.9 * before + device.to_host(group.reduce_scatter(rows, "mean"))
    change = group.all_gather(state["v"].astype(np.float32))
    return weights - np.float32(lr) * device.to_host(change).reshape(-1)[: weights.size]


def with_kernels(group, weights, gradient, lr, state):
    """All on the device."""
    share = -(-weights.size // group.size)
    rows = np.zeros((2, group.size * share), np.float32)
    rows[0, : weights.size], rows[1, : weights.size] = weights, gradient
    mean = group.reduce_scatter(device.to_device(rows[1].reshape(group.size, share)), "mean")
    v = elementwise.add(elementwise.multiply(state["v"], 0.9), mean) if state else mean
    state["v"] = v
    part = device.to_device(rows[0].reshape(group.size, share)[group.rank])
    return group.all_gather(elementwise.subtract(part, elementwise.multiply(v, lr))).reshape(-1)[: weights.size]


def by_a_sum(group, weights, gradient, lr, state):
    """The sum, divided afterwards."""
    share = -(-weights.size // group.size)
    rows = np.pad(gradient, (0, share * group.size - weights.size)).reshape(group.size, share)
    mean = device.to_host(group.reduce_scatter(rows)) / np.float32(group.size)
    state[0] = mean + np.float32(0.9) * state[0] if state else mean
    old = np.pad(weights, (0, share * group.size - weights.size)).reshape(group.size, share)[group.rank]
    return device.to_host(group.all_gather(old - np.float32(lr) * state[0])).ravel()[: weights.size]


def keeps_the_rate(group, weights, gradient, lr, state):
    """The state is v times the rate."""
    share = -(-weights.size // group.size)
    rows = np.zeros((group.size, share), np.float32)
    rows.flat[: weights.size] = lr * gradient
    mean = device.to_host(group.reduce_scatter(rows, op="mean"))
    state.setdefault("step", np.zeros(share, np.float32))
    state["step"] *= np.float32(0.9)
    state["step"] += mean
    return weights - device.to_host(group.all_gather(state["step"])).reshape(-1)[: weights.size]


def by_all_reduce(group, weights, gradient, lr, state):
    mean = device.to_host(group.all_reduce(gradient, "mean"))
    share = -(-weights.size // group.size)
    padded = np.zeros((2, group.size, share), np.float32)
    padded[0].reshape(-1)[: weights.size], padded[1].reshape(-1)[: weights.size] = weights, mean
    state["v"] = 0.9 * state.get("v", 0) + padded[1, group.rank]
    row = (padded[0, group.rank] - lr * state["v"]).astype(np.float32)
    return device.to_host(group.all_gather(row)).reshape(-1)[: weights.size]


def without_any_message(group, weights, gradient, lr, state):
    share = -(-weights.size // group.size)
    state["v"] = 0.9 * state.get("v", 0) + gradient
    assert share
    return weights - lr * state["v"]


def leaves_all(group, weights, gradient, lr, state):
    return weights


def no_return(group, weights, gradient, lr, state):
    in_parts(group, weights, gradient, lr, state)


def the_padded_vector(group, weights, gradient, lr, state):
    share = -(-weights.size // group.size)
    return np.pad(in_parts(group, weights, gradient, lr, state), (0, share * group.size - weights.size + 1))


def not_padded(group, weights, gradient, lr, state):
    """Rows of what is there: their lengths differ from rank to rank, or there are not enough of them."""
    return group.all_gather(group.reduce_scatter(gradient.reshape(group.size, -1), "mean"))


def rows_returned(group, weights, gradient, lr, state):
    share = -(-weights.size // group.size)
    found = np.zeros(share * group.size, np.float32)
    found[: weights.size] = in_parts(group, weights, gradient, lr, state)
    return found.reshape(group.size, share)


ALSO_RIGHT = (
    ("data_parallelism/average", by_two_sums),
    ("data_parallelism/average", by_the_mean_of_products),
    ("data_parallelism/average", by_gathering),
    ("data_parallelism/average", with_a_kernel),
    ("data_parallelism/average", at_rank_0),
    ("data_parallelism/train", by_data_parallel),
    ("data_parallelism/train", by_a_sharded_optimiser),
    ("data_parallelism/train", by_a_smaller_rate),
    ("data_parallelism/train", in_one_batch),
    ("data_parallelism/train", from_numpy),
    ("data_parallelism/train", averages_the_parameters),
    ("data_parallelism/sharded_step", in_parts),
    ("data_parallelism/sharded_step", by_the_optimiser),
    ("data_parallelism/sharded_step", with_kernels),
    ("data_parallelism/sharded_step", by_a_sum),
    ("data_parallelism/sharded_step", keeps_the_rate),
)

WRONG = (
    ("data_parallelism/average", summed, "sum instead of mean", "with 3, 1 examples rank 0 must"),
    ("data_parallelism/average", mean_of_means, "mean of means", "with 3, 1 examples.*each example should"),
    ("data_parallelism/average", not_divided, "not divided", "divide by the examples of all ranks"),
    ("data_parallelism/average", divided_by_the_ranks, "divided by the ranks", "not by the number of ranks"),
    ("data_parallelism/average", divided_by_its_own_count, "divided by its own examples", "3, 1 examples.*are summed"),
    ("data_parallelism/average", divided_by_its_own_count_alone, "divided by its own examples", "are summed"),
    ("data_parallelism/average", the_mean_at_rank_0, "ranks differ", "the same result"),
    ("data_parallelism/average", its_own, "not summed", "its own gradient"),
    ("data_parallelism/average", only_rank_0_sums, "calls do not meet", "rank 0"),
    ("data_parallelism/average", says_nothing, "nothing returned", "rank 0 returned None"),
    ("data_parallelism/train", not_broadcast, "parameters not broadcast", "send those of rank 0 to all"),
    ("data_parallelism/train", with_the_sum, "sum instead of mean", "a larger rate"),
    ("data_parallelism/train", pieces_not_divided, "pieces not divided", "3 pieces in a step.*by the number of pieces"),
    ("data_parallelism/train", averaged_after_the_first_piece, "averaged too early", "after the last backward pass"),
    ("data_parallelism/train", averaged_after_each_piece, "too many bytes", "average once for each step"),
    ("data_parallelism/train", never_averaged, "not averaged", "its own gradients"),
    ("data_parallelism/train", gradients_kept, "old gradients", "were not dropped"),
    ("data_parallelism/train", never_steps, "not trained", "no parameter has changed"),
    ("data_parallelism/train", two_mistakes, "parameters not broadcast", "still differ"),
    ("data_parallelism/train", the_mean_of_the_first_parameters, "parameters averaged", "those of rank 0 to all"),
    ("data_parallelism/train", a_step_for_each_piece, "step for each piece", "once, after the last piece"),
    ("data_parallelism/train", a_whole_step_for_each_piece, "step for each piece", "once, after the last piece"),
    ("data_parallelism/train", zeroed_for_each_piece, "pieces dropped", "before the first piece"),
    ("data_parallelism/train", zeroed_and_not_divided, "pieces dropped", "before the first piece"),
    ("data_parallelism/train", a_smaller_start, "wrong result", "not those of one rank"),
    ("data_parallelism/sharded_step", the_sum, "sum instead of mean", "take the mean"),
    (
        "data_parallelism/sharded_step",
        too_short,
        "shard too short",
        "the last 2 weights as they were: 3 parts of 2 are 6",
    ),
    ("data_parallelism/sharded_step", own_part_alone, "not gathered", "gather the parts of all ranks"),
    ("data_parallelism/sharded_step", keeps_everything, "shard too long", "its part has 4"),
    ("data_parallelism/sharded_step", without_momentum, "no momentum", "keep it in state"),
    ("data_parallelism/sharded_step", another_momentum, "wrong result", "after step 1, was"),
    ("data_parallelism/sharded_step", by_all_reduce, "too many bytes", "reduce_scatter does what is needed"),
    ("data_parallelism/sharded_step", without_any_message, "not averaged", "its own gradient alone"),
    ("data_parallelism/sharded_step", leaves_all, "no step", "that it had before"),
    ("data_parallelism/sharded_step", no_return, "nothing returned", "in step 0 rank 0 returned None"),
    ("data_parallelism/sharded_step", the_padded_vector, "wrong shape", "must return shape"),
    ("data_parallelism/sharded_step", not_padded, "rows not joined", "returned shape .2, 4.: join"),
    ("data_parallelism/sharded_step", rows_returned, "rows not joined", "returned shape .2, 4.: join"),
)
