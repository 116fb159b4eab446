"""What a bundle's folder holds.

bundle.json        what it is (Description), and every other file with its size and SHA-256
CARD.md            the same for people: scores, speed, data, licence, limits
requirements.txt   what it needs to run, pinned
vocabulary.model   of a translator (SentencePiece)
float32/ int8/ ... a translator's variants, as CTranslate2 reads them
float32.onnx ...   a classifier's variants
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, NonNegativeFloat, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from konvoi.config.sections import MAX_BEAM
from konvoi.errors import BundleError

FORMAT_VERSION = 1
DESCRIPTION_FILE = "bundle.json"
PRECISIONS = ("float32", "float16", "int8")
# Real ones have a few kB; a stranger's must not fill the memory.
MAX_DESCRIPTION_BYTES = 16_000_000


@dataclass(frozen=True)
class Variant:
    """One precision of the model, as it was measured when the bundle was made."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    path: str
    """Of its folder or file in the bundle."""
    num_bytes: int
    scores: dict[str, float] = field(default_factory=dict)
    """bleu, or accuracy_1 and accuracy_5, on the split that `measured_on` names."""
    seconds_per_item: float | None = None
    """One sentence or picture at a time, median."""
    items_per_second: float | None = None
    """Many at once."""


@dataclass(frozen=True)
class Description:
    __pydantic_config__ = ConfigDict(extra="forbid")

    task: Literal["translation", "classification"]
    name: str
    """The recipe's."""
    made_at: str
    konvoi: str
    """The version that made it."""
    variants: dict[str, Variant]
    """By precision: float32, float16, int8."""
    default: str
    """The variant that is used unless another is asked for."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What whoever opens it must know: a translator's languages, beam, length_penalty, normalise; a classifier's size,
    resize, classes. Of both: checkpoints, and left_out, why a precision that was asked for is not there."""
    scores: dict[str, Any] = field(default_factory=dict)
    """Of the trained model, by the run."""
    data: dict[str, Any] = field(default_factory=dict)
    """Set, licence, citation, sizes."""
    recipe: str = ""
    """As TOML."""
    measured_on: str = ""
    """Split and number of items, processor and threads."""
    format_version: int = FORMAT_VERSION


class TranslatorSettings(TypedDict):
    """A translator's part of Description.settings."""

    source: str
    target: str
    beam: Annotated[int, Field(ge=1, le=MAX_BEAM)]
    length_penalty: NonNegativeFloat
    normalise: NotRequired[dict[Literal["lowercase", "nfkc", "plain_punctuation"], bool]]
    """Keywords of data.clean.normalise()."""


@dataclass(frozen=True)
class Bundle:
    path: Path
    description: Description
    files: dict[str, tuple[int, str]]
    """By their place in the bundle: size in bytes, SHA-256."""
    _verified: set[str] = field(default_factory=set, compare=False, repr=False)

    def variant(self, name: str | None) -> tuple[str, Variant]:
        """The named one, else the default; its files are read whole, once, to see that they are as they were."""
        variants = self.description.variants
        name = name or self.description.default
        if name not in variants:
            raise BundleError(f'{self.path} has no "{name}"', hint=f"it has {', '.join(variants)}")
        if name not in self._verified:
            for file in _files_of(self, variants[name]):
                _check_content(self, file)
            self._verified.add(name)
        return name, variants[name]


def is_bundle(path: Path) -> bool:
    return (path / DESCRIPTION_FILE).is_file()


def open_bundle(path: Path) -> Bundle:
    """Every file is there and as it was when the bundle was made, and no other; nothing of it is executed.

    The files of a variant are only measured here: Bundle.variant() reads them, which takes seconds for the large ones.
    """
    content = _read_description(path)
    files = _checked(path, dict[str, tuple[int, str]], content.pop("files", None))
    bundle = Bundle(path, _checked(path, Description, content), files)
    if bundle.description.task == "translation":
        _checked(path, TranslatorSettings, bundle.description.settings)
    _check_variants(bundle)
    _check_places(bundle)
    in_variants = {file for variant in bundle.description.variants.values() for file in _files_of(bundle, variant)}
    for name in files.keys() - in_variants:
        _check_content(bundle, name)
    return bundle


