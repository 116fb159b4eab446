"""konvoi recipes and konvoi info."""

from __future__ import annotations

import json
import tomllib

import pytest

from konvoi.config.recipe import check, read, shipped


def test_list_names_every_recipe_with_its_opening_comment(konvoi):
    rows = json.loads(konvoi("recipes", "list", "--json").stdout)
    assert {row["name"] for row in rows} == set(shipped()) != set()
    assert all(row["about"].startswith(f"konvoi train {row['name']}") for row in rows)
    assert "demo" in konvoi("recipes", "list").stdout


def test_show_prints_the_file(konvoi):
    assert konvoi("recipes", "show", "demo").stdout == shipped()["demo"].read_text()


@pytest.mark.parametrize("name", shipped())
def test_all_keys_are_a_recipe_that_means_the_same(konvoi, name):
    tables = tomllib.loads(konvoi("recipes", "show", name, "--all").stdout)
    whole = check(tables)
    assert whole.train == read(name).train
    assert tables["model"]["width"] > 0


def test_copy_does_not_overwrite(konvoi, tmp_path):
    target = tmp_path / "mine.toml"
    assert konvoi("recipes", "copy", "demo", target).exit_code == 0
    assert target.read_text() == shipped()["demo"].read_text()
    target.write_text("mine")
    result = konvoi("recipes", "copy", "demo", target)
    assert result.exit_code == 2
    assert "exists already" in result.stderr
    assert target.read_text() == "mine"


def test_check_says_ok_or_all_that_is_wrong(konvoi, tmp_path):
    bad = tmp_path / "bad.toml"
    bad.write_text('[task]\nsource = "en"\n[trian]\n[data]\nset = "dmeo-en-de"\n')
    result = konvoi("recipes", "check", "demo", bad)
    assert result.exit_code == 2
    assert result.stdout == "demo: ok\n"
    for words in ("task.target: missing", 'did you mean "train"?', 'did you mean "demo-en-de"?', "train.duration"):
        assert words in result.stderr


def test_info_of_the_reference_run(konvoi):
    facts = json.loads(konvoi("info", "transformer-base-en-de", "--workers", "4", "--json").stdout)
    assert facts["model"]["parameters"] == 60_880_896
    assert facts["bytes"]["gradient"] == 4 * 60_880_896
    # A ring all-reduce over 4 workers sends 2 x 3/4 of the gradient.
    assert facts["bytes"]["sent_per_step_and_worker"] == 1.5 * 4 * 60_880_896
    assert facts["bytes"]["checkpoint"] == 3 * 4 * 60_880_896
    assert facts["data"]["prepared"] is False
    rates = facts["schedule"]["rates"]
    # 2 x 512^-0.5 x 8000^-0.5
    assert rates["end of warm-up"] == {"step": 8000, "rate": pytest.approx(2 / (512 * 8000) ** 0.5)}


def test_info_knows_the_steps_of_prepared_data(konvoi, tiny_recipe, trained_run):
    facts = json.loads(konvoi("info", tiny_recipe, "--json", "--set", 'train.duration="2 epochs"').stdout)
    summary = json.loads((trained_run / "summary.json").read_text())
    assert facts["model"]["parameters"] == summary["parameters"]
    assert facts["steps"]["per_epoch"] == summary["micro_batches_per_epoch"]
    assert facts["steps"]["total"] == 2 * summary["micro_batches_per_epoch"]
    assert facts["data"]["pairs"]["test"] == 16


def test_info_in_words(konvoi, tiny_recipe):
    result = konvoi("info", tiny_recipe, "--set", "train.workers=2")
    assert "by each of 2 workers" in result.stdout
    assert "constant: stays at 0.003" in result.stdout
