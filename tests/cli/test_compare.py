"""konvoi compare: terminal, JSON, HTML."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.analysis.made_runs import make_run

from konvoi.commands.compare import compare
from konvoi.errors import UserError


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    scores = {25: {"bleu": 10.0}, 50: {"bleu": 20.0}}
    return [
        make_run(tmp_path / "demo-20261116-010203", num_workers=1, evaluations=scores, step={"step_seconds": 0.5}),
        make_run(tmp_path / "demo-20261116-020304", hosts=("a", "b"), evaluations=scores),
    ]


def test_the_sentence_comes_first_and_all_fits_on_80_columns(runs, capsys):
    compare(runs, price_per_hour=360.0, output=None, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    # Two nodes reach the same score in the same time: the same steps, twice the epochs.
    assert " ".join(line.strip() for line in lines[:2]) == (
        "two nodes: 2.00x as fast, 10.0 points lower after the same epochs; same score after 1.00 of the time"
    )
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "1  demo-20261116-010203: one worker on one host, 50 steps, 0.125 epochs," in text
    # 2 + 25 + 2 x 1 s at 360 an hour and host
    assert "2.90" in text
    assert "5.80" in text
    assert "train.workers" in text


def test_json_holds_the_same_numbers(runs, capsys):
    compare(runs, price_per_hour=None, output=None, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["runs"][1]["speed_up"] == pytest.approx(2.0)
    assert found["runs"][1]["scores"]["values"] == [10.0, 20.0]
    assert found["same_score"] == 20.0
    assert {"group": "machine", "key": "hosts", "values": [1, 2]} in found["differences"]


def test_the_page_holds_the_curves_and_the_differences(runs, tmp_path, capsys):
    page = tmp_path / "comparison.html"
    compare(runs, price_per_hour=2.0, output=page, as_json=False)
    text = page.read_text()
    for words in ("BLEU over steps", "BLEU over epochs", "BLEU over time", "Training loss over time", "train.workers"):
        assert words in text
    assert "2.00x as fast" in text
    assert str(page) in capsys.readouterr().err


def test_runs_that_cannot_be_compared_say_why(runs, tmp_path, capsys):
    other = make_run(tmp_path / "pictures", recipe={"task": {"name": "classification"}})
    compare([runs[0], other], price_per_hour=None, output=tmp_path / "page.html", as_json=False)
    assert "note: The runs do different things" in capsys.readouterr().out
    assert "Not comparable" in (tmp_path / "page.html").read_text()


def test_a_run_without_anything_is_shown_beside_the_others(runs, tmp_path, capsys):
    empty = make_run(tmp_path / "empty", num_steps=0, status="died")
    compare([*runs, empty], price_per_hour=1.0, output=tmp_path / "page.html", as_json=False)
    assert "note: empty died: its last values are not final." in capsys.readouterr().out


def test_one_run_is_refused(runs):
    with pytest.raises(UserError, match="nothing to be compared with"):
        compare(runs[:1], price_per_hour=None, output=None, as_json=False)


def test_a_page_that_cannot_be_written_is_the_users_to_mend(runs, tmp_path):
    with pytest.raises(UserError, match="cannot be written"):
        compare(runs, price_per_hour=None, output=tmp_path / "no" / "page.html", as_json=False)
