"""Every best rung, captured into a CUDA graph and replayed with other contents."""

import numpy as np
import pytest

from pmpp import cuda
from pmpp.lab.measure.graphs import capture
from pmpp.lab.rooms import rooms
from pmpp.runtime import device
from pmpp.runtime.rung import room_name
from tests.contract.test_rooms import SAY_HOW_FAR, solved
from tests.support.judge import difference

ROOMS = rooms()
# Which argument is summed in an order that differs from run to run. How far a block of a scan looks back depends on the
# others; the weights of a histogram are added by atomics.
SUMMED = {"scan": 0, "histogram": 3, "many_bins": 3}


@pytest.mark.gpu
@pytest.mark.parametrize("room", ROOMS, ids=room_name)
def test_the_best_rung_is_captured_and_replayed_with_other_contents(room):
    pytest.importorskip("cupy")
    rung = room.LADDER[-1]
    for name, arguments in room.inputs().items():
        if not sum(one.size for one in arguments if isinstance(one, np.ndarray)):
            continue
        # The graph is recorded on an input of zeros; the replay must give what belongs to the real one.
        placed = [device.to_device(np.zeros_like(one)) if isinstance(one, np.ndarray) else one for one in arguments]
        recorded = capture(lambda stream, placed=placed: rung(*placed, stream=stream))
        for there, one in zip(placed, arguments, strict=True):
            if isinstance(one, np.ndarray) and one.size:
                there.copy_to_device(np.ascontiguousarray(one))
        cuda.synchronize()
        for _ in range(2):  # a replay finds what the last one left
            recorded.replay()
        recorded.synchronize()
        found = first(recorded.result)
        if room in SAY_HOW_FAR:
            _, expected, allowed = solved(room)[name]
            dtype = first(rung(*arguments)).dtype  # of the call outside a graph
            assert not difference(found, np.reshape(expected, found.shape), allowed, dtype), name
        else:  # how far is right stands in the room's own test, which the call outside a graph has passed
            expected, allowed = first(rung(*arguments)), 0.0
            if room_name(room) in SUMMED and found.dtype.kind == "f":
                # Twice the bound for a sum in any order (Higham, "Accuracy and stability of numerical algorithms", 2e,
                # section 4.2).
                summed = arguments[SUMMED[room_name(room)]]
                eps, terms = np.finfo(found.dtype).eps, abs(np.asarray(summed, dtype=np.float64))
                allowed = eps * terms.size * np.nan_to_num(terms, posinf=0).sum()
            np.testing.assert_allclose(found, expected, rtol=0, atol=allowed, err_msg=name)


def first(result):
    if hasattr(result, "trimmed"):  # of a filter's values only those that it kept are written
        return first(result.trimmed())
    return device.to_host(result[0] if isinstance(result, tuple) else result)


def test_without_a_gpu_it_says_so(monkeypatch):
    if device.on_gpu():
        pytest.skip("there is one")
    with pytest.raises(RuntimeError, match="a CUDA graph needs an NVIDIA GPU, but"):
        capture(lambda stream: None)
