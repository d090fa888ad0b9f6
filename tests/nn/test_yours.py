"""The check of a reader's network: each mistake by its name, and right ones that are written differently."""

import re

import numpy as np
import pytest

from pmpp import nn
from pmpp.nn import functional as F
from pmpp.nn.examples import digits, yours

pytestmark = pytest.mark.usefixtures("unchecked")


def network(*layers):
    return lambda: nn.Sequential(*[make() for make in layers])


class Shares(nn.Module):
    def __init__(self):
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        e = self.fc(x.flatten(1)).exp()
        return e / e.sum(1, keepdims=True)


class Forgotten(nn.Module):
    def __init__(self):
        self.fc, self.other = nn.Linear(64, 10), nn.Linear(3, 2)

    def forward(self, x):
        return self.fc(x.flatten(1))


class Fixed(nn.Module):
    def forward(self, x):
        return nn.Tensor(np.zeros((x.shape[0], 10), np.float32))


class Silent(nn.Module):
    """Its forward has no return."""

    def __init__(self):
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        self.fc(x.flatten(1))


class Hidden(nn.Module):
    """Layers in a list, or in a dictionary, are no attributes."""

    def __init__(self, kind=list):
        layers = [nn.Conv2d(1, 1, 1), nn.Flatten(), nn.Linear(64, 10)]
        self.layers = dict(enumerate(layers)) if kind is dict else layers

    def forward(self, x):
        for i in range(3):
            x = self.layers[i](x)
        return x


class Blind(nn.Module):
    """Pools everything away: the mean of all pixels tells digits badly apart."""

    def __init__(self):
        self.conv, self.fc = nn.Conv2d(1, 1, 1), nn.Linear(1, 10)

    def forward(self, x):
        return self.fc(F.avg_pool2d(self.conv(x), 8).flatten(1))


@pytest.mark.parametrize(
    ("kind", "mistake", "said"),
    [
        (None, "not started", "write a class"),
        (lambda: 3, "not a network", "made int"),
        (digits.Net(), "not a class", r"Net, not Net\(\)"),
        (Silent, "no scores", "returned NoneType"),
        (Hidden, "not found", "in layers are not found"),
        (lambda: Hidden(dict), "not found", "in layers are not found"),
        (network(nn.Flatten, lambda: nn.Linear(64, 9)), "wrong shape", r"had \(3, 9\)"),
        (Fixed, "nothing to train", "no parameter"),
        (Shares, "softmax twice", "leave the softmax out"),
        (Forgotten, "not used", "other.weight, other.bias"),
        (network(nn.Flatten, lambda: nn.Linear(64, 10)), "no convolution", "no nn.Conv2d"),
        (digits.Net, "too many parameters", "it has 1,898, and 1,000"),
        (Blind, "learns too little", "Chance is 10 %"),
    ],
)
def test_each_mistake_has_its_name(kind, mistake, said, monkeypatch):
    monkeypatch.setattr(yours, "EXAMPLES", 64)
    found = yours.check_network(kind)
    assert not found
    assert found.mistake == mistake
    assert re.search(said, repr(found)), found


class WithAStride(nn.Module):
    """A stride in the place of a pooling."""

    def __init__(self):
        self.first, self.last = nn.Conv2d(1, 5, 3, stride=2, padding=1), nn.Linear(80, 10)

    def forward(self, x):
        return self.last(F.relu(self.first(x)).flatten(1))


class InAListAsWell(WithAStride):
    """Its layers are attributes, and stand in a list in the order of their calls."""

    def __init__(self):
        super().__init__()
        self.order = [self.first, nn.functional.relu, lambda x: x.flatten(1), self.last]

    def forward(self, x):
        for one in self.order:
            x = one(x)
        return x


@pytest.mark.parametrize("kind", [WithAStride, InAListAsWell])
def test_a_right_one_that_is_not_the_chapters_passes(kind):
    found = yours.check_network(kind)
    assert found, found
    assert "860 parameters" in repr(found)
