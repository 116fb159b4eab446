"""Tables of set-ups: the same data, what it costs, and what is advised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from konvoi.plan import Host, Link, Profile, Setup, predict
from konvoi.plan.advice import advise, best_way, enough_rate
from konvoi.plan.outlook import ALONE, Job, Planner
from konvoi.plan.plot import svg
from konvoi.sync import Traffic

# 0.33 s for 1,000 tokens; 240 MB of gradients
PROFILE = Profile(0.11, 0.2, 0.02, target_tokens=600, source_tokens=400, evaluation_seconds=60)
DDP = Traffic(240e6, num_messages=10)
AHEAD = Traffic(60e6, every_steps=8, num_messages=4, hidden_by="steps", overlap_steps=2)
HIERARCHICAL = Traffic(240e6, num_messages=10, once_per_host=True)
WAYS = {"ddp": DDP, "diloco H=8": AHEAD}
JOB = Job(worker_steps=36_000, evaluate_every_steps=1000)
GIGABIT = Link.of_bits(1e9)


def test_more_workers_take_fewer_steps_for_the_same_data() -> None:
    planner = Planner(PROFILE, JOB, price=2.5)
    alone = planner.row("1 Gbit/s", Setup.alike(1, GIGABIT), ALONE, DDP)
    four = planner.row("1 Gbit/s", Setup.alike(4, GIGABIT), "diloco H=8", AHEAD)
    # 36,000 steps of 0.33 s, and 36 evaluations of a minute
    assert alone.hours == pytest.approx((36_000 * 0.33 + 36 * 60) / 3600)
    # A quarter of the steps; a quarter of the evaluations, which four share
    assert four.hours == pytest.approx((9_000 * 0.33 + 9 * 15) / 3600)
    assert alone.cost == pytest.approx(2.5 * alone.hours)
    assert four.cost == pytest.approx(4 * 2.5 * four.hours)
    assert (alone.tokens_per_second, four.tokens_per_second) == (pytest.approx(1000 / 0.33), pytest.approx(4000 / 0.33))


def test_first_steps_that_send_otherwise_take_their_time() -> None:
    planner, setup = Planner(PROFILE, JOB, price=2.5), Setup.alike(4, GIGABIT)
    first_seconds = planner.row("", setup, "ddp", DDP).prediction.step_seconds
    row = planner.row("", setup, "diloco H=8", replace(AHEAD, first_steps=(1000, DDP)))
    # Of 9,000 steps the first 1,000 as ddp's; the table's step is one of the others.
    assert first_seconds > 3 and row.prediction.step_seconds == pytest.approx(0.33)
    assert row.hours == pytest.approx((1000 * first_seconds + 8000 * 0.33 + 9 * 15) / 3600)
    assert row.cost == pytest.approx(4 * 2.5 * row.hours)
    # All of a short training.
    short = Planner(PROFILE, Job(worker_steps=400))
    row = short.row("", setup, "diloco H=8", replace(AHEAD, first_steps=(1000, DDP)))
    assert row.hours == pytest.approx(100 * first_seconds / 3600)


def test_a_recipe_that_ends_by_time_takes_that_time() -> None:
    row = Planner(PROFILE, Job(seconds=7200)).row("", Setup.alike(2, GIGABIT), "ddp", DDP)
    assert (row.hours, row.cost) == (2.0, None)


def test_hours_that_nobody_knows_stay_open() -> None:
    row = Planner(PROFILE, Job(), price=1.0).row("", Setup.alike(2, GIGABIT), "ddp", DDP)
    assert (row.hours, row.cost) == (None, None)


def test_evaluations_by_epochs_are_as_many_with_more_workers() -> None:
    job = Job(worker_steps=1000, num_evaluations=10)
    row = Planner(PROFILE, job).row("", Setup.alike(4, GIGABIT), "diloco H=8", AHEAD)
    assert row.hours == pytest.approx((250 * 0.33 + 10 * 15) / 3600)


def test_one_worker_has_one_row_and_single_workers_have_no_hierarchy() -> None:
    sizes = [(1, 1), (1, 2), (2, 1), (2, 2)]
    setups = [("net", Setup.alike(hosts, GIGABIT, workers)) for hosts, workers in sizes]
    rows = Planner(PROFILE, JOB).rows(setups, {"ddp": DDP, "hierarchical": HIERARCHICAL})
    assert [(row.place, row.sync) for row in rows] == [
        ("1x1", ALONE),
        ("1x2", "ddp"),
        ("2x1", "ddp"),
        ("2x2", "ddp"),
        ("2x2", "hierarchical"),
    ]


def test_advice_names_the_way_that_would_help() -> None:
    planner, setup = Planner(PROFILE, JOB), Setup.alike(4, GIGABIT)
    row = planner.row("1 Gbit/s", setup, "ddp", DDP)
    # 360 MB at 125 MB/s: about 3.2 s a step
    assert row.prediction.speed_up < 1
    sentence, meaning = advise(planner, [(row, setup)], WAYS, "v100")
    assert sentence.startswith("At 4 nodes on 1 Gbit/s with ddp you would be slower than one v100 (0.4")
    assert sentence.endswith("bound by bandwidth; with diloco H=8: 4.0x.")
    # Who never heard of it is told, and once.
    assert "every worker takes H steps of its own" in meaning and "the model loses by that" in meaning
    again = planner.row("other", setup, "ddp", DDP)
    assert len(advise(planner, [(row, setup), (again, setup)], WAYS, "v100")) == 3


def test_where_hosts_have_several_workers_one_may_speak_for_them() -> None:
    # In four steps of 0.33 s, eight workers that send to all others need 60 MB x (4 x 4 + 7) / 8 at 125 MB/s, 1.4 s;
    # two hosts need 60 MB, half a second.
    ahead = Traffic(60e6, every_steps=4, num_messages=4, hidden_by="steps", overlap_steps=1, is_direct=True)
    ways = {"ddp": DDP, "diloco H=4": ahead, "hierarchical (diloco H=4)": replace(ahead, once_per_host=True)}
    planner, setup = Planner(PROFILE, JOB), Setup.alike(2, GIGABIT, 4)
    sentence, *meanings = advise(planner, [(planner.row("1 Gbit/s", setup, "ddp", DDP), setup)], ways, "v100")
    assert "with hierarchical (diloco H=4): " in sentence
    assert "every host takes H steps of its own" in meanings[0] and "one of them sends for all" in meanings[1]
    # With one worker a host, or one host, nothing is to be told apart.
    for flat in (Setup.alike(8, GIGABIT), Setup.alike(1, GIGABIT, 8)):
        assert "hierarchical" not in best_name(flat, dict(reversed(ways.items())))


def test_where_a_slow_host_keeps_all_from_the_aim_the_most_exact_of_the_fastest_is_named() -> None:
    # Of four hosts one is half as fast: 50 % of linear is all that there is, with few local steps as with many.
    setup = Setup((*(Host(Link.of_bits(2.5e10)),) * 3, Host(Link.of_bits(2.5e10), speed=0.5)))
    ways = {f"diloco H={steps}": replace(AHEAD, every_steps=steps, overlap_steps=steps // 4) for steps in (8, 16, 32)}
    efficiencies = [Planner(PROFILE, JOB).prediction(setup, way).efficiency for way in ways.values()]
    assert efficiencies == [pytest.approx(0.5, rel=1e-3)] * 3
    assert best_name(setup, ways) == "diloco H=8"


def test_advice_goes_by_the_figures_of_the_table() -> None:
    # A link that is slow hides that a host is late: played through, a step takes 0.08 s less than by the formula.
    late, slow = Host(Link.of_bits(1e10), speed=0.8), Host(Link.of_bits(5e8))
    setup = Setup((late, *(Host(Link.of_bits(1e10)),) * 6, slow))
    waited_for = Traffic(60e6, every_steps=8, hidden_by="steps")
    planner, ways = Planner(PROFILE, JOB), {"ddp": DDP, "apart": waited_for}
    ddp, apart = (planner.row("mine", setup, name, traffic) for name, traffic in ways.items())
    assert apart.prediction.speed_up > 1.05 * predict(PROFILE, setup, waited_for).speed_up
    sentence, _ = advise(planner, [(ddp, setup)], ways, "v100")
    assert f"with apart: {apart.prediction.speed_up:.1f}x" in sentence


def test_what_is_slower_than_one_device_is_not_offered() -> None:
    # 8 GB in fp16, half of ddp's: 128 s a step are no help, though twice as fast.
    huge, half = Traffic(16e9), Traffic(8e9)
    planner, setup = Planner(PROFILE, JOB), Setup.alike(2, GIGABIT)
    ways = {"ddp": huge, "fp16": half}
    (sentence,) = advise(planner, [(planner.row("1 Gbit/s", setup, "ddp", huge), setup)], ways, "v100")
    assert "fp16" not in sentence
    assert sentence.endswith("no network of this table is fast enough, and one v100 alone is faster.")


def test_workers_that_only_share_a_device_are_no_faster_than_one() -> None:
    crowded = replace(PROFILE, on_processor=True, cores=2, threads=2)
    planner, setup = Planner(crowded, JOB), Setup.alike(1, GIGABIT, 2)
    (sentence,) = advise(planner, [(planner.row("1 Gbit/s", setup, "ddp", Traffic(8.0)), setup)], WAYS, "worker")
    assert sentence == "At 1 node of 2 on 1 Gbit/s with ddp: 1.0x one worker; one worker alone is faster."


def test_advice_names_the_network_that_would_do_where_no_other_way_helps() -> None:
    planner, setup = Planner(PROFILE, JOB), Setup.alike(2, GIGABIT)
    row = planner.row("1 Gbit/s", setup, "ddp", DDP)
    (sentence,) = advise(planner, [(row, setup)], {"ddp": DDP}, "v100")
    # 240 MB are to be gone 0.037 s after the backward pass, which hides 0.18 s: 1.2 GB/s
    assert sentence.endswith("bound by bandwidth; 10 Gbit/s would do.")
    assert enough_rate(planner, setup, Traffic(1e12)) is None


def test_what_scales_is_said_to() -> None:
    planner, setup = Planner(PROFILE, JOB), Setup.alike(4, GIGABIT)
    row = planner.row("1 Gbit/s", setup, "diloco H=8", AHEAD)
    (sentence,) = advise(planner, [(row, setup)], WAYS, "v100")
    assert sentence == (
        "At 4 nodes on 1 Gbit/s with diloco H=8: 4.0x one v100; only faster devices, or more of them, would help."
    )


def best_name(setup: Setup, ways: Mapping[str, Traffic]) -> str:
    best = best_way(Planner(PROFILE, JOB), setup, ways)
    assert best
    return best[0]


def test_the_first_way_that_is_good_enough_is_taken() -> None:
    fast = Setup.alike(4, Link.of_bits(2e11))
    assert best_name(fast, WAYS) == "ddp"
    assert best_name(Setup.alike(4, GIGABIT), WAYS) == "diloco H=8"
    assert best_way(Planner(PROFILE, JOB), fast, {}) is None


def test_a_slow_host_is_what_binds() -> None:
    setup = Setup((Host(Link.of_bits(1e12)), Host(Link.of_bits(1e12), speed=0.25)))
    planner = Planner(PROFILE, JOB)
    (sentence,) = advise(planner, [(planner.row("mine", setup, "ddp", DDP), setup)], WAYS, "v100")
    assert "bound by straggler" in sentence and "the slowest" in sentence


def test_the_plot_is_an_svg_with_a_curve_for_each_way() -> None:
    setups = [("1 Gbit/s", Setup.alike(count, GIGABIT)) for count in (1, 2, 4, 8)]
    drawing = ElementTree.fromstring(svg(Planner(PROFILE, JOB).rows(setups, WAYS), "a & b"))
    texts = ["".join(text.itertext()) for text in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert {"a & b: speed against one device", "1 Gbit/s", "ddp", "diloco H=8", "8"} <= set(texts)
    curves = [path for path in drawing.iter("{http://www.w3.org/2000/svg}path") if path.get("fill") == "none"]
    # linear, and two ways of four points each
    assert [len(path.get("d", "").split()) for path in curves] == [2, 4, 4]
