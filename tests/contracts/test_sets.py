"""Every set of the table is complete, and is prepared as the recipes want it."""

from __future__ import annotations

import re

import pytest

from konvoi.config.recipe import read, shipped
from konvoi.data.settings import Data
from konvoi.fetch.sets import KNOWN_SETS, KnownSet

SETS = [*KNOWN_SETS.values()]
RECIPES = [name for name in shipped() if isinstance(read(name).data, Data)]


def test_there_are_sets_and_recipes() -> None:
    assert len(SETS) >= 6
    assert len(RECIPES) >= 4


@pytest.mark.parametrize("known", SETS, ids=lambda known: known.name)
def test_a_set_says_what_it_is_and_where_it_comes_from(known: KnownSet) -> None:
    assert known.description and known.licence and known.citation
    assert known.train_pairs > 0
    assert known.embedded or known.archives
    for archive in known.archives:
        assert archive.addresses
        assert archive.sha256 is None or re.fullmatch("[0-9a-f]{64}", archive.sha256)


@pytest.mark.parametrize("known", SETS, ids=lambda known: known.name)
def test_a_sets_own_settings_are_settings(known: KnownSet) -> None:
    data = Data(set=known.name)
    assert {key: getattr(data, key) for key in known.settings} == known.settings


@pytest.mark.parametrize("name", RECIPES)
def test_what_data_get_prepares_is_what_the_recipe_trains_on(name: str) -> None:
    data = read(name).data
    assert isinstance(data, Data)
    assert data.settings_that_matter() == Data(set=data.set).settings_that_matter()
