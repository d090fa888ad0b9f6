"""Figures of halo exchange: what is drawn is what was given, and the formula beside it."""

import numpy as np
import pytest

from pmpp.lab.measure.record import RecordError
from pmpp.parallel import halo_figures, measure_halo
from pmpp.parallel.halo import Span, halo_bytes, seconds
from pmpp.parallel.traffic import Links

LINKS = Links(latency=2e-6, bandwidth=1e10)


def test_a_timeline_has_a_bar_for_each_span():
    ranks = [[Span("border", 0.0, 1.0), Span("exchange", 1.0, 3.0), Span("inside", 1.0, 4.0)]] * 2
    (ax,) = halo_figures.timelines({"overlapped": ranks}).axes
    assert ax.get_title(loc="left") == "overlapped: ends after 4e+06 µs"
    bars = [(bar.get_x(), bar.get_width(), bar.get_hatch()) for bar in ax.patches if bar.get_width()]
    assert bars == [(0.0, 1.0, "..."), (1.0, 2.0, "///"), (1.0, 3.0, None)] * 2


def test_a_timeline_of_gpus_has_no_time_from_one_clock_to_another(monkeypatch):
    gpus = [[["border", 0.0, 1e-5], ["inside", 1e-5, 4e-5]], [["border", 7e-5, 8e-5], ["inside", 8e-5, 9.5e-5]]]
    monkeypatch.setattr(measure_halo, "recorded", lambda: {"jacobi": {"timelines": {"peer_stores": gpus}}})
    (ax,) = halo_figures.measured_timelines().axes
    assert ax.get_title(loc="left") == "peer stores: 40 and 25 µs from a GPU's first event to its last"
    assert ax.get_title(loc="center") == ""
    assert ax.get_ylabel() == "GPU"


def test_bytes_are_those_of_the_formula_and_those_counted():
    (ax,) = halo_figures.surfaces(64, 64, {"mesh": [(3, 3), (4, 4)]}, {"mesh": {9: 700}}).axes
    line, marks = ax.get_lines()
    assert list(line.get_ydata()) == [halo_bytes(64, 64, (3, 3)), halo_bytes(64, 64, (4, 4))]
    assert (list(marks.get_xdata()), list(marks.get_ydata())) == ([9], [700])


def test_the_star_is_where_a_step_is_shortest():
    (ax,) = halo_figures.widths(48, 64, (4, 1), 1e-8, [LINKS], 6, {2e-6: {1: 1e-5}}).axes
    line, star, marks = ax.get_lines()
    values = [1e6 * seconds(48, 64, (4, 1), LINKS, 1e-8, width) for width in range(1, 7)]
    assert list(line.get_ydata()) == values
    assert star.get_ydata()[0] == min(values)
    assert list(marks.get_ydata()) == [10.0]


def test_plates_share_one_scale():
    axes = halo_figures.plates({"hot": np.full((2, 2), 5.0), "cold": np.zeros((2, 2))}).axes
    assert [ax.get_images()[0].get_clim() for ax in axes[:2]] == [(0.0, 5.0)] * 2


def test_distances_and_bounds():
    (ax,) = halo_figures.distances({"one": {1: 2.0, 5: 0.1}}).axes
    assert list(ax.get_lines()[0].get_ydata()) == [2.0, 0.1]
    (ax,) = halo_figures.bounds([256, 4096, 16384], 2e-12, LINKS).axes
    labels = [line.get_label() for line in ax.get_lines()]
    assert labels[:5] == ["one GPU", "cells alone", "messages alone", "one after the other", "overlapped"]
    assert [text.get_text() for text in ax.texts] == ["messages are the bound", "memory is the bound"]


def test_a_record_is_drawn_with_its_efficiency(monkeypatch):
    ways = {"one_gpu": 4e-4, "peer_stores": 2.1e-4}
    found = {
        "side": 16384,
        "gpus": 2,
        "ways": {name: {"seconds": t, "low": t, "high": t} for name, t in ways.items()},
    }
    small = found | {"side": 4096, "ways": {"one_gpu": {"seconds": 5e-5}, "peer_stores": {"seconds": 4e-5}}}
    rows = {"about": {"gpu": {"name": "X"}}, "jacobi": found, "smaller": [small]}
    monkeypatch.setattr(measure_halo, "recorded", lambda gpus=2: {2: rows}[gpus])
    (ax,) = halo_figures.efficiencies().axes
    line, even = ax.get_lines()
    assert (line.get_label(), even.get_ydata()[0]) == ("peer stores", 0.5)
    assert list(line.get_xdata()) == [4096, 16384]
    assert line.get_ydata() == pytest.approx([0.625, 4e-4 / 2 / 2.1e-4])
    (ax,) = halo_figures.measured().axes
    assert [text.get_text() for text in ax.texts] == ["400 µs", "210 µs, efficiency 0.952"]
    assert [bar.get_width() for bar in ax.patches] == pytest.approx([400, 210])


def test_without_a_record_the_command_is_named(monkeypatch):
    def none(name):
        raise RecordError(name)

    monkeypatch.setattr(measure_halo.nn_measure, "recorded", none)
    with pytest.raises(RecordError, match=r"no record halo_4\.json: on 4 GPUs run python .*measure_halo -n 4"):
        measure_halo.recorded(4)
