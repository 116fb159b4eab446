"""One exchange for all workers of a host, against arithmetic by hand, on hosts that are only numbered as such."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.sync.workers import Training, new_sync, on_workers
from torch import Tensor, distributed, nn

from konvoi.config.recipe import check, read
from konvoi.errors import MachineError, RecipeError
from konvoi.sync import Team
from konvoi.sync.hierarchical import Config, traffic

GRADIENT_WAYS: list[dict[str, Any]] = [
    {"name": "ddp"},
    {"name": "fp16", "scale": 16.0},
    {"name": "bf16"},
    # 1 x (4 + 8) x 2 < 4 x 8: the weights of which all rows are equal are sent as two columns.
    {"name": "powersgd", "rank": 1, "start_step": 0, "bucket_megabytes": 1e-5},
]
DILOCO = {"name": "diloco", "wire": "fp32", "fragments": 1, "outer_momentum": 0.0}


def mean_gradients(team: Team) -> dict[str, list[list[list[float]]]]:
    """Of a weight of 4 x 8 and a bias, in two steps, by the name of what is between the hosts."""
    found = {}
    for between in GRADIENT_WAYS:
        training = Training(nn.Linear(8, 4), new_sync("hierarchical", {"between": between}, team))
        inputs = torch.full((1, 8), 12.0 * team.rank)
        training.settle(inputs)
        steps = [training.step(inputs), training.step(inputs + 12)]
        found[between["name"]] = [[gradient.unique().tolist() for gradient in step] for step in steps]
        training.sync.close()
    return found


@pytest.mark.parametrize("workers_per_host", [[2, 2], [2, 1], [1, 1], [2]], ids=str)
def test_the_gradient_is_the_mean_over_all_workers_whatever_their_hosts(workers_per_host: list[int]) -> None:
    # 12 x (0 + 1 + 2 + 3) / 4 = 18; 12 x (0 + 1 + 2) / 3 = 12; 12 x (0 + 1) / 2 = 6. In the next step 12 more.
    mean = {4: 18.0, 3: 12.0, 2: 6.0}[sum(workers_per_host)]
    expected = [[[mean], [1.0]], [[mean + 12], [1.0]]]
    for found in on_workers(mean_gradients, workers_per_host):
        assert len(found) == len(GRADIENT_WAYS)
        for name, steps in found.items():
            assert steps == [[pytest.approx(values) for values in step] for step in expected], name


def local_steps(team: Team) -> dict[str, Any]:
    """One weight that begins at 0; the gradient of rank r is r + 1, and a step takes it whole."""
    found: dict[str, Any] = {}
    for overlap in (0, 1):
        table = {"between": {**DILOCO, "local_steps": 2, "overlap_steps": overlap}}
        whole = fresh(team, table)
        found[f"overlap {overlap}"] = [walk(team, whole) for _ in range(6)]
        half = fresh(team, table)
        weights = [walk(team, half) for _ in range(2)]
        saved = half.sync.state(), half.sync.tensors(), half.sync.own_tensors()
        half = fresh(team, table, saved)
        found[f"resumed {overlap}"] = weights + [walk(team, half, step) for step in range(3, 7)]
    return found


def fresh(team: Team, table: dict[str, Any], saved: tuple[Any, ...] = ()) -> Training:
    sync = new_sync("hierarchical", table, team)
    if saved:
        sync.load_state(saved[0])
        sync.load_tensors(saved[1])
        sync.load_own(saved[2])
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    return Training(model, sync)


def walk(team: Team, training: Training, step: int | None = None) -> float:
    if step is not None:
        training.numbers = iter([step])  # type: ignore[assignment]
    training.step(torch.tensor([[team.rank + 1.0]]), rate=1.0)
    weight: Tensor = training.model.weight  # type: ignore[assignment]
    return weight.item()


def test_with_diloco_between_them_the_hosts_are_its_workers() -> None:
    # The first host takes (1 + 2) / 2 = 1.5 a step, the second 3; after two steps -3 and -6, and all move to -4.5.
    first, same, second = on_workers(local_steps, [2, 1])
    assert first["overlap 0"] == same["overlap 0"] == [-1.5, -4.5, -6.0, -9.0, -10.5, -13.5]
    assert second["overlap 0"] == [-3.0, -4.5, -7.5, -9.0, -12.0, -13.5]
    # A step later: the mean of what was sent, and what was learnt meanwhile.
    assert first["overlap 1"] == same["overlap 1"] == [-1.5, -3.0, -6.0, -7.5, -10.5, -12.0]
    for found in (first, same, second):
        assert all(found[f"resumed {overlap}"] == found[f"overlap {overlap}"] for overlap in (0, 1))


def exact_first(team: Team) -> list[float]:
    training = fresh(team, {"between": {**DILOCO, "local_steps": 2, "overlap_steps": 0, "exact_steps": 2}})
    return [walk(team, training) for _ in range(4)]


def test_in_exact_steps_every_worker_weighs_the_same_however_many_its_host_has() -> None:
    # (1 + 2 + 3) / 3 = 2 in each of two steps; then the first host takes 1.5 a step, the second 3, from -4 to -7 and
    # -10, and all move to -8.5.
    first, same, second = on_workers(exact_first, [2, 1])
    assert first == same == pytest.approx([-2.0, -4.0, -5.5, -8.5])
    assert second == pytest.approx([-2.0, -4.0, -7.0, -8.5])


def momenta(team: Team) -> dict[str, list[float]]:
    """After each of four steps; a step keeps a half. The first host's gradient is 1, the second's 3."""
    gradient = [1.0, 1.0, 3.0][team.rank]
    found = {}
    for wire in ("fp32", "int8"):
        sync = new_sync("hierarchical", {"between": {**DILOCO, "wire": wire, "local_steps": 2}}, team)
        model = nn.Linear(1, 1, bias=False)
        # As Muon marks what it turns orthogonal.
        optimizer = torch.optim.SGD([{"params": [model.weight], "is_hidden": True}], lr=0.1, momentum=0.5)
        sync.use(optimizer)
        wrapped = sync.wrap(model)
        found[wire] = []
        for step in range(1, 5):
            with sync.micro_step(wrapped, is_last=True):
                model.weight.grad = torch.full((1, 1), gradient)
            optimizer.step()
            sync.after_step(wrapped, step)
            found[wire].append(optimizer.state[model.weight]["momentum_buffer"].item())
        sync.close()
    return found


def test_all_workers_of_a_host_take_the_mean_momentum_of_the_hosts() -> None:
    first, same, second = on_workers(momenta, [2, 1])
    # 1 and 1.5, 3 and 4.5 are sent, whose mean is 3; when it comes, two steps later, a fourth is left of both:
    # 1.875 + (3 - 1.5) / 4 and 5.625 + (3 - 4.5) / 4.
    assert first["fp32"] == same["fp32"] == [1.0, 1.5, 1.75, 2.25]
    assert second["fp32"] == [3.0, 4.5, 5.25, 5.25]
    assert first["int8"] == same["int8"] == pytest.approx(first["fp32"], rel=1e-2)


def resume_low_rank(team: Team) -> dict[str, Any]:
    """Gradients of full rank, of which a checkpoint must keep what the hosts' first workers left out."""
    table = {"between": {"name": "powersgd", "rank": 1, "start_step": 1}}

    def go_on(training: Training, steps: range) -> list[list[Tensor]]:
        return [training.step(torch.eye(8)[:5] * (team.rank + step)) for step in steps]

    def new(saved: tuple[Any, ...] = ()) -> Training:
        torch.manual_seed(1)
        sync = new_sync("hierarchical", table, team)
        if saved:
            sync.load_state(saved[0])
            sync.load_tensors(saved[1])
            sync.load_own(saved[2])
        training = Training(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)), sync)
        training.settle(torch.eye(8))
        return training

    whole, half = new(), new()
    expected = go_on(whole, range(6))
    go_on(half, range(3))
    # As a checkpoint does: the first rank's for all, and each one's own.
    shared = team.from_first((half.sync.state(), half.sync.tensors()))
    own = half.sync.own_tensors()
    rest = go_on(new((*shared, own)), range(3, 6))
    equal = [all(map(torch.equal, one, other)) for one, other in zip(expected[3:], rest, strict=True)]
    return {"equal": equal, "own": sorted(own), "last": [gradient.sum().item() for gradient in rest[-1]]}


