"""What is wrong with a product of a sparse matrix, with a vector or with a matrix: both rooms are judged alike."""

import numpy as np

from tests.support import judge
from tests.support.wrong import misaligned


class Faults:
    """Of versions of a room's function: on the ``inputs`` of the ``room``, and on the one named ``further`` once more.

    Each of the room's inputs is values, columns, starts, and what they are multiplied by.
    """

    def __init__(self, room, further):
        self.room, self.inputs, self.further = room, room.inputs(), further

    def right(self, result, *arguments):
        """Whether each element of ``result`` is within the room's tolerance."""
        expected, allowed = self.room.reference(*arguments), self.room.tolerance(*arguments)
        return judge.right(result, expected, allowed, np.dtype(np.float32))

    def of(self, function):
        """All that is wrong on the first input where anything is, worst first."""
        for arguments in self.inputs.values():
            if found := judge.faults(function, arguments, lambda result, given=arguments: self.right(result, *given)):
                return found
        return self.of_misaligned(function)

    def of_misaligned(self, function):
        """All that is wrong with arrays that begin between multiples of 16 bytes."""
        arguments = self.inputs[self.further]
        given = tuple(misaligned(x, offset) for x, offset in zip(arguments, (1, 2, 3, 1), strict=True))
        return judge.faults(function, given, lambda result: self.right(result, *arguments))
