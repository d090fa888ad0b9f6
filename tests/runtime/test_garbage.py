"""No search for garbage while a graph is recorded."""

import gc

import pytest

from pmpp.runtime import garbage


@pytest.mark.parametrize("searching", [True, False])
def test_there_is_no_search_within_the_block_and_what_was_is_restored(searching):
    was = gc.isenabled()
    try:
        (gc.enable if searching else gc.disable)()
        with garbage.paused():
            assert not gc.isenabled()
            with garbage.paused():
                assert not gc.isenabled()
            assert not gc.isenabled()
        assert gc.isenabled() == searching
    finally:
        (gc.enable if was else gc.disable)()


def test_an_error_passes_and_the_search_comes_back():
    gc.enable()
    with pytest.raises(ZeroDivisionError), garbage.paused():
        1 / 0  # noqa: B018
    assert gc.isenabled()
