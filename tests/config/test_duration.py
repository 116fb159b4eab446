"""Durations: what people write, what comes back, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from konvoi.config.duration import UNITS, Length, parse

WHOLE_STEPS = st.builds(Length, st.integers(1, 10**9).map(float), st.just("step"))
OTHERS = st.builds(Length, st.floats(1e-6, 1e9), st.sampled_from([unit for unit in UNITS if unit != "step"]))


@settings(deadline=None)
@given(st.one_of(WHOLE_STEPS, OTHERS))
def test_what_is_printed_is_read_back_as_the_same(length: Length) -> None:
    assert parse(str(length)) == length


@pytest.mark.parametrize(
    ("text", "count", "unit"),
    [
        ("500 steps", 500, "step"),
        ("1 step", 1, "step"),
        ("2 steps", 2, "step"),
        ("10_000 steps", 10_000, "step"),
        ("  3epochs ", 3, "epoch"),
        ("0.5 Epochs", 0.5, "epoch"),
        ("90 seconds", 90, "second"),
        ("30 minutes", 30, "minute"),
        ("1.5 hours", 1.5, "hour"),
    ],
)
def test_people_may_write_it_in_many_ways(text: str, count: float, unit: str) -> None:
    assert parse(text) == Length(count, unit)


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (Length(1.0, "step"), "1 step"),
        (Length(8000, "step"), "8000 steps"),
        (Length(1_000_000.0, "step"), "1000000 steps"),
        (Length(0.00001, "epoch"), "0.00001 epochs"),
        (Length(1.5, "hour"), "1.5 hours"),
    ],
)
def test_it_is_printed_with_all_its_digits(length: Length, text: str) -> None:
    assert str(length) == text


@pytest.mark.parametrize(
    "text", ["500", 500, 5.5, "steps", "", "-5 steps", "5 weeks", "1e3 steps", "1.2.3 steps", None]
)
def test_what_has_no_number_or_no_known_unit_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="must be a number and one of steps, epochs"):
        parse(text)


@pytest.mark.parametrize(("text", "problem"), [("0 steps", "more than 0"), ("0.0 hours", "more than 0")])
def test_nothing_is_no_duration(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse(text)


def test_half_a_step_is_refused() -> None:
    with pytest.raises(ValueError, match="whole number of steps"):
        parse("1.5 steps")


def test_an_epoch_counts_as_many_steps_as_it_has() -> None:
    # 2.5 epochs x 40.2 steps = 100.5, to the even neighbour: 100
    assert parse("2.5 epochs").steps(40.2) == 100
    assert parse("7 steps").steps(40.2) == 7
    # 0.001 epochs x 40 steps = 0.04: at least one step
    assert parse("0.001 epochs").steps(40) == 1


def test_only_a_time_has_seconds_and_only_a_count_has_steps() -> None:
    assert [parse(text).seconds for text in ("3 seconds", "3 minutes", "3 hours")] == [3, 180, 10_800]
    assert [parse(text).seconds for text in ("3 steps", "3 epochs")] == [None, None]
    assert parse("3 hours").steps(40) is None
