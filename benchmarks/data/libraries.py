"""Measures each step on the way from text to tokens, beside the libraries alone on the same lines.

    python benchmarks/data/libraries.py SOURCE TARGET [--lines 300000] [--rounds 3]

SOURCE and TARGET are a parallel corpus, plain or packed. Every measurement runs in its own process, so that its peak
memory is its own, and appends a row to libraries.jsonl beside this file; what has its row of today is not measured
again. Rounds are interleaved. The libraries keep nothing of what they encode; Konvoi's rows are named as its stages.
Wanted besides Konvoi: pip install tokenizers subword-nmt
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import io
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from konvoi.data.clean import Cleaning
from konvoi.data.inputs import Inputs
from konvoi.data.sift import Sift, raw_chunks
from konvoi.data.subwords import Subwords
from konvoi.data.text import read_lines
from konvoi.data.tokens import TokenWriter
from konvoi.data.word_encoder import WordEncoder
from konvoi.parallel import ordered_map

RESULTS = Path(__file__).with_name("libraries.jsonl")
NUM_PIECES = 32_000
CHUNK_LINES = 50_000
BLOCK_LINES = 2000
SPECIAL_PIECES = ["<pad>", "</s>", "<s>", "<unk>"]
SPECIAL_IDS = {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3}

Result = dict[str, Any]


def lines_of(folder: Path) -> Iterator[str]:
    return itertools.chain(read_lines(folder / "text.source"), read_lines(folder / "text.target"))


def chunks_of(folder: Path) -> Iterator[list[str]]:
    lines = lines_of(folder)
    while chunk := list(itertools.islice(lines, CHUNK_LINES)):
        yield chunk


def learn_sentencepiece(folder: Path, num_threads: int) -> Result:
    import sentencepiece

    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines_of(folder),
        model_writer=content,
        model_type="bpe",
        vocab_size=NUM_PIECES,
        character_coverage=1.0,
        num_threads=num_threads,
        minloglevel=2,
        **SPECIAL_IDS,
    )
    (folder / "sentencepiece.model").write_bytes(content.getvalue())
    return {}


def encode_sentencepiece(folder: Path, num_threads: int) -> Result:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "sentencepiece.model"))
    checksum = hashlib.sha256()
    num_tokens, seconds = 0, 0.0
    for chunk in chunks_of(folder):
        began = time.perf_counter()
        encoded = processor.encode(chunk, num_threads=num_threads)
        seconds += time.perf_counter() - began
        num_tokens += sum(map(len, encoded))
        for ids in encoded:
            checksum.update(np.array(ids, dtype=np.uint16).tobytes())
    return {"tokens": num_tokens, "sha256": checksum.hexdigest(), "bare_seconds": seconds}


def learn_tokenizers(folder: Path, num_threads: int) -> Result:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.NFKC()
    # SentencePiece never joins letters and punctuation in one piece; held to the same rule, both do the same work.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()])
    trainer = trainers.BpeTrainer(vocab_size=NUM_PIECES, special_tokens=SPECIAL_PIECES, show_progress=False)
    tokenizer.train_from_iterator(lines_of(folder), trainer)
    tokenizer.save(str(folder / "tokenizers.json"))
    return {}


def encode_tokenizers(folder: Path, num_threads: int) -> Result:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizers.json"))
    num_tokens, seconds = 0, 0.0
    for chunk in chunks_of(folder):
        began = time.perf_counter()
        encoded = tokenizer.encode_batch_fast(chunk)
        seconds += time.perf_counter() - began
        num_tokens += sum(len(one.ids) for one in encoded)
    return {"tokens": num_tokens, "bare_seconds": seconds}


def learn_subword_nmt(folder: Path, num_threads: int) -> Result:
    from subword_nmt.learn_bpe import learn_bpe

    with (folder / "subword-nmt.codes").open("w", encoding="utf-8") as codes:
        learn_bpe(lines_of(folder), codes, NUM_PIECES)
    return {}


def encode_subword_nmt(folder: Path, num_threads: int) -> Result:
    from subword_nmt.apply_bpe import BPE

    with (folder / "subword-nmt.codes").open(encoding="utf-8") as codes:
        bpe = BPE(codes)
    num_tokens, seconds = 0, 0.0
    for chunk in chunks_of(folder):
        began = time.perf_counter()
        encoded = [bpe.segment(line) for line in chunk]
        seconds += time.perf_counter() - began
        num_tokens += sum(line.count(" ") + 1 for line in encoded)
    return {"tokens": num_tokens, "bare_seconds": seconds}


def clean_konvoi(folder: Path, num_processes: int) -> Result:
    (folder / "chunks").mkdir(exist_ok=True)
    files = (folder / "text.source", folder / "text.target")
    sift = Sift(folder, Cleaning(), Inputs({"train": [files]}, ("en", "de")), frozenset())
    for _ in ordered_map(sift, raw_chunks([files]), num_processes):
        pass
    return {}


def learn_konvoi(folder: Path, num_processes: int) -> Result:
    words: collections.Counter[str] = collections.Counter()
    for chunk in chunks_of(folder):
        words.update(" ".join(chunk).split())
    (folder / "konvoi").mkdir(exist_ok=True)
    Subwords.learn_from_counts(words.items(), NUM_PIECES, folder / "konvoi")
    return {"words": len(words)}


def encode_text(model: Path, text: str) -> tuple[Any, Any]:
    if (encoder := _ENCODERS.get(model)) is None:
        encoder = _ENCODERS[model] = WordEncoder(Subwords.load(model))
    lines = text.split("\n")[:-1]
    blocks = (lines[start : start + BLOCK_LINES] for start in range(0, len(lines), BLOCK_LINES))
    parts = [encoder.encode("\n".join(block) + "\n") for block in blocks]
    return np.concatenate([tokens for tokens, _ in parts]), np.concatenate([lengths for _, lengths in parts])


_ENCODERS: dict[Path, WordEncoder] = {}


def encode_konvoi(folder: Path, num_processes: int) -> Result:
    """With the vocabulary that SentencePiece learnt, so that the very same ids must come out."""
    texts = ["".join(f"{line}\n" for line in chunk) for chunk in chunks_of(folder)]
    checksum, num_tokens, seconds = hashlib.sha256(), 0, 0.0
    encoded = ordered_map(partial(encode_text, folder / "sentencepiece.model"), texts, num_processes)
    began = time.perf_counter()
    for tokens, _ in encoded:
        # The start of the processes counts, reading the text does not, as for the others.
        seconds += time.perf_counter() - began
        plain = tokens[tokens != Subwords.EOS]
        num_tokens += len(plain)
        checksum.update(plain.tobytes())
        began = time.perf_counter()
    return {"tokens": num_tokens, "sha256": checksum.hexdigest(), "bare_seconds": seconds}


def binarise_konvoi(folder: Path, num_processes: int) -> Result:
    """Lists of ids, as a library gives them, into the files that training reads."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "sentencepiece.model"))
    seconds = 0.0
    with TokenWriter(folder / "binarised", NUM_PIECES) as writer:
        for chunk in itertools.islice(chunks_of(folder), 2):
            encoded = processor.encode(chunk, add_eos=True)
            began = time.perf_counter()
            writer.write(encoded)
            seconds += time.perf_counter() - began
            num_lines = CHUNK_LINES
    return {"bare_seconds": seconds, "lines": 2 * num_lines}


