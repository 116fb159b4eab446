"""What every way to synchronise says that it sends, beside the bytes that left the interface of a real network."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hosts import INTERFACE, add_namespace, add_switch, remove_namespaces, requires_hosts
from tests.sync.workers import Training, new_sync, on_workers
from torch import nn

from konvoi import registry
from konvoi.config.sections import Optim
from konvoi.engine import optim
from konvoi.sync import Team

NUM_HOSTS = 2
# Of which the least counts: on a busy machine packets are shorter, and each has a header.
NUM_LOOKS = 3
# Of which the matrices have a momentum that may travel.
MUON = Optim(name="muon")
# Where a default would not do in a few steps: the exact ones before the compressed, the rounds of so many steps.
TABLES: dict[str, dict[str, Any]] = {
    "powersgd": {"start_step": 0, "rank": 32},
    "diloco": {"local_steps": 4},
}
CASES = [(name, TABLES.get(name, {}), 1) for name in registry.names("sync")]
CASES += [("diloco", {"local_steps": 4, "wire": wire}, 1) for wire in ("int4", "int2")]
CASES.append(("diloco", {"local_steps": 4, "share_momentum": False}, 1))
# So little travels that second moments count: of what Adam updates, not of matrices.
CASES.append(("diloco", {"local_steps": 32, "wire": "int2"}, 1))
# All of these steps are exact.
CASES += [("powersgd", {"start_step": 1000}, 1), ("diloco", {"local_steps": 4, "exact_steps": 1000}, 1)]
CASES.append(("hierarchical", {"between": {"name": "diloco", "exact_steps": 1000}}, 2))
CASES += [
    ("hierarchical", {"between": {"name": name, **TABLES.get(name, {})}}, 2) for name in ("ddp", "bf16", "diloco")
]
# A ring leaves a host once; integers are sent to every other worker, and leave with each.
CASES += [("ddp", {}, 2), ("diloco", {"local_steps": 4, "wire": "int8"}, 2)]


def model() -> nn.Module:
    """4.2 MB: matrices, and vectors that powersgd sends as they are."""
    layers = [nn.Sequential(nn.Linear(512, 512), nn.LayerNorm(512)) for _ in range(4)]
    return nn.Sequential(*layers)


def bytes_per_step(team: Team, cases: list[tuple[str, dict[str, Any], int]]) -> list[tuple[float, float]]:
    """Measured and declared, for each."""
    found = []
    for name, table, workers_per_host in cases:
        built, sync, inputs = model(), new_sync(name, table, team), torch.ones(1, 512)
        sync.use(optim.build(MUON, built))
        training = Training(built, sync)
        training.settle(inputs)
        module = registry.find("sync", name)
        sent = module.traffic(module.Config(**table), optim.shapes(MUON, built))
        # The first round makes connections and buckets; in the others all fragments take their turn.
        for _ in range(sent.every_steps):
            training.step(inputs, rate=0.01)
        counted = [sent_bytes(team, sync)]
        for _ in range(NUM_LOOKS):
            for _ in range(4 * sent.every_steps):
                training.step(inputs, rate=0.01)
            counted.append(sent_bytes(team, sync))
        measured = min(after - before for before, after in pairwise(counted)) / (4 * sent.every_steps)
        settings = sync.settings_of(next(training.numbers) - 1)
        exchanged = registry.find("sync", settings.name).traffic(settings, optim.shapes(MUON, built))
        found.append((measured, exchanged.bytes_out_per_step([workers_per_host] * NUM_HOSTS)))
        training.sync.close()
    return found


def sent_bytes(team: Team, sync: Any) -> int:
    """Over the interface so far, once all that is under way has arrived everywhere."""
    sync.tensors()
    team.sum([0.0])
    line = re.search(rf"{INTERFACE}: *(.*)", Path("/proc/thread-self/net/dev").read_text())
    assert line
    return int(line[1].split()[8])


@contextlib.contextmanager
def network() -> Iterator[list[str]]:
    """Hosts that are networks alone, at a switch; their names."""
    prefix = f"kt{os.getpid()}-traffic"
    names = [f"{prefix}-h{number}" for number in range(NUM_HOSTS)]
    try:
        add_switch(f"{prefix}-switch")
        for number, name in enumerate(names):
            add_namespace(name, f"{prefix}-switch", number + 1)
        yield names
    finally:
        remove_namespaces(prefix)


@requires_hosts
@pytest.mark.parametrize("workers_per_host", [1, 2])
def test_the_interface_counts_what_was_declared(workers_per_host: int) -> None:
    cases = [case for case in CASES if case[2] == workers_per_host]
    assert cases
    with network() as names:
        found = on_workers(bytes_per_step, [workers_per_host] * NUM_HOSTS, cases, networks=names)
    for number, (name, table, _) in enumerate(cases):
        # What left a host is counted by each of its workers.
        for measured, declared in (worker[number] for worker in found):
            assert 0.95 * declared < measured < 1.05 * declared, (name, table, measured, declared)
