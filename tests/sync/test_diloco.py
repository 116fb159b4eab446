"""Local steps and outer ones against arithmetic by hand, on two and three processes."""

from __future__ import annotations

import json
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from tests.processes import ended, free_port, start_process, torchrun_variables
from torch import nn

from konvoi.plan.predict import is_due
from konvoi.sync import HiddenShape, Team
from konvoi.sync._exchange import Wire
from konvoi.sync._fragment import Fragment
from konvoi.sync.diloco import Config, Sync, traffic
from konvoi.telemetry.timeline import Timeline
from konvoi.world import World

# One weight that begins at 0. A local step of rank 0 takes 1 from it, one of rank 1 takes 2, one of rank 2 takes 3.
PROGRAM = """
import json, sys
import torch
from torch import nn
from konvoi.world import from_environment
from konvoi.sync import Team
from konvoi.sync._exchange import Averager, alone
from konvoi.sync.diloco import Config, Sync
from konvoi.telemetry.timeline import Timeline

torch.set_num_threads(1)
team = Team(from_environment())

def fresh(**settings):
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, team.rank)
    return model, Sync(Config(fragments=1, **settings), team, Timeline())

def steps(model, sync, first, last):
    weights = []
    for step in range(first, last + 1):
        with sync.micro_step(model, is_last=True):
            pass
        with torch.no_grad():
            model.weight -= team.rank + 1
        sync.after_step(model, step)
        weights.append(model.weight.item())
    return weights

def walk(num_steps, **settings):
    model, sync = fresh(**settings)
    sync.wrap(model)
    weights = steps(model, sync, 1, num_steps)
    with sync.shared():
        shared = model.weight.item()
    back = model.weight.item()
    sync.finish(num_steps)
    sync.close()
    return {"weights": weights, "shared": shared, "back": back, "finished": model.weight.item()}

def resumed(stop, num_steps, with_own=True, **settings):
    model, sync = fresh(**settings)
    sync.wrap(model)
    weights = steps(model, sync, 1, stop)
    kept = json.loads(json.dumps(sync.state())), sync.tensors(), sync.own_tensors()
    kept = kept[0], *({name: t.clone() for name, t in tensors.items()} for tensors in kept[1:])
    model, sync = fresh(**settings)
    sync.load_state(kept[0]), sync.load_tensors(kept[1])
    if with_own:
        sync.load_own(kept[2])
    sync.wrap(model)
    return weights + steps(model, sync, stop + 1, num_steps)

def looked_back(**settings):
    # A momentum after each of four steps with gradients of 1, 2 and 3; a step keeps a half of it. Muon marks its own.
    model, sync = fresh(**settings)
    optimizer = torch.optim.SGD([{"params": [model.weight], "is_hidden": True}], lr=0.1, momentum=0.5)
    sync.use(optimizer)
    sync.wrap(model)
    momenta = []
    for step in range(1, 5):
        with sync.micro_step(model, is_last=True):
            model.weight.grad = torch.full((1, 1), team.rank + 1.0)
        optimizer.step()
        sync.after_step(model, step)
        momenta.append(optimizer.state[model.weight]["momentum_buffer"].item())
    sync.close()
    return momenta

plain = dict(local_steps=2, outer_rate=1.0, outer_momentum=0.0, wire="fp32")
found = {
    "at once": walk(5, overlap_steps=0, **plain),
    "momentum": walk(4, **{**plain, "overlap_steps": 0, "outer_rate": 0.5, "outer_momentum": 0.5}),
    "later": walk(5, overlap_steps=1, **plain),
    "int8": walk(4, **{**plain, "overlap_steps": 0, "wire": "int8"}),
    "int4": walk(4, **{**plain, "overlap_steps": 0, "wire": "int4"}),
    "fp16": walk(4, **{**plain, "overlap_steps": 0, "wire": "fp16"}),
    "momenta": looked_back(overlap_steps=0, **plain),
    "momenta later": looked_back(overlap_steps=1, **plain),
    "momenta in int8": looked_back(**{**plain, "overlap_steps": 1, "wire": "int8"}),
    "momenta apart": looked_back(overlap_steps=0, share_momentum=False, **plain),
    "resumed": [resumed(stop, 5, overlap_steps=1, **plain) for stop in (1, 2, 3, 4)],
    "resumed int8": [resumed(stop, 6, **{**plain, "overlap_steps": 1, "wire": "int8"}) for stop in (2, 3)],
    "unbroken int8": walk(6, **{**plain, "overlap_steps": 1, "wire": "int8"})["weights"],
    "resumed without own": resumed(2, 4, with_own=False, overlap_steps=1, **plain),
}
# A value so small beside another of its block that it is rounded away each time.
for wire, small in (("int8", 0.001), ("int4", 0.01)):
    average = Averager(2, team.size, wire, None)
    sums = torch.zeros(2)
    for _ in range(100):
        sums += alone(average(torch.tensor([1.0, small])))
    found[wire + " sums"] = sums.tolist()
    found["residuals"] = sorted(average.tensors())
# Four numbers are few: what a single exchange gets wrong, a hundred get right.
average, values = Averager(1024, team.size, "int2", None), torch.linspace(-1, 1, 1024)
sums = alone(average(values.clone()))
found["int2 off at first"] = (sums - values).abs().max().item()
for _ in range(99):
    sums += alone(average(values.clone()))
found["int2 off in the end"] = (sums / 100 - values).abs().max().item()
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


def momentum_spans(steps: tuple[int, ...], num_replicas: int, **settings: Any) -> list[float]:
    sync = Sync(Config(**settings), Team(World()), Timeline())
    sync.num_replicas = num_replicas
    spans = [sync.momentum_span(step) for step in steps]
    sync.close()
    return spans


def test_momentum_comes_to_look_back_over_as_many_tokens_as_that_of_all_workers() -> None:
    # A fourth of the tokens a step, so four times as many steps; one time more for every 200 steps done.
    assert momentum_spans((1, 200, 300, 800, 5000), num_replicas=4) == [1, 1, 1.5, 4, 4]
    assert momentum_spans((1, 200, 300, 800, 5000), num_replicas=2) == [1, 1, 1.5, 2, 2]


def test_momentum_stays_as_it_is_where_gradients_are_averaged_or_where_asked() -> None:
    assert momentum_spans((1, 900), num_replicas=4, exact_steps=1000) == [1, 1]
    assert momentum_spans((1, 900), num_replicas=4, long_momentum=False) == [1, 1]
    assert momentum_spans((1, 900), num_replicas=1) == [1, 1]


def test_after_the_local_steps_all_move_to_the_mean(found: list[dict[str, Any]]) -> None:
    # Two ranks after two steps: -2 and -4, so -3; three: -2, -4 and -6, so -4. Then the same again from there.
    mean = {2: -3.0, 3: -4.0}[len(found)]
    for rank, told in enumerate(found):
        own = -(rank + 1.0)
        assert told["at once"]["weights"] == [own, mean, mean + own, 2 * mean, 2 * mean + own]


def test_an_evaluation_sees_what_is_shared_and_leaves_the_own_weights(found: list[dict[str, Any]]) -> None:
    shared = {2: -6.0, 3: -8.0}[len(found)]
    for rank, told in enumerate(found):
        assert (told["at once"]["shared"], told["at once"]["back"]) == (shared, shared - (rank + 1))


def test_at_the_end_all_have_the_mean_of_what_they_learnt(found: list[dict[str, Any]]) -> None:
    # Shared -6 and one more step each: -7 and -8; three: -8, then -9, -10 and -11.
    assert {told["at once"]["finished"] for told in found} == {{2: -7.5, 3: -10.0}[len(found)]}


def test_the_outer_step_is_nesterovs(found: list[dict[str, Any]]) -> None:
    # Two ranks: the mean moved by is 3, momentum 3, so -0.5 x (3 + 0.5 x 3) = -2.25.
    # Then from -2.25 again by 3: momentum 0.5 x 3 + 3 = 4.5, so -2.25 - 0.5 x (3 + 0.5 x 4.5) = -4.875.
    # Three: by 4: -0.5 x (4 + 2) = -3, momentum 6, -3 - 0.5 x (4 + 3) = -6.5.
    for told in found:
        weights = told["momentum"]["weights"]
        assert (weights[1], weights[3]) == {2: (-2.25, -4.875), 3: (-3.0, -6.5)}[len(found)]


def test_what_is_learnt_while_a_fragment_travels_is_kept(found: list[dict[str, Any]]) -> None:
    # Two ranks: sent after step 2 as -2 and -4, it arrives after step 3: at -3, and step 3's -1 or -2 on top.
    # After step 4, -5 and -7, which is 2 and 4 from -3: the mean 3 arrives after step 5 as -6.
    mean = {2: -3.0, 3: -4.0}[len(found)]
    for rank, told in enumerate(found):
        own = -(rank + 1.0)
        assert told["later"]["weights"] == [own, 2 * own, mean + own, mean + 2 * own, 2 * mean + own]


def test_fewer_bytes_bring_the_same_where_nothing_is_rounded(found: list[dict[str, Any]]) -> None:
    for told in found:
        for wire in ("int4", "int8", "fp16"):
            assert told[wire]["weights"] == pytest.approx(told["at once"]["weights"][:4], rel=1e-3)


def test_what_rounding_takes_away_is_sent_later(found: list[dict[str, Any]]) -> None:
    # Sums of 100: a block whose largest is 1 knows multiples of 1 / 127 = 0.0079 only, or of 1 / 7 = 0.143.
    for told in found:
        assert told["int8 sums"] == pytest.approx([100, 0.1], abs=0.0081)
        assert told["int4 sums"] == pytest.approx([100, 1.0], abs=0.15)
        assert told["residuals"] == ["residual", "share_residual"]
        # Of evenly spread values the root of the mean square is 0.577, a half of which the nearest number is off; and
        # the mean is rounded once more. In the end a hundredth of what is still owed is left.
        assert 0.25 < told["int2 off at first"] < 0.6
        assert told["int2 off in the end"] < 0.02


def test_all_come_to_have_the_same_momentum(found: list[dict[str, Any]]) -> None:
    # After step 2 it is 1 / 2 + 1 = 1.5 times the gradient, then the mean of that: 2.25 of two workers, 3 of three.
    # After step 4 it is 2.25 / 4 + 1.5 x 1 and + 1.5 x 2, so 2.8125; or 3 / 4 + 1.5 x 2 = 3.75.
    means = {2: (2.25, 2.8125), 3: (3.0, 3.75)}[len(found)]
    for rank, told in enumerate(found):
        own = rank + 1.0
        assert told["momenta apart"] == [own, 1.5 * own, 1.75 * own, 1.875 * own]
        assert told["momenta"] == [own, means[0], means[0] / 2 + own, means[1]]
        # What arrives a step later has halved by then, as what it replaces.
        late = [own, 1.5 * own, means[0] / 2 + own, means[0] / 4 + 1.5 * own]
        assert told["momenta later"] == late
        assert told["momenta in int8"] == pytest.approx(late, rel=1e-3)


def test_a_resumed_run_goes_on_exactly_also_with_a_fragment_under_way(found: list[dict[str, Any]]) -> None:
    for told in found:
        assert told["resumed"] == [told["later"]["weights"]] * 4
        assert told["resumed int8"] == [told["unbroken int8"]] * 2


def test_without_what_was_its_own_a_worker_begins_at_what_is_shared(found: list[dict[str, Any]]) -> None:
    # After step 2 the mean of two steps, of 1 + 2 (+ 3) each, was under way: all know it, and begin there.
    mean = -2 * sum(rank + 1.0 for rank in range(len(found))) / len(found)
    for rank, told in enumerate(found):
        own = -(rank + 1.0)
        assert told["resumed without own"] == [own, 2 * own, mean + own, mean + 2 * own]


def test_fragments_take_turns_and_the_last_ends_the_round() -> None:
    due = {step: [number for number in range(4) if is_due(number, 4, step, every_steps=8)] for step in range(1, 17)}
    assert {step: numbers for step, numbers in due.items() if numbers} == {
        **{2: [0], 4: [1], 6: [2], 8: [3]},
        **{10: [0], 12: [1], 14: [2], 16: [3]},
    }


@pytest.mark.parametrize(
    ("local_steps", "count"),
    [(1, 1), (2, 2), (4, 4), (6, 6), (7, 7), (8, 8), (9, 3), (10, 5), (11, 4), (12, 6), (32, 8)],
)
def test_fragments_take_turns_at_equal_intervals_where_they_can(local_steps: int, count: int) -> None:
    assert Config(local_steps=local_steps).num_fragments == count
    assert Config(local_steps=local_steps, fragments=1).num_fragments == 1


def test_after_tightening_more_fragments_than_steps_still_travel_behind_a_step() -> None:
    model = nn.Linear(6, 1, bias=False)
    nn.init.zeros_(model.weight)
    sync = Sync(Config(local_steps=6, wire="fp32"), Team(World()), Timeline())
    sync.wrap(model)
    sync.tighten()
    assert (sync.local_steps, sync.overlap, len(sync.fragments)) == (3, 1, 6)
    shared = []
    for step in range(1, 5):
        with sync.micro_step(model, is_last=True):
            pass
        model.weight.data -= 1
        sync.after_step(model, step)
        shared.append([int(fragment.shared.item()) for fragment in sync.fragments])
    # Of six, two leave after each step and are shared one step later; the weight was at -step when they left.
    assert shared == [[0] * 6, [0, -1, -1, 0, 0, 0], [0, -1, -1, -2, -2, 0], [-3, -1, -1, -2, -2, -3]]
    assert model.weight.tolist() == [[-4.0] * 6]
    sync.close()


def test_weights_that_leave_are_copied_before_the_next_step_changes_them() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    sync = Sync(Config(local_steps=1, wire="fp32"), Team(World()), Timeline())
    sync.wrap(model)
    # The thread that copies has something else to do, and comes to it in the midst of the second step.
    is_free = threading.Event()
    sync.copier.submit(is_free.wait)
    model.weight.data -= 1
    sync.after_step(model, 1)
    with sync.micro_step(model, is_last=True):
        threading.Timer(0.2, is_free.set).start()
    model.weight.data -= 1
    sync.after_step(model, 2)
    assert sync.fragments[0].shared.tolist() == [-1.0]
    sync.close()


def test_weights_that_leave_are_copied_before_an_evaluation_changes_them() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    sync = Sync(Config(local_steps=1, wire="fp32"), Team(World()), Timeline())
    sync.wrap(model)
    is_free = threading.Event()
    sync.copier.submit(is_free.wait)
    model.weight.data -= 1
    sync.after_step(model, 1)
    threading.Timer(0.2, is_free.set).start()
    # What is shared is still 0: nothing has arrived.
    with sync.shared():
        assert model.weight.item() == 0.0
        assert sync.copier.submit(lambda: None).result() is None
    sync.after_step(model, 2)
    assert sync.fragments[0].shared.tolist() == [-1.0]
    sync.close()


def test_fragments_are_equally_long_and_may_cut_a_parameter() -> None:
    parameters = [nn.Parameter(torch.arange(5.0)), nn.Parameter(torch.arange(10.0, 14.0).view(2, 2))]
    # 9 values in two: 0 1 2 3 and 4 10 11 12 13
    first, second = (Fragment(parameters, number, 2) for number in range(2))
    assert (first.own().tolist(), second.own().tolist()) == ([0, 1, 2, 3], [4, 10, 11, 12, 13])
    second.set_own(-second.own())
    assert torch.cat([p.detach().view(-1) for p in parameters]).tolist() == [0, 1, 2, 3, -4, -10, -11, -12, -13]


def test_a_worker_alone_trains_as_ever_but_for_its_outer_step() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    sync = Sync(Config(local_steps=1, fragments=1, overlap_steps=0, outer_momentum=0.0), Team(World()), Timeline())
    sync.wrap(model)
    model.weight.data -= 1
    sync.after_step(model, 1)
    assert model.weight.item() == -1
    sync.close()


def test_momentum_travels_where_exchanges_are_frequent_unless_it_is_said_otherwise() -> None:
    told = [Config(local_steps=steps, share_momentum=share) for steps in (8, 9) for share in (None, True, False)]
    assert [config.shares_momentum for config in told] == [True, True, False, False, True, False]


def test_the_traffic_is_a_model_in_a_byte_each_every_so_many_steps() -> None:
    apart, sent = (
        traffic(
            Config(local_steps=8, fragments=2, wire="int8", share_momentum=share),
            [HiddenShape((1000, 1024)), (1000, 1024)],
        )
        for share in (False, True)
    )
    # Twice 1,024,000 values with 1,000 scales of 4 bytes, and every fourth time moments of 1,000 rows and 1,024 columns
    # of what Adam updates; 2 x 3 / 4 of that from each of four workers, every 8 steps. Besides, what Muon keeps.
    assert apart.payload_bytes == 2 * 1_028_000 + 4 * 2_024 / 4
    assert sent.payload_bytes == apart.payload_bytes + 1_028_000
    assert sent.bytes_per_step(4) == 1.5 * sent.payload_bytes / 8
    assert (sent.num_messages, sent.overlap_steps, sent.hidden_by) == (2, 4, "steps")
    # The first steps are exact, if asked for: fp32, when the backward pass is over.
    count, first = traffic(Config(exact_steps=50), [(1000, 1024)]).first_steps or (0, sent)
    assert (count, first.payload_bytes, first.every_steps, first.num_messages) == (50, 4_096_000, 1, 1)
    # Integers are sent to every other worker; what torch adds up goes round a ring.
    wires: tuple[Wire, ...] = ("fp32", "fp16", "int8", "int4", "int2")
    assert [traffic(Config(wire=wire), [(1000,)]).is_direct for wire in wires] == [False, False, True, True, True]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"local_steps": 2, "fragments": 3}, "3 fragments cannot take turns within 2 local_steps"),
        ({"local_steps": 4, "overlap_steps": 5}, "overlap_steps = 5 is more than the 4 local_steps"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, int], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        Config(**settings)  # type: ignore[arg-type]
