"""All assembly: a run directory in, a Run that the loop can step out."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from konvoi import registry
from konvoi.config.recipe import Recipe
from konvoi.config.schedules import Span
from konvoi.cores import usable_cores
from konvoi.engine import checkpoint as checkpoints
from konvoi.engine import optim, restart, watchdog
from konvoi.engine.average import MovingAverage
from konvoi.engine.checkpoint import Checkpoints, NoRoomError, damage
from konvoi.engine.cuda_clock import CudaClock
from konvoi.engine.precision import Precision, fastest
from konvoi.engine.progress import Progress
from konvoi.engine.sanity import Lost
from konvoi.engine.saver import Saver
from konvoi.errors import DataError, NumbersError, UserError
from konvoi.folder import read_json
from konvoi.memory import keep_memory
from konvoi.run_directory import RunDirectory
from konvoi.sync import Shapes, Team, Traffic
from konvoi.telemetry.host import HostSampler
from konvoi.telemetry.processor import ProcessorTime
from konvoi.telemetry.timeline import HostClock, NoTimeline, Timeline
from konvoi.telemetry.writer import Writer
from konvoi.world import World, began_at

EQUAL_WORKERS_HINTS = {
    "train.ema_decay": "leave ema_decay out, or average checkpoints: konvoi eval RUN --checkpoint average",
    "model.sync_batch_norm": "begin a run without sync_batch_norm, or with sync.name = ddp, fp16, bf16 or powersgd",
}


@dataclass(frozen=True)
class StepBytes:
    """On average where steps take turns."""

    sent: float = 0.0
    """By this worker."""
    out_of_host: float = 0.0
    """For other hosts, of the host that sends the most."""


@dataclass
class Run:
    """Everything that a step needs."""

    recipe: Recipe
    directory: RunDirectory
    team: Team
    task: Any
    model: nn.Module
    """As the sync wraps it."""
    bare_model: nn.Module
    optimizer: torch.optim.Optimizer
    precision: Precision
    sync: Any
    average: MovingAverage | None
    span: Span
    checkpoints: Checkpoints
    writer: Writer
    timeline: Timeline
    processor: ProcessorTime
    host_sampler: HostSampler | None
    saver: Saver
    lost: Lost
    own_parts: Checkpoints
    """What this worker alone has of a checkpoint; on its own host."""
    keeps: bool = True
    """Whether it writes what all have in common; one worker on every disk does."""
    progress: Progress = field(default_factory=Progress)
    unheard: deque[Callable[[], float]] = field(default_factory=deque)
    """Steps of which the other workers' part is not known yet, the oldest first."""
    stop_requested: bool = False
    bytes_with: Callable[[Any], StepBytes] = lambda settings: StepBytes()
    """Of a step, as the sync declares them for settings of its own."""
    end_watching: Callable[[], None] = lambda: None
    session_started_at: float = field(default_factory=time.perf_counter)
    seconds_before: float = 0.0

    @property
    def micro_batches_per_step(self) -> int:
        return self.recipe.train.accumulate * self.team.size

    def positions(self) -> range:
        """Of this rank's micro-batches in the next step."""
        first = self.progress.position
        return range(first + self.team.rank, first + self.micro_batches_per_step, self.team.size)

    def seed(self, position: int) -> None:
        """Random numbers follow from the seed and the position alone.

        So nothing about them need be saved, and the number of workers does not change what is dropped out.
        """
        state = np.random.SeedSequence([self.recipe.train.seed, position]).generate_state(1)
        torch.manual_seed(int(state[0]))


def build(directory: RunDirectory, world: World, resume: bool, quiet: bool = False, checkpoint: str = "last") -> Run:
    recipe = directory.recipe()
    device = _use_device(world, recipe)
    timeline = _timeline(recipe, device)
    with timeline("rendezvous"):
        team = Team(world)
    with timeline("data"):
        task = registry.find("task", recipe.name_of("task")).Task(recipe, device, team)
    _check_enough(task, recipe, team)
    stored = Checkpoints(
        directory.checkpoints, recipe.checkpoint.keep, recipe.checkpoint.keep_best, recipe.evaluate.metric
    )
    # Before anything is written: a damaged checkpoint ends it here.
    keeps = restart.is_keeper(directory, team)
    resume_from = restart.choose(stored, checkpoint, team, keeps) if resume else None
    torch.manual_seed(recipe.train.seed)
    with timeline("model"):
        bare_model: nn.Module = task.build_model()
    sync = registry.find("sync", recipe.name_of("sync")).Sync(recipe.sync, team, timeline)
    _check_replicas(recipe, sync)
    precision = Precision(recipe.train.precision if recipe.train.precision != "auto" else fastest(device), device)
    facts = _facts(task, bare_model, precision, world)
    run = Run(
        recipe=recipe,
        directory=directory,
        team=team,
        task=task,
        model=bare_model,
        bare_model=bare_model,
        optimizer=optim.build(recipe.optim, bare_model),
        precision=precision,
        sync=sync,
        average=MovingAverage(bare_model, recipe.train.ema_decay) if recipe.train.ema_decay else None,
        span=span_of(recipe, task.num_per_epoch, team.size),
        checkpoints=stored,
        keeps=keeps,
        writer=Writer(directory, world.rank, world.size, facts, recipe, quiet, world.seat, keeps),
        timeline=timeline,
        processor=ProcessorTime(timeline.is_on),
        host_sampler=_host_sampler(recipe, directory, world),
        saver=Saver(),
        lost=Lost(),
        own_parts=Checkpoints(directory.checkpoints / "workers" / f"rank-{world.seat:03d}", recipe.checkpoint.keep),
    )
    try:
        _make_ready(run, world, resume_from, was_away=checkpoint == "spare")
    except BaseException:
        close(run)
        raise
    return run


