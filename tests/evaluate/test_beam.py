"""Beam search against enumeration, against itself in other batches, and against arithmetic by hand."""

from __future__ import annotations

import itertools
import logging
import math
import random
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from konvoi.data.subwords import Subwords
from konvoi.evaluate import beam as beam_module
from konvoi.evaluate.beam import Hypothesis, beam_search, penalty, translate_lines
from konvoi.models._kernels import linear_cross_entropy
from konvoi.models.transformer import Config, Model

PAD, EOS, BOS = Subwords.PAD, Subwords.EOS, Subwords.BOS
FIRST_WORD = 4
TINY = Config(size="tiny", encoder_layers=1, decoder_layers=2, width=32, ffn_width=64, heads=2, dropout=0.0)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def random_model(num_pieces: int, seed: int, sharpness: float = 3.0) -> Model:
    """Weights larger than at the start of training, so that probabilities are far from uniform."""
    torch.manual_seed(seed)
    model = Model(TINY, num_pieces).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(sharpness)
        model.decoder_norm.weight.mul_(0.4)
    return model


def random_sentences(count: int, num_pieces: int, seed: int, longest: int = 12) -> list[list[int]]:
    draw = random.Random(seed)
    return [
        [draw.randrange(FIRST_WORD, num_pieces) for _ in range(draw.randint(1, longest))] + [EOS] for _ in range(count)
    ]


def padded(sentences: list[list[int]]) -> Tensor:
    longest = max(map(len, sentences))
    return torch.tensor([sentence + [PAD] * (longest - len(sentence)) for sentence in sentences])


@pytest.fixture(scope="module")
def trained_model() -> Model:
    """Reverses sentences of 12 kinds of words; two seconds of training, so it errs at times, as real models do."""
    torch.manual_seed(1)
    model = Model(TINY, 16)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(250):
        sentences = random_sentences(64, 16, seed=step, longest=7)
        targets = padded([[*sentence[-2::-1], EOS] for sentence in sentences])
        shifted = torch.cat((torch.full((64, 1), BOS), targets[:, :-1]), dim=1)
        is_target = targets != PAD
        hidden = model(padded(sentences), shifted)[is_target]
        loss_sum, _ = linear_cross_entropy(hidden, model.embedding.weight, targets[is_target], 0.1)
        optimizer.zero_grad()
        torch.autograd.backward(loss_sum / is_target.sum())
        optimizer.step()
    return model.eval()


def log_prob_by_forward(model: Model, source: list[int], ids: list[int]) -> float:
    """Of the translation with its end, from the pass over all positions that training uses."""
    with torch.no_grad():
        hidden = model(torch.tensor([source]), torch.tensor([[BOS, *ids]]))[0]
        log_probs_TV = torch.log_softmax(hidden @ model.embedding.weight.t(), dim=-1)
    return sum(log_probs_TV[position, piece].item() for position, piece in enumerate([*ids, EOS]))


def greedy_by_hand(model: Model, source: list[int], max_length: int) -> list[int]:
    ids: list[int] = []
    while len(ids) < max_length:
        with torch.no_grad():
            hidden = model(torch.tensor([source]), torch.tensor([[BOS, *ids]]))[0, -1]
        logits = model.embedding.weight @ hidden
        logits[[PAD, BOS]] = -math.inf
        best = int(logits.argmax())
        if best == EOS:
            break
        ids.append(best)
    return ids


