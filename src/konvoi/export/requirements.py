"""What a bundle needs on another machine: everything pinned, torch not among it."""

from __future__ import annotations

from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from konvoi import __version__

# What the commands and the service import on the way to a bundle's answer.
COMMON = (
    "fastapi",
    "numpy",
    "pillow",
    "prometheus-client",
    "psutil",
    "pydantic",
    "python-multipart",
    "rich",
    "tomli-w",
    "typer",
    "uvicorn",
)
OF_TASK = {
    "translation": ("ctranslate2", "sentencepiece"),
    "classification": ("onnxruntime", "opencv-python-headless", "sentencepiece", "simplejpeg"),
}


def requirements(task: str) -> str:
    """For pip install --no-deps -r: konvoi's own dependencies include torch, which a bundle can do without."""
    pinned = sorted(f"{name}=={metadata.version(name)}" for name in _with_theirs((*COMMON, *OF_TASK[task])))
    head = "# pip install --no-deps -r requirements.txt (without --no-deps torch would come too)"
    return "\n".join([head, f"konvoi=={__version__}", *pinned]) + "\n"


def _with_theirs(names: tuple[str, ...]) -> set[str]:
    """The packages, what they require, what that requires..."""
    found: set[str] = set()
    new = set(names)
    while new:
        found |= new
        required = (Requirement(text) for name in new for text in metadata.requires(name) or [])
        wanted = [one.name for one in required if one.marker is None or one.marker.evaluate({"extra": ""})]
        new = {str(canonicalize_name(name)) for name in wanted} - found
    return found
