"""From what a kernel did on the cases of an exercise to the name of its mistake.

One mistake causes others, so the order counts: what keeps the kernel from running, hazards, results, counters. The
first that is found is the one that is told. The counters are judged in `pmpp.lab.teach.waste`.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
import re
import typing
from collections.abc import Iterator

import numpy as np

from pmpp import simt
from pmpp.lab.teach.exercise import Case, Exercise, Trap, Verdict
from pmpp.lab.teach.run import Run, Source, attempt, bits, extent, leaver, wide, wrong_elements
from pmpp.lab.teach.waste import Waste

__all__ = ["ADVICE", "judge"]

ROUNDING = 1e-6  # relative, of a wrong result that is foreseen
FEW = 4  # elements that may be alike by chance

# What to do about each mistake. The names are the vocabulary of all exercises and their tests.
ADVICE = {
    "not started": "",
    "not a kernel": "",
    "wrong parameters": "",
    "does not run": "",
    "not a GPU kernel": "",
    "endless loop": "Which variable ends the loop, and where does it change?",
    "missing guard": "The last block is only partly needed: test the index first.",
    "guard off by one": "The last valid index is one less than the size: test with <, not <=.",
    "hard-coded size": "Take sizes from the arguments: x.size, x.shape[0].",
    "index out of bounds": "It happens for every size: either this index needs a test, or it is computed wrongly.",
    "negative index": "It wraps around to the end, as in Python: test the index if that is not meant.",
    "divergent barrier": "All threads of a block must reach the same cuda.syncthreads(): move it out of the branch.",
    "inactive lanes": "All lanes of the mask must make the call: move it out of the branch, with a neutral value.",
    "missing barrier": "No thread passes cuda.syncthreads() before all of its block are there: put one in between.",
    "missing atomic": "Reading, combining and writing are three steps; other threads get in between: use cuda.atomic.",
    "race between blocks": "Blocks run together, in any order: let each write its own elements, or use cuda.atomic.",
    "race": "Let one thread write each element, or combine the values with cuda.atomic.",
    "uninitialised memory": "Variables and shared memory hold leftovers until they are written: write before you read.",
    "input changed": "Write to the output only: whoever called still needs the inputs.",
    "argument ignored": "",
    "only right for one block": "threadIdx counts within a block; cuda.grid(1) counts through all of them.",
    "only right for whole blocks": "Look at what the last block does when only a part of it is needed.",
    "wrong axis order": "cuda.grid(2) gives x first, and blocks along x are for the columns.",
    "outputs exchanged": "Look at the order of the parameters, and at which value is stored where.",
    "inputs exchanged": "Look at the order of the parameters, and at which of them the formula names where.",
    "axes exchanged": "The first index of a matrix is the row, the second the column: which of yours is which?",
    "output not written": "Which thread should write the first of them, and what does it do instead?",
    "inaccurate": "Look at the type of what is in between, and at the order of the additions.",
    "wrong result": "Take the smallest case that fails, and compute that element by hand.",
    "accidental float64": "A Python float is float64 in a kernel, and float32 with an integer becomes float64: cast, "
    "as in np.float32(a). float64 takes twice the time on a data-centre GPU, and 32 or 64 times on others.",
    "deliberate float64": "The arrays are float32, and the result is rounded to float32 in any case: write np.float32. "
    "float64 takes twice the memory, and twice the time on a data-centre GPU, 32 or 64 times on others.",
    "too many atomics": "Combine within a thread, then within a block, and let one thread a block do the atomic.",
    "idle threads": "One thread takes as long as a whole warp would: give each thread its own elements.",
    "idle blocks": "Blocks run on many SMs at a time: give each its own elements, by cuda.grid(1) or cuda.blockIdx.x.",
    "uncoalesced": "Let neighbouring threads, threadIdx.x and the next, use neighbouring elements.",
    "bank conflicts": "The lanes of a warp ask one bank for different words: often you can pad the rows by one.",
    "repeated work": "Let one thread write each element: begin at its index in the grid, and go on by the grid's size.",
    "too much traffic": "Keep what is used again in a variable or in shared memory.",
    "too much divergence": "Let whole warps take the same branch.",
    "too much shared memory": "The fewer bytes a block takes, the more blocks run at a time.",
    "too many barriers": "A barrier is needed only between a write and a read of it by another thread.",
    "too much work": "",
}  # fmt: skip


def judge(exercise: Exercise, answer: typing.Any) -> Verdict:
    """The verdict on an answer; see `pmpp.lab.teach.exercise.check`."""
    return _Judge(exercise, answer).verdict()


class _Judge:
    def __init__(self, exercise: Exercise, answer: typing.Any) -> None:
        self.exercise, self.answer = exercise, answer
        self.function = getattr(answer, "py_func", answer)
        self.on_host = exercise.inputs[0].grid is None
        self.source: Source | None = None
        self.runs: list[Run] = []

    def verdict(self) -> Verdict:
        if (early := self.not_ready()) is not None:
            return early
        for case in self.exercise.inputs:
            self.runs.append(attempt(self.answer, case))
            if self.runs[-1].error is not None:
                return self.failed(self.runs[-1])
        steps = (self.hazards, self.not_started, self.inputs_changed, self.wrong_results, self.waste)
        for step in (*steps, self.size_of_an_input):
            if (found := step()) is not None:
                return found
        first, last = self.runs[0].case.name, self.runs[-1].case.name
        message = f"passed: right on {len(self.runs)} inputs, from {first} to {last}, with every access checked"
        within = "." if self.on_host else ", and its counters are within the budget."
        return Verdict(self.exercise.name, True, "", message + within)

    def fault(
        self,
        mistake: str,
        seen: str,
        advice: str | None = None,
        *,
        case: Case | None = None,
        line: int | None = None,
    ) -> Verdict:
        seen = f"with {case.name}, {seen}" if case else seen
        usual = self.exercise.advice.get(mistake, ADVICE.get(mistake, "")) if advice is None else advice
        advice = _sentence(usual, mistake)
        code = self.source.code(line) if self.source else ""
        message = f"{mistake}: {seen} {advice}".strip()
        inputs, launch = (self.exercise.arguments(case), ()) if case else ((), ())
        if case and not self.on_host:
            launch = case.grid, case.block, 0, case.sharedmem
        where = case.name if case else "", line, code, inputs, launch, getattr(self.function, "__name__", "")
        return Verdict(self.exercise.name, False, mistake, message, *where)

    # -- before it runs, and while it does

    def not_ready(self) -> Verdict | None:
        parameters = self.exercise.names
        kind = "function" if self.on_host else "kernel"
        start = f"write a {kind} of ({', '.join(parameters)}). {self.exercise.task}"
        if self.answer is None or self.answer is Ellipsis:
            return self.fault("not started", start)
        if not inspect.isfunction(self.function) and not (self.on_host and callable(self.function)):
            usage = f'check("{self.exercise.name}", my_{kind}), without a launch'
            given = type(self.answer).__name__
            return self.fault("not a kernel", f"check() was given {given}; it takes the {kind} itself, as in {usage}.")
        self.source = Source(self.function)
        if self.source.is_stub():
            return self.fault("not started", start)
        given = self.source.parameters
        if len(given) != len(parameters) or (sorted(given) == sorted(parameters) and given != parameters):
            wanted = f"the parameters are ({', '.join(parameters)}), in this order"
            return self.fault("wrong parameters", f"{wanted}; yours are ({', '.join(given)}).")
        return None

    def failed(self, run: Run) -> Verdict:
        """The interpreter refused the kernel or its launch."""
        said = str(run.error) or type(run.error).__name__
        line = None
        if found := re.match(r".*?:(\d+): in \w+: (.*)", said, re.DOTALL):
            line, said = int(found[1]), found[2]
        if not isinstance(run.error, simt.SimtError):
            said = f"{type(run.error).__name__}: {said}"
        said = said.partition(" (simt.")[0].rstrip(".") + (f" (line {line})." if line else ".")
        if "looks endless" in said:
            return self.fault("endless loop", said, case=run.case, line=line)
        if isinstance(run.error, simt.UnsupportedError):
            return self.fault("not a GPU kernel", said, line=line)
        return self.fault("does not run", said, case=run.case, line=line)

    # -- hazards

    def hazards(self) -> Verdict | None:
        name_it = {
            "out_of_bounds": self.out_of_bounds,
            "divergent_barrier": self.divergent_barrier,
            "race": self.race,
            "uninitialised_read": self.uninitialised_read,
        }
        right = not any(run.wrong or run.changed for run in self.runs)
        for kind, name in name_it.items():
            found = [
                (run, hazard) for run, hazard in self.met(kind) if not (right and "wraps around" in hazard.message)
            ]
            if found:
                return name(*found[0])
        return None

    def met(self, kind: str, line: int | None = None, variable: str | None = None) -> Iterator[tuple[Run, simt.Hazard]]:
        """Hazards of a kind, case by case."""
        for run in self.runs:
            for hazard in run.hazards:
                if hazard.kind == kind and line in (None, hazard.line) and variable in (None, hazard.variable):
                    yield run, hazard

    def hazard(self, mistake: str, run: Run, hazard: simt.Hazard, said: str = "", advice: str | None = None) -> Verdict:
        said = f"{said or _said(hazard)} (line {hazard.line})."
        return self.fault(mistake, said, advice, case=run.case, line=hazard.line)

    def out_of_bounds(self, run: Run, hazard: simt.Hazard) -> Verdict:
        line, name = hazard.line, hazard.variable
        where = list(self.met("out_of_bounds", line, name))
        inside = [other for other in self.runs if other.wrong and not other.hazards]
        if inside and not any(other.changed for other in inside) and (trap := self.sprung(inside)) is not None:
            return trap  # it computes something else, and an index beyond the end may come of that
        bad = [other for other in self.runs if other.hazards or other.wrong]
        if hazard.space == "global" and (turned := self.axes_exchanged(bad)) is not None:
            return turned
        if hazard.space == "global":  # a case with several blocks tells the story better
            run, hazard = next((pair for pair in where if _blocks(pair[0].case) > 1), (run, hazard))
        said = _said(hazard)
        if found := re.match(r"(.*) accesses \S+?\[(.*?)\](?:, but (?:valid indices are 0 to (\d+))?)?", said):
            who, index, last = found.groups()
            said = f"{who} {self.source.verb(name, line)} {name}[{index}]"
            if "-" in index:
                return self.hazard("negative index", run, hazard, said)
            said += (
                f", but the last element is {name}[{re.sub('[0-9]+', last, index)}]"
                if last
                else f", but {name} is empty"
            )
        if (number := self.size_in_code()) is not None:
            return self.hard_coded(f"{said} (line {line}).", run, number)
        if hazard.space != "global":
            advice = f"Compare with the shape that {name} was made with."
            return self.hazard("index out of bounds", run, hazard, said, advice)
        if self.source.tests_up_to_the_size(line) and _next_to_the_last(said):
            return self.hazard("guard off by one", run, hazard, said)
        if len({other.case for other, _ in where}) == len(self.runs):
            return self.hazard("index out of bounds", run, hazard, said)
        if self.source.tests_with_equality(line):
            return self.hazard("guard off by one", run, hazard, said)
        advice = None
        if self.source.tests_around(line):
            advice = (
                "There is a test, but it lets this index through: test every index that is used. "
                "If you do, look at how this one is computed."
            )
            if inside or any(_exact(other.case) for other, _ in where):  # wrong where no guard is needed, too
                return self.hazard("index out of bounds", run, hazard, said, advice)
        elif inside or not any(hazard.thread):  # a guard is for the last threads of a block, and changes no result
            advice = "Either this index needs a test, or it is computed wrongly."
            return self.hazard("index out of bounds", run, hazard, said, advice)
        return self.hazard("missing guard", run, hazard, said, advice)

    def divergent_barrier(self, run: Run, hazard: simt.Hazard) -> Verdict:
        whole = hazard.variable.startswith(("syncthreads", "grid"))  # else a shuffle, a vote: for the lanes of a warp
        return self.hazard("divergent barrier" if whole else "inactive lanes", run, hazard)

    def uninitialised_read(self, run: Run, hazard: simt.Hazard) -> Verdict:
        if hazard.space == "shared":
            met = list(self.met("uninitialised_read", hazard.line, hazard.variable))
            if (found := self.left_early([run for run, _ in met], _said(hazard), met)) is not None:
                return found
        from_idle_lane = "takes no part" in hazard.message
        return self.hazard("inactive lanes" if from_idle_lane else "uninitialised memory", run, hazard)

    def left_early(self, bad: list[Run], then: str, met: typing.Any = ()) -> Verdict | None:
        """If in each of these cases a thread returned before others of its block came to a barrier.

        ``then`` is what came of it in the first case. ``met`` has the hazards that tell which block to look at.
        """
        blocks = {run: hazard.block for run, hazard in reversed(met)}
        found = [self.leaver(run, blocks.get(run)) for run in bad]
        if None in found:
            return None
        (thread, line, barrier), across = found[0], extent(bad[0].case.block)
        who = thread if len(across) == 1 else tuple(int(i) for i in np.unravel_index(thread, across, "F"))
        said = f"thread {who} returns on line {line}, and others of its block wait on line {barrier}"
        said += f"; then {then.rstrip('.')}."
        advice = (
            "A thread that has left does nothing for its block. Let all threads reach cuda.syncthreads(), and put only "
            "what needs the index under the test."
        )
        return self.fault("divergent barrier", said, advice, case=bad[0].case, line=line)

    def leaver(self, run: Run, block: tuple[int, int, int] | None) -> tuple[int, int, int] | None:
        barriers = {line for line, counts in run.by_line().items() if counts["barriers"]}
        returns = self.source.returns()
        if not barriers or not returns:
            return None
        blocks = range(_blocks(run.case)) if block is None else [block]
        return next((left for one in blocks if (left := leaver(self.answer, run.case, one, returns, barriers))), None)

    def race(self, run: Run, hazard: simt.Hazard) -> Verdict:
        said, parameters = _said(hazard), self.source.parameters
        is_input = hazard.variable in parameters and parameters.index(hazard.variable) not in run.case.expected
        if is_input and (changed := self.inputs_changed()) is not None:  # who writes to an input needs no atomic
            return changed
        if self.source.updates(hazard.variable, hazard.line):
            alike = "the two blocks" in said and not self.source.knows_its_block()  # an atomic would only count twice
            return self.hazard("only right for one block" if alike else "missing atomic", run, hazard)
        if "no barrier in between" in said:
            if hazard.space == "global" and " writes " in said and " wrote on line " in said:
                advice = "Two threads write the same element, which no barrier mends: look at the index."
                return self.hazard("race", run, hazard, advice=advice)
            return self.hazard("missing barrier", run, hazard)
        again = {other.case for other, _ in self.met("race", hazard.line, hazard.variable)}
        alone = {other.case for other in self.runs if _blocks(other.case) == 1}
        if "the two blocks" in said or (alone and not alone & again):
            return self.hazard("race between blocks", run, hazard)
        plain = "different values" in said and not self.source.updates(hazard.variable, hazard.line)
        advice = "Look at the index, or at which of them should write." if plain else None
        return self.hazard("race", run, hazard, advice=self.exercise.advice.get("race", advice))

    def size_in_code(self) -> int | None:
        """A number in the code that is an extent of some cases, if these are right: the kernel was written for them."""
        right = {run.case for run in self.runs if not run.hazards and not run.wrong}
        for number in self.source.numbers().keys() - self.of_the_block():
            own = {run.case for run in self.runs if any(number in (*x.shape, x.size) for x in run.case.arrays)}
            if number >= 8 and own and own <= right and len(right) < len(self.runs):
                return number
        return None

    def size_of_an_input(self) -> Verdict | None:
        """A number in the code that is an extent of an input, and that neither the task nor its answer names."""
        if self.on_host or self.exercise.answer is None:
            return None
        own = Source(getattr(self.exercise.answer, "py_func", self.exercise.answer))
        known = own.numbers().keys() | {int(n) for n in re.findall(r"\d+", self.exercise.task)}
        for number in self.source.numbers().keys() - known - self.of_the_block():
            for run in self.runs:
                if number >= 8 and number in _sizes(run.case):
                    seen = "it is right with all inputs of this exercise, and should be with those of any other size."
                    return self.hard_coded(seen, run, number)
        return None

    def of_the_block(self) -> set[int]:
        """Numbers of the code that belong to the block: half of it, two of them, or one more for padding."""
        threads = {n for run in self.runs for n in (*extent(run.case.block), math.prod(extent(run.case.block)))}
        near = {number: [k for k in (number - 1, number, number + 1) if k > 1] for number in self.source.numbers()}
        fit = {n: any(m > 1 and 0 in (k % m, m % k) for m in threads for k in ks) for n, ks in near.items()}
        return {number for number, fits in fit.items() if fits} | threads | {0}

    def hard_coded(self, seen: str, run: Run, number: int) -> Verdict:
        line = self.source.numbers()[number]
        return self.fault("hard-coded size", f"{seen} Line {line} says {number}.", case=run.case, line=line)

    # -- results

    def not_started(self) -> Verdict | None:
        writes = ("global_store_requests", "atomic_requests")
        if (
            self.on_host
            or not any(run.wrong for run in self.runs)
            or any(run.counter(w) for run in self.runs for w in writes)
        ):
            return None
        return self.fault("not started", f"the kernel writes to none of its arguments. {self.exercise.task}")

    def inputs_changed(self) -> Verdict | None:
        for run in self.runs:
            for index in run.changed:
                kind = "function" if self.on_host else "kernel"
                seen = f"the {kind} writes to {self.source.parameters[index]}, which is an input."
                return self.fault("input changed", seen, case=run.case)
        return None

    def wrong_results(self) -> Verdict | None:
        bad, right = [run for run in self.runs if run.wrong], [run for run in self.runs if not run.wrong]
        if not bad:
            return None
        if (trap := self.sprung(bad)) is not None:
            return trap
        run = bad[0]
        index, seen = next(iter(run.wrong)), self.seen(bad)
        wrong = run.wrong[index]
        if self.on_host:
            if run.results[0] is None:
                return self.fault("output not written", "the function returns nothing.", "Return it.", case=run.case)
            return self.fault("wrong result", seen, case=run.case)
        if all(map(_axes_exchanged, bad)):
            return self.fault("wrong axis order", seen, case=run.case)
        for exchanged in (self.outputs_exchanged, self.axes_exchanged):
            if (found := exchanged(bad)) is not None:
                return found
        if (line := self.source.takes_rows_first()) is not None and all(_two_dimensional(other.case) for other in bad):
            return self.fault("wrong axis order", seen, case=run.case, line=line)
        output = self.source.parameters[index]
        if output in self.source.unused():
            return self.fault("output not written", f"the kernel never uses {output}.", "", case=run.case)
        if ignored := [name for name in self.source.unused() if name != output]:
            return self.fault("argument ignored", f"{seen} The kernel never uses {ignored[0]}.", case=run.case)
        if (found := self.inputs_exchanged(bad)) is not None:
            return found
        got, before = run.results[index][wrong], run.case.args[index][wrong]
        unwritten = (bits(got) == bits(before)).all() and not _only_element_was_written(run, wrong)
        if unwritten and (left := self.left_early(bad, seen)) is not None:
            return left
        if (number := self.size_in_code()) is not None:
            return self.hard_coded(seen, run, number)
        first_right = all(_first_block_is_right(other.case, wrong) for other in bad for wrong in other.wrong.values())
        one_block = all(_needed(r.case) == 1 for r in right) and all(_blocks(r.case) > 1 for r in bad)
        if right and one_block and first_right:
            later = "Ask what the second block does that the first does not."
            return self.fault(
                "only right for one block", seen, later if self.source.knows_its_block() else None, case=run.case
            )
        if got.dtype.kind in "fc" and np.isnan(got).all() and np.isnan(before).all() and self.source.reads(output):
            seen = f"{output} comes out as NaN, because the kernel reads it, and it holds nothing yet."
            return self.fault("uninitialised memory", seen, "Write an output before you read it.", case=run.case)
        if unwritten:
            return self.fault("output not written", seen, case=run.case)
        if right and all(_fills(r.case) for r in right) and not any(_fills(r.case) for r in bad):
            return self.fault("only right for whole blocks", seen, case=run.case)
        if all(map(_nearly, bad)):
            return self.fault("inaccurate", seen, case=run.case)
        expected = np.asarray(run.case.expected[index])[wrong]
        written = (bits(got[:1]) != bits(before[:1])).any()
        infinite = written and np.isfinite(expected[0]) and not np.isfinite(got[0])
        advice = "Infinity and NaN come of a number too large, or of a division by 0: which step makes the first?"
        return self.fault("wrong result", seen, advice if infinite else None, case=run.case)

    def outputs_exchanged(self, bad: list[Run]) -> Verdict | None:
        """If in each of these cases two outputs hold each other's result, or two rows of one output do."""
        outputs, name = list(bad[0].case.expected), self.source.parameters
        for a, b in itertools.combinations(outputs, 2):
            if all(_holds(run, a, run, b) and _holds(run, b, run, a) for run in bad):
                seen = f"{name[a]} holds what belongs into {name[b]}, and {name[b]} what belongs into {name[a]}."
                return self.fault("outputs exchanged", seen, case=bad[0].case)
        for index in outputs:
            for axis in {0, bad[0].case.args[index].ndim - 1} if bad[0].case.args[index].ndim > 1 else ():
                extents = {run.case.args[index].shape[axis] for run in bad}
                for a, b in itertools.combinations(range(max(extents)), 2) if extents in ({2}, {3}, {4}) else ():
                    if all(_holds(run, index, run, index, axis, (a, b)) for run in bad):
                        one, other = (f"{name[index]}[{':, ' * axis}{i}]" for i in (a, b))
                        seen = f"{one} holds what belongs into {other}, and {other} what belongs into {one}."
                        advice = "Look at which value is stored in which of them."
                        return self.fault("outputs exchanged", seen, advice, case=bad[0].case)
        return None

    def inputs_exchanged(self, bad: list[Run]) -> Verdict | None:
        """If in each of these cases the results are those of the exercise's answer with two inputs exchanged."""
        if self.exercise.answer is None:
            return None
        inputs = [i for i in range(len(bad[0].case.args)) if i not in bad[0].case.expected]
        for a, b in itertools.combinations(inputs, 2):
            if all(self.as_if_exchanged(run, a, b) for run in bad):
                one, other = self.source.parameters[a], self.source.parameters[b]
                seen = f"{self.seen(bad)} It is what comes out with {one} and {other} exchanged."
                return self.fault("inputs exchanged", seen, case=bad[0].case)
        return None

    def as_if_exchanged(self, run: Run, a: int, b: int) -> bool:
        """Whether the exercise's answer gives these results if arguments a and b change places."""
        args = list(run.case.args)
        if not _alike(args[a], args[b]):
            return False
        args[a], args[b] = args[b], args[a]
        other = attempt(self.exercise.answer, dataclasses.replace(run.case, args=tuple(args)))
        if other.error is not None or other.hazards:
            return False
        for index in run.case.expected:
            got = other.results[index]
            if got.dtype.kind in "fc" and not np.isfinite(got).any():
                return False
            allowed = run.case.tolerance.get(index, 0) + ROUNDING * np.nan_to_num(np.abs(wide(got)), posinf=0.0)
            if wrong_elements(run.results[index], got, allowed if got.dtype.kind in "fc" else 0).any():
                return False
        return True

    def axes_exchanged(self, bad: list[Run]) -> Verdict | None:
        """If in each of these cases an output holds its result with two axes exchanged, as far as both reach."""
        for index, output in bad[0].case.expected.items():
            for axes in itertools.combinations(range(np.ndim(output)), 2):
                found = [_turned(run, index, *axes) for run in bad]
                if False in found or True not in found:
                    continue
                run, name = bad[found.index(True)], self.source.parameters[index]
                one, other = (list("abcdefgh"[: np.ndim(output)]) for _ in axes)
                one[axes[0]], one[axes[1]], other[axes[0]], other[axes[1]] = "i", "j", "j", "i"
                seen = f"{name}[{', '.join(one)}] holds what belongs into {name}[{', '.join(other)}]."
                return self.fault("axes exchanged", seen, case=run.case)
        return None

    def seen(self, bad: list[Run]) -> str:
        right = [run for run in self.runs if not run.wrong and not run.hazards]
        index, wrong = next(iter(bad[0].wrong.items()))
        return self.first_wrong(bad[0], index, wrong) + (f" It is right with {_names(right)}." if right else "")

    def sprung(self, bad: list[Run]) -> Verdict | None:
        """The verdict of the first trap that foresees the results of these cases."""
        for trap in self.exercise.traps:
            if self.springs(trap, bad):
                return self.fault(trap.mistake, self.seen(bad), trap.sentence, case=bad[0].case)
        return None

    def first_wrong(self, run: Run, index: int, wrong: np.ndarray) -> str:
        got, expected = run.results[index], np.asarray(run.case.expected[index])
        if self.on_host:
            return f"it returns {_show(got)}, not {_allowed(expected, run.case.tolerance.get(index, 0))}."
        name, count = self.source.parameters[index], np.count_nonzero(wrong)
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        where = f"{name}[{', '.join(map(str, at))}]"
        if (bits(got) == bits(run.case.args[index]))[wrong].all():
            if _only_element_was_written(run, wrong):
                return f"{where} is {_show(got[at])}, as before the launch, and should be {_show(expected[at])}."
            if wrong.size == 1:
                return f"{where} is never written."
            return (
                f"{count:,} of the {wrong.size:,} elements of {name} {_are(count)} never written, the first is {where}."
            )
        if (bits(got[at]) == bits(run.case.args[index][at])).all():
            said = f"{where} is as before the launch, and should be {_show(expected[at])}"
            return f"{said}; {count:,} of the {wrong.size:,} elements of {name} {_are(count)} wrong."
        many = f"; {count:,} of the {wrong.size:,} elements of {name} {_are(count)} wrong" if wrong.size > 1 else ""
        return f"{where} is {_show(got[at])}, and should be {_show(expected[at])}{many}."

    def springs(self, trap: Trap, bad: list[Run]) -> bool:
        """Whether each wrong result is the one that this trap leads to."""
        foretold = False
        for run in bad:
            foreseen = trap.wrong(*(x.copy() if isinstance(x, np.ndarray) else x for x in run.case.args))
            for index in run.wrong:
                if index not in foreseen:
                    return False
                result, allowed = run.results[index], run.case.tolerance.get(index, 0)
                fixed = ~np.isnan(wide(foreseen[index]))
                if isinstance(result, np.ndarray) and result.dtype.kind in "fc":
                    # The tolerance is that of the right result, which may be far smaller.
                    allowed = allowed + ROUNDING * np.nan_to_num(np.abs(wide(foreseen[index])), posinf=0.0)
                differs = wrong_elements(result, foreseen[index], allowed) & fixed
                # Of what is wrong, not of all: a trap that foretells the right elements foretells nothing.
                if differs.sum() > min(differs.size, np.sum(run.wrong[index])) // 100:
                    return False
                foretold |= bool(fixed.any())
        return foretold

    # -- counters

    def waste(self) -> Verdict | None:
        run = max(self.runs, key=lambda run: run.case.size)
        found = Waste(self.exercise, self.answer, self.source, run).found()
        if found is None:
            return None
        return self.fault(found.mistake, found.seen, found.sentence, case=run.case, line=found.line)


