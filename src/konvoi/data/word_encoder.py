"""Lines to ids several times as fast as SentencePiece alone, and the very same ids.

Words repeat, and pieces never reach over a blank: so each word is encoded once, by SentencePiece, and looked up from
then on. What makes that exact is checked for each vocabulary, not assumed; another one is encoded line by line.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import chain, groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from konvoi.data.subwords import MARK, Subwords
from konvoi.data.tokens import Tokens

# About 130 bytes each; the words of many million lines, but for the rarest.
MAX_WORDS = 500_000
# Languages without blanks have words as long as sentences: the table is bounded in characters, too.
MAX_CHARACTERS_PER_WORD = 32
# Those of SentencePiece, none of which has a rule for characters on both sides of a blank.
NORMALISATIONS = {"nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity"}

Lengths = NDArray[np.int64]


class WordEncoder:
    """Encodes text that comes in chunks (some thousand lines each keep to the processor's cache)."""

    def __init__(self, subwords: Subwords, max_words: int = MAX_WORDS) -> None:
        self._subwords, self.dtype = subwords, subwords.dtype
        self.is_by_words = goes_by_words(subwords.read_model())
        self._table = _Table(subwords, max_words)

    def encode(self, text: str) -> tuple[Tokens, Lengths]:
        """All ids of the sentences, each of which ends with a line end that becomes EOS, and how many ids each has."""
        assert text.endswith("\n") or not text
        if not self.is_by_words:
            return self._encode_lines(text)
        if MARK not in text:
            return self._encode_words(text)
        # A mark in the text itself can look like a blank once SentencePiece has put in its own.
        return _joined([self._encode_part(lines, has_mark) for has_mark, lines in groupby(_lines(text), _has_mark)])

    def _encode_part(self, lines: Iterable[str], has_mark: bool) -> tuple[Tokens, Lengths]:
        text = "".join(f"{line}\n" for line in lines)
        return self._encode_lines(text) if has_mark else self._encode_words(text)

    def _encode_words(self, text: str) -> tuple[Tokens, Lengths]:
        words = text.replace("\n", " \n ").split(" ")
        tokens: Tokens = np.frombuffer(b"".join(map(self._table.__getitem__, words)), dtype=self.dtype)
        ends = np.flatnonzero(tokens == Subwords.EOS)
        return tokens, np.diff(ends, prepend=-1)

    def _encode_lines(self, text: str) -> tuple[Tokens, Lengths]:
        sentences = self._subwords.encode(_lines(text), with_eos=True)
        tokens = np.fromiter(chain.from_iterable(sentences), dtype=self.dtype)
        return tokens, np.fromiter(map(len, sentences), dtype=np.int64, count=len(sentences))


class _Table(dict[str, bytes]):
    """The ids of a word, as bytes that can be joined; a new word is encoded when it is first asked for."""

    def __init__(self, subwords: Subwords, max_words: int) -> None:
        super().__init__()
        self._encode, self._typecode, self._max_words = subwords.encode_word, subwords.dtype.char, max_words
        self._start()

    def _start(self) -> None:
        self.clear()
        self._num_characters = 0
        self["\n"] = self._as_bytes([Subwords.EOS])

    def __missing__(self, word: str) -> bytes:
        ids = self._as_bytes(self._encode(word))
        # Over the bound everything goes and the frequent words are back at once: no book-keeping per look-up.
        if len(self) > self._max_words or self._num_characters > self._max_words * MAX_CHARACTERS_PER_WORD:
            self._start()
        self[word] = ids
        self._num_characters += len(word)
        return ids

    def _as_bytes(self, ids: list[int]) -> bytes:
        return array(self._typecode, ids).tobytes()


def goes_by_words(model: Any) -> bool:
    """Whether a line's ids are those of its words one after another; `model` is a ModelProto.

    BPE only: a unigram model adds up the scores of the whole line, and rounding may then decide otherwise.
    """
    trainer, normaliser = model.trainer_spec, model.normalizer_spec
    return (
        trainer.model_type == trainer.BPE
        and normaliser.add_dummy_prefix
        and normaliser.remove_extra_whitespaces
        and normaliser.escape_whitespaces
        and normaliser.name in NORMALISATIONS
        and _has_word_pieces(model.pieces)
    )


def _has_word_pieces(pieces: Iterable[Any]) -> bool:
    """None reaches into a next word, and a word's start is always a known piece."""
    # Neighbouring unknown pieces become one; the mark, if it is a piece, keeps those of two words apart.
    has_mark = False
    for piece in pieces:
        # Pieces that users define are found before any other rule applies, blanks and all.
        if MARK in piece.piece[1:] or piece.type in (piece.USER_DEFINED, piece.UNUSED):
            return False
        has_mark = has_mark or piece.piece == MARK
    return has_mark


def _lines(text: str) -> list[str]:
    """Ended by line feeds only, unlike what str.splitlines() takes for line ends."""
    return text.split("\n")[:-1]


def _has_mark(line: str) -> bool:
    return MARK in line


def _joined(parts: list[tuple[Tokens, Lengths]]) -> tuple[Tokens, Lengths]:
    return np.concatenate([tokens for tokens, _ in parts]), np.concatenate([lengths for _, lengths in parts])
