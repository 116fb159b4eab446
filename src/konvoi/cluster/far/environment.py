"""A virtual environment on a host: what is in it, making it, installing into it.

Runs in the Python that makes it. Pip comes as a wheel, so that a Python without ensurepip will do (Debian's, Ubuntu's).
"""

from __future__ import annotations

import glob
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

MARK_FILE = "konvoi-setup.json"
PIP = ["-m", "pip", "--no-input", "--disable-pip-version-check"]
# A firewall that swallows packets costs this, twice.
INDEX_SECONDS = 8


def look(venv: str) -> dict[str, Any]:
    """This Python and machine, the environment's Python (None where it does not run), its mark and its versions."""
    venv = os.path.expanduser(venv)
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "glibc": platform.libc_ver()[1],
        "is_there": os.path.isdir(venv),
        "venv_python": _version_of(_python(venv)),
        "mark": _read_json(os.path.join(venv, MARK_FILE)),
        "versions": _versions(venv),
    }


def make(venv: str) -> None:
    """Anew, where there is one that is of no use."""
    venv = os.path.expanduser(venv)
    # Removed by venv itself, which leaves a folder of another kind alone.
    is_venv = os.path.isfile(os.path.join(venv, "pyvenv.cfg"))
    if os.path.isdir(venv) and os.listdir(venv) and not is_venv:
        raise FileExistsError(f"{venv} is there and no virtual environment")
    list(_run([sys.executable, "-m", "venv", "--without-pip", "--clear", venv]))


def unmark(venv: str) -> None:
    """Before a change: what is cut short is then not taken for whole."""
    path = os.path.join(os.path.expanduser(venv), MARK_FILE)
    if os.path.exists(path):
        os.remove(path)


def install_pip(venv: str, wheel: str) -> None:
    """Runs the pip in the wheel to install the wheel."""
    venv, wheel = os.path.expanduser(venv), os.path.expanduser(wheel)
    if _versions(venv).get("pip") != os.path.basename(wheel).split("-")[1]:
        words = [os.path.join(wheel, "pip"), "install", "--quiet", "--no-index", "--no-compile", wheel]
        list(_run([_python(venv), *words]))


def reaches_index(venv: str, pin: str) -> bool:
    """Whether pip finds a distribution on the index that this host is set up for."""
    words = ["install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet", pin]
    patience = ["--retries", "1", "--timeout", str(INDEX_SECONDS)]
    try:
        list(_run([_python(os.path.expanduser(venv)), *PIP, *words, *patience]))
    except RuntimeError:
        return False
    return True


def install(venv: str, wheel: str, extras: str, pins: str, links: str | None) -> Iterator[str]:
    """The wheel and what it needs, in the versions of the pins; with `links` from that folder alone. Yields lines."""
    python = _python(os.path.expanduser(venv))
    wheel, pins = os.path.expanduser(wheel), os.path.expanduser(pins)
    source = ["--no-index", "--find-links", os.path.expanduser(links)] if links else []
    variables = _without_settings() if links else dict(os.environ)
    # Another build of the same version would pass for what is there already.
    again = [*PIP, "install", "--no-index", "--no-deps", "--force-reinstall", wheel]
    yield from _run([python, *PIP, "install", *source, "--constraint", pins, wheel + extras], variables)
    yield from _run([python, *again])


def mark(venv: str, key: str) -> None:
    """Remembers what the environment is made of, and what is in it now."""
    venv = os.path.expanduser(venv)
    path = os.path.join(venv, MARK_FILE)
    with open(path + ".new", "w") as stream:
        json.dump({"key": key, "versions": _versions(venv)}, stream, indent=2)
    os.replace(path + ".new", path)


def _python(venv: str) -> str:
    return os.path.join(venv, "bin", "python")


def _version_of(python: str) -> str | None:
    program = "import platform; print(platform.python_version())"
    try:
        done = subprocess.run([python, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode().strip() if done.returncode == 0 else None


def _versions(venv: str) -> dict[str, str]:
    """{name: version} of all that is installed, from the names of their folders."""
    found = {}
    for path in glob.glob(os.path.join(glob.escape(venv), "lib", "python*", "site-packages", "*.dist-info")):
        name, _, version = os.path.basename(path)[: -len(".dist-info")].partition("-")
        found[re.sub(r"[-_.]+", "-", name).lower()] = version
    return found


def _without_settings() -> dict[str, str]:
    """The environment but for what tells pip of other places; nor does it read of them in a file."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    return {**variables, "PIP_CONFIG_FILE": os.devnull}


def _run(words: list[str], variables: dict[str, str] | None = None) -> Iterator[str]:
    """Yields the lines that a program prints; raises with its last ones where it fails."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=variables)
    said = []
    try:
        assert process.stdout
        for line in process.stdout:
            said.append(line.decode(errors="replace").rstrip())
            yield said[-1]
    finally:
        # Also where nobody listens any more.
        if sys.exc_info()[0] is not None:
            process.kill()
        code = process.wait()
    if code:
        errors = [line for line in said if line.startswith("ERROR")] or said[-1:]
        raise RuntimeError("; ".join(errors) or f"{words[0]} ended with {code}")


def _read_json(path: str) -> dict[str, Any]:
    try:
        with open(path) as stream:
            return dict(json.load(stream))
    except (OSError, ValueError):
        return {}
