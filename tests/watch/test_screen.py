"""What a person sees, at several sizes."""

from __future__ import annotations

import dataclasses
import io
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from tests.watch.growing import VERDICT, GrowingRun, snapshot_of

from konvoi.watch.lines import Lines
from konvoi.watch.screen import Screen

SIZES = [(80, 24), (120, 40), (40, 24), (40, 12), (20, 6), (8, 3)]


def drawn(view, width=80, height=24):
    """The lines as they stand on a terminal of that size, without colours."""
    console = Console(file=io.StringIO(), width=width, height=height, highlight=False)
    console.print(Screen(view))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def line_with(lines, word):
    (found,) = (line for line in lines if line.startswith(word))
    return found


def made(tmp_path, num_workers=2, num_steps=50, **about):
    run = GrowingRun(tmp_path / "my-run", num_workers=num_workers, **about)
    run.summary()
    run.started(at=time.time() - 60)
    run.steps(1, num_steps, at=time.time())
    return run


@pytest.fixture
def run(tmp_path):
    run = made(tmp_path)
    for step, bleu in ((20, 10.0), (30, 12.5), (40, 11.0)):
        values = {"seconds": 3.1, "loss": 5 - step / 20, "bleu": bleu, "chrf": 40.0}
        run.event("evaluation", step, at=time.time(), **values)
    for host in range(2):
        run.host(f"node-{host}")
    (run.path / "log.txt").write_text("first line\nlast\tline\x1b[31m\n")
    return run


def test_the_header_says_what_runs_where(run):
    assert drawn(snapshot_of(run))[0] == "my-run  running  2 workers on node-0, node-1  fp32 cpu"


def test_progress_has_its_bar_and_times(run):
    line = drawn(snapshot_of(run))[1]
    assert " 50 %  step 50 of 100  1:0" in line
    # 50 steps of 0.5 s and 50 x 9.3 / 50 s of evaluations = 34.3 s
    assert line.endswith("gone, 0:34 left")
    assert line.count("━") - line.count("─") in (0, 1)


def test_the_curves_have_the_last_value_and_the_best(run):
    lines = drawn(snapshot_of(run))
    assert line_with(lines, "loss").endswith("4.000")
    assert line_with(lines, "dev loss").split()[2:] == ["█▅▁", "3.000", "best", "3.000", "at", "step", "40"]
    assert line_with(lines, "BLEU").split()[1:] == ["▁█▄", "11.00", "best", "12.50", "at", "step", "30"]
    # 2 x 1,000 tokens in 0.5 s
    assert line_with(lines, "speed").endswith("4,000 target tokens/s")


def test_the_step_of_each_rank_is_a_bar_of_its_phases(run):
    lines = drawn(snapshot_of(run))
    first, second = line_with(lines, "rank 0"), line_with(lines, "rank 1")
    # 1,000 of 2,000 tokens are its own: 1,000 / 0.5 s
    assert first.endswith("2,000 tokens/s  node-0")
    # Rank 1 computes 0.2 s where rank 0 computes 0.1 s and waits 0.1 s.
    assert second.count("█") == pytest.approx(2 * first.count("█"), abs=1)
    assert first.count("░") == pytest.approx(first.count("█"), abs=1)
    assert "░" not in second


def test_the_legend_has_the_mean_over_the_ranks(run):
    text = " ".join(drawn(snapshot_of(run)))
    # forward (100 + 200) / 2, waiting (100 + 0) / 2, network 50 + 10 of the agreement
    for words in ("step 500 ms", "█ forward 150 ms", "▓ backward 190 ms", "░ waiting 50 ms", "▚ network 60 ms"):
        assert words in text


def test_where_waiting_is_not_known_it_is_one_exchange(tmp_path):
    run = made(tmp_path, num_workers=1)
    text = " ".join(drawn(snapshot_of(run)))
    # One worker: no communication in its events; here 100 + 50 + 10 ms
    assert "▚ exchange 160 ms" in text
    assert "waiting" not in text


