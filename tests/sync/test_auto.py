"""What is chosen and why, on two real processes; and when replicas have parted."""

from __future__ import annotations

import json
import math
import random
import textwrap
from pathlib import Path
from typing import Any

import pytest
from tests.processes import ended, free_port, start_process, torchrun_variables
from tests.sync.workers import on_workers
from torch import nn

from konvoi.plan.predict import Prediction
from konvoi.plan.setup import Host, Link, Setup
from konvoi.sync import HiddenShape, Team, auto, ddp, diloco, fp16, hierarchical
from konvoi.sync._exchange import bytes_per_value
from konvoi.sync._pace import at_pace
from konvoi.sync.auto import Config, Sync, candidates, first_that_reaches, spread, words_for
from konvoi.telemetry.timeline import Timeline
from konvoi.world import World

# A pass takes 0.2 s or nothing, a gradient has 4 bytes or 8 MB. Loopback is a link as any other, but for the second
# case: it is faster than a processor packs messages.
PROGRAM = """
import json, sys, time
import torch
from torch import nn
from konvoi.world import from_environment
from konvoi.plan.setup import Link
from konvoi.sync import Team
from konvoi.sync.auto import Config, Sync
from konvoi.telemetry.timeline import Timeline

torch.set_num_threads(1)
team = Team(from_environment())
found = {}
for name, seconds, shape in (("compute", 0.2, (1, 1)), ("network", 0.0, (2_000, 1_000))):
    sync = Sync(Config(max_local_steps=8), team, Timeline())
    if name == "network":
        sync._link = lambda: Link.of_bits(1e6)
    sync.probe(lambda: time.sleep(seconds), 1, [shape])
    found[name] = {"chosen": sync.chosen.model_dump(mode="json"), "message": sync.message}
    model = nn.Linear(2, 1, bias=False)
    sync.wrap(model)
    again = Sync(Config(), team, Timeline())
    again.load_state(json.loads(json.dumps(sync.state())))
    again.load_tensors(sync.tensors()), again.load_own(sync.own_tensors())
    again.probe(lambda: None, 1, [(1, 1)])
    found[name]["resumed"] = again.chosen.model_dump(mode="json")
    sync.close(), again.close()
with open(sys.argv[1], "w") as file:
    json.dump(found, file)
team.close()
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
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
    return [json.loads((folder / str(rank)).read_text()) for rank in range(2)]


def test_where_compute_is_long_it_stays_exact(found: list[dict[str, Any]]) -> None:
    for told in found:
        assert told["compute"]["chosen"]["name"] == "ddp"
        assert "sync: ddp, " in told["compute"]["message"]


def test_where_the_network_is_all_it_exchanges_as_seldom_as_it_may(found: list[dict[str, Any]]) -> None:
    for told in found:
        assert told["network"]["chosen"]["local_steps"] == 8
        assert "; ddp would reach " in told["network"]["message"]
        assert "Mbit/s" in told["network"]["message"]


def test_all_workers_choose_alike_and_a_resumed_run_keeps_it(found: list[dict[str, Any]]) -> None:
    for name in ("compute", "network"):
        assert found[0][name] == found[1][name]
        assert found[0][name]["resumed"] == found[0][name]["chosen"]


def choose_with_unequal_cores(team: Team) -> list[dict[str, Any]]:
    """For rates of a link around which the choice turns; each host's cores are its rank's, all else is given."""
    auto.usable_cores = lambda: (64, 1)[team.rank]
    found = []
    for megabits in (30, 100, 300, 1_000):
        sync = Sync(Config(), team, Timeline())
        sync._link = lambda megabits=megabits: Link.of_bits(1e6 * megabits)  # type: ignore[method-assign,misc]
        sync._seconds_of = lambda task, times=3: 0.008  # type: ignore[method-assign]
        sync.probe(lambda: None, 1, [(1_000, 1_000)])
        found.append({"chosen": sync.chosen.model_dump(mode="json"), "message": sync.message})
        sync.close()
    return found


def test_hosts_with_other_cores_choose_alike() -> None:
    first, second = on_workers(choose_with_unequal_cores, [1, 1])
    assert first == second
    # What one core bears: 64 would do with 6 to 24.
    assert {one["chosen"]["local_steps"] for one in first} == {32}


def prediction(efficiency: float) -> Prediction:
    return Prediction(1 / efficiency, {}, 0.0, 2, efficiency, 0.0)


def test_the_first_that_reaches_enough_is_taken_and_the_fastest_where_none_does() -> None:
    ways = list(candidates(5, has_full_hosts=False))
    apart = [f"diloco with 4 local steps ({wire})" for wire in ("int8", "int4")]
    assert [words_for(way) for way in ways] == ["ddp", "fp16", *apart]
    ways.append(diloco.Config(local_steps=6))
    tried = list(zip(ways, map(prediction, (0.3, 0.5, 0.92, 0.97, 0.99)), strict=True))
    assert first_that_reaches(0.9, tried)[0] is ways[2]
    assert first_that_reaches(0.995, tried)[0] is ways[4]
    assert first_that_reaches(0.3, tried)[0] is ways[0]


def test_a_hundredth_is_not_worth_a_less_exact_way() -> None:
    ways = list(candidates(4, has_full_hosts=False))
    tried = list(zip(ways, map(prediction, (0.3, 0.596, 0.59, 0.6)), strict=True))
    assert first_that_reaches(0.9, tried)[0] is ways[1]


def test_where_hosts_have_several_workers_one_of_each_speaks_for_them() -> None:
    ways = list(candidates(4, has_full_hosts=True))
    assert all(isinstance(way, hierarchical.Config) for way in ways)
    apart = [diloco.Config(local_steps=4, wire=wire) for wire in ("int8", "int4")]
    assert [way.between for way in ways] == [ddp.Config(), fp16.Config(), *apart]  # type: ignore[attr-defined]


def losses(num_steps: int, *means: float) -> list[list[float]]:
    """Batches are easier or harder for all workers alike, and for each by itself."""
    chance = random.Random(1)
    rows = []
    for _ in range(num_steps):
        common = chance.gauss(0, 0.3)
        rows.append([mean + common + chance.gauss(0, 0.2) for mean in means])
    return rows


def test_replicas_that_differ_by_chance_have_not_parted() -> None:
    assert spread(losses(100, 4.0, 4.0, 4.0)) == 0.0


def test_a_replica_that_is_worse_by_a_tenth_is_found() -> None:
    # 4.4 beside 4.0 and 4.0: 0.27 above their mean of 4.13
    assert spread(losses(100, 4.0, 4.0, 4.4)) == pytest.approx(0.267 / 4.133, rel=0.3)


def test_parted_replicas_exchange_twice_as_often_until_every_step() -> None:
    sync, model = watching()
    told, local_steps = [], []
    for step, row in enumerate(losses(200, 4.0, 4.6), start=1):
        sync.after_step(model, step)
        told.append(sync.heard(step, row))
        local_steps.append(sync.way.local_steps)
    assert [number for number, message in enumerate(told, start=1) if message] == [50, 100]
    assert "exchange every 2 steps from now on" in told[49]
    assert "exchange every step from now on" in told[99]
    # What all know of a step is heard two steps later, where nothing hurries: the change counts from the next one on.
    assert [local_steps[step - 1] for step in (52, 53, 102, 103)] == [4, 2, 2, 1]
    assert (sync.way.local_steps, sync.way.overlap) == (1, 1)
    sync.close()


def test_after_that_a_step_is_said_to_send_the_same_more_often() -> None:
    sync, model = watching(share_moments=False)
    bytes_per_step = []
    for step, row in enumerate(losses(200, 4.0, 4.6), start=1):
        sync.after_step(model, step)
        settings = sync.settings_of(step)
        bytes_per_step.append(diloco.traffic(settings, [(8, 8), HiddenShape((8, 8))]).bytes_per_step(2))  # type: ignore[arg-type]
        sync.heard(step, row)
    # 128 values in int4 with their scales, and 64 momenta in int8 with theirs, every 4 steps, every 2, every one.
    whole = 128 * bytes_per_value("int4") + 64 * bytes_per_value("int8")
    assert [bytes_per_step[step - 1] for step in (52, 53, 102, 103)] == [whole / 4, whole / 2, whole / 2, whole]
    sync.close()


def test_momenta_that_stayed_at_home_do_when_exchanges_come_more_often() -> None:
    shapes = [HiddenShape((8, 8))]
    seldom = diloco.Config(local_steps=16, share_moments=False)
    often = at_pace(seldom, 8, 1)
    assert diloco.Config(local_steps=8).shares_momentum and not often.shares_momentum
    assert diloco.traffic(often, shapes).payload_bytes == diloco.traffic(seldom, shapes).payload_bytes
    assert (often.local_steps, often.overlap, often.num_fragments) == (8, 1, seldom.num_fragments)


def watching(**settings: Any) -> tuple[Sync, nn.Module]:
    sync, model = Sync(Config(watch_steps=50), Team(World()), Timeline()), nn.Linear(2, 1)
    sync.message = "sync: diloco with 4 local steps, as measured"
    sync._choose(diloco.Config(local_steps=4, fragments=2, **settings))
    sync.wrap(model)
    return sync, model


def test_who_is_stopped_between_hearing_and_acting_acts_after_the_same_step() -> None:
    sync, model = watching()
    assert any(sync.heard(step, row) for step, row in enumerate(losses(50, 4.0, 4.6), start=1))
    resumed, _ = watching()
    resumed.load_state(json.loads(json.dumps(sync.state())))
    local_steps = []
    for step in (51, 52, 53):
        resumed.after_step(model, step)
        local_steps.append(resumed.way.local_steps)
    assert local_steps == [4, 4, 2]
    sync.close(), resumed.close()


def test_what_exchanging_costs_a_processor_and_accumulation_are_told_to_the_planner() -> None:
    sync = Sync(Config(), Team(World()), Timeline())
    profile = sync._profile(0.6, 4, Setup((Host(Link(1e6), 2),)), [(3, 2)])
    assert (profile.compute_seconds, profile.micro_batches, profile.num_values) == (pytest.approx(0.6), 4, 6)
    assert profile.on_processor and profile.seconds_per_pass > 0
    # Two workers computed when it was timed: they are not to be counted twice.
    assert profile.on_host_with(2).compute_seconds == profile.compute_seconds


def test_a_rewind_to_what_one_worker_left_keeps_the_way_that_was_chosen_since() -> None:
    # Before: ddp, which had never seen the model, took over, and nothing was exchanged any more.
    begun = Sync(Config(), Team(World()), Timeline())
    saved = begun.state()
    sync, model = watching()
    nn.init.constant_(model.weight, 7.0)
    sync.load_state(json.loads(json.dumps(saved)))
    sync.load_tensors({})
    sync.load_own({})
    sync.rewound()
    assert isinstance(sync.way, diloco.Sync)
    with sync.shared():
        assert model.weight.tolist() == [[7.0, 7.0]]
    sync.close(), begun.close()


def test_a_loss_that_is_no_number_and_other_workers_than_before_are_no_parting() -> None:
    sync = Sync(Config(watch_steps=2), Team(World()), Timeline())
    sync._choose(diloco.Config(local_steps=4))
    sync.wrap(nn.Linear(2, 1))
    rows = [[4.0, 4.0], [math.nan, 4.0], [4.0, math.inf], [4.0, 4.0], [4.0, 4.0, 4.0], [4.0, 4.0, 4.0]]
    assert not any(sync.heard(step, row) for step, row in enumerate(rows, start=1))
    assert [len(row) for row in sync._losses] == [3, 3]
    sync.close()


def test_like_replicas_and_exact_ones_are_left_alone() -> None:
    sync = Sync(Config(watch_steps=50), Team(World()), Timeline())
    assert not any(sync.heard(step, row) for step, row in enumerate(losses(60, 4.0, 5.0), start=1))
    sync._choose(diloco.Config(local_steps=4))
    sync.wrap(nn.Linear(2, 1))
    assert not any(sync.heard(step, row) for step, row in enumerate(losses(60, 4.0, 4.0), start=61))
    sync.close()
