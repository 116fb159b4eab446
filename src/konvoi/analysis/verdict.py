"""What binds a run: the form of a verdict."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Cause = Literal["compute", "network", "input", "straggler", "evaluation", "checkpointing", "start-up", "unknown"]
Why = Literal["less processor", "longer batches", "slow input", "slow device", "unknown"]


@dataclass(frozen=True)
class Advice:
    """A next step and what it would bring."""

    words: str
    """half precision gradients"""
    how: str
    """--set sync.name=fp16, or what to do by hand"""
    before_seconds: float
    """Of a step (or of what the words name), now and as predicted."""
    after_seconds: float

    @property
    def gain(self) -> float:
        """How many times as fast."""
        return self.before_seconds / self.after_seconds if self.after_seconds > 0 else 1.0


@dataclass(frozen=True)
class Verdict:
    verdict: Cause
    sentence: str
    """One that a person can quote, with the number that matters most."""
    confidence: float
    """0 to 1"""
    sure: str
    """The same in words, and what keeps it from being surer."""
    step_seconds: float
    """The median over the steps that were looked at, on the rank that speaks for all."""
    shares: dict[str, float] = field(default_factory=dict)
    """Of all the time that was looked at, 0 to 1, adding up to 1: compute, network, waiting, input, evaluation,
    checkpointing, start-up, other."""
    evidence: list[str] = field(default_factory=list)
    advice: list[Advice] = field(default_factory=list)
    """The best first."""
    kind: Literal["bandwidth", "latency", ""] = ""
    rank: int | None = None
    host: str = ""
    why: Why | Literal[""] = ""
    facts: dict[str, Any] = field(default_factory=dict)
    """The numbers of the evidence, for programs."""

    def as_json(self) -> dict[str, Any]:
        value = asdict(self)
        for item, advice in zip(value["advice"], self.advice, strict=True):
            item["gain"] = advice.gain
        return value
