"""A request's text as sentences with the white space after each, and whole again."""

from __future__ import annotations

from collections.abc import Iterable

from konvoi.bundle.sentences import Part, split
from konvoi.serve.limits import MAX_SENTENCES
from konvoi.serve.messages import Sentence, SentencesQuestion, TextQuestion
from konvoi.serve.refusal import Refusal


def parts_of(question: TextQuestion | SentencesQuestion) -> list[Part]:
    """Sentences that came split are a line each."""
    if isinstance(question, SentencesQuestion):
        last = len(question.sentences) - 1
        return [Part(sentence, "\n" if index < last else "") for index, sentence in enumerate(question.sentences)]
    parts = split(question.text)
    if len(parts) > MAX_SENTENCES:
        raise Refusal(422, f"the text has {len(parts):,} sentences", hint=f"at most {MAX_SENTENCES:,} at a time")
    return parts


def put_together(sentences: Iterable[Sentence]) -> str:
    return "".join(one.translations[0].text + one.space for one in sentences)
