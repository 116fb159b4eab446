"""konvoi eval: loss, BLEU and chrF of a trained model, on the run's own splits or on given files."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import typer

from konvoi import registry
from konvoi.commands.evaluate_images import evaluate_images
from konvoi.commands.output import aligned, print_json
from konvoi.data.text import read_pairs
from konvoi.data.tokens import TokenFile, TokenWriter
from konvoi.engine.trained import Trained, load_trained
from konvoi.evaluate.beam import translate_lines
from konvoi.evaluate.scores import corpus_scores
from konvoi.run_directory import RunDirectory
from konvoi.sync import Team
from konvoi.tasks.translation import Data, Evaluate, check_has_text, loss_scores, vocabulary_of
from konvoi.world import World

WORDS = {"loss": "loss", "perplexity": "perplexity", "bleu": "BLEU", "chrf": "chrF", "bleu_pieces": "BLEU of pieces"}


def evaluate(
    path: Path, checkpoint: str, *, files: tuple[Path, Path] | None, split: str | None, beam: int | None, as_json: bool
) -> None:
    trained = load_trained(RunDirectory.open(path), checkpoint)
    if trained.recipe.name_of("task") == "classification":
        return evaluate_images(trained, split=split, files=files, beam=beam, as_json=as_json)
    settings = trained.recipe.evaluate.model_copy(update={"max_sentences": None, "samples": 0})
    assert isinstance(settings, Evaluate)
    settings = settings.model_copy(update={"beam": beam}) if beam else settings
    with trained.inference():
        result = _of_files(trained, settings, *files) if files else _of_split(trained, settings, split)
    result = {"run": str(path), "checkpoints": list(trained.checkpoints), "beam": settings.beam, **result}
    if as_json:
        print_json(result)
    else:
        typer.echo(aligned(_rows(result)))


def _of_split(trained: Trained, settings: Evaluate, split: str | None) -> dict[str, Any]:
    """Exactly as during training, but over all sentences."""
    task_module = registry.find("task", trained.recipe.name_of("task"))
    prepared = task_module.prepare(trained.recipe)
    task_module.check_same(prepared, trained.run)
    split = split or ("test" if "test" in prepared.info["pairs"] else "dev")
    check_has_text(split)
    recipe = trained.recipe.model_copy(update={"evaluate": settings.model_copy(update={"split": split})})
    scores = task_module.Task(recipe, trained.device, Team(World())).evaluate(trained.model, Team(World()))
    return {"split": split, **{key: value for key, value in scores.items() if key != "samples"}}


def _of_files(trained: Trained, settings: Evaluate, source: Path, target: Path) -> dict[str, Any]:
    """Needs the run directory only."""
    data = trained.recipe.data
    assert isinstance(data, Data)
    pairs = [(data.normalised(s), t.lower() if data.lowercase else t) for s, t in read_pairs(source, target)]
    sources, references = [s for s, _ in pairs], [t for _, t in pairs]
    hypotheses = translate_lines(
        trained.model,  # type: ignore[arg-type]
        vocabulary_of(trained.run),
        sources,
        beam=settings.beam,
        length_penalty=settings.length_penalty,
        device=trained.device,
    )
    scores = corpus_scores(hypotheses, references, lowercase=settings.lowercase)
    named = {"source": str(source), "target": str(target), "sentences": len(pairs)}
    return {**named, **_loss(trained, sources, references), **scores}


def _loss(trained: Trained, sources: list[str], references: list[str]) -> dict[str, float]:
    max_tokens: int = trained.recipe.batching.max_tokens  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as folder:
        files = [_encoded(trained, lines, Path(folder) / side) for side, lines in (("s", sources), ("t", references))]
        return loss_scores(trained.model, files[0], files[1], max_tokens, trained.device, Team(World()))


def _encoded(trained: Trained, lines: list[str], prefix: Path) -> TokenFile:
    subwords = vocabulary_of(trained.run)
    with TokenWriter(prefix, subwords.size) as writer:
        writer.write(subwords.encode(lines, with_eos=True))
    return TokenFile(prefix)


def _rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    text = f"{result['split']} split" if "split" in result else f"{result['source']}, {result['target']}"
    rows = [
        ("checkpoint", " + ".join(result["checkpoints"])),
        ("text", f"{text}, {result['sentences']:,} sentences"),
    ]
    for key, word in WORDS.items():
        if key in result:
            signature = result.get(f"{key}_signature")
            rows.append((word, f"{result[key]:.3f}" if signature is None else f"{result[key]:.2f}  {signature}"))
    return rows
