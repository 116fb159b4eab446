"""What most checks need: the hosts that were seen, who is unlike the others, and a line for all that are well."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from konvoi.cluster.checks import Finding
from konvoi.cluster.facts import Facts
from konvoi.cluster.hosts import Host
from konvoi.cluster.survey import Survey

MOST_NAMED = 2


class Odd(NamedTuple):
    host: str
    value: str
    others: str
    """Who has what instead: "h0 and h1 have 2.13.0"."""


def seen(survey: Survey) -> Iterator[tuple[Host, Facts]]:
    """The hosts that answered, in the order of cluster.toml."""
    return ((host, survey.facts[host.name]) for host in survey.cluster.hosts if host.name in survey.facts)


def odd_ones(values: Mapping[str, str]) -> Iterator[Odd]:
    """Hosts whose value is not the most common one; of two that are as common, the first host's counts."""
    given = list(values.values())
    usual = max(given, key=given.count, default="")
    usual_hosts = [host for host, value in values.items() if value == usual]
    have = f"{' and '.join(usual_hosts)} {'has' if len(usual_hosts) == 1 else 'have'}"
    if len(usual_hosts) > MOST_NAMED:
        have = f"{len(usual_hosts)} hosts have"
    return (Odd(host, value, f"{have} {usual}") for host, value in values.items() if value != usual)


def judged(problems: Iterable[Finding], fine: Mapping[str, str]) -> Iterator[Finding]:
    """The problems, then what is fine about each host that has none."""
    problems = list(problems)
    troubled = {problem.host for problem in problems}
    yield from problems
    yield from (Finding(host, "ok", words) for host, words in fine.items() if host not in troubled)


def same_environment(survey: Survey) -> str:
    """What to do about an environment that is missing, broken or unlike the others."""
    if prebuilt := survey.cluster.environment:
        return f"make {prebuilt} (environment in cluster.toml) there what it is elsewhere"
    return "konvoi cluster setup"
