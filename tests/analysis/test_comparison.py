"""Runs against the first. A made run does 1,000 target tokens a worker and step of half a second."""

from __future__ import annotations

import json

import pytest
from tests.analysis.made_runs import ABSENT, STARTED_AT, make_run, merged, write_lines

from konvoi.analysis.comparison import compare, loss_curve
from konvoi.analysis.record import RunRecord
from konvoi.telemetry.events import finite

IMAGES = {"task": {"name": "classification"}, "evaluate": {"metric": "accuracy_1"}}


def run_of(path, name="run", **made):
    return RunRecord.read(make_run(path / name, **made))


def scored(values):
    """{step: BLEU}, without time for evaluating."""
    return {step: {"bleu": value, "seconds": 0.0} for step, value in values.items()}


def seconds_a_step(seconds):
    return {"step_seconds": seconds}


def test_twice_the_tokens_in_the_same_time_is_a_speed_up_of_two(tmp_path):
    one = run_of(tmp_path, "one", num_workers=1, step=seconds_a_step(0.5))
    two = run_of(tmp_path, "two", num_workers=2, hosts=("a", "b"))
    found = compare([one, two]).standings
    # 1,000 tokens / 0.5 s and 2 x 1,000 / 0.5 s
    assert [standing.speed for standing in found] == pytest.approx([2000, 4000])
    assert [standing.speed_up for standing in found] == pytest.approx([1, 2])
    assert [standing.efficiency for standing in found] == pytest.approx([1, 1])


def test_efficiency_is_the_speed_up_for_each_worker(tmp_path):
    one = run_of(tmp_path, "one", num_workers=1, step=seconds_a_step(0.5))
    four = run_of(tmp_path, "four", num_workers=4, step=seconds_a_step(0.8))
    standing = compare([one, four]).standings[1]
    # 4,000 / 0.8 = 5,000 tokens/s against 2,000
    assert standing.speed_up == pytest.approx(2.5)
    assert standing.efficiency == pytest.approx(2.5 / 4)


def test_the_first_steps_do_not_count(tmp_path):
    slow_start = run_of(tmp_path, "slow", step=lambda rank, step: seconds_a_step(20.0 if step <= 5 else 0.5))
    assert compare([slow_start, run_of(tmp_path)]).standings[1].speed_up == pytest.approx(1.0)


def test_the_same_score_is_the_best_that_all_reached(tmp_path):
    slow = run_of(tmp_path, "slow", step=seconds_a_step(1.0), evaluations=scored({10: 10, 20: 20, 50: 30}))
    fast = run_of(tmp_path, "fast", step=seconds_a_step(0.5), evaluations=scored({10: 10, 30: 24, 50: 26}))
    found = compare([slow, fast])
    assert found.same_score == 26
    # Start-up 2 s. The slow one goes from 20 to 30 in steps 20 to 50: 26 at step 38, 38 s. The fast one: step 50, 25 s.
    assert found.standings[0].seconds_to_same_score == pytest.approx(2 + 38)
    assert found.standings[1].seconds_to_same_score == pytest.approx(2 + 25)
    assert found.standings[1].time_ratio == pytest.approx(27 / 40)
    assert found.sentences == [
        "fast: 2.00x as fast, 4.0 points lower after the same epochs; same score after 0.68 of the time"
    ]


def test_a_score_that_was_there_at_the_first_evaluation_bounds_the_time(tmp_path):
    first = run_of(tmp_path, "first", evaluations=scored({10: 10, 50: 20}))
    late = run_of(tmp_path, "late", evaluations=scored({40: 25, 50: 30}))
    standing = compare([first, late]).standings[1]
    assert standing.at_the_latest
    # 2 s + 40 steps of 0.5 s
    assert standing.seconds_to_same_score == pytest.approx(22)


def test_evaluations_and_start_up_take_time_too(tmp_path):
    run = run_of(tmp_path, evaluations={25: {"bleu": 10.0, "seconds": 3.0}, 50: {"bleu": 20.0, "seconds": 3.0}})
    # 2 s start-up, 25 steps of 0.5 s, 3 s of evaluation
    assert compare([run, run]).standings[0].score_seconds.tolist() == pytest.approx([2 + 12.5 + 3, 2 + 25 + 6])


