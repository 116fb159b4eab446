"""Were the devices fully used, and why busy isn't the same as useful."""

from __future__ import annotations

from typing import Any

import numpy as np

from konvoi.analysis.answers import devices
from konvoi.analysis.record import Floats, HostRecord, RunRecord
from konvoi.report.blocks import Block, Plot, Series, thinned
from konvoi.report.curves import host_minutes

TITLE = "Devices"
ORDER = 40


def render(run: RunRecord) -> list[Block]:
    plots = [plot for host in run.hosts.values() if host.samples for plot in (*_gpus(run, host), *_cores(run, host))]
    return [devices.answer(run), *plots]


def _cores(run: RunRecord, host: HostRecord) -> list[Block]:
    """The mean over the cores; the band reaches from the idlest to the busiest."""
    rows = [_numbers(sample.get("cpu_percent")) for sample in host.samples]
    if not any(len(row) for row in rows):
        return []
    minutes = host_minutes(run, host)
    mean, low, high = (
        thinned("", minutes, np.array([of(row) if len(row) else np.nan for row in rows]), envelope=False)
        for of in (np.mean, np.min, np.max)
    )
    series = Series("all cores, band from the idlest to the busiest", mean.x, mean.y, low.y, high.y)
    count = len(rows[-1]) or host.about.get("cores") or ""
    return [Plot(f"{host.name}: its {count} cores", [series], x_label="minutes", y_label="% busy", holds=(0, 100))]


def _gpus(run: RunRecord, host: HostRecord) -> list[Block]:
    num_gpus = max((len(sample.get("gpus") or ()) for sample in host.samples), default=0)
    minutes = host_minutes(run, host)
    names = host.about.get("gpus") or []
    plots: list[Block] = []
    for key, title, unit in (("busy_percent", "its GPUs", "% busy"), ("power_watts", "power of its GPUs", "W")):
        series = [
            thinned(f"{number} {names[number] if number < len(names) else ''}".strip(), minutes, column, envelope=False)
            for number in range(num_gpus)
            if np.isfinite(column := _gpu_column(host, number, key)).any()
        ]
        if series:
            plots.append(Plot(f"{host.name}: {title}", series, x_label="minutes", y_label=unit, holds=(0, 100)))
    return plots


def _gpu_column(host: HostRecord, number: int, key: str) -> Floats:
    def value(sample: dict[str, Any]) -> float:
        gpus = sample.get("gpus") or []
        found = gpus[number].get(key) if number < len(gpus) else None
        return float(found) if isinstance(found, int | float) else float("nan")

    return np.array([value(sample) for sample in host.samples])


def _numbers(values: Any) -> Floats:
    return np.array([value for value in values or () if isinstance(value, int | float)], dtype=np.float64)
