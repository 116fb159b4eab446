"""The same page as Markdown."""

from __future__ import annotations

import numpy as np
import pytest
from markdown_it import MarkdownIt

from konvoi.analysis.answer import Answer
from konvoi.report import markdown
from konvoi.report.blocks import Code, Level, Note, Page, Plot, Samples, Section, Series, Table

EVIL = "1. *bold* _under_ <b>html</b> [link](x) | cell `code` # title & &amp; ~~gone~~ snake_case -> \\"


def rendered(text: str) -> str:
    return MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text)


@pytest.mark.parametrize("text", [EVIL, "- item", "+ item", "# title", "> quote", "---", "=== x", "2) item"])
def test_text_stays_text(text):
    shown = rendered(markdown.plain(text))
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert shown == f"<p>{escaped}</p>\n"


def test_ordinary_sentences_are_left_as_they_are():
    text = "19.0 s: data.max_words, 1.71 -> 0.98 s (--set sync.name=fp16), 45 % of a step, AT&T."
    assert markdown.plain(text) == text


def test_a_cell_does_not_break_its_table():
    shown = rendered(markdown.block_markdown(Table("t", ["a", "b"], [["x | y", EVIL]])))
    assert shown.count("<td") == 2


def test_code_that_holds_a_fence_stays_code():
    shown = rendered(markdown.block_markdown(Code("before\n```\n<b>\n````\nafter")))
    assert shown == "<pre><code>before\n```\n&lt;b&gt;\n````\nafter\n</code></pre>\n"


def test_samples_are_kept_apart():
    shown = rendered(markdown.block_markdown(Samples([{"source": "a"}, {"source": "b"}])))
    assert shown.count("<ul>") == 2


def test_an_answer_opens_with_its_few_words():
    text = markdown.block_markdown(Answer("Is it fully trained?", "no", "BLEU still rises."))
    assert text == "Is it fully trained? **no**\n\nBLEU still rises."


def test_a_curve_is_a_row_of_blocks_and_its_numbers():
    curve = Series("loss", np.arange(1.0, 5.0), np.array([8.0, np.nan, 4.5, 1.0]))
    text = markdown.block_markdown(Plot("Loss", [curve], y_label="nats", levels=[Level("limit", 2.0)]))
    assert "**Loss (nats), over step**" in text
    # 4.5 is half way between the least and the greatest: the 4th or 5th of 8 blocks.
    assert "█ ▅▁  loss: from 8 at 1 to 1 at 4, between 1 and 8" in text or "█ ▄▁  loss" in text
    assert "limit: 2" in text


def test_a_spark_is_no_longer_than_its_width():
    assert markdown.spark(np.arange(1000.0), width=8) == "▁▂▃▄▅▆▇█"
    assert markdown.spark(np.array([])) == ""
    assert markdown.spark(np.array([np.nan])) == ""
    assert markdown.spark(np.array([5.0, 5.0])) == "▁▁"


def test_the_page_has_its_title_its_lead_its_notes_and_its_sections_in_order():
    note = Note("45 % of a step.", "What bound it: network", details=["6 MB a step"])
    text = markdown.write(Page("Report", "A lead.", [Section("a", "Time", [])], notes=[note]))
    assert (
        text == "# Report\n\nA lead.\n\n> **What bound it: network** 45 % of a step.\n>\n> - 6 MB a step\n\n## Time\n"
    )
