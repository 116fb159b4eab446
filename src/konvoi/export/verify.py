"""Does an exported translator say what the trained model says, how well, how fast: on real sentences."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from konvoi.bundle.interfaces import Translation, Translator
from konvoi.bundle.search import MAX_EXTRA, MAX_RATIO
from konvoi.data.prepared import PreparedSet
from konvoi.data.text import read_lines
from konvoi.engine.trained import Trained
from konvoi.errors import DataError
from konvoi.evaluate.scores import corpus_scores
from konvoi.run_directory import RunDirectory
from konvoi.stages import Report
from konvoi.tasks import translation

MAX_SENTENCES = 1000
# Fewer can't tell 0.3 BLEU from chance.
MIN_SCORED = 30
NUM_TIMED_ALONE = 30
SENTENCES_PER_REPORT = 250
MIN_IDENTICAL_PERCENT = 99.0
# Of a score. CTranslate2 sums in another order, and leaves pieces that are none out of its softmax.
ROUNDING = 0.02
# Rounding may also decide a near tie in the midst of a search, which then ends with another translation.
ANOTHER_WAY = 0.1
MAX_LOST_BLEU = 0.3
MAX_LOST_BY_MAP = 0.1


@dataclass(frozen=True)
class Sentences:
    """To translate, with references where there are any."""

    sources: list[str]
    references: list[str]
    origin: str
    lowercase: bool = False
    """Scores disregard case."""

    def bleu(self, translations: list[Translation]) -> float | None:
        """None where there is too little to score."""
        if len(self.references) < MIN_SCORED:
            return None
        return corpus_scores([one.text for one in translations], self.references, lowercase=self.lowercase)["bleu"]


def find_prepared(trained: Trained) -> PreparedSet | None:
    """The set that the run was trained on, where it is here and as it was."""
    prepared = translation.find(trained.recipe)
    try:
        if prepared is not None:
            translation.check_same(prepared, trained.run)
    except DataError:
        return None
    return prepared


def find_sentences(trained: Trained, prepared: PreparedSet | None, file: Path | None) -> Sentences:
    """The file's, else of the split that the run was evaluated on, else the samples that the run kept."""
    settings: Any = trained.recipe.evaluate
    if file:
        sources, references, origin = *_of_file(file), file.name
    elif prepared:
        sources, references = prepared.text(settings.split)
        origin = f"{settings.split} split"
    else:
        sources, references, origin = *_samples(trained.run), "the run's samples"
    if not sources:
        raise DataError(
            f"there is no text here to verify the model of {trained.run.path} with",
            hint="--sentences FILE: one sentence a line, or a tab and its translation after it",
        )
    return Sentences(sources[:MAX_SENTENCES], references[:MAX_SENTENCES], origin, settings.lowercase)


def _of_file(file: Path) -> tuple[list[str], list[str]]:
    rows = [line.split("\t") for line in read_lines(file) if line.strip()]
    has_references = all(len(row) == 2 for row in rows)
    return [row[0] for row in rows], [row[1] for row in rows] if has_references else []


def _samples(run: RunDirectory) -> tuple[list[str], list[str]]:
    found = {sample["source"]: sample["reference"] for event in run.events_of() for sample in event.get("samples", [])}
    return [*found], [*found.values()]


@dataclass(frozen=True)
class Measured:
    translations: list[Translation]
    items_per_second: float
    seconds_per_item: float


def translated(translator: Translator, sources: list[str], report: Report, stage: str) -> list[Translation]:
    """The best translation of each."""
    found = []
    for first in range(0, len(sources), SENTENCES_PER_REPORT):
        report(stage, first, len(sources), unit="sentences")
        found += [best for best, *_ in translator.translate(sources[first : first + SENTENCES_PER_REPORT])]
    return found


def measure(translator: Translator, sources: list[str], report: Report, stage: str) -> Measured:
    """Many at once, then one at a time."""
    translator.translate(sources[:1])
    started = time.perf_counter()
    translations = translated(translator, sources, report, stage)
    together = time.perf_counter() - started
    alone = [_seconds(translator, source) for source in sources[:NUM_TIMED_ALONE]]
    return Measured(translations, len(sources) / together, statistics.median(alone))


def _seconds(translator: Translator, source: str) -> float:
    started = time.perf_counter()
    translator.translate([source])
    return time.perf_counter() - started


def identical_percent(expected: list[Translation], found: list[Translation]) -> float | None:
    """Of the sentences whose translation ends by itself: where one is cut off, batches differ in where. None, where
    all are, as an untrained model's."""
    pairs = [pair for pair in zip(expected, found, strict=True) if not _is_cut(pair[0])]
    return 100 * sum(ours.text == theirs.text for ours, theirs in pairs) / len(pairs) if pairs else None


def why_not_float32(expected: list[Translation], found: list[Translation]) -> str:
    """The same translations with the same scores, to rounding; the few others score nearly the same."""
    percent = identical_percent(expected, found)
    if percent is not None and percent < MIN_IDENTICAL_PERCENT:
        return f"only {percent:.1f} % of its translations are the trained model's"
    for ours, theirs in zip(expected, found, strict=True):
        allowed = ROUNDING if ours.text == theirs.text else ANOTHER_WAY
        is_close = abs(ours.score - theirs.score) <= allowed * (1 + abs(ours.score))
        if not (is_close or _is_cut(ours)):
            return f'it scores "{theirs.text}" {theirs.score:.3f}, the trained model "{ours.text}" {ours.score:.3f}'
    return ""


def why_not_smaller(expected: float | None, found: float | None) -> str:
    if expected is None or found is None:
        return f"fewer than {MIN_SCORED} sentences with references are here: it cannot be judged"
    lost = expected - found
    return f"loses {lost:.2f} of BLEU {expected:.2f}" if lost > MAX_LOST_BLEU else ""


def _is_cut(one: Translation) -> bool:
    """At its greatest length, as an undertrained model's are."""
    return len(one.target_pieces) >= MAX_RATIO * len(one.source_pieces) + MAX_EXTRA
