"""What commands and service ask of a model, whether a bundle or a run answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Translation:
    """One way to say it."""

    text: str
    score: float
    """Length-normalised log-probability; higher is better."""
    source_pieces: tuple[str, ...] = ()
    target_pieces: tuple[str, ...] = ()
    attention: tuple[tuple[float, ...], ...] = ()
    """A row for each target piece, a column for each source piece; empty unless asked for."""


class Translator(Protocol):
    source: str
    target: str
    """Languages, as in en."""
    name: str

    def translate(
        self,
        sentences: Sequence[str],
        *,
        beam: int | None = None,
        num_best: int = 1,
        with_attention: bool = False,
    ) -> list[list[Translation]]:
        """For each sentence its best translations, in order. Any text comes back as something sensible: an empty line
        as an empty one, white space kept around nothing, a very long one cut with a warning, no exception."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Guess:
    name: str
    probability: float


class Classifier(Protocol):
    name: str
    classes: tuple[str, ...]

    def classify(self, pictures: Sequence[bytes], *, num_classes: int = 5) -> list[list[Guess]]:
        """Encoded files (JPEG, PNG...) -> the likeliest classes of each. Raises DataError for what is no picture."""

    def close(self) -> None: ...
