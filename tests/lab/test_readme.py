"""The README's table and picture: what is in them, and when they count as stale."""

import re
from pathlib import Path

import pytest

from pmpp.lab.measure import record, units
from pmpp.lab.publish import book, notebooks, readme
from pmpp.lab.rooms import chapter_of, rooms, subject_of
from pmpp.runtime.rung import room_name

(ROOMS, END_OF_ROOMS), (BOOK, END_OF_BOOK) = readme.MARKERS["rooms"], readme.MARKERS["book"]
TEXT = f"# Title\n\n{ROOMS}\n\nold\n\n{END_OF_ROOMS}\n\n{BOOK}\n{END_OF_BOOK}\n\nThe rest.\n"


@pytest.fixture
def files(tmp_path):
    page, picture = tmp_path / "README.md", tmp_path / "roofline.svg"
    page.write_text(TEXT, encoding="utf-8")
    return page, picture


CEILINGS = {"bandwidth": 4e12, "fma_f32": 60e12, "source": "a test", "empty_kernel": 2e-6, "launch": 15e-6}
RUN = {"date": "2026-11-21T10:00:00", "revision": "abc", "driver": "1", "cuda": "13.0", "cpu": "one"}
GPU = {"name": "NVIDIA Test", "l2_bytes": 1, "sms": 1, "memory_bytes": 1}


def entry(room, contender, kind, ms, workload="large", **more):
    common = {"family": room, "workload": workload, "sizes": {"n": 10**9}, "design": True, "cache": "cold"}
    timing = {"low_ms": ms, "high_ms": ms, "repeats": 9, "batch": 1, "settled": True, "method": "made up"}
    who = {"contender": contender, "kind": kind, "median_ms": ms}
    return common | timing | who | {"flops": 10**9, "bytes": 12 * 10**9} | more


FEW = rooms()[:8]  # as many as a roofline needs that is drawn in a second


def recorded(folder, gpu, entries_of, date=RUN["date"], among=None):
    """A record in which each room has ``entries_of(room, slow, fast)``, its first two rungs by name."""
    blocks = {}
    for room in among or rooms():
        slow, fast, *_ = (rung.name for rung in room.LADDER)
        blocks[room_name(room)] = {
            "subject": room_name(room), "sources": {}, "entries": entries_of(room_name(room), slow, fast),
        }  # fmt: skip
    run = RUN | {"date": date, "ceilings": CEILINGS}
    run |= {"versions": {"cupy": "14.2.0", "torch": "2.11.0", "numpy": "2.4.6"}}
    path = folder / record.slug(gpu)
    path.mkdir(parents=True)
    record.write(record.merge(None, GPU | {"name": gpu}, run, blocks), path / "rooms.json")
    return record.load(path)


def one_size(room, slow, fast):
    """The second rung takes 4 ms where the roof is 3 and a library takes 5."""
    return [
        entry(room, slow, "rung", 8.0),
        entry(room, fast, "rung", 4.0),
        entry(room, "torch.one", "library", 5.0),
        entry(room, "cupy.one", "library", 6.0),
    ]


def three_sizes(room, slow, fast):
    """At each another rung or another library is the best; an odd size, which is no design size, does not count."""
    return [
        *[*one_size(room, slow, fast), entry(room, slow, "rung", 6.0, "wide"), entry(room, fast, "rung", 7.0, "wide")],
        *[entry(room, "cupy.two", "library", 3.0, "wide"), entry(room, fast, "rung", 3.0, "tall")],
        *[entry(room, "torch.one", "library", 9.0, "tall"), entry(room, fast, "rung", 300.0, "odd", design=False)],
    ]


@pytest.fixture
def measured(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "RECORDED", tmp_path / "recorded")
    return recorded(tmp_path / "recorded", "NVIDIA Test", one_size)


def test_the_table_has_every_room():
    lines = readme.table(None).splitlines()
    assert len(lines) == 2 + len(rooms())
    for line, room in zip(lines[2:], rooms(), strict=True):
        name = room_name(room)
        assert line.startswith(f"| [{name}](pmpp/kernels/{subject_of(room)}/")
        assert line.endswith("| not measured | not measured | not measured |")
        assert len(line.split(" | ")) == 7


