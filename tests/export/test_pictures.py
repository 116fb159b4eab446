"""A classifier leaves its run: the same answers in float32, nearly the same in int8; what fails stays behind."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from PIL import Image

import konvoi as package
from konvoi.bundle.classifier import OnnxClassifier, PictureSettings, open_classifier
from konvoi.bundle.format import Bundle, open_bundle
from konvoi.engine.trained import load_trained
from konvoi.errors import BundleError, MachineError
from konvoi.evaluate.accuracy import Confusion
from konvoi.export.make import _exported
from konvoi.export.onnx_graph import FromBytes, write_onnx
from konvoi.export.pictures import Compared, Pictures, compare, export_pictures, judge, settings_of
from konvoi.models.resnet import Config, Model
from konvoi.run_directory import RunDirectory
from konvoi.stages import silent
from konvoi.tasks.classification import prepare

COLOURS = {"blue": (90, 100, 140), "green": (90, 130, 100), "red": (140, 100, 90)}
NUM_TRAIN, NUM_VAL = 24, 8

RECIPE = """# konvoi train colours.toml
[task]
name = "classification"

[data]
set = "image-folder"
folder = "{folder}"

[model]
name = "resnet"
depth = 18
stem = "small"
width = 8

[batching]
images = 16
size = 16
processes = 0

[optim]
name = "sgd"

[schedule]
name = "one-cycle"
learning_rate = 0.1

[train]
duration = "30 steps"
threads = 1
precision = "fp32"

