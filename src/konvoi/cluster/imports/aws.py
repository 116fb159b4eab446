"""Hosts from the JSON of `aws ec2 describe-instances`."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_pascal

from konvoi.cluster.hosts import Host
from konvoi.cluster.imports._common import Note, make_host, no_note, unique, valid_name
from konvoi.errors import ClusterError

COMMAND = "aws ec2 describe-instances --output json"
DEFAULT_USER = "ubuntu"

_LIKE_G5 = {"12xlarge": 4, "24xlarge": 4, "48xlarge": 8}
_LIKE_G7 = {"12xlarge": 2, "24xlarge": 4, "48xlarge": 8}
# GPUs that an instance shows, for the sizes of each family that have more than one; all other sizes have one.
# From AWS's lists of instance types (2026-11); a test compares it with all that moto knows.
GPUS: dict[str, dict[str, int]] = {
    "p2": {"8xlarge": 8, "16xlarge": 16},
    "p3": {"8xlarge": 4, "16xlarge": 8},
    "p3dn": {"24xlarge": 8},
    "p4d": {"24xlarge": 8},
    "p4de": {"24xlarge": 8},
    "p5": {"48xlarge": 8},
    "p5e": {"48xlarge": 8},
    "p5en": {"48xlarge": 8},
    "p6-b200": {"48xlarge": 8},
    "p6-b300": {"48xlarge": 8},
    "p6e-gb200": {"36xlarge": 4},
    "g3": {"8xlarge": 2, "16xlarge": 4},
    "g3s": {},
    "g4ad": {"8xlarge": 2, "16xlarge": 4},
    "g4dn": {"12xlarge": 4, "metal": 8},
    "g5": _LIKE_G5,
    "g5g": {"16xlarge": 2, "metal": 2},
    "g6": _LIKE_G5,
    "g6e": _LIKE_G5,
    "g6f": {},
    "gr6": {},
    "gr6f": {},
    "g7": _LIKE_G7,
    "g7e": _LIKE_G7,
}


class _Part(BaseModel):
    """Of what AWS prints, the keys that we use."""

    model_config = ConfigDict(alias_generator=to_pascal)


class _Tag(_Part):
    key: str
    value: str = ""


class _State(_Part):
    name: str


class _Instance(_Part):
    instance_id: str
    state: _State
    instance_type: str = ""
    public_dns_name: str | None = None
    public_ip_address: str | None = None
    private_ip_address: str | None = None
    key_name: str | None = None
    vpc_id: str | None = None
    tags: list[_Tag] = []

    @property
    def name(self) -> str:
        given = next((tag.value for tag in self.tags if tag.key == "Name"), "")
        return valid_name(given) or valid_name(self.instance_id) or "host"

    @property
    def tag_words(self) -> set[str]:
        return {f"{tag.key}={tag.value}" for tag in self.tags}


class _Reservation(_Part):
    instances: list[_Instance]


class _Description(_Part):
    reservations: list[_Reservation]
    next_token: str | None = None


def hosts(text: str, tags: Sequence[str] = (), user: str | None = None, note: Note = no_note) -> list[Host]:
    """All running instances that have all of the tags, each KEY=VALUE."""
    description = _parse(text)
    if description.next_token:
        note("the list goes on: AWS gave only its first page; leave out --no-paginate, --max-items or --page-size")
    chosen = _choose([one for part in description.reservations for one in part.instances], tags)
    _note_networks(chosen, note)
    if user is None:
        note(f"ssh as {DEFAULT_USER}, as Ubuntu's images have it; for another: --user ec2-user (Amazon Linux)")
    names = unique(instance.name for instance in chosen)
    made = [_host(instance, name, user or DEFAULT_USER) for instance, name in zip(chosen, names, strict=True)]
    _note_keys(chosen, made, note)
    _note_types(chosen, note)
    return made


def num_gpus(instance_type: str) -> int | None:
    """None for a family of GPU instances that came after this table."""
    family, _, size = instance_type.partition(".")
    if family in GPUS:
        return GPUS[family].get(size, 1)
    return None if re.match(r"(g|gr|p)[0-9]", family) else 0


def _parse(text: str) -> _Description:
    if not text.strip():
        raise ClusterError("there is nothing to read", hint=f"see what it says: {COMMAND}")
    try:
        return _Description.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            raise ClusterError(f"this is not JSON: {first['ctx']['error']}", hint=f"as made by: {COMMAND}") from None
        place = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise ClusterError(
            f"this is not what aws ec2 describe-instances prints: {place}: {first['msg']}{_keys(first['input'])}",
            hint=f"give all of its output, without --query and without jq: {COMMAND}",
        ) from None


def _keys(found: object) -> str:
    return f" (there: {', '.join(list(found)[:5]) or 'nothing'})" if isinstance(found, dict) else ""


def _choose(instances: list[_Instance], tags: Sequence[str]) -> list[_Instance]:
    for tag in tags:
        if not tag.partition("=")[1]:
            raise ClusterError(f"--tag {tag}: a value is missing", hint="as in --tag team=blue; may be given again")
    if not instances:
        raise ClusterError("there are no instances in it", hint="is it the right --region and --profile of aws?")
    running = [instance for instance in instances if instance.state.name == "running"]
    if not running:
        states = Counter(instance.state.name for instance in instances)
        listed = ", ".join(f"{count} {state}" for state, count in states.items())
        raise ClusterError(f"no instance is running: {listed}", hint="start them: aws ec2 start-instances")
    chosen = [instance for instance in running if set(tags) <= instance.tag_words]
    if not chosen:
        there = sorted(set().union(*(instance.tag_words for instance in running)))
        raise ClusterError(
            f"none of the {len(running)} running instances has the tags {', '.join(tags)}",
            hint=f"tags there: {', '.join(there[:10]) or 'none'}",
        )
    return chosen


def _host(instance: _Instance, name: str, user: str) -> Host:
    if not instance.private_ip_address:
        raise ClusterError(
            f"{instance.instance_id} ({name}) has no private IPv4 address",
            hint="is it in an IPv6-only subnet? A training talks over IPv4; filter it out with --tag, or move it",
        )
    reached = instance.public_dns_name or instance.public_ip_address or instance.private_ip_address
    gpus = num_gpus(instance.instance_type)
    return make_host(
        instance.instance_id,
        name=name,
        ssh=f"{user}@{reached}",
        address=instance.private_ip_address,
        workers=max(1, gpus or 0),
        gpus=gpus,
        identity=_identity(instance.key_name),
    )


def _identity(key: str | None) -> str | None:
    path = f"~/.ssh/{key}.pem"
    return path if key and os.path.isfile(os.path.expanduser(path)) else None


def _note_keys(instances: list[_Instance], made: list[Host], note: Note) -> None:
    wanted: dict[str, list[str]] = {}
    for instance, host in zip(instances, made, strict=True):
        if instance.key_name and not host.identity:
            wanted.setdefault(instance.key_name, []).append(host.name)
    for key, names in wanted.items():
        note(
            f'the key "{key}" is wanted by {", ".join(names)}, and there is no ~/.ssh/{key}.pem: put it there and '
            "import again, load it with ssh-add, or name its file (identity)"
        )


def _note_types(instances: list[_Instance], note: Note) -> None:
    unknown = sorted({one.instance_type for one in instances if num_gpus(one.instance_type) is None})
    if unknown:
        note(f"how many GPUs {', '.join(unknown)} has is not known here: set gpus and workers by hand")


def _note_networks(instances: list[_Instance], note: Note) -> None:
    networks = sorted({instance.vpc_id for instance in instances if instance.vpc_id})
    if len(networks) > 1:
        note(f"they are in {len(networks)} networks ({', '.join(networks)}) that reach each other only when peered")
