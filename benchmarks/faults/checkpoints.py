"""Damages checkpoints at random and loads them: none may come out other than it was saved.

    python benchmarks/faults/checkpoints.py            500 trials, about a minute; a table in Markdown
    python benchmarks/faults/checkpoints.py --seed 7   other damages

A run's folder of four checkpoints (weights, moving average, moments, state) gets one to three damages; then it is used
in all the ways in which programs use it: by word, by name, averaged, and as --resume does. Each use ends with
a UserError, or with exactly what was saved under that name; anything else counts as silent.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from konvoi.engine.checkpoint import Checkpoint, Checkpoints, load, weights
from konvoi.errors import UserError

STEPS = (10, 20, 30, 40)
BEST_STEP = 20
NUM_WEIGHTS = 500
MAX_DAMAGES = 3
Saved = dict[str, Checkpoint]


def make(folder: Path, seed: int) -> Saved:
    """What a run of 40 steps would leave."""
    generator = torch.Generator().manual_seed(seed)
    checkpoints, saved = Checkpoints(folder, keep=4, keep_best=1, metric="bleu"), {}
    for step in STEPS:
        tensors = {
            file: {"weight": torch.randn(NUM_WEIGHTS, generator=generator)} for file in ("model", "ema", "optimizer")
        }
        checkpoint = Checkpoint(step, {"step": step, "position": 3 * step}, tensors)
        path = checkpoints.save(checkpoint)
        checkpoints.rank_by_score(path, 30.0 if step == BEST_STEP else float(step) / 10)
        saved[path.name] = checkpoint
    return saved


def cut(folder: Path, numbers: random.Random) -> None:
    file = any_file(folder, numbers)
    file.write_bytes(file.read_bytes()[: numbers.randrange(max(1, file.stat().st_size))])


def flipped(folder: Path, numbers: random.Random) -> None:
    """One bit."""
    file = any_file(folder, numbers)
    content = bytearray(file.read_bytes())
    if content:
        content[numbers.randrange(len(content))] ^= 1 << numbers.randrange(8)
        file.write_bytes(content)


def emptied(folder: Path, numbers: random.Random) -> None:
    any_file(folder, numbers).write_bytes(b"")


def zeroed(folder: Path, numbers: random.Random) -> None:
    """Blocks that never reached the disk."""
    file = any_file(folder, numbers)
    content = bytearray(file.read_bytes())
    start = numbers.randrange(len(content) + 1)
    content[start : start + 512] = bytes(len(content[start : start + 512]))
    file.write_bytes(content)


def lengthened(folder: Path, numbers: random.Random) -> None:
    with any_file(folder, numbers).open("ab") as stream:
        stream.write(numbers.randbytes(numbers.randint(1, 64)))


def removed(folder: Path, numbers: random.Random) -> None:
    any_file(folder, numbers).unlink()


def removed_checkpoint(folder: Path, numbers: random.Random) -> None:
    shutil.rmtree(numbers.choice(folders(folder)))


def swapped(folder: Path, numbers: random.Random) -> None:
    """The same file of two checkpoints."""
    one, other = numbers.sample(folders(folder), 2)
    name = numbers.choice(sorted(file.name for file in one.iterdir()))
    exchange(one / name, other / name)


def swapped_checkpoints(folder: Path, numbers: random.Random) -> None:
    exchange(*numbers.sample(folders(folder), 2))


def stray(folder: Path, numbers: random.Random) -> None:
    """A file that the checkpoint had not; safetensors that a program might read."""
    source = numbers.choice(sorted(folder.glob("step-*/*.safetensors")))
    shutil.copy(source, numbers.choice(folders(folder)) / f"{numbers.choice(('sync', 'extra'))}.safetensors")


DAMAGES: tuple[Callable[[Path, random.Random], None], ...] = (
    *(cut, flipped, emptied, zeroed, lengthened, removed),
    *(removed_checkpoint, swapped, swapped_checkpoints, stray),
)


def folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*") if any(path.iterdir()))


def any_file(folder: Path, numbers: random.Random) -> Path:
    return numbers.choice(sorted(file for file in folder.rglob("*") if file.is_file()))


def exchange(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    for source, target in ((one, aside), (other, one), (aside, other)):
        if source.exists():
            source.rename(target)


def uses(checkpoints: Checkpoints, saved: Saved) -> dict[str, Callable[[], list[Path]]]:
    by_name: dict[str, Callable[[], list[Path]]] = {
        name: lambda name=name: checkpoints.choose(name)  # type: ignore[misc]
        for name in ("best", "last", "average", *saved)
    }
    return {**by_name, "resume": lambda: [checkpoints.newest_intact()[0]]}


def outcome(choose: Callable[[], list[Path]], saved: Saved) -> str:
    """refused, as saved, silent (something else came out), or the name of an exception that is none of ours."""
    try:
        paths = choose()
        loaded = [load(path) for path in paths]
        found = weights(paths)
    except UserError:
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    expected = [saved[path.name] for path in paths]
    mean = torch.stack([one.tensors["ema"]["weight"] for one in expected]).mean(dim=0)
    is_same = all(same(one, other) for one, other in zip(loaded, expected, strict=True))
    return "as saved" if is_same and torch.allclose(found["weight"], mean, atol=1e-5) else "silent"


def same(one: Checkpoint, other: Checkpoint) -> bool:
    if (one.step, one.state, one.tensors.keys()) != (other.step, other.state, other.tensors.keys()):
        return False
    return all(torch.equal(one.tensors[file]["weight"], other.tensors[file]["weight"]) for file in one.tensors)


def trial(whole: Path, saved: Saved, folder: Path, seed: int) -> tuple[list[str], Counter[str], list[str]]:
    """The damages done, the outcomes of all uses, and what must not happen."""
    numbers, done = random.Random(seed), []
    shutil.copytree(whole, folder)
    for _ in range(numbers.randint(1, MAX_DAMAGES)):
        damage = numbers.choice(DAMAGES)
        try:
            damage(folder, numbers)
            done.append(damage.__name__)
        except (IndexError, ValueError):
            # The damages before left nothing to do it to.
            continue
    found = {use: outcome(choose, saved) for use, choose in uses(Checkpoints(folder), saved).items()}
    shutil.rmtree(folder)
    wrong = [f"seed {seed} ({', '.join(done)}): {use}: {what}" for use, what in found.items() if what not in EXPECTED]
    return done, Counter(found.values()), wrong


EXPECTED = ("refused", "as saved")


def run(num_trials: int, seed: int) -> dict[str, Any]:
    """All trials; `wrong` should be empty."""
    torch.set_num_threads(1)
    counts: dict[str, Counter[str]] = {damage.__name__: Counter() for damage in DAMAGES}
    total, wrong = Counter[str](), list[str]()
    with tempfile.TemporaryDirectory() as place:
        whole = Path(place) / "whole"
        saved = make(whole, seed)
        for number in range(num_trials):
            done, outcomes, problems = trial(whole, saved, Path(place) / "damaged", seed * 1_000_003 + number)
            wrong += problems
            total.update(outcomes)
            for name in set(done):
                counts[name].update({"trials": 1, **outcomes})
    return {"trials": num_trials, "total": total, "counts": counts, "wrong": wrong}


def table(result: dict[str, Any]) -> str:
    rows = [
        f"| {name.replace('_', ' ')} | {count['trials']:,} | {count['refused']:,} | {count['as saved']:,} |"
        for name, count in result["counts"].items()
    ]
    total, wrong = result["total"], result["wrong"]
    head = "| damage (one to three a trial) | trials | uses refused | uses as saved |\n|---|---:|---:|---:|"
    last = f"| **all** | **{result['trials']:,}** | **{total['refused']:,}** | **{total['as saved']:,}** |"
    return "\n".join([head, *rows, last, "", f"Loaded silently, or another exception: {len(wrong)}.", *wrong])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    result = run(arguments.trials, arguments.seed)
    print(table(result))
    if result["wrong"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
