"""Where rollouts come from: servers that sample while their weights change, workers that run episodes, a scorer that annotates."""

from __future__ import annotations

from penstock.errors import ConflictError, FencedError, InfraError, InputError, InvalidError, LimitError, WeightsError
from penstock.ledger import Accepted, Ledger, Opened, Slot
from penstock.types import AnnotationRecord, Payload, Purpose, RolloutRecord, RolloutStatus
from penstock.wire import digest
from tests.simulation.buffering import cursor_of, unscored
from tests.simulation.clockwork import Answer, Call, Script, Unanswered
from tests.simulation.history import Violation
from tests.simulation.scenario import LONGEST_PROMPT_TOKENS, LONGEST_REPLY_TOKENS, RENEWAL_SECONDS, RUN
from tests.simulation.stage import Player, Stage, refusal
from tests.simulation.witness import Chunk, encode, word

CHUNKS_PER_REPLY = 3
TOKENS_PER_CHUNK = LONGEST_REPLY_TOKENS // CHUNKS_PER_REPLY
GROUPS_PER_PASS = 25


def newest_weights(ledger: Ledger) -> tuple[int, str, int]:
    """Newest version, its digest and the newest term, as a look."""
    newest = ledger.versions[ledger.newest_version]
    return newest.version, newest.digest, ledger.term.term if ledger.term else 0


class Server(Player):
    """Serves one set of weights at a time and names it with every token. Needs no learner to start: it asks the buffer what is newest."""

    def boot(self) -> None:
        self.version, self.weights, self.term = -1, "", 0
        self.spawn(self._catch_up())

    def _catch_up(self) -> Script:
        version, weights, term = yield from self.ask("look", newest_weights)
        if term >= self.term:  # else a learner was quicker than this answer
            self._load(version, weights, term)

    def receive(self, call: Call, answer: Answer) -> None:
        if call.verb == "load":
            try:
                self._load(*call.args)
            except (WeightsError, FencedError) as error:
                answer(error)
            else:
                answer(self.version)
        elif self.version < 0:
            answer(InfraError(f"{self.name} has no weights yet"))
        else:
            seed, num_chunks, seconds_per_chunk = call.args
            self.spawn(self._sample(seed, num_chunks, seconds_per_chunk, answer))

    def _load(self, version: int, weights: str, term: int) -> None:
        """Switch to newer weights. Older or the same ones change nothing; an older term is refused."""
        if term < self.term:
            raise FencedError(f"term {term} is over; {self.name} has heard of {self.term}")
        self.term = term
        if version <= self.version:
            return
        if weights not in self.stage.weights:
            raise WeightsError(f"no file for {weights}")
        recorded = self.stage.audit.versions.get(version)
        if recorded is None or recorded.digest != weights:
            raise Violation("F2", f"{self.name} is told to serve version {version}, which no outcome names", version)
        self.stage.witness.told_version(version, weights)
        self.version, self.weights = version, weights
        self.note("serves", f"version {version}")

    def _sample(self, seed: int, num_chunks: int, seconds_per_chunk: float, answer: Answer) -> Script:
        chunks: list[Chunk] = []
        for place in range(num_chunks):
            yield seconds_per_chunk
            count = 1 + seed // (place + 1) % TOKENS_PER_CHUNK
            chunks.append(Chunk(self.version, count, word(self.weights, seed, place)))
        answer(tuple(chunks))


