"""The cases: which cause is put into which training, and how strongly. All of it follows from the seed.

The truth is decided by construction, not by looking at what the run says of itself. Each model and number of workers is
first trained as it is (cause "healthy"), which tells what a step and the start cost on this machine. A cause's
`strength` is the time that it adds to a run, as a multiple of what is largest without it: all healthy steps together,
or the start where that took longer. Above 1, the cause takes more of the run than anything else. faults.py turns
a strength into Mbit/s, milliseconds, busy processes.

After the run, run.py checks that it came so: the seconds that the cause took (bytes over rate, time slept; else what
the run took longer than a healthy one) must be more than the start and more than all that remains, and other programs
must have left the processor alone: a busy one beside a healthy rank makes a true straggler of it. Else the case is
void, whatever the verdict was: it counts neither as right nor as wrong, the table says how many there are, and the next
run of the benchmark repeats it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

# Name: recipe, its overrides, and tokens or pictures that keep one core busy for about 0.13 s a step (2026-11-16).
MODELS: dict[str, tuple[str, dict[str, Any], int]] = {
    "pico": ("demo", {"width": 32, "heads": 2, "ffn_width": 64, "encoder_layers": 1, "decoder_layers": 1}, 4096),
    "nano": ("demo", {"width": 64, "ffn_width": 128, "encoder_layers": 1, "decoder_layers": 1}, 2816),
    "tiny": ("demo", {}, 640),
    "small": ("demo", {"size": "small", "encoder_layers": 2, "decoder_layers": 2}, 256),
    "images": ("demo-images", {}, 28),
}
# Models and numbers of workers; each is trained without a fault once.
WORLDS = (
    ("pico", 2),
    ("nano", 2),
    ("tiny", 2),
    ("small", 2),
    ("images", 2),
    ("nano", 3),
    ("pico", 4),
    ("tiny", 4),
)
TRANSLATORS = tuple(world for world in WORLDS if world[0] != "images")
# So little to send that a fast link with a delay costs its delay alone.
LIGHT = tuple(world for world in WORLDS if world[0] in ("pico", "nano"))
HEAVY = tuple(world for world in WORLDS if world[0] in ("tiny", "small"))
IN_PAIRS = tuple(world for world in WORLDS if world[1] == 2)


@dataclass(frozen=True)
class Cause:
    """How often it occurs, where, and what a right verdict says of it."""

    num_cases: int
    worlds: tuple[tuple[str, int], ...]
    verdict: str
    kind: str | None = None
    why: str | None = None
    strengths: tuple[float, float] = (1.4, 3.0)

    @property
    def has_culprit(self) -> bool:
        return self.verdict == "straggler"


CAUSES = {
    "healthy": Cause(len(WORLDS), WORLDS, "compute", strengths=(0, 0)),
    # A slow link or loader that costs a little: no reason to blame it.
    "nearly healthy": Cause(4, WORLDS, "compute", strengths=(0.05, 0.2)),
    "link rate": Cause(6, WORLDS, "network", kind="bandwidth"),
    "link delay": Cause(4, LIGHT, "network", kind="latency"),
    "slow input": Cause(5, WORLDS, "input"),
    "busy host": Cause(5, WORLDS, "straggler", why="less processor"),
    "longer batches": Cause(4, TRANSLATORS, "straggler", why="longer batches"),
    "slow input of one": Cause(4, WORLDS, "straggler", why="slow input"),
    "slow disk": Cause(4, HEAVY, "checkpointing"),
    "evaluation": Cause(3, IN_PAIRS, "evaluation"),
    # The steps are as few as it takes, or the data opens slowly.
    "start-up": Cause(3, WORLDS, "start-up"),
}
STEPS = (50, 60)
# Long enough that the steps take more than the start does.
HEALTHY_STEPS = 80


@dataclass(frozen=True)
class Case:
    number: int
    cause: str
    model: str
    num_workers: int
    num_steps: int
    strength: float
    culprit: int | None
    """The rank that is to blame, of a straggler."""
    variant: bool
    """Of causes that come in two kinds, which; see faults.py."""

    @property
    def verdict(self) -> str:
        return CAUSES[self.cause].verdict

    @property
    def world(self) -> tuple[str, int]:
        return self.model, self.num_workers

    def __str__(self) -> str:
        culprit = "" if self.culprit is None else f", rank {self.culprit}"
        return f"{self.number}: {self.cause} x {self.strength:.2f}, {self.model}, {self.num_workers} workers{culprit}"


def cases(seed: int) -> list[Case]:
    """Healthy ones first, since the others are measured by them."""
    numbers = random.Random(seed)
    drawn: list[Case] = []
    for name, cause in CAUSES.items():
        worlds = list(cause.worlds)
        if name != "healthy":
            numbers.shuffle(worlds)
        for place in range(cause.num_cases):
            world = worlds[place % len(worlds)]
            drawn.append(_draw(numbers, len(drawn) + 1, name, world, is_variant=place % 2 == 1))
    return drawn


def _draw(numbers: random.Random, number: int, name: str, world: tuple[str, int], is_variant: bool) -> Case:
    cause = CAUSES[name]
    is_healthy = cause.verdict == "compute"
    return Case(
        number=number,
        cause=name,
        model=world[0],
        num_workers=world[1],
        num_steps=HEALTHY_STEPS if is_healthy else numbers.randint(*STEPS),
        strength=round(numbers.uniform(*cause.strengths), 2),
        culprit=numbers.randrange(world[1]) if cause.has_culprit else None,
        variant=is_variant,
    )
