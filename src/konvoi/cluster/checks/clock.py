"""The hosts' clocks agree."""

from __future__ import annotations

from collections.abc import Iterator

from konvoi.cluster.checks import Finding
from konvoi.cluster.survey import Survey

TITLE = "clock"
ORDER = 75
# Telemetry is written once a second: beyond that, what happened at once seems not to have.
WARNING_SECONDS = 1.0
FIX = "sudo timedatectl set-ntp true (or start chrony)"


def examine(survey: Survey) -> Iterator[Finding]:
    """Against the middle of them all: this machine's own clock may be the one that is wrong.

    Never an error: a training does not compare clocks.
    """
    if not survey.clocks:
        return
    ahead = sorted(clock.ahead_seconds for clock in survey.clocks.values())
    # This machine is one of the voters; of two hosts that differ it says which.
    voters = sorted([*ahead, 0.0])
    middle = voters[len(voters) // 2]
    off = {
        name: clock.ahead_seconds - middle
        for name, clock in survey.clocks.items()
        if abs(clock.ahead_seconds - middle) > WARNING_SECONDS + clock.uncertain_seconds
    }
    for name, seconds in off.items():
        found = f"{abs(seconds):.1f} s {'ahead of' if seconds > 0 else 'behind'} the others: logs will not line up"
        yield Finding(name, "warning", found, FIX, "clock-skew")
    if not off:
        yield Finding("", "ok", f"within {ahead[-1] - ahead[0]:.2f} s of each other")
