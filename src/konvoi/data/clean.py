"""Cleans training pairs and counts why each dropped pair was dropped."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Iterator
from dataclasses import asdict, dataclass

from pydantic import Field, PositiveInt

from konvoi.config.section import Section
from konvoi.data.text import Pair

# A pair whose longer side has at most this many words escapes the ratio: "Go." / "Geh jetzt weg hier." is right.
RATIO_FREE_WORDS = 6


class Cleaning(Section):
    """What a training pair must be like; dev and test pairs are never dropped."""

    max_words: PositiveInt = 100
    """A training pair with more words (by white space) on either side is dropped."""

    max_ratio: float = Field(default=3.0, ge=1.0)
    """A training pair is dropped where one side has more than this many times the words of the other,
    unless both sides have at most 6 words."""

    remove_duplicates: bool = True
    """Keep only the first of several equal training pairs."""

    lowercase: bool = False
    """Lowercase all text: training, dev and test. Scores then compare with lowercased ones only."""


@dataclass
class CleaningCounts:
    """Pairs kept for training, split off, and dropped by reason: the first reason that holds."""

    kept: int = 0
    held_out: int = 0
    empty: int = 0
    too_long: int = 0
    length_ratio: int = 0
    duplicate: int = 0
    leak: int = 0

    def as_dict(self) -> dict[str, int]:
        return asdict(self)

    def add(self, reason: str) -> None:
        setattr(self, reason, getattr(self, reason) + 1)

    def hold_back(self, reason: str) -> None:
        """Moves one kept pair to another count."""
        self.kept -= 1
        self.add(reason)

    @property
    def read(self) -> int:
        """All pairs that came in."""
        return sum(self.as_dict().values())


def normalise(sentence: str, *, lowercase: bool = False) -> str:
    """White space collapsed to single blanks, none at the ends."""
    collapsed = " ".join(sentence.split())
    return collapsed.lower() if lowercase else collapsed


def clean(
    pairs: Iterable[Pair], cleaning: Cleaning, counts: CleaningCounts, held_out: Container[str] = ()
) -> Iterator[Pair]:
    """Yields normalised pairs fit for training; a pair whose source is in `held_out` (normalised) is a leak."""
    # 8 bytes a pair: among 5 million pairs the odds of one false duplicate are below one in a million.
    seen: set[bytes] = set()
    for raw_source, raw_target in pairs:
        source = normalise(raw_source, lowercase=cleaning.lowercase)
        target = normalise(raw_target, lowercase=cleaning.lowercase)
        reason = _why_not(source, target, cleaning) or ("leak" if source in held_out else "kept")
        if reason == "kept" and cleaning.remove_duplicates:
            num_before = len(seen)
            seen.add(_digest(source, target))
            reason = "duplicate" if len(seen) == num_before else "kept"
        counts.add(reason)
        if reason == "kept":
            yield source, target


def _why_not(source: str, target: str, cleaning: Cleaning) -> str:
    """The reason to drop a pair, or nothing."""
    if not source or not target:
        return "empty"
    # After normalising, blanks separate words: counting them is faster than splitting again.
    shorter, longer = sorted((source.count(" ") + 1, target.count(" ") + 1))
    if longer > cleaning.max_words:
        return "too_long"
    if longer > RATIO_FREE_WORDS and longer > cleaning.max_ratio * shorter:
        return "length_ratio"
    return ""


def _digest(source: str, target: str) -> bytes:
    return hashlib.blake2b(f"{source}\t{target}".encode(), digest_size=8).digest()
