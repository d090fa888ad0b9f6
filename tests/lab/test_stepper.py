"""Launches to step through: the data against steps written out by hand, and the page that shows them."""

import dataclasses
import html.parser
import json
import re
import shutil

import numpy as np
import pytest

from pmpp import cuda, simt
from pmpp.lab.draw import palette, stepper
from pmpp.lab.draw.stepper import spread, step
from pmpp.lab.draw.stepping import shown
from pmpp.lab.teach.exercise import check, exercise
from tests.lab.test_palette import MARKS, nearest

LANES = tuple(range(32))


def line_of(kernel, text):
    """The line of a kernel's file on which this text stands, for the first time."""
    code = getattr(kernel, "py_func", kernel).__code__
    with open(code.co_filename, encoding="utf-8") as file:
        lines = file.read().split("\n")[code.co_firstlineno - 1 :]
    return code.co_firstlineno + next(k for k, line in enumerate(lines) if text in line)


def floats(n):
    return np.arange(n, dtype=np.float32)


@cuda.jit
def halves(x, out):
    i = cuda.grid(1)
    if i % 2 == 0:
        out[i] = x[i]
    else:
        out[i] = -x[i]
    k = 0
    while k < i % 3:
        k += 1


@cuda.jit
def guarded(x):
    i = cuda.grid(1)
    if i >= x.size:
        return
    x[i] = 1


@cuda.jit
def meet(x, out):
    tile = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    cuda.syncthreads()
    out[t] = tile[63 - t]


@cuda.jit
def no_barrier(x, out):
    tile = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    out[t] = tile[63 - t]


@cuda.jit
def block_sum(x, out):
    part = cuda.shared.array(8, np.float32)
    t = cuda.threadIdx.x
    part[t] = x[t]
    s = 4
    while s > 0:
        cuda.syncthreads()
        if t < s:
            part[t] += part[t + s]
        s //= 2
    if t == 0:
        out[0] = part[0]


@cuda.jit
def lost(values, bins):
    i = cuda.grid(1)
    bins[values[i]] += 1


@cuda.jit(device=True)
def above(a, i):
    return a[i] + 1


@cuda.jit
def calls(x, out):
    i = cuda.grid(1)
    out[i] = (above(x, i)
              + x[i])  # fmt: skip


@cuda.jit
def asks(x, out):
    i = cuda.grid(1)
    while x[i] < 2:
        x[i] += 1
    if x[i + 1] > 5:
        out[i] = 1


@cuda.jit
def turned(x, out):
    j, i = cuda.grid(2)
    out[j, i] = x[i, j]


@cuda.jit
def counted(total):
    cuda.atomic.add(total, 0, 1)
    total[0] = 3


@cuda.jit
def cleared(x, total):
    i = cuda.grid(1)
    if i == 0:
        total[0] = 0
    cuda.atomic.add(total, 0, x[i])


@cuda.jit
def odd_source(x):
    i = cuda.grid(1)
    if (x[i] < 1) & (i > 0):  # "</script><b>&amp;" '<!--'
        x[i] = 2


@cuda.jit
def nothing(x):
    pass


@cuda.jit
def scattered(x, where, out):
    part = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    v = x[t]
    for k in range(66):
        v = v * np.float32(1.0001) + x[where[k, t]]
        part[where[k, t]] = v
    out[t] = part[t]


# ---------------------------------------------------------------------------------------------------------- the data


def test_a_divergent_branch_and_a_loop():
    x, out = floats(32), np.zeros(32, np.float32)
    steps = step(halves, 1, 32, (x, out)).steps
    even, odd = LANES[::2], LANES[1::2]
    assert [one.number for one in steps] == list(range(len(steps)))
    assert [one.text for one in steps[:5]] == [
        "i = cuda.grid(1)",
        "if i % 2 == 0:",
        "out[i] = x[i]",
        "out[i] = -x[i]",
        "k = 0",
    ]
    assert [one.line for one in steps[:2]] == [line_of(halves, "i = cuda.grid(1)"), line_of(halves, "if i % 2")]
    assert [one.active[0, 0] for one in steps[:5]] == [LANES, LANES, even, odd, LANES]
    assert [one.taken for one in steps[:5]] == [None, {(0, 0): even}, None, None, None]
    loads, stores = steps[2].touches
    assert (loads.kind, loads.array, loads.space, loads.lanes, loads.elements) == ("load", "x", "global", even, even)
    assert (stores.kind, stores.array, stores.lanes, stores.elements) == ("store", "out", even, even)
    assert steps[2].changes == {("out", None): {i: float(i) for i in even if i}}  # out[0] was 0
    assert steps[3].changes == {("out", None): {i: -float(i) for i in odd}}
    tests = [one for one in steps if one.text.startswith("while")]
    assert [len(one.active[0, 0]) for one in tests] == [32, 21, 10]
    assert [len(one.taken[0, 0]) for one in tests] == [21, 10, 0]
    assert not any(one.waiting or one.returned or one.hazards for one in steps)


