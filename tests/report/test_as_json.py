"""The same page as JSON."""

from __future__ import annotations

import json

import numpy as np

from konvoi.analysis.answer import Answer
from konvoi.report import as_json
from konvoi.report.blocks import Page, Paragraph, Plot, Section, Series


def strict(text: str):
    """Refuses NaN, which Python would read and others would not."""
    return json.loads(text, parse_constant=lambda name: (_ for _ in ()).throw(ValueError(name)))


def test_every_block_says_its_kind_and_keeps_its_facts():
    answer = Answer("How long?", "2 h", "It took 2 h.", {"wall_seconds": np.float64(7200.0), "missing": float("nan")})
    page = Page("Report", "A lead.", [Section("time", "Time", [answer, Paragraph("text")])], facts={"status": "died"})
    content = strict(as_json.write(page))
    assert (content["title"], content["lead"], content["facts"]) == ("Report", "A lead.", {"status": "died"})
    first, second = content["sections"][0]["blocks"]
    assert first["kind"] == "answer"
    assert first["facts"] == {"wall_seconds": 7200.0, "missing": None}
    assert (second["kind"], second["text"]) == ("paragraph", "text")


def test_a_gap_in_a_curve_is_null():
    curve = Series("loss", np.array([1.0, 2.0]), np.array([np.nan, 1 / 3]))
    content = strict(as_json.write(Page("", "", [Section("a", "A", [Plot("Loss", [curve])])])))
    assert content["sections"][0]["blocks"][0]["series"][0]["y"] == [None, 0.3333333]
