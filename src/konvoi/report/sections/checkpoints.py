"""What files make up a checkpoint, what each holds, and how big it is."""

from __future__ import annotations

from konvoi.analysis.answers import checkpoints
from konvoi.analysis.record import RunRecord
from konvoi.analysis.wording import amount_of_bytes
from konvoi.report.blocks import Block, Table

TITLE = "Checkpoints"
ORDER = 80


def render(run: RunRecord) -> list[Block]:
    rows = [(file.name, file.holds, amount_of_bytes(file.num_bytes)) for file in checkpoints.files(run)]
    table = [Table("The files of a checkpoint", ("file", "holds", "size"), rows, num_left=2)] if rows else []
    return [checkpoints.answer(run), *table]
