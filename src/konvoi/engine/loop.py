"""The one training loop, for every task. All ranks take the same branch at every `if`."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from konvoi.engine import optim
from konvoi.engine.checkpoint import Checkpoint
from konvoi.engine.precision import Buffers, Outcome
from konvoi.engine.restart import stalled
from konvoi.engine.sanity import Lost, check_equal, fingerprint
from konvoi.engine.saver import Job, Written, copied
from konvoi.engine.setup import Run, StepBytes, return_to_last
from konvoi.errors import NumbersError
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
    lost: float
    """Ranks whose gradient was no number, beyond what half precision's overflows explain."""
    first_rank_seconds: float


@dataclass(frozen=True)
class OwnStep:
    """What a step was on this rank."""

    number: int
    position: int
    """Of its first micro-batch."""
    learning_rate: float
    outcome: Outcome
    num_targets: int
    times: StepTimes
    processor: dict[str, float]
    declared: StepBytes


def train(run: Run) -> str:
    """Trains until the recipe's end; returns finished, early_stop, time_budget or interrupted."""
    _begin(run)
    # A run that went on after its end has nothing left to do.
    ending = "finished" if _share_done(run) >= 1 else ""
    while not ending:
        stop_votes = train_step(run)
        evaluate_now = _evaluates(run) and _is_due(run, "evaluate")
        save_now = evaluate_now or _is_due(run, "checkpoint")
        if save_now:
            stop_votes += _hear(run, 0)
        if run.lost.num_steps >= run.recipe.faults.max_lost_steps:
            go_back(run)
            continue
        if _share_done(run) >= 1:
            # What each learnt alone belongs to the last evaluation and the last checkpoint.
            stop_votes += _hear(run, 0)
            run.sync.finish(run.progress.step)
        if evaluate_now:
            evaluate(run)
        # After the evaluation, so that a resumed run knows its outcome.
        if save_now:
            save(run)
        ending = _ending(run, stop_votes)
    _finish(run, ending)
    return ending


def train_step(run: Run) -> float:
    """Returns how many workers voted to stop, in a step of which all is known now."""
    progress, recipe = run.progress, run.recipe
    progress.leave_out_avoided()
    rate = recipe.schedule.rate(progress.step + 1, run.span)
    optim.set_rate(run.optimizer, rate, run.sync.rate_factor(progress.step + 1))
    optim.set_momentum(run.optimizer, run.sync.momentum_span(progress.step + 1))
    first, buffers = progress.position, Buffers(run.bare_model)
    # Every token weighs the same, however the buckets fell over the ranks: the plan knows them all.
    num_targets = sum(run.task.num_targets(p) for p in range(first, first + run.micro_batches_per_step))
    own = torch.zeros(5, dtype=torch.float64)
    for position in run.positions():
        is_last = position + run.team.size >= first + run.micro_batches_per_step
        own += _micro_step(run, position, is_last, num_targets)
    with run.timeline("optimiser"):
        outcome = run.precision.step(run.optimizer, run.bare_model, recipe.optim.clip_norm)
        if outcome.skipped:
            buffers.restore()
        elif run.average:
            run.average.update(progress.step + 1)
    run.sync.after_step(run.model, progress.step + 1)
    progress.step += 1
    progress.position += run.micro_batches_per_step
    run.unheard.append(_tell(run, own, first, rate, outcome))
    for written in run.saver.done():
        _tell_saved(run, written)
    return _hear(run, run.sync.agreement_lag)


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


