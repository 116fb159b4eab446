"""Pictures that an evaluation keeps."""

from __future__ import annotations

import base64

import numpy as np
import simplejpeg

from konvoi.evaluate.picture_samples import PictureSamples

WORDS = ["red", "blue"]


def batch(count: int, side: int = 8) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All of class 0, and taken for class 1 with a probability of three quarters."""
    return (
        np.full((count, side, side, 3), 200, np.uint8),
        np.zeros(count, np.int64),
        np.tile(np.array([0.25, 0.75], np.float32), (count, 1)),
    )


def test_they_are_taken_at_equal_distances_over_all_batches() -> None:
    samples = PictureSamples(3, num_pictures=12, class_words=WORDS)
    images, labels, probabilities = batch(12)
    # 12 / 3 = 4: pictures 0, 4 and 8
    labels[[0, 4, 8]] = 1
    for first in (0, 5, 10):
        samples.add(images[first : first + 5], labels[first : first + 5], probabilities[first : first + 5])
    assert [sample["class"] for sample in samples.samples] == ["blue"] * 3


def test_a_sample_tells_class_guess_and_probability_and_shows_the_picture() -> None:
    samples = PictureSamples(1, num_pictures=1, class_words=WORDS)
    samples.add(*batch(1))
    (sample,) = samples.samples
    assert (sample["class"], sample["guess"], sample["probability"]) == ("red", "blue", 0.75)
    pixels = simplejpeg.decode_jpeg(base64.b64decode(sample["jpeg"]))
    assert pixels.shape == (8, 8, 3) and abs(int(pixels.mean()) - 200) < 3


def test_a_large_picture_becomes_small() -> None:
    samples = PictureSamples(1, num_pictures=1, class_words=WORDS)
    samples.add(*batch(1, side=512))
    assert simplejpeg.decode_jpeg(base64.b64decode(samples.samples[0]["jpeg"])).shape == (128, 128, 3)


def test_none_are_kept_where_none_are_wanted() -> None:
    samples = PictureSamples(0, num_pictures=5, class_words=WORDS)
    samples.add(*batch(5))
    assert samples.samples == []


def test_fewer_pictures_than_wanted_are_all_kept() -> None:
    samples = PictureSamples(6, num_pictures=2, class_words=WORDS)
    samples.add(*batch(2))
    assert len(samples.samples) == 2
