"""konvoi translate: one line in, one line out, in order and in bounded memory."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TextIO

import typer

from konvoi.data.subwords import Subwords
from konvoi.data.text import read_lines
from konvoi.engine.trained import Trained, load_trained
from konvoi.errors import DataError, RunError, UserError
from konvoi.evaluate.beam import translate_lines
from konvoi.run_directory import RunDirectory
from konvoi.tasks.translation import vocabulary_of

# Enough lines of like length for full batches; at a keyboard every line is answered at once.
CHUNK_LINES = 1024


def translate(
    path: Path, checkpoint: str, *, text: list[str], input_file: Path | None, output_file: Path | None, beam: int | None
) -> None:
    trained = load_trained(RunDirectory.open(path), checkpoint)
    if trained.recipe.name_of("task") != "translation":
        raise RunError(f"{path} is no translator", hint=f"konvoi classify {path} IMAGE...")
    subwords = vocabulary_of(trained.run)
    is_keyboard = not text and input_file is None and sys.stdin.isatty()
    if is_keyboard:
        typer.echo("a sentence a line; Ctrl-D ends", err=True)
    lines = _lines(text, input_file)
    with _beside(output_file) if output_file else nullcontext(sys.stdout) as output:
        first_line_number = 1
        while chunk := list(itertools.islice(lines, 1 if is_keyboard else CHUNK_LINES)):
            output.writelines(f"{line}\n" for line in _translated(trained, subwords, chunk, beam, first_line_number))
            output.flush()
            first_line_number += len(chunk)


def _translated(
    trained: Trained, subwords: Subwords, lines: list[str], beam: int | None, first_line_number: int
) -> list[str]:
    settings: Any = trained.recipe.evaluate
    data: Any = trained.recipe.data
    with trained.inference():
        return translate_lines(
            trained.model,  # type: ignore[arg-type]
            subwords,
            [data.normalised(line) for line in lines],
            beam=beam or settings.beam,
            length_penalty=settings.length_penalty,
            device=trained.device,
            first_line_number=first_line_number,
        )


def _lines(text: list[str], input_file: Path | None) -> Iterator[str]:
    if text:
        return (line for sentence in text for line in sentence.split("\n"))
    return read_lines(input_file) if input_file else _decoded(sys.stdin.buffer)


def _decoded(stream: Iterable[bytes]) -> Iterator[str]:
    """Standard input by "\\n" alone, as files are read."""
    for number, raw in enumerate(stream, start=1):
        try:
            yield raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError:
            raise DataError(
                f"standard input: line {number} is not UTF-8", hint="convert it: iconv -f ISO-8859-1 -t UTF-8"
            ) from None


@contextmanager
def _beside(path: Path) -> Iterator[TextIO]:
    """Takes its name only when it is whole: a stopped translation leaves no half file behind."""
    if path.is_dir():
        raise UserError(f"{path} is a folder", hint="name a file for --output")
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        stream = temporary.open("w", encoding="utf-8", newline="\n")
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}", hint="choose another --output") from None
    try:
        with stream:
            yield stream
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
