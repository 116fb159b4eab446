"""Axes end where the data does, with round numbers along them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from konvoi.report.axes import cut_words, drawn, tick_labels, x_axis, y_axis
from konvoi.report.blocks import Level, Plot, Series


def plot(y, x=None, **settings) -> Plot:
    x = np.arange(1.0, len(y) + 1) if x is None else np.array(x)
    return Plot("title", [Series("name", x, np.array(y, dtype=float))], **settings)


def test_the_heights_lie_between_round_ticks():
    axis = y_axis(plot([0.3, 8.9]))
    assert axis.ticks == (0, 2, 4, 6, 8, 10)
    assert (axis.low, axis.high) == (0, 10)


def test_three_tenths_are_written_without_a_tail():
    assert y_axis(plot([0.0, 0.5])).labels() == ["0", "0.1", "0.2", "0.3", "0.4", "0.5"]


@pytest.mark.parametrize(
    ("ticks", "labels"),
    [
        ((0, 2000, 4000), ["0", "2,000", "4,000"]),
        ((0, 5000, 10000), ["0", "5k", "10k"]),
        ((0, 500_000, 1_000_000), ["0", "0.5M", "1M"]),
        ((0, 2e-5, 4e-5), ["0", "2e-5", "4e-5"]),
        ((0.001, 0.002), ["0.001", "0.002"]),
        ((-0.2, 0.0), ["-0.2", "0"]),
    ],
    ids=str,
)
def test_labels_are_short(ticks, labels):
    assert tick_labels(ticks) == labels


def test_steps_begin_at_zero_though_the_first_is_one():
    assert x_axis(plot([1, 1], x=[1, 100])).low == 0
    assert x_axis(plot([1, 1], x=[50, 100])).low == 50


def test_a_single_point_has_room_around_it():
    axis = x_axis(plot([3.0], x=[7]))
    assert (axis.low, axis.high) == (6, 8)
    assert y_axis(plot([3.0])).low < 3.0 < y_axis(plot([3.0])).high


def test_a_logarithmic_axis_has_powers_of_ten():
    axis = y_axis(plot([0.02, 700.0], log=True))
    assert axis.ticks == pytest.approx((0.01, 0.1, 1, 10, 100, 1000))
    # 1 lies 2 of 5 powers above 0.01.
    assert axis.place(np.array([1.0])) == pytest.approx([0.4])
    assert np.isnan(axis.place(np.array([0.0, -1.0]))).all()


def test_within_a_power_of_ten_the_axis_has_more_ticks():
    assert y_axis(plot([1.1, 4.0], log=True)).ticks == pytest.approx((1, 2, 5))


def test_the_axis_holds_levels_and_what_it_is_told_to():
    assert y_axis(plot([40, 60], levels=[Level("the link", 100.0)])).high == 100
    assert y_axis(plot([40, 60], holds=(0, 100))).ticks[0] == 0


def test_one_slow_step_leaves_a_plot_that_may_be_cut_and_the_reader_is_told():
    # All but one stay at 1, and twice that is the limit.
    towering = [50.0] + [1.0] * 99
    assert y_axis(plot(towering, cut=True)).high == 2
    assert cut_words(plot(towering, cut=True)) == "The highest peak, 50, is cut off."
    assert cut_words(plot(towering)) == ""
    assert cut_words(plot([1.0, 1.5], cut=True)) == ""


def test_stacked_curves_lie_on_top_of_each_other_and_gaps_are_nothing():
    x = np.array([1.0, 2.0])
    series = [Series("a", x, np.array([1.0, 2.0])), Series("b", x, np.array([10.0, np.nan]))]
    lower, upper = drawn(Plot("title", series, kind="stacked"))
    assert (lower.low.tolist(), lower.high.tolist()) == ([0, 0], [1, 2])
    # 1 + 10, and 2 + nothing
    assert (upper.low.tolist(), upper.high.tolist()) == ([1, 2], [11, 2])


NUMBERS = st.sampled_from([0.0, float("nan")]) | st.floats(-1e12, -1e-12) | st.floats(1e-12, 1e12)


@given(st.lists(NUMBERS, max_size=6), st.booleans(), st.booleans())
def test_any_values_get_an_axis_on_which_all_have_a_place(values, log, cut):
    shown = plot(values, log=log, cut=cut)
    axis = y_axis(shown)
    assert axis.low < axis.high
    assert 2 <= len(axis.ticks) <= 12
    places = axis.place(np.array([value for value in values if np.isfinite(value) and (value > 0 or not log)]))
    assert (places >= -1e-9).all()
    assert cut or (places <= 1 + 1e-9).all()