def test_a_pause_between_sessions_does_not_count(tmp_path):
    path = make_run(tmp_path / "run", num_workers=1, num_steps=2)
    step = {"kind": "step", "step_seconds": 1.0, "loss": 3.0}
    score = {"kind": "evaluation", "seconds": 0.0, "bleu": 1.0}
    events = [
        {"kind": "started", "time": STARTED_AT + 2, "seconds": 2.0},
        {**step, "time": STARTED_AT + 3, "step": 1},
        {"kind": "started", "time": STARTED_AT + 1004, "seconds": 4.0},
        {"kind": "restart", "time": STARTED_AT + 1004, "step": 1},
        {**step, "time": STARTED_AT + 1005, "step": 2},
        {**score, "time": STARTED_AT + 1005, "step": 2},
    ]
    write_lines(path / "events" / "rank0.jsonl", events)
    run = RunRecord.read(path)
    # 2 + 1 s, then 997 s of pause, then 4 + 1 s
    assert compare([run, run]).standings[0].score_seconds.tolist() == pytest.approx([8.0])
    assert compare([run, run]).standings[0].seconds == pytest.approx(8.0)


def test_scores_are_compared_after_the_same_epochs_not_steps(tmp_path):
    # Two workers go through 400 micro-batches in 200 steps, four in 100.
    two = run_of(tmp_path, "two", num_steps=200, evaluations=scored({100: 10, 200: 20}))
    four = run_of(tmp_path, "four", num_steps=200, num_workers=4, evaluations=scored({50: 9, 100: 18, 200: 30}))
    found = compare([two, four])
    assert (found.common, found.common_unit) == (1.0, "epochs")
    assert [standing.score_at_common for standing in found.standings] == pytest.approx([20, 18])
    assert found.standings[1].score_difference == pytest.approx(-2)


def test_without_the_length_of_an_epoch_steps_are_compared(tmp_path):
    unknown = {"summary": {"micro_batches_per_epoch": ABSENT}}
    one = run_of(tmp_path, "one", evaluations=scored({25: 10, 50: 20}), **unknown)
    other = run_of(tmp_path, "other", evaluations=scored({30: 14, 40: 18}), **unknown)
    found = compare([one, other])
    assert (found.common, found.common_unit) == (40, "steps")
    # Between 10 at step 25 and 20 at step 50: 16 at step 40.
    assert [standing.score_at_common for standing in found.standings] == pytest.approx([16, 18])


def test_a_loss_is_better_the_lower_it_is(tmp_path):
    by_loss = {"recipe": {"evaluate": {"metric": "loss"}}}
    one = run_of(tmp_path, "one", evaluations={25: {"loss": 4.0}, 50: {"loss": 3.0}}, **by_loss)
    other = run_of(tmp_path, "other", evaluations={25: {"loss": 3.5}, 50: {"loss": 2.0}}, **by_loss)
    found = compare([one, other])
    assert found.same_score == 3.0
    assert "dev loss 1.000 lower after the same epochs" in found.sentences[0]


def test_cost_is_price_by_hosts_by_hours(tmp_path):
    hour = {"num_steps": 1, "step": seconds_a_step(3598.0), "hosts": ("a", "b")}
    run = run_of(tmp_path, **hour, evaluations=scored({1: 20.0}))
    standing = compare([run, run], price_per_hour=1.5).standings[1]
    # 2 s of start-up + 3,598 s = 1 hour on two hosts
    assert standing.cost == pytest.approx(2 * 1.5)
    assert standing.cost_to_same_score == pytest.approx(2 * 1.5)
    assert compare([run, run]).standings[1].cost is None


def test_the_sentence_names_what_sets_a_run_apart(tmp_path):
    one = run_of(tmp_path, "one", num_workers=1)
    two = run_of(tmp_path, "two", num_workers=2)
    nodes = run_of(tmp_path, "nodes", num_workers=2, hosts=("a", "b"))
    assert [sentence.split(":")[0] for sentence in compare([one, nodes]).sentences] == ["two nodes"]
    assert [sentence.split(":")[0] for sentence in compare([one, two]).sentences] == ["two workers"]
    assert [sentence.split(":")[0] for sentence in compare([two, run_of(tmp_path, "same")]).sentences] == ["same"]


def test_what_differs_is_listed_and_nothing_else(tmp_path):
    one = run_of(tmp_path, "one")
    other = run_of(tmp_path, "other", recipe={"optim": {"name": "sgd", "momentum": 0.9}}, summary={"precision": "bf16"})
    found = {(each.group, each.key): each.values for each in compare([one, other]).differences}
    assert found == {
        ("recipe", "optim.name"): ["adam", "sgd"],
        ("recipe", "optim.momentum"): [None, 0.9],
        ("machine", "precision"): ["fp32", "bf16"],
    }


def test_versions_and_vocabularies_that_differ_are_listed(tmp_path):
    one, other = run_of(tmp_path, "one"), run_of(tmp_path, "other")
    for run, text in ((one, b"a"), (other, b"b")):
        run.environment["libraries"] = {"torch": text.decode()}
        (run.path / "vocabulary.model").write_bytes(text)
    found = compare([one, other])
    assert {(each.group, each.key) for each in found.differences} == {("version", "torch"), ("data", "vocabulary")}
    assert "vocabularies differ, so tokens per second and losses per token" in found.obstacles[0].words
    # Told with that warning: the text may be the same.
    assert found.standings[1].speed_up == pytest.approx(1.0)


