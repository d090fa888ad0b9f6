"""Exercises of the chapter about pipelines: how many micro-batches, the order of the passes, and what is kept."""

from __future__ import annotations

import typing
from collections.abc import Callable

from pmpp.parallel.exercises import Exercise, Mistake
from pmpp.parallel.pipeline import bubble
from pmpp.runtime.check import as_integer

# ----------------------------------------------------------------------------------------------- how many micro-batches


def micro_batches(stages: int, batch: int, share: float) -> int | None:
    """The smallest number of equal micro-batches whose bubble is at most ``share``; None if there is none."""
    for count in range(1, batch + 1):
        if batch % count == 0 and (stages - 1) / (count + stages - 1) <= share:
            return count
    return None


#: Other formulas that people use, with the mistake's name and what to do.
FORMULAS = (
    ("equal is enough", lambda p, m, share: bubble(p, m) < share, "the bubble may be as large as the share"),
    (
        "share of the work",
        lambda p, m, share: (p - 1) / m <= share,
        "(p - 1) / m compares the bubble with the time of the work: the step has m + p - 1 parts, the bubble included",
    ),
    (
        "one stage too many",
        lambda p, m, share: p / (m + p) <= share,
        "a rank waits p - 1 times, since one of the p stages is its own",
    ),
)


def judge_micro_batches(answer: Callable) -> str:
    """Batches that the first number does not divide, a bubble that is just as large as allowed, one stage, and none."""
    for stages, batch, share in (
        (4, 60, 0.21),
        (3, 32, 0.4),
        (2, 24, 0.25),
        (1, 7, 0.1),
        (5, 49, 0.4),
        (8, 16, 0.25),
    ):
        case = f"for {stages} stage{'s' * (stages > 1)}, {batch} examples and a share of {share}"
        found, wanted = answer(stages, batch, share), micro_batches(stages, batch, share)
        if found == wanted and not isinstance(found, float):
            continue
        if found is None:
            raise Mistake("nothing returned", f"{case} it returned None; {wanted} micro-batches are right")
        try:
            count = as_integer("count", found, 1)
        except (TypeError, ValueError) as error:
            raise Mistake("not a number", f"{case} it must return an integer from 1 or None, was {found!r}") from error
        if batch % count:
            raise Mistake(
                "does not divide",
                f"{case} it returned {count}: a batch of {batch} cannot be cut into {count} equal micro-batches",
            )
        if bubble(stages, count) > share:
            more = "" if wanted else ". No number of micro-batches is enough here, which None should say"
            raise Mistake(
                "bubble too large",
                f"{case} it returned {count}, where the bubble is {bubble(stages, count):.3g} of the step{more}",
            )
        for name, fits, advice in FORMULAS:
            other = [m for m in range(1, batch + 1) if batch % m == 0 and fits(stages, m, share)]
            if count == min(other, default=None):
                raise Mistake(name, f"{case} it returned {count}, and {wanted} are enough: {advice}")
        raise Mistake("not the smallest", f"{case} it returned {count}, and {wanted} are enough")
    return "The bubble is small enough, the parts are equal, and no smaller number does."


# ------------------------------------------------------------------------------------------------ the order of passes


def schedule(stage: int, stages: int, count: int) -> list[tuple[str, int]]:
    """The passes of a stage in the order of one forward, one backward: ("F", k) and ("B", k)."""
    ahead = min(stages - 1 - stage, count)
    made = [("F", k) for k in range(ahead)]
    for k in range(ahead, count):
        made += [("F", k), ("B", k - ahead)]
    return made + [("B", k) for k in range(count - ahead, count)]


FORWARD, BACKWARD = 1, 2  # seconds of a pass


