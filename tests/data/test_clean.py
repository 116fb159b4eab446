"""Cleaning: each reason to drop a pair, counted once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from konvoi.data.clean import Cleaning, CleaningCounts, clean
from konvoi.data.text import Pair


def run(
    pairs: list[Pair], cleaning: Cleaning | None = None, held_out: set[str] | None = None
) -> tuple[list[Pair], dict[str, int]]:
    counts = CleaningCounts()
    kept = list(clean(pairs, cleaning or Cleaning(), counts, held_out or set()))
    return kept, {reason: number for reason, number in counts.as_dict().items() if number}


def words(number: int) -> str:
    return " ".join(["w"] * number)


def test_white_space_is_collapsed() -> None:
    assert run([("  a\t b ", "c\u00a0d")])[0] == [("a b", "c d")]


@pytest.mark.parametrize("pair", [("", "x"), ("x", "  "), ("", "")])
def test_an_empty_side_is_dropped(pair: Pair) -> None:
    assert run([pair]) == ([], {"empty": 1})


def test_the_longest_sentence_allowed_stays_and_one_word_more_is_dropped() -> None:
    cleaning = Cleaning(max_words=8)
    assert run([(words(8), words(8)), (words(8), words(9))], cleaning)[1] == {"kept": 1, "too_long": 1}


def test_the_ratio_counts_only_beyond_six_words() -> None:
    # 6 : 1 escapes; 7 : 2 = 3.5 is over 3; 9 : 3 = 3 is not
    pairs = [(words(1), words(6)), (words(7), words(2)), (words(9), words(3))]
    assert run(pairs)[1] == {"kept": 2, "length_ratio": 1}


def test_a_short_free_translation_survives() -> None:
    assert run([("Go.", "Geh jetzt weg hier.")])[1] == {"kept": 1}


def test_only_equal_pairs_are_duplicates() -> None:
    pairs = [("a", "x"), ("a", "y"), ("a ", " x")]
    assert run(pairs) == ([("a", "x"), ("a", "y")], {"kept": 2, "duplicate": 1})
    assert run(pairs, Cleaning(remove_duplicates=False))[1] == {"kept": 3}


def test_a_source_sentence_of_dev_or_test_is_a_leak() -> None:
    assert run([("a  b", "x"), ("c", "y")], held_out={"a b"}) == ([("c", "y")], {"kept": 1, "leak": 1})


def test_lowercase_is_a_choice() -> None:
    assert run([("Ab", "Cd")], Cleaning(lowercase=True))[0] == [("ab", "cd")]


@given(st.lists(st.tuples(st.text("ab \t", max_size=30), st.text("ab \t", max_size=30))))
def test_every_pair_is_kept_or_dropped_for_one_reason(pairs: list[Pair]) -> None:
    counts = CleaningCounts()
    kept = list(clean(pairs, Cleaning(max_words=5, max_ratio=1.5), counts))
    assert counts.read == len(pairs)
    assert counts.kept == len(kept)
