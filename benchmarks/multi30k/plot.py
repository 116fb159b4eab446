"""Draws the curves of a run: python benchmarks/multi30k/plot.py RUN OUT.png   (needs matplotlib)"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt


def main(run: Path, out: Path) -> None:
    events = [json.loads(line) for line in (run / "events" / "rank0.jsonl").read_text().splitlines()]
    steps = [event for event in events if event["kind"] == "step"]
    scored = [event for event in events if event["kind"] == "evaluation"]
    figure, (losses, scores) = plt.subplots(1, 2, figsize=(10, 3.6), dpi=120)
    smooth = 50
    means = [sum(e["loss"] for e in steps[i : i + smooth]) / smooth for i in range(0, len(steps) - smooth + 1, smooth)]
    losses.plot([smooth * (i + 0.5) for i in range(len(means))], means, label="training", color="#6b7a8f")
    losses.plot([e["step"] for e in scored], [e["loss"] for e in scored], "o-", label="validation", color="#c8553d")
    losses.set(xlabel="step", ylabel="loss per target token", title="Loss")
    losses.legend(frameon=False)
    scores.plot([e["step"] for e in scored], [e["bleu"] for e in scored], "o-", color="#2a7f62")
    last = (scored[-1]["step"], scored[-1]["bleu"])
    scores.annotate(f"{last[1]:.1f}", last, (-8, -16), textcoords="offset points")
    scores.set(xlabel="step", ylabel="BLEU on the validation set", title="BLEU")
    for axes in (losses, scores):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    figure.tight_layout()
    figure.savefig(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
