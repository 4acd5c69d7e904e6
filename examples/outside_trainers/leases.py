"""Leases of whole groups over plain HTTP, and the rows a trainer makes of them. Nothing but the standard library: copy this file into your trainer.

    leases = Leases("http://127.0.0.1:8889", run="demo", consumer="trainer")
    lease = leases.take("trainer-0", groups=8)          # waits until they are ready
    for group in leases.groups(lease):                  # ...train on them...
        rows = [row for rollout in group["rollouts"] for row in rows_of(rollout)]
    leases.settle(lease["lease"])                       # only now are they spent

Every request may be sent twice, so each is sent until it is answered.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

POLL_SECONDS = 20.0
PAUSE_SECONDS = 0.5
AGAIN = (408, 429, 503, 507)
"""Refusals that say nothing about the request."""


class RefusedError(Exception):
    """The buffer does not do what it was asked."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


def ask(url: str, body: Any = None, *, patience_seconds: float = 60.0) -> Any:
    """The JSON that a request is answered with: a POST if there is a body. Tried again until `patience_seconds` are over."""
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    if token := os.environ.get("PENSTOCK_TOKEN"):
        headers["Authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    deadline, is_told = time.monotonic() + patience_seconds, False
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=POLL_SECONDS + 20) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode(errors="replace")
            if error.code not in AGAIN or time.monotonic() > deadline:
                raise RefusedError(error.code, text) from None
        except (OSError, ValueError) as error:
            # Nobody there, a connection that broke off, or half an answer.
            if time.monotonic() > deadline:
                raise TimeoutError(f"no answer from {url}: {error}") from None
            if not is_told:
                print(f"no answer from {url} ({error}); it is asked again for {patience_seconds:g} s", file=sys.stderr)
                is_told = True
        time.sleep(PAUSE_SECONDS)


class Leases:
    """The leases of one consumer in one run."""

    def __init__(self, url: str, *, run: str, consumer: str, seconds: float = 300.0) -> None:
        self._url = f"{url.rstrip('/')}/v1/runs/{quote(run)}/leases"
        self._consumer = consumer
        self._seconds = seconds

    def take(self, name: str, *, groups: int, order: str = "oldest") -> dict[str, Any]:
        """So many ready groups; waits for them.

        The same `name` again gives the same groups, so a trainer that was killed calls its leases as before and gets what it had. If such a
        lease has run out meanwhile, its groups are open to all again, and others are taken under the next free name.
        """
        request = {"groups": groups, "at_least": groups, "order": order, "seconds": self._seconds}
        attempt = 0
        while True:
            wanted = {"lease": f"{name}.{attempt}", "consumer": self._consumer, "request": request, "wait_seconds": POLL_SECONDS}
            try:
                answer = ask(self._url, wanted)
            except RefusedError as error:
                if error.status != 409:
                    raise
                attempt += 1
                continue
            if answer["lease"] is not None:
                return dict(answer["lease"])

    def find(self, name: str) -> dict[str, Any] | None:
        """The newest lease that was taken as `name`, if any was."""
        found = None
        for attempt in range(1000):
            try:
                found = ask(f"{self._url}/{quote(f'{name}.{attempt}')}")
            except RefusedError as error:
                if error.status != 404:
                    raise
                break
        return found

    def groups(self, lease: dict[str, Any]) -> list[dict[str, Any]]:
        """Its groups in order: `group` has their facts, `rollouts` what their members did. One whose bytes are damaged or gone has none; `damaged` says why."""
        return list(ask(f"{self._url}/{quote(lease['lease'])}/groups?consumer={quote(self._consumer)}"))

    def renew(self, lease: str) -> None:
        """Keep the groups for as long again."""
        self._post(lease, "renew")

    def settle(self, lease: str) -> None:
        """They were used: nobody gets them again. Refused with 409 if the lease has run out."""
        self._post(lease, "settle")

    def release(self, lease: str) -> None:
        """They were not: they are ready again."""
        self._post(lease, "release")

    def _post(self, lease: str, verb: str) -> None:
        ask(f"{self._url}/{quote(lease)}/{verb}", {"consumer": self._consumer})


@dataclass(frozen=True, kw_only=True)
class Row:
    """One sequence to train on."""

    ids: list[int]
    mask: list[int]
    """1 for tokens that carry loss: those the policy sampled."""
    logprobs: list[float]
    """What the sampler gave each of them; 0 where there is no loss."""

    @property
    def prompt_length(self) -> int:
        """Tokens before the first that carries loss."""
        return self.mask.index(1)


def rows_of(rollout: dict[str, Any]) -> list[Row]:
    """A row for each kept branch of a rollout; a token that lies on several carries loss on the first only. None if it cannot be trained on."""
    if rollout.get("status", "ok") not in ("ok", "truncated"):
        return []
    segments = rollout["trace"]["segments"]
    kept = [place for place, segment in enumerate(segments) if not segment.get("abandoned")]
    parents = {segments[place]["parent"] for place in kept}
    counted: set[int] = set()
    rows = [_row(segments, _path(segments, leaf), counted) for leaf in kept if leaf not in parents]
    return [row for row in rows if any(row.mask)]


def _path(segments: list[dict[str, Any]], leaf: int) -> list[int]:
    path: list[int] = []
    place: int | None = leaf
    while place is not None:
        path.insert(0, place)
        place = segments[place]["parent"]
    return path


def _row(segments: list[dict[str, Any]], path: list[int], counted: set[int]) -> Row:
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    for place in path:
        segment = segments[place]
        length = len(segment["ids"])
        ids += segment["ids"]
        trains = segment["source"] == "sampled" and place not in counted
        mask += [int(trains)] * length
        logprobs += segment["logprobs"] if trains else [0.0] * length
        counted.add(place)
    return Row(ids=ids, mask=mask, logprobs=logprobs)
