"""How often a classifier was right, evaluation by evaluation."""

from __future__ import annotations

from typing import Any

from konvoi.analysis.record import RunRecord
from konvoi.report.blocks import Block, Paragraph, Plot, Table
from konvoi.report.curves import evaluation_curve

TITLE = "Accuracies"
ORDER = 130
KEYS = {"accuracy_1": "Acc@1", "accuracy_5": "Acc@5"}
MAX_ROWS = 12
HOW = (
    "Acc@1 is the share of pictures whose class was the likeliest, Acc@5 of those whose class was among the five "
    "likeliest. konvoi eval shows which classes are taken for which."
)


def render(run: RunRecord) -> list[Block]:
    series = [curve for key, words in KEYS.items() for curve in evaluation_curve(run, key, words)]
    if not series:
        return []
    rows = [_row(event) for event in run.evaluations[-MAX_ROWS:]]
    header = ("step", "pictures", "loss", *KEYS.values())
    table = Table("The latest evaluations", header, rows)
    return [Paragraph(HOW), Plot("Accuracies", series, y_label="%", holds=(0,)), table]


def _row(event: dict[str, Any]) -> tuple[str, ...]:
    def number(key: str, form: str) -> str:
        value = event.get(key)
        return format(value, form) if isinstance(value, int | float) else "-"

    return (number("step", ","), number("images", ","), number("loss", ".3f"), *(number(key, ".2f") for key in KEYS))
