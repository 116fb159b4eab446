"""Second moments of workers that train apart, against arithmetic by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.sync.workers import new_sync, on_workers
from torch import Tensor, nn

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


def _assert_close(found: list[Tensor], expected: list[Tensor]) -> None:
    for values, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(values, wanted)
