"""Whether every host has an environment, and in it the same Konvoi, torch and all that Konvoi needs."""

from __future__ import annotations

from collections.abc import Iterator

from konvoi.cluster.checks import Finding, Level
from konvoi.cluster.checks._hosts import judged, odd_ones, same_environment, seen
from konvoi.cluster.facts import Environment
from konvoi.cluster.survey import Survey

TITLE = "Konvoi and torch"
ORDER = 30
# How bad a difference is among the hosts, and against the machine that starts, which only reads what torch has made.
LEVELS: dict[str, tuple[Level, Level]] = {
    "konvoi": ("error", "error"),
    "torch": ("error", "warning"),
    # Of one version: somebody is working on it.
    "code": ("warning", "warning"),
}
MOST_NAMED = 3


def examine(survey: Survey) -> Iterator[Finding]:
    fix = same_environment(survey)
    environments = {host.name: facts.environment for host, facts in seen(survey)}
    missing = [finding for host, each in environments.items() for finding in _missing(host, each, fix)]
    incomplete = {finding.host for finding in missing}
    whole = {host: each for host, each in environments.items() if each.python and host not in incomplete}
    fine = {host: f"konvoi {each.packages['konvoi']}, torch {each.packages['torch']}" for host, each in whole.items()}
    return judged([*missing, *_differences(whole, survey.own, fix)], fine)


def _missing(host: str, environment: Environment, fix: str) -> Iterator[Finding]:
    if environment.problem:
        return  # checks/python.py says so
    if environment.python is None:
        yield Finding(host, "error", f"no environment in {environment.folder}", fix, "no-environment")
        return
    for name in ("konvoi", "torch"):
        if name not in environment.packages:
            yield Finding(host, "error", f"{name} is not installed in {environment.folder}", fix, f"no-{name}")
    if absent := sorted(set(environment.requires) - set(environment.packages) - {"torch"}):
        yield Finding(host, "error", f"Konvoi needs what is not installed: {_list(absent)}", fix, "package-missing")


def _differences(whole: dict[str, Environment], own: Environment, fix: str) -> Iterator[Finding]:
    konvoi = {host: environment.packages["konvoi"] for host, environment in whole.items()}
    torch = {host: environment.packages["torch"] for host, environment in whole.items()}
    yield from _compared("konvoi", konvoi, own.packages.get("konvoi"), fix)
    yield from _compared("torch", torch, own.packages.get("torch"), fix)
    if len({*konvoi.values(), own.packages.get("konvoi")}) == 1:
        codes = {host: each.konvoi_digest[:8] for host, each in whole.items() if each.konvoi_digest}
        yield from _compared("code", codes, own.konvoi_digest[:8], fix)
    yield from _others(whole, fix)


def _compared(what: str, values: dict[str, str], here: str | None, fix: str) -> Iterator[Finding]:
    words = "the code of konvoi" if what == "code" else what
    level, level_here = LEVELS[what]
    odd = {each.host: each for each in odd_ones(values)}
    for host, value in values.items():
        if host in odd:
            yield Finding(host, level, f"{words} {value}; {odd[host].others}", fix, f"{what}-differs")
        elif here and _public(value) != _public(here):
            found = f"{words} {value}; this machine has {here}"
            yield Finding(host, level_here, found, fix, f"{what}-differs-from-here")


def _public(version: str) -> str:
    """2.13.0+cpu -> 2.13.0: the machine that starts may have no GPU."""
    return version.partition("+")[0]


def _others(whole: dict[str, Environment], fix: str) -> Iterator[Finding]:
    """What Konvoi needs beside torch; one finding for a host, however much is different."""
    needed = sorted({name for environment in whole.values() for name in environment.requires} - {"torch"})
    differences: dict[str, list[str]] = {}
    for name in needed:
        for odd in odd_ones({host: environment.packages.get(name, "-") for host, environment in whole.items()}):
            differences.setdefault(odd.host, []).append(f"{name} {odd.value} ({odd.others})")
    for host, found in differences.items():
        yield Finding(host, "warning", _list(found), fix, "packages-differ")


def _list(words: list[str]) -> str:
    more = f" and {len(words) - MOST_NAMED} more" if len(words) > MOST_NAMED else ""
    return ", ".join(words[:MOST_NAMED]) + more