def judge_schedule(answer: Callable) -> str:
    """All lists together are carried out: each pass once, none waits for ever, what is kept, and when all is done."""
    for stages, count in ((4, 6), (3, 3), (4, 2), (2, 1), (1, 3)):
        case = f"with {stages} stage{'s' * (stages > 1)} and {count} micro-batch{'es' * (count > 1)}"
        lists = [_passes(f"{case} stage {s}", answer(s, stages, count), count) for s in range(stages)]
        end = _carried_out(case, lists)
        for s, passes in enumerate(lists):
            held, most, allowed = 0, 0, min(stages - s, count)
            for kind, _ in passes:
                held += 1 if kind == "F" else -1
                most = max(most, held)
            if most > allowed:
                raise Mistake(
                    "keeps too much",
                    f"{case} stage {s} keeps the activations of {most} micro-batches at once, where {allowed} are "
                    f"enough: it makes {stages - 1 - s} forward passes ahead, and then each forward pass is followed "
                    "by a backward pass",
                )
        best = (count + stages - 1) * (FORWARD + BACKWARD)
        if end > best:
            raise Mistake(
                "too slow",
                f"{case} all is done after {end} seconds, where {best} are enough, if a forward pass takes {FORWARD} "
                f"and a backward pass {BACKWARD}: let the first stages make more forward passes ahead",
            )
    return "Each stage keeps the activations of p - s micro-batches at most, and the step is as short as GPipe's."


def _passes(case: str, found: typing.Any, count: int) -> list[tuple[str, int]]:
    """What a stage does, as a list of pairs, each pass once; else a mistake."""
    if found is None:
        raise Mistake("nothing returned", f"{case}: it returned None")
    passes: list[tuple[str, int]] = []
    for one in found:
        if not (isinstance(one, tuple | list) and len(one) == 2 and one[0] in ("F", "B")):
            raise Mistake("no pass", f'{case}: a pass must be ("F", k) or ("B", k), was {one!r}')
        kind, k = one
        if not 0 <= k < count:
            raise Mistake("no such micro-batch", f"{case}: micro-batches have numbers from 0 to {count - 1}, was {k}")
        if (kind, k) in passes:
            raise Mistake("made twice", f"{case}: {(kind, int(k))} stands twice in the list")
        if kind == "B" and ("F", k) not in passes:
            raise Mistake("backward too early", f"{case}: {(kind, int(k))} comes before {('F', int(k))}")
        passes.append((kind, int(k)))
    for kind in "FB":
        for k in range(count):
            if (kind, k) not in passes:
                raise Mistake("pass missing", f"{case}: {(kind, k)} is missing")
    return passes


def _carried_out(case: str, lists: list[list[tuple[str, int]]]) -> int:
    """When all passes are made, if a message takes no time; a mistake if stages wait for one another for ever."""
    stages, done, at, clocks = len(lists), {}, [0] * len(lists), [0] * len(lists)
    going = True
    while going:
        going = False
        for s, passes in enumerate(lists):
            while at[s] < len(passes):
                kind, k = passes[at[s]]
                before = (s - 1 if kind == "F" else s + 1, kind, k)
                if 0 <= before[0] < stages and before not in done:
                    break
                clocks[s] = max(clocks[s], done.get(before, 0)) + (FORWARD if kind == "F" else BACKWARD)
                done[s, kind, k] = clocks[s]
                at[s], going = at[s] + 1, True
    for s, passes in enumerate(lists):
        if at[s] < len(passes):
            kind, k = passes[at[s]]
            raise Mistake(
                "deadlock",
                f"{case} stage {s} waits for {(kind, k)} of stage {s - 1 if kind == 'F' else s + 1}"
                ", which never comes: "
                "the two stages have the passes in another order",
            )
    return max(clocks)


# ------------------------------------------------------------------------------------------------ what is kept


def kept(stage: int, stages: int, count: int, k: int) -> list[int]:
    """Of which micro-batches a stage keeps activations when its backward pass of k begins, with 1F1B."""
    return list(range(k, min(k + stages - stage, count)))


