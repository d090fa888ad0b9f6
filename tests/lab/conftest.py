"""What the tests of this folder share."""

import functools

import pytest
from matplotlib.backends.backend_agg import RendererAgg

from pmpp.lab.publish import readme
from tests.support.once import repository_is_read_once  # noqa: F401


@pytest.fixture(scope="session", autouse=True)
def tests_are_counted_once():
    """A room's tests are counted for each table that is made, and are always as many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readme, "count_tests", functools.cache(readme.count_tests))
        yield


@pytest.fixture(scope="session", autouse=True)
def texts_are_measured_once():
    """Matplotlib keeps the size of a text for one renderer, and each figure has its own; the same words come again.

    What a font's properties are equal for, size among them, has one hash.
    """
    measure, kept = RendererAgg.get_text_width_height_descent, {}

    def measured(renderer, text, font, ismath):
        about = text, hash(font), ismath, renderer.dpi
        if about not in kept:
            kept[about] = measure(renderer, text, font, ismath)
        return kept[about]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RendererAgg, "get_text_width_height_descent", measured)
        yield
