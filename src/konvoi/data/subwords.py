"""The vocabulary: joint byte-pair pieces of both languages, learnt and applied by SentencePiece.

docs/subwords.md has the measurements behind this choice.
"""

from __future__ import annotations

import io
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import sentencepiece

from konvoi.cores import usable_cores
from konvoi.data.tokens import smallest_dtype
from konvoi.errors import DataError

FILE_NAME = "vocabulary.model"
# SentencePiece writes a blank as this character; a piece that starts a word starts with it.
MARK = "\u2581"
# Matrix units are fastest where the number of columns is a multiple of this.
SIZE_MULTIPLE = 8
# Two threads pay off from about this many lines on.
MIN_LINES_FOR_THREADS = 1000
NUM_THREADS = 2
# SentencePiece skips longer words in silence; its own limit of 4,192 bytes is short where nobody writes blanks.
MAX_LEARNT_WORD_BYTES = 16_384


class Subwords:
    """Text to piece ids and back. The ids of the special pieces are those of the reference runs."""

    PAD: ClassVar[int] = 0
    EOS: ClassVar[int] = 1
    BOS: ClassVar[int] = 2
    UNK: ClassVar[int] = 3

    def __init__(self, model: bytes) -> None:
        self._processor = sentencepiece.SentencePieceProcessor()
        self._processor.LoadFromSerializedProto(model)

    def __reduce__(self) -> tuple[type[Subwords], tuple[bytes]]:
        """Another process receives the file's bytes and reads them anew."""
        return type(self), (self.model_bytes,)

    @classmethod
    def learn_from_counts(
        cls, counts: Iterable[tuple[str, int]], size: int, folder: Path, *, byte_fallback: bool = False
    ) -> Subwords:
        """Learns `size` pieces from the words of both languages and how often each occurs, in any order.

        The pieces are those that SentencePiece learns from the text itself: it counts the words first, too. Writes
        vocabulary.model into the folder.
        """
        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=map(_as_row, counts), model_writer=model, **cls._settings(size, byte_fallback)
            )
        except RuntimeError as error:
            raise _explain(str(error), size) from None
        (folder / FILE_NAME).write_bytes(model.getvalue())
        return cls(model.getvalue())

    @classmethod
    def learn(cls, lines: Iterable[str], size: int, folder: Path, *, byte_fallback: bool = False) -> Subwords:
        """The same from lines of text; their different words are held in memory."""
        counts = Counter(itertools.chain.from_iterable(line.split(" ") for line in lines))
        return cls.learn_from_counts(counts.items(), size, folder, byte_fallback=byte_fallback)

    @classmethod
    def _settings(cls, size: int, byte_fallback: bool) -> dict[str, Any]:
        return {
            "model_type": "bpe",
            "vocab_size": size,
            "pad_id": cls.PAD,
            "eos_id": cls.EOS,
            "bos_id": cls.BOS,
            "unk_id": cls.UNK,
            "input_format": "tsv",
            # 0 means all of them: no sample.
            "input_sentence_size": 0,
            "character_coverage": 1.0,
            "byte_fallback": byte_fallback,
            "max_sentence_length": MAX_LEARNT_WORD_BYTES,
            "num_threads": usable_cores(),
            "minloglevel": 2,
        }

    @classmethod
    def load(cls, path: Path) -> Subwords:
        """Reads a vocabulary file: ours, or one that SentencePiece's own trainer made."""
        try:
            model = path.read_bytes()
        except OSError as error:
            raise DataError(f"{path}: no vocabulary: {error.strerror}", hint="prepare the set again") from None
        try:
            subwords = cls(model)
        except RuntimeError:
            raise _explain_file(path, model) from None
        subwords._check_special_ids(path)
        return subwords

    def _check_special_ids(self, path: Path) -> None:
        processor = self._processor
        found = (processor.pad_id(), processor.eos_id(), processor.bos_id(), processor.unk_id())
        if found != (self.PAD, self.EOS, self.BOS, self.UNK):
            raise DataError(
                f"{path}: pad, eos, bos, unk have the ids {found}, not (0, 1, 2, 3)",
                hint="learn it with konvoi data prepare, or spm_train --pad_id=0 --eos_id=1 --bos_id=2 --unk_id=3",
            )

    @property
    def model_bytes(self) -> bytes:
        """What the vocabulary's file holds."""
        return bytes(self._processor.serialized_model_proto())

    def read_model(self) -> Any:
        """The pieces and settings of the file, as SentencePiece's ModelProto; parsed anew (5 ms), held by nobody."""
        # Only now: it takes protobuf with it, 50 ms that most commands can do without.
        file_format: Any = import_module("sentencepiece.sentencepiece_model_pb2")
        return file_format.ModelProto.FromString(self.model_bytes)

    @property
    def size(self) -> int:
        """The number of pieces, special ones included."""
        return int(self._processor.get_piece_size())

    @property
    def padded_size(self) -> int:
        """The rows of a model's embedding: the size, rounded up for the hardware. Ids from `size` on mean nothing."""
        return padded_size(self.size)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type in which ids are kept."""
        return smallest_dtype(self.size)

    def encode(self, lines: list[str], *, with_eos: bool = False) -> list[list[int]]:
        """The ids of each line; no special ids unless asked for."""
        num_threads = NUM_THREADS if len(lines) >= MIN_LINES_FOR_THREADS else 1
        ids: list[list[int]] = self._processor.encode(lines, out_type=int, add_eos=with_eos, num_threads=num_threads)
        return ids

    def encode_word(self, word: str) -> list[int]:
        """The ids of one short text, without the 50 us that SentencePiece takes to get ready for several."""
        ids: list[int] = self._processor.encode(word, out_type=int)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Plain text: padding, begin and end are left out, an unknown piece shows as a double question mark."""
        return str(self._processor.decode([int(i) for i in ids if i not in (self.PAD, self.EOS, self.BOS)]))

    def split(self, lines: list[str]) -> list[list[str]]:
        """The pieces of each line; what the vocabulary does not know stands as it was written."""
        num_threads = NUM_THREADS if len(lines) >= MIN_LINES_FOR_THREADS else 1
        pieces: list[list[str]] = self._processor.encode(lines, out_type=str, num_threads=num_threads)
        return pieces

    def join(self, pieces: Sequence[str]) -> str:
        """The text of pieces, those included that the vocabulary does not know."""
        return str(self._processor.decode_pieces([*pieces]))

    def ids(self, pieces: Sequence[str]) -> list[int]:
        """The id of each piece."""
        return [int(self._processor.piece_to_id(piece)) for piece in pieces]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The piece behind each id, special ones too."""
        return [str(self._processor.id_to_piece(int(i))) for i in ids]


def padded_size(size: int) -> int:
    """The next multiple that suits the hardware."""
    return -(-size // SIZE_MULTIPLE) * SIZE_MULTIPLE


def _as_row(counted: tuple[str, int]) -> str:
    """As the trainer reads it. A tab is a blank to SentencePiece, but ends the word in this format."""
    word, count = counted
    return f"{word}\t{count}" if "\t" not in word else f"{word.replace(chr(9), ' ')}\t{count}"


def _explain(message: str, size: int) -> DataError:
    """What SentencePiece's complaint means for the recipe."""
    if match := re.search(r"size too high.*<= (\d+)", message):
        bound, remedy = f"at most {match[1]} pieces", f"--set data.vocabulary_size={match[1]}"
    elif match := re.search(r"smaller than required_chars\D*\d+ vs (\d+)", message):
        bound, remedy = f"at least {match[1]} pieces", f"--set data.vocabulary_size={match[1]}"
    elif "sentences_.empty()" in message:
        return DataError("there is no training text to learn a vocabulary from", hint="check the training text")
    else:
        return DataError(f"cannot learn a vocabulary of {size}: {message}", hint="check the training text")
    return DataError(f"a vocabulary of {size} does not fit the training text: {bound}", hint=remedy)


def _explain_file(path: Path, content: bytes) -> DataError:
    """What somebody may have given in place of a SentencePiece model."""
    if re.match(rb"[^\t\n]+\t-?[\d.e+-]+\r?\n", content):
        return DataError(
            f"{path} is the list of a vocabulary's pieces, not the vocabulary itself",
            hint=f"give the binary file that was made with it, most likely {path.with_suffix('.model').name}",
        )
    if content.lstrip().startswith(b"{"):
        return DataError(f"{path} is JSON, not a SentencePiece vocabulary", hint="give a SentencePiece .model file")
    return DataError(f"{path} is no SentencePiece vocabulary, or is damaged", hint="prepare or copy it again")
