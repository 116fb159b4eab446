"""Bytes measured beside bytes predicted. A made host sends and receives 12 MB a second; a step takes half a second."""

from __future__ import annotations

import numpy as np
import pytest
from tests.analysis.made_runs import ABSENT, make_run

from konvoi.analysis.answers import network, traffic
from konvoi.analysis.record import RunRecord


def run_of(path, **made):
    return RunRecord.read(make_run(path / "run", **made))


def lo(num_bytes):
    return {"interfaces": {"lo": {"bytes_in": num_bytes, "bytes_out": num_bytes}}}


def test_bytes_per_step_are_the_counters_over_the_time_of_steps(tmp_path):
    told = traffic.answer(run_of(tmp_path, hosts=("a", "b")))
    # 12 MB/s x 0.5 s; predicted 2 x (2 - 1) / 2 x 4 bytes x 1.5 million parameters
    assert told.facts["hosts"]["a"]["out_bytes_per_step"] == pytest.approx(6_000_000)
    assert told.facts["hosts"]["b"]["in_bytes_per_step"] == pytest.approx(6_000_000)
    assert told.facts["predicted_bytes_per_step"] == 6_000_000
    assert told.facts["ratio"] == pytest.approx(1.0)
    # 8 x 6 MB / 1 Gbit/s
    assert "a link of 1 Gbit/s they need at least 48 ms, 10 % of a step" in told.words


def test_what_passes_during_evaluations_is_not_of_the_steps(tmp_path):
    # Steps from second 2 to 12, an evaluation of 10 s, steps from 22 to 32; twice as many bytes in the evaluation.
    def sample(host, second):
        return {"interfaces": {"eth0": {"bytes_out": 24_000_000 if 12 < second <= 22 else 12_000_000}}}

    run = run_of(tmp_path, num_steps=40, evaluations={20: {"seconds": 10.0}}, hosts=("a", "b"), sample=sample)
    assert traffic.measured(run)["a"].out_bytes_per_step == pytest.approx(6_000_000)


def test_part_of_a_sample_counts_by_its_share_in_steps(tmp_path):
    run = run_of(tmp_path, num_steps=10, hosts=("a", "b"))
    began_at = run.first.started[0]["time"]
    # Steps fill 0 to 5 s after that: of 4.5 to 5.5 half is in them.
    found = traffic.in_steps(run.first, began_at + np.array([0.0, 4.5, 6.0]), began_at + np.array([1.0, 5.5, 7.0]))
    assert found == pytest.approx([1.0, 0.5, 0.0])


def test_the_arrays_are_in_bits_per_second(tmp_path):
    found = traffic.measured(run_of(tmp_path, hosts=("a", "b")))
    assert found.keys() == {"a", "b"}
    assert found["a"].interface == "eth0"
    assert found["a"].out_bits_per_second == pytest.approx([8 * 12e6] * len(found["a"].time))
    assert found["a"].link_bits_per_second == 1e9


def test_a_sample_that_is_longer_than_a_second(tmp_path):
    found = traffic.measured(run_of(tmp_path, hosts=("a", "b"), sample={"seconds": 2.0}))
    assert found["a"].in_bits_per_second[0] == pytest.approx(8 * 12e6 / 2)


def test_on_one_host_the_loopback_is_what_counts(tmp_path):
    told = traffic.answer(run_of(tmp_path, num_workers=4, sample=lambda host, second: lo(72_000_000)))
    # Four workers send 2 x 3/4 x 6 MB = 9 MB each: 36 MB in a step of half a second.
    assert told.facts["hosts"]["host-a"]["interface"] == "lo"
    assert told.facts["predicted_bytes_per_step"] == pytest.approx(36_000_000)
    assert told.facts["ratio"] == pytest.approx(1.0)
    assert "counts every byte as sent and as received, none used a cable" in told.words


def test_in_a_ring_one_worker_of_each_host_sends_over_the_network(tmp_path):
    run = run_of(tmp_path, num_workers=4, hosts=("a", "b"), sample=lambda host, second: lo(1))
    assert traffic.predicted(run) == pytest.approx(9_000_000)
    assert traffic.measured(run)["a"].interface == "eth0"


