"""konvoi cluster import: from what AWS, mpirun's users or ~/.ssh/config call the machines."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.hosts import Hosts

from konvoi.cluster.hosts import Host, read_cluster
from konvoi.cluster.imports import aws, host_list, hostfile, ssh_names
from konvoi.cluster.imports._common import unique, valid_name
from konvoi.cluster.imports._named import Named
from konvoi.errors import ClusterError

Json = Any
TYPES = {"node a": "p3.16xlarge", "node b": "g5.12xlarge", "head": "c5.xlarge"}


@pytest.fixture(scope="module")
def ec2() -> Iterator[Any]:
    """AWS's own client before moto's AWS: three instances run in two reservations, one is stopped, one is gone."""
    import boto3
    from moto import mock_aws

    with pytest.MonkeyPatch.context() as patch, mock_aws():
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        # thousands, which nobody asks for here
        patch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
        client = boto3.client("ec2", region_name="eu-central-1")
        client.register_image(Name="image", RootDeviceName="/dev/sda1")
        client.create_key_pair(KeyName="convoy")
        for name, kind in TYPES.items():
            start(client, name, kind, team="blue")
        client.stop_instances(InstanceIds=[start(client, "node c", "g5.xlarge", team="blue")])
        client.terminate_instances(InstanceIds=[start(client, "node d", "g5.xlarge", team="blue")])
        yield client


def start(client: Any, name: str, kind: str, **tags: str) -> str:
    image = client.describe_images()["Images"][0]["ImageId"]
    words = [{"Key": key, "Value": value} for key, value in {"Name": name, **tags}.items()]
    answer = client.run_instances(
        ImageId=image,
        InstanceType=kind,
        KeyName="convoy",
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[{"ResourceType": "instance", "Tags": words}],
    )
    return str(answer["Instances"][0]["InstanceId"])


@pytest.fixture(scope="module")
def stored(ec2: Any) -> Json:
    answer = ec2.describe_instances()
    del answer["ResponseMetadata"]
    return json.loads(json.dumps(answer, default=str))


@pytest.fixture
def description(stored: Json) -> Json:
    """What aws ec2 describe-instances prints, to be changed."""
    return copy.deepcopy(stored)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / ".ssh").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def instance(description: Json, name: str) -> Json:
    found = (one for part in description["Reservations"] for one in part["Instances"])
    return next(one for one in found if {"Key": "Name", "Value": name} in one["Tags"])


def imported(description: Json, *tags: str, **options: Any) -> dict[str, Host]:
    return {host.name: host for host in aws.hosts(json.dumps(description), tags, **options)}


def refused(work: Callable[[], object]) -> str:
    with pytest.raises(ClusterError) as caught:
        work()
    return f"{caught.value.problem}; {caught.value.hint}"


# AWS


def test_running_instances_of_all_reservations_become_hosts(description: Json, home: Path) -> None:
    hosts = imported(description)
    given = instance(description, "node a")
    assert given["PublicDnsName"] and len(description["Reservations"]) == 5
    assert hosts["node-a"] == Host(
        name="node-a", ssh=f"ubuntu@{given['PublicDnsName']}", address=given["PrivateIpAddress"], workers=8, gpus=8
    )
    # c5.xlarge has no GPU, and still a worker
    assert [(host.name, host.workers, host.gpus) for host in hosts.values()] == [
        ("node-a", 8, 8),
        ("node-b", 4, 4),
        ("head", 1, 0),
    ]


def test_ssh_goes_to_the_public_name_else_address_else_the_private_one(description: Json) -> None:
    given = instance(description, "node a")
    public, private = given["PublicIpAddress"], given["PrivateIpAddress"]
    given["PublicDnsName"] = ""
    assert imported(description)["node-a"].ssh == f"ubuntu@{public}"
    del given["PublicIpAddress"]
    assert imported(description, user="ec2-user")["node-a"].ssh == f"ec2-user@{private}"


def test_all_tags_must_be_there(ec2: Any, description: Json) -> None:
    instance(description, "node a")["Tags"].append({"Key": "role", "Value": "gpu=yes"})
    assert set(imported(description, "team=blue")) == {"node-a", "node-b", "head"}
    assert set(imported(description, "team=blue", "role=gpu=yes")) == {"node-a"}
    words = refused(lambda: imported(description, "team=blue", "team=red"))
    assert "none of the 3 running instances has the tags team=blue, team=red" in words
    assert "Name=head, Name=node a, Name=node b, role=gpu=yes, team=blue" in words
    assert "--tag team: a value is missing" in refused(lambda: imported(description, "team"))


def test_a_key_is_used_where_its_file_is_else_wanted(description: Json, home: Path) -> None:
    notes: list[str] = []
    assert imported(description, note=notes.append)["node-a"].identity is None
    assert any('the key "convoy" is wanted by node-a, node-b, head' in note for note in notes)
    (home / ".ssh" / "convoy.pem").touch()
    notes.clear()
    assert imported(description, note=notes.append)["node-a"].identity == "~/.ssh/convoy.pem"
    assert not any("convoy" in note for note in notes)


def test_equal_names_are_numbered_and_none_is_the_instances_id(description: Json) -> None:
    nameless, twin = instance(description, "node b"), instance(description, "head")
    del nameless["Tags"]
    twin["Tags"] = [{"Key": "Name", "Value": "Node a"}]
    assert list(imported(description)) == ["node-a", nameless["InstanceId"], "Node-a-2"]


def test_nothing_left_says_what_was_left_out(description: Json) -> None:
    for name in TYPES:
        instance(description, name)["State"]["Name"] = "stopping"
    words = refused(lambda: imported(description))
    assert "no instance is running: 3 stopping, 1 stopped, 1 terminated" in words
    assert "no instances in it; is it the right --region" in refused(lambda: imported({"Reservations": []}))


def test_an_instance_without_ipv4_is_named(description: Json) -> None:
    given = instance(description, "node b")
    del given["PrivateIpAddress"]
    words = refused(lambda: imported(description))
    assert f"{given['InstanceId']} (node-b) has no private IPv4 address; is it in an IPv6-only subnet?" in words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "there is nothing to read"),
        ("Unable to locate credentials", "this is not JSON: "),
        ('{"Reservations": [', "this is not JSON: "),
        ("[" * 100_000, "this is not JSON: "),
        ('{"data": {"Reservations": []}}', "Reservations: Field required (there: data); give all of its output"),
        ("[[{}]]", "the whole: Input should be an object"),
        (
            '{"Reservations": [{"Instances": [{"InstanceId": "i-1"}]}]}',
            "0.Instances.0.State: Field required",
        ),
    ],
)
def test_what_is_not_aws_output_is_told_from_it(text: str, words: str) -> None:
    problem = refused(lambda: aws.hosts(text))
    assert words in problem
    assert aws.COMMAND in problem


def test_doubtful_lists_come_with_a_note(description: Json) -> None:
    notes: list[str] = []
    description["NextToken"] = "more"
    instance(description, "node a")["VpcId"] = "vpc-other"
    instance(description, "node b")["InstanceType"] = "g99.xlarge"
    host = imported(description, note=notes.append)["node-b"]
    assert (host.workers, host.gpus) == (1, None)
    for words in ("the list goes on", "2 networks", "g99.xlarge has is not known", "--user ec2-user"):
        assert sum(words in note for note in notes) == 1, words


def test_gpus_are_as_many_as_aws_says_of_every_type_that_has_some(ec2: Any) -> None:
    families = [{"Name": "instance-type", "Values": ["g*", "p*"]}]
    pages = ec2.get_paginator("describe_instance_types").paginate(Filters=families)
    types = [one for page in pages for one in page["InstanceTypes"]]
    truth = {one["InstanceType"]: sum(map(visible_gpus, one.get("GpuInfo", {}).get("Gpus", []))) for one in types}
    assert len(truth) > 50 and set(truth.values()) == {1, 2, 4, 8}
    assert {name: aws.num_gpus(name) for name in truth} == truth


def visible_gpus(gpu: Json) -> int:
    """A part of a GPU counts as none, and shows as one."""
    return int(gpu.get("LogicalGpuCount") or gpu["Count"])


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        # no longer sold, so in no list of moto's
        *(("p2.xlarge", 1), ("p2.8xlarge", 8), ("p2.16xlarge", 16)),
        *(("p3.2xlarge", 1), ("p3.8xlarge", 4), ("p3.16xlarge", 8)),
        *(("g3s.xlarge", 1), ("g3.4xlarge", 1), ("g3.8xlarge", 2), ("g3.16xlarge", 4)),
        *(("g4ad.xlarge", 1), ("g4ad.8xlarge", 2), ("g4ad.16xlarge", 4), ("p6e-gb200.36xlarge", 4)),
        *(("t3.micro", 0), ("", 0), ("i-am-no-type", 0), ("p9.48xlarge", None)),
    ],
)
def test_gpus_of_other_types(kind: str, count: int | None) -> None:
    assert aws.num_gpus(kind) == count


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=10), values, max_size=3),
    max_leaves=8,
)


def places(value: Json) -> Iterator[tuple[Json, Any]]:
    """Each spot in nested JSON: what holds it, and under which key or number."""
    spots = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in spots:
        yield value, key
        yield from places(inner)


@settings(deadline=None)
@given(st.text() | ANY_JSON.map(json.dumps))
def test_any_text_is_hosts_or_the_users_error(text: str) -> None:
    with contextlib.suppress(ClusterError):
        assert aws.hosts(text)


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), ANY_JSON)
def test_so_is_real_output_with_something_else_in_one_place(stored: Json, data: st.DataObject, other: Json) -> None:
    changed = copy.deepcopy(stored)
    holder, key = data.draw(st.sampled_from([*places(changed)]))
    holder[key] = other
    with contextlib.suppress(ClusterError):
        # at most a stopped or a terminated one was said to run
        assert 1 <= len(imported(changed)) <= 3 + 1


# mpirun


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a\nb", [Named("a", 1), Named("b", 1)]),
        ("# all of them\na slots=2 # fast\n\n  b  slots = 4  max_slots=8\n", [Named("a", 2), Named("b", 4)]),
        ("a:2\nb:4 max-slots=8", [Named("a", 2), Named("b", 4)]),
        ("10.0.0.1 SLOTS=2\r\nme@gpu-1 count=3", [Named("10.0.0.1", 2), Named("me@gpu-1", 3)]),
        ("a slots=2 user=me ifname=ib0\nb cpu=2 username='you'", [Named("me@a", 2, "ib0"), Named("you@b", 2)]),
        # once for every process, as batch systems write it: 1 + 1 + 1 and 2
        ("a\na\nb:2\na\n", [Named("a", 3), Named("b", 2)]),
    ],
)
def test_a_host_file_is_read_as_mpirun_reads_it(text: str, named: list[Named]) -> None:
    assert hostfile.parse(text) == named


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no host"),
        ("# nothing\n\n", "names no host"),
        ("a\nb slots=two", 'line 2: "two" slots, must be a number from 1 to 1024'),
        ("a slots=0", 'line 1: "0" slots'),
        ("a:b", 'line 1: "b" slots'),
        ("a slot=2", 'line 1: "slot=2" is not known, did you mean "slots"?'),
        ("a 2", 'line 1: "2" is not known'),
        ("\n+n0", 'line 2: "+n0" chooses among hosts'),
        ("^a", 'line 1: "^a" chooses among hosts'),
        ("fe80::1", 'line 1: "fe80::1" is neither a host nor HOST:SLOTS; IPv6'),
        ("-oProxyCommand", "line 1: is '-oProxyCommand', must be a name of ~/.ssh/config"),
        ("a;reboot slots=2", "line 1: is 'a;reboot', must be"),
        ("a user=-x", "line 1: is '-x@a', must be"),
    ],
)
def test_a_line_that_makes_no_sense_is_named(text: str, words: str) -> None:
    assert words in refused(lambda: hostfile.parse(text))


WORDS = st.sampled_from(
    ["a", "b:2", "slots=2", "slots", "=", "user=", "max_slots=", ":", "#", "@", "+", "\n", "\t", "::1"]
)


@settings(deadline=None, max_examples=200)
@given(st.text() | st.lists(WORDS | st.text(max_size=3)).map(" ".join))
def test_any_host_file_is_hosts_or_the_users_error(text: str) -> None:
    for parse in (hostfile.parse, host_list.parse):
        with contextlib.suppress(ClusterError):
            assert all(one.workers >= 1 for one in parse(text))


@pytest.mark.parametrize("text", ["a:2,me@b:4", "a:2, me@b:4", " a:2 ,me@b:4,", "a:1,me@b:4,a"])
def test_a_blank_after_a_comma_does_no_harm(text: str) -> None:
    assert host_list.parse(text) == [Named("a", 2), Named("me@b", 4)]


@pytest.mark.parametrize(("text", "words"), [(" , ", "no host is named"), ("a:", '"" slots'), ("a:2:3", "neither")])
def test_a_list_that_makes_no_sense(text: str, words: str) -> None:
    assert words in refused(lambda: host_list.parse(text))


# ~/.ssh/config


@pytest.fixture
def ssh_config(tmp_path: Path) -> str:
    file = tmp_path / "ssh.conf"
    file.write_text(
        "Host alice\n  HostName 192.0.2.1\n  User me\n  Port 2222\n"
        "Host bob*\n  HostName 192.0.2.2\n"
        "Host lost\n  HostName lost.invalid\n"
        "Host inner\n  HostName inner.invalid\n  ProxyJump alice\n"
    )
    return str(file)


def test_ssh_itself_says_where_a_name_leads(ssh_config: str) -> None:
    notes: list[str] = []
    hosts = ssh_names.hosts(["alice", "bob7", "alice"], notes.append, ssh_config)
    assert hosts == [
        Host(name="alice", ssh="alice", address="192.0.2.1"),
        Host(name="bob7", ssh="bob7", address="192.0.2.2"),
    ]
    assert any("what the names resolve to here; konvoi cluster check tells" in note for note in notes)


def test_a_host_file_may_use_the_same_names(ssh_config: str) -> None:
    made = hostfile.hosts("alice slots=4\nme@bob1:2\n", ssh_config=ssh_config)
    assert [(host.name, host.ssh, host.address, host.workers) for host in made] == [
        ("alice", "alice", "192.0.2.1", 4),
        ("bob1", "me@bob1", "192.0.2.2", 2),
    ]


def test_a_name_that_leads_nowhere(ssh_config: str) -> None:
    words = refused(lambda: ssh_names.hosts(["lost"], ssh_config=ssh_config))
    assert "lost: lost.invalid has no IPv4 address here; is the name right?" in words


def test_behind_a_jump_host_the_name_is_for_the_hosts_to_look_up(ssh_config: str) -> None:
    assert ssh_names.hosts(["inner"], ssh_config=ssh_config)[0].address == "inner.invalid"


def test_patterns_and_options_are_refused(tmp_path: Path) -> None:
    assert '"bob*" is a pattern of many names; name each host' in refused(lambda: ssh_names.hosts(["bob*"]))
    assert "must be a name of ~/.ssh/config" in refused(lambda: ssh_names.hosts(["-oProxyCommand=reboot"]))
    assert "no host is named" in refused(lambda: ssh_names.hosts([","]))
    broken = tmp_path / "broken"
    broken.write_text("Hots a\n")
    assert "Bad configuration option: hots" in refused(lambda: ssh_names.hosts(["a"], ssh_config=str(broken)))


# The command


def test_import_writes_the_file_and_says_what_comes_next(konvoi: Any, description: Json, in_folder: Path) -> None:
    result = konvoi("cluster", "import", "--aws", "-", "--tag", "team=blue", input=json.dumps(description))
    assert result.exit_code == 0, result.stderr
    assert list(read_cluster(in_folder / "cluster.toml").hosts) == aws.hosts(json.dumps(description))
    # 8 + 4 + 1 workers, 8 + 4 + 0 GPUs
    assert "3 hosts, 13 workers, 12 GPUs" in result.stdout
    assert result.stdout.endswith("written: cluster.toml; next: konvoi cluster check\n")


def test_a_file_that_is_there_keeps_all_but_its_hosts(konvoi: Any, in_folder: Path) -> None:
    file = in_folder / "mine.toml"
    host = '[[hosts]]\nname = "old"\nssh = "old"\naddress = "10.0.0.9"\n'
    file.write_text(f'folder = "/scratch"\n{host}[shared]\nsource = "nas:/"\ntarget = "/mnt"\n')
    before, words = file.read_text(), ("cluster", "import", "-H", "192.0.2.1:2, 192.0.2.2:2", "-o", "mine.toml")
    result = konvoi(*words)
    assert (result.exit_code, file.read_text()) == (2, before)
    assert "mine.toml exists already\nhint: --force" in result.stderr
    result = konvoi(*words, "--force")
    assert "kept from the file that was there: folder, shared" in result.stdout
    assert "next: konvoi cluster check --cluster mine.toml" in result.stdout
    cluster = read_cluster(file)
    assert (cluster.folder, cluster.data_home) == ("/scratch", "/mnt/konvoi")
    assert [(host.address, host.workers) for host in cluster.hosts] == [("192.0.2.1", 2), ("192.0.2.2", 2)]


def test_even_unquoted_blanks_do_no_harm(konvoi: Any, ssh_config: str, in_folder: Path) -> None:
    result = konvoi("cluster", "import", "-H", "192.0.2.1:2,", "192.0.2.2:3")
    assert result.exit_code == 0, result.stderr
    assert [host.workers for host in read_cluster(in_folder / "cluster.toml").hosts] == [2, 3]
    result = konvoi("cluster", "import", "--ssh", "alice", "bob1", "--ssh-config", ssh_config, "-o", "ssh.toml")
    assert result.exit_code == 0, result.stderr
    cluster = read_cluster(in_folder / "ssh.toml")
    assert ([host.name for host in cluster.hosts], cluster.ssh_config) == (["alice", "bob1"], ssh_config)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "nothing says where the hosts are"),
        (("-H", "a", "--ssh", "b"), "-H and --ssh are given"),
        (("-H", "192.0.2.1", "--tag", "a=b"), "--tag and --user make no sense beside -H"),
        (("--aws", "x.json", "team=blue"), '"team=blue" belongs to no option'),
        (("--aws", "none.json"), "none.json cannot be read: No such file"),
        (("--hostfile", "."), ". cannot be read: Is a directory"),
        (("-H", ""), "no host is named"),
        (("-H", "127.0.0.1,192.0.2.1"), "127.0.0.1: a loopback address"),
        (("-H", "192.0.2.1,me@192.0.2.1"), "address 192.0.2.1 is given to more than one host"),
        (("-H", "192.0.2.1", "-o", "none/cluster.toml"), "none/cluster.toml cannot be written"),
    ],
)
def test_what_cannot_be_imported_leaves_no_file(konvoi: Any, in_folder: Path, words: Any, problem: str) -> None:
    result = konvoi("cluster", "import", *words)
    assert result.exit_code == 2
    assert problem in result.stderr
    assert not [*in_folder.iterdir()]


def test_text_in_another_encoding_is_told(konvoi: Any, description: Json, in_folder: Path) -> None:
    text = json.dumps(description)
    (in_folder / "aws.json").write_bytes(text.encode("utf-16"))
    assert "aws.json is not text in UTF-8" in konvoi("cluster", "import", "--aws", "aws.json").stderr
    (in_folder / "aws.json").write_bytes(text.encode("utf-8-sig"))
    assert konvoi("cluster", "import", "--aws", "aws.json").exit_code == 0


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("GPU node #1", "GPU-node-1"),
        ("-a_b.c-", "a_b.c"),
        ("../../etc", "etc"),
        ("7", "host-7"),
        ("rank0", "host-rank0"),
        ("日本", ""),
        ("x" * 300, "x" * 50),
    ],
)
def test_any_text_becomes_a_name(text: str, name: str) -> None:
    assert valid_name(text) == name


def test_names_become_unique() -> None:
    assert list(unique(["a", "b", "A", "a", "a-2"])) == ["a", "b", "A-2", "a-3", "a-2-2"]


def test_from_the_laptop_names_of_its_ssh_config_lead_to_the_hosts(two_hosts: Hosts, tmp_path: Path) -> None:
    by_name, by_list = tmp_path / "names.toml", tmp_path / "list.toml"
    two_hosts.konvoi("cluster", "import", "--ssh", "h0", "h1", "-o", by_name)
    two_hosts.konvoi("cluster", "import", "-H", "h0:2,", "h1:3", "-o", by_list)
    assert [(host.name, host.address) for host in read_cluster(by_name).hosts] == [
        (host.name, host.address) for host in two_hosts.cluster.hosts
    ]
    assert [(host.name, host.workers) for host in read_cluster(by_list).hosts] == [("h0", 2), ("h1", 3)]
