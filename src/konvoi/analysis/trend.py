"""A straight line through points, with the uncertainty of its slope."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from konvoi.analysis.record import Floats

# Nine of ten slopes of pure noise lie within this.
SURE = 0.95


@dataclass(frozen=True)
class Trend:
    slope: float
    error: float
    """One standard error; not a number where the points are too few."""
    freedom: int

    @property
    def direction(self) -> int:
        """+1 or -1 where the slope is more than noise, else 0."""
        if self.freedom < 1 or abs(self.slope) <= float(stdtrit(self.freedom, SURE)) * self.error:
            return 0
        return 1 if self.slope > 0 else -1


def trend(x: Floats, y: Floats) -> Trend:
    """Least squares; points that are not finite are left out."""
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    spread = float(((x - x.mean()) ** 2).sum()) if len(x) else 0.0
    if spread == 0.0:
        return Trend(0.0, float("nan"), 0)
    slope = float(((x - x.mean()) * (y - y.mean())).sum()) / spread
    rest = y - y.mean() - slope * (x - x.mean())
    freedom = len(x) - 2
    error = float(np.sqrt((rest**2).sum() / freedom / spread)) if freedom > 0 else float("nan")
    return Trend(slope, error, freedom)
