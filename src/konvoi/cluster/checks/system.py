"""Whether the machines are of one sort, and have a core for each worker."""

from __future__ import annotations

from collections.abc import Iterator

from konvoi.cluster.checks import Finding
from konvoi.cluster.checks._hosts import judged, odd_ones, seen
from konvoi.cluster.survey import Survey

TITLE = "system"
ORDER = 95


def examine(survey: Survey) -> Iterator[Finding]:
    fine = {
        host.name: f"{facts.architecture}, {facts.cores} cores, Linux {facts.kernel}" for host, facts in seen(survey)
    }
    return judged([*_unlike(survey), *_crowded(survey)], fine)


def _unlike(survey: Survey) -> Iterator[Finding]:
    for odd in odd_ones({host.name: facts.architecture for host, facts in seen(survey)}):
        fix = "they round differently, and the slowest sets the pace: take machines of one sort"
        yield Finding(odd.host, "warning", f"{odd.value}; {odd.others}", fix, "architecture-differs")


def _crowded(survey: Survey) -> Iterator[Finding]:
    """A GPU's worker hardly needs its core."""
    for host, facts in seen(survey):
        if 0 < facts.cores < host.workers and not facts.gpus:
            found = f"{host.workers} workers on {facts.cores} core{'s' if facts.cores > 1 else ''}"
            yield Finding(host.name, "warning", found, f"workers = {facts.cores} in cluster.toml", "cores-too-few")
