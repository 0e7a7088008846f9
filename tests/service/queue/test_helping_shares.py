"""Fair share with helpers, in a lab of made-up slots and a fake clock."""

import pytest

from service.fair_share import FairShare
from service.tables.engine import Database
from tests.support.helped_lab import HelpedLab

CPUS = 4
SHARE = FairShare(spare_slots=0, half_life_s=1e9, advance_s=10.0)
LONG_S, SHORT_S = 2000.0, 10.0


def helped_lab(database: Database) -> HelpedLab:
    return HelpedLab(database, SHARE, CPUS)


def test_a_newcomer_takes_the_place_of_a_helper_at_once(either: Database) -> None:
    """All other helpers go on."""
    lab = helped_lab(either)
    ann, bob = lab.user("ann"), lab.user("bob")
    lab.submit(ann, 1, LONG_S)
    lab.run(for_s=100.0)
    assert len(lab.helps) == CPUS - 1
    lab.submit(bob, 1, SHORT_S)
    lab.run(for_s=0.0)
    assert lab.starts[-1][:2] == (100.0, bob)
    assert len(lab.helps) == CPUS - 2
    lab.run(for_s=SHORT_S)
    assert len(lab.helps) == CPUS - 1


@pytest.mark.slow
def test_the_owner_of_a_helped_run_is_charged_for_the_helpers(either: Database) -> None:
    """Afterwards the others are first until they have had as much."""
    lab = helped_lab(either)
    ann, bob = lab.user("ann"), lab.user("bob")
    lab.submit(ann, 1, 500.0)
    lab.run(for_s=501.0)
    assert lab.helps == {}
    helped_s = 500.0 * CPUS
    assert abs(lab.charged_s()[ann] - helped_s) < 1.0
    for owner in (ann, bob):
        lab.submit(owner, 60, 50.0)
    lab.run(for_s=helped_s / CPUS - 100.0)
    assert {owner for at, owner, _ in lab.starts if at > 500.0} == {bob}
    lab.run(for_s=400.0)
    used = lab.charged_s()
    assert abs(used[ann] - used[bob]) <= CPUS * 50.0
    assert used[ann] > helped_s + 400.0


def test_nobody_waits_while_helpers_work(either: Database) -> None:
    """With long runs of two users and many short ones of a third, whose arrival is staggered. The
    lab checks it at each choice."""
    lab = helped_lab(either)
    ann, bob, cleo = (lab.user(name) for name in ("ann", "bob", "cleo"))
    lab.submit(ann, 2, 300.0)
    lab.run(for_s=20.0)
    lab.submit(bob, 1, 300.0)
    for count in (1, 3, 2, 5):
        lab.run(for_s=15.0)
        lab.submit(cleo, count, SHORT_S)
    lab.run()
    assert not [*lab.waiting()]
    assert len(lab.starts) == 14
    begun = [at for at, owner, _ in lab.starts if owner == cleo]
    assert max(begun) == 50.0 + 9 * SHORT_S  # on the one slot that no run of the others has
