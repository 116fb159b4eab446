"""What somebody else made executes nothing, leads nowhere else and shows itself as text: SECURITY.md, line by line."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.bundle.test_classifier import made_bundle, mean_colour
from tests.faults.things import PNG_BOMB, sign

from konvoi.bundle.classifier import open_classifier
from konvoi.config.recipe import check, read_toml, shipped
from konvoi.data.subwords import Subwords
from konvoi.data.tokens import TokenFile
from konvoi.engine.checkpoint import Checkpoints
from konvoi.errors import BundleError, DataError, RecipeError, UserError
from konvoi.images.index import Entries

ROOT = Path(__file__).parents[2]
Konvoi = Callable[..., Any]
SCRIPT = "<script>alert('x')</script>"
# What Python tells of itself when somebody starts something.
STARTS = ("pickle.find_class", "os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork")


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return Path.touch, (self.trace,)


@pytest.fixture
def bomb(tmp_path: Path) -> Iterator[bytes]:
    trace = tmp_path / "executed"
    content = pickle.dumps(Bomb(trace))
    pickle.loads(content)
    assert trace.exists(), "the bomb itself must work"
    trace.unlink()
    yield content
    assert not trace.exists()


@pytest.fixture
def run(trained_run: Path, tmp_path: Path) -> Path:
    path = tmp_path / "run"
    shutil.copytree(trained_run, path)
    return path


_heard: list[list[str]] = []


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if _heard and event in STARTS:
        _heard[-1].append(f"{event} {str(arguments)[:80]}")


@contextmanager
def heard() -> Iterator[list[str]]:
    """What was started meanwhile; a hook cannot be taken away again, so it is told when to listen."""
    if not hasattr(sys, "_konvoi_hook"):
        sys.addaudithook(_hear)
        sys._konvoi_hook = True  # type: ignore[attr-defined]
    _heard.append([])
    try:
        yield _heard[-1]
    finally:
        _heard.clear()


def test_a_pickle_in_place_of_weights_is_refused_and_not_run(konvoi: Konvoi, run: Path, bomb: bytes) -> None:
    for checkpoint in run.glob("checkpoints/step-*"):
        (checkpoint / "model.safetensors").write_bytes(bomb)
        sign(checkpoint)
    for command in (("eval", run), ("translate", run, "Hello.")):
        result = konvoi(*command)
        assert result.exit_code == 2
        assert "holds no tensors" in result.stderr


@pytest.mark.parametrize(
    "name", ["os", "antigravity", "..os", "konvoi.cli", "__init__", "_team", "translation.os", "/x"]
)
@pytest.mark.parametrize("table", ["task", "model", "sync"])
def test_a_recipe_imports_nothing_but_our_own_modules(table: str, name: str) -> None:
    tables = read_toml(shipped()["demo"])
    tables[table] = {**tables.get(table, {}), "name": name}
    before = set(sys.modules)
    with pytest.raises(RecipeError, match=f"there is no {table}"):
        check(tables)
    assert all(module.partition(".")[0] != "antigravity" for module in set(sys.modules) - before)


def test_a_vocabulary_that_is_a_pickle_is_refused_and_not_run(tmp_path: Path, bomb: bytes) -> None:
    (tmp_path / "v.model").write_bytes(bomb)
    with pytest.raises(DataError):
        Subwords.load(tmp_path / "v.model")


def test_arrays_of_a_prepared_set_that_are_pickles_are_refused_and_not_run(tmp_path: Path, bomb: bytes) -> None:
    np.save(tmp_path / "train.npy", np.array([Bomb(tmp_path / "executed")], dtype=object), allow_pickle=True)
    shutil.copy(tmp_path / "train.npy", tmp_path / "train.lengths.npy")
    (tmp_path / "train.tsv").write_bytes(bomb)
    (tmp_path / "train.tokens").write_bytes(bomb)
    for reader in (TokenFile, Entries):
        with pytest.raises(DataError):
            reader(tmp_path / "train")


@pytest.mark.parametrize("words", [("diagnose",), ("report", "--format", "json"), ("watch", "--once")], ids=" ".join)
def test_looking_at_a_strangers_run_starts_nothing(
    konvoi: Konvoi, run: Path, bomb: bytes, words: tuple[str, ...]
) -> None:
    for name in ("sitecustomize.py", "conftest.py", "model.pkl", "events/rank1.jsonl", "hosts/h.jsonl", "summary.json"):
        (run / name).write_bytes(bomb)
    command, *options = words
    with heard() as starts:
        assert konvoi(command, run, *options).exit_code == 0
    assert starts == []


def test_what_is_started_would_be_heard(bomb: bytes, tmp_path: Path) -> None:
    with heard() as starts:
        pickle.loads(bomb)
    (tmp_path / "executed").unlink()
    assert [start.split()[0] for start in starts] == ["pickle.find_class"] * len(starts) and starts


@pytest.mark.parametrize("name", ["../../outside", "/etc", "step-00000010/../../outside", ".", ""])
def test_the_index_of_checkpoints_names_nothing_outside(run: Path, name: str) -> None:
    shutil.copytree(run / "checkpoints" / "step-00000010", run.parent / "outside")
    index = {"last": [name], "best": [{"checkpoint": name, "metric": "bleu", "value": 1.0}]}
    (run / "checkpoints" / "index.json").write_text(json.dumps(index))
    for word in ("best", "last", "average"):
        with pytest.raises(UserError, match="names no checkpoints"):
            Checkpoints(run / "checkpoints").choose(word)


def elsewhere(place: str) -> bytes:
    """The network of colours, with a factor that lies in another file."""
    model = mean_colour(0.1)
    (factor,) = (tensor for tensor in model.graph.initializer if tensor.name == "factor")
    factor.CopyFrom(helper.make_tensor("factor", TensorProto.FLOAT, [1], b"\0\0\0\0", raw=True))
    factor.ClearField("raw_data")
    factor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": place, "offset": "0", "length": "4"}.items():
        entry = factor.external_data.add()
        entry.key, entry.value = key, value
    assert isinstance(model, onnx.ModelProto)
    content: bytes = model.SerializeToString()
    return content


@pytest.mark.parametrize("place", ["../secret", "{folder}/secret", "/etc/hostname"])
def test_weights_of_an_onnx_file_that_lie_elsewhere_are_not_read(tmp_path: Path, place: str) -> None:
    (tmp_path / "secret").write_bytes(b"\0\0\x80?")
    bundle = made_bundle(tmp_path / "bundle", {"float32": elsewhere(place.format(folder=tmp_path))})
    with pytest.raises(BundleError, match="can't be opened"):
        open_classifier(bundle)


def test_a_picture_that_would_fill_the_memory_is_not_decoded(konvoi: Konvoi, tmp_path: Path) -> None:
    """20,000 x 20,000 pixels in 200 bytes."""
    assert len(PNG_BOMB) < 200
    made_bundle(tmp_path / "bundle", {"float32": mean_colour(0.1).SerializeToString()})
    (tmp_path / "bomb.png").write_bytes(PNG_BOMB)
    result = konvoi("classify", tmp_path / "bundle", tmp_path / "bomb.png")
    assert result.exit_code == 2
    assert "bomb.png" in result.stderr


def test_markup_in_a_run_is_text_in_its_report(konvoi: Konvoi, run: Path, tmp_path: Path) -> None:
    named = run.rename(tmp_path / "<img src=x onerror=alert(1)>")
    with (named / "recipe.toml").open("a") as recipe:
        recipe.write(f'\n["{SCRIPT}"]\n"{SCRIPT}" = "{SCRIPT}"\n')
    for file in ("summary.json", "environment.json", "data.json"):
        content = json.loads((named / file).read_text())
        marked = {**content, SCRIPT: SCRIPT, "device": SCRIPT, "set": SCRIPT, "citation": SCRIPT, "licence": SCRIPT}
        (named / file).write_text(json.dumps(marked))
    sample = {"source": SCRIPT, "reference": SCRIPT, "translation": SCRIPT}
    event = {"kind": "evaluation", "step": 20, "loss": 1.0, "bleu": 1.0, "samples": [sample], "host": SCRIPT, SCRIPT: 1}
    with (named / "events" / "rank0.jsonl").open("a") as events:
        events.write(json.dumps(event) + "\n")
    (named / "hosts" / "<b>.jsonl").write_text(json.dumps({"kind": "host", "host": SCRIPT, "cores": 2}) + "\n")
    konvoi("report", named, "-o", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "alert(&#" in page or "&lt;script&gt;alert" in page
    assert SCRIPT not in page and "<img src=x" not in page and "<b>" not in page
    assert konvoi("compare", named, named, "-o", tmp_path / "both.html").exit_code == 0
    assert SCRIPT not in (tmp_path / "both.html").read_text()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7"])
def test_other_machines_are_served_only_with_a_token(konvoi: Konvoi, tmp_path: Path, host: str) -> None:
    made_bundle(tmp_path / "bundle", {"float32": mean_colour(0.1).SerializeToString()})
    result = konvoi("serve", tmp_path / "bundle", "--host", host, "--port", "0")
    assert result.exit_code == 2
    assert "needs a token" in result.stderr


def test_every_test_that_the_promises_name_exists() -> None:
    promises = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", promises)
    assert len(named) > 20
    for file, test in named:
        assert f"def {test}" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{test}"
