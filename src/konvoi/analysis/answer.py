"""The form in which a question about a run is answered: words for people, facts for programs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Answer:
    question: str
    short: str
    """A few words: "no", "2 h 14 min", "can't tell"."""
    words: str
    """One to four sentences with the evidence in numbers; they can be quoted."""
    facts: dict[str, Any] = field(default_factory=dict)
    """The same numbers for programs; JSON types only, names with units."""
