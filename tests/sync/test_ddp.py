"""Exact averaging against arithmetic by hand, and against one process, on two and three processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.sync.workers import Training, new_sync, on_workers
from torch import Tensor, nn

from konvoi import registry
from konvoi.sync import Team
from konvoi.sync.ddp import Config, Sync, traffic
from konvoi.telemetry.timeline import Timeline
from konvoi.world import World

NUM_PIECES, NUM_SENTENCES, RATE = 40, 6, 0.5


def two_steps(team: Team) -> dict[str, Any]:
    """Every rank sees two inputs, one after the other: rank 0 sees 1 and 2, rank 1 sees 3 and 4, rank 2 5 and 6."""
    torch.manual_seed(team.rank)
    model = nn.Linear(1, 1, bias=False)
    training = Training(model, Sync(Config(), team, Timeline()))
    start = model.weight.item()
    num_passes = 0

    def settling() -> None:
        nonlocal num_passes
        num_passes += 1
        training.wrapped(torch.ones(1, 1)).sum().backward()

    training.sync.settle(settling)
    inputs = [torch.tensor([[2.0 * team.rank + number]]) for number in (1, 2)]
    return {
        "start": start,
        "gradients": [training.step(*inputs)[0].item() for _ in range(2)],
        "num_averaged": training.sync.num_averaged,
        "settled": num_passes,
        "sum": team.sum([1.0, team.rank]),
        "gathered": team.gather(["rank", team.rank]),
    }


@pytest.fixture(scope="module", params=[2, 3], ids=["two", "three"])
def found(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """What each rank found."""
    return on_workers(two_steps, [request.param])


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


def train_transformer(team: Team, name: str = "ddp") -> tuple[list[float], list[Tensor]]:
    """Three steps, each worker with its share of six sentences; the losses of all, and the weights."""
    torch.manual_seed(1)
    module = registry.find("model", "transformer")
    config = module.Config(
        size="tiny", width=32, ffn_width=64, heads=2, encoder_layers=1, decoder_layers=1, dropout=0.0
    )
    model = module.Model(config, NUM_PIECES, pad=0)
    pieces = torch.randint(4, NUM_PIECES, (NUM_SENTENCES, 7), generator=torch.Generator().manual_seed(1))
    own = pieces[team.rank :: team.size]
    sync = new_sync(name, {}, team)
    wrapped, optimizer = sync.wrap(model), torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
    losses = []
    for step in range(1, 4):
        optimizer.zero_grad()
        with sync.micro_step(wrapped, is_last=True):
            loss = wrapped(own, own.flip(1)).logsumexp(dim=-1).sum() / pieces.numel()
            torch.autograd.backward(loss * sync.num_averaged)
        optimizer.step()
        sync.after_step(wrapped, step)
        losses.append(team.sum([loss.item()])[0])
    return losses, [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("num_workers", [2, 3])
def test_several_workers_train_a_transformer_as_one_does_with_all_their_sentences(num_workers: int) -> None:
    losses, weights = train_transformer(Team(World()))
    assert losses[0] - losses[-1] > 0.1
    for own_losses, own_weights in on_workers(train_transformer, [num_workers]):
        assert own_losses == pytest.approx(losses, rel=1e-5)
        for one, other in zip(weights, own_weights, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


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
    assert traffic(Config(), [(60_880_896,)]).bytes_per_step(num_workers) / 1e6 == pytest.approx(megabytes)
