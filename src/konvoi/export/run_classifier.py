"""A run as a Classifier: answers like a bundle, by PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from konvoi.bundle.interfaces import Guess
from konvoi.bundle.picture_input import load_any_picture
from konvoi.errors import RunError
from konvoi.run_directory import RunDirectory

if TYPE_CHECKING:
    from konvoi.engine.trained import Trained

# Bounds the memory, however many pictures are asked about at once.
MAX_BATCH = 64


def open_run_classifier(path: Path, checkpoint: str = "best") -> RunClassifier:
    """Raises RunError where there is no classifier."""
    from konvoi.engine.trained import load_trained

    trained = load_trained(RunDirectory.open(path), checkpoint)
    if trained.recipe.name_of("task") != "classification":
        raise RunError(f"{path} is no image classifier", hint=f'konvoi translate {path} "..."')
    return RunClassifier(trained)


class RunClassifier:
    """See interfaces.Classifier."""

    def __init__(self, trained: Trained) -> None:
        from konvoi.tasks.classification import RESIZE_FACTOR, Normalise, words_of

        recipe: Any = trained.recipe
        self.name = trained.run.path.resolve().name
        self.classes = tuple(words_of(trained.run))
        self._trained, self._normalise = trained, Normalise(trained.device)
        self._size: int = recipe.batching.size
        self._resize: int = recipe.evaluate.resize or round(self._size * RESIZE_FACTOR)

    def classify(self, pictures: Sequence[bytes], *, num_classes: int = 5) -> list[list[Guess]]:
        """See interfaces.Classifier."""
        guesses: list[list[Guess]] = []
        for start in range(0, len(pictures), MAX_BATCH):
            guesses += self._batch(pictures[start : start + MAX_BATCH], num_classes)
        return guesses

    def _batch(self, pictures: Sequence[bytes], num_classes: int) -> list[list[Guess]]:
        import numpy as np
        import torch

        pixels_NHWC = np.stack(
            [load_any_picture(picture, size=self._size, resize=self._resize) for picture in pictures]
        )
        images = torch.from_numpy(pixels_NHWC).permute(0, 3, 1, 2).to(self._trained.device)
        with self._trained.inference():
            logits = self._trained.model(self._normalise(images)).float()
        probabilities_NK, numbers_NK = logits.softmax(1).topk(min(num_classes, len(self.classes)))
        return [
            [Guess(self.classes[number], probability) for number, probability in zip(numbers, row, strict=True)]
            for numbers, row in zip(numbers_NK.tolist(), probabilities_NK.tolist(), strict=True)
        ]

    def close(self) -> None:
        """Nothing is held that the collector would not free."""
