"""One worker of a run. cluster/workers.py starts it; so can torchrun -m konvoi.engine.worker RUN [--resume]."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from konvoi.engine.loop import train
from konvoi.engine.setup import build, close
from konvoi.errors import UserError
from konvoi.exit_codes import DONE, INTERRUPTED, USER
from konvoi.run_directory import RunDirectory
from konvoi.world import World, from_environment


def work(path: Path, world: World, resume: bool, quiet: bool = False, checkpoint: str = "last") -> str:
    """Trains as this worker; returns how it ended."""
    run = build(RunDirectory.open(path), world, resume, quiet, checkpoint)
    try:
        return train(run)
    finally:
        close(run)


def main(words: Sequence[str] | None = None) -> int:
    """The words of its command line -> its exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--checkpoint", default="last")
    parser.add_argument("--quiet", action="store_true")
    arguments = parser.parse_args(words)
    world = from_environment()
    try:
        ending = work(arguments.run, world, arguments.resume, arguments.quiet, arguments.checkpoint)
    except UserError as error:
        # All ranks tend to meet the same problem: one of them says it, unless each has a log of its own.
        if world.local_rank == 0 or "KONVOI_JOB" in os.environ:
            print(f"error: {error.problem}", f"hint: {error.hint}" if error.hint else "", sep="\n", file=sys.stderr)
        return USER
    return INTERRUPTED if ending == "interrupted" else DONE


if __name__ == "__main__":
    sys.exit(main())
