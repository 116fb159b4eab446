"""A translator becomes CTranslate2: written, compared with the trained model on real sentences, timed."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from konvoi import __version__
from konvoi.bundle.format import PRECISIONS, Bundle, Description, Variant
from konvoi.bundle.interfaces import Translation
from konvoi.bundle.translator import VOCABULARY_MAP_FILE, open_translator
from konvoi.data.prepared import PreparedSet
from konvoi.data.subwords import FILE_NAME as VOCABULARY_FILE
from konvoi.engine.precision import Precision
from konvoi.engine.trained import Trained
from konvoi.errors import BundleError
from konvoi.export import lexicon
from konvoi.export.ctranslate2 import write_transformer
from konvoi.export.run_translator import RunTranslator
from konvoi.export.verify import (
    MAX_LOST_BY_MAP,
    Measured,
    Sentences,
    find_prepared,
    find_sentences,
    identical_percent,
    measure,
    translated,
    why_not_float32,
    why_not_smaller,
)
from konvoi.models.transformer import Model
from konvoi.stages import Report, silent
from konvoi.tasks.translation import vocabulary_of


def export_translation(
    trained: Trained,
    folder: Path,
    precisions: Collection[str],
    report: Report = silent,
    *,
    sentences: Path | None = None,
) -> tuple[dict[str, Variant], dict[str, Any]]:
    """Puts the vocabulary and a folder for each precision into `folder`, those that passed: variants, settings.

    settings["left_out"] says why for each precision that was asked for and is not there.
    """
    prepared = find_prepared(trained)
    text = find_sentences(trained, prepared, sentences)
    # In full precision, whatever it was trained in: what an exported model is compared with should not round.
    exact = replace(trained, precision=Precision("fp32", trained.device))
    expected = translated(RunTranslator(exact), text.sources, report, "translating with the trained model")
    shutil.copyfile(trained.run.vocabulary_file, folder / VOCABULARY_FILE)
    export = _Export(trained, folder, settings_of(trained), prepared, text, expected, report)
    variants: dict[str, Variant] = {}
    for precision in filter(precisions.__contains__, PRECISIONS):
        variants[precision], why_not = export.variant(precision)
        if why_not:
            export.left_out[precision] = why_not
            del variants[precision]
            shutil.rmtree(folder / precision)
    if not variants:
        raise BundleError(f"nothing to export: {export.left_out}", hint="--precision float32")
    return variants, {**export.settings, "left_out": export.left_out, "measured_on": export.measured_on}


def settings_of(trained: Trained) -> dict[str, Any]:
    recipe: Any = trained.recipe
    return {
        "source": recipe.task.source,
        "target": recipe.task.target,
        "beam": recipe.evaluate.beam,
        "length_penalty": recipe.evaluate.length_penalty,
        "normalise": {
            "lowercase": recipe.data.lowercase,
            "nfkc": recipe.data.nfkc,
            "plain_punctuation": recipe.data.normalise_punctuation,
        },
    }


class _Export:
    """One trained model, its text and its translations, for all precisions."""

    def __init__(
        self,
        trained: Trained,
        folder: Path,
        settings: dict[str, Any],
        prepared: PreparedSet | None,
        text: Sentences,
        expected: list[Translation],
        report: Report,
    ) -> None:
        self.trained, self.folder, self.settings, self.prepared = trained, folder, settings, prepared
        self.text, self.expected, self.report = text, expected, report
        self.left_out: dict[str, str] = {}
        self.measured_on = f"{text.origin}, {len(text.sources):,} sentences"

    def variant(self, precision: str) -> tuple[Variant, str]:
        """Written and measured; and why it can't be used, where it can't."""
        model, folder = self.trained.model, self.folder / precision
        assert isinstance(model, Model)
        folder.mkdir()
        write_transformer(model, vocabulary_of(self.trained.run), precision, folder)
        found = self._measured(precision)
        why_not = self._why_not(precision, found)
        scores = self._scores(found)
        if not why_not and (mapped := self._mapped(precision, found)):
            found, scores = mapped, self._scores(mapped) | {"bleu_without_map": scores["bleu"]}
        num_bytes = sum(file.stat().st_size for file in folder.iterdir())
        return Variant(precision, num_bytes, scores, found.seconds_per_item, found.items_per_second), why_not

    def _measured(self, precision: str) -> Measured:
        with closing(open_translator(self._draft(precision))) as translator:
            return measure(translator, self.text.sources, self.report, f"verifying {precision}")

    def _mapped(self, precision: str, plain: Measured) -> Measured | None:
        """With a vocabulary map, where that keeps the score; float32 is for those who want exactly what was trained."""
        without = self.text.bleu(plain.translations)
        if precision == "float32" or self.prepared is None or without is None:
            return None
        self.report("learning which pieces translate which")
        lexicon.write(self.prepared, self.folder / precision)
        mapped = self._measured(precision)
        bleu = self.text.bleu(mapped.translations)
        if bleu is not None and without - bleu <= MAX_LOST_BY_MAP:
            return mapped
        (self.folder / precision / VOCABULARY_MAP_FILE).unlink()
        self.left_out[f"{precision}'s vocabulary map"] = f"loses {without - (bleu or 0):.2f} of BLEU {without:.2f}"
        return None

    def _draft(self, precision: str) -> Bundle:
        """The bundle as it will be, as far as a translator needs to know."""
        variants = {precision: Variant(precision, 0)}
        description = Description("translation", "", "", __version__, variants, precision, self.settings)
        return Bundle(self.folder, description, files={}, _verified={precision})

    def _why_not(self, precision: str, found: Measured) -> str:
        if precision != "float32":
            return why_not_smaller(self.text.bleu(self.expected), self.text.bleu(found.translations))
        if why_not := why_not_float32(self.expected, found.translations):
            raise BundleError(
                f"the exported model differs from the trained one: {why_not}",
                hint="did the training diverge? Else choose another --checkpoint, and please report it",
            )
        return ""

    def _scores(self, found: Measured) -> dict[str, float]:
        identical = identical_percent(self.expected, found.translations)
        bleu = self.text.bleu(found.translations)
        scores = {"identical_percent": identical, "bleu": bleu}
        return {name: score for name, score in scores.items() if score is not None}