def _make_ready(run: Run, world: World, resume_from: restart.Source | None, was_away: bool) -> None:
    """For its first step, or for the one that it goes on with."""
    recipe, sync, timeline, bare_model = run.recipe, run.sync, run.timeline, run.bare_model
    if resume_from:
        load_checkpoint(run, resume_from, was_away)
        if resume_from.damaged:
            run.writer.warn(f"{resume_from.damaged}; going on from {resume_from.path.name}", step=run.progress.step)
    else:
        run.writer.forget_after(0)
    # Wrapped last: DDP sends the first rank's weights to all, also those that a checkpoint brought.
    model = torch.compile(bare_model, dynamic=True) if recipe.train.compile else bare_model
    with timeline("wrapping"):
        shapes = optim.shapes(recipe.optim, bare_model)
        sync.probe(lambda: _one_pass(run), recipe.train.accumulate, shapes)
        sync.use(run.optimizer)
        run.model = sync.wrap(model)
        sync.settle(lambda: _one_pass(run))
    _tell_sync(run, world, shapes)
    _listen_for_signals(run)
    _tell_start(run, world)
    folder, seconds = run.directory.path, recipe.faults.hang_seconds
    run.end_watching = watchdog.start(world.rank, world.size, timeline, folder, seconds)


def close(run: Run) -> None:
    run.end_watching()
    if run.host_sampler:
        run.host_sampler.close()
    run.processor.close()
    run.saver.close()
    run.sync.close()
    run.writer.close()
    # DDP and many a sync hold the process group.
    run.model, run.sync = run.bare_model, None
    run.team.close()


def _timeline(recipe: Recipe, device: torch.device) -> Timeline:
    if not recipe.telemetry.measure:
        return NoTimeline()
    return Timeline(CudaClock() if device.type == "cuda" else HostClock())


def _host_sampler(recipe: Recipe, directory: RunDirectory, world: World) -> HostSampler | None:
    """One worker of every host looks at the machine."""
    if world.local_rank > 0 or not recipe.telemetry.measure:
        return None
    sampler = HostSampler(directory.hosts, os.environ.get("MASTER_ADDR") if world.size > 1 else None)
    sampler.start()
    return sampler


def _tell_sync(run: Run, world: World, shapes: Shapes) -> None:
    """What it will send, and what it found out about itself."""
    chosen = run.sync.chosen
    workers_by_host = run.team.workers_by_host()

    @cache
    def bytes_with(settings: Any) -> StepBytes:
        sent: Traffic = registry.find("sync", settings.name).traffic(settings, shapes)
        return StepBytes(sent.bytes_per_step(world.size, world.num_hosts), sent.bytes_out_per_step(workers_by_host))

    run.bytes_with = bytes_with
    # Until the first step tells what it was.
    declared = bytes_with(chosen)
    run.writer.facts["bytes_sent_per_step"] = declared.sent
    run.writer.facts["bytes_out_per_host_and_step"] = declared.out_of_host
    if run.sync.message:
        run.writer.event("sync", message=run.sync.message, chosen=chosen.model_dump(mode="json"))
        run.writer.console.say(run.sync.message)


def _tell_start(run: Run, world: World) -> None:
    """How long it took until the first step can begin, since the command was given."""
    building = run.timeline.take()
    seconds = time.time() - began_at()
    phases = {"launch": max(0.0, seconds - building.seconds), **building.phases}
    run.writer.event(
        "started",
        rank=world.rank,
        seat=world.seat,
        local_rank=world.local_rank,
        workers=world.size,
        host=socket.gethostname(),
        process_id=os.getpid(),
        device=str(run.precision.device),
        threads=torch.get_num_threads(),
        seconds=round(seconds, 3),
        phases={name: round(value, 3) for name, value in phases.items()},
    )


def _one_pass(run: Run) -> None:
    """Forward and back without a step; the first micro-batch of all, wherever the run goes on."""
    buffers = [buffer.clone() for buffer in run.bare_model.buffers()]
    with run.precision.autocast():
        objective_sum, _ = run.task.loss_sums(run.model, run.task.micro_batch(0))
    torch.autograd.backward(objective_sum)
    run.optimizer.zero_grad(set_to_none=True)
    # Running statistics have not seen this pass.
    for buffer, before in zip(run.bare_model.buffers(), buffers, strict=True):
        buffer.copy_(before)


