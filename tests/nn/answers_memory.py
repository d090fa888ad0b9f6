"""Answers to the exercises of notebooks/93_memory.ipynb: wrong ones with their mistakes, and other right ones."""

import numpy as np

from pmpp import nn
from pmpp.kernels import activation, elementwise
from pmpp.nn import functional as F
from pmpp.nn.tape import Function, Tensor, state

# ------------------------------------------------------------------------------------------------------------ leak

SEEN: list = []


def trained(net, optimizer, training, keep):
    losses = []
    for x, y in training:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(keep(loss))
    return losses


def evaluated(net, held_out):
    with nn.no_grad():
        return sum(F.cross_entropy(net(x), y).item() for x, y in held_out) / len(held_out)


def as_it_was(net, optimizer, training, held_out):
    state.watch = lambda path, module, result: SEEN.append(result)
    losses, total = trained(net, optimizer, training, lambda loss: loss), 0
    for x, y in held_out:
        total = total + F.cross_entropy(net(x), y)
    return losses, total * (1 / len(held_out))


def evaluates_with_the_tape(net, optimizer, training, held_out):
    losses, total = trained(net, optimizer, training, lambda loss: loss.item()), 0
    for x, y in held_out:
        total = total + F.cross_entropy(net(x), y)
    return losses, total * (1 / len(held_out))


def keeps_losses(net, optimizer, training, held_out):
    return trained(net, optimizer, training, lambda loss: loss), evaluated(net, held_out)


def watches(net, optimizer, training, held_out):
    state.watch = lambda path, module, result: SEEN.append(abs(result.detach().numpy()).max())
    return trained(net, optimizer, training, lambda loss: loss.item()), evaluated(net, held_out)


def collects(net, optimizer, training, held_out):
    state.watch = lambda path, module, result: SEEN.append(result.detach())
    try:
        return trained(net, optimizer, training, lambda loss: loss.item()), evaluated(net, held_out)
    finally:
        state.watch = None


def trains_nothing(net, optimizer, training, held_out):
    with nn.no_grad():
        return [F.cross_entropy(net(x), y).item() for x, y in training], evaluated(net, held_out)


def detached(net, optimizer, training, held_out):
    losses = trained(net, optimizer, training, lambda loss: loss.detach())
    total = 0.0
    for x, y in held_out:
        total += F.cross_entropy(net(x), y).detach().item()
    return losses, total / len(held_out)


# ------------------------------------------------------------------------------------------------------------ ReLU


def relu(save, gradient):
    """A ReLU that saves ``save(x, y)``, and whose gradient is computed of what it saved."""

    class ReLU(Function):
        @staticmethod
        def forward(context, x):
            y = activation.fused(x.array, "relu")
            context.save_for_backward(*save(x.array, y))
            return y

        @staticmethod
        def backward(context, dy):
            return gradient(dy, *context.saved)

    return ReLU


keeps_input = relu(lambda x, y: [x], lambda dy, x: activation.backward(dy, x, "relu"))
keeps_both = relu(lambda x, y: [x, y], lambda dy, x, y: activation.backward(dy, x, "relu"))
multiplies = relu(lambda x, y: [y], elementwise.multiply)
passes_all = relu(lambda x, y: [y], lambda dy, y: dy)
counts_zero = relu(lambda x, y: [y], lambda dy, y: activation.backward(dy, elementwise.add(y, 1.0), "relu"))
signs = relu(lambda x, y: [y], lambda dy, y: elementwise.multiply(dy, elementwise.sign(y)))


class HidesIt(Function):
    KEPT: list = []  # noqa: RUF012

    @staticmethod
    def forward(context, x):
        context.y = activation.fused(x.array, "relu")
        HidesIt.KEPT.append(context.y)
        return context.y

    @staticmethod
    def backward(context, dy):
        return activation.backward(dy, context.y, "relu")


# ------------------------------------------------------------------------------------------------------ accumulation


def parts(x, y, size):
    labels = y.numpy()
    for i in range(0, len(x), size):
        yield x[i : i + size], Tensor(labels[i : i + size])


