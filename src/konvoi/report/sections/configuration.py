"""The recipe with which the run was made, every key with its value."""

from __future__ import annotations

import json
from typing import Any

from konvoi.analysis.record import RunRecord
from konvoi.report.blocks import Block, Table

TITLE = "Configuration"
ORDER = 140


def render(run: RunRecord) -> list[Block]:
    rows = [
        (f"{table}.{key}", _value(value))
        for table, keys in run.tables.items()
        if isinstance(keys, dict)
        for key, value in keys.items()
    ]
    return [Table("recipe.toml", ("key", "value"), rows, num_left=2)] if rows else []


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
