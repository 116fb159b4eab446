"""Tells whether a sentence is reliably of another language than it should be, with Google's CLD2.

Measured on 2026-11-15 with 98,862 pairs of Europarl and 56,604 of Tatoeba, English and German:

    of                  are dropped as such     and as the other language, where long enough
    Europarl's English        0                 99.99 %
    Europarl's German       107  (0.108 %)      99.80 %
    Tatoeba's English         0                 99.95 %
    Tatoeba's German         11  (0.020 %)      98.93 %

36 of 40 dropped German lines of Europarl, taken at random, were French, Slovak, Irish ... indeed: wrongly dropped is
about one line in 10,000. All 11 of Tatoeba are German.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any

from konvoi.errors import DataError, MachineError, did_you_mean

# Shorter sentences are misjudged too often ("Die Hearings waren positiv." is Dutch to CLD2): of Tatoeba's German 1.7 %
# with 10 to 20 characters, 0.5 % with 20 to 30, 0.2 % with 30 to 40, then 0.05 %. In bytes, so that 14 characters of
# Chinese, which say as much, are enough.
MIN_BYTES = 40
# A German sentence that quotes an English one is German.
MIN_PERCENT = 75

# CLD2 knows these under another code, or under that of a neighbour.
OTHER_NAMES = {"he": "iw", "jv": "jw", "nb": "no", "fil": "tl", "mo": "ro", "cnr": "sr"}


def is_other_language(sentence: str, language: str) -> bool:
    """Whether a sentence is surely not of this language; False where it is short, mixed or cannot be told."""
    raw = sentence.encode()
    if len(raw) < MIN_BYTES:
        return False
    cld2, code = _cld2(), _code_of(language)
    try:
        # The hint decides what is doubtful in favour of the expected language: 11 wrong drops of Tatoeba, else 33.
        # It also settles what can hardly be told apart: Croatian and Bosnian, both Norwegians, Indonesian and Malay.
        is_reliable, _, found = cld2.detect(raw, isPlainText=True, hintLanguage=code)
    except cld2.error:  # control characters
        return False
    _, found_code, percent, _ = found[0]
    return bool(is_reliable and percent >= MIN_PERCENT and found_code.split("-")[0] != code)


def check_language_known(language: str) -> None:
    """Fails before the work starts, not in its midst."""
    _code_of(language)


@functools.cache
def _code_of(language: str) -> str:
    """CLD2's code for a language, without region and script: pt for pt-BR, zh for zh_TW."""
    known = _known_languages()
    base = language.lower().replace("_", "-").split("-")[0]
    code = OTHER_NAMES.get(base, base)
    if code not in known:
        names = {name.lower(): known_code for known_code, name in known.items()}
        near = f', did you mean "{names[base]}"?' if base in names else did_you_mean(base, known)
        raise DataError(
            f'the language check does not know the language "{language}"{near}',
            hint="name it by its ISO 639 code, as in de or pt-br; or --set data.check_language=false",
        )
    return code


def _known_languages() -> dict[str, str]:
    """Code and name of what CLD2 can find in a text; it has names for more."""
    cld2 = _cld2()
    return {code: name for name, code in cld2.LANGUAGES if name in cld2.DETECTED_LANGUAGES}


@functools.cache
def _cld2() -> Any:
    try:
        return import_module("pycld2")
    except ImportError:
        raise MachineError(
            "data.check_language needs the package pycld2",
            hint="pip install 'konvoi[language]', or --set data.check_language=false",
        ) from None
