"""Those who need no learner: writers whose items form groups by arrival, a reader who takes groups for good, consumers who lease them for a time."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from random import Random

from penstock import ledger as law
from penstock.buffer.core import Pending
from penstock.buffer.store.places import spread
from penstock.buffer.store.protocol import Store
from penstock.buffer.stored import StoredGroup
from penstock.errors import ConflictError, FencedError, ForbiddenError, StoreError, UnknownError
from penstock.ledger import Ledger
from penstock.ledger.arrivals import ArrivalRules, Arrived, Item, Reading, enough
from penstock.ledger.leases import leasable
from penstock.types import GroupRecord, Laws, LeaseRecord, LeaseRequest, Record, RolloutRecord
from penstock.wire import digest
from tests.simulation.audit import NEXT_STATES
from tests.simulation.buffering import BufferActor
from tests.simulation.clockwork import Call, Script, Weather
from tests.simulation.history import Violation
from tests.simulation.stage import Player

ITEMS, ENVIRONMENT, READER = "items", "env", "reader"
LEASE_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideScenario:
    """What one seed decides before anything happens."""

    rules: ArrivalRules
    num_instances: int
    num_writers: int
    num_consumers: int
    weather: Weather
    commit_seconds: float
    seconds_between_faults: float
    calm_after_events: int


def outside_scenario(rng: Random) -> OutsideScenario:
    """Draw a world."""
    scale = rng.choice((0.0, 1.0, 1.0, 3.0))
    return OutsideScenario(
        rules=ArrivalRules(
            group_size=rng.randint(2, 4),
            min_valid_group_size_ratio=rng.choice((1.0, 1.0, 0.7)),
            group_timeout_seconds=rng.uniform(1.5, 4.0),
            min_timeout_group_size_ratio=rng.choice((0.3, 0.7)),
        ),
        num_instances=rng.randint(2, 8),
        num_writers=rng.randint(1, 3),
        num_consumers=rng.randint(1, 3),
        weather=Weather(
            drop=scale * rng.uniform(0.0, 0.03), duplicate=scale * rng.uniform(0.01, 0.05), slow=scale * rng.uniform(0.0, 0.05), late=rng.uniform(0.1, 0.6)
        ),
        commit_seconds=rng.choice((0.02, 0.05, 0.4)),
        seconds_between_faults=rng.uniform(1.0, 4.0) if scale else float("inf"),
        calm_after_events=rng.randint(400, 700),
    )


@dataclass
class Told:
    """What outsiders were told, and what they did with it."""

    rules: ArrivalRules
    sent: dict[str, bytes] = field(default_factory=dict)
    acked: set[str] = field(default_factory=set)
    leases: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Groups of each lease, as they were told."""
    fences: dict[int, str] = field(default_factory=dict)
    used: dict[str, str] = field(default_factory=dict)
    """By group: the read or the settled lease that has used it."""
    reads: int = 0
    """The reader's own note of how far it is: it outlives the reader."""

    def ack(self, uid: str, done: Arrived) -> None:
        """A writer was told that its item is stored."""
        if uid in self.acked and not done.duplicate:
            raise Violation("D4", f"item {uid} was acknowledged before and is not called a duplicate", uid)
        self.acked.add(uid)

    def lease(self, lease: LeaseRecord) -> None:
        """A consumer was given a lease: the same one always holds the same groups, and no other has its fence."""
        groups = tuple(planned.id for planned in lease.groups)
        if self.leases.setdefault(lease.lease, groups) != groups:
            raise Violation("E4", f"lease {lease.lease} held {self.leases[lease.lease]} and now holds {groups}", lease.lease, *groups)
        if self.fences.setdefault(lease.fence, lease.lease) != lease.lease:
            raise Violation("E4", f"leases {lease.lease} and {self.fences[lease.fence]} have the fence {lease.fence}", lease.lease)

    def use(self, stored: StoredGroup, by: str) -> None:
        """Somebody has used a group for good."""
        group = stored.group
        if self.used.setdefault(group.id, by) != by:
            raise Violation("E2", f"group {group.id} was used by {self.used[group.id]} and again by {by}", group.id, by)
        uids = [rollout.uid for rollout, _ in stored.rollouts]
        strangers = [uid for uid in uids if not self.sent[uid].endswith(f" {group.problem_id}".encode())]
        if len(set(uids)) < len(uids) or strangers:
            raise Violation("E3", f"group {group.id} holds {uids}", group.id, *uids)
        if any(payload.body != self.sent[payload.uid] for _, payload in stored.rollouts):
            raise Violation("D1", f"group {group.id} holds bytes that nobody wrote", group.id)
        if group.arrival is not None and not group.arrival.timed_out and len(group.arrival.rewards) < enough(self.rules, group):
            raise Violation("E3", f"group {group.id} was given with {len(group.arrival.rewards)} items", group.id)