def test_a_run_that_is_resumed_goes_on_to_the_bit() -> None:
    found = on_workers(resume_low_rank, [2, 2])
    assert [one["equal"] for one in found] == [[True] * 3] * 4
    assert [one["last"] for one in found] == [found[0]["last"]] * 4
    # All have a part of the checkpoint, without which nobody would go on from his own.
    assert [one["own"] for one in found] == [["error.0", "here"], ["here"]] * 2


def settings(team: Team) -> dict[str, list[str]]:
    """What was between the hosts, step by step."""
    found = {}
    tables = {"powersgd": {"start_step": 1}, "diloco": {"exact_steps": 1}, "fp16": {}}
    for name, table in tables.items():
        training = Training(nn.Linear(8, 8), new_sync("hierarchical", {"between": {"name": name, **table}}, team))
        training.settle(torch.eye(8))
        found[name] = []
        for step in (1, 2):
            training.step(torch.eye(8))
            found[name].append(training.sync.settings_of(step).between.name)
        training.sync.close()
    return found


def test_all_workers_know_what_was_between_the_hosts_in_a_step() -> None:
    # The second worker of the first host sends nothing itself.
    for found in on_workers(settings, [2, 1]):
        assert found == {"powersgd": ["ddp", "powersgd"], "diloco": ["ddp", "diloco"], "fp16": ["fp16", "fp16"]}


