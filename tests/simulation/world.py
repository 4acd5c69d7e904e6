"""One seed from its first event to its last word."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from random import Random

from penstock import ledger as law
from penstock.buffer.core import Buffer
from penstock.ledger import Ledger
from penstock.testing.store import MemoryStore
from penstock.types import MemberRecord
from tests.simulation.audit import Audit, unfinished
from tests.simulation.buffering import BufferActor
from tests.simulation.clockwork import Clock, Network, Script, Weather
from tests.simulation.history import History, Violation
from tests.simulation.learning import Learner
from tests.simulation.sampling import players
from tests.simulation.scenario import RUN, scenario
from tests.simulation.stage import Player, Stage
from tests.simulation.witness import Witness

MOST_EVENTS = 8_000
"""A run that has not come to its end by then is stuck."""
EVENTS_AFTER_THE_END = 100
"""Late requests must still change nothing."""


class World:
    """Everything that one seed makes happen."""

    faults: tuple[str, ...] = ("kill", "kill buffer", "kill learner", "kill learner", "freeze", "freeze learner", "disk", "clock")
    """What goes wrong, by kind and whom; each as likely as it is named often."""
    events_between_probes = 600

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.scenario = scenario(self.rng)
        clock = Clock()
        self.clock = clock
        laws = self.scenario.laws
        network = Network(clock, self.rng, self.scenario.weather, lambda name: self.players[name])
        self.stage = Stage(
            scenario=self.scenario,
            rng=self.rng,
            clock=clock,
            network=network,
            history=History(),
            witness=Witness(laws.max_lag, laws.max_reuse),
            audit=Audit(laws),
        )
        self.buffer = BufferActor("buffer", self.stage, disk_seed=seed)
        learners = [Learner(f"learner{number}", self.stage) for number in range(self.scenario.num_learners)]
        self.players: dict[str, Player] = {player.name: player for player in (self.buffer, *players(self.stage), *learners)}

    def run(self) -> None:
        """Raises `Violation` if a promise is broken, or if the run comes to no end."""
        self.buffer.start()
        for player in self.players.values():
            if player is not self.buffer:
                # The second learner comes when the first is at work.
                self.clock.after(self.rng.uniform(0.0, 0.1) if player.name != "learner1" else self.rng.uniform(1.0, 8.0), player.start)
        if self.scenario.seconds_between_faults < float("inf"):
            self._go_on(self._faults())
        next_probe = self.rng.randrange(self.events_between_probes)
        while not self.stage.done:
            self._step()
            if self.clock.num_events >= next_probe:
                next_probe += self._probe()
        for _ in range(EVENTS_AFTER_THE_END):
            self.clock.step()
        self._check_end(self.stage.num_groups)

    def _step(self) -> None:
        self.clock.step()
        if self.clock.num_events >= self.scenario.calm_after_events and not self.stage.draining:
            self.stage.draining = True
            self.stage.network.weather = Weather()
            self.stage.history.note(self.clock.now, "world", "is calm from now on")
        if self.clock.num_events >= MOST_EVENTS:
            left = unfinished(self.stage.audit.groups.values())
            states = ", ".join(f"{group.id} {group.state}" for group in left[:5])
            raise Violation(
                "L1", f"nothing comes to an end; waiting for {self.stage.waiting_for}; {len(left)} groups unfinished: {states}", *(g.id for g in left[:3])
            )

    # What goes wrong

    def _go_on(self, script: Script) -> None:
        """Run a script of the world's own; it only sleeps."""
        seconds = next(script, None)
        if seconds is not None:
            assert isinstance(seconds, float)
            self.clock.after(seconds, partial(self._go_on, script))

    def _faults(self) -> Script:
        yield self.rng.uniform(0.0, 8.0)
        while True:
            yield self.rng.expovariate(1.0 / self.scenario.seconds_between_faults)
            if self.stage.draining:
                return
            kind = self.rng.choice(self.faults)
            if kind == "disk":
                self._go_on(self._disk_fault())
            elif kind == "clock":
                self.stage.wall_offset_seconds += self.rng.choice((-86_400.0, -30.0, 15.0, 3_600.0))
                self.stage.history.note(self.clock.now, "world", "the wall clock jumps")
            else:
                verb, *whom = kind.split()
                names = [name for name in self.players if name.startswith(tuple(whom) or "")]
                self._hurt(verb, self.players[self.rng.choice(names)])

    def _hurt(self, verb: str, player: Player) -> None:
        if verb == "kill":
            self._go_on(self._kill(player))
        elif player is not self.buffer:
            # Longer than a lease, so that the others give it up, and it comes back none the wiser.
            seconds = self.rng.choice((2.0, 6.0, 9.0))
            self.stage.history.note(self.clock.now, "world", f"freezes {player.name} for {seconds:.0f} s")
            player.freeze(seconds)

    def _kill(self, player: Player) -> Script:
        if not player.up:
            return
        self.stage.history.note(self.clock.now, "world", f"kills {player.name}")
        player.kill()
        if isinstance(player, Learner):
            # The orchestrator that reaped a child may say so and need not wait for its term to expire.
            player.dead_owner = player.owner if self.rng.random() < 0.5 else None
        yield self.rng.uniform(0.1, 1.5) if self.rng.random() < 0.8 else self.rng.uniform(3.0, 7.0)
        self.stage.history.note(self.clock.now, "world", f"starts {player.name}")
        player.start()

    def _disk_fault(self) -> Script:
        disk = self.buffer.disk
        kind = self.rng.choice(("full", "sync", "write"))
        self.stage.history.note(self.clock.now, "world", f"disk fault: {kind}")
        disk.free_bytes = self.rng.randrange(4_000) if kind == "full" else disk.free_bytes
        disk.refuses_syncs |= kind == "sync"
        disk.refuses_writes |= kind == "write"
        yield self.rng.uniform(0.1, 1.0)
        disk.free_bytes, disk.refuses_syncs, disk.refuses_writes = None, False, False

    # What must hold

    def _probe(self) -> int:
        """What if power failed now? Events until the next time that this is asked."""
        live = self.buffer.ledger if self.buffer.up and not self.buffer.broken else None
        if live is None:
            return 5
        disk = copy.deepcopy(self.buffer.disk)
        disk.free_bytes, disk.refuses_syncs, disk.refuses_writes = None, False, False
        disk.crash()
        store = MemoryStore(disk)
        self.buffer.check_acknowledged(store)
        if not self.buffer.store.num_waiting:
            self._check_reload(live, Buffer(store, self.buffer.store_clock))
        return self.events_between_probes

    def _check_reload(self, live: Ledger, copied: Buffer) -> None:
        """E5: a buffer that is started from the disk alone knows the same and decides the same."""
        loaded = copied.ledger(RUN)
        for name, (mine, yours) in _compared(live, loaded).items():
            if mine != yours:
                raise Violation("E5", f"after a restart the ledger's {name} would be other than now: {_difference(mine, yours)}")
        if live.term is not None:
            update, term, now = live.next_update, live.term.term, self.buffer.store_clock()
            mine, yours = (
                law.cut(ledger, store, update, term, self.scenario.request, now).reply for ledger, store in ((live, self.buffer.store), (loaded, copied.store))
            )
            if mine != yours:
                raise Violation("E5", f"update {update} would be cut otherwise after a restart: {mine} / {yours}", f"update {update}")

    def _check_end(self, num_groups: int) -> None:
        """When all is done. A late request may have opened one more group since; the first `num_groups` have come to their end."""
        self.buffer.check_acknowledged(self.buffer.store)
        ledger, store, audit, witness = self.buffer.ledger, self.buffer.store, self.stage.audit, self.stage.witness
        assert ledger is not None
        store.sync_now()
        groups = list(store.scan_groups(RUN))
        members: list[MemberRecord] = [member for group in groups for member in store.members(RUN, group.id)]
        if law.recount(groups, members) != law.balance(ledger):
            raise Violation("D5", f"a recount gives {law.recount(groups, members)}, the running account {law.balance(ledger)}")
        for group in groups[:num_groups]:
            if group.purpose == "train" and group.state not in ("spent", "dropped"):
                raise Violation("E1", f"group {group.id} was left {group.state} after everything was done", group.id)
        held = sum(counts.held_tokens for counts in ledger.counts.values())
        if held != sum(group.credit for group in groups[num_groups:]):
            raise Violation("D5", f"{held} tokens of credit are held when nothing is under way")
        filled = {member.uid for member in members if member.state == "accepted"}
        for uid, rollout in witness.acked.items():
            if rollout.status.usable and uid not in filled:
                raise Violation("D5", f"rollout {uid} was acknowledged as {rollout.status} and fills no slot", uid, rollout.group_id)
        for rollout in store.scan_rollouts(RUN):
            if store.payload(RUN, rollout.uid).body != witness.sent.get(rollout.uid):
                raise Violation("D1", f"rollout {rollout.uid} holds bytes that nobody wrote", rollout.uid, rollout.group_id)
        for checkpoint in audit.checkpoints.values():
            witness.lineage(checkpoint.digest)
        trained = set(witness.lineage(audit.checkpoints[max(audit.checkpoints)].digest))
        spent = {group.id for group in groups if group.state == "spent"}
        for group_id in sorted(trained ^ spent):
            raise Violation("D5", f"group {group_id} is {'spent and was never trained on' if group_id in spent else 'trained on and not spent'}", group_id)


