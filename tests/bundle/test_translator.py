"""A bundle's translator says what the run's does, and takes any text."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from konvoi.bundle.format import Bundle, open_bundle
from konvoi.bundle.interfaces import Translator
from konvoi.bundle.pieces import MAX_SOURCE_PIECES, Found, PieceTranslator, Source
from konvoi.bundle.search import EXACT_PATIENCE
from konvoi.bundle.translator import BundleTranslator, _batches, open_translator
from konvoi.data.subwords import Subwords
from konvoi.errors import BundleError
from konvoi.export.run_translator import open_run_translator

SENTENCES = ["Go.", "I do not know what you are talking about.", "", "Hello.", "Tom is here.", "   ", "Where is Tom?"]
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=40)


@pytest.fixture(scope="module")
def bundle(konvoi: Callable[..., Any], trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    path = tmp_path_factory.mktemp("bundles") / "tiny"
    result = konvoi("export", trained_run, "--to", path, "--precision", "float32")
    assert result.exit_code == 0, result.stderr
    return open_bundle(path)


@pytest.fixture(scope="module")
def translator(bundle: Bundle) -> Iterator[BundleTranslator]:
    with closing(open_translator(bundle, threads=2)) as translator:
        yield translator


@pytest.fixture(scope="module")
def of_run(trained_run: Path) -> Translator:
    return open_run_translator(trained_run)


class Echo(PieceTranslator):
    """Says every piece again, the unknown ones as unknown, and looks at it while saying so."""

    def search(
        self, sources: list[Source], *, beam: int | None, num_best: int, with_attention: bool
    ) -> list[list[Found]]:
        return [
            [Found(self.subwords.pieces(one.ids), -1.0, self.attention(len(one.ids)))] * num_best for one in sources
        ]

    def attention(self, length: int) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(row) for row in np.eye(length).tolist())


@pytest.fixture(scope="module")
def echo(trained_run: Path) -> Echo:
    return Echo(Subwords.load(trained_run / "vocabulary.model"), str.strip)


def texts(translator: Translator, sentences: list[str]) -> list[str]:
    return [best.text for best, *_ in translator.translate(sentences)]


@pytest.mark.parametrize(("variant", "patience"), [("float32", EXACT_PATIENCE), ("int8", 1.0)])
def test_float32_alone_searches_longer(bundle: Bundle, variant: str, patience: float) -> None:
    # The same files under another name: only that says what they are for.
    (files,) = bundle.description.variants.values()
    description = replace(bundle.description, variants={variant: files}, default=variant)
    with closing(open_translator(replace(bundle, description=description), threads=1)) as translator:
        translator._engine = engine = Recorder(translator._engine)
        translator.translate(["Hello."])
        assert engine.patience == [patience]


class Recorder:
    def __init__(self, engine: Any) -> None:
        self.engine, self.patience = engine, []

    def translate_batch(self, pieces: list[list[str]], **options: Any) -> Any:
        self.patience.append(options["patience"])
        return self.engine.translate_batch(pieces, **options)


def test_it_knows_its_languages(translator: BundleTranslator, of_run: Translator) -> None:
    assert (translator.source, translator.target) == (of_run.source, of_run.target) == ("en", "de")


def test_a_bundle_and_its_run_say_the_same(translator: BundleTranslator, of_run: Translator) -> None:
    for ours, runs in zip(
        translator.translate(SENTENCES, beam=3, num_best=2),
        of_run.translate(SENTENCES, beam=3, num_best=2),
        strict=True,
    ):
        assert ours[0].text == runs[0].text
        # The run's softmax has a few rows more that stand for no piece.
        assert ours[0].score == pytest.approx(runs[0].score, rel=0.01)


def test_the_order_is_kept_and_company_changes_nothing(translator: BundleTranslator) -> None:
    together = texts(translator, SENTENCES * 3)
    assert together == [texts(translator, [sentence])[0] for sentence in SENTENCES] * 3


def test_the_best_come_best_first(translator: BundleTranslator) -> None:
    for found in translator.translate(["Where is Tom?", "Go."], num_best=4):
        scores = [one.score for one in found]
        assert len(scores) == 4
        assert scores == sorted(scores, reverse=True)


def test_attention_has_a_row_for_each_piece_and_is_that_of_the_run(
    translator: BundleTranslator, of_run: Translator
) -> None:
    ((ours,),), ((runs,),) = (one.translate(["Where is Tom?"], with_attention=True) for one in (translator, of_run))
    assert ours.target_pieces == runs.target_pieces
    assert np.array(ours.attention).shape == (len(ours.target_pieces), len(ours.source_pieces))
    np.testing.assert_allclose(ours.attention, runs.attention, atol=1e-3)
    assert translator.translate(["Where is Tom?"])[0][0].attention == ()


def test_empty_lines_stay_empty(translator: BundleTranslator) -> None:
    assert texts(translator, ["", "  \t", "\x00"]) == ["", "", ""]
    assert translator.translate([]) == []


def test_another_script_comes_back_as_it_is(translator: BundleTranslator) -> None:
    assert texts(translator, ["日本語 🦄", "שלום עולם", " \u0627\u0644 "]) == ["日本語 🦄", "שלום עולם", "\u0627\u0644"]


@settings(deadline=None, max_examples=40)
@given(st.lists(ANY_TEXT, max_size=4))
def test_any_text_is_answered(translator: BundleTranslator, sentences: list[str]) -> None:
    found = translator.translate(sentences)
    assert len(found) == len(sentences)
    for best, *_ in found:
        best.text.encode("utf-8")
        assert "\n" not in best.text and "\u2047" not in best.text


def test_a_very_long_line_is_translated_sentence_by_sentence(translator: BundleTranslator) -> None:
    # 600 sentences of at least 2 pieces: more than 512 pieces
    one = texts(translator, ["Tom is here."])[0]
    assert texts(translator, ["Tom is here. " * 600]) == [" ".join([one] * 600)]


def test_a_very_long_sentence_is_cut_and_nothing_of_it_is_logged(echo: Echo, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        ((best,),) = echo.translate(["Tom " * 25_000])
    assert best.text.split() == ["Tom"] * MAX_SOURCE_PIECES
    assert caplog.messages == ["a sentence of 25000 pieces is cut to the first 512"]


@pytest.mark.parametrize("sentence", ["Tom likes 🦄.", "Tom likes \u2603\u2603 and Tom", "Is Ťom here?"])
def test_unknown_words_come_back_as_they_were_written(echo: Echo, sentence: str) -> None:
    # The search says <unk> for what it does not know.
    assert texts(echo, [sentence]) == [sentence]


def test_what_a_model_says_for_an_unknown_word_gives_way_to_it(echo: Echo) -> None:
    class Babbler(Echo):
        """Says "Tom" for each piece that it does not know."""

        def search(self, sources: list[Source], **options: Any) -> list[list[Found]]:
            unknown = self.subwords.pieces([Subwords.UNK])[0]
            return [
                [replace(one, pieces=["Tom" if piece == unknown else piece for piece in one.pieces]) for one in found]
                for found in super().search(sources, **options)
            ]

    babbler = Babbler(echo.subwords, str.strip)
    ((best,),) = babbler.translate(["He is 🦄 here."], with_attention=True)
    assert best.text == "He is 🦄 here."
    assert len(best.attention) == len(best.target_pieces)


def test_batches_are_of_like_length_and_leave_no_core_idle() -> None:
    # 4 sentences for 2 threads: two each, the longest first
    assert list(_batches([3, 9, 4, 8], num_threads=2)) == [[1, 3], [2, 0]]
    # 64 pieces each: 128 // 64 = 2 at a time; 512 are too many, yet one goes alone
    assert [len(batch) for batch in _batches([512, *[64] * 5], num_threads=1)] == [1, 2, 2, 1]
    assert list(_batches([], num_threads=2)) == []


def test_a_bundle_of_pictures_is_no_translator(bundle: Bundle) -> None:
    pictures = replace(bundle, description=replace(bundle.description, task="classification"))
    with pytest.raises(BundleError, match="is no translator"):
        open_translator(pictures)


def test_an_unknown_variant_is_refused(bundle: Bundle) -> None:
    with pytest.raises(BundleError, match="float7"):
        open_translator(bundle, "float7")


@pytest.mark.parametrize("option", ["--beam", "--num-best"])
def test_more_hypotheses_than_memory_are_refused_in_a_line(
    konvoi: Callable[..., Any], bundle: Bundle, trained_run: Path, option: str
) -> None:
    for path in (bundle.path, trained_run):
        result = konvoi("translate", path, "Go.", option, 1_000_000)
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"{option} 1000000 is too many" in result.stderr and "Traceback" not in result.stderr
