"""How long a step takes in a set-up: compute of the slowest, and what of the exchange nothing hides.

The derivation, with what is assumed and how far it was checked, is in docs/plan.md. simulate.py plays the same through
message by message.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from konvoi.plan.profile import Profile
from konvoi.plan.setup import Setup
from konvoi.plan.traffic import Traffic

# Below this loss the device itself is what binds: nothing else is worth a change.
SMALL_LOSS = 0.1
# What ddp sends at a time, unless it is told otherwise.
BUCKET_BYTES = 25 * 1024**2
# After so many rounds of exchanges a run has found its pace.
NUM_ROUNDS = 6


@dataclass(frozen=True)
class Prediction:
    step_seconds: float
    """Of a step in the mean; evaluations and checkpoints not counted."""
    parts: dict[str, float]
    """Its seconds by resource: compute, input, straggler, bandwidth, latency, processor."""
    bytes_per_host: float
    """That leave each host in a step, in the mean (of hosts that differ, the one that sends most); without headers."""
    num_workers: int
    efficiency: float
    """Of linear: how fast a worker is here, against one of the profile's devices alone."""
    exchange_seconds: float
    """That the exchanges take per step, hidden or not."""

    @property
    def exposed_seconds(self) -> float:
        """In which a worker stands still for the network or for exchanging."""
        return sum(self.parts[part] for part in ("bandwidth", "latency", "processor"))

    @property
    def speed_up(self) -> float:
        return self.num_workers * self.efficiency

    @property
    def bound(self) -> str:
        """The resource that costs most, if all losses together are worth speaking of; else the device itself."""
        losses = {part: seconds for part, seconds in self.parts.items() if part != "compute"}
        if sum(losses.values()) <= SMALL_LOSS * self.step_seconds:
            return "compute"
        return max(losses, key=lambda part: losses[part])


@dataclass(frozen=True)
class Hop:
    """From one member of a ring to the next."""

    seconds_per_byte: float
    latency_seconds: float


Halves = tuple[list[Hop], list[Hop]]
"""Of an exchange: everybody's share is added up, and the sums are handed out."""


def predict(profile: Profile, setup: Setup, traffic: Traffic) -> Prediction:
    """The mean step of a run; all hosts do as many steps, so that the slowest one sets the pace."""
    alone_seconds = profile.step_seconds
    profile = profile.on_host_with(setup.most_workers)
    halves = exchange_hops(profile, setup, traffic)
    messages = message_seconds(profile, setup, traffic, halves)
    stolen = stolen_seconds(profile, setup, traffic)
    straggler = (1 / setup.slowest - 1) * profile.compute_seconds + _jitter_seconds(profile, setup, traffic, messages)
    own = profile.step_seconds + stolen + straggler
    exposed = _exposed_seconds(own, profile, setup, traffic, messages)
    agreement = _agreement_seconds(halves[1], traffic)
    bandwidth, latency, processor = _shares(profile, setup, traffic, halves)
    parts = {
        "compute": profile.compute_seconds,
        "input": profile.data_seconds,
        "straggler": straggler,
        "bandwidth": bandwidth * exposed,
        "latency": latency * exposed + agreement,
        "processor": processor * exposed + stolen,
    }
    step_seconds = own + exposed + agreement
    return Prediction(
        step_seconds=step_seconds,
        parts=parts,
        bytes_per_host=traffic.bytes_out_per_step(setup.workers_by_host),
        num_workers=setup.num_workers,
        efficiency=alone_seconds / step_seconds,
        exchange_seconds=sum(messages) / traffic.every_steps,
    )


def enough_of(efficiencies: Iterable[float], aim: float) -> float:
    """The aim; where none reaches it, nearly the highest: a hundredth is not worth a less exact way."""
    return min(aim, 0.99 * max(efficiencies, default=0.0))


def exchange_hops(profile: Profile, setup: Setup, traffic: Traffic) -> Halves:
    ring = ring_hops(profile, setup, traffic.once_per_host)
    is_direct = traffic.is_direct and not traffic.once_per_host and setup.num_workers > 1
    return direct_hops(profile, setup) if is_direct else ring, ring


def ring_hops(profile: Profile, setup: Setup, once_per_host: bool = False) -> list[Hop]:
    """A link sends while the processor adds up what has come, so the slower of the two counts."""
    own_latency = profile.exchange_latency_seconds / 2
    hops = []
    for link, is_cable in setup.ring(once_per_host):
        wire = (setup.wire_overhead if is_cable else 1.0) / link.bytes_per_second
        seconds_per_byte = max(wire, profile.exchange_seconds_per_byte)
        hops.append(Hop(seconds_per_byte, link.round_trip_seconds / 2 + own_latency))
    return hops


