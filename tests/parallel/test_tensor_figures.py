"""The cost of tensor parallelism: formulas against what simulated ranks send and their clocks; figures are drawn."""

import numpy as np
import pytest

from pmpp import nn, parallel
from pmpp.nn import functional as F
from pmpp.parallel import Links, tensor, tensor_figures

pytestmark = [pytest.mark.native("threads"), pytest.mark.usefixtures("unchecked")]

ROWS, WIDTH = 16, 8


def by_tensors(group):
    first, second = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)
    first, second = tensor.ColumnLinear(group, first), tensor.RowLinear(group, second)
    x = nn.Tensor(np.ones((ROWS, WIDTH), np.float32), requires_grad=True)
    second(F.relu(first(x))).sum().backward()


def by_data(group):
    for shape in ((4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH)):
        group.all_reduce(np.ones(shape, np.float32), "mean")


@pytest.mark.parametrize("size", [2, 4, 8])
def test_the_formula_is_what_ranks_send(size):
    for k, function in enumerate((by_tensors, by_data)):
        report = parallel.ranks(size, function).report
        wanted = tensor_figures.sent(ROWS, WIDTH, size)[k]
        assert {sum(n for (a, _), n in report.nbytes.items() if a == rank) for rank in range(size)} == {wanted}


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_time_of_the_messages_is_that_of_the_clocks(size):
    links = Links(latency=1e-6, bandwidth=1e9)
    step = tensor_figures.step(ROWS, WIDTH, size, links, rate=1e12)
    assert step.compute == 48 * ROWS * WIDTH**2 / size / 1e12
    assert parallel.ranks(size, by_tensors, links=links).report.seconds == pytest.approx([step.waiting] * size)


def test_the_border_is_four_widths():
    as_many, of_data = tensor_figures.sent(4 * WIDTH, WIDTH, 4)
    assert as_many == of_data


@pytest.mark.parametrize("ranks", [2, 8])
def test_figures_show_their_lines(ranks):
    counted = {"tensor parallelism": [(4, 100.0)]}
    (ax,) = tensor_figures.sent_bytes(16, ranks, [1, 16, 256], counted).axes
    assert [text.get_text() for text in ax.texts] == [" 64 rows"]
    assert len(ax.get_legend().get_texts()) == 3
    slow = {"a": Links(1e-6, 1e9), "b": Links(1e-6, 1e15)}
    assert len(tensor_figures.steps(64, 64, 1e12, slow, [1, 2, 4]).axes) == 2
    (ax,) = tensor_figures.parts_on_a_cpu({"all": [(1, 1.0)], "a part": [(1, 0.5)]}).axes
    assert len(ax.lines) == 2
