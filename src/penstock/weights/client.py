"""Telling every server which weights to serve, and believing none before it has said their digest back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from penstock.errors import InfraError, WeightsError
from penstock.inference.client import InferenceClient
from penstock.types import WeightManifest

log = logging.getLogger(__name__)


class Broadcaster:
    """Pushes manifests to servers. The servers read the bytes themselves and verify them before they switch.

    A server that cannot be reached is left out with a warning: when it is back it loads the newest version by itself, and is not ready before.
    One that answers with other weights than it was told stops the run: `WeightsError`.
    """

    def __init__(self, servers: Mapping[str, InferenceClient], *, deadline_seconds: float = 5.0) -> None:
        """`servers` by the name that warnings call them."""
        self._servers = servers
        self._deadline_seconds = deadline_seconds

    async def push(self, manifest: WeightManifest, term: int) -> int:
        """Make all reachable servers serve `manifest`; gives how many do."""
        return sum(await asyncio.gather(*(self._push_one(name, server, manifest, term) for name, server in self._servers.items())))

    async def _push_one(self, name: str, server: InferenceClient, manifest: WeightManifest, term: int) -> bool:
        try:
            served = await server.push(manifest, term=term, deadline_seconds=self._deadline_seconds)
        except InfraError as error:
            log.warning("%s did not take version %d and will load it when it is back: %s", name, manifest.version, error)
            return False
        if (served.version, served.digest) != (manifest.version, manifest.digest):
            raise WeightsError(
                f"{name} serves version {served.version} with digest {served.digest}, but was told version {manifest.version} with digest {manifest.digest}",
            )
        return True
