"""Which inference server a request goes to, and when. Pure: time is passed in, and nobody is asked anything.

An episode stays with the server that has the beginning of its conversation in its cache (its *home*); a new one goes where the least is under way. A server
that says it is full is sent no more at once than it took, and a little more with each answer. One that is gone rests, longer each time, and its episodes go
elsewhere. What has to wait, waits here; a place that comes free goes to the environment with the least under way, so that one that asks often does not keep
out one that asks seldom.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.types.frozen import quickly_made

FIRST_REST_SECONDS, LONGEST_REST_SECONDS = 0.1, 5.0
MOVE_SECONDS = 1.0
"""A full server is waited for if it names a shorter wait than this; else its episodes move to one that has room."""
MOST_HOMES = 65_536
"""Episodes that are remembered; those that were not heard of for the longest time are forgotten first."""


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Wish:
    """A request that wants a server."""

    environment: str
    affinity: str | None = None
    """Requests with the same one have the same home."""
    weight: float = 1.0
    """Of its environment: one with twice the weight may have twice as much under way before others go first."""


@dataclass(slots=True, eq=False)
class _Server:
    under_way: int = 0
    room: float = math.inf
    """How much may be under way."""
    known_room: float = math.inf
    """What it took when it last said that it is full; below, room comes back quickly."""
    rests_until: float = -math.inf
    failures: int = 0
    """In a row."""
    waiting: dict[str, deque[Wish]] = field(default_factory=dict)
    """Of episodes that are at home here, by environment."""

    def is_free(self, now: float) -> bool:
        return self.under_way + 1 <= self.room and now >= self.rests_until


class Loads:
    """The servers of a worker, by number. `ask` for a place; say how it went with `answered`, `full`, `gone` or `left`; then see who is `admitted`."""

    def __init__(self, num_servers: int) -> None:
        self._servers = [_Server() for _ in range(num_servers)]
        self._homes: OrderedDict[str, int] = OrderedDict()
        self._anywhere: dict[str, deque[Wish]] = {}
        """Wishes without a home, by environment."""
        self._under_way: Counter[str] = Counter()
        self._num_waiting = 0

    @property
    def num_waiting(self) -> int:
        """Wishes that have no place yet."""
        return self._num_waiting

    def under_way(self, server: int) -> int:
        """Requests that a server has."""
        return self._servers[server].under_way

    def ask(self, wish: Wish, now: float) -> int | None:
        """The server for a wish; None if it has to wait until it is admitted."""
        home = self._home(wish)
        if home is None:
            found = self._least_loaded(now)
            if found is not None and not self._anywhere:
                return self._placed(wish, found)
            self._anywhere.setdefault(wish.environment, deque()).append(wish)
        else:
            server = self._servers[home]
            if server.is_free(now) and not server.waiting:
                return self._placed(wish, home)
            server.waiting.setdefault(wish.environment, deque()).append(wish)
        self._num_waiting += 1
        return None

    def forget(self, wish: Wish) -> None:
        """A wish that waits is withdrawn."""
        for queues in (self._anywhere, *(server.waiting for server in self._servers)):
            queue = queues.get(wish.environment)
            if queue is not None and wish in queue:
                queue.remove(wish)
                self._num_waiting -= 1
                if not queue:
                    del queues[wish.environment]
                return

    def answered(self, server: int, wish: Wish) -> None:
        """It has answered: it may be given a little more than before."""
        found = self._servers[server]
        found.failures = 0
        found.room += 1.0 if found.room < found.known_room else 1.0 / found.room
        self.left(server, wish)

    def left(self, server: int, wish: Wish) -> None:
        """A request is over, and says nothing about the server."""
        self._servers[server].under_way -= 1
        self._under_way[wish.environment] -= 1

    def full(self, server: int, wish: Wish, now: float, named_seconds: float = 0.0) -> None:
        """It takes no more for now, and may have named a time to wait."""
        self.left(server, wish)
        found = self._servers[server]
        found.room = found.known_room = max(1.0, float(found.under_way))
        self._rest(server, now, named_seconds, is_gone=named_seconds > MOVE_SECONDS)

    def gone(self, server: int, wish: Wish, now: float, named_seconds: float = 0.0) -> None:
        """It does not answer, or nothing that can be used. After its rest one request tries it."""
        self.left(server, wish)
        found = self._servers[server]
        found.room, found.known_room = 1.0, math.inf
        self._rest(server, now, named_seconds, is_gone=True)

    def admitted(self, now: float) -> Iterator[tuple[Wish, int]]:
        """Wishes that have waited and have a place now."""
        for index, server in enumerate(self._servers):
            while server.is_free(now) and server.waiting:
                wish = self._taken(server.waiting)
                yield wish, self._placed(wish, index)
        while self._anywhere and (found := self._least_loaded(now)) is not None:
            wish = self._taken(self._anywhere)
            yield wish, self._placed(wish, found)

    def wakes_at(self, now: float) -> float | None:
        """When the next server has rested; None if none rests."""
        return min((server.rests_until for server in self._servers if server.rests_until > now), default=None)

    def _home(self, wish: Wish) -> int | None:
        if wish.affinity is None or wish.affinity not in self._homes:
            return None
        self._homes.move_to_end(wish.affinity)
        return self._homes[wish.affinity]

    def _least_loaded(self, now: float) -> int | None:
        free = [index for index, server in enumerate(self._servers) if server.is_free(now)]
        return min(free, key=lambda index: self._servers[index].under_way, default=None)

    def _placed(self, wish: Wish, server: int) -> int:
        self._servers[server].under_way += 1
        self._under_way[wish.environment] += 1
        if wish.affinity is not None:
            self._homes[wish.affinity] = server
            if len(self._homes) > MOST_HOMES:
                self._homes.popitem(last=False)
        return server

    def _taken(self, queues: dict[str, deque[Wish]]) -> Wish:
        """The first wish of the environment that has the least under way for its weight."""
        name = min(queues, key=lambda name: self._under_way[name] / queues[name][0].weight)
        wish = queues[name].popleft()
        if not queues[name]:
            del queues[name]
        self._num_waiting -= 1
        return wish

    def _rest(self, server: int, now: float, named_seconds: float, *, is_gone: bool) -> None:
        found = self._servers[server]
        # Many that were under way together fail together: that is one failure.
        if now >= found.rests_until:
            found.failures += 1
        pause = min(FIRST_REST_SECONDS * 2 ** min(found.failures - 1, 10), LONGEST_REST_SECONDS)
        found.rests_until = max(found.rests_until, now + max(pause, named_seconds))
        if is_gone and len(self._servers) > 1:
            self._move_out(server)

    def _move_out(self, server: int) -> None:
        """Its episodes have no home any more."""
        for affinity in [affinity for affinity, home in self._homes.items() if home == server]:
            del self._homes[affinity]
        found = self._servers[server]
        for name, queue in found.waiting.items():
            self._anywhere.setdefault(name, deque()).extend(queue)
        found.waiting.clear()