def test_chapters_without_a_room_are_named(tmp_path):
    (tmp_path / "source").mkdir()
    taught = [chapter_of(room) for room in rooms()]
    assert readme.without_room(tmp_path) == ""
    (tmp_path / "source" / f"{Path(taught[0]).stem}.py").write_text("# # 4. With a room\n", encoding="utf-8")
    assert readme.without_room(tmp_path) == ""
    (tmp_path / "source/05_two.py").write_text("# %% [markdown]\n# # 5. Two words\n# # no title\n", encoding="utf-8")
    (tmp_path / "source/01_bare.py").write_text("", encoding="utf-8")
    links = "[01_bare](notebooks/01_bare.ipynb), [Two words](notebooks/05_two.ipynb)"
    assert readme.without_room(tmp_path) == f"Chapters without a room: {links}."


def test_tests_are_counted_without_running_them(tmp_path):
    path = tmp_path / "test_x.py"
    path.write_text("def test_a(): ...\nclass TestB:\n    def test_b(self): ...\ndef helper(): ...\n", encoding="utf-8")
    assert readme.count_tests(path) == 2
    assert readme.count_tests(tmp_path / "none.py") == 0


def test_writing_and_checking(files, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(record, "RECORDED", tmp_path / "recorded")
    recorded(tmp_path / "recorded", "NVIDIA Test", one_size, among=FEW)
    page, picture = files
    assert readme.main(["--check"], *files) == 1
    assert capsys.readouterr().err == "stale: README.md, roofline.svg. Run: make readme\n"
    assert page.read_text(encoding="utf-8") == TEXT
    assert readme.main([], *files) == 0
    assert page.read_text(encoding="utf-8").startswith("# Title\n\n")
    assert page.read_text(encoding="utf-8").endswith("\n\nThe rest.\n")
    assert readme.main(["--check"], *files) == 0
    before = page.read_bytes(), picture.read_bytes()
    picture.unlink()
    assert readme.main([], *files) == 0
    assert (page.read_bytes(), picture.read_bytes()) == before, "the same record gives the same bytes"
    picture.write_text(picture.read_text(encoding="utf-8").replace("sha256 ", "sha256 0"), encoding="utf-8")
    assert readme.main(["--check"], *files) == 1


def test_measured_rooms_have_numbers(measured):
    called = []
    for room in rooms():
        row = {"room": room_name(room), "size": "tiny", "workload": "one"}
        called += [
            row | {"who": "fast", "form": "device array", "kind": "rung", "us": 12.3},
            row | {"who": "fast", "form": "NumPy", "kind": "rung", "us": 200.0},
            row | {"who": "torch.one", "form": "its own", "kind": "library", "us": 6.7},
            row | {"who": "cupy.one", "form": "its own", "kind": "library", "failed": "OSError"},
        ]
    lines = readme.table(measured, called).splitlines()
    for line, room in zip(lines[2:], rooms(), strict=False):
        assert room_name(room) in line
        share = "not measured" if room_name(room) in units.tensor_types() else "75%"  # their rate was not
        assert line.endswith(f"| {share} | 1.25 × `torch.one` | 12 µs; `torch.one` 7 µs |")
    assert lines[-1] == (
        "A room and its libraries were measured in the same run, on one NVIDIA Test, 2026-11-21, "
        "with CuPy 14.2.0 and PyTorch 2.11.0; `make bench` measures yours. The last column is the time until a call "
        "with device arrays returns, for the smallest input of the room that is measured, and that of the library's "
        "call."
    )


def test_rooms_on_tensor_cores_are_compared_with_their_rate(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "RECORDED", tmp_path / "recorded")
    some = [room for room in rooms() if room_name(room) in ("tensor_cores", "integer_linear", "matmul")]

    def busy(room, slow, fast):
        return [entry(room, fast, "rung", 4.0, flops=4 * 10**11), entry(room, "torch.one", "library", 5.0)]

    monkeypatch.setitem(CEILINGS, "tensor", {"float16": 800e12})
    shown = recorded(tmp_path / "recorded", "NVIDIA Test", busy, among=some)
    share = {name: cells(readme.table(shown), name)[4:6] for name in ("matmul", "tensor_cores", "integer_linear")}
    assert share["matmul"] == ["167%", "1.25 × `torch.one`"]
    assert share["tensor_cores"] == ["75% of tensor cores", "1.25 × `torch.one`"], "here memory takes longer"
    assert share["integer_linear"] == ["not measured", "1.25 × `torch.one`"], "that of int8 was not measured"


def test_a_room_whose_share_is_far_above_its_roof_is_explained():
    """Who runs on tensor cores says so in its docstring; README.md says why the others are above."""
    explained = {"input_gradients", "weight_gradients", "game_of_life", "decode"}
    shown, _ = readme._load()
    above = set()
    for room in rooms():
        share, _ = readme._measured(room, shown)
        if found := re.findall(r"\d+(?=%)", share):
            above |= {room_name(room)} if int(found[-1]) > 106 else set()
    assert above == explained


def cells(text, name="vector_add"):
    row = next(line for line in text.splitlines() if re.match(rf"\| \[?{name}\b", line))
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_a_room_of_several_sizes_has_its_range(tmp_path):
    found = recorded(tmp_path, "NVIDIA Test", three_sizes)
    # The best rungs take 4, 6 and 3 ms, the best libraries 5, 3 and 9.
    assert cells(readme.table(found))[4:6] == ["50 to 100%", "0.50 to 3.00 × PyTorch, CuPy"]


def test_a_room_with_less_work_than_the_definition_has_its_own_roof(tmp_path):
    def less(room, slow, fast):
        own = {"own_flops": 10**8, "own_bytes": 10**9}  # a twelfth
        return [entry(room, fast, "rung", 0.5, **own), entry(room, "torch.one", "library", 0.5)]

    assert cells(readme.table(recorded(tmp_path, "NVIDIA Test", less)))[4:6] == ["50% of its own", "1.00 × `torch.one`"]


def test_without_a_library_there_is_no_factor(tmp_path):
    found = recorded(tmp_path, "NVIDIA Test", lambda room, slow, fast: [entry(room, fast, "rung", 4.0)])
    assert cells(readme.table(found))[4:6] == ["75%", "none measured"]
    found = recorded(
        tmp_path / "a",
        "NVIDIA Test",
        lambda room, slow, fast: [entry(room, fast, "rung", 4.0), entry(room, "cuda.max_add", "library", 2.0)],
    )
    assert cells(readme.table(found))[4:6] == ["75%", "none measured"], "a roof that we measured is no library"
    found = recorded(tmp_path / "b", "NVIDIA Test", lambda room, *_: [entry(room, "torch.one", "library", 4.0)])
    assert cells(readme.table(found))[4:6] == ["not measured"] * 2


def test_another_gpu_has_a_table_of_its_own_and_does_not_take_the_place_of_the_one_that_is_shown(
    files, tmp_path, monkeypatch
):
    folder = tmp_path / "recorded"
    monkeypatch.setattr(record, "RECORDED", folder)
    monkeypatch.setattr(record, "SHOWN", "nvidia-test")
    assert readme.other_gpus([]) == ""
    shown = recorded(folder, "NVIDIA Test", one_size, among=FEW)
    other = recorded(folder, "NVIDIA H7 80GB HBM3", three_sizes, date="2027-01-01T10:00:00")
    text = readme.other_gpus([other])
    assert text.startswith("The same, measured on one NVIDIA H7 80GB HBM3, 2027-01-01:\n\n| Room | H7: of the roof |")
    assert cells(text) == ["vector_add", "50 to 100%", "0.50 to 3.00 × PyTorch, CuPy"]
    assert len(text.splitlines()) == 4 + len(rooms())
    assert readme.main([], *files) == 0
    page, picture = (path.read_text() for path in files)
    assert readme.table(shown) in page
    assert text in page
    assert page.index("on one NVIDIA Test, 2026-11-21") < page.index("H7: of the roof")
    assert "from nvidia-test, sha256" in picture
    assert readme.main(["--check"], *files) == 0


def test_a_room_that_was_not_measured_says_so(measured):
    del measured.data["rooms"]["vector_add"]
    row = next(line for line in readme.table(measured).splitlines() if line.startswith("| [vector_add]"))
    assert row.endswith("| not measured | not measured |")


@pytest.mark.parametrize(
    "text",
    [
        "# Title\n",
        f"{END_OF_ROOMS}\n{ROOMS}\n{BOOK}\n{END_OF_BOOK}\n",
        f"{ROOMS}\n{BOOK}\n{END_OF_BOOK}\n",
        f"{ROOMS}\n{END_OF_ROOMS}\n{BOOK}\n",
    ],
)
def test_lost_markers_are_an_error(files, text):
    files[0].write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit, match=r"README\.md has lost its markers"):
        readme.main([], *files)
    assert files[0].read_text(encoding="utf-8") == text


