"""Exercises of notebooks/94_incremental_learning.ipynb: what is replayed, a frozen trunk, a head that is widened."""

from __future__ import annotations

import typing
from collections.abc import Callable

import numpy as np

from pmpp import nn
from pmpp.nn import functional as F
from pmpp.nn.exercises import Exercise, Mistake
from pmpp.nn.tape import Tensor

# ---------------------------------------------------------------------------------------------------------- replay


def replay(labels: np.ndarray, per_class: int, rng: np.random.Generator) -> np.ndarray:
    """Indices of ``per_class`` examples of each class, or of all where it has fewer, drawn without repetition."""
    chosen = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        chosen.append(rng.choice(members, min(per_class, len(members)), replace=False))
    return np.concatenate(chosen)


def _neighbours(labels: np.ndarray, chosen: np.ndarray) -> bool:
    """Whether the choice of each class is a run of that class's examples."""
    ranks = [np.flatnonzero(np.isin(np.flatnonzero(labels == label), chosen)) for label in np.unique(labels)]
    return all(np.ptp(rank) == len(rank) - 1 for rank in ranks)


def judge_replay(answer: Callable) -> str:
    """As many of each class as asked for, or all; each once; another choice for another generator."""
    rng = np.random.default_rng(1)
    even, uneven = rng.permutation(np.repeat(np.arange(4), 10)), rng.permutation(np.repeat([2, 7, 5], [30, 3, 9]))
    for name, labels, per_class in (("four classes of 10", even, 3), ("classes of 30, 3 and 9", uneven, 5)):
        given = labels.copy()
        found = answer(given, per_class, np.random.default_rng(2))
        case = f"with {name} and {per_class} of each"
        if not np.array_equal(given, labels):
            raise Mistake("labels change", f"{case} the labels that were given have changed")
        if found is None:
            raise Mistake("not started", "replay() returned None")
        found = np.asarray(found)
        if found.ndim != 1 or found.dtype.kind not in "iu":
            raise Mistake(
                "not indices", f"{case} the result must be one array of integers, was {found.dtype} {found.shape}"
            )
        if len(found) and (found.min() < 0 or found.max() >= len(labels)):
            raise Mistake("not indices", f"{case} an index lies outside of the {len(labels)} labels")
        if len(set(found.tolist())) < len(found):
            raise Mistake("repeated", f"{case} {len(found) - len(set(found.tolist()))} examples are there twice")
        classes, sizes = np.unique(labels, return_counts=True)
        for label, size in zip(classes, sizes, strict=True):
            had, wanted = int((labels[found] == label).sum()), min(per_class, int(size))
            if had != wanted:
                raise Mistake("unbalanced", f"{case} class {label} must have {wanted} examples, had {had}")
    draws = [np.asarray(answer(even.copy(), 3, np.random.default_rng(seed))) for seed in (0, 1, 2, 3, 0)]
    if set(draws[0].tolist()) != set(draws[4].tolist()):
        raise Mistake("another generator", "two generators of one seed choose different examples: draw with rng alone")
    if len({frozenset(draw.tolist()) for draw in draws}) == 1:
        raise Mistake("not random", "four generators choose the same examples: the first of a class are often alike")
    if all(_neighbours(even, draw) for draw in draws):
        raise Mistake("neighbours", "what is chosen stands side by side in its class: neighbours are often alike")
    return "Each class has its share, and each example is there once."


# ---------------------------------------------------------------------------------------------------------- freeze


LR = 0.2


