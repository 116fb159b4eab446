"""The tables of a recipe that every task shares."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from konvoi.config.duration import Duration, Length
from konvoi.config.section import Section

# Of a beam search: memory grows with it, quality has long stopped to; lists for reranking have 100.
MAX_BEAM = 100


class Optim(Section):
    """[optim]"""

    name: Literal["adam", "adamw", "muon", "sgd"] = "adam"
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.998, ge=0, lt=1)
    epsilon: PositiveFloat = 1e-9
    momentum: NonNegativeFloat = 0.9
    """For sgd and muon."""
    edge_rate: PositiveFloat = 0.04
    """For muon: the rate of first and last layer, norms and biases, which Adam updates, over that of the matrices."""
    nesterov: bool = False
    """For sgd."""
    weight_decay: NonNegativeFloat = 0.0
    clip_norm: NonNegativeFloat = 0.0
    """Gradients are scaled down to this norm; 0 switches it off."""


class Train(Section):
    """[train]"""

    duration: Duration
    """How long: steps, epochs or time."""
    mode: Literal["train", "train_evaluate"] = "train_evaluate"
    workers: PositiveInt = 1
    """Processes on this machine, where --workers does not say."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """auto takes the fastest that the device computes in hardware: bf16, else fp16 on a GPU, else fp32."""
    accumulate: PositiveInt = 1
    """Micro-batches per worker and step."""
    seed: int = Field(1, ge=0, lt=2**63)
    compile: bool = False
    """torch.compile: slower to start, sometimes faster afterwards."""
    threads: PositiveInt | None = None
    """CPU threads per worker; the cores are shared out evenly unless given."""
    time_budget: Duration | None = None
    """Stop in good order after this time, whatever the duration."""
    patience: PositiveInt | None = None
    """Stop after this many evaluations without a better score."""
    ema_decay: float | None = Field(None, gt=0, lt=1)
    """Keep a moving average of the weights and evaluate with it."""
    log_every: Duration = Length(50, "step")
    """How often the console says how it goes; events/ holds every step."""


class Faults(Section):
    """[faults]: what a run does when something goes wrong."""

    max_restarts: NonNegativeInt = 100
    """How often the run goes on from its last checkpoint with those who are left; 0 ends it at the first fault."""
    min_hosts: PositiveInt = 1
    """With fewer it waits."""
    wait: Duration = Length(10, "minute")
    """How long for lost hosts, where those who are left may not go on alone."""
    max_lost_steps: PositiveInt = 10
    """Steps in a row without a gradient (NaN, infinity), before the run goes back to its last checkpoint."""
    max_returns: NonNegativeInt = 2
    """How often it may go back for that; then it stops."""
    hang_seconds: PositiveFloat = 300.0
    """A step that lasts longer hangs: it says who is missing, and stops. Evaluations may take 10 times as long."""
    notices: Literal["", "aws", "gcp", "azure"] = ""
    """Whose spot machines these are: each asks there whether it is taken back, and then saves and leaves in time."""


class Evaluate(Section):
    """[evaluate]: what every task's evaluation has; a task adds its own keys."""

    every: Duration = Length(1, "epoch")
    metric: str = "loss"
    """Decides which checkpoint is the best."""
    split: str = "dev"
    """The part of the data that is scored."""


class Telemetry(Section):
    """[telemetry]"""

    measure: bool = True
    """Phases of every step and counters of the machine; without them no verdict."""
    wandb: Literal["off", "offline", "online"] = "off"
    """Also to Weights & Biases: into the run directory, or to the service."""


class Checkpoint(Section):
    """[checkpoint]"""

    every: Duration | None = None
    """As often as the evaluation unless given."""
    keep: PositiveInt = 3
    """How many of the latest stay."""
    keep_best: PositiveInt = 1
    """How many of the best stay."""