def _tell(run: Run, own: torch.Tensor, position: int, rate: float, outcome: Outcome) -> Callable[[], float]:
    """One small exchange: sums for the log, votes to stop, the first rank's clock for all, who waited for whom.

    It ends the step, and is itself counted with the next one: how long everybody took for it is known only then.
    Returns what waits for the answers, records the step, and counts the votes to stop.
    """
    times, processor = run.timeline.take(), run.processor.take()
    # Now, since the next step may be exchanged otherwise.
    declared = run.bytes_with(run.sync.settings_of(run.progress.step))
    step = OwnStep(run.progress.step, position, rate, outcome, int(own[2]), times, processor, declared)
    is_lost = outcome.skipped and not run.precision.is_searching
    seconds = run.seconds_before + time.perf_counter() - run.session_started_at
    values = [*own.tolist(), float(run.stop_requested), float(is_lost), seconds if run.team.rank == 0 else 0.0]
    answers = run.team.begin_rows([*values, *step.times.durations()])

    def hear() -> float:
        with run.timeline("agreement") if run.team.size > 1 else nullcontext():
            rows = answers()
        sums = StepSums(*(sum(column) for column in zip(*(row[: len(values)] for row in rows), strict=True)))
        communication = {}
        if run.timeline.is_on and run.team.size > 1:
            communication = step.times.communication([row[len(values) :] for row in rows])
        run.progress.seconds = sums.first_rank_seconds
        run.progress.skipped_steps += outcome.skipped
        run.lost.note(sums.lost > 0, position)
        _record(run, step, sums, communication)
        if told := run.sync.heard(step.number, [row[1] / row[2] for row in rows]):
            run.writer.event("sync", step=step.number, message=told)
            run.writer.console.say(told)
        return sums.stop_votes

    return hear


def _hear(run: Run, lag: int) -> float:
    """Waits until all is known but the last `lag` steps; how many voted to stop."""
    stop_votes = 0.0
    while len(run.unheard) > lag:
        stop_votes += run.unheard.popleft()()
    return stop_votes


def _record(run: Run, step: OwnStep, sums: StepSums, communication: dict[str, float]) -> None:
    step_seconds = step.times.seconds
    event = {
        "step": step.number,
        "loss": sums.loss / sums.targets,
        "objective": sums.objective / sums.targets,
        "learning_rate": step.learning_rate,
        "gradient_norm": step.outcome.gradient_norm,
        "step_seconds": step_seconds,
        "bytes_sent": step.declared.sent,
        "bytes_out_of_host": step.declared.out_of_host,
        **run.task.amounts(sums.targets, sums.sources, sums.padded, step.num_targets, step_seconds),
        "phases": step.times.phases,
        **step.processor,
    }
    if communication:
        event["communication"] = communication
    if run.precision.device.type == "cuda" and step.times.is_exact:
        event["sampled"] = True
    if run.precision.name == "fp16":
        event["loss_scale"] = run.precision.loss_scale
    if step.outcome.skipped:
        event["skipped"] = True
        run.writer.console.say(
            f"step {step.number:,}: gradients overflowed, skipped ({run.progress.skipped_steps} so far)"
        )
    line_due = step.number % int(run.recipe.train.log_every.count) == 0 or step.number == 1
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
        with torch.no_grad(), run.precision.autocast(), run.sync.shared(), averaged:
            # Running statistics are each rank's own since the last forward pass; the checkpoint holds the first's.
            run.team.follow_first(run.bare_model.buffers())
            scores: dict[str, Any] = run.task.evaluate(run.bare_model, run.team)
        return scores
    finally:
        run.bare_model.train()


def save(run: Run) -> None:
    """One rank on every disk writes what all have in common, and all what is their own; training goes on meanwhile."""
    progress = run.progress
    started_at = time.perf_counter()
    progress.done_at["checkpoint"] = progress.seconds
    with run.timeline("checkpoint"):
        # First: where the checkpoint is whole, so is what belongs to it.
        own = _own_part(run)
        jobs = [Job(run.own_parts, copied(own))] if own else []
        with run.sync.shared():
            check_equal(run.team, fingerprint(run.bare_model.parameters()), progress.step)
            if run.keeps:
                is_scored = progress.scored_step == progress.step
                score = progress.scores[run.recipe.evaluate.metric] if is_scored else None
                jobs.append(Job(run.checkpoints, copied(_checkpoint(run)), score))
        for written in run.saver.begin(progress.step, jobs, started_at):
            _tell_saved(run, written)
    # What this took of the processor is no part of the next step.
    run.processor.take()


