"""Answers to the exercises about pipelines: wrong ones with their mistakes, and other right ones."""

import math

import numpy as np

# ----------------------------------------------------------------------------------------------- how many micro-batches


def from_a_bound(stages, batch, share):
    """The formula solved for the number, a little less because of rounding, and then up to the next divisor."""
    count = max(1, math.ceil((stages - 1) * (1 - share) / share - 1e-9))
    while count <= batch and batch % count:
        count += 1
    return count if count <= batch else None


def by_next(stages, batch, share):
    return next((m for m in range(1, batch + 1) if not batch % m and stages - 1 <= share * (m + stages - 1)), None)


def from_the_end(stages, batch, share):
    found = None
    for m in range(batch, 0, -1):
        if batch % m == 0 and 1 - m / (m + stages - 1) <= share:
            found = m
    return found


def by_numpy(stages, batch, share):
    """A NumPy integer is a number, too."""
    m = np.arange(1, batch + 1)
    m = m[(batch % m == 0) & ((stages - 1) / (m + stages - 1) <= share)]
    return m[0] if m.size else None


def by_sizes(stages, batch, share):
    """By the examples of a micro-batch, the most first."""
    for each in range(batch, 0, -1):
        if batch % each == 0 and (stages - 1) * each <= share * (batch + (stages - 1) * each):
            return batch // each
    return None


def counted(fits, divides=True, otherwise=None):
    def answer(stages, batch, share):
        every = [m for m in range(1, batch + 1) if (not divides or batch % m == 0) and fits(stages, m, share)]
        return min(every, default=otherwise)

    return answer


def right(p, m, share):
    return (p - 1) / (m + p - 1) <= share


of_the_work = counted(lambda p, m, share: (p - 1) / m <= share)
stages_for_others = counted(lambda p, m, share: p / (m + p) <= share)
strictly = counted(lambda p, m, share: (p - 1) / (m + p - 1) < share)
in_unequal_parts = counted(right, divides=False)
one_example_each = counted(right, otherwise=16)
too_few = counted(lambda p, m, share: (p - 2) / (m + p - 1) <= share)


def as_many_as_examples(stages, batch, share):
    return batch


def a_fraction(stages, batch, share):
    return (stages - 1) * (1 - share) / share


def says_nothing(stages, batch, share):
    pass


# ------------------------------------------------------------------------------------------------ the order of passes


def by_popping(stage, stages, count):
    forward, backward, made = list(range(count)), list(range(count)), []
    while backward:
        if forward and len(backward) - len(forward) < stages - stage:
            made.append(("F", forward.pop(0)))
        else:
            made.append(("B", backward.pop(0)))
    return made


def by_steps(stage, stages, count):
    """F of micro-batch i beside B of i - ahead, for all i, without those that are not there."""
    ahead = stages - 1 - stage
    pairs = [[("F", i), ("B", i - ahead)] for i in range(count + ahead)]
    return [one for pair in pairs for one in pair if 0 <= one[1] < count]


def by_a_generator(stage, stages, count):
    ahead = min(count, stages - stage - 1)
    yield from (("F", k) for k in range(ahead))
    for k in range(count):
        if k + ahead < count:
            yield "F", k + ahead
        yield "B", k


def in_lists(stage, stages, count):
    return [list(one) for one in by_popping(stage, stages, count)]


def by_sorting(stage, stages, count):
    """A forward pass has its own place, and a backward pass one behind that of the last forward pass before it."""
    ahead = min(stages - 1 - stage, count)
    places = {("F", k): (k, 0) for k in range(count)} | {("B", k): (k + ahead, 1) for k in range(count)}
    return sorted(places, key=places.get)


def with_ahead(ahead_of, bounded=True, last=True):
    def answer(stage, stages, count):
        ahead = ahead_of(stage, stages)
        ahead = min(ahead, count) if bounded else ahead
        made = [("F", k) for k in range(ahead)]
        for k in range(ahead, count):
            made += [("F", k), ("B", k - ahead)]
        return made + [("B", k) for k in range(max(0, count - ahead), count)] * last

    return answer


none_ahead = with_ahead(lambda s, p: 0)
one_more_ahead = with_ahead(lambda s, p: p - s)
as_many_as_its_number = with_ahead(lambda s, p: s)
beyond_the_last = with_ahead(lambda s, p: p - 1 - s, bounded=False)
ends_too_soon = with_ahead(lambda s, p: p - 1 - s, last=False)


def as_gpipe(stage, stages, count):
    return [("F", k) for k in range(count)] + [("B", k) for k in reversed(range(count))]


def backward_first(stage, stages, count):
    return [(kind, k) for kind, k in by_popping(stage, stages, count) if kind == "B"] + [("F", 0)]


def the_last_first_on_one(stage, stages, count):
    made = by_popping(stage, stages, count)
    return made if stage else [("F", k) for k in range(count)] + [("B", k) for k in reversed(range(count))]


def waits_for_the_other(stage, stages, count):
    """The last stage has its first forward pass after its second, and the one before makes a backward pass first."""
    made = by_popping(stage, stages, count)
    if stage == stages - 1 and count > 1 and stages > 1:
        return [("F", 1), ("B", 1), ("F", 0), ("B", 0), *made[4:]]
    if stage == stages - 2 and count > 1:
        return [("F", 0), ("B", 0), ("F", 1), ("B", 1), *[one for one in made if one[1] > 1]]
    return made


def words(stage, stages, count):
    return [f"{kind}{k}x" for kind, k in by_popping(stage, stages, count)]


def again_and_again(stage, stages, count):
    return [("F", 0), ("B", 0)] * count


