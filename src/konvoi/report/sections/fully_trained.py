"""Is it fully trained: the score so far, and what more steps would bring."""

from __future__ import annotations

from konvoi.analysis.answers import fully_trained
from konvoi.analysis.record import RunRecord
from konvoi.analysis.wording import metric_name
from konvoi.report.blocks import Block, Plot, Series
from konvoi.report.curves import evaluation_curve

TITLE = "Fully trained?"
ORDER = 20


def render(run: RunRecord) -> list[Block]:
    return [fully_trained.answer(run), *_score(run)]


def _score(run: RunRecord) -> list[Block]:
    forecast = fully_trained.forecast(run)
    metric = forecast.metric if forecast else run.metric
    words = metric_name(metric)
    series = evaluation_curve(run, metric, words)
    if not series:
        return []
    if forecast:
        name = "forecast, with its uncertainty"
        series.append(Series(name, forecast.steps, forecast.middle, forecast.low, forecast.high, style="dashed"))
    return [Plot(f"{words} at the evaluations", series)]
