"""All that a run writes about itself while it goes on: events, TensorBoard, console, summary.

Every rank calls every method; what only the first rank does is decided here, never in the loop.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from konvoi.config.recipe import Recipe
from konvoi.folder import unless_full, write_json
from konvoi.run_directory import FORMAT_VERSION, RunDirectory, read_events
from konvoi.telemetry.console import Console
from konvoi.telemetry.events import EventWriter, finite
from konvoi.telemetry.tensorboard import TensorBoard
from konvoi.telemetry.units import SPEEDS
from konvoi.telemetry.wandb import WeightsAndBiases


@dataclass(frozen=True)
class StepTotal:
    seconds: float
    speeds: dict[str, float]
    sent: dict[str, float | None]
    """Bytes by their names in the summary; None where an earlier version did not say."""


class Writer:
    def __init__(
        self,
        directory: RunDirectory,
        rank: int,
        num_workers: int,
        facts: dict[str, Any],
        recipe: Recipe,
        quiet: bool = False,
        seat: int | None = None,
        keeps: bool | None = None,
    ) -> None:
        """The seat is what its events are called by, where that is not its rank; who keeps writes log and summary."""
        self.directory, self.num_workers = directory, num_workers
        self.keeps = rank == 0 if keeps is None else keeps
        self.facts = facts
        self.console = Console(directory.log_file, self.keeps, quiet)
        events_file = directory.events / f"rank{rank if seat is None else seat}.jsonl"
        self._steps = _steps_of(events_file)
        self._events = EventWriter(events_file)
        self._mirrors = list(_mirrors(directory, recipe)) if rank == 0 else []

    def forget_after(self, step: int) -> None:
        """A resumed run repeats the steps after its checkpoint: they count once."""
        self._steps = {number: total for number, total in self._steps.items() if number <= step}

    def step(self, event: dict[str, Any], done: float, line_due: bool) -> None:
        self._steps[event["step"]] = _step_total(event)
        event = self._events.write("step", **event)
        self.console.step(event, done, line_due)
        if line_due:
            self._mirror(event)

    def evaluation(self, step: int, scores: dict[str, Any], seconds: float) -> None:
        event = self._events.write("evaluation", step=step, seconds=round(seconds, 3), **scores)
        named = "  ".join(f"{key} {value:.3f}" for key, value in scores.items() if isinstance(value, float))
        self.console.say(f"step {step:,}  evaluation: {named}  ({seconds:.1f} s)")
        self._mirror(event)

    def event(self, kind: str, **values: Any) -> None:
        self._events.write(kind, **values)

    def warn(self, problem: str, step: int, **facts: Any) -> None:
        """Something went wrong, and the run goes on."""
        self._events.write("fault", step=step, message=problem, **facts)
        self.console.say(f"warning: {problem}")

    def summary(self, status: str, step: int, seconds: float, **values: Any) -> dict[str, Any]:
        """summary.json, in the words of the architecture."""
        summary = {
            "format": FORMAT_VERSION,
            "status": status,
            "steps": step,
            "seconds": round(seconds, 3),
            "step_seconds": _spread([total.seconds for total in self._steps.values()]),
            **self._rates(),
            "workers": self.num_workers,
            **self.facts,
            **self._mean_bytes(),
            **values,
        }
        if self.keeps:
            with unless_full():
                write_json(self.directory.summary_file, finite(summary))
        return summary

    def _mirror(self, event: dict[str, Any]) -> None:
        for mirror in self._mirrors:
            mirror.write(event)

    def _rates(self) -> dict[str, float]:
        seconds = sum(total.seconds for total in self._steps.values())
        done = Counter[str]()
        for total in self._steps.values():
            done.update({key: speed * total.seconds for key, speed in total.speeds.items()})
        return {key: round(amount / seconds, 1) for key, amount in done.items()}

    def _mean_bytes(self) -> dict[str, float]:
        """Of all steps, which need not be alike; nothing before the first."""
        means: dict[str, float] = {}
        for name in ("bytes_sent_per_step", "bytes_out_per_host_and_step"):
            known = [value for total in self._steps.values() if (value := total.sent[name]) is not None]
            means |= {name: round(statistics.fmean(known), 1)} if known else {}
        return means

    def close(self) -> None:
        self._events.close()
        self.console.close()
        for mirror in self._mirrors:
            mirror.close()


def _mirrors(directory: RunDirectory, recipe: Recipe) -> Iterator[TensorBoard | WeightsAndBiases]:
    """Where else the first rank's events go."""
    yield TensorBoard(directory.tensorboard)
    if recipe.telemetry.wandb != "off":
        config = recipe.model_dump(mode="json", exclude_none=True)
        yield WeightsAndBiases(directory.path, recipe.telemetry.wandb, directory.path.resolve().name, config)


def _steps_of(path: Path) -> dict[int, StepTotal]:
    """A step that was repeated after a resume counts as it went the last time."""
    return {event["step"]: _step_total(event) for event in read_events(path) if event.get("kind") == "step"}


def _step_total(event: dict[str, Any]) -> StepTotal:
    # Events of an earlier version have it where they have the exchange's seconds.
    sent = {
        "bytes_sent_per_step": event.get("bytes_sent", event.get("communication", {}).get("bytes")),
        "bytes_out_per_host_and_step": event.get("bytes_out_of_host"),
    }
    return StepTotal(event["step_seconds"], {key: event[key] for key in SPEEDS if key in event}, sent)


def _spread(seconds: list[float]) -> dict[str, float]:
    if not seconds:
        return {"mean": 0.0, "median": 0.0, "p95": 0.0}
    in_order = sorted(seconds)
    return {
        "mean": round(statistics.fmean(seconds), 4),
        "median": round(statistics.median(seconds), 4),
        "p95": round(in_order[min(len(in_order) - 1, int(0.95 * len(in_order)))], 4),
    }