def test_on_a_gpu_only_the_sampled_steps_tell_the_phases(tmp_path):
    run = made(tmp_path, num_workers=1, num_steps=0)
    for step in range(1, 21):
        sampled = {"sampled": True, "phases": {"forward": 0.4}} if step % 10 == 0 else {"phases": {"forward": 0.1}}
        run.step(step, at=time.time(), **sampled)
    assert any("forward 400 ms" in line for line in drawn(snapshot_of(run)))


def test_the_network_stands_against_its_link(run):
    line = line_with(drawn(snapshot_of(run)), "node-0")
    # The busier way of eth0, 5 MB/s x 8 = 40 of 100 Mbit/s; lo does not count. CPU (100 + 60) / 2
    assert line == "node-0   in 40 out 20 of 100 Mbit/s  ━━━───── 40 %  CPU 80 %  RAM 3.2 of 8 GB"


def test_gpus_and_what_slows_them_down(tmp_path):
    run = made(tmp_path)
    gpu = {"busy_percent": 97, "memory_used_bytes": 11e9, "memory_total_bytes": 16e9, "power_watts": 231.4}
    run.host("node-0", gpus=[gpu, {"busy_percent": 12, "throttled_by": ["heat"]}])
    text = "\n".join(drawn(snapshot_of(run)))
    assert "GPU 0 97 %, 11.0 of 16 GB, 231 W" in text
    assert "GPU 1 12 %, slowed down by heat" in text


def test_the_verdict_with_its_sentence_and_the_best_advice(run):
    lines = drawn(snapshot_of(run))
    assert "Network (bandwidth): 0.26 s of a step of 0.5 s." in lines
    assert "next: half precision gradients: 1.71 -> 0.98 s (--set sync.name=fp16)" in lines


def test_the_last_evaluation_and_where_there_is_room_the_log(run):
    lines = drawn(snapshot_of(run))
    assert "evaluation at step 40:  dev loss 3.000  BLEU 11.00  chrF 40.00  (3.1 s)" in lines
    assert not any("line" in line for line in drawn(snapshot_of(run), height=15))
    lines = drawn(snapshot_of(run), height=40)
    # What a terminal would take for a command is not passed on.
    assert lines[-2:] == ["first line", "last line [31m"]


@pytest.mark.parametrize("width, height", SIZES)
@pytest.mark.parametrize("num_ranks", [1, 2, 40])
def test_it_fits_every_size(tmp_path, width, height, num_ranks):
    run = made(tmp_path, num_workers=num_ranks, num_steps=3)
    for host in range(min(4, num_ranks)):
        run.host(f"a-host-with-a-long-name-{host}.example.org")
    long = dataclasses.replace(VERDICT, sentence="a sentence that goes on " * 40)
    lines = drawn(snapshot_of(run, long), width, height)
    assert 0 < len(lines) <= height
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("my-run"[: width - 1])


def test_what_there_is_no_room_for_is_counted(tmp_path):
    run = made(tmp_path, num_workers=40, num_steps=3)
    lines = drawn(snapshot_of(run))
    shown = [line for line in lines if line.startswith("rank ")]
    assert shown
    assert f"and {40 - len(shown)} of 40 ranks more" in lines
    assert any("Network (bandwidth)" in line for line in lines)


def test_on_a_narrow_terminal_the_numbers_stay(run):
    lines = drawn(snapshot_of(run), width=40)
    assert line_with(lines, "BLEU").split()[-3:] == ["11.00", "best", "12.50"]
    assert line_with(lines, "step 50 of 100")
    assert line_with(drawn(snapshot_of(run), width=20), "loss").split() == ["loss", "4.000"]


def test_a_run_that_died_says_since_when(tmp_path):
    run = GrowingRun(tmp_path / "my-run")
    run.summary()
    run.step(1, at=time.time() - 600)
    lines = drawn(snapshot_of(run))
    assert lines[0].startswith("my-run  died  2 workers")
    assert lines[1].startswith("last event at 20")
    assert "10:0" in lines[1]


