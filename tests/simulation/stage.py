"""What all actors share that is not a message: time, luck, the weights directory, and the observers. Nothing here is lost in a crash."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from penstock.errors import PenstockError, StoreError, UnknownError
from tests.simulation.audit import Audit
from tests.simulation.clockwork import Actor, Answer, Call, Clock, Network, Script, Unanswered
from tests.simulation.history import History
from tests.simulation.scenario import INITIAL, Scenario
from tests.simulation.witness import Witness


@dataclass(slots=True, kw_only=True)
class Stage:
    """The world as the actors see it."""

    scenario: Scenario
    rng: Random
    clock: Clock
    network: Network
    history: History
    witness: Witness
    audit: Audit
    weights: dict[str, str] = field(default_factory=lambda: {INITIAL: ""})
    """The weights directory: files by digest, with the term of the learner that wrote them."""
    wall_offset_seconds: float = 0.0
    """How far the wall clock is off by now. It jumps; the store's clock must not care."""
    draining: bool = False
    """Faults are over; no more groups are opened."""
    num_groups: int = 0
    """How many there were when the learner found nothing left to do; a late request may still open one more."""
    done: bool = False
    waiting_for: dict[str, str] = field(default_factory=dict)
    """By actor: what it waits for, to name it when nothing goes on."""


class Player(Actor):
    """An actor on a stage."""

    def __init__(self, name: str, stage: Stage) -> None:
        super().__init__(name, stage.clock, stage.network)
        self.stage, self.rng = stage, stage.rng

    def receive(self, call: Call, answer: Answer) -> None:
        raise AssertionError(f"{self.name} takes no requests, got {call.verb}")

    def note(self, what: str, *subjects: object) -> None:
        """Put an event on record."""
        self.stage.history.note(self.clock.now, self.name, what, *subjects)

    def ask(self, verb: str, *args: Any, **options: Any) -> Script:
        """Ask the buffer until it answers. Safe, because the same request twice changes nothing. Raises its refusal."""
        while True:
            try:
                return (yield Call("buffer", verb, args, options))
            except Unanswered:
                self.note(f"no answer to {verb}", *filter(_is_name, args))
            except StoreError:
                self.note(f"the store refuses {verb}", *filter(_is_name, args))
            except UnknownError as error:
                if "no run" not in str(error):
                    raise
            yield self.rng.uniform(0.1, 0.5)


def _is_name(value: object) -> bool:
    return isinstance(value, str)


def refusal(error: PenstockError) -> str:
    """An error in few words."""
    return f"refused ({type(error).__name__}: {error})"
