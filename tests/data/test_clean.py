"""Cleaning: what normalising changes, each reason to drop a pair, stable keys, and the tally."""

# ruff: noqa: RUF001 - the odd characters are what is tested

from __future__ import annotations

import json
import pickle
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.shared_data import shared_data

from konvoi.data.clean import (
    KEPT,
    REASONS,
    Cleaner,
    Cleaning,
    Tally,
    near_key,
    normalise,
    num_tokens,
    num_words,
    pair_key,
    sentence_key,
)
from konvoi.data.text import Pair, read_pairs
from konvoi.errors import DataError

LANGUAGES = ("en", "de")
# Letters with and without case, white space of all kinds, quotes, dashes, ligatures, halves of letters, the invisible.
ODD_TEXT = st.text(
    st.one_of(
        st.sampled_from(
            "aZäßẞİıΣςſKé\u0301\u0308ﬁ½²Ａ１ \t\n\u00a0\u2003\u2028\u3000„“‘—–…«´﹘\u00ad\u200b\u200d\ufeff"
        ),
        st.characters(blacklist_categories=["Cs"]),
    ),
    max_size=20,
)


def why_not(source: str, target: str, held_out: set[str] | None = None, **settings: object) -> str:
    cleaner = Cleaner(Cleaning.model_validate(settings), LANGUAGES, held_out or set())
    return cleaner.why_not(cleaner.normalise(source), cleaner.normalise(target))


def words(number: int) -> str:
    return " ".join(["w"] * number)


def other_words(number: int) -> str:
    return " ".join(["v"] * number)


# Normalising


@pytest.mark.parametrize("sentence", ["  a\t b ", "a\u00a0b", "a\u2028b\n", "\x0ba  b", "a\u3000b", "a b"])
def test_white_space_is_collapsed(sentence: str) -> None:
    assert normalise(sentence) == "a b"


@given(ODD_TEXT)
def test_white_space_is_collapsed_as_by_splitting(sentence: str) -> None:
    assert normalise(sentence) == " ".join(sentence.split())


@given(ODD_TEXT, st.booleans(), st.booleans(), st.booleans())
@example("e\u00ad\u0301", False, True, True)  # without the soft hyphen, the accent falls on the e
@example("ᴬ", True, True, False)  # NFKC makes a capital
@example("´ ﹘", True, True, True)  # NFKC makes a blank with an accent, and a dash
def test_normalising_twice_changes_nothing_more(sentence: str, lowercase: bool, nfkc: bool, plain: bool) -> None:
    once = normalise(sentence, lowercase=lowercase, nfkc=nfkc, plain_punctuation=plain)
    assert normalise(once, lowercase=lowercase, nfkc=nfkc, plain_punctuation=plain) == once
    assert once == " ".join(once.split())
    assert not nfkc or unicodedata.is_normalized("NFKC", once)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "„Ja – ﬁne…“ SAGTE er"),
        ({"lowercase": True}, "„ja – ﬁne…“ sagte er"),
        ({"nfkc": True}, "„Ja – fine...“ SAGTE er"),
        ({"normalise_punctuation": True}, '"Ja - ﬁne..." SAGTE er'),
        ({"lowercase": True, "nfkc": True, "normalise_punctuation": True}, '"ja - fine..." sagte er'),
    ],
)
def test_the_settings_choose_what_is_normalised(settings: dict[str, bool], expected: str) -> None:
    cleaner = Cleaner(Cleaning.model_validate(settings), LANGUAGES)
    assert cleaner.normalise(" „Ja – ﬁne…“  SAGTE\u00a0er") == expected


@pytest.mark.parametrize(
    ("odd", "plain"),
    [
        ("“a” „b‟ «c»", '"a" "b" "c"'),
        ("l’été ‘x’ ‚y‛", "l'été 'x' 'y'"),
        ("1990–1995, −3, EU‑wide", "1990-1995, -3, EU-wide"),
        ("yes—no", "yes - no"),
        ("yes — no", "yes - no"),
        ("Sil\u00adbe\u200b", "Silbe"),
        ("می\u200cخواهم", "می\u200cخواهم"),  # the joiner spells the word
    ],
)
def test_typography_becomes_that_of_a_keyboard(odd: str, plain: str) -> None:
    assert normalise(odd, plain_punctuation=True) == plain


