"""A student's process: runs the cells of a notebook, and tells the grader what `check` and `predict` were given.

The grader starts it with the student's edition of the package (`pmpp.lab.teach.grade.edition`) on its path::

    python player.py IN OUT          two file descriptors: the job comes as JSON, and reports go as lines of JSON

Whatever a report says is a claim of the student's process. It earns nothing: answers are judged elsewhere.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import inspect
import json
import linecache
import os
import re
import resource
import sys
import traceback
import types
import typing

__all__ = ["WITHHELD", "check", "told"]

WITHHELD_SAID = "the shipped answer is not there while a notebook is graded, and earns nothing"
LONGEST = 400  # characters of a message


class _Withheld:
    """In the place of a shipped answer."""

    def __repr__(self) -> str:
        return f"<{WITHHELD_SAID}>"

    def __getattr__(self, name: str) -> typing.NoReturn:
        raise AttributeError(WITHHELD_SAID)


WITHHELD = _Withheld()
_state: dict[str, typing.Any] = {"cell": None, "cells": {}, "names": (), "report": lambda kind, **about: None}


def check(name: str, answer: typing.Any) -> typing.Any:
    """Take an answer over for grading. The verdict follows when it is graded, so what comes back says nothing."""
    from pmpp.lab.teach.exercise import Verdict
    from pmpp.lab.teach.grade import capture

    if name not in _state["names"]:
        raise ValueError(f"there is no exercise {name!r}")
    about: dict[str, typing.Any] = {}
    if answer is WITHHELD or getattr(answer, "py_func", None) is WITHHELD:
        about["refused"] = WITHHELD_SAID
    else:
        try:
            about["nodes"] = capture.taken(answer, _state["cells"])
        except capture.NotTakenError as error:
            about["refused"] = str(error)
    _state["report"]("check", name=name, **about)
    return Verdict(name, True, "", "taken over for grading")


def told(predict: typing.Callable) -> typing.Callable:
    """`predict`, which also tells the grader what it said."""

    def predict_and_tell(guess: typing.Any, truth: typing.Any, **options: typing.Any) -> typing.Any:
        found = predict(guess, truth, **options)
        filled = guess is not None and not (isinstance(guess, dict) and all(one is None for one in guess.values()))
        text = _short(repr(guess)) if filled else ""
        said = {"guess": text, "right": found.right, "headline": found.headline, "said": found.said if filled else ""}
        _state["report"]("predict", filled=filled, **said)
        return found

    predict_and_tell.__doc__, predict_and_tell.__wrapped__ = predict.__doc__, predict  # type: ignore[attr-defined]
    return predict_and_tell


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


# ------------------------------------------------------------------------------------------------------------- cells


class _Shell:
    """What magic lines are sent to. It runs what they time, and leaves out all else."""

    def __init__(self, names: dict) -> None:
        self.user_ns = names

    def run_line_magic(self, name: str, line: str, *rest: object) -> typing.Any:
        timed = re.sub(r"^(\s*-[a-zA-Z]\s*\S*)*\s*", "", line) if name in ("timeit", "prun") else line
        return run(timed, "", self.user_ns) if name in ("time", "timeit", "prun") and timed.strip() else None

    def run_cell_magic(self, name: str, line: str, body: str) -> None:
        if name in ("time", "timeit", "prun", "capture"):
            run(body, "", self.user_ns)

    def system(self, command: str) -> None:
        """Nothing: a command line is no part of an answer."""

    def getoutput(self, command: str) -> list[str]:
        return []

    def __getattr__(self, name: str) -> typing.Callable:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **options: None


def run(text: str, file: str, names: dict) -> None:
    """Run the source of a cell. The file's name stands for the cell; without one it belongs to the present cell."""
    if not file:
        file = f"{_state['file']}, inner {len(_state['cells'])}"
    try:
        tree = ast.parse(text)
    except SyntaxError:
        text = plain(text)  # a magic line, or a mistake: then this raises it again
        tree = ast.parse(text, file)
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    _state["cells"][file] = _state["cell"]
    code = compile(tree, file, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    if code.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(code, names))
    else:
        exec(code, names)


def plain(text: str) -> str:
    """A cell with magic lines as Python."""
    try:
        from IPython.core.inputtransformer2 import TransformerManager
    except ImportError:  # without the extra 'lab': what begins with % or ! is left out
        return re.sub(r"(?m)^(\s*)(%time )?([%!].*)?", lambda line: line[1] + ("pass" if line[3] else ""), text)
    return TransformerManager().transform_cell(text)


def _where(error: BaseException) -> str:
    """The kind of an error, what it says, and the line of the cell."""
    at = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == _state["file"]]
    if isinstance(error, SyntaxError) and error.filename == _state["file"]:
        at = [error.lineno]
    line = f" (line {at[-1]})" if at and at[-1] else ""
    said = (str(error) if not isinstance(error, SyntaxError) else error.msg).strip().partition("\n")[0]
    return _short(f"{type(error).__name__}: {said}".rstrip(": ")) + line


