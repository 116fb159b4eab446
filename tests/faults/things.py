"""Bad archives, pictures, checkpoints: things that take more than a line to make."""

from __future__ import annotations

import io
import json
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

from PIL import Image
from tests.bundle.test_classifier import made_bundle
from tests.faults.place import Place, Put, write

from konvoi.bundle.format import sha256_of


def checkpoint_of_another_model(run: Path) -> None:
    """Whole, with right checksums, but of one tensor that this model has not."""
    import torch
    from safetensors.torch import save_file

    folder = run / "checkpoints" / "step-00000020"
    save_file({"weight": torch.zeros(2)}, folder / "model.safetensors")
    sign(folder)


def sign(checkpoint: Path) -> None:
    """Makes its checksums right again, as a stranger would."""
    names = [file for file in checkpoint.iterdir() if file.name != "checksums.json"]
    (checkpoint / "checksums.json").write_text(json.dumps({file.name: sha256_of(file) for file in names}))


def linked(name: str) -> object:
    def spoil(path: Path) -> None:
        outside = path.parent / "outside"
        (path / name).rename(outside)
        (path / name).symlink_to(outside)

    return spoil


def some_lines(source: bytes, target: bytes) -> Put:
    def put(place: Place) -> None:
        write(place.folder / "a.en", source)
        write(place.folder / "a.de", target)

    return put


def trained_elsewhere(model: bytes) -> Put:
    """colours/, a bundle whose model is anything, but as it was when the bundle was made."""
    return lambda place: void(made_bundle(place.folder / "colours", {"float32": model}))


def void(value: object) -> None:
    """For a lambda that returns nothing."""


def whole_picture(size: tuple[int, int] = (16, 16)) -> bytes:
    stream = io.BytesIO()
    Image.radial_gradient("L").resize(size).convert("RGB").save(stream, "PNG")
    return stream.getvalue()


def cut_picture() -> bytes:
    content = whole_picture()
    return content[: len(content) // 2]


def _png(width: int, height: int, pixels: bytes) -> bytes:
    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")


def empty_picture() -> bytes:
    return _png(0, 0, b"")


PNG_BOMB = _png(20_000, 20_000, bytes(1000))


def picture_folder(content: bytes) -> Put:
    """taken/train/cat/0.jpg and its like."""

    def put(place: Place) -> None:
        for number in range(3):
            for split in ("train", "val"):
                for name in ("cat", "dog"):
                    write(place.folder / "taken" / split / name / f"{number}.png", content)

    return put


pictures = picture_folder(whole_picture())


def _zip(**members: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


def _tar_with_link() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        entry = tarfile.TarInfo("deu.txt")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(entry)
    return stream.getvalue()


def _zip_with_link() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        entry = zipfile.ZipInfo("deu.txt")
        entry.create_system, entry.external_attr = 3, 0o120777 << 16
        archive.writestr(entry, "/etc/passwd")
    return stream.getvalue()


_WHOLE = _zip(**{"deu.txt": b"Go.\tGeh.\n" * 100})
ARCHIVES = {
    "empty": b"",
    "text": b"no archive\n",
    "cut": _WHOLE[: len(_WHOLE) // 2],
    "members that lead out of it": _zip(**{"../../deu.txt": b"Go.\tGeh.\n", "/tmp/deu.txt": b"Go.\tGeh.\n"}),
    "a link in the place of a file": _zip_with_link(),
    "a tar file with a link": _tar_with_link(),
    "a bomb of 200 MB": lambda: _zip(**{"deu.txt": bytes(200_000_000)}),
}
