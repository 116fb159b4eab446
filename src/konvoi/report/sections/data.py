"""How big the training set is, and what became of it on the way."""

from __future__ import annotations

from typing import Any

from konvoi.analysis.answers import data_size
from konvoi.analysis.record import RunRecord
from konvoi.analysis.wording import amount_of_bytes
from konvoi.report.blocks import Block, Facts, Table

TITLE = "Data"
ORDER = 70
MAX_DAMAGED = 10


def render(run: RunRecord) -> list[Block]:
    return [data_size.answer(run), *_filters(run.data), *_splits(run.data), *_about(run.data), *_damaged(run.data)]


def _filters(data: dict[str, Any]) -> list[Block]:
    rows = [
        (str(entry.get("filter", "")).replace("_", " "), *_counts(entry))
        for entry in data.get("filters") or []
        if isinstance(entry, dict)
    ]
    header = ("after the filter", "dropped", "pairs left", "MB left")
    return [Table("What the filters left of the training text", header, rows)] if rows else []


def _counts(entry: dict[str, Any]) -> tuple[str, str, str]:
    megabytes = sum((entry.get("mb") or {}).values())
    return f"{entry.get('dropped', 0):,}", f"{entry.get('pairs', 0):,}", f"{megabytes:,.2f}"


def _splits(data: dict[str, Any]) -> list[Block]:
    """Of pictures; of text the filters tell it."""
    images, num_bytes = data.get("images"), data.get("bytes") or {}
    if not isinstance(images, dict):
        return []
    rows = [(split, f"{count:,}", amount_of_bytes(num_bytes.get(split, 0))) for split, count in images.items()]
    return [Table("The pictures", ("split", "pictures", "size"), rows)]


def _about(data: dict[str, Any]) -> list[Block]:
    labels = {"set": "set", "licence": "licence", "citation": "citation", "vocabulary_size": "pieces in the vocabulary"}
    rows = [(words, str(data[key])) for key, words in labels.items() if data.get(key)]
    rows += [("mislabelled pictures", f"{len(data['mislabelled']):,}")] if data.get("mislabelled") else []
    return [Facts(rows)] if rows else []


def _damaged(data: dict[str, Any]) -> list[Block]:
    damaged = data.get("damaged") or []
    rows = [(_name(entry),) for entry in damaged[:MAX_DAMAGED]]
    more = f", the first {MAX_DAMAGED} of {len(damaged):,}" if len(damaged) > MAX_DAMAGED else ""
    return [Table(f"Damaged files that were left out{more}", ("file",), rows)] if rows else []


def _name(entry: Any) -> str:
    """A path, or a table that holds one with the reason."""
    return ": ".join(str(value) for value in entry.values()) if isinstance(entry, dict) else str(entry)
