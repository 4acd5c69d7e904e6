"""Whatever arrives, times out, is leased or read, in whatever order: everything stays accounted for and nothing is mixed."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock import ledger as law
from penstock.errors import InputError
from penstock.ledger.arrivals import ArrivalRules
from penstock.testing.arrivals import Tray
from penstock.types import GroupState, LeaseRecord, LeaseRequest

ENDED = (GroupState.SPENT, GroupState.DROPPED)


class AnyArrival(RuleBasedStateMachine):
    """Calls rules with arguments that are right, late, doubled or wrong; refusals must leave no trace."""

    @initialize(size=st.integers(1, 4), ratio=st.sampled_from([0.5, 1.0]))
    def start(self, size: int, ratio: float) -> None:
        self.tray = Tray(group_size=size, min_valid_group_size_ratio=ratio, group_timeout_seconds=10.0, min_timeout_group_size_ratio=0.5)
        self.size = size
        self.ended: dict[str, object] = {}
        self.num_filled = 0

    def attempt(self, verb: Any, *args: Any, **options: Any) -> Any:
        before = law.balance(self.tray.ledger)
        try:
            return verb(*args, **options)
        except InputError:
            assert law.balance(self.tray.ledger) == before
            return None

    @rule(number=st.integers(0, 40), instance=st.sampled_from("ab"), reward=st.sampled_from([None, -1.0, 0.0, 1.0]), environment=st.sampled_from(["p", "q"]))
    def write(self, number: int, instance: str, reward: float | None, environment: str) -> None:
        was_there = f"u{number}" in self.tray.stored_rollouts
        arrived = self.attempt(self.tray.write, f"u{number}", instance, reward, environment=environment)
        assert arrived is None or arrived.duplicate == was_there

    @rule(instance=st.sampled_from("ab"), environment=st.sampled_from(["p", "q"]))
    def fill(self, instance: str, environment: str) -> None:
        """As many items as make a group. Left to chance, few would ever be whole."""
        for _ in range(self.size):
            self.num_filled += 1
            self.attempt(self.tray.write, f"f{self.num_filled}", instance, float(self.num_filled % 2), environment=environment)

    @rule(seconds=st.sampled_from([3.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.tray.now += seconds
        for environment in "pq":
            while self.tray.time_out(environment):
                pass
        self.tray.do(law.expire_leases(self.tray.ledger, self.tray.now))

    @rule(read_id=st.sampled_from(["r1", "r2", "r3", "r4"]), served=st.lists(st.integers(0, 5), unique=True), dropped=st.integers(0, 5))
    def read(self, read_id: str, served: list[int], dropped: int) -> None:
        names = sorted(self.tray.stored_groups)
        chosen = [names[place] for place in served if place < len(names)]
        refused = {name.replace("/", "_"): "refused" for name in names[dropped : dropped + 1] if name not in chosen}
        lease = self.attempt(self.tray.read, *chosen, read_id=read_id, **refused)
        assert lease is None or all(self.tray.stored_groups[given.id].state is GroupState.SPENT for given in lease.groups)

    @rule(lease=st.sampled_from(["l1", "l2", "l3"]), consumer=st.sampled_from("xy"), groups=st.integers(1, 2), order=st.sampled_from(["oldest", "newest"]))
    def take(self, lease: str, consumer: str, groups: int, order: Any) -> None:
        tray = self.tray
        request = LeaseRequest(groups=groups, order=order, seconds=5.0)
        taken = self.attempt(lambda: tray.do(law.take_lease(tray.ledger, tray, lease, consumer, request, tray.now)))
        assert not isinstance(taken, LeaseRecord) or (taken.lease, taken.consumer) == (lease, consumer)

    @rule(
        lease=st.sampled_from(["l1", "l2", "l3"]), consumer=st.sampled_from("xy"), verb=st.sampled_from([law.settle_lease, law.release_lease, law.renew_lease])
    )
    def end(self, lease: str, consumer: str, verb: Any) -> None:
        tray = self.tray
        self.attempt(lambda: tray.do(verb(tray.ledger, tray, lease, consumer, tray.now)))

    @rule(size=st.integers(1, 4))
    def change_the_size(self, size: int) -> None:
        self.tray.rules = ArrivalRules(group_size=size, group_timeout_seconds=10.0, min_timeout_group_size_ratio=0.5)

    @invariant()
    def everything_is_accounted_for(self) -> None:
        tray = self.tray
        assert law.imbalance(tray.ledger) == 0
        counted = law.recount(tray.stored_groups.values(), tray.stored_members.values())
        assert counted == tuple(found for found in law.balance(tray.ledger) if found.opened)
        assert len(tray.stored_members) == len(tray.stored_rollouts)

    @invariant()
    def groups_are_whole_and_never_mixed(self) -> None:
        for group in self.tray.stored_groups.values():
            rollouts = self.tray.rollouts("run", group.id)
            assert [rollout.member for rollout in rollouts] == list(range(len(rollouts)))
            assert len(rollouts) <= group.size
            assert {(rollout.environment, rollout.problem_id) for rollout in rollouts} == {(group.environment, group.problem_id)}
            if group.state is not GroupState.OPEN:
                assert group.arrival is not None
                on_time = [rollout for rollout in rollouts if rollout.failure != "late"]
                assert group.arrival.rewards == tuple(rollout.reward for rollout in on_time)

    @invariant()
    def what_has_ended_stays_as_it_was(self) -> None:
        for group in self.tray.stored_groups.values():
            if group.state in ENDED:
                assert self.ended.setdefault(group.id, group) == group

    @invariant()
    def what_waits_is_counted(self) -> None:
        waiting = [group.id for group in self.tray.stored_groups.values() if group.state not in ENDED]
        rollouts = [rollout for group_id in waiting for rollout in self.tray.rollouts("run", group_id) if rollout.failure != "late"]
        assert self.tray.ledger.trays.num_items == len(rollouts)
        assert self.tray.ledger.trays.num_bytes == sum(rollout.num_bytes for rollout in rollouts)

    @invariant()
    def a_group_is_bound_by_one_lease_that_is_taken(self) -> None:
        held = [planned.id for lease in self.tray.ledger.leases.values() for planned in lease.groups]
        assert len(held) == len(set(held))
        assert set(held) == {group.id for group in self.tray.stored_groups.values() if group.state is GroupState.BOUND}


TestAnyArrival = AnyArrival.TestCase
TestAnyArrival.settings = settings(max_examples=60, stateful_step_count=40)