def _compared(live: Ledger, loaded: Ledger) -> dict[str, tuple[object, object]]:
    """By name: what a ledger holds now and what it would hold after a restart. Deadlines start anew, so they are left out."""

    def facts(ledger: Ledger) -> dict[str, object]:
        return {
            "groups": ledger.groups,
            "members": ledger.members,
            "rollouts": ledger.rollouts,
            "annotations": {group_id: found for group_id, found in ledger.annotations.items() if found},
            "sessions": {name: replace(session, expires_at=0.0) for name, session in ledger.sessions.items()},
            "claims": {name: sorted(slots) for name, slots in ledger.claims.items()},
            "free slots": {name: sorted(free) for name, free in ledger.free.items() if free},
            "ready groups": {name: ready for name, ready in ledger.ready.items() if ready},
            "term": ledger.term and replace(ledger.term, expires_at=0.0),
            "plans": ledger.plans,
            "outcomes": ledger.outcomes,
            "versions": ledger.versions,
            "checkpoints": ledger.checkpoints,
            "cursors": ledger.cursors,
            "orders": (ledger.last_order, ledger.last_ready_order, ledger.newest_version),
            "held credits": {key: counts.held_tokens for key, counts in ledger.counts.items() if counts.opened},
            "balance": [found for found in law.balance(ledger) if found.opened],
        }

    mine, yours = facts(live), facts(loaded)
    return {name: (mine[name], yours[name]) for name in mine}


def _difference(mine: object, yours: object) -> str:
    """Where two values differ, in few words."""
    if isinstance(mine, dict) and isinstance(yours, dict):
        keys = [key for key in {**mine, **yours} if mine.get(key) != yours.get(key)]
        return "; ".join(f"{key}: {mine.get(key)} / {yours.get(key)}" for key in keys[:2])
    return f"{mine} / {yours}"
