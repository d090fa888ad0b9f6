"""All lanes of a warp must make the same exchange: no call that exchanges values is copied into several branches.

See `tests.support.bytecode`: Python's compiler does that from 3.12 on, and the GPU then waits forever.
"""

import ast
import dis
import functools
import inspect
from pathlib import Path

import numpy as np

from pmpp import cuda
from tests.support.bytecode import copied_calls

ROOT = Path(__file__).parents[2]
FILES = sorted([*ROOT.glob("pmpp/**/*.py"), *ROOT.glob("notebooks/source/*.py"), *ROOT.glob("tests/kernels/**/*.py")])


def first_line(node):
    """That of its first decorator, if it has one."""
    return min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])


def may_import(node):
    """What a module imports counts: a method of an imported name is called by other code than one of another name."""
    return not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Assign | ast.Expr)


def has_kernel(node, lines):
    """Whether ``cuda.jit`` stands in a statement, in whichever way: a function in a branch is one, too."""
    return any("cuda.jit" in line for line in lines[first_line(node) - 1 : node.end_lineno])


def codes_of(path):
    """The code of every function under ``@cuda.jit`` in a file."""
    text = path.read_text(encoding="utf-8")
    if "cuda.jit" not in text:
        return []
    tree, lines = ast.parse(text), text.splitlines()
    # Other functions of the file have no part in the code of these, and to compile and walk all of it takes seconds.
    tree.body = [node for node in tree.body if may_import(node) or has_kernel(node, lines)]
    jitted = {
        first_line(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and any("cuda.jit" in ast.unparse(one) for one in node.decorator_list)
    }
    pending, found = [compile(tree, str(path), "exec")], []
    while pending:
        code = pending.pop()
        pending += [constant for constant in code.co_consts if inspect.iscode(constant)]
        if code.co_firstlineno in jitted:
            found.append(code)
    return found


@functools.cache
def called_by(code):
    """The names that a function's code looks up by themselves: an attribute may be called like a function elsewhere."""
    return {one.argval for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}


def collectives(codes):
    """Those that exchange values or wait: by a name with ``sync`` in it, or by a call of another that does.

    An ``_async`` copy is none: each lane makes its own, and waits for nobody.
    """

    def exchanges(code):
        return any("sync" in name and not name.endswith("_async") for name in code.co_names)

    names, before = {code.co_name for code in codes if exchanges(code)}, 0
    while len(names) > before:
        before = len(names)
        # The first condition follows from the second, and is found faster.
        names |= {code.co_name for code in codes if not names.isdisjoint(code.co_names) and names & called_by(code)}
    # Not by its own name: a function that exchanges nothing may be called like one that does, in another file.
    return [code for code in codes if exchanges(code) or names & called_by(code)]


def test_no_exchange_is_copied_into_branches():
    codes = [code for path in FILES for code in codes_of(path)]
    found = collectives(codes)
    assert len(found) > 100
    copied = [f"{Path(code.co_filename).relative_to(ROOT)}:{line}" for code in found for line in copied_calls(code)]
    assert copied == []


@cuda.jit(device=True)
def exchange(value):
    return cuda.shfl_xor_sync(0xFFFFFFFF, value, 1)


def in_a_return(value, here):
    return exchange(value if here else np.float32(0))


def after_two_branches(value, here):
    if here:
        seen = value
    else:
        seen = np.float32(0)
    return exchange(seen)


def named_before(value, here):
    seen = value if here else np.float32(0)
    return exchange(seen)


def in_one_branch(value, here):
    if here:
        value = np.float32(0)
    return exchange(value)


def test_what_python_copies_is_seen():
    assert len(copied_calls(in_a_return)) == len(copied_calls(after_two_branches)) == 1
    assert copied_calls(named_before) == copied_calls(in_one_branch) == []
