"""NaNs are gone around, and a replica that parted silently is named."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.processes import Trainings, ended, free_port, losses, start_process, torchrun_variables

from konvoi.engine.loop import train
from konvoi.engine.sanity import Lost, fingerprint
from konvoi.engine.setup import Run
from konvoi.errors import NumbersError


def spoil(run: Run, is_bad: Any) -> None:
    """The losses of these micro-batches are no numbers."""
    micro_batch, loss_sums, position = run.task.micro_batch, run.task.loss_sums, 0

    def remember(at: int) -> Any:
        nonlocal position
        position = at
        return micro_batch(at)

    def spoilt(model: Any, batch: Any) -> Any:
        factor = float("nan") if is_bad(position) else 1.0
        return tuple(value * factor for value in loss_sums(model, batch))

    run.task.micro_batch, run.task.loss_sums = remember, spoilt


SETTINGS = ("faults.max_lost_steps=2", "train.duration=12 steps", "checkpoint.every=5 steps")


def test_one_step_without_a_gradient_is_skipped(trainings: Trainings) -> None:
    directory = trainings.new(*SETTINGS)
    with trainings.built(directory) as run:
        spoil(run, lambda position: position == 6)
        assert train(run) == "finished"
    assert run.progress.skipped_steps == 1
    assert run.progress.avoided == []


def test_several_in_a_row_send_the_run_back_and_past_them(trainings: Trainings) -> None:
    directory = trainings.new(*SETTINGS)
    with trainings.built(directory) as run:
        spoil(run, lambda position: position in (6, 7))
        assert train(run) == "finished"
    assert (run.progress.step, run.progress.returns, run.progress.avoided) == (12, 1, [[6, 8]])
    # 12 steps and the two micro-batches that were left out.
    assert run.progress.position == 14
    told = [event["message"] for event in directory.events_of(0) if event["kind"] == "fault"]
    assert told == [
        "2 steps in a row had no gradient (NaN or infinity): micro-batches 6 to 8;"
        " back to step 5, and past them from there"
    ]
    assert list(losses(directory)) == list(range(1, 13))


def test_a_run_that_is_never_well_again_stops_and_says_why(trainings: Trainings) -> None:
    directory = trainings.new(*SETTINGS)
    with trainings.built(directory) as run:
        spoil(run, lambda position: position >= 6)
        with pytest.raises(NumbersError, match="micro-batches 10 to 12; the run went back 2 times before"):
            train(run)


def test_without_a_checkpoint_there_is_nothing_to_go_back_to(trainings: Trainings) -> None:
    directory = trainings.new(*SETTINGS)
    with trainings.built(directory) as run:
        spoil(run, lambda position: position >= 1)
        with pytest.raises(NumbersError, match="2 steps in a row had no gradient") as caught:
            train(run)
    assert "no checkpoint yet" in caught.value.hint


def test_lost_steps_are_counted_in_a_row() -> None:
    lost = Lost()
    for position, is_lost in ((0, True), (2, False), (4, True), (6, True)):
        lost.note(is_lost, position)
    assert lost == Lost(num_steps=2, first_position=4)


def test_a_fingerprint_changes_with_any_bit() -> None:
    tensors = [torch.ones(3), torch.zeros(2, dtype=torch.bfloat16), torch.tensor([7], dtype=torch.uint8)]
    before = fingerprint(tensors)
    for tensor in tensors:
        bits = tensor.view(torch.uint8)
        for place in range(len(bits)):
            bits[place] ^= 1
            assert fingerprint(tensors) != before
            bits[place] ^= 1
    assert fingerprint(tensors) == before


# The last rank's weights change by one bit; of two nobody knows which is right.
PROGRAM = """
import json, sys
from konvoi.world import from_environment
from konvoi.engine.sanity import check_equal
from konvoi.errors import UserError
from konvoi.sync import Team

team = Team(from_environment())
found = []
for value in (7, 7 + team.rank // (team.size - 1)):
    try:
        check_equal(team, value, 500)
        found.append("")
    except UserError as error:
        found.append(error.problem)
with open(sys.argv[1], "w") as file:
    json.dump(found, file)
team.close()
"""


@pytest.mark.parametrize(("num_workers", "odd"), [(2, (0, 1)), (3, (2,))])
def test_a_replica_that_parted_silently_is_named(tmp_path: Path, num_workers: int, odd: tuple[int, ...]) -> None:
    port, program = free_port(), textwrap.dedent(PROGRAM)
    processes = [
        start_process(
            f"import sys; sys.argv = ['program', {str(tmp_path / str(rank))!r}]; exec({program!r})",
            torchrun_variables(rank, num_workers, port),
        )
        for rank in range(num_workers)
    ]
    assert [ended(process) for process in processes] == [0] * num_workers
    for rank in range(num_workers):
        well, parted = json.loads((tmp_path / str(rank)).read_text())
        assert well == ""
        assert [number for number in range(num_workers) if f"rank {number} on " in parted] == list(odd)
        assert parted.startswith("step 500: the weights of rank ")
