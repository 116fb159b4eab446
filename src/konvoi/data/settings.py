"""The [data] table of a recipe for translation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator, model_validator

from konvoi.data.clean import Cleaning
from konvoi.data.sets import KNOWN_SETS, OWN
from konvoi.errors import did_you_mean

OWN_FILES = ("train_source", "train_target", "dev_source", "dev_target", "test_source", "test_target")


class Data(Cleaning):
    """Which corpus, how it is cleaned, and how large its vocabulary is."""

    set: str
    """A known set (konvoi data list), or "own" for the files named below."""

    vocabulary_size: PositiveInt = Field(default=8000, ge=8)
    """Pieces of the vocabulary that both languages share."""

    dev_pairs: PositiveInt = 1000
    """Pairs to split off the training files for dev; used only for own files without dev_source."""

    test_pairs: NonNegativeInt = 1000
    """Pairs to split off the training files for test; used only for own files without test_source."""

    train_source: Path | None = None
    """Own training text, one sentence a line: plain, .gz or .xz."""

    train_target: Path | None = None
    """Its translation, line by line."""

    dev_source: Path | None = None
    """Own text to watch the training with; left out, dev_pairs are split off."""

    dev_target: Path | None = None
    """Its translation, line by line."""

    test_source: Path | None = None
    """Own text for the final score; left out, test_pairs are split off."""

    test_target: Path | None = None
    """Its translation, line by line."""

    @field_validator("set")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in (*KNOWN_SETS, OWN):
            near = did_you_mean(name, (*KNOWN_SETS, OWN))
            raise ValueError(f'there is no set "{name}"{near} (known: {", ".join((*KNOWN_SETS, OWN))})')
        return name

    @field_validator(*OWN_FILES)
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        """A run goes on from any folder."""
        return path.expanduser().absolute() if path else None

    @model_validator(mode="after")
    def _files_fit_the_set(self) -> Data:
        given = [key for key in OWN_FILES if getattr(self, key) is not None]
        if self.set != OWN and given:
            raise ValueError(f'{", ".join(given)}: own files make sense only with set = "{OWN}", not "{self.set}"')
        wanted = {"train_source", "train_target"} if self.set == OWN else frozenset()
        missing = sorted((wanted | {_other_side(key) for key in given}) - {*given})
        if missing:
            raise ValueError(f"{', '.join(missing)}: missing; each split needs a source and a target file")
        return self

    def own_files(self, split: str) -> tuple[Path, Path] | None:
        """The two own files of a split, where given."""
        source, target = getattr(self, f"{split}_source"), getattr(self, f"{split}_target")
        return (source, target) if source and target else None

    def settings_that_matter(self) -> dict[str, Any]:
        """What a prepared set depends on, besides the content of its files."""
        unused = set() if self.set == OWN else {"dev_pairs", "test_pairs"}
        return self.model_dump(mode="json", exclude={*OWN_FILES, *unused})


def _other_side(key: str) -> str:
    split, side = key.split("_")
    return f"{split}_{'target' if side == 'source' else 'source'}"
