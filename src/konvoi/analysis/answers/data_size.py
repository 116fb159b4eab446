"""How big is the training set?"""

from __future__ import annotations

from typing import Any

from konvoi.analysis.answer import Answer
from konvoi.analysis.length import epochs_done
from konvoi.analysis.record import RunRecord
from konvoi.analysis.wording import amount_of_bytes, listed

QUESTION = "How big is the training set, in MB and lines?"


def answer(run: RunRecord) -> Answer:
    facts = _text_facts(run.data) if "pairs" in run.data else _image_facts(run.data) if "images" in run.data else {}
    if not facts:
        return Answer(QUESTION, "can't tell", "The run has no description of its data (data.json is missing or empty).")
    facts["epochs"] = epochs_done(run)
    short, words = _text_words(facts) if "pairs" in facts else _image_words(facts)
    return Answer(QUESTION, short, f"{words}{_epoch_words(facts['epochs'])}", facts)


def _text_facts(data: dict[str, Any]) -> dict[str, Any]:
    filters = data.get("filters") or [{}]
    # After the last filter: what is trained on; the raw files hold also what was dropped and held out.
    megabytes = filters[-1].get("mb") or data.get("raw_mb") or {}
    return {
        "set": data.get("set"),
        "pairs": data["pairs"].get("train"),
        "dev_pairs": data["pairs"].get("dev"),
        "mb": megabytes,
        "raw_mb": data.get("raw_mb") or {},
        "tokens": (data.get("tokens") or {}).get("train") or {},
        "vocabulary_size": data.get("vocabulary_size"),
    }


def _text_words(facts: dict[str, Any]) -> tuple[str, str]:
    total_bytes = 1e6 * sum(facts["mb"].values())
    pairs = f"{facts['pairs']:,}" if facts["pairs"] is not None else "an unknown number of"
    short = f"{amount_of_bytes(total_bytes)}, {pairs} lines"
    sides = [f"{name} {amount_of_bytes(1e6 * size)}" for name, size in facts["mb"].items()]
    words = f"{facts['set']}: {pairs} sentence pairs (lines)"
    words += f", {amount_of_bytes(total_bytes)} of text ({listed(sides)})" if sides else ""
    tokens = [f"{count:,} tokens of {name}" for name, count in facts["tokens"].items()]
    words += f"; {listed(tokens)}" if tokens else ""
    size = facts["vocabulary_size"]
    return short, words + (f" in a vocabulary of {size:,} pieces." if size else ".")


def _image_facts(data: dict[str, Any]) -> dict[str, Any]:
    return {
        "set": data.get("set"),
        "images": data["images"].get("train"),
        "dev_images": next((count for split, count in data["images"].items() if split != "train"), None),
        "bytes": (data.get("bytes") or {}).get("train"),
        "classes": data.get("classes"),
        "damaged": len(data.get("damaged") or []),
    }


def _image_words(facts: dict[str, Any]) -> tuple[str, str]:
    images = f"{facts['images']:,}" if facts["images"] is not None else "an unknown number of"
    size = amount_of_bytes(facts["bytes"]) if facts["bytes"] is not None else "of unknown size"
    words = f"{facts['set']}: {images} training pictures, {size}"
    words += f", in {facts['classes']:,} classes" if facts["classes"] else ""
    if facts["damaged"]:
        words += f"; {facts['damaged']:,} damaged files were left out"
    return f"{size}, {images} pictures", words + "."


def _epoch_words(epochs: float | None) -> str:
    if not epochs:
        return ""
    return (
        f" The training has gone through it {epochs:,.1f} times."
        if epochs >= 1
        else (f" The training has seen {100 * epochs:.2g} % of it, each part once.")
    )
