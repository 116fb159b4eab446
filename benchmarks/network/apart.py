"""Where local steps lose: one process plays all workers, so that also what no network could send can be tried.

    python benchmarks/network/apart.py [--workers 4] [--steps 250] [--rate 0.005] [--cases ddp local-8 ...]
    python benchmarks/network/apart.py --table

multi30k-tiny, 2,048 padded target tokens a step shared out among the workers, seed 1; the loss of the validation split
after the last step. Weights are exchanged at once and unrounded. A case is `ddp`, or local-H with the second moments
that its Adam divides by:

    local-8          each worker its own
    local-8-longer   its own, and steps longer by the root of the number of workers
    local-8-shared   as diloco shares them: its own, and of the others means of rows and columns
    local-8-known    those of the mean gradient, as if everyone knew it: nothing but the parting of the weights is left
    local-8-shared-exact100
                     the first 100 steps exact, as diloco's exact_steps
    local-8-known-moving
                     first moments averaged as well whenever weights are

Each case appends a row to apart.jsonl; what is there already is not run again.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from konvoi import registry
from konvoi.config import recipe as recipes
from konvoi.engine.setup import span_of
from konvoi.memory import keep_memory
from konvoi.sync import Team
from konvoi.sync._moments import margins, num_margins, put_in
from konvoi.world import World

RESULTS = Path(__file__).with_suffix(".jsonl")
TOKENS, SEED = 2048, 1
BETA1, BETA2, EPSILON, CLIP_NORM = 0.9, 0.98, 1e-9, 1.0
CASES = ("ddp", "local-1", "local-4", "local-8", "local-8-longer", "local-8-shared", "local-8-known")


class Corpus:
    """The recipe's data and model; a gradient for any weights, as one flat tensor."""

    def __init__(self, num_workers: int, num_steps: int, rate: float) -> None:
        changes = [
            f"train.accumulate={num_workers}",
            "train.workers=1",
            f"train.duration={num_steps} steps",
            f"schedule.warmup={num_steps // 5} steps",
            f"schedule.learning_rate={rate}",
            f"batching.max_tokens={TOKENS // num_workers}",
        ]
        self.num_workers, self.recipe, self.team = num_workers, recipes.read("multi30k-tiny", changes), Team(World())
        self.task: Any = registry.find("task", "translation").Task(self.recipe, torch.device("cpu"), self.team)
        torch.manual_seed(SEED)
        self.model = self.task.build_model().train()
        self.parameters = list(self.model.parameters())
        self.weights = torch.cat([p.detach().view(-1) for p in self.parameters])
        self.gradient = torch.zeros_like(self.weights)
        for parameter, weights, gradient in zip(
            self.parameters, self.cut(self.weights), self.cut(self.gradient), strict=True
        ):
            parameter.data, parameter.grad = weights.view_as(parameter), gradient.view_as(parameter)
        self.span = span_of(self.recipe, self.task.num_per_epoch, 1)

    def cut(self, values: Tensor) -> list[Tensor]:
        """A view for each parameter: matrices and vectors."""
        parts = values.split([p.numel() for p in self.parameters])
        return [part.view(len(p), -1) if p.dim() > 1 else part for part, p in zip(parts, self.parameters, strict=True)]

    def rate(self, step: int) -> float:
        return float(self.recipe.schedule.rate(step, self.span))

    def gradient_of(self, weights: Tensor, step: int, worker: int) -> Tensor:
        first = (step - 1) * self.num_workers
        num_targets = sum(self.task.num_targets(first + other) for other in range(self.num_workers))
        self.weights.copy_(weights)
        self.gradient.zero_()
        torch.manual_seed(int(np.random.SeedSequence([SEED, first + worker]).generate_state(1)[0]))
        objective, _ = self.task.loss_sums(self.model, self.task.micro_batch(first + worker))
        (objective * (self.num_workers / num_targets)).backward()
        return self.gradient.clone()

    def loss(self, weights: Tensor) -> float:
        self.weights.copy_(weights)
        self.model.eval()
        with torch.no_grad():
            scores: dict[str, float] = self.task._loss_scores(self.model, self.team, "dev")
        return scores["loss"]


def clipped(gradient: Tensor) -> Tensor:
    return gradient * (CLIP_NORM / max(CLIP_NORM, float(gradient.norm())))


@dataclass
class Worker:
    weights: Tensor
    others: Tensor
    """What `square` would hold of the other workers besides, as diloco's."""
    mean: Tensor = field(init=False)
    square: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.mean, self.square = torch.zeros_like(self.weights), torch.zeros_like(self.weights)

    def see(self, gradient: Tensor) -> None:
        self.mean.lerp_(gradient, 1 - BETA1)
        self.square.lerp_(gradient.square(), 1 - BETA2)
        self.others.mul_(BETA2)

    def step(self, square: Tensor, rate: float, number: int) -> None:
        size = (square / (1 - BETA2**number)).sqrt_().add_(EPSILON)
        self.weights.addcdiv_(self.mean, size, value=-rate / (1 - BETA1**number))


