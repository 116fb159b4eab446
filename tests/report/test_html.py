"""The HTML file: one file, whole, safe whatever the texts hold."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from konvoi.analysis.answer import Answer
from konvoi.report import html
from konvoi.report.blocks import Code, Facts, Note, Page, Paragraph, Plot, Samples, Section, Series, Table

EVIL = "<script>alert('x')</script><img src=http://example.org/x onerror=alert(1)> & \"quoted\""
VOID = {"meta", "link", "br", "img"}


class Reader(HTMLParser):
    """All tags with their attributes, the texts, and whether each tag is closed where it should be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def page(*blocks, **settings) -> Page:
    return Page("Training report", "A lead.", [Section("time", "Time", blocks)], **settings)


def evil_blocks():
    curve = Series(EVIL, np.array([1.0, 2.0]), np.array([1.0, 2.0]))
    return [
        Answer(EVIL, EVIL, EVIL),
        Paragraph(EVIL),
        Note(EVIL, EVIL, details=[EVIL]),
        Facts([(EVIL, EVIL)], EVIL),
        Table(EVIL, [EVIL], [[EVIL]]),
        Code(EVIL, EVIL),
        Samples([{EVIL: EVIL}], EVIL),
        Plot(EVIL, [curve, curve], x_label=EVIL, y_label=EVIL, caption=EVIL),
    ]


def test_every_kind_of_block_can_be_written_and_its_text_is_text():
    # A kind of block that is not tried here would not be tried at all.
    assert {type(block) for block in evil_blocks()} == {*html.WRITERS, Plot}
    text = html.write(Page(EVIL, EVIL, [Section("a", EVIL, evil_blocks())], subtitle=EVIL, notes=[Note(EVIL)]))
    reader = Reader(text)
    assert reader.open == []
    assert not reader.all("script")
    assert not reader.all("img")
    assert reader.text.count(EVIL) >= 20


@pytest.mark.parametrize("live", [False, True])
def test_nothing_is_fetched_from_elsewhere(live):
    reader = Reader(html.write(page(*evil_blocks()), live=live))
    addresses = [value for _, attributes in reader.tags for key, value in attributes.items() if key in ("src", "href")]
    assert addresses
    assert all(address.startswith(("#", "data:")) for address in addresses)
    assert "url(" not in html._resource("style.css")
    assert "@import" not in html._resource("style.css")


@pytest.mark.parametrize("live", [False, True])
def test_the_policy_allows_what_is_in_the_file_and_nothing_else(live):
    text = html.write(page(), live=live)
    reader = Reader(text)
    (policy,) = [m["content"] for m in reader.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    inline = re.findall(r"<(style|script)>(.*?)</\1>", text, re.DOTALL)
    assert [kind for kind, _ in inline] == (["style", "script"] if live else ["style"])
    for kind, content in inline:
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert not [attributes for _, attributes in reader.tags if "style" in attributes]


def test_only_a_live_page_says_so():
    marks = [[s for s in Reader(html.write(page(), live=live)).all("span") if s["class"] == "live"] for live in (0, 1)]
    assert [len(found) for found in marks] == [0, 1]


def test_the_contents_lead_to_the_sections():
    reader = Reader(html.write(page(Paragraph("x"))))
    assert [a["href"] for a in reader.all("a")] == ["#time"]
    assert [section["id"] for section in reader.all("section")] == ["time"]


def test_ids_are_unique():
    curve = Plot("a", [Series("a", np.array([1.0]), np.array([1.0]))])
    sections = [Section(name, name, [curve, curve]) for name in ("one", "two")]
    ids = [a["id"] for _, a in Reader(html.write(Page("", "", sections))).tags if "id" in a]
    # 2 sections, and in each 2 plots with a title and a text
    assert len(ids) == len(set(ids)) == 2 + 2 * 2 * 2


def test_a_phone_gets_its_width_and_numbers_their_side():
    reader = Reader(html.write(page(Table("t", ["a", "b", "c"], [["x", "y", "1"]], num_left=2))))
    assert "width=device-width" in next(m["content"] for m in reader.all("meta") if m.get("name") == "viewport")
    assert [cell.get("class") for cell in reader.all("td")] == [None, None, "number"]


def test_only_a_sentence_in_a_cell_may_be_folded():
    reader = Reader(html.write(page(Table("t", ["file"], [["state.json"], ["all that is needed to go on exactly"]]))))
    assert [cell.get("class") for cell in reader.all("td")] == [None, "sentence"]


def test_a_legend_only_where_there_is_more_than_one_curve():
    one, two = (Plot("p", [Series("a", np.arange(2.0), np.arange(2.0))] * n) for n in (1, 2))
    assert not Reader(html.write(page(one))).all("ul")
    assert len(Reader(html.write(page(two))).all("ul")) == 1


def test_every_colour_has_a_place_in_each_theme():
    style = html._resource("style.css")
    # light, dark, print
    for number in range(html.NUM_COLOURS):
        assert len(re.findall(rf"--c{number}: #", style)) == 3


def luminance(colour: str) -> float:
    """Relative, by WCAG 2.1."""
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def contrast(one: str, other: str) -> float:
    dark, bright = sorted(map(luminance, (one, other)))
    return (bright + 0.05) / (dark + 0.05)


def test_texts_and_curves_stand_out_from_the_paper_in_every_theme():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    themes = re.findall(r":root \{(.*?)\}", html._resource("style.css"), re.DOTALL)
    assert len(themes) == 3
    for theme in themes:
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", theme))
        # WCAG 2.1: 4.5 for texts, 3 for graphics.
        for name in ("ink", "quiet", "link"):
            assert contrast(colours[name], colours["paper"]) >= 4.5
        for name in ("verdict", "caution"):
            assert contrast(colours[name], colours[f"{name}-soft"]) >= 4.5
        for number in range(html.NUM_COLOURS):
            assert contrast(colours[f"c{number}"], colours["paper"]) >= 3
