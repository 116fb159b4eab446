"""What people measured by hand (docs/plan.md): the planner explains it, once the gradients' dtype is given."""

from __future__ import annotations

import pytest

from konvoi.commands.plan_recipe import demand_of, profile_of, ways_of, with_dtype
from konvoi.config.recipe import read
from konvoi.plan import Host, Link, Profile, Setup, predict
from konvoi.sync import Traffic

GIGABIT = 1e9


@pytest.fixture(scope="module")
def v100() -> tuple[Profile, dict[str, Traffic]]:
    """15,604 source and target tokens a step and GPU, half of them targets, as in run B."""
    recipe = read("transformer-base-en-de", ["batching.max_tokens=7802"])
    demand = demand_of(recipe)
    assert demand.is_assumed
    return profile_of("v100", "transformer-base-en-de", demand), ways_of(recipe, ["ddp"], [], demand.shapes)


def seconds(v100: tuple[Profile, dict[str, Traffic]], workers: tuple[int, ...], rate: float, dtype: str) -> float:
    profile, ways = v100
    hosts = tuple(Host(Link.of_bits(rate, 2e-4), count) for count in workers)
    return predict(profile, Setup(hosts), with_dtype(ways, dtype)["ddp"]).step_seconds


def test_the_model_has_the_reference_run_s_parameters_and_step(v100: tuple[Profile, dict[str, Traffic]]) -> None:
    assert v100[0].num_values == 60_880_896
    assert v100[0].step_seconds == pytest.approx(0.33, rel=0.01)


def test_three_gpus_over_100_mbit_sent_fp32(v100: tuple[Profile, dict[str, Traffic]]) -> None:
    # A2: 33 s. 2 x 2/3 x 243.5 MB at 12.5 MB/s = 26.0 s and 7 % are 27.8 s; in fp16 it would be half.
    assert seconds(v100, (2, 1), 0.1 * GIGABIT, "fp32") == pytest.approx(33, rel=0.2)
    assert seconds(v100, (2, 1), 0.1 * GIGABIT, "fp16") < 0.5 * 33


def test_three_gpus_on_the_upgraded_network_sent_fp16_if_that_was_1_gbit(
    v100: tuple[Profile, dict[str, Traffic]],
) -> None:
    # A3: 1.5 s. 2 x 2/3 x 121.8 MB at 125 MB/s = 1.30 s and 7 %, after 0.11 s forward and the first bucket
    assert seconds(v100, (2, 1), GIGABIT, "fp16") == pytest.approx(1.5, rel=0.2)
    # In fp32 it would have to be twice that network.
    assert seconds(v100, (2, 1), GIGABIT, "fp32") > 1.5 * 1.5
    assert seconds(v100, (2, 1), 2.1 * GIGABIT, "fp32") == pytest.approx(1.5, rel=0.2)


def test_four_gpus_on_1_gbit_sent_fp16(v100: tuple[Profile, dict[str, Traffic]]) -> None:
    # B: 1.71 s. 2 x 3/4 x 121.8 MB at 125 MB/s = 1.46 s and 7 %
    assert seconds(v100, (2, 2), GIGABIT, "fp16") == pytest.approx(1.71, rel=0.2)
    assert seconds(v100, (2, 2), GIGABIT, "fp32") > 1.5 * 1.71


def test_b_s_tokens_per_second_follow(v100: tuple[Profile, dict[str, Traffic]]) -> None:
    profile = v100[0]
    assert 4 * profile.amount / seconds(v100, (2, 2), GIGABIT, "fp16") == pytest.approx(36_501, rel=0.2)
