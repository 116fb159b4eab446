"""The same events for Weights & Biases, an optional extra. Does not import torch."""

from __future__ import annotations

import os
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from konvoi.errors import MachineError
from konvoi.telemetry.tensorboard import scalars

# A network that is gone must not keep the run from ending; `wandb sync` sends the rest later.
FINISH_SECONDS = 60.0


class WeightsAndBiases:
    """Opened at the first event, like TensorBoard; its files are in <folder>/wandb."""

    def __init__(self, folder: Path, mode: str, name: str, config: dict[str, Any]) -> None:
        self._folder, self._mode, self._name, self._config = folder, mode, name, config
        self._run: Any = None
        _check_installed()

    def write(self, event: dict[str, Any]) -> None:
        if self._run is None:
            self._run = self._open()
        # The evaluation after a step has the same number: the two become one row.
        self._run.log(scalars(event), step=event["step"])

    def _open(self) -> Any:
        wandb: Any = import_module("wandb")
        try:
            return wandb.init(
                mode=self._mode,
                dir=str(self._folder),
                project=os.environ.get("WANDB_PROJECT", "konvoi"),
                name=self._name,
                id=_earlier_id(self._folder),
                resume="allow" if self._mode == "online" else None,
                config=self._config,
                settings=_quiet_settings(wandb),
            )
        except wandb.Error as error:
            raise MachineError(
                f"Weights & Biases cannot be reached: {error}", hint="wandb login, or --set telemetry.wandb=offline"
            ) from None

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
            # finish() returns while wandb's own process still writes; this waits until it has ended.
            import_module("wandb").teardown()


def _check_installed() -> None:
    """Before the training, not at its first step. A mere folder named wandb (no origin) is no package."""
    spec = find_spec("wandb")
    if spec is None or spec.origin is None:
        raise MachineError(
            "telemetry.wandb needs the package wandb", hint="pip install 'konvoi[wandb]', or --set telemetry.wandb=off"
        )


def _quiet_settings(wandb: Any) -> Any:
    """No lines on the terminal; no code and no second look at the machine, which the run directory has."""
    return wandb.Settings(
        silent=True,
        console="off",
        disable_code=True,
        disable_git=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
        finish_timeout=FINISH_SECONDS,
    )


def _earlier_id(folder: Path) -> str | None:
    """A resumed run goes on under the id that it began with: wandb/offline-run-20261115_204512-<id>."""
    names = sorted(path.name for path in (folder / "wandb").glob("*run-*"))
    ids = [found[1] for name in names if (found := re.search(r"run-\d{8}_\d{6}-(.+)", name))]
    return ids[0] if ids else None
