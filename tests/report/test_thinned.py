"""Long curves become short ones that still show their spikes."""

from __future__ import annotations

import numpy as np

from konvoi.report.blocks import MAX_POINTS, thinned


def test_a_short_curve_stays_as_it_is():
    x, y = np.arange(3.0), np.array([1.0, np.nan, 3.0])
    series = thinned("loss", x, y)
    assert series.x is x
    assert series.y is y
    assert series.low is None


def test_a_long_curve_is_the_mean_of_its_stretches_between_their_least_and_their_greatest():
    series = thinned("loss", np.arange(6.0), np.array([1.0, 3.0, 5.0, 5.0, 2.0, 8.0]), max_points=3)
    # (1 + 3) / 2, (5 + 5) / 2, (2 + 8) / 2
    assert series.y.tolist() == [2.0, 5.0, 5.0]
    assert series.low.tolist() == [1.0, 5.0, 2.0]
    assert series.high.tolist() == [3.0, 5.0, 8.0]


def test_it_is_as_long_as_it_was():
    series = thinned("loss", np.arange(1.0, 7.0), np.ones(6), max_points=3)
    # The middle of 3 and 4 between the first and the last.
    assert series.x.tolist() == [1.0, 3.5, 6.0]


def test_a_single_spike_in_many_steps_stays_in_the_band():
    y = np.ones(100_000)
    y[54_321] = 1000.0
    series = thinned("gradient norm", np.arange(100_000.0), y)
    assert len(series.x) == MAX_POINTS
    assert series.high.max() == 1000.0


def test_what_is_not_a_number_does_not_spoil_its_stretch():
    series = thinned("loss", np.arange(4.0), np.array([1.0, np.nan, np.nan, np.nan]), max_points=2)
    assert series.y[0] == series.low[0] == series.high[0] == 1.0
    assert np.isnan([series.y[1], series.low[1], series.high[1]]).all()