def test_a_run_that_is_silent_for_long_says_so(tmp_path):
    run = GrowingRun(tmp_path / "my-run")
    run.summary()
    run.step(1, at=time.time() - 60)
    assert "running, no event for 1:0" in drawn(snapshot_of(run))[0]
    # Three steps of 30 s are longer than that.
    run.step(2, at=time.time() - 60, step_seconds=60.0)
    assert "no event" not in drawn(snapshot_of(run))[0]


def test_a_run_that_has_not_started(tmp_path):
    lines = drawn(snapshot_of(GrowingRun(tmp_path / "my-run")))
    assert lines[0].startswith("my-run  not started, waiting for its first event")
    assert lines[1].endswith("  0 %  step 0 of 100  0:00 gone")


def test_an_old_run_with_little_in_its_events(tmp_path):
    run = GrowingRun(tmp_path / "my-run")
    run.event("step", 1, loss=None)
    run.event("evaluation", 1, loss=None, bleu=None)
    lines = drawn(snapshot_of(run))
    assert line_with(lines, "loss").split() == ["loss", "nan"]
    assert not any(line.startswith(("rank", "BLEU", "speed")) for line in lines)


KINDS = ["started", "step", "evaluation", "checkpoint", "restart", "finished", "unheard of"]
NUMBERS = st.none() | st.floats(0, 1e6, allow_nan=False) | st.just(0)
EVENTS = st.fixed_dictionaries(
    {"kind": st.sampled_from(KINDS)},
    optional={
        "time": NUMBERS,
        "step": st.integers(0, 9) | st.none(),
        **dict.fromkeys(("loss", "bleu", "seconds", "step_seconds", "own_images", "images_per_second"), NUMBERS),
        "phases": st.dictionaries(st.sampled_from(["data", "forward", "agreement"]), NUMBERS),
        "communication": st.dictionaries(st.just("waiting_seconds"), NUMBERS),
        "host": st.sampled_from(["", "node-0"]),
    },
)
SAMPLES = st.fixed_dictionaries(
    {"kind": st.sampled_from(["host", "sample"])},
    optional={
        **dict.fromkeys(("seconds", "memory_used_bytes", "memory_bytes"), NUMBERS),
        "job_interface": st.sampled_from([None, "eth0"]),
        "interfaces": st.fixed_dictionaries({}, optional={"eth0": st.just({}) | st.just({"bytes_in": 1})}),
        "cpu_percent": st.lists(NUMBERS, max_size=2),
        "gpus": st.lists(st.dictionaries(st.sampled_from(["busy_percent", "power_watts"]), NUMBERS), max_size=2),
    },
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(events=st.lists(EVENTS, max_size=12), samples=st.lists(SAMPLES, max_size=4))
def test_any_mix_of_events_can_be_shown(tmp_path_factory, events, samples):
    run = GrowingRun(tmp_path_factory.mktemp("soup") / "my-run", num_workers=1)
    run.write(0, "".join(json.dumps(event) + "\n" for event in events))
    (run.path / "hosts").mkdir()
    (run.path / "hosts" / "node-0.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    view = snapshot_of(run)
    assert drawn(view)[0].startswith("my-run")
    assert list(Lines().of(view))


def test_faults_have_a_line_with_the_last_one(tmp_path):
    run = made(tmp_path)
    assert not [line for line in drawn(snapshot_of(run)) if "fault" in line]
    fault = {"kind": "fault", "time": time.time(), "rank": 1, "host": "h2", "what": "was ended by\x1b[2J SIGKILL"}
    run.write(0, json.dumps(fault) + "\n")
    run.event("restart", 50, at=time.time(), workers=2, stall_seconds=2.25)
    run.write(0, json.dumps({**fault, "time": time.time()}) + "\n")
    line = line_with(drawn(snapshot_of(run)), "two faults")
    assert line == "two faults, one restart, 2.2 s without a step  last: h2 rank 1: was ended by [2…"
