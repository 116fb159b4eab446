"""fp32, bf16 and fp16 on a CPU: what is skipped, what is clipped, what the loss scale does."""

from __future__ import annotations

import math

import pytest
import torch
from tests.processes import Trainings, losses, steps
from torch import nn

from konvoi.config.sections import Optim
from konvoi.engine import optim
from konvoi.engine.loop import save, train_step
from konvoi.engine.precision import Buffers, Precision

CPU = torch.device("cpu")


def two_weights() -> nn.Linear:
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


def plain_sgd(model: nn.Module, momentum: float = 0.0) -> torch.optim.Optimizer:
    optimizer = optim.build(Optim(name="sgd", momentum=momentum), model)
    optim.set_rate(optimizer, 1.0)
    return optimizer


@pytest.mark.parametrize(
    ("clip_norm", "expected"),
    [
        # The gradient (3, 4) has the norm 5. Clipped to 2.5 it is (1.5, 2); the weights become its negative.
        (2.5, [-1.5, -2.0]),
        (5.0, [-3.0, -4.0]),
        (7.0, [-3.0, -4.0]),
        (0.0, [-3.0, -4.0]),
    ],
)
def test_gradients_are_clipped_to_a_norm(clip_norm: float, expected: list[float]) -> None:
    model, precision = two_weights(), Precision("fp32", CPU)
    precision.backward(model(torch.tensor([3.0, 4.0])).sum())
    outcome = precision.step(plain_sgd(model), model, clip_norm)
    assert (outcome.gradient_norm, outcome.skipped) == (5.0, False)
    assert model.weight[0].tolist() == pytest.approx(expected, rel=1e-5)
    assert model.weight.grad is None


def test_fp16_clips_what_is_left_after_the_loss_scale_is_taken_out() -> None:
    model, precision = two_weights(), Precision("fp16", CPU)
    assert precision.loss_scale == 65_536
    precision.backward(model(torch.tensor([3.0, 4.0])).sum())
    assert model.weight.grad is not None and model.weight.grad[0].tolist() == [3.0 * 65_536, 4.0 * 65_536]
    assert precision.step(plain_sgd(model), model, clip_norm=2.5).gradient_norm == 5.0
    assert model.weight[0].tolist() == pytest.approx([-1.5, -2.0], rel=1e-5)


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_a_step_with_a_gradient_that_is_no_number_changes_nothing(name: str, bad: float) -> None:
    model, precision = two_weights(), Precision(name, CPU)
    optimizer = plain_sgd(model, momentum=0.9)
    precision.backward(model(torch.tensor([1.0, bad])).sum())
    outcome = precision.step(optimizer, model, clip_norm=1.0)
    assert outcome.skipped and not math.isfinite(outcome.gradient_norm)
    assert model.weight[0].tolist() == [0.0, 0.0]
    # Nor may it leave a trace in the momentum: the next step is the first one.
    precision.backward(model(torch.tensor([3.0, 4.0])).sum())
    assert not precision.step(optimizer, model, clip_norm=0.0).skipped
    assert optim.state_tensors(optimizer)["0.momentum_buffer"].tolist() == [[3.0, 4.0]]
    assert model.weight[0].tolist() == [-3.0, -4.0]


def test_the_loss_scale_is_halved_after_an_overflow_and_is_part_of_the_state() -> None:
    model, precision = two_weights(), Precision("fp16", CPU)
    precision.backward(model(torch.tensor([1.0, math.inf])).sum())
    precision.step(plain_sgd(model), model, clip_norm=0.0)
    assert precision.loss_scale == 65_536 / 2
    other = Precision("fp16", CPU)
    other.load_state(precision.state())
    assert other.loss_scale == 65_536 / 2


def test_a_run_in_fp16_skips_counts_and_tells_its_overflows(trainings: Trainings) -> None:
    run = trainings.new("train.precision=fp16", "train.ema_decay=0.5")
    with trainings.built(run) as built:
        # Far beyond fp16, whose largest number is 65,504
        built.precision.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)
        before = [parameter.detach().clone() for parameter in built.bare_model.parameters()]
        for _ in range(2):
            train_step(built)
        assert built.average is not None
        for now in (built.bare_model.parameters(), built.average.average):
            assert all(torch.equal(one, other) for one, other in zip(before, now, strict=True))
        assert (built.progress.skipped_steps, built.progress.step, built.progress.position) == (2, 2, 2)
        built.precision.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
        train_step(built)
        assert built.progress.skipped_steps == 2
        assert not all(
            torch.equal(one, other) for one, other in zip(before, built.bare_model.parameters(), strict=True)
        )
    assert [event.get("skipped", False) for event in steps(run).values()] == [True, True, False]
    assert [event["loss_scale"] for event in steps(run).values()] == [2.0**59, 2.0**58, 2.0**8]
    # JSON has no infinity
    assert [event["gradient_norm"] is None for event in steps(run).values()] == [True, True, False]
    log = run.log_file.read_text(encoding="utf-8")
    assert "step 1: gradients overflowed, skipped (1 so far)" in log
    assert "step 2: gradients overflowed, skipped (2 so far)" in log


def test_a_resumed_run_in_fp16_knows_its_loss_scale_and_what_it_skipped(trainings: Trainings) -> None:
    run = trainings.new("train.precision=fp16")
    with trainings.built(run) as built:
        built.precision.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)
        train_step(built)
        save(built)
    with trainings.built(run, resume=True) as built:
        # Halved once
        assert (built.precision.loss_scale, built.progress.skipped_steps) == (2.0**59, 1)


def test_a_run_in_fp32_survives_a_gradient_that_is_no_number(
    trainings: Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trainings.new("train.duration=4 steps")
    with trainings.built(run) as built:
        loss_sums = built.task.loss_sums
        # The second micro-batch only
        monkeypatch.setattr(
            built.task,
            "loss_sums",
            lambda model, batch: tuple(
                x * (math.nan if built.progress.step == 1 else 1) for x in loss_sums(model, batch)
            ),
        )
        for _ in range(3):
            train_step(built)
        assert all(parameter.isfinite().all() for parameter in built.bare_model.parameters())
        assert built.progress.skipped_steps == 1
    assert [event.get("skipped", False) for event in steps(run).values()] == [False, True, False]
    assert [event["loss"] is None for event in steps(run).values()] == [False, True, False]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_learns(trainings: Trainings, precision: str) -> None:
    run = trainings.trained(f"train.precision={precision}", "train.duration=25 steps", "train.mode=train")
    found = list(losses(run).values())
    assert all(math.isfinite(loss) for loss in found)
    first, last = sum(found[:5]) / 5, sum(found[-5:]) / 5
    assert last < first - 0.5
    assert run.summary()["precision"] == precision


def test_auto_takes_what_the_processor_can(trainings: Trainings) -> None:
    with trainings.built(trainings.new("train.precision=auto")) as built:
        assert built.precision.name in ("fp32", "bf16")


def test_a_skipped_step_leaves_no_infinity_in_batch_normalisation() -> None:
    """The forward pass has written its means by the time the gradients are known."""
    model = nn.BatchNorm1d(2)
    model(torch.randn(4, 2))
    expected = {name: buffer.clone() for name, buffer in model.named_buffers() if buffer.is_floating_point()}
    buffers = Buffers(model)
    model(torch.full((4, 2), float("inf")))
    assert not torch.isfinite(model.running_mean).all()
    buffers.restore()
    assert all(torch.equal(dict(model.named_buffers())[name], buffer) for name, buffer in expected.items())