class Books:
    """Every record of a group or an item that the buffer decides, by an account of its own."""

    def __init__(self) -> None:
        self.groups: dict[str, GroupRecord] = {}
        self._uids: set[str] = set()

    def reload(self, store: Store) -> None:
        """Start again from what a store holds after a crash."""
        self.groups = {group.id: group for group in store.scan_groups(ITEMS)}
        self._uids = {rollout.uid for rollout in store.scan_rollouts(ITEMS)}

    def see(self, records: Sequence[Record]) -> None:
        """One decision of the buffer, before it is durable."""
        for record in spread(records):
            if isinstance(record, GroupRecord):
                self._see_group(record)
            elif isinstance(record, RolloutRecord):
                if record.uid in self._uids:
                    raise Violation("D4", f"item {record.uid} is stored a second time", record.uid, record.group_id)
                self._uids.add(record.uid)

    def _see_group(self, group: GroupRecord) -> None:
        old = self.groups.get(group.id)
        if old is not None and group.state not in NEXT_STATES[old.state]:
            raise Violation("E3", f"group {group.id} goes from {old.state} to {group.state}", group.id)
        if old is not None and old.state == group.state == "bound":
            raise Violation("E4", f"group {group.id} is in lease {old.lease} and is given to {group.lease}", group.id)
        if group.state == "dropped" and not group.reason:
            raise Violation("E1", f"group {group.id} is dropped without a reason", group.id)
        self.groups[group.id] = group


class TrayBuffer(BufferActor):
    """The buffer with a run of arriving items."""

    @property
    def ledger(self) -> Ledger | None:
        try:
            return self.buffer.ledger(ITEMS)
        except (UnknownError, StoreError):
            return None

    def _do(self, call: Call) -> tuple[object, Future[None] | None]:
        if not self.buffer.has(ITEMS):
            self.buffer.open_run(ITEMS, Laws(min_group_size=1), "compatible")
        if call.verb == "look":
            return call.args[0](self), self.buffer.settled()
        if call.verb == "read":
            return self._read(*call.args)
        done = getattr(self.buffer, call.verb)(ITEMS, *call.args, **call.options)
        return (done.reply, done.durable) if isinstance(done, Pending) else (done, None)

    def _read(self, read_id: str, most: int) -> tuple[object, Future[None]]:
        """As the compatible routes: everything that is ready, or what was read under this id before."""
        ledger = self.buffer.ledger(ITEMS)
        known = law.find_lease(ledger, self.store, read_id)
        served = [] if known is not None else [group.id for group in leasable(ledger, LeaseRequest())][:most]
        if not served:
            return known, self.buffer.settled()
        done = self.buffer.read(ITEMS, Reading(read_id=read_id, served=served), READER)
        return done.reply, done.durable

    def _came_back(self) -> None:
        self.note("open")
        self._num_checked = -1
        self.stage.audit.reload(self.store)
        self._check()
        self.check_acknowledged(self.store)

    def check_acknowledged(self, store: Store) -> None:
        """D1: everything that somebody was told is in the store, byte for byte."""
        told: Told = self.stage.witness
        for uid in told.acked:
            try:
                body = store.payload(ITEMS, uid).body
            except (UnknownError, StoreError) as error:
                raise Violation("D1", f"item {uid} was acknowledged and is gone ({error})", uid) from error
            if body != told.sent[uid]:
                raise Violation("D1", f"item {uid} was acknowledged and is stored with other bytes", uid)
        for lease in told.leases:
            if store.lease(ITEMS, lease) is None:
                raise Violation("E4", f"lease {lease} was given and is gone", lease)

    def _expire(self) -> Script:
        while True:
            yield 0.5
            if self.broken or not self.buffer.has(ITEMS):
                continue
            try:
                ended = self.buffer.time_out(ITEMS, self.stage.scenario.rules, ENVIRONMENT)
                self.note("times out", *(group.id for group in ended.reply))
                for pending in (ended, *self.buffer.expire_leases()):
                    self._tell_when(pending.durable, None, lambda _: None)
            except StoreError as error:
                self._break(error)
            self._check()


