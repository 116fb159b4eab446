"""Whether the hosts' environments have a Python that Konvoi runs on, the same on all."""

from __future__ import annotations

from collections.abc import Iterator

from konvoi.cluster.checks import Finding
from konvoi.cluster.checks._hosts import judged, odd_ones, same_environment, seen
from konvoi.cluster.facts import Environment
from konvoi.cluster.survey import Survey

TITLE = "Python"
ORDER = 20
LEAST = [3, 11]
SET_UP = "install Python 3.11 or later there, name it (python = in cluster.toml), then: konvoi cluster setup"


def examine(survey: Survey) -> Iterator[Finding]:
    environments = {host.name: facts.environment for host, facts in seen(survey)}
    unfit = list(_unfit(environments, same_environment(survey)))
    versions = {host: _minor(each.python) for host, each in environments.items() if each.python}
    fit = {host: version for host, version in versions.items() if host not in [finding.host for finding in unfit]}
    return judged([*unfit, *_unlike(fit)], {host: f"Python {version}" for host, version in fit.items()})


def _unfit(environments: dict[str, Environment], fix: str) -> Iterator[Finding]:
    for host, environment in environments.items():
        if environment.problem:
            found = f"the Python of {environment.folder} does not start: {environment.problem}"
            yield Finding(host, "error", found, fix, "python-broken")
        elif environment.python and [int(part) for part in _minor(environment.python).split(".")] < LEAST:
            found = f"Python {environment.python}; Konvoi needs 3.11"
            yield Finding(host, "error", found, SET_UP, "python-too-old")


def _unlike(versions: dict[str, str]) -> Iterator[Finding]:
    for odd in odd_ones(versions):
        found, fix = f"Python {odd.value}; {odd.others}", f"{SET_UP}; the same on all"
        yield Finding(odd.host, "warning", found, fix, "python-differs")


def _minor(version: str) -> str:
    """3.11.7 -> 3.11: what comes behind changes no behaviour."""
    return ".".join(version.split(".")[:2])
