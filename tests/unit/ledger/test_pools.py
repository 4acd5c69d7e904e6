"""What is told when a batch is made, against a slow count over every stored rollout; and what happens when a pool is full."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.buffer.archiving import RUN, done, open_group, open_run, rollout, write

from penstock.buffer.batches import BatchLog, batch_records
from penstock.buffer.core import Buffer
from penstock.buffer.store import SqliteStore
from penstock.errors import InvalidError
from penstock.ledger import BatchReport
from penstock.metrics import MemorySink, Metrics, read_jsonl
from penstock.testing.arrivals import Tray
from penstock.testing.disk import FakeDisk
from penstock.testing.store import MemoryStore
from penstock.types import CutRequest, GroupState, LeaseRecord, LeaseRequest, Plan, Purpose, RolloutStatus


class Reports:
    """A buffer that is told of its batches, in memory."""

    def __init__(self, **laws: Any) -> None:
        self.store = MemoryStore(FakeDisk(0))
        self.told: list[BatchReport] = []
        self.clock = iter(range(1, 10**6))
        self.start()
        open_run(self.buffer, max_lag=4, **laws)
        self.sync()
        self.term = self.buffer.take_term(RUN, "learner", 0).reply.term

    def start(self) -> None:
        self.buffer = _Synced(self.store, self.clock.__next__, on_batch=self.told.append)

    def sync(self) -> None:
        self.store.sync_now()

    def cut(self, update: int, count: int, **options: Any) -> Plan:
        plan = self.buffer.cut(RUN, update, self.term, CutRequest(groups_per_update=count, **options)).reply
        self.sync()
        assert isinstance(plan, Plan)
        return plan

    def apply(self, update: int) -> None:
        self.buffer.record(RUN, update, self.term, digest=f"{update:032d}")
        self.sync()

    def values(self) -> dict[str, float]:
        return values_of(self.told[-1])


class _Synced(Buffer):
    """Makes everything durable at once."""

    def _submit(self, run: str, decision: Any) -> Any:
        pending = super()._submit(run, decision)
        assert isinstance(self.store, MemoryStore)
        self.store.sync_now()
        return pending


def values_of(report: BatchReport) -> dict[str, float]:
    sink = MemorySink()
    Metrics(sink).emit(report.step, *batch_records(report))
    return dict(sink.emissions[-1].values)


def test_every_name_of_the_seed_with_values_worked_out_by_hand() -> None:
    reports = Reports(fractions={"env": 0.5, "other": 0.5})
    for index in range(3):
        open_group(reports.buffer, index)
        for member in range(2):
            status = RolloutStatus.TRUNCATED if (index, member) == (1, 0) else RolloutStatus.OK
            write(reports.buffer, rollout(index, member, status=status))
    open_group(reports.buffer, 0, environment="other")
    for member in range(2):
        write(reports.buffer, rollout(0, member, environment="other"))
    open_group(reports.buffer, 3)
    write(reports.buffer, rollout(3, 0))  # its group is not whole: new, but in no pool
    open_group(reports.buffer, 4, size=1, purpose=Purpose.EVAL)
    write(reports.buffer, rollout(4, 0))  # never trained on, so in neither
    reports.cut(0, 2)
    # A group is 2 rollouts of 5 tokens that share their prompt of 3, so 7 tokens; 2 tokens of each are sampled. Rewards are 0.5 and 1.5.
    assert reports.values() == {
        "replays/env/rollouts_in_buffer": 6,
        "replays/env/tokens_in_buffer": 21,
        "replays/env/frac_on_policy": 1.0,
        "replays/env/new_rollouts": 7,
        "replays/env/new_tokens": 35,
        "replays/env/new_generated_tokens": 14,
        "replays/env/reward/mean": pytest.approx((4 * 0.5 + 3 * 1.5) / 7),
        "replays/env/reward/std": pytest.approx(statistics.pstdev([0.5] * 4 + [1.5] * 3)),
        "replays/env/frac_truncated": pytest.approx(1 / 7),
        "replays/env/rewards/exact/mean": pytest.approx(3 / 7),
        "replays/env/rewards/exact/std": pytest.approx(statistics.pstdev([0.0] * 4 + [1.0] * 3)),
        "replays/env/rewards/form/mean": 0.5,
        "replays/env/rewards/form/std": 0.0,
        "replays/env/frac_used_in_batch": pytest.approx(2 / 6),
        "batches/env/rollouts_used": 2,
        "batches/env/tokens_used": 7,
        "batches/env/frac_used": 0.5,
        "replays/other/rollouts_in_buffer": 2,
        "replays/other/tokens_in_buffer": 7,
        "replays/other/frac_on_policy": 1.0,
        "replays/other/new_rollouts": 2,
        "replays/other/new_tokens": 10,
        "replays/other/new_generated_tokens": 4,
        "replays/other/reward/mean": 1.0,
        "replays/other/reward/std": 0.5,
        "replays/other/frac_truncated": 0.0,
        "replays/other/rewards/exact/mean": 0.5,
        "replays/other/rewards/exact/std": 0.5,
        "replays/other/rewards/form/mean": 0.5,
        "replays/other/rewards/form/std": 0.0,
        "replays/other/frac_used_in_batch": 1.0,
        "batches/other/rollouts_used": 2,
        "batches/other/tokens_used": 7,
        "batches/other/frac_used": 0.5,
    }


def test_a_cut_that_is_asked_for_again_is_not_told_again() -> None:
    reports = Reports()
    fill(reports, [0, 1], 0)
    reports.cut(0, 1)
    reports.cut(0, 1)
    assert len(reports.told) == 1


def test_what_an_outside_consumer_takes_is_a_batch_too() -> None:
    reports = Reports()
    fill(reports, [0, 1, 2], 0)
    assert isinstance(reports.buffer.take_lease(RUN, "l", "me", LeaseRequest(groups=2)).reply, LeaseRecord)
    assert reports.values()["batches/env/rollouts_used"] == 4
    assert reports.values()["replays/env/frac_used_in_batch"] == pytest.approx(4 / 6)
    reports.cut(0, 1)
    assert reports.values()["replays/env/new_rollouts"] == 0
    assert reports.values()["replays/env/rollouts_in_buffer"] == 2


def fill(reports: Reports, indices: Sequence[int], version: int) -> None:
    for index in indices:
        open_group(reports.buffer, index)
        for member in range(2):
            write(reports.buffer, rollout(index, member, version=version))


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 4), st.integers(1, 3), st.booleans(), st.sampled_from(["oldest", "newest"])),
        min_size=1,
        max_size=6,
    )
)
@settings(max_examples=25, deadline=None)
def test_the_running_sums_equal_a_slow_count_over_all_stored_rollouts(steps: list[tuple[int, int, bool, str]]) -> None:
    """Writes some groups, cuts some, restarts the buffer in between, and goes stale on the way."""
    reports = Reports()
    index, since = 0, -1.0
    for update, (num_groups, count, restarts, order) in enumerate(steps):
        newest = reports.buffer.ledger(RUN).newest_version
        for _ in range(num_groups + count):
            version = max(0, newest - index % 3)
            fill(reports, [index], version)
            index += 1
        if restarts:
            reports.start()
        waiting = ready_groups(reports)
        stored = [found for found in reports.store.scan_rollouts(RUN) if found.stored_at > since]
        plan = reports.cut(update, count, order=order)
        since = plan.cut_at
        expected = slow(reports, waiting, stored, plan)
        assert reports.values() == pytest.approx(expected)
        reports.apply(update)


def ready_groups(reports: Reports) -> list[Any]:
    fresh = reports.buffer.ledger(RUN).newest_version - 4
    return [group for group in reports.store.scan_groups(RUN) if group.state is GroupState.READY and group.oldest_version >= fresh]


def slow(reports: Reports, waiting: list[Any], stored: list[Any], plan: Plan) -> dict[str, float]:
    ids = {group.id for group in waiting}
    pool = [found for found in reports.store.scan_rollouts(RUN) if found.group_id in ids]
    chosen = {planned.id for planned in plan.groups}
    used = [found for found in pool if found.group_id in chosen]
    sampled = sum(found.sampled_tokens for found in pool)
    on_policy = sum(dict(zip(found.versions, found.version_tokens, strict=True)).get(plan.newest_version, 0) for found in pool)
    rewards = [found.reward for found in stored]
    values: dict[str, float] = {
        "replays/env/rollouts_in_buffer": len(pool),
        "replays/env/tokens_in_buffer": sum(group.tokens for group in waiting),
        "replays/env/frac_on_policy": on_policy / sampled,
        "replays/env/new_rollouts": len(stored),
        "replays/env/new_tokens": sum(found.tokens for found in stored),
        "replays/env/new_generated_tokens": sum(found.sampled_tokens for found in stored),
        "replays/env/reward/mean": statistics.fmean(rewards),
        "replays/env/reward/std": statistics.pstdev(rewards),
        "replays/env/frac_truncated": 0.0,
        "replays/env/frac_used_in_batch": len(used) / len(pool),
        "batches/env/rollouts_used": len(used),
        "batches/env/tokens_used": plan.tokens,
        "batches/env/frac_used": 1.0,
    }
    for name in ("exact", "form"):
        parts = [found.rewards[name] for found in stored]
        values |= {f"replays/env/rewards/{name}/mean": statistics.fmean(parts), f"replays/env/rewards/{name}/std": statistics.pstdev(parts)}
    return values


def test_a_full_pool_drops_its_oldest_groups_and_keeps_what_just_came() -> None:
    reports = Reports(capacity_rollouts={"env": 5})
    fill(reports, [0, 1], 0)
    states = {group.id: (group.state, group.reason) for group in reports.store.scan_groups(RUN)}
    assert states == {"env/0/0": (GroupState.READY, None), "env/0/1": (GroupState.READY, None)}
    fill(reports, [2, 3], 0)
    states = {group.id: (group.state, group.reason) for group in reports.store.scan_groups(RUN)}
    assert states == {
        "env/0/0": (GroupState.DROPPED, "capacity"),
        "env/0/1": (GroupState.DROPPED, "capacity"),
        "env/0/2": (GroupState.READY, None),
        "env/0/3": (GroupState.READY, None),
    }
    assert reports.buffer.ledger(RUN).pools.ready["env"].rollouts == 4


def test_a_group_bigger_than_its_pool_stays_and_one_that_has_trained_is_done() -> None:
    reports = Reports(capacity_rollouts={"env": 1}, max_reuse=2)
    fill(reports, [0], 0)
    assert reports.buffer.ledger(RUN).pools.ready["env"].rollouts == 2
    reports.cut(0, 1)
    reports.apply(0)
    assert reports.store.group(RUN, "env/0/0").state is GroupState.READY  # type: ignore[union-attr]
    fill(reports, [1], 0)
    assert reports.store.group(RUN, "env/0/0").state is GroupState.BOUND  # type: ignore[union-attr]
    assert reports.store.group(RUN, "env/0/1").state is GroupState.READY  # type: ignore[union-attr]


def test_a_capacity_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidError, match=r"laws\.capacity_rollouts\.env: must be 1 or more, got 0"):
        Reports(capacity_rollouts={"env": 0})


def test_a_batch_is_a_line_in_the_run_s_file(tmp_path: Path) -> None:
    log = BatchLog(None, tmp_path / "metrics")
    store = SqliteStore(tmp_path / "store.sqlite")
    buffer = Buffer(store, iter(range(10**6)).__next__, on_batch=log)
    open_run(buffer)
    open_group(buffer, 0)
    write(buffer, rollout(0, 0))
    write(buffer, rollout(0, 1))
    term = done(buffer, buffer.take_term(RUN, "learner", 0)).term
    done(buffer, buffer.cut(RUN, 0, term, CutRequest(groups_per_update=1)))
    store.close()
    log.close()
    (line,) = read_jsonl(tmp_path / "metrics" / "demo.jsonl")
    assert (line["step"], line["replays/env/rollouts_in_buffer"], line["batches/env/tokens_used"]) == (0, 2, 7)


def test_items_of_the_compatible_routes_are_counted_like_rollouts() -> None:
    tray = Tray(group_size=2)
    for uid, reward in (("1", 0.0), ("2", 1.0), ("3", None)):
        tray.write(uid, reward=reward)
    new, pool = tray.ledger.pools.new["env"], tray.ledger.pools.ready["env"]
    # The third has no reward: it counts as failed, in a group that is not whole.
    assert (new.rollouts, new.reward.mean, new.reward.std) == (2, 0.5, 0.5)
    assert (pool.groups, pool.rollouts) == (1, 2)
    tray.read("a/0")
    assert (tray.ledger.pools.new, pool.rollouts) == ({}, 0)
