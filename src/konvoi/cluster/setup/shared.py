"""[shared] of the cluster file: mounted on every host, then proven to be one folder."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from konvoi.cluster.hosts import Cluster, Host
from konvoi.cluster.session import FarError, Session, on_all
from konvoi.errors import HostError

MOUNT_SECONDS = 120.0


def mount_shared(session: Session, cluster: Cluster) -> bool:
    """Whether there was something to do."""
    assert cluster.shared
    target = cluster.shared.target
    if session.ask("shared.is_mounted", target=target):
        return False
    try:
        session.ask("shared.mount", timeout=MOUNT_SECONDS, **cluster.shared.model_dump())
    except FarError as error:
        problem, _, command = error.text.partition("\n")
        name = session.host.name
        raise HostError(name, f"{target} could not be mounted: {problem}", hint=f"on {name}: {command}") from None
    return True


def check_shared(cluster: Cluster, hosts: Sequence[Host]) -> Mapping[str, HostError]:
    """What the first host writes all must see; those who don't, by name."""
    assert cluster.shared
    target, token = cluster.shared.target, uuid.uuid4().hex

    def look(host: Host) -> None:
        with Session(cluster, host) as session:
            if not session.ask("shared.sees_token", target=target, token=token):
                raise HostError(
                    host.name,
                    f"{target} is another folder than on {hosts[0].name}",
                    hint=f"on {host.name}: findmnt {target} shows what is mounted there; umount it, then set up again",
                )

    with Session(cluster, hosts[0]) as first:
        first.ask("shared.leave_token", target=target, token=token)
        try:
            found = on_all(hosts, look)
        finally:
            first.ask("shared.remove_token", target=target, token=token)
    return {name: result for name, result in found.items() if result is not None}
