"""What is done with a trained run: eval, translate, runs."""

from __future__ import annotations

import json
import shutil

import pytest


def test_eval_prints_valid_json_over_the_whole_test_split(konvoi, trained_run):
    result = json.loads(konvoi("eval", trained_run, "--json").stdout)
    assert result["split"] == "test"
    # data.test_pairs = 16, whatever evaluate.max_sentences
    assert result["sentences"] == 16
    assert result["loss"] > 0
    assert "tok:13a" in result["bleu_signature"]
    assert 0 <= result["chrf"] <= 100


def test_eval_repeats_the_loss_of_training(konvoi, trained_run):
    result = json.loads(konvoi("eval", trained_run, "--split", "dev", "--checkpoint", "last", "--json").stdout)
    summary = json.loads((trained_run / "summary.json").read_text())
    assert result["loss"] == pytest.approx(summary["scores"]["loss"], rel=1e-4)


def test_eval_of_files_gives_the_same_scores_as_the_split_they_are(konvoi, trained_run, konvoi_home):
    source, target = (next(konvoi_home.glob(f"data/own-*/test.{side}")) for side in ("en", "de"))
    of_split = json.loads(konvoi("eval", trained_run, "--json").stdout)
    of_files = json.loads(konvoi("eval", trained_run, "--source", source, "--target", target, "--json").stdout)
    assert of_files["sentences"] == of_split["sentences"]
    assert of_files["loss"] == pytest.approx(of_split["loss"], rel=1e-5)
    assert of_files["bleu"] == pytest.approx(of_split["bleu"])


def test_eval_in_words(konvoi, trained_run):
    result = konvoi("eval", trained_run, "--checkpoint", "average", "--beam", "2")
    assert "step-00000010 + step-00000020" in result.stdout
    assert "BLEU" in result.stdout


def test_eval_wants_both_files(konvoi, trained_run):
    assert konvoi("eval", trained_run, "--source", "x").exit_code == 2


def test_a_missing_checkpoint_names_an_intact_one(konvoi, trained_run):
    result = konvoi("eval", trained_run, "--checkpoint", "step-00000015")
    assert result.exit_code == 2
    assert "missing" in result.stderr
    assert "step-00000020 is intact" in result.stderr


def test_translate_gives_one_line_for_one_and_keeps_empty_ones(konvoi, trained_run):
    lines = konvoi("translate", trained_run, input="Hello.\n\n  \nWhere is Tom?\n").stdout.split("\n")
    # Four lines, and nothing after the last line end.
    assert len(lines) == 5
    assert lines[1] == lines[2] == lines[4] == ""


def test_translate_keeps_the_order_over_chunks(konvoi, trained_run, monkeypatch, tmp_path):
    sentences = ["Go.", "I do not know what you are talking about.", "", "Hello.", "Tom is here."]
    expected = konvoi("translate", trained_run, *sentences).stdout
    monkeypatch.setattr("konvoi.commands.translate.CHUNK_LINES", 2)
    (tmp_path / "in").write_text("\n".join(sentences) + "\n")
    result = konvoi("translate", trained_run, "--input", tmp_path / "in", "--output", tmp_path / "out")
    assert result.stdout == ""
    assert (tmp_path / "out").read_text() == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def test_translate_needs_the_run_directory_only(konvoi, trained_run, tmp_path, monkeypatch):
    copy = shutil.copytree(trained_run, tmp_path / "copy")
    monkeypatch.setenv("KONVOI_HOME", str(tmp_path / "empty"))
    assert konvoi("translate", copy, "Hello.").exit_code == 0
    assert not (tmp_path / "empty").exists()


def test_translate_leaves_no_half_file(konvoi, trained_run, tmp_path):
    (tmp_path / "in").write_bytes(b"Hello.\n\xff\n")
    result = konvoi("translate", trained_run, "--input", tmp_path / "in", "--output", tmp_path / "out")
    assert result.exit_code == 2
    assert "line 2 is not UTF-8" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_bad_standard_input_names_its_line(konvoi, trained_run):
    result = konvoi("translate", trained_run, input=b"Hello.\n\xff\n")
    assert result.exit_code == 2
    assert "standard input: line 2" in result.stderr


def test_a_folder_that_is_no_run(konvoi, tmp_path):
    result = konvoi("translate", tmp_path, "Hello.")
    assert result.exit_code == 2
    assert "is not a run directory" in result.stderr


def test_runs_lists_what_there_is(konvoi, trained_run):
    result = konvoi("runs", trained_run.parent)
    assert str(trained_run) in result.stdout
    assert "finished" in result.stdout
    (row,) = json.loads(konvoi("runs", trained_run.parent, "--json").stdout)
    assert (row["status"], row["steps"]) == ("finished", 20)


def test_one_damaged_run_does_not_hide_the_others(konvoi, trained_run, tmp_path):
    for name in ("a", "b"):
        shutil.copytree(trained_run, tmp_path / name)
    (tmp_path / "a" / "summary.json").write_text("{")
    rows = json.loads(konvoi("runs", tmp_path, "--json").stdout)
    assert sorted(row["status"] for row in rows) == ["finished", "unreadable"]


def test_no_runs_yet(konvoi, in_folder):
    assert konvoi("runs").stdout == "no runs in runs/ yet; try: konvoi train demo\n"
    assert konvoi("runs", "elsewhere").exit_code == 2
