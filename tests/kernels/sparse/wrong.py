"""Wrong versions of `sparse` that people write, each with the reason for which the tests reject it."""

from tests.support.wrong import WrongRung

RUNGS: tuple[WrongRung, ...] = ()  # EMPTY: at least four wrong kernels, each a WrongRung with its reason
