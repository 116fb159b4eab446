"""Documents are split where a reader would, and nothing of them is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from konvoi.bundle.sentences import Part, join, split


def sentences(text: str) -> list[str]:
    return [part.sentence for part in split(text)]


@given(st.text() | st.text(alphabet=" .!?\n\r\t\u00a0aA1\"'“”\u3002\u2028([])", max_size=60))
def test_the_parts_put_together_are_the_text(text: str) -> None:
    parts = split(text)
    assert join(parts, [part.sentence for part in parts]) == text
    assert all(part.space.strip() == "" for part in parts)
    # Nothing to translate stands on its own only before the text.
    assert all(part.sentence.strip() for part in parts[1:])


def test_white_space_stays_where_it_was() -> None:
    text = "  One.  Two!\n\n\tThree?\n"
    assert split(text) == [Part("", "  "), Part("One.", "  "), Part("Two!", "\n\n\t"), Part("Three?", "\n")]
    assert join(split(text), ["", "Eins.", "Zwei!", "Drei?"]) == "  Eins.  Zwei!\n\n\tDrei?\n"


@pytest.mark.parametrize(
    "text",
    [
        "Dr. Smith met Mr. Jones at St. Paul's.",
        "J. S. Bach wrote it, i.e. he and no other, cf. No. 5 there.",
        "Wir treffen uns am 3. Mai um 5 Uhr.",
        "Das war im 19. Jahrhundert so.",
        "Er gewann beim 2. Versuch.",
        "Nimm z. B. Äpfel, d.h. Obst, bzw. Birnen.",
        "Das kostet ca. 5 Mio. Euro.",
        "1. Open the door.",
        "Pi is 3.14 and e is 2.72.",
        "See www.example.org for more.",
        'He cried "Stop!" and ran.',
        "Well... maybe not.",
        "Der Preis (inkl. MwSt.) ist hoch.",
        "It is 5 p.m. already.",
        "Dr.\u00a0Smith is in.",
    ],
)
def test_one_sentence_stays_one(text: str) -> None:
    assert sentences(text) == [text]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("He came. She left.", ["He came.", "She left."]),
        ("Really?! Yes.", ["Really?!", "Yes."]),
        ('"Stop!" He ran.', ['"Stop!"', "He ran."]),
        ("Er sagte: „Nein.“ Dann ging er.", ["Er sagte: „Nein.“", "Dann ging er."]),
        ("(It rained.) We stayed.", ["(It rained.)", "We stayed."]),
        ("It was 1990. Then it ended.", ["It was 1990.", "Then it ended."]),
        ("I said no. He said yes.", ["I said no.", "He said yes."]),
        ("So am I. He is not.", ["So am I.", "He is not."]),
        ("Und so weiter… Dann kam er.", ["Und so weiter…", "Dann kam er."]),
        ("これは本です。あれも本です。", ["これは本です。", "あれも本です。"]),
        ("What? 5 of them? Äpfel!", ["What?", "5 of them?", "Äpfel!"]),
    ],
)
def test_several_are_told_apart(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


def test_a_title_is_a_sentence_but_a_wrapped_line_is_none() -> None:
    full_line = "The committee met on Monday in order to discuss the report of"
    assert len(full_line) > 60
    text = f"A short title\nThe text begins.\n\n{full_line}\nGermany and was\nbrief."
    assert sentences(text) == ["A short title", "The text begins.", f"{full_line}\nGermany and was\nbrief."]


def test_a_line_end_near_the_beginning_is_one_too() -> None:
    assert sentences(f"Title\nA{'a' * 54}\nNext line") == ["Title", "A" + "a" * 54, "Next line"]


@pytest.mark.parametrize(
    "text", ["." * 100_000, "a. " * 33_000, " " * 100_000, "\n" * 100_000, "(" * 100_000, "。" * 100_000]
)
def test_the_time_is_linear_whatever_the_text(text: str) -> None:
    # Quadratic would be 10^10 steps: hours, and no answer.
    assert sum(len(part.sentence) + len(part.space) for part in split(text)) == len(text)
