"""A file's name is its entry; what every entry of a kind must have."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import konvoi
from konvoi import registry
from konvoi.config.section import Section
from konvoi.config.sections import Evaluate
from konvoi.errors import UserError
from konvoi.sync import Team
from konvoi.telemetry.timeline import Timeline
from konvoi.world import World

MODELS, SYNCS, TASKS = (registry.names(kind) for kind in ("model", "sync", "task"))

NUM_PIECES = 40


def small_transformer() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    module = registry.find("model", "transformer")
    config = module.Config(size="tiny", width=32, ffn_width=64, heads=2, encoder_layers=1, decoder_layers=1)
    pieces = torch.randint(4, NUM_PIECES, (3, 7), generator=torch.Generator().manual_seed(1))
    return module.Model(config, NUM_PIECES, pad=0), lambda model: model(pieces, pieces.flip(1)).square().sum()


def small_resnet() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    module = registry.find("model", "resnet")
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    return module.Model(module.Config(depth=18, width=8), NUM_PIECES), lambda model: model(images).square().sum()


# One line a model: how to make a small one, and how to get a number out of it.
SMALL_MODELS = {"transformer": small_transformer, "resnet": small_resnet}
# What a use of the model costs, and that as multiples of its parameters: a weight of a matrix is used once for a token,
# a weight of a convolution at many places of a picture.
COSTS = {
    "transformer": ({"source_length": 20.0, "target_length": 20.0, "num_pieces": NUM_PIECES}, 5, 10),
    "resnet": ({"height": 224, "width": 224, "num_classes": NUM_PIECES}, 100, 1000),
}


@pytest.mark.parametrize("kind", registry.ROOMS)
def test_every_file_is_an_entry_unless_it_begins_with_a_line(kind: str) -> None:
    folder = Path(konvoi.__file__).parent / registry.ROOMS[kind]
    files = {file.stem for file in folder.glob("*.py") if not file.stem.startswith("_")}
    assert files
    assert set(registry.names(kind)) == files


@pytest.mark.parametrize("kind", registry.ROOMS)
def test_every_entry_can_be_found_and_names_itself_in_its_config(kind: str) -> None:
    names = registry.names(kind)
    assert names
    for name in names:
        config = registry.find(kind, name).Config
        assert issubclass(config, Section)
        assert config.model_fields["name"].default == name


def test_a_name_that_does_not_exist_is_answered_with_a_near_one() -> None:
    with pytest.raises(UserError) as caught:
        registry.find("model", "transfomer")
    assert caught.value.problem == 'there is no model "transfomer", did you mean "transformer"?'
    assert "transformer" in caught.value.hint


def test_a_private_file_is_no_entry() -> None:
    with pytest.raises(UserError, match='there is no sync "_team"'):
        registry.find("sync", "_team")


def test_every_model_is_tried_here() -> None:
    assert MODELS
    assert set(MODELS) == set(SMALL_MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_knows_its_size_and_its_cost_without_being_built(name: str) -> None:
    module, config = registry.find("model", name), registry.find("model", name).Config()
    with torch.device("meta"):
        model = module.Model(config, NUM_PIECES)
    assert module.num_parameters(config, NUM_PIECES) == sum(p.numel() for p in model.parameters())
    use, least, most = COSTS[name]
    num_parameters = module.num_parameters(config, NUM_PIECES)
    assert least * num_parameters < module.flops(config, **use) < most * num_parameters


@pytest.mark.parametrize("name", MODELS)
def test_a_model_goes_forward_and_back_to_every_weight(name: str) -> None:
    torch.manual_seed(1)
    model, number_of = SMALL_MODELS[name]()
    torch.autograd.backward(number_of(model))
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), key


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_restored_by_its_state(name: str) -> None:
    torch.manual_seed(1)
    model, number_of = SMALL_MODELS[name]()
    torch.manual_seed(2)
    other, _ = SMALL_MODELS[name]()
    model.eval(), other.eval()
    assert number_of(model) != number_of(other)
    other.load_state_dict(model.state_dict())
    assert number_of(model) == number_of(other)


def test_there_is_a_sync_and_a_task() -> None:
    assert SYNCS and TASKS


def alone(name: str) -> Any:
    """A sync with its defaults, of one worker."""
    module = registry.find("sync", name)
    return module.Sync(module.Config(), Team(World()), Timeline())


def one_step(sync: Any) -> nn.Module:
    """Of a model whose weights begin at 0, in two micro-batches: the gradient is the sum of the inputs."""
    bare = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(bare.weight)
    model: nn.Module = sync.wrap(bare)
    sync.settle(lambda: None)
    for number, inputs in enumerate(([1.0, 2.0], [10.0, 20.0])):
        with sync.micro_step(model, is_last=number == 1):
            model(torch.tensor(inputs)).backward()
    with torch.no_grad():
        bare.weight -= bare.weight.grad
    sync.after_step(model, step=1)
    return bare


@pytest.mark.parametrize("name", SYNCS)
def test_a_sync_keeps_its_contract_on_one_worker(name: str) -> None:
    sync = alone(name)
    assert sync.num_averaged == 1
    assert sync.chosen.name in (name, "ddp")
    model = one_step(sync)
    # 1 + 10 and 2 + 20: alone, nothing is averaged
    assert model.weight.grad.tolist() == [[11.0, 22.0]]
    assert model.weight.tolist() == [[-11.0, -22.0]]
    assert sync.heard(1, [0.5]) == ""
    sync.finish(1)
    finished = model.weight.tolist()
    with sync.timeline("evaluation"), sync.shared():
        assert model.weight.tolist() == finished
        # Whoever wonders whether a worker hangs gives an evaluation more time.
        assert sync.timeline.phase == "evaluation"
    assert isinstance(sync.agreement_lag, int) and isinstance(sync.replicas_differ, bool)
    sync.close()


@pytest.mark.parametrize("name", SYNCS)
def test_a_sync_is_restored_by_what_a_checkpoint_holds(name: str) -> None:
    sync, other = alone(name), alone(name)
    one_step(sync)
    # As the files of a checkpoint: JSON, and tensors by name.
    state, tensors, own = json.loads(json.dumps(sync.state())), sync.tensors(), sync.own_tensors()
    other.load_state(state)
    other.load_tensors({key: tensor.clone() for key, tensor in tensors.items()})
    other.load_own({key: tensor.clone() for key, tensor in own.items()})
    other.wrap(nn.Linear(2, 1, bias=False))
    assert json.loads(json.dumps(other.state())) == state
    for before, after in ((tensors, other.tensors()), (own, other.own_tensors())):
        assert before.keys() == after.keys()
        assert all(torch.equal(tensor, after[key]) for key, tensor in before.items())
    sync.close(), other.close()


@pytest.mark.parametrize("name", SYNCS)
def test_a_sync_says_what_it_sends(name: str) -> None:
    module = registry.find("sync", name)
    sent = module.traffic(module.Config(), [(1000, 900), (100_000,)])
    per_step = [sent.bytes_per_step(num_workers) for num_workers in (1, 2, 3, 4)]
    assert per_step[0] == 0
    assert 0 < per_step[1] < per_step[2] < per_step[3] <= 1.5 * 4 * 1_000_000
    assert sent.every_steps >= 1 and sent.num_messages >= 1


@pytest.mark.parametrize("name", TASKS)
def test_a_task_has_all_that_the_loop_asks_for(name: str) -> None:
    module = registry.find("task", name)
    assert all(issubclass(getattr(module, table), Section) for table in ("Config", "Data", "Batching", "Evaluate"))
    assert issubclass(module.Evaluate, Evaluate)
    assert callable(module.prepare)
    assert isinstance(module.Task.num_per_epoch, property)
    for function in ("find", "carry", "check_same", "open_model", "num_outputs", "work"):
        assert callable(getattr(module, function))
    for method in ("build_model", "num_targets", "micro_batch", "amounts", "loss_sums", "evaluate"):
        assert callable(getattr(module.Task, method))
