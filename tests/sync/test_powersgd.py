"""Low-rank gradients against arithmetic by hand, on two and three processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any
from unittest import mock

import pytest
import torch
from tests.processes import Trainings, assert_went_on_exactly
from tests.sync.workers import Training, new_sync, on_workers
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

from konvoi.sync import Team, ddp
from konvoi.sync.powersgd import Config, traffic

# Every gradient of these is compressed at rank 1, except for the biases: 1 x (8 + 6) x 2 < 8 x 6.
ROWS, COLUMNS = 8, 6
TABLE = {"rank": 1, "start_step": 0}


def linear() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(COLUMNS, ROWS)


def inputs_of(rank: int, step: int = 0) -> Tensor:
    """Whose sum is the gradient of each row of the weights."""
    return torch.arange(COLUMNS).float().add(10 * rank + step)[None]


def matrix_of(rank: int, step: int) -> Tensor:
    """A gradient of full rank."""
    return torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(100 * step + rank))


class Free(nn.Module):
    """Its gradient is what it is given; several parameters, so that there are several buckets."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(ROWS, COLUMNS)) for _ in range(3))
        self.bias = nn.Parameter(torch.zeros(ROWS))

    def forward(self, gradient: Tensor) -> Tensor:
        # A third one that is needed for the next keeps the order in which the gradients come.
        return (
            torch.stack([(weight * gradient * (n + 1)).sum() for n, weight in enumerate(self.weights)]).sum()
            + (self.bias * gradient.sum(dim=1)).sum()
        )


def same(one: Iterable[Tensor], other: Iterable[Tensor]) -> bool:
    """To the bit."""
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def several_steps(team: Team, steps: range, table: dict[str, Any]) -> dict[str, Any]:
    training = Training(Free(), new_sync("powersgd", table, team))
    training.settle(matrix_of(team.rank, 0))
    return go_on(team, training, steps)


def go_on(team: Team, training: Training, steps: range) -> dict[str, Any]:
    gradients = [training.step(matrix_of(team.rank, step)) for step in steps]
    sync = training.sync
    saved = [{name: t.clone() for name, t in part.items()} for part in (sync.tensors(), sync.own_tensors())]
    return {"gradients": gradients, "state": sync.state(), "tensors": saved[0], "own": saved[1]}


def load(sync: Any, saved: dict[str, Any]) -> None:
    sync.load_state(saved["state"])
    sync.load_tensors(saved["tensors"])
    sync.load_own(saved["own"])


def equal_rows(team: Team) -> list[list[Tensor]]:
    training = Training(linear(), new_sync("powersgd", TABLE, team))
    training.settle(inputs_of(team.rank))
    return [training.step(inputs_of(team.rank, step)) for step in range(3)]


@pytest.mark.parametrize("size", [2, 3])
def test_a_gradient_of_rank_one_arrives_whole(size: int) -> None:
    found = on_workers(equal_rows, [1] * size)
    for gradients in found:
        for step, (weight, bias) in enumerate(gradients):
            # Two: (0 + 10) / 2 = 5, three: (0 + 10 + 20) / 3 = 10 is the first column's; the next is one more.
            first = {2: 5.0, 3: 10.0}[size] + step
            assert weight.tolist() == [pytest.approx([first + column for column in range(COLUMNS)])] * ROWS
            assert bias.tolist() == pytest.approx([1.0] * ROWS)


def resumed_and_not(team: Team, table: dict[str, Any]) -> dict[str, Any]:
    """Six steps; and three, a checkpoint, and three of a new one that goes on from it."""
    whole = several_steps(team, range(6), table)
    half = several_steps(team, range(3), table)
    sync = new_sync("powersgd", table, team)
    load(sync, half)
    training = Training(Free(), sync)
    training.settle(matrix_of(team.rank, 0))
    rest = go_on(team, training, range(3, 6))
    return {"whole": whole, "half": half, "rest": rest}