class Script:
    """Stands in for a model: the next piece's probabilities depend on the pieces so far alone."""

    training = False

    def __init__(self, probabilities: dict[tuple[int, ...], dict[int, float]], num_pieces: int = 8) -> None:
        self.probabilities, self.num_pieces = probabilities, num_pieces
        self.num_steps = 0

    def train(self, mode: bool = True) -> None:
        raise AssertionError("the search itself leaves the mode alone")

    def encode(self, source_BS: Tensor) -> tuple[Tensor, Tensor | None]:
        return source_BS.float(), None

    def start(self, memory_BSW: Tensor, mask: Tensor | None) -> ScriptCache:
        return ScriptCache([()] * len(memory_BSW))

    def step(self, pieces_B: Tensor, cache: ScriptCache) -> Tensor:
        self.num_steps += 1
        cache.rows = [(*row, piece) for row, piece in zip(cache.rows, pieces_B.tolist(), strict=True)]
        log_probs = torch.full((len(cache.rows), self.num_pieces), -50.0)
        for row, so_far in enumerate(cache.rows):
            for piece, probability in self.probabilities.get(so_far[1:], {EOS: 1.0}).items():
                log_probs[row, piece] = math.log(probability)
        return log_probs


class ScriptCache:
    def __init__(self, rows: list[tuple[int, ...]]) -> None:
        self.rows = rows

    def select(self, rows: Tensor, same_sentences: bool = False) -> None:
        self.rows = [self.rows[row] for row in rows.tolist()]


def test_length_penalty_is_five_plus_length_over_six_to_the_power() -> None:
    # (5 + 1) / 6 = 1; (5 + 7) / 6 = 2, and 2 ** 0.6 = 1.5157; a power of 0 leaves the score as it is
    assert penalty(1, 0.6) == 1.0
    assert penalty(7, 0.6) == pytest.approx(1.515717)
    assert penalty(7, 0.0) == 1.0


def test_length_penalty_decides_between_a_short_and_a_long_translation() -> None:
    # "4" has probability 0.6 x 0.5, "5 6 7 4 5 6" 0.4 x 0.7: without a penalty the short one wins,
    #   log 0.30 = -1.2040 > log 0.28 = -1.2730.
    # With 0.6: 2 pieces with the end, (7 / 6) ** 0.6 = 1.0969, -1.2040 / 1.0969 = -1.0976;
    #           7 pieces with the end, 2 ** 0.6 = 1.5157,        -1.2730 / 1.5157 = -0.8398.
    long = (5, 6, 7, 4, 5, 6)
    script = {(): {4: 0.6, 5: 0.4}, (4,): {EOS: 0.5}, (5,): {6: 0.7}}
    script |= {long[:length]: {long[length]: 1.0} for length in range(2, 6)}
    source = torch.tensor([[4, EOS]])
    (without,) = beam_search(Script(script), source, beam=2, length_penalty=0.0)
    assert without[0].ids == [4] and without[0].score == pytest.approx(-1.2040, abs=1e-4)
    (with_penalty,) = beam_search(Script(script), source, beam=2, length_penalty=0.6)
    assert with_penalty[0].ids == list(long) and with_penalty[0].score == pytest.approx(-0.8398, abs=1e-4)
    assert with_penalty[1].ids == [4] and with_penalty[1].score == pytest.approx(-1.0976, abs=1e-4)
    assert with_penalty[0].log_prob == pytest.approx(math.log(0.28), abs=1e-6)


def test_an_end_at_once_gives_an_empty_translation() -> None:
    # length 1 with the end: log 0.9 / 1
    (found,) = beam_search(Script({(): {EOS: 0.9, 4: 0.1}}), torch.tensor([[4, EOS]]), beam=1, length_penalty=0.6)
    assert [h.ids for h in found] == [[]]
    assert found[0].score == found[0].log_prob == pytest.approx(math.log(0.9))


def test_search_stops_as_soon_as_no_open_hypothesis_can_win() -> None:
    # After the first step "" has ended with log 0.9 = -0.105. The best open one, log 0.05 = -3.0, would at the greatest
    # length of 1 x 2 + 20 pieces and the end score -3.0 / (28 / 6) ** 0.6 = -1.19: worse, whatever follows.
    script = Script({(): {EOS: 0.9, 4: 0.05, 5: 0.05}})
    beam_search(script, torch.tensor([[4, EOS]]), beam=3, length_penalty=0.6, num_best=1)
    assert script.num_steps == 1