def test_pictures_and_sentences_cannot_be_compared(tmp_path):
    images = {"target_tokens": ABSENT, "target_tokens_per_second": ABSENT, "tokens_per_second": ABSENT, "images": 64}
    text = run_of(tmp_path, "text", evaluations=[25, 50])
    pictures = run_of(tmp_path, "pictures", step=images, recipe=IMAGES, evaluations={50: {"accuracy_1": 70.0}})
    found = compare([text, pictures])
    assert found.obstacles[0].forbids == "everything"
    assert found.standings[1].speed == pytest.approx(64 / 0.5)
    assert found.standings[1].speed_unit == "images/s"
    assert found.standings[1].speed_up is None
    assert found.same_score is None
    assert found.sentences == ["pictures: cannot be compared with the first run"]


def test_scores_on_other_sentences_are_not_compared_but_speeds_are(tmp_path):
    one = run_of(tmp_path, "one", evaluations=[50])
    other = run_of(tmp_path, "other", evaluations={50: {"sentences": 1000}})
    found = compare([one, other])
    assert [obstacle.forbids for obstacle in found.obstacles] == ["scores"]
    assert found.standings[1].speed_up == pytest.approx(1.0)
    assert found.same_score is None
    assert found.sentences == ["other: 1.00x as fast"]


def test_bleu_of_another_signature_is_not_compared(tmp_path):
    runs = [run_of(tmp_path, case, evaluations={50: {"bleu_signature": f"case:{case}"}}) for case in ("lc", "mixed")]
    assert compare(runs).obstacles[0].words.startswith("BLEU was computed in different ways")
    assert compare(runs).standings[1].score_difference is None


def test_other_data_is_pointed_out(tmp_path):
    one, other = run_of(tmp_path, "one"), run_of(tmp_path, "other")
    other.data = merged(other.data, {"pairs": {"train": 35000}})
    assert "trained on different data: one (demo-en-de, 69,000) and other (demo-en-de, 35,000)" in (
        compare([one, other]).obstacles[0].words
    )


def test_another_metric_falls_back_on_the_loss_all_have(tmp_path):
    one = run_of(tmp_path, "one", evaluations=[50])
    other = run_of(tmp_path, "other", evaluations={50: {"bleu": ABSENT}}, recipe={"evaluate": {"metric": "loss"}})
    found = compare([one, other])
    assert found.metric == "loss"
    assert "different metrics" in found.remarks[0]


def test_a_run_that_had_to_share_its_cores_is_pointed_out(tmp_path):
    # 0.2 s of each step of 0.5 s
    crowded = run_of(tmp_path, "crowded", step={"run_delay_seconds": 0.2})
    found = compare([crowded, run_of(tmp_path, "alone")])
    assert found.remarks == ["crowded had no free core for 40 % of a step: its speed is not what the machine can do."]


def test_runs_of_one_name_are_told_apart_by_their_folder(tmp_path):
    runs = [run_of(tmp_path / folder, "demo") for folder in ("a", "b")]
    assert [standing.name for standing in compare(runs).standings] == [str(run.path) for run in runs]


@pytest.mark.parametrize(
    "edge",
    [
        {"num_steps": 0, "status": "died"},
        {"num_steps": 1},
        {"evaluations": {25: {"bleu": None, "loss": None}}},
        {"step": {"loss": None, "step_seconds": None, "time": None}},
        {"status": "running", "evaluations": [25]},
        {"num_workers": 1, "hosts": ()},
        {"summary": {"hosts": ABSENT, "workers": ABSENT, "micro_batches_per_epoch": 0}},
    ],
    ids=["no steps", "one step", "no score", "no numbers", "running", "one worker", "bare summary"],
)
def test_whatever_a_run_lacks_the_rest_is_compared(tmp_path, edge):
    whole, lacking = run_of(tmp_path, "whole", evaluations=[25, 50]), run_of(tmp_path, "lacking", **edge)
    for runs in ([whole, lacking], [lacking, whole], [lacking, lacking]):
        found = compare(runs, price_per_hour=1.0)
        assert len(found.sentences) == 1
        json.dumps(finite(found.as_json()), allow_nan=False)


def test_the_training_loss_is_thinned_to_means(tmp_path):
    run = run_of(tmp_path, num_steps=400, step=lambda rank, step: {"loss": float(step)}, hosts=())
    steps, seconds, losses = loss_curve(compare([run, run]).standings[0])
    assert len(steps) == 100
    # Steps 1 to 4: mean 2.5, 0.5 s each after 2 s of start-up.
    assert losses[0] == steps[0] == 2.5
    assert seconds[0] == pytest.approx(2 + 2.5 * 0.5)
