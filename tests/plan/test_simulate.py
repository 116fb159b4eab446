"""The simulation agrees with the closed form where all are alike, and goes on where that ends."""

from __future__ import annotations

import pytest

from konvoi.plan import Host, Link, Profile, Setup, predict
from konvoi.plan.simulate import simulate
from konvoi.sync import Traffic

BASE = ((32768, 512), *((512, 512),) * 168)
PROFILE = Profile(0.11, 0.2, 0.02, shapes=BASE, seconds_per_pass=3e-10)
NUM_VALUES = PROFILE.num_values
WAYS = {
    "ddp": Traffic(4 * NUM_VALUES, num_messages=9),
    "one message": Traffic(4 * NUM_VALUES),
    "diloco": Traffic(NUM_VALUES, every_steps=8, num_messages=4, hidden_by="steps", overlap_steps=2, training_passes=9),
    "waited for": Traffic(NUM_VALUES, every_steps=8, hidden_by="steps"),
    "direct": Traffic(NUM_VALUES, every_steps=4, num_messages=4, hidden_by="steps", overlap_steps=1, is_direct=True),
    "hierarchical": Traffic(4 * NUM_VALUES, num_messages=9, once_per_host=True, message_passes=4),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("num_hosts,workers", [(1, 1), (1, 2), (2, 1), (3, 2), (64, 1)])
@pytest.mark.parametrize("bits_per_second", [1e8, 1e9, 1e10])
def test_it_agrees_with_the_closed_form_where_all_are_alike(
    way: str, num_hosts: int, workers: int, bits_per_second: float
) -> None:
    setup = Setup.alike(num_hosts, Link.of_bits(bits_per_second, 2e-4), workers)
    played, closed = simulate(PROFILE, setup, WAYS[way]), predict(PROFILE, setup, WAYS[way])
    assert played.step_seconds == pytest.approx(closed.step_seconds, rel=0.01)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("differing", [Host(Link.of_bits(1e10, 2e-4), speed=0.8), Host(Link.of_bits(5e8, 2e-4))])
def test_all_go_at_the_pace_of_the_slowest_host_or_link(way: str, differing: Host) -> None:
    setup = Setup((*(Host(Link.of_bits(1e10, 2e-4)),) * 6, differing))
    played, closed = simulate(PROFILE, setup, WAYS[way]), predict(PROFILE, setup, WAYS[way])
    assert played.step_seconds == pytest.approx(closed.step_seconds, rel=0.02)


def test_a_host_that_is_late_is_hidden_by_a_link_that_is_slow() -> None:
    # The slow link has other hosts' chunks to send until those of the late one come round to it.
    late, slow = Host(Link.of_bits(1e10), speed=0.8), Host(Link.of_bits(5e8))
    setup = Setup((late, *(Host(Link.of_bits(1e10)),) * 6, slow))
    played, closed = (way(PROFILE, setup, WAYS["waited for"]) for way in (simulate, predict))
    # A quarter of 0.33 s is what the late one lacks in a step.
    assert closed.step_seconds - played.step_seconds == pytest.approx(0.33 / 4, rel=0.01)


def test_four_thousand_hosts_are_no_matter() -> None:
    setup = Setup.alike(4096, Link.of_bits(1e10, 1e-4), jitter=0.05)
    found = simulate(PROFILE, setup, Traffic(4 * NUM_VALUES))
    # 2 x 4095 rounds, each of 59 kB at 1.25 GB/s with 7 %, and 50 us: 0.83 s, which nothing hides; and again half as
    # many of 50 us for the agreement: 0.2 s. The latest of 4,096 is 3.6 x 5 % of 0.33 s late.
    assert found.step_seconds == pytest.approx(0.33 + 0.83 + 0.2 + 0.06, rel=0.03)
    assert found.num_workers == 4096


def test_it_is_the_same_each_time() -> None:
    setup = Setup.alike(5, Link.of_bits(1e9), jitter=0.2)
    assert simulate(PROFILE, setup, WAYS["ddp"]) == simulate(PROFILE, setup, WAYS["ddp"])


def test_a_worker_that_is_late_once_holds_up_all_others() -> None:
    # The larger of two that vary by 20 %: about 0.56 x 0.2 of 0.33 s, if a step is one of many.
    setup = Setup.alike(2, Link.of_bits(1e12), jitter=0.2)
    found = [simulate(PROFILE, setup, Traffic(1.0), seed).step_seconds for seed in range(200)]
    assert sum(found) / len(found) - 0.33 == pytest.approx(0.56 * 0.2 * 0.33, rel=0.2)
