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
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn
from torch.optim import Optimizer

from konvoi.config.section import Section
from konvoi.plan.predict import is_due
from konvoi.sync import HiddenShape, Shapes, Team, Traffic, _base, _moments, ddp, num_hidden, num_values
from konvoi.sync._exchange import INTEGERS, Averager, Exchanger, Wire, alone, bytes_per_value, passes, together
from konvoi.sync._fragment import Arrival, Fragment, Momentum, Pending, Sent, hidden, part_of
from konvoi.sync._moments import Moments
from konvoi.sync._pace import at_pace, tightened
from konvoi.telemetry.timeline import Timeline

# Worth trying, where somebody looks for what a link can bear, the most exact first: half the bytes cost the model less
# than twice the steps. Of int2 nobody knows: no model was trained to its end with it (docs/network.md).
WIRES: tuple[Wire, ...] = ("int8", "int4")
USUAL = tuple((steps, wire) for steps in (4, 6, 7, 8, 12, 16, 24, 32, 64, 128) for wire in WIRES)
# Keys that fit some local_steps and not others.
GO_BY_LOCAL_STEPS = ("fragments", "overlap_steps")
# Muon's momentum looks back over some ten steps: averaged more rarely, it would be each worker's own again by then.
MOST_FOR_MOMENTUM = 8
# It looks back once further for so many steps done; 0.9 over ten steps, a twentieth of these.
STEPS_PER_SPAN = 200
# Through a fragment, when it has arrived.
TRAINING_PASSES = 1
# By other threads, before and after the average: a copy, and how far to move; of weights what the worker moved by, and
# the outer step, as well.
SENDING_PASSES, OUTER_PASSES, MOMENTUM_PASSES = 2, 2, 3


class Config(Section):
    """The recipe's [sync] table."""

    name: Literal["diloco"] = "diloco"
    local_steps: PositiveInt = 6
    """Steps from one exchange of a fragment to its next: H."""
    exact_steps: NonNegativeInt = 0
    """So many steps at first average their gradients, in fp32 and each in its time, as ddp does."""
    fragments: PositiveInt | None = None
    """Parts of the model that take turns; unless given, as many, up to 8, as take them at equal intervals."""
    overlap_steps: NonNegativeInt | None = None
    """Steps that a fragment may travel before it is waited for; as many as lie between two fragments, unless given."""
    wire: Wire = "int4"
    """What travels: fp32, fp16, int8, int4 or int2; what rounding cost is sent along next time."""
    share_moments: bool = True
    """What Adam updates (some of it with Muon): by second moments of all workers' gradients, and with longer steps."""
    share_momentum: bool | None = None
    """Muon's momentum is averaged whenever weights are; unless given, where local_steps are 8 or fewer."""
    long_momentum: bool = True
    """Muon's momentum of each worker looks back over as many tokens as that of all together would."""
    outer_rate: PositiveFloat = 1.0
    outer_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @property
    def num_fragments(self) -> int:
        equal = [count for count in range(2, 9) if self.local_steps % count == 0]
        return self.fragments or max(equal, default=min(4, self.local_steps))

    @property
    def overlap(self) -> int:
        return self.local_steps // self.num_fragments if self.overlap_steps is None else self.overlap_steps

    @property
    def shares_momentum(self) -> bool:
        return self.local_steps <= MOST_FOR_MOMENTUM if self.share_momentum is None else self.share_momentum

    @property
    def momentum_wire(self) -> Wire:
        """At least a byte: turned orthogonal, what is small beside the largest of its block counts as much as that."""
        return "int8" if self.wire in INTEGERS else self.wire

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.num_fragments > self.local_steps:
            raise ValueError(f"{self.num_fragments} fragments cannot take turns within {self.local_steps} local_steps")
        if self.overlap > self.local_steps:
            raise ValueError(f"overlap_steps = {self.overlap} is more than the {self.local_steps} local_steps")
        return self


