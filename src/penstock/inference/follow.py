"""A server that asks the buffer itself which weights are newest, so that one that was restarted needs no learner to catch up."""

from __future__ import annotations

import asyncio
import logging

from penstock.buffer.client import BufferClient
from penstock.errors import InputError, StoreError, UnknownError, WeightsError
from penstock.inference.config import InferenceConfig
from penstock.inference.desk import Push, WeightsDesk
from penstock.types import Version

log = logging.getLogger(__name__)

ASK_SECONDS = 2.0
"""Pushes come from the learner; this is for those that were missed."""
WAIT_SECONDS = 120.0
"""How long a server waits at its start for the run to be opened."""


async def newest_version(config: InferenceConfig) -> Version:
    """The newest recorded version of the run; waits until the run is open. Raises `StoreError` if that takes too long."""
    async with BufferClient(config.buffer_url, config.run, token=config.access.own_token, deadline_seconds=WAIT_SECONDS) as buffer:
        for _ in range(int(WAIT_SECONDS / 0.2)):
            try:
                return await buffer.newest_version()
            except UnknownError:
                await asyncio.sleep(0.2)
    raise StoreError(f"run {config.run} was not opened within {WAIT_SECONDS:g} s")


async def follow(config: InferenceConfig, desk: WeightsDesk) -> None:
    """Serve what is newest, for ever. A buffer that is away is waited for; weights that cannot be loaded leave the old ones serving."""
    async with BufferClient(config.buffer_url, config.run, token=config.access.own_token, deadline_seconds=ASK_SECONDS) as buffer:
        while True:
            await asyncio.sleep(ASK_SECONDS)
            try:
                newest = await buffer.newest_version()
                if newest.version > desk.newest_version:
                    await desk.take(Push(policy=newest.policy, version=newest.version, digest=newest.digest))
            except StoreError:
                log.info("the buffer does not answer; going on with version %d", desk.newest_version)
            except (InputError, WeightsError) as error:
                log.warning("the newest weights cannot be served: %s", error)
