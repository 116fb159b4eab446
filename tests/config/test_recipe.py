"""Recipes: every shipped one holds, every error is told at once, overrides mean what they say."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from konvoi.config.duration import Length
from konvoi.config.recipe import SECTIONS, Recipe, check, locate, read, read_toml, shipped
from konvoi.errors import RecipeError, UserError

SMALLEST: dict[str, dict[str, Any]] = {
    "task": {"source": "en", "target": "de"},
    "data": {"set": "demo-en-de"},
    "train": {"duration": "5 steps"},
}


def problems(tables: dict[str, Any], *overrides: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        check(tables, overrides)
    assert caught.value.hint
    return caught.value.problems


def test_there_are_recipes_in_the_package() -> None:
    assert "demo" in shipped()


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_recipe_is_read_back_as_the_same(name: str) -> None:
    recipe = read(name)
    assert check(tomllib.loads(recipe.to_toml())) == recipe


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_recipe_opens_with_its_command(name: str) -> None:
    first_line = shipped()[name].read_text(encoding="utf-8").splitlines()[0]
    assert first_line.startswith("#") and f"konvoi train {name}" in first_line


def test_what_is_left_out_has_its_default() -> None:
    recipe = check(SMALLEST)
    assert set(Recipe.model_fields) == set(SECTIONS)
    assert (recipe.optim.name, recipe.name_of("schedule"), recipe.name_of("sync")) == ("adam", "transformer", "ddp")
    assert check(tomllib.loads(recipe.to_toml())) == recipe


def test_a_long_duration_survives_the_run_directory() -> None:
    recipe = check(SMALLEST, ["train.duration=1_000_000 steps", "evaluate.every=0.00001 epochs"])
    assert check(tomllib.loads(recipe.to_toml())).train.duration == Length(1_000_000, "step")


def test_all_problems_are_told_at_once_with_near_names() -> None:
    found = problems(
        {
            "task": {"source": "en"},
            "data": {"set": "demo-en-d"},
            "model": {"sise": "tiny"},
            "batching": {"max_tokens": 0},
            "optim": {"name": "adamm"},
            "train": {"duration": "soon", "seeed": 1},
            "chekpoint": {},
            "sync": {"name": "dpp"},
        }
    )
    expected = [
        '[chekpoint]: no such table, did you mean "checkpoint"?',
        "task.target: missing; Language code of what is written",
        'data.set: is \'demo-en-d\', there is no set "demo-en-d", did you mean "demo-en-de"?',
        'model.sise: no such key, did you mean "size"?',
        "batching.max_tokens: is 0, should be greater than 0",
        "optim.name: is 'adamm', did you mean \"adam\"?",
        "train.duration: is 'soon', must be a number and one of steps",
        'train.seeed: no such key, did you mean "seed"?',
        'sync.name: there is no sync "dpp", did you mean "ddp"? (known: auto',
    ]
    for beginning in expected:
        assert sum(line.startswith(beginning) for line in found) == 1, (beginning, found)
    assert len(found) == len(expected)


def test_an_override_may_name_a_key_of_a_table_in_a_table() -> None:
    recipe = check(SMALLEST, ["sync.name=hierarchical", "sync.between.name=diloco", "sync.between.local_steps=8"])
    assert recipe.sync.between.local_steps == 8  # type: ignore[attr-defined]
    assert problems(SMALLEST, "train.seed=1", "train.seed.x=3") == ["--set train.seed.x=3: seed is no table, but 1"]


def test_a_table_that_is_none_is_told_too() -> None:
    assert problems({**SMALLEST, "train": 3}) == ["[train]: must be a table, is 3"]


def test_an_unknown_schedule_is_told_with_those_that_exist() -> None:
    (found,) = problems(SMALLEST, "schedule.name=cosin")
    assert found.startswith('schedule.name: is "cosin", did you mean "cosine"? (allowed: constant, ')


@pytest.mark.parametrize(
    "override", ['train.duration="60 steps"', "train.duration=60 steps", " train.duration = 60 steps"]
)
def test_an_override_needs_no_quotes(override: str) -> None:
    assert check(SMALLEST, [override]).train.duration == Length(60, "step")


def test_overrides_keep_their_types_and_the_last_one_wins() -> None:
    settings = ["train.seed=2", "train.seed=3", "train.compile=true", "optim.beta2=0.98", 'optim.name="sgd"']
    recipe = check(
        SMALLEST, [*settings, "schedule.name=piecewise", 'schedule.boundaries=["9 steps"]', "schedule.rates=[1,2]"]
    )
    assert (recipe.train.seed, recipe.train.compile) == (3, True)
    assert (recipe.optim.beta2, recipe.optim.name) == (0.98, "sgd")
    assert recipe.schedule.model_dump()["rates"] == [1, 2]


def test_an_override_leaves_the_given_tables_alone() -> None:
    check(SMALLEST, ["train.duration=60 steps"])
    assert SMALLEST["train"] == {"duration": "5 steps"}


@pytest.mark.parametrize("override", ["train.seed", "seed=2", "=2", "train.=2"])
def test_an_override_that_is_none_shows_how_one_looks(override: str) -> None:
    assert problems(SMALLEST, override) == [f"--set {override}: must be section.key=value, as in train.seed=2"]


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        *(
            (
                [f"schedule.name={name}", "schedule.learning_rate=1", "train.duration=3 minutes"],
                f"the {name} schedule must",
            )
            for name in ("cosine", "one-cycle", "polynomial")
        ),
        (["schedule.warmup=3 minutes"], "schedule.warmup: must be in steps or epochs"),
        (
            ["schedule.name=exponential", "schedule.learning_rate=1", "schedule.every=1 hour"],
            "schedule.every: must be in steps or epochs",
        ),
        (
            ["schedule.name=piecewise", 'schedule.boundaries=["1 hour"]', "schedule.rates=[1,2]"],
            "schedule.boundaries: must be in steps or epochs",
        ),
        (["train.time_budget=3 epochs"], 'train.time_budget: is "3 epochs", must be in seconds, minutes or hours'),
        (["train.log_every=1 epoch"], 'train.log_every: is "1 epoch", must be in steps'),
    ],
)
def test_what_is_right_alone_and_wrong_together_is_told(overrides: list[str], problem: str) -> None:
    (found,) = problems(SMALLEST, *overrides)
    assert problem in found


def test_a_time_suits_the_schedules_that_need_no_end() -> None:
    for name, keys in {"transformer": [], "constant": ["schedule.learning_rate=1"]}.items():
        recipe = check(SMALLEST, [f"schedule.name={name}", *keys, "train.duration=3 minutes"])
        assert recipe.train.duration.seconds == 180


def test_a_recipe_is_found_by_name_or_as_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(check(SMALLEST).to_toml(), encoding="utf-8")
    assert read(str(file)) == check(SMALLEST)
    assert locate("demo") == shipped()["demo"]


@pytest.mark.parametrize(
    ("name", "problem"),
    [("dmeo", 'there is no recipe "dmeo", did you mean "demo"?'), ("no/such.toml", "there is no file no/such.toml")],
)
def test_a_recipe_that_does_not_exist_is_told_with_those_that_do(name: str, problem: str) -> None:
    with pytest.raises(UserError) as caught:
        locate(name)
    assert caught.value.problem == problem
    assert "demo" in caught.value.hint


def test_a_file_that_is_no_toml_is_told_by_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[task\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"mine\.toml: cannot be read as TOML"):
        read_toml(file)
