"""How busy the cores and GPUs under a run were, from the hosts' samples."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import fmean, median
from typing import Any

from konvoi.analysis.record import HostRecord, RunRecord


def cores_busy_percent(host: HostRecord | None) -> float | None:
    """A mean over cores and time; None where nothing was sampled."""
    percents = [fmean(cores) for sample in _samples(host) if (cores := _numbers(sample.get("cpu_percent")))]
    return fmean(percents) if percents else None


def gpus_busy_percent(run: RunRecord) -> float | None:
    """A mean over all GPUs that a rank computes on."""
    percents = [
        value
        for rank in run.ranks
        for gpu in gpu_of(run, rank)
        if (value := _number(gpu.get("busy_percent"))) is not None
    ]
    return fmean(percents) if percents else None


def clock_share(run: RunRecord, rank: int) -> float | None:
    """The median clock of the rank's GPU over the highest that it can reach."""
    clocks = [(_number(gpu.get("clock_mhz")), _number(gpu.get("max_clock_mhz"))) for gpu in gpu_of(run, rank)]
    shares = [clock / highest for clock, highest in clocks if clock and highest]
    return median(shares) if shares else None


def throttled_by(run: RunRecord, rank: int) -> set[str]:
    """What held the rank's GPU back in at least half of the samples."""
    reasons = [{str(reason) for reason in _items(gpu.get("throttled_by"))} for gpu in gpu_of(run, rank)]
    return {reason for reason in set().union(*reasons) if 2 * sum(reason in each for each in reasons) >= len(reasons)}


def gpu_of(run: RunRecord, rank: int) -> Iterator[dict[str, Any]]:
    """The samples of the GPU that the rank computes on: ranks take them in order."""
    started = run.ranks[rank].started
    local_rank = started[-1].get("local_rank") if started else None
    if not isinstance(local_rank, int):
        return
    for sample in _samples(run.hosts.get(run.ranks[rank].host)):
        gpus = [gpu for gpu in _items(sample.get("gpus")) if isinstance(gpu, dict)]
        if gpus:
            yield gpus[local_rank % len(gpus)]


def _samples(host: HostRecord | None) -> list[dict[str, Any]]:
    return host.samples if host else []


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _numbers(value: Any) -> list[float]:
    return [number for item in _items(value) if (number := _number(item)) is not None]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