#: Other lists that people return: of a stage s among p, m micro-batches, and the backward pass of k.
LISTS = (
    (
        "its own left out",
        lambda s, p, m, k: range(k + 1, min(k + p - s, m)),
        "the activations of the micro-batch itself are there, too, until its backward pass has ended",
    ),
    (
        "one too few",
        lambda s, p, m, k: range(k, min(k + p - s - 1, m)),
        "besides the forward passes ahead, the one that came just before is kept",
    ),
    (
        "one too many",
        lambda s, p, m, k: range(k, min(k + p - s + 1, m)),
        "the next forward pass comes after this backward pass",
    ),
    (
        "stages exchanged",
        lambda s, p, m, k: range(k, min(k + s + 1, m)),
        "the first stage is the one that keeps most, since its gradients come back last",
    ),
    (
        "nothing freed",
        lambda s, p, m, k: range(min(k + p - s, m)),
        "a backward pass frees the activations of its micro-batch",
    ),
    (
        "those of GPipe",
        lambda s, p, m, k: range(k + 1),
        "GPipe goes back from the last micro-batch; 1F1B from the first",
    ),
    (
        "all that come",
        lambda s, p, m, k: range(k, m),
        "not all forward passes are made before the first backward pass",
    ),
    (
        "no such micro-batch",
        lambda s, p, m, k: range(k, k + p - s),
        "at the end of the step no forward passes are left",
    ),
)


def judge_kept(answer: Callable) -> str:
    """First and last stages, the first and the last backward passes, and fewer micro-batches than stages."""
    for stage, stages, count, k in ((0, 4, 8, 2), (3, 4, 8, 2), (1, 4, 8, 6), (1, 3, 5, 0), (0, 8, 3, 1), (0, 1, 3, 2)):
        case = f"at the backward pass of micro-batch {k} of {count} on stage {stage} of {stages}"
        found = answer(stage, stages, count, k)
        if found is None:
            raise Mistake("nothing returned", f"{case} it returned None")
        try:
            result = sorted(int(one) for one in found)
        except (TypeError, ValueError) as error:
            raise Mistake("no list", f"{case} it must return a list of numbers, was {found!r}") from error
        wanted = kept(stage, stages, count, k)
        if result == wanted:
            continue
        said = f"{case} the stage keeps {wanted}, was {result}"
        for name, other, advice in LISTS:
            if result == list(other(stage, stages, count, k)):
                raise Mistake(name, f"{said}: {advice}")
        raise Mistake("wrong result", said)
    return "A stage keeps the micro-batch itself and those whose forward passes it has made ahead."


EXERCISES = (
    Exercise(
        "pipeline_parallelism/micro_batches",
        "Return the smallest number of micro-batches for which the bubble is at most share of the step. It must cut "
        "the batch, a number of examples, into equal parts. Return None if no number does.",
        "micro_batches(stages, batch, share)",
        judge_micro_batches,
        (
            "The bubble is (p - 1) / (m + p - 1) of the step. Does it grow or fall with m?",
            "m divides the batch, and is at most the number of examples. You can try them all, from 1 on.",
        ),
        micro_batches,
    ),
    Exercise(
        "pipeline_parallelism/schedule",
        'Return what a stage does with one forward, one backward, as a list of pairs in order: ("F", k) is the forward '
        'pass of micro-batch k, ("B", k) its backward pass. Stages have numbers from 0 to stages - 1, and there are '
        "count micro-batches.",
        "schedule(stage, stages, count)",
        judge_schedule,
        (
            "How many forward passes are made on the last stage before its first backward pass? And on the one before?",
            "Stage s makes stages - 1 - s forward passes ahead, or all of them if there are fewer micro-batches.",
            "Then pairs of a forward and a backward pass follow, and at the end the backward passes that are left.",
        ),
        schedule,
    ),
    Exercise(
        "pipeline_parallelism/kept",
        "With one forward, one backward: return the list of the micro-batches whose activations a stage keeps when its "
        "backward pass of micro-batch k begins, k included.",
        "kept(stage, stages, count, k)",
        judge_kept,
        (
            "Write the schedule of one stage as a list. Which forward passes stand before (B, k)?",
            "Those whose backward passes stand before it, too, are freed.",
            "At the end of a step there are no more forward passes: the last number is count - 1.",
        ),
        kept,
    ),
)
