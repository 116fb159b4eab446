"""Beam search: the best translations of a batch of sentences, and of a list of lines.

Shapes: B sentences still searched, K hypotheses of each (its beam), R = B x K rows, V pieces, T pieces so far.

A sentence's result does not depend on the batch that it came in: its padding is masked, its greatest length is its
own. What remains is rounding (about 1e-6, as matrix products are summed in another order in another shape), which
matters only where two hypotheses score the same to six digits.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from konvoi.data.subwords import Subwords

PAD, EOS, BOS = Subwords.PAD, Subwords.EOS, Subwords.BOS
NEVER = float("-inf")
# Longer lines are cut here: no sentence is that long, and attention costs the square of it.
MAX_SOURCE_PIECES = 512
# Short lines could fill a batch by the thousand, and each brings beam x V log-probabilities with it.
MAX_SENTENCES_PER_BATCH = 128

log = logging.getLogger(__name__)


class TranslationModel(Protocol):
    """What the search asks of a model; models/transformer.py has it."""

    training: bool

    def train(self, mode: bool = True) -> Any: ...

    def encode(self, source_BS: Tensor) -> tuple[Tensor, Tensor | None]: ...

    def start(self, memory_BSW: Tensor, mask: Tensor | None) -> Any: ...

    def step(self, pieces_B: Tensor, cache: Any) -> Tensor: ...


@dataclass(frozen=True)
class Hypothesis:
    """A finished translation; ids without begin and end, log_prob with the end."""

    ids: list[int]
    log_prob: float
    score: float


def penalty(length: int | Tensor, length_penalty: float) -> Any:
    """By what a log-probability is divided (Wu et al. 2016, equation 14); the length counts the end piece."""
    return ((5 + length) / 6) ** length_penalty


def beam_search(
    model: TranslationModel,
    source_BS: Tensor,
    *,
    beam: int,
    length_penalty: float,
    num_best: int | None = None,
    max_ratio: int = 2,
    max_extra: int = 20,
    vocabulary_size: int | None = None,
) -> list[list[Hypothesis]]:
    """For each sentence its `num_best` (else `beam`) best hypotheses, best first; a beam of 1 is greedy search.

    A translation has at most source pieces x max_ratio + max_extra pieces. To ask for fewer hypotheses is faster and
    gives the same ones: a sentence is done once none that is still open can beat the worst of those asked for.
    Only ids below vocabulary_size are pieces, where a model has more rows than that (Subwords.padded_size).
    """
    assert not model.training, "dropout would spoil the search: call model.eval() first"
    assert beam >= 1 and length_penalty >= 0
    num_best = beam if num_best is None else min(num_best, beam)
    with torch.inference_mode():
        limits_B = ((source_BS != PAD) & (source_BS != EOS)).sum(1) * max_ratio + max_extra
        search = _Search(
            model,
            source_BS,
            limits_B,
            beam=beam,
            length_penalty=length_penalty,
            num_best=num_best,
            vocabulary_size=vocabulary_size,
        )
        while search.is_open:
            search.step()
    return search.finished


class _Search:
    """The open hypotheses of a batch, as tensors; those that have ended, as lists.

    At every step the best `beam` continuations of a sentence stay. One that ends with EOS leaves its place, which the
    continuations of the others take at the next step. So a beam of 1 ends with its first EOS.
    """

    def __init__(
        self,
        model: TranslationModel,
        source_BS: Tensor,
        limits_B: Tensor,
        *,
        beam: int,
        length_penalty: float,
        num_best: int,
        vocabulary_size: int | None,
    ) -> None:
        self.model, self.beam, self.length_penalty, self.num_best = model, beam, length_penalty, num_best
        self.vocabulary_size = vocabulary_size
        batch, device = source_BS.shape[0], source_BS.device
        self.finished: list[list[Hypothesis]] = [[] for _ in range(batch)]
        self.cache = model.start(*model.encode(source_BS))
        self.sentences_B = torch.arange(batch, device=device)
        self.limits_B = limits_B
        # One hypothesis each, of no pieces; the first step makes a beam of them.
        self.ids_BKT = torch.full((batch, 1, 1), BOS, device=device)
        self.log_prob_BK = torch.zeros(batch, 1, device=device)
        # The score to beat: the worst of num_best finished hypotheses, once there are as many.
        self.worst_B = torch.full((batch,), NEVER, device=device)

    @property
    def is_open(self) -> bool:
        return len(self.sentences_B) > 0

    @property
    def num_pieces(self) -> int:
        """Pieces of every open hypothesis, without BOS."""
        return self.ids_BKT.shape[2] - 1

    def step(self) -> None:
        """One more piece for every open hypothesis."""
        # Rows beyond the vocabulary are cut off by a view, which costs nothing.
        next_log_prob_RV = self.model.step(self.ids_BKT[:, :, -1].flatten(), self.cache)[:, : self.vocabulary_size]
        self._forbid(next_log_prob_RV)
        log_prob_BK, parent_BK, piece_BK = self._best(next_log_prob_RV)
        has_ended_BK = piece_BK == EOS
        self._collect(log_prob_BK, parent_BK, has_ended_BK)
        self._advance(log_prob_BK.masked_fill(has_ended_BK, NEVER), parent_BK, piece_BK)

    def _forbid(self, next_log_prob_RV: Tensor) -> None:
        """Padding and begin are no pieces of a translation; at its greatest length it must end."""
        next_log_prob_RV[:, [PAD, BOS]] = NEVER
        must_end_B = self.limits_B == self.num_pieces
        if must_end_B.any():
            must_end_R = must_end_B.repeat_interleave(self.log_prob_BK.shape[1])
            is_other_V = torch.arange(next_log_prob_RV.shape[1], device=must_end_R.device) != EOS
            next_log_prob_RV.masked_fill_(must_end_R[:, None] & is_other_V, NEVER)

    def _best(self, next_log_prob_RV: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The best `beam` continuations of each sentence: log-probability, the hypothesis continued, and its piece."""
        batch, num_open = self.log_prob_BK.shape
        # First the best of each row, then of each sentence: spares a pass over R x V to add the sums so far.
        per_row = min(self.beam, next_log_prob_RV.shape[1])
        next_log_prob_Rk, piece_Rk = next_log_prob_RV.topk(per_row)
        sums_BKk = self.log_prob_BK[:, :, None] + next_log_prob_Rk.view(batch, num_open, per_row)
        log_prob_BK, choice_BK = sums_BKk.flatten(1).topk(min(self.beam, num_open * per_row))
        piece_BK = piece_Rk.view(batch, num_open * per_row).gather(1, choice_BK)
        return log_prob_BK, choice_BK // per_row, piece_BK

    def _collect(self, log_prob_BK: Tensor, parent_BK: Tensor, has_ended_BK: Tensor) -> None:
        """Takes note of those that have ended and are among the best so far."""
        score_BK = log_prob_BK / penalty(self.num_pieces + 1, self.length_penalty)
        rows, slots = (has_ended_BK & (score_BK > self.worst_B[:, None])).nonzero(as_tuple=True)
        if not len(rows):
            return
        ids = self.ids_BKT[rows, parent_BK[rows, slots], 1:].tolist()
        found = zip(rows.tolist(), ids, log_prob_BK[rows, slots].tolist(), score_BK[rows, slots].tolist(), strict=True)
        sentences = self.sentences_B.tolist()
        for row, ids_T, log_prob, score in found:
            best = self.finished[sentences[row]]
            best.append(Hypothesis(ids_T, log_prob, score))
            best.sort(key=lambda hypothesis: -hypothesis.score)
            del best[self.num_best :]
            if len(best) == self.num_best:
                self.worst_B[row] = best[-1].score

    def _advance(self, log_prob_BK: Tensor, parent_BK: Tensor, piece_BK: Tensor) -> None:
        """Moves on to the chosen continuations, without the sentences that are done."""
        # A log-probability only falls, and the penalty is greatest at the greatest length: no open one can score more.
        bound_B = log_prob_BK.amax(1) / penalty(self.limits_B + 1, self.length_penalty)
        keep_B = bound_B > self.worst_B
        is_everyone_open = bool(keep_B.all())
        first_row_B1 = torch.arange(len(keep_B), device=keep_B.device)[:, None] * self.log_prob_BK.shape[1]
        self._reorder_cache((first_row_B1 + parent_BK)[keep_B].flatten(), is_everyone_open)

        chosen_BKT = self.ids_BKT.gather(1, parent_BK[:, :, None].expand(-1, -1, self.ids_BKT.shape[2]))
        self.ids_BKT = torch.cat((chosen_BKT, piece_BK[:, :, None]), dim=2)[keep_B]
        self.log_prob_BK = log_prob_BK[keep_B]
        if not is_everyone_open:
            self.sentences_B, self.limits_B = self.sentences_B[keep_B], self.limits_B[keep_B]
            self.worst_B = self.worst_B[keep_B]

    def _reorder_cache(self, rows: Tensor, is_everyone_open: bool) -> None:
        """Copies no more than it must: nothing where all rows stay, no memory where they stay in their sentences."""
        has_same_rows = is_everyone_open and len(rows) == self.log_prob_BK.numel()
        if has_same_rows and torch.equal(rows, torch.arange(len(rows), device=rows.device)):
            return
        self.cache.select(rows, same_sentences=has_same_rows)