def test_search_goes_on_while_an_open_hypothesis_can_win() -> None:
    # "" ends with log 0.4 = -0.916. "4" is open with log 0.35 = -1.050: were it to end next, -1.050 / (7 / 6) ** 0.6 =
    # -0.957 would lose, but it goes on with certainty to nine pieces and the end, -1.050 / (15 / 6) ** 0.6 = -0.606.
    script: dict[tuple[int, ...], dict[int, float]] = {(4,) * length: {4: 1.0} for length in range(1, 9)}
    script[()] = {EOS: 0.4, 4: 0.35, 5: 0.25}
    (found,) = beam_search(Script(script), torch.tensor([[4, EOS]]), beam=2, length_penalty=0.6, num_best=1)
    assert found[0].ids == [4] * 9
    assert found[0].score == pytest.approx(math.log(0.35) / 2.5**0.6)


def test_padding_and_begin_are_never_generated_and_the_greatest_length_is_kept() -> None:
    endless = {(4,) * length: {PAD: 0.4, BOS: 0.3, 4: 0.2, EOS: 0.1} for length in range(30)}
    # 1 source piece: 1 x 2 + 20 = 22; 2 source pieces: 24
    found = beam_search(Script(endless), torch.tensor([[4, EOS, PAD], [4, 4, EOS]]), beam=1, length_penalty=0.0)
    assert [hypotheses[0].ids for hypotheses in found] == [[4] * 22, [4] * 24]
    assert found[0][0].log_prob == pytest.approx(22 * math.log(0.2) + math.log(0.1), rel=1e-5)


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_wide_beam_finds_what_enumeration_finds(seed: int, length_penalty: float) -> None:
    model = random_model(num_pieces=7, seed=seed, sharpness=1.5)
    sources = [[4, 5, EOS], [6, EOS]]
    # Pieces 3 to 6, at most 3 of them: 1 + 4 + 16 + 64 = 85 translations, none of which leaves a beam of 85.
    everything = [list(ids) for length in range(4) for ids in itertools.product(range(3, 7), repeat=length)]
    found = beam_search(model, padded(sources), beam=85, length_penalty=length_penalty, max_ratio=0, max_extra=3)
    for source, hypotheses in zip(sources, found, strict=True):
        scores = {tuple(ids): log_prob_by_forward(model, source, ids) for ids in everything}
        for ids in scores:
            scores[ids] /= ((5 + len(ids) + 1) / 6) ** length_penalty
        assert len(hypotheses) == 85
        assert [h.score for h in hypotheses] == pytest.approx(sorted(scores.values(), reverse=True), abs=1e-4)
        assert [h.score for h in hypotheses] == pytest.approx([scores[tuple(h.ids)] for h in hypotheses], abs=1e-4)


def test_fewer_hypotheses_are_the_first_of_all(trained_model: Model) -> None:
    source = padded(random_sentences(40, 16, seed=5))
    every = beam_search(trained_model, source, beam=4, length_penalty=0.6)
    best = beam_search(trained_model, source, beam=4, length_penalty=0.6, num_best=1)
    assert [h[0].ids for h in every] == [h[0].ids for h in best]
    assert all(len(h) == 4 for h in every) and all(len(h) == 1 for h in best)


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("kind", ["random", "trained"])
def test_a_translation_does_not_depend_on_its_batch(kind: str, beam: int, trained_model: Model) -> None:
    model = trained_model if kind == "trained" else random_model(num_pieces=16, seed=11)
    sentences = random_sentences(24, 16, seed=9)

    def search(chosen: list[list[int]]) -> list[list[Hypothesis]]:
        return beam_search(model, padded(chosen), beam=beam, length_penalty=0.6)

    alone = [search([sentence])[0] for sentence in sentences]
    assert len({tuple(h[0].ids) for h in alone}) > 12, "a model that always says the same would prove nothing"
    for seed, size in [(0, 24), (1, 24), (2, 7), (3, 5)]:
        order = random.Random(seed).sample(range(24), 24)
        for start in range(0, 24, size):
            batch = order[start : start + size]
            for index, hypotheses in zip(batch, search([sentences[index] for index in batch]), strict=True):
                assert [h.ids for h in hypotheses] == [h.ids for h in alone[index]]
                assert [h.score for h in hypotheses] == pytest.approx([h.score for h in alone[index]], abs=1e-4)


