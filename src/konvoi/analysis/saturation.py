"""A curve that nears a limit, fitted to scores, and how sure its continuation is.

    value(step) = limit - amount x shape(step), amount >= 0

where shape is step^-exponent (a power law) or exp(-step / decay). For each of a grid of shapes the best limit and
amount follow from linear least squares, so that a fit is a few products of small matrices: it cannot fail to converge,
and hundreds of redrawn curves cost little more than one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from konvoi.analysis.record import Floats

EXPONENTS = np.geomspace(0.1, 4.0, 24)
# Of the fitted stretch of steps.
DECAYS = np.geomspace(0.1, 3.0, 24)
NUM_SHAPES = len(EXPONENTS) + len(DECAYS)
NUM_DRAWS = 400
# Limit, amount, the shape's own, and which kind of shape.
NUM_PARAMETERS = 4
# Of the redrawn curves, nine of ten lie between these.
LOW, HIGH = 5.0, 95.0


@dataclass(frozen=True)
class Saturation:
    """The fitted curve, and below it the redrawn ones, a row each."""

    first_step: float
    last_step: float
    shapes: np.ndarray[tuple[int], np.dtype[np.intp]]
    limits: Floats
    amounts: Floats

    def at(self, steps: Floats) -> Floats:
        """rows x steps"""
        shapes = _shapes(steps, self.first_step, self.last_step)[self.shapes]
        return np.asarray(self.limits[:, None] - self.amounts[:, None] * shapes)

    def gain(self, num_steps: float) -> tuple[float, float, float]:
        """What so many more steps would bring: middle, low, high."""
        ends = self.at(np.array([self.last_step, self.last_step + num_steps]))
        middle, low, high = banded(ends[:, 1:] - ends[:, :1])[:, 0].tolist()
        return middle, low, high


def fit(steps: Floats, values: Floats) -> Saturation:
    """Of at least four values that are the better the higher."""
    first, last = float(steps[0]), float(steps[-1])
    shapes = _shapes(steps, first, last)
    best = _least_squares(shapes, values[None])
    fitted = best[1][0] - best[2][0] * shapes[best[0][0]]
    drawn = _least_squares(shapes, _redrawn(values, fitted))
    chosen, limits, amounts = (np.concatenate(pair) for pair in zip(best, drawn, strict=True))
    return Saturation(first, last, chosen, limits, amounts)


def banded(rows: Floats) -> Floats:
    """middle, low, high over the rows, of which the first is the fit itself."""
    low, high = np.percentile(rows[1:], (LOW, HIGH), axis=0)
    return np.stack([rows[0], np.minimum(low, rows[0]), np.maximum(high, rows[0])])


def _shapes(steps: Floats, first: float, last: float) -> Floats:
    """shapes x steps: 1 at the last fitted step, less beyond."""
    # An evaluation before the first step counts as one after it: a power of 0 has no value.
    powers = (np.maximum(steps, 1.0) / last) ** -EXPONENTS[:, None]
    decays = np.exp((last - steps) / (DECAYS[:, None] * (last - first)))
    return np.concatenate([powers, decays])


def _least_squares(shapes: Floats, values: Floats) -> tuple[np.ndarray[tuple[int], np.dtype[np.intp]], Floats, Floats]:
    """For each row of values the best shape, its limit and its amount."""
    centred_shapes = shapes - shapes.mean(axis=1, keepdims=True)
    centred = values - values.mean(axis=1, keepdims=True)
    power = (centred_shapes**2).sum(axis=1)
    amounts = np.maximum(0.0, -centred @ centred_shapes.T / power)
    # More amount than the minimum's would leave more of the sum of squares, so its reduction is amount^2 x power.
    best = (amounts**2 * power).argmax(axis=1)
    amount = amounts[np.arange(len(best)), best]
    return best, values.mean(axis=1) + amount * shapes.mean(axis=1)[best], amount


def _redrawn(values: Floats, fitted: Floats) -> Floats:
    """The fitted curve with other noise; how strong it is is drawn too, since few values tell it badly."""
    random = np.random.default_rng(0)
    freedom = max(1, len(values) - NUM_PARAMETERS)
    deviations = np.sqrt(((values - fitted) ** 2).sum() / random.chisquare(freedom, NUM_DRAWS))
    return np.asarray(fitted + deviations[:, None] * random.standard_normal((NUM_DRAWS, len(values))))
