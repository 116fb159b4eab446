"""Text to tokens: clean, choose, learn the vocabulary, encode; done once per settings and content of the files.

Each stage works in chunks over all cores, and leaves a mark when it is done: an interrupted preparation goes on with
the first stage that has none. Nothing depends on the number of processes.
"""

from __future__ import annotations

import contextlib
import ctypes
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from konvoi.data.choose import Fates, choose_fates, split_by_chunk, tally_fates
from konvoi.data.clean import KEPT, REASONS, Cleaner, Tally
from konvoi.data.count import CountWords, add_up, most_frequent
from konvoi.data.describe import describe
from konvoi.data.encode import EncodeChunk
from konvoi.data.fingerprint import digest, key_of
from konvoi.data.inputs import Inputs, find_inputs
from konvoi.data.prepared import FORMAT_VERSION, INFO_FILE, PreparedSet, write_examples, write_text
from konvoi.data.settings import Data
from konvoi.data.sift import Examples, Sift, chunk_path, raw_chunks, remember
from konvoi.data.subwords import FILE_NAME as VOCABULARY_FILE
from konvoi.data.subwords import Subwords
from konvoi.data.text import Pair
from konvoi.data.tokens import TokenWriter
from konvoi.errors import DataError
from konvoi.fetch.sets import PACKED_SUFFIXES
from konvoi.folder import make_once, read_json, save_array, write_json
from konvoi.parallel import ordered_map
from konvoi.stages import BYTES, Report, silent

__all__ = ["Data", "PreparedSet", "find_prepared", "prepare"]

# The clean text and its records, then 2 bytes a token and 8 a sentence.
DISK_FACTOR = 2.5
# A few broken lines are dropped and counted; with more, the file is not what it is taken for.
MAX_UNREADABLE_SHARE = 0.01
STAGES = ("sifted", "chosen", "learnt", "encoded")
FATES_FILE = "fates.npy"


def prepare(
    data: Data,
    *,
    source: str,
    target: str,
    home: Path,
    from_folder: Path | None = None,
    report: Report = silent,
    num_processes: int | None = None,
) -> PreparedSet:
    """The prepared set of these settings and files; made now unless it is there already."""
    inputs = find_inputs(data, source, target, home, from_folder)
    settings, final = _place(data, source, target, home, inputs)

    def make(folder: Path) -> None:
        _Preparation(folder, data, inputs, (source, target), report, num_processes).run(settings)

    make_once(final, make, needed_bytes=int(DISK_FACTOR * inputs.text_bytes), report=report)
    return PreparedSet.open(final)


def find_prepared(data: Data, *, source: str, target: str, home: Path) -> PreparedSet | None:
    """The prepared set of these settings and files, where there is one; nothing is made."""
    _, final = _place(data, source, target, home, find_inputs(data, source, target, home, None))
    return PreparedSet.open(final) if final.exists() else None


def _place(data: Data, source: str, target: str, home: Path, inputs: Inputs) -> tuple[dict[str, Any], Path]:
    """All that the prepared set depends on besides its files, and where it lies."""
    settings = {**data.settings_that_matter(), "source": source, "target": target, "format": FORMAT_VERSION}
    if data.vocabulary is not None:
        settings["vocabulary"] = digest(_existing(data.vocabulary), home)
    return settings, home / "data" / f"{data.set}-{key_of([settings, inputs.content(home)])}"


def _existing(vocabulary: Path) -> Path:
    if not vocabulary.is_file():
        raise DataError(f"{vocabulary} is no file", hint="data.vocabulary must name a SentencePiece .model file")
    return vocabulary


