"""Check that projects, their members and users' own experiments get their shares of a week."""

import random
from collections import defaultdict

from service.db.engine import Database
from service.fair_share import WEEK_S, FairShare
from service.queue.ledger import Member
from tests.support.shared_lab import SharedLab

MAX_PROJECTS, MAX_MEMBERS = 4, 10
RUN_S = WEEK_S / 100
"""Upper bound of the length of a run."""


def far_from_their_shares(database: Database, seed: int) -> list[str]:
    """Return one line for each account, and each member of one, whose slot time in a week is more
    than 5 % and one run for each slot away from its share. All always wait, and users are in
    several projects. A claim counts current runs for what they have lasted, so who is behind may
    get all slots before this counts."""
    pick = random.Random(seed)
    lab = SharedLab(database, FairShare(spare_slots=0), cpus=pick.randint(2, 4))
    shares = {}
    for i in range(pick.randint(2, 2 * MAX_MEMBERS)):
        of_user = pick.choice([1, 1, 2, 3])
        shares[lab.user(f"user {seed} {i}", shares=of_user)] = of_user
    users = [*shares]
    own = pick.sample(users, pick.randint(1, min(3, len(users))))
    members, of_account = [Member(user) for user in own], {(user, 0): shares[user] for user in own}
    for i in range(pick.randint(1, MAX_PROJECTS)):
        some = pick.sample(users, min(len(users), pick.randint(1, MAX_MEMBERS)))
        of_project = pick.randint(1, 4)
        project = lab.project(f"project {seed} {i}", some, shares=of_project)
        of_account[0, project] = of_project
        members += [Member(user, project) for user in some]
    in_account = defaultdict[tuple[int, int], int](int)
    for member in members:
        in_account[member.account] += shares[member.owner_id]
    slots = sum(map(len, lab.idle.values()))
    wanted = {
        member: of_account[member.account] / sum(of_account.values())
        * shares[member.owner_id] / in_account[member.account] * slots * WEEK_S
        for member in members
    }  # fmt: skip
    for member, time_s in wanted.items():
        length_s = pick.uniform(RUN_S / 2, RUN_S)
        lab.submit(member.owner_id, int(1.5 * time_s / length_s) + 9, length_s,
                   project=member.project_id)  # fmt: skip
    lab.run(WEEK_S)
    used, of_accounts = defaultdict[Member, float](float), defaultdict[object, list[float]](list)
    for start, owner, id in lab.starts:
        used[Member(owner, lab.projects[id])] += min(lab.lengths[id], lab.time - start)
    for member in members:
        of_accounts[member.account] += [used[member] - wanted[member], wanted[member]]
    parts = {str(one): (used[one] - wanted[one], wanted[one]) for one in members}
    parts |= {f"account {key}": (sum(of[::2]), sum(of[1::2])) for key, of in of_accounts.items()}
    return [
        f"seed {seed}: {name} is {off_s:+.0f} s from its {time_s:.0f} s"
        for name, (off_s, time_s) in parts.items()
        if abs(off_s) > 0.05 * time_s + slots * RUN_S
    ]
