"""What int8 costs in digits: what is recorded is what was counted, and the target is judged by it."""

import json

import pytest

from pmpp.nn.examples import digits
from pmpp.nn.measure import int8, targets


class Few:
    """scikit-learn's digits, few of them, for one epoch."""

    BATCH, RATE, EPOCHS = 16, 0.1, 1

    @staticmethod
    def datasets():
        training, held_out = digits.datasets()
        few = [
            type(each)(*(array[:count] for array in each.arrays)) for each, count in ((training, 32), (held_out, 24))
        ]
        return few[0], few[1]


CASE = int8.Case(Few, digits.Net, "sklearn")


def test_a_row_counts_the_same_digits_in_all_ways():
    row = int8.measure(CASE, seeds=2)
    assert (row["digits"], len(row["seeds"])) == (24, 2)
    for way, lost in row["lost"].items():
        each = [100 * (one["float32"] - one["int8"][way]) for one in row["seeds"]]
        assert lost == pytest.approx(sum(each) / 2)
    shares = [24 * one["int8"][way] for one in row["seeds"] for way in row["lost"]]
    assert shares == pytest.approx([round(share) for share in shares]), "digits are known or not"
    assert 3 * row["bytes"]["int8"] < row["bytes"]["float32"]
    first, *ways = int8.table("few", row).splitlines()
    assert first.startswith("few: 2 seeds, ")
    assert len(ways) == len(row["lost"])


def test_the_target_wants_five_seeds_and_at_most_half_a_point(monkeypatch):
    def line(lost, seeds):
        row = {"digits": 1000, "seeds": [{}] * seeds, "lost": {"range": lost}}
        monkeypatch.setattr(targets, "recorded", lambda name: {"networks": {"LeNet-5 on MNIST": row}})
        return targets._int8()

    assert [line(0.5, 5).met, line(0.51, 5).met, line(-0.1, 5).met, line(0.1, 4).met] == [True, False, True, False]
    assert line(0.125, 5).measured == "0.12 points, 1,000 digits, 5 seeds"


def test_without_a_gpu_nothing_is_recorded(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(int8.device, "on_gpu", lambda: False)
    assert int8.main(["--out", str(tmp_path / "int8.json")]) == 2
    assert "a GPU is needed" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    with pytest.raises(SystemExit):
        int8.main(["--seeds", "0"])
    assert "seeds must be at least 1, was 0" in capsys.readouterr().err


def test_what_is_measured_is_written(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(int8.device, "on_gpu", lambda: True)
    monkeypatch.setattr(int8, "CASES", {"few": CASE, "others": CASE._replace(package="not_there_at_all")})
    monkeypatch.setattr(
        int8,
        "measure",
        lambda case, seeds: {
            "digits": 9,
            "seeds": [{"float32": 1.0, "int8": {"range": 0.5}}],
            "bytes": {"float32": 8, "int8": 2},
            "lost": {"range": 50.0},
        },
    )
    monkeypatch.setattr(int8, "write", lambda name, source, rows, out: out.write_text(json.dumps(rows)) and out)
    assert int8.main(["--out", str(tmp_path / "int8.json")]) == 0
    said = capsys.readouterr().out
    assert "others is left out, it needs not_there_at_all" in said
    assert "range         50.00% known, 50.00 points lost in the mean" in said
    assert list(json.loads((tmp_path / "int8.json").read_text())["networks"]) == ["few"]
