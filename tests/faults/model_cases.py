"""Bad input to eval, translate, classify, export and serve."""

from __future__ import annotations

from collections.abc import Iterator

from tests.faults.case import LATIN, Case, Kind
from tests.faults.place import (
    Put,
    all_of,
    colours,
    cut,
    cut_gzip,
    edited,
    en_de,
    flipped,
    has,
    nothing,
    removed,
    replaced,
    run,
)
from tests.faults.things import (
    PNG_BOMB,
    checkpoint_of_another_model,
    cut_picture,
    empty_picture,
    linked,
    some_lines,
    trained_elsewhere,
)


def _models() -> Iterator[Case]:
    """eval, translate, export and serve read a run's checkpoint, vocabulary and recipe in the same way."""
    newest = "checkpoints/step-00000020"
    spoilt: dict[str, tuple[Kind, str, Put]] = {
        "there is none": ("run directory", "is not a run directory", nothing),
        "a folder of something else": ("run directory", "is not a run directory", has("run/thesis.tex", "dear")),
        "recipe.toml cut": ("run directory", "recipe.toml", run(replaced("recipe.toml", "[task"))),
        "no checkpoint": ("checkpoint", "holds no checkpoint", run(removed("checkpoints"))),
        "model.safetensors cut": ("checkpoint", "differs from its checksum", run(cut(f"{newest}/model.safetensors"))),
        "model.safetensors with one bit flipped": (
            "checkpoint",
            "differs from its checksum",
            run(flipped(f"{newest}/model.safetensors")),
        ),
        "model.safetensors empty": (
            "checkpoint",
            "differs from its checksum",
            run(replaced(f"{newest}/model.safetensors", "")),
        ),
        "model.safetensors missing": (
            "checkpoint",
            "model.safetensors is missing",
            run(removed(f"{newest}/model.safetensors")),
        ),
        "checksums.json cut": ("checkpoint", "checksums.json cannot be read", run(cut(f"{newest}/checksums.json"))),
        "checksums.json missing": ("checkpoint", "checksums.json is missing", run(removed(f"{newest}/checksums.json"))),
        "index.json cut": ("checkpoint", "index.json cannot be read", run(cut("checkpoints/index.json"))),
        "index.json is a list": (
            "checkpoint",
            "index.json holds no JSON object",
            run(replaced("checkpoints/index.json", "[]")),
        ),
        "index.json holds numbers": (
            "checkpoint",
            "index.json names no checkpoints",
            run(replaced("checkpoints/index.json", '{"last": [1], "best": [2]}')),
        ),
        "of another model": ("checkpoint", "does not fit the model", run(checkpoint_of_another_model)),
        "vocabulary missing": ("vocabulary", "vocabulary.model", run(removed("vocabulary.model"))),
        "vocabulary cut": ("vocabulary", "vocabulary.model", run(cut("vocabulary.model"))),
    }
    for what, (kind, says, put) in spoilt.items():
        yield Case(kind, "eval run --checkpoint last", what, says, put)
    for what in (
        "there is none",
        "model.safetensors cut",
        "index.json is a list",
        "vocabulary cut",
        "of another model",
    ):
        kind, says, put = spoilt[what]
        yield Case(kind, "translate run Hello. --checkpoint last", what, says, put)
        yield Case(kind, "export run --to out --checkpoint last", what, says, put)
        yield Case(kind, "serve run --port 0 --checkpoint last", what, says, put)


def _eval() -> Iterator[Case]:
    yield Case("command line", "eval run --source a.en", "one side", "--target", run())
    yield Case("command line", "eval run --split nowhere", "no such split", 'no split "nowhere"', run())
    yield Case("command line", "eval run --split train", "a split without text", "is not kept", run())
    yield Case("command line", "eval run --beam 0", "no beam", "--beam", run())
    yield Case("text", "eval run --source a.en --target a.de", "not there", "a.en does not exist", run())
    yield Case(
        "text",
        "eval run --source a.en --target a.de",
        "not UTF-8",
        "not UTF-8",
        all_of(run(), some_lines(LATIN, b"eins\n")),
    )
    yield Case(
        "text",
        "eval run --source a.en --target a.de",
        "more lines on one side",
        "has 2 lines",
        all_of(run(), some_lines(b"one\ntwo\n", b"eins\n")),
    )
    yield Case("text", "eval run --source a.en --target a.de", "empty", "is empty", all_of(run(), some_lines(b"", b"")))


