"""What chapters import is there in a browser, too: each can be begun. `make test-browser` runs this in Pyodide."""

import ast

import pytest

from pmpp.lab.publish import notebooks


@pytest.mark.parametrize("path", notebooks.sources(), ids=lambda path: path.stem)
def test_a_chapter_finds_what_it_imports(path):
    found = [
        node
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert found
    exec(compile(ast.Module(found, type_ignores=[]), str(path), "exec"), {})
