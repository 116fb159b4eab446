"""Whether there is room for a run's checkpoints and for the data."""

from __future__ import annotations

from collections.abc import Iterator

from konvoi.analysis.wording import amount_of_bytes
from konvoi.cluster.checks import Finding
from konvoi.cluster.checks._hosts import judged, seen
from konvoi.cluster.facts import Facts, Place
from konvoi.cluster.survey import Survey

TITLE = "disk"
ORDER = 60
# The weights and averages of a big model are 1 GB, and several checkpoints are kept.
LITTLE_BYTES = 5e9
# A small model's checkpoint and its events.
LEAST_BYTES = 0.5e9
# A set of pictures is a file each.
FEW_FILES = 10_000


def examine(survey: Survey) -> Iterator[Finding]:
    problems = [
        finding for host, facts in seen(survey) for place in _places(facts) for finding in _problems(host.name, place)
    ]
    return judged(problems, {host.name: _room(facts.folder) for host, facts in seen(survey)})


def _places(facts: Facts) -> list[Place]:
    """Runs and data; one of them where they share a disk."""
    is_one = facts.folder.device == facts.home.device
    return [facts.folder] if is_one else [facts.folder, facts.home]


def _problems(host: str, place: Place) -> Iterator[Finding]:
    if place.free_bytes is not None and place.free_bytes < LITTLE_BYTES:
        fix = "make room there, or name another disk: folder = or home = in cluster.toml"
        if place.free_bytes < LEAST_BYTES:
            yield Finding(host, "error", _room(place), fix, "disk-full")
        else:
            yield Finding(host, "warning", _room(place), fix, "disk-low")
    if place.free_files is not None and place.free_files < FEW_FILES:
        found = f"room for {place.free_files:,} more files on the disk of {place.path} (df -i)"
        yield Finding(host, "warning", found, "remove small files there", "files-low")


def _room(place: Place) -> str:
    free = "an unknown amount" if place.free_bytes is None else amount_of_bytes(place.free_bytes)
    return f"{free} free for {place.path}"
