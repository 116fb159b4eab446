"""A way to synchronise that has nothing to do: what the others begin from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from konvoi.config.section import Section
from konvoi.sync import Shapes, Team
from konvoi.telemetry.timeline import Timeline


class Sync:
    """The contract is in __init__.py."""

    agreement_lag = 0
    replicas_differ = False
    message = ""

    def __init__(self, config: Section, team: Team, timeline: Timeline) -> None:
        self.team, self.timeline = team, timeline
        self.num_averaged = team.size
        self.chosen: Section = config

    @property
    def may_differ(self) -> bool:
        return self.replicas_differ

    def probe(self, one_pass: Callable[[], None], num_passes: int, shapes: Shapes) -> None:
        """Nothing to find out."""

    def use(self, optimizer: Optimizer) -> None:
        """The gradients are equal, so its state is."""

    def rate_factor(self, step: int) -> float:
        return 1.0

    def momentum_span(self, step: int) -> float:
        return 1.0

    def wrap(self, model: nn.Module) -> nn.Module:
        return model

    def settle(self, one_pass: Callable[[], None]) -> None:
        """Nothing to prepare."""

    def micro_step(self, model: nn.Module, is_last: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def after_step(self, model: nn.Module, step: int) -> None:
        """Nothing: the gradients were equal, so the weights are."""

    def settings_of(self, step: int) -> Section:
        return self.chosen

    def heard(self, step: int, losses: Sequence[float]) -> str:
        """Nothing to say to that."""
        return ""

    def finish(self, step: int) -> bool:
        """Nothing is one worker's alone."""
        return False

    def shared(self) -> AbstractContextManager[None]:
        return nullcontext()

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Nothing to restore."""

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Nothing to restore."""

    def own_tensors(self) -> dict[str, Tensor]:
        return {}

    def load_own(self, tensors: dict[str, Tensor]) -> None:
        """Nothing to restore."""

    def rewound(self) -> None:
        """What was loaded took effect at once."""

    def close(self) -> None:
        """Nothing to end."""
