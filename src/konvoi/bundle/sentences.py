"""A document as its sentences, and back with all of its white space.

By rules alone: English and German abbreviations, initials, ordinals ("am 3. Mai"), quotes, ellipses. Where a rule is in
doubt the text stays together: two sentences in one are still translated, half a sentence is not understood.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Full stops of scripts that write no blanks, and the quotes after them.
WIDE_STOPS, WIDE_CLOSING = "\u3002\uff01\uff1f", "\u300d\u300f\uff09"
QUOTES = "\"'\u201c\u201d\u201e\u201a\u2018\u2019\u00ab\u00bb"
# Where a sentence may end: at white space, or after a wide full stop.
GAP = re.compile(rf"\s++|(?<=[{WIDE_STOPS}])(?=[^\s{WIDE_STOPS}{WIDE_CLOSING}{QUOTES}])")
END = re.compile(rf"(?P<word>[^\s{QUOTES}()\[\]]*?)(?P<mark>[.!?\u2026{WIDE_STOPS}]+)[{QUOTES}{WIDE_CLOSING})\]*_]*$")
# Initials and abbreviations such as J., z.B., U.S.; "I" ends a sentence, as in "So am I."
LETTERS = re.compile(r"(?!I$)[^\W\d_](\.[^\W\d_])*")
OPENING = f"{QUOTES}([*_\u00bf\u00a1-\u2013\u2014"
# A line of so many characters that does not end a sentence was most likely wrapped.
WRAPPED_CHARACTERS = 60
# What stands before a gap is looked at no further than this: the time stays linear whatever the text.
REACH = 64

# Their full stop ends no sentence. "etc." and "usw." often do end one; letters with full stops between them ("z.B.",
# "U.S.") need no list.
ABBREVIATIONS = _words(
    """
    mr mrs ms dr prof rev gen col maj capt lt sgt gov sen rep messrs jr sr esq st mt vs cf viz eds approx dept
    bros hr hrn fr frl dipl ing bzw ca evtl ggf inkl exkl zzgl abzgl vgl bspw sog stv urspr hrsg gegr ph.d
    v.chr n.chr mio mrd tsd
    """
)
# The same where a number follows; else they may be words: "He said no. 3 of us left." is the price.
BEFORE_NUMBERS = _words(
    """
    no nos nr p pp fig figs abb vol bd sec ch kap eq ed aufl art abs max min mind tel jan feb mar apr jun jul
    aug sep sept oct okt nov dec dez bis von ziff str
    """
)
# Between a number with a full stop and these the sentence goes on: "der 3. Mai", "im 19. Jahrhundert".
AFTER_ORDINALS = _words(
    """
    januar jänner februar märz april mai juni juli august september oktober november dezember jahrhundert
    jahrhunderts jahrhunderte jahrtausend klasse stock stockwerk etage tag woche monat jahr geburtstag
    jahrestag platz mal auflage kapitel band teil runde liga armee division weltkrieg weltkriegs reich bezirk
    semester lebensjahr minute
    """
)
BEFORE_ORDINALS = _words(
    """
    der die das dem den des am im vom zum zur beim ein eine einen einem einer jeder jede jedes jeden jedem ihr
    ihre ihrem ihren sein seine seinem seinen mein meine meinem meinen unser unsere unserem dieser diese
    diesem diesen
    """
)


class Part(NamedTuple):
    """A sentence and the white space after it; a text that begins with white space begins with an empty sentence."""

    sentence: str
    space: str


def split(text: str) -> list[Part]:
    """The sentences of a text in order; "".join of their parts is the text."""
    parts, start = [], 0
    for gap in GAP.finditer(text):
        if gap.start() == 0 or gap.end() == len(text) or _ends_sentence(text, start, gap.start(), gap.end()):
            parts.append(Part(text[start : gap.start()], gap[0]))
            start = gap.end()
    return [*parts, Part(text[start:], "")] if start < len(text) else parts


def join(parts: Sequence[Part], translations: Sequence[str]) -> str:
    """The translations of the sentences in the white space of the text."""
    return "".join(translation + part.space for part, translation in zip(parts, translations, strict=True))


def _ends_sentence(text: str, start: int, gap_start: int, gap_end: int) -> bool:
    """Whether a sentence that began at `start` ends before this gap."""
    gap = text[gap_start:gap_end]
    line_ends = gap.count("\n") or gap.count("\r")
    if line_ends > 1 or not gap:
        return True
    before = text[max(start, gap_start - REACH) : gap_start]
    if line_ends and not _is_wrapped(text, gap_start, gap_end):
        return True
    end = END.search(before)
    if end is None or (gap.strip("\u00a0\u202f") == "") or not _may_begin(text, gap_end):
        return False
    return end["mark"] != "." or not _is_abbreviated(
        before[: end.start()], end["word"], text[gap_end : gap_end + REACH]
    )


def _is_wrapped(text: str, gap_start: int, gap_end: int) -> bool:
    """Whether the line goes on after a single line end: a full line, or a small letter after it."""
    after = text[gap_end]
    line_start = max(text.rfind("\n", max(0, gap_start - REACH), gap_start) + 1, 0)
    is_full = gap_start - line_start >= WRAPPED_CHARACTERS or gap_start - REACH >= line_start
    return after.islower() or (is_full and after.isalpha())


def _may_begin(text: str, index: int) -> bool:
    """Whether a sentence may begin here: with anything but a small letter or a mark that belongs to what is before."""
    first = text[index : index + REACH].lstrip(OPENING)[:1]
    return not first.islower() and first not in ",;:)]}"


def _is_abbreviated(before: str, word: str, after: str) -> bool:
    """Whether a full stop after the word belongs to it."""
    if word.isdigit():
        return _is_ordinal(before, word, after)
    word = word.lower() if word != "I" else word
    return bool(LETTERS.fullmatch(word)) or word in ABBREVIATIONS or (word in BEFORE_NUMBERS and after[:1].isdigit())


def _is_ordinal(before: str, word: str, after: str) -> bool:
    """The number of an item at its beginning, or one that its neighbours tell: "am 3. Mai", "der 2. Versuch"."""
    words_before, words_after = before.split(), re.findall(r"\w+", after[:REACH])
    return len(word) <= 2 and (
        not words_before
        or words_before[-1].lower() in BEFORE_ORDINALS
        or (bool(words_after) and words_after[0].lower() in AFTER_ORDINALS)
    )
