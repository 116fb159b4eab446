"""Sentences per second and latency of konvoi serve at 1, 8 and 64 clients on loopback, with batching and without.

    python benchmarks/inference/load.py BUNDLE [--seconds 10] [--clients 1 8 64] [--source FILE]

Each client sends a sentence, waits for its translation, and sends the next; no two requests hold the same sentence. The
service runs in a process of its own, one for each way, by turns: what else the machine does hits both alike. Every
measurement appends a row to load.jsonl; `lost` counts requests that had no answer, `refused` those that were told to
come again.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from konvoi.fetch.sets import KNOWN_SETS

RESULTS = Path(__file__).with_suffix(".jsonl")
WAYS = {"one at a time": 1, "batches of up to 64": 64}
WARM_UP_REQUESTS = 8
TIMEOUT_SECONDS = 60


def serve(bundle: Path, max_batch: int) -> None:
    """In a process of its own."""
    from konvoi.bundle.format import open_bundle
    from konvoi.bundle.translator import open_translator
    from konvoi.serve.app import create_app
    from konvoi.serve.limits import Limits
    from konvoi.serve.server import Server, listen

    translator = open_translator(open_bundle(bundle))
    app = create_app([translator], limits=Limits(max_batch=max_batch))
    with listen("127.0.0.1", 0) as listener:
        listener.listen()
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        Server(app).run([listener])


@contextmanager
def service(bundle: Path, max_batch: int) -> Iterator[str]:
    command = [sys.executable, __file__, str(bundle), "--serve", str(max_batch)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait(TIMEOUT_SECONDS)


class Client:
    """One connection that stays open. By hand: with httpx's pool of 64 the service answered 82 a second, not 295."""

    def __init__(self, address: str) -> None:
        self.host, _, self.port = address.removeprefix("http://").partition(":")

    async def __aenter__(self) -> Client:
        self.reader, self.writer = await asyncio.open_connection(self.host, int(self.port))
        return self

    async def __aexit__(self, *error: object) -> None:
        self.writer.close()

    async def translated(self, sentence: str) -> int:
        """Returns the answer's status, when all of it is there."""
        body = json.dumps({"sentences": [sentence]}).encode()
        head = f"POST /api/translate HTTP/1.1\r\nHost: {self.host}\r\nContent-Type: application/json\r\n"
        self.writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        length = re.search(r"content-length: (\d+)", answer, re.IGNORECASE)
        assert length, answer
        await self.reader.readexactly(int(length[1]))
        return int(answer.split()[1])


class Load:
    """What the clients of one measurement met."""

    def __init__(self, address: str, sentences: Iterator[str]) -> None:
        self.address, self.sentences = address, sentences
        self.seconds: list[float] = []
        self.outcomes: Counter[str] = Counter()

    async def run(self, num_clients: int, seconds: float) -> float:
        """Returns how long it took, the last answers included."""
        async with Client(self.address) as client:
            for _ in range(WARM_UP_REQUESTS):
                await self._ask(client)
        self.seconds.clear()
        self.outcomes.clear()
        began_at = time.perf_counter()
        async with asyncio.timeout(seconds + TIMEOUT_SECONDS):
            await asyncio.gather(*(self._client(began_at + seconds) for _ in range(num_clients)))
        return time.perf_counter() - began_at

    async def _client(self, end_at: float) -> None:
        while time.perf_counter() < end_at:
            try:
                async with Client(self.address) as client:
                    while time.perf_counter() < end_at:
                        await self._ask(client)
            except (OSError, asyncio.IncompleteReadError):
                self.outcomes["lost"] += 1

    async def _ask(self, client: Client) -> None:
        began_at = time.perf_counter()
        status = await client.translated(next(self.sentences))
        self.outcomes["answered" if status == 200 else "refused"] += 1
        self.seconds.append(time.perf_counter() - began_at)


def measure(address: str, sentences: Iterator[str], num_clients: int, seconds: float) -> dict[str, float]:
    load = Load(address, sentences)
    took_seconds = asyncio.run(load.run(num_clients, seconds))
    *_, p95_seconds = statistics.quantiles(load.seconds, n=20)
    return {
        "sentences_per_second": round(load.outcomes["answered"] / took_seconds, 1),
        "median_ms": round(1000 * statistics.median(load.seconds), 1),
        "p95_ms": round(1000 * p95_seconds, 1),
        "mean_batch": mean_batch(address),
        **{outcome: load.outcomes[outcome] for outcome in ("answered", "refused", "lost")},
    }


def mean_batch(address: str) -> float:
    """Since the service began."""
    metrics = httpx.get(f"{address}/metrics", timeout=TIMEOUT_SECONDS).text
    total, count = (float(re.findall(rf"konvoi_batch_size_{key}{{.*}} (\S+)", metrics)[0]) for key in ("sum", "count"))
    return round(total / count, 2)


def read_sentences(source: Path | None) -> Iterator[str]:
    """Over and over, with a number each: no cache could help."""
    if source:
        lines = source.read_text(encoding="utf-8").splitlines()
    else:
        from konvoi.data.text import read_tsv_pairs

        lines = [
            english for english, _ in itertools.islice(read_tsv_pairs(KNOWN_SETS["demo-en-de"].embedded_path), 2000)
        ]
    return (f"{line} {number}" for number, line in enumerate(itertools.cycle(lines)))


def compare(arguments: argparse.Namespace) -> None:
    rows = []
    for number, num_clients, way in itertools.product(range(arguments.rounds), arguments.clients, WAYS):
        load_before = round(os.getloadavg()[0], 1)
        with service(arguments.bundle, WAYS[way]) as address:
            found = measure(address, read_sentences(arguments.source), num_clients, arguments.seconds)
        setting = {"bundle": arguments.bundle.name, "clients": num_clients, "way": way, "round": number}
        row = {**setting, "at": time.strftime("%Y-%m-%d %H:%M"), "load_before": load_before, **found}
        with RESULTS.open("a") as file:
            file.write(json.dumps(row) + "\n")
        rows.append(row)
        print(row, flush=True)
    print_table(rows)


def print_table(rows: list[dict[str, float]]) -> None:
    """Medians over the rounds."""
    print("| clients | way | sentences/s | median ms | p95 ms | a batch |\n| --- | --- | --- | --- | --- | --- |")
    for num_clients, way in dict.fromkeys((row["clients"], row["way"]) for row in rows):
        group = [row for row in rows if (row["clients"], row["way"]) == (num_clients, way)]
        keys = ("sentences_per_second", "median_ms", "p95_ms", "mean_batch")
        cells = [f"{statistics.median(row[key] for row in group):.1f}" for key in keys]
        print(f"| {num_clients} | {way} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--source", type=Path, help="sentences, one a line; else those of the embedded set")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", type=int, metavar="MAX_BATCH", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.bundle, arguments.serve)
    else:
        compare(arguments)


if __name__ == "__main__":
    main()
