"""The CPU kernels against torch's own operations."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from konvoi.models import _kernels
from konvoi.models._kernels import attention, dropout, dropout_add, linear_cross_entropy, random_keep, relu_dropout

PROBABILITIES = [0.1, 0.25, 0.3, 0.5]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def kept_share(probability: float) -> float:
    """1 - probability, in 1/256."""
    return round(256 * (1 - probability)) / 256


def is_near_by_chance(found: float, expected: float, deviation: float, count: int) -> bool:
    """Within five standard errors of a mean over `count` draws: by chance not so once in two million."""
    return abs(found - expected) < 5 * deviation / math.sqrt(count)


# Loss


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("num_tokens", [1, 7, 8, 9, 16, 19])
def test_loss_and_gradients_equal_those_of_torch(
    num_tokens: int, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Chunks of 8: less than one, exactly one or two, and one or two with a rest.
    monkeypatch.setattr(_kernels, "ROWS_PER_CHUNK", 8)
    hidden = torch.randn(num_tokens, 12, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(30, 12, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(30, (num_tokens,))
    loss_sum, likelihood_sum = linear_cross_entropy(hidden, weight, targets, smoothing)
    expected = functional.cross_entropy(hidden @ weight.t(), targets, label_smoothing=smoothing, reduction="sum")
    plain = functional.cross_entropy(hidden @ weight.t(), targets, reduction="sum")
    # The sums are kept in 32 bits: about seven digits.
    assert loss_sum.item() == pytest.approx(expected.item(), rel=1e-5)
    assert likelihood_sum.item() == pytest.approx(plain.item(), rel=1e-5)
    # A factor that is not 1 shows whether the gradient from above is passed on.
    found_grads = torch.autograd.grad(loss_sum * 0.25, (hidden, weight))
    expected_grads = torch.autograd.grad(expected * 0.25, (hidden, weight))
    torch.testing.assert_close(found_grads, expected_grads, rtol=1e-5, atol=1e-6)


def test_loss_equals_that_of_torch_at_the_chunk_size_in_use() -> None:
    num_tokens = 2 * _kernels.ROWS_PER_CHUNK + 3
    hidden, weight = torch.randn(num_tokens, 16, requires_grad=True), torch.randn(50, 16, requires_grad=True)
    targets = torch.randint(50, (num_tokens,))
    loss_sum, _ = linear_cross_entropy(hidden, weight, targets, 0.1)
    expected = functional.cross_entropy(hidden @ weight.t(), targets, label_smoothing=0.1, reduction="sum")
    torch.testing.assert_close(loss_sum, expected, rtol=1e-5, atol=1e-3)
    found_grads = torch.autograd.grad(loss_sum, (hidden, weight))
    torch.testing.assert_close(found_grads, torch.autograd.grad(expected, (hidden, weight)), rtol=1e-4, atol=1e-4)


def test_loss_without_gradients_is_the_same() -> None:
    hidden, weight, targets = torch.randn(9, 8), torch.randn(20, 8, requires_grad=True), torch.randint(20, (9,))
    with_grad = linear_cross_entropy(hidden, weight, targets, 0.1)
    with torch.no_grad():
        without = linear_cross_entropy(hidden, weight, targets, 0.1)
    assert not without[0].requires_grad and not with_grad[1].requires_grad
    assert torch.equal(with_grad[0], without[0]) and torch.equal(with_grad[1], without[1])


# Dropout


@pytest.mark.parametrize("probability", PROBABILITIES)
def test_the_kept_share_is_right_to_one_in_256(probability: float) -> None:
    assert abs(kept_share(probability) - (1 - probability)) <= 1 / 512
    keep = random_keep((1000, 1000), probability)
    share = kept_share(probability)
    assert is_near_by_chance(keep.float().mean().item(), share, math.sqrt(share * (1 - share)), count=1_000_000)


@pytest.mark.parametrize("shape", [(1,), (7,), (8,), (9,), (3, 5, 2)])
def test_a_mask_has_its_shape_whatever_the_number_of_elements(shape: tuple[int, ...]) -> None:
    keep = random_keep(shape, 0.5)
    assert keep.shape == shape and keep.dtype == torch.float32


def test_neighbours_in_a_mask_are_independent() -> None:
    # Eight masks come from one 64-bit number: both of two neighbours are kept a quarter of the time at 0.5.
    keep = random_keep((8 * 100_000,), 0.5).view(-1, 8).float()
    for column in range(1, 8):
        both = (keep[:, 0] * keep[:, column]).mean().item()
        assert is_near_by_chance(both, 0.25, math.sqrt(0.25 * 0.75), count=100_000)


@pytest.mark.parametrize("probability", PROBABILITIES)
@pytest.mark.parametrize("name", ["dropout", "dropout_add", "relu_dropout"])
def test_the_expectation_is_that_of_no_dropout(name: str, probability: float) -> None:
    count = 400_000
    ones = torch.ones(count)
    if name == "dropout_add":
        dropped = dropout_add(3 * ones, ones, probability, training=True) - 3
    else:
        kernel = dropout if name == "dropout" else relu_dropout
        dropped = kernel(ones, probability, training=True)
    # A one is kept with share s as 1 / s, else 0: mean 1, variance (1 - s) / s.
    share = kept_share(probability)
    deviation = math.sqrt((1 - share) / share)
    assert is_near_by_chance(dropped.double().mean().item(), 1.0, deviation, count)


@pytest.mark.parametrize("probability", PROBABILITIES)
def test_the_gradient_of_dropout_is_zero_exactly_where_dropped(probability: float) -> None:
    x = torch.randn(50, 41, requires_grad=True)
    out = dropout(x, probability, training=True)
    (grad,) = torch.autograd.grad(out.sum(), x)
    kept = out != 0
    assert 0 < kept.float().mean() < 1
    assert torch.equal(grad != 0, kept)
    torch.testing.assert_close(grad[kept], torch.full_like(grad[kept], 1 / kept_share(probability)))
    torch.testing.assert_close(out, x * grad)


@pytest.mark.parametrize("probability", PROBABILITIES)
def test_the_gradient_of_dropout_add_passes_to_both(probability: float) -> None:
    residual, x = torch.randn(50, 41, requires_grad=True), torch.randn(50, 41, requires_grad=True)
    above = torch.randn(50, 41)
    torch.manual_seed(5)
    out = dropout_add(residual, x, probability, training=True)
    torch.manual_seed(5)
    keep = random_keep(x.shape, probability)
    expected = residual + x * keep / kept_share(probability)
    torch.testing.assert_close(out, expected)
    found_grads = torch.autograd.grad(out, (residual, x), above)
    torch.testing.assert_close(found_grads, torch.autograd.grad(expected, (residual, x), above))
    assert torch.equal(found_grads[1] != 0, keep)


@pytest.mark.parametrize("probability", PROBABILITIES)
def test_relu_dropout_and_its_gradient_equal_autograd_under_the_same_mask(probability: float) -> None:
    x, above = torch.randn(50, 41), torch.randn(50, 41)
    x[0] = 0.0  # the corner of the relu: torch's gradient is zero there
    x.requires_grad_()
    torch.manual_seed(5)
    out = relu_dropout(x, probability, training=True)
    torch.manual_seed(5)
    expected = functional.relu(x) * random_keep(x.shape, probability) / kept_share(probability)
    torch.testing.assert_close(out, expected)
    found, autograd = torch.autograd.grad(out, x, above), torch.autograd.grad(expected, x, above)
    torch.testing.assert_close(found, autograd)


def test_one_seed_gives_one_mask_and_another_another() -> None:
    def draw(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return dropout(torch.ones(1000), 0.3, training=True)

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))


@pytest.mark.parametrize(("probability", "training"), [(0.0, True), (0.3, False)])
def test_without_dropout_nothing_is_dropped_or_drawn(probability: float, training: bool) -> None:
    x, residual = torch.randn(20), torch.randn(20)
    state = torch.get_rng_state()
    assert torch.equal(dropout(x, probability, training), x)
    assert torch.equal(dropout_add(residual, x, probability, training), residual + x)
    assert torch.equal(relu_dropout(x, probability, training), functional.relu(x))
    assert torch.equal(torch.get_rng_state(), state)


# Attention

SHORT, LONG = _kernels.SHORT_KEYS // 8, _kernels.SHORT_KEYS + 6


def query_key_value(queries: int, keys: int) -> tuple[Tensor, Tensor, Tensor]:
    shapes = [(3, 2, queries, 16), (3, 2, keys, 16), (3, 2, keys, 16)]
    query, key, value = (torch.randn(shape, requires_grad=True) for shape in shapes)
    return query, key, value


def padding_mask(keys: int) -> Tensor:
    """The second and third sentence end two and five keys early."""
    mask = torch.zeros(3, 1, 1, keys)
    mask[1, ..., -2:] = mask[2, ..., -5:] = float("-inf")
    return mask


def by_definition(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores + mask
    if causal:
        queries, keys = scores.shape[-2:]
        scores = scores.masked_fill(torch.arange(keys) > torch.arange(queries)[:, None], float("-inf"))
    return scores.softmax(-1) @ value


@pytest.mark.parametrize("case", ["plain", "causal", "masked", "cross", "one query"])
@pytest.mark.parametrize("keys", [SHORT, _kernels.SHORT_KEYS, LONG])
def test_attention_and_its_gradients_equal_those_of_torch(keys: int, case: str) -> None:
    queries = {"cross": keys // 2 + 1, "one query": 1}.get(case, keys)
    mask = padding_mask(keys) if case in ("masked", "cross", "one query") else None
    inputs, causal = query_key_value(queries, keys), case == "causal"
    found = attention(*inputs, mask=mask, causal=causal, probability=0.0)
    torchs = functional.scaled_dot_product_attention(*inputs, attn_mask=mask, is_causal=causal)
    torch.testing.assert_close(found, torchs, rtol=1e-4, atol=1e-5)
    defined = by_definition(*inputs, mask, causal)
    torch.testing.assert_close(found, defined, rtol=1e-4, atol=1e-5)
    above = torch.randn_like(found)
    found_grads, grads = torch.autograd.grad(found, inputs, above), torch.autograd.grad(defined, inputs, above)
    torch.testing.assert_close(found_grads, grads, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("keys", [SHORT, LONG])
def test_what_is_masked_has_no_influence(keys: int) -> None:
    query, key, value = query_key_value(4, keys)
    mask = padding_mask(keys)
    found = attention(query, key, value, mask=mask, causal=False, probability=0.0)
    with torch.no_grad():
        key[2, :, -5:], value[2, :, -5:] = 9.0, -9.0
    again = attention(query, key, value, mask=mask, causal=False, probability=0.0)
    torch.testing.assert_close(again, found)


@pytest.mark.parametrize("keys", [SHORT, LONG])
def test_attention_with_dropout_has_the_expectation_of_attention_without(keys: int) -> None:
    query, key, _ = query_key_value(keys, keys)
    ones = torch.ones(3, 2, keys, 16)
    # Weights sum to 1, so values of 1 come out as 1 on average; each draw's spread is at most that of a single weight.
    draws = [attention(query, key, ones, mask=None, causal=False, probability=0.25).mean().item() for _ in range(50)]
    count = 50 * 3 * 2 * keys
    assert is_near_by_chance(sum(draws) / 50, 1.0, math.sqrt(0.25 / 0.75), count)
    assert len(set(draws)) > 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gradients_are_near_those_of_fp32_even_where_shares_are_tiny(dtype: torch.dtype) -> None:
    # 60,000 pieces of like probability: a share of 1.7e-5 is subnormal in fp16.
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(20, 16, generator=generator)
    weight = 0.01 * torch.randn(60_000, 16, generator=generator)
    targets = torch.randint(0, 60_000, (20,), generator=generator)

    def gradient(kind: torch.dtype) -> torch.Tensor:
        own = weight.to(kind, copy=True).requires_grad_()
        loss_sum, _ = linear_cross_entropy(hidden.to(kind), own, targets, 0.0)
        torch.autograd.backward(loss_sum * 64)
        assert own.grad is not None
        is_target = torch.zeros(60_000, dtype=torch.bool).index_fill_(0, targets, True)
        return own.grad.float()[~is_target]

    exact = gradient(torch.float32)
    assert (gradient(dtype) - exact).norm() / exact.norm() < 0.02
