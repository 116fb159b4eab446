"""Writes checkpoints beside the training: a step is held up only until its tensors are copied."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from konvoi.engine.checkpoint import Checkpoint, Checkpoints, NoRoomError


@dataclass(frozen=True)
class Job:
    """A checkpoint, and the folder of checkpoints it belongs to."""

    stored: Checkpoints
    checkpoint: Checkpoint
    score: float | None = None
    """Of an evaluation after the same step."""


@dataclass(frozen=True)
class Written:
    """What became of a save."""

    step: int
    held_seconds: float
    """That the step waited."""
    written_seconds: float = 0.0
    num_bytes: int = 0
    freed: tuple[str, ...] = ()
    """Older checkpoints that had to go for it."""
    no_room: NoRoomError | None = None
    """Why there is none."""


class Saver:
    """One save at a time: who asks for the next waits for the last."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="saver")
        self._pending: Future[Written] | None = None

    def begin(self, step: int, jobs: Sequence[Job], started_at: float) -> list[Written]:
        """Their tensors are nobody else's. Returns what became of the save before."""
        before = self.wait()
        held_seconds = time.perf_counter() - started_at
        self._pending = self._thread.submit(_write, step, jobs, held_seconds)
        return before

    def done(self) -> list[Written]:
        """What has been written since it was last asked for; waits for nothing."""
        return self.wait() if self._pending and self._pending.done() else []

    def wait(self) -> list[Written]:
        pending, self._pending = self._pending, None
        return [pending.result()] if pending else []

    def close(self) -> None:
        """What is being written is written to its end."""
        self._thread.shutdown()


def copied(checkpoint: Checkpoint) -> Checkpoint:
    """In memory that training does not touch."""
    tensors = {
        file: {name: tensor.detach().to("cpu", copy=True) for name, tensor in named.items()}
        for file, named in checkpoint.tensors.items()
    }
    return replace(checkpoint, tensors=tensors)


def _write(step: int, jobs: Sequence[Job], held_seconds: float) -> Written:
    started = time.perf_counter()
    num_bytes, freed = 0, []
    try:
        for job in jobs:
            path = job.stored.save(job.checkpoint)
            freed += job.stored.freed
            if job.score is not None:
                job.stored.rank_by_score(path, job.score)
            num_bytes += sum(file.stat().st_size for file in path.iterdir())
    except NoRoomError as error:
        return Written(step, held_seconds, time.perf_counter() - started, num_bytes, tuple(freed), error)
    return Written(step, held_seconds, time.perf_counter() - started, num_bytes, tuple(freed))
