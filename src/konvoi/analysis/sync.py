"""By which way the workers of a run synchronised, as its recipe and its events tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from konvoi.analysis.record import RunRecord, Steps
from konvoi.analysis.shares import positive

# What these send travels while the next steps compute: nobody sees how long it takes.
BEHIND_STEPS = ("diloco",)


@dataclass(frozen=True)
class Way:
    """What is between the hosts, where workers of a host add up among themselves first."""

    table: dict[str, Any]
    prefix: str
    """Of its keys in the recipe: sync, sync.between; empty where the run chose it by itself."""

    @property
    def name(self) -> str:
        return str(self.table.get("name") or "ddp")

    @property
    def is_behind_steps(self) -> bool:
        return self.name in BEHIND_STEPS

    @property
    def cargo(self) -> str:
        """What is exchanged."""
        if not self.is_behind_steps:
            return "gradients"
        return "gradients, later weights," if self.number("exact_steps") else "weights"

    def number(self, key: str) -> int:
        """0 where it is not given."""
        value = self.table.get(key)
        return value if isinstance(value, int) else 0


@dataclass(frozen=True)
class Spell:
    """Steps in a row that were exchanged alike; means of the first rank."""

    num_steps: int
    still_seconds: float
    """In which a step stood still for the others and for the network."""
    bytes_sent: float
    """NaN where the events do not tell it of every step."""

    @property
    def all_seconds(self) -> float:
        return self.num_steps * self.still_seconds


def way_of(run: RunRecord) -> Way:
    chosen = [table for event in run.first.syncs if isinstance(table := event.get("chosen"), dict)]
    table, prefix = (chosen[-1], "") if chosen else (run.tables.get("sync", {}), "sync")
    between = table.get("between")
    if table.get("name") == "hierarchical" and isinstance(between, dict):
        return Way(between, f"{prefix}.between" if prefix else "")
    return Way(table, prefix)


def exact_and_later(run: RunRecord) -> tuple[Spell, Spell] | None:
    """The first steps of a way that exchanges behind others later: these have nothing to hide behind.

    None where there were none, or no others.
    """
    way, steps = way_of(run), run.first.steps
    is_exact = steps.numbers <= way.number("exact_steps")
    if not way.is_behind_steps or is_exact.all() or not is_exact.any():
        return None
    return _spell(steps.where(is_exact)), _spell(steps.where(~is_exact))


def mostly_exact(run: RunRecord) -> bool:
    """Whether the exact steps stood still for longer than all others together."""
    both = exact_and_later(run)
    return both is not None and both[0].all_seconds > both[1].all_seconds


def _spell(steps: Steps) -> Spell:
    still = positive(steps["phases.exposed_communication"]) + positive(steps["phases.agreement"])
    return Spell(len(steps), float(still.mean()), float(steps["bytes_sent"].mean()))
