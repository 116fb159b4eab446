"""Encoding by words against SentencePiece line by line: the very same ids, whatever the text."""

from __future__ import annotations

import io
import lzma
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.shared_data import shared_data

from konvoi.data.subwords import MARK, Subwords
from konvoi.data.word_encoder import WordEncoder

LINES = [
    "the cat sees the dog",
    "die Katze sieht den Hund, der bellt",
    "a dog (not a cat) sees",
    "\u00fcber \u00e4rmer",
]
# Blanks of all kinds, what normalisation deletes or takes apart, marks, letters to compose, unknown ones, controls.
NASTY = (
    " \t\r\v\f\0\x01\x1c\x7f\x85\u00a0\u00a8\u00ad\u1680\u2003\u200b\u200d\u2028\u2029\u202f\u2060\u3000\ufeff\ufffd"
)
NASTY += "\u2581\u2585\u0301\u0308\u0344\u1fed\ufdfa\ufb01\u017f\u1100\u1161\u11a8\uac00\u732b\U0001f600<s>/abcABC.,"


def learn(lines: list[str] = LINES, size: int = 60, **options: Any) -> Subwords:
    model = io.BytesIO()
    ids = {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "minloglevel": 2, "character_coverage": 1.0}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=size, **{"model_type": "bpe"} | ids | options
    )
    return Subwords(model.getvalue())


def assert_same(subwords: Subwords, lines: list[str], encoder: WordEncoder | None = None) -> None:
    tokens, lengths = (encoder or WordEncoder(subwords)).encode("".join(f"{line}\n" for line in lines))
    expected = subwords.encode(lines, with_eos=True)
    assert [ids.tolist() for ids in np.split(tokens, np.cumsum(lengths)[:-1])] == (expected or [[]])
    assert lengths.tolist() == [len(ids) for ids in expected]


NORMALISATIONS = ["nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity"]


@pytest.fixture(scope="module")
def learnt() -> dict[str, tuple[Subwords, WordEncoder]]:
    """For each way of normalising a vocabulary, and one with bytes for unknown characters."""
    found = {name: learn(normalization_rule_name=name) for name in NORMALISATIONS}
    found["bytes"] = learn(size=60 + 256, byte_fallback=True)
    return {name: (subwords, WordEncoder(subwords)) for name, subwords in found.items()}


def test_words_are_looked_up_and_not_encoded_again(learnt: dict[str, tuple[Subwords, WordEncoder]]) -> None:
    subwords, encoder = learnt["nmt_nfkc"]
    assert encoder.is_by_words
    assert_same(subwords, LINES * 3, encoder)
    assert dict.get(encoder._table, "Katze") is not None


def test_lines_are_told_apart_and_may_be_empty() -> None:
    subwords = learn()
    for lines in (["a dog", "", "the cat"], [""], ["", ""], [" "], [], ["a  dog ", " the"]):
        assert_same(subwords, lines)


@pytest.mark.parametrize("name", [*NORMALISATIONS, "bytes"])
def test_any_text_has_the_ids_that_sentencepiece_gives_its_lines(
    name: str, learnt: dict[str, tuple[Subwords, WordEncoder]]
) -> None:
    subwords, encoder = learnt[name]
    assert encoder.is_by_words
    text = st.text(alphabet=st.one_of(st.sampled_from(NASTY), st.characters(exclude_categories=["Cs"])), max_size=12)

    @settings(max_examples=250, deadline=None)
    @given(st.lists(text.map(lambda line: line.replace("\n", "")), max_size=4))
    def check(lines: list[str]) -> None:
        assert_same(subwords, lines, encoder)

    check()


@pytest.mark.parametrize("name", ["nmt_nfkc", "nfkc_cf"])
def test_every_character_at_every_place_of_a_word(name: str, learnt: dict[str, tuple[Subwords, WordEncoder]]) -> None:
    patterns: list[Callable[[str], str]] = [
        lambda c: f"a {c} b",
        lambda c: f"a {c}b",
        lambda c: f"a{c} b",
        lambda c: f"{c} \u0308b{c}",
    ]
    # All up to the private area, where normalisation has its rules; no line end and no half of a pair.
    lines = [pattern(chr(code)) for code in range(0xE000) if code != 10 and code < 0xD800 for pattern in patterns]
    lines += [pattern(chr(code)) for code in range(0xF900, 0x10000) for pattern in patterns]
    subwords, encoder = learnt[name]
    assert_same(subwords, lines, encoder)


