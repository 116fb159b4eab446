"""A run played through message by message: hosts and links that differ, steps that vary, thousands of hosts.

Every worker has a clock. A message of a ring leaves when its sender has it and the sender's link is free; all messages
of a round are worked out at once, as arrays over the members, which is why thousands of them take seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from konvoi.plan.predict import (
    Hop,
    Prediction,
    besides_seconds,
    exchange_hops,
    leaving,
    predict,
    ring_hops,
    stolen_seconds,
)
from konvoi.plan.profile import Profile
from konvoi.plan.setup import Setup
from konvoi.plan.traffic import Traffic

Seconds = NDArray[np.float64]
"""A moment or a time for each worker, or for each member of a ring."""

# Enough to find a pace and to keep it for a while.
NUM_STEPS, NUM_ROUNDS = 6, 4


@dataclass(frozen=True)
class Ring:
    seconds_per_byte: Seconds
    latency_seconds: Seconds

    def half_all_reduce(self, ready_at: Seconds, num_bytes: float) -> Seconds:
        """When each member has its share's sum, or all sums, if it came with its part at that time."""
        count = len(self.seconds_per_byte)
        if count < 2:
            return ready_at
        return self._rounds(ready_at, self.seconds_per_byte * (num_bytes / count), count - 1)

    def gather(self, ready_at: Seconds) -> Seconds:
        """The same for a few bytes that go round once."""
        return self._rounds(ready_at, np.zeros_like(ready_at), len(self.latency_seconds) - 1)

    def _rounds(self, ready_at: Seconds, sending: Seconds, num_rounds: int) -> Seconds:
        has_it, free_at = ready_at.copy(), ready_at.copy()
        for _ in range(num_rounds):
            free_at = np.maximum(has_it, free_at) + sending
            arrives_at = free_at + self.latency_seconds
            has_it[1:], has_it[0] = arrives_at[:-1], arrives_at[-1]
        return np.maximum(has_it, free_at)


class Simulation:
    def __init__(self, profile: Profile, setup: Setup, traffic: Traffic, seed: int = 0) -> None:
        profile = profile.on_host_with(setup.most_workers)
        self.profile, self.setup, self.traffic = profile, setup, traffic
        self.random = np.random.default_rng(seed)
        counts = np.array([host.workers for host in setup.hosts])
        self.speeds = np.repeat([host.speed for host in setup.hosts], counts)
        self.first_of_host = np.concatenate([[0], np.cumsum(counts)[:-1]])
        self.workers_of_host = counts
        self.halves = [_ring(hops) for hops in exchange_hops(profile, setup, traffic)]
        self.all_workers = _ring(ring_hops(profile, setup))
        self.besides_seconds = besides_seconds(profile, setup, traffic)
        self.stolen_seconds = stolen_seconds(profile, setup, traffic)
        self.clock = np.zeros(setup.num_workers)
        self.line_free_at = np.zeros(setup.num_workers)
        self.under_way: deque[tuple[int, Seconds]] = deque()

    def step_seconds(self) -> float:
        """Of a step in the mean; the first half finds the pace."""
        every = self.traffic.every_steps
        half = max(NUM_STEPS // 2, NUM_ROUNDS // 2 * every if every > 1 else 0)
        began_at = 0.0
        for step in range(1, 2 * half + 1):
            (self._step_by_step if self.traffic.hidden_by == "backward" else self._step_ahead)(step)
            if step == half:
                began_at = float(self.clock.mean())
        return (float(self.clock.mean()) - began_at) / half

    def _pace(self) -> Seconds:
        """By which each worker's compute is multiplied in this step."""
        varied = 1 + self.setup.jitter * self.random.standard_normal(len(self.clock))
        return np.asarray(np.maximum(varied, 0.1) / self.speeds)

    def _step_by_step(self, step: int) -> None:
        """Gradients leave during the backward pass, and everybody waits for them."""
        profile, pace = self.profile, self._pace()
        last_backward = profile.backward_seconds / profile.micro_batches
        before = profile.forward_seconds + profile.backward_seconds - last_backward
        began_at = self.clock + profile.data_seconds + self.stolen_seconds + before * pace
        ended_at = began_at + last_backward * pace
        if step % self.traffic.every_steps == 0:
            for ready, share in profile.buckets(self.traffic.num_messages):
                self._send(began_at + ready * last_backward * pace, share)
            ended_at = np.maximum(ended_at, self.line_free_at)
        self.clock = self.all_workers.gather(ended_at + profile.optimiser_seconds * pace)

    def _step_ahead(self, step: int) -> None:
        """Messages travel while the next steps compute."""
        own = self.profile.data_seconds + self.stolen_seconds + self.profile.compute_seconds * self._pace()
        self.clock = self.clock + own
        self._wait(step)
        for _ in leaving(step, self.traffic):
            self._send(self.clock, 1 / self.traffic.num_messages)
            self.under_way.append((step + self.traffic.overlap_steps, self.line_free_at))
        self._wait(step)

    def _wait(self, step: int) -> None:
        while self.under_way and self.under_way[0][0] <= step:
            self.clock = np.maximum(self.clock, self.under_way.popleft()[1])

    def _send(self, ready_at: Seconds, share: float) -> None:
        """After what was sent before; line_free_at is then when each worker has the sum."""
        starts_at = np.maximum(ready_at, self.line_free_at) + share * self.besides_seconds
        num_bytes = share * self.traffic.payload_bytes
        if not self.traffic.once_per_host:
            self.line_free_at = self._all_reduce(starts_at, num_bytes)
            return
        hosts_ready_at = np.maximum.reduceat(starts_at, self.first_of_host)
        self.line_free_at = np.repeat(self._all_reduce(hosts_ready_at, num_bytes), self.workers_of_host)

    def _all_reduce(self, ready_at: Seconds, num_bytes: float) -> Seconds:
        for half in self.halves:
            ready_at = half.half_all_reduce(ready_at, num_bytes)
        return ready_at


def simulate(profile: Profile, setup: Setup, traffic: Traffic, seed: int = 0) -> Prediction:
    """As predict(); what the closed form does not see is time in which hosts wait for each other."""
    known = predict(profile, setup, traffic)
    step_seconds = Simulation(profile, setup, traffic, seed).step_seconds()
    straggler = known.parts["straggler"] + step_seconds - known.step_seconds
    parts = {**known.parts, "straggler": straggler}
    return replace(known, step_seconds=step_seconds, parts=parts, efficiency=profile.step_seconds / step_seconds)


def _ring(hops: Sequence[Hop]) -> Ring:
    columns = ([hop.seconds_per_byte for hop in hops], [hop.latency_seconds for hop in hops])
    return Ring(*(np.array(column, dtype=np.float64) for column in columns))
