"""A run that hangs says who is missing, ends itself and leaves the workers' stacks."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.processes import Trainings, ended, free_port, start_process, torchrun_variables

from konvoi.engine.watchdog import Beat, explain
from konvoi.exit_codes import OUR_FAULT

# Longer than anything else takes, on a busy machine too.
HANG = "faults.hang_seconds=10"
# A worker whose disk does not answer; the other waits for its gradients.
STUCK = """
import sys, time
from konvoi.engine import watchdog
from konvoi.tasks.translation import Task
from konvoi.engine.worker import main

micro_batch = Task.micro_batch
def slow(self, position):
    if position == 11:
        time.sleep(600)
    return micro_batch(self, position)
Task.micro_batch = slow
sys.stderr = open({log!r}, "w")
sys.argv = ["worker", {run!r}, "--quiet"]
sys.exit(main())
"""


def test_a_worker_that_all_others_wait_for_is_named_and_the_run_ends(trainings: Trainings, tmp_path: Path) -> None:
    run, port = trainings.new(HANG), free_port()
    workers = [
        start_process(
            STUCK.format(log=str(tmp_path / str(rank)), run=str(run.path)),
            {**trainings.environment(), **torchrun_variables(rank, 2, port)},
        )
        for rank in range(2)
    ]
    assert [ended(worker) for worker in workers] == [OUR_FAULT, OUR_FAULT]
    for rank in range(2):
        told = (tmp_path / str(rank)).read_text()
        # Position 11 is the second worker's of the sixth step.
        assert "error: the run hangs: rank 1 on " in told
        assert "is in data (" in told
        assert "Waiting for it: rank 0" in told
        assert "Thread" in (run.path / "stacks" / f"rank{rank}.txt").read_text()
    assert "slow" in (run.path / "stacks" / "rank1.txt").read_text()


def beat(num_phases: int, phase: str = "backward") -> Beat:
    return Beat("host-a", num_phases, phase, "loop.py:1 step", count=1)


@pytest.mark.parametrize(
    ("beats", "silent", "words"),
    [
        ({0: beat(9), 1: beat(8, "data"), 2: beat(9)}, set(), "rank 1 on host-a is in data"),
        ({0: beat(9), 1: beat(9)}, {1}, "rank 1 on host-a does not answer, and was last in backward"),
        ({0: beat(9), 1: beat(9)}, set(), "all workers wait in backward (loop.py:1 step): the network"),
        ({0: beat(8), 1: beat(9), 2: beat(8)}, set(), "Waiting for it: rank 1"),
    ],
)
def test_who_is_missing(beats: dict[int, Beat], silent: set[int], words: str) -> None:
    assert words in explain(beats, silent)
