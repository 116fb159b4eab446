"""Rates and times as people write them: "100mbit", "0.2ms"."""

from __future__ import annotations

import re

from konvoi.errors import UserError

BITS_PER_SECOND = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def bits_per_second(text: str) -> float:
    """100mbit, 2.5 Gbit/s"""
    value = _amount(text, BITS_PER_SECOND, r"(?:/s|ps)?")
    if value is None:
        raise UserError(f'"{text}" is no rate', hint=_hint(text))
    return value


def seconds(text: str) -> float:
    """0.2ms, 50us, 1s"""
    value = _amount(text, SECONDS, "")
    if value is None:
        raise UserError(f'"{text}" is no time', hint="a number with us, ms or s, as in 0.2ms")
    return value


def _amount(text: str, units: dict[str, float], tail: str) -> float | None:
    match = re.fullmatch(rf"\s*(\d+(?:\.\d+)?)\s*({'|'.join(units)}){tail}\s*", text, re.IGNORECASE)
    value = float(match[1]) * units[match[2].lower()] if match else 0.0
    return value if value > 0 else None


def _hint(text: str) -> str:
    """Bits or bytes is a factor of eight: it is asked for, not guessed."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg])i?b(?:/s|ps)?\s*", text, re.IGNORECASE)
    if not match:
        return "a number with kbit, mbit or gbit, as in 100mbit"
    bits, unit = float(match[1]), match[2].lower()
    return (
        f"bits or bytes? write {bits:g}{unit}bit, or {8 * bits:g}{unit}bit for {bits:g} {unit.upper()} bytes a second"
    )