def trained_apart(corpus: Corpus, num_steps: int, local_steps: int, moments: str, *more: str) -> Tensor:
    count = corpus.num_workers
    first = next((int(word.removeprefix("exact")) for word in more if word.startswith("exact")), 0)
    one = trained_together(corpus, first)
    # In one worker's gradients there is so much more noise than in the mean of all.
    workers = [Worker(one.weights.clone(), torch.zeros_like(one.weights)) for _ in range(count)]
    for worker in workers:
        worker.mean, worker.square = one.mean.clone(), one.square * count
    tell_others(corpus, workers)
    known = one.square.clone()
    for step in range(first + 1, num_steps + 1):
        gradients = [corpus.gradient_of(worker.weights, step, rank) for rank, worker in enumerate(workers)]
        known.lerp_(clipped(mean_of(gradients)).square(), 1 - BETA2)
        for worker, gradient in zip(workers, gradients, strict=True):
            worker.see(clipped(gradient))
        if moments == "shared" and step % local_steps == 0:
            tell_others(corpus, workers)
        for worker in workers:
            rate = corpus.rate(step) * (count**0.5 if moments == "longer" else 1.0)
            square = {"shared": (worker.square + worker.others) / count**2, "known": known}
            worker.step(square.get(moments, worker.square), rate, step)
        if step % local_steps == 0:
            make_equal([worker.weights for worker in workers])
            if "moving" in more:
                make_equal([worker.mean for worker in workers])
    return mean_of([worker.weights for worker in workers])


def mean_of(values: list[Tensor]) -> Tensor:
    return sum(values, torch.zeros(())) / len(values)


def make_equal(values: list[Tensor]) -> None:
    mean = mean_of(values)
    for own in values:
        own.copy_(mean)


def tell_others(corpus: Corpus, workers: list[Worker]) -> None:
    own = [margins(corpus.cut(worker.square)) for worker in workers]
    nothing = torch.zeros(num_margins([p.shape for p in corpus.parameters]))
    for worker, margin in zip(workers, own, strict=True):
        worker.others.zero_()
        put_in(corpus.cut(worker.others), nothing, sum(own, torch.zeros(())) - margin)


def trained_together(corpus: Corpus, num_steps: int) -> Worker:
    one = Worker(corpus.weights.clone(), torch.zeros(1))
    for step in range(1, num_steps + 1):
        ranks = range(corpus.num_workers)
        gradient = sum((corpus.gradient_of(one.weights, step, rank) for rank in ranks), torch.zeros(()))
        one.see(clipped(gradient / corpus.num_workers))
        one.step(one.square, corpus.rate(step), step)
    return one


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def measure(case: str, key: dict[str, Any]) -> None:
    corpus = Corpus(key["workers"], key["steps"], key["rate"])
    if case == "ddp":
        weights = trained_together(corpus, key["steps"]).weights
    else:
        _, local_steps, *more = f"{case}-own".split("-")
        weights = trained_apart(corpus, key["steps"], int(local_steps), *more)
    row = {"case": case, **key, "loss": round(corpus.loss(weights), 4), "at": time.strftime("%Y-%m-%d %H:%M")}
    print(row, flush=True)
    with RESULTS.open("a") as file:
        file.write(json.dumps(row) + "\n")


def print_table() -> None:
    print("| workers | steps | rate | case | loss | against ddp |\n| ---: | ---: | ---: | --- | ---: | ---: |")
    exact = {(row["workers"], row["steps"], row["rate"]): row["loss"] for row in rows() if row["case"] == "ddp"}
    for row in sorted(rows(), key=lambda row: (row["rate"], row["workers"], row["steps"], row["loss"])):
        budget = row["workers"], row["steps"], row["rate"]
        against = f"{100 * (row['loss'] / exact[budget] - 1):+.1f} %" if budget in exact else ""
        print(f"| {row['workers']} | {row['steps']} | {row['rate']} | {row['case']} | {row['loss']:.3f} | {against} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--rate", type=float, default=0.005)
    parser.add_argument("--cases", nargs="+", default=CASES)
    parser.add_argument("--table", action="store_true", help="only show what was measured")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    key = {"workers": arguments.workers, "steps": arguments.steps, "rate": arguments.rate}
    for case in () if arguments.table else arguments.cases:
        if not any({"case": case, **key}.items() <= row.items() for row in rows()):
            measure(case, key)
    print_table()


if __name__ == "__main__":
    main()
