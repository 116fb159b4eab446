"""BPE dropout: other pieces of the same text, as often as the paper's procedure gives them."""

from __future__ import annotations

import io
import lzma
import random
import subprocess
import sys
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.shared_data import shared_data

from konvoi.data.bpe_dropout import INFINITE, BpeDropout
from konvoi.data.subwords import MARK, Subwords
from konvoi.data.tokens import Tokens
from konvoi.errors import DataError

LINES = [
    "the cat sees the dog",
    "die Katze sieht den Hund, der bellt",
    "a dog (not a cat) sees",
    "\u00fcber \u00e4rmer",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vocabulary")


@pytest.fixture(scope="module")
def subwords(folder: Path) -> Subwords:
    return Subwords.learn(LINES, 70, folder)


def encode(subwords: Subwords, lines: list[str]) -> list[Tokens]:
    return [np.array(ids, dtype=subwords.dtype) for ids in subwords.encode(lines, with_eos=True)]


def as_lists(sentences: list[Tokens]) -> list[list[int]]:
    return [ids.tolist() for ids in sentences]


def decode(subwords: Subwords, sentences: list[Tokens]) -> list[str]:
    return [subwords.decode(ids.tolist()) for ids in sentences]


def europarl(language: str, count: int) -> list[str]:
    path = shared_data(f"europarl/europarl-direct.{language}.xz")
    with lzma.open(path, "rt", encoding="utf-8", newline="\n") as stream:
        return [line.rstrip("\n") for line in islice(stream, count)]


def pieces_by_the_paper(subwords: Subwords, word: str, probability: float, draw: random.Random) -> tuple[str, ...]:
    """One step at a time: each joint that makes a piece is dropped or not, the best of the others is made."""
    model = subwords.read_model()
    scores = {piece.piece: piece.score for piece in model.pieces if piece.type == piece.NORMAL}
    symbols = list(MARK + word)
    while True:
        pairs = [(left + right, place) for place, (left, right) in enumerate(pairwise(symbols))]
        left_over = [(-scores[s], p) for s, p in pairs if s in scores and draw.random() >= probability]
        if not left_over:
            return tuple(symbols)
        place = min(left_over)[1]
        symbols[place : place + 2] = ["".join(symbols[place : place + 2])]


@pytest.mark.parametrize("probability", [0.1, 0.5])
@pytest.mark.parametrize("word", ["Katze", "sieht"])
def test_pieces_are_as_frequent_as_in_the_papers_procedure(subwords: Subwords, word: str, probability: float) -> None:
    count = 6000
    sentences = encode(subwords, [word]) * count
    found = Counter(
        tuple(subwords.pieces(ids[:-1])) for ids in as_lists(BpeDropout(subwords, probability).apply(sentences, (1,)))
    )
    draw = random.Random(2)
    expected = Counter(pieces_by_the_paper(subwords, word, probability, draw) for _ in range(count))
    assert len(expected) >= 4
    for pieces in found | expected:
        # The difference of two counts of n draws with the share p has a variance of 2 n p (1 - p): 5 deviations.
        share = (found[pieces] + expected[pieces]) / (2 * count)
        assert abs(found[pieces] - expected[pieces]) <= 5 * (2 * count * share * (1 - share)) ** 0.5 + 5


def test_probability_zero_leaves_the_canonical_pieces(subwords: Subwords) -> None:
    sentences = encode(subwords, [*LINES, "", "Katzen\u732b"])
    assert as_lists(BpeDropout(subwords, 0.0).apply(sentences, (1,))) == as_lists(sentences)


def test_joining_real_text_anew_without_drops_gives_the_canonical_pieces() -> None:
    subwords = Subwords.load(shared_data("reference-vocabulary/m_common.model"))
    dropout = BpeDropout(subwords, 0.0)
    for language in ("en", "de"):
        tokens = np.concatenate(encode(subwords, europarl(language, 1500))).astype(np.int64)
        words = dropout._words(tokens)
        assert 20_000 < len(words.lengths) < len(tokens)
        never = np.full(len(words.lengths), INFINITE)
        joined = dropout._join(words, never, np.random.default_rng(0))
        assert joined.values.tolist() == tokens.tolist()
        assert joined.lengths.tolist() == words.lengths.tolist()


def test_real_text_reads_the_same_in_other_pieces() -> None:
    subwords = Subwords.load(shared_data("reference-vocabulary/m_common.model"))
    lines = europarl("de", 300)
    sentences = encode(subwords, lines)
    found = BpeDropout(subwords, 0.1).apply(sentences, (1,))
    assert decode(subwords, found) == decode(subwords, sentences)
    assert sum(map(len, found)) > 1.05 * sum(map(len, sentences))
    assert {ids.dtype for ids in found} == {np.dtype(np.uint16)}


def test_probability_one_gives_characters(subwords: Subwords) -> None:
    (found,) = BpeDropout(subwords, 1.0).apply(encode(subwords, ["the cat"]), (1,))
    assert subwords.pieces(found.tolist()) == [*f"{MARK}the{MARK}cat", "</s>"]


TEXT = st.text(alphabet=st.sampled_from("abcdehinorstuzKH ,()\u732b\u00e4\u2581\u00a8"), max_size=40)


@settings(max_examples=150, deadline=None)
@given(st.lists(TEXT, min_size=1, max_size=4), st.sampled_from([0.0, 0.1, 0.5, 1.0]), st.integers(0, 1000))
def test_any_text_reads_the_same(subwords: Subwords, lines: list[str], probability: float, seed: int) -> None:
    sentences = encode(subwords, lines)
    found = BpeDropout(subwords, probability).apply(sentences, (seed,))
    assert decode(subwords, found) == decode(subwords, sentences)
    assert [ids[-1] for ids in found] == [Subwords.EOS] * len(lines)
    assert [Counter(ids.tolist())[Subwords.UNK] for ids in found] == [ids.tolist().count(3) for ids in sentences]


def test_bytes_and_unknown_pieces_stay_and_are_joined_with_nothing(tmp_path: Path) -> None:
    with_bytes = Subwords.learn(LINES, 70 + 256, tmp_path, byte_fallback=True)
    without = Subwords.learn(LINES, 70, tmp_path)
    # U+732B in UTF-8 is e7 8c ab
    for vocabulary, middle in ((with_bytes, ["<0xE7>", "<0x8C>", "<0xAB>"]), (without, ["<unk>"])):
        (found,) = BpeDropout(vocabulary, 1.0).apply(encode(vocabulary, ["cat\u732bcat"]), (1,))
        assert vocabulary.pieces(found.tolist()) == [*f"{MARK}cat", *middle, *"cat", "</s>"]


def test_a_piece_with_a_character_that_is_unknown_alone_stays(subwords: Subwords) -> None:
    model = subwords.read_model()
    (lost,) = (piece for piece in model.pieces if piece.piece == "K")
    lost.piece = "\u2603"
    vocabulary = Subwords(model.SerializeToString())
    sentences = encode(vocabulary, ["Katze sieht"])
    assert any("K" in piece and len(piece) > 1 for piece in vocabulary.pieces(sentences[0].tolist()))
    found = BpeDropout(vocabulary, 1.0).apply(sentences, (1,))
    assert decode(vocabulary, found) == ["Katze sieht"]
    assert vocabulary.pieces(found[0].tolist())[-7:] == [MARK, *"sieht", "</s>"]


def test_the_same_seed_gives_the_same_whatever_came_before(subwords: Subwords) -> None:
    sentences = encode(subwords, LINES * 10)
    first, second = BpeDropout(subwords, 0.3), BpeDropout(subwords, 0.3)
    expected = as_lists(first.apply(sentences, (1, 2, 0)))
    second.apply(sentences[:7], (5,))
    second.apply(sentences, (1, 2, 1))
    assert as_lists(second.apply(sentences, (1, 2, 0))) == expected
    assert as_lists(second.apply(sentences, (1, 2, 1))) != expected


def test_another_process_finds_the_same_pieces(subwords: Subwords, folder: Path) -> None:
    program = (
        "import sys; from pathlib import Path; import numpy as np\n"
        "from konvoi.data.bpe_dropout import BpeDropout; from konvoi.data.subwords import Subwords\n"
        "subwords = Subwords.load(Path(sys.argv[1]))\n"
        "sentences = [np.array(ids) for ids in subwords.encode(sys.argv[2:], with_eos=True)]\n"
        "print([ids.tolist() for ids in BpeDropout(subwords, 0.3).apply(sentences, (1, 2))])\n"
    )
    command = [sys.executable, "-c", program, str(folder / "vocabulary.model"), *LINES]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    expected = as_lists(BpeDropout(subwords, 0.3).apply(encode(subwords, LINES), (1, 2)))
    assert result.stdout.strip() == str(expected)


def test_text_without_blanks_is_cut_and_reads_the_same(subwords: Subwords) -> None:
    sentences = encode(subwords, ["Katzesieht" * 100])
    dropout = BpeDropout(subwords, 0.5)
    words = dropout._words(sentences[0].astype(np.int64))
    assert words.lengths.max() == 16
    assert decode(subwords, dropout.apply(sentences, (1,))) == ["Katzesieht" * 100]


def test_no_sentences_give_none(subwords: Subwords) -> None:
    assert BpeDropout(subwords, 0.1).apply([], (1,)) == []


def test_sentences_without_an_end_are_our_own_mistake(subwords: Subwords) -> None:
    with pytest.raises(AssertionError, match="ends with EOS"):
        BpeDropout(subwords, 0.1).apply([np.array(subwords.encode_word("the cat"))], (1,))


def test_a_vocabulary_that_was_not_learnt_by_joining_is_refused() -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES * 20), model_writer=model, model_type="unigram", vocab_size=40, minloglevel=2
    )
    with pytest.raises(DataError, match="byte-pair encoding") as caught:
        BpeDropout(Subwords(model.getvalue()), 0.1)
    assert "without BPE dropout" in caught.value.hint


def test_a_vocabulary_with_unused_pieces_is_refused(subwords: Subwords) -> None:
    model = subwords.read_model()
    model.pieces[10].type = model.pieces[10].UNUSED
    with pytest.raises(DataError, match="unused"):
        BpeDropout(Subwords(model.SerializeToString()), 0.1)