def unscaled(net, x, y, size):
    total = 0.0
    for part, labels in parts(x, y, size):
        loss = F.cross_entropy(net(part), labels)
        loss.backward()
        total += loss.item() * len(part) / len(x)
    return total


def equal_shares(net, x, y, size):
    total, n = 0.0, -(-len(x) // size)
    for part, labels in parts(x, y, size):
        loss = F.cross_entropy(net(part), labels) * (1 / n)
        loss.backward()
        total += loss.item()
    return total


def at_the_end(net, x, y, size):
    total = 0
    for part, labels in parts(x, y, size):
        total = total + F.cross_entropy(net(part), labels) * (len(part) / len(x))
    total.backward()
    return total.item()


def drops_the_rest(net, x, y, size):
    total, n = 0.0, max(1, len(x) // size)
    for part, labels in list(parts(x, y, size))[:n]:
        loss = F.cross_entropy(net(part), labels) * (1 / n)
        loss.backward()
        total += loss.item()
    return total


def zeroes(net, x, y, size):
    total = 0.0
    for part, labels in parts(x, y, size):
        net.zero_grad()
        loss = F.cross_entropy(net(part), labels) * (len(part) / len(x))
        loss.backward()
        total += loss.item()
    return total


def last_loss(net, x, y, size):
    for part, labels in parts(x, y, size):
        loss = F.cross_entropy(net(part), labels) * (len(part) / len(x))
        loss.backward()
    return loss.item()


def nothing(net, x, y, size):
    pass


def scaled_from_above(net, x, y, size):
    """The share is the gradient that the walk begins with."""
    total = 0.0
    for part, labels in parts(x, y, size):
        loss, share = F.cross_entropy(net(part), labels), np.float32(len(part) / len(x))
        loss.backward(np.full((), share))
        total += loss.item() * float(share)
    return total


def summed(net, x, y, size):
    """Sums of losses, divided by the whole number at once."""
    total = 0.0
    for part, labels in parts(x, y, size):
        loss = F.cross_entropy(net(part), labels, reduction="sum") * (1 / len(x))
        loss.backward()
        total += loss.item()
    return total


#: (exercise, answer, mistake, what is said)
WRONG = [
    ("memory/leak", as_it_was, "a hook is left", "state.watch is still set"),
    ("memory/leak", evaluates_with_the_tape, "keeps activations", "bytes of device memory more"),
    ("memory/leak", keeps_losses, "keeps the tape", "nodes"),
    ("memory/leak", watches, "a hook is left", "state.watch"),
    ("memory/leak", collects, "keeps activations", "bytes"),
    ("memory/leak", trains_nothing, "wrong losses", "must be"),
    ("memory/leak", lambda *_: None, "not started", "None"),
    ("memory/relu", keeps_input, "keeps too much", "8,192 bytes"),
    ("memory/relu", keeps_both, "keeps too much", "8,192 bytes"),
    ("memory/relu", multiplies, "wrong gradient", "positive"),
    ("memory/relu", passes_all, "wrong gradient", "where x is"),
    ("memory/relu", counts_zero, "wrong gradient", "where x is 0"),
    ("memory/relu", HidesIt, "kept outside the tape", "still there"),
    ("memory/relu", relu(lambda x, y: [], lambda dy: None), "no gradient", "None"),
    ("memory/relu", F.relu, "not a Function", "derived from"),
    ("memory/accumulate", unscaled, "wrong gradient", "it is 2 times that"),
    ("memory/accumulate", equal_shares, "wrong gradient", "10 examples in parts of 4"),
    ("memory/accumulate", at_the_end, "keeps all parts", "lived at once"),
    ("memory/accumulate", drops_the_rest, "wrong gradient", "no multiple"),
    ("memory/accumulate", zeroes, "wrong gradient", "no multiple"),
    ("memory/accumulate", last_loss, "wrong loss", "must be"),
    ("memory/accumulate", nothing, "no gradient", "has no gradient"),
]

ALSO_RIGHT = [
    ("memory/leak", detached),
    ("memory/relu", signs),
    ("memory/accumulate", scaled_from_above),
    ("memory/accumulate", summed),
]
