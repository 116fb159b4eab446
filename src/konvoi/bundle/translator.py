"""Translates with a bundle, by CTranslate2."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from konvoi.bundle.format import Bundle
from konvoi.bundle.pieces import Attention, Found, PieceTranslator, Source
from konvoi.bundle.search import EXACT_PATIENCE, ranked, search_options
from konvoi.cores import usable_cores
from konvoi.data.clean import normalise
from konvoi.data.subwords import FILE_NAME as VOCABULARY_FILE
from konvoi.data.subwords import Subwords
from konvoi.errors import BundleError
from konvoi.memory import keep_memory

# Written by export/lexicon.py; CTranslate2 looks for it under this name.
VOCABULARY_MAP_FILE = "vmap.txt"
# The fewer sentences share a batch, the fewer pieces their vocabulary map leaves; with very few the products get small.
# Of 32 to 2,048 tokens this was best: with a map 4 to 15 % less processor time than 256 (tiny, beam 5, 2026-11-16).
MAX_TOKENS_PER_BATCH = 128


def open_translator(bundle: Bundle, variant: str | None = None, threads: int | None = None) -> BundleTranslator:
    """Raises BundleError where it is none, or damaged."""
    if bundle.description.task != "translation":
        raise BundleError(f"{bundle.path} is no translator", hint=f"konvoi classify {bundle.path} IMAGE...")
    name, chosen = bundle.variant(variant)
    keep_memory()
    # Whoever asks for float32 wants what was trained; the others are for speed.
    patience = EXACT_PATIENCE if name == "float32" else 1.0
    return BundleTranslator(bundle, bundle.path / chosen.path, threads or usable_cores(), patience)


class BundleTranslator(PieceTranslator):
    """See interfaces.Translator."""

    def __init__(self, bundle: Bundle, folder: Path, num_threads: int, patience: float = 1.0) -> None:
        description, settings = bundle.description, bundle.description.settings
        super().__init__(
            Subwords.load(bundle.path / VOCABULARY_FILE), partial(normalise, **settings.get("normalise", {}))
        )
        self.name: str = description.name
        self.source: str = settings["source"]
        self.target: str = settings["target"]
        self._beam: int = settings["beam"]
        self._length_penalty: float = settings["length_penalty"]
        self._num_threads, self._patience = num_threads, patience
        self.uses_map = (folder / VOCABULARY_MAP_FILE).is_file()
        (self._end,) = self.subwords.pieces([Subwords.EOS])
        # A translator of one thread for each core, which never wait for each other. All cores for one sentence took
        # twice as long as one of them (docs/lab-notes.md).
        self._engine: Any = _engine(folder, inter_threads=num_threads, intra_threads=1)

    def search(
        self, sources: list[Source], *, beam: int | None, num_best: int, with_attention: bool
    ) -> list[list[Found]]:
        beam = max(beam or self._beam, num_best)
        # All are given away before the first is waited for.
        begun = [
            (batch, self._begin([sources[index] for index in batch], beam, with_attention))
            for batch in _batches([len(source.ids) for source in sources], self._num_threads)
        ]
        results: list[list[Found]] = [[] for _ in sources]
        for batch, pending in begun:
            for index, result in zip(batch, pending, strict=True):
                results[index] = self._found(result.result(), num_best)
        return results

    def _begin(self, sources: list[Source], beam: int, with_attention: bool) -> Any:
        return self._engine.translate_batch(
            [source.pieces for source in sources],
            asynchronous=True,
            use_vmap=self.uses_map,
            return_attention=with_attention or any(source.has_unknown for source in sources),
            **search_options(beam, self._length_penalty, max(len(source.pieces) for source in sources), self._patience),
        )

    def _found(self, result: Any, num_best: int) -> list[Found]:
        order = ranked(result.hypotheses, result.scores, self._length_penalty, self._end)
        return [self._one(result, number, score) for number, score in order[:num_best]]

    def _one(self, result: Any, number: int, score: float) -> Found:
        pieces = [piece for piece in result.hypotheses[number] if piece != self._end]
        attention: Attention = ()
        if result.attention:
            attention = tuple(tuple(row) for row in result.attention[number][: len(pieces)])
        return Found(pieces, score, attention)

    def close(self) -> None:
        """Ends its threads and frees the weights."""
        self._engine = None


def _engine(folder: Path, **threads: int) -> Any:
    import ctranslate2

    try:
        return ctranslate2.Translator(str(folder), device="cpu", **threads)
    except (RuntimeError, ValueError) as error:
        raise BundleError(f"{folder} cannot be loaded: {error}", hint="export the run again") from None


def _batches(lengths: list[int], num_threads: int) -> Iterator[list[int]]:
    """Indices of sentences of like length, longest first: the short ones even out when the threads end."""
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    fair_share = -(-len(order) // num_threads)
    while order:
        count = max(1, min(MAX_TOKENS_PER_BATCH // max(1, lengths[order[0]]), fair_share))
        yield order[:count]
        order = order[count:]
