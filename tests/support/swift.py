"""A plugin of pytest that makes a long run take less time, and changes nothing that a test sees.

`make test` loads it: ``python -m pytest -p tests.support.swift``. No test needs it, and no test imports it.
"""

import gc

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Searches for garbage are rarer from here on: memory is at hand, and time is not."""
    done = yield
    gc.set_threshold(50_000)  # instead of 700
    return done


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """What a file of tests leaves behind stays: modules, tables, what is kept. It is not searched again.

    Otherwise a search takes half a second in the end, and tests of memory make dozens.
    """
    done = yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    return done


@pytest.fixture(scope="session", autouse=True)
def texts_are_measured_once():
    """Matplotlib keeps the size of a text for one renderer, and each figure has its own; the same words come again.

    What a font's properties are equal for, size among them, has one hash.
    """
    from matplotlib.backends.backend_agg import RendererAgg

    measure, kept = RendererAgg.get_text_width_height_descent, {}

    def measured(renderer, text, font, ismath):
        about = text, hash(font), ismath, renderer.dpi
        if about not in kept:
            kept[about] = measure(renderer, text, font, ismath)
        return kept[about]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RendererAgg, "get_text_width_height_descent", measured)
        yield