class Trunk(nn.Module):
    """A network with a trunk, which has batch normalisation and dropout, and a head."""

    def __init__(self) -> None:
        self.trunk = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Dropout(0.5), nn.Flatten())
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Scores (N, 3) of images (N, 1, 4, 4)."""
        return self.head(self.trunk(x))


def freeze(net: nn.Module, lr: float) -> nn.optim.Optimizer:
    """Stop the trunk, and return an optimiser of the rest."""
    net.trunk.requires_grad_(False)
    net.trunk.zero_grad()
    net.trunk.eval()
    return nn.optim.SGD(net.head.parameters(), lr=lr, momentum=0.9, weight_decay=0.1)


def judge_freeze(answer: Callable) -> str:
    """Two steps after the call: the trunk has not changed in anything, keeps no gradients, and the head is trained."""
    rng = np.random.default_rng(3)
    x, y = Tensor(rng.standard_normal((4, 1, 4, 4), dtype=np.float32) + np.float32(1)), Tensor(np.array([0, 1, 2, 0]))
    nn.manual_seed(4)
    net = Trunk()
    F.cross_entropy(net(x), y).backward()  # it was trained before, so gradients are there
    net.train()
    was = net.state_dict()
    optimizer = answer(net, LR)
    if optimizer is None:
        raise Mistake("not started", "freeze() returned None")
    if not isinstance(optimizer, nn.optim.Optimizer):
        raise Mistake("no optimiser", f"freeze() must return an optimiser, returned {type(optimizer).__name__}")
    before = net.state_dict()
    if list(was) != list(before) or any(not np.array_equal(was[name], before[name]) for name in was):
        raise Mistake("network changes", "freeze() itself replaces a layer, or changes what was learned")
    wanted = {"lr": LR, "momentum": 0.9, "weight_decay": 0.1}
    had = [{name: group.get(name) for name in wanted} for group in optimizer.param_groups]
    if type(optimizer) is not nn.optim.SGD or any(group != wanted for group in had):
        what = f"{type(optimizer).__name__} with {', '.join(f'{name} {value}' for name, value in had[0].items())}"
        raise Mistake("another optimiser", f"asked for is SGD with lr {LR}, momentum 0.9, weight_decay 0.1, was {what}")
    statistics = {name for name, _ in net.trunk.named_buffers()}
    given = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if {id(p) for p in net.trunk.parameters()} & given:
        why = "the optimiser must be given the head alone: weight decay or an old momentum may change what is in it"
        raise Mistake("optimiser has frozen parameters", why)
    if not {id(p) for p in net.head.parameters()} <= given:
        raise Mistake("head is not trained", "the optimiser must be given all parameters of the head")
    for _ in range(2):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        if loss.node is None:
            raise Mistake("head is not trained", "no parameter of the network requires a gradient any more")
        loss.backward()
        optimizer.step()
    after = net.state_dict()
    changed = [name for name in before if not np.array_equal(before[name], after[name])]
    for name in changed:
        if name.removeprefix("trunk.") in statistics:
            raise Mistake(
                "running moments change", f"{name} has changed: batch normalisation updates it in training mode"
            )
        if name.startswith("trunk."):
            raise Mistake("trunk changes", f"{name} has changed")
    if not {"head.weight", "head.bias"} <= set(changed):
        raise Mistake("head is not trained", "the head has not changed")
    if any(p.requires_grad for p in net.trunk.parameters()):
        raise Mistake(
            "gradients are computed", "parameters of the trunk still require a gradient: time and bytes are spent"
        )
    if any(p.grad is not None for p in net.trunk.parameters()):
        raise Mistake("gradients are kept", "parameters of the trunk still have the gradient of an earlier step: bytes")
    if any(module.training for module in net.trunk.modules()):
        raise Mistake("dropout is on", "the trunk is in training mode: its features are others in each step")
    return "The trunk stays as it is, bit for bit, and only the head is trained."


# ----------------------------------------------------------------------------------------------------------- widen


def widen(head: nn.Linear, classes: int) -> nn.Linear:
    """A head with more outputs, whose first ones are those of ``head``."""
    made = nn.Linear(head.in_features, classes, bias=head.bias is not None)
    state = made.state_dict()
    for name, values in head.state_dict().items():
        state[name][: head.out_features] = values
    made.load_state_dict(state)
    return made


def judge_widen(answer: Callable) -> str:
    """The old scores bit for bit, new rows that can learn, memory of its own, also without a bias."""
    nn.manual_seed(6)
    x = Tensor(np.random.default_rng(7).standard_normal((5, 6), dtype=np.float32))
    for old, classes, bias in ((3, 5, True), (6, 8, True), (4, 5, False)):
        head = nn.Linear(6, old, bias=bias)
        was, case = head.state_dict(), f"from {old} to {classes} outputs{'' if bias else ' without a bias'}"
        made = answer(head, classes)
        if made is None:
            raise Mistake("not started", "widen() returned None")
        if not isinstance(made, nn.Linear):
            raise Mistake("no layer", f"widen() must return a Linear, returned {type(made).__name__}")
        shapes = made.weight.shape, None if made.bias is None else made.bias.shape
        wanted = (classes, 6), (classes,) if bias else None
        if shapes != wanted:
            raise Mistake("wrong shape", f"{case} weight and bias must have shapes {wanted}, had {shapes}")
        if any(not np.array_equal(was[name], values) for name, values in head.state_dict().items()):
            raise Mistake("old head changed", f"{case} the head that was given has changed")
        now = made.state_dict()
        if any(not np.array_equal(now[name][:old], values) for name, values in was.items()):
            raise Mistake("forgets", f"{case} the first {old} rows are not those of the old head")
        rows = now["weight"][old:]
        if not all(np.isfinite(values).all() for values in now.values()):
            raise Mistake("new rows are not finite", f"{case} a row holds what was in memory, or NaN")
        if abs(rows).max() > 1 or (bias and abs(now["bias"][old:]).max() > 1):
            raise Mistake("new rows are large", f"{case} a new class would win against what was learned")
        if any(np.array_equal(row, other) and row.any() for row in rows for other in was["weight"]):
            raise Mistake("new rows are copies", f"{case} a new row is that of an old class: each image of it is both")
        if not all(p.requires_grad for p in made.parameters()):
            raise Mistake("not trained", f"{case} a parameter of the new head requires no gradient")
        if old > 3:  # a step in one case is enough
            continue
        made(x).sum().backward()
        optimizer = nn.optim.SGD(made.parameters(), lr=1.0)
        optimizer.step()
        if any(not np.array_equal(was[name], values) for name, values in head.state_dict().items()):
            raise Mistake("shared memory", f"{case} a step of the new head changes the old one")
    return "What was learned is there bit for bit, and the new rows can learn."


def _all() -> typing.Iterator[Exercise]:
    yield Exercise(
        "incremental/replay",
        "Choose what to keep of the old examples: indices of `per_class` of each class, drawn at random by `rng`, none "
        "twice. A class that has fewer is kept whole. Labels can be any integers.",
        "replay(labels, per_class, rng) -> array of indices",
        judge_replay,
        (
            "np.unique names the classes; np.flatnonzero(labels == label) has the places of one.",
            "rng.choice(places, n, replace=False) draws without repetition, and fails if n is more than there are.",
        ),
        replay,
    )
    yield Exercise(
        "incremental/freeze",
        "Freeze net.trunk, which has batch normalisation and dropout, and which has been trained until now: nothing "
        "in it may change, and nothing may be kept for it. Return SGD with momentum 0.9 and weight decay 0.1 for "
        "net.head.",
        "freeze(net, lr) -> optimiser; it is called after net.train()",
        judge_freeze,
        (
            "What of a module changes without any gradient?",
            "requires_grad_(False) keeps gradients from being computed. Those of the last step are still there.",
        ),
        freeze,
    )
    yield Exercise(
        "incremental/widen",
        "Make a head with more outputs. Its first rows are those of the old head, the others can learn; the old head "
        "is left as it is. A head may have no bias.",
        "widen(head, classes) -> nn.Linear",
        judge_widen,
        (
            "A new Linear of the right size has good first values. Which rows of it must be overwritten?",
            "state_dict() gives copies on the host, load_state_dict() writes them back.",
        ),
        widen,
    )


EXERCISES = tuple(_all())
