"""How often a classifier is right, and which classes it takes for which."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

# Legend: N pictures, C classes, K the likeliest classes of a picture.
NUM_LIKELIEST = 5
# A matrix of more classes fits on no screen.
MAX_CLASSES_IN_FULL = 10
NUM_WORST = 15


class Mistake(NamedTuple):
    """So many pictures of one class were taken for another."""

    class_number: int
    taken_for: int
    num_images: int


class Confusion:
    """counts[c, p]: the pictures of class c that were taken for class p. Accuracies are percentages."""

    def __init__(self, num_classes: int) -> None:
        self.counts: npt.NDArray[np.int64] = np.zeros((num_classes, num_classes), np.int64)
        self.num_among_likeliest = 0
        """Pictures whose class was among the five likeliest."""

    @classmethod
    def merged(cls, parts: Iterable[Confusion]) -> Confusion:
        """One of all pictures, from those of several ranks."""
        parts = list(parts)
        whole = cls(len(parts[0].counts))
        for part in parts:
            whole.counts += part.counts
            whole.num_among_likeliest += part.num_among_likeliest
        return whole

    def add(self, labels: npt.NDArray[np.integer[Any]], predicted: npt.NDArray[Any]) -> None:
        """Labels [N], and either logits [N,C] (floats) or the likeliest classes [N,K], best first (integers)."""
        num_classes = len(self.counts)
        likeliest_NK = predicted[:, :NUM_LIKELIEST] if predicted.dtype.kind in "iu" else likeliest(predicted)
        assert len(labels) == len(likeliest_NK), f"{len(labels)} labels, {len(likeliest_NK)} predictions"
        for numbers in (labels, likeliest_NK):
            # A negative number would silently count for a class from the end.
            assert ((numbers >= 0) & (numbers < num_classes)).all(), f"no class of {num_classes}: {numbers}"
        np.add.at(self.counts, (labels, likeliest_NK[:, 0]), 1)
        self.num_among_likeliest += int((likeliest_NK == labels[:, None]).sum())

    @property
    def num_images(self) -> int:
        return int(self.counts.sum())

    @property
    def accuracy_1(self) -> float:
        return 100 * int(self.counts.trace()) / max(1, self.num_images)

    @property
    def accuracy_5(self) -> float:
        return 100 * self.num_among_likeliest / max(1, self.num_images)

    @property
    def recalls(self) -> npt.NDArray[np.float64]:
        """Of each class, the share that was recognised, in percent; not a number where it has no pictures."""
        totals = self.counts.sum(axis=1)
        return np.where(totals > 0, 100 * self.counts.diagonal() / np.maximum(1, totals), np.nan)

    def mistakes(self, limit: int | None = None) -> list[Mistake]:
        """The most frequent first; among equals in the order of the classes."""
        wrong = self.counts - np.diag(self.counts.diagonal())
        # Only what occurred: of a million pairs of classes nearly all are empty.
        places = np.argwhere(wrong > 0)
        order = np.argsort(-wrong[tuple(places.T)], kind="stable")[:limit]
        return [Mistake(int(c), int(p), int(wrong[c, p])) for c, p in places[order]]

    def table(self, names: Sequence[str]) -> str:
        """For the terminal: all of it where there are few classes, else the worst mistakes."""
        assert len(names) == len(self.counts), f"{len(names)} names for {len(self.counts)} classes"
        if len(names) <= MAX_CLASSES_IN_FULL:
            return _columns(self._matrix(names), num_left=1)
        return _columns(self._worst(names), num_left=2)

    def _matrix(self, names: Sequence[str]) -> list[list[str]]:
        """Rows are the classes, columns what they were taken for, by number: names would not fit."""
        header = ["class", "recall %", *map(str, range(len(names)))]
        rows = [header]
        for number, (name, recall, counts) in enumerate(zip(names, self.recalls, self.counts, strict=True)):
            shown = "-" if np.isnan(recall) else f"{recall:.1f}"
            # A point for nothing: the eye then finds the numbers.
            rows.append([f"{number} {name}", shown, *(str(count) if count else "." for count in counts)])
        return rows

    def _worst(self, names: Sequence[str]) -> list[list[str]]:
        totals = self.counts.sum(axis=1)
        rows = [["class", "taken for", "pictures", "of"]]
        for mistake in self.mistakes(NUM_WORST):
            own, other = names[mistake.class_number], names[mistake.taken_for]
            rows.append([own, other, f"{mistake.num_images:,}", f"{totals[mistake.class_number]:,}"])
        return rows


def likeliest(logits_NC: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.intp]:
    """The five likeliest classes of each picture, best first, or all where there are fewer classes.

    Of equals the lower number comes first, and what is not a number comes last: a model that has diverged is right
    by chance only.
    """
    return np.argsort(-logits_NC, axis=1, kind="stable")[:, :NUM_LIKELIEST]


def _columns(rows: list[list[str]], num_left: int) -> str:
    """Columns two blanks apart; the first ones begin, the others end at the same place."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            cell.ljust(width) if number < num_left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)
