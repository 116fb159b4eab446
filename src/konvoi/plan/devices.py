"""Devices whose speed is known: the one table, with where each figure is from.

A device's speed is what of the model's operations (flops() of models/) it gets done in a second, all else included:
kernels that wait for memory, the optimiser, the loss. That is a small part of what data sheets promise, and holds for
models of this kind and size.
"""

from __future__ import annotations

from dataclasses import dataclass

from konvoi.errors import UserError, did_you_mean
from konvoi.plan.profile import Profile

# Run A1: 0.33 s a step. Run B gives the tokens: 36,501 source and target tokens/s x 1.71 s / 4 GPUs = 15,604 a step and
# GPU, half of them targets. Transformer-base takes 367.4 MFLOP a target token: 7,802 x 367.4e6 / 0.33.
V100 = 8.69e12
# The backward pass takes twice as long as the forward pass, here as in flops().
FORWARD_SHARE = 1 / 3


@dataclass(frozen=True)
class Device:
    flops_per_second: float
    is_measured: bool
    source: str
    exchange_seconds_per_byte: float = 0.0
    exchange_latency_seconds: float = 0.0
    seconds_per_pass: float = 0.0
    """What exchanging costs it (see Profile); a GPU has others who do it."""


def _by_memory(gigabytes_per_second: float) -> Device:
    """These models wait for memory most of the time: the V100's speed times the ratio of the data sheets' bandwidths.

    It puts a T4 at 3.1 TFLOP/s, where run C implies 2.4.
    """
    words = f"estimate: V100 x {gigabytes_per_second:,.0f} / 900 GB/s of memory (data sheets)"
    return Device(V100 * gigabytes_per_second / 900, False, words)


DEVICES = {
    "v100": Device(V100, True, "reference runs A1 and B: 7,802 target tokens of transformer-base in 0.33 s"),
    # Run C took 1.28 s a step with four, on a network of 10 Gbit/s or more that costs 0.1 s of it at most. How many
    # tokens a worker had is not told.
    "t4": Device(2.4e12, False, "estimate: reference run C, 1.2 of its 1.28 s, if it had the 7,802 target tokens of B"),
    "a10g": _by_memory(600),
    "l4": _by_memory(300),
    "rtx3090": _by_memory(936),
    "rtx4090": _by_memory(1008),
    "a100": _by_memory(1555),
    "h100": _by_memory(3350),
    "cpu-core": Device(
        60e9,
        True,
        "docs/speed.md: 119 GFLOP/s on two cores of an EPYC (Zen 4, AVX2), 2026-11-15",
        # konvoi profile on the same machine, 2026-11-16
        exchange_seconds_per_byte=1.8e-9,
        exchange_latency_seconds=1.5e-4,
        seconds_per_pass=3e-10,
    ),
}


def find(name: str) -> Device:
    if name not in DEVICES:
        raise UserError(
            f'there is no device "{name}"{did_you_mean(name, DEVICES)}',
            hint=f"known: {', '.join(DEVICES)}; or measured, or a file that konvoi profile wrote",
        )
    return DEVICES[name]


def profile_of(device: Device, flops_per_step: float) -> Profile:
    """An estimate: the profile's amounts and shapes are the caller's to fill in."""
    seconds = flops_per_step / device.flops_per_second
    return Profile(
        forward_seconds=FORWARD_SHARE * seconds,
        backward_seconds=(1 - FORWARD_SHARE) * seconds,
        exchange_seconds_per_byte=device.exchange_seconds_per_byte,
        exchange_latency_seconds=device.exchange_latency_seconds,
        seconds_per_pass=device.seconds_per_pass,
        # Whatever has others to exchange for it names no cost.
        on_processor=device.seconds_per_pass > 0,
        cores=0,
        source=device.source,
    )
