"""Any text through a model that knows pieces only; a bundle's and a run's translator share it and differ in the search.

A sentence is cleaned, normalised and split into pieces; a very long one is translated sentence by sentence; what the
vocabulary does not know comes back as it was written.
"""

from __future__ import annotations

import logging
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from konvoi.bundle.interfaces import Translation
from konvoi.bundle.sentences import split
from konvoi.data.subwords import MARK, Subwords

# As in evaluate/beam.py: no sentence is longer, and attention costs the square of it.
MAX_SOURCE_PIECES = 512

Attention = tuple[tuple[float, ...], ...]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Source:
    """What is translated at once."""

    text: str
    pieces: list[str]
    """Those that the vocabulary does not know as they were written."""
    ids: list[int]

    @property
    def has_unknown(self) -> bool:
        return Subwords.UNK in self.ids

    @property
    def is_foreign(self) -> bool:
        """Without a single letter that the vocabulary knows: emoji, or another script."""
        known = (piece for piece, number in zip(self.pieces, self.ids, strict=True) if number != Subwords.UNK)
        return self.has_unknown and not any(letter.isalpha() for piece in known for letter in piece)


@dataclass(frozen=True)
class Found:
    """What a search found: pieces without begin and end, and for each of them its attention to the source's."""

    pieces: list[str]
    score: float
    attention: Attention = ()


class PieceTranslator(ABC):
    """A Translator (interfaces.py) but for the search."""

    def __init__(self, subwords: Subwords, normalised: Callable[[str], str]) -> None:
        self.subwords, self._normalised = subwords, normalised
        (self._unknown,) = subwords.pieces([Subwords.UNK])

    @abstractmethod
    def search(
        self, sources: list[Source], *, beam: int | None, num_best: int, with_attention: bool
    ) -> list[list[Found]]:
        """The best translations of each source, best first; attention where it is asked for or a piece is unknown."""

    def translate(
        self, sentences: Sequence[str], *, beam: int | None = None, num_best: int = 1, with_attention: bool = False
    ) -> list[list[Translation]]:
        """See interfaces.Translator."""
        lines = [self._sources(text, pieces) for text, pieces in self._split(map(cleaned, sentences))]
        searched = [source for line in lines for source in line if not source.is_foreign]
        results = iter(self.search(searched, beam=beam, num_best=num_best, with_attention=with_attention))
        return [
            _together(
                [self._told(source, () if source.is_foreign else next(results)) for source in line], with_attention
            )
            for line in lines
        ]

    def _split(self, texts: Iterable[str]) -> Iterable[tuple[str, list[str]]]:
        texts = [*texts]
        return zip(texts, self.subwords.split([self._normalised(text) for text in texts]), strict=True)

    def _sources(self, text: str, pieces: list[str]) -> list[Source]:
        """One; none of an empty text, several of a very long one."""
        if len(pieces) <= MAX_SOURCE_PIECES:
            return [self._source(text, pieces)] if pieces else []
        parts = self._split(part.sentence for part in split(text))
        return [self._source(sentence, _cut(pieces)) for sentence, pieces in parts if pieces]

    def _source(self, text: str, pieces: list[str]) -> Source:
        return Source(text, pieces, self.subwords.ids(pieces))

    def _told(self, source: Source, found: Sequence[Found]) -> list[Translation]:
        if source.is_foreign:
            return [Translation(" ".join(source.text.split()), 0.0, tuple(source.pieces), tuple(source.pieces))]
        restored = [_restored(source, one, self._unknown) for one in found or [Found([], 0.0)]]
        return [
            Translation(
                self.subwords.join(one.pieces), one.score, tuple(source.pieces), tuple(one.pieces), one.attention
            )
            for one in restored
        ]


def cleaned(text: str) -> str:
    """Without what no text holds: halves of characters, control characters (a blank instead)."""
    if text.isprintable():
        return text
    whole = text.encode("utf-8", "ignore").decode("utf-8")
    return "".join(" " if _is_control(letter) else letter for letter in whole)


def _is_control(letter: str) -> bool:
    return unicodedata.category(letter) == "Cc" and not letter.isspace()


def _cut(pieces: list[str]) -> list[str]:
    if len(pieces) > MAX_SOURCE_PIECES:
        # Without the text itself: what users type is not logged.
        log.warning("a sentence of %d pieces is cut to the first %d", len(pieces), MAX_SOURCE_PIECES)
    return pieces[:MAX_SOURCE_PIECES]


def _restored(source: Source, found: Found, unknown: str) -> Found:
    """With the words that the vocabulary does not know as they were written, where the translation looks at them.

    A model has never seen their pieces, and says anything in their place.
    """
    if not found.attention or not (source.has_unknown or unknown in found.pieces):
        return Found([piece for piece in found.pieces if piece != unknown], found.score, found.attention)
    copies = _copies(source, found, unknown)
    pieces: list[str] = []
    attention: list[tuple[float, ...]] = []
    for word in _words(found.pieces):
        copied = copies.get(word)
        pieces += source.pieces[copied.start : copied.stop] if copied else found.pieces[word.start : word.stop]
        attention += _copied_from(copied, source) if copied else found.attention[word.start : word.stop]
    return Found(pieces, found.score, tuple(attention))


def _copies(source: Source, found: Found, unknown: str) -> dict[range, range]:
    """Words of the translation to replace, and the words of the source that take their place.

    One for each word that holds something unknown: of the words that look there most, the one that does so most.
    """
    words = _words(source.pieces)
    strange = [word for word in words if any(source.ids[place] == Subwords.UNK for place in word)]
    copies: dict[range, range] = {}
    best: dict[range, tuple[float, range]] = {}
    for word in _words(found.pieces):
        weights_S = [sum(column) for column in zip(*found.attention[word.start : word.stop], strict=True)]
        looked_at = max(words, key=lambda one: max(weights_S[place] for place in one))
        if unknown in found.pieces[word.start : word.stop]:
            copies[word] = max(strange or words, key=lambda one: max(weights_S[place] for place in one))
        elif looked_at in strange:
            weight = max(weights_S[place] for place in looked_at)
            best[looked_at] = max(best.get(looked_at, (0.0, word)), (weight, word), key=lambda one: one[0])
    return {word: origin for origin, (_, word) in best.items() if origin not in copies.values()} | copies


def _copied_from(word: range, source: Source) -> list[tuple[float, ...]]:
    """Each piece looks at itself."""
    return [tuple(float(place == column) for column in range(len(source.pieces))) for place in word]


def _words(pieces: Sequence[str]) -> list[range]:
    """Where each word begins and ends."""
    starts = [place for place, piece in enumerate(pieces) if place == 0 or piece.startswith(MARK)]
    return [range(start, end) for start, end in zip(starts, [*starts[1:], len(pieces)], strict=True)]


def _together(parts: list[list[Translation]], with_attention: bool) -> list[Translation]:
    """One line of its parts: the best of all, the second best... A part alone keeps its pieces."""
    if len(parts) == 1:
        return parts[0] if with_attention else [replace(one, attention=()) for one in parts[0]]
    depth = max(map(len, parts), default=1)
    ranked = [[part[min(rank, len(part) - 1)] for part in parts] for rank in range(depth)]
    return [
        Translation(" ".join(one.text for one in chosen), sum(one.score for one in chosen) / max(1, len(chosen)))
        for chosen in ranked
    ]