@pytest.mark.parametrize("kind", ["random", "trained"])
def test_a_beam_of_one_is_greedy_search(kind: str, trained_model: Model) -> None:
    model = trained_model if kind == "trained" else random_model(num_pieces=16, seed=12)
    sentences = random_sentences(12, 16, seed=4)
    found = beam_search(model, padded(sentences), beam=1, length_penalty=0.6)
    expected = [greedy_by_hand(model, s, max_length=2 * (len(s) - 1) + 20) for s in sentences]
    assert [h[0].ids for h in found] == expected
    assert all(len(h) == 1 for h in found)


def test_a_beam_scores_no_worse_than_greedy_search(trained_model: Model) -> None:
    # No law of beam search, but so on these sentences, and it would not be with a wrong cache or bound.
    source = padded(random_sentences(60, 16, seed=6))
    greedy = beam_search(trained_model, source, beam=1, length_penalty=0.6)
    wide = beam_search(trained_model, source, beam=6, length_penalty=0.6)
    gains = [w[0].score - g[0].score for w, g in zip(wide, greedy, strict=True)]
    assert min(gains) > -1e-5
    assert max(gains) > 1e-3


def test_reported_log_probabilities_are_those_of_the_forward_pass(trained_model: Model) -> None:
    sentences = random_sentences(10, 16, seed=8)
    found = beam_search(trained_model, padded(sentences), beam=3, length_penalty=0.6)
    for sentence, hypotheses in zip(sentences, found, strict=True):
        for h in hypotheses:
            assert h.log_prob == pytest.approx(log_prob_by_forward(trained_model, sentence, h.ids), abs=1e-4)
            assert h.score == pytest.approx(h.log_prob / penalty(len(h.ids) + 1, 0.6), abs=1e-5)


@pytest.mark.parametrize("lengths", [(9, 9), (9, 4), (80, 70)], ids=["even", "padded", "long"])
def test_a_step_equals_the_forward_pass_at_each_position(lengths: tuple[int, int]) -> None:
    model = random_model(num_pieces=20, seed=13, sharpness=1.5)
    draw = random.Random(0)
    source = padded([[draw.randrange(FIRST_WORD, 20) for _ in range(length - 1)] + [EOS] for length in lengths])
    # 70 positions pass the length at which attention takes its other path.
    target = torch.tensor([[BOS] + [draw.randrange(FIRST_WORD, 20) for _ in range(69)] for _ in range(2)])
    with torch.inference_mode():
        at_once = torch.log_softmax(model(source, target) @ model.embedding.weight.t(), dim=-1)
        cache = model.start(*model.encode(source))
        one_by_one = torch.stack([model.step(target[:, position], cache) for position in range(70)], dim=1)
    torch.testing.assert_close(one_by_one, at_once, atol=2e-4, rtol=1e-4)


def test_rows_beyond_the_vocabulary_are_never_generated() -> None:
    # 8 rows but 6 pieces: 6 and 7 would be best, 4 then comes first, 5 second
    script = {(): {7: 0.5, 6: 0.3, 4: 0.15, 5: 0.05}}
    (found,) = beam_search(Script(script), torch.tensor([[4, EOS]]), beam=2, length_penalty=0.0, vocabulary_size=6)
    assert [h.ids for h in found] == [[4], [5]]
    assert [h.log_prob for h in found] == pytest.approx([math.log(0.15), math.log(0.05)])
    (unbounded,) = beam_search(Script(script), torch.tensor([[4, EOS]]), beam=2, length_penalty=0.0)
    assert [h.ids for h in unbounded] == [[7], [6]]