def test_threads_that_return():
    steps = step(guarded, 2, 32, (np.zeros(40, np.int32),)).steps
    assert [one.text for one in steps] == ["i = cuda.grid(1)", "if i >= x.size:", "return", "x[i] = 1"]
    assert steps[2].active == {(1, 0): LANES[8:]}
    assert [one.returned for one in steps] == [{}, {}, {}, {(1, 0): LANES[8:]}]
    assert steps[3].active == {(0, 0): LANES, (1, 0): LANES[:8]}
    assert len(steps[3].changes["x", None]) == 40


def test_a_barrier_in_lockstep():
    steps = step(meet, 1, 64, (floats(64), np.zeros(64, np.float32))).steps
    both = {(0, 0): LANES, (0, 1): LANES}
    assert [one.text[:14] for one in steps[2:]] == ["tile[t] = x[t]", "cuda.syncthrea", "out[t] = tile["]
    assert [one.waiting for one in steps] == [{}, {}, {}, both, {}]
    assert steps[2].changes == {("tile", 0): {t: float(t) for t in range(64)}}


def test_a_barrier_warp_after_warp():
    """Warp 0 waits until warp 1 has come. Then warp 1 goes on and ends, and warp 0 after it."""
    steps = step(meet, 1, 64, (floats(64), np.zeros(64, np.float32)), schedule="warps").steps
    zero, one, both = {(0, 0): LANES}, {(0, 1): LANES}, {(0, 0): LANES, (0, 1): LANES}
    assert [each.active for each in steps] == [zero] * 4 + [one] * 5 + [zero]
    assert [each.waiting for each in steps] == [{}] * 3 + [zero] * 4 + [both] + [{}] * 2
    assert [each.returned for each in steps] == [{}] * 9 + [one]


def test_a_reduction_in_shared_memory():
    out = np.zeros(1, np.float32)
    steps = step(block_sum, 1, 8, (floats(8), out)).steps
    added = [one for one in steps if one.text.startswith("part[t] +=")]
    assert [one.active[0, 0] for one in added] == [LANES[:4], LANES[:2], LANES[:1]]
    assert [one.changes["part", 0] for one in added] == [{0: 4, 1: 6, 2: 8, 3: 10}, {0: 12, 1: 16}, {0: 28}]
    assert [[(t.kind, t.elements) for t in one.touches] for one in added[:1]] == [
        [("load", (0, 1, 2, 3)), ("load", (4, 5, 6, 7)), ("store", (0, 1, 2, 3))]
    ]
    assert steps[-1].changes == {("out", None): {0: 28}}
    assert out[0] == 28


def test_a_race_in_lockstep():
    made = step(no_barrier, 1, 64, (floats(64), np.zeros(64, np.float32)))
    (race,) = made.races
    write, read = line_of(no_barrier, "tile[t] = x[t]"), line_of(no_barrier, "out[t] = tile")
    assert (race.array, race.element) == ("tile", 63)
    assert race.first == (2, write, "store", 0, 63, 1, 31)
    assert race.second == (3, read, "load", 0, 0, 0, 0)
    assert made.steps[3].hazards == (race.message,)
    assert f"thread 63 of block 0 wrote on line {write}" in race.message


