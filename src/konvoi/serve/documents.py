"""A request's text as sentences with the white space after each, and whole again."""

from __future__ import annotations

from collections.abc import Iterable

from konvoi.bundle.sentences import Part, split
from konvoi.serve.limits import MAX_SENTENCE_CHARACTERS, MAX_SENTENCES
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
    if (longest := max((len(part.sentence) for part in parts), default=0)) > MAX_SENTENCE_CHARACTERS:
        # It would be cut, and only its beginning translated.
        problem = f"the text has a sentence of {longest:,} characters"
        raise Refusal(422, problem, hint=f"at most {MAX_SENTENCE_CHARACTERS:,}; end sentences with a full stop")
    return parts


def put_together(sentences: Iterable[Sentence]) -> str:
    return "".join(one.translations[0].text + one.space for one in sentences)