def test_a_vocabulary_size_equal_to_the_rows_changes_nothing() -> None:
    model = random_model(num_pieces=16, seed=11)
    source = padded(random_sentences(8, 16, seed=9))
    bounded = beam_search(model, source, beam=3, length_penalty=0.6, vocabulary_size=16)
    assert bounded == beam_search(model, source, beam=3, length_penalty=0.6)


def test_a_model_in_training_mode_is_refused() -> None:
    with pytest.raises(AssertionError, match="dropout"):
        beam_search(Model(TINY, 16), torch.tensor([[4, EOS]]), beam=1, length_penalty=0.6)


@pytest.fixture(scope="module")
def subwords(tmp_path_factory: pytest.TempPathFactory) -> Subwords:
    lines = ["the cat sees the dog", "die Katze sieht den Hund", "der Hund sieht die Katze", "a dog sees a cat"]
    return Subwords.learn(lines, 50, tmp_path_factory.mktemp("vocabulary"))


def test_lines_come_back_in_their_order_whatever_the_batches(subwords: Subwords) -> None:
    model = random_model(subwords.size, seed=14).train()
    lines = ["the cat", "die Katze sieht den Hund", "a", "dog sees the cat the dog", "der Hund", "sieht"]
    alone = [translate_lines(model, subwords, [line], beam=3, length_penalty=0.6)[0] for line in lines]
    assert len(set(alone)) >= 5
    for max_tokens in (1, 12, 4096):
        found = translate_lines(model, subwords, lines, beam=3, length_penalty=0.6, max_tokens_per_batch=max_tokens)
        assert found == alone
    assert model.training, "the model's mode is restored"


def test_a_padded_model_translates_with_pieces_of_the_vocabulary(subwords: Subwords) -> None:
    # 50 pieces, 56 rows: of two that are opposite and long, one is by far the most likely at any place
    model = random_model(subwords.padded_size, seed=14)
    with torch.no_grad():
        model.embedding.weight[subwords.size] = 100 * model.embedding.weight[FIRST_WORD]
        model.embedding.weight[subwords.size + 1] = -model.embedding.weight[subwords.size]
    lines = ["the cat", "die Katze sieht den Hund", "a", "dog sees the cat the dog"]
    found = translate_lines(model, subwords, lines, beam=3, length_penalty=0.6)
    assert len(found) == 4 and any(found)


def test_an_empty_line_gives_an_empty_line(subwords: Subwords) -> None:
    model = random_model(subwords.size, seed=14)
    found = translate_lines(model, subwords, ["", "the cat", " \t\u3000 ", "a dog"], beam=2, length_penalty=0.6)
    assert found[0] == found[2] == "" and found[1] and found[3]
    assert translate_lines(model, subwords, [], beam=2, length_penalty=0.6) == []
    assert translate_lines(model, subwords, [" "], beam=2, length_penalty=0.6) == [""]


def test_a_line_too_long_is_cut_with_a_warning(
    subwords: Subwords, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(beam_module, "MAX_SOURCE_PIECES", 4)
    model = random_model(subwords.size, seed=14)
    long = "the cat sees the dog " * 3
    num_pieces = len(subwords.encode([long])[0])
    with caplog.at_level(logging.WARNING):
        (cut,) = translate_lines(model, subwords, [long], beam=1, length_penalty=0.6)
    assert f"line 1 has {num_pieces} pieces: cut to the first 4" in caplog.text
    source = torch.tensor([[*subwords.encode([long])[0][:4], EOS]])
    assert cut == subwords.decode(beam_search(model, source, beam=1, length_penalty=0.6)[0][0].ids)


def test_batches_keep_to_tokens_and_sentences() -> None:
    ids = [[5] * length for length in [3, 0, 9, 1, 1, 9, 20]]
    # longest first, with its end: 21 > 20 stands alone; 10 + 10; then lines of 4 and less
    assert list(beam_module._batches(ids, max_tokens=20)) == [[6], [2, 5], [0, 3, 4]]
    many = list(beam_module._batches([[5]] * 300, max_tokens=4096))
    assert [len(batch) for batch in many] == [128, 128, 44]
