"""Every schedule against values worked out by hand."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from pydantic import ValidationError

from konvoi.config.schedules import SCHEDULES, Schedule, Span

# 100 steps in 4 epochs of 25
SPAN = Span(total_steps=100, steps_per_epoch=25.0, width=256)

SMALLEST: dict[str, dict[str, Any]] = {
    "constant": {"learning_rate": 0.5},
    "transformer": {"warmup": "20 steps"},
    "one-cycle": {"learning_rate": 0.5},
    "cosine": {"learning_rate": 0.5},
    "polynomial": {"learning_rate": 0.5},
    "exponential": {"learning_rate": 0.5, "every": "10 steps"},
    "piecewise": {"boundaries": ["30 steps"], "rates": [0.5, 0.1]},
}


def schedule(name: str, **keys: Any) -> Schedule:
    return SCHEDULES[name].model_validate({**SMALLEST[name], **keys})


def rates(name: str, steps: list[int], **keys: Any) -> list[float]:
    made = schedule(name, **keys)
    return [made.rate(step, SPAN) for step in steps]


def test_every_schedule_is_in_this_file() -> None:
    assert len(SCHEDULES) > 0
    assert set(SCHEDULES) == set(SMALLEST)
    assert all(kind.model_fields["name"].default == name for name, kind in SCHEDULES.items())


def test_constant_stays_what_it_is() -> None:
    assert rates("constant", [1, 50, 100, 1000]) == [0.5, 0.5, 0.5, 0.5]


def test_the_transformer_schedule_peaks_at_the_end_of_its_warm_up() -> None:
    # factor x width^-0.5 x warmup^-0.5 = 2 x 256^-0.5 x 25^-0.5 = 2 / 16 / 5 = 0.025
    made = schedule("transformer", factor=2.0, warmup="25 steps")
    assert made.rate(25, SPAN) == pytest.approx(0.025)
    assert max(range(1, 101), key=lambda step: made.rate(step, SPAN)) == 25


def test_the_transformer_schedule_rises_in_a_line_and_falls_with_the_root() -> None:
    # step 5 of 25: 0.025 x 5 / 25 = 0.005; step 100: 2 / 16 / 10 = 0.0125
    assert rates("transformer", [5, 100], factor=2.0, warmup="25 steps") == pytest.approx([0.005, 0.0125])
    # The same in epochs of 25 steps
    assert rates("transformer", [5, 100], factor=2.0, warmup="1 epoch") == pytest.approx([0.005, 0.0125])


def test_one_cycle_goes_up_and_down_along_cosines() -> None:
    # The peak 0.5 after a rise of 20 steps, from 0.04 x 0.5 = 0.02, down to 0.1 x 0.5 = 0.05 at step 100.
    # Half way up, at step 10: (0.02 + 0.5) / 2 = 0.26; half way down, at step 60: (0.5 + 0.05) / 2 = 0.275
    # A third of the way down, 20 + 80 / 3, cosine of 60 degrees = 1/2: not a whole step; a quarter, at step 40:
    # 0.05 + 0.45 x (1 + cos 45) / 2 = 0.05 + 0.45 x 0.853553 = 0.434099
    found = rates("one-cycle", [10, 20, 40, 60, 100], rise=0.2, start=0.04, end=0.1)
    assert found == pytest.approx([0.26, 0.5, 0.434099, 0.275, 0.05], rel=1e-5)


def test_one_cycle_stays_at_its_end() -> None:
    assert rates("one-cycle", [100, 101, 500], end=0.1) == pytest.approx([0.05, 0.05, 0.05])


def test_cosine_falls_to_its_end() -> None:
    # With end 0.2: 0.2 + 0.8 x (1 + cos(180 x done)) / 2, times 0.5.
    # done 1/4: 0.2 + 0.8 x 0.853553 = 0.882843; done 1/2: 0.6; done 1: 0.2
    assert rates("cosine", [25, 50, 100, 200], end=0.2) == pytest.approx([0.441421, 0.3, 0.1, 0.1], rel=1e-5)
    assert rates("cosine", [100]) == pytest.approx([0.0])


def test_cosine_after_a_warm_up_shares_out_the_rest() -> None:
    # Warm-up 40: step 10 has 10/40 of 0.5; the other 60 steps fall, half way at step 70
    assert rates("cosine", [10, 40, 70, 100], warmup="40 steps") == pytest.approx([0.125, 0.5, 0.25, 0.0])


def test_polynomial_is_a_line_unless_told() -> None:
    assert rates("polynomial", [25, 50, 100]) == pytest.approx([0.375, 0.25, 0.0])
    # Squared, to the end 0.2: step 50: 0.2 + 0.8 x (1 - 0.5)^2 = 0.4, times 0.5
    assert rates("polynomial", [50, 100], power=2.0, end=0.2) == pytest.approx([0.2, 0.1])


def test_exponential_keeps_its_factor_every_so_often() -> None:
    # Half every 10 steps: 0.5 x 0.5^(step / 10)
    assert rates("exponential", [10, 20, 25]) == pytest.approx([0.25, 0.125, 0.5 * 0.5**2.5])
    # The same counted from the end of a warm-up of 5
    assert rates("exponential", [1, 5, 15, 25], warmup="5 steps") == pytest.approx([0.1, 0.5, 0.25, 0.125])


def test_piecewise_changes_after_each_boundary() -> None:
    keys = {"boundaries": ["10 steps", "2 epochs"], "rates": [0.3, 0.2, 0.1]}
    # 2 epochs are 50 steps; a boundary is the last step of its rate
    assert rates("piecewise", [1, 10, 11, 50, 51, 100], **keys) == [0.3, 0.3, 0.2, 0.2, 0.1, 0.1]
    # A warm-up of 4 takes its share: 0.3 x 1/4
    assert rates("piecewise", [1, 4, 5], warmup="4 steps", **keys) == pytest.approx([0.075, 0.3, 0.3])


def test_piecewise_needs_one_rate_more_than_boundaries() -> None:
    with pytest.raises(ValidationError, match="needs one rate more than boundaries, has 1 and 1"):
        schedule("piecewise", rates=[0.1])


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_warm_up_rises_in_equal_steps_from_nothing(name: str) -> None:
    found = rates(name, [1, 2, 3, 4, 20], warmup="20 steps")
    assert found[0] > 0
    assert found == pytest.approx([found[0] * times for times in (1, 2, 3, 4, 20)])


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "piecewise"])
@pytest.mark.parametrize("warmup", ["20 steps", None])
def test_nothing_jumps(name: str, warmup: str | None) -> None:
    slow = {"every": "100 steps"} if name == "exponential" else {}
    made = schedule(name, **slow, **({"warmup": warmup} if warmup else {}))
    span = Span(total_steps=10_000, steps_per_epoch=25.0)
    found = [made.rate(step, span) for step in range(1, 10_002)]
    # The steepest honest slope here is the warm-up's, a 20th of the highest rate.
    assert max(abs(after - before) for before, after in itertools.pairwise(found)) <= max(found) / 20 * 1.001


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("total_steps", [0, 1, 3, 100])
def test_every_rate_is_a_finite_number_even_where_the_end_is_near_or_unknown(name: str, total_steps: int) -> None:
    made = schedule(name, warmup="20 steps")
    span = Span(total_steps=total_steps, steps_per_epoch=25.0)
    assert all(math.isfinite(made.rate(step, span)) and made.rate(step, span) >= 0 for step in range(1, 200))
