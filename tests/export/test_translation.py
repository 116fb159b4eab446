"""A run becomes a bundle that says the same, is verified before it is there, and needs no torch."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import pytest
import torch

from konvoi.bundle.format import Bundle, open_bundle
from konvoi.bundle.interfaces import Translation
from konvoi.bundle.search import ranked, search_options
from konvoi.bundle.translator import open_translator
from konvoi.data.subwords import Subwords
from konvoi.export.ctranslate2 import write_transformer
from konvoi.export.requirements import requirements
from konvoi.export.verify import identical_percent, why_not_float32, why_not_smaller
from konvoi.models.transformer import Config, Model

TEXT = ["Tom is a good boy.", "I do not know where she is.", "Help!"]


@pytest.fixture(scope="module")
def bundle(konvoi, trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    to = tmp_path_factory.mktemp("exported") / "en-de"
    result = konvoi("export", trained_run, "--to", to, "--precision", "float32,float16,int8")
    assert result.exit_code == 0, result.stderr
    return open_bundle(to)


@pytest.fixture(scope="module")
def subwords(trained_run: Path) -> Subwords:
    return Subwords.load(trained_run / "vocabulary.model")


@pytest.fixture
def model(subwords: Subwords) -> Model:
    """Untrained, but every parameter counts: biases and norms too."""
    torch.manual_seed(1)
    config = Config(encoder_layers=2, decoder_layers=3, width=32, ffn_width=48, heads=4, dropout=0.1)
    model = Model(config, subwords.padded_size).eval()
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return model


def written(model: Model, subwords: Subwords, precision: str, folder: Path) -> Any:
    folder.mkdir()
    write_transformer(model, subwords, precision, folder)
    return ctranslate2.Translator(str(folder), device="cpu", intra_threads=1)


def own_log_probs(model: Model, subwords: Subwords, source: list[int], target: list[int]) -> list[float]:
    """Of each piece of the target and of its end, among what may be said at all."""
    with torch.no_grad():
        states_TW = model(torch.tensor([[*source, subwords.EOS]]), torch.tensor([[subwords.BOS, *target]]))[0]
        logits_TV = (states_TW @ model.embedding.weight.t())[:, : subwords.size]
    logits_TV[:, [subwords.PAD, subwords.BOS]] = -math.inf
    return logits_TV.log_softmax(-1)[range(len(target) + 1), [*target, subwords.EOS]].tolist()


def test_every_log_probability_is_the_models_own(model, subwords, tmp_path):
    assert subwords.padded_size >= subwords.size
    engine = written(model, subwords, "float32", tmp_path / "float32")
    sources, targets = subwords.encode(TEXT), subwords.encode(["Tom ist ein guter Junge.", "Ich weiß nicht.", "Hilfe!"])
    scored = engine.score_batch([*map(subwords.pieces, sources)], [*map(subwords.pieces, targets)])
    for source, target, found in zip(sources, targets, scored, strict=True):
        assert found.log_probs == pytest.approx(own_log_probs(model, subwords, source, target), abs=1e-3)


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
def test_writing_leaves_the_model_as_it_was(model, subwords, precision, tmp_path):
    before = {name: parameter.clone() for name, parameter in model.state_dict().items()}
    written(model, subwords, precision, tmp_path / precision)
    assert all(torch.equal(before[name], parameter) for name, parameter in model.state_dict().items())


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("piece", [Subwords.PAD, Subwords.BOS])
def test_what_is_no_piece_is_never_said_however_likely(model, subwords, piece, beam, tmp_path):
    # The output of every position points to it: 100 x its own embedding.
    model.decoder_norm.bias.data = 100 * model.embedding.weight.data[piece]
    engine = written(model, subwords, "float32", tmp_path / "float32")
    (result,) = engine.translate_batch([subwords.split(TEXT)[0]], beam_size=beam, max_decoding_length=10)
    assert subwords.pieces([piece])[0] not in result.hypotheses[0]


def test_eight_bits_use_seven_so_that_no_sum_overflows(model, subwords, tmp_path):
    spec_limit = 63
    written(model, subwords, "int8", tmp_path / "int8")
    content = (tmp_path / "int8" / "model.bin").read_bytes()
    # The largest matrix, the embedding, is stored once as it is: [pieces, width] of 8 bits.
    weight = model.embedding.weight.data.numpy()[: subwords.size]
    rows = np.rint(weight * (spec_limit / np.abs(weight).max(axis=1))[:, None]).astype(np.int8)
    assert np.abs(rows).max() == spec_limit
    assert content.count(rows.tobytes()) == 1


def test_writing_twice_gives_the_same_bytes(model, subwords, tmp_path):
    for name in ("once", "again"):
        written(model, subwords, "int8", tmp_path / name)
    files = sorted(file.name for file in (tmp_path / "once").iterdir())
    assert files == ["config.json", "model.bin", "shared_vocabulary.json"]
    for name in files:
        assert (tmp_path / "once" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_hypotheses_are_ranked_by_our_length_penalty():
    # Theirs divides by length, ours by (5 + length) / 6: a log-probability of -2 over 2 pieces is -1 to them and
    # -2 / (7 / 6) = -1.71 to us; -3.6 over 4 pieces is -0.9 to them and -3.6 / (9 / 6) = -2.4 to us.
    found = ranked([["a", "b", "c", "</s>"], ["a", "</s>"]], [-0.9, -1.0], length_penalty=1.0, end="</s>")
    assert [number for number, _ in found] == [1, 0]
    assert [score for _, score in found] == pytest.approx([-12 / 7, -2.4])


def test_what_was_cut_off_comes_last():
    assert [number for number, _ in ranked([["a", "b"], ["a", "</s>"]], [-0.1, -9.0], 0.6, "</s>")] == [1, 0]


def test_a_translation_may_be_twice_as_long_and_20_pieces_more_and_its_end():
    assert search_options(5, 0.6, longest_source=10)["max_decoding_length"] == 10 * 2 + 20 + 1


def said(text: str, score: float = -1.0, num_pieces: int = 3) -> Translation:
    return Translation(text, score, source_pieces=("a",), target_pieces=("b",) * num_pieces)


def test_float32_must_say_the_same_99_times_in_100():
    expected = [said("ja")] * 200
    assert why_not_float32(expected, [said("nein")] * 2 + [said("ja")] * 198) == ""
    assert "only 98.5 %" in why_not_float32(expected, [said("nein")] * 3 + [said("ja")] * 197)


def test_what_float32_says_otherwise_must_score_the_same():
    expected = [said("ja")] * 200
    assert "nein" in why_not_float32(expected, [said("nein", score=-1.5), *expected[1:]])
    assert why_not_float32([said("ja", math.nan)], [said("ja", math.nan)])
    # 0.1 is 5 % of 1 + 1: too much for the same words, not for what a near tie led to.
    assert "ja" in why_not_float32(expected, [said("ja", score=-1.1), *expected[1:]])
    assert why_not_float32(expected, [said("nein", score=-1.1), *expected[1:]]) == ""


def test_sentences_that_were_cut_off_do_not_count():
    # 2 x 1 piece + 20
    expected = [said("ja"), said("ja ja ja", num_pieces=22)]
    assert identical_percent(expected, [said("ja"), said("ja ja", num_pieces=23)]) == 100.0
    # Where all were, nobody knows.
    assert identical_percent(expected[1:], [said("nein", num_pieces=23)]) is None


def test_a_smaller_variant_may_lose_three_tenths_of_a_point():
    assert why_not_smaller(30.0, 29.71) == ""
    assert why_not_smaller(30.0, 31.0) == ""
    assert why_not_smaller(30.0, 29.5) == "loses 0.50 of BLEU 30.00"
    assert "cannot be judged" in why_not_smaller(None, None)


def test_a_bundle_has_what_was_asked_for_and_what_it_takes_to_use_it(bundle):
    assert [*bundle.description.variants] == ["float32", "float16", "int8"]
    assert bundle.description.default == "int8"
    assert {"CARD.md", "requirements.txt", "vocabulary.model", "int8/model.bin"} <= bundle.files.keys()
    for name, variant in bundle.description.variants.items():
        assert bundle.variant(name)
        assert variant.num_bytes == sum(size for file, (size, _) in bundle.files.items() if file.startswith(name))
        assert variant.seconds_per_item and variant.items_per_second and "bleu" in variant.scores
    assert bundle.description.variants["float32"].scores["identical_percent"] >= 99
    assert "dev split, 40 sentences" in bundle.description.measured_on


def test_the_card_tells_scores_speed_data_and_use(bundle):
    card = (bundle.path / "CARD.md").read_text(encoding="utf-8")
    for word in (
        "en to de",
        "| int8 |",
        "BLEU",
        "sentences/s",
        "Licence",
        "pip install --no-deps",
        "konvoi serve",
        "[model]",
    ):
        assert word in card


def test_its_requirements_are_pinned_and_without_torch(bundle):
    lines = (bundle.path / "requirements.txt").read_text().splitlines()[1:]
    assert all("==" in line for line in lines)
    names = {line.split("==")[0] for line in lines}
    assert {"konvoi", "ctranslate2", "sentencepiece", "fastapi", "uvicorn", "starlette"} <= names
    assert "torch" not in names
    assert "onnxruntime==" in requirements("classification")


def test_a_bundle_is_not_replaced_unawares(konvoi, trained_run, bundle, tmp_path):
    result = konvoi("export", trained_run, "--to", bundle.path)
    assert (result.exit_code, "--force" in result.stderr) == (2, True)
    (tmp_path / "mine").write_text("my file")
    result = konvoi("export", trained_run, "--to", tmp_path, "--force")
    assert result.exit_code == 2
    assert (tmp_path / "mine").read_text() == "my file"
    (tmp_path / "bundle.json").write_text('{"webpack": 1}')
    assert konvoi("export", trained_run, "--to", tmp_path, "--force").exit_code == 2
    assert (tmp_path / "mine").read_text() == "my file"


def test_a_bundle_that_is_replaced_stays_where_a_link_leads(konvoi, trained_run, bundle, tmp_path):
    shutil.copytree(bundle.path, tmp_path / "kept" / "first")
    (tmp_path / "newest").symlink_to(tmp_path / "kept" / "first")
    result = konvoi("export", trained_run, "--to", tmp_path / "newest", "--force", "--precision", "float32")
    assert result.exit_code == 0, result.stderr
    assert (tmp_path / "newest").is_symlink()
    assert list(open_bundle(tmp_path / "newest").description.variants) == ["float32"]
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["first"]


def test_an_unknown_precision_is_named_with_the_known(konvoi, trained_run, tmp_path):
    result = konvoi("export", trained_run, "--to", tmp_path / "b", "--precision", "int4")
    assert result.exit_code == 2
    assert 'no precision "int4"' in result.stderr


def test_without_its_data_the_runs_samples_verify_float32_and_int8_is_left_out(
    konvoi, trained_run, tmp_path, monkeypatch
):
    monkeypatch.setenv("KONVOI_HOME", str(tmp_path / "home"))
    result = konvoi("export", trained_run, "--to", tmp_path / "b", "--precision", "float32,int8")
    assert result.exit_code == 0, result.stderr
    description = open_bundle(tmp_path / "b").description
    assert [*description.variants] == ["float32"]
    assert "cannot be judged" in description.settings["left_out"]["int8"]
    assert "the run's samples, 2 sentences" in description.measured_on


def test_without_any_text_there_is_no_bundle_and_nothing_is_left(konvoi, trained_run, tmp_path, monkeypatch):
    monkeypatch.setenv("KONVOI_HOME", str(tmp_path / "home"))
    run = tmp_path / "run"
    shutil.copytree(trained_run, run)
    shutil.rmtree(run / "events")
    (tmp_path / "out").mkdir()
    result = konvoi("export", run, "--to", tmp_path / "out" / "b")
    assert result.exit_code == 2
    assert "--sentences FILE" in result.stderr
    assert not [*(tmp_path / "out").iterdir()]


def test_sentences_can_be_given(konvoi, trained_run, tmp_path):
    file = tmp_path / "mine.tsv"
    file.write_text("".join(f"Tom has {number} cats.\tTom hat {number} Katzen.\n" for number in range(30)))
    result = konvoi("export", trained_run, "--to", tmp_path / "b", "--precision", "float32", "--sentences", file)
    assert result.exit_code == 0, result.stderr
    assert "mine.tsv, 30 sentences" in result.stdout


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from konvoi.cli import main
sys.argv = ["konvoi", "translate", sys.argv[1], "Help!", "Tom is here."]
main()
"""


def test_a_bundle_translates_where_there_is_no_torch(bundle):
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, bundle.path], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    translator = open_translator(bundle)
    expected = [best.text for best, *_ in translator.translate(["Help!", "Tom is here."])]
    assert result.stdout.splitlines() == expected
