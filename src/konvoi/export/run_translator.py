"""A run as a Translator: answers like a bundle, by PyTorch."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from konvoi.bundle.pieces import Attention, Found, PieceTranslator, Source
from konvoi.data.subwords import Subwords
from konvoi.errors import RunError
from konvoi.run_directory import RunDirectory

if TYPE_CHECKING:
    from torch import Tensor

    from konvoi.engine.trained import Trained


def open_run_translator(path: Path, checkpoint: str = "best") -> RunTranslator:
    """Raises RunError where there is no translator."""
    from konvoi.engine.trained import load_trained

    trained = load_trained(RunDirectory.open(path), checkpoint)
    if trained.recipe.name_of("task") != "translation":
        raise RunError(f"{path} is no translator", hint=f"konvoi classify {path} IMAGE...")
    return RunTranslator(trained)


class RunTranslator(PieceTranslator):
    """See interfaces.Translator."""

    def __init__(self, trained: Trained) -> None:
        from konvoi.tasks.translation import vocabulary_of

        recipe: Any = trained.recipe
        super().__init__(vocabulary_of(trained.run), recipe.data.normalised)
        self.source: str = recipe.task.source
        self.target: str = recipe.task.target
        self.name = trained.run.path.resolve().name
        self._trained = trained

    def search(
        self, sources: list[Source], *, beam: int | None, num_best: int, with_attention: bool
    ) -> list[list[Found]]:
        from konvoi.evaluate.beam import search_all

        settings: Any = self._trained.recipe.evaluate
        with self._trained.inference():
            results = search_all(
                self._trained.model,  # type: ignore[arg-type]
                [source.ids for source in sources],
                beam=max(beam or settings.beam, num_best),
                length_penalty=settings.length_penalty,
                num_best=num_best,
                vocabulary_size=self.subwords.size,
                device=self._trained.device,
            )
            return [
                [self._found(source, one, with_attention or source.has_unknown) for one in found]
                for source, found in zip(sources, results, strict=True)
            ]

    def _found(self, source: Source, hypothesis: Any, with_attention: bool) -> Found:
        attention = self._attention(source.ids, hypothesis.ids) if with_attention and hypothesis.ids else ()
        return Found(self.subwords.pieces(hypothesis.ids), hypothesis.score, attention)

    def _attention(self, source: list[int], target: list[int]) -> Attention:
        """The mean of a layer's heads; computed anew once the translation is known."""
        import torch

        model: Any = self._trained.model
        weights_TS: list[Tensor] = []

        def look(module: Any, inputs: tuple[Any, ...]) -> None:
            weights_TS.append(_weights(module, *inputs[:2]))

        # The last but one: the same that export/ctranslate2.py chooses.
        layer = model.decoder[max(0, len(model.decoder) - 2)]
        hook = layer.cross_attention.register_forward_pre_hook(look)
        try:
            device = self._trained.device
            model(
                torch.tensor([[*source, Subwords.EOS]], device=device),
                torch.tensor([[Subwords.BOS, *target[:-1]]], device=device),
            )
        finally:
            hook.remove()
        rows = weights_TS[0][:, : len(source)].tolist()
        return tuple(tuple(row) for row in rows)

    def close(self) -> None:
        """Nothing is held that the collector would not free."""


def _weights(attention: Any, x_BTW: Tensor, keys_values: tuple[Tensor, Tensor]) -> Tensor:
    """[T,S] of one sentence."""
    from konvoi.models.transformer import split_heads

    (query_BHTD,) = split_heads(attention.query(x_BTW), 1, attention.heads)
    scores_BHTS = query_BHTD @ keys_values[0].transpose(-2, -1) / math.sqrt(query_BHTD.shape[-1])
    return scores_BHTS.float().softmax(-1).mean(1)[0]
