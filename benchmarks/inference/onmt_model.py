"""Writes a run's Transformer as a checkpoint of OpenNMT-py 3.5, so that both translate with the very same model.

    python benchmarks/inference/onmt_model.py RUN MODEL.pt

The same layers in the same order: only names differ, and queries, keys and values are apart. OpenNMT-py's
"SinusoidalConcat" positions are ours, and `-length_penalty wu -alpha 1` is our length penalty 1. It adds no end to a
source: translate.py writes one.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

from konvoi.data.subwords import Subwords
from konvoi.engine.trained import load_trained
from konvoi.export.ctranslate2 import NEVER
from konvoi.models.transformer import (
    CrossAttention,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    Model,
    SelfAttention,
    sinusoids,
)
from konvoi.run_directory import RunDirectory
from konvoi.tasks.translation import vocabulary_of

SPECIALS = {Subwords.PAD: "<blank>", Subwords.EOS: "</s>", Subwords.BOS: "<s>", Subwords.UNK: "<unk>"}
NUM_POSITIONS = 5000

Weights = dict[str, Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("model", type=Path)
    arguments = parser.parse_args()
    trained = load_trained(RunDirectory.open(arguments.run))
    assert isinstance(trained.model, Model)
    torch.save(checkpoint(trained.model, vocabulary_of(trained.run)), arguments.model)


def checkpoint(model: Model, subwords: Subwords) -> dict[str, object]:
    pieces = [SPECIALS.get(number, piece) for number, piece in enumerate(subwords.pieces(range(subwords.size)))]
    embedding = model.embedding.weight.detach()[: subwords.size]
    bias = torch.zeros(subwords.size)
    bias[[Subwords.PAD, Subwords.BOS]] = NEVER
    return {
        "model": weights(model, embedding),
        "generator": {"weight": embedding, "bias": bias},
        "vocab": {"src": pieces, "tgt": pieces, "data_task": "seq2seq", "decoder_start_token": "<s>"},
        "opt": options(model),
    }


def options(model: Model) -> argparse.Namespace:
    config = model.config
    return argparse.Namespace(
        model_type="text",
        model_task="seq2seq",
        encoder_type="transformer",
        decoder_type="transformer",
        enc_layers=config.encoder_layers,
        dec_layers=config.decoder_layers,
        heads=config.heads,
        hidden_size=config.width,
        enc_hid_size=config.width,
        dec_hid_size=config.width,
        word_vec_size=config.width,
        src_word_vec_size=config.width,
        tgt_word_vec_size=config.width,
        transformer_ff=config.ffn_width,
        position_encoding=True,
        position_encoding_type="SinusoidalConcat",
        share_embeddings=True,
        share_decoder_embeddings=True,
        add_ffnbias=True,
        add_qkvbias=False,
        norm_eps=model.encoder_norm.eps,
        dropout=[0.0],
        attention_dropout=[0.0],
        optim="adam",
        freeze_word_vecs_enc=False,
        freeze_word_vecs_dec=False,
    )


def weights(model: Model, embedding: Tensor) -> Weights:
    found: Weights = {}
    for side, norm in (("encoder", model.encoder_norm), ("decoder", model.decoder_norm)):
        found[f"{side}.embeddings.make_embedding.emb_luts.0.weight"] = embedding
        found[f"{side}.embeddings.make_embedding.pe.pe"] = sinusoids(NUM_POSITIONS, model.width)[:, None]
        found |= named(f"{side}.layer_norm", norm)
    for number, layer in enumerate(model.encoder):
        assert isinstance(layer, EncoderLayer)
        name = f"encoder.transformer.{number}"
        found |= named(f"{name}.layer_norm", layer.attention_norm) | own_attention(f"{name}.self_attn", layer.attention)
        found |= feed_forward(f"{name}.feed_forward", layer.ffn_norm, layer.ffn)
    for number, layer in enumerate(model.decoder):
        assert isinstance(layer, DecoderLayer)
        name = f"decoder.transformer_layers.{number}"
        found |= named(f"{name}.layer_norm_1", layer.self_norm) | named(f"{name}.layer_norm_2", layer.cross_norm)
        found |= own_attention(f"{name}.self_attn", layer.self_attention)
        found |= cross_attention(f"{name}.context_attn", layer.cross_attention)
        found |= feed_forward(f"{name}.feed_forward", layer.ffn_norm, layer.ffn)
    return found


def own_attention(name: str, attention: SelfAttention) -> Weights:
    query, key, value = attention.query_key_value.weight.detach().chunk(3)
    return parts(name, query, key, value, attention.out)


def cross_attention(name: str, attention: CrossAttention) -> Weights:
    key, value = attention.key_value.weight.detach().chunk(2)
    return parts(name, attention.query.weight.detach(), key, value, attention.out)


def parts(name: str, query: Tensor, key: Tensor, value: Tensor, out: nn.Linear) -> Weights:
    apart = {f"{name}.linear_query.weight": query, f"{name}.linear_keys.weight": key}
    return apart | {f"{name}.linear_values.weight": value} | named(f"{name}.final_linear", out)


def feed_forward(name: str, norm: nn.LayerNorm, ffn: FeedForward) -> Weights:
    return named(f"{name}.layer_norm", norm) | named(f"{name}.w_1", ffn.inner) | named(f"{name}.w_2", ffn.outer)


def named(name: str, module: nn.Module) -> Weights:
    return {f"{name}.{key}": value.detach() for key, value in module.named_parameters()}


if __name__ == "__main__":
    main()