def no_list_at_all(stage, stages, count):
    by_popping(stage, stages, count)


# ------------------------------------------------------------------------------------------------ what is kept


def from_the_schedule(stage, stages, count, k):
    before = by_popping(stage, stages, count)
    before = before[: before.index(("B", k))]
    return [j for j in range(count) if ("F", j) in before and ("B", j) not in before]


def a_set(stage, stages, count, k):
    return {j for j in range(k, count) if j - k < stages - stage}


def a_range(stage, stages, count, k):
    return range(count)[k : k + stages - stage]


def an_array(stage, stages, count, k):
    return np.arange(k, np.minimum(k + stages - stage, count))


def downwards(stage, stages, count, k):
    return [*reversed(range(k, min(count, k + stages - stage)))]


def without_itself(stage, stages, count, k):
    return [j for j in from_the_schedule(stage, stages, count, k) if j != k]


def those_ahead_alone(stage, stages, count, k):
    return list(range(k, min(k + stages - 1 - stage, count)))


def and_the_next(stage, stages, count, k):
    return list(range(k, min(k + stages - stage + 1, count)))


def most_on_the_last(stage, stages, count, k):
    return list(range(k, min(k + stage + 1, count)))


def all_forward_passes(stage, stages, count, k):
    return list(range(min(k + stages - stage, count)))


def of_gpipe(stage, stages, count, k):
    return list(range(k + 1))


def all_to_come(stage, stages, count, k):
    return list(range(k, count))


def not_bounded(stage, stages, count, k):
    return list(range(k, k + stages - stage))


def how_many(stage, stages, count, k):
    return min(stages - stage, count - k)


def itself(stage, stages, count, k):
    return [k, k]


def forgets_to_return(stage, stages, count, k):
    from_the_schedule(stage, stages, count, k)


ALSO_RIGHT = (
    *[("pipeline_parallelism/micro_batches", one) for one in (from_a_bound, by_next, from_the_end, by_numpy, by_sizes)],
    *[("pipeline_parallelism/schedule", one) for one in (by_popping, by_steps, by_a_generator, in_lists, by_sorting)],
    *[("pipeline_parallelism/kept", one) for one in (from_the_schedule, a_set, a_range, an_array, downwards)],
)

WRONG = (
    ("pipeline_parallelism/micro_batches", of_the_work, "share of the work", "12 are enough.*the bubble included"),
    ("pipeline_parallelism/micro_batches", stages_for_others, "one stage too many", "one of the p stages is its own"),
    ("pipeline_parallelism/micro_batches", strictly, "equal is enough", "2 stages, 24 examples"),
    ("pipeline_parallelism/micro_batches", in_unequal_parts, "does not divide", "cannot be cut into"),
    ("pipeline_parallelism/micro_batches", one_example_each, "bubble too large", "which None should say"),
    ("pipeline_parallelism/micro_batches", too_few, "bubble too large", "of the step$"),
    ("pipeline_parallelism/micro_batches", as_many_as_examples, "not the smallest", "returned 60, and 12 are enough"),
    ("pipeline_parallelism/micro_batches", a_fraction, "not a number", "an integer from 1 or None"),
    ("pipeline_parallelism/micro_batches", says_nothing, "nothing returned", "12 micro-batches are right"),
    ("pipeline_parallelism/schedule", as_gpipe, "keeps too much", "6 micro-batches at once, where 4 are enough"),
    ("pipeline_parallelism/schedule", one_more_ahead, "keeps too much", "stage 0 keeps .* 5 micro-batches"),
    ("pipeline_parallelism/schedule", none_ahead, "too slow", "where 27 are enough"),
    ("pipeline_parallelism/schedule", as_many_as_its_number, "deadlock", "stage 0 waits for"),
    ("pipeline_parallelism/schedule", beyond_the_last, "no such micro-batch", "from 0 to 1, was 2"),
    ("pipeline_parallelism/schedule", ends_too_soon, "pass missing", "'B', 3"),
    ("pipeline_parallelism/schedule", backward_first, "backward too early", "comes before"),
    ("pipeline_parallelism/schedule", the_last_first_on_one, "keeps too much", "stage 0"),
    ("pipeline_parallelism/schedule", waits_for_the_other, "deadlock", "which never comes"),
    ("pipeline_parallelism/schedule", words, "no pass", "was 'F0x'"),
    ("pipeline_parallelism/schedule", again_and_again, "made twice", "stands twice"),
    ("pipeline_parallelism/schedule", no_list_at_all, "nothing returned", "stage 0: it returned None"),
    ("pipeline_parallelism/kept", without_itself, "its own left out", "until its backward pass has ended"),
    ("pipeline_parallelism/kept", those_ahead_alone, "one too few", r"keeps \[2, 3, 4, 5\], was \[2, 3, 4\]"),
    ("pipeline_parallelism/kept", and_the_next, "one too many", "comes after this backward pass"),
    ("pipeline_parallelism/kept", most_on_the_last, "stages exchanged", "keeps most"),
    ("pipeline_parallelism/kept", all_forward_passes, "nothing freed", "frees the activations"),
    ("pipeline_parallelism/kept", of_gpipe, "those of GPipe", "1F1B from the first"),
    ("pipeline_parallelism/kept", all_to_come, "all that come", "not all forward passes"),
    ("pipeline_parallelism/kept", not_bounded, "no such micro-batch", "stage 1 of 4"),
    ("pipeline_parallelism/kept", how_many, "no list", "was 4"),
    ("pipeline_parallelism/kept", itself, "wrong result", r"was \[2, 2\]"),
    ("pipeline_parallelism/kept", forgets_to_return, "nothing returned", "it returned None"),
)
