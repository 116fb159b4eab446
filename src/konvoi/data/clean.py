"""What a training pair must be like: normalising, the reasons to drop a pair, and how much each of them drops."""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Container, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from pydantic import Field, PositiveInt

from konvoi.config.section import Section
from konvoi.data.languages import check_language_known, is_other_language

# A pair whose longer side has at most this many words escapes the ratio: "Go." / "Geh jetzt weg hier." is right.
RATIO_FREE_WORDS = 6
# Equal sides of fewer words are names and greetings, the same in both languages: "Tom.", "Hallo, Tom!", "Hotel Adlon".
MIN_COPY_WORDS = 3

KEPT = "kept"
# In the order in which they are tried: a pair is counted under the first that holds.
REASONS = (
    "unreadable",
    "empty",
    "too_short",
    "too_long",
    "length_ratio",
    "copy",
    "wrong_language",
    "leak",
    "duplicate",
    "near_duplicate",
    "held_out",
)

# After Moses' normalize-punctuation, but for what depends on the language. Odd blanks need no entry: they count as
# white space. Invisible characters go, except the joiners, which spell words of Persian and Hindi.
PLAIN_PUNCTUATION = str.maketrans(
    {
        **dict.fromkeys("“”„‟«»″", '"'),
        **dict.fromkeys("‘’‚‛‹›´′", "'"),  # noqa: RUF001
        **dict.fromkeys("‐‑‒–−", "-"),  # noqa: RUF001
        **dict.fromkeys("—―", " - "),
        "…": "...",
        **dict.fromkeys("\u00ad\u200b\u2060\ufeff", ""),
    }
)
ODD_PUNCTUATION = re.compile(f"[{''.join(map(chr, PLAIN_PUNCTUATION))}]")

# Marks that a tokeniser sets apart; not [^\w], which holds the vowels of Hindi.
MARKS = "!-/:-@\\[-`{-~¡-¿\u0964\u0965\u2010-\u205e\u3001-\u303f\uff01-\uff0f\uff1a-\uff20"
# As Moses: numbers, hyphens and abbreviations stay whole (1,000.5, EU-wide, z.B), "don't" is two, dots are one.
TOKEN = re.compile(rf"'?[^ {MARKS}]+(?:[-.,][^ {MARKS}]+)*|\.\.+|[^ ]")
# In UTF-8 a mark is one of these bytes, or begins with one: how many there are bounds the number of marks from above.
MARK_BYTES = frozenset(string.punctuation.encode() + b"\xc2\xe0\xe2\xe3\xef")
NO_MARK_BYTES = bytes(byte for byte in range(256) if byte not in MARK_BYTES)

LOWERCASE_BYTES = bytes(range(256)).lower()
NO_LETTER_BYTES = bytes(byte for byte in range(128) if not chr(byte).isalpha())
# The bytes of a to z and of à to ÿ, but for the ÷ among them: nothing to fold where there are no others.
SMALL_LETTER_BYTES = bytes({*string.ascii_lowercase.encode(), 0xC3, *range(0xA0, 0xC0)} - {0xB7})
# U+2000 to U+203F in UTF-8: the quotes, dashes and dots of most languages, and no letters.
TYPOGRAPHY = re.compile(rb"\xe2\x80.", re.DOTALL)


class Cleaning(Section):
    """What a training pair must be like; dev and test pairs are never dropped."""

    min_words: PositiveInt = 1
    """A training pair with fewer words on either side is dropped."""

    max_words: PositiveInt = 100
    """A training pair with more words (by white space) on either side is dropped."""

    count_punctuation: bool = False
    """Count punctuation marks as words of their own, as a tokeniser would."""

    max_ratio: float = Field(default=3.0, ge=1.0)
    """A training pair is dropped where one side has more than this many times the words of the other,
    unless both sides have at most 6 words."""

    remove_copies: bool = True
    """Drop training pairs whose sides are equal but for case, if they have at least 3 words."""

    remove_duplicates: bool = True
    """Keep only the first of several equal training pairs."""

    remove_near_duplicates: bool = False
    """Keep only the first of several training pairs that are equal but for case, digits, punctuation and blanks."""

    remove_leaks: bool = True
    """Drop training pairs whose source sentence is in dev or test."""

    check_language: bool = False
    """Drop training pairs of which a side is reliably of another language (pip install 'konvoi[language]')."""

    lowercase: bool = False
    """Lowercase all text: training, dev and test. Scores then compare with lowercased ones only."""

    nfkc: bool = False
    """Replace characters by their compatible plain form (Unicode's NFKC): ligatures, full-width letters, "½"."""

    normalise_punctuation: bool = False
    """Replace typographic quotes, dashes and dots by those of a keyboard, and drop invisible characters."""

    def normalised(self, sentence: str) -> str:
        """A sentence as the model reads it, in training and later; references stay as they are."""
        return normalise(
            sentence, lowercase=self.lowercase, nfkc=self.nfkc, plain_punctuation=self.normalise_punctuation
        )