def europarl(language: str, count: int) -> list[str]:
    path = shared_data(f"europarl/europarl-direct.{language}.xz")
    with lzma.open(path, "rt", encoding="utf-8", newline="\n") as stream:
        return [line.rstrip("\n") for line in islice(stream, count)]


def test_twenty_thousand_real_lines_with_the_reference_vocabulary() -> None:
    subwords = Subwords.load(shared_data("reference-vocabulary/m_common.model"))
    encoder = WordEncoder(subwords)
    assert encoder.is_by_words
    for language in ("en", "de"):
        assert_same(subwords, europarl(language, 10_000), encoder)


def test_real_lines_with_a_learnt_vocabulary(tmp_path: Path) -> None:
    lines = europarl("de", 10_000)
    assert_same(Subwords.learn(lines[:3000], 4000, tmp_path), lines)


def test_a_full_table_begins_anew_and_changes_nothing() -> None:
    subwords = learn()
    encoder = WordEncoder(subwords, max_words=3)
    for _ in range(2):
        assert_same(subwords, LINES, encoder)
        # the line end, up to 3 words and the one that was over
        assert len(encoder._table) <= 1 + 3 + 1


def test_words_as_long_as_books_do_not_stay() -> None:
    encoder = WordEncoder(learn(), max_words=3)
    for letter in "abcde":
        encoder.encode(letter * 100 + "\n")
        # 3 words x 32 characters = 96, and the word that came when there were no more
        assert sum(map(len, encoder._table)) <= 96 + 100 + 1


def test_a_mark_in_the_text_sends_only_its_line_the_plain_way() -> None:
    subwords = learn(normalization_rule_name="identity")
    encoder = WordEncoder(subwords)
    # By words the first "a" and its mark would lose the mark: SentencePiece cuts off blanks at an end.
    assert subwords.encode_word(f"a{MARK}") + subwords.encode_word("dog") != subwords.encode_word(f"a{MARK} dog")
    assert_same(subwords, ["the cat", f"a{MARK} dog", "a dog"], encoder)
    assert "cat" in encoder._table and f"a{MARK}" not in encoder._table


@pytest.mark.parametrize(
    "options",
    [
        {"model_type": "unigram", "size": 40},
        {"split_by_whitespace": False, "size": 80},
        {"treat_whitespace_as_suffix": True},
        {"add_dummy_prefix": False},
        {"remove_extra_whitespaces": False},
        {"user_defined_symbols": ["the cat"]},
        {"user_defined_symbols": ["cat"]},
    ],
    ids=lambda options: next(iter(options)),
)
def test_a_vocabulary_of_another_kind_is_encoded_line_by_line(options: dict[str, Any]) -> None:
    subwords = learn(LINES * 20, **options)
    encoder = WordEncoder(subwords)
    assert not encoder.is_by_words
    assert_same(subwords, [*LINES, "", "a  the  cat ", " a"], encoder)


def test_a_vocabulary_without_the_mark_is_encoded_line_by_line() -> None:
    model = learn().read_model()
    for piece in model.pieces:
        if piece.piece == MARK:
            piece.piece = "\u2603"
    subwords = Subwords(model.SerializeToString())
    # Two unknown pieces in a row become one, also over the blank between two words.
    assert subwords.encode_word("\u732b \u732b") == [Subwords.UNK]
    assert not WordEncoder(subwords).is_by_words
    assert_same(subwords, ["\u732b \u732b", *LINES])


def test_ids_are_as_wide_as_the_vocabulary_asks_for() -> None:
    small = learn()
    model = small.read_model()
    for number in range(1 << 16):
        model.pieces.add(piece=f"piece{number}", score=-1e6 - number)
    # 60 pieces + 65,536: no longer in two bytes
    large = Subwords(model.SerializeToString())
    assert WordEncoder(small).encode("a\n")[0].dtype == np.uint16
    assert WordEncoder(large).encode("a\n")[0].dtype == np.uint32
    assert_same(large, [*LINES, "piece65535"])
