"""The learner as a process: cut, train, record, publish; checkpoints, replay and recut; and what it does when it was replaced."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from penstock.buffer.stored import StoredGroup
from penstock.errors import ConflictError, CorruptError, FencedError, InfraError, PenstockError, UnknownError, WeightsError
from penstock.ledger import Ledger, Recorded, Wait
from penstock.types import CutRequest, Outcome, Plan, TermRecord, Version
from penstock.wire import digest
from tests.simulation.clockwork import Call, Script, Unanswered
from tests.simulation.history import Violation
from tests.simulation.scenario import DRAIN, INITIAL, RENEWAL_SECONDS
from tests.simulation.stage import Player, refusal


@dataclass(frozen=True, slots=True)
class Prospect:
    """What a learner reads before it begins: where it may resume, and what it will find there."""

    checkpoint: int
    weights: str
    outcomes: dict[int, Outcome]
    checkpoints: dict[int, str]
    """Digests of those that are kept, by update."""
    newest: Version


def prospect(ledger: Ledger) -> Prospect:
    """As a look."""
    update = ledger.newest_checkpoint
    kept = ledger.checkpoints.get(update)
    checkpoints = {number: ledger.checkpoints[number].digest for number in sorted(ledger.checkpoints)}
    return Prospect(update, kept.digest if kept else INITIAL, dict(ledger.outcomes), checkpoints, ledger.versions[ledger.newest_version])


def progress(ledger: Ledger) -> tuple[int, int]:
    """Groups that were ever opened, and those that may still have to be trained on, as a look."""
    unfinished = sum(group.state in ("open", "complete", "ready") and group.purpose == "train" for group in ledger.groups.values())
    return ledger.last_order + 1, unfinished


class Learner(Player):
    """Lives from one term to the next. What it knows of older lives is in the buffer and in the directories."""

    dead_owner: str | None = None
    """Who is known to be dead, because it was this process's last life and it was reaped."""

    def boot(self) -> None:
        self.spawn(self._live())

    @property
    def owner(self) -> str:
        return f"{self.name}.{self.life}"

    def _live(self) -> Script:
        yield from self.ask("open_run", self.stage.scenario.laws, INITIAL)
        try:
            term, resume, found = yield from self._take_term()
            self.stage.witness.told_term(term)
            self.note(f"has term {term}, {resume} from update {found.checkpoint}", self.owner, f"term {term}")
            self.spawn(self._renew(term))
            yield from self._train(term, found)
        except FencedError as error:
            # A life that was replaced ends, but not without having asked again; then a new one stands by.
            self.note(refusal(error), self.owner)
            for _ in range(8 if not self.stage.draining else 0):
                yield self.rng.uniform(0.5, 1.5)
                latest: Prospect = yield from self.ask("look", prospect)
                with suppress(PenstockError, Unanswered):
                    yield Call("buffer", "take_term", (self.owner, latest.checkpoint))
            self.clock.after(0.0, self._begin_again)

    def _begin_again(self) -> None:
        if self.up:
            self.start()

    def _take_term(self) -> Script:
        resume = self.stage.scenario.resume
        resume = self.rng.choice(("replay", "recut")) if resume == "either" else resume
        while True:
            found: Prospect = yield from self.ask("look", prospect)
            try:
                record: TermRecord = yield from self.ask("take_term", self.owner, found.checkpoint, resume=resume, replaces=self.dead_owner)
            except (ConflictError, UnknownError) as error:
                self.stage.waiting_for[self.name] = f"the term ({error})"
                yield self.rng.uniform(1.5, 4.0)
                continue
            # What was recorded between the look and the term counts too; the checkpoint cannot have changed, or it is still kept.
            after: Prospect = yield from self.ask("look", prospect)
            return record.term, resume, replace(after, checkpoint=found.checkpoint, weights=found.weights)

    def _renew(self, term: int) -> Script:
        while True:
            yield RENEWAL_SECONDS
            try:
                yield from self.ask("renew_term", term)
            except FencedError:
                return

    def _train(self, term: int, found: Prospect) -> Script:
        """The loop. Updates with an outcome are replayed silently; the first without one is where it goes live."""
        update, weights = found.checkpoint, found.weights
        next_live = len(found.outcomes)
        if not found.checkpoints:
            yield from self.ask("keep", 0, INITIAL, term)
        while True:
            if update == next_live:
                weights = yield from self._go_live(term, update, weights, found)
            plan = yield from self._cut(term, update)
            if plan is None:
                yield from self._finish(term, update, weights)
                return
            weights = yield from self._step(term, plan, weights, found.outcomes.get(update))
            update += 1
            if update % self.stage.scenario.checkpoint_interval == 0:
                yield from self._checkpoint(term, update, weights)

    def _cut(self, term: int, update: int) -> Script:
        """The plan of an update; None when the run is drained and nothing is left to train on."""
        asked_at = self.clock.now
        while True:
            wanted = DRAIN if self.stage.draining else self.stage.scenario.request
            request: CutRequest = replace(wanted, waited_seconds=self.clock.now - asked_at)
            plan: Plan | Wait = yield from self.ask("cut", update, term, request)
            if isinstance(plan, Plan):
                self.stage.witness.delivered(plan, term)
                self.note("is given a plan", f"update {update}", *(planned.id for planned in plan.groups))
                return plan
            self.stage.waiting_for[self.name] = f"update {update}: {plan.reason} {plan.environment or ''}"
            if self.stage.draining:
                self.stage.num_groups, unfinished = yield from self.ask("look", progress)
                if not unfinished:
                    return None
            yield self.rng.uniform(0.3, 1.0)

    def _step(self, term: int, plan: Plan, weights: str, recorded: Outcome | None) -> Script:
        """Train on a plan, or skip it; the weights after it."""
        if recorded is not None and recorded.kind == "skipped":
            yield from self.ask("record", plan.update, term, skipped=recorded.reason)
            return weights
        after = yield from self._arithmetic(plan, weights)
        if recorded is None and self.rng.random() < self.stage.scenario.skip_rate:
            yield from self.ask("record", plan.update, term, skipped="nonfinite")
            return weights
        yield from self._settle(term, plan, after, recorded)
        return after

    def _settle(self, term: int, plan: Plan, after: str, recorded: Outcome | None) -> Script:
        """Record, then publish. The file is there before anybody is told of it, and the outcome before anybody serves it."""
        self.stage.weights.setdefault(after, self.owner)
        done: Recorded = yield from self.ask("record", plan.update, term, digest=after)
        if recorded is not None:
            if not done.equal and not self.stage.scenario.unsteady:
                raise Violation("F2", f"replaying update {plan.update} gave {after}, recorded is {done.outcome.digest}", f"update {plan.update}")
            return
        if done.outcome.digest != after or done.outcome.version is None:
            raise Violation("E4", f"update {plan.update} was recorded by another while this learner had the term", f"update {plan.update}")
        self.note("recorded", f"update {plan.update}", f"version {done.outcome.version}")
        yield from self._publish(term, done.outcome.version, after)

    def _arithmetic(self, plan: Plan, weights: str) -> Script:
        """Fetch, look at every token, and compute. The weights are a function of the weights before and of the bytes, in order."""
        content = [weights]
        for planned in plan.groups:
            try:
                group: StoredGroup = yield from self.ask("fetch", planned.id, planned.digest)
            except (CorruptError, UnknownError) as error:
                raise Violation("E1", f"group {planned.id} of update {plan.update} cannot be fetched: {error}", planned.id) from error
            self._check_group(plan, planned.id, group)
            content += [payload.digest for _, payload in (*group.rollouts, *group.annotations)]
        yield self.rng.uniform(0.1, 0.6)
        salt = self.owner if self.stage.scenario.unsteady else ""
        after = digest(" ".join([salt, *content]).encode())
        self.stage.witness.trained(weights, after, plan.update, tuple(planned.id for planned in plan.groups))
        return after

    def _check_group(self, plan: Plan, group_id: str, group: StoredGroup) -> None:
        """Before backward: the group is whole, and every token may be trained on."""
        slots = [rollout.member for rollout, _ in group.rollouts]
        laws = self.stage.scenario.laws
        strange = [rollout.uid for rollout, _ in group.rollouts if rollout.group_id != group_id or not rollout.status.usable]
        if len(set(slots)) < len(slots) or len(slots) < laws.min_group_size or strange:
            raise Violation("E3", f"group {group_id} is served with members {slots} and strangers {strange}", group_id)
        for rollout, payload in group.rollouts:
            self.stage.witness.check_tokens(plan, rollout.uid, payload.body)
        annotated = {found.rollout_uid for found, _ in group.annotations}
        if laws.annotations and any(rollout.uid not in annotated for rollout, _ in group.rollouts):
            raise Violation("E3", f"group {group_id} is served before its members were annotated", group_id)

    def _go_live(self, term: int, update: int, weights: str, found: Prospect) -> Script:
        """The replay is over: the newest version is published again, or, if the weights came out different, as a fork."""
        if weights == found.newest.digest or not found.outcomes:
            yield from self._publish(term, found.newest.version, found.newest.digest)
            return weights
        if self.stage.scenario.unsteady and update == len(found.outcomes) and update > found.checkpoint:
            version: Version = yield from self.ask("fork", update - 1, term, weights)
            yield from self._publish(term, version.version, weights)
        return weights

    def _publish(self, term: int, version: int, weights: str) -> Script:
        """Tell every server, as long as it can be reached, and then the buffer."""
        self.stage.witness.told_version(version, weights)
        for number in range(self.stage.scenario.num_servers):
            for _ in range(2):
                try:
                    yield Call(f"server{number}", "load", (version, weights, term))
                    break
                except (Unanswered, InfraError, WeightsError):
                    continue  # a server that is down asks for the newest weights when it is back
        yield from self.ask("publish", version, term)
        self.note("published", f"version {version}")

    def _checkpoint(self, term: int, update: int, weights: str) -> Script:
        self.stage.witness.lineage(weights)
        try:
            yield from self.ask("keep", update, weights, term)
        except ConflictError as error:
            self.note(refusal(error), f"update {update}")
            return
        self.note("kept", f"update {update}")
        found: Prospect = yield from self.ask("look", prospect)
        for old in list(found.checkpoints)[1 : -self.stage.scenario.keep_newest]:
            try:
                yield from self.ask("retire", old, term)
            except UnknownError as error:
                self.note(refusal(error), f"update {old}")  # retired by a request whose answer was lost
            if self.rng.random() < 0.1:
                # As if a request from before had been on its way all the time: the checkpoint may be deleted by now.
                yield from self.ask("keep", old, found.checkpoints[old], term)

    def _finish(self, term: int, update: int, weights: str) -> Script:
        yield from self._checkpoint(term, update, weights)
        self.note("finished", f"update {update}")
        self.stage.done = True