WORK: dict[str, Callable[[Path, int], Result]] = {
    "learn sentencepiece": learn_sentencepiece,
    "learn tokenizers": learn_tokenizers,
    "learn subword-nmt": learn_subword_nmt,
    "learn konvoi": learn_konvoi,
    "encode sentencepiece": encode_sentencepiece,
    "encode tokenizers": encode_tokenizers,
    "encode subword-nmt": encode_subword_nmt,
    "encode konvoi": encode_konvoi,
    "clean konvoi": clean_konvoi,
    "binarise konvoi": binarise_konvoi,
}
ONE_ONLY = ("learn subword-nmt", "encode subword-nmt", "learn konvoi", "binarise konvoi")
FIRST_ROUND_ONLY = ("learn subword-nmt",)
# What encoding needs; Konvoi encodes with SentencePiece's model.
MODELS = ("learn sentencepiece", "learn tokenizers", "learn subword-nmt")


def work(name: str, folder: Path, num_threads: int) -> None:
    """Inside the child: does one thing and prints what it took."""
    warnings.simplefilter("ignore")
    began, began_cpu = time.perf_counter(), time.process_time()
    result = WORK[name](folder, num_threads)
    seconds, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    peak_mb = max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, children.ru_maxrss) / 1024
    measured = {"seconds": seconds, "cpu_seconds": cpu + children.ru_utime + children.ru_stime, "peak_mb": peak_mb}
    print(json.dumps({**measured, **result}))


