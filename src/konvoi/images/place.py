"""Puts the pictures of a tree into another folder: as hard links where the disk allows it, else as copies."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from konvoi.parallel import ordered_map
from konvoi.stages import Report


class Move(NamedTuple):
    """From where to where."""

    source: Path
    target: Path


def place_all(chunks: Iterable[list[Move]], total: int, num_processes: int | None, report: Report) -> None:
    """Every target is there afterwards; those that are there already stay."""
    num_done = 0
    for number in ordered_map(place, chunks, num_processes):
        num_done += number
        report("placing pictures", num_done, total, "pictures")


def place(moves: list[Move]) -> int:
    """Links or copies some pictures; says how many."""
    for move in moves:
        move.target.parent.mkdir(parents=True, exist_ok=True)
        if not move.target.exists():
            _place(move)
    return len(moves)


def _place(move: Move) -> None:
    try:
        # A link to a link would point nowhere once the tree moves.
        os.link(os.path.realpath(move.source), move.target)
    except OSError:
        _copy(move)


def _copy(move: Move) -> None:
    """Beside, then renamed: what is there under its name is whole, and a link to an original is never written to."""
    partial = move.target.with_name(f".{move.target.name}.partial")
    shutil.copyfile(move.source, partial)
    partial.rename(move.target)
