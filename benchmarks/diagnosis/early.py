"""A run as it was after some steps: what it had written until then."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

FILES = ("recipe.toml", "environment.json", "data.json", "summary.json")


def cut(run: Path, folder: Path, num_steps: int) -> Path:
    """A copy of the run directory, without checkpoints, that ends with a step; hosts go on for a moment longer."""
    folder.mkdir(parents=True)
    for name in FILES:
        if (run / name).exists():
            shutil.copy(run / name, folder / name)
    if (run / "hosts").is_dir():
        shutil.copytree(run / "hosts", folder / "hosts")
    (folder / "events").mkdir()
    for file in (run / "events").glob("*.jsonl"):
        kept = []
        for line in file.read_text().splitlines():
            event = json.loads(line)
            if event["kind"] == "step" and event["step"] > num_steps:
                break
            kept.append(f"{line}\n")
        (folder / "events" / file.name).write_text("".join(kept))
    return folder
