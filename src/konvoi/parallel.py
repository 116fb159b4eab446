"""The same function over many items on all cores, with the results in the order of the items."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from konvoi.cores import usable_cores
from konvoi.errors import MachineError

Item = TypeVar("Item")
Result = TypeVar("Result")

# Items under way per process: one at work, one waiting, so that nobody idles and memory stays bounded.
ITEMS_PER_PROCESS = 2


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], num_processes: int | None = None
) -> Iterator[Result]:
    """function(item) for every item, in order; items are taken only as fast as they are worked off.

    A single item, or a single process, needs no other process: small work starts at once. With more, function and
    items must be picklable.
    """
    num_processes = num_processes or usable_cores()
    remaining = iter(items)
    first = list(itertools.islice(remaining, 2))
    if num_processes == 1 or len(first) < 2:
        yield from map(function, itertools.chain(first, remaining))
        return
    # Not fork: the display of the progress is a thread, and threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(num_processes, mp_context=context, initializer=_live_with_the_parent)
    try:
        yield from _in_order(pool, function, itertools.chain(first, remaining), ITEMS_PER_PROCESS * num_processes)
    except BrokenProcessPool:
        raise MachineError(
            "a helper process was killed, most likely because the memory ran out",
            hint="close other programs, or allow fewer processes: taskset -c 0 konvoi ...",
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _in_order(
    pool: ProcessPoolExecutor, function: Callable[[Item], Result], items: Iterable[Item], num_ahead: int
) -> Iterator[Result]:
    under_way: deque[Future[Result]] = deque()
    for item in items:
        with _without_interrupts():
            under_way.append(pool.submit(function, item))
        if len(under_way) >= num_ahead:
            yield under_way.popleft().result()
    while under_way:
        yield under_way.popleft().result()


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """A helper that is started here inherits it: Ctrl-C can't meet it before it has its own way to deal with it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _live_with_the_parent() -> None:
    """Ctrl-C is the parent's business; a parent that was killed takes its helpers with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
