"""Answers to the exercises of chapter 45: wrong ones with their mistakes, and other right ones."""

from pmpp import cuda
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
FAR = 2**31 - 1

# -- parents


@right("graph/parents")
@cuda.jit
def parents_by_a_search_from_behind(starts, neighbours, levels, parents):
    v = cuda.grid(1)
    if v < parents.size:
        own, parent = levels[v], -1
        j = starts[v + 1] - 1
        while j >= starts[v]:
            if levels[neighbours[j]] + 1 == own:
                parent = neighbours[j]
            j -= 1
        parents[v] = parent


@wrong("graph/parents", "the last parent")
@cuda.jit
def parents_without_a_break(starts, neighbours, levels, parents):
    v = cuda.grid(1)
    if v < parents.size:
        parent = -1
        for j in range(starts[v], starts[v + 1]):
            if levels[neighbours[j]] == levels[v] - 1:
                parent = neighbours[j]
        parents[v] = parent


@wrong("graph/parents", "a child taken for a parent")
@cuda.jit
def parents_that_are_children(starts, neighbours, levels, parents):
    v = cuda.grid(1)
    if v < parents.size:
        parent = -1
        for j in range(starts[v], starts[v + 1]):
            if levels[v] >= 0 and levels[neighbours[j]] == levels[v] + 1:
                parent = neighbours[j]
                break
        parents[v] = parent


@wrong("graph/parents", "output not written")
@cuda.jit
def parents_only_where_there_is_one(starts, neighbours, levels, parents):
    v = cuda.grid(1)
    if v < parents.size:
        for j in range(starts[v], starts[v + 1]):
            if levels[neighbours[j]] == levels[v] - 1:
                parents[v] = neighbours[j]
                break


@wrong("graph/parents", "missing guard")
@cuda.jit
def parents_unguarded(starts, neighbours, levels, parents):
    v = cuda.grid(1)
    parent = -1
    for j in range(starts[v], starts[v + 1]):
        if levels[neighbours[j]] == levels[v] - 1:
            parent = neighbours[j]
            break
    parents[v] = parent


@wrong("graph/parents", "only right for one block")
@cuda.jit
def parents_within_a_block(starts, neighbours, levels, parents):
    v = cuda.threadIdx.x
    if v < parents.size:
        parent = -1
        for j in range(starts[v], starts[v + 1]):
            if levels[neighbours[j]] == levels[v] - 1:
                parent = neighbours[j]
                break
        parents[v] = parent


@wrong("graph/parents", "wrong result")
@cuda.jit
def parents_one_short(starts, neighbours, levels, parents):
    v = cuda.grid(1)
    if v < parents.size:
        parent = -1
        for j in range(starts[v], starts[v + 1] - 1):
            if levels[neighbours[j]] == levels[v] - 1:
                parent = neighbours[j]
                break
        parents[v] = parent


@right("graph/parents")
@cuda.jit
def parents_by_a_whole_search(starts, neighbours, levels, parents):
    v = cuda.grid(1)
    if v < parents.size:
        parent = -1
        for j in range(starts[v], starts[v + 1]):
            if parent < 0 and levels[neighbours[j]] == levels[v] - 1:
                parent = neighbours[j]
        parents[v] = parent


@right("graph/parents")
@cuda.jit
def parents_by_a_whole_search_the_other_way(starts, neighbours, levels, parents):
    v = cuda.grid(1)
    if v < parents.size:
        parent = -1
        for j in range(starts[v], starts[v + 1]):
            if levels[neighbours[j]] == levels[v] - 1 and parent == -1:
                parent = neighbours[j]
        parents[v] = parent


@right("graph/parents")
@cuda.jit
def parents_or_an_early_end(starts, neighbours, levels, parents):
    v = cuda.grid(1)
    if v < parents.size:
        if levels[v] <= 0:
            parents[v] = -1
            return
        j = starts[v]
        while levels[neighbours[j]] != levels[v] - 1:
            j += 1
        parents[v] = neighbours[j]


@wrong("graph/parents", "the smallest parent")
@cuda.jit
def parents_of_the_smallest_number(starts, neighbours, levels, parents):
    v = cuda.grid(1)
    if v < parents.size:
        parent = -1
        for j in range(starts[v], starts[v + 1]):
            w = neighbours[j]
            if levels[w] == levels[v] - 1 and (parent < 0 or w < parent):
                parent = w
        parents[v] = parent