def test_what_leaves_a_host_is_as_the_run_declared_it(tmp_path):
    # Not what one worker sends: with integers all workers of a host send to other hosts.
    summary = {"bytes_sent_per_step": 9_000_000, "bytes_out_per_host_and_step": 10_500_000}
    run = run_of(tmp_path, num_workers=4, hosts=("a", "b"), summary=summary)
    assert traffic.predicted(run) == 10_500_000
    assert "Predicted are 10.5 MB out of each host." in traffic.answer(run).words


def test_what_leaves_a_host_is_the_mean_of_the_steps_too(tmp_path):
    def step(rank, number):
        return {"bytes_sent": 1e6, "bytes_out_of_host": 6e6 if number <= 10 else 1e6}

    run = run_of(tmp_path, num_workers=4, hosts=("a", "b"), step=step)
    assert traffic.predicted(run) == pytest.approx((10 * 6e6 + 40 * 1e6) / 50)
    assert "Predicted are 2.0 MB out of each host, on average over all steps: 6.0 MB in" in traffic.answer(run).words


def test_more_bytes_than_predicted_are_pointed_out(tmp_path):
    told = traffic.answer(run_of(tmp_path, hosts=("a", "b"), summary={"bytes_sent_per_step": 3_000_000}))
    assert "2.00 times the prediction: headers, and what else" in told.words


@pytest.mark.parametrize(
    ("sync", "when"),
    [
        ({"name": "diloco", "local_steps": 16}, "6.0 MB out of each host, on average over the 16 steps from one"),
        (
            {"name": "powersgd", "start_step": 100},
            "6.0 MB out of each host, after the first 100 steps, which are exact.",
        ),
        ({"name": "hierarchical", "between": {"name": "diloco", "local_steps": 8}}, "on average over the 8 steps"),
        (
            {"name": "diloco", "local_steps": 6, "exact_steps": 10},
            "the 6 steps from one exchange to the next, after the first 10 steps, which are exact.",
        ),
        ({"name": "fp16"}, "6.0 MB out of each host."),
    ],
)
def test_of_an_earlier_version_it_is_said_which_steps_the_prediction_is_for(tmp_path, sync, when):
    told = traffic.answer(run_of(tmp_path, hosts=("a", "b"), recipe={"sync": sync}))
    assert when in told.words


def sending(*spells):
    """Steps that send so many MB: sending((6.0, 10), (1.0, 40))."""
    sent = [1e6 * megabytes for megabytes, count in spells for _ in range(count)]
    return lambda rank, number: {"bytes_sent": sent[number - 1]}


DILOCO = {"name": "diloco", "local_steps": 6, "exact_steps": 10}


@pytest.mark.parametrize(
    ("sync", "spells", "megabytes", "when"),
    [
        # (10 x 6 + 40 x 1) / 50
        (DILOCO, [(6, 10), (1, 40)], 2.0, "2.0 MB out of each host, on average over all steps: 6.0 MB in the first 10"),
        (DILOCO, [(6, 10), (1, 40)], 2.0, "6.0 MB in the first 10 and 1.0 MB in the next 40."),
        # auto began with few exchanges and halved the local steps.
        ({"name": "auto"}, [(1, 25), (2, 25)], 1.5, "1.0 MB in the first 25 and 2.0 MB in the next 25."),
        ({"name": "fp16"}, [(1, 10), (2, 10), (3, 10), (5, 20)], 3.2, "on average over steps of 1.0 MB to 5.0 MB."),
        ({"name": "powersgd", "start_step": 100}, [(6, 50)], 6.0, "6.0 MB out of each host, as all steps were exact."),
        ({"name": "diloco", "local_steps": 6}, [(1, 50)], 1.0, "on average over the 6 steps from one exchange to the"),
        ({"name": "ddp"}, [(6, 50)], 6.0, "6.0 MB out of each host."),
    ],
)
def test_steps_that_differ_are_predicted_by_their_mean(tmp_path, sync, spells, megabytes, when):
    # The summary of an earlier version would say otherwise.
    run = run_of(tmp_path, hosts=("a", "b"), recipe={"sync": sync}, step=sending(*spells))
    assert traffic.predicted(run) == pytest.approx(1e6 * megabytes)
    assert when in traffic.answer(run).words


