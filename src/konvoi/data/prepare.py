"""Text to tokens: read, clean, split off, learn the vocabulary, encode, write; done once per settings and files."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from konvoi.data.clean import CleaningCounts, clean, normalise
from konvoi.data.fingerprint import key_of
from konvoi.data.folder import BYTES_PER_MB, whole_folder
from konvoi.data.get import Report, silent
from konvoi.data.hold_out import Choice, check_enough, separate
from konvoi.data.inputs import Inputs, find_inputs
from konvoi.data.prepared import INFO_FILE, PreparedSet, write_text
from konvoi.data.settings import Data
from konvoi.data.subwords import Subwords
from konvoi.data.text import Pair
from konvoi.data.tokens import TokenFile, TokenWriter
from konvoi.errors import DataError

__all__ = ["Data", "PreparedSet", "find_prepared", "prepare"]

# Raise it when the meaning of the files changes: older sets are then prepared anew.
FORMAT_VERSION = 1
CHUNK_PAIRS = 50_000
# More text makes the vocabulary no better but its learning slow and hungry for memory.
MAX_LEARNT_LINES = 2_000_000
# Staged text once or twice, then 2 bytes a token and 16 bytes a pair.
DISK_FACTOR = 2.5


def prepare(
    data: Data, *, source: str, target: str, home: Path, from_folder: Path | None = None, report: Report = silent
) -> PreparedSet:
    """The prepared set of these settings and files; made now unless it is there already."""
    inputs = find_inputs(data, source, target, home, from_folder)
    settings, final = _place(data, source, target, home, inputs)
    if not final.exists():
        with whole_folder(final, needed_bytes=int(DISK_FACTOR * inputs.text_bytes)) as folder:
            _Preparation(folder, data, inputs, (source, target), report).run(settings)
    return PreparedSet.open(final)


def find_prepared(data: Data, *, source: str, target: str, home: Path) -> PreparedSet | None:
    """The prepared set of these settings and files, where there is one; nothing is made."""
    _, final = _place(data, source, target, home, find_inputs(data, source, target, home, None))
    return PreparedSet.open(final) if final.exists() else None


def _place(data: Data, source: str, target: str, home: Path, inputs: Inputs) -> tuple[dict[str, Any], Path]:
    """All that the prepared set depends on besides its files, and where it lies."""
    settings = {**data.settings_that_matter(), "source": source, "target": target, "format": FORMAT_VERSION}
    return settings, home / "data" / f"{data.set}-{key_of(settings, inputs.files)}"


class _Preparation:
    """The steps of one preparation, in the order of run()."""

    def __init__(self, folder: Path, data: Data, inputs: Inputs, sides: tuple[str, str], report: Report) -> None:
        self.folder, self.data, self.inputs, self.sides, self.report = folder, data, inputs, sides, report
        self.counts = CleaningCounts()
        self.raw_bytes = [0, 0]
        self.held_out: dict[str, list[Pair]] = {}

    def run(self, settings: dict[str, Any]) -> None:
        self._read_held_out()
        training = self._split_off(self._clean())
        self._check()
        subwords = self._learn(training)
        self._encode("train", _read_staged(training), subwords)
        for split, pairs in self.held_out.items():
            self._encode(split, pairs, subwords)
            for number, side in enumerate(self.sides):
                write_text(self.folder / f"{split}.{side}", [pair[number] for pair in pairs])
        training.unlink()
        info = json.dumps(self._describe(settings, subwords), indent=2, ensure_ascii=False)
        (self.folder / INFO_FILE).write_text(info + "\n", encoding="utf-8")

    def _read_held_out(self) -> None:
        """Dev and test stay exactly as given, or scores would not compare with those of others."""
        for split in ("dev", "test"):
            if split in self.inputs.splits:
                pairs = self.inputs.splits[split]()
                self.held_out[split] = [(s.lower(), t.lower()) for s, t in pairs] if self.data.lowercase else [*pairs]

    def _clean(self) -> tuple[Path, Choice]:
        """Clean pairs on disk rather than in memory, and those of them to hold out."""
        held_out = {normalise(source) for pairs in self.held_out.values() for source, _ in pairs}
        choice = Choice(self.inputs.num_dev, self.inputs.num_test)
        raw = self._watched(self.inputs.splits["train"]())
        staged = self.folder / "clean.tsv"
        _stage(staged, choice.watch(clean(raw, self.data, self.counts, held_out)))
        return staged, choice

    def _watched(self, pairs: Iterator[Pair]) -> Iterator[Pair]:
        number = 0
        for number, (source, target) in enumerate(pairs, start=1):
            self.raw_bytes[0] += len(source.encode()) + 1
            self.raw_bytes[1] += len(target.encode()) + 1
            if number % CHUNK_PAIRS == 0:
                self.report("reading", number)
            yield source, target
        self.report("reading", number)

    def _split_off(self, cleaned: tuple[Path, Choice]) -> Path:
        """Moves the chosen pairs from training to dev and test."""
        staged, choice = cleaned
        num_wanted = choice.num_dev + choice.num_test
        if num_wanted == 0:
            return staged
        check_enough(self.counts.kept, num_wanted)
        split_of = choice.splits()
        self.held_out |= {split: [] for split in ("dev", "test") if split in split_of.values()}
        training = self.folder / "training.tsv"
        _stage(training, separate(_read_staged(staged), split_of, self.held_out, self.counts))
        staged.unlink()
        return training

    def _check(self) -> None:
        if self.counts.kept < 2:
            dropped = ", ".join(f"{reason} {number:,}" for reason, number in self.counts.as_dict().items() if number)
            raise DataError(
                f"{self.counts.kept} training pairs are left of {self.counts.read:,} ({dropped or 'none read'})",
                hint="give more text, or relax data.max_words and data.max_ratio",
            )

    def _learn(self, training: Path) -> Subwords:
        """On training text only: dev and test must stay unseen."""
        self.report("learning the vocabulary", 0)
        stride = -(-2 * self.counts.kept // MAX_LEARNT_LINES)
        sampled = itertools.islice(_read_staged(training), None, None, stride)
        lines = itertools.chain.from_iterable(sampled)
        return Subwords.learn(lines, self.data.vocabulary_size, self.folder)

    def _encode(self, split: str, pairs: Iterable[Pair], subwords: Subwords) -> None:
        prefixes = [self.folder / f"{split}.{side}" for side in self.sides]
        num_done = 0
        with TokenWriter(prefixes[0], subwords.size) as source, TokenWriter(prefixes[1], subwords.size) as target:
            for chunk in _chunks(pairs):
                source.write(subwords.encode([pair[0] for pair in chunk], with_eos=True))
                target.write(subwords.encode([pair[1] for pair in chunk], with_eos=True))
                num_done += len(chunk)
                self.report(f"encoding {split}", num_done)

    def _describe(self, settings: dict[str, Any], subwords: Subwords) -> dict[str, Any]:
        splits = ["train", *self.held_out]
        files = {split: {side: TokenFile(self.folder / f"{split}.{side}") for side in self.sides} for split in splits}
        source, target = self.sides
        train = files["train"]
        return {
            "version": FORMAT_VERSION,
            "set": self.data.set,
            "source": source,
            "target": target,
            "pairs": {split: len(files[split][source]) for split in splits},
            "raw_mb": {side: self.raw_bytes[i] / BYTES_PER_MB for i, side in enumerate(self.sides)},
            "tokens": {split: {side: len(files[split][side].tokens) for side in self.sides} for split in splits},
            "cleaning": self.counts.as_dict(),
            "vocabulary_size": subwords.size,
            "length_mean": {side: float(train[side].lengths.mean()) for side in self.sides},
            "length_p95": {side: float(np.percentile(train[side].lengths, 95)) for side in self.sides},
            "licence": self.inputs.licence,
            "citation": self.inputs.citation,
            "files": [str(path) for path in self.inputs.files],
            "settings": settings,
            "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }


def _stage(path: Path, pairs: Iterable[Pair]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as stream:
        stream.writelines(f"{source}\t{target}\n" for source, target in pairs)


def _read_staged(path: Path) -> Iterator[Pair]:
    """Clean sentences hold neither tabs nor line ends, so no checks are needed here."""
    with path.open(encoding="utf-8", newline="\n") as stream:
        for line in stream:
            source, target = line[:-1].split("\t")
            yield source, target


def _chunks(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    remaining = iter(pairs)
    while chunk := list(itertools.islice(remaining, CHUNK_PAIRS)):
        yield chunk
