"""Answers to the exercises of notebooks/94_incremental_learning.ipynb: wrong ones and other right ones."""

import numpy as np

from pmpp import nn

# ---------------------------------------------------------------------------------------------------------- replay


def by_class(labels, take):
    return np.concatenate([take(np.flatnonzero(labels == label)) for label in np.unique(labels)])


def from_all(labels, per_class, rng):
    return rng.choice(len(labels), min(len(labels), per_class * len(np.unique(labels))), replace=False)


def first_ones(labels, per_class, rng):
    return by_class(labels, lambda places: places[:per_class])


def repeats(labels, per_class, rng):
    return by_class(labels, lambda places: rng.choice(places, per_class))


def fails_for_few(labels, per_class, rng):
    return by_class(labels, lambda places: rng.choice(places, per_class, replace=False))


def places_in_the_class(labels, per_class, rng):
    return by_class(labels, lambda places: rng.permutation(len(places))[:per_class])


def labels_themselves(labels, per_class, rng):
    return labels.astype(np.float32)


def counts_from_zero(labels, per_class, rng):
    chosen = [np.flatnonzero(labels == label) for label in range(len(np.unique(labels)))]
    return np.concatenate([rng.permutation(places)[:per_class] for places in chosen])


def sorts_the_labels(labels, per_class, rng):
    labels.sort()
    return by_class(labels, lambda places: rng.permutation(places)[:per_class])


def draws_without_rng(labels, per_class, rng):
    return by_class(labels, lambda places: np.random.default_rng().permutation(places)[:per_class])


def a_window(labels, per_class, rng):
    def taken(places):
        first = int(rng.integers(0, max(1, len(places) - per_class + 1)))
        return places[first : first + per_class]

    return by_class(labels, taken)


def permuted(labels, per_class, rng):
    return by_class(labels, lambda places: rng.permutation(places)[:per_class])


def in_one_pass(labels, per_class, rng):
    """A random order, in which each example is kept until its class is full."""
    kept, seen = [], {}
    for i in rng.permutation(len(labels)).tolist():
        if seen.setdefault(int(labels[i]), 0) < per_class:
            seen[int(labels[i])] += 1
            kept.append(i)
    return kept


# ---------------------------------------------------------------------------------------------------------- freeze


def sgd(parameters, lr):
    return nn.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=0.1)


def only_the_optimiser(net, lr):
    net.trunk.eval()
    return sgd(net.head.parameters(), lr)


def training_mode(net, lr):
    net.trunk.requires_grad_(False)
    net.trunk.zero_grad()
    return sgd(net.head.parameters(), lr)


def all_in_the_optimiser(net, lr):
    net.trunk.requires_grad_(False)
    net.trunk.eval()
    return sgd(net.parameters(), lr)


def keeps_gradients(net, lr):
    net.trunk.requires_grad_(False)
    net.trunk.eval()
    return sgd(net.head.parameters(), lr)


def freezes_all(net, lr):
    net.requires_grad_(False)
    net.eval()
    return sgd(net.head.parameters(), lr)


def only_normalisation(net, lr):
    net.trunk.requires_grad_(False)
    net.trunk.zero_grad()
    net.trunk[1].eval()
    return sgd(net.head.parameters(), lr)


def forgets_the_bias(net, lr):
    net.trunk.requires_grad_(False)
    net.trunk.eval()
    net.trunk.zero_grad()
    return sgd([net.head.weight], lr)


def frozen_with(make):
    def freeze(net, lr):
        net.trunk.requires_grad_(False)
        net.trunk.eval()
        net.trunk.zero_grad()
        return make(net, lr)

    return freeze


def new_head(net, lr):
    net.head = nn.Linear(8, 3)
    return sgd(net.head.parameters(), lr)


plain = frozen_with(lambda net, lr: nn.optim.SGD(net.head.parameters(), lr=lr))
adam = frozen_with(lambda net, lr: nn.optim.Adam(net.head.parameters(), lr=lr, weight_decay=0.1))
own_rate = frozen_with(lambda net, lr: sgd(net.head.parameters(), 0.1))
trains_another = frozen_with(new_head)


def no_return(net, lr):
    net.trunk.requires_grad_(False)


def by_hand(net, lr):
    for module in net.trunk.modules():
        module.training = False
    for parameter in net.trunk.parameters():
        parameter.requires_grad_(False)
        parameter.grad = None
    return sgd([{"params": [net.head.weight, net.head.bias]}], lr)


# ----------------------------------------------------------------------------------------------------------- widen


def fresh(head, classes):
    return nn.Linear(head.in_features, classes, bias=head.bias is not None)


