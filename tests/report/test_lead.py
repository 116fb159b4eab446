"""The paragraph on top, which people quote, and what must be known before it."""

from __future__ import annotations

import pytest
from tests.analysis.made_runs import make_run

from konvoi.analysis.diagnosis import diagnose
from konvoi.analysis.record import RunRecord
from konvoi.report.page import build, verdict_note


def page(path, **how):
    return build(RunRecord.read(make_run(path / "runs" / "tiny", **how)))


def test_how_long_on_what_how_good_and_what_bound_it(tmp_path):
    found = page(tmp_path, evaluations={50: {"bleu": 31.42, "loss": 2.1}}, hosts=("a", "b"))
    # 50 steps of 0.5 s, 2 s of start-up, an evaluation of 1 s: 28 s
    assert found.lead.startswith(
        "tiny (transformer, translation en-de, 1.5 million parameters) was trained for 28.0 s, 50 steps, "
        "on 2 CPU workers on 2 machines. It went at 4,000 target tokens/s. "
        "It reached BLEU 31.42 and dev loss 2.100 at step 50. Compute"
    )


def test_a_better_step_before_the_last_is_named(tmp_path):
    best = {"best": {"metric": "bleu", "value": 40.0, "step": 25}}
    assert "; the best was BLEU 40.00 at step 25." in page(tmp_path, evaluations=[25, 50], summary=best).lead


def test_without_an_evaluation_it_says_so(tmp_path):
    assert "It was not evaluated." in page(tmp_path).lead


def test_too_little_to_tell_is_said(tmp_path):
    found = page(tmp_path, num_steps=1, num_workers=1)
    assert "one step, on 1 CPU worker on 1 machine." in found.lead
    assert "What bound it can't be told." in found.lead
    assert found.notes[-1].title == "What bound it: can't tell"


@pytest.mark.parametrize(
    ("status", "title"),
    [
        ("running", "The run is still going on"),
        ("died", "The run died after step 50"),
        ("failed", "The run failed after step 50"),
    ],
)
def test_numbers_that_are_not_final_have_a_warning_before_them(tmp_path, status, title):
    first, verdict = page(tmp_path, status=status).notes
    assert (first.tone, first.title) == ("caution", title)
    assert verdict.title.startswith("What bound it: ")


def test_a_finished_run_needs_no_warning(tmp_path):
    assert len(page(tmp_path).notes) == 1


def test_the_verdict_shows_its_evidence_and_the_next_step_with_its_gain(tmp_path):
    step = {"phases": {"exposed_communication": 0.6}}
    run = RunRecord.read(make_run(tmp_path / "run", step=step, hosts=("a", "b")))
    verdict = diagnose(run)
    note = verdict_note(verdict)
    assert note.title == f"What bound it: network ({verdict.kind})"
    assert note.text == verdict.sentence
    assert verdict.evidence
    assert set(verdict.evidence) <= set(note.details)
    advice = verdict.advice[0]
    assert f"Next: {advice.words}: {advice.before_seconds:.3g} -> {advice.after_seconds:.3g} s" in "\n".join(
        note.details
    )
