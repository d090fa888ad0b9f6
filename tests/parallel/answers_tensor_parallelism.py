"""Answers to the exercises of chapter 101: wrong ones with their mistakes, and other right ones."""

import numpy as np

from pmpp import nn
from pmpp.nn import functional as F
from pmpp.parallel import tensor
from pmpp.runtime import device

# ------------------------------------------------------------------------------------------------ columns, then rows


def hidden_of(x, w1, b1):
    return np.maximum(x @ w1.T + b1, 0)


def with_tensors(group, x, w1, b1, w2, b2):
    hidden = F.relu(F.linear(nn.Tensor(x), nn.Tensor(w1), nn.Tensor(b1)))
    part = F.linear(hidden, nn.Tensor(np.ascontiguousarray(w2)))
    return (tensor.Sum.apply(part, group) + nn.Tensor(b2)).array


def bias_on_rank_0(group, x, w1, b1, w2, b2):
    return group.all_reduce(hidden_of(x, w1, b1) @ w2.T + (b2 if group.rank == 0 else 0))


def a_share_of_the_bias(group, x, w1, b1, w2, b2):
    return group.all_reduce(hidden_of(x, w1, b1) @ w2.T + b2 / np.float32(group.size))


def by_rank_0(group, x, w1, b1, w2, b2):
    total = group.reduce(hidden_of(x, w1, b1) @ w2.T)
    box = device.empty((len(x), len(w2)), np.float32) if total is None else total
    return device.to_host(group.broadcast(box, out=box)) + b2


def by_the_mean(group, x, w1, b1, w2, b2):
    return device.to_host(group.all_reduce(hidden_of(x, w1, b1) @ w2.T, "mean")) * np.float32(group.size) + b2


def bias_on_each(group, x, w1, b1, w2, b2):
    return group.all_reduce(hidden_of(x, w1, b1) @ w2.T + b2)


def without_the_bias(group, x, w1, b1, w2, b2):
    return group.all_reduce(hidden_of(x, w1, b1) @ w2.T)


def its_own_part(group, x, w1, b1, w2, b2):
    return hidden_of(x, w1, b1) @ w2.T + b2


def averaged(group, x, w1, b1, w2, b2):
    return device.to_host(group.all_reduce(hidden_of(x, w1, b1) @ w2.T, "mean")) + b2


def without_the_relu(group, x, w1, b1, w2, b2):
    return device.to_host(group.all_reduce((x @ w1.T + b1) @ w2.T)) + b2


def relu_of_the_parts(group, x, w1, b1, w2, b2):
    return device.to_host(group.all_reduce(np.maximum(hidden_of(x, w1, b1) @ w2.T, 0))) + b2


def all_parts_gathered(group, x, w1, b1, w2, b2):
    return device.to_host(group.all_gather(hidden_of(x, w1, b1) @ w2.T)).sum(axis=0) + b2


def weights_gathered(group, x, w1, b1, w2, b2):
    hidden = np.concatenate(device.to_host(group.all_gather(hidden_of(x, w1, b1))), axis=1)
    return hidden @ np.concatenate(device.to_host(group.all_gather(np.ascontiguousarray(w2))), axis=1).T + b2


def only_rank_0_sums(group, x, w1, b1, w2, b2):
    part = hidden_of(x, w1, b1) @ w2.T
    return device.to_host(group.all_reduce(part)) + b2 if group.rank == 0 else part + b2


# ------------------------------------------------------------------------------------------------ cut classes


def by_the_library(group, scores, labels):
    return tensor.cross_entropy(group, nn.Tensor(scores), labels).item()


def loss_of(group, scores, labels, *, largest="all", total="sum", pick="one", mean=True):
    """The loss in three messages, with mistakes."""
    rows, each = scores.shape
    own = scores.max(axis=1)
    most = {"all": lambda: device.to_host(group.all_reduce(own, "max")), "own": lambda: own, "none": lambda: 0 * own}
    shifted = scores - most[largest]()[:, None]
    summed = np.exp(shifted).sum(axis=1)
    if total == "sum":
        summed = device.to_host(group.all_reduce(summed))
    mine = labels - group.rank * each if pick != "each" else labels % each
    here = (mine >= 0) & (mine < each)
    picked = np.where(here, shifted[np.arange(rows), mine % each], np.float32(0))
    if pick != "own":
        picked = device.to_host(group.all_reduce(picked))
    loss = np.log(summed) - picked
    return loss.mean() if mean else loss.sum()


def in_three_messages(group, scores, labels):
    return loss_of(group, scores, labels)


def by_a_log_of_each_rank(group, scores, labels):
    """Each rank's own logarithm of a sum of exponentials; then those of the ranks: a small gather of two numbers."""
    each = scores.shape[1]
    most = scores.max(axis=1)
    own = most + np.log(np.exp(scores - most[:, None]).sum(axis=1))
    largest = device.to_host(group.all_reduce(own, "max"))
    total = device.to_host(group.all_reduce(np.exp(own - largest)))
    chosen = (labels[:, None] == group.rank * each + np.arange(each)).astype(np.float32)
    picked = device.to_host(group.all_reduce((chosen * scores).sum(axis=1)))
    return np.float32(np.mean(np.log(total) + largest - picked))


