"""One worker of a run whose exchanges are real and whose compute is emulated.

Real: the Sync classes of konvoi.sync over gloo, tensors of the model's shapes, sockets, the agreement at the end of
every step. Emulated: forward pass, backward pass and optimiser are sleeps. The gradient of every parameter appears at
its moment of the backward pass, in proportion to the bytes of those before it, the last parameter's first; so buckets
fill and are sent as in a real pass, and overlap counts. Nothing is computed on purpose, as if a GPU did it: gradients
are one constant, and where the sync does not send them they do not appear at all.
"""

from __future__ import annotations

import os
import resource
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import torch
from links import INTERFACE, address_of
from torch import Tensor, distributed, nn

from konvoi import registry
from konvoi.config.sections import Optim
from konvoi.engine import optim
from konvoi.engine.muon import Muon
from konvoi.memory import keep_memory
from konvoi.models import transformer
from konvoi.sync import HiddenShape, Shapes, Team, Traffic
from konvoi.telemetry.timeline import Timeline
from konvoi.world import World

# (size, pieces of the vocabulary): multi30k-tiny's, one between, and the reference runs' with 60,880,896 parameters
MODELS = {"tiny": ("tiny", 5_000), "small": ("small", 16_000), "base": ("base", 32_768)}
# As many numbers as the engine's workers tell each other after a step.
NUM_AGREED = 39
# Through the limited link before anything is timed: TCP must find its rate.
SETTLING_SECONDS = 1.0
PRIORITY, AUTOGROUP = -15, Path("/proc/self/autogroup")
NO_COMPUTE = (0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Case:
    """What is measured."""

    num_hosts: int
    rate_megabits: float
    model: str
    sync: dict[str, Any]
    forward_seconds: float
    backward_seconds: float
    optimiser_seconds: float = 0.0
    workers_per_host: int = 1
    rounds: int = 3
    """That are measured: of so many steps as lie between two exchanges; one more before them is not."""
    idle_steps: int = 2
    """Steps without compute, before the links get their rate: buckets are filled anew after the first."""
    optimiser: str = "adam"
    """Or muon: a way may share what it keeps."""

    @property
    def num_workers(self) -> int:
        return self.num_hosts * self.workers_per_host

    @property
    def compute_seconds(self) -> float:
        return self.forward_seconds + self.backward_seconds + self.optimiser_seconds

    @property
    def traffic(self) -> Traffic:
        found: Traffic = _module(self).traffic(config_of(self), shapes_of(self.model, self.optimiser))
        return found

    def key(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Device:
    """Computes by sleeping until a moment: a late processor does not delay it further."""

    forward_seconds: float
    backward_seconds: float
    optimiser_seconds: float
    began_at: float = field(default_factory=time.perf_counter)

    def begin(self) -> None:
        self.began_at = time.perf_counter()

    def until(self, seconds: float) -> None:
        """Since the phase began."""
        if (left := self.began_at + seconds - time.perf_counter()) > 0:
            time.sleep(left)


class _Passed(torch.autograd.Function):
    """Hands its input on; going back, it sleeps until the parameter's gradient is due."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, parameter: nn.Parameter, model: Emulated, share: float) -> Tensor:
        ctx.shape, ctx.model, ctx.share = parameter.shape, model, share
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        model = ctx.model
        model.device.until(model.device.backward_seconds * ctx.share)
        return gradient, model.constant.expand(ctx.shape) if model.makes_gradients else None, None, None


class Emulated(nn.Module):
    """Parameters of the given shapes, and no arithmetic."""

    def __init__(self, shapes: Shapes, device: Device, rank: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList([torch.full(shape, 0.01) for shape in shapes])
        self.device, self.makes_gradients = device, True
        self.constant = torch.tensor(1e-3 * (rank + 1))
        sizes = [weight.numel() for weight in self.weights]
        # Of the backward pass, when it comes to the first parameter's gradient, the second's...
        self.shares = [sum(sizes[number:]) / sum(sizes) for number in range(len(sizes))]

    def forward(self, x: Tensor) -> Tensor:
        self.device.begin()
        # Where none waits for a gradient, one sleep does: waking for each would cost the processor what no GPU does.
        count = len(self.weights) if self.makes_gradients else 1
        for weight, share in zip(self.weights[:count], self.shares[:count], strict=True):
            x = _Passed.apply(x, weight, self, share)
        self.device.until(self.device.forward_seconds)
        return x


class Worker:
    def __init__(self, case: Case, team: Team) -> None:
        self.case, self.team, self.step_number = case, team, 0
        self.device = Device(*NO_COMPUTE)
        self.timeline = Timeline()
        self.sync = _module(case).Sync(config_of(case), team, self.timeline)
        shapes = shapes_of(case.model, case.optimiser)
        self.bare = Emulated(shapes, self.device, team.rank)
        self.sync.use(_stepped(self.bare, shapes))
        self.model = self.sync.wrap(self.bare)
        self.bare.makes_gradients = self.model is not self.bare
        self.agreements: deque[Callable[[], Any]] = deque()

    def settle(self) -> None:
        """Before the links get their rate: connections are made, buckets filled, the first model sent to all."""
        self.sync.settle(lambda: self._passes())
        self.steps(self.case.idle_steps)

    def fill_links(self) -> None:
        workers = self.team.size
        num_values = self.case.rate_megabits * 1e6 / 32 * SETTLING_SECONDS / (2 * (workers - 1) / workers)
        distributed.all_reduce(torch.zeros(int(num_values)))

    def compute_for_real(self) -> None:
        case, device = self.case, self.device
        device.forward_seconds, device.backward_seconds = case.forward_seconds, case.backward_seconds
        device.optimiser_seconds = case.optimiser_seconds

    def steps(self, number: int) -> None:
        for _ in range(number):
            self._step()

    def _step(self) -> None:
        """As the engine's train_step."""
        self.step_number += 1
        self._passes()
        self.device.begin()
        self.device.until(self.device.optimiser_seconds)
        self.bare.zero_grad(set_to_none=True)
        self.sync.after_step(self.model, self.step_number)
        self.timeline.take()
        self.agreements.append(self.team.begin_rows([0.0] * NUM_AGREED))
        while len(self.agreements) > self.sync.agreement_lag:
            self.agreements.popleft()()

    def _passes(self) -> None:
        with self.sync.micro_step(self.model, is_last=True):
            result = self.model(torch.zeros(1, requires_grad=True))
            self.device.begin()
            result.backward()


def _stepped(model: Emulated, shapes: Shapes) -> torch.optim.Optimizer:
    """As after a step; where nothing is hidden, it is Adam."""
    groups: list[dict[str, Any]] = [{"params": [], "is_hidden": is_hidden} for is_hidden in (True, False)]
    for weight, shape in zip(model.weights, shapes, strict=True):
        groups[not isinstance(shape, HiddenShape)]["params"].append(weight)
    optimizer = Muon([group for group in groups if group["params"]], 0.9, (0.9, 0.98), 1e-9)
    for group in optimizer.param_groups:
        for weight in group["params"]:
            name = "momentum_buffer" if group["is_hidden"] else "exp_avg_sq"
            optimizer.state[weight][name] = torch.randn_like(weight).square_().mul_(1e-6)
    return optimizer


def run(case: Case, rank: int, parent: Connection) -> None:
    """In a process on its host: says that it is ready, waits for the word to go, answers with its figures."""
    try:
        os.environ.update(MASTER_ADDR=address_of(1), MASTER_PORT="29400", GLOO_SOCKET_IFNAME=INTERFACE)
        keep_memory()
        _come_first()
        # The hosts share this machine's cores.
        torch.set_num_threads(1)
        local_rank = rank % case.workers_per_host
        world = World(rank, case.num_workers, local_rank, case.workers_per_host, "torchrun", case.num_hosts)
        team = Team(world)
        parent.send(_measure(Worker(case, team), parent))
        team.close()
    except BaseException:
        parent.send(traceback.format_exc())


def _come_first() -> None:
    """What else this machine does comes after the hosts that it plays."""
    # Linux shares the cores among sessions first, each of which has its own priority, and then inside each.
    os.setsid()
    if AUTOGROUP.exists():
        AUTOGROUP.write_text(str(PRIORITY))
    os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)


def _measure(worker: Worker, parent: Connection) -> dict[str, float]:
    worker.settle()
    parent.send("ready")
    parent.recv()
    worker.fill_links()
    worker.compute_for_real()
    every_steps = worker.case.traffic.every_steps
    # To the beginning of a round, then one round that is not counted.
    worker.steps(-worker.step_number % every_steps + every_steps)
    num_steps = worker.case.rounds * every_steps
    figures: dict[str, float] = {}
    with _counted(figures, num_steps):
        worker.steps(num_steps)
    worker.sync.close()
    return figures


@contextmanager
def _counted(figures: dict[str, float], num_steps: int) -> Iterator[None]:
    """Adds what a step took."""
    before = _counters()
    yield
    for name, value in _counters().items():
        figures[name] = (value - before[name]) / num_steps


def _counters() -> dict[str, float]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "step_seconds": time.perf_counter(),
        "bytes_out": psutil.net_io_counters(pernic=True)[INTERFACE].bytes_sent,
        "processor_seconds": used.ru_utime + used.ru_stime,
    }


def config_of(case: Case) -> Any:
    return _module(case).Config(**case.sync)


def shapes_of(model: str, optimiser: str = "adam") -> Shapes:
    size, num_pieces = MODELS[model]
    with torch.device("meta"):
        built = transformer.Model(transformer.Config(size=size), num_pieces)
    return optim.shapes(Optim.model_validate({"name": optimiser}), built)


def _module(case: Case) -> Any:
    return registry.find("sync", case.sync["name"])
