"""The few operations where a Transformer on a CPU loses its time, written so that it does not.

On a GPU each falls back to torch's own operation. Measurements: docs/speed.md.
Shapes: B sentences, Q queries, K keys, H heads, D width of a head, N tokens, W width, V pieces.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

# Rows of logits in flight: 256 x 10,000 x 4 bytes stay inside a last-level cache.
ROWS_PER_CHUNK = 256
# fp16 holds 6e-8 to 65,504; a share times this lies well inside.
FP16_BOOST = 1024.0
# Below this many keys one batched product beats the blocked kernel (2.6x at 14 keys, 2026-11-15).
SHORT_KEYS = 64


def _keep_of_256(probability: float) -> int:
    # 256 does not fit the byte that it is compared with; 0 would keep nothing.
    return min(255, max(1, round(256 * (1 - probability))))


def random_keep(shape: torch.Size | tuple[int, ...], probability: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """Ones where to keep, with 1 - probability to the nearest 1/256, and zeros elsewhere.

    torch draws a 32-bit number for every element (pytorch#138199); a byte suffices: 15 times faster. The mask is of
    the type it is multiplied with, since a comparison to bool and a conversion take ten times as long.
    """
    count = math.prod(shape)
    words = torch.empty((count + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
    keep = torch.empty(shape, dtype=dtype)
    torch.lt(words.view(torch.uint8)[:count].view(shape), _keep_of_256(probability), out=keep)
    return keep


class _DropoutAdd(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, residual: Tensor, x: Tensor, probability: float) -> Tensor:
        keep = random_keep(x.shape, probability, residual.dtype)
        ctx.save_for_backward(keep)
        ctx.scale = 256 / _keep_of_256(probability)
        ctx.dtype = x.dtype
        # Under autocast x is half as wide as the residual.
        return torch.addcmul(residual, x.to(residual.dtype), keep, value=ctx.scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        (grad,) = grads
        (keep,) = ctx.saved_tensors
        return grad, (grad * keep).mul_(ctx.scale).to(ctx.dtype), None


def dropout_add(residual: Tensor, x: Tensor, probability: float, training: bool) -> Tensor:
    """residual + dropout(x)"""
    if not training or probability == 0:
        return residual + x
    if x.device.type != "cpu":
        return residual + functional.dropout(x, probability)
    result: Tensor = _DropoutAdd.apply(residual, x, probability)  # type: ignore[no-untyped-call]
    return result


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, probability: float) -> Tensor:
        keep = random_keep(x.shape, probability, x.dtype)
        ctx.save_for_backward(keep)
        ctx.scale = 256 / _keep_of_256(probability)
        return (x * keep).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (grad,) = grads
        (keep,) = ctx.saved_tensors
        return (grad * keep).mul_(ctx.scale), None


def dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """torch's dropout, with cheap random numbers on a CPU."""
    if not training or probability == 0:
        return x
    if x.device.type != "cpu":
        return functional.dropout(x, probability)
    result: Tensor = _Dropout.apply(x, probability)  # type: ignore[no-untyped-call]
    return result


class _ReluDropout(torch.autograd.Function):
    """Saves its result alone: where that is positive, the gradient passes; elsewhere it is zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, probability: float) -> Tensor:
        ctx.scale = 256 / _keep_of_256(probability)
        out = functional.relu(x).mul_(random_keep(x.shape, probability, x.dtype)).mul_(ctx.scale)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (grad,) = grads
        (out,) = ctx.saved_tensors
        # sign is 1 where the result is positive; threshold_backward takes ten times as long on a CPU.
        return out.sign().mul_(grad).mul_(ctx.scale), None


def relu_dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """dropout(relu(x))"""
    if not training or probability == 0:
        return functional.relu(x)
    if x.device.type != "cpu":
        return functional.dropout(functional.relu(x), probability)
    result: Tensor = _ReluDropout.apply(x, probability)  # type: ignore[no-untyped-call]
    return result


def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, probability: float
) -> Tensor:
    """softmax(query key^T / sqrt(D) + mask) value; query [B,H,Q,D], key and value [B,H,K,D], mask [B,1,1,K] or None."""
    assert not (causal and mask is not None), "a causal row needs no mask: padding lies behind its end"
    if query.device.type != "cpu" or key.shape[2] > SHORT_KEYS:
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=probability, is_causal=causal
        )
    batch, heads, queries, width = query.shape
    keys = key.shape[2]
    flat_query = query.reshape(batch * heads, queries, width)
    flat_key = key.reshape(batch * heads, keys, width)
    flat_value = value.reshape(batch * heads, keys, width)
    scores = torch.bmm(flat_query * width**-0.5, flat_key.transpose(1, 2))
    if causal:
        scores = scores + scores.new_full((queries, keys), float("-inf")).triu_(1)
    if mask is not None:
        scores = (scores.view(batch, heads, queries, keys) + mask).view(batch * heads, queries, keys)
    weights = dropout(torch.softmax(scores, dim=-1), probability, training=probability > 0)
    return torch.bmm(weights, flat_value).view(batch, heads, queries, width)


class _LinearCrossEntropy(torch.autograd.Function):
    """Computes the gradient in the forward pass, chunk by chunk, so that no more than a chunk of logits ever exists.

    With smoothing e, the target distribution is (1 - e) on the right piece plus e / V on every piece. The uniform
    part needs no pass over the logits: their sum over the vocabulary is hidden . (sum of the weight's rows).
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_NW: Tensor, weight_VW: Tensor, targets_N: Tensor, smoothing: float, want_grad: bool
    ) -> tuple[Tensor, Tensor]:
        num_pieces = weight_VW.shape[0]
        weight_sum_W = weight_VW.sum(0)
        # Small shares would vanish in fp16, before the loss scale could save them.
        boost = FP16_BOOST if hidden_NW.dtype == torch.float16 else 1.0
        grad_hidden = torch.empty_like(hidden_NW) if want_grad else None
        grad_weight = torch.zeros_like(weight_VW, dtype=torch.float32) if want_grad else None
        loss_sum = torch.zeros((), dtype=torch.float32, device=hidden_NW.device)
        likelihood_sum = torch.zeros_like(loss_sum)
        # One buffer for all chunks: a fresh one would cost its page faults each time.
        buffer = hidden_NW.new_empty(min(ROWS_PER_CHUNK, hidden_NW.shape[0]), num_pieces)
        for start in range(0, hidden_NW.shape[0], ROWS_PER_CHUNK):
            rows = slice(start, start + ROWS_PER_CHUNK)
            hidden, targets = hidden_NW[rows], targets_N[rows]
            logits = torch.mm(hidden, weight_VW.t(), out=buffer[: hidden.shape[0]])
            right = logits.gather(1, targets[:, None]).squeeze(1).float()
            largest = logits.amax(dim=-1).float()
            shares = torch.softmax(logits, dim=-1, out=logits)
            # The largest logit's share is exp(largest - log_total), never below 1 / V: a safe logarithm.
            log_total = largest - shares.amax(dim=-1).float().log()
            uniform = (hidden @ weight_sum_W).float() / num_pieces
            loss_sum += (log_total - (1 - smoothing) * right - smoothing * uniform).sum()
            likelihood_sum += (log_total - right).sum()
            if grad_hidden is not None and grad_weight is not None:
                shares = shares.mul_(boost) if boost != 1 else shares
                torch.mm(shares, weight_VW, out=grad_hidden[rows])
                _add_product(grad_weight, shares.t(), hidden)
        if grad_hidden is not None and grad_weight is not None:
            grad_weight /= boost
            grad_hidden -= boost * ((1 - smoothing) * weight_VW[targets_N] + smoothing / num_pieces * weight_sum_W)
            ctx.boost = boost
            grad_weight.index_add_(0, targets_N, hidden_NW.float(), alpha=-(1 - smoothing))
            grad_weight -= smoothing / num_pieces * hidden_NW.sum(0, dtype=torch.float32)
            ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.mark_non_differentiable(likelihood_sum)
        return loss_sum, likelihood_sum

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        grad_hidden, grad_weight = ctx.saved_tensors
        scale = grads[0]
        grad_weight = (grad_weight * scale).to(grad_hidden.dtype)
        return grad_hidden * (scale / ctx.boost).to(grad_hidden.dtype), grad_weight, None, None, None


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right, where total is fp32: a sum over many chunks would lose its small parts in bf16."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total.add_(left @ right)


def linear_cross_entropy(
    hidden_NW: Tensor, weight_VW: Tensor, targets_N: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Sums over N tokens: the smoothed loss, and the plain negative log-likelihood (for perplexity).

    The logits are computed in autocast's type where it is on, else in the weight's.
    """
    device = hidden_NW.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight_VW.dtype
    with torch.autocast(device, enabled=False):
        result: tuple[Tensor, Tensor] = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
            hidden_NW.to(dtype), weight_VW.to(dtype), targets_N, smoothing, torch.is_grad_enabled()
        )
    return result
