"""Takes a part of the training pictures away for validation, by their content alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from konvoi.images.look import Row
from konvoi.images.pictures import TRAIN, VAL

VAL_SHARE = 0.05


class SplitOff:
    """The lowest checksums of each class: 5 % of them, at least one, and never all.

    Neither names nor order matter, and copies of a picture stay together.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        checksums: defaultdict[str, set[str]] = defaultdict(set)
        for row in rows:
            checksums[row.class_name].add(row.checksum)
        self.single_classes = sorted(name for name, distinct in checksums.items() if len(distinct) == 1)
        self._last = {name: _last_of_val(distinct) for name, distinct in checksums.items()}

    def split_of(self, row: Row) -> str:
        """train or val."""
        return VAL if row.checksum <= self._last[row.class_name] else TRAIN


def _last_of_val(checksums: set[str]) -> str:
    """The highest checksum that still belongs to val; nothing where there is only one picture."""
    num_val = min(max(1, round(VAL_SHARE * len(checksums))), len(checksums) - 1)
    return sorted(checksums)[num_val - 1] if num_val else ""
