"""Who may go on after a fault: never two parts of a training at once.

An agent votes with its host's number and a random name, new at each start. A lineup is a set of voters that ran, or was
about to run, together. Those who are left may go on where, of every such lineup and without those who are dead for
certain, they are more than half; or just half, and the lowest number of the rest is among them. Dead for certain is
whose host answers that nobody listens there any more, or that another agent does: silence is no proof.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass

Voter = tuple[int, str]


@dataclass(frozen=True)
class Lineup:
    generation: int
    voters: tuple[Voter, ...]


def may_go_on(present: Set[Voter], dead: Set[Voter], lineups: Iterable[Lineup]) -> bool:
    return all(_outvotes(present, sorted(set(lineup.voters) - dead)) for lineup in lineups)


def _outvotes(present: Set[Voter], left: list[Voter]) -> bool:
    if not left:
        return True
    num_here = sum(voter in present for voter in left)
    return 2 * num_here > len(left) or (2 * num_here == len(left) and left[0] in present)


def to_outvote(votes: Iterable[tuple[Lineup, ...]]) -> list[Lineup]:
    """From everyone's votes, each the last lineup that ran and those that were tried since: what binds all of them.

    Whoever missed a generation knows of an older lineup, which the latest has outvoted. One that was tried may run
    though this agent never heard that all had come.
    """
    cast = [own for own in votes if own]
    if not cast:
        return []
    formed = max((own[0] for own in cast), key=lambda lineup: lineup.generation)
    tried = {lineup for own in cast for lineup in own[1:] if lineup.generation > formed.generation}
    return [formed, *sorted(tried, key=lambda lineup: (lineup.generation, lineup.voters))]
