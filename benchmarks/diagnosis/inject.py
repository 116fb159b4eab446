"""A worker with a fault: python inject.py RUN FAULT, with torchrun's variables; FAULT is a Fault as JSON.

Stands in for `python -m konvoi.engine.worker RUN --quiet`. Each fault wraps one method of the task from outside; the
package itself knows nothing of faults.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

# A loader is never slow by the same time twice.
JITTER = (0.7, 1.3)


@dataclass(frozen=True)
class Fault:
    """What is wrong inside the workers; nothing where all is as it comes."""

    rank: int | None = None
    """The one concerned; all unless given."""
    loader_seconds: float = 0.0
    """Every micro-batch comes so much later."""
    loader_computes: bool = False
    """It spends that time computing, as one that cuts words into pieces does; else waiting, as for a slow disk."""
    batch_factor: float = 1.0
    """Micro-batches hold so many times the tokens."""
    opening_seconds: float = 0.0
    """Opening the data takes so much longer."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def main() -> int:
    fault = Fault(**json.loads(sys.argv[2]))
    if fault.rank in (None, int(os.environ["RANK"])):
        install(fault)
    from konvoi.engine import worker

    return worker.main([sys.argv[1], "--quiet"])


def install(fault: Fault) -> None:
    from konvoi.tasks import classification, translation

    for task in (classification.Task, translation.Task):
        if fault.loader_seconds:
            _before(task, "micro_batch", slow_loader(fault.loader_seconds, fault.loader_computes))
        if fault.opening_seconds:
            _before(task, "__init__", lambda: time.sleep(fault.opening_seconds))
    if fault.batch_factor != 1:
        lengthen_batches(translation.Task, fault.batch_factor)


def slow_loader(seconds: float, computes: bool) -> Callable[[], None]:
    numbers = random.Random(os.environ["RANK"])
    spend = compute if computes else time.sleep
    return lambda: spend(seconds * numbers.uniform(*JITTER))


def compute(seconds: float) -> None:
    """For so much processor time, which takes longer where a core is shared."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(1000))


def lengthen_batches(task: Any, factor: float) -> None:
    plan = task._plan

    def longer(self: Any, batching: Any) -> Any:
        return plan(self, batching.model_copy(update={"max_tokens": round(factor * batching.max_tokens)}))

    task._plan = longer


def _before(owner: Any, name: str, act: Callable[[], None]) -> None:
    """Wraps a method so that something happens before it."""
    method = getattr(owner, name)

    def wrapped(*arguments: Any, **keywords: Any) -> Any:
        act()
        return method(*arguments, **keywords)

    setattr(owner, name, wrapped)


if __name__ == "__main__":
    sys.exit(main())
