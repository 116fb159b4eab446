"""Bad input to train, attach, stop, node and worker."""

from __future__ import annotations

from collections.abc import Iterator

from tests.faults.case import (
    DEEP,
    HOST,
    LATIN,
    LONG_LINE,
    LONG_NAME,
    MANY_DIGITS,
    NUL,
    OWN,
    SPEC,
    TRAIN,
    Case,
    cluster,
    own,
    recipe,
)
from tests.faults.place import Put, all_of, cut, cut_gzip, folder, has, replaced, run


def _train() -> Iterator[Case]:
    yield Case("recipe", "train none.toml", "there is none", "there is no file none.toml")
    yield Case("recipe", "train deom", "a name with a slip", 'did you mean "demo"?')
    yield Case("recipe", f"train {LONG_NAME}", "a name of 300 letters", "File name too long")
    yield Case("recipe", "train bad.toml", "no TOML", "cannot be read as TOML", recipe("[task\n"))
    yield Case("recipe", "train bad.toml", "empty", "train.duration: missing", recipe(""))
    yield Case("recipe", "train bad.toml", "a folder", "there is no file", folder("bad.toml"))
    yield Case("recipe", "train bad.toml", "not UTF-8", "cannot be read as TOML", has("bad.toml", LATIN))
    yield Case("recipe", "train bad.toml", "NUL bytes", "cannot be read as TOML", recipe("[task]\0"))
    yield Case("recipe", "train bad.toml", "3,000 brackets", "cannot be read as TOML", recipe(DEEP))
    yield Case("recipe", "train bad.toml", "an unknown table", 'did you mean "train"?', recipe(OWN + "[tran]\n"))
    yield Case("recipe", "train bad.toml", "a table that is a number", "must be a table", recipe("train = 3\n" + OWN))
    yield Case(
        "recipe",
        "train bad.toml",
        "a path with NUL",
        "train_source",
        recipe(OWN.replace("a.en", "a\\u0000.en") + TRAIN),
    )
    yield Case(
        "recipe",
        "train bad.toml",
        "a module of another package",
        'there is no task "os"',
        recipe(OWN.replace("[task]", '[task]\nname = "os"') + TRAIN),
    )
    for override, says in {
        "train.seed": "must be section.key=value",
        "=": "must be section.key=value",
        "train.sede=2": 'did you mean "seed"?',
        "nonsense.key=1": "[nonsense]: no such table",
        "train.seed=-1": "train.seed: is -1",
        "train.seed=1e400": "train.seed",
        "train.seed=99999999999999999999999": "train.seed",
        "train.workers=two": "train.workers: is 'two'",
        "train.workers=9999999": "9,999,999 workers are too many",
        "evaluate.split=train": "must be dev or test",
        "schedule.warmup=nan": "schedule.warmup",
        "optim.weight_decay=nan": "optim.weight_decay: is nan",
        "optim.weight_decay=inf": "optim.weight_decay: is inf",
        "optim.epsilon=inf": "optim.epsilon: is inf",
        f"train.duration={MANY_DIGITS} steps": "train.duration",
        "train.duration=20": "must be a number and one of steps",
        "train.duration=-3 steps": "must be a number and one of steps",
        "model.dropout=1.5": "dropout must be below 1",
        "model.heads=7": "heads",
        "data.vocabulary_size=1": "data.vocabulary_size",
        "task.name=../../os": "there is no task",
        "sync.name=os.path": "there is no sync",
    }.items():
        shown = override if len(override) < 60 else "train.duration='999... steps'"
        yield Case("override", f"train demo --set '{override}'", f"`{shown}`", says)
    yield Case("command line", "train", "no recipe", "RECIPE")
    yield Case("command line", "train demo --workers 0", "no workers", "--workers")
    yield Case("command line", "train demo --nonsense", "an unknown option", "--nonsense")
    yield Case("command line", "train demo --checkpoint last", "--checkpoint alone", "only with --resume")
    yield Case(
        "run directory",
        "train demo --run taken",
        "a folder of something else",
        "is no run directory",
        has("taken/thesis.tex", "dear reader"),
    )
    yield Case("run directory", "train demo --run taken", "a file", "is no run directory", has("taken", "x"))
    yield Case("run directory", "train demo --run taken/run", "inside a file", "taken is no folder", has("taken", "x"))
    yield Case(
        "override",
        "train run/recipe.toml --set model.width=4000000000 --run new",
        "`model.width=4000000000`",
        "no space left for 5 checkpoints",
        run(),
    )
    yield Case(
        "override",
        "train run/recipe.toml --set checkpoint.keep=1000000000 --run new",
        "`checkpoint.keep=1000000000`",
        "no space left for 1000000002 checkpoints",
        run(),
    )
    yield Case("run directory", "train demo --run run", "another run", "holds another run", run())
    yield Case("run directory", "train demo --resume", "there is none", "there is no run of demo")
    yield Case("run directory", "train demo --resume --run run", "of another recipe", "was begun with another", run())
    yield Case(
        "disk", "train run/recipe.toml --run here/run", "read-only", "here/run cannot be made", run(), disk="read-only"
    )
    yield Case(
        "disk", "train run/recipe.toml --run here/run", "full", "no space left for 5 checkpoints", run(), disk="full"
    )
    yield Case(
        "checkpoint",
        "train run/recipe.toml --resume --run run --checkpoint step-00000020",
        "cut",
        "model.safetensors differs",
        run(cut("checkpoints/step-00000020/model.safetensors")),
    )
    yield Case(
        "checkpoint", "train run/recipe.toml --resume --run run --checkpoint ../x", "no such", "is missing", run()
    )
    yield Case("cluster file", "train demo --cluster none.toml", "there is none", "none.toml")
    yield Case("cluster file", "train demo --cluster cluster.toml", "no TOML", "cannot be read as TOML", cluster("["))
    yield Case(
        "cluster file",
        "train demo --cluster cluster.toml --workers 2",
        "--workers beside it",
        "--workers",
        cluster(HOST),
    )
    yield from _text()


