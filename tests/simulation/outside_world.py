"""One seed of the world without a learner, from its first event to its last word."""

from __future__ import annotations

from random import Random

from penstock import ledger as law
from penstock.buffer.core import Buffer
from penstock.ledger import Ledger
from tests.simulation.clockwork import Clock, Network
from tests.simulation.history import History, Violation
from tests.simulation.outside import ITEMS, Books, Told, TrayBuffer, outside_scenario, outsiders
from tests.simulation.stage import Player, Stage
from tests.simulation.world import EVENTS_AFTER_THE_END, World

QUIET_SECONDS = 2.0
"""After the last item nobody may have anything left to do for so long."""


class OutsideWorld(World):
    """Writers, a reader and consumers around a buffer."""

    faults = ("kill", "kill buffer", "kill consumer", "freeze consumer", "freeze reader", "disk", "clock")
    events_between_probes = 150

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = Random(f"outside {seed}")
        self.scenario = outside_scenario(self.rng)
        self.clock = Clock()
        self.stage = Stage(
            scenario=self.scenario,
            rng=self.rng,
            clock=self.clock,
            network=Network(self.clock, self.rng, self.scenario.weather, lambda name: self.players[name]),
            history=History(),
            witness=Told(self.scenario.rules),
            audit=Books(),
        )
        self.buffer = TrayBuffer("buffer", self.stage, disk_seed=seed)
        self.players: dict[str, Player] = {player.name: player for player in (self.buffer, *outsiders(self.stage, self.scenario))}

    def run(self) -> None:
        """Raises `Violation` if a promise is broken, or if the run comes to no end."""
        self.buffer.start()
        for player in self.players.values():
            if player is not self.buffer:
                self.clock.after(self.rng.uniform(0.0, 0.5), player.start)
        if self.scenario.seconds_between_faults < float("inf"):
            self._go_on(self._faults())
        next_probe = self.rng.randrange(self.events_between_probes)
        quiet_since = None
        while quiet_since is None or self.clock.now < quiet_since + QUIET_SECONDS:
            self._step()
            if self.clock.num_events >= next_probe:
                next_probe += self._probe()
            quiet_since = (quiet_since or self.clock.now) if self.stage.draining and self._is_quiet() else None
        for _ in range(EVENTS_AFTER_THE_END):
            self.clock.step()
        self._check_all()

    def _is_quiet(self) -> bool:
        groups = self.stage.audit.groups.values()
        used = self.stage.witness.used
        return all(group.state == "dropped" or (group.state == "spent" and self._is_known(group.id, used)) for group in groups)

    def _is_known(self, group_id: str, used: dict[str, str]) -> bool:
        """Whether whoever has spent a group knows that it has; one that was killed at the wrong moment never does."""
        lease = self.stage.audit.groups[group_id].lease or ""
        owner, _, life = lease.rpartition(".")[0].rpartition(".")
        player = self.players.get(owner)
        return group_id in used or (player is not None and str(player.life) != life)

    def _check_reload(self, live: Ledger, copied: Buffer) -> None:
        """E5: a buffer that is started from the disk alone knows the same."""
        loaded = copied.ledger(ITEMS)
        for name in ("groups", "last_order", "last_ready_order", "last_fence"):
            if getattr(live, name) != getattr(loaded, name):
                raise Violation("E5", f"after a restart the ledger's {name} would be {getattr(loaded, name)}, not {getattr(live, name)}")
        mine, yours = ({group_id: tray.rewards for group_id, tray in _trays(ledger).items()} for ledger in (live, loaded))
        if mine != yours:
            raise Violation("E5", f"after a restart what waits would be {yours}, not {mine}")

    def _check_all(self) -> None:
        """When all is done."""
        self.buffer.check_acknowledged(self.buffer.store)
        ledger, store = self.buffer.ledger, self.buffer.store
        assert ledger is not None
        store.sync_now()
        groups = list(store.scan_groups(ITEMS))
        members = [member for group in groups for member in store.members(ITEMS, group.id)]
        if law.recount(groups, members) != law.balance(ledger):
            raise Violation("D5", f"a recount gives {law.recount(groups, members)}, the running account {law.balance(ledger)}")
        stored = {rollout.uid for rollout in store.scan_rollouts(ITEMS)}
        for uid in self.stage.witness.acked - stored:
            raise Violation("D1", f"item {uid} was acknowledged and is in no group", uid)


def _trays(ledger: Ledger) -> dict[str, object]:
    return {group_id: tray for trays in ledger.trays.by_environment.values() for group_id, tray in trays.items()}
