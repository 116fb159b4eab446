"""Scores against sacrebleu's own, and which way each metric improves."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import sacrebleu

from konvoi.evaluate.scores import HIGHER_IS_BETTER, corpus_scores, is_better

HYPOTHESES = ["The dog bit the man.", "It was not unexpected.", "The man bit him first, didn't he?"]
REFERENCES = ["The dog bit the man.", "It wasn't surprising.", "The man had just bitten him, hadn't he?"]


def test_identical_text_scores_a_hundred() -> None:
    scores = corpus_scores(REFERENCES, REFERENCES)
    assert scores["bleu"] == pytest.approx(100)
    assert scores["chrf"] == pytest.approx(100)


def test_scores_equal_those_of_the_sacrebleu_functions() -> None:
    scores = corpus_scores(HYPOTHESES, REFERENCES)
    assert scores["bleu"] == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    assert scores["chrf"] == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score
    assert 0 < scores["bleu"] < 100 and 0 < scores["chrf"] < 100


def test_scores_and_signatures_equal_those_of_the_sacrebleu_command(tmp_path: Path) -> None:
    hypothesis_file, reference_file = tmp_path / "hypotheses", tmp_path / "references"
    hypothesis_file.write_text("\n".join(HYPOTHESES) + "\n")
    reference_file.write_text("\n".join(REFERENCES) + "\n")
    command = [sys.executable, "-m", "sacrebleu", str(reference_file), "-i", str(hypothesis_file)]
    command += ["-m", "bleu", "chrf", "-w", "6"]
    answer = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=240).stdout)
    scores = corpus_scores(HYPOTHESES, REFERENCES)
    assert [round(scores["bleu"], 6), round(scores["chrf"], 6)] == [entry["score"] for entry in answer]
    assert [scores["bleu_signature"], scores["chrf_signature"]] == [entry["signature"] for entry in answer]


def test_bleu_of_one_sentence_by_hand() -> None:
    # "a b c d e" against "a b c d f": 4/5 words, 3/4 pairs, 2/3 triples, 1/2 quadruples; no brevity penalty
    by_hand = 100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25
    assert corpus_scores(["a b c d e"], ["a b c d f"])["bleu"] == pytest.approx(by_hand)


def test_lowercase_forgives_capitals_and_says_so() -> None:
    shouted = [line.upper() for line in REFERENCES]
    strict, lenient = corpus_scores(shouted, REFERENCES), corpus_scores(shouted, REFERENCES, lowercase=True)
    assert strict["bleu"] < 50 and lenient["bleu"] == pytest.approx(100)
    assert strict["chrf"] < 50 and lenient["chrf"] == pytest.approx(100)
    assert "case:mixed" in strict["bleu_signature"] and "case:lc" in lenient["bleu_signature"]


def test_signatures_name_the_tokenizer_and_the_version() -> None:
    scores = corpus_scores(HYPOTHESES, REFERENCES)
    assert "tok:13a" in scores["bleu_signature"] and f"version:{sacrebleu.__version__}" in scores["bleu_signature"]
    assert "nc:6" in scores["chrf_signature"] and f"version:{sacrebleu.__version__}" in scores["chrf_signature"]


def test_pieces_are_scored_as_they_stand_and_only_when_given() -> None:
    # 13a would split "e." in two; as it stands it is one of five, of which four match: 4/5, 3/4, 2/3, 1/2.
    pieces = (["_a _b _c _d e."], ["_a _b _c _d e!"])
    scores = corpus_scores(HYPOTHESES, REFERENCES, pieces=pieces)
    assert scores["bleu_pieces"] == pytest.approx(100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25)
    assert "bleu_pieces" not in corpus_scores(HYPOTHESES, REFERENCES)


def test_lists_of_different_lengths_are_refused() -> None:
    with pytest.raises(AssertionError, match="2 hypotheses, 3 references"):
        corpus_scores(HYPOTHESES[:2], REFERENCES)


@pytest.mark.parametrize("metric", HIGHER_IS_BETTER)
def test_better_is_higher_or_lower_as_the_metric_has_it(metric: str) -> None:
    better, worse = (2.0, 1.0) if metric in ("bleu", "chrf", "accuracy_1", "accuracy_5") else (1.0, 2.0)
    assert is_better(metric, better, worse)
    assert not is_better(metric, worse, better)
    assert not is_better(metric, worse, worse)


def test_anything_beats_nothing_and_not_a_number_beats_nothing() -> None:
    assert is_better("loss", 5.0, None) and is_better("bleu", 0.0, math.nan)
    assert not is_better("loss", math.nan, None) and not is_better("loss", math.nan, 5.0)
