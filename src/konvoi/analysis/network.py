"""What the exchange of gradients costs: latency or bytes, how fast, and what it would cost otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

import numpy as np

from konvoi.analysis.record import HostRecord, RunRecord
from konvoi.analysis.shares import LEAST, MOST, RankStep, TimeShares

Kind = Literal["bandwidth", "latency", ""]
# So many round trips a collective has anyway: connections start slowly and rings go round.
ROUND_TRIPS = 5


@dataclass(frozen=True)
class Exchange:
    """A mean step's exchange of gradients, in seconds, on the rank that waits least in it."""

    seconds: float
    """Bytes under way, also behind backward."""
    exposed: float
    """Of these, with nothing else to do."""
    latency: float
    """What a collective of a few bytes takes."""
    num_collectives: float
    """Of gradients, without the agreement."""
    num_bytes: float
    behind_steps: bool = False
    """What is sent travels while other steps compute: its time under way, its rate and its latency were not measured.

    All seconds are exposed ones then.
    """

    @property
    def hidden(self) -> float:
        return max(0.0, self.seconds - self.exposed)

    @property
    def latency_seconds(self) -> float:
        """Of all collectives; no more than the whole."""
        return min(self.seconds, self.num_collectives * self.latency)

    @property
    def bits_per_second(self) -> float:
        """0 where it is not known: what the bytes took is lost in the latency where that is most of the time."""
        on_the_wire = self.seconds - self.latency_seconds
        return 8 * self.num_bytes / on_the_wire if on_the_wire > self.latency_seconds and not self.behind_steps else 0.0

    @property
    def kind(self) -> Kind:
        if self.exposed <= 0 or self.behind_steps:
            return ""
        return "latency" if self.seconds <= ROUND_TRIPS * self.latency_seconds else "bandwidth"

    def exposed_if(self, *, bytes_factor: float = 1.0, collectives_factor: float = 1.0) -> float:
        """The exposed seconds with other numbers of bytes and collectives; as much hides behind backward as now."""
        latency = self.latency_seconds * collectives_factor
        seconds = latency + (self.seconds - self.latency_seconds) * bytes_factor
        # The last collective begins when backward ends: it has nothing to hide behind.
        last = seconds / max(1.0, self.num_collectives * collectives_factor)
        return min(seconds, max(last, seconds - self.hidden))


def exchange_of(times: TimeShares, behind_steps: bool = False) -> Exchange:
    """Zeros for one worker."""
    if not times.ranks:
        return Exchange(0.0, 0.0, 0.0, 0.0, 0.0)
    seconds = min(_gradient_seconds(rank) for rank in times.ranks)
    moving = fmean(rank.moving for rank in times.ranks)
    exposed = max(0.0, moving - fmean(rank.agreement_moving for rank in times.ranks))
    return Exchange(
        seconds=max(seconds, exposed),
        exposed=exposed,
        latency=median(rank.latency for rank in times.ranks),
        num_collectives=max(0.0, times.ranks[0].num_collectives - 1),
        num_bytes=max(rank.num_bytes for rank in times.ranks),
        behind_steps=behind_steps,
    )


def _gradient_seconds(rank: RankStep) -> float:
    """Without waiting for others and without the agreement."""
    return max(0.0, rank.communication - rank.waiting - rank.agreement_moving)


def is_one_host(run: RunRecord) -> bool:
    names = {rank.host for rank in run.ranks.values() if rank.host}
    return int(run.summary.get("hosts") or max(len(names), 1)) == 1


def link_bits_per_second(run: RunRecord) -> float | None:
    """The slowest of the interfaces that the job uses; None where the system does not know."""
    speeds = [speed for host in run.hosts.values() if (speed := _link(host)) is not None]
    return min(speeds) if speeds else None


def measured_bits_per_second(run: RunRecord) -> float | None:
    """What left the busiest host on the job's interface, in the seconds in which it sent most (the 95th percentile)."""
    found = [rate for host in run.hosts.values() if (rate := _peak_rate(host)) is not None]
    return max(found) if found else None


def _link(host: HostRecord) -> float | None:
    interfaces, name = host.about.get("interfaces"), host.job_interface
    if not (isinstance(interfaces, dict) and isinstance(name, str) and isinstance(interfaces.get(name), dict)):
        return None
    speed = host.link_bits_per_second
    return float(speed) if isinstance(speed, int | float) and 0 < speed < MOST else None


def _peak_rate(host: HostRecord) -> float | None:
    if not isinstance(host.job_interface, str):
        return None
    num_bytes, seconds = host.column(f"interfaces.{host.job_interface}.bytes_out"), host.column("seconds")
    known = (num_bytes >= 0) & (num_bytes < MOST) & (seconds > LEAST) & (seconds < MOST)
    return float(np.percentile(8 * num_bytes[known] / seconds[known], 95)) if known.any() else None
