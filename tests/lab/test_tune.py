"""Autotuning: what is refused, counted, pruned, verified, timed and recorded, on a subject whose times are made up."""

import dataclasses
import json
import math
import multiprocessing
import signal
import typing

import numpy as np
import pytest

from pmpp import cuda, simt
from pmpp.lab.draw import landscape
from pmpp.lab.measure import sources, stale, timing, tune
from pmpp.lab.measure.record import RecordError
from pmpp.lab.measure.tune import __main__ as command
from pmpp.lab.measure.tune import store, together
from pmpp.runtime import device
from pmpp.runtime import tuned as runtime_tuned
from pmpp.runtime.rung import Cost

SOURCE = "pmpp/kernels/autotuning/transposes.py"  # any: the sources of this subject are taken to be those of that one
H200 = tune.gpu_of("H200")
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="pretends to be a GPU")


class Copying(typing.NamedTuple):
    """``threads`` of a block copy ``each`` elements; ``skip`` leaves out the last, and is wrong."""

    threads: int
    each: int
    skip: int


@cuda.jit
def copy_kernel(x, out, each, skip):
    first = cuda.grid(1)
    for i in range(each):
        at = first + i * cuda.gridsize(1)
        if at < x.size - skip:
            out[at] = x[at]


def run(c, x, out):
    copy_kernel[max(1, -(-x.size // (c.threads * c.each))), c.threads](x, out, c.each, c.skip)
    return out


def make(shape, seed):
    return (device.to_device(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)),)


def output(shape):
    return device.to_device(np.zeros(shape, np.float32))


def verify(result, x):
    return float(abs(result - x).max()), 0.0


def probes(c, shape):
    size = c.threads * c.each
    return [tune.Probe((size,), -(-shape[0] // size))]


def at_most_256(c):
    """Blocks of at most 256 threads."""
    return c.threads <= 256


def subject(restrictions=(at_most_256,), **changed):
    space = tune.Space(Copying, {"threads": (32, 256, 1024), "each": (1, 4), "skip": (0, 1)}, restrictions)
    made = tune.Subject(
        name="copies",
        source=SOURCE,
        dtype="float32",
        space=space,
        make=make,
        output=output,
        run=run,
        verify=verify,
        shapes=((37,), (256,)),
        probes=probes,
        registers=lambda c: None,
        cost=lambda shape: Cost(0, 8 * shape[0]),
        shape_class=lambda shape: str(tune.near_power(shape[0])),
        measured=((4096,),),
    )
    return dataclasses.replace(made, **changed)


class MadeUpTimer:
    """Seconds for each call by what it launches: the test's numbers, and nobody's clock."""

    MOST_DELAY, l2_bytes = 0.05, 1000

    def __init__(self, seconds):
        self.seconds, self.sampled = seconds, 0

    def synchronize(self):
        pass

    def sample(self, calls, *, before=None, flush=False, delay=0.0):
        launched = []
        with simt.record("run") as reports:
            for call in calls:
                call()
        launched = [math.prod(one.block) for one in reports]
        self.sampled += len(calls)
        return timing.Sample(self.seconds(launched[0]), 1e-6, True)


GPU = {"name": "NVIDIA Made Up", "l2_bytes": 1000}
RUN = {"date": "2026-11-23T12:00:00Z", "revision": "test"}


@pytest.fixture(scope="module")
def tuned():
    """A landscape with times: blocks of 32 threads are measured to be the fastest, whatever is predicted."""
    return tune.tune(subject(), (4096,), gpu="H200", factor=1e6, timer=MadeUpTimer(lambda threads: threads * 1e-6))


# ------------------------------------------------------------------------------------------------------------ the space


def test_a_refused_configuration_says_by_which_and_why():
    threads = tune.at_most("threads", lambda c: c.threads, 512)
    space = subject([threads, at_most_256]).space
    refusal = space.refusal(Copying(1024, 1, 0))
    assert refusal == (Copying(1024, 1, 0), "threads", "1,024 threads, at most 512")
    assert subject().space.refusal(Copying(1024, 1, 0))[1:] == ("at_most_256", "Blocks of at most 256 threads.")
    assert space.refusal(Copying(256, 1, 0)) is None
    assert len(space) == 12 == len(space.allowed()) + len(space.refused())


def test_restrictions_that_refuse_everything_say_so_by_name():
    def never(c):
        return False

    with pytest.raises(
        tune.NothingAllowed, match=r"all 12 configurations of Copying are refused: never refuses 8, at_m"
    ):
        tune.tune(subject([at_most_256, never]), (64,))


@pytest.mark.parametrize(
    ("values", "restrictions", "said"),
    [
        ({"threads": (), "each": (1,), "skip": (0,)}, (), "at least for 'threads' of Copying, had none"),
        ({"threads": (1,), "each": (1,)}, (), "at least for 'skip'"),
        ({"threads": (1,), "each": (1,), "skip": (0,), "pad": (1,)}, (), "was also for 'pad'"),
        ({"threads": (1, 1), "each": (1,), "skip": (0,)}, (), "'threads' must differ"),
        ({"threads": (1,), "each": (1,), "skip": (0,)}, (at_most_256,) * 2, "different names, had at_most_256"),
    ],
)
def test_a_faulty_space_is_refused(values, restrictions, said):
    with pytest.raises(ValueError, match=said):
        tune.Space(Copying, values, restrictions)


# ------------------------------------------------------------------------------------------------ counts and prediction


def work(blocks=1320, threads=256, **counters):
    names = dict.fromkeys(simt.METRICS, 0)
    return tune.Work(blocks, threads, 0, 32, {**names, **counters})


def test_the_longest_part_is_the_prediction():
    cost = Cost(0, 9_600_000)
    assert tune.roofline_time(work(), cost, H200).part == "memory"
    assert tune.roofline_time(work(), cost, H200).seconds == pytest.approx(2e-6)
    conflicts = tune.roofline_time(work(shared_load_wavefronts=132 * 1980 * 3), cost, H200)
    assert (conflicts.part, conflicts.seconds) == ("shared", pytest.approx(3e-6))
    arithmetic = tune.roofline_time(work(flops=2 * 128 * 132 * 1980 * 5), cost, H200)
    assert arithmetic.parts["arithmetic"] == pytest.approx(5e-6)


def test_the_busiest_multiprocessor_counts():
    one, more = (tune.roofline_time(work(blocks, flops=10**10), Cost(0, 1), H200) for blocks in (132, 133))
    assert more.parts["arithmetic"] == pytest.approx(one.parts["arithmetic"] * 2 * 132 / 133)
    assert more.parts["memory"] == one.parts["memory"]


def test_each_barrier_is_a_wait_unless_other_blocks_are_resident():
    for threads, resident in ((1024, 2), (64, 32)):
        waiting = tune.roofline_time(work(132 * 64, threads, barriers=132 * 64 * 3), Cost(0, 1), H200).parts["waiting"]
        assert waiting == pytest.approx(64 / resident * 4 * 1000 / H200.clock)


def test_a_block_that_fits_nowhere_is_refused_by_the_model():
    with pytest.raises(ValueError, match="register"):
        tune.roofline_time(tune.Work(1, 1024, 0, 128, work().counters), Cost(0, 1), H200)
    found = tune.explore(subject([], registers=lambda c: 128 if c.threads == 1024 else 32), (1024,), gpu="H200")
    assert {row.configuration.threads for row in found.of("refused")} == {1024}
    assert all(row.why.startswith("roofline_time: ") for row in found.of("refused"))


def test_gpus_by_the_names_of_their_drivers():
    assert tune.gpu_of("NVIDIA H200") is H200
    assert tune.gpu_of("NVIDIA GeForce RTX 4090").name == "RTX 4090"
    assert tune.gpu_of("NVIDIA A100-SXM4-40GB").name == "A100 40GB"
    with pytest.raises(simt.LaunchError):
        tune.gpu_of("NVIDIA Made Up")


# ---------------------------------------------------------------------------------------------------------- the search


def test_what_is_wrong_never_wins_and_never_sets_the_bar():
    wrong_first = lambda w, cost, gpu: tune.Estimate(1e-6, "memory", {"memory": w.threads / 1e9})  # noqa: E731
    found = tune.explore(subject(), (4096,), factor=1, model=wrong_first)
    assert {row.configuration.skip for row in found.of("wrong")} <= {1}
    assert all(row.configuration.skip == 0 for row in found.of("verified"))
    assert found.guess.configuration.skip == 0
    reason = found.of("wrong")[0].why
    assert reason.startswith("shape (37,): off by nan")  # the last element was never written


@interpreter_only
def test_a_wrong_one_that_looks_fast_prunes_nothing_right(monkeypatch):
    looks = {0: 1e-3, 1: 1e-6}  # seconds by skip: the wrong ones are predicted at a thousandth
    monkeypatch.setattr(
        "pmpp.lab.measure.tune.search.predictions",
        lambda one, shape, gpu, model: {
            c: tune.Estimate(looks[c.skip], "memory", {"memory": looks[c.skip]}) for c in one.space.allowed()
        },
    )
    found = tune.explore(subject(), (4096,), factor=1.5)
    assert found.counts() == {"refused": 4, "wrong": 4, "verified": 4}


def test_what_is_predicted_to_be_slow_is_pruned_and_says_by_how_much():
    slow = lambda w, cost, gpu: tune.Estimate(w.threads * 1e-6, "memory", {"memory": w.threads * 1e-6})  # noqa: E731
    found = tune.explore(subject(), (4096,), factor=2, model=slow)
    assert {row.configuration.threads for row in found.of("verified")} == {32}
    assert {row.why for row in found.of("pruned")} == {"predicted at 8.00 x the best"}
    few = tune.explore(subject(), (4096,), factor=100, most=1, model=slow)
    assert few.counts()["verified"] == 1
    assert "1 are predicted to be faster" in {row.why for row in few.of("pruned")}


def test_the_cautious_rule_prunes_what_is_slower_at_best_than_another_at_worst():
    def model(w, cost, gpu):
        longest = {32: 4.0, 256: 6.0, 1024: 8.0}[w.threads] * 1e-6
        return tune.Estimate(longest, "memory", {"memory": longest, "waiting": 3e-6})

    found = tune.explore(subject([]), (4096,), factor=None, model=model)
    assert {row.configuration.threads for row in found.of("verified")} == {32, 256}  # at most 7 us, and at least 6
    assert {row.configuration.threads for row in found.of("pruned")} == {1024}
    assert {row.why for row in found.of("pruned")} == {"predicted at 2.00 x the best"}


@pytest.mark.parametrize(
    ("option", "said"), [({"factor": 0.9}, "factor"), ({"factor": math.nan}, "factor"), ({"most": 0}, "most")]
)
def test_bad_options_are_refused_by_name(option, said):
    with pytest.raises(ValueError, match=f"^{said} must be at least 1"):
        tune.explore(subject(), (64,), **option)


@interpreter_only
def test_nothing_is_timed_in_the_interpreter():
    found = tune.tune(subject(), (64,), gpu="H200")
    assert found.best is None
    assert found.device == ""
    assert not any(row.timing for row in found.rows)
    with pytest.raises(ValueError, match="has no times: only what was measured on a GPU is recorded"):
        tune.write([found], None, GPU, RUN)


@interpreter_only
def test_the_fastest_measured_wins_and_not_the_guess(tuned):
    assert tuned.best.configuration.threads == 32
    assert tuned.best.timing.median == pytest.approx(32e-6)
    assert tuned.device == "a timer of the caller"
    assert tuned.counts() == {"refused": 4, "wrong": 4, "timed": 4}
    assert "32" in tuned.table(3)


@interpreter_only
def test_what_is_right_on_small_shapes_and_wrong_on_the_timed_one_gets_no_time():
    def shy(c, x, out):
        return run(c._replace(skip=int(x.size > 1000 and c.threads == 32)), x, out)

    found = tune.tune(subject(run=shy), (4096,), factor=1e6, timer=MadeUpTimer(lambda threads: threads * 1e-6))
    assert found.best.configuration.threads == 256
    late = [row for row in found.of("wrong") if row.configuration.threads == 32 and row.configuration.skip == 0]
    assert late
    assert all(row.why.startswith("shape (4096,): the result is off by nan") for row in late)


def test_no_right_configuration_is_said():
    found = tune.explore(subject(verify=lambda result, x: (math.nan, 1.0)), (64,))
    with pytest.raises(RuntimeError, match="no configuration of copies was right"):
        _ = found.guess


# --------------------------------------------------------------------------------------------------- several processes


def faithful(name, tasks, seconds, lock, results):
    """What a process does that finds all its configurations right but one, with times made up of their numbers."""
    for number, (shape, configurations) in enumerate(tasks):
        for one in configurations:
            wrong = one.skip == 1
            time = timing.Timing(one.threads * shape[0] * 1e-9, 0.0, 1.0, 3, 1, True)
            status, why = ("wrong", "off by nan") if wrong else ("timed", "")
            results.put((number, tune.Row(one, status, why, None, None if wrong else time)))
    results.put(None)


def dying(name, tasks, seconds, lock, results):
    """A process that ends at once."""


def test_processes_deal_out_the_configurations_and_their_rows_are_put_together():
    shapes = [(64,), (4096,)]
    grounds = list(together.tune_together(subject(), shapes, 2, process=faithful, gpu="H200", factor=1e6))
    for shape, ground in zip(shapes, grounds, strict=True):
        assert ground.shape == shape
        assert ground.counts() == {"refused": 4, "wrong": 4, "timed": 4}
        assert ground.best.configuration.threads == 32
        assert all(row.estimate for row in ground.of("timed", "wrong"))  # what was predicted is kept


def test_a_search_that_is_stopped_has_the_shapes_that_were_complete():
    grounds = []
    shapes = [(64,), (256,), (4096,)]
    for ground in together.tune_together(
        subject(), shapes, 1, stop=lambda: len(grounds) == 2, process=faithful, gpu="H200", factor=1e6
    ):
        grounds.append(ground)
    assert [ground.shape for ground in grounds] == shapes[:2]
    assert multiprocessing.active_children() == []


def test_what_shares_a_compiled_kernel_is_dealt_to_one_process():
    configurations = subject([]).space.allowed()
    dealt = together.deal(subject(compiled=lambda c: c.threads), configurations, 8)
    assert [{one.threads for one in mine} for mine in dealt] == [{32}, {256}, {1024}]
    assert [len(mine) for mine in together.deal(subject(), configurations, 8)] == [2, 2, 2, 2, 1, 1, 1, 1]
    assert sorted(one for mine in dealt for one in mine) == sorted(configurations)


def test_a_process_that_ends_too_early_is_said():
    with pytest.raises(RuntimeError, match="1 of 1 processes ended before their work did"):
        list(together.tune_together(subject(), [(64,)], 1, process=dying, gpu="H200", factor=1e6))


@interpreter_only
def test_a_process_uses_the_gpu_in_its_turns_alone():
    """Verified once, timed for each shape: and never without the lock."""
    turns, rows = Turn(), []

    def guarded(c, x, out):
        assert turns.has
        return run(c, x, out)

    one, wrong = Copying(32, 1, 0), Copying(32, 1, 1)
    tasks = [((64,), [one, wrong]), ((4096,), [one])]
    timer = MadeUpTimer(lambda threads: threads * 1e-6)
    together.work(subject(run=guarded), tasks, 0.1, turns, timer, rows.append)
    assert rows.pop() is None
    assert [(number, row.configuration, row.status) for number, row in rows] == [
        (0, one, "timed"),
        (0, wrong, "wrong"),
        (1, one, "timed"),
    ]
    assert turns.taken == 4  # two are verified, and two shapes are timed


class Turn:
    has, taken = False, 0

    def __enter__(self):
        self.has, self.taken = True, self.taken + 1

    def __exit__(self, *_):
        self.has = False


# ---------------------------------------------------------------------------------------------------------- the record


@interpreter_only
def test_best_reads_what_was_written_for_its_class_and_dtype(tuned, tmp_path):
    one = tuned.subject
    path = tune.path_of(one, GPU["name"], tmp_path)
    assert path == tmp_path / "nvidia-made-up" / "tuned_copies.json"
    tune.write([tuned], path, GPU, RUN)
    choice = tune.best(one, (5000,), gpu=GPU["name"], folder=tmp_path)
    assert choice == (tuned.best.configuration, True, "measured on NVIDIA Made Up, 2026-11-23, with 4096")
    rows, why = tune.rows_of(one, (4096,), gpu=GPU["name"], folder=tmp_path)
    assert [row.status for row in rows] == [row.status for row in tuned.rows if row.status != "refused"]
    assert why == choice.why
    best = min((row for row in rows if row.timing), key=lambda row: row.timing.median)
    assert best.timing.median == pytest.approx(tuned.best.timing.median)
    kept = json.loads(path.read_text())
    assert (kept["classes"]["float32 4096"]["refused"], kept["classes"]["float32 4096"]["pruned"]) == (4, 0)
    times, why = runtime_tuned.read("tuned_copies.json", GPU["name"], tmp_path)  # as a plain function would
    assert times["float32"]["4096"].best == tuple(choice.configuration)
    assert (times["float32"]["4096"].shape, why) == ((4096,), "measured on NVIDIA Made Up, 2026-11-23")
    for other, said in (
        (one, "not tuned for float32 64 on"),
        (dataclasses.replace(one, dtype="float64"), "not tuned for float64 64 on"),
    ):
        choice = tune.best(other, (70,), gpu=GPU["name"], folder=tmp_path, guess=lambda shape: shape)
        assert (choice.configuration, choice.tuned) == ((70,), False)
        assert said in choice.why


@interpreter_only
def test_a_record_of_other_sources_is_not_used(tuned, tmp_path):
    one = tuned.subject
    path = tune.path_of(one, GPU["name"], tmp_path)
    tune.write([tuned], path, GPU, RUN)
    data = json.loads(path.read_text())
    assert SOURCE in data["about"]["sources"]
    assert data["about"]["measured_by"] == SOURCE  # `make stale` asks for this
    assert not any(name.startswith("pmpp/simt") for name in data["about"]["sources"])
    data["about"]["sources"][SOURCE] = "another"
    path.write_text(json.dumps(data))
    choice = tune.best(one, (4096,), gpu=GPU["name"], folder=tmp_path, guess=lambda shape: "a guess")
    assert (choice.configuration, choice.tuned) == ("a guess", False)
    assert choice.why == f"the record of NVIDIA Made Up is not used: changed since: {SOURCE}"
    assert tune.rows_of(one, (4096,), gpu=GPU["name"], folder=tmp_path) == ([], choice.why)


@interpreter_only
def test_make_stale_names_a_record_whose_sources_changed(tuned, tmp_path, monkeypatch):
    file = tmp_path / SOURCE
    file.parent.mkdir(parents=True)
    file.write_text("side = 32\n")
    monkeypatch.setattr(store, "_sources", lambda: sources.Sources(tmp_path))
    folder = tmp_path / "pmpp" / "recorded"
    tune.write([tuned], tune.path_of(tuned.subject, GPU["name"], folder), GPU, RUN)
    assert stale.stale(tmp_path) == {}
    file.write_text("side = 32  # a comment changes nothing\n")
    assert stale.stale(tmp_path) == {}
    file.write_text("side = 64\n")
    assert stale.stale(tmp_path) == {
        "pmpp/recorded/nvidia-made-up/tuned_copies.json": f"measured 2026-11-23; changed since: {SOURCE}"
    }


@interpreter_only
def test_classes_are_kept_unless_sources_changed(tuned, tmp_path):
    path = tune.path_of(tuned.subject, GPU["name"], tmp_path)
    small = dataclasses.replace(tuned, shape=(64,))
    tune.write([small], path, GPU, RUN)
    tune.write([tuned], path, GPU, {**RUN, "date": "2026-11-24T12:00:00Z"})
    data = json.loads(path.read_text())
    assert {key: block["date"][:10] for key, block in data["classes"].items()} == {
        "float32 64": "2026-11-23",
        "float32 4096": "2026-11-24",
    }
    data["about"]["sources"][SOURCE] = "another"
    path.write_text(json.dumps(data))
    tune.write([tuned], path, GPU, RUN)
    assert list(json.loads(path.read_text())["classes"]) == ["float32 4096"]
    with pytest.raises(RecordError, match="is of NVIDIA Made Up, but this machine has another"):
        tune.write([tuned], path, {"name": "another"}, RUN)


@interpreter_only
def test_a_broken_record_is_refused(tuned, tmp_path):
    path = tune.path_of(tuned.subject, GPU["name"], tmp_path)
    path.parent.mkdir()
    for text, said in (("{", "is not JSON"), ('{"schema": 99}', "schema is 99")):
        path.write_text(text)
        with pytest.raises(RecordError, match=said):
            tune.best(tuned.subject, (4096,), gpu=GPU["name"], folder=tmp_path)


def test_without_a_record_the_guess_is_the_rooflines(tmp_path):
    one = subject()
    choice = tune.best(one, (4096,), gpu="nvidia-h200", folder=tmp_path)
    assert choice.configuration == tune.explore(one, (4096,), gpu="H200", factor=1).guess.configuration
    assert (choice.configuration.skip, choice.tuned) == (0, False)
    assert choice.why == "copies was never tuned on nvidia-h200"
    assert tune.best(one, (4096,), gpu="a GPU of next year", folder=tmp_path).configuration.skip == 0


# ------------------------------------------------------------------------------------------ the command and the figures


@interpreter_only
def test_the_command_lists_and_says_that_nothing_was_timed(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(command, "subjects", lambda: {"copies": subject()})
    assert command.main([]) == 0
    assert capsys.readouterr().out == "copies       12 configurations, for 4096\n"
    assert command.main(["copies", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "copies, float32 4096: 4 refused" in said
    assert "Nothing was timed or recorded" in said
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SystemExit):
        command.main(["nothing"])


@interpreter_only
def test_on_a_gpu_the_command_records_after_each_shape(tuned, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(
        command,
        "subjects",
        lambda: {
            "copies": dataclasses.replace(tuned.subject, measured=((64,), (4096,)), options={"most": 9, "seconds": 0.1})
        },
    )
    monkeypatch.setattr(command, "_times", lambda: True)
    monkeypatch.setattr(command.environment, "describe_gpu", lambda: GPU)
    monkeypatch.setattr(command.environment, "describe_machine", lambda: RUN)

    def found(one, shape, **options):
        assert options == {"factor": 3.0, "most": 7, "seconds": 0.1}
        assert shape == (64,) or tune.path_of(one, GPU["name"], tmp_path).exists()
        return dataclasses.replace(tuned, shape=shape)

    monkeypatch.setattr(command, "tune", found)
    assert command.main(["copies", "--factor", "3", "--most", "7", "--out", str(tmp_path)]) == 0
    path = tmp_path / "nvidia-made-up" / "tuned_copies.json"
    said = capsys.readouterr().out
    assert said.count("32.0 us by (32, 1, 0), which is 1.00 x the guess") == 2
    assert said.count(f"recorded in {path}") == 1
    assert list(json.loads(path.read_text())["classes"]) == ["float32 64", "float32 4096"]
    assert (
        command.main(["copies", "--shape", "64", "--factor", "3", "--most", "7", "--out", str(tmp_path / "other")]) == 0
    )
    assert not (tmp_path / "other").exists()  # a shape of the caller's is no class that is kept


@interpreter_only
def test_the_command_stops_when_its_time_is_over_or_when_it_is_told_to(monkeypatch, capsys):
    monkeypatch.setattr(command, "subjects", lambda: {"copies": subject()})
    assert command.main(["copies", "--until", "0"]) == 0
    assert "copies was stopped: 0 of 1 shapes are complete\n" in capsys.readouterr().out
    before = signal.getsignal(signal.SIGTERM)
    with command._Stop(None) as stop:
        assert not stop()
        signal.raise_signal(signal.SIGTERM)
        assert stop()
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_subjects_are_found_and_depend_on_no_record():
    found = store.subjects()
    assert set(found) == {"fitted", "products", "transposes"}
    for one in found.values():
        paths = store.digests(one)
        assert one.source in paths
        assert not any(path.endswith(".json") for path in paths)  # or writing a record would make it stale


def test_the_ground_has_a_number_or_a_reason_at_each_place():
    space = subject([at_most_256]).space
    seconds = {c: c.threads * 1e-6 / c.each for c in space.allowed()}
    ax = landscape.ground(space, seconds, across="threads", down="each", title="copies").axes[0]
    written = {tuple(map(round, text.get_position())): text.get_text() for text in ax.texts}
    assert written == {
        (0, 0): "4.00 x", (1, 0): "32.00 x", (2, 0): "at most 256",
        (0, 1): "1.00 x", (1, 1): "8.00 x", (2, 1): "at most 256",
    }  # fmt: skip
    with pytest.raises(ValueError, match="across and down must be of threads, each, skip, was 'pad'"):
        landscape.ground(space, seconds, across="threads", down="pad", title="")
    with pytest.raises(ValueError, match="at least, had none"):
        landscape.ground(space, {}, across="threads", down="each", title="")


@interpreter_only
def test_times_against_predictions(tuned):
    ax = landscape.against(tuned.rows, title="copies").axes[0]
    points = sum(len(line.get_xdata()) for line in ax.lines) - 2  # without the diagonal
    assert points == 4
    assert any(text.get_text().startswith("fastest: Copying(threads=32") for text in ax.texts)
    with pytest.raises(ValueError, match="was timed, had none"):
        landscape.against(tune.explore(subject(), (64,)).rows, title="")


def test_gains_are_a_point_a_shape():
    ax = landscape.gains({"whole": [(1e6, 1.1), (1e7, 0.9)], "odd": [(1e6, 1.2)]}, title="copies", footer="x").axes[0]
    assert [list(line.get_ydata()) for line in ax.lines] == [[1.1, 0.9], [1.2], [1, 1]]
    with pytest.raises(ValueError, match="points must have one at least, had none"):
        landscape.gains({"whole": []}, title="")
