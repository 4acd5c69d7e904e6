"""A small run, made in this process by the real parts: ledger, store, learner, checkpoints. Each test breaks a copy of it."""

from __future__ import annotations

import shutil
from importlib import metadata
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
import torch

from penstock.batching import pack
from penstock.buffer.client import group_of
from penstock.buffer.core import Buffer, Pending
from penstock.buffer.intake import rollout_intake
from penstock.buffer.store import SqliteStore
from penstock.learner.checkpoints import Checkpoints
from penstock.learner.config import LearnerConfig
from penstock.learner.credit import AlgorithmConfig, config_digest, credit, flat_config
from penstock.learner.step import Learner
from penstock.models import init_model, keep_weights, load_model
from penstock.trace import Recorder
from penstock.types import CutRequest, Laws, Message, Plan, Purpose, Rollout, RolloutStatus, Source, VersionRun
from penstock.wire import encode_msgpack

torch.set_num_threads(1)

T = TypeVar("T")

RUN = "small"
UPDATES = 4
SKIPPED = 2
"""The update that was skipped."""
ALGORITHM = AlgorithmConfig()
LEARNER = LearnerConfig(lr=1e-3)


def rollout(index: int, member: int, version: int) -> Rollout:
    """Two sampled tokens in group number `index`, rewarded by their member's number."""
    group_id = f"source/0/{index}"
    recorder = Recorder()
    recorder.open_message()
    recorder.append(np.array([1, 2, 10 + index], np.int32), Source.ENV)
    recorder.close_message(Message(role="user", content="abc"))
    recorder.open_message()
    runs = (VersionRun(policy="policy", version=version, count=2),)
    recorder.append(np.array([4, 5 + member], np.int32), Source.SAMPLED, logprobs=np.array([-6.0, -6.25], np.float32), versions=runs)
    recorder.close_message(Message(role="assistant", content="de"))
    return Rollout(
        run=RUN,
        environment="env",
        problem_id="p",
        group_id=group_id,
        member=member,
        retry=0,
        rollout_uid=f"{group_id}:{member}:0",
        trace=recorder.trace(),
        status=RolloutStatus.OK,
        reward=float(member),
    )


def done(pending: Pending[T]) -> T:
    """The reply, once it is durable."""
    pending.durable.result()
    return pending.reply


class _Maker:
    def __init__(self, directory: Path, model: Path) -> None:
        self.directory = directory
        (directory / "acks").mkdir(parents=True)
        (directory / "buffer").mkdir()
        self.store = SqliteStore(directory / "buffer" / "store.sqlite")
        self.buffer = Buffer(self.store, iter(range(10**6)).__next__)
        self.learner = Learner(load_model(model), LEARNER, ALGORITHM.loss, max_lag=1)
        self.request = CutRequest(
            groups_per_update=1,
            config=(flat := flat_config(ALGORITHM, LEARNER, None)),
            config_digest=config_digest(flat),
            libraries={"torch": metadata.version("torch")},
        )

    def make(self) -> None:
        """Open groups, fill them, train on each, keep two checkpoints; leave one group open."""
        self.buffer.open_run(RUN, Laws(), self._keep_weights())
        self.buffer.open_session(RUN, "session", "worker")
        term = self.buffer.take_term(RUN, "learner", 0).reply.term
        checkpoints = Checkpoints(self.directory / "checkpoints", run=RUN, term=term)
        for update in range(UPDATES):
            if update in (0, 2):
                self.buffer.keep(RUN, update, checkpoints.save(update, self.learner.state()), term)
            self._fill(update)
            self._train(update, term)
        self._open(UPDATES)
        self.store.close()

    def _open(self, index: int) -> None:
        group_id = f"source/0/{index}"
        self.buffer.open_group(RUN, group_id, environment="env", problem_id="p", purpose=Purpose.TRAIN, size=2, seed=index, first_estimate=10).durable.result()

    def _fill(self, index: int) -> None:
        self._open(index)
        for slot in self.buffer.claim(RUN, "session", 2).reply:
            body = encode_msgpack(rollout(index, slot.member, self.learner.version))
            record, payload = rollout_intake(RUN, body, "msgpack")
            self.buffer.accept(RUN, record, payload).durable.result()
            with (self.directory / "acks" / "worker.log").open("a") as acks:
                acks.write(f"{record.uid} {record.digest}\n")

    def _train(self, update: int, term: int) -> None:
        plan = self.buffer.cut(RUN, update, term, self.request).reply
        assert isinstance(plan, Plan)
        if update == SKIPPED:
            done(self.buffer.record(RUN, update, term, skipped="non_finite"))
            return
        groups = tuple(group_of(self.buffer.fetch(RUN, group.id, group.digest)) for group in plan.groups)
        result = self.learner.step(pack(credit(groups, plan, ALGORITHM), tokens_per_row=None), newest_version=plan.newest_version, gated=False)
        self._keep_weights()
        version = done(self.buffer.record(RUN, update, term, digest=result.digest)).outcome.version
        assert version is not None
        self.learner.adopt(version)
        done(self.buffer.publish(RUN, version, term))

    def _keep_weights(self) -> str:
        return keep_weights(self.directory / "weights", self.learner.weights)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model") / "nano"
    init_model(directory, size="nano", template="plain")
    return directory


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    directory = tmp_path_factory.mktemp("runs") / RUN
    _Maker(directory, model).make()
    return directory


@pytest.fixture
def run_dir(original: Path, tmp_path: Path) -> Path:
    """A run of four updates, the third of which was skipped, with two kept checkpoints and a group that is still open."""
    return Path(shutil.copytree(original, tmp_path / RUN))
