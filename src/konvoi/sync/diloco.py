"""Local steps, and now and then an outer one: the workers' weights part, and what they moved by is averaged.

Every worker trains by itself. After local_steps of them the mean of (shared weights - own weights) is taken for a
gradient, and a step of Nesterov's momentum along it makes the new shared weights (DiLoCo, Douillard and others, 2023).
The model is cut into fragments that take turns, and a fragment travels while the next steps compute (streaming,
Douillard and others, 2025): a slow link costs nothing as long as a fragment needs no more than overlap_steps.

The first exact_steps may be exact, as ddp's: while a model learns its first things, weights that part cost the most.

When the new shared weights arrive, a worker moves to them and keeps what it learnt meanwhile: every local step counts
exactly once, in this exchange or in the next. Adam's second moments, where it or Muon has some, are shared as well
(_moments.py), and Muon's momentum looks back further (momentum_span).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple, Self

import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn
from torch.optim import Optimizer

from konvoi.config.section import Section
from konvoi.sync import Shapes, Team, Traffic, _base, _moments, num_values
from konvoi.sync._exchange import Averager, Exchanger, Wire, bytes_per_value, passes
from konvoi.sync._moments import Moments
from konvoi.telemetry.timeline import Timeline

# Worth trying, where somebody looks for what a link can bear, the most exact first. Half the bytes cost the model less
# than twice the steps (docs/network.md).
WIRES: tuple[Wire, ...] = ("int8", "int4")
USUAL = tuple((steps, wire) for steps in (4, 6, 8, 12, 16, 24, 32, 64, 128) for wire in WIRES)
# Muon's momentum looks back once further for so many steps done; 0.9 over ten steps, a twentieth of these.
STEPS_PER_SPAN = 200
# Through a fragment, when it is sent and when it has arrived.
TRAINING_PASSES = 3
# By the thread that exchanges, before and after the average: what the worker moved by, and the outer step.
OUTER_PASSES, MOMENTUM_PASSES = 2, 3


class Config(Section):
    """The recipe's [sync] table."""

    name: Literal["diloco"] = "diloco"
    local_steps: PositiveInt = 16
    """Steps from one exchange of a fragment to its next: H."""
    exact_steps: NonNegativeInt = 0
    """So many steps at first average their gradients, in fp32 and each in its time, as ddp does."""
    fragments: PositiveInt | None = None
    """Parts of the model that take turns; unless given, as many, up to 6, as take them at equal intervals."""
    overlap_steps: NonNegativeInt | None = None
    """Steps that a fragment may travel before it is waited for; as many as lie between two fragments, unless given."""
    wire: Wire = "int8"
    """What travels: fp32, fp16, int8 or int4; what rounding cost is sent along next time."""
    share_moments: bool = True
    """What Adam updates (some of it with Muon): by second moments of all workers' gradients, and with longer steps."""
    long_momentum: bool = True
    """Muon's momentum of each worker looks back over as many tokens as that of all together would."""
    outer_rate: PositiveFloat = 1.0
    outer_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @property
    def num_fragments(self) -> int:
        equal = [count for count in range(2, 7) if self.local_steps % count == 0]
        return self.fragments or max(equal, default=min(4, self.local_steps))

    @property
    def overlap(self) -> int:
        return self.local_steps // self.num_fragments if self.overlap_steps is None else self.overlap_steps

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.num_fragments > self.local_steps:
            raise ValueError(f"{self.num_fragments} fragments cannot take turns within {self.local_steps} local_steps")
        if self.overlap > self.local_steps:
            raise ValueError(f"overlap_steps = {self.overlap} is more than the {self.local_steps} local_steps")
        return self


class OuterStep(NamedTuple):
    """Made by the thread that exchanges, so that nobody waits for it; it counts when the fragment arrives."""

    mean: Tensor
    """Of what the workers moved by."""
    momentum: Tensor
    shared: Tensor


@dataclass
class Pending:
    """A fragment under way."""

    arrives_at: int
    outer: Future[OuterStep]
    sent: Tensor
    """This worker's weights as they were."""


