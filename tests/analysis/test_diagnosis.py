"""Each cause, made with numbers of which the answer can be worked out (a healthy step: made_runs.py)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.analysis.made_runs import make_run

from konvoi import registry
from konvoi.analysis.diagnosis import diagnose
from konvoi.analysis.record import RunRecord
from konvoi.analysis.sync import BEHIND_STEPS
from konvoi.analysis.verdict import Verdict

Made = Callable[..., Verdict]


@pytest.fixture
def verdict_of(tmp_path: Path) -> Made:
    def make(**made: Any) -> Verdict:
        return diagnose(RunRecord.read(make_run(tmp_path / "run", **made)))

    return make


def slower(rank: int, seconds: float, phase: str = "forward", **of_slow: Any) -> Callable[[int, int], dict[str, Any]]:
    """One rank works longer in a phase; the others wait as long for it."""

    def step(each: int, number: int) -> dict[str, Any]:
        if each == rank:
            usual = {"forward": 0.15, "data": 0.005, "other": 0.015}[phase]
            return {"phases": {phase: usual + seconds}, **of_slow}
        return {"phases": {"exposed_communication": 0.03 + seconds}, "communication": {"waiting_seconds": seconds}}

    return step


def test_a_healthy_run_computes(verdict_of):
    verdict = verdict_of()
    assert verdict.verdict == "compute"
    assert "88 %" in verdict.sentence  # 0.44 of 0.5 s
    assert verdict.step_seconds == pytest.approx(0.5)
    assert verdict.sure == "sure"
    assert (verdict.kind, verdict.rank, verdict.host, verdict.why) == ("", None, "", "")


def test_one_worker_computes(verdict_of):
    verdict = verdict_of(num_workers=1)
    assert verdict.verdict == "compute"
    assert verdict.shares["network"] == verdict.shares["waiting"] == 0.0


@pytest.mark.parametrize(("exposed_seconds", "expected"), [(0.03, "compute"), (0.2, "network"), (3.0, "network")])
def test_the_network_binds_when_it_takes_much_of_a_step(verdict_of, exposed_seconds, expected):
    assert verdict_of(step={"phases": {"exposed_communication": exposed_seconds}}).verdict == expected


def test_bandwidth(verdict_of):
    verdict = verdict_of(step={"phases": {"exposed_communication": 0.963, "agreement": 0.002}})
    assert (verdict.verdict, verdict.kind) == ("network", "bandwidth")
    # 6 MB in 0.965 s less three times the 1 ms of a tiny collective: two for the gradients and the agreement's own.
    rate = 8 * 6e6 / (0.965 - 0.003)
    assert verdict.facts["exchange"]["achieved_bits_per_second"] == pytest.approx(rate)
    assert "49.9 Mbit/s" in verdict.sentence
    assert any("1 Gbit/s" in line for line in verdict.evidence)


def test_latency(verdict_of):
    communication = {"agreement_moving_seconds": 0.04, "num_collectives": 11}
    verdict = verdict_of(
        step={"phases": {"exposed_communication": 0.45, "agreement": 0.04}, "communication": communication}
    )
    # 10 collectives x 40 ms are 0.40 of the 0.45 s.
    assert (verdict.verdict, verdict.kind) == ("network", "latency")
    assert "10 collectives" in verdict.sentence
    assert "40 ms" in verdict.sentence


def test_where_latency_is_most_of_it_no_rate_is_told(verdict_of):
    # 10 collectives x 4 ms of 41 ms: 6 MB in the 1 ms that is left would be 48 Gbit/s.
    communication = {"agreement_moving_seconds": 0.004, "num_collectives": 11}
    phases = {"exposed_communication": 0.041, "agreement": 0.004}
    verdict = verdict_of(step={"phases": phases, "communication": communication})
    assert verdict.facts["exchange"]["achieved_bits_per_second"] is None
    assert not any("travel at" in line for line in verdict.evidence)


DILOCO = {"name": "diloco", "local_steps": 6, "exact_steps": 0}


def behind_steps(rank: int, number: int, exposed_seconds: float = 0.0001) -> dict[str, Any]:
    """129 kB a step, of which a worker sees what it waits for, and an agreement that was sent a step ago."""
    communication = {"agreement_moving_seconds": 0.00001, "num_collectives": 2, "bytes": 129_000}
    phases = {"exposed_communication": exposed_seconds, "agreement": 0.00002}
    return {"phases": phases, "communication": communication}


@pytest.mark.parametrize(
    "sync", [DILOCO, {"name": "hierarchical", "between": DILOCO}], ids=["diloco", "diloco between hosts"]
)
def test_of_what_travels_behind_other_steps_no_rate_is_known(verdict_of, sync):
    verdict = verdict_of(step=behind_steps, recipe={"sync": sync})
    told = " ".join([verdict.sentence, *verdict.evidence])
    # 129 kB in 0.1 ms would be 10 Gbit/s, and 0.01 ms the latency.
    assert "travel at" not in told and "takes 0.0" not in told
    assert verdict.facts["exchange"]["achieved_bits_per_second"] is None
    assert verdict.facts["exchange"]["latency_seconds_per_collective"] is None
    assert "each rank sends 129.0 kB a step, which travel behind other steps; for 0.1" in told
    assert "the interface sends up to 96 Mbit/s in a second" in told


def test_what_auto_chose_is_known_from_its_event(tmp_path):
    path = make_run(tmp_path / "run", step=behind_steps, recipe={"sync": {"name": "auto"}})
    events = path / "events" / "rank0.jsonl"
    chosen = {"kind": "sync", "time": 0.0, "message": "sync: diloco", "chosen": DILOCO}
    events.write_text(json.dumps(chosen) + "\n" + events.read_text())
    assert not any("travel at" in line for line in diagnose(RunRecord.read(path)).evidence)


def test_what_comes_too_late_behind_other_steps_is_the_networks(verdict_of):
    def step(rank: int, number: int) -> dict[str, Any]:
        return behind_steps(rank, number, exposed_seconds=0.4)

    verdict = verdict_of(step=step, recipe={"sync": DILOCO})
    assert (verdict.verdict, verdict.kind) == ("network", "")
    assert "pass in the exchange; 129.0 kB a step travel behind other steps and come too late." in verdict.sentence


def test_exact_first_steps_are_told_apart(verdict_of):
    def step(rank: int, number: int) -> dict[str, Any]:
        if number <= 20:
            return {**behind_steps(rank, number, exposed_seconds=0.8), "bytes_sent": 6e6}
        return {**behind_steps(rank, number), "bytes_sent": 129_000}

    verdict = verdict_of(step=step, recipe={"sync": {**DILOCO, "exact_steps": 20}})
    assert verdict.verdict == "network"
    assert "most of it in the first 20 steps, which average gradients as ddp does" in verdict.sentence
    told = " ".join(verdict.evidence)
    assert "each of the first 20 steps averages gradients as ddp does, sends 6.0 MB and stands still for 800 ms" in told
    assert "a later one sends 129.0 kB and stands still for 0.12 ms" in told


def test_the_ways_that_exchange_behind_steps_are_those_that_say_so():
    names = registry.names("sync")
    assert names
    modules = {name: registry.find("sync", name) for name in names}
    behind = [
        name for name, module in modules.items() if module.traffic(module.Config(), [(2, 2)]).hidden_by == "steps"
    ]
    assert tuple(behind) == BEHIND_STEPS


def test_slow_input_on_all_ranks(verdict_of):
    verdict = verdict_of(step={"phases": {"data": 0.305}})
    assert verdict.verdict == "input"
    assert "305 ms" in verdict.sentence
    assert verdict.facts["costs"]["input"] == pytest.approx(0.305 / 0.8)


def test_input_that_stalls_now_on_this_rank_now_on_that_is_the_inputs(verdict_of):
    def stalls(rank: int, step: int) -> dict[str, Any]:
        if step % 2 == rank:
            return {"phases": {"data": 0.305}}
        return {"phases": {"exposed_communication": 0.33}, "communication": {"waiting_seconds": 0.3}}

    verdict = verdict_of(step=stalls)
    assert verdict.verdict == "input"
    assert verdict.facts["costs"]["input"] == pytest.approx(0.305 / 0.8, rel=0.02)


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_longer_batches(verdict_of, rank):
    # 1.4 times the tokens in 0.44 + 0.18 = 1.4 x 0.44 s of computing
    step = slower(rank, 0.18, own_target_tokens=1400, cpu_seconds=0.62)
    verdict = verdict_of(num_workers=4, hosts=("host-a", "host-b"), step=step)
    assert (verdict.verdict, verdict.rank, verdict.why) == ("straggler", rank, "longer batches")
    assert verdict.host == ("host-a" if rank < 2 else "host-b")
    assert verdict.facts["costs"]["straggler"] == pytest.approx(0.18 / 0.68)


def test_pictures_count_as_batches_too(verdict_of):
    from tests.analysis.made_runs import ABSENT

    usual = slower(1, 0.44, cpu_seconds=0.88)

    def step(rank: int, number: int) -> dict[str, Any]:
        return {**usual(rank, number), "own_target_tokens": ABSENT, "own_images": 64 if rank == 1 else 32}

    assert verdict_of(step=step).why == "longer batches"


def test_less_processor_by_processor_time(verdict_of):
    # The same 0.44 s of processor time, spread over 0.94 s.
    verdict = verdict_of(step=slower(1, 0.5, cpu_seconds=0.44))
    assert (verdict.verdict, verdict.rank, verdict.why) == ("straggler", 1, "less processor")
    assert "0.47 s of processor time" in " ".join(verdict.evidence)


def test_less_processor_by_delay(verdict_of):
    verdict = verdict_of(step=slower(0, 0.5, cpu_seconds=0.94, run_delay_seconds=0.4))
    assert (verdict.verdict, verdict.rank, verdict.why) == ("straggler", 0, "less processor")


def test_slow_input_of_one_rank(verdict_of):
    verdict = verdict_of(step=slower(1, 0.5, "data"))
    assert (verdict.verdict, verdict.rank, verdict.why) == ("straggler", 1, "slow input")
    assert verdict.facts["costs"]["input"] == pytest.approx(0.005)  # what both wait, of 1 s


def test_a_slow_rank_for_which_nothing_speaks(verdict_of):
    verdict = verdict_of(step=slower(1, 0.5, "other"))
    assert (verdict.verdict, verdict.rank, verdict.why) == ("straggler", 1, "unknown")


def gpus(slow_clock: int, slow_reasons: list[str]) -> Callable[[str, int], dict[str, Any]]:
    def sample(host: str, second: int) -> dict[str, Any]:
        slow = host == "host-b"
        clock, reasons = (slow_clock, slow_reasons) if slow else (1500, ["power cap"])
        return {"gpus": [{"busy_percent": 99, "clock_mhz": clock, "max_clock_mhz": 1600, "throttled_by": reasons}]}

    return sample


@pytest.mark.parametrize(
    ("clock", "reasons", "expected"),
    [(700, [], "slow device"), (1500, ["heat"], "slow device"), (1500, ["power cap"], "unknown")],
    ids=["low clock", "heat", "no more than the others"],
)
def test_a_gpu_that_is_held_back(verdict_of, clock, reasons, expected):
    slow = slower(1, 0.5, cpu_seconds=0.0)
    verdict = verdict_of(
        hosts=("host-a", "host-b"),
        step=lambda rank, step: {"cpu_seconds": 0.0, **slow(rank, step), "sampled": True},
        sample=gpus(clock, reasons),
        summary={"device": "cuda"},
    )
    assert (verdict.verdict, verdict.host, verdict.why) == ("straggler", "host-b", expected)


def test_a_slower_machine_with_its_processor_to_itself(verdict_of):
    step = slower(1, 0.5, cpu_seconds=0.94)
    assert verdict_of(hosts=("host-a", "host-b"), step=step).why == "slow device"


def test_on_the_same_machine_a_slow_rank_has_no_slower_device(verdict_of):
    assert verdict_of(step=slower(1, 0.5, cpu_seconds=0.94)).why == "unknown"


def test_ranks_that_take_turns_have_no_straggler(verdict_of):
    def turns(rank: int, step: int) -> dict[str, Any]:
        return slower(step % 2, 0.3)(rank, step)

    verdict = verdict_of(step=turns)
    assert verdict.verdict == "compute"
    assert any("take turns" in line for line in verdict.evidence)


def test_the_straggler_may_be_one_whose_events_are_not_here(verdict_of):
    step = {"phases": {"exposed_communication": 0.53}, "communication": {"waiting_seconds": 0.5}}
    verdict = verdict_of(num_workers=3, step=step, ranks=[0])
    assert (verdict.verdict, verdict.rank, verdict.why) == ("straggler", None, "unknown")
    assert "one of the other ranks" in verdict.sentence
    assert "1 of 3 ranks" in verdict.sure
    assert verdict.confidence <= 0.8


def test_of_two_ranks_the_other_one_is_known(verdict_of):
    step = {"phases": {"exposed_communication": 0.53}, "communication": {"waiting_seconds": 0.5}}
    assert verdict_of(step=step, ranks=[0]).rank == 1


def test_the_network_can_be_told_from_one_rank(verdict_of):
    assert verdict_of(step={"phases": {"exposed_communication": 1.0}}, ranks=[0]).verdict == "network"


def test_evaluation(verdict_of):
    verdict = verdict_of(evaluations={step: {"seconds": 4.0} for step in (10, 20, 30, 40, 50)}, recipe=every(10))
    # 5 x 4 s beside 25 s
    assert verdict.verdict == "evaluation"
    assert verdict.facts["costs"]["evaluation"] == pytest.approx(20 / 45)
    assert "five evaluations" in verdict.sentence and "44 %" in verdict.sentence


def every(steps: int) -> dict[str, Any]:
    return {"evaluate": {"every": f"{steps} steps"}}


def test_the_one_evaluation_at_the_end_does_not_bind_a_long_recipe(verdict_of):
    # 20 s at the end of 25 s; but evaluated every 1,000 steps it is 20 s in 520 s.
    verdict = verdict_of(evaluations={50: {"seconds": 20.0}}, recipe=every(1000))
    assert verdict.verdict == "compute"
    assert verdict.shares["evaluation"] == pytest.approx(20 / 47)


def test_checkpointing(verdict_of):
    def waits(rank: int, step: int) -> dict[str, Any]:
        if rank == 1 and step % 10 == 1 and step > 1:
            return {"phases": {"exposed_communication": 4.03}, "communication": {"waiting_seconds": 4.0}}
        return {}

    checkpoints = {step: {"seconds": 4.0} for step in (10, 20, 30, 40, 50)}
    verdict = verdict_of(step=waits, checkpoints=checkpoints, recipe={"checkpoint": {"every": "10 steps"}})
    assert verdict.verdict == "checkpointing"
    assert verdict.facts["costs"]["checkpointing"] == pytest.approx(20 / 45)


def test_start_up(verdict_of):
    verdict = verdict_of(num_steps=20, started={"seconds": 30.0})
    assert verdict.verdict == "start-up"
    assert "75 %" in verdict.sentence  # 30 of 40 s


@pytest.mark.parametrize(
    ("status", "duration", "expected"),
    [
        ("running", "300_000 steps", "compute"),
        ("interrupted", "300_000 steps", "compute"),
        ("running", "20 hours", "compute"),
        ("running", "25 steps", "start-up"),
    ],
)
def test_a_long_run_that_has_just_begun_is_not_bound_by_its_start(verdict_of, status, duration, expected):
    recipe = {"train": {"duration": duration}}
    assert verdict_of(num_steps=20, started={"seconds": 30.0}, status=status, recipe=recipe).verdict == expected


def test_busy_is_not_useful(verdict_of):
    verdict = verdict_of(
        step={"phases": {"exposed_communication": 1.0}, "sampled": True},
        sample=lambda host, second: {"gpus": [{"busy_percent": 99.0}, {"busy_percent": 99.0}]},
        summary={"device": "cuda"},
    )
    assert verdict.verdict == "network"
    assert any("99 % busy" in line and "counts as busy" in line for line in verdict.evidence)


def test_too_few_cores_are_said(verdict_of):
    verdict = verdict_of(num_workers=1, step={"run_delay_seconds": 0.15})
    assert verdict.verdict == "compute"
    assert any("without a core for 33 % of a step" in line for line in verdict.evidence)  # 0.15 of 0.46 s


@pytest.mark.parametrize(("delay_seconds", "expected"), [(0.001, "network"), (0.2, "compute")])
def test_an_exchange_that_lacks_a_core_is_not_the_networks(verdict_of, delay_seconds, expected):
    # 0.1 of 0.56 s: 18 %
    step = {"phases": {"exposed_communication": 0.09}, "run_delay_seconds": delay_seconds}
    verdict = verdict_of(step=step)
    assert verdict.verdict == expected
    assert ("cannot be told" in verdict.sure) == (expected == "compute")
