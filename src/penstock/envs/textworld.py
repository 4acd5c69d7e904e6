"""A small text world: rooms on a grid, a thing to fetch and a room to bring it to. Several turns, repeated states, invalid actions.

    bring mug to a3. c2 b3>     the task; the agent stands in column c, row 2, and the mug is in b3
    w                           the agent's action: n, e, s, w, take or drop
    b2 b3>
    s
    mug b3 b3>                  a mug lies here
    take
    +mug b3 a3>                 it is held now, and wanted in a3
    e
    +mug c3 a3>
    e
    no +mug c3 a3>              an action that was not possible changes nothing and costs a step

Reward 1 once the thing lies where it is wanted, 0 when the steps have run out. Difficulty is the number of actions of a shortest solution.

A model learns to play from demonstrations that contain mistakes, and then by trying: `penstock init model models/textworld --warm-up textworld` makes a
warmed-up model (in Python: `make_demo_model(directory, TEXTWORLD_RECIPE)` of `penstock.models.demo`), and `examples/textworld/run.yaml` trains it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product

from penstock.config import check_range
from penstock.envs.protocol import Observation, Reply, Rewards
from penstock.errors import ConfigError
from penstock.problems import Split, split_of
from penstock.types import Json, Message, Problem, Rollout

THINGS = ("mug", "key", "pen", "hat", "map", "egg")
MOVES: Mapping[str, tuple[int, int]] = {"n": (0, -1), "e": (1, 0), "s": (0, 1), "w": (-1, 0)}
"""Steps over columns and rows: row 1 is in the north, column a in the west."""
ACTIONS = (*MOVES, "take", "drop")
_HELD_OUT_ONE_IN = 8

Room = tuple[int, int]
"""Column and row, from 0."""


def room_name(room: Room) -> str:
    """As the agent reads it.

    >>> room_name((2, 0))
    'c1'
    """
    return f"{'abcde'[room[0]]}{room[1] + 1}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextWorldEnvironment:
    """Which worlds there are."""

    size: int = 3
    """Rooms in a row and in a column."""
    least_actions: int = 4
    most_actions: int = 7
    """Shortest solutions of the problems lie in this range: how hard they are."""
    others: int = 1
    """Things that lie about and are not wanted."""
    hidden: bool = False
    """Do not show where the thing is (`c2 ??>`): it must be searched for."""
    max_steps: int = 12
    held_out: int = 64
    """Problems in one pass of evaluation; fewer if there are not as many. None of them is ever trained on."""
    seed: int = 0
    """Of the order in which training problems come."""

    def __post_init__(self) -> None:
        check_range("size", self.size, least=2, most=5)
        check_range("least_actions", self.least_actions, least=3, most=self.most_actions)
        check_range("max_steps", self.max_steps, least=self.most_actions)
        check_range("others", self.others, least=0, most=min(len(THINGS) - 1, self.size**2 - 2))
        check_range("held_out", self.held_out, least=1)
        for split in Split:
            if not _tasks(self.size, self.least_actions, self.most_actions, split):
                raise ConfigError(f"least_actions: no {split} world of size {self.size} needs {self.least_actions} to {self.most_actions} actions")

    def problems(self, split: Split) -> TextWorldProblems:
        """See `Environment`."""
        return TextWorldProblems(self, split)

    def make(self) -> TextWorldEnv:
        """See `Environment`."""
        return TextWorldEnv(self.max_steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is to be brought, from where to where, and where the agent begins."""

    thing: str
    lies: Room
    wanted: Room
    start: Room

    @property
    def key(self) -> str:
        """What makes it this task and no other."""
        return f"{self.thing}-{room_name(self.lies)}-{room_name(self.wanted)}-{room_name(self.start)}"

    @property
    def num_actions(self) -> int:
        """Of a shortest solution: go, take, go, drop."""
        return _distance(self.start, self.lies) + 1 + _distance(self.lies, self.wanted) + 1


