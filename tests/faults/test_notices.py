"""A cloud takes a machine back: its host saves and leaves, the others go on. The cloud is a server that speaks so."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.cluster.test_node import Hosts
from tests.faults.test_hosts_lost import ENDLESS, has_gone_on
from tests.processes import Trainings, checkpoint_steps, ended, start_process, state, steps, wait_until

from konvoi.cluster import notices
from konvoi.cluster.job_spec import JobSpec, spec_file
from konvoi.cluster.notices import CLOUDS, Watcher
from konvoi.exit_codes import INTERRUPTED
from konvoi.folder import write_whole
from konvoi.run_directory import RunDirectory

# As documented by the three.
AWS_NOTICE = json.dumps({"action": "terminate", "time": "2026-11-16T08:22:00Z"})
AZURE_EVENT = {
    "EventId": "A123BC45-1234-5678-AB90-ABCDEF123456",
    "EventStatus": "Scheduled",
    "EventType": "Preempt",
    "ResourceType": "VirtualMachine",
    "Resources": ["spot_2"],
    "NotBefore": "Mon, 16 Nov 2026 18:29:47 GMT",
    "Description": "",
    "EventSource": "Platform",
    "DurationInSeconds": -1,
}
WORDS = {
    "aws": "AWS takes this machine back: terminate at 2026-11-16T08:22:00Z",
    "gcp": "Google Cloud takes this machine back within 30 s",
    "azure": "Azure takes this machine back: not before Mon, 16 Nov 2026 18:29:47 GMT",
}


class Cloud(ThreadingHTTPServer):
    """All three clouds' addresses: who asks without what they want is refused."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server_address[1]}"
        self.takes_back = False
        self.machine = "spot_2"
        self.num_asked = 0
        self.nonsense = ""

    def answer(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
        self.num_asked += 1
        if self.nonsense:
            return 200, self.nonsense
        match method, path:
            case "PUT", "/latest/api/token":
                return (200, "a token") if headers.get("x-aws-ec2-metadata-token-ttl-seconds") else (400, "")
            case "GET", "/latest/meta-data/spot/instance-action":
                if headers.get("x-aws-ec2-metadata-token") != "a token":
                    return 401, ""
                return (200, AWS_NOTICE) if self.takes_back else (404, "")
            case "GET", "/computeMetadata/v1/instance/preempted":
                if headers.get("metadata-flavor") != "Google":
                    return 403, ""
                return 200, "TRUE" if self.takes_back else "FALSE"
            case "GET", "/metadata/scheduledevents?api-version=2020-07-01":
                events = [AZURE_EVENT] if self.takes_back else [{**AZURE_EVENT, "EventType": "Freeze"}]
                content = json.dumps({"DocumentIncarnation": 1, "Events": events})
                return (200, content) if headers.get("metadata") == "true" else (400, "")
            case "GET", "/metadata/instance/compute/name?api-version=2021-02-01&format=text":
                return (200, self.machine) if headers.get("metadata") == "true" else (400, "")
        return 404, ""


class Handler(BaseHTTPRequestHandler):
    server: Cloud

    def do_GET(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        status, text = self.server.answer(self.command, self.path, headers)
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    do_PUT = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    with Cloud() as cloud:
        threading.Thread(target=cloud.serve_forever, daemon=True).start()
        monkeypatch.setenv(notices.ADDRESS, cloud.address)
        # As in many a company: nothing of this may go through it.
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        yield cloud
        cloud.shutdown()


@pytest.mark.parametrize("name", CLOUDS)
def test_a_notice_is_heard_in_each_clouds_own_words(cloud: Cloud, name: str) -> None:
    assert CLOUDS[name]() == ""
    cloud.takes_back = True
    assert CLOUDS[name]() == WORDS[name]


def test_azures_notice_for_another_machine_of_the_set_is_not_ours(cloud: Cloud) -> None:
    cloud.takes_back, cloud.machine = True, "spot_3"
    assert CLOUDS["azure"]() == ""


def test_a_watcher_goes_on_asking_until_there_is_a_notice(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "ASK_SECONDS", 0.01)
    heard: list[str] = []
    watcher = Watcher("gcp", heard.append)
    while cloud.num_asked < 3:
        time.sleep(0.01)
    assert (heard, watcher.notice) == ([], "")
    cloud.takes_back = True
    watcher.join(60)
    assert heard == [watcher.notice] == [WORDS["gcp"]]


def test_a_cloud_that_does_not_answer_is_told_of_once_and_is_no_notice(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(notices, "ASK_SECONDS", 0.01)
    cloud.nonsense = "<html>"
    watcher = Watcher("azure")
    while cloud.num_asked < 3:
        time.sleep(0.01)
    watcher.close()
    watcher.join(60)
    assert watcher.notice == ""
    assert capfd.readouterr().out.count("azure does not say whether it takes this machine back") == 1


def test_nobody_is_asked_unless_the_recipe_says_whom(cloud: Cloud, trainings: Trainings) -> None:
    assert trainings.recipe().faults.notices == ""
    watcher = Watcher("")
    assert not watcher.is_alive()
    assert cloud.num_asked == 0


@pytest.mark.parametrize("leaver", [0, pytest.param(2, marks=pytest.mark.long)], ids=["the first", "the last"])
def test_a_host_that_is_taken_back_saves_and_leaves_and_the_others_go_on(
    trainings: Trainings, cloud: Cloud, leaver: int
) -> None:
    hosts = Hosts(trainings, (1, 1, 1), *ENDLESS, "checkpoint.every=100000 steps", "faults.notices=aws")
    hosts.write_specs()
    for node, run in enumerate(hosts.runs):
        spec = JobSpec.from_json(spec_file(run.path).read_text())
        # The others' cloud has nothing to say.
        address = cloud.address if node == leaver else f"{cloud.address}/nothing"
        own = replace(spec, environment={**spec.environment, notices.ADDRESS: address})
        write_whole(spec_file(run.path), own.to_json())
    hosts.agents = [start_process(_agent(run), {}) for run in hosts.runs]
    wait_until(lambda: len(steps(hosts.runs[1], 1)) >= 6, hosts.agents[1])
    cloud.takes_back = True
    assert ended(hosts.agents[leaver]) == INTERRUPTED
    wait_until(has_gone_on(hosts, 1), hosts.agents[1])
    hosts.agents[1].terminate()
    others = [node for node in range(3) if node != leaver]
    assert [ended(hosts.agents[node]) for node in others] == [INTERRUPTED] * 2

    name, run = hosts.members[leaver].name, hosts.runs[1]
    (fault,) = [event for event in run.events_of(1) if event["kind"] == "fault"]
    assert (fault["host"], fault["what"]) == (name, WORDS["aws"])
    assert f"{name}: {WORDS['aws']}" in hosts.runs[leaver].log_file.read_text()
    (restart,) = [event for event in run.events_of(1) if event["kind"] == "restart"]
    assert restart["workers"] == 2
    # All saved first: no step was made twice, though no checkpoint was due.
    made = [event["step"] for event in run.events_of(1) if event["kind"] == "step"]
    assert made == list(range(1, run.summary()["steps"] + 1))
    assert state(run)["position"] == 3 * restart["step"] + 2 * (made[-1] - restart["step"])


def _agent(run: RunDirectory) -> str:
    imports = "import sys; from pathlib import Path; from konvoi.commands.node import node"
    return f"{imports}; sys.exit(node(Path({str(run.path)!r})))"


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.long), 2])
def test_a_machine_that_trains_alone_saves_and_ends(
    cloud: Cloud, tiny_recipe: Path, tmp_path: Path, workers: int
) -> None:
    words = ["train", tiny_recipe, "--run", tmp_path / "run", "--workers", str(workers), "--set", "faults.notices=gcp"]
    words += ["--set", 'train.duration="100000 steps"']
    run = RunDirectory(tmp_path / "run")
    process = subprocess.Popen([sys.executable, "-m", "konvoi", *map(str, words)], stderr=subprocess.PIPE, text=True)
    give_up_at = time.monotonic() + 240
    while not steps(run) and process.poll() is None and time.monotonic() < give_up_at:
        time.sleep(0.1)
    cloud.takes_back = True
    _, said = process.communicate(timeout=240)
    assert process.returncode == INTERRUPTED, said
    assert f"{WORDS['gcp']}; saving, and ending" in said
    assert run.summary()["status"] == "interrupted"
    assert checkpoint_steps(run)[-1] == run.summary()["steps"] > 0
