"""With what the run was made, for a methods section, and such a section ready-made."""

from __future__ import annotations

import shlex
from typing import Any

from konvoi.analysis.record import RunRecord
from konvoi.analysis.wording import amount_of_bytes
from konvoi.report.blocks import Block, Code, Facts, Paragraph
from konvoi.report.methods import methods

TITLE = "Environment"
ORDER = 160


def render(run: RunRecord) -> list[Block]:
    environment = run.environment
    blocks: list[Block] = [Facts(rows)] if (rows := _rows(environment)) else []
    if environment.get("command"):
        blocks.append(Code(shlex.join(map(str, environment["command"])), "The command"))
    text = methods(run)
    return [*blocks, Paragraph(text, "For a methods section")] if text else blocks


def _rows(environment: dict[str, Any]) -> list[tuple[str, str]]:
    labels = {"started_at": "started", "host": "host", "system": "system", "processor": "processor", "cores": "cores"}
    rows = [(words, str(environment[key])) for key, words in labels.items() if environment.get(key)]
    if environment.get("memory_bytes"):
        rows.append(("memory", amount_of_bytes(environment["memory_bytes"])))
    rows += [(name, str(environment[name])) for name in ("konvoi", "python") if environment.get(name)]
    rows += [(name, str(version)) for name, version in (environment.get("libraries") or {}).items()]
    return [*rows, *_git(environment.get("git"))]


def _git(git: dict[str, Any] | None) -> list[tuple[str, str]]:
    if not git:
        return []
    changed = git.get("changed_files") or 0
    return [("git commit", f"{git.get('commit')}{f' with {changed} changed files' if changed else ''}")]