@dataclass(frozen=True, slots=True)
class TextWorldProblems:
    """Endless for training; held out, the same problems in the same order on every pass, all different."""

    settings: TextWorldEnvironment
    split: Split
    name: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.split.value)

    @property
    def size(self) -> int | None:
        """Endless for training."""
        return None if self.split is Split.TRAIN else min(self.settings.held_out, len(self._tasks))

    def problem(self, pass_: int, index: int) -> Problem:
        """See `ProblemSource`."""
        if self.split is Split.HELD_OUT:
            return self._problem(self._tasks[index])
        return self._problem(random.Random(f"{self.settings.seed} {pass_} {index}").choice(self._tasks))

    @property
    def _tasks(self) -> tuple[Task, ...]:
        return _tasks(self.settings.size, self.settings.least_actions, self.settings.most_actions, self.split)

    def _problem(self, task: Task) -> Problem:
        return Problem(
            id=f"textworld-{task.key}",
            environment="textworld",
            prompt=f"bring {task.thing} to {room_name(task.wanted)}. ",
            task={
                "size": self.settings.size,
                "start": list(task.start),
                "thing": task.thing,
                "wanted": list(task.wanted),
                "hidden": self.settings.hidden,
                "lying": _lying(task, self.settings),
            },
            ground_truth=room_name(task.wanted),
            difficulty=float(task.num_actions),
        )


class World:
    """The state of one episode: where the agent stands, what lies where, what it holds."""

    def __init__(self, task: Mapping[str, Json]) -> None:
        self._size = int(task["size"])
        self._is_hidden = bool(task["hidden"])
        self.thing = str(task["thing"])
        self.wanted: Room = _room(task["wanted"])
        self.room: Room = _room(task["start"])
        self.lying: dict[Room, str] = {_room(room): thing for room, thing in task["lying"]}
        self.held: str | None = None

    @property
    def is_done(self) -> bool:
        """Whether the thing lies where it is wanted."""
        return self.lying.get(self.wanted) == self.thing

    def act(self, action: str) -> bool:
        """Do it if it can be done, and say whether it could."""
        if action == "take" and self.held is None and self.room in self.lying:
            self.held = self.lying.pop(self.room)
            return True
        if action == "drop" and self.held is not None and self.room not in self.lying:
            self.lying[self.room], self.held = self.held, None
            return True
        if action in MOVES:
            column, row = self.room[0] + MOVES[action][0], self.room[1] + MOVES[action][1]
            if 0 <= column < self._size and 0 <= row < self._size:
                self.room = (column, row)
                return True
        return False

    def shown(self) -> str:
        """What the agent reads: what lies here, what it holds, where it is, and where to go: to the thing, and with it to where it is wanted."""
        seen, held = self.lying.get(self.room), self.held
        goal = self.wanted if held == self.thing else next((room for room, thing in self.lying.items() if thing == self.thing), self.wanted)
        told = "??" if self._is_hidden and held != self.thing else room_name(goal)
        return f"{f'{seen} ' if seen else ''}{f'+{held} ' if held else ''}{room_name(self.room)} {told}>"

    def state(self) -> Json:
        """The same as a bare observation, without history and without what became of the last action."""
        return {"room": room_name(self.room), "sees": self.lying.get(self.room), "holds": self.held}

    def good_actions(self) -> list[str]:
        """What a player who knows everything would do next. From the start of an episode each of them begins a shortest solution."""
        is_free, wanted_is_free = self.room not in self.lying, self.wanted not in self.lying
        if self.held == self.thing and wanted_is_free:
            return self._towards(self.wanted) or ["drop"]
        if self.held is not None:
            # Something is in the way, or in the hand: it is put down anywhere but where the thing is wanted.
            return ["drop"] if is_free and self.room != self.wanted else [*MOVES]
        lies = next(room for room, thing in self.lying.items() if thing == self.thing)
        return self._towards(lies if wanted_is_free else self.wanted) or ["take"]

    def _towards(self, target: Room) -> list[str]:
        here = _distance(self.room, target)
        return [action for action, (columns, rows) in MOVES.items() if _distance((self.room[0] + columns, self.room[1] + rows), target) < here]


