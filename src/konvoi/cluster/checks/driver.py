"""Whether the GPUs' drivers and NCCL, through which they talk, are the same on all hosts."""

from __future__ import annotations

from collections.abc import Iterator

from konvoi.cluster.checks import Finding
from konvoi.cluster.checks._hosts import judged, odd_ones, seen
from konvoi.cluster.facts import Facts
from konvoi.cluster.survey import Survey

TITLE = "driver and NCCL"
ORDER = 45


def examine(survey: Survey) -> Iterator[Finding]:
    facts_of = {host.name: facts for host, facts in seen(survey) if facts.gpus}
    drivers = {host: facts.gpus[0].driver for host, facts in facts_of.items()}
    nccls = {host: _nccl(facts) for host, facts in facts_of.items()}
    fine = {host: f"driver {drivers[host]}, NCCL {nccls[host]}" for host in facts_of}
    if not fine and all(host.name in survey.facts for host in survey.cluster.hosts):
        fine = {"": "not needed: no GPUs"}
    return judged(_unlike(drivers, nccls), fine)


def _unlike(drivers: dict[str, str], nccls: dict[str, str]) -> Iterator[Finding]:
    for odd in odd_ones(drivers):
        found, fix = f"driver {odd.value}; {odd.others}", "install the same driver on all hosts"
        yield Finding(odd.host, "warning", found, fix, "driver-differs")
    for odd in odd_ones(nccls):
        found, fix = f"NCCL {odd.value}; {odd.others}", "the same torch on all hosts: konvoi cluster setup"
        yield Finding(odd.host, "error", found, fix, "nccl-differs")


def _nccl(facts: Facts) -> str:
    """Its package is named after CUDA's version."""
    packages = facts.environment.packages
    return next((packages[name] for name in sorted(packages) if name.startswith("nvidia-nccl")), "of torch itself")
