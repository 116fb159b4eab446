"""How long a step is held up by a checkpoint at base size (60,880,896 parameters, Adam), and how long writing it takes.

    python benchmarks/faults/saving.py [--rounds 5] [--folder DIR]

A step is one pass forward and back over 4,096 target tokens and an update, on random pieces: that it learns nothing
does not change its time. The hold is taking the weights' fingerprint and copying all tensors; the rest is
written beside the next step, which is timed too. Each round appends a row to saving.jsonl.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from konvoi.engine import optim
from konvoi.engine.checkpoint import Checkpoint, Checkpoints
from konvoi.engine.sanity import fingerprint
from konvoi.engine.saver import Job, Saver, copied
from konvoi.memory import keep_memory
from konvoi.models.transformer import Config, Model

RESULTS = Path(__file__).with_suffix(".jsonl")
NUM_PIECES, NUM_SENTENCES, LENGTH = 32_768, 128, 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder unless given")
    arguments = parser.parse_args()
    # As a run does: freed memory is used again, and its pages need not be faulted in anew.
    keep_memory()
    torch.manual_seed(1)
    model = Model(Config(size="base"), NUM_PIECES)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    step(model, optimizer)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        rows = [measured(model, optimizer, Checkpoints(Path(folder)), number) for number in range(arguments.rounds)]
    middle = {name: statistics.median(row[name] for row in rows) for name in rows[0] if name.endswith("seconds")}
    print({name: round(value, 3) for name, value in middle.items()})
    print(f"held up: {middle['held_seconds'] / middle['step_seconds']:.1%} of a step")


def measured(model: Model, optimizer: torch.optim.Optimizer, stored: Checkpoints, number: int) -> dict[str, Any]:
    step_seconds = step(model, optimizer)
    saver, started = Saver(), time.perf_counter()
    fingerprint(model.parameters())
    tensors = {"model": dict(model.state_dict()), "optimizer": optim.state_tensors(optimizer)}
    saver.begin(number, [Job(stored, copied(Checkpoint(number, {"step": number}, tensors)))], started)
    beside_seconds = step(model, optimizer)
    (written,) = saver.wait()
    saver.close()
    row = {
        "step_seconds": step_seconds,
        "held_seconds": written.held_seconds,
        "step_beside_seconds": beside_seconds,
        "written_seconds": written.written_seconds,
        "megabytes": written.num_bytes / 1e6,
        "at": time.strftime("%Y-%m-%d %H:%M"),
    }
    with RESULTS.open("a") as file:
        file.write(json.dumps(row) + "\n")
    return row


def step(model: Model, optimizer: torch.optim.Optimizer) -> float:
    started = time.perf_counter()
    pieces = torch.randint(4, NUM_PIECES, (NUM_SENTENCES, LENGTH))
    model(pieces, pieces.flip(1)).logsumexp(dim=-1).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
