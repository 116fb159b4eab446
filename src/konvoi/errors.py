"""What can go wrong through no fault of ours.

    UserError                 one line and a hint, exit code 2, never a traceback
    ├── RecipeError           a recipe or an override: every problem at once
    ├── DataError             a corpus, a vocabulary, a prepared set
    ├── RunError              a run directory
    │   └── CheckpointError   a checkpoint that is missing or damaged
    ├── BundleError           a bundle that is missing, damaged or of another kind
    ├── NumbersError          a training whose losses or gradients are no numbers any more
    ├── MachineError          disk, memory, devices, workers
    └── ClusterError          cluster.toml, or several hosts together
        └── HostError         one of its hosts, named

Anything else that escapes is our own fault: exit code 1, with its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user can mend: what is wrong and where, and what to do about it."""

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.hint = hint


class RecipeError(UserError):
    """All problems of a recipe together, one a line."""

    def __init__(self, origin: str, problems: list[str], hint: str = "") -> None:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        lines = "\n".join(f"  {problem}" for problem in problems)
        super().__init__(f"{origin}: {count}\n{lines}", hint)
        self.problems = problems


class DataError(UserError):
    """A corpus, a vocabulary or a prepared set is missing or not what it should be."""


class RunError(UserError):
    """A run directory is missing, holds another run, or is in use."""


class CheckpointError(RunError):
    """A checkpoint is missing or damaged."""


class BundleError(UserError):
    """A bundle is missing, damaged, or not for this."""


class MachineError(UserError):
    """The machine lacks what the run needs: disk, memory, devices, workers."""


class NumbersError(UserError):
    """A training whose numbers are none any more."""


class ClusterError(UserError):
    """A cluster file, or what its hosts do together."""


class HostError(ClusterError):
    """What went wrong on one host; it is named before the problem."""

    def __init__(self, host: str, problem: str, hint: str = "") -> None:
        super().__init__(f"{host}: {problem}", hint)
        self.host = host


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """', did you mean "x"?' where a known name is near, else nothing."""
    near = difflib.get_close_matches(given, list(known), n=1, cutoff=0.6)
    return f', did you mean "{near[0]}"?' if near else ""
