"""What the API is asked and what it answers; its OpenAPI description is made of these."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from konvoi.bundle.interfaces import Guess, Translation
from konvoi.serve import limits


def _well_formed(value: Any) -> Any:
    """JSON can carry half a character (a lone surrogate), which no other part can: it becomes U+FFFD."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return value


WellFormed = Annotated[str, BeforeValidator(_well_formed)]
ShortText = Annotated[str, Field(max_length=limits.MAX_SENTENCE_CHARACTERS), BeforeValidator(_well_formed)]


class Question(BaseModel):
    # A misspelt key is told rather than passed over.
    model_config = ConfigDict(extra="forbid")

    model: WellFormed | None = Field(None, description="A name of /api/models; else the first translator.")
    beam: int | None = Field(None, ge=1, le=limits.MAX_BEAM, description="Hypotheses kept per sentence.")
    num_best: int = Field(1, ge=1, le=limits.MAX_BEAM, description="Translations of each sentence, at most.")
    attention: bool = Field(False, description="With pieces, and which source pieces each target piece looked at.")


class TextQuestion(Question):
    """A text of any form: it is split into sentences and put together again with its white space."""

    text: WellFormed = Field(max_length=limits.MAX_TEXT_CHARACTERS)


class SentencesQuestion(Question):
    """Sentences that are split already; as many come back, in order."""

    sentences: list[ShortText] = Field(max_length=limits.MAX_SENTENCES)


def _kind_of(question: Any) -> str:
    keys = question if isinstance(question, dict) else {}
    return "sentences" if "sentences" in keys and "text" not in keys else "text"


TranslateQuestion = Annotated[
    Annotated[TextQuestion, Tag("text")] | Annotated[SentencesQuestion, Tag("sentences")], Discriminator(_kind_of)
]


class Alternative(BaseModel):
    """One way to say it."""

    text: str
    score: float = Field(description="Log-probability for its length; higher is better.")
    source_pieces: list[str] = Field(description="Words, or parts of them; ▁ is the blank before a word.")
    target_pieces: list[str]
    attention: list[list[float]] = Field(
        description="A row for each target piece, a column for each source piece; empty unless asked for, and where"
        f" the sentence is too long, or the whole answer has had {limits.MAX_ATTENTION:,} numbers."
    )

    @classmethod
    def of(cls, found: Translation) -> Alternative:
        return cls(
            text=found.text,
            score=found.score,
            source_pieces=list(found.source_pieces),
            target_pieces=list(found.target_pieces),
            attention=[list(row) for row in found.attention],
        )


class Sentence(BaseModel):
    number: int = Field(ge=0, description="From 0.")
    source: str = Field(description="May be empty, as before white space that a text begins with.")
    space: str = Field(description="White space after it.")
    translations: list[Alternative] = Field(description="Best first.")


class TranslateAnswer(BaseModel):
    model: str
    text: str = Field(description="The best translations, with the white space of the source.")
    sentences: list[Sentence]
    seconds: float


class StreamEnd(BaseModel):
    """The last line of a stream that is whole."""

    model: str
    seconds: float


class ClassGuess(BaseModel):
    name: str
    probability: float

    @classmethod
    def of(cls, guess: Guess) -> ClassGuess:
        return cls(name=guess.name, probability=guess.probability)


class ClassifyAnswer(BaseModel):
    model: str
    guesses: list[ClassGuess] = Field(description="Likeliest first.")
    seconds: float


class ModelEntry(BaseModel):
    name: str
    task: Literal["translation", "classification"]
    source: Annotated[str | None, Field(description="Language of a translator's input, as in en.")] = None
    target: str | None = None
    num_classes: Annotated[int | None, Field(description="Of a classifier.")] = None


class LimitsEntry(BaseModel):
    max_text_characters: int = limits.MAX_TEXT_CHARACTERS
    max_sentence_characters: int = limits.MAX_SENTENCE_CHARACTERS
    max_sentences: int = limits.MAX_SENTENCES
    max_picture_bytes: int = limits.MAX_PICTURE_BYTES


class ModelsAnswer(BaseModel):
    models: list[ModelEntry]
    limits: LimitsEntry


class State(BaseModel):
    status: Literal["ok"] = "ok"
