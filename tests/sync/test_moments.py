"""Second moments of workers that train apart, against arithmetic by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.sync.workers import new_sync, on_workers
from torch import Tensor, nn

from konvoi.engine import optim
from konvoi.engine.muon import Muon
from konvoi.sync import Team, _moments
from konvoi.sync._moments import margins, num_margins, put_in
from konvoi.world import World

BETA2 = 0.5
# Of two workers: a matrix that is a product of its rows' and columns' means, and a vector.
OWN = (
    ([[1.0, 1.0], [1.0, 1.0]], [0.0, 2.0]),
    ([[3.0, 6.0], [1.0, 2.0]], [4.0, 0.0]),
)


def test_margins_are_means_of_rows_and_columns_and_vectors_as_they_are() -> None:
    moments = [torch.tensor([[3.0, 6.0], [1.0, 2.0]]), torch.tensor([4.0, 0.0])]
    assert margins(moments).tolist() == [4.5, 1.5, 2, 4, 4, 0]
    assert num_margins([(2, 2), (2,), (4, 3, 5, 5), (7, 1)]) == 4 + 2 + (4 + 75) + 7


def test_what_was_put_in_is_taken_out_again() -> None:
    generator = torch.Generator().manual_seed(1)
    own = [torch.rand(5, 4, generator=generator), torch.rand(3, generator=generator)]
    moments, sums = [values.clone() for values in own], torch.rand(12, generator=generator)
    put_in(moments, torch.zeros(12), sums)
    assert not torch.allclose(moments[0], own[0])
    put_in(moments, sums, torch.zeros(12))
    for values, before in zip(moments, own, strict=True):
        torch.testing.assert_close(values, before)


def shared_twice(team: Team, table: dict[str, Any]) -> dict[str, Any]:
    # In place of 32: the arithmetic should fit on a page.
    _moments.EVERY = 2
    model = nn.Module()
    model.matrix, model.vector = nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(2))
    adam = torch.optim.Adam(model.parameters(), betas=(0.9, BETA2))
    sync = new_sync("diloco", table, team)
    sync.use(adam)
    sync.wrap(model)
    for parameter, values in zip(model.parameters(), OWN[team.rank], strict=True):
        adam.state[parameter]["exp_avg_sq"] = torch.tensor(values)
    moments = [adam.state[parameter]["exp_avg_sq"] for parameter in model.parameters()]
    found: dict[str, Any] = {"factors": [sync.rate_factor(1)], "moments": []}
    for step in range(1, 6):
        sync.after_step(model, step)
        found["moments"].append([values.clone() for values in moments])
        # What Adam does to them in a step whose gradient is zero.
        for values in moments:
            values.mul_(BETA2)
        found["factors"].append(sync.rate_factor(step + 1))
    sync.close()
    return found


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    return on_workers(shared_twice, (1, 1), {"local_steps": 2, "overlap_steps": 1, "fragments": 1})


def test_every_worker_has_the_sum_over_all_a_step_after_they_were_sent(found: list[dict[str, Any]]) -> None:
    for rank, told in enumerate(found):
        own = [torch.tensor(values) for values in OWN[rank]]
        others = [torch.tensor(values) for values in OWN[1 - rank]]
        before, at_sending, arrived, later, again = told["moments"]
        _assert_close(before, own)
        _assert_close(at_sending, [values / 2 for values in own])
        # The others' are as of the sending: halved once.
        _assert_close(arrived, [a / 4 + b / 2 for a, b in zip(own, others, strict=True)])
        _assert_close(later, [a / 8 + b / 4 for a, b in zip(own, others, strict=True)])
        # Sent after step 4: own parts of an eighth. The former sum, a quarter by then, was taken out before.
        _assert_close(again, [a / 16 + b / 8 for a, b in zip(own, others, strict=True)])


def test_steps_are_longer_by_what_they_know_of_each_other(found: list[dict[str, Any]]) -> None:
    for told in found:
        # Arrived after the third and the fifth step: half of the other is left in the next step, then a quarter. Adam
        # has 7/8 of it in its third step, 15/16 of its own in the fourth, 31/32 in the fifth, 63/64 in the sixth.
        kept = (1 / 2 * 7 / 8 * 16 / 15, 1 / 4 * 7 / 8 * 32 / 31, 1 / 2 * 31 / 32 * 64 / 63)
        assert told["factors"] == pytest.approx([2**0.5] * 3 + [(2 * (1 + part)) ** 0.5 for part in kept])


def test_without_what_is_its_own_a_worker_has_the_moments_of_one() -> None:
    model = nn.Linear(2, 2, bias=False)
    adam = torch.optim.Adam(model.parameters(), betas=(0.9, BETA2))
    adam.state[model.weight]["exp_avg_sq"] = torch.full((2, 2), 3.0)
    sync = new_sync("diloco", {}, Team(World()))
    sync.use(adam)
    # One worker's, and half of another's.
    sync.load_state({"moments": {"others_at": 7, "arrives_at": None, "num_in_it": 1.5}})
    sync.wrap(model)
    assert adam.state[model.weight]["exp_avg_sq"].tolist() == [[2.0, 2.0], [2.0, 2.0]]
    sync.close()


def test_a_matrix_of_one_column_is_a_vector() -> None:
    model = nn.Linear(1, 3, bias=False)
    adam = torch.optim.Adam(model.parameters())
    sync = new_sync("diloco", {"local_steps": 32}, Team(World()))
    sync.use(adam)
    sync.wrap(model)
    moments = adam.state[model.weight]["exp_avg_sq"] = torch.tensor([[1.0], [2.0], [3.0]])
    for step in range(1, 66):
        sync.after_step(model, step)
    assert moments.tolist() == [[1.0], [2.0], [3.0]]
    sync.close()


def exact_at_first(team: Team, table: dict[str, Any]) -> dict[str, list[float]]:
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    adam = torch.optim.Adam(model.parameters(), betas=(0.0, BETA2))
    sync = new_sync("diloco", table, team)
    sync.use(adam)
    sync.wrap(model)
    found: dict[str, list[float]] = {"factors": [], "gradients": [], "weights": [], "shared": [], "moments": []}
    for step in range(1, 5):
        model.zero_grad()
        for micro_batch in (1, 2):
            with sync.micro_step(model, is_last=micro_batch == 2):
                (model.weight * (team.rank + 1)).sum().backward()
        found["factors"].append(sync.rate_factor(step))
        found["gradients"].append(model.weight.grad.item())  # type: ignore[union-attr]
        adam.param_groups[0]["lr"] = 0.1 * sync.rate_factor(step)
        adam.step()
        sync.after_step(model, step)
        found["weights"].append(model.weight.item())
        with sync.shared():
            found["shared"].append(model.weight.item())
        found["moments"].append(adam.state[model.weight]["exp_avg_sq"].item())
    sync.close()
    return found


def test_the_first_steps_may_be_exact() -> None:
    one, other = on_workers(exact_at_first, (1, 1), {"local_steps": 8, "fragments": 1, "exact_steps": 2})
    # Two micro-batches of 1 and of 2 each: the mean of 2 and 4, and then each its own.
    assert (one["gradients"], other["gradients"]) == ([3, 3, 2, 2], [3, 3, 4, 4])
    assert one["factors"] == pytest.approx([1, 1, 2**0.5, 2**0.5])
    assert one["weights"][:2] == other["weights"][:2] == one["shared"][:2]
    assert one["weights"][2] != other["weights"][2] and one["shared"][2:] == other["shared"][1:3]
    # 9 x (1 - 1/2), then 9 x (1 - 1/4) times two workers; half of it is left beside half of 2 x 2.
    assert one["moments"][:3] == pytest.approx([4.5, 13.5, 13.5 / 2 + 2])


def test_without_adam_nothing_is_shared_and_steps_are_as_long_as_ever() -> None:
    model = nn.Linear(2, 2)
    for table, optimizer in (
        ({"share_moments": False}, torch.optim.Adam(model.parameters())),
        ({}, torch.optim.SGD(model.parameters())),
    ):
        sync = new_sync("diloco", table, Team(World()))
        sync.use(optimizer)
        sync.wrap(model)
        assert (sync.moments, sync.rate_factor(1)) == (None, 1.0)
        sync.close()


def test_of_muon_what_adam_updates_is_shared() -> None:
    model = nn.Linear(3, 2)
    groups: list[dict[str, Any]] = [
        {"params": [model.weight], "is_hidden": True, "weight_decay": 0.0},
        {"params": [model.bias], "is_hidden": False, "rate_share": 0.5, "weight_decay": 0.5},
    ]
    muon = Muon(groups, 0.9, (0.9, BETA2), 1e-9)
    sync = new_sync("diloco", {}, Team(World()))
    sync.num_replicas = 4
    sync.use(muon)
    sync.wrap(model)
    assert sync.moments and [parameter is model.bias for parameter in sync.moments.parameters] == [True]
    # Nothing is known of the others yet: the root of their number, for the bias alone.
    optim.set_rate(muon, 0.1, sync.rate_factor(1))
    assert [group["lr"] for group in muon.param_groups] == pytest.approx([0.1, 0.2])
    # Decay goes by the rate: 0.1 x 0.5 = 0.2 x 0.25
    assert [group["weight_decay"] for group in muon.param_groups] == [0.0, 0.25]
    sync.close()


def _assert_close(found: list[Tensor], expected: list[Tensor]) -> None:
    for values, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(values, wanted)