# Reasons


@pytest.mark.parametrize("pair", [("", "x"), ("x", "  "), ("", ""), ("x", "\u00a0\u2003")])
def test_an_empty_side_is_dropped(pair: Pair) -> None:
    assert why_not(*pair) == "empty"


def test_the_longest_sentence_allowed_stays_and_one_word_more_is_dropped() -> None:
    assert why_not(words(8), other_words(8), max_words=8) == ""
    assert why_not(words(8), words(9), max_words=8) == "too_long"
    assert why_not(words(9), words(8), max_words=8) == "too_long"


def test_the_shortest_sentence_allowed_stays_and_one_word_less_is_dropped() -> None:
    assert why_not(words(2), words(2), min_words=2) == ""
    assert why_not(words(1), words(2), min_words=2) == "too_short"
    assert why_not(words(2), words(1), min_words=2) == "too_short"


def test_the_ratio_counts_only_beyond_six_words() -> None:
    # 6 : 1 escapes; 7 : 2 = 3.5 is over 3; 9 : 3 = 3 is not
    assert why_not(words(1), words(6)) == ""
    assert why_not(words(7), words(2)) == why_not(words(2), words(7)) == "length_ratio"
    assert why_not(words(9), words(3)) == ""


def test_a_short_free_translation_survives() -> None:
    assert why_not("Go.", "Geh jetzt weg hier.") == ""


@pytest.mark.parametrize(
    ("sentence", "tokens"),
    [
        ("I agree.", "I agree ."),
        ("I don't, really!", "I don 't , really !"),
        ("EU-wide: 1,000.5 % of it...", "EU-wide : 1,000.5 % of it ..."),
        ("„Ja“ (z.B. hier)", "„ Ja “ ( z.B . hier )"),
        ("और/या हिन्दी।", "और / या हिन्दी ।"),
        ("a , b", "a , b"),
    ],
)
def test_punctuation_marks_are_counted_apart_on_demand(sentence: str, tokens: str) -> None:
    number = len(tokens.split())
    assert num_tokens(sentence) == number
    other = other_words(number)
    assert why_not(sentence, other, max_words=number, count_punctuation=True) == ""
    assert why_not(sentence, other, max_words=number, max_ratio=1, count_punctuation=True) == ""
    if number > 1:
        reason = why_not(sentence, other_words(number - 1), max_words=number - 1, count_punctuation=True)
        assert reason == "too_long"


@given(
    st.text("ab.,/-'–“é。 ", min_size=1, max_size=40),
    st.text("ab.,/-'–“é。 ", min_size=1, max_size=40),
    st.integers(1, 3),
    st.integers(4, 20),
    st.floats(1, 4),
)
@example("a/b/c", "a", 1, 4, 4.0)  # 1 word with 2 marks, but 5 tokens
@example("a", "a–b–c", 1, 4, 4.0)
@example("a", "a。b。c", 1, 4, 4.0)
@example("a", "a«b»c", 1, 4, 4.0)
@example("a", "a।b।c", 1, 4, 4.0)
@example("a", "a！b！c", 1, 4, 4.0)
def test_the_cheap_bounds_never_change_the_verdict(
    source: str, target: str, min_words: int, max_words: int, max_ratio: float
) -> None:
    source, target = normalise(source) or "a", normalise(target) or "b"
    settings = {"min_words": min_words, "max_words": max_words, "max_ratio": max_ratio, "remove_copies": False}
    # The same counts, as words that need no tokeniser.
    expected = why_not(words(num_tokens(source)), words(num_tokens(target)), **settings)
    assert why_not(source, target, count_punctuation=True, **settings) == expected