def direct_hops(profile: Profile, setup: Setup) -> list[Hop]:
    """Of each worker, where everyone sends each other one a share, in as many turns as a ring has rounds.

    Of a host's k workers, all send to each of the n - k on other hosts, over one link: in the mean of n - 1 turns,
    k (n - k) / (n - 1) of them at once.
    """
    count, own_latency = setup.num_workers, profile.exchange_latency_seconds / 2
    hops = []
    for host in setup.hosts:
        others, neighbours = count - host.workers, host.workers - 1
        wire = setup.wire_overhead / host.link.bytes_per_second * (host.workers * others / (count - 1))
        inside = neighbours / (count - 1) / setup.inside.bytes_per_second
        link = host.link if others else setup.inside
        hop = Hop(max(wire, inside, profile.exchange_seconds_per_byte), link.round_trip_seconds / 2 + own_latency)
        hops += [hop] * host.workers
    return hops


def exchange_seconds(num_bytes: float, halves: Halves) -> float:
    return sum(all_reduce_seconds(num_bytes, hops) for hops in halves) / 2


def all_reduce_seconds(num_bytes: float, hops: Sequence[Hop]) -> float:
    """Of n members in 2 (n - 1) rounds; in each of them every member passes an n-th on to its next.

    A round lasts as long as the slowest link needs to send, or as a chunk needs per member on its way round the ring,
    whichever is longer: a fast member cannot run away from the ring, nor wait for more than it.
    """
    count = len(hops)
    if count < 2:
        return 0.0
    chunk = num_bytes / count
    sends = max(hop.seconds_per_byte for hop in hops) * chunk
    around = sum(hop.seconds_per_byte * chunk + hop.latency_seconds for hop in hops) / count
    return 2 * (count - 1) * max(sends, around)


def message_seconds(profile: Profile, setup: Setup, traffic: Traffic, halves: Halves) -> list[float]:
    """Of each message of one exchange, in their order."""
    shares = [1 / traffic.num_messages] * traffic.num_messages
    if traffic.hidden_by == "backward":
        shares = [share for _, share in profile.buckets(traffic.num_messages)]
    besides = besides_seconds(profile, setup, traffic)
    return [exchange_seconds(share * traffic.payload_bytes, halves) + share * besides for share in shares]


def besides_seconds(profile: Profile, setup: Setup, traffic: Traffic) -> float:
    """What an exchange takes besides travelling between hosts: messages are made, added up inside a host, and read."""
    if setup.num_workers == 1:
        return 0.0
    # Steps that go on meanwhile add up their gradients by themselves; only the result is handed out, half of the way.
    inside = inside_seconds(profile, setup, traffic) / (2 if traffic.hidden_by == "steps" else 1)
    return making_seconds(profile, traffic) + inside


def inside_seconds(profile: Profile, setup: Setup, traffic: Traffic) -> float:
    """To add up all gradients inside a host, where one speaks for all: exact, in fp32."""
    if not traffic.once_per_host:
        return 0.0
    num_bytes = 4.0 * profile.num_values or traffic.payload_bytes
    hop = Hop(max(1 / setup.inside.bytes_per_second, profile.exchange_seconds_per_byte), 0.0)
    return all_reduce_seconds(num_bytes, [hop] * setup.most_workers)


def making_seconds(profile: Profile, traffic: Traffic) -> float:
    return traffic.message_passes * profile.num_values * profile.seconds_per_pass


def _exposed_seconds(own: float, profile: Profile, setup: Setup, traffic: Traffic, messages: Sequence[float]) -> float:
    """Per step, in the mean: what the exchanges take beyond what hides them. `own` is a step without them."""
    if traffic.hidden_by == "steps":
        return waited_seconds(own, messages, traffic)
    backward = profile.backward_seconds / profile.micro_batches / setup.slowest
    return outlasts(backward, profile, messages, traffic.num_messages) / traffic.every_steps


def outlasts(backward_seconds: float, profile: Profile, messages: Sequence[float], num_messages: int) -> float:
    """How long messages go on after the pass: each leaves when its gradients are ready and the one before is gone."""
    gone_at = 0.0
    for (ready, _), seconds in zip(profile.buckets(num_messages), messages, strict=True):
        gone_at = max(gone_at, ready * backward_seconds) + seconds
    return max(0.0, gone_at - backward_seconds)