# ----------------------------------------------------------------------------------------------------- what is refused

REFUSED = ("os.exec", "os.fork", "os.forkpty", "os.kill", "os.killpg", "os.posix_spawn", "os.spawn", "os.startfile",
           "os.system", "pty.spawn", "resource.prlimit", "resource.setrlimit", "signal.pthread_kill", "socket.bind",
           "socket.connect", "socket.getaddrinfo", "subprocess.Popen")  # fmt: skip


def watch(hidden: list[str], folder: str, edition: str) -> None:
    """Refuse, from now on, other processes, the network, files that are hidden, and to write elsewhere."""
    places = {os.path.realpath(path) for path in hidden}
    roots = tuple(path + os.sep for path in places)
    own, shown = os.path.realpath(folder) + os.sep, os.path.realpath(edition) + os.sep
    realpath, system = os.path.realpath, REFUSED
    changes = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod",
               "os.chown", "shutil.rmtree", "shutil.move")  # fmt: skip
    looks = ("open", "os.listdir", "os.scandir", "os.chdir", *changes)

    def hook(event: str, arguments: tuple) -> None:
        if event in system:
            raise PermissionError(f"{event} is not allowed while a notebook is graded")
        if event not in looks or not arguments or not isinstance(arguments[0], str | bytes | os.PathLike):
            return
        mode, flags = (arguments[1], arguments[2]) if event == "open" and len(arguments) > 2 else ("", 0)
        written = event in changes or (isinstance(mode, str) and any(sign in mode for sign in "wax+"))
        written = written or bool(isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        both = arguments[:2] if event in changes else arguments[:1]  # a change may have a second path, the new one
        for path in (os.fsdecode(one) for one in both if isinstance(one, str | bytes | os.PathLike)):
            real = realpath(path)
            if (real in places or real.startswith(roots)) and not (real + os.sep).startswith((own, shown)):
                raise PermissionError("this file or folder is not readable while a notebook is graded")
            if written and not real.startswith(own) and real != "/dev/null":
                raise PermissionError(f"{path} is outside of the folder of the notebook, where nothing is written")

    sys.addaudithook(hook)


# ---------------------------------------------------------------------------------------------------------------- main


def limit(memory: int | None, seconds: float) -> None:
    """Set the limits of this process. That of the CPU is for a case in which nobody is left to kill it."""
    most = {resource.RLIMIT_CORE: 0, resource.RLIMIT_CPU: int(seconds) + 60, resource.RLIMIT_FSIZE: 100_000_000}
    if memory is not None and sys.platform != "darwin":  # which refuses it
        most[resource.RLIMIT_AS] = memory
    for what, value in most.items():
        _, hard = resource.getrlimit(what)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (value, value))


def main(inward: int, outward: int) -> None:
    with os.fdopen(inward, encoding="utf-8") as file:
        job = json.load(file)
    os.set_inheritable(outward, False)
    limit(job["memory"], job["seconds"])
    sys.path[:] = [path for path in sys.path if path == job["edition"] or not os.path.isdir(os.path.join(path, "pmpp"))]

    def report(kind: str, **about: typing.Any) -> None:
        line = json.dumps({"kind": kind, "cell": _state["cell"], **about}) + "\n"
        data = line.encode()
        while data:
            data = data[os.write(outward, data) :]

    # The package imports this module by its name: both are one.
    sys.modules["pmpp.lab.teach.grade.player"] = sys.modules["__main__"]
    module = types.ModuleType("__main__")
    names = vars(module)
    sys.modules["__main__"] = module
    import pmpp.lab.teach.exercise
    import pmpp.lab.teach.grade.capture  # noqa: F401
    from pmpp.lab.teach.grade import wall

    shell = _Shell(names)
    builtins.get_ipython = lambda: shell  # type: ignore[attr-defined]
    builtins.display = print  # type: ignore[attr-defined]
    _state["report"], _state["names"] = report, job["names"]
    wall.build(job["hidden"], [job["edition"]], [job["folder"]])
    watch(job["hidden"], job["folder"], job["edition"])
    report("ready")
    for cell in job["cells"]:
        number = cell["number"]
        if number in job["skipped"]:
            continue
        _state["cell"], _state["file"] = number, f"code cell {number}"
        report("begins")
        try:
            run(cell["source"], _state["file"], names)
        except BaseException as error:  # of the student's code: SystemExit and KeyboardInterrupt, too
            try:
                said = _where(error)
            except BaseException:  # an error that cannot even be printed
                said = "an error whose message raises another"
            sys.stdout = sys.__stdout__
            report("failed", said=said, error=type(error).__name__)
        else:
            report("ended")
    _state["cell"] = None
    report("done")
    sys.__stdout__.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