class Worker(Player):
    """Opens groups while there is credit, claims slots, runs episodes, and writes each until it is answered."""

    def boot(self) -> None:
        self._num_sessions = 0
        self._busy = 0
        self.spawn(self._work())
        for environment in self.stage.scenario.environments:
            self.spawn(self._dispatch(environment, Purpose.TRAIN))
        self.spawn(self._dispatch(f"held-out-{self.stage.scenario.environments[0]}", Purpose.EVAL))

    def _dispatch(self, source: str, purpose: Purpose) -> Script:
        """Open the next group of a source whenever there is credit. Another worker may do the same: a group is opened once."""
        scenario = self.stage.scenario
        yield self.rng.uniform(0.0, 0.2) if purpose is Purpose.TRAIN else self.rng.uniform(2.0, 12.0)
        number = yield from self.ask("look", cursor_of(source))
        while not self.stage.draining:
            group_id = f"{source}/{number // GROUPS_PER_PASS}/{number}"
            try:
                opened: Opened = yield from self.ask(
                    "open_group",
                    group_id,
                    environment=source.removeprefix("held-out-"),
                    problem_id=f"problem-{number}",
                    purpose=purpose,
                    size=scenario.group_size,
                    seed=number,
                    first_estimate=scenario.group_size * (LONGEST_PROMPT_TOKENS + LONGEST_REPLY_TOKENS) // 2,
                )
                self.stage.witness.opened[group_id] = opened.group
                number += 1
                yield self.rng.uniform(0.05, 0.3) if purpose is Purpose.TRAIN else self.rng.uniform(6.0, 12.0)
            except LimitError:
                yield self.rng.uniform(1.5, 4.0)

    def _work(self) -> Script:
        """One session after another: when one is lost or given up, its episodes go on and are refused, and the next begins."""
        while True:
            self._num_sessions += 1
            session = f"{self.name}.{self.life}.{self._num_sessions}"
            yield from self.ask("open_session", session, self.name)
            try:
                yield from self._session(session)
            except FencedError:
                self.note("lost its session", session)

    def _session(self, session: str) -> Script:
        number, beaten_at = 1, self.clock.now
        while True:
            if self.clock.now - beaten_at >= RENEWAL_SECONDS:
                yield from self.ask("beat", session)
                beaten_at = self.clock.now
            if self.rng.random() < 0.01:
                yield from self.ask("release", session)
                return
            free = self.stage.scenario.episodes_per_worker - self._busy
            if free > 0:
                slots: tuple[Slot, ...] = yield from self.ask("claim", session, free, number=number)
                number += bool(slots)  # one that found nothing is asked again as the same
                for slot in slots:
                    self._busy += 1
                    self.spawn(self._episode(slot))
            yield self.rng.uniform(0.3, 0.9)

    def _episode(self, slot: Slot) -> Script:
        self.note("begins", slot.group.id, f"member {slot.member} try {slot.retry}")
        status, chunks = yield from self._play(slot)
        uid = f"{slot.group.id}:{slot.member}:{slot.retry}:{self.name}.{self.life}"
        rollout, payload = _rollout(slot, uid, status, chunks)
        yield from self._write(rollout, payload)
        self._busy -= 1

    def _play(self, slot: Slot) -> Script:
        """How the episode ended, and what was sampled."""
        luck = self.rng.random() / max(self.stage.scenario.failure_rate, 1e-9)
        if luck < 0.4:
            return RolloutStatus.INFRA_ERROR, ()
        num_chunks = 1 + slot.seed % CHUNKS_PER_REPLY
        seconds = self.rng.uniform(0.05, 0.3) if self.rng.random() < 0.9 else self.rng.uniform(0.5, 3.0)
        server = f"server{self.rng.randrange(self.stage.scenario.num_servers)}"
        try:
            chunks = yield Call(server, "sample", (slot.seed, num_chunks, seconds), timeout_seconds=6.0)
        except (Unanswered, InfraError):
            yield 0.2
            return RolloutStatus.INFRA_ERROR, ()
        if luck < 0.7:
            return RolloutStatus.ENV_ERROR, chunks
        return (RolloutStatus.TRUNCATED if luck < 1.0 else RolloutStatus.OK), chunks

    def _write(self, rollout: RolloutRecord, payload: Payload) -> Script:
        witness = self.stage.witness
        witness.sent[rollout.uid] = payload.body
        try:
            done: Accepted = yield from self.ask("accept", rollout, payload)
        except InvalidError as error:
            raise Violation("F3", f"a server's version is not known to the buffer: {error}", rollout.uid, rollout.group_id) from error
        except (ConflictError, FencedError) as error:
            if rollout.uid in witness.acked:
                raise Violation("D4", f"rollout {rollout.uid} was acknowledged and is refused now: {error}", rollout.uid, rollout.group_id) from error
            self.note(refusal(error), rollout.uid, rollout.group_id)
            return
        witness.ack(done.rollout, duplicate=done.duplicate)
        self.note("is told stored", rollout.uid, rollout.group_id)
        if self.rng.random() < 0.06:
            yield self.rng.choice((0.01, 0.5, 5.0))
            yield from self._provoke(rollout, payload)

    def _provoke(self, rollout: RolloutRecord, payload: Payload) -> Script:
        """Write again what was stored: the same, something else under its uid, a stranger for its slot, one member too many."""
        again: Accepted = yield from self.ask("accept", rollout, payload)
        self.stage.witness.ack(again.rollout, duplicate=again.duplicate)
        changed = Payload(run=RUN, uid=payload.uid, content_type="json", body=payload.body + b"!", digest=digest(payload.body + b"!"))
        yield from self._must_refuse("D4", _like(rollout, payload.uid, rollout.member, changed), changed)
        for member in (rollout.member, self.stage.scenario.group_size):
            uid = f"{rollout.uid}:stranger{member}"
            body = payload.body.replace(rollout.uid.encode(), uid.encode())
            stranger = Payload(run=RUN, uid=uid, content_type="json", body=body, digest=digest(body))
            yield from self._must_refuse("E3", _like(rollout, uid, member, stranger), stranger)

    def _must_refuse(self, promise: str, rollout: RolloutRecord, payload: Payload) -> Script:
        try:
            yield from self.ask("accept", rollout, payload)
        except (ConflictError, FencedError):
            return
        raise Violation(promise, f"member {rollout.member} of group {rollout.group_id} took {rollout.uid} after it was settled", rollout.group_id, rollout.uid)


