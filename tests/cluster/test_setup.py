"""konvoi cluster setup on real hosts. Environments are made of two tiny wheels, by the code that installs Konvoi.

The whole of Konvoi with torch, pushed to a host without a network, is in benchmarks/cluster/setup.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import distribution, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from PIL import Image
from tests.hosts import Hosts, Machine

import konvoi
from konvoi import registry
from konvoi.cluster.dataset import digest_on, needed, push_data
from konvoi.cluster.hosts import Cluster
from konvoi.cluster.session import Session
from konvoi.cluster.setup import environment as environment_module
from konvoi.cluster.setup.environment import bring, verify_prebuilt
from konvoi.cluster.setup.kit import Kit, kit_of, pins_of
from konvoi.cluster.setup.wheel import installed_wheel, own_wheel
from konvoi.cluster.setup.wheels import Platform, wheels_for
from konvoi.commands.cluster_setup import SetUp
from konvoi.config.recipe import read
from konvoi.data.home import konvoi_home
from konvoi.data.prepared import PreparedSet
from konvoi.errors import ClusterError, HostError
from konvoi.images.demo import make_demo_images
from konvoi.images.image_set import ImageSet
from konvoi.images.prepare import prepare_images
from konvoi.stages import silent

SAY = "import tiny; print(tiny.SAYS)"
TAG = "py3-none-any"


def tiny_wheel(folder: Path, name: str, version: str, source: str, requires: str = "", tag: str = TAG) -> Path:
    """As small as a wheel can be."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}"
    files = {f"{name}.py": source, f"{info}/METADATA": metadata, f"{info}/WHEEL": f"Wheel-Version: 1.0\nTag: {tag}\n"}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in {**files, f"{info}/RECORD": "".join(f"{file},,\n" for file in files)}.items():
            archive.writestr(file, text)
    return path


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """All that pip on this machine may take wheels from."""
    folder = tmp_path_factory.mktemp("index")
    for number in ("0.9", "1.0"):
        tiny_wheel(folder, "tiny_core", number, f"VERSION = {number!r}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(folder))
        patch.setenv("PIP_CONFIG_FILE", os.devnull)
        yield folder


@pytest.fixture(scope="module")
def kit(index: Path, tmp_path_factory: pytest.TempPathFactory) -> Kit:
    """tiny, which needs tiny_core 1.0."""
    folder = tmp_path_factory.mktemp("kit")
    wheel = tiny_wheel(folder, "tiny", "1.0", new_source("tiny"), "Requires-Dist: tiny_core\n")
    kit = kit_of(wheel, folder)
    # Pins are of what is installed here, which tiny_core is not.
    assert kit.pins == ()
    kit.pins_file.write_text("tiny-core==1.0\n")
    return replace(kit, pins=("tiny-core==1.0",))


def new_source(words: str) -> str:
    return f"import tiny_core\nSAYS = '{words} on ' + tiny_core.VERSION\n"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with Hosts(2, tmp_path_factory.mktemp("hosts")) as hosts:
        yield hosts


@pytest.fixture
def cluster(hosts: Hosts) -> Iterator[Cluster]:
    """Where setup makes the environment."""
    hosts.write(environment=None)
    yield hosts.cluster
    hosts.write()


@pytest.fixture
def session(hosts: Hosts, cluster: Cluster) -> Iterator[Session]:
    with Session(cluster, cluster.hosts[0]) as session:
        yield session


@pytest.fixture
def venv(session: Session, cluster: Cluster, kit: Kit, hosts: Hosts) -> Path:
    """Of the first host, as setup left it."""
    bring(session, cluster, kit, offline=True)
    return hosts[0].home / "konvoi" / "venv"


def says(host: Machine) -> str:
    return host.run([host.home / "konvoi/venv/bin/python", "-c", SAY]).strip()


def states(folder: Path) -> dict[Path, tuple[int, int]]:
    """Changes with every file that is written."""
    return {path: (path.lstat().st_mtime_ns, path.lstat().st_ino) for path in folder.rglob("*")}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class TestEnvironment:
    def test_wheels_are_pushed_where_nothing_can_be_fetched_and_again_changes_nothing(
        self, session: Session, cluster: Cluster, kit: Kit, hosts: Hosts
    ) -> None:
        assert bring(session, cluster, kit, offline=True) == "made"
        assert says(hosts[0]) == "tiny on 1.0"
        before = states(hosts[0].home / "konvoi")
        assert len(before) > 100
        assert bring(session, cluster, kit, offline=True) == "unchanged"
        assert states(hosts[0].home / "konvoi") == before

    def test_a_host_without_an_index_gets_them_unasked(self, cluster: Cluster, kit: Kit, hosts: Hosts) -> None:
        with Session(cluster, cluster.hosts[1]) as session:
            assert bring(session, cluster, kit) == "made"
        assert says(hosts[1]) == "tiny on 1.0"
        assert (hosts[1].home / "konvoi/wheels/tiny_core-1.0-py3-none-any.whl").exists()

    def test_a_host_with_an_index_fetches_them_itself(
        self, cluster: Cluster, kit: Kit, hosts: Hosts, index: Path
    ) -> None:
        config = hosts[1].home / ".config/pip/pip.conf"
        config.parent.mkdir(parents=True)
        config.write_text(f"[global]\nno-index = true\nfind-links = {index}\n")
        shutil.rmtree(hosts[1].home / "konvoi", ignore_errors=True)
        with Session(cluster, cluster.hosts[1]) as session:
            assert bring(session, cluster, kit) == "made"
        assert says(hosts[1]) == "tiny on 1.0"
        assert not (hosts[1].home / "konvoi/wheels/tiny_core-1.0-py3-none-any.whl").exists()
        shutil.rmtree(config.parent)

    def test_offline_takes_nothing_but_what_was_pushed(
        self, cluster: Cluster, kit: Kit, hosts: Hosts, tmp_path: Path
    ) -> None:
        # Of two builds of a version pip takes the one with the higher build number.
        tempting = tiny_wheel(tmp_path, "tiny_core", "1.0", "VERSION = 'of the host itself'")
        tempting.rename(tmp_path / "tiny_core-1.0-7-py3-none-any.whl")
        config = hosts[1].home / ".config/pip/pip.conf"
        config.parent.mkdir(parents=True)
        config.write_text(f"[global]\nfind-links = {tmp_path}\n")
        shutil.rmtree(hosts[1].home / "konvoi", ignore_errors=True)
        with Session(cluster, cluster.hosts[1]) as session:
            bring(session, cluster, kit, offline=True)
        shutil.rmtree(config.parent)
        assert says(hosts[1]) == "tiny on 1.0"

    def test_an_altered_version_is_mended(
        self, session: Session, cluster: Cluster, kit: Kit, hosts: Hosts, venv: Path, index: Path
    ) -> None:
        words = ["-m", "pip", "install", "--no-index", "--find-links", index, "tiny_core==0.9"]
        hosts[0].run([venv / "bin/python", *words])
        assert says(hosts[0]) == "tiny on 0.9"
        assert bring(session, cluster, kit, offline=True) == "mended: tiny-core"
        assert says(hosts[0]) == "tiny on 1.0"

    def test_what_was_removed_is_mended(
        self, session: Session, cluster: Cluster, kit: Kit, hosts: Hosts, venv: Path
    ) -> None:
        hosts[0].run([venv / "bin/python", "-m", "pip", "uninstall", "--yes", "tiny", "tiny_core"])
        assert bring(session, cluster, kit, offline=True) == "mended: tiny, tiny-core"
        assert says(hosts[0]) == "tiny on 1.0"

    def test_what_others_added_stays(
        self, session: Session, cluster: Cluster, kit: Kit, venv: Path, hosts: Hosts, tmp_path: Path
    ) -> None:
        added = tiny_wheel(tmp_path, "added", "1.0", "")
        hosts[0].run([venv / "bin/python", "-m", "pip", "install", "--no-index", added])
        assert bring(session, cluster, kit, offline=True) == "unchanged"

    def test_other_code_of_the_same_version_is_installed(
        self, session: Session, cluster: Cluster, kit: Kit, venv: Path, hosts: Hosts, tmp_path: Path
    ) -> None:
        wheel = tiny_wheel(tmp_path, "tiny", "1.0", new_source("newer"), "Requires-Dist: tiny_core\n")
        assert bring(session, cluster, replace(kit, wheel=wheel), offline=True) == "brought up to date"
        assert says(hosts[0]) == "newer on 1.0"

    @pytest.mark.parametrize("lost", ["bin/python", "konvoi-setup.json"])
    def test_one_that_is_broken_or_half_made_is_made_anew(
        self, session: Session, cluster: Cluster, kit: Kit, venv: Path, hosts: Hosts, lost: str
    ) -> None:
        (venv / lost).unlink()
        assert bring(session, cluster, kit, offline=True) == "made anew"
        assert says(hosts[0]) == "tiny on 1.0"

    def test_a_folder_of_another_kind_is_left_alone(
        self, session: Session, cluster: Cluster, kit: Kit, hosts: Hosts
    ) -> None:
        folder = hosts[0].home / "elsewhere"
        (folder / "venv").mkdir(parents=True)
        (folder / "venv" / "thesis.txt").write_text("years of work")
        other = cluster.model_copy(update={"folder": "~/elsewhere"})
        with pytest.raises(Exception, match="elsewhere/venv is there and no virtual environment"):
            bring(session, other, kit, offline=True)
        assert contents(folder) == {"venv/thesis.txt": b"years of work"}

    def test_what_pip_complains_of_is_said(self, session: Session, cluster: Cluster, kit: Kit, tmp_path: Path) -> None:
        wheel = tiny_wheel(tmp_path, "tiny", "2.0", "", "Requires-Dist: no-such-thing\n")
        with pytest.raises(Exception, match="No matching distribution found for no-such-thing"):
            bring(session, cluster, replace(kit, wheel=wheel), offline=True)

    def test_a_python_that_is_too_old_is_named(
        self, session: Session, cluster: Cluster, kit: Kit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(environment_module, "LEAST_PYTHON", (9, 9))
        with pytest.raises(HostError, match=r"h0: its Python is 3\.\S+; Konvoi needs 9.9 or later") as caught:
            bring(session, cluster, kit)
        assert 'python = "python9.9"' in caught.value.hint


class TestPrebuilt:
    def test_one_that_is_right_is_only_looked_at(self, hosts: Hosts) -> None:
        done = hosts.konvoi("cluster", "setup", "--cluster", hosts.file)
        line = f"environment prebuilt, konvoi {version('konvoi')}, torch {version('torch')}"
        assert done.stdout.splitlines() == [
            f"h0  {line}",
            f"h1  {line}",
            "all 2 hosts are ready; konvoi cluster check looks closer",
        ]

    def test_one_that_is_not_there_is_an_error(self, hosts: Hosts) -> None:
        hosts.write(environment="/nowhere/venv")
        done = hosts.konvoi("cluster", "setup", "--cluster", hosts.file, check=False)
        hosts.write()
        assert done.returncode == 2
        assert "2 of 2 hosts are not ready" in done.stderr
        assert "h0: no Python runs in /nowhere/venv" in done.stderr
        assert "h1: no Python runs in /nowhere/venv" in done.stderr

    def test_other_versions_are_named(self, session: Session, cluster: Cluster, venv: Path) -> None:
        """tiny's environment has no konvoi."""
        other = cluster.model_copy(update={"environment": str(venv)})
        with pytest.raises(HostError, match="konvoi is missing") as caught:
            verify_prebuilt(session, other)
        assert f"(here {version('konvoi')})" in caught.value.problem


def test_a_host_that_fails_does_not_stop_the_others(hosts: Hosts, kit: Kit, cluster: Cluster) -> None:
    hosts[1].stop_sshd()
    work = SetUp(cluster, kit, None, True, lambda name: silent)
    work.run()
    hosts[1].start_sshd()
    assert [*work.done] == ["h0"]
    assert says(hosts[0]) == "tiny on 1.0"
    with pytest.raises(HostError, match="h1: nothing answers on its ssh port"):
        work.raise_errors()


class TestWheels:
    def test_pip_can_be_put_together_again(self, tmp_path: Path) -> None:
        wheel = installed_wheel("pip", tmp_path)
        assert wheel.name == f"pip-{version('pip')}-py3-none-any.whl"
        words = [sys.executable, str(wheel / "pip"), "install", "--no-index", "--target", str(tmp_path / "t"), wheel]
        subprocess.run(words, check=True, capture_output=True)
        installed = distribution("pip").files
        assert installed and len(installed) > 100
        code = {str(file): Path(str(file.locate())).read_bytes() for file in installed if file.suffix == ".py"}
        assert code == {name: content for name, content in contents(tmp_path / "t").items() if name.endswith(".py")}

    def test_the_same_files_make_the_same_wheel(self, tmp_path: Path) -> None:
        made = []
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            made.append(installed_wheel("pip", tmp_path / name).read_bytes())
        assert made[0] == made[1]

    def test_our_own_has_every_file_of_the_package_and_is_the_same_each_time(self, tmp_path: Path) -> None:
        root, wheels = Path(konvoi.__file__).parent, []
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            wheels.append(own_wheel(tmp_path / name))
        assert wheels[0].read_bytes() == wheels[1].read_bytes()
        with zipfile.ZipFile(wheels[0]) as archive:
            packed = {name.removeprefix("konvoi/") for name in archive.namelist() if name.startswith("konvoi/")}
        there = {str(path.relative_to(root)) for path in root.rglob("*") if path.suffix in (".py", ".toml", ".xz")}
        assert {"cluster/far/files.py", "recipes/demo.toml"} <= there
        assert there <= packed

    def test_a_distribution_that_is_not_here_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ClusterError, match="no-such-thing is not installed here"):
            installed_wheel("no-such-thing", tmp_path)

    def test_pins_are_the_versions_here_of_all_that_is_needed(self) -> None:
        # pydantic needs pydantic-core, which needs typing-extensions
        pins = pins_of([Requirement("pydantic>=2"), Requirement("no-such-thing"), Requirement("rich; extra == 'x'")])
        names = [pin.partition("==")[0] for pin in pins]
        assert {"pydantic", "pydantic-core", "typing-extensions"} <= {*names}
        assert f"pydantic=={version('pydantic')}" in pins
        assert "rich" not in names and "no-such-thing" not in names
        assert "rich" in str(pins_of([Requirement("rich; extra == 'x'")], ["x"]))

    def test_a_pin_does_not_ask_for_one_build(self) -> None:
        """2.13.0+cpu here is 2.13.0 elsewhere."""
        pins = pins_of([Requirement("torch")])
        assert f"torch=={version('torch').partition('+')[0]}" in pins

    def test_wheels_are_those_of_the_host(self, index: Path, kit: Kit, tmp_path: Path) -> None:
        for machine in ("aarch64", "x86_64"):
            tiny_wheel(index, "tiny_core", "1.0", "", tag=f"cp312-cp312-manylinux_2_28_{machine}")
        arm = wheels_for(kit, Platform("3.12", "aarch64", "2.36"), silent)
        assert [*arm] == ["tiny_core-1.0-cp312-cp312-manylinux_2_28_aarch64.whl"]
        # Its C library is older than the wheel needs; the one for all machines will do.
        old = wheels_for(kit, Platform("3.12", "aarch64", "2.17"), silent)
        assert [*old] == ["tiny_core-1.0-py3-none-any.whl"]

    def test_no_wheel_for_a_host_is_an_error_that_says_so(self, index: Path, kit: Kit, tmp_path: Path) -> None:
        pins = tmp_path / "pins.txt"
        pins.write_text("tiny-core==7\n")
        other = replace(kit, pins=("tiny-core==7",), pins_file=pins)
        with pytest.raises(ClusterError, match=r"no wheels for Python 3.12 on riscv64: .*tiny-core==7"):
            wheels_for(other, Platform("3.12", "riscv64", "2.39"), silent)


@pytest.fixture(scope="module")
def prepared(tiny_recipe: Path) -> PreparedSet:
    recipe = read(str(tiny_recipe))
    found: PreparedSet = registry.find("task", recipe.name_of("task")).prepare(recipe)
    return found


class TestData:
    def test_it_is_on_the_hosts_as_it_is_here(self, hosts: Hosts, tiny_recipe: Path, prepared: PreparedSet) -> None:
        words = ("cluster", "setup", "--cluster", hosts.file, "--recipe", tiny_recipe)
        assert "data sent" in hosts.konvoi(*words).stdout
        here = contents(prepared.folder)
        assert "train.en.tokens" in str([*here]) and "info.json" in here
        for host in hosts:
            assert contents(host.home / "cache" / "data" / prepared.folder.name) == here
        again = hosts.konvoi(*words).stdout.splitlines()
        assert all(line.endswith("data unchanged") for line in again[:2])

    def test_a_digest_tells_whether_it_is_the_same(self, hosts: Hosts, prepared: PreparedSet) -> None:
        data, cluster = needed(prepared), hosts.cluster
        assert data is not None
        with Session(cluster, cluster.hosts[0]) as session:
            push_data(session, cluster, data)
            assert digest_on(session, cluster, data) == data.digest()
            file = hosts[0].home / "cache" / data.folder / "info.json"
            file.write_bytes(file.read_bytes() + b"\n")
            assert digest_on(session, cluster, data) not in (None, data.digest())
            shutil.rmtree(file.parent)
            assert digest_on(session, cluster, data) is None

    def test_a_worker_takes_it_without_the_files_that_it_was_made_of(
        self, prepared: PreparedSet, tiny_recipe: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        files = [f"data.train_{side}=/nowhere/{side}" for side in ("source", "target")]
        recipe, data = read(str(tiny_recipe), files), needed(prepared)
        assert data is not None
        for name, value in data.environment.items():
            monkeypatch.setenv(name, value)
        task = registry.find("task", "translation")
        assert task.prepare(recipe).folder == task.find(recipe).folder == prepared.folder

    def test_pictures_that_stayed_in_their_place_lie_in_the_set_there(self, hosts: Hosts, tmp_path: Path) -> None:
        for number in range(8):
            path = tmp_path / "pictures" / f"class{number % 2}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (number, 2 * number, 255)).save(path)
        found = prepare_images("image-folder", from_folder=tmp_path / "pictures", to=None, home=konvoi_home())
        assert found.root == tmp_path / "pictures"
        data, cluster = needed(found), hosts.cluster
        assert data is not None
        with Session(cluster, cluster.hosts[0]) as session:
            push_data(session, cluster, data)
            assert digest_on(session, cluster, data) == data.digest()
        there = ImageSet.open(hosts[0].home / "cache" / data.folder)
        assert there.root == there.folder
        entries = there.entries("train")
        assert len(entries) > 0
        for number in range(len(entries)):
            assert there.path(entries, number).read_bytes() == found.path(entries, number).read_bytes()

    def test_what_is_inside_the_package_is_not_sent(self) -> None:
        recipe = read("demo")
        assert needed(registry.find("task", recipe.name_of("task")).prepare(recipe)) is None
        assert needed(make_demo_images(konvoi_home())) is None


class TestSharedFolder:
    """Bind mounts, since NFS needs a kernel module that may be absent; hosts have mounts of their own."""

    @pytest.fixture
    def server(self, hosts: Hosts, tmp_path: Path) -> Iterator[Path]:
        (tmp_path / "export").mkdir()
        yield tmp_path / "export"
        for host in hosts:
            host.run(["umount", tmp_path / "on hosts"], check=False)
        hosts.write()

    def shared(self, hosts: Hosts, source: Path, home: str | None = None) -> Path:
        target = source.parent / "on hosts"
        shared = {"source": str(source), "target": str(target), "type": "none", "options": "bind"}
        hosts.write(shared=shared, home=home)
        return target

    def test_it_is_mounted_once_and_data_is_sent_once(
        self, hosts: Hosts, server: Path, tiny_recipe: Path, prepared: PreparedSet
    ) -> None:
        target = self.shared(hosts, server)
        words = ("cluster", "setup", "--cluster", hosts.file, "--recipe", tiny_recipe)
        first, second = hosts.konvoi(*words).stdout.splitlines()[:2]
        assert f"{target} mounted" in first and "data sent" in first
        assert f"{target} mounted" in second and "data shared with h0" in second
        assert contents(server / "konvoi/data" / prepared.folder.name) == contents(prepared.folder)
        # No token is left behind.
        assert [path.name for path in server.iterdir()] == ["konvoi"]
        again = hosts.konvoi(*words).stdout.splitlines()
        assert f"{target} is mounted" in again[0] and "data unchanged" in again[0]

    def test_another_folder_on_one_host_is_found(self, hosts: Hosts, server: Path, tmp_path: Path) -> None:
        target = self.shared(hosts, server, home="~/cache")
        (tmp_path / "other").mkdir()
        hosts[1].run(["mkdir", "-p", target])
        hosts[1].run(["mount", "--bind", tmp_path / "other", target])
        done = hosts.konvoi("cluster", "setup", "--cluster", hosts.file, check=False)
        assert done.returncode == 2
        assert f"h1: {target} is another folder than on h0" in done.stderr
        assert done.stdout.startswith("h0  ")

    def test_what_mount_says_comes_with_the_command_to_try(self, hosts: Hosts, tmp_path: Path, server: Path) -> None:
        self.shared(hosts, tmp_path / "nowhere", home="~/cache")
        done = hosts.konvoi("cluster", "setup", "--cluster", hosts.file, check=False)
        assert done.returncode == 2
        assert "2 of 2 hosts are not ready" in done.stderr
        assert f"on h1: sudo mount -t none -o bind -- {tmp_path}/nowhere '{tmp_path}/on hosts'" in done.stderr
