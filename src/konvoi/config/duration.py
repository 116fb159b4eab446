"""Durations as people write them: "500 steps", "10 epochs", "30 minutes"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

SECONDS_PER = {"second": 1.0, "minute": 60.0, "hour": 3600.0}
UNITS = ("step", "epoch", *SECONDS_PER)
# Further on, floats don't tell one step from the next.
MAX_COUNT = 1e15
ALLOWED = 'a number and one of steps, epochs, seconds, minutes, hours, as in "500 steps"'


@dataclass(frozen=True)
class Length:
    """A count of steps, epochs, seconds, minutes or hours."""

    count: float
    unit: str

    def __str__(self) -> str:
        plural = "" if self.count == 1 else "s"
        # All digits and no exponent, so that what is printed can be read again.
        count = f"{Decimal(repr(self.count)):f}".removesuffix(".0")
        return f"{count} {self.unit}{plural}"

    @property
    def seconds(self) -> float | None:
        """The time, or None for steps and epochs."""
        return self.count * SECONDS_PER[self.unit] if self.unit in SECONDS_PER else None

    def steps(self, steps_per_epoch: float) -> int | None:
        """The number of optimiser steps (at least one), or None for a time."""
        if self.unit == "step":
            return max(1, round(self.count))
        if self.unit == "epoch":
            return max(1, round(self.count * steps_per_epoch))
        return None


def parse(text: Any) -> Length:
    """Reads a duration; a plain number is refused because its unit would be a guess."""
    if isinstance(text, Length):
        return text
    match = re.fullmatch(r"\s*(\d+(?:_\d+)*(?:\.\d+)?)\s*([a-zA-Z]+?)s?\s*", str(text))
    unit = match[2].lower() if match else ""
    if not match or unit not in UNITS:
        raise ValueError(f"must be {ALLOWED}")
    count = float(match[1].replace("_", ""))
    if count <= 0:
        raise ValueError("must be more than 0")
    if count > MAX_COUNT:
        raise ValueError(f"must be at most {MAX_COUNT:.0e}")
    if unit == "step" and count != int(count):
        raise ValueError("must be a whole number of steps")
    return Length(count, unit)


Duration = Annotated[Length, BeforeValidator(parse), PlainSerializer(str, return_type=str)]
