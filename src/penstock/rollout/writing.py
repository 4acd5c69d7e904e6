"""The way of finished rollouts to the buffer: in batches, with a note of each acknowledgement."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from penstock.buffer.api import Written
from penstock.buffer.client import BufferClient
from penstock.errors import InputError, InvariantError
from penstock.process.points import reach
from penstock.types import Rollout, RolloutStatus, Trace

log = logging.getLogger(__name__)

_MOST_ROLLOUTS = 64
_MOST_TOKENS = 200_000
"""Of one request: some megabytes, far below what the buffer takes at once."""

Fate = Literal["accepted", "stale", "late", "refused"]
"""`late`: somebody else has filled the slot, or its group has ended. `refused`: it may not be stored; its failure was stored in its place."""


class AcksLog:
    """The writer's own record of what the buffer acknowledged: a line `uid digest` for each. `penstock verify` compares it with the store."""

    def __init__(self, path: Path | None) -> None:
        self._file: int | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            # Notes are not synced: a line that the power cut off must not become the beginning of the next one.
            if _is_cut_off(path):
                os.write(self._file, b"\n")

    def note(self, answers: Iterable[Written]) -> None:
        """Append the acknowledged ones, in one write."""
        lines = "".join(f"{answer.uid} {answer.digest}\n" for answer in answers if answer.code is None)
        if self._file is not None and lines:
            os.write(self._file, lines.encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._file is not None:
            os.close(self._file)


def _is_cut_off(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        return file.read() not in (b"", b"\n")


@dataclass(frozen=True, slots=True, eq=False)
class Writer:
    """Writes to one run."""

    client: BufferClient
    acks: AcksLog

    async def write(self, rollouts: Sequence[Rollout]) -> list[Fate]:
        """Store rollouts, durably, and say what became of each. Raises `StoreError` if the buffer does not answer in time."""
        fates: list[Fate] = []
        for batch in _batches(rollouts):
            fates += await self._write(batch)
        return fates

    async def _write(self, batch: list[Rollout]) -> list[Fate]:
        reach("worker.before_write")
        try:
            answers = await self.client.write(batch)
        except InputError as error:
            if len(batch) > 1:  # one of them cannot be sent; the others can
                return [fate for rollout in batch for fate in await self._write([rollout])]
            return [await self._replaced(batch[0], str(error))]
        reach("worker.after_write")
        self.acks.note(answers)
        return [await self._fate(rollout, answer) for rollout, answer in zip(batch, answers, strict=True)]

    async def _fate(self, rollout: Rollout, answer: Written) -> Fate:
        if answer.code is None:
            return "stale" if answer.stale else "accepted"
        if answer.code in ("fenced", "conflict"):
            log.info("rollout %s came too late: %s", rollout.rollout_uid, answer.message)
            return "late"
        return await self._replaced(rollout, f"{answer.code}: {answer.message}")

    async def _replaced(self, rollout: Rollout, reason: str) -> Fate:
        """Store the failure of a rollout that the buffer will not have, so that its slot is tried again and does not wait for ever."""
        log.warning("rollout %s was refused: %s", rollout.rollout_uid, reason)
        if not rollout.trace.segments:
            raise InvariantError(f"the buffer refuses even the failure of {rollout.rollout_uid}: {reason}")
        shown = reason.encode("utf-8", "replace").decode()[:500]
        failed = replace(
            rollout,
            rollout_uid=f"{rollout.rollout_uid}:refused",
            trace=Trace(segments=()),
            status=RolloutStatus.INFRA_ERROR,
            reward=None,
            rewards={},
            failure=f"the buffer refused the rollout: {shown}",
            metadata={"error": "refused"},
        )
        await self._write([failed])
        return "refused"


def _batches(rollouts: Sequence[Rollout]) -> Iterator[list[Rollout]]:
    batch: list[Rollout] = []
    num_tokens = 0
    for rollout in rollouts:
        size = sum(len(segment.ids) for segment in rollout.trace.segments)
        if batch and (len(batch) == _MOST_ROLLOUTS or num_tokens + size > _MOST_TOKENS):
            yield batch
            batch, num_tokens = [], 0
        batch.append(rollout)
        num_tokens += size
    if batch:
        yield batch