def _read_description(path: Path) -> dict[str, Any]:
    if not is_bundle(path):
        is_run = (path / "recipe.toml").is_file()
        raise BundleError(
            f"{path} is no bundle: it has no {DESCRIPTION_FILE}",
            hint=f"konvoi export {path if is_run else 'RUN'} --to DIR makes one",
        )
    file = path / DESCRIPTION_FILE
    if file.stat().st_size > MAX_DESCRIPTION_BYTES:
        raise _damaged(path, DESCRIPTION_FILE, "is far too large")
    try:
        content = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        raise _damaged(path, DESCRIPTION_FILE, "is no JSON") from None
    if not isinstance(content, dict):
        raise _damaged(path, DESCRIPTION_FILE, "describes no bundle")
    if (version := content.get("format_version")) != FORMAT_VERSION:
        raise BundleError(
            f"{path} has format {version!r:.20}; this Konvoi reads {FORMAT_VERSION}",
            hint="use the Konvoi that made it (see its requirements.txt), or export the run again",
        )
    return content


def _checked(path: Path, kind: Any, value: object) -> Any:
    """The value as what it should be: no key too few, none too many."""
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise _damaged(path, DESCRIPTION_FILE, f"{place}: {first['msg']}" if place else first["msg"]) from None


def _check_variants(bundle: Bundle) -> None:
    description = bundle.description
    if description.default not in description.variants:
        raise _damaged(bundle.path, DESCRIPTION_FILE, f'has no variant "{description.default}", its default')
    for name, variant in description.variants.items():
        if not _files_of(bundle, variant):
            raise _damaged(bundle.path, DESCRIPTION_FILE, f"lists no file of the variant {name}")


def _check_places(bundle: Bundle) -> None:
    """All that is listed is there, inside, plain files of their size, and nothing else: engines read what they find."""
    for name, (num_bytes, _) in bundle.files.items():
        file = bundle.path / name
        if not is_inside(name) or _has_link(bundle.path, name):
            raise _damaged(bundle.path, name, "does not lie inside the bundle")
        if not file.is_file():
            raise _damaged(bundle.path, name, "is missing")
        if file.stat().st_size != num_bytes:
            raise _damaged(bundle.path, name, f"has {file.stat().st_size:,} bytes, not {num_bytes:,}")
    for name in _found(bundle.path) - bundle.files.keys() - {DESCRIPTION_FILE}:
        raise BundleError(f"{bundle.path / name} is no part of the bundle", hint="take it out")


def _found(path: Path) -> set[str]:
    """Hidden files are passed over: desktops leave them everywhere, and no engine reads them."""
    names = (file.relative_to(path) for file in path.rglob("*") if file.is_symlink() or not file.is_dir())
    return {name.as_posix() for name in names if not any(part.startswith(".") for part in name.parts)}


def _has_link(path: Path, name: str) -> bool:
    parts = PurePosixPath(name).parts
    return any(path.joinpath(*parts[: count + 1]).is_symlink() for count in range(len(parts)))


def _files_of(bundle: Bundle, variant: Variant) -> list[str]:
    return [name for name in bundle.files if name == variant.path or name.startswith(f"{variant.path}/")]


def _check_content(bundle: Bundle, name: str) -> None:
    if sha256_of(bundle.path / name) != bundle.files[name][1]:
        raise _damaged(bundle.path, name, "is not as it was when the bundle was made")


def _damaged(path: Path, name: str, problem: str) -> BundleError:
    return BundleError(f"{path / name} {problem}", hint="copy the bundle again, or export the run again")


def write_description(path: Path, description: Description) -> Bundle:
    """Last of all: a folder without bundle.json is no bundle."""
    files = {
        file.relative_to(path).as_posix(): (file.stat().st_size, sha256_of(file))
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name != DESCRIPTION_FILE
    }
    text = json.dumps({**asdict(description), "files": files}, indent=2, ensure_ascii=False)
    (path / DESCRIPTION_FILE).write_text(text + "\n", encoding="utf-8")
    return Bundle(path, description, files)


def sha256_of(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts
