"""A curve in words: for those who cannot see it, and where nothing can be drawn."""

from __future__ import annotations

import numpy as np

from konvoi.analysis.wording import figures
from konvoi.report.blocks import Series


def series_words(series: Series) -> str:
    """loss: from 9.21 at 1 to 3.05 at 150, between 3.01 and 9.21"""
    known = np.isfinite(series.y) & np.isfinite(series.x)
    x, y = series.x[known], series.y[known]
    if len(y) == 0:
        return f"{series.name}: nothing was measured"
    if len(y) == 1:
        return f"{series.name}: {figures(y[0])} at {figures(x[0])}"
    ends = f"from {figures(y[0])} at {figures(x[0])} to {figures(y[-1])} at {figures(x[-1])}"
    return f"{series.name}: {ends}, between {figures(y.min())} and {figures(y.max())}"
