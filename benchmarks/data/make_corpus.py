"""Grows a parallel corpus to millions of pairs: repeats it, changing each copy so that it is no duplicate.

    python benchmarks/data/make_corpus.py SOURCE TARGET PAIRS FOLDER      writes FOLDER/train.source and .target

The first copy is the text itself. In every further one a sentence has one word replaced by a word of another sentence,
and now and then two words are joined into a new one, so that the number of distinct words keeps growing as it does in
real text.
"""

from __future__ import annotations

import argparse
import itertools
import random
from collections.abc import Iterator
from pathlib import Path

from konvoi.data.text import read_lines

NEW_WORD_SHARE = 0.05


def grown(path: Path, num_lines: int, seed: int) -> Iterator[str]:
    lines = [*read_lines(path)]
    yield from lines[:num_lines]
    draw = random.Random(seed)
    changed = (_changed(line, draw.choice(lines), draw) for line in itertools.cycle(lines))
    yield from itertools.islice(changed, max(0, num_lines - len(lines)))


def _changed(line: str, other: str, draw: random.Random) -> str:
    words, donors = line.split() or [""], other.split() or ["word"]
    place, donor = draw.randrange(len(words)), draw.choice(donors)
    words[place] = donor + words[place].lower() if draw.random() < NEW_WORD_SHARE else donor
    return " ".join(words)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("pairs", type=int)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for seed, (path, name) in enumerate(((arguments.source, "train.source"), (arguments.target, "train.target"))):
        with (arguments.folder / name).open("w", encoding="utf-8", newline="\n") as stream:
            stream.writelines(f"{line}\n" for line in grown(path, arguments.pairs, seed))


if __name__ == "__main__":
    main()