def filled(head, classes, rows):
    made, state = fresh(head, classes), {}
    for name, values in head.state_dict().items():
        extra = rows(values, classes - len(values))
        state[name] = np.concatenate([values, extra]).astype(np.float32)
    made.load_state_dict(state)
    return made


def copies_rows(head, classes):
    return filled(head, classes, lambda values, n: values[:n])


def large_rows(head, classes):
    return filled(head, classes, lambda values, n: np.random.default_rng(0).normal(0, 10, (n, *values.shape[1:])))


def not_numbers(head, classes):
    return filled(head, classes, lambda values, n: np.full((n, *values.shape[1:]), np.nan))


def old_at_the_end(head, classes):
    made = fresh(head, classes)
    state = made.state_dict()
    for name, values in head.state_dict().items():
        state[name][-len(values) :] = values
    made.load_state_dict(state)
    return made


def always_a_bias(head, classes):
    made = nn.Linear(head.in_features, classes)
    state = made.state_dict()
    for name, values in head.state_dict().items():
        state[name][: len(values)] = values
    made.load_state_dict(state)
    return made


def forgets_the_old_bias(head, classes):
    made = fresh(head, classes)
    state = made.state_dict()
    state["weight"][: head.out_features] = head.weight.detach().numpy()
    made.load_state_dict(state)
    return made


def frozen(head, classes):
    return copies_of(head, classes).requires_grad_(False)


def same_head(head, classes):
    return head


def copies_of(head, classes):
    made = fresh(head, classes)
    state = made.state_dict()
    for name, values in head.state_dict().items():
        state[name][: len(values)] = values
    made.load_state_dict(state)
    return made


def zeros(head, classes):
    return filled(head, classes, lambda values, n: np.zeros((n, *values.shape[1:])))


def small(head, classes):
    return filled(head, classes, lambda values, n: np.random.default_rng(0).normal(0, 0.01, (n, *values.shape[1:])))


#: (exercise, answer, mistake, what is said)
WRONG = [
    ("incremental/replay", from_all, "unbalanced", "must have 3 examples"),
    ("incremental/replay", first_ones, "not random", "four generators"),
    ("incremental/replay", repeats, "repeated", "twice"),
    ("incremental/replay", fails_for_few, "error", "ValueError"),
    ("incremental/replay", places_in_the_class, "repeated|unbalanced", "with four classes"),
    ("incremental/replay", labels_themselves, "not indices", "integers"),
    ("incremental/replay", counts_from_zero, "unbalanced", "classes of 30, 3 and 9"),
    ("incremental/replay", sorts_the_labels, "labels change", "have changed"),
    ("incremental/replay", draws_without_rng, "another generator", "rng alone"),
    ("incremental/replay", a_window, "neighbours", "side by side"),
    ("incremental/replay", lambda *_: None, "not started", "None"),
    ("incremental/freeze", only_the_optimiser, "gradients are computed", "require a gradient"),
    ("incremental/freeze", training_mode, "running moments change", "running_mean"),
    ("incremental/freeze", all_in_the_optimiser, "optimiser has frozen parameters", "weight decay"),
    ("incremental/freeze", keeps_gradients, "gradients are kept", "earlier step"),
    ("incremental/freeze", freezes_all, "head is not trained", "no parameter"),
    ("incremental/freeze", only_normalisation, "dropout is on", "training mode"),
    ("incremental/freeze", forgets_the_bias, "head is not trained", "all parameters"),
    ("incremental/freeze", plain, "another optimiser", "momentum 0.0, weight_decay 0.0"),
    ("incremental/freeze", adam, "another optimiser", "Adam"),
    ("incremental/freeze", own_rate, "another optimiser", "was SGD with lr 0.1"),
    ("incremental/freeze", trains_another, "network changes", "replaces a layer"),
    ("incremental/freeze", no_return, "not started", "None"),
    ("incremental/widen", fresh, "forgets", "first 3 rows"),
    ("incremental/widen", copies_rows, "new rows are copies", "old class"),
    ("incremental/widen", not_numbers, "new rows are not finite", "NaN"),
    ("incremental/widen", large_rows, "new rows are large", "would win"),
    ("incremental/widen", old_at_the_end, "forgets", "first 3 rows"),
    ("incremental/widen", always_a_bias, "wrong shape", "without a bias"),
    ("incremental/widen", forgets_the_old_bias, "forgets", "first"),
    ("incremental/widen", frozen, "not trained", "requires no gradient"),
    ("incremental/widen", same_head, "wrong shape", "shapes"),
]

ALSO_RIGHT = [
    ("incremental/replay", permuted),
    ("incremental/replay", in_one_pass),
    ("incremental/freeze", by_hand),
    ("incremental/widen", zeros),
    ("incremental/widen", small),
]