def measure(name: str, folder: Path, num_threads: int) -> Result:
    """Starts the child; tokenizers takes its number of threads from the environment."""
    command = [sys.executable, __file__, "--work", name, "--threads", str(num_threads), str(folder), "-"]
    environment = {**os.environ, "RAYON_NUM_THREADS": str(num_threads), "TOKENIZERS_PARALLELISM": "true"}
    output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, timeout=3600)
    result: Result = json.loads(output.stdout.splitlines()[-1])
    return result


def rows_of_today(num_lines: int) -> list[Result]:
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    return [row for row in rows if row["date"] == date.today().isoformat() and row["lines_per_side"] == num_lines]


def compare(source: Path, target: Path, num_lines: int, num_rounds: int, only: str) -> None:
    done = {(row["work"], row["threads"], row["round"]) for row in rows_of_today(num_lines)}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for path, name in ((source, "text.source"), (target, "text.target")):
            with (folder / name).open("w", encoding="utf-8", newline="\n") as stream:
                stream.writelines(f"{line}\n" for line in itertools.islice(read_lines(path), num_lines))
        for number, name, threads in itertools.product(range(num_rounds), WORK, (1, 2)):
            is_left_out = (threads > 1 and name in ONE_ONLY) or (number > 0 and name in FIRST_ROUND_ONLY)
            is_model_wanted = only in name.replace("learn", "encode") or name == "learn sentencepiece"
            needs_model = name in MODELS and is_model_wanted and number == 0 and threads == 1
            is_wanted = only in name and (name, threads, number) not in done
            if is_left_out or not (is_wanted or needs_model):
                continue
            result = measure(name, folder, threads)
            if (name, threads, number) not in done:
                where = {"date": date.today().isoformat(), "lines_per_side": num_lines, "work": name}
                row = {**where, "threads": threads, "round": number, **result}
                with RESULTS.open("a") as stream:
                    stream.write(json.dumps(row) + "\n")
    print_table(num_lines)


def print_table(num_lines: int) -> None:
    print("| step | who | threads | lines/s, median | processor seconds | peak MB | rounds |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    rows = rows_of_today(num_lines)
    for name, threads in itertools.product(WORK, (1, 2)):
        found = [row for row in rows if (row["work"], row["threads"]) == (name, threads)]
        if found:
            speed = statistics.median(row.get("lines", 2 * num_lines) / _seconds(row) for row in found)
            cpu = statistics.median(row["cpu_seconds"] for row in found)
            peak = max(row["peak_mb"] for row in found)
            step, who = name.split(" ", 1)
            print(f"| {step} | {who} | {threads} | {speed:,.0f} | {cpu:.1f} | {peak:,.0f} | {len(found)} |")
    sums = {row["sha256"] for row in rows if "sha256" in row}
    print(f"\nthe same ids from sentencepiece and konvoi: {len(sums) == 1}")


def _seconds(row: Result) -> float:
    """Of the bare loop where there is one; reading the text costs everybody the same."""
    return float(row.get("bare_seconds", row["seconds"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--lines", type=int, default=300_000, help="of each side")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="the steps that have this in their name, as encode")
    parser.add_argument("--work", choices=WORK, help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.work, arguments.source, arguments.threads)
    else:
        compare(arguments.source, arguments.target, arguments.lines, arguments.rounds, arguments.only)


if __name__ == "__main__":
    main()
