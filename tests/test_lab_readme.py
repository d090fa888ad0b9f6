"""The README's table and picture: what is in them, and when they count as stale."""

import pytest

from pmpp.lab import readme, record
from pmpp.lab.room import rooms

TEXT = f"# Title\n\n{readme.BEGIN}\n\nold\n\n{readme.END}\n\nThe rest.\n"


@pytest.fixture
def files(tmp_path):
    page, picture = tmp_path / "README.md", tmp_path / "roofline.svg"
    page.write_text(TEXT)
    return page, picture


def needs_a_record():
    if not record.available():
        pytest.skip("nothing is recorded yet: make bench")


def test_the_table_has_every_room():
    lines = readme.table(None).splitlines()
    assert len(lines) == 2 + len(rooms())
    for line, room in zip(lines[2:], rooms(), strict=True):
        name = room.__name__.rpartition(".")[2]
        assert line.startswith(f"| [{name}](pmpp/{name}.py) | [")
        assert line.endswith("| not measured | not measured |")
        assert len(line.split(" | ")) == 6


def test_tests_are_counted_without_running_them(tmp_path):
    path = tmp_path / "test_x.py"
    path.write_text("def test_a(): ...\nclass TestB:\n    def test_b(self): ...\ndef helper(): ...\n")
    assert readme.count_tests(path) == 2
    assert readme.count_tests(tmp_path / "none.py") == 0


def test_writing_and_checking(files, capsys):
    needs_a_record()
    page, picture = files
    assert readme.main(["--check"], *files) == 1
    assert capsys.readouterr().err == "stale: README.md, roofline.svg. Run: make readme\n"
    assert page.read_text() == TEXT
    assert readme.main([], *files) == 0
    assert page.read_text().startswith("# Title\n\n")
    assert page.read_text().endswith("\n\nThe rest.\n")
    assert readme.main(["--check"], *files) == 0
    before = page.read_bytes(), picture.read_bytes()
    picture.unlink()
    assert readme.main([], *files) == 0
    assert (page.read_bytes(), picture.read_bytes()) == before, "the same record gives the same bytes"
    picture.write_text(picture.read_text().replace("sha256 ", "sha256 0"))
    assert readme.main(["--check"], *files) == 1


def test_measured_rooms_have_numbers():
    needs_a_record()
    newest = record.load(record.available()[0])
    for line, room in zip(readme.table(newest).splitlines()[2:], rooms(), strict=False):
        if room.__name__.rpartition(".")[2] in newest.rooms():
            assert "not measured" not in line


@pytest.mark.parametrize("text", ["# Title\n", f"{readme.END}\n{readme.BEGIN}\n", f"{readme.BEGIN}\n"])
def test_lost_markers_are_an_error(files, text):
    files[0].write_text(text)
    with pytest.raises(SystemExit, match=r"README\.md has lost its markers"):
        readme.main([], *files)
    assert files[0].read_text() == text
