"""Half precision on the wire against arithmetic by hand, on two processes."""

from __future__ import annotations

import json
import math
import textwrap
from pathlib import Path

import pytest
from tests.processes import ended, free_port, start_process, torchrun_variables

from konvoi.sync import ddp
from konvoi.sync.fp16 import Config, bytes_per_step

# The gradient of each weight is its input: three inputs, of which rank 0 sees the first row and rank 1 the second.
PROGRAM = """
import json, sys
import torch
from torch import nn
from konvoi.world import from_environment
from konvoi.sync import Team
from konvoi.sync.fp16 import Config, Sync
from konvoi.telemetry.timeline import NoTimeline, Timeline

torch.set_num_threads(1)
team = Team(from_environment())
inputs = ([1.0, 2e-7, 30.0], [0.3333333, 4e-7, 40.0])[team.rank]
found = []
for timeline in (Timeline(), NoTimeline()):
    model = nn.Linear(3, 1, bias=False)
    sync = Sync(Config(), team, timeline)
    wrapped = sync.wrap(model)
    with sync.micro_step(wrapped, is_last=True):
        wrapped(torch.tensor([inputs])).sum().backward()
    found.append(model.weight.grad.flatten().tolist())
with open(sys.argv[1], "w") as file:
    json.dump(found, file)
team.close()
"""


@pytest.fixture(scope="module")
def gradients(tmp_path_factory: pytest.TempPathFactory) -> list[list[float]]:
    """Of all ranks, with the timeline on and off: all the same."""
    folder: Path = tmp_path_factory.mktemp("ranks")
    port, program = free_port(), textwrap.dedent(PROGRAM)
    processes = [
        start_process(
            f"import sys; sys.argv = ['program', {str(folder / str(rank))!r}]; exec({program!r})",
            torchrun_variables(rank, 2, port),
        )
        for rank in range(2)
    ]
    assert [ended(process) for process in processes] == [0, 0]
    return [found for rank in range(2) for found in json.loads((folder / str(rank)).read_text())]


def test_the_gradient_is_the_mean_to_three_digits(gradients: list[list[float]]) -> None:
    # x 4096 / 2: 2048 and 682.6666, which has 11 binary digits as 682.5. Their sum 2730.5 has them as 2730.
    assert [found[0] for found in gradients] == [2730 / 4096] * 4


def test_a_small_gradient_is_not_lost(gradients: list[list[float]]) -> None:
    # (2e-7 + 4e-7) / 2; by itself half precision would know 1.2e-7 and 1.8e-7 only as multiples of 6e-8.
    assert all(found[1] == pytest.approx(3e-7, rel=1e-3) for found in gradients)


def test_a_gradient_that_is_too_large_is_infinite_and_so_the_step_is_skipped(gradients: list[list[float]]) -> None:
    # (30 + 40) / 2 x 4096 = 143,360, above 65,504
    assert all(math.isinf(found[2]) for found in gradients)


def test_it_sends_half_of_what_ddp_does() -> None:
    assert bytes_per_step(Config(), 1000, 2) == ddp.bytes_per_step(ddp.Config(), 1000, 2) / 2 == 2000