def _text() -> Iterator[Case]:
    texts: dict[str, tuple[str, Put]] = {
        "a file that is not there": ("cannot read data.train_source", has("own.toml", OWN + TRAIN)),
        "not UTF-8": ("not UTF-8", own(LATIN * 50, "Kaffee\n" * 50)),
        "NUL bytes": ("NUL", own(NUL * 50, "eins\n" * 50)),
        "lines of 10 MB": ("longer", own(LONG_LINE, "eins\n")),
        "more lines on one side": ("has 3 lines", own("one\ntwo\nthree\n")),
        "empty": ("is empty", own("", "")),
        "too few pairs": ("pairs", own("one\n", "eins\n")),
        "a folder": (
            "cannot read data.train_source",
            all_of(has("own.toml", OWN + TRAIN), folder("a.en"), has("a.de", "eins\n")),
        ),
        "a cut .gz": (
            "damaged",
            all_of(
                has("own.toml", OWN.replace("a.en", "a.en.gz") + TRAIN),
                has("a.en.gz", cut_gzip("one\n" * 9000)),
                has("a.de", "eins\n" * 9000),
            ),
        ),
        "no .zst at all": (
            "damaged",
            all_of(
                has("own.toml", OWN.replace("a.en", "a.en.zst") + TRAIN),
                has("a.en.zst", "one\n"),
                has("a.de", "eins\n"),
            ),
        ),
    }
    for what, (says, put) in texts.items():
        yield Case("text", "train own.toml", what, says, put)
    vocabularies = {"a pickle": b"\x80\x04K\x01.", "an empty file": b"", "text": b"hello\n"}
    for what, content in vocabularies.items():
        put = all_of(own("one\ntwo\n", more='vocabulary = "v.model"\n'), has("v.model", content))
        yield Case("vocabulary", "train own.toml", what, "v.model", put)
    yield Case(
        "vocabulary", "train own.toml", "there is none", "v.model", own("one\n", more='vocabulary = "v.model"\n')
    )


def _followers() -> Iterator[Case]:
    for verb in ("attach", "stop"):
        yield Case("run directory", f"{verb} none", "there is none", "is not a run directory")
        yield Case("run directory", f"{verb} run", "in the foreground", "was not trained on a cluster", run())
        yield Case(
            "run directory", f"{verb} run", "job/local.json cut", "local.json", run(replaced("job/local.json", "{"))
        )
        yield Case(
            "run directory",
            f"{verb} run",
            "job/local.json of another program",
            "local.json",
            run(replaced("job/local.json", '{"pid": 1}')),
        )
        yield Case(
            "run directory",
            f"{verb} run",
            "job/local.json of another machine",
            "is trained on far",
            run(replaced("job/local.json", '{"process_id": 1, "began_at": 0, "host": "far"}')),
        )
        yield Case(
            "run directory",
            f"{verb} run",
            f"{SPEC} cut",
            "spec.json",
            run(replaced("job/cluster.toml", HOST), replaced(SPEC, "{")),
        )
        yield Case(
            "cluster file",
            f"{verb} run",
            "job/cluster.toml cut",
            "cluster.toml",
            run(replaced("job/cluster.toml", "[[hosts"), replaced(SPEC, "{")),
        )
    yield Case("run directory", "node none", "there is none", "is not a run directory")
    yield Case("run directory", "node run", "no job/spec.json", "spec.json cannot be read", run())
    yield Case(
        "run directory",
        "node run",
        "job/spec.json of another program",
        "spec.json cannot be read",
        run(replaced(SPEC, '{"id": 1}')),
    )
    yield Case(
        "run directory", "node run", "job/spec.json is a list", "spec.json cannot be read", run(replaced(SPEC, "[]"))
    )


def _worker() -> Iterator[Case]:
    launched = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    yield Case("command line", "worker demo", "without a launcher", "no launcher has started")
    yield Case("command line", "worker demo", "RANK=x", "make no sense", environment={**launched, "RANK": "x"})
    yield Case("command line", "worker demo", "RANK=5 of 1", "make no sense", environment={**launched, "RANK": "5"})
    yield Case("recipe", "worker none.toml", "there is none", "none.toml", environment=launched)
    yield Case(
        "address",
        "worker demo",
        "MASTER_PORT=x",
        "MASTER_PORT=x is no port",
        environment={**launched, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "x"},
    )


TRAINING = [*_train(), *_followers(), *_worker()]