# ---------------------------------------------------------------------------------------------------- beside the book


@pytest.fixture
def chapter(tmp_path):
    """``chapter(name, sentence) -> path``: a source whose first cell has that sentence."""

    def write(name, sentence):
        path = tmp_path / f"{name}.py"
        path.write_text(
            f"# ---\n# ---\n\n# %% [markdown]\n# # Title\n#\n# *About.\n# {sentence}*\n\n# %%\n1 + 1\n",
            encoding="utf-8",
        )
        return path

    return write


@pytest.mark.parametrize(
    ("text", "chapters"),
    [
        ("chapter 4", (4,)),
        ("chapters 2 and 3, sections 4.1 to 4.7, 6.1 and 20.5", (2, 3, 4, 6, 20)),
        ("chapters 2 to 4, section 3.1", (2, 3, 4)),
        ("section 10.7", (10,)),
        ("none", ()),
    ],
)
def test_lists_of_sections_are_read(text, chapters):
    assert book.chapters_in(text) == chapters


@pytest.mark.parametrize("text", ["", "ch. 4", "chapter four", "chapters 2, and 3", "chapter 4 or 5"])
def test_other_lists_are_refused(text):
    with pytest.raises(ValueError, match="expected such as"):
        book.chapters_in(text)


def test_a_chapter_names_both_editions(chapter):
    path = chapter(
        "04_try", "PMPP 4e: chapter 1 and section 5.1; 5e: sections 6.1,\n# 6.3 and chapter 12. The code is here."
    )
    assert book.cited(path) == ((1, 5), (6, 12))
    assert book.cited(chapter("08_try", "PMPP 4e: section 5.1; 5e: none.")) == ((5,), ())


