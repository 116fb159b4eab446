"""Half precision on the wire, of either kind, against arithmetic by hand, on two and three processes."""

from __future__ import annotations

import math

import pytest
import torch
from tests.sync.workers import Training, new_sync, on_workers
from torch import nn

from konvoi.sync import Team, bf16, ddp, fp16
from konvoi.telemetry.timeline import NoTimeline, Timeline

# The gradient of each weight is its input: of which rank 0 sees the first row, rank 1 the second, rank 2 the third.
INPUTS = ([1.0, 2e-7, 30.0], [0.3333333, 4e-7, 40.0], [2.0, 3e-7, 50.0])


def gradients(team: Team, name: str) -> list[list[float]]:
    """With the timeline on and off: all the same."""
    inputs = torch.tensor([INPUTS[team.rank]])
    trainings = [
        Training(nn.Linear(3, 1, bias=False), new_sync(name, {}, team, timeline))
        for timeline in (Timeline(), NoTimeline())
    ]
    return [training.step(inputs)[0].flatten().tolist() for training in trainings]


@pytest.fixture(scope="module")
def halves() -> list[list[float]]:
    """Of all ranks, fp16 on two processes."""
    return [found for rank in on_workers(gradients, [2], "fp16") for found in rank]


@pytest.fixture(scope="module")
def brains() -> list[list[float]]:
    """Of all ranks, bf16 on two processes."""
    return [found for rank in on_workers(gradients, [2], "bf16") for found in rank]


def test_the_gradient_is_the_mean_to_three_digits(halves: list[list[float]]) -> None:
    # x 4096 / 2: 2048 and 682.6666, which has 11 binary digits as 682.5. Their sum 2730.5 has them as 2730.
    assert [found[0] for found in halves] == [2730 / 4096] * 4


def test_a_small_gradient_is_not_lost(halves: list[list[float]]) -> None:
    # (2e-7 + 4e-7) / 2; by itself half precision would know 1.2e-7 and 1.8e-7 only as multiples of 6e-8.
    assert all(found[1] == pytest.approx(3e-7, rel=1e-3) for found in halves)


def test_a_gradient_that_is_too_large_is_infinite_and_so_the_step_is_skipped(halves: list[list[float]]) -> None:
    # (30 + 40) / 2 x 4096 = 143,360, above 65,504
    assert all(math.isinf(found[2]) for found in halves)


def test_bf16_has_two_digits(brains: list[list[float]]) -> None:
    # 1 / 2, and 0.3333333 / 2 with 8 binary digits: 171 / 1024. Their sum 683 / 1024 has them as 684 / 1024.
    assert [found[0] for found in brains] == [684 / 1024] * 4


def test_bf16_knows_small_and_large_gradients(brains: list[list[float]]) -> None:
    assert all(found[1] == pytest.approx(3e-7, rel=1e-2) for found in brains)
    # 15 + 20 has 8 binary digits.
    assert [found[2] for found in brains] == [35.0] * 4


@pytest.mark.parametrize(("name", "digits"), [("fp16", 3), ("bf16", 2)])
def test_three_workers_average_too(name: str, digits: int) -> None:
    # (1 + 0.3333333 + 2) / 3 and (2 + 4 + 3) / 3 e-7
    found = [found for rank in on_workers(gradients, [3], name) for found in rank]
    assert found == [found[0]] * 6
    assert found[0][:2] == pytest.approx([1.1111111, 3e-7], rel=10**-digits)


@pytest.mark.parametrize("module", [fp16, bf16])
def test_it_sends_half_of_what_ddp_does(module: object) -> None:
    shapes = [(10, 50), (500,)]
    sent = [way.traffic(way.Config(), shapes).bytes_per_step(2) for way in (module, ddp)]  # type: ignore[attr-defined]
    assert sent == [2000, 4000]
