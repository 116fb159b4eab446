"""Real processes that do something together, in a group of their own, and what each of them found."""

from __future__ import annotations

import importlib
import itertools
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tests.processes import ended, free_port, start_process, torchrun_variables
from torch import Tensor, nn

from konvoi import registry
from konvoi.sync import Team
from konvoi.telemetry.timeline import NoTimeline, Timeline
from konvoi.world import from_environment

ROOT = str(Path(__file__).parents[2])


def on_workers(
    program: Callable[..., Any], workers_per_host: Sequence[int], *arguments: Any, networks: Sequence[str] = ()
) -> list[Any]:
    """What program(team, *arguments) returned on each worker, by rank. It must be a function of a module.

    Hosts are numbers alone, unless each is given a network: a namespace of tests/hosts.py.
    """
    size, port = sum(workers_per_host), free_port()
    places = [(host, local) for host, count in enumerate(workers_per_host) for local in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for rank, (host, local_rank) in enumerate(places):
            variables = torchrun_variables(rank, size, port)
            variables |= {"LOCAL_RANK": str(local_rank), "LOCAL_WORLD_SIZE": str(workers_per_host[host])}
            network = networks[host] if networks else None
            processes.append(start_process(_text(program, arguments, f"{folder}/{rank}", network), variables))
        assert [ended(process) for process in processes] == [0] * size
        return [pickle.loads(Path(folder, str(rank)).read_bytes()) for rank in range(size)]


def _text(program: Callable[..., Any], arguments: Sequence[Any], file: str, network: str | None) -> str:
    """The program as Python, which a process forked from a server is given."""
    words = (program.__module__, program.__name__, file, network, pickle.dumps(arguments))
    return f"import sys; sys.path = {[ROOT, *sys.path]!r}; from tests.sync.workers import work; work(*{words!r})"


def work(module: str, name: str, file: str, network: str | None, arguments: bytes) -> None:
    torch.set_num_threads(1)
    with _entered(network):
        team = Team(from_environment())
        found = getattr(importlib.import_module(module), name)(team, *pickle.loads(arguments))
        Path(file).write_bytes(pickle.dumps(found))
        team.close()


@contextmanager
def _entered(network: str | None) -> Iterator[None]:
    if network is None:
        yield
        return
    # Who asks for a network has looked whether there can be one.
    os.environ |= {"KONVOI_TEST_HOSTS": "required"}
    from tests.hosts import INTERFACE, address_of, in_network_of

    os.environ |= {"MASTER_ADDR": address_of(1), "GLOO_SOCKET_IFNAME": INTERFACE}
    with in_network_of(network):
        yield


def new_sync(name: str, table: dict[str, Any], team: Team, timeline: Timeline | None = None) -> Any:
    module = registry.find("sync", name)
    return module.Sync(module.Config(**table), team, timeline or NoTimeline())


class Training:
    """A model and its sync; step(inputs) makes the gradient of the model's output, summed up, over all workers."""

    def __init__(self, model: nn.Module, sync: Any) -> None:
        self.model, self.sync = model, sync
        self.wrapped = sync.wrap(model)
        self.numbers = itertools.count(1)

    def settle(self, inputs: Tensor) -> None:
        self.sync.settle(lambda: self._pass(inputs))
        self.model.zero_grad()

    def _pass(self, inputs: Tensor) -> None:
        self.wrapped(inputs).sum().backward()

    def step(self, *micro_batches: Tensor, rate: float = 0.0) -> list[Tensor]:
        """The gradients of all parameters."""
        self.model.zero_grad()
        for number, inputs in enumerate(micro_batches, start=1):
            with self.sync.micro_step(self.wrapped, is_last=number == len(micro_batches)):
                self._pass(inputs)
        gradients = [parameter.grad.clone() for parameter in self.model.parameters() if parameter.grad is not None]
        with torch.no_grad():
            for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
                parameter -= rate * gradient
        self.sync.after_step(self.wrapped, next(self.numbers))
        return gradients