def test_a_race_warp_after_warp():
    """Warp 0 reads what nobody has written. Then warp 1 writes it, too late."""
    made = step(no_barrier, 1, 64, (floats(64), np.zeros(64, np.float32)), schedule="warps")
    write, read = line_of(no_barrier, "tile[t] = x[t]"), line_of(no_barrier, "out[t] = tile")
    late, early = made.races
    assert (late.element, late.first, late.second) == (
        32,
        (3, read, "load", 0, 31, 0, 31),
        (6, write, "store", 0, 32, 1, 0),
    )
    assert (early.element, early.first, early.second) == (
        31,
        (2, write, "store", 0, 31, 0, 31),
        (7, read, "load", 0, 32, 1, 0),
    )
    (unset,) = made.steps[3].hazards
    assert "that nothing has written" in unset


@pytest.mark.parametrize("schedule", [None, "warps", "shuffled"])
def test_every_race_has_two_accesses_to_one_element_and_they_are_those_that_the_message_names(schedule):
    x = np.zeros(64, np.int32)
    for kernel, grid, block, args in (
        (no_barrier, 1, 64, (floats(64), floats(64))),
        (lost, 2, 32, (x, np.zeros(4, np.int32))),
        (counted, 1, 64, (np.zeros(1, np.int32),)),
        (cleared, 1, 64, (np.ones(64, np.int32), np.zeros(1, np.int32))),
    ):
        made = step(kernel, grid, block, args, schedule=schedule)
        raced = [hazard.message for hazard in made.report.hazards if hazard.kind == "race"]
        assert raced
        assert [race.message for race in made.races] == raced
        for race in made.races:
            sides = [made.steps[end.moment] for end in (race.first, race.second)]
            for end, moment in zip((race.first, race.second), sides, strict=True):
                assert moment.line == end.line
                assert any(
                    touch.kind == end.kind and touch.array == race.array
                    and dict(zip(touch.lanes, touch.elements, strict=True)).get(end.lane) == race.element
                    for touch in moment.touches if touch.warp == (end.block, end.warp)
                )  # fmt: skip
            assert {race.first.kind, race.second.kind} & {"store"}
            if "in one statement" not in race.message:
                verb = {"load": "read", "store": "wrote", "atomic": "updated"}[race.first.kind]
                assert (
                    f"thread {race.first.thread} of block {race.first.block} {verb} on line {race.first.line}"
                    in race.message
                )
            assert f"thread {race.second.thread} of block {race.second.block} " in race.message


def test_a_race_between_two_views():
    whole = simt.cuda.to_device(floats(65))

    @simt.cuda.jit
    def shift(a, b):
        i = simt.cuda.grid(1)
        a[i] = b[i]

    (race,) = step(shift, 1, 64, (whole[:64], whole[1:])).races
    assert (race.array, race.element) == ("a", 1)  # which thread 0 has read as b[0]
    assert [(end.kind, end.thread) for end in (race.first, race.second)] == [("load", 0), ("store", 1)]


def test_a_race_on_an_array_that_is_not_shown():
    (race,) = step(lost, 2, 32, (np.zeros(64, np.int32), np.zeros(5000, np.int32))).races
    assert (race.array, race.element) == ("bins", None)
    assert {race.first.block, race.second.block} == {0, 1}


def test_a_statement_goes_on_after_a_call():
    """The load and the store of the caller's line come after the device function's, on a line that has two."""
    steps = step(calls, 1, 32, (floats(32), np.zeros(32, np.float32))).steps
    first = line_of(calls, "out[i] = (")
    assert [one.line for one in steps[1:]] == [first, line_of(above, "return a[i]"), first]
    assert [[t.kind for t in one.touches] for one in steps[1:]] == [[], ["load"], ["load", "store"]]


def test_what_a_test_reads_belongs_to_the_test():
    made = step(asks, 1, 4, (floats(4), np.zeros(4, np.float32)))
    tests = [one for one in made.steps if one.taken is not None]
    assert [one.text.split()[0] for one in tests] == ["while"] * 3 + ["if"]
    assert [[t.kind for t in one.touches] for one in tests] == [["load"]] * 4
    assert [one.number for one in made.steps if one.hazards] == [tests[-1].number]  # x[4]: not at the step before
    assert "but valid indices are 0 to 3" in tests[-1].hazards[0]


def test_indices_of_two_axes():
    steps = step(turned, 1, (4, 2), (floats(8).reshape(2, 4), np.zeros((4, 2), np.float32))).steps
    load, store = steps[1].touches
    assert load.elements == tuple((i, j) for i in range(2) for j in range(4))
    assert store.elements == tuple((j, i) for i in range(2) for j in range(4))
    assert steps[1].changes["out", None][3, 1] == 7


