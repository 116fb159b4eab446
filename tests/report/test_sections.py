"""Every section, and the page as a whole, for runs of all kinds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.analysis.made_runs import ABSENT, make_run, write_lines

from konvoi.analysis.answer import Answer
from konvoi.analysis.record import RunRecord
from konvoi.report import as_json, html, markdown
from konvoi.report.blocks import Block, Facts, Page, Plot, Samples, Section, Table
from konvoi.report.page import build, section_modules

SECTIONS = {module.__name__.rsplit(".", 1)[-1]: module for module in section_modules()}
QUESTIONS = ["time", "fully_trained", "over_fitting", "devices", "network", "learning_rate", "data", "checkpoints"]
QUESTIONS += ["step_times"]
LONG_MEGABYTES = 1.0


def old_keys(rank: int, step: int) -> dict[str, Any]:
    """As it was before communication and processor time were measured."""
    return {"communication": ABSENT, "cpu_seconds": ABSENT, "run_delay_seconds": ABSENT}


def gpu_sample(host: str, second: int) -> dict[str, Any]:
    return {"gpus": [{"busy_percent": 99.0, "power_watts": 250.0}, {"busy_percent": None}]}


def pictures(rank: int, step: int) -> dict[str, Any]:
    tokens = ("target_tokens", "source_tokens", "own_target_tokens", "target_tokens_per_second", "tokens_per_second")
    return {**dict.fromkeys(tokens, ABSENT), "images": 64, "own_images": 32, "images_per_second": 128.0}


ACCURACIES = {25: {"bleu": ABSENT, "chrf": ABSENT, "samples": ABSENT, "accuracy_1": 40.0, "accuracy_5": 80.0}}
KINDS: dict[str, dict[str, Any]] = {
    "whole": {"evaluations": range(10, 51, 10), "checkpoints": [25, 50], "hosts": ("host-a", "host-b")},
    "not a step": {"num_steps": 0},
    "one step": {"num_steps": 1},
    "one worker": {"num_workers": 1, "evaluations": [25]},
    "no hosts": {"hosts": (), "evaluations": [25]},
    "no evaluation": {},
    "not a number": {
        "step": lambda rank, step: {"loss": None, "gradient_norm": None} if step > 10 else {},
        "evaluations": {25: {"loss": None, "bleu": None}},
    },
    "never a number": {"step": {"loss": None, "gradient_norm": None, "step_seconds": None, "learning_rate": None}},
    "died": {"status": "died", "evaluations": [25]},
    "going on": {"status": "running", "evaluations": [25]},
    "failed": {"status": "failed"},
    "interrupted": {"status": "interrupted"},
    "old": {"step": old_keys, "hosts": (), "started": {"seconds": ABSENT, "phases": ABSENT}},
    "one rank of four": {"num_workers": 4, "ranks": [2]},
    "sampled": {"step": lambda rank, step: {"sampled": True} if step % 10 == 0 else {}, "sample": gpu_sample},
    "pictures": {"step": pictures, "evaluations": ACCURACIES, "recipe": {"evaluate": {"metric": "accuracy_1"}}},
    "no phases": {"step": {"phases": ABSENT, "step_seconds": 0.5}},
}

# As konvoi plan --json writes it, in short.
PLAN = {
    "recipe": "demo",
    "device": "v100",
    "rows": [{"network": "1 Gbit/s", "sync": "ddp", "workers": count, "speed_up": count / 2} for count in (2, 4)],
    "advice": ["Buy a faster network."],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunRecord]:
    parent = tmp_path_factory.mktemp("made")
    (make_run(parent / "planned") / "plan.json").write_text(json.dumps(PLAN))
    made = {kind: RunRecord.read(make_run(parent / kind, **how)) for kind, how in KINDS.items()}
    return {"planned": RunRecord.read(parent / "planned"), **made}


def rendered(name: str, run: RunRecord) -> list[Block]:
    return SECTIONS[name].render(run)


def of_kind(kind: type, blocks: list[Block]) -> list[Any]:
    return [block for block in blocks if isinstance(block, kind)]


def test_all_sections_were_found_in_their_order():
    assert len(SECTIONS) >= 16
    orders = [module.ORDER for module in SECTIONS.values()]
    assert orders == sorted(set(orders))
    assert [name for name in SECTIONS if name in QUESTIONS] == QUESTIONS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SECTIONS)
def test_every_section_renders_every_run_in_every_form(runs, name, kind):
    for number, block in enumerate(rendered(name, runs[kind])):
        assert html.block_html(block, f"{name}-{number}")
        assert markdown.block_markdown(block)


@pytest.mark.parametrize("name", SECTIONS)
def test_every_section_has_something_to_say_of_some_run(runs, name):
    assert any(rendered(name, run) for run in runs.values())


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_is_answered_before_anything_is_shown(runs, name):
    for run in runs.values():
        assert isinstance(rendered(name, run)[0], Answer)


@pytest.mark.parametrize("kind", KINDS)
def test_every_table_is_rectangular_and_every_plot_has_a_curve(runs, kind):
    for section in build(runs[kind]).sections:
        for table in of_kind(Table, section.blocks):
            assert table.rows
            assert {len(row) for row in table.rows} == {len(table.header)}
        for plot in of_kind(Plot, section.blocks):
            assert plot.series
            assert all(len(series.x) == len(series.y) for series in plot.series)


def test_a_folder_with_a_recipe_alone_is_a_page(tmp_path):
    (tmp_path / "recipe.toml").write_text("")
    page = build(RunRecord.read(tmp_path))
    assert "has no steps yet" in page.lead
    assert as_json.write(page)


def test_the_parts_of_the_time_add_up(runs):
    (table,) = of_kind(Table, rendered("time", runs["whole"]))
    parts = {part: share for part, _, share in table.rows}
    # 50 steps of 0.5 s, start-up 2 s, 5 evaluations of 1 s, 2 checkpoints of 0.1 s: 32.2 s; forward 50 x 0.15 s
    assert parts["steps: forward"] == f"{100 * 7.5 / 32.2:.1f} %"
    assert parts["evaluations"] == f"{100 * 5 / 32.2:.1f} %"
    assert sum(float(share.removesuffix(" %")) for share in parts.values()) == pytest.approx(100, abs=0.5)


def test_sampled_steps_stand_for_all(runs):
    (table,) = of_kind(Table, rendered("time", runs["sampled"]))
    # 5 of 50 steps are sampled; forward is 50 x 0.15 s of 2 s start-up and 50 x 0.5 s.
    assert ("steps: forward", "7.50 s", f"{100 * 7.5 / 27:.1f} %") in table.rows


def test_waiting_for_others_and_moving_bytes_are_told_apart(tmp_path):
    step = {"phases": {"exposed_communication": 0.2, "agreement": 0.1}, "communication": {"waiting_seconds": 0.05}}
    run = RunRecord.read(make_run(tmp_path / "run", step=step))
    (plot,) = of_kind(Plot, rendered("time", run))
    milliseconds = {series.name: series.y[0] for series in plot.series}
    # 0.2 + 0.1 s exposed, of which 0.05 s waiting
    assert milliseconds["moving bytes"] == pytest.approx(1000 * 0.25)
    assert milliseconds["waiting for other ranks"] == pytest.approx(1000 * 0.05)
    assert "exchanging gradients" not in milliseconds


def test_an_old_run_shows_the_exchange_as_one(runs):
    (plot,) = of_kind(Plot, rendered("time", runs["old"]))
    assert "exchanging gradients" in {series.name for series in plot.series}


def test_only_sampled_steps_tell_phases(runs):
    (plot,) = of_kind(Plot, rendered("time", runs["sampled"]))
    assert plot.series[0].x.tolist() == [10, 20, 30, 40, 50]


def test_the_forecast_is_a_dashed_curve_in_its_band(tmp_path):
    points = {step: {"bleu": 30 - 25 / (step / 10)} for step in range(10, 101, 10)}
    run = RunRecord.read(make_run(tmp_path / "run", num_steps=100, evaluations=points))
    (plot,) = of_kind(Plot, rendered("fully_trained", run))
    measured, forecast = plot.series
    assert measured.y.tolist() == [point["bleu"] for point in points.values()]
    assert forecast.style == "dashed"
    assert forecast.x[-1] > 100
    assert (forecast.low <= forecast.high).all()


def test_the_traffic_is_beside_the_link_and_the_prediction(runs):
    blocks = rendered("network", runs["whole"])
    plots = of_kind(Plot, blocks)
    assert [plot.title for plot in plots] == ["host-a: traffic on eth0", "host-b: traffic on eth0"]
    # 12,000,000 bytes a second are 96 Mbit/s, on a link of 1 Gbit/s.
    assert plots[0].series[0].y[0] == pytest.approx(96)
    assert plots[0].levels[0].y == 1000
    (table,) = of_kind(Table, blocks)
    # 12 MB/s for half a second; 2 x (2 - 1) / 2 x 4 bytes x 1.5 million parameters
    assert table.rows[0] == ("host-a", "6.0 MB", "6.0 MB", "6.0 MB")


def test_cores_are_shown_from_the_idlest_to_the_busiest(tmp_path):
    run = RunRecord.read(make_run(tmp_path / "run", sample={"cpu_percent": [20.0, 100.0]}))
    (plot,) = of_kind(Plot, rendered("devices", run))
    (series,) = plot.series
    assert (series.low[0], series.y[0], series.high[0]) == (20, 60, 100)


def test_gpus_have_their_own_curves(runs):
    titles = [plot.title for plot in of_kind(Plot, rendered("devices", runs["sampled"]))]
    assert titles == ["host-a: its GPUs", "host-a: power of its GPUs", "host-a: its 2 cores"]


def test_how_often_gradients_were_clipped(tmp_path):
    def step(rank: int, step: int) -> dict[str, Any]:
        return {"gradient_norm": 5.0 if step <= 10 else 0.5, "skipped": step in (1, 2)}

    run = RunRecord.read(make_run(tmp_path / "run", num_steps=40, step=step, recipe={"optim": {"clip_norm": 1.0}}))
    paragraph, plot = rendered("gradient_norm", run)
    # 10 of 40
    assert "clipped to 1 in 25 % of the steps" in paragraph.text
    assert "2 steps were skipped" in paragraph.text
    assert [level.y for level in plot.levels] == [1.0]


def test_each_worker_has_its_own_speed(tmp_path):
    run = RunRecord.read(make_run(tmp_path / "run", step=lambda rank, step: {"own_target_tokens": 500 * (rank + 1)}))
    table = of_kind(Table, rendered("throughput", run))[1]
    # 500 and 1,000 tokens in steps of 0.5 s
    assert [row[2] for row in table.rows] == ["1,000", "2,000"]


def test_the_histogram_holds_all_steps_but_the_slowest(tmp_path):
    step = {"phases": ABSENT}
    slow = {1: 60.0}
    run = RunRecord.read(
        make_run(
            tmp_path / "run", num_steps=400, step=lambda r, s: {**step, "step_seconds": slow.get(s, 0.5 + s / 1e4)}
        )
    )
    (plot,) = of_kind(Plot, rendered("step_times", run))
    # The 99.5th percentile of 400 leaves two above it.
    assert plot.series[0].y.sum() == 398
    assert plot.caption == "Not shown: 2 slower, up to 1 min 00 s."


def test_long_samples_are_cut_and_in_order(tmp_path):
    sample = {"reference": "r", "translation": "t" * 10_000, "source": "s"}
    run = RunRecord.read(make_run(tmp_path / "run", evaluations={25: {"samples": [sample]}}))
    (samples,) = of_kind(Samples, rendered("samples", run))
    assert list(samples.items[0]) == ["source", "translation", "reference"]
    assert len(samples.items[0]["translation"]) < 600


def test_damaged_pictures_are_named(tmp_path):
    path = make_run(tmp_path / "run")
    data = {"set": "own", "images": {"train": 10}, "bytes": {"train": 5000}, "damaged": [f"{n}.jpg" for n in range(12)]}
    (path / "data.json").write_text(json.dumps(data))
    tables = of_kind(Table, rendered("data", RunRecord.read(path)))
    assert tables[0].rows == [("train", "10", "5.0 kB")]
    assert tables[1].caption.endswith("the first 10 of 12")
    assert len(tables[1].rows) == 10


def test_interfaces_without_an_address_are_left_out_unless_the_run_uses_them(tmp_path):
    silent = {"addresses": [], "link_bits_per_second": None}
    run = RunRecord.read(make_run(tmp_path / "run", about={"interfaces": {"idle0": silent, "eth1": silent}}))
    run.hosts["host-a"].about["job_interface"] = "eth1"
    interfaces = of_kind(Table, rendered("machines", run))[1]
    assert [(row[1], row[3], row[4]) for row in interfaces.rows] == [
        ("eth0", "no", "1 Gbit/s"),
        ("eth1", "yes", "unknown"),
    ]


def test_the_environment_has_what_a_methods_section_needs(tmp_path):
    path = make_run(tmp_path / "run")
    environment = {
        "konvoi": "0.1.0",
        "python": "3.11.7",
        "libraries": {"torch": "2.13.0"},
        "processor": "EPYC",
        "cores": 4,
        "memory_bytes": 8e9,
        "git": {"commit": "abc", "changed_files": 2},
        "command": ["konvoi", "train", "a recipe"],
    }
    (path / "environment.json").write_text(json.dumps(environment))
    facts, command, methods = rendered("environment", RunRecord.read(path))
    assert isinstance(facts, Facts)
    assert ("git commit", "abc with 2 changed files") in facts.rows
    assert command.text == "konvoi train 'a recipe'"
    assert "1,500,000 parameters for 50 steps" in methods.text
    assert "69,000 sentence pairs (en to de), split into 3,000 pieces" in methods.text
    assert "Adam with the one-cycle learning-rate schedule (rate 0.005)" in methods.text
    assert "2 workers on 1 machine (EPYC, 4 cores, 8.0 GB), gradients synchronised by ddp" in methods.text


@pytest.mark.parametrize(
    ("sync", "words"),
    [
        ({"name": "diloco", "local_steps": 6}, "weights synchronised by diloco every 6 steps."),
        (
            {"name": "hierarchical", "between": {"name": "diloco", "local_steps": 8, "exact_steps": 50}},
            "weights synchronised by diloco (hierarchical) every 8 steps, gradients in the first 50.",
        ),
        ({"name": "fp16"}, "gradients synchronised by fp16."),
    ],
)
def test_the_methods_say_what_was_synchronised(tmp_path, sync, words):
    run = RunRecord.read(make_run(tmp_path / "run", recipe={"sync": sync}))
    assert words in rendered("environment", run)[-1].text


def test_what_auto_chose_and_changed_is_told_once(tmp_path):
    path = make_run(tmp_path / "run", recipe={"sync": {"name": "auto"}})
    chosen = {"kind": "sync", "time": 0.0, "message": "sync: diloco with 4 local steps", "chosen": {"name": "diloco"}}
    later = {"kind": "sync", "time": 0.0, "step": 30, "message": "they exchange every 2 steps from now on"}
    back = {"kind": "restart", "time": 0.0, "step": 20, "workers": 2}
    file = path / "events" / "rank0.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    # Forgotten by the restart, and heard again.
    write_lines(file, [chosen, later, back, chosen, *lines, later])
    table = rendered("network", RunRecord.read(path))[-1]
    assert isinstance(table, Table)
    assert table.rows == [(chosen["message"],), (later["message"],)]


def test_the_report_of_a_long_run_stays_small(tmp_path):
    path = make_run(tmp_path / "run", num_steps=1, evaluations=[1])
    file = path / "events" / "rank0.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    step = next(line for line in lines if line["kind"] == "step")
    noise = np.random.default_rng(1).random(2_000)
    write_lines(
        file, [*lines, *({**step, "step": n + 2, "loss": v, "gradient_norm": v} for n, v in enumerate(noise.tolist()))]
    )
    page: Page = build(RunRecord.read(path))
    assert len(html.write(page)) < LONG_MEGABYTES * 1e6
    assert len(as_json.write(page)) < LONG_MEGABYTES * 1e6


def test_a_file_in_the_folder_of_sections_is_all_it_takes():
    folder = Path(section_modules()[0].__file__).parent
    files = {file.stem for file in folder.glob("*.py") if not file.stem.startswith("_")}
    assert files == set(SECTIONS)


def test_pictures_are_shown_with_their_class_and_the_guess(tmp_path: Path) -> None:
    sample = {"class": "tench", "guess": "church", "probability": 0.75, "jpeg": "/9j/AAAA"}
    make_run(tmp_path / "run", evaluations={10: {"samples": [sample]}})
    (block,) = SECTIONS["samples"].render(RunRecord.read(tmp_path / "run"))
    assert block == Samples([{"class": "tench", "guess": "church (75%)"}], "Of the evaluation at step 10", ["/9j/AAAA"])
    page = html.write(Page("title", "lead", [Section("samples", "Samples", [block])]))
    assert '<img src="data:image/jpeg;base64,/9j/AAAA" alt="class: tench, guess: church (75%)">' in page
