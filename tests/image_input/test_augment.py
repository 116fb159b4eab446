"""What training and evaluation see of a picture."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from konvoi.image_input.augment import ASPECTS, Box, CentreView, Look, View, random_crop


def looks(view: View, count: int, width: int = 400, height: int = 300) -> list[Look]:
    return [view.of(1, 0, index)(width, height) for index in range(count)]


def area(box: Box) -> float:
    return (box.right - box.left) * (box.bottom - box.top)


def aspect(box: Box) -> float:
    return (box.right - box.left) / (box.bottom - box.top)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def test_a_crop_has_whole_pixels_inside_the_picture_and_at_least_its_area_and_aspect() -> None:
    boxes = [look.box for look in looks(View(size=32, min_area=0.25), 500)]
    for box in boxes:
        assert 0 <= box.left < box.right <= 400 and 0 <= box.top < box.bottom <= 300
        assert box == Box(*map(round, box))
        # Rounding to pixels moves a side by at most half of one.
        assert area(box) >= 0.25 * 400 * 300 * 0.98
        assert ASPECTS[0] * 0.98 <= aspect(box) <= ASPECTS[1] * 1.02
    assert len(set(boxes)) > 490


def test_sizes_and_aspects_are_spread_evenly_and_so_are_places() -> None:
    boxes = [look.box for look in looks(View(min_area=0.08), 4000, 1000, 1000)]
    # Both sides of 1 alike: the mean logarithm is 0.
    assert abs(mean([math.log(aspect(box)) for box in boxes])) < 0.02
    middles = [((box.left + box.right) / 2, (box.top + box.bottom) / 2) for box in boxes]
    assert abs(mean([x for x, _ in middles]) - 500) < 10
    assert abs(mean([y for _, y in middles]) - 500) < 10
    # Uniform from 0.08 to 1 would be 0.54; the largest in odd aspects don't fit and are drawn again.
    assert 0.45 < mean([area(box) / 1e6 for box in boxes]) < 0.54


def test_half_of_the_pictures_are_mirrored_and_none_without_flip() -> None:
    assert 450 < sum(look.is_mirrored for look in looks(View(), 1000)) < 550
    assert not any(look.is_mirrored for look in looks(View(flip=False), 100))


def test_what_is_seen_follows_from_seed_epoch_and_picture_alone() -> None:
    view = View()
    look = view.of(1, 2, 3)(400, 300)
    assert view.of(1, 2, 3)(400, 300) == look
    others = [view.of(2, 2, 3), view.of(1, 3, 3), view.of(1, 2, 4)]
    assert look not in [other(400, 300) for other in others]


def test_asking_one_look_twice_gives_the_same() -> None:
    looker = View().of(1, 2, 3)
    assert looker(400, 300) == looker(400, 300)


@pytest.mark.parametrize(
    "width, height, expected",
    [
        # 4/3 of the height is the widest, 4/3 of the width the highest
        (1000, 90, Box(440, 0, 560, 90)),
        (90, 1000, Box(0, 440, 90, 560)),
    ],
)
def test_where_no_crop_fits_the_middle_is_taken(width: int, height: int, expected: Box) -> None:
    def largest() -> Iterator[float]:
        while True:
            yield 0.999

    assert random_crop(width, height, 0.5, largest()) == expected


def test_a_picture_of_one_pixel_is_seen_whole() -> None:
    assert View().of(1, 2, 3)(1, 1).box == Box(0, 0, 1, 1)


def test_evaluation_sees_the_middle() -> None:
    # 512 x 256 is at the right size already: (512 - 224) / 2 = 144 and (256 - 224) / 2 = 16.
    assert CentreView(224, 256)(512, 256) == Look(Box(144, 16, 368, 240), 224)
    # Twice as large: the same part.
    assert CentreView(224, 256)(1024, 512).box == Box(288, 32, 736, 480)
