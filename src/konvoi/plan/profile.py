"""What one worker's step takes where nobody is waited for, and what exchanging costs its processor."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Profile:
    forward_seconds: float
    backward_seconds: float
    """Both of all micro-batches of a step."""
    optimiser_seconds: float = 0.0
    data_seconds: float = 0.0
    """That the step waits for its input."""
    evaluation_seconds: float = 0.0
    """Of one evaluation; several workers share it."""
    shapes: tuple[tuple[int, ...], ...] = ()
    """Of the trainable parameters, in the model's order: the backward pass makes their gradients from the last on."""
    micro_batches: int = 1
    """Of a step and worker; gradients are exchanged during the last one's backward pass."""
    target_tokens: float = 0.0
    """Of a step and worker, as the following two."""
    source_tokens: float = 0.0
    images: float = 0.0
    exchange_seconds_per_byte: float = 0.0
    """That an all-reduce takes for each byte sent where the network is no limit; 0 for a GPU, which does it aside."""
    exchange_latency_seconds: float = 0.0
    """Of a small all-reduce between two processes where the network is no limit."""
    seconds_per_pass: float = 0.0
    """That the processor takes to go through one value once, as in a sum of two vectors; 0 for a GPU."""
    on_processor: bool = False
    """The device that computes also exchanges: what one takes, the other lacks."""
    cores: int = 1
    """Of a host; 0 where every worker brings its own, one for each of its threads."""
    device: str = ""
    precision: str = ""
    threads: int = 1
    recipe: str = ""
    date: str = ""
    source: str = "measured"
    """Where the figures are from: measured here, or an estimate from a table."""

    @property
    def compute_seconds(self) -> float:
        return self.forward_seconds + self.backward_seconds + self.optimiser_seconds

    @property
    def step_seconds(self) -> float:
        """Of one worker alone."""
        return self.data_seconds + self.compute_seconds

    def on_host_with(self, num_workers: int) -> Profile:
        """Several workers share a processor's cores; GPUs they have one each."""
        threads = num_workers * self.threads
        cores = self.cores or threads
        crowding = max(1.0, threads / cores) if self.on_processor else 1.0
        return replace(
            self,
            cores=cores,
            forward_seconds=crowding * self.forward_seconds,
            backward_seconds=crowding * self.backward_seconds,
            optimiser_seconds=crowding * self.optimiser_seconds,
            data_seconds=crowding * self.data_seconds,
        )

    @property
    def amount(self) -> float:
        """What a worker's step works on: source and target tokens, or pictures."""
        return self.images or self.target_tokens + self.source_tokens

    @property
    def num_values(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes)

    def buckets(self, count: int) -> Iterator[tuple[float, float]]:
        """Which share of the backward pass is over when each message can leave, and which share of the bytes it holds.

        As DDP fills them: in the order of the gradients, each closed as soon as it is full, so that a large matrix (an
        embedding, which comes last) makes a large bucket. The pass is taken to spend its time in proportion to values.
        """
        total = self.num_values
        if not total:
            yield from ((number / count, 1 / count) for number in range(1, count + 1))
            return
        done = bucket = 0
        for shape in reversed(self.shapes):
            bucket += math.prod(shape)
            if bucket >= total / count:
                done += bucket
                yield done / total, bucket / total
                bucket = 0
        if bucket:
            yield 1.0, bucket / total
