"""The quiz bank: every answer is computed twice, every question stands on its own, and the file is GIFT."""

import functools
import html
import inspect
import json
import math
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pmpp.lab.publish import notebooks
from pmpp.lab.publish.quiz import Choice, Number, bank
from pmpp.lab.publish.quiz.__main__ import main
from pmpp.lab.publish.quiz.gift import escaped, gift, markup, page
from pmpp.lab.publish.quiz.model import Template, question, shown, templates
from tests.lab import quiz_answers

STEMS = [path.stem for path in notebooks.sources()]
TEMPLATES = templates()
VARIANTS = 2
each_template = pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.name)


@functools.cache
def variants(template):
    return template.variants(VARIANTS)


def is_counted(template):
    """Whether the answer comes from the interpreter's counters."""
    return "counted(" in inspect.getsource(template.make)


# -------------------------------------------------------------------------------------------------------- each question


@each_template
def test_the_answer_is_computed_a_second_time(template):
    again = getattr(quiz_answers, template.name, None)
    assert again or is_counted(template), "add a function of this name to quiz_answers.py"
    for made in variants(template) if again else ():
        found = again(**made.given)
        if isinstance(made, Choice):
            assert found == made.answer
        else:
            assert found == pytest.approx(made.answer, rel=max(made.within, 1e-9))


def test_every_answer_there_belongs_to_a_template():
    helpers = {"layer_of"}
    there = {
        name for name, one in vars(quiz_answers).items() if getattr(one, "__module__", "") == quiz_answers.__name__
    }
    assert there - helpers <= {template.name for template in TEMPLATES}


@each_template
def test_a_question_stands_on_its_own(template):
    assert template.chapter in STEMS
    assert template.title
    assert not template.title.endswith(".")
    for made in variants(template):
        assert re.search(r"\?(\s|$)", made.text)
        # Whoever reads it has no notebook beside it.
        assert not re.search(r"(?i)\b(chapter|notebook|figure|the cell|above(?! \d)|earlier)\b", made.text), made.text
        assert not re.search(r"\{\w*\}|None|nan|inf\b", f"{made.text} {made.why}".replace("NaN", "")), made.text
        assert made.why.endswith((".", "!"))
        assert not re.search(r"(?<![\d.,])0% up", gift({template: [made]}))
        code = [line for line in made.text.splitlines() if line.startswith("    ")]
        assert ("@cuda.jit" in made.text) == bool(code)


@each_template
def test_wrong_answers_are_wrong_and_say_why(template):
    found = variants(template)
    assert len(found) == VARIANTS
    assert any(made.wrong for made in found)
    for made in found:
        assert all(why.endswith(".") for why in made.wrong.values())
        if isinstance(made, Number):
            assert math.isfinite(made.answer)
            assert made.slack(made.answer) < 0.2 * abs(made.answer) or made.answer == 0
            taken = [made.answer, *made.wrong]
            for index, number in enumerate(taken):
                for other in taken[:index]:
                    assert abs(number - other) > made.slack(number) + made.slack(other)
        else:
            assert len(made.wrong) >= 2
            assert made.answer not in made.wrong


def test_there_is_one_for_every_chapter_that_asks_for_predictions():
    asking = [path.stem for path in notebooks.sources() if "predict(guess" in path.read_text(encoding="utf-8")]
    missing = {*asking} - {template.chapter for template in TEMPLATES}
    assert not missing, f"pmpp/lab/publish/quiz/ needs a question for {', '.join(sorted(missing))}"
    assert len(TEMPLATES) >= 40
    assert len({template.title for template in TEMPLATES}) == len(TEMPLATES)


def test_questions_come_in_the_order_of_the_chapters():
    asked = list(dict.fromkeys(template.chapter for template in TEMPLATES))
    assert asked == [stem for stem in STEMS if stem in asked]


# ------------------------------------------------------------------------------------------------------------- the bank

SOME = ("08_warps", "16_transpose")


def test_the_same_seed_gives_the_same_file():
    assert gift(bank(SOME, variants=2, seed=3)) == gift(bank(SOME, variants=2, seed=3))
    assert gift(bank(SOME, variants=2, seed=3)) != gift(bank(SOME, variants=2, seed=4))


def test_more_variants_leave_the_first_ones_as_they_are():
    few, many = bank(SOME, variants=2), bank(SOME, variants=6)
    for template, questions in few.items():
        assert many[template][: len(questions)] == questions
        assert len({(made.text, made.answer, *made.wrong) for made in many[template]}) == len(many[template])


def test_a_chapter_may_be_named_by_its_number():
    assert list(bank(["4"], variants=1)) == list(bank(["04_vector_add"], variants=1))


def test_what_is_refused():
    with pytest.raises(ValueError, match="variants must be at least 1, was 0"):
        bank(variants=0)
    with pytest.raises(ValueError, match="no questions for 01_other; there are some for 00_start_here, 04_vector_add"):
        bank(["01_other"])
    with pytest.raises(ValueError, match="there are two templates with the name idle_threads"):

        @question("04_vector_add")
        def idle_threads(draw): ...


def test_mistakes_that_give_the_right_number_or_the_same_are_left_out():
    made = Number("?", 32, "", "", {32: "right.", 4: "one.", 4.1: "hardly another one.", 8: "two."}, within=0.1)
    assert made.wrong == {4: "one.", 8: "two."}
    near = Number("?", 10.0, "", "", {10.05: "near.", 11.0: "far."}, within=0.02)
    assert near.wrong == {11.0: "far."}


# ---------------------------------------------------------------------------------------------------------- the formats


@pytest.mark.parametrize(
    "number, text",
    [(709.78, "710"), (1000.4, "1,000"), (99.96, "100"), (0.5, "0.5"), (2 / 3, "0.667"), (819840, "819,840"), (0, "0")],
)
def test_numbers_are_written_with_three_digits(number, text):
    assert shown(number) == text


