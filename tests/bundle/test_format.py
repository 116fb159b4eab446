"""A bundle opens as it was made; a damaged one, or a stranger's with tricks, is refused, and nothing of it runs."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from konvoi.bundle.format import (
    DESCRIPTION_FILE,
    MAX_DESCRIPTION_BYTES,
    Bundle,
    Description,
    Variant,
    open_bundle,
    write_description,
)
from konvoi.errors import BundleError

SETTINGS = {"source": "en", "target": "de", "beam": 4, "length_penalty": 0.6, "normalise": {"nfkc": True}, "more": 1}


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    """Two variants, one a folder and one a file."""
    path = tmp_path / "made"
    (path / "int8").mkdir(parents=True)
    (path / "int8" / "model.bin").write_bytes(b"12345678")
    (path / "float32.onnx").write_bytes(b"0" * 32)
    (path / "CARD.md").write_text("# It\n")
    variants = {"int8": Variant("int8", 8, {"bleu": 30.5}, 0.01, 100.0), "float32": Variant("float32.onnx", 32)}
    description = Description("translation", "demo", "2026-11-16", "0.1.0", variants, "int8", SETTINGS)
    return write_description(path, description)


def change(bundle: Bundle, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Edits bundle.json."""
    file = bundle.path / DESCRIPTION_FILE
    content = json.loads(file.read_bytes())
    edit(content)
    file.write_text(json.dumps(content))


def refused(path: Path) -> str:
    with pytest.raises(BundleError) as caught:
        open_bundle(path)
    assert caught.value.hint
    return caught.value.problem


def test_what_is_written_is_read_back(bundle):
    opened = open_bundle(bundle.path)
    assert opened == bundle
    assert opened.variant(None) == ("int8", bundle.description.variants["int8"])
    assert opened.variant("float32") == ("float32", bundle.description.variants["float32"])
    assert opened.files.keys() == {"CARD.md", "float32.onnx", "int8/model.bin"}


def test_a_variant_that_it_has_not_is_named_with_those_that_it_has(bundle):
    with pytest.raises(BundleError, match='has no "float16"') as caught:
        open_bundle(bundle.path).variant("float16")
    assert caught.value.hint == "it has int8, float32"


def test_a_folder_without_description_is_no_bundle(tmp_path):
    assert "is no bundle" in refused(tmp_path)
    assert "is no bundle" in refused(tmp_path / "nowhere")


def test_a_run_is_told_how_to_become_one(tmp_path):
    (tmp_path / "recipe.toml").touch()
    with pytest.raises(BundleError) as caught:
        open_bundle(tmp_path)
    assert caught.value.hint == f"konvoi export {tmp_path} --to DIR makes one"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"1", b"\xff\xfe", b"[" * 100_000], ids=repr)
def test_a_description_that_is_none(bundle, content):
    (bundle.path / DESCRIPTION_FILE).write_bytes(content)
    assert DESCRIPTION_FILE in refused(bundle.path)


def test_a_description_that_would_fill_the_memory_is_not_read(bundle):
    with (bundle.path / DESCRIPTION_FILE).open("r+b") as file:
        file.truncate(MAX_DESCRIPTION_BYTES + 1)
    assert "far too large" in refused(bundle.path)


@pytest.mark.parametrize("version", [0, 2, "1", None, {}])
def test_another_version_is_refused(bundle, version):
    change(bundle, lambda content: content.update(format_version=version))
    assert "this Konvoi reads 1" in refused(bundle.path)


EDITS = {
    "task: ": lambda content: content.pop("task"),
    "task: Input should be": lambda content: content.update(task="os.system"),
    "surprise: ": lambda content: content.update(surprise=1),
    "variants.int8.path: ": lambda content: content["variants"]["int8"].pop("path"),
    "variants.int8.extra: ": lambda content: content["variants"]["int8"].update(extra=1),
    "settings: ": lambda content: content.update(settings=[]),
    "source: ": lambda content: content["settings"].pop("source"),
    "beam: ": lambda content: content["settings"].update(beam=10**9),
    "normalise.": lambda content: content["settings"].update(normalise={"command": True}),
    "should be a valid dictionary": lambda content: content.pop("files"),
    "CARD.md": lambda content: content["files"].update({"CARD.md": ["many", "00"]}),
    'no variant "float16"': lambda content: content.update(default="float16"),
    "no file of the variant int8": lambda content: content["files"].pop("int8/model.bin"),
    "no file of the variant float32": lambda content: content["variants"]["float32"].update(path="../float32.onnx"),
}


@pytest.mark.parametrize("problem", EDITS)
def test_a_key_that_is_missing_wrong_or_unknown_is_named(bundle, problem):
    change(bundle, EDITS[problem])
    found = refused(bundle.path)
    assert DESCRIPTION_FILE in found
    assert problem in found


def test_a_missing_file_is_named(bundle):
    (bundle.path / "CARD.md").unlink()
    assert refused(bundle.path) == f"{bundle.path / 'CARD.md'} is missing"


def test_a_truncated_file_is_named(bundle):
    (bundle.path / "int8" / "model.bin").write_bytes(b"1234")
    assert refused(bundle.path) == f"{bundle.path / 'int8/model.bin'} has 4 bytes, not 8"


def test_a_changed_byte_is_found_when_the_file_is_used(bundle):
    (bundle.path / "int8" / "model.bin").write_bytes(b"12345679")
    opened = open_bundle(bundle.path)
    assert opened.variant("float32")
    with pytest.raises(BundleError, match=r"int8/model\.bin is not as it was"):
        opened.variant("int8")


def test_a_changed_byte_of_what_all_variants_share_is_found_at_once(bundle):
    (bundle.path / "CARD.md").write_text("# At\n")
    assert "CARD.md is not as it was" in refused(bundle.path)


def test_a_file_that_is_not_listed_is_refused_since_an_engine_might_read_it(bundle):
    (bundle.path / "int8" / "vmap.txt").touch()
    assert refused(bundle.path) == f"{bundle.path / 'int8/vmap.txt'} is no part of the bundle"


def test_what_a_desktop_leaves_behind_does_no_harm(bundle):
    (bundle.path / "int8" / ".DS_Store").touch()
    assert open_bundle(bundle.path) == bundle


@pytest.mark.parametrize("name", ["../outside", "int8/../../outside", "/etc/hostname"])
def test_a_listed_file_outside_is_refused(bundle, name):
    (bundle.path.parent / "outside").write_bytes(b"secret")
    change(bundle, lambda content: content["files"].update({name: [6, "0" * 64]}))
    assert "does not lie inside the bundle" in refused(bundle.path)


@pytest.mark.parametrize("place", ["CARD.md", "int8"])
def test_a_link_is_refused_even_to_the_same_content(bundle, place):
    outside = bundle.path.parent / "outside"
    (bundle.path / place).rename(outside)
    (bundle.path / place).symlink_to(outside)
    assert "does not lie inside the bundle" in refused(bundle.path)


def test_nothing_in_a_strangers_bundle_is_executed(bundle, tmp_path):
    class Bomb:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "executed",))

    for name in ("sitecustomize.py", "model.pkl"):
        (bundle.path / name).write_bytes(pickle.dumps(Bomb()))
    write_description(bundle.path, bundle.description)
    open_bundle(bundle.path).variant(None)
    assert not (tmp_path / "executed").exists()