def translate_lines(
    model: TranslationModel,
    subwords: Subwords,
    lines: list[str],
    *,
    beam: int,
    length_penalty: float,
    max_tokens_per_batch: int = 4096,
    device: torch.device | str = "cpu",
    first_line_number: int = 1,
) -> list[str]:
    """The best translation of each line; an empty line stays empty, one that is too long is cut, with a warning."""
    pieces = subwords.encode([line.strip() for line in lines])
    ids = [_cut(line, number) for number, line in enumerate(pieces, start=first_line_number)]
    found = search_all(
        model,
        ids,
        beam=beam,
        length_penalty=length_penalty,
        num_best=1,
        vocabulary_size=subwords.size,
        max_tokens_per_batch=max_tokens_per_batch,
        device=device,
    )
    return [subwords.decode(hypotheses[0].ids if hypotheses else []) for hypotheses in found]


def search_all(
    model: TranslationModel,
    sentences: list[list[int]],
    *,
    beam: int,
    length_penalty: float,
    num_best: int,
    vocabulary_size: int,
    max_tokens_per_batch: int = 4096,
    device: torch.device | str = "cpu",
) -> list[list[Hypothesis]]:
    """The best hypotheses of each sentence (ids without an end), in order; none for an empty one."""
    results: list[list[Hypothesis]] = [[] for _ in sentences]
    with _evaluating(model):
        for batch in _batches(sentences, max_tokens_per_batch):
            found = beam_search(
                model,
                _padded([[*sentences[index], EOS] for index in batch]).to(device),
                beam=beam,
                length_penalty=length_penalty,
                num_best=num_best,
                vocabulary_size=vocabulary_size,
            )
            for index, hypotheses in zip(batch, found, strict=True):
                results[index] = hypotheses
    return results


def _cut(ids: list[int], line_number: int) -> list[int]:
    if len(ids) > MAX_SOURCE_PIECES:
        log.warning("line %d has %d pieces: cut to the first %d", line_number, len(ids), MAX_SOURCE_PIECES)
    return ids[:MAX_SOURCE_PIECES]


def _batches(ids: list[list[int]], max_tokens: int) -> Iterator[list[int]]:
    """Indices of lines of like length, longest first (so that memory runs out at once or never); no empty lines."""
    order = sorted((index for index, line in enumerate(ids) if line), key=lambda index: -len(ids[index]))
    while order:
        longest = len(ids[order[0]]) + 1
        count = max(1, min(max_tokens // longest, MAX_SENTENCES_PER_BATCH))
        yield order[:count]
        order = order[count:]


def _padded(rows: list[list[int]]) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


@contextmanager
def _evaluating(model: TranslationModel) -> Iterator[None]:
    """Without dropout for a while, then as it was."""
    was_training = model.training
    model.train(False)
    try:
        yield
    finally:
        model.train(was_training)
