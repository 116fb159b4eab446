"""The one list of what every command does with bad input: the tests and docs/bad-input.md are made of it.

REFUSED: exit code 2, one line that begins with "error:", a hint, no traceback, nothing written.
PASSED_OVER: a command that only looks shows what there is; exit code 0, no traceback, nothing written.

    python -m tests.faults.cases > docs/bad-input.md
"""

from __future__ import annotations

import re

from tests.faults.case import MANY_DIGITS, Case
from tests.faults.model_cases import MODELS
from tests.faults.other_cases import OTHERS
from tests.faults.place import Put, cut, edited, replaced, run
from tests.faults.training_cases import TRAINING

REFUSED = [*TRAINING, *MODELS, *OTHERS]

HALF = '{"kind": "step", "step": 21, "loss'
ODD_EVENTS = "\n".join(
    (
        "no JSON",
        "[]",
        "3",
        '{"kind": "step", "step": 1e999, "loss": "low"}',
        '{"kind": ["step"]}',
        '{"kind": "step", "step": 22, "phases": 3, "time": "now", "loss": ' + MANY_DIGITS + "}",
        '{"kind": "evaluation", "step": "x", "samples": 5}',
        '{"kind": "restart"}',
        "[" * 100_000,
        '{"kind": "started"}',
        "",
    )
)
LOOKS = (
    "diagnose run",
    "report run --format json",
    "report run --format markdown",
    "compare run run",
    "watch run --once",
    "runs .",
)
_PASSED_OVER: dict[str, Put] = {
    "summary.json cut": run(cut("summary.json")),
    "summary.json is a list": run(replaced("summary.json", "[1, 2]")),
    "summary.json with other types": run(edited("summary.json", scores=3, best="x", seconds="long", steps=None)),
    "data.json and environment.json are numbers": run(replaced("data.json", "3"), replaced("environment.json", "4")),
    "events end within a line": run(replaced("events/rank0.jsonl", HALF)),
    "events that are none": run(replaced("events/rank0.jsonl", ODD_EVENTS)),
    "events of a rank without number": run(replaced("events/rankfoo.jsonl", "{}\n")),
    "counters that are none": run(replaced("hosts/h.jsonl", '{"kind": "sample", "time": "x", "interfaces": 3}\n{"kin')),
    "recipe.toml cut": run(replaced("recipe.toml", "[task")),
}
PASSED_OVER = [Case("run directory", command, what, "", put) for what, put in _PASSED_OVER.items() for command in LOOKS]


HEAD = """# What every command does with bad input

Made by `python -m tests.faults.cases` from the list that the tests go through (`tests/faults/cases.py`): {refused}
cases for {commands} commands. Each of them ends with exit code 2, one line that begins with `error:`, a line that
begins with `hint:` and no traceback, and leaves the folder and Konvoi's home as they were. `PORT` is a port that
another program listens on; disks are really full or read-only.

What is wrong with a command line comes out the same way; exit code 1 and a traceback mean a fault of Konvoi's own.
"""
PASSED_HEAD = """
## Passed over

Who only looks at a run must see it though it died, goes on, or is another's: these commands show what there is, end
with exit code 0 and change nothing ({passed} cases).

| run directory | commands |
| --- | --- |
"""
FUZZ = """
## Anything at all

`tests/faults/test_readers.py` gives arbitrary bytes, text and JSON to the readers of recipes, overrides, cluster files,
lists of hosts, event logs, summaries, SGML, picture indices, prepared sets, checkpoints and bundles: the answer is a
result or one of the errors above, never another exception. `tests/fetch` does the same with damaged archives;
`make fuzz` does so with forty times as many examples, new ones every time;
`benchmarks/faults/fuzz.py` lets atheris look for bytes that break five of the readers.
"""
DAMAGE = """
## Damaged checkpoints

`python benchmarks/faults/checkpoints.py` damages a run's checkpoints at random, one to three times a trial, and then
uses them in eight ways (best, last, average, each by name, as `--resume` does). Every use must be refused, or give bit
for bit what was saved under that name. 500 trials, 4,000 uses, seed 1, 2026-11-16:

| damage | trials | uses refused | uses that gave what was saved |
| --- | ---: | ---: | ---: |
| a file cut | 101 | 444 | 364 |
| one bit flipped | 85 | 400 | 280 |
| a file emptied | 83 | 337 | 327 |
| 512 bytes zeroed | 98 | 437 | 347 |
| a file lengthened | 89 | 395 | 317 |
| a file removed | 107 | 439 | 417 |
| a checkpoint removed | 87 | 411 | 285 |
| a file swapped with that of another checkpoint | 81 | 420 | 228 |
| two checkpoints swapped | 95 | 482 | 278 |
| weights that the checkpoint had not | 96 | 409 | 359 |
| **all** | **500** | **2,077** | **1,923** |

Loaded silently: none. Ended with another exception: none. (A trial counts in the row of each of its damages.)
"""


def document() -> str:
    """docs/bad-input.md"""
    kinds = list(dict.fromkeys(case.kind for case in REFUSED))
    tables = "".join(_table(kind) for kind in kinds)
    head = HEAD.format(refused=len(REFUSED), commands=len({case.name for case in REFUSED}))
    commands = ", ".join(f"`konvoi {look}`" for look in LOOKS)
    passed = "".join(f"| {what} | {commands} |\n" for what in _PASSED_OVER)
    return head + tables + PASSED_HEAD.format(passed=len(PASSED_OVER)) + passed + DAMAGE + FUZZ


def _table(kind: str) -> str:
    rows = "".join(
        f"| `konvoi {_short(case.command)}` | {_cell(case.what)} | {_cell(case.says)} |\n"
        for case in REFUSED
        if case.kind == kind
    )
    return f"\n## {kind.capitalize()}\n\n| command | what is bad | the answer says |\n| --- | --- | --- |\n{rows}"


def _short(command: str) -> str:
    return re.sub(r"(x{9})x{9,}|(9{9})9{9,}", r"\1\2...", command)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


if __name__ == "__main__":
    print(document(), end="")