def parts(team: Team) -> dict[str, Any]:
    hosts = team.ranks_by_host()
    part = team.part(hosts)
    values = torch.tensor([float(team.rank)])
    part.follow_first([values])
    second = part.another_group()
    if part.size > 1:
        distributed.all_reduce(values, group=second)
    return {
        "hosts": hosts,
        "workers": team.workers_by_host(),
        "sum": part.sum([team.rank]),
        "gathered": part.gather(team.rank),
        "first": part.from_first(team.rank),
        "followed": values.item(),
    }


def test_a_team_has_parts() -> None:
    found = on_workers(parts, [1, 3])
    assert [one["hosts"] for one in found] == [[[0], [1, 2, 3]]] * 4
    assert [one.pop("workers") for one in found] == [[3, 1]] * 4
    assert found[0] == {"hosts": [[0], [1, 2, 3]], "sum": [0], "gathered": [0], "first": 0, "followed": 0.0}
    # 1 + 2 + 3; all follow the first of them, and three times 1 is 3.
    expected = {"hosts": [[0], [1, 2, 3]], "sum": [6], "gathered": [1, 2, 3], "first": 1, "followed": 3.0}
    assert found[1:] == [expected] * 3


def one_by_one(team: Team) -> str:
    """Three workers dealt to two hosts in turn."""
    team.world = replace(team.world, local_rank=team.rank // 2, local_size=1 if team.rank == 1 else 2)
    assert team.workers_by_host() == [2, 1]
    try:
        team.ranks_by_host()
    except MachineError as error:
        return f"{error.problem}: {error.hint}"
    return ""


def test_hosts_that_take_turns_are_refused() -> None:
    for said in on_workers(one_by_one, [3]):
        assert "do not follow one another" in said and "--distribution=block" in said


def test_what_is_between_the_hosts_is_checked_as_a_table_of_its_own() -> None:
    right = read("demo", ["sync.name=hierarchical", 'sync.between={name="fp16", scale=16.0}'])
    assert right.sync.model_dump()["between"]["scale"] == 16
    assert check(tomllib.loads(right.to_toml())).sync == right.sync
    for between, problem in (
        ('{name="fp61"}', 'sync.between: name: is "fp61", did you mean "fp16"?'),
        ('{name="hierarchical"}', 'sync.between: name: is "hierarchical" (allowed: ddp, fp16, bf16, powersgd, diloco)'),
        ('{name="fp16", scael=2}', 'sync.between: between.scael: no such key, did you mean "scale"?'),
        ('{name="diloco", local_steps=0}', "sync.between: between.local_steps: is 0, should be greater than 0"),
        ("3", "sync.between: is 3, must be a table"),
    ):
        with pytest.raises(RecipeError) as caught:
            read("demo", ["sync.name=hierarchical", f"sync.between={between}"])
        assert problem in str(caught.value)


def test_what_leaves_a_host_is_what_its_way_sends_among_so_many_hosts() -> None:
    # 8 workers on 4 hosts, 1,000 values of 2 bytes: 2 x (4 - 1) / 4 x 2,000
    config = Config.model_validate({"between": {"name": "fp16"}})
    assert traffic(config, [(1000,)]).bytes_per_step(8, num_hosts=4) == 3000
    # Also in the first steps, which may be exact: 1,000 values of 4 bytes.
    config = Config.model_validate({"between": {"name": "diloco", "exact_steps": 5}})
    count, first = traffic(config, [(1000,)]).first_steps or (0, None)
    assert first and (count, first.bytes_out_per_step([2] * 4)) == (5, 6000)
