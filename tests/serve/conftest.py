"""Real models, small ones, behind the real app."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from PIL import Image
from starlette.testclient import TestClient

from konvoi.bundle.interfaces import Classifier, Translator
from konvoi.serve.app import create_app

ADDRESS = "http://127.0.0.1"
# Only against a hang.
PATIENCE_SECONDS = 240


def picture_of(brightness: int, side: int = 20) -> bytes:
    """A PNG file of one grey."""
    file = io.BytesIO()
    Image.fromarray(np.full((side, side), brightness, np.uint8)).save(file, "png")
    return file.getvalue()


@pytest.fixture(scope="session")
def image_run(konvoi: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tells dark from bright, or would after more steps."""
    folder = tmp_path_factory.mktemp("grey")
    for split, name, brightness in (
        ("train", "bright", 200),
        ("train", "dark", 50),
        ("val", "bright", 210),
        ("val", "dark", 40),
    ):
        (folder / split / name).mkdir(parents=True)
        for number in range(8):
            (folder / split / name / f"{number}.png").write_bytes(picture_of(brightness + number))
    tables = {
        "task": {"name": "classification"},
        "data": {"set": "image-folder", "folder": str(folder)},
        "model": {"name": "resnet", "depth": 18, "stem": "small", "width": 8},
        "batching": {"images": 8, "size": 16, "processes": 0},
        "schedule": {"name": "constant", "learning_rate": 0.01},
        "train": {"duration": "4 steps", "threads": 1},
    }
    (folder / "grey.toml").write_text("# konvoi train grey.toml\n" + tomli_w.dumps(tables))
    result = konvoi("train", folder / "grey.toml", "--run", folder / "run")
    assert result.exit_code == 0, result.stderr
    return folder / "run"


@pytest.fixture(scope="session")
def bundle(konvoi: Callable[..., Any], trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "tiny"
    result = konvoi("export", trained_run, "--to", path, "--precision", "float32")
    assert result.exit_code == 0, result.stderr
    return path


@pytest.fixture(scope="session")
def translator(trained_run: Path) -> Translator:
    from konvoi.export.run_translator import open_run_translator

    return open_run_translator(trained_run)


@pytest.fixture(scope="session")
def classifier(image_run: Path) -> Classifier:
    from konvoi.export.run_classifier import open_run_classifier

    return open_run_classifier(image_run)


@pytest.fixture
def client(translator: Translator, classifier: Classifier) -> Iterator[TestClient]:
    with TestClient(create_app([translator], [classifier]), ADDRESS) as client:
        yield client


Started = Callable[..., AbstractContextManager[tuple[str, subprocess.Popen[str]]]]


@pytest.fixture(scope="session")
def started() -> Started:
    """started(run, port=0) is konvoi serve in a process of its own: its address, and the process."""

    @contextlib.contextmanager
    def start(*paths: Path, **settings: Any) -> Iterator[tuple[str, subprocess.Popen[str]]]:
        options = [word for key, value in {"port": 0, **settings}.items() for word in (f"--{key}", str(value))]
        process = subprocess.Popen(
            [sys.executable, "-m", "konvoi", "serve", *map(str, paths), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        try:
            assert process.stdout
            found = re.search(r"http://\S+:\d+", process.stdout.readline())
            assert found, process.communicate()[1]
            yield found[0], process
        finally:
            process.kill()
            process.communicate(timeout=PATIENCE_SECONDS)

    return start
