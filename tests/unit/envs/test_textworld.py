"""The text world."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, product
from pathlib import Path
from typing import Any

import pytest

from penstock.chat import ChatTemplate, write_byte_tokenizer
from penstock.config import load
from penstock.envs import Observation, Reply, TextWorldEnvironment, environment, tokenized_turns
from penstock.envs.textworld import ACTIONS, Task, World, textworld_demonstrations
from penstock.errors import ConfigError
from penstock.orchestrator.config import RunConfig
from penstock.problems import Split
from penstock.trace import Recorder
from penstock.types import Problem, Rollout

ROLLOUT = Rollout(run="r", environment="e", problem_id="p", group_id="g/0/0", member=0, retry=0, rollout_uid="u", trace=Recorder().trace())
# A mug in b3 is wanted in a3; a hat lies in c2, where the agent begins.
PROBLEM = Problem(
    id="p",
    environment="textworld",
    prompt="bring mug to a3. ",
    task={"size": 3, "start": [2, 1], "thing": "mug", "wanted": [0, 2], "lying": [[[1, 2], "mug"], [[2, 1], "hat"]], "hidden": False},
)


async def played(actions: Sequence[str], *, max_steps: int = 12) -> tuple[list[Observation], float]:
    env = TextWorldEnvironment(max_steps=max_steps).make()
    seen = [await env.open(PROBLEM, 0)]
    for action in actions:
        seen.append(await env.step(Reply(text=action)))
    return seen, (await env.score(ROLLOUT))["brought"]


async def test_a_thing_is_found_taken_carried_and_dropped() -> None:
    seen, reward = await played(["w", "s", "take", "w", "drop"])
    assert [message.content for one in seen for message in one.messages] == [
        "bring mug to a3. hat c2 b3>",
        "b2 b3>",
        "mug b3 b3>",
        "+mug b3 a3>",
        "+mug a3 a3>",
    ]
    assert [one.observation for one in seen[:4]] == [
        {"room": "c2", "sees": "hat", "holds": None},
        {"room": "b2", "sees": None, "holds": None},
        {"room": "b3", "sees": "mug", "holds": None},
        {"room": "b3", "sees": None, "holds": "mug"},
    ]
    assert [(one.reward, one.done) for one in seen] == [(None, False), (0.0, False), (0.0, False), (0.0, False), (0.0, False), (1.0, True)]
    assert reward == 1.0


@pytest.mark.parametrize("nonsense", ["", "north", "drop", "e", "take hat", "9", "n n"])
async def test_what_cannot_be_done_is_answered_by_the_same_state_and_costs_a_step(nonsense: str) -> None:
    seen, _ = await played([nonsense])
    assert [message.content for message in seen[1].messages] == ["no hat c2 b3>"]
    assert (seen[1].observation, seen[1].info) == (seen[0].observation, {"valid": False})


async def test_an_action_that_was_cut_off_is_not_done() -> None:
    env = TextWorldEnvironment().make()
    await env.open(PROBLEM, 0)
    assert (await env.step(Reply(text="w", truncated=True))).info == {"valid": False}


async def test_only_one_thing_fits_into_a_hand_and_into_a_room() -> None:
    seen, _ = await played(["take", "w", "s", "take", "drop", "n", "drop", "take"])
    assert [one.info["valid"] for one in seen[1:]] == [True, True, True, False, False, True, True, True]


async def test_the_wrong_thing_in_the_right_room_earns_nothing() -> None:
    seen, reward = await played(["take", "w", "w", "s", "drop"])
    assert (seen[-1].done, reward) == (False, 0.0)


async def test_after_the_last_step_it_is_over_without_a_reward() -> None:
    seen, reward = await played(["n", "s"] * 4, max_steps=8)
    assert ([one.done for one in seen[1:]], reward) == ([False] * 7 + [True], 0.0)


def shortest(world: dict[str, Any]) -> int:
    """Breadth-first search over everything that can be done: slow, and knows nothing of distances."""
    paths: list[tuple[str, ...]] = [()]
    seen = set()
    for path in paths:
        state = World(world)
        for action in path:
            state.act(action)
        if state.is_done:
            return len(path)
        key = (state.room, state.held, tuple(sorted(state.lying.items())))
        if key not in seen:
            seen.add(key)
            paths.extend((*path, action) for action in ACTIONS)
    raise AssertionError("there is no way")


def test_difficulty_is_the_length_of_a_shortest_solution() -> None:
    problems = TextWorldEnvironment(size=2, least_actions=3, most_actions=5, others=0, held_out=9).problems(Split.TRAIN)
    for index in range(12):
        problem = problems.problem(0, index)
        assert shortest(dict(problem.task)) == problem.difficulty


def test_good_actions_bring_the_thing_in_as_many_steps_as_the_difficulty_says() -> None:
    problems = TextWorldEnvironment(others=3).problems(Split.TRAIN)
    for index in range(40):
        problem = problems.problem(0, index)
        world, num_actions = World(problem.task), 0
        while not world.is_done:
            assert world.act(world.good_actions()[-1])
            num_actions += 1
        assert num_actions == problem.difficulty
        assert 4 <= num_actions <= 7


@pytest.mark.parametrize("held", ["mug", "hat", None])
def test_good_actions_find_a_way_out_of_any_mess(held: str | None) -> None:
    """Wherever things have come to lie, also where they are in the way."""
    rooms = list(product(range(2), repeat=2))
    for room, hat, mug in product(rooms, rooms, rooms):
        if hat == mug:
            continue
        lying = [[place, thing] for place, thing in ((hat, "hat"), (mug, "mug")) if thing != held]
        world = World({"size": 2, "start": room, "thing": "mug", "wanted": [0, 0], "lying": lying, "hidden": False})
        world.held = held
        for turn in range(30):
            if world.is_done:
                break
            good = world.good_actions()
            world.act(good[turn % len(good)])
        assert world.is_done


def test_no_problem_is_on_both_sides_and_the_seed_changes_only_the_order_of_training() -> None:
    settings = [TextWorldEnvironment(seed=seed) for seed in (0, 1)]
    train = [[one.problems(Split.TRAIN).problem(0, index).id for index in range(500)] for one in settings]
    held_out = [[one.problems(Split.HELD_OUT).problem(0, index).id for index in range(64)] for one in settings]
    assert held_out[0] == held_out[1]
    assert len(set(held_out[0])) == 64
    assert train[0] != train[1]
    assert not set(held_out[0]) & (set(train[0]) | set(train[1]))


def test_where_a_hidden_thing_is_shows_only_once_it_is_held() -> None:
    world = World({**PROBLEM.task, "hidden": True})
    shown = [world.shown()]
    for action in ("w", "s", "take"):
        world.act(action)
        shown.append(world.shown())
    assert shown == ["hat c2 ??>", "b2 ??>", "mug b3 ??>", "+mug b3 a3>"]


def test_a_task_counts_its_actions() -> None:
    assert Task(thing="mug", lies=(1, 2), wanted=(0, 2), start=(2, 1)).num_actions == 5


@pytest.mark.parametrize(
    "params", [{"size": 1}, {"size": 6}, {"least_actions": 8}, {"max_steps": 5}, {"others": 6}, {"size": 2, "least_actions": 9, "most_actions": 9}]
)
def test_settings_that_cannot_be_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        environment("textworld", params)


def test_demonstrations_without_mistakes_are_shortest_solutions_and_with_them_are_not() -> None:
    settings = TextWorldEnvironment()
    for problem, steps in islice(textworld_demonstrations(settings, corrupted=0.0), 20):
        assert len(steps) == problem.difficulty
    wasted = [len(steps) - (problem.difficulty or 0) for problem, steps in islice(textworld_demonstrations(settings, corrupted=0.5), 50)]
    assert max(wasted) > 0
    assert max(len(steps) for _, steps in islice(textworld_demonstrations(settings, corrupted=0.9), 50)) == 12


@pytest.mark.parametrize("name", ["plain", "chatml"])
def test_a_demonstration_as_tokens_is_what_an_episode_shows(tmp_path: Path, name: str) -> None:
    write_byte_tokenizer(tmp_path, name)
    template = ChatTemplate.load(tmp_path)
    (turns,) = tokenized_turns(template, [[("a>", "n"), ("b>", "take"), ("c>", "s")]])
    text = template.decode([id for said, reply in turns for id in (*said, *reply)])
    steps = (("a>", "n"), ("b>", "take"), ("c>", "s"))
    if name == "plain":
        assert text == "".join(f"{shown}{done}<eos>" for shown, done in steps)
    else:
        assert text == "\n".join(f"<|im_start|>user\n{shown}<|im_end|>\n<|im_start|>assistant\n{done}<|im_end|>" for shown, done in steps)


def test_the_example_names_settings_that_exist() -> None:
    path = Path(__file__).parents[3] / "examples" / "textworld" / "run.yaml"
    config = load(path, [], RunConfig)
    assert environment(config.envs["textworld"].kind, config.envs["textworld"].params)
