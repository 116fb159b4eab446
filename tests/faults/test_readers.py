"""Whatever bytes a reader is given: a result, or an error that the user can mend; never anything else."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.bundle.test_classifier import made_bundle, mean_colour

from konvoi.analysis.diagnosis import diagnose
from konvoi.analysis.record import RunRecord
from konvoi.bundle.format import DESCRIPTION_FILE, open_bundle
from konvoi.cluster.hosts import check_cluster, read_cluster
from konvoi.cluster.imports import aws, host_list, hostfile
from konvoi.cluster.job_spec import read_spec, spec_file
from konvoi.commands.detach import LocalJob
from konvoi.commands.runs import list_runs
from konvoi.config.recipe import check, read_toml, shipped
from konvoi.data.prepared import PreparedSet
from konvoi.data.subwords import Subwords
from konvoi.data.text import raw_lines, read_rows
from konvoi.data.tokens import TokenFile, TokenWriter
from konvoi.engine.checkpoint import Checkpoint, Checkpoints, load, weights
from konvoi.errors import UserError
from konvoi.images.image_set import ImageSet
from konvoi.images.index import Entries, write_index
from konvoi.report.page import build
from konvoi.run_directory import RunDirectory, read_events

# How many times as many examples; from 1 on they are new ones in every run (tests/conftest.py).
FUZZ = int(os.environ.get("KONVOI_FUZZ", "1"))
fuzzed = settings(max_examples=30 * FUZZ, deadline=None, database=None, suppress_health_check=list(HealthCheck))

NAMES = st.sampled_from(
    [
        *("task", "data", "model", "train", "schedule", "sync", "name", "source", "target"),
        *("seed", "duration", "workers", "hosts", "ssh", "address", "ports", "version", "pairs"),
        *("set", "last", "best", "checkpoint", "metric", "value", "step", "kind", "phases"),
        *("samples", "interfaces", "loss", "time", "status", "scores", "files", "seconds", "steps", "bleu"),
    ]
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(["../..", "/etc/passwd", "a\0b", 10**400, -1, "step-00000010", "1e999", "<script>"]),
)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES | st.text(max_size=8), inner, max_size=5),
    max_leaves=12,
)
TABLES = st.dictionaries(NAMES, JSON, max_size=6)
# Bytes that are nothing, and text that is nearly something.
TOML_LIKE = st.lists(
    st.sampled_from(["[task]", "[[hosts]]", "[", "]", "=", '"', "\n", "name", "seed", "1", "nan", "inf", "{", "}", "'"])
    | st.text(max_size=5),
    max_size=25,
).map("".join)
ANY_BYTES = st.binary(max_size=200) | TOML_LIKE.map(lambda text: text.encode("utf-8", "surrogatepass"))


def answers(call: Callable[[], object]) -> None:
    """With a result or a UserError; what else is raised fails the test."""
    with suppress(UserError):
        result = call()
        if isinstance(result, Iterator):
            list(result)


def as_json(value: Any) -> str:
    return json.dumps(value, default=str)


@fuzzed
@given(content=ANY_BYTES)
def test_a_recipe_file_of_any_bytes(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "r.toml").write_bytes(content)
    answers(lambda: check(read_toml(tmp_path / "r.toml")))


@fuzzed
@given(tables=TABLES)
def test_a_recipe_of_any_tables(tables: dict[str, Any]) -> None:
    answers(lambda: check(tables).to_toml())


@fuzzed
@given(key=st.sampled_from(["train.seed", "train.duration", "data.set", "model.size", "x", ""]), text=TOML_LIKE)
def test_any_override(key: str, text: str) -> None:
    answers(lambda: check(read_toml(shipped()["demo"]), [f"{key}={text}", text]))


@fuzzed
@given(content=ANY_BYTES, tables=TABLES)
def test_a_cluster_file_of_anything(tmp_path: Path, content: bytes, tables: dict[str, Any]) -> None:
    (tmp_path / "cluster.toml").write_bytes(content)
    answers(lambda: read_cluster(tmp_path / "cluster.toml"))
    answers(lambda: check_cluster(tables, "anything", tmp_path))


@fuzzed
@given(text=st.text(max_size=60) | TOML_LIKE, value=JSON)
def test_lists_of_hosts_of_anything(text: str, value: Any) -> None:
    answers(lambda: host_list.parse(text))
    answers(lambda: hostfile.parse(text))
    for content in (text, as_json(value), as_json({"Reservations": [{"Instances": [value]}]})):
        answers(lambda content=content: aws.hosts(content, [], None, print))  # type: ignore[misc]


@fuzzed
@given(content=ANY_BYTES, value=JSON)
def test_an_event_log_of_anything(tmp_path: Path, content: bytes, value: Any) -> None:
    file = tmp_path / "rank0.jsonl"
    file.write_bytes(content + b"\n" + as_json(value).encode() + b"\n{")
    assert all(isinstance(event, dict) for event in read_events(file))


EVENTS = st.lists(
    st.fixed_dictionaries(
        {
            "kind": st.sampled_from(
                ["started", "step", "evaluation", "checkpoint", "restart", "fault", "finished", "host", "sample"]
            )
        },
        optional=dict.fromkeys(
            (
                *("step", "time", "seconds", "loss", "bleu", "phases", "communication", "samples", "interfaces"),
                *("what", "host", "rank", "doing", "message", "workers", "stall_seconds", "step_seconds", "bytes"),
                *("target_tokens", "learning_rate", "gradient_norm", "run_delay_seconds", "cpu_seconds", "device"),
            ),
            # Numbers that could be, too: only with them are the events read to their end.
            JSON | st.integers(-2, 40) | st.floats(-10, 1e5) | st.sampled_from([math.nan, math.inf]),
        ),
    )
    | JSON,
    max_size=12,
)


@settings(fuzzed, max_examples=15 * FUZZ)
@given(events=EVENTS, summary=TABLES, tables=TABLES)
def test_a_strangers_run_directory_is_shown(
    tmp_path: Path, events: list[Any], summary: dict[str, Any], tables: dict[str, Any]
) -> None:
    """recipe.toml, summary.json, data.json, environment.json and all events may be anything."""
    run = tmp_path / "run"
    shutil.rmtree(run, ignore_errors=True)
    for folder in ("events", "hosts"):
        (run / folder).mkdir(parents=True)
        (run / folder / "rank0.jsonl").write_text("".join(as_json(event) + "\n" for event in events))
    (run / "recipe.toml").write_text("[train]\nseed = 1\n")
    (run / "summary.json").write_text(as_json({"status": "finished", **summary}))
    (run / "environment.json").write_text(as_json(tables))
    record = RunRecord.read(run)
    assert diagnose(record).sentence
    build(record)
    for as_json_too in (True, False):
        list_runs(tmp_path, as_json=as_json_too)


SGML = st.lists(
    st.sampled_from(
        [b"<seg>", b"<seg id='1'>", b"</seg>", b"<doc>", b"&amp;", b"&#99999999;", b"&#xD800;", b"\xff", b"\n"]
    )
    | st.binary(max_size=4),
    max_size=30,
).map(b"".join)


@fuzzed
@given(content=SGML)
def test_sgml_of_any_bytes(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.sgm").write_bytes(content)
    answers(lambda: raw_lines(tmp_path / "a.sgm"))
    answers(lambda: read_rows((tmp_path / "a.sgm", tmp_path / "a.sgm"), ("en", "de")))


@fuzzed
@given(content=st.binary(max_size=80), value=JSON)
def test_text_of_any_bytes_in_any_packing(tmp_path: Path, content: bytes, value: Any) -> None:
    for suffix in (".txt", ".gz", ".xz", ".zst", ".tsv", ".jsonl"):
        file = tmp_path / f"a{suffix}"
        file.write_bytes(as_json(value).encode() if suffix == ".jsonl" else content)
        answers(lambda file=file: raw_lines(file))  # type: ignore[misc]
    for suffix in (".tsv", ".jsonl"):
        answers(lambda suffix=suffix: read_rows((tmp_path / f"a{suffix}",), ("en", "de")))  # type: ignore[misc]


SPOILS = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4)


def spoil(file: Path, whole: bytes, spoils: list[tuple[float, int]], length: float) -> None:
    """Some bytes changed, and perhaps the end cut off."""
    content = bytearray(whole)
    for place, byte in spoils:
        content[min(int(place * len(content)), len(content) - 1)] = byte
    file.write_bytes(content[: max(1, round(length * len(content)))])


LENGTHS = st.just(1.0) | st.floats(0, 1)


@fuzzed
@given(spoils=SPOILS, length=LENGTHS, part=st.sampled_from([".npy", ".tsv"]))
def test_an_index_of_pictures_with_changed_bytes(
    tmp_path: Path, spoils: list[tuple[float, int]], length: float, part: str
) -> None:
    lines = [f"train/cat/{number}.jpg\tcat\t100\t4\t4\t{number:032x}\n" for number in range(3)]
    write_index(tmp_path / "train", lines, {"cat": 0})
    file = (tmp_path / "train").with_suffix(part)
    spoil(file, file.read_bytes(), spoils, length)
    answers(lambda: iter(Entries(tmp_path / "train")))


@fuzzed
@given(spoils=SPOILS, length=LENGTHS, part=st.sampled_from(["a.tokens", "a.lengths.npy"]))
def test_tokens_with_changed_bytes(tmp_path: Path, spoils: list[tuple[float, int]], length: float, part: str) -> None:
    with TokenWriter(tmp_path / "a", 600) as writer:
        writer.write([[5, 6, 1], [7, 1]])
    spoil(tmp_path / part, (tmp_path / part).read_bytes(), spoils, length)
    answers(lambda: TokenFile(tmp_path / "a").read(np.arange(2)))


@fuzzed
@given(value=JSON, tables=TABLES)
def test_a_prepared_set_of_any_json(tmp_path: Path, value: Any, tables: dict[str, Any]) -> None:
    for content in (
        value,
        {"version": 2, "source": "en", "target": "de", **tables},
        {"kind": "konvoi images", **tables},
    ):
        (tmp_path / "info.json").write_text(as_json(content))
        answers(lambda: PreparedSet.open(tmp_path).split("train"))
        answers(lambda: ImageSet.open(tmp_path).entries("train"))


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    for step in (10, 20):
        checkpoints.save(Checkpoint(step, {"step": step}, {"model": {"weight": torch.ones(3)}}))
    return checkpoints


@fuzzed
@given(value=JSON, names=st.lists(JSON, max_size=3), content=st.binary(max_size=30))
def test_checkpoints_of_any_json_and_bytes(
    checkpoints: Checkpoints, value: Any, names: list[Any], content: bytes
) -> None:
    folder = checkpoints.folder / "step-00000020"
    for file, text in {
        checkpoints.folder / "index.json": as_json({"last": names, "best": [{"checkpoint": name} for name in names]}),
        folder / "checksums.json": as_json(value),
        folder / "state.json": as_json(value),
        folder / "model.safetensors": content,
    }.items():
        whole = file.read_bytes()
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        for name in ("best", "last", "average", "step-00000020"):
            answers(lambda name=name: weights(checkpoints.choose(name)))  # type: ignore[misc]
        answers(lambda: load(checkpoints.newest_intact()[0]))
        file.write_bytes(whole)


@fuzzed
@given(key=st.sampled_from(["variants", "settings", "files", "default", "task", "name", "format_version"]), value=JSON)
def test_a_bundle_json_of_anything(tmp_path: Path, key: str, value: Any) -> None:
    file = tmp_path / "bundle" / DESCRIPTION_FILE
    if not file.exists():
        made_bundle(file.parent, {"float32": mean_colour(0.1).SerializeToString()})
        shutil.copy(file, tmp_path / "whole.json")
    whole = json.loads((tmp_path / "whole.json").read_text())
    for content in ({**whole, key: value}, value):
        file.write_text(as_json(content))
        answers(lambda: open_bundle(file.parent).variant(None))


@fuzzed
@given(value=JSON)
def test_what_a_job_says_of_itself(tmp_path: Path, value: Any) -> None:
    spec_file(tmp_path).parent.mkdir(exist_ok=True)
    for name in ("spec.json", "local.json"):
        (tmp_path / "job" / name).write_text(as_json(value))
    answers(lambda: read_spec(tmp_path, "hint"))
    answers(lambda: LocalJob.of(tmp_path))


@fuzzed
@given(content=st.binary(max_size=100))
def test_a_vocabulary_of_any_bytes(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "v.model").write_bytes(content)
    answers(lambda: Subwords.load(tmp_path / "v.model"))


@fuzzed
@given(value=JSON)
def test_the_summary_of_a_run_is_a_table_whatever_the_file_holds(tmp_path: Path, value: Any) -> None:
    (tmp_path / "summary.json").write_text(as_json(value))
    answers(lambda: RunDirectory(tmp_path).summary())
