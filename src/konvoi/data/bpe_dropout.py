"""BPE dropout (Provilkov et al. 2020): in training, the same text in ever other pieces, so that a model learns what
pieces are made of.

Byte-pair encoding starts with single characters and joins neighbours, the best joint first, for as long as what they
make is a piece. With dropout every possible joint is left out of account with the given probability, anew at each step;
a word is done when none is left. Here all words of a micro-batch take their steps together, as numpy arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from konvoi.data.subwords import MARK, Subwords
from konvoi.data.tokens import Tokens
from konvoi.errors import DataError

# Text without blanks is cut into parts of so many pieces: a word takes as many steps as it has joints.
MAX_PIECES_PER_WORD = 16
# More than the joints of any word, and than the rank of any joint.
INFINITE = 1 << 30

Numbers = NDArray[np.int64]


class BpeDropout:
    """Other pieces for sentences of canonical ones. Nothing is remembered: the same seed gives the same pieces."""

    def __init__(self, subwords: Subwords, probability: float) -> None:
        assert 0 <= probability <= 1
        model = subwords.read_model()
        _check(model)
        self._probability, self._dtype = probability, subwords.dtype
        self._starts_word = np.array([_starts_word(piece) for piece in model.pieces])
        splittable = _splittable(model.pieces)
        self._characters = _characters(model.pieces, splittable)
        self._joints = _Joints(model.pieces, splittable)

    def apply(self, sentences: Sequence[Tokens], seed: tuple[int, ...]) -> list[Tokens]:
        """The same text in other pieces, a function of the seed. Each sentence ends with EOS, here as there."""
        if not sentences:
            return []
        tokens = np.concatenate(sentences).astype(np.int64)
        found = self._change(tokens, np.random.default_rng(seed)).astype(self._dtype)
        ends = np.flatnonzero(found == Subwords.EOS) + 1
        assert len(ends) == len(sentences) and ends[-1] == len(found), "every sentence ends with EOS"
        return np.split(found, ends[:-1])

    def _change(self, tokens: Numbers, random: np.random.Generator) -> Numbers:
        words = self._words(tokens)
        num_joints = np.add.reduceat(self._characters.lengths[tokens] - 1, words.starts)
        # How often in a row the best joint is not dropped. Where that is for all joints, the pieces remain as they
        # are: so it is with most words, which cost no more.
        num_taken = _num_before_first(self._probability, len(num_joints), random)
        changed = np.flatnonzero(num_taken < num_joints)
        joined = self._join(words.rows(changed), num_taken[changed], random)
        return words.replaced(changed, joined).values

    def _words(self, tokens: Numbers) -> _Ragged:
        """Cut before every blank, and a long word into its parts; an end of sentence is a word, too."""
        places = np.arange(len(tokens))
        first_places = np.maximum.accumulate(np.where(self._starts_word[tokens], places, 0))
        starts = np.flatnonzero((places - first_places) % MAX_PIECES_PER_WORD == 0)
        return _Ragged(tokens, np.diff(starts, append=len(tokens)))

    def _join(self, words: _Ragged, num_taken: Numbers, random: np.random.Generator) -> _Ragged:
        """The words joined anew from their characters; the best joint is taken num_taken times, then once dropped."""
        if len(words.lengths) == 0:
            return words
        characters = self._characters.rows(words.values)
        num_characters = np.add.reduceat(characters.lengths, words.starts)
        joining = _Joining(self._joints, _Ragged(characters.values, num_characters), num_taken)
        return _in_order(list(joining.run(self._probability, random)))


@dataclass(frozen=True)
class _Ragged:
    """Rows of different lengths, one after another."""

    values: Numbers
    lengths: Numbers

    @property
    def starts(self) -> Numbers:
        return np.cumsum(self.lengths) - self.lengths

    def rows(self, numbers: Numbers) -> _Ragged:
        """Those rows, in that order."""
        lengths = self.lengths[numbers]
        ends = np.cumsum(lengths)
        num_values = int(ends[-1]) if len(ends) else 0
        places = np.repeat(self.starts[numbers] - ends + lengths, lengths) + np.arange(num_values)
        return _Ragged(self.values[places], lengths)

    def replaced(self, numbers: Numbers, by: _Ragged) -> _Ragged:
        """All rows, but with others in the place of these."""
        both = _Ragged(np.concatenate((self.values, by.values)), np.concatenate((self.lengths, by.lengths)))
        order = np.arange(len(self.lengths))
        order[numbers] = len(order) + np.arange(len(numbers))
        return both.rows(order)


class _Joints:
    """Which two pieces make a third one, and which joint comes first."""

    def __init__(self, pieces: Sequence[Any], splittable: dict[str, int]) -> None:
        self._num_pieces = len(pieces)
        ranks = _ranks(pieces)
        found = sorted(
            (splittable[text[:cut]] * self._num_pieces + splittable[text[cut:]], ranks[number], number)
            for text, number in splittable.items()
            for cut in range(1, len(text))
            if text[:cut] in splittable and text[cut:] in splittable
        )
        # A last row greater than any pair, so that every search ends at a row.
        table = np.array([*found, (self._num_pieces**2, INFINITE, 0)], dtype=np.int64)
        self._pairs, self._ranks, self._joined = (column.copy() for column in table.T)

    def find(self, left: Numbers, right: Numbers) -> tuple[Numbers, Numbers]:
        """For each pair its rank, INFINITE where it makes no piece, and the piece that it makes."""
        pairs = left * self._num_pieces + right
        rows = np.searchsorted(self._pairs, pairs)
        rows[self._pairs[rows] != pairs] = -1
        return self._ranks[rows], self._joined[rows]


class _Joining:
    """Words on their way from characters to pieces; those that are done leave.

    `ranks` and `joined` belong to a symbol and the one to its right.
    """

    def __init__(self, joints: _Joints, characters: _Ragged, num_taken: Numbers) -> None:
        self.joints, self.num_taken = joints, num_taken
        self.symbols, self.lengths = characters.values, characters.lengths
        self.words = np.arange(len(self.lengths))
        self.ranks, self.joined = np.empty_like(self.symbols), np.empty_like(self.symbols)
        self._find(np.arange(len(self.symbols)))

    def run(self, probability: float, random: np.random.Generator) -> Iterator[tuple[Numbers, _Ragged]]:
        """The numbers of words and their pieces, whenever some are done."""
        for step in count():
            if len(self.words) == 0:
                return
            places = self._choose(step, probability, random)
            is_open = places >= 0
            is_open_symbol = np.repeat(is_open, self.lengths)
            yield self.words[~is_open], _Ragged(self.symbols[~is_open_symbol], self.lengths[~is_open])
            self._advance(places[is_open], is_open, is_open_symbol)

    def _choose(self, step: int, probability: float, random: np.random.Generator) -> Numbers:
        """The place of each word's best joint that is not dropped, from the left; -1 where there is none."""
        num_symbols = len(self.symbols)
        starts = np.cumsum(self.lengths) - self.lengths
        keys = self.ranks * num_symbols + np.arange(num_symbols)
        is_dropped = random.random(num_symbols) < probability
        is_dropped &= np.repeat(self.num_taken <= step, self.lengths)
        is_dropped[np.minimum.reduceat(keys, starts)[self.num_taken == step] % num_symbols] = True
        keys[is_dropped] = INFINITE * num_symbols
        best = np.minimum.reduceat(keys, starts)
        return np.where(best < INFINITE * num_symbols, best % num_symbols, -1)

    def _advance(self, places: Numbers, is_open: NDArray[np.bool], is_left: NDArray[np.bool]) -> None:
        """Joins each symbol at a place with its neighbour; drops the words that are done."""
        self.symbols[places] = self.joined[places]
        is_left[places + 1] = False
        places = np.cumsum(is_left)[places] - 1
        self.symbols, self.ranks, self.joined = self.symbols[is_left], self.ranks[is_left], self.joined[is_left]
        self.words, self.num_taken = self.words[is_open], self.num_taken[is_open]
        self.lengths = self.lengths[is_open] - 1
        starts = np.cumsum(self.lengths) - self.lengths
        self._find(np.concatenate((places, places[places > starts] - 1)))

    def _find(self, places: Numbers) -> None:
        """Looks up the joints of the symbols at these places; the last one of a word has none."""
        right = self.symbols.take(places + 1, mode="clip")
        self.ranks[places], self.joined[places] = self.joints.find(self.symbols[places], right)
        self.ranks[np.cumsum(self.lengths) - 1] = INFINITE


