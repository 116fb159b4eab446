"""What a run is fast or slow at, in the words that people know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

# Keys of a step's event and of summary.json, in the order in which they are shown.
SPEEDS = {
    "target_tokens_per_second": "target tokens/s",
    "tokens_per_second": "source+target tokens/s",
    "images_per_second": "images/s",
}


def speeds(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The words and the value of each speed that is there; the first is the one to look at."""
    return ((words, values[key]) for key, words in SPEEDS.items() if values.get(key) is not None)
