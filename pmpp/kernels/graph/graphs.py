"""Graphs by compressed rows: made of edges, drawn by chance, and a real one.

All are two arrays: where the list of each vertex starts, with the length of all lists at the end, and the neighbours,
list by list, each list in ascending order. `pmpp.kernels.graph.ladder.arguments` says more.
"""

from __future__ import annotations

import re
import sys
import sysconfig
import types
import typing
from pathlib import Path

import numpy as np

from pmpp.kernels.common.contents import check_places
from pmpp.runtime.check import as_integer

QUARTERS = (37356, 49807, 62259)  # of 2^16: 0.57, and 0.19 more for each


def checked_ends(tails, heads, vertices: int, arrays: types.ModuleType) -> list:
    """Both ends of edges as arrays. Those of NumPy must be integers from 0 to ``vertices`` - 1."""
    made = []
    for name, ends in (("tails", tails), ("heads", heads)):
        ends = arrays.asarray(ends)
        if ends.size and ends.dtype.kind not in "iu":
            raise TypeError(f"{name} must be integers, were {ends.dtype}")
        if ends.ndim != 1:
            raise ValueError(f"{name} must have one dimension, had shape {ends.shape}")
        if made and ends.shape != made[0].shape:
            raise ValueError(f"{name} must have the shape of tails, {made[0].shape}, had {ends.shape}")
        check_places(name, ends, vertices, f"vertices={vertices}")
        made.append(ends)
    return made


def compressed(tails, heads, vertices: int, dtype=np.int32, arrays: types.ModuleType = np) -> tuple:
    """Edges from ``tails[k]`` to ``heads[k]`` by compressed rows: starts of ``dtype``, and neighbours of int32.

    ``tails`` and ``heads`` are as many integers from 0 to ``vertices`` - 1 each; ``dtype`` is int32, for fewer than
    2^31 edges, or int64. ``arrays`` is NumPy, or CuPy to work on a GPU, where it is not checked how large the ends are.
    Raises TypeError or ValueError that names the argument at fault.

    >>> starts, neighbours = compressed([2, 0, 2], [1, 2, 0], vertices=3)
    >>> starts.tolist(), neighbours.tolist()
    ([0, 1, 1, 3], [2, 0, 1])
    """
    vertices = as_integer("vertices", vertices, 0, 2**31 - 1)
    tails, heads = checked_ends(tails, heads, vertices, arrays)
    if np.dtype(dtype) not in (np.int32, np.int64):
        raise TypeError(f"dtype must be int32 or int64, was {dtype!r}")
    if tails.size > np.iinfo(dtype).max:
        raise ValueError(f"dtype must be int64 for 2^31 edges or more, was int32 for {tails.size}")
    edges = arrays.asarray(tails, arrays.int64) << 32 | arrays.asarray(heads, arrays.int64)
    edges.sort()
    starts = arrays.searchsorted(edges, arrays.arange(vertices + 1, dtype=arrays.int64) << 32)
    return starts.astype(dtype), (edges & 0xFFFFFFFF).astype(arrays.int32)


def both_ways(tails, heads, vertices: int, dtype=np.int32, arrays: types.ModuleType = np) -> tuple:
    """The undirected graph with these edges: each is stored with both of its ends. As `compressed`.

    >>> starts, neighbours = both_ways([0, 1], [1, 2], vertices=3)
    >>> starts.tolist(), neighbours.tolist()
    ([0, 1, 3, 4], [1, 0, 2, 1])
    """
    tails, heads = checked_ends(tails, heads, as_integer("vertices", vertices, 0, 2**31 - 1), arrays)
    both = arrays.concatenate([tails, heads]), arrays.concatenate([heads, tails])
    return compressed(*both, vertices, dtype, arrays)


def directed(tails, heads, vertices: int, source: int = 0, dtype=np.int32) -> tuple:
    """The arguments of `ladder.reference` for a directed graph: edges, a source, and the edges turned round."""
    return *compressed(tails, heads, vertices, dtype), source, *compressed(heads, tails, vertices, dtype)


def edges_rmat(scale: int, each: int, seed: int = 45, arrays: types.ModuleType = np) -> tuple:
    """The edges of an R-MAT graph of 2^scale vertices, ``each`` for a vertex, as two arrays of int32.

    Each bit of an edge's two ends is drawn together: (0, 0), (0, 1), (1, 0) or (1, 1) with the probabilities 0.57,
    0.19, 0.19 and 0.05 of the benchmark Graph500. So a vertex with few 1s in its number has many edges. Then the
    vertices get new numbers by chance. Loops and edges that occur twice stay.

    NumPy and CuPy make the same edges: what is drawn is a function of the edge's number and the seed.
    Source: Chakrabarti, Zhan and Faloutsos, "R-MAT: a recursive model for graph mining" (2004).

    >>> tails, heads = edges_rmat(scale=10, each=16)
    >>> tails.shape, np.bincount(tails).max() > 10 * 16
    ((16384,), np.True_)
    """
    number = arrays.arange(each << scale, dtype=arrays.uint64)
    tails, heads = (arrays.zeros(number.size, arrays.int32) for _ in range(2))
    for level in range(scale):
        if level % 4 == 0:  # 64 bits by chance are enough for four levels
            bits = mixed(number, 1000 * seed + level, arrays)
        drawn = (bits >> np.uint64(16 * (level % 4)) & np.uint64(0xFFFF)).astype(arrays.int32)
        low, middle, high = (drawn >= limit for limit in QUARTERS)
        tails = tails << 1 | middle
        heads = heads << 1 | (low ^ middle | high)
    order = arrays.argsort(mixed(arrays.arange(1 << scale, dtype=arrays.uint64), 1000 * seed + 999, arrays))
    renamed = order.astype(arrays.int32)
    return renamed[tails], renamed[heads]


def mixed(x: typing.Any, seed: int, arrays: types.ModuleType = np) -> typing.Any:
    """64 bits for each number of an array of uint64, as if drawn by chance; different numbers get different ones.

    Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014), their mix64.
    """
    x = (x + arrays.uint64(seed)) * arrays.uint64(0x9E3779B97F4A7C15)
    x = (x ^ x >> arrays.uint64(30)) * arrays.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> arrays.uint64(27)) * arrays.uint64(0x94D049BB133111EB)
    return x ^ x >> arrays.uint64(31)


def imports() -> tuple[list[str], np.ndarray, np.ndarray]:
    """Python's standard library: the names of its modules, and an edge from each module to each one that it imports.

    An import counts wherever it stands in a module. Of a package, its ``__init__.py`` is read; of what is written in
    another language, nothing. Other versions of Python have another library.

    >>> names, tails, heads = imports()
    >>> (names.index("json"), names.index("re")) in set(zip(tails, heads)) or "json" in names
    True
    """
    names = sorted(sys.stdlib_module_names)
    number = {name: i for i, name in enumerate(names)}
    library, edges = Path(sysconfig.get_paths()["stdlib"]), set()
    for name in names:
        for path in (library / f"{name}.py", library / name / "__init__.py"):
            if path.is_file():
                text = path.read_text(encoding="utf-8", errors="replace")
                for line in re.findall(
                    r"^[ \t]*(?:import[ \t]+([\w., \t]+)|from[ \t]+(\w+)[\w.]*[ \t]+import)", text, re.M
                ):
                    for part in (line[0] or line[1]).split(","):
                        other = part.split(" as ")[0].partition(".")[0].strip()
                        if other in number and other != name:
                            edges.add((number[name], number[other]))
    tails, heads = np.array(sorted(edges), np.int32).reshape(-1, 2).T
    return names, tails, heads
