"""The Transformer of "Attention Is All You Need" with layer norms before each block, and one embedding for all.

Shapes: B sentences, S source and T target positions, W width, H heads, D width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Self

import torch
from pydantic import NonNegativeFloat, PositiveInt, model_validator
from torch import Tensor, nn

from konvoi.config.section import Section
from konvoi.models._kernels import attention, dropout, dropout_add, relu_dropout


@dataclass(frozen=True)
class Size:
    layers: int
    width: int
    ffn_width: int
    heads: int
    dropout: float


SIZES = {
    "tiny": Size(layers=4, width=128, ffn_width=256, heads=4, dropout=0.3),
    "small": Size(layers=4, width=256, ffn_width=1024, heads=4, dropout=0.2),
    "base": Size(layers=6, width=512, ffn_width=2048, heads=8, dropout=0.1),
    "big": Size(layers=6, width=1024, ffn_width=4096, heads=16, dropout=0.3),
}


# Positions beyond these are computed when they are met.
LONGEST_TABLE = 1024


class Config(Section):
    """The recipe's [model] table: a size, and what departs from it."""

    name: Literal["transformer"] = "transformer"
    size: Literal["tiny", "small", "base", "big"] = "base"
    """Sets every key below that is not given."""
    encoder_layers: PositiveInt | None = None
    decoder_layers: PositiveInt | None = None
    width: PositiveInt | None = None
    """Width of the embedding and of every layer."""
    ffn_width: PositiveInt | None = None
    """Inner width of the feed-forward blocks."""
    heads: PositiveInt | None = None
    dropout: NonNegativeFloat | None = None
    """On embeddings, on what a block adds, inside the feed-forward block."""
    attention_dropout: NonNegativeFloat | None = None
    """On attention weights; like dropout unless given."""

    @model_validator(mode="after")
    def _fits(self) -> Config:
        filled = self.filled()
        assert filled.width is not None and filled.heads is not None
        if filled.width % filled.heads:
            raise ValueError(f"width {filled.width} must be a multiple of heads {filled.heads}")
        if filled.width % 2:
            raise ValueError(f"width {filled.width} must be even (half sines, half cosines)")
        for key in ("dropout", "attention_dropout"):
            if getattr(filled, key) >= 1:
                raise ValueError(f"{key} must be below 1")
        return self

    def filled(self) -> Config:
        """The same with every key set."""
        size = SIZES[self.size]
        values = {
            "encoder_layers": size.layers,
            "decoder_layers": size.layers,
            "width": size.width,
            "ffn_width": size.ffn_width,
            "heads": size.heads,
            "dropout": size.dropout,
        }
        values |= {key: getattr(self, key) for key in values if getattr(self, key) is not None}
        attention_dropout = values["dropout"] if self.attention_dropout is None else self.attention_dropout
        return self.model_copy(update=values | {"attention_dropout": attention_dropout})


