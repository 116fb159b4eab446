"""What there is to say about a prepared set: the content of info.json."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from konvoi.data.clean import KEPT, REASONS, Amount, Tally
from konvoi.data.inputs import Inputs
from konvoi.data.settings import Data
from konvoi.data.subwords import FILE_NAME as VOCABULARY_FILE
from konvoi.data.subwords import Subwords
from konvoi.data.tokens import TokenFile
from konvoi.folder import BYTES_PER_MB


def describe(
    folder: Path, data: Data, inputs: Inputs, sides: tuple[str, str], splits: list[str], tally: Tally
) -> dict[str, Any]:
    """The facts, from the files themselves and from the tally of the filters."""
    subwords = Subwords.load(folder / VOCABULARY_FILE)
    files = {split: {side: TokenFile(folder / f"{split}.{side}") for side in sides} for split in splits}
    train = files["train"]
    filters = [*_after_each_filter(tally, sides)]
    return {
        "set": data.set,
        "source": sides[0],
        "target": sides[1],
        "pairs": {split: len(files[split][sides[0]]) for split in splits},
        "raw_mb": filters[0]["mb"],
        "tokens": {split: {side: files[split][side].num_tokens for side in sides} for split in splits},
        "cleaning": {reason: tally[reason].pairs for reason in (KEPT, *REASONS)},
        "filters": filters,
        "vocabulary_size": subwords.size,
        "vocabulary_padded": subwords.padded_size,
        "unknown_share": {
            split: {side: files[split][side].share_of(Subwords.UNK) for side in sides} for split in splits
        },
        "length_mean": {side: float(train[side].lengths.mean()) for side in sides},
        "length_p95": {side: float(np.percentile(train[side].lengths, 95)) for side in sides},
        "licence": inputs.licence,
        "citation": inputs.citation,
        "files": [str(path) for path in inputs.files],
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _after_each_filter(tally: Tally, sides: tuple[str, str]) -> Iterator[dict[str, Any]]:
    """The training text as it was read, and what was left of it after each filter that dropped something."""
    left = tally.read
    yield {"filter": "read", "dropped": 0, **_size(left, sides)}
    for reason in REASONS:
        if tally[reason].pairs:
            left = left.minus(tally[reason])
            yield {"filter": reason, "dropped": tally[reason].pairs, **_size(left, sides)}


def _size(amount: Amount, sides: tuple[str, str]) -> dict[str, Any]:
    source, target = sides
    return {
        "pairs": amount.pairs,
        "mb": {source: amount.source_bytes / BYTES_PER_MB, target: amount.target_bytes / BYTES_PER_MB},
        "words": {source: amount.source_words, target: amount.target_words},
    }