class TextWorldEnv:
    """One thing to bring."""

    def __init__(self, max_steps: int) -> None:
        self._left = max_steps
        self._world: World | None = None

    async def open(self, problem: Problem, seed: int) -> Observation:
        """See `Env`."""
        assert isinstance(problem.prompt, str)
        self._world = World(problem.task)
        return _observation(self._world, problem.prompt + self._world.shown())

    async def step(self, reply: Reply) -> Observation:
        """See `Env`. An action that is not possible, or was cut off, costs a step and changes nothing."""
        world = self._world
        assert world is not None, "open comes first"
        self._left -= 1
        valid = not reply.truncated and world.act(reply.text.strip().lower())
        if world.is_done or self._left == 0:
            return Observation(reward=float(world.is_done), done=True, info={"valid": valid})
        return _observation(world, f"{'' if valid else 'no '}{world.shown()}", reward=0.0, info={"valid": valid})

    async def score(self, rollout: Rollout) -> Rewards:
        """See `Env`."""
        return {"brought": float(self._world is not None and self._world.is_done)}


def textworld_demonstrations(settings: TextWorldEnvironment, *, seed: int = 0, corrupted: float = 0.5) -> Iterator[tuple[Problem, tuple[tuple[str, str], ...]]]:
    """Training problems with episodes to imitate, endlessly: (what is shown, what is done) for each step.

    With probability `corrupted` an action is any of the six in place of a good one. A model that imitates them plays, but not well: something is left
    to learn.
    """
    if not 0 <= corrupted <= 1:
        raise ConfigError(f"corrupted must lie in 0..1, got {corrupted}")
    source, problems = random.Random(f"demonstrations {seed}"), settings.problems(Split.TRAIN)
    while True:
        problem = problems.problem(0, source.randrange(2**31))
        assert isinstance(problem.prompt, str)
        world = World(problem.task)
        steps: list[tuple[str, str]] = []
        valid = True
        while not world.is_done and len(steps) < settings.max_steps:
            shown = (problem.prompt if not steps else "" if valid else "no ") + world.shown()
            action = source.choice(ACTIONS if source.random() < corrupted else world.good_actions())
            steps.append((shown, action))
            valid = world.act(action)
        yield problem, tuple(steps)


@lru_cache(maxsize=16)
def _tasks(size: int, least_actions: int, most_actions: int, split: Split) -> tuple[Task, ...]:
    """All tasks of a split, in an order that does not depend on a run's seed: runs that differ only in it are evaluated on the same problems."""
    rooms: list[Room] = list(product(range(size), range(size)))
    tasks = [
        task
        for thing, lies, wanted, start in product(THINGS, rooms, rooms, rooms)
        if lies != wanted
        and least_actions <= (task := Task(thing=thing, lies=lies, wanted=wanted, start=start)).num_actions <= most_actions
        and split_of(task.key, held_out_one_in=_HELD_OUT_ONE_IN) is split
    ]
    return tuple(random.Random("order").sample(tasks, len(tasks)))


def _lying(task: Task, settings: TextWorldEnvironment) -> list[Json]:
    """What lies where, in the order of rooms. What is not wanted lies neither where the thing is nor where it is wanted."""
    source = random.Random(task.key)
    rooms = [room for room in product(range(settings.size), range(settings.size)) if room not in (task.lies, task.wanted)]
    others = source.sample([thing for thing in THINGS if thing != task.thing], settings.others)
    return sorted([[list(task.lies), task.thing], *([list(room), thing] for room, thing in zip(source.sample(rooms, settings.others), others, strict=True))])


def _observation(world: World, text: str, *, reward: float | None = None, info: Mapping[str, Json] | None = None) -> Observation:
    return Observation(messages=(Message(role="user", content=text),), reward=reward, info=info or {}, observation=world.state())


def _distance(one: Room, other: Room) -> int:
    return abs(one[0] - other[0]) + abs(one[1] - other[1])


def _room(value: Json) -> Room:
    column, row = value
    return int(column), int(row)
