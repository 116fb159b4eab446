"""Nobody but the members reaches the training's ports."""

from __future__ import annotations

from collections.abc import Iterator

from konvoi.cluster.checks import Finding
from konvoi.cluster.survey import Survey, is_outside

TITLE = "outside"
ORDER = 87
FIX = (
    "who reaches these ports can join or disturb a training; in the security group allow port 22 from your address, "
    "and all TCP from the group itself, nothing else:\n"
    "aws ec2 authorize-security-group-ingress --group-id GROUP --protocol tcp --port 0-65535 --source-group GROUP\n"
    "aws ec2 revoke-security-group-ingress --group-id GROUP --protocol tcp --port {ports} --cidr 0.0.0.0/0"
)


def examine(survey: Survey) -> Iterator[Finding]:
    is_open = False
    for name, openings in survey.outside.items():
        for opening in openings:
            if is_outside(survey, opening):
                is_open = True
                found = f"{opening.address}:{opening.port} answers {opening.seen_as}, outside the private network"
                yield Finding(name, "warning", found, FIX.format(ports=survey.cluster.ports), "open-to-outside")
    if survey.outside and not is_open:
        yield Finding("", "ok", "training ports do not answer outside the private network")