@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        ("PMPP 4e ch. 7.", "needs a sentence"),
        ("PMPP 4e: chapter 7.", "needs a sentence"),
        ("PMPP 4e: ch. 7; 5e: none.", "PMPP 4e: expected such as"),
        ("PMPP 4e: chapter 7; 5e: seven.", "PMPP 5e: expected such as"),
        ("PMPP 4e: chapter 24; 5e: chapter 24.", "PMPP 4e has no chapter 24"),
    ],
)
def test_a_sentence_that_is_not_clear_is_an_error(chapter, sentence, words):
    with pytest.raises(ValueError, match=f"^04_try.py.*{words}"):
        book.cited(chapter("04_try", sentence))


def test_the_book_has_a_row_a_subject(chapter):
    first = chapter("04_one", "PMPP 4e: chapter 11; 5e: chapters 11 and 12.")
    second = chapter("08_two", "PMPP 4e: none; 5e: section 12.2.")
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in book.table([first, second]).splitlines()[2:]}
    assert len(rows) == len(book.SUBJECTS)
    assert rows["Scan"] == "| Scan | 11 | 11 | [4](notebooks/04_one.ipynb) |"
    assert rows["Filter"] == "| Filter |  | 12 | [4](notebooks/04_one.ipynb), [8](notebooks/08_two.ipynb) |"
    assert rows["Merge"] == "| Merge | 12 | 13 | not yet |"
    assert rows["Conclusion"] == "| Conclusion | 23 | 24 | none: it has no kernels |"
    assert set(book.OUTSIDE) <= set(rows)


def test_each_edition_is_whole():
    """Chapters 1 to 23 of the 4th edition and 1 to 24 of the 5th, each once."""
    for place, last in ((1, 23), (2, 24)):
        assert sorted(row[place] for row in book.SUBJECTS if row[place]) == list(range(1, last + 1))


def test_every_chapter_stands_in_the_table():
    table = book.table(notebooks.sources())
    for path in notebooks.sources():
        assert f"(notebooks/{path.stem}.ipynb)" in table
