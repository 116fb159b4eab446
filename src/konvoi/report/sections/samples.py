"""What the model makes of sentences or pictures that it has never seen."""

from __future__ import annotations

from typing import Any

from konvoi.analysis.record import RunRecord
from konvoi.report.blocks import Block, Samples

TITLE = "Samples"
ORDER = 120
NAMES = ("source", "translation", "reference")
MAX_CHARACTERS = 500


def render(run: RunRecord) -> list[Block]:
    evaluation = next((event for event in reversed(run.evaluations) if event.get("samples")), None)
    if evaluation is None:
        return []
    samples = [sample for sample in evaluation["samples"] if isinstance(sample, dict)]
    caption = f"Of the evaluation at step {evaluation['step']:,}"
    if pictures := [sample for sample in samples if isinstance(sample.get("jpeg"), str)]:
        return [Samples([_guess(sample) for sample in pictures], caption, [sample["jpeg"] for sample in pictures])]
    return [Samples([_sample(sample) for sample in samples], caption)]


def _guess(sample: dict[str, Any]) -> dict[str, str]:
    probability = sample.get("probability")
    share = f" ({probability:.0%})" if isinstance(probability, int | float) else ""
    return {"class": str(sample.get("class", "-")), "guess": f"{sample.get('guess', '-')}{share}"}


def _sample(sample: dict[str, Any]) -> dict[str, str]:
    texts = {name: str(sample[name]) for name in NAMES if name in sample}
    return {name: text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]} …" for name, text in texts.items()}
