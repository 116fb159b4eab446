"""The learning rate over the steps, one class a schedule: [schedule] name = "cosine" is Cosine below."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from konvoi.config.duration import Duration, Length
from konvoi.config.section import Section


class Schedule(Section):
    """A warm-up from 0, then what the subclass says of the share of training that is done."""

    warmup: Duration | None = None
    """The rate rises from 0 over this time."""

    def rate(self, step: int, span: Span) -> float:
        """The learning rate of this step (the first is 1)."""
        warmup_steps = span.steps(self.warmup) if self.warmup else 0
        if step <= warmup_steps:
            return self.after_warmup(0.0, span) * step / warmup_steps
        done = (step - warmup_steps) / max(1, span.total_steps - warmup_steps)
        return self.after_warmup(min(1.0, done), span)

    def after_warmup(self, done: float, span: Span) -> float:
        raise NotImplementedError


class Span(Section):
    """What a schedule must know of the run."""

    total_steps: int
    steps_per_epoch: float
    width: int = 512

    def steps(self, duration: Length) -> int:
        steps = duration.steps(self.steps_per_epoch)
        assert steps is not None, "durations in time are refused when the recipe is read"
        return steps


class Constant(Schedule):
    name: Literal["constant"] = "constant"
    learning_rate: PositiveFloat

    def after_warmup(self, done: float, span: Span) -> float:
        return self.learning_rate


class Transformer(Schedule):
    """factor x width^-0.5 x min(step^-0.5, step x warmup^-1.5), as in "Attention Is All You Need"."""

    name: Literal["transformer"] = "transformer"
    factor: PositiveFloat = 2.0
    warmup: Duration = Length(8000, "step")

    def rate(self, step: int, span: Span) -> float:
        warmup_steps = span.steps(self.warmup)
        return self.factor * float(span.width**-0.5 * min(step**-0.5, step * warmup_steps**-1.5))


class OneCycle(Schedule):
    """From start up to the peak and down to the end, both along a cosine."""

    name: Literal["one-cycle"] = "one-cycle"
    learning_rate: PositiveFloat
    """The peak."""
    rise: float = Field(0.3, gt=0, lt=1)
    """Share of the training until the peak."""
    start: PositiveFloat = 0.04
    """Share of the peak at the first step."""
    end: NonNegativeFloat = 0.0001
    """Share of the peak at the last step."""

    def after_warmup(self, done: float, span: Span) -> float:
        if done < self.rise:
            return self.learning_rate * _cosine(self.start, 1.0, done / self.rise)
        return self.learning_rate * _cosine(1.0, self.end, (done - self.rise) / (1 - self.rise))


class Cosine(Schedule):
    name: Literal["cosine"] = "cosine"
    learning_rate: PositiveFloat
    end: NonNegativeFloat = 0.0
    """Share of the rate at the last step."""

    def after_warmup(self, done: float, span: Span) -> float:
        return self.learning_rate * _cosine(1.0, self.end, done)


class Polynomial(Schedule):
    name: Literal["polynomial"] = "polynomial"
    learning_rate: PositiveFloat
    power: PositiveFloat = 1.0
    end: NonNegativeFloat = 0.0
    """Share of the rate at the last step."""

    def after_warmup(self, done: float, span: Span) -> float:
        return self.learning_rate * (self.end + (1 - self.end) * float((1 - done) ** self.power))


class Exponential(Schedule):
    name: Literal["exponential"] = "exponential"
    learning_rate: PositiveFloat
    factor: float = Field(0.5, gt=0, lt=1)
    """What remains of the rate after each `every`."""
    every: Duration

    def rate(self, step: int, span: Span) -> float:
        warmup_steps = span.steps(self.warmup) if self.warmup else 0
        if step <= warmup_steps:
            return self.learning_rate * step / warmup_steps
        return self.learning_rate * float(self.factor ** ((step - warmup_steps) / span.steps(self.every)))


class Piecewise(Schedule):
    """rates[0] until boundaries[0], then rates[1], and so on."""

    name: Literal["piecewise"] = "piecewise"
    boundaries: list[Duration]
    rates: list[PositiveFloat]

    @model_validator(mode="after")
    def _one_more_rate(self) -> Piecewise:
        if len(self.rates) != len(self.boundaries) + 1:
            raise ValueError(f"needs one rate more than boundaries, has {len(self.rates)} and {len(self.boundaries)}")
        return self

    def rate(self, step: int, span: Span) -> float:
        warmup_steps = span.steps(self.warmup) if self.warmup else 0
        passed = sum(step > span.steps(boundary) for boundary in self.boundaries)
        return self.rates[passed] * min(1.0, step / warmup_steps if warmup_steps else 1.0)


def _cosine(start: float, end: float, done: float) -> float:
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * done))


SCHEDULES: dict[str, type[Schedule]] = {
    "constant": Constant,
    "transformer": Transformer,
    "one-cycle": OneCycle,
    "cosine": Cosine,
    "polynomial": Polynomial,
    "exponential": Exponential,
    "piecewise": Piecewise,
}
