"""The whole view: as much as fits, what matters most first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from konvoi.watch import sections
from konvoi.watch.live import Snapshot


@dataclass(frozen=True)
class Room:
    """How much of what is shown."""

    max_ranks: int
    max_hosts: int
    spaced: bool = True
    evaluation: bool = True


# The first that fits is taken.
ROOMS = (
    Room(64, 32),
    Room(16, 16),
    Room(8, 8),
    Room(4, 4),
    Room(4, 4, spaced=False),
    Room(2, 2, spaced=False),
    Room(2, 1, spaced=False, evaluation=False),
    Room(1, 0, spaced=False, evaluation=False),
)


class Screen:
    """A snapshot that fits itself to the terminal, also after its size has changed."""

    def __init__(self, view: Snapshot) -> None:
        self.view = view

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from lines_of(self.view, options.max_width, console.height)


def lines_of(view: Snapshot, width: int, height: int) -> list[Text]:
    lines: list[Text] = []
    for room in ROOMS:
        lines = _lines(view, width, room)
        if len(lines) <= height:
            break
    num_free = height - len(lines) - 1
    if num_free > 0 and (log := sections.log(view, width, min(num_free, 8))):
        lines += [Text(), *log]
    return lines[:height]


def _lines(view: Snapshot, width: int, room: Room) -> list[Text]:
    lines: list[Text] = []
    for block in _blocks(view, width, room):
        if block:
            lines += [Text()] if lines and room.spaced else []
            lines += block
    return lines


def _blocks(view: Snapshot, width: int, room: Room) -> Iterator[list[Text]]:
    yield sections.header(view, width) + sections.progress(view, width) + sections.faults(view, width)
    yield sections.curves(view, width)
    yield sections.ranks(view, width, room.max_ranks)
    yield sections.hosts(view, width, room.max_hosts)
    yield sections.verdict(view, width)
    if room.evaluation:
        yield sections.evaluation(view, width)