class Cleaner:
    """The filters that look at one pair alone. Can be sent to another process."""

    def __init__(self, cleaning: Cleaning, languages: tuple[str, str], held_out: Container[str] = ()) -> None:
        """`held_out` holds the source sentences of dev and test, as `normalise` returns them."""
        self.cleaning, self.languages, self.held_out = cleaning, languages, held_out
        self._only_collapses = not (cleaning.lowercase or cleaning.nfkc or cleaning.normalise_punctuation)
        if cleaning.check_language:
            for language in languages:
                check_language_known(language)

    def normalise(self, sentence: str) -> str:
        """A sentence as it is trained on."""
        return _collapsed(sentence) if self._only_collapses else self.cleaning.normalised(sentence)

    def why_not(self, source: str, target: str) -> str:
        """The first reason to drop a normalised pair, or nothing; duplicates need the whole corpus to be told."""
        if not source or not target:
            return "empty"
        if reason := self._wrong_length(source, target):
            return reason
        cleaning = self.cleaning
        if cleaning.remove_copies and is_copy(source, target):
            return "copy"
        if cleaning.check_language and self._is_other_language(source, target):
            return "wrong_language"
        return "leak" if cleaning.remove_leaks and source in self.held_out else ""

    def _wrong_length(self, source: str, target: str) -> str:
        num_sources, num_targets = source.count(" ") + 1, target.count(" ") + 1
        if self.cleaning.count_punctuation:
            # Most pairs are right whatever their marks count: then the slow count is not needed.
            num_most_sources, num_most_targets = _most_tokens(source, num_sources), _most_tokens(target, num_targets)
            if not self._judge(num_sources, num_most_targets) and not self._judge(num_most_sources, num_targets):
                return ""
            num_sources, num_targets = num_tokens(source), num_tokens(target)
        return self._judge(num_sources, num_targets)

    def _judge(self, num_sources: int, num_targets: int) -> str:
        cleaning = self.cleaning
        shorter, longer = (num_sources, num_targets) if num_sources < num_targets else (num_targets, num_sources)
        if shorter < cleaning.min_words:
            return "too_short"
        if longer > cleaning.max_words:
            return "too_long"
        return "length_ratio" if longer > RATIO_FREE_WORDS and longer > cleaning.max_ratio * shorter else ""

    def _is_other_language(self, source: str, target: str) -> bool:
        return is_other_language(source, self.languages[0]) or is_other_language(target, self.languages[1])


def normalise(sentence: str, *, lowercase: bool = False, nfkc: bool = False, plain_punctuation: bool = False) -> str:
    """White space collapsed to single blanks, none at the ends; then whatever else is asked for."""
    plain = _collapsed(sentence)
    if lowercase:
        plain = plain.lower()
    if not (nfkc or plain_punctuation) or plain.isascii():
        return plain
    if plain_punctuation and ODD_PUNCTUATION.search(plain):
        plain = plain.translate(PLAIN_PUNCTUATION)
    if nfkc:
        plain = unicodedata.normalize("NFKC", plain)
    if plain == sentence:
        return plain
    # One step can make work for another (NFKC makes capitals, blanks and dashes): until nothing changes any more.
    return normalise(plain, lowercase=lowercase, nfkc=nfkc, plain_punctuation=plain_punctuation)


def _collapsed(sentence: str) -> str:
    # Of all white space only the blank is printable, and most lines have no two of them in a row.
    if sentence.isprintable() and "  " not in sentence and sentence[:1] != " " and sentence[-1:] != " ":
        return sentence
    return " ".join(sentence.split())


def is_copy(source: str, target: str) -> bool:
    """Whether a pair is not translated at all."""
    # Few pairs have sides of equal length, so that lowercasing is rare.
    return len(source) == len(target) and num_words(source) >= MIN_COPY_WORDS and source.lower() == target.lower()


def num_words(sentence: str) -> int:
    """Words by white space of a normalised sentence: counting blanks is faster than splitting."""
    return sentence.count(" ") + 1 if sentence else 0


def num_tokens(sentence: str) -> int:
    """Words with the punctuation marks counted apart."""
    return len(TOKEN.findall(sentence))