def waited_seconds(own_seconds: float, messages: Sequence[float], traffic: Traffic) -> float:
    """Per step, where messages leave one by one over the steps of a round and travel while the next ones compute."""
    clock = free_at = halfway = 0.0
    under_way: deque[tuple[int, float]] = deque()
    num_steps = NUM_ROUNDS * traffic.every_steps
    for step in range(1, num_steps + 1):
        clock = _wait(under_way, step, clock + own_seconds)
        for number in leaving(step, traffic):
            free_at = max(clock, free_at) + messages[number]
            under_way.append((step + traffic.overlap_steps, free_at))
        # Without overlap it is due at once.
        clock = _wait(under_way, step, clock)
        if step == num_steps // 2:
            halfway = clock
    return max(0.0, 2 * (clock - halfway) / num_steps - own_seconds)


def _wait(under_way: deque[tuple[int, float]], step: int, clock: float) -> float:
    """When all that is due has arrived."""
    while under_way and under_way[0][0] <= step:
        clock = max(clock, under_way.popleft()[1])
    return clock


def leaving(step: int, traffic: Traffic) -> list[int]:
    """Which messages leave after a step: they take turns, and the last one leaves when a round is over."""
    every, count = traffic.every_steps, traffic.num_messages
    return [number for number in range(count) if is_due(number, count, step, every)]


def is_due(number: int, count: int, step: int, every_steps: int) -> bool:
    """Of so many messages this one, after this step: at equal intervals."""
    return step % every_steps == (number + 1) * every_steps // count % every_steps


def stolen_seconds(profile: Profile, setup: Setup, traffic: Traffic) -> float:
    """Per step: what the training's own thread does for exchanges, and what others take from it on one processor."""
    members = len(list(setup.ring(traffic.once_per_host)))
    if members < 2:
        return _inside_each_step(profile, setup, traffic)
    seconds = traffic.training_passes * profile.num_values * profile.seconds_per_pass
    if profile.on_processor:
        sent = 2 * (members - 1) / members * traffic.payload_bytes
        exchanging = sent * profile.exchange_seconds_per_byte + making_seconds(profile, traffic)
        seconds += (1 if traffic.once_per_host else setup.most_workers) * exchanging / profile.cores
    return seconds / traffic.every_steps + _inside_each_step(profile, setup, traffic)


def _inside_each_step(profile: Profile, setup: Setup, traffic: Traffic) -> float:
    """Where hosts exchange now and then, their own workers add up in every step, in buckets, as ddp does."""
    inside = inside_seconds(profile, setup, traffic)
    if traffic.hidden_by == "backward" or not inside:
        return 0.0
    num_buckets = max(1, round(4 * profile.num_values / BUCKET_BYTES))
    messages = [share * inside for _, share in profile.buckets(num_buckets)]
    return outlasts(profile.backward_seconds / profile.micro_batches, profile, messages, num_buckets)


def _jitter_seconds(profile: Profile, setup: Setup, traffic: Traffic, messages: Sequence[float]) -> float:
    """Where all meet in each step, the latest of n is so far behind the mean; over k steps, only root k times as far.

    Where messages travel ahead, it may be behind by their slack before anybody waits for it.
    """
    late = setup.jitter * profile.compute_seconds * latest_of(setup.num_workers)
    if late <= 0 or traffic.hidden_by == "backward":
        return max(0.0, late)
    slack = max(0.0, traffic.overlap_steps * profile.step_seconds - max(messages))
    num_steps = max(1.0, traffic.every_steps / traffic.num_messages, (slack / late) ** 2)
    return late / math.sqrt(num_steps)


def latest_of(count: int) -> float:
    """The mean of the largest of so many normal numbers (Blom's approximation); nobody waits for one alone."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def _agreement_seconds(hops: Sequence[Hop], traffic: Traffic) -> float:
    """The few bytes that end a step go once round the ring; a way that works ahead does not wait for them."""
    if traffic.hidden_by == "steps" or len(hops) < 2:
        return 0.0
    return (len(hops) - 1) * sum(hop.latency_seconds for hop in hops) / len(hops)


def _shares(profile: Profile, setup: Setup, traffic: Traffic, halves: Halves) -> tuple[float, float, float]:
    """Of an exchange's time: bandwidth, latency, processor."""
    whole = sum(message_seconds(profile, setup, traffic, halves))
    if not whole:
        return 0.0, 0.0, 0.0
    first, second = ([Hop(hop.seconds_per_byte, 0.0) for hop in hops] for hops in halves)
    latency = 1 - sum(message_seconds(profile, setup, traffic, (first, second))) / whole
    making = making_seconds(profile, traffic) / whole
    worst = max((hop.seconds_per_byte for hop in (*first, *second)), default=0.0)
    if worst <= profile.exchange_seconds_per_byte:
        return 0.0, latency, 1 - latency
    return 1 - latency - making, latency, making
