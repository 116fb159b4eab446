"""Exact averaging against arithmetic by hand, on one, two and three processes."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.processes import ended, free_port, start_process, torchrun_variables
from torch import nn

from konvoi.sync import Team
from konvoi.sync.ddp import Config, Sync, bytes_per_step
from konvoi.telemetry.timeline import Timeline
from konvoi.world import World

# Every rank sees two inputs, one after the other: rank 0 sees 1 and 2, rank 1 sees 3 and 4, rank 2 sees 5 and 6.
PROGRAM = """
import json, os, sys
import torch
from torch import nn
from konvoi.world import from_environment
from konvoi.sync import Team
from konvoi.sync.ddp import Config, Sync
from konvoi.telemetry.timeline import Timeline

torch.set_num_threads(1)
team = Team(from_environment())
torch.manual_seed(team.rank)
model = nn.Linear(1, 1, bias=False)
sync = Sync(Config(), team, Timeline())
wrapped = sync.wrap(model)
start = model.weight.item()

def gradient(one_pass):
    model.zero_grad()
    one_pass()
    return model.weight.grad.item()

def step():
    for number, value in enumerate((1.0, 2.0)):
        with sync.micro_step(wrapped, is_last=number == 1):
            wrapped(torch.tensor([[2.0 * team.rank + value]])).sum().backward()

num_passes = 0
def settling():
    global num_passes
    num_passes += 1
    wrapped(torch.ones(1, 1)).sum().backward()
sync.settle(settling)

found = {
    "start": start,
    "gradients": [gradient(step), gradient(step)],
    "num_averaged": sync.num_averaged,
    "settled": num_passes,
    "sum": team.sum([1.0, team.rank]),
    "gathered": team.gather(["rank", team.rank]),
}
with open(sys.argv[1], "w") as file:
    json.dump(found, file)
team.close()
"""


@pytest.fixture(scope="module", params=[2, 3], ids=["two", "three"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank found."""
    folder: Path = tmp_path_factory.mktemp("ranks")
    port, program = free_port(), textwrap.dedent(PROGRAM)
    processes = [
        start_process(
            f"import sys; sys.argv = ['program', {str(folder / str(rank))!r}]; exec({program!r})",
            torchrun_variables(rank, request.param, port),
        )
        for rank in range(request.param)
    ]
    assert [ended(process) for process in processes] == [0] * request.param
    return [json.loads((folder / str(rank)).read_text()) for rank in range(request.param)]


def test_the_gradient_is_the_mean_over_ranks_of_the_sum_over_micro_batches(found: list[dict[str, Any]]) -> None:
    # Two ranks: (1 + 2 + 3 + 4) / 2 = 5; three: (1 + 2 + 3 + 4 + 5 + 6) / 3 = 7. The same again in the next step.
    expected = {2: 5.0, 3: 7.0}[len(found)]
    assert [rank["gradients"] for rank in found] == [[expected, expected]] * len(found)


def test_multiplied_by_the_number_averaged_it_is_the_sum(found: list[dict[str, Any]]) -> None:
    assert [rank["num_averaged"] for rank in found] == [len(found)] * len(found)


def test_all_begin_with_the_weights_of_the_first(found: list[dict[str, Any]]) -> None:
    assert {rank["start"] for rank in found} == {found[0]["start"]}


def test_three_and_more_settle_before_their_first_step(found: list[dict[str, Any]]) -> None:
    # Two summands add up to the same in any order, three need not.
    assert [rank["settled"] for rank in found] == ([0, 0] if len(found) == 2 else [1, 1, 1])


def test_everyone_gets_the_sum_and_everyones_value(found: list[dict[str, Any]]) -> None:
    # 1 of each, and 0 + 1 (+ 2)
    assert [rank["sum"] for rank in found] == [[len(found), {2: 1, 3: 3}[len(found)]]] * len(found)
    assert [rank["gathered"] for rank in found] == [[["rank", rank] for rank in range(len(found))]] * len(found)


def test_one_worker_sends_nothing_and_waits_for_nobody() -> None:
    team = Team(World())
    model = nn.Linear(1, 1)
    assert Sync(Config(), team, Timeline()).wrap(model) is model
    assert (team.sum([1.0, 2.0]), team.gather("alone")) == ([1.0, 2.0], ["alone"])
    team.close()
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("num_workers", "megabytes"),
    # A ring all-reduce of 60,880,896 x 4 bytes = 243.523584 MB: 2 x (N - 1) / N of that
    [(1, 0.0), (2, 243.523584), (3, 324.698112), (4, 365.285376)],
)
def test_the_bytes_of_a_step_follow_the_ring(num_workers: int, megabytes: float) -> None:
    assert bytes_per_step(Config(), 60_880_896, num_workers) / 1e6 == pytest.approx(megabytes)