def _most_tokens(sentence: str, num_words: int) -> int:
    """No fewer than num_tokens, and cheap: a mark inside a word makes three of one."""
    return num_words + 2 * len(sentence.encode().translate(None, NO_MARK_BYTES))


def pair_key(source: str, target: str) -> int:
    """64 bits that tell pairs apart, the same for ever: of 5 million pairs, two different ones agree with odds of
    less than one in a million."""
    return _hash(f"{source}\t{target}".encode())


def sentence_key(sentence: str) -> int:
    """64 bits that tell sentences apart, the same for ever."""
    return _hash(sentence.encode())


def near_key(source: str, target: str) -> int:
    """64 bits that are equal for pairs that differ only in case, digits, punctuation, symbols and white space."""
    return _hash(_letters(source) + b"\t" + _letters(target))


def _hash(text: bytes) -> int:
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")


def _letters(sentence: str) -> bytes:
    """The letters alone, without their case."""
    letters = sentence.encode().translate(LOWERCASE_BYTES, NO_LETTER_BYTES)
    if b"\xe2\x80" in letters:
        letters = TYPOGRAPHY.sub(b"", letters)
    if not letters.translate(None, SMALL_LETTER_BYTES):
        return letters
    folded = letters.decode().casefold()
    # What is left is mostly letters: the slow way is for rare signs, and for scripts with combined vowels.
    return (folded if folded.isalpha() else folded.translate(LETTERS_ONLY)).encode()


class _LettersOnly(dict[int, int | None]):
    """For str.translate: letters and the marks that combine with them stay; learns each character once."""

    def __missing__(self, code: int) -> int | None:
        self[code] = code if unicodedata.category(chr(code))[0] in "LM" else None
        return self[code]


LETTERS_ONLY = _LettersOnly()


class Amount(NamedTuple):
    """How much text: pairs, and the bytes (in UTF-8, with line ends) and words (by white space) of each side."""

    pairs: int = 0
    source_bytes: int = 0
    target_bytes: int = 0
    source_words: int = 0
    target_words: int = 0

    def plus(self, other: Amount) -> Amount:
        return Amount(*map(int.__add__, self, other))

    def minus(self, other: Amount) -> Amount:
        return Amount(*map(int.__sub__, self, other))


class Tally:
    """How much was kept, and how much each reason dropped."""

    def __init__(self, amounts: Mapping[str, Amount] | None = None) -> None:
        self._amounts = dict(amounts or {})

    def __getitem__(self, reason: str) -> Amount:
        return self._amounts.get(reason, Amount())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tally) and self.as_dict() == other.as_dict()

    def __add__(self, other: Tally) -> Tally:
        total = Tally(self._amounts)
        for reason, amount in other._amounts.items():
            total._amounts[reason] = total[reason].plus(amount)
        return total

    def add(self, reason: str, source: str, target: str) -> None:
        """One pair."""
        self.add_all(reason, (source,), (target,))

    def add_all(self, reason: str, sources: Sequence[str], targets: Sequence[str]) -> None:
        """Many pairs, which is faster than one by one."""
        source_bytes, source_words = _size(sources)
        target_bytes, target_words = _size(targets)
        self.add_many(reason, len(sources), source_bytes, target_bytes, source_words, target_words)

    def add_many(
        self,
        reason: str,
        pairs: int,
        source_bytes: int = 0,
        target_bytes: int = 0,
        source_words: int = 0,
        target_words: int = 0,
    ) -> None:
        """Pairs of which the size is known."""
        assert reason == KEPT or reason in REASONS, reason
        more = Amount(pairs, source_bytes, target_bytes, source_words, target_words)
        self._amounts[reason] = self[reason].plus(more)

    @property
    def read(self) -> Amount:
        """All that came in."""
        total = Amount()
        for amount in self._amounts.values():
            total = total.plus(amount)
        return total

    def as_dict(self) -> dict[str, dict[str, int]]:
        """For JSON: what is kept, then the reasons in their order, without those that dropped nothing."""
        return {reason: self[reason]._asdict() for reason in (KEPT, *REASONS) if any(self[reason])}

    @classmethod
    def from_dict(cls, amounts: Mapping[str, Mapping[str, int]]) -> Tally:
        return cls({reason: Amount(**amount) for reason, amount in amounts.items()})


def _size(sentences: Sequence[str]) -> tuple[int, int]:
    """Bytes and words of normalised sentences."""
    text = "\n".join(sentences)
    num_empty = sum(1 for sentence in sentences if not sentence)
    # A line end for each sentence, of which join wrote all but one.
    return len(text.encode()) + bool(sentences), text.count(" ") + len(sentences) - num_empty
