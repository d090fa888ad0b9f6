"""What ``lab.measure.agreement`` compares with the hardware besides the first four rooms: a launch of many other rungs.

The ladders are of PMPP's further subjects: images, stencils, histograms, filters, merging, sorting, sparse matrices,
graphs, wavefronts, potentials, MRI, random numbers, Monte Carlo and the game of life. Of a rung that launches several
kernels, the one that is compared is named: that which does most of the work, or which is the rung's own, in its first
launch. The graph has work for one block. Several blocks would wait for each other at the barrier of the grid: they ask
in a loop, more or less often from run to run, and the profiler counts that as well.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp.kernels.filter import ladder as filters
from pmpp.kernels.filter import partition, repeat, runs
from pmpp.kernels.game_of_life import ladder as game_of_life
from pmpp.kernels.graph import ladder as graph
from pmpp.kernels.histogram import ladder as histogram
from pmpp.kernels.images import blur, grey, rotation
from pmpp.kernels.instruments.agreement_data import floats, scattered, tree
from pmpp.kernels.merge import ladder as merge
from pmpp.kernels.monte_carlo import ladder as monte_carlo
from pmpp.kernels.mri import ladder as mri
from pmpp.kernels.potential import cutoff
from pmpp.kernels.potential import ladder as potential
from pmpp.kernels.random import ladder as random
from pmpp.kernels.sort import ladder as sort
from pmpp.kernels.sort import pairs, segments, selection
from pmpp.kernels.sparse import ladder as sparse
from pmpp.kernels.sparse import spmm
from pmpp.kernels.stencil import ladder as stencil
from pmpp.kernels.wavefront import alignment, shortest_paths
from pmpp.lab.measure.agreement import Case

__all__ = ["RUNGS"]

LARGEST = 2**31 - 1
LENGTHS = scattered(300, 32)  # of runs
ENDS = np.cumsum([0, *(scattered(40, 70) * (np.arange(40) % 3)), 300]).astype(np.int32)  # of segments

#: By room: its arguments, and by rung the name of the kernel that is compared, where that is not the rung's with
#: "_kernel" behind it.
ROOMS: dict[typing.Any, tuple[tuple, dict[str, str]]] = {
    grey: (grey.inputs()["several blocks"], {}),
    blur: (
        (scattered(40 * 96, 256).astype(np.uint8).reshape(40, 96), 2),
        {"separable": "along_kernel", "running": "running_along_kernel"},
    ),
    rotation: ((scattered(150 * 160, 256).astype(np.uint8).reshape(150, 160), 0.4), {}),
    stencil: ((*stencil.inputs()["order 1, aligned"][:2], 4), {"in_flight": "patch_kernel"}),
    histogram: ((scattered(9001, 256).astype(np.uint8), 256), {}),
    filters: ((floats(8193), 0.0), {"by_scan": "scatter_kernel", "tiled": "compact_kernel"}),
    partition: ((floats(8193), 0.0), {"by_scan": "scatter_both_kernel"}),
    runs: ((scattered(8193, 3),), {"by_scan": "scatter_heads_kernel"}),
    repeat: ((scattered(300, LARGEST), LENGTHS, int(LENGTHS.sum())), {}),
    merge: ((np.sort(scattered(3000, 5000)), np.sort(scattered(5001, 5000))), {}),
    sort: (
        (scattered(2300, LARGEST),),
        {"bitonic_shared": "bitonic_section_kernel", "merge_sort": "merge_kernel", "one_bit": "split_kernel"},
    ),
    pairs: (
        (scattered(700, LARGEST), scattered(700, 1000)),
        {"one_bit": "split_pairs_kernel", "one_sweep": "one_sweep_pairs_kernel"},
    ),
    selection: ((scattered(4105, LARGEST), 100), {"by_sorting": "first_kernel", "by_digits": "choose_kernel"}),
    segments: ((scattered(int(ENDS[-1]), LARGEST), ENDS), {"by_digits": "take_kernel"}),
    sparse: (sparse.inputs()["power law"], {"warp_per_row": "team_kernel", "team_per_row": "team_kernel"}),
    spmm: ((*spmm.inputs()["power law"][:3], floats(200, 36)), {}),
    graph: (tree(1, 9, 31, 30, 14, 3), {}),
    alignment: (alignment.inputs()["changed, global"], {"many_pairs": "one_launch_kernel"}),
    shortest_paths: (
        shortest_paths.inputs()["all edges"],
        {"blocked": "rest_kernel", "in_pieces": "wide_rest_kernel", "by_fours": "whole_pivot_kernel"},
    ),
    potential: (potential.inputs()["an odd grid"], {}),
    cutoff: (cutoff.inputs()["an odd grid"], {}),
    mri: (mri.inputs()["a block of voxels +1"], {"in_parts": "several_voxels_kernel"}),
    random: ((np.zeros(1025, np.float32), "uniform", 7, 4), {rung.name: rung.name for rung in random.LADDER}),
    monte_carlo: (
        monte_carlo.inputs()["and one, philox"],
        {"in_registers": "summing", "fast_functions": "summing"},
    ),
    game_of_life: (game_of_life.inputs()["several blocks"], {}),
}


def _case(room: typing.Any, args: tuple, rung: typing.Any, kernel: str) -> Case:
    name = room.__name__.removeprefix("pmpp.kernels.").removesuffix(".ladder")
    return Case(f"{name}: {rung.name}", rung, lambda: args, launched=kernel)


#: Rungs of these rooms that are not measured on a GPU yet, such as "images.blur: fused".
LEFT_OUT: frozenset[str] = frozenset({"images.blur: circular_buffer"})

_ALL = (
    _case(room, args, rung, kernels.get(rung.name, f"{rung.name}_kernel"))
    for room, (args, kernels) in ROOMS.items()
    for rung in room.LADDER
)
RUNGS = tuple(case for case in _ALL if case.name not in LEFT_OUT)