class Sync(_base.Sync):
    replicas_differ = True

    def __init__(self, config: Config, team: Team, timeline: Timeline) -> None:
        super().__init__(config, team, timeline)
        self.config = config
        self.local_steps, self.overlap = config.local_steps, config.overlap
        self.agreement_lag = max(1, config.overlap)
        self.num_replicas = team.size
        self.weight = 1.0
        """Of this replica's gradient in the mean, where replicas are of more workers or fewer."""
        self.optimizer: Optimizer | None = None
        self.moments: Moments | None = None
        self.step = self.finished_at = 0
        self.fragments: list[Fragment] = []
        self.averagers: list[Averager] = []
        self.momenta: list[Momentum] = []
        """One for each fragment, or none."""
        self.momentum_averagers: list[Averager] = []
        self.exchanger, self.copier = Exchanger("exchange"), Exchanger("copy")
        self._loaded: tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]] = ({}, {}, {})

    def use(self, optimizer: Optimizer) -> None:
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
        count = min(self.config.num_fragments, sum(parameter.numel() for parameter in parameters))
        if not self._loaded[2]:
            self.team.follow_first(parameter.data for parameter in model.parameters())
        self.fragments = [Fragment(parameters, number, count) for number in range(count)]
        sizes = [fragment.num_values for fragment in self.fragments]
        self.averagers = self.new_averagers(sizes, self.config.wire)
        if self.optimizer and self.config.shares_momentum and sum(p.numel() for p in hidden(self.optimizer)) >= count:
            self.momenta = [Momentum(self.optimizer, number, count) for number in range(count)]
            # What rounding cost does not add up: all of it is sent anew each time.
            sizes = [momentum.num_values for momentum in self.momenta]
            self.momentum_averagers = self.new_averagers(sizes, self.config.momentum_wire, keeps_rest=False)
        if self.optimizer and self.config.share_moments and _moments.shareable(self.optimizer):
            average = self.averagers[-1].exactly
            self.moments = Moments(self.optimizer, self.num_replicas, average, self.exchanger)
        self._restore(*self._loaded)
        return model

    def new_averagers(self, sizes: list[int], wire: Wire, keeps_rest: bool = True) -> list[Averager]:
        """One for each fragment; they are used in the same order by all."""
        group = self.team.another_group()
        return [Averager(size, self.team.size, wire, group, keeps_rest) for size in sizes]

    def settings_of(self, step: int) -> Section:
        return ddp.Config() if step <= self.config.exact_steps else at_pace(self.config, self.local_steps, self.overlap)

    @contextmanager
    def micro_step(self, model: nn.Module, is_last: bool) -> Iterator[None]:
        with self.in_host(model, is_last):
            yield
        if is_last:
            with self.timeline("optimiser"):
                self._wait_for_copies()
            if self.is_exact:
                self._average_gradients(model)

    def in_host(self, model: nn.Module, is_last: bool) -> AbstractContextManager[None]:
        """Around forward and backward: what makes the workers of one replica equal."""
        return nullcontext()

    @torch.no_grad()
    def _average_gradients(self, model: nn.Module) -> None:
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        with self.timeline("optimiser"):
            own = torch.cat([gradient.view(-1) for gradient in gradients]).mul_(self.weight)
        with self.timeline("exposed_communication"):
            mean = self.exchanger.submit(lambda: alone(self.averagers[-1].exactly(own))).result()
        with self.timeline("optimiser"):
            for gradient, values in zip(gradients, torch.split(mean, [g.numel() for g in gradients]), strict=True):
                gradient.copy_(values.view_as(gradient))

    def after_step(self, model: nn.Module, step: int) -> None:
        was_exact, self.step = self.is_exact, step
        if was_exact:
            self._share_own()
            return
        for number, fragment in enumerate(self.fragments):
            if fragment.pending and fragment.pending.arrives_at == step:
                self._arrive(number)
        if self.moments:
            self._share_moments(self.moments, step)
        for number in range(len(self.fragments)):
            if is_due(number, len(self.fragments), step, self.local_steps):
                self._send(number, step)
                if self.overlap == 0:
                    self._arrive(number)

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

    def _send(self, number: int, step: int) -> None:
        fragment = self.fragments[number]
        if fragment.pending:
            # Exchanges come more often than they did when it left.
            self._arrive(number)
        # Until the optimiser's next step nothing changes it (_wait_for_copies): it is copied while the passes go on.
        copied = self.copier.submit(lambda: self._copy(number))
        # What is shared stays as it is until this arrives.
        arrival = self.exchanger.submit(lambda: self._exchange(number, copied.result()))
        fragment.pending = Pending(step, step + self.overlap, copied, arrival)

    def _copy(self, number: int) -> Sent:
        return Sent(self.fragments[number].own(), self.momenta[number].own() if self.momenta else None)

    def _exchange(self, number: int, sent: Sent) -> Arrival:
        fragment, config = self.fragments[number], self.config
        weights, momentum = sent
        averages = [self.averagers[number](fragment.shared - weights)]
        if momentum is not None:
            averages.append(self.momentum_averagers[number](momentum))
        mean, *mean_momentum = together(averages)
        outer = fragment.outer_step(mean, config.outer_rate, config.outer_momentum)
        # Into what is there: new memory would have to be cleared first.
        move = torch.sub(outer.shared, weights, out=weights)
        momentum_move = torch.sub(mean_momentum[0], momentum, out=momentum) if momentum is not None else None
        return Arrival(outer, move, momentum_move)

    def _wait_for_copies(self) -> None:
        """Before weights or momentum change."""
        for fragment in self.fragments:
            if fragment.pending:
                fragment.pending.copied.result()

    @torch.no_grad()
    def _arrive(self, number: int) -> None:
        fragment = self.fragments[number]
        pending = fragment.pending
        assert pending
        with self.timeline("exposed_communication"):
            (fragment.shared, fragment.momentum), move, momentum_move = pending.arrival.result()
        num_steps = self.step - pending.sent_at
        with self.timeline("optimiser"):
            if num_steps:
                fragment.move_by(move)
            else:
                # Nothing was learnt meanwhile: to the last bit.
                fragment.set_own(fragment.shared)
            if momentum_move is not None:
                self.momenta[number].move_by(momentum_move, num_steps)
        fragment.pending = None

    def finish(self, step: int) -> bool:
        if self.finished_at == step:
            return False
        self.finished_at = step
        for number, fragment in enumerate(self.fragments):
            if fragment.pending:
                self._arrive(number)
        for number in range(len(self.fragments)):
            self._send(number, step)
            self._arrive(number)
        return True

    @contextmanager
    def shared(self) -> Iterator[None]:
        self._wait_for_copies()
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
        self.local_steps = tightened(self.local_steps)
        self.overlap = min(self.overlap, max(1, self.local_steps // len(self.fragments)))

    def state(self) -> dict[str, Any]:
        return {
            "local_steps": self.local_steps,
            "overlap": self.overlap,
            "step": self.step,
            "finished_at": self.finished_at,
            "under_way": {
                str(number): [fragment.pending.sent_at, fragment.pending.arrives_at]
                for number, fragment in enumerate(self.fragments)
                if fragment.pending
            },
            "moments": self.moments.state(self.step) if self.moments else {},
        }

    def tensors(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = self.moments.tensors() if self.moments else {}
        for number, fragment in enumerate(self.fragments):
            found |= {f"{number}.{name}": tensor for name, tensor in fragment.tensors().items()}
        return found

    def own_tensors(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = self.moments.own_tensors() if self.moments else {}
        for number, (fragment, average) in enumerate(zip(self.fragments, self.averagers, strict=True)):
            # What rounding cost is known once the fragment has arrived.
            own = fragment.own_tensors() | average.tensors()
            found |= {f"{number}.{name}": tensor for name, tensor in own.items()}
        return found

    def load_state(self, state: dict[str, Any]) -> None:
        self._loaded = (state, *self._loaded[1:])

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        self._loaded = (self._loaded[0], tensors, self._loaded[2])

    def load_own(self, tensors: dict[str, Tensor]) -> None:
        self._loaded = (*self._loaded[:2], tensors)

    def _restore(self, state: dict[str, Any], tensors: dict[str, Tensor], own: dict[str, Tensor]) -> None:
        self.local_steps, self.overlap = state.get("local_steps", self.local_steps), state.get("overlap", self.overlap)
        self.step, self.finished_at = state.get("step", 0), state.get("finished_at", 0)
        if self.moments:
            self.moments.restore(state.get("moments", {}), tensors, own)
        for number, (fragment, average) in enumerate(zip(self.fragments, self.averagers, strict=True)):
            mine = part_of(own, number, fragment.shared.device)
            if tensors:
                under_way = state.get("under_way", {}).get(str(number), [])
                fragment.restore(part_of(tensors, number, fragment.shared.device), mine, under_way)
            else:
                # Nothing was shared yet but the model itself.
                fragment.shared, fragment.momentum = fragment.own(), None
            average.load(mine)
        self._loaded = ({}, {}, {})

    def rewound(self) -> None:
        # What is still under way reads what is put back here; a copy may be half of each, and is thrown away.
        self.exchanger.submit(lambda: None).result()
        for fragment in self.fragments:
            fragment.pending = None
        self._restore(*self._loaded)

    def close(self) -> None:
        self.exchanger.close()
        self.copier.close()


def traffic(config: Config, shapes: Shapes) -> Traffic:
    """A model's worth of differences every local_steps, a fragment at a time; after exact_steps."""
    moments_share = min(1.0, config.local_steps / _moments.EVERY) if config.share_moments else 0.0
    of_adam = [shape for shape in shapes if not isinstance(shape, HiddenShape)]
    num_momenta = num_hidden(shapes) if config.shares_momentum else 0
    momenta_share = num_momenta / num_values(shapes)
    sending = passes(config.wire) + momenta_share * passes(config.momentum_wire) + (1 + momenta_share) * SENDING_PASSES
    outer = OUTER_PASSES + (MOMENTUM_PASSES if config.outer_momentum else 0)
    # When the backward pass is over: laid together and divided, put back; then the weights are what is shared.
    exact = Traffic(4 * num_values(shapes), message_passes=1, training_passes=3)
    return Traffic(
        bytes_per_value(config.wire) * num_values(shapes)
        + bytes_per_value(config.momentum_wire) * num_momenta
        + moments_share * 4 * _moments.num_margins(of_adam),
        every_steps=config.local_steps,
        num_messages=config.num_fragments,
        hidden_by="steps",
        overlap_steps=config.overlap,
        is_direct=config.wire in INTEGERS,
        message_passes=sending + outer,
        training_passes=(1 + momenta_share) * TRAINING_PASSES
        + moments_share * _moments.PASSES * num_values(of_adam) / num_values(shapes),
        first_steps=(config.exact_steps, exact),
    )
