"""Small runs with groups that have ended, and an archiver that is driven by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from penstock.buffer.archive.archiver import Archiver
from penstock.buffer.archive.config import ArchiveConfig
from penstock.buffer.core import Buffer, Pending
from penstock.buffer.intake import annotation_intake, rollout_intake
from penstock.buffer.service import BufferService
from penstock.buffer.store import SqliteStore
from penstock.trace import Recorder
from penstock.types import Annotation, Laws, Message, Purpose, Rollout, RolloutStatus, Source, VersionRun
from penstock.wire import encode_json, encode_msgpack

T = TypeVar("T")
RUN = "demo"
EAGER = ArchiveConfig(after_seconds=0.0, most_wait_seconds=0.0, rollouts_per_file=100)
"""Writes whatever there is."""


def rollout(group: int, member: int, *, retry: int = 0, status: RolloutStatus = RolloutStatus.OK, version: int = 0, environment: str = "env") -> Rollout:
    """A prompt of three tokens and a reply of two, which the environment rewards in two parts."""
    recorder = Recorder()
    recorder.open_message()
    recorder.append(np.array([1, 2, 10 + group], np.int32), Source.ENV)
    recorder.close_message(Message(role="user", content="2 + 2?"))
    recorder.open_message()
    runs = (VersionRun(policy="policy", version=version, count=2),)
    recorder.append(np.array([4, 5 + member], np.int32), Source.SAMPLED, logprobs=np.array([-0.5, -0.25], np.float32), versions=runs)
    recorder.close_message(Message(role="assistant", content="4"))
    usable = status.usable
    return Rollout(
        run=RUN,
        environment=environment,
        problem_id="p",
        group_id=f"{environment}/0/{group}",
        member=member,
        retry=retry,
        rollout_uid=f"{environment}/0/{group}:{member}:{retry}",
        trace=recorder.trace(),
        status=status,
        reward=member + 0.5 if usable else None,
        rewards={"exact": float(member), "form": 0.5} if usable else {},
        failure=None if usable else "the server was gone",
        metadata={"note": "é", "n": group},
    )


def done(buffer: Buffer, pending: Pending[T]) -> T:
    """The reply, once it is durable. For whoever waits on the event loop's own thread, where a turn does not end meanwhile."""
    buffer.store.send()
    pending.durable.result()
    return pending.reply


def open_group(buffer: Buffer, index: int, *, size: int = 2, purpose: Purpose = Purpose.TRAIN, environment: str = "env") -> str:
    group_id = f"{environment}/0/{index}"
    done(buffer, buffer.open_group(RUN, group_id, environment=environment, problem_id="p", purpose=purpose, size=size, seed=index, first_estimate=1))
    return group_id


def write(buffer: Buffer, given: Rollout, *, form: str = "msgpack") -> None:
    body = encode_json(given) if form == "json" else encode_msgpack(given)
    record, payload = rollout_intake(RUN, body, "json" if form == "json" else "msgpack")
    done(buffer, buffer.accept(RUN, record, payload))


def annotate(buffer: Buffer, uid: str, name: str, step: int | None = None) -> None:
    said = Annotation(run=RUN, rollout_uid=uid, name=name, step=step, values={"score": 0.75}, arrays={"weights": np.array([1.0, 2.0], np.float32)})
    done(buffer, buffer.annotate(RUN, *annotation_intake(RUN, encode_msgpack(said), "msgpack")))


def open_run(buffer: Buffer, **laws: object) -> None:
    done(buffer, buffer.open_run(RUN, Laws(credit_tokens=10**6, **laws), "0" * 32))  # type: ignore[arg-type]


def ended_groups(buffer: Buffer) -> None:
    """Group 0 is spent by a consumer, 1 dropped with one failed try, 2 is for evaluation, 3 was dropped with nothing in it, 4 is open."""
    open_run(buffer, annotations=("judge",), max_retries=1)
    open_group(buffer, 0)
    write(buffer, rollout(0, 0))
    annotate(buffer, rollout(0, 0).rollout_uid, "judge")
    annotate(buffer, rollout(0, 0).rollout_uid, "judge", 1)
    write(buffer, rollout(0, 1), form="json")
    annotate(buffer, rollout(0, 1).rollout_uid, "judge")
    open_group(buffer, 1)
    write(buffer, rollout(1, 0, status=RolloutStatus.INFRA_ERROR))
    write(buffer, rollout(1, 0, retry=1, status=RolloutStatus.TRUNCATED))
    write(buffer, rollout(1, 1, status=RolloutStatus.ENV_ERROR))
    open_group(buffer, 2, size=1, purpose=Purpose.EVAL)
    write(buffer, rollout(2, 0))
    open_group(buffer, 3)
    write(buffer, rollout(3, 0, status=RolloutStatus.ENV_ERROR))
    write(buffer, rollout(3, 1, status=RolloutStatus.ENV_ERROR))
    open_group(buffer, 4)
    write(buffer, rollout(4, 0))


def served(directory: Path, act: Callable[[BufferService, Archiver], Awaitable[T]], config: ArchiveConfig = EAGER) -> T:
    """What `act` gives, with a service over the store in `directory` and its archiver."""

    async def life() -> T:
        service = BufferService(SqliteStore(directory / "store.sqlite"), expire_seconds=60.0, max_waiting=8)
        async with service.running():
            return await act(service, Archiver(service, config, store_directory=directory, directory=directory / "archive"))

    return asyncio.run(life())