def split_heads(x_BTN: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    """[B,T,parts*W] -> parts tensors [B,H,T,D]"""
    batch, length, _ = x_BTN.shape
    return x_BTN.view(batch, length, parts, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)


def join_heads(x_BHTD: Tensor) -> Tensor:
    """[B,H,T,D] -> [B,T,W]"""
    return x_BHTD.transpose(1, 2).flatten(2)


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence to itself, without biases; one product makes queries, keys and values."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x_BTW: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        query, key, value = split_heads(self.query_key_value(x_BTW), 3, self.heads)
        probability = self.dropout if self.training else 0.0
        out: Tensor = self.out(join_heads(attention(query, key, value, mask, causal, probability)))
        return out

    def step(self, x_B1W: Tensor, cache: LayerCache) -> Tensor:
        """One more position, which sees itself and those in the cache."""
        query, key, value = split_heads(self.query_key_value(x_B1W), 3, self.heads)
        cache.append(key, value)
        out: Tensor = self.out(join_heads(attention(query, *cache.own, mask=None, causal=False, probability=0.0)))
        return out


class CrossAttention(nn.Module):
    """Multi-head attention of the target to the memory; the memory's keys and values are computed once."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query = nn.Linear(width, width, bias=False)
        self.key_value = nn.Linear(width, 2 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def keys_values(self, memory_BSW: Tensor) -> tuple[Tensor, Tensor]:
        """[B,H,S,D] each"""
        key, value = split_heads(self.key_value(memory_BSW), 2, self.heads)
        return key, value

    def forward(self, x_BTW: Tensor, keys_values: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        (query,) = split_heads(self.query(x_BTW), 1, self.heads)
        probability = self.dropout if self.training else 0.0
        mixed = attention(query, *keys_values, mask=mask, causal=False, probability=probability)
        out: Tensor = self.out(join_heads(mixed))
        return out


class FeedForward(nn.Module):
    def __init__(self, width: int, ffn_width: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.inner = nn.Linear(width, ffn_width)
        self.outer = nn.Linear(ffn_width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.outer(relu_dropout(self.inner(x), self.dropout, self.training))
        return out


class EncoderLayer(nn.Module):
    def __init__(self, width: int, ffn_width: int, heads: int, dropout: float, attention_dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.attention_norm = nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads, attention_dropout)
        self.ffn_norm = nn.LayerNorm(width)
        self.ffn = FeedForward(width, ffn_width, dropout)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = dropout_add(x, self.attention(self.attention_norm(x), mask), self.dropout, self.training)
        return dropout_add(x, self.ffn(self.ffn_norm(x)), self.dropout, self.training)


class DecoderLayer(nn.Module):
    def __init__(self, width: int, ffn_width: int, heads: int, dropout: float, attention_dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.self_norm = nn.LayerNorm(width)
        self.self_attention = SelfAttention(width, heads, attention_dropout)
        self.cross_norm = nn.LayerNorm(width)
        self.cross_attention = CrossAttention(width, heads, attention_dropout)
        self.ffn_norm = nn.LayerNorm(width)
        self.ffn = FeedForward(width, ffn_width, dropout)

    def forward(self, x: Tensor, memory: Tensor, memory_mask: Tensor | None) -> Tensor:
        """All target positions at once; a position sees itself and those before it."""
        x = dropout_add(x, self.self_attention(self.self_norm(x), causal=True), self.dropout, self.training)
        return self._cross_and_ffn(x, self.cross_attention.keys_values(memory), memory_mask)

    def _cross_and_ffn(
        self, x: Tensor, memory_keys_values: tuple[Tensor, Tensor], memory_mask: Tensor | None
    ) -> Tensor:
        added = self.cross_attention(self.cross_norm(x), memory_keys_values, memory_mask)
        x = dropout_add(x, added, self.dropout, self.training)
        return dropout_add(x, self.ffn(self.ffn_norm(x)), self.dropout, self.training)

    def step(self, x_B1W: Tensor, cache: LayerCache, memory_mask: Tensor | None) -> Tensor:
        """One more target position, after those in the cache."""
        x = x_B1W + self.self_attention.step(self.self_norm(x_B1W), cache)
        return self._cross_and_ffn(x, cache.memory, memory_mask)


class LayerCache:
    """What a decoder layer remembers: keys and values of the memory, and of the positions so far."""

    def __init__(self, memory: tuple[Tensor, Tensor]) -> None:
        self.memory = memory
        empty = memory[0][:, :, :0]
        self.own = (empty, empty)

    def append(self, key: Tensor, value: Tensor) -> None:
        self.own = (torch.cat((self.own[0], key), dim=2), torch.cat((self.own[1], value), dim=2))

    def select(self, rows: Tensor, memory_rows: Tensor | None) -> None:
        """Keeps these rows in this order; the memory is reordered only where its rows change."""
        self.own = (self.own[0][rows], self.own[1][rows])
        if memory_rows is not None:
            self.memory = (self.memory[0][memory_rows], self.memory[1][memory_rows])


@dataclass
class Cache:
    """The state of a batch that is being generated; row i belongs to the i-th hypothesis."""

    layers: list[LayerCache]
    memory_mask: Tensor | None
    position: int = 0

    def select(self, rows: Tensor, same_sentences: bool = False) -> None:
        """Keeps these rows; same_sentences says that every row stays with its source sentence (saves copying)."""
        for layer in self.layers:
            layer.select(rows, None if same_sentences else rows)
        if self.memory_mask is not None and not same_sentences:
            self.memory_mask = self.memory_mask[rows]


class Model(nn.Module):
    """Encoder, decoder and the one embedding that they and the output layer share."""

    EDGES = ("embedding.weight",)
    """What reads the input and what makes the output; see engine/optim.py."""

    def __init__(self, config: Config, num_pieces: int, pad: int = 0) -> None:
        super().__init__()
        self.config = config = config.filled()
        assert config.width and config.ffn_width and config.heads and config.encoder_layers and config.decoder_layers
        assert config.dropout is not None and config.attention_dropout is not None
        self.width, self.pad, self.dropout = config.width, pad, config.dropout
        shape = (config.width, config.ffn_width, config.heads, config.dropout, config.attention_dropout)
        self.embedding = nn.Embedding(num_pieces, config.width)
        self.encoder = nn.ModuleList(EncoderLayer(*shape) for _ in range(config.encoder_layers))
        self.encoder_norm = nn.LayerNorm(config.width)
        self.decoder = nn.ModuleList(DecoderLayer(*shape) for _ in range(config.decoder_layers))
        self.decoder_norm = nn.LayerNorm(config.width)
        # Not a buffer: DDP would send it anew in every step.
        self.positions_LW = sinusoids(LONGEST_TABLE, config.width)
        self._initialise()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """The table of positions goes where the parameters go."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.positions_LW = fn(self.positions_LW)
        return self

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                # Keys and values are rows of one weight, yet each starts as if it were alone.
                is_feed_forward = module.bias is not None
                parts = (module.weight,) if is_feed_forward else torch.split(module.weight, self.width)
                for part in parts:
                    nn.init.xavier_uniform_(part)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        nn.init.normal_(self.embedding.weight, std=self.width**-0.5)

    def forward(self, source_BS: Tensor, target_in_BT: Tensor) -> Tensor:
        """The decoder's output [B,T,W], before the output layer (which is part of the loss)."""
        memory, mask = self.encode(source_BS)
        x = self._embed(target_in_BT, first_position=0)
        for layer in self.decoder:
            x = layer(x, memory, mask)
        out: Tensor = self.decoder_norm(x)
        return out

    def encode(self, source_BS: Tensor) -> tuple[Tensor, Tensor | None]:
        """Memory [B,S,W], and its mask [B,1,1,S] of 0 and -inf, or None where nothing is padded."""
        padded = source_BS == self.pad
        x = self._embed(source_BS, first_position=0)
        mask = None
        if padded.any():
            mask = torch.zeros(padded.shape, dtype=x.dtype, device=x.device)
            mask = mask.masked_fill_(padded, float("-inf"))[:, None, None, :]
        for layer in self.encoder:
            x = layer(x, mask)
        return self.encoder_norm(x), mask

    def start(self, memory_BSW: Tensor, mask: Tensor | None) -> Cache:
        """A cache before the first target position."""
        layers = [LayerCache(layer.cross_attention.keys_values(memory_BSW)) for layer in self._decoder_layers()]
        return Cache(layers, mask)

    def step(self, pieces_B: Tensor, cache: Cache) -> Tensor:
        """Log-probabilities [B,V] of the next piece, after pieces_B at the cache's position."""
        x = self._embed(pieces_B[:, None], first_position=cache.position)
        for layer, layer_cache in zip(self._decoder_layers(), cache.layers, strict=True):
            x = layer.step(x, layer_cache, cache.memory_mask)
        cache.position += 1
        logits = self.decoder_norm(x)[:, 0] @ self.embedding.weight.t()
        return torch.log_softmax(logits.float(), dim=-1)

    def _decoder_layers(self) -> list[DecoderLayer]:
        return list(self.decoder)  # type: ignore[arg-type]

    def _embed(self, pieces_BT: Tensor, first_position: int) -> Tensor:
        end = first_position + pieces_BT.shape[1]
        positions_LW = self.positions_LW
        if end > LONGEST_TABLE:
            positions_LW = sinusoids(end, self.width).to(positions_LW)
        x = self.embedding(pieces_BT) * math.sqrt(self.width) + positions_LW[first_position:end]
        return dropout(x, self.dropout, self.training)


def sinusoids(length: int, width: int) -> Tensor:
    """[L,W]: sines of falling frequency in the first half, cosines in the second."""
    rates = torch.exp(torch.arange(width // 2) * (-math.log(10000.0) / max(1, width // 2 - 1)))
    angles = torch.arange(length)[:, None] * rates
    return torch.cat((angles.sin(), angles.cos()), dim=1)


def num_parameters(config: Config, num_pieces: int) -> int:
    """Without building the model, so that `konvoi info` answers at once."""
    c = config.filled()
    assert c.width and c.ffn_width and c.encoder_layers and c.decoder_layers
    attention_size = 4 * c.width**2
    ffn_size = 2 * c.width * c.ffn_width + c.ffn_width + c.width
    norm_size = 2 * c.width
    encoder = c.encoder_layers * (attention_size + ffn_size + 2 * norm_size) + norm_size
    decoder = c.decoder_layers * (2 * attention_size + ffn_size + 3 * norm_size) + norm_size
    return num_pieces * c.width + encoder + decoder


def flops(config: Config, num_pieces: int, source_length: float, target_length: float) -> float:
    """Floating-point operations per target token of a training step: forward, and twice that backward.

    Counts matrix products: 2 per weight and token, and 4 x width per pair of positions that attend.
    """
    c = config.filled()
    assert c.width and c.ffn_width and c.encoder_layers and c.decoder_layers
    ffn_size = 2 * c.width * c.ffn_width
    source_per_target = source_length / target_length
    encoder = c.encoder_layers * (2 * (4 * c.width**2 + ffn_size) + 4 * c.width * source_length)
    # Keys and values of the cross attention are computed once per source token.
    per_target = 2 * (6 * c.width**2 + ffn_size) + 4 * c.width * (target_length / 2 + source_length)
    per_source = 2 * 2 * c.width**2
    decoder = c.decoder_layers * (per_target + per_source * source_per_target)
    return 3 * (encoder * source_per_target + decoder + 2 * c.width * num_pieces)
