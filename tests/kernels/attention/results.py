"""What the tests of both rooms share: results are compared with the room's reference, within its tolerance."""

import numpy as np

from pmpp import cuda
from pmpp.runtime import device
from tests.support import judge


def right(room, result, *arguments):
    return judge.right(result, room.reference(*arguments), room.tolerance(*arguments))


def faults(room, function, names):
    """All that is wrong on the first of these inputs where anything is, worst first."""
    inputs = room.inputs()
    for arguments in (inputs[name] for name in names):
        found = judge.faults(function, arguments, lambda result, arguments=arguments: right(room, result, *arguments))
        if found:
            return found
    return []


def check_out_and_stream(room, rung, q, *others):
    stream, out = cuda.stream(), device.empty(q.shape, np.float32)
    result = rung(q, *others, out=out, stream=stream)
    stream.synchronize()
    assert result is out
    assert right(room, device.to_host(out), q, *others)
