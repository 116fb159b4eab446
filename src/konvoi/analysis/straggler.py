"""Which rank the others wait for, and why it is slower."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import median

from konvoi.analysis.devices import clock_share, cores_busy_percent, throttled_by
from konvoi.analysis.record import RunRecord
from konvoi.analysis.shares import RankStep, TimeShares
from konvoi.analysis.verdict import Why
from konvoi.analysis.wording import listed, percent

# A reason must explain this much of what the slow rank works longer.
MIN_EXPLAINED = 0.4
# A GPU's clock, as a share of the others'.
LOW_CLOCK = 0.85
# As much processor time and as long batches as the others, but for noise.
FULL_RATE = 0.95
LITTLE_DELAY = 0.03


@dataclass(frozen=True)
class Straggler:
    rank: int | None
    """None where its events are not here."""
    host: str
    why: Why
    seconds: float
    """By which a step would be shorter if it kept pace with the others."""
    own_work_seconds: float
    others_work_seconds: float
    reasons: list[str] = field(default_factory=list)


def find_straggler(run: RunRecord, times: TimeShares) -> Straggler | None:
    """The rank that works longest, if any does; how much of a step that must cost is for the verdict to say."""
    ranks = times.ranks
    if run.num_workers == 1 or not ranks:
        return None
    if len(ranks) < run.num_workers:
        missing = _among_the_missing(run, ranks)
        if missing is not None:
            return missing
    if len(ranks) == 1:
        return None
    slow = max(ranks, key=lambda rank: rank.work)
    others = [rank for rank in ranks if rank is not slow]
    others_work = median(rank.work for rank in others)
    # What the others could gain is no more than what they stand still.
    stand_still = median(rank.waiting + rank.moving for rank in others)
    seconds = min(slow.work - others_work, stand_still)
    if seconds <= 0:
        return None
    why, reasons = _why(run, slow, others)
    return Straggler(slow.rank, slow.host, why, seconds, slow.work, others_work, reasons)


def _among_the_missing(run: RunRecord, ranks: list[RankStep]) -> Straggler | None:
    """All whose events are here wait: then it is one of the others."""
    seconds = min(rank.waiting for rank in ranks)
    if seconds <= 0:
        return None
    known = {rank.rank for rank in ranks}
    missing = [rank for rank in range(run.num_workers) if rank not in known]
    work = median(rank.work for rank in ranks)
    only = missing[0] if len(missing) == 1 else None
    reasons = ["the events of the slow rank are not here, so they cannot say why"]
    return Straggler(only, "", "unknown", seconds, work + seconds, work, reasons)


def _why(run: RunRecord, slow: RankStep, others: list[RankStep]) -> tuple[Why, list[str]]:
    """Each reason explains some of the extra seconds; the one that explains most is named."""
    extra = slow.work - median(rank.work for rank in others)
    explained: dict[Why, tuple[float, str]] = {
        "slow input": _slow_input(slow, others),
        "longer batches": _longer_batches(slow, others),
        "slow device": _slow_device(run, slow, others),
        "less processor": _less_processor(run, slow, others),
    }
    why = max(explained, key=lambda name: explained[name][0])
    seconds, reason = explained[why]
    if seconds < MIN_EXPLAINED * extra:
        return "unknown", ["nothing that was measured explains why it is slower"]
    return why, [reason]


def _slow_input(slow: RankStep, others: list[RankStep]) -> tuple[float, str]:
    usual = median(rank.input for rank in others)
    return slow.input - usual, f"it waits {slow.input:.3f} s a step for its data, the others {usual:.3f} s"


def _longer_batches(slow: RankStep, others: list[RankStep]) -> tuple[float, str]:
    usual = median(rank.amount for rank in others)
    if not usual > 0 or math.isnan(slow.amount):
        return 0.0, ""
    longer = slow.amount / usual - 1
    reason = f"its batches are {1 + longer:.2f} times as long: {slow.amount:,.0f} against {usual:,.0f} a step"
    return longer * median(rank.compute for rank in others), reason


def _less_processor(run: RunRecord, slow: RankStep, others: list[RankStep]) -> tuple[float, str]:
    """By processor time per second of computing, or by the time that it stood ready without a core."""
    usual_delay = median(rank.run_delay for rank in others)
    delay = slow.run_delay - usual_delay
    usual_rate = median(_processor_rate(rank) for rank in others)
    rate = _processor_rate(slow)
    lost = slow.compute * (1 - rate / usual_rate) if usual_rate > 0 and rate > 0 else 0.0
    busy = cores_busy_percent(run.hosts.get(slow.host))
    beside = f"; the cores of {slow.host} are {busy:.0f} % busy" if busy is not None else ""
    if delay >= lost:
        words = f"it stood ready without a core for {slow.run_delay:.3f} s a step, the others {usual_delay:.3f} s"
        return delay, words + beside
    return (
        lost,
        f"it gets {rate:.2f} s of processor time per second of computing, the others {usual_rate:.2f} s" + beside,
    )


def _processor_rate(rank: RankStep) -> float:
    return rank.cpu / rank.compute if rank.compute > 0 else 0.0


def _slow_device(run: RunRecord, slow: RankStep, others: list[RankStep]) -> tuple[float, str]:
    """A GPU that is held back; without GPUs, another machine that takes longer at full processor time."""
    extra = slow.compute - median(rank.compute for rank in others)
    elsewhere = set[str]().union(*(throttled_by(run, rank.rank) for rank in others))
    if reasons := throttled_by(run, slow.rank) - elsewhere:
        return extra, f"its GPU is throttled: {listed(sorted(reasons))}"
    clock = clock_share(run, slow.rank)
    usual = [share for rank in others if (share := clock_share(run, rank.rank)) is not None]
    if clock is not None and usual and clock < LOW_CLOCK * median(usual):
        return extra, f"its GPU runs at {percent(clock)} of its highest clock, the others at {percent(median(usual))}"
    if _same_work_elsewhere(slow, others):
        return extra, f"the same work takes longer on {slow.host}, although it has the processor to itself"
    return 0.0, ""


def _same_work_elsewhere(slow: RankStep, others: list[RankStep]) -> bool:
    if slow.host in {rank.host for rank in others} or not slow.cpu > 0:
        return False
    usual_rate = median(_processor_rate(rank) for rank in others)
    usual_amount = median(rank.amount for rank in others)
    has_processor = _processor_rate(slow) >= FULL_RATE * usual_rate and slow.run_delay <= LITTLE_DELAY * slow.work
    return has_processor and slow.amount <= usual_amount / FULL_RATE
