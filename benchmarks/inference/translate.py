"""Sentences translated per second, by the trained model, by its bundle, and by a peer: interleaved in one run.

    python benchmarks/inference/translate.py RUN BUNDLE [--sentences 1000] [--rounds 5] [--beam 5]
        [--source FILE --reference FILE]
        [--peer NAME "onmt_translate -model M.pt -src {source} -output {output} -beam_size 5 ..."]

The same sentences and beam for all. A bundle is measured in each of its variants, with its vocabulary map and without.
A peer is a command that reads {source} and writes {output}, once with all sentences and once with the first: the
difference is its time without start and load. It gets and gives pieces of the run's vocabulary, sorted by length, with
an end (onmt_model.py writes the run's model for it), so that splitting and joining counts on our side only.

Every measurement appends a row to translate.jsonl; the table shows the medians of this run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import shlex
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from konvoi.bundle.format import open_bundle
from konvoi.bundle.interfaces import Translator
from konvoi.bundle.translator import open_translator
from konvoi.cores import usable_cores
from konvoi.data.text import read_lines
from konvoi.evaluate.scores import corpus_scores
from konvoi.export.run_translator import RunTranslator, open_run_translator

RESULTS = Path(__file__).with_name("translate.jsonl")
SHARED = Path(os.environ.get("KONVOI_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
NUM_WARM_UP = 32

Contender = Callable[[list[str]], tuple[list[str], float, float]]
"""Sentences -> translations, seconds, seconds of processors."""


def main() -> None:
    arguments = parsed()
    sources, references = (
        list(itertools.islice(read_lines(file), arguments.sentences))
        for file in (arguments.source, arguments.reference)
    )
    with tempfile.TemporaryDirectory() as folder:
        trained = open_run_translator(arguments.run)
        contenders = {
            "run, PyTorch": timed(trained, arguments.beam),
            **bundle_contenders(arguments.bundle, arguments.beam, arguments.threads),
            **{name: peer(command, trained, Path(folder)) for name, command in arguments.peer},
        }
        rows = measured(contenders, sources, references, arguments)
    print_table(rows)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--source", type=Path, default=SHARED / "multi30k" / "test_2016_flickr.en.gz")
    parser.add_argument("--reference", type=Path, default=SHARED / "multi30k" / "test_2016_flickr.de.gz")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--threads", type=int, default=usable_cores(), help="of the bundle; a peer has its own option")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--lowercase", action="store_true", help="score without regard to case")
    parser.add_argument("--peer", nargs=2, action="append", default=[], metavar=("NAME", "COMMAND"))
    return parser.parse_args()


def bundle_contenders(path: Path, beam: int, threads: int) -> dict[str, Contender]:
    bundle, contenders = open_bundle(path), {}
    for variant in bundle.description.variants:
        for uses_map in (True, False):
            translator = open_translator(bundle, variant, threads)
            if translator.uses_map or not uses_map:
                translator.uses_map = uses_map
                contenders[f"{variant}, {'map' if uses_map else 'no map'}"] = timed(translator, beam)
    return contenders


def timed(translator: Translator, beam: int) -> Contender:
    def translate(sentences: list[str]) -> tuple[list[str], float, float]:
        translator.translate(sentences[:NUM_WARM_UP], beam=beam)
        started, cpu_before = time.perf_counter(), cpu_seconds()
        found = translator.translate(sentences, beam=beam)
        seconds, cpu = time.perf_counter() - started, cpu_seconds() - cpu_before
        return [best.text for best, *_ in found], seconds, cpu

    return translate


def peer(command: str, trained: RunTranslator, folder: Path) -> Contender:
    source, output = folder / "source", folder / "output"
    words = [word.format(source=source, output=output) for word in shlex.split(command)]

    def run(lines: list[list[str]]) -> tuple[float, float]:
        source.write_text("".join(f"{' '.join([*pieces, '</s>'])}\n" for pieces in lines), encoding="utf-8")
        started, cpu_before = time.perf_counter(), cpu_seconds()
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return time.perf_counter() - started, cpu_seconds() - cpu_before

    def without_load(sentences: list[str]) -> tuple[list[str], float, float]:
        lines = [pieces for _, pieces in trained._split(sentences)]
        order = sorted(range(len(lines)), key=lambda index: len(lines[index]))
        load_seconds, load_cpu = run(lines[:1])
        seconds, cpu = run([lines[index] for index in order])
        found = dict(zip(order, output.read_text(encoding="utf-8").splitlines(), strict=True))
        translations = [trained.subwords.join(found[index].split()) for index in range(len(lines))]
        return translations, seconds - load_seconds, cpu - load_cpu

    return without_load


def measured(
    contenders: dict[str, Contender], sources: list[str], references: list[str], arguments: argparse.Namespace
) -> list[dict[str, Any]]:
    rows = []
    for number in range(arguments.rounds):
        # By turns: whoever comes first has no advantage over all rounds.
        for name in sorted(contenders, reverse=number % 2 == 1):
            translations, seconds, cpu = contenders[name](sources)
            row = {
                "contender": name,
                "sentences": len(sources),
                "beam": arguments.beam,
                "threads": arguments.threads,
                "round": number,
                "sentences_per_second": round(len(sources) / seconds, 1),
                "cpu_seconds": round(cpu, 2),
                "bleu": round(corpus_scores(translations, references, lowercase=arguments.lowercase)["bleu"], 2),
                "model": arguments.run.name,
                "at": time.strftime("%Y-%m-%d %H:%M"),
            }
            with arguments.results.open("a") as file:
                file.write(json.dumps(row) + "\n")
            rows.append(row)
    return rows


def cpu_seconds() -> float:
    """Of this process and of those that it waited for: what else runs here does not count."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def print_table(rows: list[dict[str, Any]]) -> None:
    by_contender = defaultdict(list)
    for row in rows:
        by_contender[row["contender"]].append(row)
    print(f"{'':20} sentences/s  CPU s   BLEU")
    for name, found in by_contender.items():
        speed, cpu = (statistics.median(row[key] for row in found) for key in ("sentences_per_second", "cpu_seconds"))
        print(f"{name:20} {speed:11.1f} {cpu:6.1f} {found[0]['bleu']:6.2f}")


if __name__ == "__main__":
    main()