class Writer(Player):
    """Writes items of a few instances, each until it is answered, and now and then once more."""

    def boot(self) -> None:
        self.spawn(self._write())

    def _write(self) -> Script:
        told: Told = self.stage.witness
        number = 0
        while not self.stage.draining:
            items = [self._item(number + place) for place in range(self.rng.choice((1, 1, 2, 4)))]
            number += len(items)
            told.sent |= {item.uid: item.body for item in items}
            if len(items) == 1 and self.rng.random() < 0.5:
                done = [(yield from self.ask("arrive", self.stage.scenario.rules, items[0]))]
            else:
                done = yield from self.ask("arrive_all", self.stage.scenario.rules, items)
            for item, answer in zip(items, done, strict=True):
                told.ack(item.uid, answer)
            if self.rng.random() < 0.1:
                yield self.rng.choice((0.01, 0.5, 4.0))
                told.ack(items[0].uid, (yield from self.ask("arrive", self.stage.scenario.rules, items[0])))
                yield from self._must_refuse(items[0])
            yield self.rng.uniform(0.02, 0.4)

    def _item(self, number: int) -> Item:
        instance = f"i{self.rng.randrange(self.stage.scenario.num_instances)}"
        return _item(f"{self.name}.{self.life}.{number}", instance, self.rng.choice((0.0, 1.0, 1.0, None)))

    def _must_refuse(self, item: Item) -> Script:
        other = _item(item.uid, item.instance, item.reward, more="!")
        try:
            yield from self.ask("arrive", self.stage.scenario.rules, other)
        except ConflictError:
            return
        raise Violation("D4", f"item {item.uid} was replaced by other content", item.uid)


class Taker(Player):
    """Whoever is given groups."""

    def fetched(self, lease: LeaseRecord) -> Script:
        """The groups of a lease with their bytes, which must be those that it names."""
        return (yield from self.ask("look", lambda buffer: [buffer.buffer.fetch(ITEMS, planned.id, planned.digest) for planned in lease.groups]))


class Reader(Taker):
    """Takes what is ready, for good. Keeps the id of its read until it has the answer, through its own death too."""

    def boot(self) -> None:
        self.spawn(self._read())

    def _read(self) -> Script:
        told: Told = self.stage.witness
        while True:
            read_id = f"read{told.reads}"
            lease: LeaseRecord | None = yield from self.ask("read", read_id, self.rng.randint(1, 3))
            if lease is not None:
                for stored in (yield from self.fetched(lease)):
                    told.use(stored, read_id)
                    self.note("reads", read_id, stored.group.id)
                told.reads += 1
            yield self.rng.uniform(0.5, 2.5)


class Consumer(Taker):
    """Leases groups, works on them for shorter or longer than the lease lasts, and settles it or gives it back."""

    def boot(self) -> None:
        self.spawn(self._consume())

    def _consume(self) -> Script:
        number = 0
        while True:
            number += 1
            lease_id = f"{self.name}.{self.life}.{number}"
            try:
                yield from self._one(lease_id)
            except FencedError:
                self.note("lost its lease", lease_id)
            yield self.rng.uniform(0.1, 1.0)

    def _one(self, lease_id: str) -> Script:
        told: Told = self.stage.witness
        wanted = LeaseRequest(groups=self.rng.randint(1, 3), seconds=LEASE_SECONDS)
        lease = yield from self.ask("take_lease", lease_id, self.name, wanted)
        if not isinstance(lease, LeaseRecord):
            return
        told.lease(lease)
        self.note("takes", lease_id, *(planned.id for planned in lease.groups))
        groups = yield from self.fetched(lease)
        if self.rng.random() < 0.3:
            again = yield from self.ask("take_lease", lease_id, self.name, wanted)
            if not isinstance(again, LeaseRecord):
                raise Violation("E4", f"lease {lease_id} was given and has no groups now: {again}", lease_id)
            told.lease(again)
            yield from self._must_refuse(lease_id, wanted)
        yield self.rng.uniform(0.0, 2.0) if self.rng.random() < 0.7 else self.rng.uniform(2.0, 6.0)
        if self.rng.random() < 0.3:
            yield from self.ask("renew_lease", lease_id, self.name)
            yield self.rng.uniform(0.0, 2.0)
        if self.rng.random() < 0.2:
            yield from self.ask("release_lease", lease_id, self.name)
            return
        yield from self.ask("settle_lease", lease_id, self.name)
        for stored in groups:
            told.use(stored, lease_id)
            self.note("uses", lease_id, stored.group.id)

    def _must_refuse(self, lease_id: str, wanted: LeaseRequest) -> Script:
        try:
            yield from self.ask("take_lease", lease_id, "stranger", wanted)
        except ForbiddenError:
            return
        raise Violation("E4", f"lease {lease_id} of {self.name} was given to a stranger", lease_id)


def _item(uid: str, instance: str, reward: float | None, more: str = "") -> Item:
    body = f"{uid} {reward}{more} {instance}".encode()
    return Item(uid=uid, instance=instance, problem_id=instance, environment=ENVIRONMENT, reward=reward, kept=True, body=body, digest=digest(body))


def outsiders(stage: object, scenario: OutsideScenario) -> list[Player]:
    """Everybody beside the buffer."""
    writers = [Writer(f"writer{number}", stage) for number in range(scenario.num_writers)]
    consumers = [Consumer(f"consumer{number}", stage) for number in range(scenario.num_consumers)]
    return [*writers, Reader("reader", stage), *consumers]