class _Preparation:
    """The stages of one preparation, in the order of run()."""

    def __init__(
        self,
        folder: Path,
        data: Data,
        inputs: Inputs,
        sides: tuple[str, str],
        report: Report,
        num_processes: int | None,
    ) -> None:
        self.folder, self.data, self.inputs, self.sides = folder, data, inputs, sides
        self.report, self.num_processes = report, num_processes
        self.held_out = self._read_held_out()
        if data.vocabulary is not None:
            # Now rather than after the cleaning.
            Subwords.load(data.vocabulary)

    def run(self, settings: dict[str, Any]) -> None:
        if not (self.folder / INFO_FILE).exists():
            sifted = self._once("sifted", self._sift)
            self._check(sifted["num_kept"], Tally.from_dict(sifted["tally"]))
            chosen = self._once("chosen", lambda: self._choose(sifted["num_chunks"]))
            tally = Tally.from_dict(sifted["tally"]) + Tally.from_dict(chosen["tally"])
            self._check(tally[KEPT].pairs, tally)
            self._once("learnt", lambda: self._learn(sifted["num_chunks"]))
            encoded = self._once("encoded", lambda: self._encode(sifted["num_chunks"], sifted["examples"]))
            info = describe(self.folder, self.data, self.inputs, self.sides, encoded["splits"], tally)
            write_json(self.folder / INFO_FILE, {"version": FORMAT_VERSION, **info, "settings": settings})
        self._tidy_up()

    def _once(self, stage: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Does a stage unless an earlier process has; its mark holds what the next ones need to know."""
        mark = self.folder / f"{stage}.json"
        if not mark.exists():
            write_json(mark, work())
        return read_json(mark)

    def _read_held_out(self) -> dict[str, list[Pair]]:
        """Dev and test stay exactly as given, or scores would not compare with those of others."""
        held_out = {split: [*self.inputs.read(split)] for split in self.inputs.splits if split != "train"}
        if self.data.lowercase:
            return {split: [(s.lower(), t.lower()) for s, t in pairs] for split, pairs in held_out.items()}
        return held_out

    def _sift(self) -> dict[str, Any]:
        """Cleans pair by pair, into chunks on disk."""
        chunk_path(self.folder, 0, "").parent.mkdir(exist_ok=True)
        cleaner = Cleaner(self.data, self.sides)
        sources = (source for pairs in self.held_out.values() for source, _ in pairs)
        held_out = frozenset(map(cleaner.normalise, sources))
        sift = Sift(self.folder, self.data, self.inputs, held_out)
        tally, examples, num_chunks, num_kept, num_bytes = Tally(), Examples(), 0, 0, 0
        self.report("cleaning", 0, self._plain_bytes(), BYTES)
        for sifted in ordered_map(sift, raw_chunks(self.inputs.splits["train"]), self.num_processes):
            tally += sifted.tally
            num_chunks, num_kept, num_bytes = num_chunks + 1, num_kept + sifted.num_kept, num_bytes + sifted.num_bytes
            _merge(examples, sifted.examples)
            self._check_readable(tally, num_kept, examples)
            self.report("cleaning", num_bytes, self._plain_bytes(), BYTES)
        return {"num_chunks": num_chunks, "num_kept": num_kept, "tally": tally.as_dict(), "examples": examples}

    def _plain_bytes(self) -> int | None:
        """How much training text there is, where packing does not hide it."""
        files = [path for part in self.inputs.splits["train"] for path in part]
        is_packed = any(path.suffix in PACKED_SUFFIXES for path in files)
        return None if is_packed else sum(path.stat().st_size for path in files)

    def _check_readable(self, tally: Tally, num_kept: int, examples: Examples) -> None:
        num_unreadable = tally["unreadable"].pairs
        if num_unreadable > MAX_UNREADABLE_SHARE * (num_kept + tally.read.pairs):
            _, problem, hint = examples["unreadable"][0]
            raise DataError(f"{num_unreadable:,} of the first lines can't be read: {problem}", hint=hint)

    def _choose(self, num_chunks: int) -> dict[str, Any]:
        """Decides what becomes of every clean pair: training, duplicate, leak, dev or test."""
        self.report("looking for duplicates")
        inputs = self.inputs
        fates = choose_fates(self.folder, num_chunks, self.data, inputs.num_dev, inputs.num_test)
        save_array(self.folder / FATES_FILE, fates)
        return {"tally": tally_fates(self.folder, num_chunks, fates).as_dict()}

    def _check(self, num_kept: int, tally: Tally) -> None:
        if num_kept < 2:
            dropped = ", ".join(f"{reason} {tally[reason].pairs:,}" for reason in REASONS if tally[reason].pairs)
            raise DataError(
                f"{num_kept} training pairs are left ({dropped or 'none read'})",
                hint="give more text, or relax data.max_words and data.max_ratio",
            )

    def _learn(self, num_chunks: int) -> dict[str, Any]:
        """On training text only: dev and test must stay unseen."""
        if self.data.vocabulary is not None:
            shutil.copyfile(self.data.vocabulary, self.folder / VOCABULARY_FILE)
            return {"from": str(self.data.vocabulary)}
        counted = ordered_map(CountWords(self.folder), self._chunks(num_chunks), self.num_processes)
        words = add_up(self._reported("counting words", num_chunks, counted))
        self.report("learning the vocabulary")
        num_words = len(words)
        Subwords.learn_from_counts(most_frequent(words), self.data.vocabulary_size, self.folder)
        words.clear()
        _give_back_memory()
        return {"words": num_words}

    def _chunks(self, num_chunks: int) -> Iterator[tuple[int, Fates]]:
        fates = np.load(self.folder / FATES_FILE, mmap_mode="r")
        return enumerate(map(np.asarray, split_by_chunk(self.folder, num_chunks, fates)))

    def _reported(self, stage: str, total: int, results: Iterator[Any]) -> Iterator[Any]:
        self.report(stage, 0, total, "chunks")
        for number, result in enumerate(results, start=1):
            yield result
            self.report(stage, number, total, "chunks")

    def _encode(self, num_chunks: int, examples: Examples) -> dict[str, Any]:
        subwords = Subwords.load(self.folder / VOCABULARY_FILE)
        held_out = {**self.held_out}
        work = ordered_map(
            EncodeChunk(self.folder, self.folder / VOCABULARY_FILE), self._chunks(num_chunks), self.num_processes
        )
        with self._writer("train", 0, subwords) as source, self._writer("train", 1, subwords) as target:
            for chunk in self._reported("encoding", num_chunks, work):
                source.write_encoded(*chunk.sides[0])
                target.write_encoded(*chunk.sides[1])
                _merge(examples, chunk.examples)
                for split, pairs in chunk.held_out.items():
                    held_out[split] = held_out.get(split, []) + pairs
        held_out = {split: pairs for split, pairs in held_out.items() if pairs}
        for split, pairs in held_out.items():
            self._write_held_out(split, pairs, subwords)
        write_examples(self.folder, examples)
        return {"splits": ["train", *held_out]}

    def _writer(self, split: str, side: int, subwords: Subwords) -> TokenWriter:
        return TokenWriter(self.folder / f"{split}.{self.sides[side]}", subwords.size)

    def _write_held_out(self, split: str, pairs: list[Pair], subwords: Subwords) -> None:
        for side, language in enumerate(self.sides):
            sentences = [pair[side] for pair in pairs]
            write_text(self.folder / f"{split}.{language}", sentences)
            # The model reads its source as in training; what it should have written stays as given.
            as_read = [*map(self.data.normalised, sentences)] if side == 0 else sentences
            with self._writer(split, side, subwords) as writer:
                writer.write(subwords.encode(as_read, with_eos=True))

    def _tidy_up(self) -> None:
        """Removes what only the making needed."""
        shutil.rmtree(self.folder / "chunks", ignore_errors=True)
        for name in (FATES_FILE, *(f"{stage}.json" for stage in STAGES)):
            (self.folder / name).unlink(missing_ok=True)


def _give_back_memory() -> None:
    """What learning freed would else stay with this process: 330 of 390 MB after 500,000 words (2026-11-16)."""
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):  # not glibc
            ctypes.CDLL(None).malloc_trim(0)


def _merge(examples: Examples, more: Examples) -> None:
    for reason, found in more.items():
        for example in found:
            remember(examples, reason, *example)
