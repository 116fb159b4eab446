"""What each way to synchronise costs in quality: multi30k-tiny at equal tokens, real training on real workers.

    python benchmarks/network/quality.py [--workers 2 4] [--seeds 1 2 3] [--settings ddp diloco-8 ...]
    python benchmarks/network/quality.py --extra diloco-16-still sync.name=diloco sync.local_steps=16 ...
    python benchmarks/network/quality.py --table

The budget of a run is --steps of --tokens padded target tokens, shared out among the workers, at a rate of --rate at
the most; unless given, --tokens are what the recipe's two workers have together. Every run sees the same tokens and
takes as many steps; a setting whose name ends with -half takes twice as many of half the tokens, at a rate that is
lower by the root of two. Loss and BLEU are of the validation split after the last step, and of the test split as a
second opinion: 1,014 sentences are few for a bar of 0.3 BLEU. Each run appends a row to quality.jsonl; what is there
already is not run again. Runs are not timed: they may share the machine with anything; by themselves they take about
ten minutes on 2 cores.

Of the rows in quality.jsonl those that end with -short-momentum were measured before diloco had long_momentum; those
with -first-ramp when it grew as 1 - 20 / step. Those that begin with trial- are of code that was not kept: Muon's
momentum averaged in fp32 and at once, every local_steps; or in int8, but in every second round only; or looking back
over the root of as many times as there are workers (root-span), or so while the rate is high (span-by-rate).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("quality.jsonl")
KONVOI = [sys.executable, "-m", "konvoi"]


def diloco(local_steps: int, wire: str = "int8") -> list[str]:
    return ["sync.name=diloco", f"sync.local_steps={local_steps}", f"sync.wire={wire}"]


# What is run unless told otherwise: every way once for each number of workers and seed.
PLANNED = {
    "ddp": ["sync.name=ddp"],
    "fp16": ["sync.name=fp16"],
    "powersgd": ["sync.name=powersgd"],
    **{f"diloco-{steps}-int4": diloco(steps, "int4") for steps in (4, 6, 8, 16, 32)},
}
SETTINGS = PLANNED | {
    **{f"diloco-{steps}": diloco(steps) for steps in (4, 6, 8, 12, 16, 32)},
    # Up to 8 local steps Muon's momentum is averaged as well, unless asked not to.
    **{f"diloco-{steps}-own-momentum": [*diloco(steps), "sync.share_momentum=false"] for steps in (4, 6, 8)},
    "diloco-7-int4": diloco(7, "int4"),
    # What 100 Mbit/s can bear.
    "diloco-8-int2-own-momentum": [*diloco(8, "int2"), "sync.share_momentum=false"],
    # A local step costs no exchange, so it need not be large: twice as many, and as often an exchange.
    **{f"diloco-{2 * steps}-half": diloco(2 * steps) for steps in (4, 8, 12, 16, 32)},
    "ddp-half": ["sync.name=ddp"],
    # Is what does diloco good (sync.long_momentum) a gain for ddp, too?
    "ddp-long-momentum": ["sync.name=ddp", f"optim.momentum={0.9**0.5:.4f}"],
}


def main() -> None:
    arguments = parsed()
    settings = {arguments.extra[0]: arguments.extra[1:]} if arguments.extra else SETTINGS
    chosen = list(settings) if arguments.extra else arguments.settings
    budget = {name: getattr(arguments, name) for name in ("steps", "tokens", "rate", "optim", "edge_rate")}
    if not arguments.table:
        # Seed by seed: whoever stops early has compared all of them once.
        for seed in arguments.seeds:
            for num_workers in arguments.workers:
                for name in chosen:
                    key = {"setting": name, "workers": num_workers, "seed": seed, **budget}
                    if not any(key.items() <= row.items() for row in rows()):
                        measure(key, settings[name], arguments.keep)
    print_table(budget, chosen)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(PLANNED))
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--rate", type=float, default=0.03)
    parser.add_argument("--optim", choices=("muon", "adam"), default="muon")
    parser.add_argument("--edge-rate", type=float, default=0.25, help="Adam's rate inside Muon, as a share of its rate")
    parser.add_argument("--extra", nargs="+", metavar=("NAME", "KEY=VALUE"))
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where runs stay; else nothing but their row is kept")
    parser.add_argument("--table", action="store_true", help="only show what was measured")
    return parser.parse_args()


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def measure(key: dict[str, Any], overrides: list[str], keep: Path | None) -> None:
    print(f"{time.strftime('%H:%M')} {key}", flush=True)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run = (keep or Path(folder)) / "-".join(str(key[name]) for name in ("setting", "workers", "seed", "steps"))
        subprocess.run([*command(key, overrides), "--run", str(run)], check=True, stdout=subprocess.DEVNULL)
        summary = json.loads((run / "summary.json").read_text())
        sync = tomllib.loads((run / "recipe.toml").read_text())["sync"]
        events = (run / "events" / "rank0.jsonl").read_text().splitlines()
        test = json.loads(subprocess.check_output([*KONVOI, "eval", str(run), "--split", "test", "--json"]))
    steps = [event for event in map(json.loads, events) if event["kind"] == "step"]
    row = {
        **key,
        "loss": summary["scores"]["loss"],
        "bleu": summary["scores"]["bleu"],
        "test_loss": test["loss"],
        "test_bleu": test["bleu"],
        "target_tokens": sum(step["target_tokens"] for step in steps),
        "precision": summary["precision"],
        "overrides": overrides,
        # With all defaults as they were.
        "sync": sync,
        "seconds": round(time.perf_counter() - started),
        "at": time.strftime("%Y-%m-%d %H:%M"),
    }
    with RESULTS.open("a") as file:
        file.write(json.dumps(row) + "\n")


def command(key: dict[str, Any], overrides: list[str]) -> list[str]:
    parts = 2 if key["setting"].endswith("-half") else 1
    num_steps = key["steps"] * parts
    duration = f"{num_steps} steps"
    changes = [
        f"train.workers={key['workers']}",
        f"train.seed={key['seed']}",
        f"train.duration={duration}",
        # The recipe's share of its 4,000 steps would be too short for its rate.
        f"schedule.warmup={max(1, num_steps // 10)} steps",
        f"schedule.learning_rate={key['rate'] / parts**0.5}",
        f"optim.name={key['optim']}",
        f"optim.edge_rate={key['edge_rate']}",
        f"batching.max_tokens={key['tokens'] // parts // key['workers']}",
        f"evaluate.every={duration}",
        f"checkpoint.every={duration}",
        *overrides,
    ]
    return [*KONVOI, "train", "multi30k-tiny", "--quiet", *(word for change in changes for word in ("--set", change))]


def print_table(budget: dict[str, Any], settings: list[str]) -> None:
    """Beside ddp of the same seed and number of workers; of the test split only what was scored on it."""
    found = defaultdict(list)
    for row in rows():
        if budget.items() <= row.items() and row["setting"] in settings:
            found[row["workers"], settings.index(row["setting"])].append(row)
    exact = {
        (row["workers"], row["seed"]): row for row in rows() if (budget | {"setting": "ddp"}).items() <= row.items()
    }
    print("| workers | setting | seeds | loss | BLEU | loss against ddp | BLEU | each seed | test loss | test BLEU |")
    print("| ---: | --- | ---: | ---: | ---: | ---: | ---: | --- | ---: | ---: |")
    for (num_workers, number), group in sorted(found.items()):
        group.sort(key=lambda row: row["seed"])
        pairs = [(row, exact[num_workers, row["seed"]]) for row in group if (num_workers, row["seed"]) in exact]
        means = f"{mean_of(group, 'loss'):.4f} | {mean_of(group, 'bleu'):.2f}"
        each = "; ".join(
            f"{more([pair], 'loss')}, {more([pair], 'bleu')}" for pair in pairs if settings[number] != "ddp"
        )
        against = [more(pairs, "loss"), more(pairs, "bleu"), each, more(pairs, "test_loss"), more(pairs, "test_bleu")]
        print(f"| {num_workers} | {settings[number]} | {len(group)} | {means} | {' | '.join(against)} |")


def mean_of(group: list[dict[str, Any]], key: str) -> float:
    return statistics.fmean(row[key] for row in group)


def more(pairs: list[tuple[dict[str, Any], dict[str, Any]]], key: str) -> str:
    """Than ddp: loss as a share, BLEU in points."""
    both = [
        (row[key], base[key]) for row, base in pairs if key in row and key in base and row["setting"] != base["setting"]
    ]
    if not both:
        return ""
    if key.endswith("loss"):
        return f"{statistics.fmean(100 * (own / base - 1) for own, base in both):+.2f} %"
    return f"{statistics.fmean(own - base for own, base in both):+.2f}"


if __name__ == "__main__":
    main()
