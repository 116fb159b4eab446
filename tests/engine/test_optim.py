"""Optimisers by hand, and their state as plain tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from konvoi.config.sections import Optim
from konvoi.engine import optim
from konvoi.engine.average import MovingAverage
from konvoi.engine.muon import COEFFICIENTS, NUM_ITERATIONS, orthogonal
from konvoi.sync import HiddenShape, num_hidden

NAMES = ("adam", "adamw", "muon", "sgd")


def one_weight(value: float = 1.0) -> nn.Linear:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


def step(model: nn.Module, optimizer: torch.optim.Optimizer, gradient: float, rate: float = 0.1) -> None:
    optim.set_rate(optimizer, rate)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, gradient)
    optimizer.step()


def build(model: nn.Module, **keys: Any) -> torch.optim.Optimizer:
    return optim.build(Optim.model_validate(keys), model)


def test_every_optimiser_is_in_this_file() -> None:
    assert set(NAMES) == set(Optim.model_fields["name"].annotation.__args__)  # type: ignore[union-attr]


def test_sgd_by_hand() -> None:
    model = one_weight()
    optimizer = build(model, name="sgd", momentum=0.5)
    step(model, optimizer, gradient=2.0)
    # momentum 2: 1 - 0.1 x 2 = 0.8
    assert model.weight.item() == pytest.approx(0.8)
    step(model, optimizer, gradient=4.0)
    # momentum 0.5 x 2 + 4 = 5: 0.8 - 0.1 x 5 = 0.3
    assert model.weight.item() == pytest.approx(0.3)


class Layers(nn.Module):
    """A first layer, a hidden one and biases."""

    EDGES = ("first.weight",)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.hidden = nn.Linear(2, 2), nn.Linear(2, 2, bias=False)


def test_muon_moves_a_hidden_matrix_by_the_same_in_every_direction_and_the_rest_as_adam_does() -> None:
    model = Layers()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = build(model, name="muon", momentum=0.9, edge_rate=0.5, weight_decay=0.1)
    optim.set_rate(optimizer, 0.1)
    model.hidden.weight.grad = torch.tensor([[300.0, 0.0], [0.0, -200.0]])
    model.first.weight.grad = torch.full((2, 2), 7.0)
    model.first.bias.grad = torch.full((2,), -7.0)
    optimizer.step()
    # Weight decay leaves 1 - 0.1 x 0.1 = 0.99; a diagonal stays one, and both of its numbers become about 1 in size.
    change = (0.99 * before["hidden.weight"] - model.hidden.weight.detach()) / 0.1
    assert change[0, 1] == pytest.approx(0, abs=1e-4) and change[1, 0] == pytest.approx(0, abs=1e-4)
    assert 0.65 < change[0, 0] < 1.25 and -1.25 < change[1, 1] < -0.65
    # Adam's first step is one rate long, here 0.5 x 0.1; 1 - 0.05 x 0.1 = 0.995 is left by weight decay.
    assert torch.allclose(model.first.weight, 0.995 * before["first.weight"] - 0.05, atol=1e-5)
    assert torch.allclose(model.first.bias, before["first.bias"] + 0.05, atol=1e-5)


def test_shapes_tell_apart_what_muon_turns_orthogonal() -> None:
    for name, expected in (("muon", 1), ("adam", 0)):
        optimizer, shapes = build(Layers(), name=name), optim.shapes(Optim(name=name), Layers())
        groups = optimizer.param_groups
        assert list(shapes) == [tuple(parameter.shape) for parameter in Layers().parameters()]
        assert num_hidden(shapes) == sum(p.numel() for g in groups if g.get("is_hidden") for p in g["params"])
        assert sum(isinstance(shape, HiddenShape) for shape in shapes) == expected


def test_muon_takes_a_convolution_for_a_matrix_of_its_output_channels() -> None:
    model = nn.Conv2d(3, 4, 2, bias=False)
    gradient = torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(1))
    before, model.weight.grad = model.weight.detach().clone(), gradient
    optimizer = build(model, name="muon", momentum=0.9)
    optim.set_rate(optimizer, 1.0)
    optimizer.step()
    # Momentum after one step is the gradient times a number, which its norm takes out; 4 rows, 12 columns.
    expected = orthogonal(gradient.reshape(4, 12)).view(4, 3, 2, 2)
    assert torch.allclose(before - model.weight, expected, atol=1e-5)


@pytest.mark.parametrize("shape", [(8, 72), (72, 8), (64, 64), (10, 512)])
def test_an_orthogonal_matrix_keeps_the_directions_and_evens_out_the_lengths(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    lengths = left.T @ orthogonal(matrix) @ right.T
    assert (lengths - lengths.diag().diag()).abs().max() < 1e-3
    assert lengths.diag().max() < 1.25
    # What is a hundredth of the largest, or less, may stay short.
    values = torch.linalg.svdvals(matrix)
    assert lengths.diag()[values > 0.05 * values.max()].min() > 0.65


def test_the_product_of_polynomials_is_the_plain_iteration() -> None:
    matrix = torch.randn(6, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = matrix / matrix.norm()
    for _ in range(NUM_ITERATIONS):
        a, b, c = COEFFICIENTS
        inner = x @ x.T
        x = a * x + (b * inner + c * inner @ inner) @ x
    assert torch.allclose(orthogonal(matrix), x, atol=1e-4)


def test_a_matrix_without_a_gradient_stays_finite() -> None:
    assert orthogonal(torch.zeros(3, 5)).tolist() == [[0.0] * 5] * 3


def test_adam_by_hand() -> None:
    model = one_weight()
    optimizer = build(model, name="adam", beta1=0.9, beta2=0.99)
    step(model, optimizer, gradient=2.0)
    # Both moments are corrected for their start at 0: 1 - 0.1 x 2 / sqrt(4) = 0.9
    assert model.weight.item() == pytest.approx(0.9)
    step(model, optimizer, gradient=4.0)
    # First moment  0.9 x 0.2 + 0.1 x 4 = 0.58, corrected by 1 - 0.9^2 = 0.19: 3.052632
    # Second moment 0.99 x 0.04 + 0.01 x 16 = 0.1996, corrected by 1 - 0.99^2 = 0.0199: 10.030151, its root 3.167041
    # 0.9 - 0.1 x 3.052632 / 3.167041 = 0.803612
    assert model.weight.item() == pytest.approx(0.803612, rel=1e-5)


def test_longer_steps_shrink_the_weight_no_more() -> None:
    model = one_weight()
    optimizer = build(model, name="adamw", weight_decay=0.5)
    # The decay is 0.1 x 0.5 each time; Adam's first steps are as long as the rate, so twice and four times as long.
    weight = 1.0
    for factor in (2.0, 4.0):
        optim.set_rate(optimizer, 0.1, factor)
        model.weight.grad = torch.ones_like(model.weight)
        optimizer.step()
        weight = weight * (1 - 0.1 * 0.5) - factor * 0.1
        assert model.weight.item() == pytest.approx(weight)


def test_a_longer_momentum_looks_back_over_as_many_times_as_many_steps() -> None:
    model = nn.Linear(2, 2)
    optimizer = build(model, name="muon", momentum=0.81)
    # What is left of a gradient after two steps is what was left after one: 0.9 x 0.9 = 0.81
    for span, expected in ((2.0, 0.9), (4.0, 0.9**0.5), (1.0, 0.81)):
        optim.set_momentum(optimizer, span)
        matrix, bias = optimizer.param_groups
        assert (matrix["is_hidden"], bias["is_hidden"]) == (True, False)
        assert (matrix["momentum"], bias["momentum"]) == pytest.approx((expected, 0.81))


def test_adamw_shrinks_the_weight_itself() -> None:
    model = one_weight(2.0)
    step(model, build(model, name="adamw", weight_decay=0.5), gradient=1.0)
    # 2 x (1 - 0.1 x 0.5) - 0.1 x 1 = 1.8
    assert model.weight.item() == pytest.approx(1.8)


@pytest.mark.parametrize("name", NAMES)
def test_weight_decay_spares_biases_and_norms(name: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    nn.init.ones_(model[0].bias)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    step(model, build(model, name=name, weight_decay=0.5), gradient=0.0)
    changed = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    assert changed == {"0.weight"}


@pytest.mark.parametrize("name", NAMES)
def test_an_optimiser_is_restored_by_its_tensors(name: str) -> None:
    models = [nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    one, other = (build(model, name=name) for model in models)
    step(models[0], one, gradient=2.0)
    models[1].load_state_dict(models[0].state_dict())
    stored = {key: tensor.clone() for key, tensor in optim.state_tensors(one).items()}
    optim.load_state_tensors(other, stored)
    assert {key: tensor.tolist() for key, tensor in optim.state_tensors(other).items()} == {
        key: tensor.tolist() for key, tensor in stored.items()
    }
    for gradient in (1.0, -3.0):
        for model, optimizer in zip(models, (one, other), strict=True):
            step(model, optimizer, gradient)
    assert all(torch.equal(a, b) for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True))


def test_before_the_first_step_there_is_nothing_to_store() -> None:
    optimizer = build(one_weight())
    assert optim.state_tensors(optimizer) == {}
    optim.load_state_tensors(optimizer, {})


def set_weight(model: nn.Linear, value: float) -> None:
    with torch.no_grad():
        model.weight.fill_(value)


def test_the_moving_average_by_hand() -> None:
    model = one_weight(0.0)
    average = MovingAverage(model, decay=0.25)
    set_weight(model, 11.0)
    average.update(step=1)
    # (1 + 1) / (10 + 1) = 2/11 is less than 0.25: 0 x 2/11 + 11 x 9/11 = 9
    assert average.average[0].item() == pytest.approx(9.0)
    set_weight(model, 1.0)
    average.update(step=100)
    # 101 / 110 is more than 0.25: 9 x 0.25 + 1 x 0.75 = 3
    assert average.average[0].item() == pytest.approx(3.0)
    assert model.weight.item() == 1.0


def test_the_model_holds_the_average_for_a_while_and_then_its_own_weights() -> None:
    model = one_weight(0.0)
    average = MovingAverage(model, decay=0.25)
    set_weight(model, 5.0)
    with average.in_place():
        assert model.weight.item() == 0.0
    assert model.weight.item() == 5.0
    with pytest.raises(KeyError), average.in_place():
        raise KeyError
    assert (model.weight.item(), average.average[0].item()) == (5.0, 0.0)


def test_the_moving_average_is_restored_by_its_tensors() -> None:
    model = nn.Linear(2, 3)
    average = MovingAverage(model, decay=0.5)
    nn.init.ones_(model.weight)
    average.update(step=50)
    stored: dict[str, Tensor] = {key: tensor.clone() for key, tensor in average.tensors().items()}
    assert stored.keys() == {"weight", "bias"}
    other = MovingAverage(nn.Linear(2, 3), decay=0.5)
    other.load(stored)
    assert all(torch.equal(stored[key], tensor) for key, tensor in other.tensors().items())