# ---------------------------------------------------------------------------------------------------------------- cases


def _blocks(case: Case) -> int:
    return math.prod(extent(case.grid))


def _exact(case: Case) -> bool:
    """Whether each thread has an element, or a column, of an input and of an output: none is left over."""
    if len(extent(case.grid)) > 1 or len(extent(case.block)) > 1:
        return False
    threads = math.prod(extent(case.grid)) * math.prod(extent(case.block))
    full = {
        i in case.expected
        for i, arg in enumerate(case.args)
        if isinstance(arg, np.ndarray) and threads in (arg.size, *arg.shape)
    }
    return full == {True, False}


def _two_dimensional(case: Case) -> bool:
    """Whether a launch has two axes, and an output more than one element: only then their order matters."""
    several = all(np.size(output) > 1 for output in case.expected.values())
    return len(extent(case.grid)) == 2 and len(extent(case.block)) == 2 and several


def _first_block_is_right(case: Case, wrong: np.ndarray) -> bool:
    """Whether the share of the first block is right, as far as it is clear; one number is the work of all blocks."""
    if wrong.size == 1 or len(extent(case.grid)) > 1:
        return wrong.size == 1 or not wrong.flat[0]
    blocks, threads = _blocks(case), math.prod(extent(case.block))
    share = (max(1, min(n // blocks, threads)) for n in (wrong.size, wrong.shape[-1]))  # of all, or of each row
    return not wrong.reshape(-1)[: next(share)].any() or not wrong[..., : next(share)].any()


def _needed(case: Case) -> int:
    """How many of the blocks have something to do: one, if no array has more elements than a block has threads."""
    blocks = _blocks(case)
    return min(blocks, -(-case.largest // math.prod(extent(case.block)))) if len(extent(case.grid)) == 1 else blocks


def _fills(case: Case) -> bool:
    """Whether the largest array is a whole number of blocks long."""
    return case.largest % math.prod(extent(case.block)) == 0


def _axes_exchanged(run: Run) -> bool:
    """Whether those elements were left out that the grid does not reach with x along the rows."""
    threads = [blocks * each for blocks, each in zip(extent(run.case.grid), extent(run.case.block), strict=False)]
    for index, wrong in run.wrong.items():
        if len(threads) != 2 or wrong.ndim < 2 or threads[0] < wrong.shape[1] or threads[1] < wrong.shape[0]:
            return False
        rows, columns = np.ogrid[: wrong.shape[0], : wrong.shape[1]]
        beyond = (rows >= threads[0]) | (columns >= threads[1])
        if wrong[~beyond].any() or not wrong[beyond].any():
            return False
        if (bits(run.results[index]) != bits(run.case.args[index]))[beyond].any():
            return False
    return True


def _sizes(case: Case) -> set[int]:
    """Extents of the arrays of a case, and its whole numbers."""
    numbers = {int(arg) for arg in case.args if isinstance(arg, int | np.integer)}
    return numbers | {size for x in case.arrays for size in (*x.shape, x.size)}


def _alike(a: typing.Any, b: typing.Any) -> bool:
    """Whether two arguments may be taken for each other."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.shape == b.shape and a.dtype == b.dtype
    return type(a) is type(b)


def _holds(run: Run, a: int, other: Run, b: int, axis: int = 0, exchanged: tuple[int, ...] = ()) -> bool:
    """Whether output a holds what is expected in output b, if these two places along an axis are exchanged."""
    got, expected, allowed = run.results[a], np.asarray(other.case.expected[b]), other.case.tolerance.get(b, 0)
    if got.shape != expected.shape:
        return False
    if exchanged:
        order = np.arange(got.shape[axis])
        order[list(exchanged)] = order[list(exchanged[::-1])]
        got = np.take(got, order, axis)
    return not wrong_elements(got, expected, allowed).any()


def _turned(run: Run, index: int, i: int, j: int) -> bool | None:
    """Whether an output holds its expected result with axes i and j exchanged; None if that cannot be told."""
    got, expected = run.results[index], np.asarray(run.case.expected[index])
    shape, allowed = expected.shape, np.broadcast_to(run.case.tolerance.get(index, 0), expected.shape)
    side = min(shape[i], shape[j])
    if side < 2:
        return None
    if got.ndim == 2 and got.flags.c_contiguous and shape[0] != shape[1]:  # by an index that was computed
        flat = got.reshape(shape[1], shape[0]).T
        if not wrong_elements(flat, expected, allowed).any():
            return True
    part = tuple(slice(side) if axis in (i, j) else slice(None) for axis in range(got.ndim))
    if wrong_elements(got[part].swapaxes(i, j), expected[part], allowed[part]).any():
        return False
    apart = wrong_elements(expected[part].swapaxes(i, j), expected[part], allowed[part])
    return True if np.count_nonzero(apart) >= FEW else None


def _nearly(run: Run) -> bool:
    """Whether each result is off by little: a thousand times what is allowed, and not a hundredth of the largest."""
    for index, wrong in run.wrong.items():
        got = wide(np.asarray(run.results[index])[wrong])
        expected = wide(run.case.expected[index])
        largest = np.abs(expected[np.isfinite(expected)]).max(initial=0.0)
        allowed = np.broadcast_to(run.case.tolerance.get(index, 0), wrong.shape)[wrong]
        error = np.abs(got - expected[wrong])
        if not (np.isfinite(error) & (error <= 1000 * allowed) & (error <= 0.01 * largest)).all():
            return False
    return True


# ---------------------------------------------------------------------------------------------------------------- words


def _said(hazard: simt.Hazard) -> str:
    return re.sub(r"^line \d+: ", "", hazard.message)


def _next_to_the_last(said: str) -> bool:
    """Whether the sentence tells of an index that is one more than the last."""
    indices = [[int(i) for i in re.findall(r"\d+", part)] for part in re.findall(r"\[(.*?)\]", said)]
    return len(indices) == 2 and indices[0] == [i + 1 for i in indices[1]]


def _only_element_was_written(run: Run, wrong: np.ndarray) -> bool:
    """Whether the output has one number, and something was written: adding 0 leaves no other trace."""
    numbers = all(np.isfinite(run.case.args[index]).all() for index in run.wrong)
    written = run.counter("global_store_requests") + run.counter("atomic_requests")
    return wrong.size == 1 and numbers and bool(written)


def _sentence(text: str, mistake: str) -> str:
    """An author's advice as a sentence: without the mistake's name, with a capital and a full stop."""
    text = text.removeprefix(f"{mistake}: ").strip()
    if re.match(r"(a|[a-z]{2,})\b(?![.(\[=_])", text) and not text.startswith(("threadIdx", "cuda", "np")):
        text = text[0].upper() + text[1:]
    return text + "." * (bool(text) and text[-1] not in ".?!")


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _show(value: typing.Any) -> str:
    if not isinstance(value, np.ndarray | np.generic | int | float):
        return repr(value)
    array = np.asarray(value)
    if array.ndim:
        return np.array2string(array, precision=6, threshold=8)
    if array.dtype.kind == "c":
        return f"{array.real:.6g}{array.imag:+.6g}j"
    return f"{array.item():.9g}" if array.dtype.kind == "f" else str(array.item())


def _allowed(expected: np.ndarray, tolerance: typing.Any) -> str:
    """What an element may be: a range where more than rounding is allowed, as of counts."""
    reach = np.broadcast_to(tolerance, expected.shape)
    ranges = (reach >= 0.5) & (reach > 0.1 * np.abs(expected))
    if expected.ndim != 1 or not ranges.any():
        return _show(expected)
    elements = zip(expected, reach, ranges, strict=True)
    parts = (f"{x - by:.6g} to {x + by:.6g}" if several else f"{x:.6g}" for x, by, several in elements)
    return f"[{', '.join(parts)}]"


def _names(runs: list[Run]) -> str:
    names = [run.case.name for run in runs]
    return ("; " if any("," in name for name in names) else ", ").join(names)
