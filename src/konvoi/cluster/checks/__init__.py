"""What can be wrong with a cluster before a training: one file for each check.

A check has TITLE (what it looks at), ORDER (its place in the table) and examine(survey), which judges what the survey
found and asks nobody anything. Registered by being here; a name that starts with `_` is no check.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """One line of the table. An error would make a training fail or hang; a warning makes it slow or unsafe."""

    host: str
    """Its name; "a -> b" or "a - b" for a pair; empty for all of them."""
    level: Level
    found: str
    """What there is, with its figure."""
    fix: str = ""
    """What to do about it: a command wherever there is one."""
    kind: str = ""
    """A short word for programs and tests, as in "no-venv"; empty where all is well."""
