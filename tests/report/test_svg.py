"""Plots as SVG: right places, gaps, and nothing that breaks out of it."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from konvoi.report.blocks import Level, Plot, Series
from konvoi.report.svg import HEIGHT, WIDTH, describe, svg

NAN = float("nan")


def series(y, name="loss", **settings) -> Series:
    return Series(name, np.arange(len(y), dtype=float), np.array(y, dtype=float), **settings)


def drawn(plot: Plot) -> ElementTree.Element:
    """Well-formed, or this raises."""
    return ElementTree.fromstring(svg(plot, "here"))


def path(plot: Plot, kind: str) -> str:
    (found,) = [p.get("d") for p in drawn(plot).iter("path") if p.get("class").split()[0] == kind]
    return found


def test_a_curve_goes_through_its_points():
    # From 0 to 10: the middle of the width is at 4 of 10, thus at 6 tenths of the height from the top.
    middle = f"{WIDTH // 2} {HEIGHT * 6 // 10}"
    assert path(Plot("", [series([0, 4, 10])]), "line") == f"M0 {HEIGHT} {middle} {WIDTH} 0"


def test_a_gap_breaks_the_line_and_a_point_alone_is_a_dot():
    plot = Plot("", [series([0, 10, NAN, 10, NAN])])
    assert path(plot, "line").count("M") == 2
    # The fourth of five points, at the top.
    assert path(plot, "dot") == f"M{WIDTH * 3 // 4} 0h0"


def test_measured_points_are_dots_all_of_them():
    assert path(Plot("", [series([1, 2, 3], style="dots")]), "dot").count("h0") == 3


def test_a_band_goes_there_along_the_top_and_back_along_the_bottom():
    plot = Plot("", [series([5, 5], low=np.array([0.0, 0.0]), high=np.array([10.0, 10.0]))])
    assert path(plot, "band") == f"M0 0 {WIDTH} 0L{WIDTH} {HEIGHT} 0 {HEIGHT}Z"


def test_bars_are_as_wide_as_their_distance():
    # Two bars side by side, the second twice as high.
    half = WIDTH // 2
    bars = path(Plot("", [series([5, 10])], kind="bars"), "bar")
    assert bars == f"M0 {HEIGHT}V{HEIGHT // 2}H{half}V{HEIGHT}ZM{half} {HEIGHT}V0H{WIDTH}V{HEIGHT}Z"


def test_steps_stay_until_the_next_value():
    assert path(Plot("", [series([0, 10])], kind="steps"), "line") == f"M0 {HEIGHT} {WIDTH} {HEIGHT} {WIDTH} 0"


def test_stacked_areas_are_seen_even_of_a_single_step():
    plot = Plot("", [series([5], "a"), series([5], "b")], kind="stacked")
    areas = [p.get("d") for p in drawn(plot).iter("path") if p.get("class").startswith("area")]
    assert len(areas) == 2
    xs = {float(x) for x in re.findall(r"(?:^M|[ L])([\d.]+) [\d.]+", areas[0])}
    assert len(xs) == 2


def test_a_level_has_its_line_and_its_name():
    found = drawn(Plot("", [series([0, 50])], levels=[Level("the link", 100.0)]))
    assert [text.text for text in found.iter("text") if text.get("class") == "level"] == ["the link"]


def test_those_who_cannot_see_it_are_told():
    plot = Plot("Loss", [series([9, 2.5, 3])])
    assert describe(plot) == "loss: from 9 at 0 to 3 at 2, between 2.5 and 9"
    found = drawn(plot)
    assert found.get("role") == "img"
    assert [found.find(tag).text for tag in ("title", "desc")] == ["Loss", describe(plot)]
    assert found.get("aria-labelledby").split() == [found.find(tag).get("id") for tag in ("title", "desc")]


def test_names_cannot_break_out():
    evil = '</title><script>alert("1")</script>'
    text = svg(Plot(evil, [series([1], name=evil)], levels=[Level(evil, 1.0)]), "here")
    assert "<script" not in text


@pytest.mark.parametrize("kind", ["line", "stacked", "bars", "steps"])
@pytest.mark.parametrize("values", [[], [NAN], [NAN, NAN], [0], [0, 0, 0]], ids=str)
def test_nothing_to_draw_is_an_empty_plot(kind, values):
    assert "nan" not in re.sub("desc.*/desc", "", svg(Plot("", [series(values)], kind=kind), "here")).lower()
