"""The vocabulary: joint byte-pair pieces of both languages, learnt and applied by SentencePiece.

docs/subwords.md has the measurements behind this choice.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

import sentencepiece

from konvoi.errors import DataError

FILE_NAME = "vocabulary.model"
# Two threads pay off from about this many lines on.
MIN_LINES_FOR_THREADS = 1000
NUM_THREADS = 2
# SentencePiece skips longer lines in silence; its own limit of 4,192 is short for 100 words of some languages.
MAX_LEARNT_LINE_BYTES = 16_384


class Subwords:
    """Text to piece ids and back. The ids of the special pieces are those of the reference runs."""

    PAD: ClassVar[int] = 0
    EOS: ClassVar[int] = 1
    BOS: ClassVar[int] = 2
    UNK: ClassVar[int] = 3

    def __init__(self, model: bytes) -> None:
        self._processor = sentencepiece.SentencePieceProcessor()
        self._processor.LoadFromSerializedProto(model)

    @classmethod
    def learn(cls, lines: Iterable[str], size: int, folder: Path, *, byte_fallback: bool = False) -> Subwords:
        """Learns `size` pieces from training text of both languages; writes vocabulary.model into the folder."""
        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(lines),
                model_writer=model,
                model_type="bpe",
                vocab_size=size,
                pad_id=cls.PAD,
                eos_id=cls.EOS,
                bos_id=cls.BOS,
                unk_id=cls.UNK,
                character_coverage=1.0,
                byte_fallback=byte_fallback,
                max_sentence_length=MAX_LEARNT_LINE_BYTES,
                minloglevel=2,
            )
        except RuntimeError as error:
            raise _explain(str(error), size) from None
        (folder / FILE_NAME).write_bytes(model.getvalue())
        return cls(model.getvalue())

    @classmethod
    def load(cls, path: Path) -> Subwords:
        """Reads a vocabulary file."""
        try:
            subwords = cls(path.read_bytes())
        except OSError as error:
            raise DataError(f"{path}: no vocabulary: {error.strerror}", hint="prepare the set again") from None
        except RuntimeError:
            raise DataError(f"{path} is no SentencePiece vocabulary, or is damaged", hint="prepare it again") from None
        subwords._check_special_ids(path)
        return subwords

    def _check_special_ids(self, path: Path) -> None:
        processor = self._processor
        found = (processor.pad_id(), processor.eos_id(), processor.bos_id(), processor.unk_id())
        if found != (self.PAD, self.EOS, self.BOS, self.UNK):
            raise DataError(
                f"{path}: pad, eos, bos, unk have the ids {found}, not (0, 1, 2, 3)",
                hint="learn the vocabulary with konvoi data prepare",
            )

    @property
    def size(self) -> int:
        """The number of pieces, special ones included."""
        return int(self._processor.get_piece_size())

    def encode(self, lines: list[str], *, with_eos: bool = False) -> list[list[int]]:
        """The ids of each line; no special ids unless asked for."""
        num_threads = NUM_THREADS if len(lines) >= MIN_LINES_FOR_THREADS else 1
        ids: list[list[int]] = self._processor.encode(lines, out_type=int, add_eos=with_eos, num_threads=num_threads)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Plain text: padding, begin and end are left out, an unknown piece shows as a double question mark."""
        return str(self._processor.decode([int(i) for i in ids if i not in (self.PAD, self.EOS, self.BOS)]))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The piece behind each id, special ones too."""
        return [str(self._processor.id_to_piece(int(i))) for i in ids]


def _explain(message: str, size: int) -> DataError:
    """What SentencePiece's complaint means for the recipe."""
    if match := re.search(r"size too high.*<= (\d+)", message):
        bound, remedy = f"at most {match[1]} pieces", f"--set data.vocabulary_size={match[1]}"
    elif match := re.search(r"smaller than required_chars\D*\d+ vs (\d+)", message):
        bound, remedy = f"at least {match[1]} pieces", f"--set data.vocabulary_size={match[1]}"
    else:
        return DataError(f"cannot learn a vocabulary of {size}: {message}", hint="check the training text")
    return DataError(f"a vocabulary of {size} does not fit the training text: {bound}", hint=remedy)
