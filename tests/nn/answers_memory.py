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


def leaves_the_tape_off(net, optimizer, training, held_out):
    losses = trained(net, optimizer, training, lambda loss: loss.item())
    state.recording = False
    return losses, sum(F.cross_entropy(net(x), y).item() for x, y in held_out) / len(held_out)


def freezes(net, optimizer, training, held_out):
    losses = trained(net, optimizer, training, lambda loss: loss.item())
    net.requires_grad_(False)
    return losses, sum(F.cross_entropy(net(x), y).item() for x, y in held_out) / len(held_out)


def keeps_scores(net, optimizer, training, held_out):
    losses = trained(net, optimizer, training, lambda loss: loss.item())
    with nn.no_grad():
        SEEN.extend(net(x) for x, _ in held_out)
    return losses, evaluated(net, held_out)


def losses_alone(net, optimizer, training, held_out):
    return trained(net, optimizer, training, lambda loss: loss.item())


def means_of_both(net, optimizer, training, held_out):
    return float(np.mean(losses_alone(net, optimizer, training, held_out))), evaluated(net, held_out)


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


class InPlace(Function):
    @staticmethod
    def forward(context, x):
        y = elementwise.maximum(x.array, 0.0, out=x.array)
        context.save_for_backward(y)
        return y

    @staticmethod
    def backward(context, dy):
        return activation.backward(dy, context.saved[0], "relu")


overwrites_dy = relu(lambda x, y: [y], lambda dy, y: elementwise.multiply(dy, elementwise.sign(y), out=dy))


class OnTheHost(Function):
    @staticmethod
    def forward(context, x):
        context.mask = x.array.copy_to_host() > 0
        return activation.fused(x.array, "relu")

    @staticmethod
    def backward(context, dy):
        return elementwise.multiply(dy, Tensor(context.mask.astype(np.float32)).array)


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


def returns_a_tensor(net, x, y, size):
    total = 0
    for part, labels in parts(x, y, size):
        loss = F.cross_entropy(net(part), labels) * (len(part) / len(x))
        loss.backward()
        total = total + loss
    return total


def takes_the_step(net, x, y, size):
    total = 0.0
    for part, labels in parts(x, y, size):
        loss = F.cross_entropy(net(part), labels) * (len(part) / len(x))
        loss.backward()
        total += loss.item()
    nn.optim.SGD(net.parameters(), lr=0.1).step()
    return total


def so_many_parts(net, x, y, size):
    """Takes the size of a part for their number."""
    total = 0.0
    for part in np.array_split(np.arange(len(x)), min(size, len(x))):
        images, labels = x[int(part[0]) : int(part[-1]) + 1], Tensor(y.numpy()[part])
        loss = F.cross_entropy(net(images), labels) * (len(part) / len(x))
        loss.backward()
        total += loss.item()
    return total


def at_once(net, x, y, size):
    loss = F.cross_entropy(net(x), y)
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
    ("memory/leak", leaves_the_tape_off, "the tape is off", "no_grad"),
    ("memory/leak", freezes, "the net is changed", "require no gradient"),
    ("memory/leak", keeps_scores, "keeps activations", "bytes"),
    ("memory/leak", losses_alone, "wrong form", "two things"),
    ("memory/leak", means_of_both, "wrong form", "a list of all losses"),
    ("memory/relu", keeps_input, "keeps too much", "8,192 bytes"),
    ("memory/relu", keeps_both, "keeps too much", "8,192 bytes"),
    ("memory/relu", multiplies, "wrong gradient", "positive"),
    ("memory/relu", passes_all, "wrong gradient", "where x is"),
    ("memory/relu", counts_zero, "wrong gradient", "where x is 0"),
    ("memory/relu", InPlace, "input changes", "forward"),
    ("memory/relu", overwrites_dy, "dy changes", "backward"),
    ("memory/relu", OnTheHost, "result is not saved", "on the host"),
    ("memory/relu", HidesIt, "kept outside the tape", "still there"),
    ("memory/relu", relu(lambda x, y: [], lambda dy: None), "no gradient", "None"),
    ("memory/relu", F.relu, "not a Function", "derived from"),
    ("memory/accumulate", unscaled, "wrong gradient", "it is 2 times that"),
    ("memory/accumulate", equal_shares, "wrong gradient", "10 examples in parts of 4"),
    ("memory/accumulate", at_the_end, "keeps all parts", "lived at once"),
    ("memory/accumulate", drops_the_rest, "wrong gradient", "no multiple"),
    ("memory/accumulate", zeroes, "wrong gradient", "no multiple"),
    ("memory/accumulate", last_loss, "wrong loss", "must be"),
    ("memory/accumulate", returns_a_tensor, "keeps the tape", "a number"),
    ("memory/accumulate", takes_the_step, "parameters change", "the step"),
    ("memory/accumulate", so_many_parts, "parts are too large", "parts of 2 the network was given 5"),
    ("memory/accumulate", at_once, "parts are too large", "8 examples at once"),
    ("memory/accumulate", nothing, "no gradient", "has no gradient"),
]

ALSO_RIGHT = [
    ("memory/leak", detached),
    ("memory/relu", signs),
    ("memory/accumulate", scaled_from_above),
    ("memory/accumulate", summed),
]
