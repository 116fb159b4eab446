"""Numbers as people say them, in the answers and the comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence

METRIC_NAMES = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "accuracy_1": "Acc@1",
    "accuracy_5": "Acc@5",
    "loss": "dev loss",
    "perplexity": "perplexity",
}
SMALL_NUMBERS = (
    "no",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
)


def metric_name(metric: str) -> str:
    return METRIC_NAMES.get(metric, metric)


def figures(value: float) -> str:
    """Three figures that count: 12,345, 4.21, 0.00312"""
    if not math.isfinite(value):
        return "not a number"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def score(value: float, metric: str) -> str:
    """BLEU 31.42, but a loss of 1.717"""
    return f"{value:.3f}" if metric in ("loss", "perplexity") else f"{value:.2f}"


def duration(seconds: float) -> str:
    """81 ms, 1.13 s, 14.2 s, 3 min 05 s, 1 h 02 min, 2 d 03 h"""
    if seconds < 0.9995:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24:02d} h"


def amount_of_bytes(num_bytes: float) -> str:
    """712 bytes, 3.1 kB, 42.0 MB, 1.2 GB: powers of ten, as disks and networks are sold."""
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if num_bytes >= size:
            return f"{num_bytes / size:,.1f} {unit}"
    return f"{num_bytes:,.0f} bytes"


def bit_rate(bits_per_second: float) -> str:
    """0.4 Mbit/s, 94 Mbit/s, 2.5 Gbit/s"""
    if bits_per_second >= 1e9:
        return f"{bits_per_second / 1e9:.3g} Gbit/s"
    return f"{bits_per_second / 1e6:.3g} Mbit/s"


def percent(share: float) -> str:
    """93 %, 0.4 %"""
    return f"{100 * share:.0f} %" if share >= 0.0095 or share <= 0 else f"{100 * share:.2g} %"


def counted(number: int, noun: str, plural: str = "") -> str:
    """one host, two hosts, 16 hosts"""
    words = SMALL_NUMBERS[number] if 0 <= number < len(SMALL_NUMBERS) else f"{number:,}"
    return f"{words} {noun if number == 1 else plural or noun + 's'}"


def times(number: int) -> str:
    """once, twice, three times"""
    return {1: "once", 2: "twice"}.get(number, counted(number, "time"))


def listed(items: Sequence[str]) -> str:
    """a, b and c"""
    return ", ".join(items[:-1]) + " and " + items[-1] if len(items) > 1 else "".join(items)
