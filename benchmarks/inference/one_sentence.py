"""How long one sentence takes by itself, with a base model in int8 and its vocabulary map.

    python benchmarks/inference/one_sentence.py PREPARED [--sentences 60] [--rounds 3] [--beam 5]

PREPARED is a folder that `konvoi data prepare` made. The weights are random, for nobody has trained a base model here:
every translation is made as long as its reference, as a trained model's would be, and says nothing. The map is
learnt from the training pairs as export does. Sentences are of the dev split, 20 to 35 pieces out, one at a time, with
the map and without in turn, each in a process of its own. Rows go to one_sentence.jsonl.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from konvoi.bundle.search import search_options

RESULTS = Path(__file__).with_suffix(".jsonl")
LEAST_PIECES, MOST_PIECES = 20, 35
LENGTH_PENALTY = 0.6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prepared", type=Path)
    parser.add_argument("--sentences", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beam", type=int, default=5)
    arguments = parser.parse_args()
    # Each measurement has a process of its own, without the torch that made the model: its memory counts.
    spawn = multiprocessing.get_context("spawn")
    print("| map | opened in s | a sentence, median s | 95 of 100 within s | greatest memory MB |")
    print("| --- | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        with spawn.Pool(1) as pool:
            sentences = pool.apply(write_model, (arguments.prepared, Path(folder), arguments.sentences))
        for _ in range(arguments.rounds):
            for uses_map in (False, True):
                with spawn.Pool(1) as pool:
                    row = pool.apply(measured, (Path(folder), sentences, arguments.beam, uses_map))
                keep({**row, "beam": arguments.beam})


def write_model(prepared_folder: Path, folder: Path, num_sentences: int) -> list[tuple[list[str], int]]:
    """The engine's files; the pieces of some sentences, and how many each one's translation has with its end."""
    from konvoi.data.prepared import PreparedSet
    from konvoi.export import lexicon
    from konvoi.export.ctranslate2 import write_transformer
    from konvoi.models.transformer import Config, Model

    prepared = PreparedSet.open(prepared_folder)
    write_transformer(
        Model(Config(size="base"), prepared.subwords.padded_size).eval(), prepared.subwords, "int8", folder
    )
    lexicon.write(prepared, folder)
    sources, targets = prepared.split("dev")
    fitting = [n for n, length in enumerate(targets.lengths.tolist()) if LEAST_PIECES <= length <= MOST_PIECES]
    return [
        (prepared.subwords.pieces(sources[number][:-1].tolist()), len(targets[number]))
        for number in fitting[:num_sentences]
    ]


def measured(folder: Path, sentences: list[tuple[list[str], int]], beam: int, uses_map: bool) -> dict[str, Any]:
    began_at = time.perf_counter()
    import ctranslate2

    engine = ctranslate2.Translator(str(folder), inter_threads=1, intra_threads=1)
    opened_seconds = time.perf_counter() - began_at
    seconds = []
    for pieces, num_target_pieces in [sentences[0], *sentences]:
        options = search_options(beam, LENGTH_PENALTY, len(pieces))
        options |= {"min_decoding_length": num_target_pieces, "max_decoding_length": num_target_pieces}
        began_at = time.perf_counter()
        engine.translate_batch([pieces], use_vmap=uses_map, **options)
        seconds.append(time.perf_counter() - began_at)
    return {
        "map": uses_map,
        "sentences": len(sentences),
        "pieces_out": statistics.fmean(count for _, count in sentences),
        "opened_seconds": round(opened_seconds, 3),
        # The first one warmed it up.
        "median_seconds": round(statistics.median(seconds[1:]), 3),
        "p95_seconds": round(statistics.quantiles(seconds[1:], n=20)[-1], 3),
        "memory_megabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "at": time.strftime("%Y-%m-%d %H:%M"),
    }


def keep(row: dict[str, Any]) -> None:
    with RESULTS.open("a") as file:
        file.write(json.dumps(row) + "\n")
    values = (row[name] for name in ("opened_seconds", "median_seconds", "p95_seconds", "memory_megabytes"))
    print(f"| {'yes' if row['map'] else 'no'} | {' | '.join(map(str, values))} |", flush=True)


if __name__ == "__main__":
    main()
