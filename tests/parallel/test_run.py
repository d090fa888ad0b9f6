"""Ranks as processes: however one of them ends, the others end, too, and the first failure is named."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from pmpp.parallel import run
from pmpp.runtime import device
from tests.parallel import endings, everything

pytestmark = [
    pytest.mark.native("processes"),
    pytest.mark.skipif(os.name == "nt", reason="ranks are processes of Unix here"),
]
HANG = 60  # seconds after which a test that waits gives up
PROGRAM = ["-m", "tests.parallel.endings"]
LINES = {name: number for number, name in enumerate(Path(endings.__file__).read_text("utf-8").splitlines(), 1)}


def line(text):
    """Where a line of the program stands, as messages name it."""
    (number,) = [number for name, number in LINES.items() if name.strip() == text]
    return re.escape(f"{os.path.relpath(endings.__file__)}:{number}")


def processes_of(output):
    """The numbers that the ranks have printed."""
    return [int(number) for pair in re.findall(r"processes (\d+) (\d+)", output) for number in pair]


def wait_until_gone(numbers):
    """Wait until none of these processes runs. A zombie has ended: whoever inherits it has not looked yet."""
    until = time.monotonic() + HANG
    while left := [number for number in numbers if runs(number)]:
        assert time.monotonic() < until, f"processes {left} are left"
        time.sleep(0.02)


def runs(number):
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


ALL_REDUCE = "group.all_reduce(np.ones(4, np.float32)).copy_to_host()"
RAISED = line('raise ValueError("no more of this")')
KILLED = r"rank 1 was killed by signal 9 \(SIGKILL\); it "
WAITED = r"had last been in \w+" if device.on_gpu() else "waited in all_reduce"  # a kernel waits there, not the rank
ENDINGS = {
    "raise": (1, rf"rank 1 raised ValueError at {RAISED}\n"),
    "sys.exit": (3, rf"rank 1 called sys.exit\(3\) at {line('sys.exit(3)')}\n"),
    "slow sys.exit": (3, rf"rank 1 called sys.exit\(3\) at {line('sys.exit(3)')}\n"),
    "os._exit": (4, r"rank 1 exited with status 4 by os._exit or the like; it had last been in barrier at "),
    "SIGKILL": (137, KILLED + "had last been in barrier at "),
    "SIGKILL before it joins": (137, KILLED + "had not c"),
    "SIGKILL while it waits": (
        137,
        KILLED + WAITED + r"\b.*\nThe others were ended: rank 0 had last been in barrier",
    ),
    "SIGSEGV": (139, r"rank 1 was killed by signal 11 \(SIGSEGV\); it had last been in barrier at "),
    "return": (
        1,
        r"RankEnded: rank 1 has ended \(it returned after barrier at .*\), and rank 0 waits for it in all_reduce at "
        + line(ALL_REDUCE),
    ),
    "other call": (
        1,
        rf"Mismatch: ranks disagree: .*rank 1 calls broadcast\(root=0\) at {line('group.broadcast(np.zeros(3))')}",
    ),
}


@pytest.mark.parametrize("how", ENDINGS)
def test_a_rank_that_fails_ends_all_and_is_named(how, capsys):
    status, message = ENDINGS[how]
    assert run.main(["-n", "2", *PROGRAM, how]) == status
    out, err = capsys.readouterr()
    assert re.search(message, err), err
    assert err.count("pmpp.parallel.run:") == 1
    assert err.count("Traceback") <= 1
    if how == "SIGSEGV":
        assert re.search(rf'\[1\]   File ".*endings.py", line {LINES["        ctypes.string_at(1)"]} in end', err)
    numbers = processes_of(out)
    assert len(numbers) == 4 or how == "SIGKILL before it joins"  # rank 0 may not have begun by then
    wait_until_gone(numbers)


def test_what_ranks_do_when_the_time_is_over(tmp_path, capsys, monkeypatch):
    """Rank 1 does not heed SIGTERM, either."""
    monkeypatch.setattr(run, "GRACE", 0.1)
    starter = run.Starter(2, [*PROGRAM, "for ever, and deaf", str(tmp_path / "there")], None)

    def expire():
        until = time.monotonic() + HANG
        while not ((tmp_path / "there").exists() and 0 in starter.exchange.board.waiting):
            if time.monotonic() > until:
                break
            time.sleep(0.02)
        starter.until = 0.0

    thread = threading.Thread(target=expire)
    thread.start()
    assert starter.carry_out() == run.TIMEOUT
    thread.join()
    out, err = capsys.readouterr()
    assert re.search(
        rf"time is over \(--timeout\): rank 0 waited in all_reduce at {line(ALL_REDUCE)}; rank 1 ran at .*endings.py",
        err,
    )
    wait_until_gone(processes_of(out))


def test_no_process_is_left_when_the_starter_is_stopped(tmp_path):
    """By Ctrl-C, by SIGTERM, and by SIGKILL, after which it can do nothing itself."""
    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGKILL
    starters = [
        subprocess.Popen(
            [sys.executable, "-m", "pmpp.parallel.run", "-n", "2", *PROGRAM, "for ever", str(tmp_path / str(number))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )
        for number in numbers
    ]
    for number, starter in zip(numbers, starters, strict=True):
        found = processes_of(starter.stdout.readline() + starter.stdout.readline())
        assert len(found) == 4
        starter.send_signal(number)
        out, err = starter.communicate(timeout=HANG)
        assert starter.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[number]
        said = {signal.SIGINT: "stopped by Ctrl-C", signal.SIGTERM: "stopped by signal 15", signal.SIGKILL: ""}
        assert said[number] in err
        assert not out
        wait_until_gone(found)
    until = time.monotonic() + HANG
    while list(tmp_path.glob("pmpp-*")):
        assert time.monotonic() < until, "the folder of a socket is left"
        time.sleep(0.02)


def test_processes_get_the_same_bits_as_ranks_in_one_process(tmp_path, capsys):

    assert run.main(["-n", "3", "--report", "-m", "tests.parallel.everything", str(tmp_path)]) == 0
    wanted = everything.by_ranks(3)
    for rank in range(3):
        assert json.loads((tmp_path / f"{rank}.json").read_text("utf-8")) == wanted[rank]
    out, err = capsys.readouterr()
    assert not err
    assert sorted(re.findall(r"^\[\d\] .*", out, re.MULTILINE)) == [
        f"[{rank}] rank {rank} of 3, simulated" for rank in range(3)
    ]
    assert re.search(r"^3 ranks: [\d,]+ messages, [\d,]+ bytes$", out, re.MULTILINE)


def test_the_example_prints_what_its_docstring_says(tmp_path, capsys):
    text = run.__doc__
    example = text[text.index("    import numpy") : text.index("    $ python")]
    script = tmp_path / "total.py"
    script.write_text("\n".join(row[4:] for row in example.splitlines()), encoding="utf-8")
    assert run.main(["-n", "4", str(script)]) == 0
    wanted = [row.strip() for row in text[text.index("    $ python") :].splitlines() if row.startswith("    [")]
    assert len(wanted) == 4
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(wanted)


@pytest.mark.parametrize(
    "arguments, wrong",
    [
        (["-n", "0", __file__], "-n must be at least 1, was 0"),
        (["-n", "2", "--timeout", "0", __file__], "--timeout must be a number of seconds greater than 0, was 0"),
        (["-n", "2", "--timeout", "nan", __file__], "--timeout must be a number of seconds greater than 0, was nan"),
        (["-n", "2", "no_such_script.py"], "there is no file no_such_script.py"),
        (["-n", "2", "--backend", "gloo", __file__], "choose from .*simulated.*mpi.*nccl.*peer"),
        (["-n", "2", "--backend", "nccl", "--report", __file__], "--report needs the backend simulated: nccl does not"),
        (["-n", "2", "--backend", "mpi", "--report", __file__], "--report needs the backend simulated"),
    ],
)
def test_wrong_options_are_named(arguments, wrong, capsys):
    with pytest.raises(SystemExit) as end:
        run.main(arguments)
    assert end.value.code == 2
    assert re.search(wrong, capsys.readouterr().err)


def test_how_a_process_ended():
    assert run.end_of(-signal.SIGTERM) == "was killed by signal 15 (SIGTERM)"
    assert run.end_of(-1000) == "was killed by signal 1000"
    assert (run.status_of(3), run.status_of(-signal.SIGTERM)) == (3, 143)


@pytest.mark.parametrize(
    "printed, line",
    [
        (b"[1,2]<stdout>:x", b"[2] x"),  # Open MPI 4
        (b"[2]<stdout>: x", b"[2] x"),  # Open MPI 5
        (b"[2] x", b"[2] x"),  # MPICH
        (b"x [1] y", b"x [1] y"),
        (b"[1,0]<stdout>:\x1b[0m[1,1]<stdout>:x", b"[0] \x1b[0m\n[1] x"),  # rank 0 has ended without an end of line
        (b"[1,0]<stderr>:o[1,0]<stderr>:ne\n", b"[0] one\n"),
        (b"abort[1,3]<stderr>:x\n", b"abort\n[3] x\n"),
    ],
)
def test_a_line_of_mpirun_has_its_rank_in_front(printed, line):
    assert run.labelled(printed) == line