@pytest.fixture(scope="module", params=[True, False], ids=["warm", "cold"])
def resumed(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    # A bucket for each weight: 8 x 6 x 4 = 192 bytes
    return on_workers(resumed_and_not, [1, 1], {**TABLE, "bucket_megabytes": 1e-4, "warm_start": request.param})


def test_a_resumed_run_goes_on_to_the_bit(resumed: list[dict[str, Any]]) -> None:
    for found in resumed:
        expected, rest = found["whole"]["gradients"][3:], found["rest"]["gradients"]
        assert len(expected) == len(rest) == 3
        assert all(map(same, expected, rest))
        assert found["whole"]["state"] == found["rest"]["state"]
        assert found["rest"]["state"]["steps"] == 6


def test_every_worker_gets_the_same_and_shares_what_it_says_it_shares(resumed: list[dict[str, Any]]) -> None:
    one, other = (found["whole"] for found in resumed)
    assert same(one["gradients"][-1], other["gradients"][-1])
    assert len(one["own"]) > 1 and one["tensors"].keys() == other["tensors"].keys()
    assert same(one["tensors"].values(), other["tensors"].values())
    assert not any(torch.equal(error, other["own"][name]) for name, error in one["own"].items())


def test_what_was_left_out_is_remembered(resumed: list[dict[str, Any]]) -> None:
    # All that arrived in six steps and the mean of what the workers still keep is the sum of the true means.
    arrived = sum(torch.cat([g.flatten() for g in step]).sum().item() for step in resumed[0]["whole"]["gradients"])
    kept = sum(error.sum().item() for found in resumed for error in found["whole"]["own"].values()) / 2
    # Weights 1, 2 and 3 times the matrix, and the bias its row sums: 1 + 2 + 3 + 1 = 7
    true = sum(7 * matrix_of(rank, step).sum().item() / 2 for rank in range(2) for step in range(6))
    assert arrived + kept == pytest.approx(true, abs=1e-3)
    assert abs(arrived - true) > 0.1


def overflowing(team: Team) -> list[list[Tensor]]:
    training = Training(linear(), new_sync("powersgd", TABLE, team))
    training.settle(inputs_of(team.rank))
    factors = (1.0, float("inf") if team.rank == 0 else 1.0, 1.0)
    return [training.step(inputs_of(team.rank).add(1) * factor) for factor in factors]


def test_a_gradient_that_overflowed_is_not_remembered() -> None:
    for before, overflowed, after in on_workers(overflowing, [1, 1]):
        assert not overflowed[0].isfinite().all()
        # ((0 + 1) + (10 + 1)) / 2 = 6
        assert before[0][0, 0].item() == pytest.approx(6) == after[0][0, 0].item()


def other_buckets(team: Team) -> dict[str, Any]:
    half = several_steps(team, range(2), TABLE)
    sync = new_sync("powersgd", {**TABLE, "rank": 2, "min_compression_rate": 1.0}, team)
    load(sync, half)
    training = Training(Free(), sync)
    training.settle(matrix_of(team.rank, 0))
    return go_on(team, training, range(2, 3))


def test_with_another_rank_it_begins_anew_and_knows_its_step() -> None:
    for found in on_workers(other_buckets, [1, 1]):
        assert found["state"]["steps"] == 3
        assert found["tensors"]["p.0"].numel() == 3 * 2 * ROWS


def test_a_training_that_was_killed_goes_on_to_the_bit(trainings: Trainings) -> None:
    whole = trainings.new("sync.name=powersgd", "sync.start_step=3", "sync.rank=2", "sync.bucket_megabytes=0.05")
    assert trainings.train_together(whole, 2) == [0, 0]
    resumed = trainings.killed_after(whole, step=5)
    assert trainings.train_together(resumed, 2, resume=True) == [0, 0]
    assert_went_on_exactly(whole, resumed, after=5)


def test_the_bytes_are_those_of_both_factors_and_of_what_is_not_worth_it() -> None:
    shapes = [(512, 512), (512,), (10, 10), (64, 3, 7, 7)]
    # 8 x (512 + 512) = 8192; 512; 10 x 10, since 8 x 20 is more; 64 x 147 = 9408 > 2 x 8 x (64 + 147) = 3376
    sent = traffic(Config(rank=8), shapes)
    assert sent.payload_bytes == 4 * (8192 + 512 + 100 + 8 * (64 + 147))
    assert sent.num_messages == 3
    assert traffic(Config(start_step=70), shapes).first_steps == (70, ddp.traffic(ddp.Config(), shapes))


def failing(team: Team) -> str:
    training = Training(linear(), new_sync("powersgd", TABLE, team))
    training.settle(inputs_of(team.rank))
    # Of a checkpoint that is another model's.
    training.sync.load_own({"error.0": torch.zeros(3)})
    try:
        training.step(inputs_of(team.rank))
    except RuntimeError as error:
        return str(error)
    return ""


def test_what_fails_in_an_exchange_ends_the_step_and_says_why() -> None:
    # 8 x 6 weights and 8 of the bias are 56.
    for said in on_workers(failing, [2]):
        assert "RuntimeError: The size of tensor a (56) must match the size of tensor b (3)" in said


def threads_of_callbacks(team: Team) -> set[str]:
    """In which torch's hook goes on when a message has arrived."""
    threads = set()
    count = PowerSGDState.maybe_increase_iter

    def seen(state: PowerSGDState, bucket: Any) -> None:
        threads.add(threading.current_thread().name)
        count(state, bucket)

    with mock.patch.object(PowerSGDState, "maybe_increase_iter", seen):
        training = Training(linear(), new_sync("powersgd", TABLE, team))
        training.settle(inputs_of(team.rank))
        for step in range(3):
            # So that there is something to wait for.
            time.sleep(0.1 * team.rank)
            training.step(inputs_of(team.rank, step))
    return threads


def test_no_thread_of_a_group_may_be_the_last_to_hold_it() -> None:
    # It would wait for its own end, and the process be aborted: "Resource deadlock avoided".
    assert on_workers(threads_of_callbacks, [1, 1]) == [{"exchange"}, {"exchange"}]