def _check(model: Any) -> None:
    hint = "learn another one with konvoi data prepare, or train without BPE dropout"
    if model.trainer_spec.model_type != model.trainer_spec.BPE:
        raise DataError("the vocabulary was not learnt by byte-pair encoding: there is no BPE dropout for it", hint)
    if any(piece.type == piece.UNUSED for piece in model.pieces):
        raise DataError("the vocabulary has pieces that are marked as unused: there is no BPE dropout for it", hint)


def _starts_word(piece: Any) -> bool:
    return bool(piece.type == piece.CONTROL or piece.piece.startswith(MARK))


def _splittable(pieces: Sequence[Any]) -> dict[str, int]:
    """Not what stands for itself, nor what has a character that is unknown alone: that one would be lost."""
    normal = {piece.piece: number for number, piece in enumerate(pieces) if piece.type == piece.NORMAL}
    return {text: number for text, number in normal.items() if all(character in normal for character in text)}


def _ranks(pieces: Sequence[Any]) -> list[int]:
    """0 for the best score, the same for the same score."""
    scores = [piece.score for piece in pieces]
    rank_of = {score: rank for rank, score in enumerate(sorted(set(scores), reverse=True))}
    return [rank_of[score] for score in scores]


def _characters(pieces: Sequence[Any], splittable: dict[str, int]) -> _Ragged:
    """The ids of each piece's characters; what can't be split is its own only one."""
    rows = [
        [splittable[character] for character in piece.piece] if piece.piece in splittable else [number]
        for number, piece in enumerate(pieces)
    ]
    return _Ragged(np.fromiter(chain.from_iterable(rows), np.int64), np.fromiter(map(len, rows), np.int64))


def _num_before_first(probability: float, size: int, random: np.random.Generator) -> Numbers:
    """How often, one time after another, what happens with this probability does not happen."""
    return random.geometric(probability, size) - 1 if probability > 0 else np.full(size, INFINITE)


def _in_order(parts: list[tuple[Numbers, _Ragged]]) -> _Ragged:
    words = np.concatenate([numbers for numbers, _ in parts])
    values = np.concatenate([rows.values for _, rows in parts])
    lengths = np.concatenate([rows.lengths for _, rows in parts])
    return _Ragged(values, lengths).rows(np.argsort(words))
