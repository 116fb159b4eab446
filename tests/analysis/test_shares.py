"""Where the time of a run goes. A made step is half a second: 0.44 compute, 0.04 network, 0.005 input, 0.015 other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.analysis.made_runs import PHASES, make_run

from konvoi.analysis.record import RunRecord
from konvoi.analysis.shares import NAMES, TimeShares, time_shares


def shares_of(path: Path, last_steps: int | None = None, **made: object) -> TimeShares:
    return time_shares(RunRecord.read(make_run(path / "run", **made)), last_steps)  # type: ignore[arg-type]


def test_every_second_has_one_place(tmp_path):
    times = shares_of(tmp_path, evaluations=[25, 50], checkpoints=[25])
    # 50 steps x 0.5 s + 2 s start-up + 2 evaluations x 1 s + 1 checkpoint of 0.1 s
    total = 25.0 + 2.0 + 2.0 + 0.1
    assert times.total == pytest.approx(total)
    assert times.shares() == pytest.approx(
        {
            "compute": 50 * 0.44 / total,
            "network": 50 * 0.04 / total,
            "waiting": 0.0,
            "input": 50 * 0.005 / total,
            "evaluation": 2.0 / total,
            "checkpointing": 0.1 / total,
            "start-up": 2.0 / total,
            "other": 50 * 0.015 / total,
        },
        abs=1e-6,
    )
    assert tuple(times.shares()) == NAMES


def test_time_between_events_that_none_of_them_holds_is_other(tmp_path):
    # The phases hold 0.5 s of what the clock says: the second rank's steps take as long, and 10 s are lost at the end.
    path = make_run(tmp_path / "run")
    with (path / "events" / "rank0.jsonl").open("a") as file:
        file.write('{"kind": "finished", "time": %f, "step": 50}\n' % (1_700_000_000 + 2 + 25 + 10))
    times = time_shares(RunRecord.read(path))
    assert times.unaccounted == pytest.approx(10.0)
    assert times.shares()["other"] == pytest.approx((10.0 + 50 * 0.015) / 37)


def test_the_first_steps_do_not_count_for_a_step(tmp_path):
    times = shares_of(tmp_path, step=lambda rank, step: {"phases": {"forward": 9.0}} if step <= 5 else {})
    assert times.ranks[0].compute == pytest.approx(0.44)
    # But their seconds were spent: 45 x 0.5 + 5 x (0.5 - 0.15 + 9)
    assert times.steps == pytest.approx(22.5 + 5 * 9.35)


def test_nor_do_the_first_after_a_resume(tmp_path):
    path = make_run(tmp_path / "run", step=lambda rank, step: {"phases": {"forward": 9.0}} if 21 <= step <= 25 else {})
    for rank in (0, 1):
        with (path / "events" / f"rank{rank}.jsonl").open("a") as file:
            file.write('{"kind": "restart", "step": 20}\n')
    assert time_shares(RunRecord.read(path)).ranks[0].compute == pytest.approx(0.44)


def test_one_long_pause_of_the_machine_does_not_decide(tmp_path):
    times = shares_of(tmp_path, step=lambda rank, step: {"phases": {"data": 60.0}} if step == 30 else {})
    assert times.ranks[0].input == pytest.approx(0.005)


def test_input_that_stalls_every_tenth_step_does(tmp_path):
    times = shares_of(tmp_path, step=lambda rank, step: {"phases": {"data": 5.0}} if step % 10 == 0 else {})
    # 45 steps without warm-up, of which the longest is left out: 4 stalls in 44 steps
    assert times.ranks[0].input == pytest.approx((4 * 5.0 + 40 * 0.005) / 44)


def waits_for_the_checkpoint(every: int) -> Callable[[int, int], dict[str, object]]:
    """The first rank writes for 3 s after every so many steps; the other stands in the next exchange meanwhile."""

    def step(rank: int, number: int) -> dict[str, object]:
        if rank == 1 and number % every == 1 % every and number > 1:
            return {"phases": {"exposed_communication": 3.03}, "communication": {"waiting_seconds": 3.0}}
        return {}

    return step


@pytest.mark.parametrize("every", [10, 1])
def test_waiting_for_a_checkpoint_is_not_waiting_for_a_slow_rank(tmp_path, every):
    steps = range(every, 50, every)
    checkpoints = {step: {"seconds": 3.0} for step in steps}
    times = shares_of(tmp_path, step=waits_for_the_checkpoint(every), checkpoints=checkpoints)
    assert [rank.waiting for rank in times.ranks] == [0.0, 0.0]
    assert times.ranks[1].step == pytest.approx(0.5)
    assert times.checkpointing == pytest.approx(3.0 * len(steps))


def test_a_rank_that_takes_its_time_while_another_saves_is_not_slow(tmp_path):
    """After each checkpoint it works 2 s longer, and nobody waits for it."""

    def step(rank: int, number: int) -> dict[str, object]:
        return {"phases": {"forward": 2.15}} if rank == 1 and number % 5 == 1 else {}

    times = shares_of(tmp_path, step=step, checkpoints={number: {"seconds": 2.0} for number in range(5, 50, 5)})
    assert [rank.work for rank in times.ranks] == pytest.approx([0.46, 0.46])


def test_waiting_that_no_rank_works_longer_for_is_the_networks(tmp_path):
    step = {"phases": {"exposed_communication": 0.53}, "communication": {"waiting_seconds": 0.4}}
    times = shares_of(tmp_path, step=step)
    # Both work 0.46 s, so nobody is late, whatever the collectives say: 0.53 + 0.01 of the agreement
    assert [rank.waiting for rank in times.ranks] == [0.0, 0.0]
    assert [rank.moving for rank in times.ranks] == pytest.approx([0.54, 0.54])


def test_taking_turns_at_being_late_is_waiting(tmp_path):
    def turns(rank: int, step: int) -> dict[str, object]:
        if step % 2 == rank:
            return {"phases": {"forward": 0.45}}
        return {"phases": {"exposed_communication": 0.33}, "communication": {"waiting_seconds": 0.3}}

    times = shares_of(tmp_path, step=turns)
    # In every second step each waits 0.3 s of 0.8 s.
    assert times.of_step("waiting") == pytest.approx(0.15 / 0.8, rel=0.03)


def test_a_rank_that_died_early_is_not_compared(tmp_path):
    path = make_run(tmp_path / "run", num_workers=3)
    file = path / "events" / "rank2.jsonl"
    file.write_text("".join(line + "\n" for line in file.read_text().splitlines()[:5]))
    times = time_shares(RunRecord.read(path))
    assert [rank.rank for rank in times.ranks] == [0, 1]
    assert times.num_usable_steps == 44


def test_on_a_gpu_only_sampled_steps_tell_phases(tmp_path):
    def sampled(rank: int, step: int) -> dict[str, object]:
        # Host clocks see the launch of kernels alone: all the time seems to be in backward.
        return {"sampled": True} if step % 5 == 0 else {"phases": {"backward": 0.485, **dict.fromkeys(rest, 0.0)}}

    rest = set(PHASES) - {"backward", "other"}
    times = shares_of(tmp_path, step=sampled)
    assert times.ranks[0].moving == pytest.approx(0.04)
    assert times.steps == pytest.approx(25.0)


def test_the_latest_steps_alone(tmp_path):
    times = shares_of(
        tmp_path,
        last_steps=10,
        evaluations=[10, 20, 30],
        step=lambda rank, step: {"phases": {"data": 0.505}} if step > 30 else {},
    )
    assert times.num_steps == 10
    assert times.steps == pytest.approx(10.0)
    # 3 s of evaluation in 50 steps are 0.6 s in 10, wherever they fell; the start-up is long past.
    assert times.evaluation == pytest.approx(0.6)
    assert (times.start_up, times.unaccounted) == (0.0, 0.0)
    assert times.ranks[0].input == pytest.approx(0.505)


def test_a_run_without_a_step(tmp_path):
    times = shares_of(tmp_path, num_steps=0)
    assert times.ranks == []
    assert times.shares()["start-up"] == 1.0


def test_a_run_without_any_time(tmp_path):
    assert shares_of(tmp_path, num_steps=0, started={"seconds": 0.0}).shares()["other"] == 1.0
