"""Whether every worker gets the memory that it needs."""

from __future__ import annotations

from collections.abc import Iterator

from konvoi.analysis.wording import amount_of_bytes
from konvoi.cluster.checks import Finding
from konvoi.cluster.checks._hosts import seen
from konvoi.cluster.survey import Survey

TITLE = "memory"
ORDER = 65
# torch with a small model, and with an ordinary one: weights, gradients, two averages, activations.
LEAST_BYTES, LITTLE_BYTES = 0.4e9, 1e9


def examine(survey: Survey) -> Iterator[Finding]:
    for host, facts in seen(survey):
        if facts.memory_available_bytes is None or facts.memory_total_bytes is None:
            continue
        free, total = amount_of_bytes(facts.memory_available_bytes), amount_of_bytes(facts.memory_total_bytes)
        share = facts.memory_available_bytes / host.workers
        found = f"{free} of {total} free for {host.workers} worker{'s' if host.workers > 1 else ''}"
        fix = "end what else runs there (ps aux --sort=-rss | head), or set fewer workers ="
        if share < LEAST_BYTES:
            yield Finding(host.name, "error", found, fix, "memory-out")
        elif share < LITTLE_BYTES:
            yield Finding(host.name, "warning", found, fix, "memory-low")
        else:
            yield Finding(host.name, "ok", found)