def _translate() -> Iterator[Case]:
    yield Case("text", "translate run --input none.txt", "not there", "none.txt does not exist", run())
    yield Case(
        "text", "translate run --input a.en", "not UTF-8", "line 1 is not UTF-8", all_of(run(), has("a.en", LATIN))
    )
    yield Case(
        "text",
        "translate run --input a.en.gz --output out.de",
        "a cut .gz",
        "damaged",
        all_of(run(), has("a.en.gz", cut_gzip("one\n" * 50))),
    )
    yield Case(
        "text", "translate run", "standard input is not UTF-8", "standard input: line 1", run(), standard_input=LATIN
    )
    yield Case("command line", "translate run Hello. --input a.en", "text and a file", "--input", run())
    yield Case(
        "command line", "translate run Hello. --output nowhere/out", "no such folder", "cannot be written", run()
    )
    yield Case(
        "disk", "translate run Hello. --output here/out", "read-only", "cannot be written", run(), disk="read-only"
    )
    yield Case("command line", "translate run Hello. --variant int8", "a run has no variants", "is a run", run())
    yield Case("bundle", "translate en-de Hello.", "weights that are none", "cannot be loaded", en_de())
    yield Case("bundle", "translate en-de Hello. --variant int8", "no such variant", 'has no "int8"', en_de())
    yield Case(
        "bundle",
        "translate en-de Hello.",
        "weights of another size",
        "bytes, not 10",
        en_de(replaced("float32/model.bin", "x")),
    )
    yield Case(
        "bundle",
        "translate en-de Hello.",
        "weights with one bit flipped",
        "is not as it was",
        en_de(flipped("float32/model.bin")),
    )
    yield Case(
        "bundle",
        "translate en-de Hello.",
        "no vocabulary",
        "vocabulary.model is missing",
        en_de(removed("vocabulary.model")),
    )
    yield Case("bundle", "translate en-de Hello.", "bundle.json cut", "is no JSON", en_de(cut("bundle.json")))
    yield Case(
        "bundle",
        "translate en-de Hello.",
        "bundle.json of another format",
        "this Konvoi reads",
        en_de(edited("bundle.json", format_version=99)),
    )
    yield Case(
        "bundle",
        "translate en-de Hello.",
        "an extra file",
        "is no part of the bundle",
        en_de(replaced("run.py", "import os")),
    )
    yield Case(
        "bundle", "translate en-de Hello.", "a link out of it", "does not lie inside", en_de(linked("vocabulary.model"))
    )
    yield Case("bundle", "translate colours Hello.", "a classifier", "is no translator", colours())


def _classify() -> Iterator[Case]:
    shown = {
        "not there": ("does not exist", nothing),
        "text": ("a.png", has("a.png", "no picture")),
        "empty": ("a.png", has("a.png", b"")),
        "cut": ("a.png", has("a.png", cut_picture())),
        "no pixels": ("a.png", has("a.png", empty_picture())),
        "a bomb of 400 million pixels": ("a.png", has("a.png", PNG_BOMB)),
    }
    for what, (says, put) in shown.items():
        yield Case("picture", "classify colours a.png", what, says, all_of(colours(), put))
    yield Case("command line", "classify colours", "no picture", "IMAGE", colours())
    yield Case("command line", "classify colours a.png --top 0", "no classes", "--top", colours())
    yield Case(
        "bundle",
        "classify colours a.png",
        "no ONNX at all",
        "can't be opened",
        all_of(has("a.png", cut_picture()), trained_elsewhere(b"no graph")),
    )
    yield Case(
        "bundle",
        "classify colours a.png",
        "one bit flipped",
        "is not as it was",
        all_of(has("a.png", cut_picture()), colours(flipped("float32.onnx"))),
    )
    yield Case(
        "bundle",
        "classify en-de a.png",
        "a translator",
        "is no image classifier",
        all_of(has("a.png", cut_picture()), en_de()),
    )
    yield Case("run directory", "classify run a.png", "a translator's", "run", all_of(has("a.png", "x"), run()))


def _export() -> Iterator[Case]:
    yield Case("command line", "export run", "no place for it", "--to", run())
    yield Case("command line", "export run --to out --precision int5", "no such precision", "int5", run())
    yield Case(
        "command line",
        "export run --to taken",
        "a folder of something else",
        "taken",
        all_of(run(), has("taken/thesis.tex", "dear")),
    )
    yield Case(
        "command line",
        "export run --to taken --force",
        "a folder of something else",
        "taken",
        all_of(run(), has("taken/thesis.tex", "dear")),
    )
    yield Case("text", "export run --to out --sentences a.en", "not UTF-8", "a.en", all_of(run(), has("a.en", LATIN)))
    yield Case("disk", "export run --to here/out", "read-only", "here", run(), disk="read-only")


def _serve() -> Iterator[Case]:
    yield Case("address", "serve colours --port 70000", "no port", "--port", colours())
    yield Case("address", "serve colours --port PORT", "a port that is taken", "in use", colours())
    yield Case("address", "serve colours --host 0.0.0.0", "every machine, without a token", "needs a token", colours())
    yield Case(
        "address",
        "serve colours --host nowhere.invalid --token 0123456789abcdef0123456789abcdef",
        "an unknown name",
        "nowhere.invalid",
        colours(),
    )
    yield Case(
        "address",
        "serve colours --host 203.0.113.1 --token 0123456789abcdef0123456789abcdef --port 0",
        "an address of another machine",
        "203.0.113.1",
        colours(),
    )
    yield Case("command line", "serve colours --token short", "a short token", "at least", colours())
    yield Case("command line", "serve colours --token-file none", "no token file", "none cannot be read", colours())
    yield Case("bundle", "serve none", "there is none", "none")
    yield Case("bundle", "serve colours --port 0", "bundle.json cut", "is no JSON", colours(cut("bundle.json")))


MODELS = [*_models(), *_eval(), *_translate(), *_classify(), *_export(), *_serve()]
