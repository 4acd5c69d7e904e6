"""One life of a learner: begins at a checkpoint under a new term, replays what was recorded after it, goes on live, renews its term meanwhile."""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

from penstock.batching import pack
from penstock.buffer.client import BufferClient, api
from penstock.errors import MismatchError, ReplayError, StoreError
from penstock.inference.client import InferenceClient
from penstock.learner.checkpoints import Checkpoint, Checkpoints
from penstock.learner.config import LearnerConfig
from penstock.learner.credit import AlgorithmConfig, config_digest, flat_config
from penstock.learner.loop import train
from penstock.learner.reports import Reporter
from penstock.learner.selection import select, trained
from penstock.learner.step import Learner, StepResult
from penstock.metrics import JsonlSink, Metrics
from penstock.models import keep_weights, load_model, weights_digest, weights_path
from penstock.process.points import reach
from penstock.types import CutRequest, Group, Laws, Outcome, Plan, RlExample, TermRecord, Version, WeightManifest
from penstock.weights.client import Broadcaster

log = logging.getLogger(__name__)

RENEW_SECONDS = 2.0
"""A term is renewed this often; the buffer lets it expire after five times as long."""
MOST_SKIPS = 3
"""Updates skipped in a row after which a run stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerProcessConfig:
    """All that a learner's process must be told."""

    run: str
    run_dir: Path
    model: Path
    buffer_url: str
    servers: tuple[str, ...]
    updates: int
    laws: Laws
    request: CutRequest
    """What every cut asks for."""
    algorithm: AlgorithmConfig
    learner: LearnerConfig
    tokens_per_row: int | None = None
    checkpoint_every: int = 20
    """Updates between checkpoints."""
    checkpoints_kept: int = 2
    """Newest checkpoints that are kept, besides update 0."""
    replaces: str | None = None
    """Owner of the term before, if it is known to be dead."""
    owner: str = ""
    """Name of this life; empty: one is made up."""
    token: str | None = None
    batch_deadline_seconds: float = 600.0
    """A cut that waits longer than this stops the run with what it waits for."""