def test_a_copy_of_three_words_is_dropped_and_a_name_is_not() -> None:
    assert why_not("Mr President, hello", "MR  President, hello") == "copy"
    assert why_not("Mr President, hello", "Mr President, hello", remove_copies=False) == ""
    assert why_not("Mr President, hello", "Mr President, hallo") == ""
    assert why_not("Tom.", "Tom.") == why_not("Hotel Adlon", "Hotel Adlon") == ""


def test_a_source_sentence_of_dev_or_test_is_a_leak() -> None:
    assert why_not("a  b", "x", {"a b"}) == "leak"
    assert why_not("x", "a b", {"a b"}) == ""
    assert why_not("a b", "x", {"a b"}, remove_leaks=False) == ""


def test_another_language_is_dropped_on_demand_on_either_side() -> None:
    english, german = "The committee has approved this proposal.", "Der Ausschuss hat diesem Vorschlag zugestimmt."
    assert why_not(english, german, check_language=True) == ""
    assert why_not(german, f"{german} Ja.", check_language=True) == "wrong_language"
    assert why_not(english, f"{english} Yes.", check_language=True) == "wrong_language"
    assert why_not(german, english) == ""


def test_a_language_that_cannot_be_checked_is_refused_before_any_work() -> None:
    with pytest.raises(DataError, match='does not know the language "dee", did you mean "de"'):
        Cleaner(Cleaning(check_language=True), ("en", "dee"))
    Cleaner(Cleaning(check_language=False), ("en", "dee"))


def test_the_first_reason_counts() -> None:
    long_copy = words(9)
    assert why_not(long_copy, long_copy, {long_copy}, max_words=8) == "too_long"
    assert why_not(long_copy, long_copy, {long_copy}) == "copy"
    assert why_not(long_copy, other_words(9), {long_copy}) == "leak"


@given(ODD_TEXT, ODD_TEXT, st.booleans())
def test_every_pair_has_a_known_reason_or_none(source: str, target: str, count_punctuation: bool) -> None:
    reason = why_not(source, target, {"a"}, max_words=5, max_ratio=1.5, count_punctuation=count_punctuation)
    assert reason in ("", *REASONS)


def test_a_cleaner_can_be_sent_to_another_process() -> None:
    cleaner = pickle.loads(pickle.dumps(Cleaner(Cleaning(lowercase=True), LANGUAGES, {"a b"})))
    assert cleaner.why_not(cleaner.normalise("A  B"), "x") == "leak"


# Keys


def test_keys_are_the_same_for_ever() -> None:
    # Written down on 2026-11-15: prepared sets of other machines and versions hold the choices that follow from them.
    assert sentence_key("Grüße") == 0x06AB58B78490A392
    assert pair_key("Hello, Tom!", "Grüße, Tom!") == 0x3E5EB367165CA921
    assert near_key("Hello, Tom!", "GRÜSSE – TOM 2") == 0x93D9A2F7F8B99ADF


@given(ODD_TEXT, ODD_TEXT)
def test_keys_have_64_bits(source: str, target: str) -> None:
    for key in (pair_key(source, target), near_key(source, target), sentence_key(source)):
        assert 0 <= key < 1 << 64


def test_pair_keys_tell_pairs_apart() -> None:
    pairs = [("a", "x"), ("a", "y"), ("A", "x"), ("x", "a"), ("a x", ""), ("", "a x")]
    assert len({pair_key(*pair) for pair in pairs}) == len(pairs)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Article 12 (3), paragraph 4.", "article 7: Paragraph"),
        ("„Straße“ – ÖL…", "STRASSE öl"),
        ("x² ÷ y", "X y"),
        ("ΟΔΟΣ", "οδος"),
        ("是的。", "是 的"),
    ],
)
def test_near_keys_ignore_case_digits_punctuation_and_blanks(one: str, other: str) -> None:
    assert near_key(one, "Ja.") == near_key(other, "ja")
    assert near_key("Ja.", one) == near_key("ja", other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("Haus", "Hans"), ("schon", "schön"), ("कि", "की"), ("ab", "ba"), ("naïve", "naive"), ("到", "倒")],
)
def test_near_keys_tell_letters_and_their_marks_apart(one: str, other: str) -> None:
    assert near_key(one, "x") != near_key(other, "x")
    assert near_key("x", one) != near_key("x", other)
    assert near_key(one, other) != near_key(other, one)


