"""What `pmpp.parallel.measure` does with times: the fitted model, the targets, the table; and that wrong sums count."""

import numpy as np
import pytest

from pmpp.lab.draw import plots
from pmpp.lab.measure.record import RecordError
from pmpp.nn import measure as records
from pmpp.parallel import figures, measure, measure_steps
from pmpp.runtime import device


def row(nbytes, factor):
    """Times for which NCCL takes `factor` as long as our kernels, by an alpha of 4 µs and 200 GB/s."""
    ours = dict.fromkeys(("graph", "queued", "call"), 4 + nbytes / 200000.0)
    if nbytes > measure.IN_GRAPHS:
        del ours["graph"]
    return {"bytes": nbytes, "peer": ours, "shared": dict(ours), "nccl": {kind: factor * t for kind, t in ours.items()}}


def rows(factor):
    return [row(nbytes, factor) for nbytes in measure.LENGTHS] + [row(64 << 20, factor)]


def test_the_lengths_are_those_of_the_targets():
    assert {1 << 10, measure.SHORT, 64 << 20, 1 << 30} <= set(measure.LENGTHS)
    assert list(measure.LENGTHS) == sorted(measure.LENGTHS)


def test_the_fit_finds_both_numbers():
    links = measure.fit([(one["bytes"], one["peer"]["queued"] / 1e6) for one in rows(2)])
    assert links.latency == pytest.approx(4e-6, rel=1e-3)
    assert links.bandwidth == pytest.approx(200e9, rel=1e-3)


def test_long_arrays_do_not_drown_the_latency():
    """An error of 5 % in the longest time is more than all latencies together, and must not change what they say."""
    pairs = [(one["bytes"], one["peer"]["queued"] / 1e6) for one in rows(2)[:-1]]
    pairs[-1] = pairs[-1][0], 1.05 * pairs[-1][1]
    assert measure.fit(pairs).latency == pytest.approx(4e-6, rel=0.05)


def test_a_latency_is_not_negative():
    assert measure.fit([(1000, 1e-6), (2000, 3e-6), (4000, 9e-6)]).latency == 0


@pytest.mark.parametrize("factor, met", [(2.0, {True}), (1.07, {True, False}), (0.9, {False})])
def test_targets_are_judged_by_the_worst_length(factor, met):
    found = measure.lines(rows(factor))
    assert [line.ratio for line in found] == pytest.approx([factor] * 7)
    assert {line.met for line in found} == met
    worst = rows(2.5)
    worst[2]["nccl"]["queued"] = worst[2]["peer"]["queued"]
    assert [line.met for line in measure.lines(worst)] == [True, False, *[True] * 5]


def test_what_was_not_measured_has_no_line():
    assert [line.what for line in measure.lines([row(1 << 30, 2)])] == ["1 GiB", "1 GiB, shared"]
    text = measure.targets([row(1 << 30, 1.01)])
    assert "missed" in text
    assert "reached" not in text


def test_the_table_has_all_times():
    text = measure.table([row(1 << 10, 2), row(1 << 30, 2)])
    assert [len(line.split()) for line in text.split("\n")] == [20, 10, 10]
    assert text.split("\n")[2].split()[:3] == ["1,073,741,824", "-", "-"]


@pytest.mark.parametrize("place", [0, measure.TILE - 1, measure.TILE + 5])
def test_a_wrong_element_is_found(place, monkeypatch):
    monkeypatch.setattr(measure, "TILE", 1009)
    place %= 1500
    right = measure.numbers(0, 1500) + measure.numbers(1, 1500)
    measure.verify(device.to_device(right), 2)
    right[place] = np.nextafter(np.nextafter(right[place], np.float32(9)), np.float32(9))
    with pytest.raises(AssertionError, match="a wrong sum"):
        measure.verify(device.to_device(right), 2)
    right[place] = np.nan
    with pytest.raises(AssertionError, match="a wrong sum"):
        measure.verify(device.to_device(right), 2)


def test_the_figure_shows_what_is_recorded(monkeypatch):
    kept = {"about": {"gpu": {"name": "GPU A"}, "run": {"date": "2026-11-27T21:00:00Z"}}, "ranks": 2}
    monkeypatch.setattr(records, "recorded", lambda name: kept | {"all_reduce": rows(2)})
    figure = figures.on_gpus()
    (ax,) = figure.axes
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["8 µs and 100 GB/s", "NCCL", "4 µs and 200 GB/s", "our kernels"]
    assert ax.get_title(loc="left") == "2 x GPU A"
    assert len(ax.lines[3].get_xydata()) == len(rows(2))


def test_the_figure_takes_short_times_without_the_host(monkeypatch):
    slow_host = [one | {"peer": one["peer"] | {"queued": 50 + one["peer"]["queued"]}} for one in rows(2)]
    kept = {"about": {"gpu": {"name": "GPU A"}, "run": {"date": "2026-11-27T21:00:00Z"}}, "ranks": 2}
    monkeypatch.setattr(records, "recorded", lambda name: kept | {"all_reduce": slow_host})
    marks = figures.on_gpus().axes[0].lines[3].get_xydata()
    assert marks[0][1] == pytest.approx(rows(2)[0]["peer"]["graph"])


def test_without_a_record_it_is_said_how_to_make_one(monkeypatch, capsys):
    def missing(name):
        raise RecordError("no record")

    monkeypatch.setattr(records, "recorded", missing)
    assert plots.drawn(figures.on_gpus) is None
    assert "Nothing to draw: no record parallel.json: on 2 GPUs run python -m pmpp.parallel.measure -n 2" in (
        capsys.readouterr().out
    )


@pytest.mark.skipif(device.on_gpu(), reason="there it measures")
def test_without_a_gpu_nothing_is_measured(capsys):
    assert measure.main([]) == 2
    assert "GPUs are needed" in capsys.readouterr().out


def test_the_table_of_steps_says_what_the_sum_costs():
    ms = {"ours, alone": 9.0, "ours": 10.0, "ours, summed afterwards": 11.0, "torch, alone": 8.0, "torch": 10.0}
    name = next(iter(measure_steps.CASES))
    _, called, about = measure_steps.lines({name: {"ms": ms, "farthest": 2e-6}}).split("\n")
    assert called.startswith(name)
    assert called.endswith("   0.900    0.98   10.000   1.00")
    assert "PyTorch's efficiency 0.800, losses differ by 2.0e-06, ours summed afterwards 11.000 ms" in about
    ms |= {"ours, alone, graph": 4.0, "ours, graph": 5.0}
    _, _, graph, _ = measure_steps.lines({name: {"ms": ms, "farthest": 2e-6}}).split("\n")
    assert graph.startswith(f"{name}, graph")
    assert graph.endswith("   0.800    0.98   10.000   2.00")


@pytest.mark.skipif(device.on_gpu(), reason="there it measures")
def test_without_a_gpu_no_step_is_measured(capsys):
    assert measure_steps.main([]) == 2
    assert "GPUs are needed" in capsys.readouterr().out
