"""Accuracies and confusions, counted by hand."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from konvoi.evaluate.accuracy import Confusion, Mistake, likeliest

# Three classes, six pictures: class 0 twice right; class 1 once right, twice taken for 2; class 2 taken for 0.
LABELS = np.array([0, 0, 1, 1, 1, 2])
TAKEN_FOR = np.array([0, 0, 1, 2, 2, 0])


def logits_for(classes: np.ndarray, num_classes: int) -> np.ndarray:
    """Highest at the given class, and falling with the number of the class elsewhere."""
    falling = np.tile(-np.arange(num_classes, dtype=np.float32), (len(classes), 1))
    falling[np.arange(len(classes)), classes] = 1
    return falling


def small() -> Confusion:
    confusion = Confusion(3)
    confusion.add(LABELS, logits_for(TAKEN_FOR, 3))
    return confusion


def many(num_classes: int) -> Confusion:
    """Class c is taken c times for the class after it, and ten times for itself."""
    confusion = Confusion(num_classes)
    for number in range(num_classes):
        labels = np.full(number + 10, number)
        taken_for = np.where(np.arange(number + 10) < number, (number + 1) % num_classes, number)
        confusion.add(labels, taken_for[:, None])
    return confusion


def test_rows_are_the_classes_and_columns_what_they_were_taken_for() -> None:
    assert small().counts.tolist() == [[2, 0, 0], [0, 1, 2], [1, 0, 0]]
    assert small().counts.dtype == np.int64


def test_accuracies_are_percentages_of_all_pictures() -> None:
    # 2 + 1 + 0 of 6; among five likeliest of three classes every class is.
    assert small().num_images == 6
    assert small().accuracy_1 == 50
    assert small().accuracy_5 == 100


def test_the_fifth_counts_for_accuracy_5_and_the_sixth_does_not() -> None:
    # Likeliest are 6, then 0, 1, 2, 3 and, too late, 4.
    confusion = Confusion(7)
    confusion.add(np.array([6, 3, 4, 5]), logits_for(np.array([6, 6, 6, 6]), 7))
    assert (confusion.accuracy_1, confusion.accuracy_5) == (25, 50)


def test_the_likeliest_classes_count_as_their_logits_do() -> None:
    generator = np.random.default_rng(1)
    logits, labels = generator.normal(size=(200, 12)), generator.integers(0, 12, 200)
    of_logits, of_classes = Confusion(12), Confusion(12)
    of_logits.add(labels, logits)
    of_classes.add(labels, np.argsort(-logits, axis=1))
    assert (of_logits.counts == of_classes.counts).all()
    assert of_logits.accuracy_5 == of_classes.accuracy_5
    # By its definition: fewer than five classes have more than the right one.
    own = logits[np.arange(200), labels][:, None]
    assert of_logits.accuracy_5 == 100 * ((logits > own).sum(axis=1) < 5).mean()


def test_batches_and_ranks_add_up_to_the_whole() -> None:
    parts = [Confusion(3), Confusion(3), Confusion(3)]
    # Two ranks, the first with two batches; a third without a picture. Each travels as bytes.
    parts[0].add(LABELS[:1], logits_for(TAKEN_FOR[:1], 3))
    parts[0].add(LABELS[1:4], logits_for(TAKEN_FOR[1:4], 3))
    parts[1].add(LABELS[4:], logits_for(TAKEN_FOR[4:], 3))
    whole = Confusion.merged(pickle.loads(pickle.dumps(part)) for part in parts)
    assert (whole.counts == small().counts).all()
    assert (whole.num_images, whole.accuracy_5) == (6, 100)
    assert parts[0].num_images == 4


def test_recall_is_the_share_of_a_class_that_was_recognised() -> None:
    assert small().recalls == pytest.approx([100, 100 / 3, 0])


def test_a_class_without_pictures_has_no_recall() -> None:
    confusion = Confusion(2)
    confusion.add(np.array([0, 0]), np.array([[0], [1]]))
    assert confusion.recalls[0] == 50
    assert np.isnan(confusion.recalls[1])


def test_no_pictures_are_no_success() -> None:
    assert (Confusion(3).num_images, Confusion(3).accuracy_1, Confusion(3).accuracy_5) == (0, 0, 0)


def test_a_model_that_has_diverged_is_not_right() -> None:
    # Not a number everywhere: class 0 it is, for all of four classes with one picture each.
    confusion = Confusion(4)
    confusion.add(np.arange(4), np.full((4, 4), np.nan))
    assert confusion.accuracy_1 == 25
    # A single one is never the likeliest.
    assert likeliest(np.array([[np.nan, 1.0, 2.0]])).tolist() == [[2, 1, 0]]


def test_of_equal_classes_the_first_are_the_likeliest() -> None:
    # 0, 1, 0, 1, 0 ...: all odd classes are equally likely.
    assert likeliest(np.arange(100.0)[None] % 2).tolist() == [[1, 3, 5, 7, 9]]


@pytest.mark.parametrize(("label", "taken_for"), [(3, 0), (-1, 0), (0, 3), (0, -1)])
def test_a_number_that_is_no_class_is_refused(label: int, taken_for: int) -> None:
    with pytest.raises(AssertionError, match="no class of 3"):
        Confusion(3).add(np.array([label]), np.array([[taken_for]]))


def test_mistakes_begin_with_the_most_frequent() -> None:
    assert small().mistakes() == [Mistake(1, 2, 2), Mistake(2, 0, 1)]
    assert small().mistakes(limit=1) == [Mistake(1, 2, 2)]


def test_equal_mistakes_are_in_the_order_of_the_classes() -> None:
    confusion = Confusion(3)
    confusion.add(np.array([2, 1, 0, 1]), np.array([[0], [2], [1], [0]]))
    assert confusion.mistakes() == [Mistake(0, 1, 1), Mistake(1, 0, 1), Mistake(1, 2, 1), Mistake(2, 0, 1)]


def test_few_classes_are_shown_as_a_matrix() -> None:
    lines = small().table(["cat", "big dog", "horse"]).split("\n")
    assert lines == [
        "class      recall %  0  1  2",
        "0 cat         100.0  2  .  .",
        "1 big dog      33.3  .  1  2",
        "2 horse         0.0  1  .  .",
    ]


def test_ten_classes_are_still_a_matrix_and_eleven_are_not() -> None:
    ten = many(10).table([*"abcdefghij"]).split("\n")
    assert len(ten) == 11 and ten[0].split()[-1] == "9"
    eleven = many(11).table([*"abcdefghijk"]).split("\n")
    # Class 10, which is k, is taken for class 0 ten times out of twenty.
    assert eleven[0].split() == ["class", "taken", "for", "pictures", "of"]
    assert eleven[1].split() == ["k", "a", "10", "20"]


def test_of_many_classes_the_fifteen_worst_mistakes_are_shown() -> None:
    lines = many(40).table([f"n{number}" for number in range(40)]).split("\n")
    assert len(lines) == 1 + 15
    # 39, 38 ... 25 pictures
    assert [int(line.split()[2]) for line in lines[1:]] == list(range(39, 24, -1))
    assert lines[2] == "n38    n39              38  48"


def test_a_class_without_pictures_is_shown_without_recall() -> None:
    confusion = Confusion(2)
    confusion.add(np.array([0]), np.array([[0]]))
    assert confusion.table(["cat", "dog"]).split("\n")[2].split() == ["1", "dog", "-", ".", "."]
