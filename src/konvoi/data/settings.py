"""The [data] table of a recipe for translation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator, model_validator

from konvoi.data.clean import Cleaning
from konvoi.errors import did_you_mean
from konvoi.fetch.sets import KNOWN_SETS, OWN

OWN_SPLITS = ("train", "dev", "test")
OWN_FILES = tuple(f"{split}_{side}" for split in OWN_SPLITS for side in ("source", "target", "file"))


class Data(Cleaning):
    """Which corpus, how it is cleaned, and how large its vocabulary is."""

    set: str
    """A known set (konvoi data list), or "own" for the files named below."""

    vocabulary_size: PositiveInt = Field(default=8000, ge=8)
    """Pieces of the vocabulary that both languages share."""

    vocabulary: Path | None = None
    """A SentencePiece model to use as it is, instead of learning one."""

    dev_pairs: PositiveInt = 1000
    """Pairs to split off the training files for dev; used only for own files without dev files."""

    test_pairs: NonNegativeInt = 1000
    """Pairs to split off the training files for test; used only for own files without test files."""

    train_source: Path | None = None
    """Own training text, one sentence a line: plain, .gz, .xz or .zst."""

    train_target: Path | None = None
    """Its translation, line by line."""

    train_file: Path | None = None
    """Own training text with both sides in one file: .tsv or .jsonl, plain or packed."""

    dev_source: Path | None = None
    """Own text to watch the training with; left out, dev_pairs are split off."""

    dev_target: Path | None = None
    """Its translation, line by line."""

    dev_file: Path | None = None
    """Both sides in one file."""

    test_source: Path | None = None
    """Own text for the final score; left out, test_pairs are split off."""

    test_target: Path | None = None
    """Its translation, line by line."""

    test_file: Path | None = None
    """Both sides in one file."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in_what_the_set_says(cls, given: Any) -> Any:
        """A known set has settings of its own, such as the cleaning of its reference; the recipe's go before them."""
        if isinstance(given, dict) and isinstance(given.get("set"), str) and given["set"] in KNOWN_SETS:
            return {**KNOWN_SETS[given["set"]].settings, **given}
        return given

    @field_validator("set")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in (*KNOWN_SETS, OWN):
            near = did_you_mean(name, (*KNOWN_SETS, OWN))
            raise ValueError(f'there is no set "{name}"{near} (known: {", ".join((*KNOWN_SETS, OWN))})')
        return name

    @field_validator("vocabulary", *OWN_FILES)
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        """A run goes on from any folder."""
        return path.expanduser().absolute() if path else None

    @model_validator(mode="after")
    def _files_fit_the_set(self) -> Data:
        given = [key for key in OWN_FILES if getattr(self, key) is not None]
        if self.set != OWN and given:
            raise ValueError(f'{", ".join(given)}: own files make sense only with set = "{OWN}", not "{self.set}"')
        wanted = {"train_source", "train_target"} if self.set == OWN and not self.train_file else set()
        wanted |= {_other_side(key) for key in given if not key.endswith("_file")}
        if missing := sorted(wanted - {*given}):
            raise ValueError(f"{', '.join(missing)}: missing; each split needs a source and a target file, or one file")
        if doubled := [split for split in OWN_SPLITS if {f"{split}_file", f"{split}_source"} <= {*given}]:
            raise ValueError(f"{doubled[0]}_file: give it or {doubled[0]}_source and {doubled[0]}_target, not both")
        return self

    def own_files(self, split: str) -> tuple[Path, ...]:
        """The own files of a split: one that holds both sides, two, or none."""
        paths = (getattr(self, f"{split}_{side}") for side in ("file", "source", "target"))
        return tuple(path for path in paths if path is not None)

    def settings_that_matter(self) -> dict[str, Any]:
        """What a prepared set depends on, besides the content of its files."""
        unused = {"vocabulary", *OWN_FILES}
        unused |= {f"{split}_pairs" for split in ("dev", "test") if self.set != OWN or self.own_files(split)}
        if self.vocabulary is not None:
            unused |= {"vocabulary_size"}
        return self.model_dump(mode="json", exclude=unused)


def _other_side(key: str) -> str:
    split, side = key.split("_")
    return f"{split}_{'target' if side == 'source' else 'source'}"
