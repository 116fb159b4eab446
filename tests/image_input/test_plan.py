"""The order of the training pictures: every one exactly once an epoch, by seed and epoch alone."""

from __future__ import annotations

import numpy as np
import pytest

from konvoi.image_input.plan import Indices, TrainPlan


def pictures_of(plan: TrainPlan, position: int) -> Indices:
    epoch, first = plan.start(position)
    return plan.order(epoch)[first : first + plan.num_images(position)]


def test_ten_pictures_in_batches_of_four_make_batches_of_4_4_and_2() -> None:
    plan = TrainPlan(10, 4, seed=1)
    assert plan.num_per_epoch == 3
    assert [plan.num_images(position) for position in range(6)] == [4, 4, 2, 4, 4, 2]
    assert [plan.start(position) for position in range(6)] == [(0, 0), (0, 4), (0, 8), (1, 0), (1, 4), (1, 8)]


@pytest.mark.parametrize("num_images, images_per_batch", [(1, 1), (7, 7), (7, 8), (64, 16), (101, 10)])
def test_every_picture_comes_exactly_once_an_epoch(num_images: int, images_per_batch: int) -> None:
    plan = TrainPlan(num_images, images_per_batch, seed=3)
    for epoch in range(3):
        positions = range(epoch * plan.num_per_epoch, (epoch + 1) * plan.num_per_epoch)
        seen = np.concatenate([pictures_of(plan, position) for position in positions])
        assert sorted(seen) == list(range(num_images))


def test_the_order_changes_with_the_epoch_and_with_the_seed() -> None:
    plan = TrainPlan(100, 10, seed=1)
    assert not np.array_equal(plan.order(0), plan.order(1))
    assert not np.array_equal(plan.order(0), TrainPlan(100, 10, seed=2).order(0))


def test_a_position_holds_the_same_however_one_gets_there() -> None:
    forwards = TrainPlan(50, 8, seed=1)
    expected = [pictures_of(forwards, position) for position in range(30)]
    backwards = TrainPlan(50, 8, seed=1)
    for position in reversed(range(30)):
        assert np.array_equal(pictures_of(backwards, position), expected[position])


def test_epochs_far_away_are_forgotten() -> None:
    plan = TrainPlan(5, 5, seed=1)
    for epoch in range(20):
        plan.order(epoch)
    assert len(plan._orders) <= 3