def test_signs_of_gift_are_escaped():
    assert escaped("a = {b: c} # ~ \\\nd") == "a \\= \\{b\\: c\\} \\# \\~ \\\\\\nd"


def test_markup():
    assert markup("One `a < b` is\n2^24 or 10^-3.\n\n    if a < b:\n\n        c\n\nTwo.") == (
        "<p>One <code>a &lt; b</code> is 2<sup>24</sup> or 10<sup>-3</sup>.</p>"
        "<pre>if a &lt; b:\n\n    c</pre><p>Two.</p>"
    )


def test_a_question_in_gift():
    number = Template("n", "00_start_here", "A title", lambda draw: None)
    made = Number("How many?", 3, "bytes", "Because.", {1.5: "Half."})
    choice = Choice("Which?", "`a`", "Because.", {"b": "No.", "c": "No."})
    assert gift({number: [made, choice]}).split("\n\n", 1)[1] == (
        "$CATEGORY: $course$/pmpp/00_start_here/n\n\n"
        "::A title (1)::[html]<p>How many?</p><p>Answer with a number (bytes).</p> {#\n"
        "\t=3:0#Right.\n\t=%0%1.5:0#Half.\n\t####[html]<p>Because.</p>\n}\n\n"
        "::A title (2)::[html]<p>Which?</p> {\n"
        "\t=<code>a</code>#Right.\n\t~b#No.\n\t~c#No.\n\t####[html]<p>Because.</p>\n}\n"
    )


@pytest.fixture(scope="module")
def whole():
    return {template: variants(template) for template in TEMPLATES}


def test_one_is_no_plural(whole):
    text = gift(whole)
    assert (
        re.findall(r"(?<![x,.] )(?<!to )\b1 (?:byte|sector|block|row|neighbour|image|time|lane|warp)s\b.{,20}", text)
        == []
    )


def test_every_number_is_written_without_an_exponent(whole):
    text = gift(whole)
    numbers = re.findall(r"(?m)^\t=(?:%0%)?([^#]+):([^#]+)#", text)
    assert len(numbers) > 200
    assert all(re.fullmatch(r"-?\d+(\.\d+)?", part) for pair in numbers for part in pair)
    assert "\n\n\n" not in text


def test_the_page_shows_every_question(whole):
    text = page(whole)
    assert text.count("<section ") == len(TEMPLATES)
    assert "src=" not in text
    assert "href=" not in text
    for template in TEMPLATES:
        assert f"<h3>{html.escape(template.title)}</h3>" in text


def agrees(whole, parsed):
    """Compare what a parser has read with the questions: text, answers with their slack and credit, feedback."""
    made = [one for questions in whole.values() for one in questions]
    assert len(parsed) == len(made)
    for one, (text, answers, why) in zip(made, parsed, strict=True):
        assert markup(one.text) in text
        assert why == markup(one.why)
        expected = [(one.answer, 1), *((wrong, 0) for wrong in one.wrong)]
        assert [credit for _, _, credit, _ in answers] == [credit for _, credit in expected]
        for (answer, slack, _, said), (truth, credit) in zip(answers, expected, strict=True):
            if isinstance(one, Number):
                assert answer == pytest.approx(truth, rel=1e-5)
                assert slack == pytest.approx(one.slack(truth), rel=1e-4, abs=1e-9)
            else:
                assert answer == markup(truth)[3:-4]
            assert said == ("Right." if credit else markup(one.wrong[truth])[3:-4])


def test_an_independent_parser_reads_the_same(whole, tmp_path):
    """gift-pegjs has a grammar of GIFT. Get it with: npm install --prefix build/node gift-pegjs"""
    modules = Path(__file__).parents[2] / "build" / "node" / "node_modules"
    modules = Path(os.environ.get("GIFT_PEGJS", modules))
    if not shutil.which("node") or not (modules / "gift-pegjs").is_dir():
        pytest.skip("gift-pegjs is missing: npm install --prefix build/node gift-pegjs")
    path = tmp_path / "quiz.gift"
    path.write_text(gift(whole), encoding="utf-8")
    script = (
        "const fs = require('fs'); const { parse } = require('gift-pegjs');"
        "process.stdout.write(JSON.stringify(parse(fs.readFileSync(process.argv[1], 'utf8'))))"
    )
    environment = os.environ | {"NODE_PATH": str(modules)}
    ran = subprocess.run(["node", "-e", script, str(path)], capture_output=True, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr.decode()[-2000:]
    parsed = []
    for one in json.loads(ran.stdout):
        if one["type"] == "Category":
            continue
        answers = []
        for choice in one["choices"]:
            text, numeric = choice["text"], one["type"] == "Numerical"
            credit = int(choice["isCorrect"] and choice["weight"] in (None, 100))
            answer, slack = (text["number"], text["range"]) if numeric else (text["text"], 0)
            answers.append((answer, slack, credit, choice["feedback"]["text"]))
        parsed.append((one["stem"]["text"], answers, one["globalFeedback"]["text"]))
    agrees(whole, parsed)


# ---------------------------------------------------------------------------------------------------------- the command


def test_the_command(tmp_path, capsys):
    out = tmp_path / "a" / "b"
    assert main(["04_vector_add", "--variants", "2", "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}: questions: 4, from chapters: 1, with their variants: 8\n"
    text = (out / "pmpp.gift").read_text(encoding="utf-8")
    assert text.count("$CATEGORY: $course$/pmpp/04_vector_add/") == 4
    assert (out / "pmpp.html").is_file()
    assert main(["99_other", "--out", str(out)]) == 1
    assert capsys.readouterr().err.startswith("no questions for 99_other")