def by_the_largest_for_missing(group, scores, labels):
    """The label's score by a largest, with -inf where a rank has it not."""
    each = scores.shape[1]
    first = group.rank * each
    picked = np.float32(
        [scores[k, one - first] if first <= one < first + each else -np.inf for k, one in enumerate(labels)]
    )
    both = device.to_host(group.all_reduce(np.stack([scores.max(axis=1), picked]), "max"))
    total = device.to_host(group.all_reduce(np.exp(scores - both[0][:, None]).sum(axis=1)))
    return (np.log(total) + both[0] - both[1]).mean()


def with_a_device_array(group, scores, labels):
    return device.to_device(np.float32([loss_of(group, scores, labels)]))


def means_are_summed(group, scores, labels):
    """The mean of the picked scores is one number: fewer bytes still."""
    rows, each = scores.shape
    largest = device.to_host(group.all_reduce(scores.max(axis=1), "max"))
    total = device.to_host(group.all_reduce(np.exp(scores - largest[:, None]).sum(axis=1)))
    picked = sum(scores[k, c - group.rank * each] for k, c in enumerate(labels) if c // each == group.rank)
    picked = device.to_host(group.all_reduce(np.float32([picked])))[0]
    return (np.log(total) + largest).mean() - picked / rows


def own_largest(group, scores, labels):
    return loss_of(group, scores, labels, largest="own")


def no_largest(group, scores, labels):
    return loss_of(group, scores, labels, largest="none")


def own_sum(group, scores, labels):
    return loss_of(group, scores, labels, total="own")


def nothing_summed(group, scores, labels):
    return loss_of(group, scores, labels, largest="none", total="own", pick="own")


def own_label(group, scores, labels):
    return loss_of(group, scores, labels, pick="own")


def label_on_each(group, scores, labels):
    return loss_of(group, scores, labels, pick="each")


def not_averaged(group, scores, labels):
    return loss_of(group, scores, labels, mean=False)


def losses_added(group, scores, labels):
    return group.all_reduce(np.float32([loss_of(group, scores, labels)]))


def scores_gathered(group, scores, labels):
    every = np.concatenate(device.to_host(group.all_gather(scores)), axis=1)
    most = every.max(axis=1, keepdims=True)
    log = np.log(np.exp(every - most).sum(axis=1)) + most[:, 0]
    return (log - every[np.arange(len(labels)), labels]).mean()


def numbers_of_all_classes(group, scores, labels):
    return scores[np.arange(len(labels)), labels].mean()


def a_loss_for_each_row(group, scores, labels):
    return scores.max(axis=1)


# ------------------------------------------------------------------------------------------------ cut rows


def of_rows(group, x, w1, w2, *, gather=True, last="scatter", shift=0, op="sum", relu=True):
    """Layers on cut rows, with mistakes."""
    rows = len(x)
    every = device.to_host(group.all_gather(x)).reshape(-1, x.shape[1]) if gather else x
    hidden = every @ w1.T
    part = (np.maximum(hidden, 0) if relu else hidden) @ w2.T
    if not gather:
        return group.all_reduce(part, op)
    if last == "scatter":
        return group.reduce_scatter(np.roll(part.reshape(group.size, rows, -1), shift, axis=0), op)
    whole = device.to_host(group.all_reduce(part, op)) if last != "own" else part
    first = {"first": 0, "all": 0}.get(last, group.rank * rows)
    return whole if last == "all" else whole[first : first + rows]


def with_linear(group, x, w1, w2):
    every = group.all_gather(x).reshape(-1, x.shape[1])
    part = F.linear(F.relu(F.linear(nn.Tensor(every), nn.Tensor(w1))), nn.Tensor(w2)).array
    return group.reduce_scatter(part.reshape(group.size, len(x), len(w2)))


def transposed(group, x, w1, w2):
    every = np.concatenate(list(device.to_host(group.all_gather(x))))
    part = (w2 @ np.maximum(w1 @ every.T, 0)).T
    return group.reduce_scatter(np.ascontiguousarray(part).reshape(group.size, len(x), -1))


def a_block_of_rows_at_a_time(group, x, w1, w2):
    every = device.to_host(group.all_gather(x))
    return group.reduce_scatter(np.stack([np.maximum(block @ w1.T, 0) @ w2.T for block in every]))


def by_all_to_all(group, x, w1, w2):
    """Each rank is sent its rows of all parts, and adds them itself: as many bytes as reduce_scatter."""
    every = device.to_host(group.all_gather(x))
    return device.to_host(group.all_to_all(np.maximum(every @ w1.T, 0) @ w2.T)).sum(axis=0)


def by_the_mean_of_rows(group, x, w1, w2):
    every = device.to_host(group.all_gather(x))
    mean = group.reduce_scatter(np.maximum(every @ w1.T, 0) @ w2.T, "mean")
    return device.to_host(mean) * np.float32(group.size)


def rows_not_gathered(group, x, w1, w2):
    return of_rows(group, x, w1, w2, gather=False)


def rows_not_summed(group, x, w1, w2):
    return of_rows(group, x, w1, w2, last="own")


def by_all_reduce(group, x, w1, w2):
    return of_rows(group, x, w1, w2, last="cut")


def the_first_rows(group, x, w1, w2):
    return of_rows(group, x, w1, w2, last="first")


def every_row(group, x, w1, w2):
    return of_rows(group, x, w1, w2, last="all")


def shifted_rows(group, x, w1, w2):
    return of_rows(group, x, w1, w2, shift=1)


def rows_averaged(group, x, w1, w2):
    return of_rows(group, x, w1, w2, op="mean")


def rows_without_relu(group, x, w1, w2):
    return of_rows(group, x, w1, w2, relu=False)


def rows_says_nothing(group, x, w1, w2):
    of_rows(group, x, w1, w2)


ALSO_RIGHT = (
    ("tensor_parallelism/two_layers", with_tensors),
    ("tensor_parallelism/two_layers", bias_on_rank_0),
    ("tensor_parallelism/two_layers", a_share_of_the_bias),
    ("tensor_parallelism/two_layers", by_rank_0),
    ("tensor_parallelism/two_layers", by_the_mean),
    ("tensor_parallelism/cross_entropy", by_the_library),
    ("tensor_parallelism/cross_entropy", in_three_messages),
    ("tensor_parallelism/cross_entropy", by_a_log_of_each_rank),
    ("tensor_parallelism/cross_entropy", by_the_largest_for_missing),
    ("tensor_parallelism/cross_entropy", with_a_device_array),
    ("tensor_parallelism/cross_entropy", means_are_summed),
    ("tensor_parallelism/cut_rows", with_linear),
    ("tensor_parallelism/cut_rows", transposed),
    ("tensor_parallelism/cut_rows", a_block_of_rows_at_a_time),
    ("tensor_parallelism/cut_rows", by_all_to_all),
    ("tensor_parallelism/cut_rows", by_the_mean_of_rows),
)

WRONG = (
    ("tensor_parallelism/two_layers", bias_on_each, "bias on each rank", "with 2 ranks.*add it once, to the sum"),
    ("tensor_parallelism/two_layers", without_the_bias, "no bias", "b2 is missing"),
    ("tensor_parallelism/two_layers", its_own_part, "not summed", "its own hidden features"),
    ("tensor_parallelism/two_layers", averaged, "mean instead of sum", "added, and not averaged"),
    ("tensor_parallelism/two_layers", without_the_relu, "no ReLU", "between the layers"),
    ("tensor_parallelism/two_layers", relu_of_the_parts, "ReLU of the parts", "not the ReLU of the sum"),
    ("tensor_parallelism/two_layers", all_parts_gathered, "too many bytes", "one all-reduce"),
    ("tensor_parallelism/two_layers", weights_gathered, "too many bytes", "one all-reduce"),
    ("tensor_parallelism/two_layers", only_rank_0_sums, "calls do not meet", "rank 1"),
    ("tensor_parallelism/cross_entropy", own_largest, "own largest", "all have to subtract the same one"),
    ("tensor_parallelism/cross_entropy", no_largest, "overflow", "with 2 ranks and large scores.*subtract"),
    ("tensor_parallelism/cross_entropy", own_sum, "sum of its own classes", "add up those of all ranks"),
    ("tensor_parallelism/cross_entropy", nothing_summed, "nothing summed", "its own scores alone"),
    ("tensor_parallelism/cross_entropy", own_label, "label of another rank", "on one rank"),
    ("tensor_parallelism/cross_entropy", label_on_each, "a label on each rank", "labels count all classes"),
    ("tensor_parallelism/cross_entropy", not_averaged, "sum instead of mean", "mean of the rows"),
    ("tensor_parallelism/cross_entropy", losses_added, "sum of the ranks' losses", "do not add it up"),
    ("tensor_parallelism/cross_entropy", scores_gathered, "too many bytes", "three numbers for each row"),
    ("tensor_parallelism/cross_entropy", numbers_of_all_classes, "error", "IndexError"),
    ("tensor_parallelism/cross_entropy", a_loss_for_each_row, "wrong shape", r"must return shape \(\)"),
    ("tensor_parallelism/cut_rows", rows_not_gathered, "rows not gathered", "gather x first"),
    ("tensor_parallelism/cut_rows", rows_not_summed, "not summed", "its own hidden features"),
    ("tensor_parallelism/cut_rows", by_all_reduce, "too many bytes", "sum and cut in one call"),
    ("tensor_parallelism/cut_rows", the_first_rows, "another rank's rows", "the rank before"),
    ("tensor_parallelism/cut_rows", every_row, "all rows", "return its own 3"),
    ("tensor_parallelism/cut_rows", shifted_rows, "another rank's rows", "the rank before"),
    ("tensor_parallelism/cut_rows", rows_averaged, "mean instead of sum", "added, and not averaged"),
    ("tensor_parallelism/cut_rows", rows_without_relu, "no ReLU", "between the layers"),
    ("tensor_parallelism/cut_rows", rows_says_nothing, "nothing returned", "rank 0 returned None"),
)
