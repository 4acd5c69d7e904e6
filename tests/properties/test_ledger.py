"""Whatever is asked of the laws, in whatever order: everything stays accounted for."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock import ledger as law
from penstock.errors import InputError
from penstock.testing.ledger import Notebook
from penstock.types import CutRequest, GroupState, Laws, LeaseRecord, MemberState, Plan, Purpose, RolloutStatus

GROUPS = [f"{environment}/0/{index}" for environment in ("a", "b") for index in range(5)]


class AnyOrder(RuleBasedStateMachine):
    """Calls rules with arguments that are right, late, doubled or wrong; refusals must leave no trace."""

    @initialize(max_lag=st.integers(0, 2), max_reuse=st.integers(1, 2), max_retries=st.integers(0, 2), credit_tokens=st.sampled_from([60, 10_000]))
    def start(self, **laws: int) -> None:
        self.book = Notebook(Laws(**laws, session_seconds=5.0, term_seconds=5.0))  # type: ignore[arg-type]

    def attempt(self, verb: Any, *args: Any, **options: Any) -> Any:
        before = law.balance(self.book.ledger)
        try:
            return verb(*args, **options)
        except InputError:
            assert law.balance(self.book.ledger) == before
            return None

    @rule(group=st.sampled_from(GROUPS), size=st.integers(2, 3), purpose=st.sampled_from([Purpose.TRAIN, Purpose.TRAIN, Purpose.EVAL]))
    def open(self, group: str, size: int, purpose: Purpose) -> None:
        self.attempt(self.book.open, group, environment=group[0], size=size, purpose=purpose, first_estimate=30)

    @rule(
        group=st.sampled_from(GROUPS),
        member=st.integers(0, 3),
        retry=st.integers(0, 2),
        lag=st.integers(-1, 3),
        uid=st.sampled_from([None, None, "same"]),
        status=st.sampled_from([RolloutStatus.OK, RolloutStatus.OK, *RolloutStatus]),
    )
    def write(self, group: str, member: int, retry: int, lag: int, uid: str | None, status: RolloutStatus) -> None:
        version = max(0, self.book.ledger.newest_version - lag)
        self.attempt(self.book.write, group, member, retry=retry, version=version, uid=uid, status=status)

    @rule(group=st.sampled_from(GROUPS))
    def fill(self, group: str) -> None:
        """What a worker does that nothing happens to. Left to chance, hardly a group would ever be whole."""
        self.attempt(self.book.open, group, environment=group[0], first_estimate=30)
        for _, slot in sorted(self.book.stored_members.items()):
            if slot.group_id == group and slot.state is MemberState.PENDING:
                self.attempt(self.book.write, group, slot.member, retry=slot.retry, version=self.book.ledger.newest_version)

    @rule(
        writes=st.lists(
            st.tuples(
                st.sampled_from(GROUPS[:3]),
                st.integers(0, 3),
                st.integers(0, 1),
                st.integers(-1, 2),
                st.sampled_from([None, None, "same"]),
                st.sampled_from([RolloutStatus.OK, RolloutStatus.OK, *RolloutStatus]),
            ),
            max_size=12,
        )
    )
    def write_together(self, writes: list[tuple[str, int, int, int, str | None, RolloutStatus]]) -> None:
        """What is written together has the same answers, and leaves the same behind, as what is written one by one."""
        newest, apart = self.book.ledger.newest_version, copy.deepcopy(self.book)
        came = [
            self.book.rollout_of(group, member, retry=retry, version=max(0, newest - lag), uid=uid, status=status, tokens=5 + member)
            for group, member, retry, lag, uid, status in writes
        ]
        expected: list[object] = []
        for rollout, payload in came:
            try:
                expected.append(apart.do(law.accept(apart.ledger, apart, rollout, payload, apart.now)))
            except InputError as error:
                expected.append(str(error))
        answers = self.book.do(law.accept_all(self.book.ledger, self.book, came, self.book.now))
        assert [str(answer) if isinstance(answer, InputError) else answer for answer in answers] == expected
        for name in ("stored_groups", "stored_members", "stored_rollouts"):
            assert getattr(self.book, name) == getattr(apart, name)
        for name in ("groups", "members", "rollouts", "rollouts_of", "free", "claims", "complete", "counts", "last_ready_order"):
            assert getattr(self.book.ledger, name) == getattr(apart.ledger, name), name
        assert {name: list(queue) for name, queue in self.book.ledger.ready.items()} == {name: list(queue) for name, queue in apart.ledger.ready.items()}
        assert (self.book.ledger.pools.ready, self.book.ledger.pools.new) == (apart.ledger.pools.ready, apart.ledger.pools.new)

    @rule(session=st.sampled_from("xy"), count=st.integers(1, 4))
    def claim(self, session: str, count: int) -> None:
        self.attempt(lambda: self.book.do(law.open_session(self.book.ledger, session, session, self.book.now)))
        self.attempt(lambda: self.book.do(law.claim(self.book.ledger, session, count, None, self.book.now)))

    @rule(session=st.sampled_from("xy"))
    def release(self, session: str) -> None:
        self.book.do(law.release(self.book.ledger, session, self.book.now))

    @rule(seconds=st.sampled_from([1.0, 6.0]))
    def wait(self, seconds: float) -> None:
        self.book.now += seconds
        while self.book.do(law.expire(self.book.ledger, self.book.now)):
            pass
        self.book.do(law.expire_leases(self.book.ledger, self.book.now))

    @rule(owner=st.sampled_from("pq"), resume=st.sampled_from(["replay", "recut"]), replaces=st.sampled_from([None, "p", "q"]))
    def take_term(self, owner: str, resume: Any, replaces: str | None) -> None:
        checkpoint = self.book.ledger.newest_checkpoint
        self.attempt(lambda: self.book.do(law.take_term(self.book.ledger, self.book, owner, checkpoint, self.book.now, resume=resume, replaces=replaces)))

    @rule(ahead=st.integers(-1, 1), late=st.integers(0, 1), request=st.sampled_from([CutRequest(groups_per_update=1), CutRequest(budget_tokens=50)]))
    def cut(self, ahead: int, late: int, request: CutRequest) -> None:
        ledger = self.book.ledger
        update, term = ledger.next_update + ahead, (ledger.term.term if ledger.term else 0) - late
        plan = self.attempt(lambda: self.book.do(law.cut(ledger, self.book, update, term, request, self.book.now)))
        if isinstance(plan, Plan):
            for planned in plan.groups:
                group = self.book.stored_groups[planned.id]
                oldest = group.oldest_version
                assert oldest is not None
                assert plan.newest_version - oldest <= ledger.laws.max_lag
                assert len(group.updates) == len(set(group.updates)) <= ledger.laws.max_reuse
                assert group.state is GroupState.BOUND or update in ledger.outcomes

    @rule(lease=st.sampled_from(["l1", "l2", "l3"]), consumer=st.sampled_from("xy"), groups=st.sampled_from([None, 1, 2]))
    def take_lease(self, lease: str, consumer: str, groups: int | None) -> None:
        planned = {group.id for plan in self.book.ledger.plans.values() for group in plan.groups}
        before = self.book.stored_leases.get(lease)
        taken = self.attempt(self.book.take, lease, consumer, groups=groups, seconds=4.0)
        if isinstance(taken, LeaseRecord) and before is None:
            # Neither has what the other has.
            assert planned.isdisjoint(group.id for group in taken.groups)

    @rule(
        lease=st.sampled_from(["l1", "l2", "l3"]), consumer=st.sampled_from("xy"), verb=st.sampled_from([law.settle_lease, law.release_lease, law.renew_lease])
    )
    def end_lease(self, lease: str, consumer: str, verb: Any) -> None:
        self.attempt(lambda: self.book.do(verb(self.book.ledger, self.book, lease, consumer, self.book.now)))

    @rule(late=st.integers(0, 1), skipped=st.sampled_from([None, None, "mismatch"]), digest=st.sampled_from(["w1", "w2"]))
    def record(self, late: int, skipped: str | None, digest: str) -> None:
        ledger = self.book.ledger
        term = (ledger.term.term if ledger.term else 0) - late
        self.attempt(self.book.record, ledger.next_update, term, digest=digest, skipped=skipped)

    @rule()
    def publish(self) -> None:
        ledger = self.book.ledger
        self.attempt(self.book.publish, ledger.newest_version, ledger.term.term if ledger.term else 0)

    @rule(num_steps=st.integers(1, 4))
    def advance(self, num_steps: int) -> None:
        """What a learner does that nothing happens to, up to somewhere."""
        if self.book.ledger.term is None or self.book.ledger.term.expires_at < self.book.now:
            self.take_term("p", "replay", None)
        self.cut(0, 0, CutRequest(groups_per_update=1))
        for step in (lambda: self.record(0, None, "w1"), self.publish, lambda: self.keep(0))[: num_steps - 1]:
            step()

    @rule(behind=st.integers(0, 2))
    def keep(self, behind: int) -> None:
        ledger = self.book.ledger
        self.attempt(self.book.keep, max(0, ledger.next_update - behind), ledger.term.term if ledger.term else 0)

    @invariant()
    def everything_is_accounted_for(self) -> None:
        ledger = self.book.ledger
        assert law.imbalance(ledger) == 0
        counted = law.recount(self.book.stored_groups.values(), self.book.stored_members.values())
        assert counted == tuple(found for found in law.balance(ledger) if found.opened)

    @invariant()
    def the_credit_held_is_that_of_the_groups_under_way(self) -> None:
        for environment in "ab":
            groups = [group for group in self.book.stored_groups.values() if group.environment == environment and group.purpose is Purpose.TRAIN]
            assert self.book.ledger.counts_of(environment, Purpose.TRAIN).held_tokens == sum(group.credit for group in groups)
            assert not any(group.credit for group in groups if group.state in (GroupState.SPENT, GroupState.DROPPED))

    @invariant()
    def a_member_is_filled_by_one_rollout_of_its_own(self) -> None:
        for group in self.book.stored_groups.values():
            filled = [
                self.book.stored_members[group.id, slot].uid for slot in range(group.size) if self.book.stored_members[group.id, slot].state == "accepted"
            ]
            assert len(filled) == len(set(filled))
            assert all(uid is not None and self.book.stored_rollouts[uid].group_id == group.id for uid in filled)
            if group.state in (GroupState.READY, GroupState.BOUND, GroupState.SPENT):
                assert len(filled) == group.usable
                assert group.purpose is Purpose.EVAL or group.usable >= self.book.ledger.laws.min_group_size


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