async def run_learner(config: LearnerProcessConfig) -> None:
    """Train until the run has all its updates. Raises what stopped it."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(BufferClient(config.buffer_url, config.run, token=config.token))
        servers = {url: await stack.enter_async_context(InferenceClient(url, token=config.token)) for url in config.servers}
        metrics = Metrics(JsonlSink(config.run_dir / "metrics.jsonl"))
        stack.callback(metrics.close)
        life = await Life.begin(config, client, Broadcaster(servers), Reporter(metrics))
        async with asyncio.TaskGroup() as tasks:
            renewing = tasks.create_task(life.renew_forever())
            await train(life, life, life, life, config.updates)
            renewing.cancel()


class Life:
    """A learner under one term: the plans, trainer, publisher and keeper of the loop in one, because all of them speak for the same term."""

    def __init__(
        self,
        config: LearnerProcessConfig,
        client: BufferClient,
        broadcaster: Broadcaster,
        reporter: Reporter,
        learner: Learner,
        term: TermRecord,
        checkpoints: Checkpoints,
        status: api.RunStatus,
    ) -> None:
        self.next_update = term.first_update
        self._config, self._client, self._broadcaster, self._reporter = config, client, broadcaster, reporter
        self._learner, self._term, self._checkpoints = learner, term.term, checkpoints
        self._kept = [checkpoint.update for checkpoint in status.checkpoints]
        self._replay_until = status.next_update
        """Updates below this one have an outcome: they are executed again, in silence."""
        self._outcomes: dict[int, Outcome] = {}
        self._forked = False
        self._skips = 0
        # One thread for all arithmetic: the loop stays free to renew, and the order of operations is that of a single thread.
        self._arithmetic = ThreadPoolExecutor(1, "arithmetic")

    @classmethod
    async def begin(cls, config: LearnerProcessConfig, client: BufferClient, broadcaster: Broadcaster, reporter: Reporter) -> Life:
        """Open the run, take a term at the newest checkpoint that was kept, and stand where it stood."""
        model = await asyncio.to_thread(load_model, config.model)
        weights_dir = config.run_dir / "weights"
        learner = Learner(model, config.learner, config.algorithm.loss, max_lag=config.laws.max_lag, weights_directory=weights_dir)
        status = await client.open_run(config.laws, keep_weights(weights_dir, learner.weights))
        newest = status.checkpoints[-1] if status.checkpoints else None
        owner = config.owner or f"learner-{uuid4().hex[:12]}"
        wanted = api.TakeTerm(owner=owner, checkpoint=newest.update if newest else 0, replaces=config.replaces)
        term = await client.take_term(wanted)
        reach("learner.after_term")
        status = await client.status()
        checkpoints = Checkpoints(config.run_dir / "checkpoints", run=config.run, term=term.term)
        _clear_leftovers(checkpoints, weights_dir, status)
        if newest is not None:
            restored: Checkpoint = checkpoints.read(newest.update, digest=newest.digest)
            learner.restore(restored.state)
        for version in await client.versions():
            learner.snapshots.name(version.version, version.digest)
        life = cls(config, client, broadcaster, reporter, learner, term, checkpoints, status)
        if newest is None:
            await life._keep(0)
        if status.next_update > term.first_update:
            log.info("term %d, replaying updates %d-%d", term.term, term.first_update, status.next_update - 1)
        elif status.newest.version > 0:
            await life._push(status.newest)
        reporter.term(term.term, term.first_update, status.next_update)
        return life

    async def renew_forever(self) -> None:
        """Say that we are alive. Ends with `FencedError` when another took over."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            await self._client.renew_term(self._term)

    # Plans

    async def cut(self, update: int) -> Plan:
        """The plan of `update`, waiting for it as long as the deadline allows."""
        started = time.monotonic()
        while True:
            waited = time.monotonic() - started
            request = replace(self._config.request, waited_seconds=waited)
            reply = await self._client.cut(update, self._term, request)
            if reply.plan is not None:
                break
            if waited > self._config.batch_deadline_seconds:
                raise StoreError(f"no batch for update {update} in {waited:.0f} s: {reply.waiting} (environment {reply.environment})")
        self._reporter.waited("wait_for_batch", time.monotonic() - started)
        reach("learner.after_cut")
        if reply.outcome is not None:
            self._outcomes[update] = reply.outcome
        return reply.plan

    async def fetch(self, plan: Plan) -> tuple[Group, ...]:
        """The groups of a plan."""
        started = time.monotonic()
        groups = await self._client.fetch(plan)
        self._reporter.waited("fetch", time.monotonic() - started)
        reach("learner.after_fetch")
        return groups

    async def record(self, plan: Plan, result: StepResult) -> Outcome:
        """Make the outcome durable, or compare it with the one that is."""
        skipped = result.reason if result.kind == "skipped" else None
        reply = await self._client.record(plan.update, self._term, digest=result.digest, skipped=skipped)
        reach("learner.after_record")
        outcome = reply.outcome
        self._forked |= not reply.equal
        if result.kind == "applied" and outcome.version is not None:
            self._learner.adopt(outcome.version)
        if not reply.replayed:
            self._check_skips(result)
        return outcome

    def _check_skips(self, result: StepResult) -> None:
        self._skips = self._skips + 1 if result.kind == "skipped" else 0
        if result.reason == "mismatch":
            raise MismatchError(f"sampler and learner disagree, the update was skipped: {result.cause}")
        if self._skips >= MOST_SKIPS:
            raise MismatchError(f"{self._skips} updates in a row were skipped, the last one because {result.cause}")

    # Trainer

    def batch(self, plan: Plan, groups: tuple[Group, ...]) -> RlExample:
        """Filter, give credit and pack."""
        algorithm = self._config.algorithm
        selection = select(groups, algorithm.filter_options, newest_version=plan.newest_version)
        left = trained(selection, plan, algorithm)
        self._reporter.batch(groups, selection, left)
        return pack(left.samples, tokens_per_row=self._config.tokens_per_row)

    async def step(self, plan: Plan, example: RlExample) -> StepResult:
        """Train on a batch. A recorded skip is replayed as a skip."""
        recorded = self._outcomes.get(plan.update)
        if recorded is not None and recorded.kind == "skipped":
            return StepResult(kind="skipped", reason=recorded.reason)
        started = time.monotonic()
        result = await asyncio.get_running_loop().run_in_executor(self._arithmetic, self._step, plan, example, recorded is not None)
        reach("learner.after_step")
        if recorded is None:
            self._reporter.step(plan, result, time.monotonic() - started)
            if result.kind == "applied":
                await asyncio.to_thread(keep_weights, self._config.run_dir / "weights", self._learner.weights)
                reach("learner.after_weights_file")
        return result

    def _step(self, plan: Plan, example: RlExample, replaying: bool) -> StepResult:
        # The gate was passed when the update was live; older versions' weights need not be there any more.
        return self._learner.step(example, newest_version=plan.newest_version, gated=not replaying)

    # Publisher

    async def publish(self, outcome: Outcome) -> None:
        """Make an outcome's weights live. While replaying nothing is said, until the last replayed update repeats it."""
        if outcome.update < self._replay_until - 1:
            return
        if outcome.update == self._replay_until - 1:
            version = await self._after_replay(outcome)
        elif outcome.version is None:
            return
        else:
            version = Version(run=outcome.run, version=outcome.version, digest=outcome.digest)
        started = time.monotonic()
        await self._push(version)
        self._reporter.waited("wait_for_weights", time.monotonic() - started)

    async def _after_replay(self, outcome: Outcome) -> Version:
        newest = (await self._client.status()).newest
        found = weights_digest(self._learner.weights)
        if self._forked:
            log.warning("the replay of update %d gave %s where %s was recorded: the run goes on from a fork", outcome.update, found, newest.digest)
            keep_weights(self._config.run_dir / "weights", self._learner.weights)
            newest = await self._client.fork(outcome.update, self._term, found)
            self._learner.rename(newest.version)
        elif found != newest.digest:
            raise ReplayError(f"the replay ended at weights {found}, the newest version {newest.version} is {newest.digest}")
        log.info("replayed up to update %d, digests %s", outcome.update, "differ" if self._forked else "equal")
        self._reporter.replayed(outcome.update, equal=not self._forked)
        return newest

    async def _push(self, version: Version) -> None:
        manifest = WeightManifest(run=self._config.run, policy=version.policy, version=version.version, digest=version.digest)
        served = await self._broadcaster.push(manifest, self._term)
        reach("learner.after_push")
        await self._client.publish(version.version, self._term)
        reach("learner.after_publish")
        log.info("weights %d live on %d servers", version.version, served)

    # Keeper

    async def after(self, update: int) -> int:
        """Keep a checkpoint if one is due."""
        following = update + 1
        due = following % self._config.checkpoint_every == 0 or following == self._config.updates
        # A checkpoint that was kept before and is reached again in a replay is there already.
        if due and following not in self._kept:
            await self._keep(following)
            await self._retire()
        return following

    async def _keep(self, update: int) -> None:
        digest = await asyncio.to_thread(self._checkpoints.save, update, self._learner.state())
        reach("learner.after_checkpoint_dir")
        await self._client.keep(update, digest, self._term)
        reach("learner.after_keep")
        self._kept.append(update)

    async def _retire(self) -> None:
        """Let go of old checkpoints, and of weights that neither a server nor a checkpoint can need."""
        for update in sorted(self._kept)[1 : -self._config.checkpoints_kept]:
            await self._client.retire(update, self._term)
            self._checkpoints.retire(update)
            self._kept.remove(update)
        versions = await self._client.versions()
        wanted = {version.digest for version in versions if version.version >= versions[-1].version - self._config.laws.max_lag} | {versions[0].digest}
        for version in versions:
            if version.digest not in wanted:
                weights_path(self._config.run_dir / "weights", version.digest).unlink(missing_ok=True)


def _clear_leftovers(checkpoints: Checkpoints, weights_dir: Path, status: api.RunStatus) -> None:
    """Remove what lives that were killed have left: checkpoints that nobody kept, or keeps any more, and half-written weights."""
    for update in set(checkpoints.updates()) - {checkpoint.update for checkpoint in status.checkpoints}:
        checkpoints.retire(update)
    for unfinished in weights_dir.glob(".*.tmp"):
        unfinished.unlink()


def plan_request(
    request: CutRequest, algorithm: AlgorithmConfig, learner: LearnerConfig, libraries: dict[str, str], *, tokens_per_row: int | None = None
) -> CutRequest:
    """A cut request that says by which config and libraries its batch will be computed."""
    flat = flat_config(algorithm, learner, tokens_per_row)
    return replace(request, config=flat, config_digest=config_digest(flat), num_threads=learner.threads, libraries=libraries)
