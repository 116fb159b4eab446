"""What tests share: a home of their own, a small corpus, and one run trained on it."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from typer.testing import CliRunner

RECIPE = """# konvoi train tiny.toml
# For tests: seconds, no score to speak of.
[task]
source = "en"
target = "de"

[data]
set = "own"
train_source = "{source}"
train_target = "{target}"
vocabulary_size = 600
dev_pairs = 40
test_pairs = 16

[model]
encoder_layers = 1
decoder_layers = 1
width = 32
ffn_width = 64
heads = 2
dropout = 0.1

[batching]
max_tokens = 512

[schedule]
name = "constant"
learning_rate = 0.003

[train]
duration = "20 steps"
threads = 1
# A bundle is compared with it number by number, on processors with and without bf16 instructions.
precision = "fp32"

[evaluate]
every = "10 steps"
beam = 1
max_sentences = 8
samples = 2
"""

# A suite that passed passes again: the same examples every time. `make fuzz` looks for new ones.
settings.register_profile("suite", derandomize=True, database=None, deadline=None)
settings.load_profile("default" if "KONVOI_FUZZ" in os.environ else "suite")

# A shell that starts the suite in the background has Ctrl-C ignored, and all that a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

NUM_PAIRS = 2000
Konvoi = Callable[..., Any]


@pytest.fixture(scope="session", autouse=True)
def konvoi_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """No test reads or writes the user's own sets."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KONVOI_HOME", str(home))
        yield home


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The first pairs of the embedded set, as two files."""
    from konvoi.data.text import read_tsv_pairs
    from konvoi.fetch.sets import KNOWN_SETS

    folder = tmp_path_factory.mktemp("corpus")
    pairs = list(itertools.islice(read_tsv_pairs(KNOWN_SETS["demo-en-de"].embedded_path), NUM_PAIRS))
    for side, name in enumerate(("train.en", "train.de")):
        (folder / name).write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
    return folder / "train.en", folder / "train.de"


@pytest.fixture(scope="session")
def tiny_recipe(corpus: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "tiny.toml"
    path.write_text(RECIPE.format(source=corpus[0], target=corpus[1]), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def konvoi() -> Konvoi:
    """konvoi("runs", "--json") runs a command in this process: exit_code, stdout, stderr."""
    from konvoi.cli import app

    def run(*arguments: object, input: str | bytes | None = None) -> Any:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=input)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


@pytest.fixture(scope="session")
def training(konvoi: Konvoi, tiny_recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A finished run of 20 steps with checkpoints at 10 and 20, and what its training said. Copy it to change it."""
    path = tmp_path_factory.mktemp("runs") / "tiny"
    result = konvoi("train", tiny_recipe, "--run", path)
    assert result.exit_code == 0, result.stderr
    return path, result


@pytest.fixture(scope="session")
def trained_run(training: tuple[Path, Any]) -> Path:
    return training[0]


@pytest.fixture
def in_folder(tmp_path: Path) -> Iterator[Path]:
    """Inside an empty folder, where runs/ may be made."""
    before = Path.cwd()
    os.chdir(tmp_path)
    yield tmp_path
    os.chdir(before)
