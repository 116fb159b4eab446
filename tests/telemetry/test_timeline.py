"""Phases, collectives, and what of them was waiting, with clocks that are set by hand."""

from __future__ import annotations

import pytest

from konvoi.telemetry.timeline import MAX_COLLECTIVES, HostClock, NoTimeline, Timeline


class Clock(HostClock):
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def mark(self) -> float:
        return self.now


def padded(*seconds: float) -> list[float]:
    return [*seconds, *[0.0] * (MAX_COLLECTIVES - len(seconds))]


def phase(timeline: Timeline, clock: Clock, name: str, seconds: float) -> None:
    with timeline(name):
        clock.now += seconds


def test_phases_add_up_to_the_whole() -> None:
    timeline = Timeline(clock := Clock())
    phase(timeline, clock, "data", 1)
    phase(timeline, clock, "forward", 2)
    phase(timeline, clock, "data", 3)
    clock.now += 4
    times = timeline.take()
    assert times.seconds == 10
    assert times.phases == {"data": 4, "forward": 2, "other": 4}
    # Nothing is left over for the next step.
    clock.now += 1
    assert timeline.take().phases == {"other": 1}


def test_a_phase_that_fails_is_counted_too() -> None:
    timeline = Timeline(clock := Clock())
    with pytest.raises(KeyError), timeline("data"):
        clock.now += 1
        raise KeyError
    assert timeline.take().phases["data"] == 1


def test_evaluation_and_checkpoint_are_no_part_of_the_step() -> None:
    timeline = Timeline(clock := Clock())
    phase(timeline, clock, "evaluation", 30)
    phase(timeline, clock, "checkpoint", 5)
    phase(timeline, clock, "forward", 2)
    times = timeline.take()
    assert (times.seconds, times.phases) == (2, {"forward": 2, "other": 0})
    assert times.between == {"evaluation": 30, "checkpoint": 5}


def step_with_two_buckets(timeline: Timeline, clock: Clock, first_ends: float, second_ends: float) -> None:
    """Backward from 0; buckets are sent at 4 and 6, when the last gradient is there."""
    with timeline("backward"):
        clock.now = 4
        first = timeline.collective()
        clock.now = 6
        second = timeline.collective()
        clock.now = first_ends
        first()
        clock.now = second_ends
        second()


def test_what_outlasts_the_backward_pass_is_exposed() -> None:
    timeline = Timeline(clock := Clock())
    step_with_two_buckets(timeline, clock, first_ends=7, second_ends=9)
    times = timeline.take()
    # Computing until 6; of the communication from 4 to 9, three seconds are exposed.
    assert times.phases == {"backward": 6, "exposed_communication": 3, "other": 0}
    # The second was in the queue until 7.
    assert times.durations() == padded(3, 2)
    assert times.communication([padded(3, 2), padded(3, 2)])["seconds"] == 5


def test_whoever_comes_last_to_a_collective_does_not_wait_and_the_others_do() -> None:
    timeline = Timeline(clock := Clock())
    step_with_two_buckets(timeline, clock, first_ends=7, second_ends=9)
    times = timeline.take()
    # The other worker began the first one 2 s later and was in it for 1 s only. The second took both 2 s.
    # Waited from 4 to 6, which the backward pass hid: nothing of it is exposed.
    hidden = times.communication([padded(3, 2), padded(1, 2)])
    assert (hidden["waiting_seconds"], hidden["moving_seconds"]) == (0, 3)
    # The other was in the first for 0.5 s: waited from 4 to 6.5, half a second of it exposed.
    shown = times.communication([padded(3, 2), padded(0.5, 2)])
    assert (shown["waiting_seconds"], shown["moving_seconds"]) == (0.5, 2.5)
    # And in the second for 0.25 s: another 1.75 s.
    both = times.communication([padded(3, 2), padded(0.5, 0.25)])
    assert (both["waiting_seconds"], both["moving_seconds"]) == (2.25, 0.75)


def test_the_agreement_that_closed_the_step_before_counts_first() -> None:
    timeline = Timeline(clock := Clock())
    phase(timeline, clock, "agreement", 5)
    phase(timeline, clock, "forward", 1)
    times = timeline.take()
    communication = times.communication([padded(5), padded(0.5), padded(2)])
    assert communication == {
        "seconds": 5,
        "waiting_seconds": 4.5,
        "moving_seconds": 0.5,
        "agreement_moving_seconds": 0.5,
        "num_collectives": 1,
    }


def test_exposed_seconds_are_waiting_and_moving_together() -> None:
    timeline = Timeline(clock := Clock())
    with timeline("agreement"):
        clock.now = 2
    with timeline("backward"):
        clock.now = 3
        ended = timeline.collective()
        clock.now = 8
        ended()
    times = timeline.take()
    communication = times.communication([padded(2, 5), padded(1, 4)])
    assert communication["waiting_seconds"] == 1 + 1
    assert communication["moving_seconds"] == 1 + 4
    assert times.phases["agreement"] + times.phases["exposed_communication"] == 7


def test_more_collectives_than_places_count_with_the_last() -> None:
    timeline = Timeline(clock := Clock())
    for _ in range(MAX_COLLECTIVES + 2):
        ended = timeline.collective()
        clock.now += 1
        ended()
    assert timeline.take().durations() == [1.0] * (MAX_COLLECTIVES - 1) + [3.0]


def test_a_timeline_that_is_switched_off_knows_only_the_step() -> None:
    timeline = NoTimeline(clock := Clock())
    phase(timeline, clock, "evaluation", 4)
    phase(timeline, clock, "forward", 1)
    timeline.collective()()
    times = timeline.take()
    assert (times.seconds, times.phases, times.collectives) == (1, {}, [])


def test_a_clock_that_is_exact_in_some_steps_says_in_which() -> None:
    class EverySecond(Clock):
        is_exact = False

        def next_step(self) -> None:
            self.is_exact = not self.is_exact

    timeline = Timeline(EverySecond())
    assert [timeline.take().is_exact for _ in range(4)] == [False, True, False, True]
