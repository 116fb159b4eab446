"""Scores of translations by sacrebleu, each with the signature that makes it comparable."""

from __future__ import annotations

import math
from typing import NotRequired, TypedDict

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

HIGHER_IS_BETTER = {
    "loss": False,
    "perplexity": False,
    "bleu": True,
    "chrf": True,
    "accuracy_1": True,
    "accuracy_5": True,
}


class Scores(TypedDict):
    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str
    bleu_pieces: NotRequired[float]


def corpus_scores(
    hypotheses: list[str],
    references: list[str],
    *,
    lowercase: bool = False,
    pieces: tuple[list[str], list[str]] | None = None,
) -> Scores:
    """BLEU and chrF of plain text, 0 to 100; with `pieces` (hypotheses, references; space between) also their BLEU.

    BLEU of pieces says nothing to others: it is there to compare with runs that report no other.
    """
    assert len(hypotheses) == len(references) > 0, f"{len(hypotheses)} hypotheses, {len(references)} references"
    bleu, chrf = BLEU(lowercase=lowercase, tokenize="13a"), CHRF(lowercase=lowercase)
    scores: Scores = {
        "bleu": bleu.corpus_score(hypotheses, [references]).score,
        "chrf": chrf.corpus_score(hypotheses, [references]).score,
        # A signature is complete only once its metric has seen the references.
        "bleu_signature": str(bleu.get_signature()),
        "chrf_signature": str(chrf.get_signature()),
    }
    if pieces is not None:
        # force: sacrebleu would warn that the text looks tokenised, as it should.
        scores["bleu_pieces"] = BLEU(tokenize="none", force=True).corpus_score(pieces[0], [pieces[1]]).score
    return scores


def is_better(metric: str, new: float, old: float | None) -> bool:
    """Whether a new value beats the old; anything beats none or not-a-number, which itself beats nothing."""
    if math.isnan(new):
        return False
    if old is None or math.isnan(old):
        return True
    return new > old if HIGHER_IS_BETTER[metric] else new < old
