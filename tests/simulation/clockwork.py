"""Fake time, and the actors that live in it. One thing happens at a time, in an order that the seed alone decides."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

Answer = Callable[[object], None]
"""How a receiver replies: with a value, or with an exception that the caller will see raised."""


@dataclass(slots=True)
class Call:
    """A request that a script waits for. Gives the reply, raises the refusal, or raises `Unanswered`."""

    to: str
    verb: str
    args: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    timeout_seconds: float = 1.5


class Unanswered(Exception):
    """Nobody knows what became of the request."""


Script = Generator[float | Call, Any, Any]
"""What an actor does: yields seconds to sleep, or a `Call` to wait for."""


class Clock:
    """A heap of things to do. Ties are broken by the order in which they were put there."""

    def __init__(self) -> None:
        self.now = 0.0
        self.num_events = 0
        """Requests that were delivered and scripts that went on; a timeout that nobody waits for any more is no event."""
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Do `action` in so many seconds."""
        self._count += 1
        heapq.heappush(self._heap, (self.now + seconds, self._count, action))

    def step(self) -> None:
        """Do the next thing."""
        self.now, _, action = heapq.heappop(self._heap)
        action()


@dataclass(slots=True, kw_only=True)
class Weather:
    """How bad the network is. Probabilities per message."""

    drop: float = 0.0
    duplicate: float = 0.0
    slow: float = 0.0
    """Delayed by up to a few seconds, so that others overtake it."""
    late: float = 0.0
    """Share of duplicates that come many seconds later, when everybody has moved on."""


class Network:
    """Carries requests and replies, and loses, doubles, delays and reorders both."""

    def __init__(self, clock: Clock, rng: Random, weather: Weather, find: Callable[[str], Actor]) -> None:
        self._clock, self._rng, self._find = clock, rng, find
        self.weather = weather

    def send(self, call: Call, resume: Callable[[object], None]) -> None:
        """Deliver `call`, and its reply to `resume`: once, or never."""
        answered = False

        def arrive(value: object) -> None:
            nonlocal answered
            if not answered:
                answered = True
                resume(value)

        def answer(value: object) -> None:
            for delay in self._delays():
                self._clock.after(delay, partial(arrive, value))

        def deliver() -> None:
            receiver = self._find(call.to)
            self._clock.num_events += 1
            if receiver.up:
                receiver.take(call, answer)

        for delay in self._delays():
            self._clock.after(delay, deliver)
        self._clock.after(call.timeout_seconds, partial(arrive, Unanswered(f"{call.verb} to {call.to}")))

    def _delays(self) -> tuple[float, ...]:
        """Seconds until each copy of a message arrives."""
        rng, weather = self._rng, self.weather
        luck = rng.random()
        quick = 0.001 + 0.01 * rng.random()
        if luck < weather.drop:
            return ()
        luck -= weather.drop
        if luck < weather.duplicate:
            again = rng.uniform(2.0, 20.0) if rng.random() < weather.late else rng.uniform(0.0, 1.0)
            return (quick, quick + again)
        luck -= weather.duplicate
        return (rng.uniform(0.05, 2.0),) if luck < weather.slow else (quick,)


class Actor(ABC):
    """A process: it has lives, runs scripts, takes requests, and forgets everything when it is killed."""

    def __init__(self, name: str, clock: Clock, network: Network) -> None:
        self.name, self.clock, self.network = name, clock, network
        self.life = 0
        self.up = False
        self.frozen_until = 0.0

    @abstractmethod
    def boot(self) -> None:
        """What the process does when it starts."""

    @abstractmethod
    def receive(self, call: Call, answer: Answer) -> None:
        """What it does with a request."""

    def start(self) -> None:
        self.life += 1
        self.up = True
        self.frozen_until = 0.0
        self.boot()

    def kill(self) -> None:
        """No script goes on, no reply is sent, nothing in memory is kept."""
        self.up = False

    def freeze(self, seconds: float) -> None:
        """Do nothing for a while, and then go on as if no time had passed."""
        self.frozen_until = self.clock.now + seconds

    def take(self, call: Call, answer: Answer) -> None:
        if self.clock.now < self.frozen_until:
            self._later(self.life, partial(self.take, call, answer))
        else:
            self.receive(call, answer)

    def spawn(self, script: Script) -> None:
        """Run a script for as long as this life lasts."""
        self.clock.after(0.0, partial(self._advance, self.life, script, None))

    def _advance(self, life: int, script: Script, value: object) -> None:
        if not self.up or life != self.life:
            script.close()
            return
        if self.clock.now < self.frozen_until:
            self._later(life, partial(self._advance, life, script, value))
            return
        self.clock.num_events += 1
        try:
            wanted = script.throw(value) if isinstance(value, Exception) else script.send(value)
        except StopIteration:
            return
        if isinstance(wanted, Call):
            self.network.send(wanted, partial(self._advance, life, script))
        else:
            self.clock.after(wanted, partial(self._advance, life, script, None))

    def _later(self, life: int, action: Callable[[], None]) -> None:
        def unless_dead() -> None:
            if self.up and life == self.life:
                action()

        self.clock.after(self.frozen_until - self.clock.now, unless_dead)
