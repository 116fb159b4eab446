"""The sets of pictures that Konvoi knows by name, and the name for anyone's own folder."""

from __future__ import annotations

from dataclasses import dataclass, field

from konvoi.errors import DataError, did_you_mean

IMAGENET = "imagenet"
IMAGENETTE = "imagenette"
IMAGE_FOLDER = "image-folder"
DEMO_IMAGES = "demo-images"

TRAIN_ARCHIVE = "ILSVRC2012_img_train.tar"
VAL_ARCHIVE = "ILSVRC2012_img_val.tar"
DEVKIT_ARCHIVE = "ILSVRC2012_devkit_t12.tar.gz"


@dataclass(frozen=True)
class KnownImages:
    """A published set of pictures: who may use it, where it comes from, and how much of it there should be."""

    name: str
    description: str
    licence: str
    citation: str
    source: str
    """Where to get it, as the end of a sentence."""
    num_classes: int = 0
    num_pictures: dict[str, int] = field(default_factory=dict)
    """Per split; nothing where the set may be of any size."""
    words: dict[str, str] = field(default_factory=dict)
    """What a class is called, where the input does not say so itself."""


_TABLE = (
    KnownImages(
        name=DEMO_IMAGES,
        description="small grey pictures of clothes in ten classes, inside the package",
        licence="MIT, copyright 2017 Zalando SE",
        citation="Xiao, Rasul and Vollgraf 2017, Fashion-MNIST: a Novel Image Dataset, arXiv:1708.07747",
        source="https://github.com/zalandoresearch/fashion-mnist (a part of it is inside the package)",
        num_classes=10,
        num_pictures={"train": 6_000, "val": 2_000},
        # In the order of the labels 0 to 9, in which the embedded file holds them.
        words={
            "t-shirt-top": "T-shirt/top",
            "trouser": "trouser",
            "pullover": "pullover",
            "dress": "dress",
            "coat": "coat",
            "sandal": "sandal",
            "shirt": "shirt",
            "sneaker": "sneaker",
            "bag": "bag",
            "ankle-boot": "ankle boot",
        },
    ),
    KnownImages(
        name=IMAGENET,
        description="ILSVRC 2012: 1,000 classes, from the official archives or an extracted tree",
        licence="research and teaching only, by the terms of image-net.org",
        citation="Russakovsky et al. 2015, ImageNet Large Scale Visual Recognition Challenge",
        source="https://image-net.org/download (registration needed)",
        num_classes=1000,
        num_pictures={"train": 1_281_167, "val": 50_000},
    ),
    KnownImages(
        name=IMAGENETTE,
        description="ten easy classes of ImageNet, from its archive or an extracted tree",
        licence="code Apache 2.0; the pictures are ImageNet's: research and teaching only",
        citation="Howard 2019, Imagenette, https://github.com/fastai/imagenette",
        source="https://s3.amazonaws.com/fast-ai-imageclas/imagenette2-160.tgz (or imagenette2, imagenette2-320)",
        num_classes=10,
        num_pictures={"train": 9_469, "val": 3_925},
        words={
            "n01440764": "tench",
            "n02102040": "English springer",
            "n02979186": "cassette player",
            "n03000684": "chain saw",
            "n03028079": "church",
            "n03394916": "French horn",
            "n03417042": "garbage truck",
            "n03425413": "gas pump",
            "n03445777": "golf ball",
            "n03888257": "parachute",
        },
    ),
    KnownImages(
        name=IMAGE_FOLDER,
        description="any folder of class folders, with or without train/ and val/",
        licence="your own pictures",
        citation="",
        source="your own pictures: DIR/train/<class>/, DIR/val/<class>/, or DIR/<class>/ alone",
    ),
)
IMAGE_SETS = {known.name: known for known in _TABLE}


def find_images(name: str) -> KnownImages:
    """The entry of that name; a near name is suggested where there is none."""
    if name not in IMAGE_SETS:
        raise DataError(
            f'there is no set of pictures "{name}"{did_you_mean(name, IMAGE_SETS)}',
            hint=f"known: {', '.join(IMAGE_SETS)}",
        )
    return IMAGE_SETS[name]
