"""The README's table and picture: what is in them, and when they count as stale."""

from pathlib import Path

import pytest

from pmpp.lab.measure import record
from pmpp.lab.publish import readme
from pmpp.lab.rooms import chapter_of, rooms, subject_of
from pmpp.runtime.rung import room_name

TEXT = f"# Title\n\n{readme.BEGIN}\n\nold\n\n{readme.END}\n\nThe rest.\n"


@pytest.fixture
def files(tmp_path):
    page, picture = tmp_path / "README.md", tmp_path / "roofline.svg"
    page.write_text(TEXT)
    return page, picture


CEILINGS = {"bandwidth": 4e12, "fma_f32": 60e12, "source": "a test", "empty_kernel": 2e-6, "launch": 15e-6}
RUN = {"date": "2026-11-21T10:00:00", "revision": "abc", "driver": "1", "cuda": "13.0", "cpu": "one"}
GPU = {"name": "NVIDIA Test", "l2_bytes": 1, "sms": 1, "memory_bytes": 1}


def entry(room, contender, kind, ms):
    common = {"family": room, "workload": "large", "sizes": {"n": 10**9}, "design": True, "cache": "cold"}
    timing = {"low_ms": ms, "high_ms": ms, "repeats": 9, "batch": 1, "settled": True, "method": "made up"}
    who = {"contender": contender, "kind": kind, "median_ms": ms}
    return common | timing | who | {"flops": 10**9, "bytes": 12 * 10**9}


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """A record in which the second rung of every room takes 4 ms where the roof is 3 and a library takes 5."""
    blocks = {}
    for room in rooms():
        name = room_name(room)
        slow, fast, *_ = (rung.name for rung in room.LADDER)
        entries = [entry(name, slow, "rung", 8.0), entry(name, fast, "rung", 4.0)]
        entries += [entry(name, "torch.one", "library", 5.0), entry(name, "cupy.one", "library", 6.0)]
        blocks[name] = {"subject": name, "sources": {}, "entries": entries}
    run = RUN | {"ceilings": CEILINGS, "versions": {"cupy": "14.2.0", "torch": "2.11.0", "numpy": "2.4.6"}}
    record.write(record.merge(None, GPU, run, blocks), tmp_path / "nvidia-test")
    monkeypatch.setattr(record, "RECORDED", tmp_path)
    return record.load(tmp_path / "nvidia-test")


def test_the_table_has_every_room():
    lines = readme.table(None).splitlines()
    assert len(lines) == 2 + len(rooms())
    for line, room in zip(lines[2:], rooms(), strict=True):
        name = room_name(room)
        assert line.startswith(f"| [{name}](pmpp/kernels/{subject_of(room)}/")
        assert line.endswith("| not measured | not measured |")
        assert len(line.split(" | ")) == 6


def test_chapters_without_a_room_are_named(tmp_path):
    (tmp_path / "source").mkdir()
    taught = [chapter_of(room) for room in rooms()]
    assert readme.without_room(tmp_path) == ""
    (tmp_path / "source" / f"{Path(taught[0]).stem}.py").write_text("# # 4. With a room\n")
    assert readme.without_room(tmp_path) == ""
    (tmp_path / "source/05_two.py").write_text("# %% [markdown]\n# # 5. Two words\n# # no title\n")
    (tmp_path / "source/01_bare.py").write_text("")
    links = "[01_bare](notebooks/01_bare.ipynb), [Two words](notebooks/05_two.ipynb)"
    assert readme.without_room(tmp_path) == f"Chapters without a room: {links}."


def test_tests_are_counted_without_running_them(tmp_path):
    path = tmp_path / "test_x.py"
    path.write_text("def test_a(): ...\nclass TestB:\n    def test_b(self): ...\ndef helper(): ...\n")
    assert readme.count_tests(path) == 2
    assert readme.count_tests(tmp_path / "none.py") == 0


def test_writing_and_checking(files, measured, capsys):
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


def test_measured_rooms_have_numbers(measured):
    lines = readme.table(measured).splitlines()
    for line, room in zip(lines[2:], rooms(), strict=False):
        assert line.endswith(f"| 75% (`{room.LADDER[1].name}`) | 1.25 × `torch.one` |")
    assert lines[-1] == (
        "Measured on one NVIDIA Test, 2026-11-21, with CuPy 14.2.0 and PyTorch 2.11.0 in the same run; "
        "`make bench` measures yours."
    )


def test_a_room_that_was_not_measured_says_so(measured):
    del measured._entries["vector_add"]
    row = next(line for line in readme.table(measured).splitlines() if line.startswith("| [vector_add]"))
    assert row.endswith("| not measured | not measured |")


@pytest.mark.parametrize("text", ["# Title\n", f"{readme.END}\n{readme.BEGIN}\n", f"{readme.BEGIN}\n"])
def test_lost_markers_are_an_error(files, text):
    files[0].write_text(text)
    with pytest.raises(SystemExit, match=r"README\.md has lost its markers"):
        readme.main([], *files)
    assert files[0].read_text() == text
