"""Autotuning: which configuration of a kernel is the fastest on a GPU, for which shapes.

::

    python -m pmpp.lab.measure.tune                        lists what can be tuned
    python -m pmpp.lab.measure.tune transposes             tunes and records it on a GPU; elsewhere predicts
    python -m pmpp.lab.measure.tune products --processes 12    the same, by processes that take turns on the GPU

A kernel factory takes numbers, such as the side of a tile, that nobody can compute from first principles. They are
found by trying, and most of the trying can be spared:

1. `Space` holds the choices for each number. *Restrictions* refuse what cannot run, each by its name.
2. What is left is *counted* in the interpreter: sectors, wavefronts, FLOP, barriers. `roofline_time` makes a time of
   the counts, and what is predicted to be far slower than the best is *pruned*.
3. What is left is *verified* on awkward shapes. A configuration that gives a wrong result cannot win.
4. What is left is *timed*, in turns, on a GPU and nowhere else.

::

    from pmpp.kernels.autotuning import transposes
    from pmpp.lab.measure import tune

    landscape = tune.tune(transposes.SUBJECT, (4096, 4096))   # without a GPU: all but the times
    print(landscape.table())
    tune.best(transposes.SUBJECT, (5000, 3000)).configuration  # what was tuned for this class of shapes, or a guess

`store` keeps what was measured, for each GPU, dtype and class of shapes, with the digests of all sources. `best` does
not use a record of other sources.
"""

from pmpp.lab.measure.tune.search import Landscape, Row, Subject, explore, predictions, tune, wrong_result
from pmpp.lab.measure.tune.space import NothingAllowed, Refused, Space, at_most
from pmpp.lab.measure.tune.store import Choice, best, key_of, path_of, rows_of, subjects, write
from pmpp.lab.measure.tune.work import Estimate, Probe, Work, count, gpu_of, near_power, roofline_time

__all__ = [
    "Choice",
    "Estimate",
    "Landscape",
    "NothingAllowed",
    "Probe",
    "Refused",
    "Row",
    "Space",
    "Subject",
    "Work",
    "at_most",
    "best",
    "count",
    "explore",
    "gpu_of",
    "key_of",
    "near_power",
    "path_of",
    "predictions",
    "roofline_time",
    "rows_of",
    "subjects",
    "tune",
    "write",
    "wrong_result",
]
