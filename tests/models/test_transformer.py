"""The Transformer: its size, its blindness to padding and to the future, its state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from konvoi.models._kernels import linear_cross_entropy
from konvoi.models.transformer import SIZES, Config, Model, num_parameters

NUM_PIECES = 40
PAD, EOS, BOS = 0, 1, 2


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def model() -> Model:
    torch.manual_seed(3)
    return Model(Config(size="tiny"), NUM_PIECES).eval()


def pieces(*shape: int) -> Tensor:
    return torch.randint(4, NUM_PIECES, shape, generator=torch.Generator().manual_seed(7))


def count_trainable(config: Config, num_pieces: int) -> int:
    """On the meta device, where weights have a shape and take no memory."""
    with torch.device("meta"):
        model = Model(config, num_pieces)
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def test_base_has_the_parameters_of_the_reference() -> None:
    # embedding 32,768 x 512 = 16,777,216
    # encoder   6 x (4 x 512^2 + 2 x 512 x 2,048 + 2,048 + 512 + 2 x 1,024) + 1,024 = 18,903,040
    # decoder   6 x (8 x 512^2 + 2 x 512 x 2,048 + 2,048 + 512 + 3 x 1,024) + 1,024 = 25,200,640
    assert 16_777_216 + 18_903_040 + 25_200_640 == 60_880_896
    assert count_trainable(Config(size="base"), 32_768) == 60_880_896


@pytest.mark.parametrize("size", SIZES)
def test_the_formula_counts_the_parameters_of_every_size(size: str) -> None:
    config = Config.model_validate({"size": size})
    assert num_parameters(config, 32_768) == count_trainable(config, 32_768)


def test_the_formula_counts_the_parameters_of_an_uneven_model() -> None:
    config = Config(size="tiny", encoder_layers=3, decoder_layers=1, width=48, ffn_width=70, heads=3)
    assert num_parameters(config, 101) == count_trainable(config, 101)


@pytest.mark.parametrize("size", ["tiny", "small"])
def test_forward_and_backward_are_finite_and_reach_every_weight(size: str) -> None:
    torch.manual_seed(3)
    model = Model(Config.model_validate({"size": size}), NUM_PIECES)
    source, target = pieces(4, 9), pieces(4, 7)
    source[1, 5:] = PAD
    hidden = model(source, target)
    assert hidden.shape == (4, 7, SIZES[size].width) and hidden.isfinite().all()
    loss_sum, _ = linear_cross_entropy(hidden.flatten(0, 1), model.embedding.weight, target.flatten(), 0.1)
    torch.autograd.backward(loss_sum)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


def test_a_model_made_from_the_state_of_another_gives_the_same(model: Model) -> None:
    torch.manual_seed(4)
    other = Model(model.config, NUM_PIECES).eval()
    source, target = pieces(2, 6), pieces(2, 5)
    assert not torch.equal(other(source, target), model(source, target))
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(source, target), model(source, target))


def test_the_state_holds_what_is_trained_and_no_more(model: Model) -> None:
    # Sines can be computed again; they would make the state depend on the longest sentence seen.
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize("length", [6, 80], ids=["short", "long"])
def test_a_padded_source_gives_the_same_output(model: Model, length: int) -> None:
    source, target = pieces(1, length), pieces(1, 8)
    padded = torch.cat((source, torch.full((1, 5), PAD)), dim=1)
    beside_a_longer_one = torch.cat((padded, pieces(1, length + 5)))
    with torch.no_grad():
        expected = model(source, target)
        torch.testing.assert_close(model(padded, target), expected, rtol=1e-4, atol=1e-4)
        both = model(beside_a_longer_one, target.expand(2, -1))
        torch.testing.assert_close(both[:1], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("length", [8, 80], ids=["short", "long"])
def test_the_decoder_cannot_see_the_future(model: Model, length: int) -> None:
    source, target = pieces(2, 6), pieces(2, length)
    changed = target.clone()
    changed[:, 5:] = (changed[:, 5:] - 4 + 1) % (NUM_PIECES - 4) + 4
    with torch.no_grad():
        before, after = model(source, target), model(source, changed)
    torch.testing.assert_close(after[:, :5], before[:, :5], rtol=1e-5, atol=1e-5)
    assert (after[:, 5:] - before[:, 5:]).abs().amax(-1).min() > 1e-3


def test_every_source_piece_and_its_position_matter(model: Model) -> None:
    source, target = pieces(1, 6), pieces(1, 4)
    with torch.no_grad():
        expected = model(source, target)
        for position in range(6):
            changed = source.clone()
            changed[0, position] = changed[0, position] % (NUM_PIECES - 4) + 4
            assert (model(changed, target) - expected).abs().max() > 1e-3
        assert (model(source.flip(1), target) - expected).abs().max() > 1e-3


def test_sentences_longer_than_the_first_table_of_positions_are_no_different(model: Model) -> None:
    source, target = pieces(1, 6), pieces(1, 300)
    with torch.no_grad():
        beginning = model(source, target[:, :200])
        torch.testing.assert_close(model(source, target)[:, :200], beginning, rtol=1e-4, atol=1e-4)


def test_dropout_acts_in_training_alone(model: Model) -> None:
    source, target = pieces(2, 6), pieces(2, 5)
    assert torch.equal(model(source, target), model(source, target))
    model.train()
    assert not torch.equal(model(source, target), model(source, target))


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"width": 100, "heads": 3}, "multiple of heads"),
        ({"width": 33, "heads": 3}, "even"),
        ({"dropout": 1.0}, "below 1"),
        ({"attention_dropout": 1.5}, "below 1"),
    ],
)
def test_a_config_that_cannot_be_built_says_why(keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        Config.model_validate(keys)


def test_a_given_key_departs_from_the_size() -> None:
    filled = Config(size="tiny", ffn_width=99).filled()
    assert (filled.ffn_width, filled.width, filled.heads) == (99, 128, 4)
    assert filled.attention_dropout == filled.dropout == 0.3