class Scorer(Player):
    """Annotates what waits for it; sometimes fails, sometimes says it twice."""

    def boot(self) -> None:
        self.spawn(self._score())

    def _score(self) -> Script:
        name = self.stage.scenario.laws.annotations[0]
        while True:
            waiting: list[tuple[str, str]] = yield from self.ask("look", unscored)
            for group_id, uid in waiting[:6]:
                failed = "judge is away" if digest(uid.encode())[0] < "2" else None
                body = f"score of {uid}".encode()
                payload = Payload(run=RUN, uid=f"{uid}+{name}", content_type="json", body=body, digest=digest(body))
                annotation = AnnotationRecord(
                    run=RUN, rollout_uid=uid, group_id=group_id, name=name, step=None, uid=payload.uid, digest=payload.digest, failed=failed
                )
                yield from self._annotate(annotation, payload)
            yield self.rng.uniform(0.3, 1.2)

    def _annotate(self, annotation: AnnotationRecord, payload: Payload) -> Script:
        try:
            yield from self.ask("annotate", annotation, payload)
        except ConflictError as error:
            self.note(refusal(error), annotation.group_id)
            return
        if self.rng.random() < 0.1:
            again = yield from self.ask("annotate", annotation, payload)
            if not again.duplicate:
                raise Violation("D4", f"annotation {annotation.uid} was stored and is not called a duplicate", annotation.group_id)
        if self.rng.random() < 0.1:
            other = Payload(run=RUN, uid=f"{payload.uid}~", content_type="json", body=b"other", digest=digest(b"other"))
            changed = AnnotationRecord(
                run=RUN, rollout_uid=annotation.rollout_uid, group_id=annotation.group_id, name=annotation.name, step=None, uid=other.uid, digest=other.digest
            )
            try:
                yield from self.ask("annotate", changed, other)
            except InputError:
                return
            raise Violation("D4", f"annotation {annotation.uid} was replaced by other content", annotation.group_id)


def _rollout(slot: Slot, uid: str, status: RolloutStatus, chunks: tuple[Chunk, ...]) -> tuple[RolloutRecord, Payload]:
    """A finished episode as it is written."""
    group = slot.group
    body = encode(uid, status, slot.seed, chunks)
    versions = tuple(sorted({chunk.version for chunk in chunks}))
    sampled_tokens = sum(chunk.count for chunk in chunks)
    prefix_tokens = 1 + group.seed * 7 % LONGEST_PROMPT_TOKENS
    rollout = RolloutRecord(
        run=RUN,
        uid=uid,
        group_id=group.id,
        member=slot.member,
        retry=slot.retry,
        status=status,
        digest=digest(body),
        reward=float(sampled_tokens % 2) if status.usable else None,
        tokens=prefix_tokens + sampled_tokens,
        sampled_tokens=sampled_tokens,
        prefix_tokens=prefix_tokens,
        prefix_digest=group.problem_id,
        oldest_version=versions[0] if versions else None,
        newest_version=versions[-1] if versions else None,
        versions=versions,
    )
    return rollout, Payload(run=RUN, uid=uid, content_type="json", body=body, digest=rollout.digest)


def _like(rollout: RolloutRecord, uid: str, member: int, payload: Payload) -> RolloutRecord:
    """The same rollout under another name, slot or content."""
    return RolloutRecord(
        run=RUN,
        uid=uid,
        group_id=rollout.group_id,
        member=member,
        retry=rollout.retry,
        status=rollout.status,
        digest=payload.digest,
        reward=rollout.reward,
        tokens=rollout.tokens,
        sampled_tokens=rollout.sampled_tokens,
        prefix_tokens=rollout.prefix_tokens,
        prefix_digest=rollout.prefix_digest,
        oldest_version=rollout.oldest_version,
        newest_version=rollout.newest_version,
        versions=rollout.versions,
    )


def players(stage: Stage) -> list[Player]:
    """Everybody who makes rollouts."""
    servers: list[Player] = [Server(f"server{number}", stage) for number in range(stage.scenario.num_servers)]
    workers: list[Player] = [Worker(f"worker{number}", stage) for number in range(stage.scenario.num_workers)]
    return [*servers, *workers, *([Scorer("scorer", stage)] if stage.scenario.laws.annotations else [])]
