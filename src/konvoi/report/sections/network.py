"""Was the network the bottleneck, and how the traffic relates to what was predicted."""

from __future__ import annotations

from konvoi.analysis.answers import network, traffic
from konvoi.analysis.answers.traffic import HostTraffic
from konvoi.analysis.record import RunRecord
from konvoi.analysis.wording import amount_of_bytes, bit_rate
from konvoi.report.blocks import Block, Level, Plot, Table, thinned
from konvoi.report.curves import began_at

TITLE = "Network"
ORDER = 50


def render(run: RunRecord) -> list[Block]:
    hosts = [host for host in traffic.measured(run).values() if len(host.time)]
    plots = [_plot(run, host) for host in hosts]
    return [network.answer(run), *plots, traffic.answer(run), *_per_step(run, hosts), *_told(run)]


def _told(run: RunRecord) -> list[Block]:
    """What the way to synchronise chose, and when it changed its mind; once, though every session says it."""
    messages = [message for event in run.first.syncs if isinstance(message := event.get("message"), str)]
    rows = [(message,) for message in dict.fromkeys(messages)]
    return [Table("What the synchronisation told", ("message",), rows)] if rows else []


def _plot(run: RunRecord, host: HostTraffic) -> Plot:
    """What went through the interface of the job, second by second."""
    minutes = (host.time - began_at(run)) / 60
    series = [
        thinned("in", minutes, host.in_bits_per_second / 1e6),
        thinned("out", minutes, host.out_bits_per_second / 1e6),
    ]
    link = host.link_bits_per_second
    levels = [Level(f"the link: {bit_rate(link)}", link / 1e6)] if link else []
    title = f"{host.host}: traffic on {host.interface}"
    return Plot(title, series, x_label="minutes", y_label="Mbit/s", holds=(0,), levels=levels)


def _per_step(run: RunRecord, hosts: list[HostTraffic]) -> list[Block]:
    predicted_bytes = traffic.predicted(run)
    if predicted_bytes is None or run.num_workers == 1:
        return []
    rows = [
        (host.host, *map(_bytes, (host.out_bytes_per_step, host.in_bytes_per_step, predicted_bytes))) for host in hosts
    ]
    header = ("host", "sent", "received", "predicted")
    return [Table("Bytes in a step", header, rows)] if rows else []


def _bytes(num_bytes: float | None) -> str:
    return "-" if num_bytes is None else amount_of_bytes(num_bytes)
