"""Measures SentencePiece against tokenizers: seconds and peak memory of learning and of encoding.

    python benchmarks/subwords/measure.py FOLDER       FOLDER holds one or more NAME.en and NAME.de, plain, .gz or .xz

Every measurement runs in its own process, so that its peak memory is its own. Processor seconds are
printed beside the clock's, because a shared machine stretches the clock only.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import io
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from konvoi.data.text import read_lines

NUM_PIECES = 32_000
NUM_LINES_PER_SIDE = 300_000
CHUNK_LINES = 50_000
LIBRARIES = ("sentencepiece", "tokenizers")
SPECIAL_PIECES = ["<pad>", "</s>", "<s>", "<unk>"]


def lines_of(corpus: Path) -> Iterator[str]:
    return read_lines(corpus)


def chunks_of(corpus: Path) -> Iterator[list[str]]:
    lines = lines_of(corpus)
    while chunk := list(itertools.islice(lines, CHUNK_LINES)):
        yield chunk


def learn_sentencepiece(corpus: Path, model: Path, num_threads: int) -> int:
    import sentencepiece

    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines_of(corpus),
        model_writer=content,
        model_type="bpe",
        vocab_size=NUM_PIECES,
        character_coverage=1.0,
        num_threads=num_threads,
        minloglevel=2,
    )
    model.write_bytes(content.getvalue())
    return 0


def encode_sentencepiece(corpus: Path, model: Path, num_threads: int) -> int:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    encoded = (processor.encode(chunk, num_threads=num_threads) for chunk in chunks_of(corpus))
    return sum(len(ids) for chunk in encoded for ids in chunk)


def learn_tokenizers(corpus: Path, model: Path, num_threads: int) -> int:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.NFKC()
    # SentencePiece never joins letters and punctuation in one piece; held to the same rule, both do the same work.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()])
    trainer = trainers.BpeTrainer(vocab_size=NUM_PIECES, special_tokens=SPECIAL_PIECES, show_progress=False)
    tokenizer.train_from_iterator(lines_of(corpus), trainer)
    tokenizer.save(str(model))
    return 0


def encode_tokenizers(corpus: Path, model: Path, num_threads: int) -> int:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model))
    encoded = (tokenizer.encode_batch_fast(chunk) for chunk in chunks_of(corpus))
    return sum(len(one.ids) for chunk in encoded for one in chunk)


WORK: dict[str, Callable[[Path, Path, int], int]] = {
    "learn sentencepiece": learn_sentencepiece,
    "learn tokenizers": learn_tokenizers,
    "encode sentencepiece": encode_sentencepiece,
    "encode tokenizers": encode_tokenizers,
}


def work(name: str, corpus: Path, model: Path, num_threads: int) -> None:
    """Inside the child: does one thing and prints what it took."""
    started_at, started_cpu = time.perf_counter(), time.process_time()
    num_tokens = WORK[name](corpus, model, num_threads)
    result = {
        "seconds": time.perf_counter() - started_at,
        "cpu_seconds": time.process_time() - started_cpu,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
        "tokens": num_tokens,
    }
    print(json.dumps(result))


def measure(name: str, corpus: Path, model: Path, num_threads: int) -> dict[str, Any]:
    """Starts the child; tokenizers takes its number of threads from the environment."""
    command = [sys.executable, __file__, "--work", name, "--model", str(model), "--threads", str(num_threads)]
    environment = {**os.environ, "RAYON_NUM_THREADS": str(num_threads), "TOKENIZERS_PARALLELISM": "true"}
    output = subprocess.run([*command, str(corpus)], env=environment, check=True, capture_output=True, timeout=1800)
    result: dict[str, Any] = json.loads(output.stdout)
    return result


def write_corpus(folder: Path, corpus: Path) -> int:
    """The first lines of every .en and .de file of the folder, one after another."""
    paths = sorted(path for path in folder.iterdir() if ".en" in path.suffixes or ".de" in path.suffixes)
    with corpus.open("w", encoding="utf-8", newline="\n") as stream:
        for path in paths:
            stream.writelines(f"{line}\n" for line in itertools.islice(read_lines(path), NUM_LINES_PER_SIDE))
    return corpus.stat().st_size


def compare(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        corpus = Path(temporary) / "corpus"
        print(f"{write_corpus(folder, corpus) / 1e6:.1f} MB of text, {NUM_PIECES:,} pieces\n")
        print("| work | library | threads | seconds | processor seconds | peak MB | tokens |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for task, num_threads, library in itertools.product(("learn", "encode"), (1, 2), LIBRARIES):
            result = measure(f"{task} {library}", corpus, Path(temporary) / library, num_threads)
            version = f"{library} {importlib.metadata.version(library)}"
            numbers = f"{result['seconds']:.1f} | {result['cpu_seconds']:.1f} | {result['peak_mb']:,.0f}"
            print(f"| {task} | {version} | {num_threads} | {numbers} | {result['tokens'] or '-'} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="the folder with the text")
    parser.add_argument("--work", choices=WORK, help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.work, arguments.corpus, arguments.model, arguments.threads)
    else:
        compare(arguments.corpus)


if __name__ == "__main__":
    main()