def test_the_launch_is_a_real_one():
    x, out = floats(64), np.zeros(64, np.float32)
    report = step(meet, 1, 64, (x, out)).report
    np.testing.assert_array_equal(out, x[::-1])
    assert report.counters["barriers"] == simt.profile(meet, 1, 64, (x, out)).counters["barriers"] == 1


# -------------------------------------------------------------------------------------------------- a Verdict's case


@cuda.jit
def saxpy_without_guard(a, x, y, out):
    i = cuda.grid(1)
    out[i] = a * x[i] + y[i]


def test_the_case_of_a_verdict():
    verdict = check("vector_add/saxpy", saxpy_without_guard)
    assert not verdict
    before = [x.copy() for x in verdict.inputs[1:]]
    made = step(saxpy_without_guard, verdict)
    assert made.report.block[0] == verdict.launch[1]
    assert any("valid indices are" in said for one in made.steps for said in one.hazards)
    for one, two in zip(before, verdict.inputs[1:], strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_verdict_leads_to_its_launch():
    verdict = check("vector_add/saxpy", saxpy_without_guard)
    assert "<code>step(saxpy_without_guard, _)</code>" in verdict._repr_html_()
    right = check("vector_add/saxpy", exercise("vector_add/saxpy").answer)
    large = dataclasses.replace(verdict, launch=(5, *verdict.launch[1:]))
    for other in (right, large):
        assert "step(" not in other._repr_html_()
    with pytest.raises(simt.TraceError, match="at most 4 blocks"):
        step(saxpy_without_guard, large)


def test_a_verdict_without_a_case():
    answer = exercise("vector_add/saxpy").answer
    with pytest.raises(ValueError, match="vector_add/saxpy: this Verdict has no launch to step through"):
        step(answer, check("vector_add/saxpy", answer))
    with pytest.raises(TypeError, match="with a Verdict, step\\(\\) takes no block"):
        step(answer, check("vector_add/saxpy", answer), 32)


# -------------------------------------------------------------------------------------------------------- its limits


@pytest.mark.parametrize(
    ("grid", "block", "says"),
    [
        (5, 32, "at most 4 blocks and 1,024 threads in all; this one of guarded has 5 x 32 threads"),
        (2, 1024, "this one of guarded has 2 x 1,024 threads"),
        ((2, 2), (32, 16), "this one of guarded has 4 x 512 threads"),
    ],
)
def test_large_launches_are_refused(grid, block, says):
    with pytest.raises(simt.TraceError, match=says):
        step(guarded, grid, block, (np.zeros(8, np.int32),))


def test_long_launches_are_refused():
    @cuda.jit
    def long(x):
        for _ in range(x[0]):
            x[1] = 0

    with pytest.raises(simt.TraceError, match=r"at most 1,000 steps; this one of long takes 1,001: give it less input"):
        step(long, 1, 1, (np.array([500, 0]),))
    assert len(step(long, 1, 1, (np.array([499, 0]),)).steps) == 999


def test_a_kernel_without_statements_is_refused():
    with pytest.raises(simt.TraceError, match="nothing has no statement to step through"):
        step(nothing, 1, 1, (floats(1),))


# ----------------------------------------------------------------------------------------------------------- the page


class Page(html.parser.HTMLParser):
    """Tags that open and close in order, and the texts of scripts, styles and cells."""

    EMPTY = ("br", "meta", "input")

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.attributes, self.texts = [], [], [], {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.EMPTY:
            self.open.append(tag)
        self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.texts[self.open[-1]][-1] += data


def made(name, **options):
    arguments = {
        "race": (no_barrier, 1, 64, (floats(64), np.zeros(64, np.float32))),
        "odd": (odd_source, 1, 32, (floats(32),)),
        "matrix": (turned, (2, 1), (4, 2), (floats(16).reshape(2, 8), np.zeros((8, 2), np.float32))),
    }
    return step(*arguments[name], **options)


PAGES = ["race", "odd", "matrix"]


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_well_formed_and_asks_nobody(name):
    text = made(name)._repr_html_()
    page = Page(text)
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & set(page.tags)
    assert not {"src", "href", "srcset", "action", "onclick", "onload"} & {key for key, _ in page.attributes}
    assert not re.search(r"https?:|//[a-z]+\.|url\(|@import|fetch\(|XMLHttpRequest|WebSocket|\bimport\b|eval\(", text)
    data, script = page.texts["script"]
    assert json.loads(data)["steps"]
    assert script.startswith("\n// Makes what can be stepped")


@pytest.mark.parametrize("name", PAGES)
def test_without_scripts_it_is_a_table_of_all_steps(name):
    one = made(name)
    page = Page(one._repr_html_())
    assert page.tags.count("tr") == len(one.steps) + 1
    assert page.texts["code"] == [moment.text for moment in one.steps]
    assert ("open", None) in page.attributes  # a script closes it


def test_source_text_is_no_markup():
    one = made("odd")
    text = one._repr_html_()
    assert text.count("</script>") == 2
    assert "<b>&amp;" not in text
    assert "&quot;&lt;/script&gt;&lt;b&gt;&amp;amp;&quot;" in text
    assert "<!--" not in text
    assert any(line.endswith("""# "</script><b>&amp;" '<!--'\n""") for line in Page(text).texts["span"])


def test_the_page_says_where_it_ran_and_shows_both_sides_of_a_race():
    page = Page(made("race", schedule="warps")._repr_html_())
    text = " ".join(t for texts in page.texts.values() for t in texts)
    assert "no_barrier: grid 1, block 64, in the interpreter, warp after warp: 8 steps" in text
    read, write = line_of(no_barrier, "out[t] = tile"), line_of(no_barrier, "tile[t] = x[t]")
    assert f"Step 4, line {read}: thread 31 reads tile[32]" in page.texts["span"]
    assert f"Step 7, line {write}: thread 32 writes tile[32]" in page.texts["span"]
    assert ("data-go", "3") in page.attributes


def test_the_data_is_that_of_the_steps():
    """What the script replays, replayed here: masks, memory and races come out as in `.steps`."""
    one = made("race", schedule="warps")
    data = json.loads(Page(one._repr_html_()).texts["script"][0])
    holds, memory = {}, [_words(start) for _, _, _, start, _ in data["arrays"]]
    names = [label.partition(":")[0] for label, *_ in data["arrays"]]
    assert [names[k] for k in data["order"]] == ["tile", "out", "x"]
    for moment, (line, states, touches, changes) in zip(one.steps, data["steps"], strict=True):
        holds |= {row: masks for row, *masks in states}
        for row, (active, taken, waiting, returned) in holds.items():
            warp = 0, row
            for mask, lanes in ((active, moment.active), (waiting, moment.waiting), (returned, moment.returned)):
                assert _lanes(mask) == lanes.get(warp, ())
            assert taken is None
        assert line == moment.line
        for place, elements, values in changes:
            for element, value in zip(_numbers(elements), _words(values), strict=True):
                memory[place][element] = value
                assert value == shown(moment.changes[names[place], 0 if names[place] == "tile" else None][element])
        assert [(kind, names[place], _numbers(e)) for kind, place, _, _, e, _ in touches] == [
            (t.kind[0], t.array, list(t.elements)) for t in moment.touches
        ]
    assert memory[names.index("tile")] == [str(t) for t in range(64)]
    ((place, element, first, second), _) = data["races"]
    assert (names[place], element, first, second) == ("tile", 32, [3, 0, 31], [6, 1, 0])


def _numbers(text):
    found = []
    for part in filter(None, text.split(",")):
        first, step, count = (*map(int, part.split(":")), 0, 1)[:3]
        found += [first + k * step for k in range(count)]
    return found


def _words(text):
    return [word for part in text.split(",") for word, _, n in [part.partition("*")] for _ in range(int(n or 1))]


def _lanes(mask):
    return tuple(lane for lane in LANES if mask >> lane & 1)


@pytest.mark.parametrize("numbers", [[], [5], [5, 6], [5, 7, 9], [1, 1, 1, 1], [9, 6, 3, 1, 2], [0, 4, 5, 6, 20]])
def test_lists_in_few_characters(numbers):
    assert _numbers(spread(numbers)) == numbers


def test_200_steps_of_64_threads_stay_small():
    """Random values to random places: nothing in it can be said in fewer characters."""
    random = np.random.default_rng(1)
    where = np.array([random.permutation(64) for _ in range(66)])
    x = random.random(64, np.float32)
    one = step(scattered, 1, 64, (x, where, np.zeros(64, np.float32)))
    assert len(one.steps) >= 200
    assert one.report.trace.contents.omitted == ["where"]
    assert "Not shown, with more than 2,048 elements or with none: where." in one._repr_html_()
    assert len(one._repr_html_()) < 300_000


@pytest.mark.parametrize("name", PAGES)
def test_it_is_the_same_every_time(name):
    one, two = made(name), made(name)
    assert one._repr_html_() == two._repr_html_()
    assert repr(one) == repr(two) == f"<Stepper of {str(one).splitlines()[0]}>"
    assert "0x" not in repr(one)


def test_as_text():
    lines = str(made("race")).splitlines()
    assert lines[0] == "no_barrier: grid 1, block 64, in the interpreter, all warps in lockstep: 4 steps"
    assert lines[3].endswith(
        "Every thread. Reads x[0 to 63]. Writes tile[0 to 63]. This is one side of a race: see step 4."
    )


def test_threads_that_remain_are_not_listed():
    lines = str(step(guarded, 2, 32, (np.zeros(40, np.int32),))).splitlines()
    assert "Every thread at a test. These go on inside: block 1, warp 0, lanes 8 to 31." in lines[2]
    assert lines[4].endswith(
        "All remaining threads. Writes x[0 to 39]. Has left the kernel: block 1, warp 0, lanes 8 to 31."
    )


def test_a_file_of_its_own(tmp_path):
    one = made("race")
    one.save(tmp_path / "race.html")
    text = (tmp_path / "race.html").read_text(encoding="utf-8")
    assert text.startswith('<!doctype html>\n<html lang="en">')
    assert one._repr_html_() in text
    Page(text)


def test_lanes_can_be_told_apart():
    colours = [*stepper.LANES.values(), "white"]
    difference, *who = nearest(colours)
    assert difference >= MARKS, who
    marks = [(kind, mark) for kind, mark, _ in stepper._KEYS]
    assert len({mark for _, mark in marks}) == len(marks)  # and without colours
    assert palette.COLOURS[0] == stepper.LANES["active"]


# ------------------------------------------------------------------------------------------------------- in a browser

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the extra site-test")
    if CHROMIUM is None:
        pytest.skip("needs chromium or google-chrome")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


def test_stepping_in_a_browser(browser, tmp_path):
    """Two pages in one document, by buttons, arrows and the slider; what the lanes do is also said."""
    one = made("race", schedule="warps")
    (tmp_path / "page.html").write_text(f"<meta charset='utf-8'>{one._repr_html_() * 2}", encoding="utf-8")
    page = browser.new_page(viewport={"width": 390, "height": 800})
    asked, wrong = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text))
    page.goto((tmp_path / "page.html").as_uri())
    first = page.locator(".pmpp-step").first
    now = first.locator(".ps-now")
    assert now.inner_text().startswith("Step 1 of 8")
    assert not first.locator("details.ps-steps").evaluate("node => node.open")
    first.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert now.inner_text().startswith("Step 4 of 8")
    assert page.locator(".ps-now").nth(1).inner_text().startswith("Step 1 of 8")
    assert first.locator(".ps-warp b.a").count() == 32
    assert first.locator(".ps-warp b.race").count() == 1
    assert first.locator(".ps-memory").first.locator("td.l").all_inner_texts() == ["?"] * 32
    assert first.locator(".ps-warp").first.get_attribute("aria-label") == "warp 0: 32 work"
    assert first.locator(".ps-warp").nth(1).get_attribute("aria-label") == "warp 1: 32 rest"
    first.get_by_role("button", name="thread 32 writes tile[32]").click()
    assert now.inner_text().startswith("Step 7 of 8")
    assert first.locator("td.race").all_inner_texts() == ["32"]
    page.keyboard.press("End")
    assert now.inner_text().startswith("Step 8 of 8")
    page.keyboard.press("Home")
    first.get_by_role("slider").fill("4")
    assert now.inner_text().startswith("Step 5 of 8")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert (len(asked), wrong) == (1, [])
    page.close()
