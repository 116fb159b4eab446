"""However a training falls apart, at most one part of it goes on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from konvoi.cluster.door import Door, ask
from konvoi.cluster.quorum import Lineup, Voter, may_go_on, to_outvote

ALL: list[Voter] = [(node, "abcd"[node]) for node in range(4)]


def subsets(voters: list[Voter]) -> Iterator[set[Voter]]:
    for size in range(len(voters) + 1):
        yield from map(set, itertools.combinations(voters, size))


@pytest.mark.parametrize("num_hosts", [1, 2, 3, 4])
def test_of_two_parts_that_do_not_meet_one_at_most_goes_on(num_hosts: int) -> None:
    """Whatever each knows of the dead."""
    voters = ALL[:num_hosts]
    lineup = [Lineup(0, tuple(voters))]
    num_pairs = 0
    for dead in subsets(voters):
        living = [voter for voter in voters if voter not in dead]
        for part in subsets(living):
            rest = set(living) - part
            for known, known_elsewhere in itertools.product(subsets(sorted(dead)), repeat=2):
                num_pairs += 1
                goes_on = [may_go_on(part, known, lineup), may_go_on(rest, known_elsewhere, lineup)]
                assert not (part and rest and all(goes_on)), (part, known, rest, known_elsewhere)
    # Everyone is here, there, or dead; of the dead, four kinds of knowledge: 2 + 4 = 6 for each host.
    assert num_pairs == 6**num_hosts


@pytest.mark.parametrize(
    ("present", "dead", "expected"),
    [
        ("abc", "", True),
        ("bc", "", True),
        ("c", "", False),
        ("a", "", False),
        ("ab", "c", True),
        # Of two that are left: the lower number.
        ("b", "a", True),
        ("c", "a", False),
        ("c", "ab", True),
    ],
)
def test_who_may_go_on_of_three(present: str, dead: str, expected: bool) -> None:
    lineup = Lineup(3, tuple(ALL[:3]))
    here, gone = ({voter for voter in ALL if voter[1] in names} for names in (present, dead))
    assert may_go_on(here, gone, [lineup]) is expected


def test_a_lineup_that_was_tried_binds_who_never_heard_that_it_ran() -> None:
    """0 and 1 were about to go on without 2; the link between them broke as soon as 0 had seen both arrive."""
    a, b, c = ALL[:3]
    three, two = Lineup(0, (a, b, c)), Lineup(1, (a, b))
    assert may_go_on({a}, set(), to_outvote([(two,)]))
    assert not may_go_on({b, c}, set(), to_outvote([(three, two), (three,)]))
    # Had it not been tried, two of three would be enough.
    assert may_go_on({b, c}, set(), to_outvote([(three,), (three,)]))


def test_the_latest_lineup_that_ran_replaces_older_ones() -> None:
    a, b, c = ALL[:3]
    old, new = Lineup(0, (a, b, c)), Lineup(2, (a, b))
    assert to_outvote([(old, Lineup(1, (a, c))), (new,), ()]) == [new]
    assert to_outvote([(), ()]) == []


def test_a_door_answers_who_knows_the_job_and_tells_when_it_is_gone() -> None:
    door = Door("127.0.0.1", "this-job")
    door.card = {"who": "a"}
    assert ask("127.0.0.1", door.port, "this-job", 60.0) == {"who": "a"}
    assert ask("127.0.0.1", door.port, "another-job", 60.0) == "silent"
    door.close()
    assert ask("127.0.0.1", door.port, "this-job", 60.0) == "refused"