def return_to_last(run: Run) -> int:
    """The newest checkpoint that is intact, in the midst of a run; returns its step."""
    source = restart.choose(run.checkpoints, "last", run.team, run.keeps)
    if source is None:
        raise NumbersError(
            f"step {run.progress.step:,}: {run.lost.num_steps} steps in a row had no gradient (NaN or infinity)",
            hint="there is no checkpoint yet to go back to: lower schedule.learning_rate, or set optim.clip_norm",
        )
    seconds_before = run.seconds_before
    load_checkpoint(run, source)
    run.sync.rewound()
    # What was in vain took its time all the same.
    run.seconds_before = seconds_before
    return run.progress.step


def load_checkpoint(run: Run, source: restart.Source, was_away: bool = False) -> None:
    """Continues from a checkpoint that one of the ranks has, verified."""
    loaded = restart.load(source, run.team)
    run.bare_model.load_state_dict(loaded.tensors["model"])
    optim.load_state_tensors(run.optimizer, loaded.tensors.get("optimizer", {}))
    if run.average:
        run.average.load(loaded.tensors["ema"])
    run.precision.load_state(loaded.state["precision"])
    run.sync.load_state(loaded.state["sync"])
    run.sync.load_tensors(loaded.tensors.get("sync", {}))
    run.progress = Progress.from_state(loaded.state)
    _load_own_part(run, was_away)
    run.seconds_before = run.progress.seconds
    run.writer.forget_after(run.progress.step)
    if run.keeps:
        run.checkpoints.forget_after(run.progress.step)
        if not run.checkpoints.index()["last"]:
            # It is another folder's, or another host's: the next fault must find it here. A full disk is told later.
            with suppress(NoRoomError):
                run.checkpoints.save(loaded)


def _load_own_part(run: Run, was_away: bool) -> None:
    """All workers have theirs, or none uses it: other workers than before begin from what they had in common."""
    path = run.own_parts.path_of(run.progress.step)
    known = run.team.gather((path.exists(), not was_away and _fits(run, path)))
    if not all(is_intact for _, is_intact in known):
        if any(exists for exists, _ in known) or run.sync.replicas_differ:
            missing = ", ".join(str(rank) for rank, (_, is_intact) in enumerate(known) if not is_intact)
            run.writer.console.say(f"worker {missing}: nothing of its own to go on from; all begin from what is shared")
        return
    own = checkpoints.load(path)
    if "optimizer" in own.tensors:
        optim.load_state_tensors(run.optimizer, own.tensors["optimizer"])
    run.precision.load_state(own.state["precision"])
    run.sync.load_own(own.tensors["sync"])


def _fits(run: Run, path: Path) -> bool:
    """Of as many workers as now, on hosts of as many: what one rounded, and knows of the others, goes by them."""
    return not damage(path, "state.json") and read_json(path / "state.json").get("place") == run.team.place


def _use_device(world: World, recipe: Recipe) -> torch.device:
    if torch.cuda.is_available():
        device = torch.device("cuda", world.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        return device
    keep_memory()
    # More threads than cores make every parallel region wait for a thread that is not running.
    torch.set_num_threads(recipe.train.threads or max(1, usable_cores() // world.local_size))
    return torch.device("cpu")


def _check_replicas(recipe: Recipe, sync: Any) -> None:
    """What needs workers that are alike in every step."""
    key, way = recipe.needs_equal_workers, cast(Any, getattr(recipe.sync, "between", recipe.sync))
    if key and sync.may_differ:
        raise UserError(
            f"{key} does not go with {way.name}: between exchanges the workers' weights differ",
            hint=EQUAL_WORKERS_HINTS[key],
        )


def _check_enough(task: Any, recipe: Recipe, team: Team) -> None:
    needed = team.size * recipe.train.accumulate
    if task.num_per_epoch < needed:
        raise DataError(
            f"an epoch has {task.num_per_epoch} micro-batches, fewer than the {needed} of one step"
            f" ({team.size} workers x {recipe.train.accumulate})",
            hint="use fewer --workers, smaller micro-batches ([batching]), or more data",
        )


def span_of(recipe: Recipe, num_per_epoch: int, num_workers: int) -> Span:
    """num_per_epoch counts micro-batches."""
    steps_per_epoch = num_per_epoch / (num_workers * recipe.train.accumulate)
    total_steps = recipe.train.duration.steps(steps_per_epoch) or 0
    width = getattr(recipe.model, "filled", lambda: recipe.model)()
    return Span(total_steps=total_steps, steps_per_epoch=steps_per_epoch, width=getattr(width, "width", 512))


def _facts(task: Any, model: nn.Module, precision: Precision, world: World) -> dict[str, Any]:
    return {
        "hosts": world.num_hosts,
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "precision": precision.name,
        "device": precision.device.type,
        "threads": torch.get_num_threads(),
        "micro_batches_per_epoch": task.num_per_epoch,
    }


def _listen_for_signals(run: Run) -> None:
    """Ctrl-C, SIGTERM and a lost terminal end the run after the step it is in; all ranks agree on which that is."""

    def request_stop(number: int, frame: Any) -> None:
        run.stop_requested = True

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # nohup has it ignored on purpose.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, request_stop)
