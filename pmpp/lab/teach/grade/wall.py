"""A wall that Linux keeps: what a process may read and write, whatever language its code is in.

Refusals made by Python, such as those of an audit hook, are undone by a patch of Python, by ctypes or by another
process. Landlock (Linux 5.13) is part of the kernel, needs no rights, and holds for the process and for all that it
starts. A rule allows what lies in a folder, and nothing can be forbidden inside an allowed folder. So the way from
``/`` to each hidden path is walked, and all that lies beside it is allowed.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Collection, Iterable, Iterator

__all__ = ["build", "version"]

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # system calls, with these numbers on every processor
NO_NEW_PRIVILEGES = 38  # of prctl
VERSION, BENEATH = 1, 1
WRITE_FILE, READ_FILE, TRUNCATE = 1 << 1, 1 << 2, 1 << 14
CHANGE_FOLDER = sum(1 << bit for bit in range(4, 13))  # make and remove entries of each kind
REFER = 1 << 13  # rename between folders
TCP = 0b11  # bind and connect
SCOPES = 0b11  # abstract sockets, and signals to other processes


def version() -> int:
    """The version of Landlock that this Linux has, or 0."""
    return max(0, _call(CREATE_RULESET, None, 0, VERSION)) if sys.platform == "linux" else 0


def build(hidden: Iterable[str], readable: Iterable[str], writable: Iterable[str], devices: Iterable[str] = ()) -> bool:
    """Build the wall around this process; it stays until the process ends.

    Args:
        hidden: files and folders that are not read. Other processes are hidden, too.
        readable: what is read nevertheless, inside of a hidden folder.
        writable: folders that are read and written. Nothing else is written but ``/dev/null``.
        devices: what is opened for writing and is no folder, such as ``/dev/nvidia0``.

    Returns whether there is a wall: not without Landlock.
    """
    known = version()
    if not known:
        return False
    change = WRITE_FILE | CHANGE_FOLDER | (REFER if known >= 2 else 0) | (TRUNCATE if known >= 3 else 0)
    about = struct.pack("=QQQ", READ_FILE | change, TCP if known >= 4 else 0, SCOPES if known >= 6 else 0)
    about = about[: 24 if known >= 6 else 16 if known >= 4 else 8]
    rules = _call(CREATE_RULESET, about, len(about), 0)
    if rules < 0:
        return False
    places = {os.path.realpath(path) for path in hidden}
    for path in [*_beside("/", places), *map(os.path.realpath, readable)]:
        _allow(rules, path, READ_FILE)
    for path in map(os.path.realpath, writable):
        _allow(rules, path, READ_FILE | change)
    for path in (os.devnull, *devices):
        _allow(rules, path, READ_FILE | WRITE_FILE)
    ctypes.CDLL(None).prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    built = _call(RESTRICT_SELF, rules, 0) == 0
    os.close(rules)
    return built


def _beside(folder: str, hidden: Collection[str]) -> Iterator[str]:
    """The entries of a folder that are not hidden, and of those folders in it that have hidden ones."""
    try:
        entries = list(os.scandir(folder))
    except OSError:  # what cannot be listed is not allowed
        return
    for entry in entries:
        other = folder == "/proc" and entry.name.isdigit() and entry.name != str(os.getpid())
        if entry.path in hidden or entry.is_symlink() or other:
            continue
        if entry.path == "/proc" or any(path.startswith(entry.path + os.sep) for path in hidden):
            yield from _beside(entry.path, hidden)
        else:
            yield entry.path


def _allow(rules: int, path: str, access: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # it is gone, or not for this user
        return
    _call(ADD_RULE, rules, BENEATH, struct.pack("=Qi", access, place), 0)
    os.close(place)


def _call(number: int, *arguments: object) -> int:
    kinds = [ctypes.c_char_p if isinstance(one, bytes) or one is None else ctypes.c_long for one in arguments]
    call = ctypes.CDLL(None).syscall
    call.restype = ctypes.c_long
    return int(call(ctypes.c_long(number), *(kind(one) for kind, one in zip(kinds, arguments, strict=True))))