def test_only_the_steps_that_the_counters_saw_are_compared(tmp_path):
    # Of 6 s of steps in 12 halves the first 2 s send 8 MB a second, then 2 MB; nobody counts in the last 3 s.
    def sample(host, second):
        if second > 5:
            return {"interfaces": {"eth0": {"bytes_out": None}}}
        return {"interfaces": {"eth0": {"bytes_out": 8_000_000 if second <= 4 else 2_000_000}}}

    run = run_of(tmp_path, num_steps=12, hosts=("a", "b"), step=sending((4, 4), (1, 8)), sample=sample)
    told = traffic.answer(run)
    # Start-up takes the first 2 s: four steps of 4 MB and two of 1 MB were counted.
    assert told.facts["predicted_bytes_per_step"] == pytest.approx((4 * 4e6 + 2 * 1e6) / 6)
    assert told.facts["ratio"] == pytest.approx(1.0)
    assert "4.0 MB in the first 4 and 1.0 MB in the next 2." in told.words


def test_longer_steps_count_as_one_step_each(tmp_path):
    # Ten exact steps of 1.5 s that send 6 MB each, 40 of half a second that send 1 MB.
    def step(rank, number):
        exact = {"bytes_sent": 6e6, "phases": {"exposed_communication": 1.03}}
        return exact if number <= 10 else {"bytes_sent": 1e6}

    def sample(host, second):
        return {"interfaces": {"eth0": {"bytes_out": 4_000_000 if second <= 2 + 15 else 2_000_000}}}

    told = traffic.answer(run_of(tmp_path, hosts=("a", "b"), step=step, sample=sample))
    assert told.facts["hosts"]["a"]["out_bytes_per_step"] == pytest.approx((10 * 6e6 + 40 * 1e6) / 50)
    assert told.facts["ratio"] == pytest.approx(1.0)


def test_workers_of_one_host_that_add_up_among_themselves_send_nothing_to_another(tmp_path):
    told = traffic.answer(run_of(tmp_path, summary={"bytes_sent_per_step": 0.0}, sample=lambda host, second: lo(1)))
    assert told.facts["ratio"] is None
    assert "Predicted are none: the workers of a host add up among themselves" in told.words


def test_without_counters_the_prediction_remains(tmp_path):
    told = traffic.answer(run_of(tmp_path, hosts=()))
    assert told.short == "not measured"
    assert "no counters of its hosts" in told.words


def test_one_worker_sends_nothing(tmp_path):
    run = run_of(tmp_path, num_workers=1)
    assert traffic.answer(run).short == "no traffic"
    assert network.answer(run).short == "no"


def test_the_network_is_the_bottleneck_where_bytes_move_and_nothing_else(tmp_path):
    told = network.answer(run_of(tmp_path, hosts=("a", "b"), step={"phases": {"exposed_communication": 0.73}}))
    assert told.short == "yes, its bandwidth"
    # (0.73 + 0.01 of agreement) / (0.5 + 0.7)
    assert told.facts["moving_share_of_step"] == pytest.approx(0.74 / 1.2)
    assert "62 % of a step went by with gradients on their way" in told.words
    # The interface sends 96 of 1000 Mbit/s.
    assert "96 Mbit/s at its height of the link's 1 Gbit/s (10 %)" in told.words


def test_weights_that_travel_behind_other_steps_have_no_rate(tmp_path):
    step = {"phases": {"exposed_communication": 0.001, "agreement": 0.0001}}
    told = network.answer(run_of(tmp_path, hosts=("a", "b"), recipe={"sync": DILOCO}, step=step))
    assert told.facts["achieved_bits_per_second"] is None
    assert "While they moved" not in told.words
    assert "with gradients, later weights, on their way and nothing else to do. What travelled behind" in told.words
    assert "96 Mbit/s at its height" in told.words


def test_it_is_not_where_the_model_computes(tmp_path):
    told = network.answer(run_of(tmp_path, hosts=("a", "b")))
    assert told.short == "no"
    assert "what bound the run was compute" in told.words


def test_waiting_for_a_slow_rank_is_not_the_networks_fault(tmp_path):
    def step(rank, number):
        if rank == 1:
            return {"phases": {"forward": 0.65}}
        return {"phases": {"exposed_communication": 0.53}, "communication": {"waiting_seconds": 0.5}}

    told = network.answer(run_of(tmp_path, hosts=("a", "b"), step=step))
    assert told.short == "no"
    # 0.5 of 1.0 s on one of two ranks
    assert "Another 25 % passed inside the exchange, waiting for a slower rank" in told.words


def test_events_without_the_exchange_cannot_tell(tmp_path):
    old = {"phases": {"exposed_communication": ABSENT}, "communication": ABSENT}
    assert network.answer(run_of(tmp_path, step=old)).short == "can't tell"
