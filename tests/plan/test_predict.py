"""The model of a step, against arithmetic done by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from konvoi.plan import Host, Link, Prediction, Profile, Setup, devices, predict
from konvoi.plan.predict import Hop, all_reduce_seconds
from konvoi.plan.simulate import simulate
from konvoi.sync import Traffic

MEGABYTE = 1e6
# 1 MB/s, and nothing but the bytes: what a message takes can be read off.
SLOW = Link(MEGABYTE)
# 1 s forward, 2 s backward, 0.5 s for the optimiser.
PROFILE = Profile(1.0, 2.0, 0.5, target_tokens=60, source_tokens=40)


def on(num_hosts: int, link: Link = SLOW, workers: int = 1, jitter: float = 0.0) -> Setup:
    return replace(Setup.alike(num_hosts, link, workers, jitter), wire_overhead=1.0)


def test_one_worker_takes_what_its_profile_says() -> None:
    found = predict(PROFILE, on(1), Traffic(8 * MEGABYTE))
    assert found.step_seconds == 3.5
    assert (found.bound, found.efficiency, found.bytes_per_host, found.exposed_seconds) == ("compute", 1.0, 0.0, 0.0)


def test_a_ring_sends_twice_all_but_an_nth() -> None:
    # 2 x 3/4 x 8 MB at 1 MB/s
    assert all_reduce_seconds(8.0, [Hop(1.0, 0.0)] * 4) == 12.0
    # and 2 x 3 times the latency
    assert all_reduce_seconds(8.0, [Hop(1.0, 0.5)] * 4) == 12.0 + 6 * 0.5


def test_one_message_can_only_leave_when_the_backward_pass_is_over() -> None:
    # 3.5 s of work, and 2 x 1/2 x 8 MB at 1 MB/s
    found = predict(PROFILE, on(2), Traffic(8 * MEGABYTE))
    assert found.step_seconds == pytest.approx(3.5 + 8)
    assert found.parts["bandwidth"] == pytest.approx(8)
    assert found.bound == "bandwidth"


def test_buckets_leave_while_the_backward_pass_goes_on() -> None:
    # Four of 2 s each, ready after 0.5, 1.0, 1.5 and 2.0 s: the first leaves at 0.5, the last is gone at 8.5, of which
    # 2 s are hidden.
    found = predict(PROFILE, on(2), Traffic(8 * MEGABYTE, num_messages=4))
    assert found.exposed_seconds == pytest.approx(6.5)


def test_a_fast_link_leaves_only_the_last_bucket_to_wait_for() -> None:
    # Four of 0.1 s: three are gone before the pass ends.
    found = predict(PROFILE, on(2, Link(20 * MEGABYTE)), Traffic(8 * MEGABYTE, num_messages=4))
    assert found.exposed_seconds == pytest.approx(0.1)
    assert found.bound == "compute"


def test_a_large_matrix_that_comes_last_makes_a_large_bucket() -> None:
    # Gradients come from the last parameter on: 2 and 2 values fill a bucket of 12 / 3 = 4, then 8 come at once.
    profile = replace(PROFILE, shapes=((2, 4), (2,), (2,)))
    assert list(profile.buckets(3)) == [(pytest.approx(4 / 12), pytest.approx(4 / 12)), (1.0, pytest.approx(8 / 12))]
    # 12 MB: 4 s from 0.67 s on, then 8 s: gone at 12.67 s, 2 s of them hidden
    found = predict(profile, on(2), Traffic(12 * MEGABYTE, num_messages=3))
    assert found.exposed_seconds == pytest.approx(2 / 3 + 12 - 2)


def test_of_several_micro_batches_only_the_last_one_hides_an_exchange() -> None:
    # Its backward pass takes 2 / 4 = 0.5 s; eight buckets of 1 s, the first one ready after 1/16 s.
    profile = replace(PROFILE, micro_batches=4)
    found = predict(profile, on(2), Traffic(8 * MEGABYTE, num_messages=8))
    assert found.exposed_seconds == pytest.approx(0.5 / 8 + 8 - 0.5)


def test_fragments_that_travel_while_steps_compute_cost_nothing() -> None:
    # Four fragments of 2 s, one every two steps, each waited for two steps (7 s) later.
    ahead = Traffic(8 * MEGABYTE, every_steps=8, num_messages=4, hidden_by="steps", overlap_steps=2)
    found = predict(PROFILE, on(2), ahead)
    assert found.step_seconds == pytest.approx(3.5)
    assert found.bytes_per_host == pytest.approx(MEGABYTE)


def test_fragments_that_take_longer_than_their_overlap_are_waited_for() -> None:
    # Each takes 20 s and may take 7: 13 s in every two steps.
    ahead = Traffic(80 * MEGABYTE, every_steps=8, num_messages=4, hidden_by="steps", overlap_steps=2)
    assert predict(PROFILE, on(2), ahead).step_seconds == pytest.approx(3.5 + 13 / 2)


def test_without_overlap_every_exchange_is_waited_for() -> None:
    # 8 s after every fourth step
    together = Traffic(8 * MEGABYTE, every_steps=4, hidden_by="steps")
    assert predict(PROFILE, on(2), together).step_seconds == pytest.approx(3.5 + 8 / 4)


def test_a_link_can_be_too_slow_for_all_fragments_though_each_may_take_long() -> None:
    # Eight of 10 s in eight steps of 3.5 s, each may take eight steps: 80 s a round whatever computes meanwhile.
    ahead = Traffic(80 * MEGABYTE, every_steps=8, num_messages=8, hidden_by="steps", overlap_steps=8)
    assert predict(PROFILE, on(2), ahead).step_seconds == pytest.approx(80 / 8)


def test_workers_of_a_host_share_its_link_as_neighbours_of_one_ring() -> None:
    # Four in a ring over two hosts: each cable carries 2 x 3/4 of the bytes, once.
    found = predict(PROFILE, replace(on(2, workers=2), inside=Link(1e12)), Traffic(8 * MEGABYTE))
    assert found.bytes_per_host == pytest.approx(12 * MEGABYTE)
    assert found.exposed_seconds == pytest.approx(12, rel=1e-3)


def test_what_is_sent_to_every_other_worker_leaves_a_host_with_each_of_its_own() -> None:
    # Four on two hosts, shares of 2 MB: each of a host's two sends one to each of the other host's two, 8 MB; then the
    # sums go round the ring, 3/4 of 8 MB.
    setup = replace(on(2, workers=2), inside=Link(1e12))
    found = predict(PROFILE, setup, Traffic(8 * MEGABYTE, is_direct=True))
    assert found.bytes_per_host == pytest.approx(14 * MEGABYTE)
    assert found.exposed_seconds == pytest.approx(14, rel=1e-3)
    # Where the workers of a host add up first, one of each sends: 2 x 1/2 of 8 MB.
    assert predict(PROFILE, setup, Traffic(8 * MEGABYTE, is_direct=True, once_per_host=True)).bytes_per_host == 8e6


def test_the_host_with_most_workers_sends_most_where_all_send_to_all() -> None:
    # Of 1 + 3 workers: one sends to three and three to one, 3/4 of 8 MB; of 1 + 2 + 2, two send to three, 6/5 of it.
    direct = Traffic(8 * MEGABYTE, is_direct=True)
    assert direct.bytes_out_per_step([1, 3]) == pytest.approx((3 / 4 + 3 / 4) * 8 * MEGABYTE)
    assert direct.bytes_out_per_step([1, 2, 2]) == pytest.approx((6 / 5 + 4 / 5) * 8 * MEGABYTE)
    assert direct.bytes_out_per_step([4]) == 0


@pytest.mark.parametrize("links", [[SLOW] * 3, [SLOW, Link(9 * MEGABYTE, 0.1), Link(2 * MEGABYTE)]])
@pytest.mark.parametrize("how", [predict, simulate])
def test_with_one_worker_a_host_it_is_the_same_whether_sent_round_a_ring_or_to_all(
    links: list[Link], how: Callable[..., Prediction]
) -> None:
    setup = Setup(tuple(Host(link) for link in links))
    ring = Traffic(8 * MEGABYTE, every_steps=4, num_messages=2, hidden_by="steps", overlap_steps=1)
    assert how(PROFILE, setup, replace(ring, is_direct=True)) == how(PROFILE, setup, ring)


def test_adding_up_inside_a_host_first_leaves_less_for_the_cable() -> None:
    # Two hosts: 2 x 1/2 of 8 MB on the cable, after 2 x 1/2 of 8 MB inside at 4 MB/s.
    traffic = Traffic(8 * MEGABYTE, once_per_host=True)
    found = predict(PROFILE, replace(on(2, workers=2), inside=Link(4 * MEGABYTE)), traffic)
    assert found.bytes_per_host == pytest.approx(8 * MEGABYTE)
    assert found.exposed_seconds == pytest.approx(8 + 2)


def test_hosts_that_exchange_now_and_then_add_up_inside_in_every_step() -> None:
    # 8 MB inside at 8 MB/s when the backward pass is over; between the hosts 8 s in four steps of 4.5 s, unnoticed.
    profile = replace(PROFILE, shapes=((2_000_000,),))
    traffic = Traffic(8 * MEGABYTE, every_steps=4, hidden_by="steps", overlap_steps=4, once_per_host=True)
    setup = replace(on(2, workers=2), inside=Link(8 * MEGABYTE))
    found = predict(profile, setup, traffic)
    assert found.step_seconds == pytest.approx(3.5 + 1)
    # On one host as well, where that is all.
    alone = predict(profile, replace(setup, hosts=setup.hosts[:1]), traffic)
    assert alone.step_seconds == pytest.approx(3.5 + 1)
    # Then the result is handed out inside: 8 + 1 / 2 s in each four steps.
    assert found.exchange_seconds == pytest.approx(8.5 / 4)


def test_workers_of_one_host_send_nothing_over_a_cable() -> None:
    found = predict(PROFILE, replace(on(1, workers=2), inside=Link(4 * MEGABYTE)), Traffic(8 * MEGABYTE))
    assert found.bytes_per_host == 0
    assert found.exposed_seconds == pytest.approx(2)


def test_latency_counts_for_every_message_and_for_the_agreement() -> None:
    # Three hosts, 2 s there and back: 2 x 2 rounds of 1 s for each of four messages, of which 1.5 s are hidden, and
    # two rounds for the few bytes that end a step.
    found = predict(PROFILE, on(3, Link(1e15, 2.0)), Traffic(8 * MEGABYTE, num_messages=4))
    assert found.step_seconds == pytest.approx(3.5 + 16 - 1.5 + 2)
    assert found.bound == "latency"


def test_the_slowest_link_is_what_a_ring_waits_for() -> None:
    # Of four, one at 1 MB/s: it sends 2 x 3/4 of 8 MB like the others.
    hosts = (Host(SLOW), *(Host(Link(100 * MEGABYTE)),) * 3)
    found = predict(PROFILE, Setup(hosts, wire_overhead=1.0), Traffic(8 * MEGABYTE))
    assert found.exposed_seconds == pytest.approx(12)


def test_the_slowest_host_sets_the_pace() -> None:
    # 3.5 s of compute at half the speed
    hosts = (Host(Link(1e15)), Host(Link(1e15), speed=0.5))
    found = predict(PROFILE, Setup(hosts), Traffic(8.0))
    assert found.step_seconds == pytest.approx(7.0)
    assert (found.bound, found.speed_up) == ("straggler", pytest.approx(1.0))


def test_steps_that_vary_cost_what_the_latest_of_all_is_late() -> None:
    # The larger of two normal numbers is 0.56 on average (Blom: 0.59), so 0.59 x 10 % of 3.5 s.
    found = predict(PROFILE, on(2, Link(1e15), jitter=0.1), Traffic(8.0))
    assert found.parts["straggler"] == pytest.approx(0.35 * 0.589, rel=1e-2)
    # Where they meet every 16th step only, the sum varies by the root of 16, a step by a quarter.
    seldom = predict(PROFILE, on(2, Link(1e15), jitter=0.1), Traffic(8.0, every_steps=16, hidden_by="steps"))
    assert seldom.parts["straggler"] == pytest.approx(found.parts["straggler"] / 4)


def test_what_a_message_has_to_spare_absorbs_steps_that_vary() -> None:
    # It may take four steps, 14 s, before anybody waits, and the latest of two is 0.206 s late: so far apart are they
    # after (14 / 0.206)^2 steps only, and a step loses 0.206 s over the root of that, 0.206^2 / 14.
    spare = Traffic(8.0, every_steps=4, hidden_by="steps", overlap_steps=4)
    found = predict(PROFILE, on(2, Link(1e15), jitter=0.1), spare)
    assert found.parts["straggler"] == pytest.approx(0.206**2 / 14, rel=1e-2)


def test_input_that_is_waited_for_is_named() -> None:
    found = predict(replace(PROFILE, data_seconds=3.5), on(2, Link(1e15)), Traffic(8.0))
    assert found.bound == "input"
    assert found.efficiency == pytest.approx(1.0)


def test_a_processor_that_exchanges_computes_less() -> None:
    # Two cores; of 8 MB each host sends 8, at 0.25 us a byte: 2 s of one core, 1 s of both. The cable takes 0.25 s.
    profile = replace(PROFILE, on_processor=True, cores=2, exchange_seconds_per_byte=2.5e-7)
    found = predict(profile, on(2, Link(32 * MEGABYTE)), Traffic(8 * MEGABYTE))
    # An exchange of 2 s that the cable is not to blame for, and 1 s that computing lacks.
    assert found.step_seconds == pytest.approx(3.5 + 2 + 1)
    assert (found.bound, found.parts["processor"]) == ("processor", pytest.approx(3.0))


def test_messages_are_made_and_read_by_the_processor() -> None:
    # 8 million values at 50 ns a pass, 0.4 s: two passes for the messages, after a cable's 0.25 s ...
    profile = replace(PROFILE, shapes=((8_000_000,),), seconds_per_pass=5e-8)
    found = predict(profile, on(2, Link(32 * MEGABYTE)), Traffic(8 * MEGABYTE, message_passes=2))
    assert found.exposed_seconds == pytest.approx(0.25 + 0.8)
    # ... and three on the thread that trains, after every fourth step.
    ahead = Traffic(
        8 * MEGABYTE, every_steps=4, hidden_by="steps", overlap_steps=1, message_passes=2, training_passes=3
    )
    assert predict(profile, on(2, Link(32 * MEGABYTE)), ahead).step_seconds == pytest.approx(3.5 + 1.2 / 4)
    # One worker has nobody to send them to.
    assert predict(profile, on(1), ahead).step_seconds == 3.5


def test_workers_that_share_cores_compute_the_slower_for_it() -> None:
    # Two workers of two threads on two cores
    profile = replace(PROFILE, on_processor=True, cores=2, threads=2)
    found = predict(profile, on(1, workers=2), Traffic(0.0))
    assert found.step_seconds == pytest.approx(7.0, rel=1e-4)
    assert found.speed_up == pytest.approx(1.0, rel=1e-4)


def test_a_device_that_brings_its_own_core_is_not_crowded_but_exchanges_by_itself() -> None:
    profile = replace(devices.profile_of(devices.find("cpu-core"), 60e9), shapes=((1000, 1000),))
    assert profile.on_host_with(2).compute_seconds == profile.compute_seconds == pytest.approx(1.0)
    # Of two on a host each sends 1 MB, and goes ten times through a million values, on the core that computes.
    ahead = Traffic(1e6, every_steps=2, hidden_by="steps", overlap_steps=1, message_passes=10)
    stolen = predict(profile, on(1, workers=2), ahead)
    assert stolen.parts["processor"] == pytest.approx((1e6 * 1.8e-9 + 1e7 * 3e-10) / 2)


@pytest.mark.parametrize("num_hosts", [1, 2, 3, 8])
@pytest.mark.parametrize("hidden_by", ["backward", "steps"])
def test_the_parts_of_a_step_add_up_to_it(num_hosts: int, hidden_by: str) -> None:
    traffic = Traffic(5 * MEGABYTE, every_steps=4, num_messages=3, hidden_by=hidden_by, overlap_steps=1)  # type: ignore[arg-type]
    profile = replace(PROFILE, data_seconds=0.2, on_processor=True, exchange_seconds_per_byte=1e-8)
    found = predict(profile, on(num_hosts, Link(MEGABYTE, 0.01), workers=2, jitter=0.05), traffic)
    assert sum(found.parts.values()) == pytest.approx(found.step_seconds)
    assert min(found.parts.values()) >= 0
