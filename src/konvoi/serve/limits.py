"""How much one request may ask for, and all of them together."""

from __future__ import annotations

from dataclasses import dataclass

# Of one request; they stand in the API's description, so that a client knows them beforehand.
MAX_TEXT_CHARACTERS = 50_000
MAX_SENTENCE_CHARACTERS = 5_000
MAX_SENTENCES = 1_000
MAX_BEAM = 10
# Numbers, a column for each source piece and a row for each target piece: of one sentence, which has at most two target
# pieces for each of its characters, and of all of an answer. What would have more comes without any.
MAX_SENTENCE_ATTENTION, MAX_ATTENTION = 400_000, 1_000_000
MAX_CLASSES = 100
MAX_JSON_BYTES = 1_000_000
MAX_PICTURE_BYTES = 20_000_000


@dataclass(frozen=True)
class Limits:
    """Of the service as a whole."""

    max_requests: int = 128
    """That are read or answered at the same time; one more is told to come again."""
    request_seconds: float = 60
    """From the first byte to the answer."""
    stream_seconds: float = 600
    """The same for a long text that comes sentence by sentence."""
    max_batch: int = 64
    """Sentences or pictures that a model is given at once; 1 is no batching."""
    batch_wait_seconds: float = 0.003
    """How long an idle model waits for a second request after the first."""
    ending_seconds: float = 60
    """After it was told to end: for what was accepted before."""
