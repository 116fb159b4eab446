"""konvoi cluster setup --offline, with all of Konvoi and torch, to a host without a network: does it train there?

    python benchmarks/cluster/setup.py

Needs root on Linux and an index for pip. The test suite does the same with two tiny wheels.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.hosts import Hosts

from konvoi.cluster.setup.kit import make_kit
from konvoi.cluster.setup.wheels import Platform, wheels_for
from konvoi.data.home import konvoi_home
from konvoi.stages import silent

# Only against a hang: a busy machine takes minutes to install torch.
PATIENCE_SECONDS = 1800


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        # The laptop, whose home is another, finds the wheels there too.
        os.environ["KONVOI_HOME"] = str(konvoi_home())
        (folder / "kit").mkdir()
        started_at = time.monotonic()
        # Now: between hosts there is no way out.
        wheels = wheels_for(make_kit(folder / "kit"), Platform.here(), silent)
        num_bytes = sum(path.stat().st_size for path in wheels.values())
        print(f"{len(wheels)} wheels, {num_bytes / 1e6:,.0f} MB, here after {time.monotonic() - started_at:.0f} s")
        with Hosts(1, folder / "hosts") as hosts:
            hosts.write(environment=None)
            for words in ("first", "second"):
                started_at = time.monotonic()
                told = set_up(hosts)
                print(f"{words} setup, {time.monotonic() - started_at:.0f} s: {told}")
            # With what was installed there, not with the sources that this program may have been started on.
            konvoi = ["env", "-u", "PYTHONPATH", hosts[0].home / "konvoi/venv/bin/konvoi"]
            command = [*konvoi, "train", "demo", "--run", folder / "run", "--quiet"]
            hosts[0].run([*command, "--set", "train.duration=5 steps"], cwd=folder, timeout=PATIENCE_SECONDS)
            print(f"trained 5 steps there: {(folder / 'run' / 'summary.json').is_file()}")


def set_up(hosts: Hosts) -> str:
    """The line of the first host."""
    words = ["cluster", "setup", "--offline", "--cluster", hosts.file]
    with hosts.launcher(words, stdout=subprocess.PIPE, text=True) as process:
        told, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    return str(told.splitlines()[0])


if __name__ == "__main__":
    main()