class Fragment:
    """A stretch of all parameters laid end to end, with what is shared of it."""

    def __init__(self, parameters: list[nn.Parameter], begin: int, end: int) -> None:
        self.pieces: list[tuple[nn.Parameter, int, int]] = []
        offset = 0
        for parameter in parameters:
            first, last = max(begin - offset, 0), min(end - offset, parameter.numel())
            if first < last:
                self.pieces.append((parameter, first, last))
            offset += parameter.numel()
        self.shared = self.own()
        self.momentum = torch.zeros_like(self.shared)
        self.pending: Pending | None = None

    def own(self) -> Tensor:
        """This worker's weights, a copy."""
        return torch.cat([parameter.detach().view(-1)[first:last] for parameter, first, last in self.pieces])

    def set_own(self, values: Tensor) -> None:
        for own, begin, end in self._stretches():
            own.copy_(values[begin:end])

    def move(self, sent: Tensor) -> None:
        """To what is shared now, and as much further as this worker went since it sent."""
        for own, begin, end in self._stretches():
            own.sub_(sent[begin:end]).add_(self.shared[begin:end])

    def outer_step(self, mean: Tensor, rate: float, momentum: float) -> OuterStep:
        """Nesterov's; nothing is changed yet."""
        if not momentum:
            return OuterStep(mean, mean, self.shared.sub(mean, alpha=rate))
        new_momentum = (self.momentum * momentum).add_(mean)
        shared = self.shared.sub(mean, alpha=rate).sub_(new_momentum, alpha=rate * momentum)
        return OuterStep(mean, new_momentum, shared)

    def _stretches(self) -> Iterator[tuple[Tensor, int, int]]:
        """Of each parameter what belongs to the fragment, and where it is in there."""
        begin = 0
        for parameter, first, last in self.pieces:
            end = begin + last - first
            yield parameter.data.view(-1)[first:last], begin, end
            begin = end


