"""The language check: what it drops, what it leaves alone, and which languages it knows."""

# ruff: noqa: RUF001 - letters of many scripts look alike

from __future__ import annotations

import sys
import zipfile

import pytest
from tests.shared_data import shared_data

from konvoi.data import languages
from konvoi.data.languages import MIN_BYTES, check_language_known, is_other_language
from konvoi.errors import DataError, MachineError

SENTENCES = {
    "en": "The committee has approved this proposal without any changes.",
    "de": "Der Ausschuss hat diesem Vorschlag ohne Änderungen zugestimmt.",
    "fr": "La commission a approuvé cette proposition sans aucune modification.",
    "pt": "A comissão aprovou esta proposta sem quaisquer alterações ontem à noite.",
    "ru": "Комитет одобрил это предложение без каких-либо изменений.",
    "zh": "委员会今天上午没有作任何修改就批准了这项提案。",
    "ja": "委員会はこの提案を何の変更も加えずに承認しました。",
    "he": "הוועדה אישרה את ההצעה הזאת ללא כל שינוי ביום שלישי בבוקר.",
}


@pytest.mark.parametrize("language", SENTENCES)
def test_a_sentence_is_of_its_own_language_and_of_no_other(language: str) -> None:
    taken_for_other = {other for other in SENTENCES if is_other_language(SENTENCES[language], other)}
    assert taken_for_other == SENTENCES.keys() - {language}


@pytest.mark.parametrize("sentence", ["Die Hearings waren positiv.", "Tom.", "", "12.345,67", "???"])
def test_a_short_sentence_is_never_dropped(sentence: str) -> None:
    assert not is_other_language(sentence, "de")
    assert not is_other_language(sentence, "ja")


def test_the_shortest_sentence_that_is_judged_has_forty_bytes() -> None:
    sentence = "The committee has approved the proposal."
    assert len(sentence) == MIN_BYTES == 40
    assert is_other_language(sentence, "de")
    assert not is_other_language(sentence[:-1], "de")


def test_a_sentence_that_quotes_another_language_stays() -> None:
    sentence = (
        "Es wird daher im Leitartikel des heutigen Herald Tribune die Frage gestellt: "
        "Who are these Western crusaders to be lecturing the Asians about their rights?"
    )
    assert not is_other_language(sentence, "de")


@pytest.mark.parametrize("sentence", ["\x01\x02 " * 30, "\ufffe" * 30, "1234567890 " * 10, "\U0001f600" * 20])
def test_what_cannot_be_told_stays(sentence: str) -> None:
    assert not is_other_language(sentence, "de")


@pytest.mark.parametrize(
    ("code", "language"),
    [("pt-br", "pt"), ("pt_BR", "pt"), ("de-AT", "de"), ("EN", "en"), ("zh-TW", "zh"), ("zh-Hant", "zh"), ("he", "he")],
)
def test_regions_and_scripts_of_a_code_do_not_matter(code: str, language: str) -> None:
    assert not is_other_language(SENTENCES[language], code)
    assert is_other_language(SENTENCES["fr"], code)


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("hr", "Odbor je odobrio ovaj predlog bez ikakvih izmena u utorak ujutru, i svi su otišli kući."),
        ("sr", "Odbor je odobrio ovaj predlog bez ikakvih izmena u utorak ujutru, i svi su otišli kući."),
        ("sr", "Одбор је одобрио овај предлог без икаквих измена у уторак ујутру, и сви су отишли кући."),
        ("zh", "委員會今天上午沒有作任何修改就批准了這項提案，明天將公布。"),
        ("nb", "Eg veit ikkje kva dei har gjort, men dei kjem nok ikkje heim att før i morgon kveld."),
        ("nn", "Jeg vet ikke hva de har gjort, men de kommer nok ikke hjem igjen før i morgen kveld."),
    ],
)
def test_what_is_hard_to_tell_apart_is_not_held_against_a_sentence(code: str, sentence: str) -> None:
    assert not is_other_language(sentence, code)


@pytest.mark.parametrize(
    ("given", "near"), [("dee", ', did you mean "de"?'), ("german", ', did you mean "de"?'), ("qqq", "")]
)
def test_an_unknown_language_is_refused_with_a_near_one(given: str, near: str) -> None:
    with pytest.raises(DataError) as caught:
        check_language_known(given)
    assert caught.value.problem == f'the language check does not know the language "{given}"{near}'
    assert "check_language=false" in caught.value.hint


def test_without_the_package_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycld2", None)
    languages._cld2.cache_clear()
    try:
        with pytest.raises(MachineError, match="needs the package pycld2") as caught:
            is_other_language(SENTENCES["en"], "de")
    finally:
        languages._cld2.cache_clear()
    assert "pip install 'konvoi[language]'" in caught.value.hint


def test_of_everyday_sentences_less_than_one_in_a_thousand_is_dropped() -> None:
    with zipfile.ZipFile(shared_data("tatoeba-en-de/deu-eng.zip")) as archive:
        lines = archive.read("deu.txt").decode().splitlines()[::20]
    english, german = zip(*(line.split("\t")[:2] for line in lines), strict=True)
    for sentences, own, other in ((english, "en", "de"), (german, "de", "en")):
        assert sum(is_other_language(sentence, own) for sentence in sentences) < len(lines) / 1000
        judged = [sentence for sentence in sentences if len(sentence.encode()) >= MIN_BYTES]
        assert sum(is_other_language(sentence, other) for sentence in judged) > 0.98 * len(judged) > 1000
