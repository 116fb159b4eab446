"""The vocabulary map knows which pieces translate which."""

from __future__ import annotations

from pathlib import Path

import pytest

from konvoi.data.prepared import PreparedSet
from konvoi.data.subwords import Subwords
from konvoi.data.tokens import TokenWriter
from konvoi.export import lexicon

# Number by number: 4 is translated by 8, 5 by 9, 6 by 10; 7 and 11 are in every sentence.
TRANSLATIONS = {4: 8, 5: 9, 6: 10, 7: 11}
SENTENCES = [[4, 5, 7], [5, 6, 7], [4, 6, 7], [7, 4], [7, 5], [6, 7]]


@pytest.fixture
def prepared(tmp_path: Path) -> PreparedSet:
    Subwords.learn(["abcdefgh abcdefgh abc def gh"], 24, tmp_path)
    for side, rename in (("en", {}), ("de", TRANSLATIONS)):
        with TokenWriter(tmp_path / f"train.{side}", 24) as writer:
            writer.write([[*(rename.get(piece, piece) for piece in sentence), Subwords.EOS] for sentence in SENTENCES])
    return PreparedSet(tmp_path, {"source": "en", "target": "de", "pairs": {"train": len(SENTENCES)}})


def test_the_likeliest_translation_comes_first(prepared: PreparedSet) -> None:
    table, _ = lexicon.learn(prepared)
    assert {piece: lexicon._best(table, piece)[0] for piece in TRANSLATIONS} == TRANSLATIONS


def test_frequencies_count_sentences(prepared: PreparedSet) -> None:
    _, frequency = lexicon.learn(prepared)
    # 8 translates 4, which 3 sentences hold; 11 stands in all 6.
    assert (frequency[8], frequency[11], frequency[4]) == (3, 6, 0)


def test_the_file_is_as_the_engine_reads_it(prepared: PreparedSet, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(lexicon, "NUM_ALWAYS", 1)
    monkeypatch.setattr(lexicon, "NUM_CANDIDATES", 1)
    lexicon.write(prepared, tmp_path)
    pieces = prepared.subwords.pieces(range(24))
    always, *rows = (tmp_path / "vmap.txt").read_text(encoding="utf-8").split("\n")[:-1]
    # No piece before the tab: the specials and the most frequent one are always candidates.
    assert always == "\t" + " ".join(pieces[number] for number in (3, 2, 1, 11))
    # Itself, then its best translation.
    assert f"{pieces[4]}\t{pieces[4]} {pieces[8]}" in rows
    # What was never seen stays itself.
    assert f"{pieces[20]}\t{pieces[20]}" in rows
    assert len(rows) == 24
