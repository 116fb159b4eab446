"""A prepared set: tokens, vocabulary, the text of dev and test, and what there is to say about them.

info.json  vocabulary.model  train.en.tokens  train.en.lengths.npy ...  dev.en  dev.de  test.en  test.de
dropped/too_long.tsv ...   the first pairs that each filter dropped: row in the input, source, target
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from konvoi.data import subwords as subwords_file
from konvoi.data.subwords import Subwords
from konvoi.data.tokens import TokenFile
from konvoi.errors import DataError

INFO_FILE = "info.json"
EXAMPLES_FOLDER = "dropped"
# Raise it when the meaning of the files changes: older sets are then prepared anew.
FORMAT_VERSION = 2


class PreparedSet:
    """Opens what prepare() wrote; reads only what is asked for."""

    def __init__(self, folder: Path, info: dict[str, Any]) -> None:
        self.folder = folder
        self.info = info
        self.source: str = info["source"]
        self.target: str = info["target"]

    @classmethod
    def open(cls, folder: Path) -> PreparedSet:
        """Reads info.json of a prepared folder."""
        path = folder / INFO_FILE
        try:
            info = json.loads(path.read_text(encoding="utf-8"))
            if info["version"] != FORMAT_VERSION:
                raise DataError(f"{folder} is of another version of Konvoi", hint="konvoi data prepare makes it anew")
            # What training asks of it without looking.
            dict(info["pairs"]), dict(info["length_mean"]), int(info["vocabulary_padded"]), str(info["set"])
            return cls(folder, {**info, "folder": str(folder)})
        except (FileNotFoundError, NotADirectoryError):
            raise DataError(
                f"{folder} is no prepared set",
                hint="konvoi data prepare makes one; remove what is left of a damaged one first",
            ) from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise DataError(f"{path} is damaged", hint="remove this folder and prepare the set again") from None

    @cached_property
    def subwords(self) -> Subwords:
        return Subwords.load(self.folder / subwords_file.FILE_NAME)

    def split(self, name: str) -> tuple[TokenFile, TokenFile]:
        """Source and target tokens of train, dev or test; every sentence ends with EOS."""
        self._check_split(name)
        source, target = (TokenFile(self.folder / f"{name}.{side}") for side in (self.source, self.target))
        if len(source) != len(target):
            raise DataError(
                f"{self.folder}: {name} has {len(source):,} source but {len(target):,} target sentences",
                hint="remove this folder and prepare the set again",
            )
        return source, target

    def text(self, name: str) -> tuple[list[str], list[str]]:
        """Source sentences and reference translations of dev or test, exactly as given."""
        self._check_split(name)
        assert name != "train", "the text of the training split is not kept"
        return _read_text(self.folder / f"{name}.{self.source}"), _read_text(self.folder / f"{name}.{self.target}")

    def _check_split(self, name: str) -> None:
        if name not in self.info["pairs"]:
            raise DataError(
                f'{self.folder} has no split "{name}"',
                hint=f"it has {', '.join(self.info['pairs'])}; set data.{name}_pairs, or name files for it",
            )


def write_text(path: Path, sentences: list[str]) -> None:
    """One sentence a line. As bytes, since text mode might change line ends."""
    path.write_bytes("".join(f"{sentence}\n" for sentence in sentences).encode())


def write_examples(folder: Path, examples: Mapping[str, Iterable[Sequence[object]]]) -> None:
    """The first dropped pairs of each reason, for people to look at."""
    (folder / EXAMPLES_FOLDER).mkdir(exist_ok=True)
    for reason, found in examples.items():
        lines = ("\t".join(str(cell).replace("\t", " ").replace("\n", " ") for cell in example) for example in found)
        write_text(folder / EXAMPLES_FOLDER / f"{reason}.tsv", [*lines])


def _read_text(path: Path) -> list[str]:
    # Not splitlines(): it would also split at U+2028 and its like inside a sentence.
    try:
        return path.read_bytes().decode("utf-8").removesuffix("\n").split("\n")
    except (FileNotFoundError, UnicodeDecodeError):
        raise DataError(f"{path} is missing or damaged", hint="remove this folder and prepare it again") from None


def prepared_sets(home: Path) -> list[PreparedSet]:
    """All prepared sets under home, by name; what is damaged or of another version hides no other."""
    found = []
    for path in sorted((home / "data").glob(f"[!.]*/{INFO_FILE}")):
        with contextlib.suppress(DataError):
            found.append(PreparedSet.open(path.parent))
    return found
