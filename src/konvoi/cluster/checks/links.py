"""How fast each pair of hosts is, and whether one of them is far behind the others."""

from __future__ import annotations

from collections.abc import Iterator

from konvoi.cluster.checks import Finding
from konvoi.cluster.links import Link
from konvoi.cluster.survey import Survey

TITLE = "links"
ORDER = 56
# A training waits for the slowest link; rates that differ less than this are what measuring itself may do.
SLOWER_BY = 3.0
# The gradients of 60 million parameters in half precision, 120 MB, then take ten seconds a step.
SLOW_BYTES_PER_SECOND = 12.5e6
# A quarter of a second a step where 25 messages follow each other; hosts of one place are below 1 ms.
FAR_SECONDS = 0.010


def examine(survey: Survey) -> Iterator[Finding]:
    measured = [link for link in survey.links if link.bytes_per_second is not None]
    if measured:
        yield from _rates(measured)
    for link in survey.links:
        if link.latency_seconds is not None and link.latency_seconds > FAR_SECONDS:
            found = f"{link.latency_seconds * 1e3:.0f} ms there and back"
            yield Finding(link.name, "warning", found, "hosts of one zone or rack are below 1 ms", "far-apart")
        if not survey.is_quick and not link.problem and link.bytes_per_second is None:
            yield Finding(link.name, "error", "the connection was cut while it was measured", "try it again", "cut")


def _rates(links: list[Link]) -> Iterator[Finding]:
    fastest = max(links, key=_rate)
    slow = [link for link in links if _rate(link) * SLOWER_BY < _rate(fastest)]
    for link in slow:
        factor = _rate(fastest) / _rate(link)
        found = (
            f"{rate_words(_rate(link))}, {factor:.0f} times slower than {fastest.name} ({rate_words(_rate(fastest))})"
        )
        yield Finding(link.name, "warning", found, _whose(links, slow, link), "slow-link")
    if not slow and _rate(fastest) < SLOW_BYTES_PER_SECOND:
        found = f"all links are slow: {rate_words(_rate(fastest))} at most"
        fix = (
            'send less: sync.name = "fp16", or more micro-batches a step; konvoi diagnose tells what the network costs'
        )
        yield Finding("", "warning", found, fix, "slow-network")
    if not slow:
        yield Finding("", "ok", _range_words(links))


def _whose(links: list[Link], slow: list[Link], link: Link) -> str:
    """The host all of whose links are slow, if there is one, else the pair."""
    for host in (link.source, link.target):
        own = [other for other in links if host in (other.source, other.target)]
        if len(own) < len(links) and all(other in slow for other in own):
            return f"all links of {host} are slow: its network card, cable or instance type"
    return "the way between these two: a switch, a zone, or a program that uses it (konvoi cluster check again)"


def _range_words(links: list[Link]) -> str:
    low, high = min(map(_rate, links)), max(map(_rate, links))
    latency = max(link.latency_seconds or 0.0 for link in links)
    return f"{rate_words(low)} to {rate_words(high)}, at most {latency * 1e3:.2f} ms there and back"


def _rate(link: Link) -> float:
    # A link over which nothing came is infinitely slow, yet one must divide by it.
    return max(link.bytes_per_second or 0.0, 1.0)


def rate_words(bytes_per_second: float) -> str:
    """940 Mbit/s, as links are sold."""
    megabits = bytes_per_second * 8 / 1e6
    return f"{megabits / 1000:.1f} Gbit/s" if megabits >= 1000 else f"{megabits:.3g} Mbit/s"