@wrong("graph/parents", "too much traffic", "write it once, behind the loop")
@cuda.jit
def parents_written_twice(starts, neighbours, levels, parents):
    v = cuda.grid(1)
    if v < parents.size:
        parents[v] = -1
        for j in range(starts[v], starts[v + 1]):
            if levels[neighbours[j]] == levels[v] - 1:
                parents[v] = neighbours[j]
                return


@wrong("graph/parents", "missing barrier", "No barrier orders the blocks")
@cuda.jit
def parents_pushed_to_who_has_none(starts, neighbours, levels, parents):
    v = cuda.grid(1)
    if v < parents.size:
        parents[v] = -1
        for j in range(starts[v], starts[v + 1]):
            w = neighbours[j]
            if levels[w] == levels[v] + 1 and parents[w] == -1:
                parents[w] = v


# -- shortest


@right("graph/shortest")
@cuda.jit
def shortest_after_a_look(tails, heads, weights, distances, new):
    """Most edges are no shorter way, and need no atomic."""
    j = cuda.grid(1)
    if j < tails.size:
        far = distances[tails[j]]
        if far != FAR and far + weights[j] < distances[heads[j]]:
            cuda.atomic.min(new, heads[j], far + weights[j])


@wrong("graph/shortest", "missing atomic")
@cuda.jit
def shortest_without_atomic(tails, heads, weights, distances, new):
    j = cuda.grid(1)
    if j < tails.size and distances[tails[j]] != FAR:
        new[heads[j]] = min(new[heads[j]], distances[tails[j]] + weights[j])


@wrong("graph/shortest", "ways from nowhere")
@cuda.jit
def shortest_from_anywhere(tails, heads, weights, distances, new):
    j = cuda.grid(1)
    if j < tails.size:
        cuda.atomic.min(new, heads[j], distances[tails[j]] + weights[j])


@wrong("graph/shortest", "missing guard")
@cuda.jit
def shortest_unguarded(tails, heads, weights, distances, new):
    j = cuda.grid(1)
    if distances[tails[j]] != FAR:
        cuda.atomic.min(new, heads[j], distances[tails[j]] + weights[j])


@wrong("graph/shortest", "argument ignored")
@cuda.jit
def shortest_by_edges_of_one_length(tails, heads, weights, distances, new):
    j = cuda.grid(1)
    if j < tails.size and distances[tails[j]] != FAR:
        cuda.atomic.min(new, heads[j], distances[tails[j]] + 1)


@wrong("graph/shortest", "inputs exchanged")
@cuda.jit
def shortest_backwards(tails, heads, weights, distances, new):
    j = cuda.grid(1)
    if j < tails.size and distances[heads[j]] != FAR:
        cuda.atomic.min(new, tails[j], distances[heads[j]] + weights[j])


@wrong("graph/shortest", "wrong result")
@cuda.jit
def shortest_within_a_block(tails, heads, weights, distances, new):
    j = cuda.threadIdx.x
    if j < tails.size and distances[tails[j]] != FAR:
        cuda.atomic.min(new, heads[j], distances[tails[j]] + weights[j])


@wrong("graph/shortest", "missing barrier", "compares and replaces in one step")
@cuda.jit
def shortest_by_look_and_store(tails, heads, weights, distances, new):
    j = cuda.grid(1)
    if j < tails.size and distances[tails[j]] != FAR:
        far = distances[tails[j]] + weights[j]
        if far < new[heads[j]]:  # noqa: PLR1730
            new[heads[j]] = far


@wrong("graph/shortest", "race", "compares and replaces in one step")
@cuda.jit
def shortest_by_look_barrier_and_store(tails, heads, weights, distances, new):
    j = cuda.grid(1)
    far, less = 0, False
    if j < tails.size and distances[tails[j]] != FAR:
        far = distances[tails[j]] + weights[j]
        less = far < new[heads[j]]
    cuda.syncthreads()
    if less:
        new[heads[j]] = far


@wrong("graph/shortest", "missing barrier", "Take what is known from distances")
@cuda.jit
def shortest_from_new_distances(tails, heads, weights, distances, new):
    j = cuda.grid(1)
    if j < tails.size and new[tails[j]] != FAR:
        cuda.atomic.min(new, heads[j], new[tails[j]] + weights[j])


