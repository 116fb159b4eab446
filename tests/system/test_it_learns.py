"""The whole of it, from text to translations, on a task that can be learnt in seconds."""

from __future__ import annotations

import random
from pathlib import Path

from tests.processes import Trainings, checkpoint_steps, events, steps

from konvoi.data.text import Pair

# 12 words: ba, da, fa, ...
WORDS = [f"{consonant}a" for consonant in "bdfgklmnprst"]

SETTINGS = (
    "data.vocabulary_size=40",
    "data.dev_pairs=100",
    "model.width=64",
    "model.ffn_width=128",
    "model.dropout=0.0",
    "task.label_smoothing=0.0",
    "batching.max_tokens=512",
    "schedule.name=one-cycle",
    "schedule.learning_rate=0.005",
    "train.duration=300 steps",
    "evaluate.every=150 steps",
    "evaluate.metric=bleu",
    "evaluate.max_sentences=100",
    "checkpoint.every=150 steps",
)


def reversals(count: int) -> list[Pair]:
    """Three to six words, and the same from the last to the first."""
    chooser, sentences = random.Random(1), set[tuple[str, ...]]()
    while len(sentences) < count:
        sentences.add(tuple(chooser.choices(WORDS, k=chooser.randint(3, 6))))
    shuffled = sorted(sentences)
    chooser.shuffle(shuffled)
    return [(" ".join(words), " ".join(words[::-1])) for words in shuffled]


def test_it_learns_to_turn_sentences_around(tmp_path: Path) -> None:
    trainings = Trainings(tmp_path / "reversals", reversals(2500))
    run = trainings.trained(*SETTINGS)
    half_way, at_the_end = events(run, "evaluation")
    # 80 when it was written; the same seed gives the same, but another processor rounds differently.
    assert at_the_end["bleu"] >= 60
    assert half_way["bleu"] < at_the_end["bleu"] and half_way["loss"] > at_the_end["loss"]
    assert steps(run)[300]["loss"] < 0.1 * steps(run)[1]["loss"]
    # Dev sentences are none that it trained on.
    right = [sample for sample in at_the_end["samples"] if sample["translation"] == sample["reference"]]
    assert right and all(sample["source"].split()[::-1] == sample["translation"].split() for sample in right)
    assert run.summary()["best"]["step"] == 300
    assert checkpoint_steps(run) == [150, 300]
