"""The plan of micro-batches: nothing lost, nothing twice, nothing too large, the same on every rank."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from konvoi.data.batching import SENTENCES_MULTIPLE, SOURCE_TOKENS_PER_TARGET_TOKEN, BatchPlan, gather
from konvoi.data.prepare import Data, prepare
from konvoi.data.tokens import TokenFile, TokenWriter

MULTI30K = Path(__file__).resolve().parents[3] / "shared" / "data" / "multi30k"

ON_A_BUSY_MACHINE = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])

# Pairs of lengths, source and target; max_tokens is at least the longest, as the task sees to.
LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=200)
MAX_TOKENS = st.integers(40, 400)


def plan_of(lengths: list[tuple[int, int]], max_tokens: int, seed: int = 1) -> BatchPlan:
    source, target = np.array(lengths, dtype=np.int32).T
    return BatchPlan(source, target, max_tokens, seed)


def like_sentences(count: int, seed: int) -> list[tuple[int, int]]:
    """Lengths as in real text: many short ones, source and target alike but not equal."""
    random = np.random.default_rng(seed)
    source = np.clip(random.gamma(4.0, 3.0, count), 1, 60).astype(int)
    target = np.clip(source * random.uniform(0.7, 1.4, count), 1, 60).astype(int)
    return list(zip(source.tolist(), target.tolist(), strict=True))


def together(plan: BatchPlan, positions: range) -> list[int]:
    return sorted(int(index) for position in positions for index in plan[position])


@ON_A_BUSY_MACHINE
@given(LENGTHS, MAX_TOKENS, st.integers(0, 3))
def test_every_sentence_comes_exactly_once_in_an_epoch(
    lengths: list[tuple[int, int]], max_tokens: int, epoch: int
) -> None:
    plan = plan_of(lengths, max_tokens)
    positions = range(epoch * plan.num_per_epoch, (epoch + 1) * plan.num_per_epoch)
    assert together(plan, positions) == list(range(len(lengths)))


@ON_A_BUSY_MACHINE
@given(LENGTHS, MAX_TOKENS)
def test_no_micro_batch_is_larger_than_it_may_be_with_its_padding(
    lengths: list[tuple[int, int]], max_tokens: int
) -> None:
    plan = plan_of(lengths, max_tokens)
    for indices in plan.micro_batches(0):
        assert len(indices) * plan.target_lengths[indices].max() <= max_tokens
        assert len(indices) * plan.source_lengths[indices].max() <= SOURCE_TOKENS_PER_TARGET_TOKEN * max_tokens


@ON_A_BUSY_MACHINE
@given(LENGTHS, MAX_TOKENS)
def test_every_rank_knows_how_many_targets_a_micro_batch_has(lengths: list[tuple[int, int]], max_tokens: int) -> None:
    plan = plan_of(lengths, max_tokens)
    for position in range(2 * plan.num_per_epoch):
        assert plan.num_targets(position) == sum(lengths[index][1] for index in plan[position])


@ON_A_BUSY_MACHINE
@given(LENGTHS, MAX_TOKENS)
def test_micro_batches_of_more_than_eight_sentences_hold_a_multiple_of_eight(
    lengths: list[tuple[int, int]], max_tokens: int
) -> None:
    sizes = [len(indices) for indices in plan_of(lengths, max_tokens).micro_batches(0)]
    # All but the one with the longest sentences, which takes the rest.
    odd = [size for size in sizes if size > SENTENCES_MULTIPLE and size % SENTENCES_MULTIPLE]
    assert len(odd) <= 1


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    lengths = like_sentences(500, seed=3)

    def order(seed: int, epoch: int) -> list[list[int]]:
        return [indices.tolist() for indices in plan_of(lengths, 256, seed).micro_batches(epoch)]

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)
    # Not the order of the micro-batches alone: who shares one changes too.
    assert {frozenset(one) for one in order(1, 0)} != {frozenset(one) for one in order(1, 1)}


def test_a_position_is_the_same_from_wherever_one_comes() -> None:
    lengths = like_sentences(300, seed=4)
    plan = plan_of(lengths, 256)
    last = 3 * plan.num_per_epoch - 1
    forwards = [plan[position].tolist() for position in range(last + 1)]
    backwards = [plan[position].tolist() for position in range(last, -1, -1)]
    assert forwards == backwards[::-1]
    assert plan_of(lengths, 256)[last].tolist() == forwards[last]


@pytest.mark.parametrize("num_workers", [1, 2, 3, 4])
def test_workers_share_out_the_same_sequence(num_workers: int) -> None:
    plan = plan_of(like_sentences(300, seed=5), 256)
    # As many steps as fill whole epochs for each of these: 12 = 1 x 12 = 2 x 6 = 3 x 4 = 4 x 3
    num_positions = 12 * plan.num_per_epoch
    shares = [range(rank, num_positions, num_workers) for rank in range(num_workers)]
    assert len({len(share) for share in shares}) == 1
    assert sorted(position for share in shares for position in share) == list(range(num_positions))
    seen = [index for share in shares for index in together(plan, share)]
    assert sorted(seen) == sorted(list(range(300)) * 12)


def test_real_lengths_waste_little() -> None:
    plan = plan_of(like_sentences(5000, seed=6), 1024)
    real = padded = 0
    for indices in plan.micro_batches(0):
        for lengths in (plan.source_lengths[indices], plan.target_lengths[indices]):
            real += int(lengths.sum())
            padded += int(lengths.max()) * len(indices)
    assert plan.padding() == pytest.approx(1 - real / padded)
    assert plan.padding() < 0.1


def test_a_sentence_as_long_as_all_that_fits_has_a_micro_batch_of_its_own() -> None:
    plan = plan_of([(5, 10), (5, 10), (5, 10), (5, 40)], 40)
    assert [3] in [indices.tolist() for indices in plan.micro_batches(0)]


def test_a_long_source_bounds_its_micro_batch_too() -> None:
    # Targets of 2 would go 20 at a time into 40; sources of 40 may have 2 x 40 / 40 = 2 at a time
    sizes = {len(indices) for indices in plan_of([(40, 2)] * 10, 40).micro_batches(0)}
    assert sizes == {2}


SENTENCES = st.lists(st.lists(st.integers(3, 500), min_size=1, max_size=20), min_size=1, max_size=30)


@ON_A_BUSY_MACHINE
@given(SENTENCES, st.data())
def test_gather_is_what_one_would_do_by_hand(
    tmp_path_factory: pytest.TempPathFactory, sentences: list[list[int]], data: st.DataObject
) -> None:
    prefix = tmp_path_factory.mktemp("tokens") / "train.en"
    with TokenWriter(prefix, num_pieces=501) as writer:
        writer.write(sentences)
    chosen = data.draw(st.lists(st.integers(0, len(sentences) - 1), min_size=1, max_size=10))
    longest = max(len(sentences[index]) for index in chosen)
    by_hand = [sentences[index] + [0] * (longest - len(sentences[index])) for index in chosen]
    found: NDArray[np.int64] = gather(TokenFile(prefix), np.array(chosen), pad=0)
    assert found.dtype == np.int64
    assert found.tolist() == by_hand


@pytest.mark.skipif(not MULTI30K.is_dir(), reason=f"needs the Multi30k files in {MULTI30K}")
def test_at_most_six_percent_of_multi30k_is_padding(tmp_path: Path) -> None:
    data = Data(set="multi30k-en-de", vocabulary_size=5000, lowercase=True)
    source, target = prepare(data, source="en", target="de", home=tmp_path, from_folder=MULTI30K).split("train")
    plan = BatchPlan(source.lengths, target.lengths, max_tokens=4096, seed=1)
    assert plan.num_per_epoch > 50
    assert plan.padding() <= 0.06
