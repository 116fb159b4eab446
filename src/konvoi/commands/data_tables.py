"""What there is to say about prepared sets, in tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from konvoi.commands.output import aligned
from konvoi.data.prepared import EXAMPLES_FOLDER
from konvoi.data.settings import Data
from konvoi.fetch.sets import OWN

Info = dict[str, Any]

FILTER_WORDS = {
    "read": "as read",
    "unreadable": "unreadable",
    "empty": "an empty side",
    "too_short": "too short",
    "too_long": "too long",
    "length_ratio": "lengths too different",
    "copy": "a copy of the source",
    "wrong_language": "another language",
    "leak": "source also in dev or test",
    "duplicate": "duplicate",
    "near_duplicate": "near duplicate",
    "held_out": "split off",
}


def text_table(one: Info) -> str:
    """A prepared corpus in full: what was read, what each filter took, what is left, where it lies, who may use it."""
    title = f"{one['set']}: {one['source']} to {one['target']}"
    return "\n\n".join((title, _filters(one), _splits(one), aligned([*_facts(one)])))


def _filters(one: Info) -> str:
    sides = (one["source"], one["target"])
    rows = [("training text", "dropped", "lines", *(f"{side} MB" for side in sides), *(f"{s} words" for s in sides))]
    for row in one["filters"]:
        name = FILTER_WORDS[row["filter"]]
        numbers = [f"{row['mb'][side]:,.1f}" for side in sides] + [f"{row['words'][side]:,}" for side in sides]
        rows.append((name, f"{row['dropped']:,}", f"{row['pairs']:,}", *numbers))
    return aligned(rows, numbers=True)


def _splits(one: Info) -> str:
    sides = (one["source"], one["target"])
    rows = [("split", "lines", *(f"{side} tokens" for side in sides), *(f"{side} unknown pieces" for side in sides))]
    for split, pairs in one["pairs"].items():
        tokens = [f"{one['tokens'][split][side]:,}" for side in sides]
        unknown = [f"{one['unknown_share'][split][side]:.3%}" for side in sides]
        rows.append((split, f"{pairs:,}", *tokens, *unknown))
    return aligned(rows, numbers=True)


def _facts(one: Info) -> Iterator[tuple[str, str]]:
    padded = one["vocabulary_padded"]
    note = f", {padded:,} with padding for the hardware" if padded != one["vocabulary_size"] else ""
    yield "vocabulary", f"{one['vocabulary_size']:,} pieces{note}"
    for side, mean in one["length_mean"].items():
        yield f"sentence length, {side}", f"mean {mean:.1f}, 95 % up to {one['length_p95'][side]:.0f} tokens"
    yield "licence", one["licence"]
    if one["citation"]:
        yield "to cite", one["citation"]
    if one["set"] == OWN:
        yield "made from", ", ".join(one["files"])
    if unusual := _unusual(one["settings"]):
        yield "settings", ", ".join(f"{key} = {json.dumps(value)}" for key, value in unusual.items())
    yield "where", one["folder"]
    yield "dropped pairs", f"examples of each kind in {one['folder']}/{EXAMPLES_FOLDER}"
    yield "made at", one["made_at"]


def _unusual(settings: Info) -> Info:
    """Those that are not the default of [data]."""
    defaults = {name: field.default for name, field in Data.model_fields.items()}
    return {
        key: value for key, value in settings.items() if key in defaults and key != "set" and value != defaults[key]
    }


def image_table(one: Info) -> str:
    """Prepared pictures in full."""
    rows = [("split", "pictures", "MB", "mean width", "mean height")]
    for split, count in one["images"].items():
        size = one["mean_size"][split]
        megabytes = f"{one['bytes'][split] / 1e6:,.1f}"
        rows.append((split, f"{count:,}", megabytes, f"{size['width']:.0f}", f"{size['height']:.0f}"))
    title = f"{one['set']}: {one['classes']:,} classes"
    return "\n\n".join((title, aligned(rows, numbers=True), aligned([*_image_facts(one)])))


def _image_facts(one: Info) -> Iterator[tuple[str, str]]:
    for kind, words in (("damaged", "can't be decoded"), ("mislabelled", "in a class they don't belong to")):
        where = f": {one['folder']}/{kind}.tsv" if one[kind] else ""
        yield kind, f"{len(one[kind]):,} pictures {words}{where}"
    for warning in one["warnings"]:
        yield "warning", warning
    yield "licence", one["licence"]
    if one["citation"]:
        yield "to cite", one["citation"]
    yield "pictures in", one["root"] or one["folder"]
    yield "where", one["folder"]
    yield "made at", one["made_at"]


def overview(infos: list[Info]) -> str:
    """A line for each prepared set."""
    rows: list[tuple[str, ...]] = [("set", "training examples", "MB", "vocabulary or classes", "made at", "where")]
    rows += [_image_row(one) if "images" in one else _text_row(one) for one in infos]
    return aligned(rows)


def _text_row(one: Info) -> tuple[str, ...]:
    megabytes = f"{sum(one['raw_mb'].values()):,.1f}"
    size = f"{one['vocabulary_size']:,} pieces"
    return (one["set"], f"{one['pairs']['train']:,} pairs", megabytes, size, one["made_at"][:10], one["folder"])


def _image_row(one: Info) -> tuple[str, ...]:
    megabytes = f"{sum(one['bytes'].values()) / 1e6:,.1f}"
    pictures, classes = f"{one['images']['train']:,} pictures", f"{one['classes']:,} classes"
    return (one["set"], pictures, megabytes, classes, one["made_at"][:10], one["folder"])
