"""Writes a Transformer as CTranslate2 reads it, with that library's own specification of the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from konvoi.data.subwords import Subwords
from konvoi.evaluate.beam import MAX_SOURCE_PIECES
from konvoi.models.transformer import DecoderLayer, EncoderLayer, FeedForward, Model, sinusoids

# The longest translation of the longest sentence that evaluate/beam.py allows, and its begin.
NUM_POSITIONS = 2 * MAX_SOURCE_PIECES + 20 + 1
# What the output layer adds to a piece that is none. Finite, and so in half precision too: infinite ones breed NaN.
NEVER = -30_000.0
# Not 127: processors without VNNI add two products of 8 bits in 16, where 255 x 127 x 2 is cut off. The demo lost 1.08
# of its 34.51 BLEU by that, and nothing with 63: 255 x 63 x 2 < 32,768 (2026-11-16, AVX2).
INT8_LIMIT = 63
TINY = 1e-30


def write_transformer(model: Model, subwords: Subwords, precision: str, folder: Path) -> None:
    """model.bin, config.json and shared_vocabulary.json, into a folder that exists."""
    spec = _described(model, subwords)
    if precision == "int8":
        _quantise(spec)
    spec.validate()
    # Also stores once what is there several times: embedding and output layer.
    spec.optimize(quantization=None if precision == "int8" else precision)
    spec.save(str(folder))


def _quantise(spec: Any) -> None:
    """Each row of a weight as integers of up to 63, and what to multiply it with to get those.

    Not by optimize("int8"), which goes up to 127, and changes the trained model in place.
    """
    from ctranslate2.specs.model_spec import index_spec

    for name, weight in spec.variables().items():
        layer, _, kind = name.rpartition("/")
        if kind == "weight":
            scale = INT8_LIMIT / np.maximum(np.abs(weight).max(axis=1), TINY)
            quantised = index_spec(spec, layer)
            quantised.weight = np.rint(weight * scale[:, None]).astype(np.int8)
            quantised.weight_scale = scale.astype(np.float32)


def _described(model: Model, subwords: Subwords) -> Any:
    from ctranslate2.specs import TransformerSpec

    heads, num_layers = model.config.heads, (len(model.encoder), len(model.decoder))
    # Words are best aligned by the last layer but one, all heads together (Garg et al. 2019, section 4.2).
    alignment_layer = max(0, num_layers[1] - 2)
    spec = TransformerSpec.from_config(
        num_layers, heads, pre_norm=True, alignment_layer=alignment_layer, alignment_heads=heads
    )
    _fill_ends(spec, model, subwords)
    for layer_spec, encoder_layer in zip(spec.encoder.layer, model.encoder, strict=True):
        assert isinstance(encoder_layer, EncoderLayer)
        _fill_encoder_layer(layer_spec, encoder_layer)
    for layer_spec, decoder_layer in zip(spec.decoder.layer, model.decoder, strict=True):
        assert isinstance(decoder_layer, DecoderLayer)
        _fill_decoder_layer(layer_spec, decoder_layer)
    _name_pieces(spec, subwords)
    return spec


def _fill_ends(spec: Any, model: Model, subwords: Subwords) -> None:
    """The one embedding, which is the output layer too, without the rows that stand for no piece; positions; norms."""
    embedding = _array(model.embedding.weight)[: subwords.size]
    positions = _array(sinusoids(NUM_POSITIONS, model.width))
    for side, norm in ((spec.encoder, model.encoder_norm), (spec.decoder, model.decoder_norm)):
        embeddings = side.embeddings[0] if side is spec.encoder else side.embeddings
        embeddings.weight = embedding
        side.position_encodings.encodings = positions
        _fill_norm(side.layer_norm, norm)
    spec.decoder.projection.weight = embedding
    spec.decoder.projection.bias = _output_bias(subwords)
    spec.config.layer_norm_epsilon = model.encoder_norm.eps


def _output_bias(subwords: Subwords) -> NDArray[np.float32]:
    """Padding and begin are no pieces of a translation; evaluate/beam.py forbids them, too."""
    bias = np.zeros(subwords.size, np.float32)
    bias[[Subwords.PAD, Subwords.BOS]] = NEVER
    return bias


def _name_pieces(spec: Any, subwords: Subwords) -> None:
    pieces = subwords.pieces(range(subwords.size))
    spec.register_source_vocabulary(pieces)
    spec.register_target_vocabulary(pieces)
    spec.config.eos_token, spec.config.unk_token = pieces[Subwords.EOS], pieces[Subwords.UNK]
    spec.config.bos_token = spec.config.decoder_start_token = pieces[Subwords.BOS]
    spec.config.add_source_eos = True


def _fill_encoder_layer(spec: Any, layer: EncoderLayer) -> None:
    _fill_attention(spec.self_attention, layer.attention_norm, layer.attention.query_key_value, layer.attention.out)
    _fill_ffn(spec.ffn, layer.ffn_norm, layer.ffn)


def _fill_decoder_layer(spec: Any, layer: DecoderLayer) -> None:
    own, cross = layer.self_attention, layer.cross_attention
    _fill_attention(spec.self_attention, layer.self_norm, own.query_key_value, own.out)
    _fill_attention(spec.attention, layer.cross_norm, cross.query, cross.key_value, cross.out)
    _fill_ffn(spec.ffn, layer.ffn_norm, layer.ffn)


def _fill_attention(spec: Any, norm: nn.LayerNorm, *linears: nn.Linear) -> None:
    """Queries, keys and values are joined alike on both sides: ours are its rows in its order."""
    _fill_norm(spec.layer_norm, norm)
    for linear_spec, linear in zip(spec.linear, linears, strict=True):
        _fill_linear(linear_spec, linear)


def _fill_ffn(spec: Any, norm: nn.LayerNorm, ffn: FeedForward) -> None:
    _fill_norm(spec.layer_norm, norm)
    _fill_linear(spec.linear_0, ffn.inner)
    _fill_linear(spec.linear_1, ffn.outer)


def _fill_linear(spec: Any, linear: nn.Linear) -> None:
    spec.weight = _array(linear.weight)
    if linear.bias is not None:
        spec.bias = _array(linear.bias)


def _fill_norm(spec: Any, norm: nn.LayerNorm) -> None:
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _array(tensor: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = tensor.detach().float().cpu().numpy()
    return array
