"""Batch norm over two workers against one worker that sees all their pictures."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.processes import ended, free_port, start_process, torchrun_variables
from tests.sync.workers import Training, new_sync, on_workers
from torch import Tensor

from konvoi.models._sync_batch_norm import SyncBatchNorm
from konvoi.models.resnet import Config, Model
from konvoi.sync import Team

# Rank 0 sees the first five of eight pictures, rank 1 the last three.
SEEN = (slice(0, 5), slice(5, 8))

# Program and test make the same model and the same pictures.
MAKE = """
import torch
from konvoi.models.resnet import Config, Model

def make():
    torch.manual_seed(5)
    model = Model(Config(depth=18, stem="small", sync_batch_norm=True), num_classes=3).double()
    x = 100 + 3 * torch.randn(8, 3, 9, 9, dtype=torch.float64)
    return model, x, torch.randn(8, 3, dtype=torch.float64)
"""

PROGRAM = """
import json, sys
import torch
from konvoi.world import from_environment
from konvoi.sync import Team

torch.set_num_threads(1)
team = Team(from_environment())
model, x, slopes = make()
own = slice(0, 5) if team.rank == 0 else slice(5, 8)
x = x[own].requires_grad_()
logits = model(x)
(logits * slopes[own]).sum().backward()
model.eval()
found = {
    "logits": logits.tolist(),
    "grad_x": x.grad.tolist(),
    "gradients": {name: p.grad.sum().item() for name, p in model.named_parameters()},
    "bn1.weight.grad": model.bn1.weight.grad.tolist(),
    "buffers": {name: buffer.tolist() for name, buffer in model.named_buffers()},
    "evaluated": model(x).tolist(),
}
with open(sys.argv[1], "w") as file:
    json.dump(found, file)
team.close()
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks found."""
    folder: Path = tmp_path_factory.mktemp("ranks")
    port, program = free_port(), textwrap.dedent(MAKE + PROGRAM)
    processes = [
        start_process(
            f"import sys; sys.argv = ['program', {str(folder / str(rank))!r}]; exec({program!r}, globals())",
            torchrun_variables(rank, 2, port),
        )
        for rank in range(2)
    ]
    assert [ended(process) for process in processes] == [0, 0]
    return [json.loads((folder / str(rank)).read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def alone() -> tuple[Model, Tensor, Tensor]:
    """One worker over all eight: the model after its backward pass, the pictures, the logits."""
    space: dict[str, Any] = {}
    exec(MAKE, space)
    model, x, slopes = space["make"]()
    x.requires_grad_()
    logits = model(x)
    torch.autograd.backward((logits * slopes).sum())
    return model, x, logits


def joined(found: list[dict[str, Any]], key: str) -> Tensor:
    return torch.cat([torch.tensor(rank[key], dtype=torch.float64) for rank in found])


def test_two_workers_say_what_one_says_of_the_joined_batch(found: list[dict[str, Any]], alone: Any) -> None:
    torch.testing.assert_close(joined(found, "logits"), alone[2].detach())


def test_the_pictures_get_the_same_gradients(found: list[dict[str, Any]], alone: Any) -> None:
    assert alone[1].grad.abs().max() > 1e-3
    torch.testing.assert_close(joined(found, "grad_x"), alone[1].grad)


def test_the_workers_gradients_add_up_to_those_of_one(found: list[dict[str, Any]], alone: Any) -> None:
    names = dict(alone[0].named_parameters())
    assert len(names) == 62
    for name, parameter in names.items():
        total = sum(rank["gradients"][name] for rank in found)
        assert total == pytest.approx(parameter.grad.sum().item(), rel=1e-6, abs=1e-8), name
    per_channel = sum(torch.tensor(rank["bn1.weight.grad"], dtype=torch.float64) for rank in found)
    torch.testing.assert_close(per_channel, alone[0].bn1.weight.grad)


def test_both_workers_remember_the_statistics_of_the_joined_batch(found: list[dict[str, Any]], alone: Any) -> None:
    buffers = dict(alone[0].named_buffers())
    assert len(buffers) == 60
    for name, buffer in buffers.items():
        for rank in found:
            torch.testing.assert_close(torch.tensor(rank["buffers"][name], dtype=buffer.dtype), buffer, msg=name)


def test_evaluation_asks_no_one(found: list[dict[str, Any]], alone: Any) -> None:
    model, x, _ = alone
    model.eval()
    torch.testing.assert_close(joined(found, "evaluated"), model(x).detach())
    model.train()


def test_alone_it_is_a_plain_batch_norm() -> None:
    synced, plain = SyncBatchNorm(4), torch.nn.BatchNorm2d(4)
    x = torch.randn(2, 4, 3, 3)
    assert torch.equal(synced(x), plain(x))
    assert synced.running_var is not None and plain.running_var is not None
    assert torch.equal(synced.running_var, plain.running_var)


def test_its_names_are_those_of_the_plain_model() -> None:
    with torch.device("meta"):
        synced, plain = (Model(Config(depth=18, sync_batch_norm=value), 10) for value in (True, False))
    assert list(synced.state_dict()) == list(plain.state_dict())


# Those with threads of their own among them, whose messages must not be taken for a layer's.
ALIKE: dict[str, dict[str, Any]] = {
    "ddp": {},
    "fp16": {},
    "bf16": {},
    "powersgd": {"rank": 1, "start_step": 0},
    "hierarchical": {"between": {"name": "powersgd", "rank": 1, "start_step": 0}},
}


def new_model_and_pictures() -> tuple[Model, Tensor]:
    torch.manual_seed(5)
    # Linear in its last layer only, whose gradient is what the layers before it make of the pictures.
    return Model(Config(depth=18, stem="small", width=8, sync_batch_norm=True), num_classes=3), torch.randn(8, 3, 9, 9)


def trained(team: Team) -> dict[str, list[list[float]]]:
    """The last layer's gradient in three steps, by the name of the way to synchronise."""
    found = {}
    for name, table in ALIKE.items():
        model, x = new_model_and_pictures()
        training = Training(model, new_sync(name, table, team))
        own = x[SEEN[team.rank]]
        training.settle(own)
        steps = [training.step(own, rate=0.01) for _ in range(3)]
        found[name] = [gradients[-2][0].tolist() for gradients in steps]
        training.sync.close()
    return found


def test_it_trains_with_every_way_whose_workers_stay_alike() -> None:
    first, second = on_workers(trained, [1, 1])
    model, x = new_model_and_pictures()
    torch.autograd.backward(model(x).sum())
    weight = model.fc.weight.grad
    assert weight is not None and weight.abs().max() > 0.1
    # A worker's output is the sum over its pictures, and what the two are averaged to is half of the sum over all.
    assert first["ddp"][0] == pytest.approx((weight[0] / 2).tolist(), rel=1e-3, abs=1e-5)
    assert set(first) == set(ALIKE)
    for name, steps in first.items():
        assert steps == second[name], name
        assert steps[0] == pytest.approx(first["ddp"][0], rel=0.1, abs=0.05), name
