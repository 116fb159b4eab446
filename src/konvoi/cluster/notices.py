"""Clouds tell a rented (spot) machine that they take it back: asked for on every host, where the recipe says whom.

Each cloud has an address that only its own machines reach. AWS tells two minutes before, Google and Azure 30 seconds.
"""

from __future__ import annotations

import json
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any

# An address to ask instead of the cloud's own.
ADDRESS = "KONVOI_NOTICE_ADDRESS"
LINK_LOCAL = "http://169.254.169.254"
# Azure recommends to ask every second, AWS every five.
ASK_SECONDS = 2.0
ANSWER_SECONDS = 10.0
MAX_BYTES = 1 << 20
# Whatever the environment says: no proxy may answer for the machine.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask_aws() -> str:
    """https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html"""
    lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    token = _answer(LINK_LOCAL, "/latest/api/token", lifetime, method="PUT")
    try:
        text = _answer(LINK_LOCAL, "/latest/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": token})
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return ""
        raise
    told = json.loads(text)
    return f"AWS takes this machine back: {told['action']} at {told['time']}"


def ask_gcp() -> str:
    """https://cloud.google.com/compute/docs/instances/create-use-spot"""
    path = "/computeMetadata/v1/instance/preempted"
    is_taken = _answer("http://metadata.google.internal", path, {"Metadata-Flavor": "Google"}).strip() == "TRUE"
    return "Google Cloud takes this machine back within 30 s" if is_taken else ""


def ask_azure() -> str:
    """https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events"""
    header = {"Metadata": "true"}
    told = json.loads(_answer(LINK_LOCAL, "/metadata/scheduledevents?api-version=2020-07-01", header))
    events = [event for event in told["Events"] if event["EventType"] == "Preempt"]
    if not events:
        return ""
    # All machines of a scale set are told of all of them.
    name = _answer(LINK_LOCAL, "/metadata/instance/compute/name?api-version=2021-02-01&format=text", header).strip()
    ours: list[dict[str, Any]] = [event for event in events if name in event["Resources"]]
    return f"Azure takes this machine back: not before {ours[0]['NotBefore'] or 'now'}" if ours else ""


CLOUDS = {"aws": ask_aws, "gcp": ask_gcp, "azure": ask_azure}


class Watcher(threading.Thread):
    """Asks until there is a notice; of a cloud without a name, nobody."""

    def __init__(self, cloud: str, on_notice: Callable[[str], None] = lambda notice: None) -> None:
        super().__init__(name="notices", daemon=True)
        self.notice = ""
        """In words, once there is one."""
        self._cloud, self._on_notice = cloud, on_notice
        self._over = threading.Event()
        if cloud:
            self.start()

    def close(self) -> None:
        self._over.set()

    def run(self) -> None:
        has_complained = False
        while not self._over.is_set() and not self.notice:
            try:
                self.notice = CLOUDS[self._cloud]()
            except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
                if not has_complained:
                    print(f"{self._cloud} does not say whether it takes this machine back ({error!r})", flush=True)
                has_complained = True
            self._over.wait(0.0 if self.notice else ASK_SECONDS)
        if self.notice:
            self._on_notice(self.notice)


def _answer(address: str, path: str, headers: Mapping[str, str], method: str = "GET") -> str:
    address = os.environ.get(ADDRESS) or address
    request = urllib.request.Request(address + path, headers=dict(headers), method=method)
    with OPENER.open(request, timeout=ANSWER_SECONDS) as answer:
        text: str = answer.read(MAX_BYTES).decode()
        return text