@wrong("graph/shortest", "too many atomics", "in one atomic")
@cuda.jit
def shortest_by_cas(tails, heads, weights, distances, new):
    j = cuda.grid(1)
    if j < tails.size and distances[tails[j]] != FAR:
        far = distances[tails[j]] + weights[j]
        old = distances[heads[j]]
        while far < old:
            seen = cuda.atomic.cas(new, heads[j], old, far)
            if seen == old:
                break
            old = seen


# -- components


@right("graph/components")
@cuda.jit
def components_by_while(starts, neighbours, labels, out):
    v = cuda.grid(1)
    if v < out.size:
        least, j, end = labels[v], starts[v], starts[v + 1]
        while j < end:
            least = min(labels[neighbours[j]], least)
            j += 1
        out[v] = least


@wrong("graph/components", "numbers for labels")
@cuda.jit
def components_by_number(starts, neighbours, labels, out):
    v = cuda.grid(1)
    if v < out.size:
        least = labels[v]
        for j in range(starts[v], starts[v + 1]):
            least = min(least, neighbours[j])
        out[v] = least


@wrong("graph/components", "own label forgotten")
@cuda.jit
def components_of_neighbours_alone(starts, neighbours, labels, out):
    v = cuda.grid(1)
    if v < out.size:
        least = FAR
        for j in range(starts[v], starts[v + 1]):
            least = min(least, labels[neighbours[j]])
        out[v] = least


@wrong("graph/components", "missing guard")
@cuda.jit
def components_unguarded(starts, neighbours, labels, out):
    v = cuda.grid(1)
    least = labels[v]
    for j in range(starts[v], starts[v + 1]):
        least = min(least, labels[neighbours[j]])
    out[v] = least


@wrong("graph/components", "output not written")
@cuda.jit
def components_where_a_label_falls(starts, neighbours, labels, out):
    v = cuda.grid(1)
    if v < out.size:
        for j in range(starts[v], starts[v + 1]):
            if labels[neighbours[j]] < labels[v]:
                out[v] = min(out[v], labels[neighbours[j]])


@wrong("graph/components", "only right for one block")
@cuda.jit
def components_within_a_block(starts, neighbours, labels, out):
    v = cuda.threadIdx.x
    if v < out.size:
        least = labels[v]
        for j in range(starts[v], starts[v + 1]):
            least = min(least, labels[neighbours[j]])
        out[v] = least


@wrong("graph/components", "wrong result")
@cuda.jit
def components_of_the_first_neighbour(starts, neighbours, labels, out):
    v = cuda.grid(1)
    if v < out.size:
        least = labels[v]
        if starts[v] < starts[v + 1]:
            least = min(least, labels[neighbours[starts[v]]])
        out[v] = least


@wrong("graph/components", "own label forgotten")
@cuda.jit
def components_pushed_to_neighbours_alone(starts, neighbours, labels, out):
    v = cuda.grid(1)
    if v < out.size:
        for j in range(starts[v], starts[v + 1]):
            cuda.atomic.min(out, neighbours[j], labels[v])


@wrong("graph/components", "missing barrier", "No barrier orders the blocks")
@cuda.jit
def components_pushed(starts, neighbours, labels, out):
    v = cuda.grid(1)
    if v < out.size:
        out[v] = labels[v]
        for j in range(starts[v], starts[v + 1]):
            cuda.atomic.min(out, neighbours[j], labels[v])


@wrong("graph/components", "race between blocks", "only .* may be written")
@cuda.jit
def components_pushed_behind_a_barrier(starts, neighbours, labels, out):
    v = cuda.grid(1)
    if v < out.size:
        out[v] = labels[v]
    cuda.syncthreads()
    if v < out.size:
        for j in range(starts[v], starts[v + 1]):
            cuda.atomic.min(out, neighbours[j], labels[v])


@wrong("graph/components", "input changed")
@cuda.jit
def components_in_place(starts, neighbours, labels, out):
    v = cuda.grid(1)
    if v < out.size:
        for j in range(starts[v], starts[v + 1]):
            labels[v] = min(labels[v], labels[neighbours[j]])
        out[v] = labels[v]


@wrong("graph/components", "too many atomics", "No vertex needs an atomic")
@cuda.jit
def components_by_atomics(starts, neighbours, labels, out):
    v = cuda.grid(1)
    if v < out.size:
        cuda.atomic.min(out, v, labels[v])
        for j in range(starts[v], starts[v + 1]):
            cuda.atomic.min(out, neighbours[j], labels[v])
