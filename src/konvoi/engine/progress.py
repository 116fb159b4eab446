"""How far a run is: the part of its state that is not tensors."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from konvoi.config.duration import Length


@dataclass
class Progress:
    """Equal on all ranks after every step, so that all take the same branch."""

    step: int = 0
    position: int = 0
    """Micro-batches used so far, by all workers together."""
    seconds: float = 0.0
    """Of training by the first rank's clock, also before a resume."""
    skipped_steps: int = 0
    avoided: list[list[int]] = field(default_factory=list)
    """Micro-batches, from and to, that are not used again: their gradients were no numbers."""
    returns: int = 0
    """How often the run went back to a checkpoint for that."""
    evaluations_without_gain: int = 0
    scored_step: int = 0
    """The step of the last evaluation."""
    best: dict[str, Any] = field(default_factory=dict)
    scores: dict[str, Any] = field(default_factory=dict)
    done_at: dict[str, float] = field(default_factory=dict)
    """When evaluation and checkpoint were last done, in seconds; for durations in time."""

    def state(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Progress:
        """What an older version did not save is as at the beginning."""
        return cls(**{name: state[name] for name in cls.__dataclass_fields__ if name in state})

    def leave_out_avoided(self) -> None:
        for first, end in self.avoided:
            if first <= self.position < end:
                self.position = end

    def is_due(self, what: str, every: Length, steps_per_epoch: float) -> bool:
        """Whether it is time again to evaluate or to save."""
        if (seconds := every.seconds) is not None:
            return self.seconds - self.done_at.get(what, 0.0) >= seconds
        steps = every.steps(steps_per_epoch)
        assert steps is not None
        return self.step % steps == 0

    def share_of(self, duration: Length, steps_per_epoch: float, micro_batches_per_step: int | None = None) -> float:
        """How much of a duration has passed; of epochs by the data used, where steps were of another size before."""
        if (seconds := duration.seconds) is not None:
            return self.seconds / seconds
        steps = duration.steps(steps_per_epoch)
        assert steps is not None
        if duration.unit == "epoch" and micro_batches_per_step:
            return self.position / (micro_batches_per_step * steps)
        return self.step / steps
