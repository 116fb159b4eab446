"""Small pictures of characters."""

from __future__ import annotations

import pytest
from rich.text import Text

from konvoi.watch.draw import clock_words, fitting, flowing, folded, meter, milliseconds, sparkline, stacked


def test_a_sparkline_goes_from_the_lowest_to_the_highest_block():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], width=8) == "▁▂▃▄▅▆▇█"
    # Columns are means: (7 + 5) / 2 = 6, (1 + 1) / 2 = 1
    assert sparkline([7, 5, 1, 1], width=2) == "█▁"


def test_a_sparkline_is_no_wider_than_its_values_and_passes_over_those_that_are_none():
    assert sparkline([1.0, float("nan"), 2.0], width=10) == "▁█"
    assert sparkline([], width=10) == sparkline([1.0], width=0) == ""


def test_a_flat_sparkline_stays_in_the_middle():
    assert sparkline([3.0] * 4, width=4) == "▄▄▄▄"


def test_one_wild_value_does_not_flatten_the_others():
    falling = [float(value) for value in range(99, 0, -1)]
    assert len(set(sparkline([1e9, *falling], width=100))) == 8


@pytest.mark.parametrize("share, expected", [(0, "────"), (0.5, "━━──"), (1, "━━━━"), (7, "━━━━"), (-1, "────")])
def test_a_meter_is_as_full_as_its_share(share, expected):
    assert meter(share, 4, "green").plain == expected


def test_a_stacked_bar_has_each_part_by_its_share():
    # 20 columns for 1 s: forward 0.5 s = 10, backward 0.25 s = 5; the rest stays empty
    assert stacked({"forward": 0.5, "backward": 0.25}, 20, scale_seconds=1.0).plain == "█" * 10 + "▓" * 5


def test_many_small_parts_do_not_make_a_stacked_bar_longer_than_its_sum():
    # Each part alone is 0.6 columns and would be rounded to a whole one: 10 instead of 6.
    assert stacked({f"part {number}": 0.06 for number in range(10)}, 10, scale_seconds=1.0).cell_len == 6


def test_as_many_parts_as_fit_stand_on_a_line():
    assert fitting(["four", "", "five5", "six"], 11).plain == "four  five5"
    assert fitting(["too long"], 5).plain == "too …"
    assert fitting([Text("a"), "bb", "c"], 3).plain == "a"


def test_parts_flow_onto_the_next_line():
    parts = [Text("one", "bold"), Text("two"), Text("three")]
    lines = flowing(parts, 8)
    assert [line.plain for line in lines] == ["one  two", "three"]
    # The style of one part is not that of the line.
    assert not lines[0].style


def test_sentences_are_folded_between_words_and_end_with_dots_where_they_are_too_long():
    text = Text("the network takes most of a step")
    assert [line.plain for line in folded(text, 12, 9)] == ["the network", "takes most", "of a step"]
    assert [line.plain for line in folded(text, 12, 2)] == ["the network", "takes most …"]


@pytest.mark.parametrize(
    "seconds, words",
    [(0.4, "0:00"), (62, "1:02"), (3600, "1:00:00"), (86_399, "23:59:59"), (2 * 86_400 + 3600, "2 d 01:00")],
)
def test_times_as_on_a_clock(seconds, words):
    assert clock_words(seconds) == words


@pytest.mark.parametrize("seconds, words", [(0.0004, "0.4 ms"), (0.038, "38 ms"), (1.24, "1,240 ms")])
def test_milliseconds(seconds, words):
    assert milliseconds(seconds) == words