def _tell_saved(run: Run, written: Written) -> None:
    size = {"bytes": written.num_bytes} if written.num_bytes else {}
    seconds = {"seconds": round(written.held_seconds, 3), "written_seconds": round(written.written_seconds, 3)}
    run.writer.event("checkpoint", step=written.step, **seconds, **size)
    if written.freed:
        run.writer.warn(f"the disk is nearly full: {', '.join(written.freed)} had to go", step=written.step)
    if written.no_room:
        run.writer.warn(f"step {written.step:,}: {written.no_room.problem}; going on without it", step=written.step)


def go_back(run: Run) -> None:
    """To the last good checkpoint, and from there past what had no gradient."""
    faults, num_steps, first = run.recipe.faults, run.lost.num_steps, run.lost.first_position
    # Later steps may be heard of now, and count no more.
    _hear(run, 0)
    for written in run.saver.wait():
        _tell_saved(run, written)
    bad = [first, run.progress.position]
    words = f"{num_steps} steps in a row had no gradient (NaN or infinity): micro-batches {bad[0]:,} to {bad[1]:,}"
    avoided, returns = [*run.progress.avoided, bad], run.progress.returns + 1
    if returns > faults.max_returns:
        raise NumbersError(
            f"step {run.progress.step:,}: {words}; the run went back {run.progress.returns} times before",
            hint="lower schedule.learning_rate, set optim.clip_norm, or look at the data there",
        )
    step = return_to_last(run)
    run.progress.avoided, run.progress.returns = avoided, returns
    run.lost = Lost()
    run.writer.warn(f"{words}; back to step {step:,}, and past them from there", step=step, back_to=step)


def _checkpoint(run: Run) -> Checkpoint:
    state = {**run.progress.state(), "precision": run.precision.state(), "sync": run.sync.state()}
    tensors = {"model": dict(run.bare_model.state_dict()), "optimizer": optim.state_tensors(run.optimizer)}
    if run.average:
        tensors["ema"] = run.average.tensors()
    if shared := run.sync.tensors():
        tensors["sync"] = shared
    return Checkpoint(run.progress.step, state, tensors)


def _own_part(run: Run) -> Checkpoint | None:
    """What this worker has alone, where it has anything."""
    tensors = {"sync": run.sync.own_tensors()}
    if not run.sync.replicas_differ and not tensors["sync"]:
        return None
    if run.sync.replicas_differ:
        tensors["optimizer"] = optim.state_tensors(run.optimizer)
    state = {"step": run.progress.step, "place": run.team.place, "precision": run.precision.state()}
    return Checkpoint(run.progress.step, {**state, "sync": run.sync.state()}, tensors)


def _evaluates(run: Run) -> bool:
    return run.recipe.train.mode == "train_evaluate"


def _is_due(run: Run, what: str) -> bool:
    evaluate_every = run.recipe.evaluate.every
    every = evaluate_every if what == "evaluate" else run.recipe.checkpoint.every or evaluate_every
    return run.progress.is_due(what, every, run.span.steps_per_epoch)


def _share_done(run: Run) -> float:
    return run.progress.share_of(run.recipe.train.duration, run.span.steps_per_epoch, run.micro_batches_per_step)


def _ending(run: Run, stop_votes: float) -> str:
    train = run.recipe.train
    if stop_votes:
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
    stall = stalled()
    # A fault before the first checkpoint was whole: from the beginning, and that is told as well.
    if run.progress.step or stall:
        run.writer.event("restart", step=run.progress.step, workers=run.team.size, **stall)
        seconds = "".join(f"; no step for {value:.1f} s" for value in stall.values())
        run.writer.console.say(f"resumed after step {run.progress.step:,}{seconds}")
    _summarise(run, "running")
    run.writer.console.start_bar(100, 100 * _share_done(run))
    run.timeline.take()
    run.processor.take()


def _finish(run: Run, ending: str) -> None:
    _hear(run, 0)
    if ending != "interrupted" and run.sync.finish(run.progress.step):
        run.progress.scored_step = 0
    if ending != "interrupted" and _evaluates(run) and run.progress.scored_step != run.progress.step:
        evaluate(run)
    save(run)
    # As long as a checkpoint may take.
    with run.timeline("checkpoint"):
        for written in run.saver.wait():
            _tell_saved(run, written)
            if written.no_room:
                raise written.no_room
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
