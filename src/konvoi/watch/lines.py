"""The view without a terminal: plain lines, in ASCII, for a pipe or a log."""

from __future__ import annotations

import time
from collections.abc import Iterator

from konvoi.analysis.answers.faults import teller
from konvoi.analysis.wording import counted, metric_name, score
from konvoi.watch import measures
from konvoi.watch.draw import clock_words
from konvoi.watch.live import Snapshot


class Lines:
    """What is new since the last snapshot; always at least how far the run is."""

    def __init__(self) -> None:
        self._told_evaluation_at = 0.0
        self._told_verdict = ""

    def of(self, view: Snapshot) -> Iterator[str]:
        at = time.strftime("%H:%M:%S", time.localtime(view.now))
        yield from (f"{at} {line}" for line in (*self._evaluations(view), _status_line(view), *self._verdict(view)))
        if view.has_ended:
            yield f"{at} {_ending(view)}"

    def _evaluations(self, view: Snapshot) -> Iterator[str]:
        """All that came since; of those from before the watching only the last."""
        new = [event for event in view.run.evaluations if (event.get("time") or 0.0) > self._told_evaluation_at]
        for event in new if self._told_evaluation_at else new[-1:]:
            yield f"evaluation at step {event['step']:,}: {'  '.join(measures.evaluation_words(event))}"
            self._told_evaluation_at = event.get("time") or 0.0

    def _verdict(self, view: Snapshot) -> Iterator[str]:
        """Again when it has changed."""
        if view.verdict and view.verdict.verdict != self._told_verdict:
            self._told_verdict = view.verdict.verdict
            yield f"verdict: {view.verdict.sentence}"


def _status_line(view: Snapshot) -> str:
    now, run = view.progress, view.run
    parts = [f"step {now.step:,}" + (f" of {now.total_steps:,}" if now.total_steps else "")]
    if now.share is not None:
        parts[0] += f" ({100 * now.share:.0f} %)"
    if len(run.steps):
        parts.append(f"loss {measures.mean(measures.latest(run.first)['loss']):.3f}")
    if found := measures.speed(run):
        parts += [f"{found[0]:,.0f} {found[1]}", f"{measures.step_seconds(run.first):.3f} s/step"]
    if now.seconds_left is not None:
        parts.append(f"left {clock_words(now.seconds_left)}")
    if told := teller(run).faults:
        parts.append(counted(len(told), "fault"))
    return "  ".join([run.status, *parts])


def _ending(view: Snapshot) -> str:
    run, now = view.run, view.progress
    words = f"{run.status} after {now.step:,} steps in {clock_words(now.seconds)}"
    if run.status == "died" and view.last_event_at:
        last = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(view.last_event_at))
        words += f"; its last event was at {last}"
    best = run.summary.get("best") or {}
    if isinstance(best.get("value"), int | float):
        metric = str(best.get("metric"))
        words += f"; best {metric_name(metric)} {score(best['value'], metric)} at step {best.get('step', 0):,}"
    return words
