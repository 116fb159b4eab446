"""konvoi plan and konvoi profile, as a user calls them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from konvoi.plan import store
from konvoi.telemetry import processor

BASE = ("plan", "transformer-base-en-de", "--set", "batching.max_tokens=7802")


def test_a_table_of_80_columns_with_advice_below(konvoi: Any) -> None:
    result = konvoi(*BASE, "--nodes", "1,4", "--gpus", "1,2", "--network", "100mbit,1gbit", "--price", 2.48)
    assert result.exit_code == 0, result.stderr
    assert max(len(line) for line in result.stdout.splitlines() if "step s" in line or "bandwidth" in line) <= 80
    assert "n workers take 1/n of them" in result.stdout
    assert "the data is not prepared here" in result.stdout
    words = " ".join(result.stdout.split())
    assert "At 4 nodes of 2 on 1 Gbit/s with ddp you would be slower than one v100" in words
    assert "reference runs A1 and B" in result.stdout


def test_json_holds_every_set_up(konvoi: Any) -> None:
    result = konvoi(*BASE, "--nodes", "1,2,4", "--sync", "ddp,diloco", "--set", "sync.local_steps=8", "--json")
    assert result.exit_code == 0, result.stderr
    plan = json.loads(result.stdout)
    assert [(row["nodes"], row["sync"]) for row in plan["rows"]] == [
        (1, "alone"),
        (2, "ddp"),
        (2, "diloco H=8"),
        (4, "ddp"),
        (4, "diloco H=8"),
    ]
    alone, _, _, ddp, ahead = plan["rows"]
    assert plan["profile"]["parameters"] == 60_880_896
    assert alone["hours"] == pytest.approx(300_000 * 0.33 / 3600, rel=0.01)
    # 2 x 3/4 x 243.5 MB
    assert ddp["bytes_per_host_and_step"] == pytest.approx(365.3e6, rel=0.001)
    # Half a byte for four, every eighth step; and 1 % more for scales and second moments.
    assert ahead["bytes_per_host_and_step"] == pytest.approx(1.01 * 365.3e6 / 64, rel=0.01)
    assert ddp["bound"] == "bandwidth" and ddp["speed_up"] < 1 < ahead["speed_up"]
    assert sum(ddp["parts"].values()) == pytest.approx(ddp["step_seconds"])


def test_what_travels_is_named_where_it_is_not_the_usual(konvoi: Any) -> None:
    settings = ("--set", "sync.local_steps=16", "--set", "sync.wire=int8")
    result = konvoi(*BASE, "--nodes", "4", "--network", "100mbit", "--sync", "ddp,diloco", *settings, "--json")
    assert result.exit_code == 0, result.stderr
    assert [row["sync"] for row in json.loads(result.stdout)["rows"]] == ["ddp", "diloco H=16 int8"]
    # Advice tries every wire with as many local steps: in int4, which is the usual, they may be fewer than in int8.
    advised = konvoi(*BASE, "--nodes", "4", "--network", "100mbit").stdout
    assert "with diloco H=12: 4.0x" in " ".join(advised.split())


def test_first_steps_that_are_exact_count_in_the_hours(konvoi: Any) -> None:
    words = (*BASE, "--nodes", 4, "--sync", "ddp,diloco", "--json")
    found = [
        json.loads(konvoi(*words, "--set", f"sync.exact_steps={count}").stdout)["rows"] for count in (0, 7500, 75_000)
    ]
    seconds = [[row["step_seconds"] for row in rows] for rows in found]
    assert seconds[0] == seconds[1] == seconds[2]
    hours = [rows[1]["hours"] for rows in found]
    # 300,000 steps of one worker are 75,000 of four, of which a tenth or all are exact: one message, when the backward
    # pass is over, which hides nothing of it. ddp's, in buckets, take a little less.
    assert hours[1] - hours[0] == pytest.approx((hours[2] - hours[0]) / 10)
    assert hours[2] == pytest.approx(found[0][0]["hours"], rel=0.1)


def test_a_recipe_whose_fragments_fit_its_local_steps_alone_is_planned_as_well(konvoi: Any, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    assert konvoi("recipes", "copy", "transformer-base-en-de", recipe).exit_code == 0
    table = '[sync]\nname = "diloco"\nlocal_steps = 24\nfragments = 6\noverlap_steps = 5\n'
    recipe.write_text(re.sub(r"\[sync\]\n[^\[]*", table, recipe.read_text()))
    result = konvoi("plan", recipe, "--nodes", "4", "--network", "100mbit", "--sync", "ddp,diloco", "--json")
    assert result.exit_code == 0, result.stderr
    assert [row["sync"] for row in json.loads(result.stdout)["rows"]] == ["ddp", "diloco H=24"]


def test_jitter_counts_for_hosts_of_a_file_as_well(konvoi: Any, tmp_path: Path) -> None:
    file = tmp_path / "hosts.toml"
    file.write_text('[[hosts]]\ncount = 4\nlink = "10gbit"\n')
    seconds = []
    for jitter in ("0", "0.2"):
        result = konvoi(*BASE, "--hosts", file, "--sync", "ddp", "--jitter", jitter, "--json")
        assert result.exit_code == 0, result.stderr
        seconds.append(json.loads(result.stdout)["rows"][-1]["step_seconds"])
    # Everyone waits for the latest of four.
    assert seconds[1] > 1.03 * seconds[0]


def test_jitter_that_is_asked_for_overrules_a_file_s_also_if_there_is_to_be_none(konvoi: Any, tmp_path: Path) -> None:
    file = tmp_path / "hosts.toml"
    file.write_text('jitter = 0.2\n[[hosts]]\ncount = 4\nlink = "10gbit"\n')
    parts = [
        json.loads(konvoi(*BASE, "--hosts", file, "--sync", "ddp", *more, "--json").stdout)["rows"][0]["parts"]
        for more in ((), ("--jitter", 0))
    ]
    assert parts[0]["straggler"] > 0 == parts[1]["straggler"]


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (["sync.name=diloco"], ["diloco H=6"]),
        (['sync.name="diloco"', "sync.local_steps=16", "sync.wire=int8"], ["diloco H=16 int8"]),
        (["sync.name=hierarchical"], ["hierarchical"]),
        (["sync.name=hierarchical", "sync.between.name=fp16"], ["hierarchical (fp16)"]),
        (
            ["sync.name=hierarchical", "sync.between.name=diloco", "sync.between.local_steps=8"],
            ["hierarchical (diloco H=8)"],
        ),
    ],
)
def test_a_way_is_chosen_by_the_recipe_s_own_key_as_well(konvoi: Any, settings: list[str], names: list[str]) -> None:
    words = [word for setting in settings for word in ("--set", setting)]
    result = konvoi(*BASE, "--nodes", 2, "--gpus", 2, *words, "--json")
    assert result.exit_code == 0, result.stderr
    assert [row["sync"] for row in json.loads(result.stdout)["rows"]] == names
    name = settings[0].partition("=")[2].strip('"')
    assert konvoi(*BASE, "--nodes", 2, "--gpus", 2, *words, "--sync", name, "--json").stdout == result.stdout


def test_what_goes_between_hosts_is_for_hierarchical_among_all(konvoi: Any) -> None:
    words = ("--nodes", 2, "--gpus", 2, "--set", "sync.between.name=bf16", "--json")
    names = [row["sync"] for row in json.loads(konvoi(*BASE, *words).stdout)["rows"]]
    assert names == ["ddp", "bf16", "diloco H=6", "fp16", "hierarchical (bf16)", "powersgd"]


def test_advice_for_hosts_of_several_offers_diloco_between_them(konvoi: Any) -> None:
    words = konvoi(*BASE, "--nodes", 4, "--gpus", 8, "--network", "100mbit", "--sync", "ddp").stdout.split()
    assert "with hierarchical (diloco H=12): " in " ".join(words)
    assert "every host takes H steps of its own" in " ".join(words)


@pytest.mark.parametrize("key", ["train.ema_decay=0.999", "model.sync_batch_norm=true"])
def test_what_training_would_refuse_is_neither_planned_nor_advised(konvoi: Any, key: str) -> None:
    words = ["plan", "resnet50-imagenet", "--nodes", "8", "--network", "100mbit", "--set", key]
    told = konvoi(*words)
    name = key.partition("=")[0]
    assert f"diloco H=6 is left out: it does not go with {name}" in told.stdout
    assert told.stdout.count("diloco") == 1
    asked = konvoi(*words, "--sync", "diloco")
    assert asked.exit_code == 2 and f"{name} does not go with diloco H=6" in asked.stderr


def test_a_way_that_no_row_can_show_is_said_to_be_left_out(konvoi: Any) -> None:
    told = konvoi("plan", "demo", "--nodes", "1,4", "--sync", "ddp,hierarchical")
    assert "hierarchical is left out: it is for several hosts" in told.stdout
    assert "left out" not in konvoi("plan", "demo", "--nodes", "1,4").stdout


def test_advice_prefers_what_is_more_exact_whoever_asked_for_it(konvoi: Any) -> None:
    words = ["plan", "transformer-base-en-de", "--nodes", "4", "--network", "10gbit", "--sync", "ddp,diloco"]
    assert "with diloco H=2: " in konvoi(*words, "--set", "sync.local_steps=2").stdout


def test_dtype_is_that_of_ddp_s_gradients(konvoi: Any) -> None:
    sent = [
        json.loads(konvoi(*BASE, "--nodes", 4, "--sync", "ddp", *more, "--json").stdout)["rows"][0]
        for more in ((), ("--dtype", "fp16"))
    ]
    assert sent[0]["bytes_per_host_and_step"] == 2 * sent[1]["bytes_per_host_and_step"]


def test_pictures_are_planned_too(konvoi: Any) -> None:
    result = konvoi("plan", "resnet50-imagenet", "--nodes", "1,2", "--device", "t4", "--sync", "ddp")
    assert result.exit_code == 0, result.stderr
    assert "img/s" in result.stdout and "pictures" in result.stdout
    assert "hours are unknown until the data is prepared" in result.stdout


def test_hosts_that_differ_are_played_through(konvoi: Any, tmp_path: Path) -> None:
    (tmp_path / "hosts.toml").write_text(
        '[[hosts]]\nlink = "1gbit"\ncount = 3\n[[hosts]]\nlink = "1gbit"\nspeed = 0.1\n'
    )
    result = konvoi(*BASE, "--hosts", tmp_path / "hosts.toml", "--sync", "diloco", "--json")
    (row,) = json.loads(result.stdout)["rows"]
    assert (row["workers"], row["bound"]) == (4, "straggler")
    assert row["step_seconds"] == pytest.approx(3.3, rel=0.05)


def test_links_that_cluster_check_measured_are_used(konvoi: Any, tmp_path: Path) -> None:
    rows = [
        {"source": source, "target": target, "bytes_per_second": 12.5e6, "latency_seconds": 2e-4}
        for source, target in (("a", "b"), ("b", "a"))
    ]
    file = tmp_path / "cluster.check.json"
    file.write_text(json.dumps({"links": rows}))
    result = konvoi(*BASE, "--network", file, "--nodes", 2, "--sync", "ddp", "--json")
    (row,) = json.loads(result.stdout)["rows"]
    # 243.5 MB at 12.5 MB/s
    assert row["step_seconds"] == pytest.approx(0.33 + 243.5 / 12.5, rel=0.03)
    refused = konvoi(*BASE, "--network", file, "--nodes", 3)
    assert refused.exit_code == 2 and "knows 2 hosts, not 3" in refused.stderr


@pytest.mark.parametrize(
    "words,problem,hint",
    [
        (("--network", "100mb"), '"100mb" is no rate', "bits or bytes?"),
        (("--latency", "2"), '"2" is no time', "0.2ms"),
        (("--device", "v10"), 'did you mean "v100"?', "known: v100, t4"),
        (("--device", "measured"), "transformer-base-en-de.profile.json", "konvoi profile"),
        (("--sync", "dilco"), 'did you mean "diloco"?', "known: "),
        (("--sync", "auto"), '"auto" chooses', "known: all, "),
        (("--set", "sync.local_step=8"), "none of ", "local_steps"),
        (("--set", "sync.local_steps=0"), "sync.local_steps", ""),
        (("--nodes", "0"), '--nodes is "0"', "1,2,4"),
        (("--nodes", "two"), '--nodes is "two"', "1,2,4"),
        (("--gpus", ""), '--gpus is ""', "1,2,4"),
        (("--dtype", "fp8"), 'no dtype "fp8"', "fp16"),
        (("--dtype", "fp16", "--sync", "diloco"), "for the rows of ddp, and there are none", "add ddp"),
        (("--set", "sync.name"), "must be section.key=value", "sync.name=diloco"),
        (("--hosts", "h.toml", "--nodes", "1,2,4,8"), "--nodes: h.toml says that", "leave it out"),
        (("--hosts", "h.toml", "--gpus", "1"), "--gpus: h.toml", "change the file"),
        (("--hosts", "h.toml", "--network", "1gbit", "--latency", "1ms"), "--network, --latency: h.toml", "them"),
        (("--network", "c.check.json", "--latency", "1ms"), "--latency 1ms: c.check.json has", "leave it out"),
        (("--sync", "ddp", "--set", "sync.name=diloco"), "--sync ddp and --set sync.name=diloco", "one of them"),
        (("--sync", "all", "--set", "sync.name=diloco"), "ask for different ways", "one of them"),
        (("--set", "sync.name=dilco"), 'did you mean "diloco"?', "known: "),
        (("--set", "sync.name=auto"), '"auto" chooses', "known: all, "),
        (("--set", "sync.between.name=dilco"), 'did you mean "diloco"?', ""),
        (("--sync", "ddp", "--set", "sync.between.name=fp16"), "none of ddp has such a key", "known: "),
        (("--set", "sync.local_steps"), "must be section.key=value", "sync.local_steps=8"),
        (("--hosts", "nowhere.toml"), "nowhere.toml", "docs/plan.md"),
        (("--network", "nowhere.check.json"), "nowhere.check.json", "konvoi cluster check"),
    ],
)
def test_what_is_wrong_is_said_with_a_remedy(konvoi: Any, words: tuple[str, ...], problem: str, hint: str) -> None:
    result = konvoi(*BASE, *words)
    assert result.exit_code == 2
    assert problem in result.stderr
    assert hint in result.stderr


def test_the_plot_is_written(konvoi: Any, tmp_path: Path) -> None:
    assert konvoi(*BASE, "--nodes", "1,2", "--plot", tmp_path / "plan.svg").exit_code == 0
    assert (tmp_path / "plan.svg").read_text().startswith("<svg")


def test_a_profile_is_measured_and_planned_with(konvoi: Any, tiny_recipe: Path, in_folder: Path) -> None:
    result = konvoi("profile", tiny_recipe, "--steps", 4)
    assert result.exit_code == 0, result.stderr
    assert "written to tiny.profile.json" in result.stdout
    found = store.read(in_folder / "tiny.profile.json")
    assert min(found.forward_seconds, found.backward_seconds, found.evaluation_seconds) > 0
    assert min(found.exchange_seconds_per_byte, found.exchange_latency_seconds) > 0
    assert 0 < found.target_tokens <= 512
    assert (found.on_processor, found.threads, found.recipe) == (True, 1, str(tiny_recipe))
    assert [path.name for path in in_folder.iterdir()] == ["tiny.profile.json"]

    planned = konvoi("plan", tiny_recipe, "--device", "measured", "--nodes", "1,2", "--network", "1mbit", "--json")
    assert planned.exit_code == 0, planned.stderr
    rows = json.loads(planned.stdout)["rows"]
    assert rows[0]["step_seconds"] == pytest.approx(found.step_seconds)
    other = konvoi("plan", tiny_recipe, "--device", "tiny.profile.json", "--set", "model.ffn_width=128")
    assert other.exit_code == 2 and "measured with another model" in other.stderr
    for setting in ("train.accumulate=2", "batching.max_tokens=128"):
        other = konvoi("plan", tiny_recipe, "--device", "measured", "--set", setting)
        assert other.exit_code == 2 and "measured with other batches" in other.stderr


@pytest.mark.parametrize(
    ("share", "words"), [(0.34, ", while other programs had 34% of the cores"), (0.04, " by konvoi profile\n")]
)
def test_it_is_said_of_a_profile_if_the_machine_was_busy(
    konvoi: Any, tiny_recipe: Path, in_folder: Path, monkeypatch: pytest.MonkeyPatch, share: float, words: str
) -> None:
    monkeypatch.setattr(processor.OtherPrograms, "share", lambda self: share)
    assert words in konvoi("profile", tiny_recipe, "--steps", 4).stdout
    assert words in konvoi("plan", tiny_recipe, "--device", "measured", "--nodes", 1).stdout


def test_a_profile_that_cannot_be_written_is_not_measured(konvoi: Any, tiny_recipe: Path) -> None:
    result = konvoi("profile", tiny_recipe, "--to", "nowhere/x.json")
    assert result.exit_code == 2 and "there is no folder nowhere" in result.stderr
