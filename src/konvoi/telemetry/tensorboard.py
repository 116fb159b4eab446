"""The same events for TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

STEP_TAGS = {
    "loss": "train/loss",
    "objective": "train/objective",
    "learning_rate": "train/learning_rate",
    "gradient_norm": "train/gradient_norm",
    "loss_scale": "train/loss_scale",
    "tokens_per_second": "speed/tokens_per_second",
    "target_tokens_per_second": "speed/target_tokens_per_second",
    "images_per_second": "speed/images_per_second",
    "step_seconds": "speed/step_seconds",
    "bytes_sent": "communication/bytes_sent",
}
NOT_SCORES = ("step", "time", "kind", "sentences", "images")


def scalars(event: dict[str, Any]) -> dict[str, float]:
    """The numbers of a step or an evaluation, by the tags under which they are shown."""
    if event["kind"] == "step":
        tags = {tag: event[key] for key, tag in STEP_TAGS.items() if key in event}
        tags |= {f"phases/{name}": seconds for name, seconds in event.get("phases", {}).items()}
        tags |= {f"communication/{name}": value for name, value in event.get("communication", {}).items()}
    else:
        tags = {f"eval/{key}": value for key, value in event.items() if key not in NOT_SCORES}
    return {tag: value for tag, value in tags.items() if isinstance(value, int | float)}


class TensorBoard:
    """Opened at the first event: its import takes a second that the first step need not wait for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None

    def write(self, event: dict[str, Any]) -> None:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            # A resumed run repeats the steps after its checkpoint; what was written of them before goes.
            self._writer = SummaryWriter(str(self._folder), purge_step=event["step"])
        for tag, value in scalars(event).items():
            self._writer.add_scalar(tag, value, event["step"])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
