"""Makes the corpus that ships with Konvoi out of the Tatoeba export: short, frequent, one register.

    python benchmarks/demo/make_corpus.py deu-eng.zip src/konvoi/data/embedded/demo-en-de.tsv.xz

The slice feeds a demo of a few minutes on two CPU cores, so it keeps what a small model can learn in
that time. Scores on it compare runs of the demo with one another, not with the literature.
"""

from __future__ import annotations

import argparse
import hashlib
import lzma
import re
import zipfile
from collections import Counter, defaultdict
from pathlib import Path

SHORTEST_WORDS, LONGEST_WORDS = 3, 9
LONGEST_GERMAN_WORDS = 10
MAX_WORD_RATIO = 2.0
NUM_FREQUENT_ENGLISH = 3000
NUM_FREQUENT_GERMAN = 6000
TRANSLATIONS_PER_SENTENCE = 1
MAX_PAIRS = 70_000

WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)?")
YOU = re.compile(r"\b(you|your|yours|yourself|yourselves)\b", re.IGNORECASE)
# Behind another word a capital "Sie" is the formal "you"; at the start it may be "she" or "they".
FORMAL_INSIDE = re.compile(r"(?<=[\w,] )(Sie|Ihnen|Ihre?[nmrs]?)\b")
FORMAL_OR_PLURAL = re.compile(r"\b(Sie|Ihnen|Ihre?[nmrs]?|ihr|euch|eure?[nmrs]?|euer)\b")
PLAIN = re.compile(r"[A-Za-zÄÖÜäöüß0-9 ,.!?'\u2019:;-]+")

Pair = tuple[str, str]


def words(sentence: str) -> list[str]:
    return WORD.findall(sentence.lower())


def read(path: Path) -> list[Pair]:
    with zipfile.ZipFile(path) as archive:
        lines = archive.read("deu.txt").decode("utf-8").split("\n")
    rows = [line.replace("\u2019", "'").split("\t") for line in lines if line]
    return sorted({(" ".join(row[0].split()), " ".join(row[1].split())) for row in rows})


def one_register(english: str, german: str) -> bool:
    """Keeps "du" for "you", and "Maria" for "Mary": a coin tossed by each translator can't be learnt."""
    formal = FORMAL_OR_PLURAL if YOU.search(english) else FORMAL_INSIDE
    return not formal.search(german) and not ("Mary" in english and "Maria" not in german)


def fits(english: str, german: str) -> bool:
    num_english, num_german = len(english.split()), len(german.split())
    return (
        SHORTEST_WORDS <= num_english <= LONGEST_WORDS
        and num_german <= LONGEST_GERMAN_WORDS
        and max(num_english, num_german) <= MAX_WORD_RATIO * min(num_english, num_german)
        and bool(PLAIN.fullmatch(english) and PLAIN.fullmatch(german))
        and one_register(english, german)
    )


def ranks(sentences: list[str]) -> dict[str, int]:
    """The rank of each word by frequency, 0 the most frequent; ties by the alphabet."""
    counts = Counter(word for sentence in sentences for word in words(sentence))
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: rank for rank, word in enumerate(ordered)}


def frequent(pairs: list[Pair]) -> list[Pair]:
    english_rank, german_rank = ranks([e for e, _ in pairs]), ranks([g for _, g in pairs])
    return [
        (english, german)
        for english, german in pairs
        if all(english_rank[word] < NUM_FREQUENT_ENGLISH for word in words(english))
        and all(german_rank[word] < NUM_FREQUENT_GERMAN for word in words(german))
    ]


def plainest_translations(pairs: list[Pair]) -> list[Pair]:
    """Of several translations the one in the most frequent words: the literal one, mostly."""
    rank = ranks([german for _, german in pairs])
    translations: dict[str, list[str]] = defaultdict(list)
    for english, german in pairs:
        translations[english].append(german)

    def plainness(german: str) -> tuple[int, int, str]:
        return max((rank[word] for word in words(german)), default=0), len(german), german

    return [
        (english, german)
        for english, germans in translations.items()
        for german in sorted(germans, key=plainness)[:TRANSLATIONS_PER_SENTENCE]
    ]


def by_hash(pair: Pair) -> bytes:
    return hashlib.sha256(pair[0].encode()).digest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", type=Path, help="deu-eng.zip of manythings.org/anki")
    parser.add_argument("corpus", type=Path, help="the .tsv.xz file to write")
    arguments = parser.parse_args()
    fitting = [pair for pair in read(arguments.archive) if fits(*pair)]
    chosen = plainest_translations(frequent(fitting))
    # Which ones to keep is decided by hash, the order is the alphabet's: neighbours that are alike pack better.
    kept = sorted(sorted(chosen, key=by_hash)[:MAX_PAIRS])
    text = "".join(f"{english}\t{german}\n" for english, german in kept)
    arguments.corpus.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{len(fitting):,} fit, {len(chosen):,} of frequent words, {len(kept):,} kept")
    print(f"{arguments.corpus}: {arguments.corpus.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
