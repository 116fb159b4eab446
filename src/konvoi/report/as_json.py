"""A page as JSON, for programs: the same content, each block with its kind."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from konvoi.report.blocks import Page
from konvoi.telemetry.events import finite

FORMAT_VERSION = 1


def write(page: Page) -> str:
    return json.dumps({"format_version": FORMAT_VERSION, **as_json(page)}, indent=1, ensure_ascii=False) + "\n"


def as_json(page: Page) -> dict[str, Any]:
    content: dict[str, Any] = finite(_plain(page))
    for section, shown in zip(page.sections, content["sections"], strict=True):
        shown["blocks"] = [
            {"kind": type(block).__name__.lower(), **content}
            for block, content in zip(section.blocks, shown["blocks"], strict=True)
        ]
    return content


def _plain(value: Any) -> Any:
    """Only what JSON knows."""
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        # As many figures as a float of 32 bits has: the shares of a microsecond tell nothing.
        return [float(f"{item:.7g}") for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