@given(st.text(st.characters(categories=["Lu", "Ll", "Lo", "Mn", "Nd", "Po", "Pi", "Pd", "Zs", "Sm"]), max_size=20))
@example("ÀÉÎÕÜ ×÷ ß àéîõü")
@example("à÷b")
@example("“a” – b…")
def test_the_fast_ways_to_a_near_key_agree_with_the_plain_one(text: str) -> None:
    letters = "".join(letter for letter in text.casefold() if unicodedata.category(letter)[0] in "LM")
    assert near_key(text, "x") == pair_key(letters, "x")


def test_near_keys_do_not_move_letters_from_side_to_side() -> None:
    assert near_key("ab", "c") != near_key("a", "bc")


# The tally


def test_a_tally_counts_pairs_bytes_and_words_of_each_side() -> None:
    tally = Tally()
    tally.add("copy", "a b", "ä")
    tally.add("copy", "", "x y z")
    # 3 + 0 and 2 + 5 bytes in UTF-8, with a line end each; 2 + 0 and 1 + 3 words
    assert tally["copy"] == (2, 5, 9, 2, 4)
    assert tally["leak"] == (0, 0, 0, 0, 0)


@given(st.lists(st.tuples(st.text("aä b"), st.text("aä b"))))
def test_many_pairs_count_as_one_by_one(pairs: list[Pair]) -> None:
    clean = [(normalise(source), normalise(target)) for source, target in pairs]
    together, one_by_one = Tally(), Tally()
    together.add_all(KEPT, [pair[0] for pair in clean], [pair[1] for pair in clean])
    for pair in clean:
        one_by_one.add(KEPT, *pair)
    assert together == one_by_one
    source_bytes = sum(len(f"{source}\n".encode()) for source, _ in clean)
    source_words = sum(len(source.split()) for source, _ in clean)
    assert (together.read.pairs, together.read.source_bytes) == (len(pairs), source_bytes)
    assert together.read.source_words == source_words == sum(num_words(source) for source, _ in clean)


def test_tallies_of_chunks_add_up_and_survive_json() -> None:
    one, two = Tally(), Tally()
    one.add("leak", "a", "b")
    one.add_many(KEPT, 10, 100, 200, 30, 40)
    two.add_many(KEPT, 1, 1, 1, 1, 1)
    two.add_many("unreadable", 3)
    total = one + two
    assert total[KEPT] == (11, 101, 201, 31, 41)
    assert one[KEPT].pairs == 10  # adding changes neither
    assert total.read == (11 + 1 + 3, 101 + 2, 201 + 2, 31 + 1, 41 + 1)
    assert list(total.as_dict()) == [KEPT, "unreadable", "leak"]
    assert Tally.from_dict(json.loads(json.dumps(total.as_dict()))) == total != one


def test_an_unknown_reason_is_our_own_fault() -> None:
    with pytest.raises(AssertionError):
        Tally().add("ugly", "a", "b")


# Real corpora


def test_captions_pass_the_filters_and_their_turned_sides_do_not() -> None:
    files = shared_data("multi30k/train.en.gz"), shared_data("multi30k/train.de.gz")
    cleaner = Cleaner(Cleaning(check_language=True), LANGUAGES)
    pairs = [tuple(map(cleaner.normalise, pair)) for pair in read_pairs(*files)]
    dropped = [reason for source, target in pairs if (reason := cleaner.why_not(source, target))]
    turned = [cleaner.why_not(target, source) for source, target in pairs]
    # Less than 1 in 1000 real captions may fall; of the turned ones, 1 in 20 may stay, because they are short.
    assert len(pairs) == 29_000
    assert len(dropped) < 29
    assert turned.count("wrong_language") > 0.95 * 29_000