[evaluate]
every = "30 steps"
"""


@pytest.fixture(scope="module")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noisy pictures of three colours, 20 x 24 pixels."""
    folder, draw = tmp_path_factory.mktemp("colours"), np.random.default_rng(1)
    for split, count in (("train", NUM_TRAIN), ("val", NUM_VAL)):
        for name, colour in COLOURS.items():
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = np.clip(draw.normal(colour, 30, (20, 24, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def run(konvoi: Any, colours: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "colours.toml").write_text(RECIPE.format(folder=colours))
    result = konvoi("train", folder / "colours.toml", "--run", folder / "colours")
    assert result.exit_code == 0, result.stderr
    return folder / "colours"


@pytest.fixture(scope="module")
def bundle(konvoi: Any, run: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    path = tmp_path_factory.mktemp("bundles") / "colours"
    result = konvoi("export", run, "--to", path)
    assert result.exit_code == 0, result.stderr
    return open_bundle(path)


def test_both_precisions_are_there_as_good_as_the_run_and_measured(konvoi, run, bundle):
    expected = json.loads(konvoi("eval", run, "--json").stdout)
    assert list(bundle.description.variants) == ["float32", "int8"]
    assert f"val, {3 * NUM_VAL} pictures" in bundle.description.measured_on
    for name, variant in bundle.description.variants.items():
        # one picture of 24 would be 4.2 points
        assert variant.scores["accuracy_1"] == pytest.approx(expected["accuracy_1"]), name
        assert variant.scores["accuracy_5"] == 100.0
        assert variant.num_bytes == (bundle.path / variant.path).stat().st_size
        assert variant.seconds_per_item > 0 and variant.items_per_second > 0
    assert bundle.description.settings["max_logit_difference"] < 1e-4


def test_run_and_bundle_give_the_same_answers(konvoi, run, bundle, colours):
    pictures = [colours / "val" / name / f"{number}.png" for name in COLOURS for number in range(3)]
    from_run, from_bundle = (
        json.loads(konvoi("classify", path, *pictures, *options, "--json").stdout)
        for path, options in ((run, ()), (bundle.path, ("--variant", "float32")))
    )
    assert len(from_run) == 9
    for ours, theirs in zip(from_run, from_bundle, strict=True):
        assert ours["image"] == theirs["image"]
        assert [found["class"] for found in ours["classes"]] == [found["class"] for found in theirs["classes"]]
        for one, other in zip(ours["classes"], theirs["classes"], strict=True):
            assert one["probability"] == pytest.approx(other["probability"], abs=1e-5)


@pytest.mark.parametrize("variant", ["float32", "int8"])
def test_a_picture_is_seen_alike_alone_and_among_others(bundle: Bundle, variant: str) -> None:
    classifier = open_classifier(bundle, variant)
    pixels_NHWC = np.random.default_rng(3).integers(0, 256, (7, 16, 16, 3), dtype=np.uint8)
    alone = np.concatenate([classifier.logits(pixels_NHWC[number : number + 1]) for number in range(7)])
    assert np.allclose(alone, classifier.logits(pixels_NHWC), atol=1e-4)


def test_the_graph_is_made_of_plain_operations(bundle: Bundle) -> None:
    graph = onnx.load(bundle.path / "float32.onnx").graph
    kinds = [node.op_type for node in graph.node]
    # the stem, 8 blocks of two, and three on the way around a block that halves the picture
    assert kinds.count("Conv") == 1 + 16 + 3
    assert set(kinds) <= {"Cast", "Transpose", "Sub", "Mul", "Conv", "Relu", "Add", "ReduceMean", "Gemm"}


def test_int8_has_weights_of_7_bits_and_less_than_half_the_size(bundle: Bundle) -> None:
    """With 8 bits, processors without VNNI add up what does not fit, and nobody is told."""
    graph = onnx.load(bundle.path / "int8.onnx").graph
    weights = [numpy_helper.to_array(one) for one in graph.initializer if one.data_type == onnx.TensorProto.INT8]
    weights = [weight for weight in weights if weight.ndim > 1]
    # all but the stem and the linear layer
    assert len(weights) == 16 + 3
    assert max(np.abs(weight.astype(int)).max() for weight in weights) == 64
    sizes = {name: variant.num_bytes for name, variant in bundle.description.variants.items()}
    assert sizes["int8"] < sizes["float32"] / 2


def test_nothing_tells_where_it_was_made(bundle: Bundle, run: Path) -> None:
    for file in bundle.path.glob("*.onnx"):
        content = file.read_bytes()
        for trace in (str(Path(package.__file__).parent), str(run.parent), "stack_trace"):
            assert trace.encode() not in content, (file.name, trace)


@pytest.mark.parametrize(
    ("config", "size"),
    [
        # 36 / 2 / 2 = 9, which halves to 5: the mean at the edge is of half a window
        (Config(depth=50, stem="deep", shortcut="average", width=8, sync_batch_norm=True), 36),
        (Config(depth=18, stem="imagenet", width=8), 45),
    ],
    ids=["resnet50 of all kinds", "resnet18 as in the paper"],
)
def test_every_kind_of_model_gives_the_same_logits(tmp_path: Path, config: Config, size: int) -> None:
    torch.manual_seed(1)
    model = Model(config, 7)
    pixels = torch.randint(0, 256, (5, size, size, 3), dtype=torch.uint8)
    with torch.no_grad():
        FromBytes(model.train())(pixels)  # so that batch norms have something to remember
        expected_NC = FromBytes(model.eval())(pixels).numpy()
    write_onnx(model, size, tmp_path / "float32.onnx")
    settings = PictureSettings(size=size, resize=size, classes=tuple("abcdefg"))
    found_NC = OnnxClassifier(tmp_path / "float32.onnx", "", settings).logits(pixels.numpy())
    assert np.abs(found_NC - expected_NC).max() <= 1e-4 * np.abs(expected_NC).max()


def scored(num_right: int, num_wrong: int) -> Confusion:
    confusion = Confusion(2)
    confusion.counts[0] = num_right, num_wrong
    return confusion


def test_half_a_point_may_be_lost_and_no_more() -> None:
    # 900 of 1,000 are 90 %: 895 are half a point less
    for num_right, expected in ((895, {}), (894, {"int8": "loses 0.60 points of Acc@1 90.00"}), (950, {})):
        confusions = {"float32": scored(900, 100), "int8": scored(num_right, 1000 - num_right)}
        assert judge(Compared(scored(900, 100), confusions, difference=1e-6, largest=5.0)) == expected


@pytest.mark.parametrize("difference", [0.006, float("nan"), float("inf")])
def test_a_float32_that_differs_is_an_error(difference: float) -> None:
    # a thousandth of 5
    judge(Compared(scored(9, 1), {"float32": scored(9, 1)}, 0.005, largest=5.0))
    with pytest.raises(BundleError, match="differs from the trained one"):
        judge(Compared(scored(9, 1), {"float32": scored(9, 1)}, difference, largest=5.0))


@pytest.mark.parametrize("change", [0.1, float("nan")], ids=["a small change", "a run that diverged"])
def test_one_changed_weight_is_seen(bundle: Bundle, run: Path, change: float) -> None:
    trained = load_trained(RunDirectory.open(run))
    pictures = Pictures(prepare(trained.recipe), settings_of(trained))
    classifiers = {"float32": open_classifier(bundle, "float32")}
    assert judge(compare(trained.model, classifiers, pictures, "val")) == {}
    with torch.no_grad():
        trained.model.fc.bias[1] += change  # type: ignore[index, operator, union-attr]
    with pytest.raises(BundleError, match="differs from the trained one"):
        judge(compare(trained.model, classifiers, pictures, "val"))


def test_what_was_not_asked_for_is_not_there_and_what_can_not_be_is_said(run: Path, tmp_path: Path) -> None:
    variants, settings = export_pictures(load_trained(RunDirectory.open(run)), tmp_path, ["int8", "float16"])
    assert list(variants) == ["int8"]
    assert [path.name for path in tmp_path.iterdir()] == ["int8.onnx"]
    assert settings["left_out"] == {"float16": "is not for pictures"}


def test_without_onnx_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    for module in ("pictures", "onnx_graph"):
        monkeypatch.delitem(sys.modules, f"konvoi.export.{module}")
    with pytest.raises(MachineError, match="needs the package onnx") as told:
        _exported("classification", None, tmp_path, [], None, silent)  # type: ignore[arg-type]
    assert "konvoi[export]" in told.value.hint
