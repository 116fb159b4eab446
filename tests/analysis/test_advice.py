"""What a change would bring, worked out by hand beside the model. A made exchange: 6 MB in 2 collectives."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.analysis.made_runs import make_run

from konvoi.analysis.diagnosis import diagnose
from konvoi.analysis.network import Exchange
from konvoi.analysis.record import RunRecord
from konvoi.analysis.verdict import Advice
from konvoi.sync import diloco
from konvoi.sync._exchange import bytes_per_value

AdviceOf = Callable[..., dict[str, Advice]]


@pytest.fixture
def advice_of(tmp_path: Path) -> AdviceOf:
    """The advice by the first words of it."""

    def make(**made: Any) -> dict[str, Advice]:
        verdict = diagnose(RunRecord.read(make_run(tmp_path / "run", **made)))
        gains = [advice.gain for advice in verdict.advice]
        assert gains == sorted(gains, reverse=True)
        return {advice.words.split(",")[0]: advice for advice in verdict.advice}

    return make


def seconds(advice: Advice) -> tuple[float, float]:
    return (advice.before_seconds, advice.after_seconds)


TWO = ("a", "b")
NETWORK = {"phases": {"exposed_communication": 1.032, "agreement": 0.001}}


def test_half_precision_halves_the_bytes_but_not_the_latency(advice_of):
    # Of 1.032 s two collectives take 1 ms each however small: 1.030 / 2 is saved of 0.46 + 1.033 s.
    advice = advice_of(step=NETWORK)["half precision gradients"]
    assert seconds(advice) == pytest.approx((1.493, 1.493 - 0.515))


def test_of_what_hides_behind_backward_more_hides_when_it_is_shorter(advice_of):
    # 1.232 s under way, 0.2 s of it hidden: with 0.617 s under way 0.417 s stay exposed.
    step = {**NETWORK, "communication": {"seconds": 1.233}}
    advice = advice_of(step=step)["half precision gradients"]
    assert seconds(advice) == pytest.approx((1.493, 0.461 + 0.002 + 1.230 / 2 - 0.2))


def test_local_steps_exchange_once_in_six_in_an_eighth_of_the_bytes(advice_of):
    # Of 1.030 s for bytes 1/48 stays, of 2 ms for two collectives 1/6; the exposed 1.032 s end otherwise.
    advice = advice_of(step=NETWORK, hosts=TWO)["one exchange in 6 steps"]
    assert advice.how == "--set sync.name=diloco"
    assert seconds(advice) == pytest.approx((1.493, 0.461 + 1.030 / 48 + 0.002 / 6))
    # What is advised is what that does.
    usual = diloco.Config()
    assert (usual.local_steps, bytes_per_value(usual.wire)) == (6, pytest.approx(0.5, rel=0.01))


def test_with_muon_a_momentum_travels_too(advice_of):
    # 1.5 instead of 4 bytes, once in six steps: a sixteenth of 1.030 s.
    advice = advice_of(step=NETWORK, hosts=TWO, recipe={"optim": {"name": "muon"}})["one exchange in 6 steps"]
    assert seconds(advice) == pytest.approx((1.493, 0.461 + 1.030 / 16 + 0.002 / 6))


def test_where_hosts_have_several_workers_one_of_each_exchanges(advice_of):
    advice = advice_of(step=NETWORK, num_workers=4, hosts=TWO)["one exchange in 6 steps"]
    assert advice.how == "--set sync.name=hierarchical --set sync.between.name=diloco"


def test_what_is_between_the_hosts_may_be_another_way(advice_of):
    advice = advice_of(step=NETWORK, hosts=TWO, recipe={"sync": {"name": "hierarchical", "between": {"name": "ddp"}}})
    assert advice["one exchange in 6 steps"].how == "--set sync.between.name=diloco"
    assert advice["half precision gradients between the hosts"].how == "--set sync.between.name=fp16"


@pytest.mark.parametrize(
    "made",
    [
        {"hosts": TWO, "recipe": {"sync": {"name": "diloco"}}},
        {"hosts": TWO, "recipe": {"sync": {"name": "hierarchical", "between": {"name": "diloco"}}}},
        # Its memory is no slow link.
        {"hosts": ("a",)},
        # The run would be refused.
        {"hosts": TWO, "recipe": {"train": {"ema_decay": 0.99}}},
        {"hosts": TWO, "recipe": {"model": {"sync_batch_norm": True}}},
    ],
    ids=["in use", "in use between hosts", "one host", "moving average", "batch norm over all"],
)
def test_local_steps_are_not_advised(advice_of, made):
    assert not any("one exchange in" in name for name in advice_of(step=NETWORK, **made))


def test_where_auto_chose_another_way_is_not_advised(tmp_path):
    path = make_run(tmp_path / "run", step=NETWORK, hosts=TWO, recipe={"sync": {"name": "auto"}})
    events = path / "events" / "rank0.jsonl"
    events.write_text(json.dumps({"kind": "sync", "time": 0.0, "chosen": {"name": "ddp"}}) + "\n" + events.read_text())
    told = [advice.how for advice in diagnose(RunRecord.read(path)).advice]
    assert told and not any("sync" in how for how in told)


def test_what_comes_too_late_behind_other_steps_may_come_less_often(advice_of):
    # 1.032 of 1.493 s stand still: the link is busy all the time, and 0.461 s hide the half of it but for 0.286 s.
    advice = advice_of(step=NETWORK, hosts=TWO, recipe={"sync": {"name": "diloco", "local_steps": 6}})
    fewer = advice["half as many exchanges"]
    assert fewer.how == "--set sync.local_steps=12"
    assert seconds(fewer) == pytest.approx((1.493, 1.493 / 2), abs=0.001)
    assert advice["4 micro-batches in a step"].how == "--set train.accumulate=4"


def test_exact_steps_that_take_most_of_it_may_be_left_out(advice_of):
    def step(rank: int, number: int) -> dict[str, Any]:
        return NETWORK if number <= 20 else {"phases": {"exposed_communication": 0.0, "agreement": 0.0}}

    sync = {"name": "diloco", "local_steps": 6, "exact_steps": 20}
    advice = advice_of(step=step, hosts=TWO, recipe={"sync": sync})
    assert "half as many exchanges" not in advice
    # Twenty of fifty steps of 0.46 s take 1.033 s more.
    assert seconds(advice["no exact steps at first"]) == pytest.approx((0.46 + 1.033 * 20 / 50, 0.46))
    assert advice["no exact steps at first"].how == "--set sync.exact_steps=0"


def test_accumulating_exchanges_once_in_four(advice_of):
    advice = advice_of(step=NETWORK)["exchange once in 4 micro-batches"]
    assert advice.how == "--set train.accumulate=4"
    assert seconds(advice) == pytest.approx((1.493, 0.46 + 1.033 / 4))


def test_a_run_that_accumulates_already_is_told_more(advice_of):
    advice = advice_of(step=NETWORK, recipe={"train": {"accumulate": 2}})["exchange once in 8 micro-batches"]
    assert advice.how == "--set train.accumulate=8"
    assert seconds(advice) == pytest.approx((1.493 / 2, (0.46 + 1.033 / 4) / 2))


def test_one_worker_where_the_network_eats_all(advice_of):
    advice = advice_of(step={"phases": {"exposed_communication": 5.0}})["one worker instead of 2"]
    assert seconds(advice) == pytest.approx((5.47 / 2, 0.46))


def test_not_one_worker_where_two_are_faster(advice_of):
    # 0.76 s for two micro-batches are better than 0.46 s for one.
    assert "one worker instead of 2" not in advice_of(step={"phases": {"exposed_communication": 0.29}})


def test_larger_buckets_against_latency_alone(advice_of):
    communication = {"agreement_moving_seconds": 0.04, "num_collectives": 11}
    step = {"phases": {"exposed_communication": 0.4, "agreement": 0.04}, "communication": communication}
    advice = advice_of(step=step)["fewer"]
    assert advice.how == "--set sync.bucket_megabytes=100"
    assert seconds(advice) == pytest.approx((0.9, 0.9 - 0.4 + 0.1))


def test_more_processes_that_decode(advice_of):
    # Half of 1 s waits for pictures that two processes decode: 2 s of decoding need 4 processes to take 0.5 s.
    recipe = {"task": {"name": "classification"}, "batching": {"processes": 2}}
    advice = advice_of(step={"phases": {"data": 0.5, "other": 0.02}}, recipe=recipe)["more processes that decode"]
    assert advice.how == "--set batching.processes=4"
    assert seconds(advice) == pytest.approx((1.0, 0.5))


def test_a_translator_has_no_such_processes(advice_of):
    assert list(advice_of(step={"phases": {"data": 0.5}})) == ["input that keeps up"]


def slow_rank(rank: int, step: int) -> dict[str, Any]:
    if rank == 2:
        return {"phases": {"forward": 2.15}, "own_target_tokens": 6000, "cpu_seconds": 2.44}
    return {"phases": {"exposed_communication": 2.03}, "communication": {"waiting_seconds": 2.0}}


def test_the_straggler_mended_or_left_out(advice_of):
    advice = advice_of(num_workers=3, step=slow_rank)
    assert seconds(advice["batches of equal length for all ranks"]) == pytest.approx((2.5, 0.5))
    # Three micro-batches in 2.5 s, or two in 0.5 s.
    assert seconds(advice["go on without rank 2"]) == pytest.approx((2.5 / 3, 0.5 / 2))


def test_evaluating_a_quarter_as_often(advice_of):
    evaluations = {step: {"seconds": 4.0} for step in (10, 20, 30, 40, 50)}
    advice = advice_of(evaluations=evaluations, recipe={"evaluate": {"every": "10 steps"}})
    # 0.5 s and a tenth of 4 s by the step
    assert seconds(advice["evaluate a quarter as often"]) == pytest.approx((0.9, 0.6))
    assert advice["evaluate a quarter as often"].how == '--set evaluate.every="40 steps"'
    # 200 of 500 sentences
    assert seconds(advice["translate fewer sentences"]) == pytest.approx((0.9, 0.5 + 0.4 * 200 / 500))


@pytest.mark.parametrize(
    ("table", "key"), [({"every": "10 steps"}, "checkpoint.every"), ({}, "evaluate.every")], ids=["own", "shared"]
)
def test_saving_less_often(advice_of, table, key):
    checkpoints = {step: {"seconds": 4.0} for step in (10, 20, 30, 40, 50)}
    recipe = {"checkpoint": table, "evaluate": {"every": "10 steps"}}
    advice = advice_of(num_workers=1, checkpoints=checkpoints, recipe=recipe)["save a quarter as often"]
    assert advice.how == f'--set {key}="40 steps"'
    # One worker has no network: 0.46 s a step.
    assert seconds(advice) == pytest.approx((0.46 + 0.4, 0.46 + 0.1))


def test_a_longer_run_instead_of_many_short_ones(advice_of):
    (advice,) = advice_of(num_steps=20, started={"seconds": 30.0}).values()
    assert seconds(advice) == pytest.approx((40 / 20, (30 + 4 * 10) / 80))


def test_mixed_precision_on_a_gpu_that_has_it_off(advice_of):
    gpu = {"step": {"sampled": True}, "summary": {"device": "cuda"}}
    advice = advice_of(**gpu)["mixed precision"]
    assert seconds(advice) == pytest.approx((0.5, 0.5 - 0.22))


@pytest.mark.parametrize("summary", [{"device": "cpu"}, {"device": "cuda", "precision": "bf16"}], ids=["cpu", "bf16"])
def test_not_where_it_is_on_or_emulated(advice_of, summary):
    assert "mixed precision" not in advice_of(step={"sampled": True}, summary=summary)


def test_idle_cores_could_compute(advice_of):
    idle = {"sample": {"cpu_percent": [25.0] * 8}, "about": {"cores": 8}}
    advice = advice_of(**idle)["more threads for each worker"]
    assert advice.how == "--set train.threads=4"
    assert seconds(advice) == pytest.approx((0.5, 0.5 - 0.44 * 3 / 4))


def test_busy_cores_could_not(advice_of):
    assert "more threads for each worker" not in advice_of(about={"cores": 8}, sample={"cpu_percent": [95.0] * 8})


def test_a_second_machine_pays_for_its_exchange(advice_of):
    # 1.5 million parameters are 6 MB: 48 ms at 1 Gbit/s.
    (advice,) = advice_of(num_workers=1).values()
    assert seconds(advice) == pytest.approx((0.46, (0.46 + 0.048) / 2))


def test_twice_the_machines_send_half_as_much_again(advice_of):
    # From 2 to 4 workers: 2 x 1/2 -> 2 x 3/4 of the gradient, and twice the latency: 37 x 1.5 + 2 x 2 ms.
    advice = advice_of(hosts=TWO)["twice as many machines like these"]
    assert seconds(advice) == pytest.approx((0.5 / 2, (0.5 - 0.039 + 0.037 * 1.5 + 0.004) / 4))


def test_two_workers_of_one_host_would_have_to_learn_of_a_network(advice_of):
    # 6 MB become 9 among four workers: 72 ms at 1 Gbit/s. More workers on this host are no second machine.
    advice = advice_of()["a second machine like this one over 1 Gbit/s"]
    assert advice.how.startswith("start it on both")
    assert seconds(advice) == pytest.approx((0.5 / 2, (0.5 + 0.072) / 4))


def test_what_travels_behind_other_steps_hides_on_a_network_too(advice_of):
    advice = advice_of(recipe={"sync": {"name": "diloco"}}, step={"bytes_sent": 129_000.0})
    assert seconds(advice["a second machine like this one over 1 Gbit/s"]) == pytest.approx((0.5 / 2, 0.5 / 4))


def test_the_last_collective_has_nothing_to_hide_behind():
    # Four collectives of 1 s, 3 s of them hidden: as half, 2 s could all hide, but the last begins at the end.
    exchange = Exchange(seconds=4.0, exposed=1.0, latency=0.0, num_collectives=4, num_bytes=1.0)
    assert exchange.exposed_if(bytes_factor=0.5) == pytest.approx(0.5)


def test_nothing_is_advised_that_would_not_be_felt(advice_of):
    assert all(advice.gain >= 1.03 for advice in advice_of().values())


def test_cores_for_all_that_runs(advice_of):
    advice = advice_of(step={"run_delay_seconds": 0.2})["a core for every thread"]
    assert seconds(advice) == pytest.approx((0.5, 0.3))
