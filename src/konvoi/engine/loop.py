"""The one training loop, for every task. All ranks take the same branch at every `if`."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from konvoi.engine import optim
from konvoi.engine.checkpoint import Checkpoint
from konvoi.engine.setup import Run
from konvoi.evaluate.scores import is_better
from konvoi.telemetry.timeline import StepTimes


@dataclass(frozen=True)
class StepSums:
    """What the ranks tell each other after a step, added up."""

    objective: float
    loss: float
    targets: float
    """What the loss is divided by: target tokens or images."""
    sources: float
    padded: float
    stop_votes: float
    first_rank_seconds: float


@dataclass(frozen=True)
class StepCost:
    """What a step took on this rank."""

    times: StepTimes
    processor: dict[str, float]
    communication: dict[str, float]


def train(run: Run) -> str:
    """Trains until the recipe's end; returns finished, early_stop, time_budget or interrupted."""
    _begin(run)
    # A run that went on after its end has nothing left to do.
    ending = "finished" if _share_done(run) >= 1 else ""
    while not ending:
        sums = train_step(run)
        evaluate_now = _evaluates(run) and _is_due(run, "evaluate")
        if evaluate_now:
            evaluate(run)
        # After the evaluation, so that a resumed run knows its outcome.
        if evaluate_now or _is_due(run, "checkpoint"):
            save(run)
        ending = _ending(run, sums)
    _finish(run, ending)
    return ending


def train_step(run: Run) -> StepSums:
    progress, recipe = run.progress, run.recipe
    rate = recipe.schedule.rate(progress.step + 1, run.span)
    optim.set_rate(run.optimizer, rate)
    first = progress.position
    # Every token weighs the same, however the buckets fell over the ranks: the plan knows them all.
    num_targets = sum(run.task.num_targets(p) for p in range(first, first + run.micro_batches_per_step))
    own = torch.zeros(5, dtype=torch.float64)
    for position in run.positions():
        is_last = position + run.team.size >= first + run.micro_batches_per_step
        own += _micro_step(run, position, is_last, num_targets)
    with run.timeline("optimiser"):
        outcome = run.precision.step(run.optimizer, run.bare_model, recipe.optim.clip_norm)
        run.sync.after_step(run.model, progress.step + 1)
        if run.average and not outcome.skipped:
            run.average.update(progress.step + 1)
    sums, cost = _agree(run, own)
    progress.step += 1
    progress.position += run.micro_batches_per_step
    progress.seconds = sums.first_rank_seconds
    progress.skipped_steps += outcome.skipped
    _record(run, sums, cost, rate, outcome.gradient_norm, outcome.skipped, int(own[2]))
    return sums


def _micro_step(run: Run, position: int, is_last: bool, num_targets: int) -> torch.Tensor:
    """Forward and backward of one micro-batch; its sums: objective, loss, targets, sources, padding."""
    with run.timeline("data"):
        batch = run.task.micro_batch(position)
    run.seed(position)
    with run.sync.micro_step(run.model, is_last):
        with run.timeline("forward"), run.precision.autocast():
            objective_sum, loss_sum = run.task.loss_sums(run.model, batch)
        with run.timeline("backward"):
            run.precision.backward(objective_sum * (run.sync.num_averaged / num_targets))
    values = (objective_sum.item(), loss_sum.item(), batch.num_targets, batch.num_sources, batch.num_padded)
    return torch.tensor(values, dtype=torch.float64)


def _agree(run: Run, own: torch.Tensor) -> tuple[StepSums, StepCost]:
    """One small exchange: sums for the log, votes to stop, the first rank's clock for all, who waited for whom.

    It ends the step, and is itself counted with the next one: how long everybody took for it is known only then.
    """
    times, processor = run.timeline.take(), run.processor.take()
    seconds = run.seconds_before + time.perf_counter() - run.session_started_at
    clock = seconds if run.team.rank == 0 else 0.0
    values = [*own.tolist(), float(run.stop_requested), clock]
    if run.team.size == 1:
        return StepSums(*values), StepCost(times, processor, {})
    with run.timeline("agreement"):
        rows = run.team.rows([*values, *times.durations()])
    sums = [sum(column) for column in zip(*(row[: len(values)] for row in rows), strict=True)]
    communication = times.communication([row[len(values) :] for row in rows]) if run.timeline.is_on else {}
    return StepSums(*sums), StepCost(times, processor, communication)


def _record(
    run: Run, sums: StepSums, cost: StepCost, rate: float, gradient_norm: float, skipped: bool, own_targets: int
) -> None:
    step, step_seconds = run.progress.step, cost.times.seconds
    event = {
        "step": step,
        "loss": sums.loss / sums.targets,
        "objective": sums.objective / sums.targets,
        "learning_rate": rate,
        "gradient_norm": gradient_norm,
        "step_seconds": step_seconds,
        **run.task.amounts(sums.targets, sums.sources, sums.padded, own_targets, step_seconds),
        "phases": cost.times.phases,
        **cost.processor,
    }
    if cost.communication:
        event["communication"] = {**cost.communication, "bytes": run.writer.facts["bytes_sent_per_step"]}
    if run.precision.device.type == "cuda" and cost.times.is_exact:
        event["sampled"] = True
    if run.precision.name == "fp16":
        event["loss_scale"] = run.precision.loss_scale
    if skipped:
        event["skipped"] = True
        run.writer.console.say(f"step {step:,}: gradients overflowed, skipped ({run.progress.skipped_steps} so far)")
    line_due = step % int(run.recipe.train.log_every.count) == 0 or step == 1
    run.writer.step(event, 100 * _share_done(run), line_due)


