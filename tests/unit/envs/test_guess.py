"""The guessing game."""

from __future__ import annotations

import pytest

from penstock.envs import GuessEnvironment, Reply
from penstock.errors import ConfigError
from penstock.problems import Split
from penstock.trace import Recorder
from penstock.types import Problem, Rollout

PROBLEM = Problem(id="p", environment="guess", prompt="1-9>", task={"largest": 9}, ground_truth=6)
ROLLOUT = Rollout(run="r", environment="e", problem_id="p", group_id="g/0/0", member=0, retry=0, rollout_uid="u", trace=Recorder().trace())


async def test_hints_lead_to_the_number_and_states_say_what_is_known() -> None:
    env = GuessEnvironment().make()
    opened = await env.open(PROBLEM, 0)
    assert ([message.content for message in opened.messages], opened.observation) == (["1-9>"], {"low": 1, "high": 9, "left": 6})
    higher = await env.step(Reply(text="5"))
    assert ([message.content for message in higher.messages], higher.observation) == (["higher>"], {"low": 6, "high": 9, "left": 5})
    lower = await env.step(Reply(text=" 8 "))
    assert ([message.content for message in lower.messages], lower.observation) == (["lower>"], {"low": 6, "high": 7, "left": 4})
    found = await env.step(Reply(text="6"))
    assert (found.done, found.reward, found.info) == (True, 1.0, {"guess": 6})
    assert await env.score(ROLLOUT) == {"found": 1.0}


@pytest.mark.parametrize("nonsense", ["", "six", "6.", "-6", "٦", "9" * 50])
async def test_what_is_no_number_costs_a_guess_and_tells_nothing(nonsense: str) -> None:
    env = GuessEnvironment().make()
    await env.open(PROBLEM, 0)
    seen = await env.step(Reply(text=nonsense))
    assert ([message.content for message in seen.messages], seen.observation) == (["a number>"], {"low": 1, "high": 9, "left": 5})


async def test_after_the_last_guess_it_is_over_without_a_reward() -> None:
    env = GuessEnvironment(max_guesses=2).make()
    await env.open(PROBLEM, 0)
    assert not (await env.step(Reply(text="1"))).done
    assert (await env.step(Reply(text="2"))).done
    assert await env.score(ROLLOUT) == {"found": 0.0}


def test_no_problem_is_on_both_sides() -> None:
    settings = GuessEnvironment(largest=30)
    sides = [{settings.problems(split).problem(0, index).id for index in range(300 if split is Split.TRAIN else 16)} for split in Split]
    assert sides[0]
    assert sides[1]
    assert not sides[0] & sides[1]


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError):
        GuessEnvironment(largest=1)