class Sync(_base.Sync):
    replicas_differ = True

    def __init__(self, config: Config, team: Team, timeline: Timeline) -> None:
        super().__init__(config, team, timeline)
        self.config = config
        self.local_steps, self.overlap = config.local_steps, config.overlap
        self.agreement_lag = max(1, config.overlap)
        self.num_replicas = team.size
        self.optimizer: Optimizer | None = None
        """Where its second moments are shared."""
        self.moments: Moments | None = None
        self.step = self.finished_at = 0
        self.fragments: list[Fragment] = []
        self.averagers: list[Averager] = []
        self.exchanger = Exchanger()
        self._loaded: tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]] = ({}, {}, {})

    def use(self, optimizer: Optimizer) -> None:
        if self.config.share_moments and _moments.shareable(optimizer):
            self.optimizer = optimizer

    @property
    def is_exact(self) -> bool:
        """Whether the next step is."""
        return self.step < self.config.exact_steps

    def rate_factor(self, step: int) -> float:
        return self.moments.rate_factor(step) if self.moments and not self.is_exact else 1.0

    def momentum_span(self, step: int) -> float:
        """As many times as there are replicas; less at first, when what lies far back is of quite another model.

        Turned orthogonal, a direction of mere noise is as long as any other. A worker's gradients have as many times
        the noise of all workers' mean gradient as there are workers; over so many more steps it evens out as well.
        """
        if self.is_exact or not self.config.long_momentum:
            return 1.0
        return min(float(self.num_replicas), max(1.0, step / STEPS_PER_SPAN))

    def wrap(self, model: nn.Module) -> nn.Module:
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        total = sum(parameter.numel() for parameter in parameters)
        count = min(self.config.num_fragments, total)
        bounds = [total * number // count for number in range(count + 1)]
        if not self._loaded[2]:
            self.team.follow_first(parameter.data for parameter in model.parameters())
        self.fragments = [Fragment(parameters, *pair) for pair in pairwise(bounds)]
        self.averagers = self.new_averagers([fragment.shared.numel() for fragment in self.fragments])
        if self.optimizer:
            average = self.averagers[-1].exactly
            self.moments = Moments(self.optimizer, self.num_replicas, average, self.exchanger)
        self._restore(*self._loaded)
        return model

    def new_averagers(self, sizes: list[int]) -> list[Averager]:
        """One for each fragment; they are used in the same order by all."""
        group = self.team.another_group()
        return [Averager(size, self.team.size, self.config.wire, group) for size in sizes]

    @contextmanager
    def micro_step(self, model: nn.Module, is_last: bool) -> Iterator[None]:
        with self.in_host(model, is_last):
            yield
        if is_last and self.is_exact:
            self._average_gradients(model)

    def in_host(self, model: nn.Module, is_last: bool) -> AbstractContextManager[None]:
        """Around forward and backward: what makes the workers of one replica equal."""
        return nullcontext()

    @torch.no_grad()
    def _average_gradients(self, model: nn.Module) -> None:
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        with self.timeline("optimiser"):
            own = torch.cat([gradient.view(-1) for gradient in gradients])
        with self.timeline("exposed_communication"):
            mean = self.exchanger.submit(lambda: self.averagers[-1].exactly(own)).result()
        with self.timeline("optimiser"):
            for gradient, values in zip(gradients, torch.split(mean, [g.numel() for g in gradients]), strict=True):
                gradient.copy_(values.view_as(gradient))

    def after_step(self, model: nn.Module, step: int) -> None:
        was_exact, self.step = self.is_exact, step
        if was_exact:
            self._share_own()
            return
        for fragment in self.fragments:
            if fragment.pending and fragment.pending.arrives_at == step:
                self._arrive(fragment)
        if self.moments:
            self._share_moments(self.moments, step)
        for number in range(len(self.fragments)):
            if self._is_due(number, step):
                self._send(number, step)
                if self.overlap == 0:
                    self._arrive(self.fragments[number])

    @torch.no_grad()
    def _share_own(self) -> None:
        """After an exact step all have the same weights; after the last one they part."""
        for fragment in self.fragments:
            fragment.shared = fragment.own()
        if self.moments and not self.is_exact:
            self.moments.begin_apart()

    @torch.no_grad()
    def _share_moments(self, moments: Moments, step: int) -> None:
        if moments.pending and moments.pending.arrives_at == step:
            with self.timeline("exposed_communication"):
                moments.pending.mean.result()
            with self.timeline("optimiser"):
                moments.arrive(step)
        if step % max(self.local_steps, _moments.EVERY) == 0:
            with self.timeline("optimiser"):
                moments.send(step, max(1, self.overlap))

    def _is_due(self, number: int, step: int) -> bool:
        """They take turns; the last one is due when all steps of a round are done."""
        period = self.local_steps
        return step % period == (number + 1) * period // len(self.fragments) % period

    def _send(self, number: int, step: int) -> None:
        fragment, average = self.fragments[number], self.averagers[number]
        if fragment.pending:
            # Exchanges come more often than they did when it left.
            self._arrive(fragment)
        with self.timeline("optimiser"):
            own = fragment.own()
        # What is shared stays as it is until this arrives.
        outer = self.exchanger.submit(lambda: self._outer_step(fragment, average(fragment.shared - own)))
        fragment.pending = Pending(step + self.overlap, outer, own)

    def _outer_step(self, fragment: Fragment, mean: Tensor) -> OuterStep:
        return fragment.outer_step(mean, self.config.outer_rate, self.config.outer_momentum)

    @torch.no_grad()
    def _arrive(self, fragment: Fragment) -> None:
        pending = fragment.pending
        assert pending
        with self.timeline("exposed_communication"):
            _, fragment.momentum, fragment.shared = pending.outer.result()
        with self.timeline("optimiser"):
            fragment.move(pending.sent)
        fragment.pending = None

    def finish(self, step: int) -> bool:
        if self.finished_at == step:
            return False
        self.finished_at = step
        for fragment in self.fragments:
            if fragment.pending:
                self._arrive(fragment)
        for number, fragment in enumerate(self.fragments):
            self._send(number, step)
            self._arrive(fragment)
        return True

    @contextmanager
    def shared(self) -> Iterator[None]:
        own = [fragment.own() for fragment in self.fragments]
        for fragment in self.fragments:
            fragment.set_own(fragment.shared)
        try:
            yield
        finally:
            for fragment, values in zip(self.fragments, own, strict=True):
                fragment.set_own(values)

    def tighten(self) -> None:
        """From now on exchanges come twice as often; what travelled behind a step still does."""
        self.local_steps = max(1, self.local_steps // 2)
        self.overlap = min(self.overlap, max(1, self.local_steps // len(self.fragments)))

    def state(self) -> dict[str, Any]:
        return {
            "local_steps": self.local_steps,
            "overlap": self.overlap,
            "step": self.step,
            "finished_at": self.finished_at,
            "arrives_at": {
                str(number): fragment.pending.arrives_at
                for number, fragment in enumerate(self.fragments)
                if fragment.pending
            },
            "moments": self.moments.state(self.step) if self.moments else {},
        }

    def tensors(self) -> dict[str, Tensor]:
        """What has not arrived is waited for here, and takes effect when it would have."""
        found: dict[str, Tensor] = self.moments.tensors() if self.moments else {}
        for number, fragment in enumerate(self.fragments):
            found |= {f"{number}.shared": fragment.shared, f"{number}.momentum": fragment.momentum}
            if fragment.pending:
                found[f"{number}.mean"] = fragment.pending.outer.result().mean
        return found

    def own_tensors(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = self.moments.own_tensors() if self.moments else {}
        for number, (fragment, average) in enumerate(zip(self.fragments, self.averagers, strict=True)):
            found[f"{number}.own"] = fragment.own()
            if fragment.pending:
                found[f"{number}.sent"] = fragment.pending.sent
                # What rounding cost is not known before.
                fragment.pending.outer.result()
            found |= {f"{number}.{name}": tensor for name, tensor in average.tensors().items()}
        return found

    def load_state(self, state: dict[str, Any]) -> None:
        self._loaded = (state, *self._loaded[1:])

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        self._loaded = (self._loaded[0], tensors, self._loaded[2])

    def load_own(self, tensors: dict[str, Tensor]) -> None:
        self._loaded = (*self._loaded[:2], tensors)

    def _restore(self, state: dict[str, Any], tensors: dict[str, Tensor], own: dict[str, Tensor]) -> None:
        """Without what is its own a worker begins at the shared weights, and nothing is under way."""
        self.local_steps, self.overlap = state.get("local_steps", self.local_steps), state.get("overlap", self.overlap)
        self.step, self.finished_at = state.get("step", 0), state.get("finished_at", 0)
        if self.moments:
            self.moments.restore(state.get("moments", {}), tensors, own)
        for number, (fragment, average) in enumerate(zip(self.fragments, self.averagers, strict=True)):
            if tensors:
                fragment.shared.copy_(tensors[f"{number}.shared"])
                fragment.momentum.copy_(tensors[f"{number}.momentum"])
                fragment.set_own(own.get(f"{number}.own", fragment.shared))
            arrives_at = state.get("arrives_at", {}).get(str(number))
            device, prefix = fragment.shared.device, f"{number}."
            average.load({key.removeprefix(prefix): t for key, t in own.items() if key.startswith(prefix)}, device)
            if own and arrives_at is not None:
                outer: Future[OuterStep] = Future()
                outer.set_result(self._outer_step(fragment, tensors[f"{number}.mean"].to(device)))
                fragment.pending = Pending(arrives_at, outer, own[f"{number}.sent"].to(device))
        self._loaded = ({}, {}, {})

    def rewound(self) -> None:
        # What is still under way reads what is put back here.
        self.exchanger.submit(lambda: None).result()
        for fragment in self.fragments:
            fragment.pending = None
        self._restore(*self._loaded)

    def close(self) -> None:
        self.exchanger.close()


def traffic(config: Config, shapes: Shapes) -> Traffic:
    """A model's worth of differences every local_steps, a fragment at a time; after exact_steps."""
    moments_share = min(1.0, config.local_steps / _moments.EVERY) if config.share_moments else 0.0
    return Traffic(
        bytes_per_value(config.wire) * num_values(shapes) + moments_share * 4 * _moments.num_margins(shapes),
        every_steps=config.local_steps,
        num_messages=config.num_fragments,
        hidden_by="steps",
        overlap_steps=config.overlap,
        message_passes=passes(config.wire) + OUTER_PASSES + (MOMENTUM_PASSES if config.outer_momentum else 0),
        training_passes=TRAINING_PASSES + moments_share * _moments.PASSES,
    )