def evaluate(run: Run) -> None:
    """Scores on held-out data, and which checkpoint is the best by them."""
    started = time.perf_counter()
    with run.timeline("evaluation"):
        scores = scores_of(run)
    progress, metric = run.progress, run.recipe.evaluate.metric
    value = scores[metric]
    is_best = not progress.best or is_better(metric, value, progress.best["value"])
    progress.evaluations_without_gain = 0 if is_best else progress.evaluations_without_gain + 1
    # Lists (samples, damaged pictures) are for the event alone.
    progress.scores = {key: item for key, item in scores.items() if not isinstance(item, list)}
    progress.scored_step = progress.step
    progress.done_at["evaluate"] = progress.seconds
    if is_best:
        progress.best = {"metric": metric, "value": value, "step": progress.step}
    run.writer.evaluation(progress.step, scores, time.perf_counter() - started)
    _summarise(run, "running")
    run.processor.take()


def scores_of(run: Run) -> dict[str, Any]:
    run.bare_model.eval()
    try:
        averaged = run.average.in_place() if run.average else nullcontext()
        with torch.no_grad(), run.precision.autocast(), averaged:
            # Running statistics are each rank's own since the last forward pass; the checkpoint holds the first's.
            run.team.follow_first(run.bare_model.buffers())
            scores: dict[str, Any] = run.task.evaluate(run.bare_model, run.team)
        return scores
    finally:
        run.bare_model.train()


def save(run: Run) -> None:
    """The first rank writes, since all hold the same."""
    progress = run.progress
    started = time.perf_counter()
    progress.done_at["checkpoint"] = progress.seconds
    size: dict[str, int] = {}
    if run.team.rank == 0:
        with run.timeline("checkpoint"):
            path = run.checkpoints.save(_checkpoint(run))
            if progress.scored_step == progress.step:
                run.checkpoints.rank_by_score(path, progress.scores[run.recipe.evaluate.metric])
        size["bytes"] = sum(file.stat().st_size for file in path.iterdir())
    run.writer.event("checkpoint", step=progress.step, seconds=round(time.perf_counter() - started, 3), **size)
    # What this took of the processor is no part of the next step.
    run.processor.take()


def _checkpoint(run: Run) -> Checkpoint:
    state = {**run.progress.state(), "precision": run.precision.state(), "sync": run.sync.state()}
    tensors = {"model": dict(run.bare_model.state_dict()), "optimizer": optim.state_tensors(run.optimizer)}
    if run.average:
        tensors["ema"] = run.average.tensors()
    return Checkpoint(run.progress.step, state, tensors)


def _evaluates(run: Run) -> bool:
    return run.recipe.train.mode == "train_evaluate"


def _is_due(run: Run, what: str) -> bool:
    evaluate_every = run.recipe.evaluate.every
    every = evaluate_every if what == "evaluate" else run.recipe.checkpoint.every or evaluate_every
    return run.progress.is_due(what, every, run.span.steps_per_epoch)


def _share_done(run: Run) -> float:
    return run.progress.share_of(run.recipe.train.duration, run.span.steps_per_epoch)


def _ending(run: Run, sums: StepSums) -> str:
    train = run.recipe.train
    if sums.stop_votes:
        return "interrupted"
    if _share_done(run) >= 1:
        return "finished"
    if train.time_budget and run.progress.share_of(train.time_budget, 1) >= 1:
        return "time_budget"
    if train.patience and run.progress.evaluations_without_gain >= train.patience:
        return "early_stop"
    return ""


def _begin(run: Run) -> None:
    run.bare_model.train()
    facts = run.writer.facts
    run.writer.console.say(
        f"{run.directory.path}: {facts['parameters']:,} parameters, {facts['precision']} on {facts['device']},"
        f" {run.team.size} workers x {facts['threads']} threads, {run.span.steps_per_epoch:,.0f} steps an epoch"
    )
    if run.progress.step:
        run.writer.event("restart", step=run.progress.step)
        run.writer.console.say(f"resumed after step {run.progress.step:,}")
    _summarise(run, "running")
    run.writer.console.start_bar(100, 100 * _share_done(run))
    run.timeline.take()
    run.processor.take()


def _finish(run: Run, ending: str) -> None:
    if ending != "interrupted" and _evaluates(run) and run.progress.scored_step != run.progress.step:
        evaluate(run)
    save(run)
    # A worker that left now would be taken for a failed one, and the first be ended in the midst of its save.
    run.team.sum([0.0])
    status = "interrupted" if ending == "interrupted" else "finished"
    run.writer.event(status, step=run.progress.step, ending=ending)
    _summarise(run, status, ending)


def _summarise(run: Run, status: str, ending: str = "") -> None:
    progress = run.progress
    best = dict(progress.best)
    if best:
        best["checkpoint"] = run.checkpoints.path_of(best["step"]).name
    extra = {"ending": ending} if ending else {}
    run.writer.summary(
        status,
        progress.step,
        progress.seconds,
        skipped_steps=progress.skipped_steps,
        scores=progress.scores,
        best=best,
        **extra,
    )
