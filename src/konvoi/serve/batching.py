"""Requests that arrive together are computed together.

A model computes 64 sentences in far less time than 64 times one sentence. So requests hand in single items, a thread
takes what is waiting, up to `max_items` of like options, and the model sees one call. While it computes, the next batch
gathers by itself; only an idle model waits, a few milliseconds, for a second item.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from konvoi.errors import UserError

Item = TypeVar("Item")
Options = TypeVar("Options", bound=Hashable)
Result = TypeVar("Result")


@dataclass(frozen=True)
class Job(Generic[Item, Options, Result]):
    item: Item
    options: Options
    future: Future[Result] = field(default_factory=Future)


class Batcher(Generic[Item, Options, Result]):
    """The queue before one model, and the thread that works it off."""

    def __init__(
        self,
        compute: Callable[[list[Item], Options], list[Result]],
        *,
        max_items: int,
        wait_seconds: float,
        observe: Callable[[int], None] = lambda num_items: None,
    ) -> None:
        self._compute, self._observe = compute, observe
        self._max_items, self._wait_seconds = max_items, wait_seconds
        self._jobs: queue.SimpleQueue[Job[Item, Options, Result] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="batching", daemon=True)
        self._thread.start()

    @property
    def num_waiting(self) -> int:
        return self._jobs.qsize()

    def submit(self, item: Item, options: Options) -> Future[Result]:
        """Cancelling what is returned spares the model an item that nobody waits for any more."""
        job: Job[Item, Options, Result] = Job(item, options)
        self._jobs.put(job)
        return job.future

    def close(self) -> None:
        """Returns when all that was handed in is done."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        is_open = True
        while is_open:
            batch, is_open = self._gather()
            wanted = [job for job in batch if job.future.set_running_or_notify_cancel()]
            for options, jobs in _by_options(wanted).items():
                self._observe(len(jobs))
                self._answer(jobs, options)

    def _gather(self) -> tuple[list[Job[Item, Options, Result]], bool]:
        """The next jobs, at least one, and whether there will be more."""
        jobs: list[Job[Item, Options, Result]] = []
        job = self._jobs.get()
        until = time.monotonic() + self._wait_seconds
        while job is not None:
            jobs.append(job)
            if len(jobs) == self._max_items:
                return jobs, True
            try:
                job = self._jobs.get(timeout=max(0, until - time.monotonic()))
            except queue.Empty:
                return jobs, True
        return jobs, False

    def _answer(self, jobs: list[Job[Item, Options, Result]], options: Options) -> None:
        try:
            results = self._compute([job.item for job in jobs], options)
        except UserError as error:
            if len(jobs) == 1:
                jobs[0].future.set_exception(error)
                return
            # One of them is at fault: the others have their answers nevertheless, in few calls.
            middle = len(jobs) // 2
            self._answer(jobs[:middle], options)
            self._answer(jobs[middle:], options)
        except Exception as error:
            for job in jobs:
                job.future.set_exception(error)
        else:
            for job, result in zip(jobs, results, strict=True):
                job.future.set_result(result)


def _by_options(jobs: list[Job[Item, Options, Result]]) -> dict[Options, list[Job[Item, Options, Result]]]:
    """A call of the model has one set of options."""
    groups: dict[Options, list[Job[Item, Options, Result]]] = {}
    for job in jobs:
        groups.setdefault(job.options, []).append(job)
    return groups
