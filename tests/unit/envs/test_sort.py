"""The sorting environment."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from penstock.chat import EOS_ID, ChatTemplate, write_byte_tokenizer
from penstock.envs import Reply, SortEnvironment, tokenized
from penstock.envs.sort import sort_demonstrations
from penstock.errors import ConfigError
from penstock.problems import Split
from penstock.trace import Recorder
from penstock.types import Problem, Rollout


async def reward(problem: Problem, reply: Reply) -> float:
    env = SortEnvironment().make()
    await env.open(problem, 0)
    assert (await env.step(reply)).done
    rollout = Rollout(run="r", environment="e", problem_id="p", group_id="g/0/0", member=0, retry=0, rollout_uid="u", trace=Recorder().trace())
    return (await env.score(rollout))["exact"]


async def test_only_the_exact_answer_that_came_to_its_end_is_rewarded() -> None:
    problem = Problem(id="p", environment="sort", prompt="sort 50718>", ground_truth="01578")
    assert await reward(problem, Reply(text="01578")) == 1.0
    for wrong in (Reply(text="1578"), Reply(text="01578 "), Reply(text="50718"), Reply(text=""), Reply(text="01578", truncated=True)):
        assert await reward(problem, wrong) == 0.0


async def test_an_episode_opens_with_the_prompt() -> None:
    problem = SortEnvironment().problems(Split.TRAIN).problem(0, 5)
    (message,) = (await SortEnvironment().make().open(problem, 0)).messages
    assert (message.role, message.content) == ("user", problem.prompt)


def test_held_out_problems_are_at_least_500_all_different_and_never_trained_on() -> None:
    settings = SortEnvironment()
    held_out = settings.problems(Split.HELD_OUT)
    assert held_out.size is not None
    ids = [held_out.problem(0, index).id for index in range(held_out.size)]
    assert len(set(ids)) == len(ids) >= 500
    train = settings.problems(Split.TRAIN)
    assert not set(ids) & {train.problem(0, index).id for index in range(20_000)}
    demonstrated = {problem.id for problem, _ in islice(sort_demonstrations(settings), 20_000)}
    assert not set(ids) & demonstrated


def test_problems_are_a_function_of_their_position_and_have_the_lengths_asked_for() -> None:
    train = SortEnvironment(min_digits=2, max_digits=3, held_out=8).problems(Split.TRAIN)
    problems = [train.problem(0, index) for index in range(200)]
    assert problems == [train.problem(0, index) for index in range(200)]
    assert train.size is None
    for problem in problems:
        digits = str(problem.prompt)[5:-1]
        assert 2 <= len(digits) <= 3
        assert problem.ground_truth == "".join(sorted(digits))
    assert {len(str(problem.ground_truth)) for problem in problems} == {2, 3}


def test_the_held_out_problems_do_not_follow_the_seed_and_the_training_order_does() -> None:
    one, other = SortEnvironment(seed=1), SortEnvironment(seed=2)
    assert one.problems(Split.HELD_OUT).problem(0, 9) == other.problems(Split.HELD_OUT).problem(0, 9)
    assert one.problems(Split.TRAIN).problem(0, 9) != other.problems(Split.TRAIN).problem(0, 9)


def test_demonstrations_are_wrong_as_often_as_asked_and_then_in_order_only() -> None:
    pairs = list(islice(sort_demonstrations(SortEnvironment(), corrupted=0.65), 4000))
    wrong = [(problem, answer) for problem, answer in pairs if answer != problem.ground_truth]
    assert 0.61 <= len(wrong) / len(pairs) <= 0.69
    assert all(sorted(answer) == sorted(str(problem.ground_truth)) for problem, answer in wrong)
    assert all(answer == problem.ground_truth for problem, answer in islice(sort_demonstrations(SortEnvironment(), corrupted=0.0), 200))


def test_demonstrations_as_tokens_have_the_form_of_episodes(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path, "plain")
    pair = (Problem(id="p", environment="sort", prompt="sort 31>"), "13")
    assert list(tokenized(ChatTemplate.load(tmp_path), [pair])) == [(tuple(b"sort 31>"), (*b"13", EOS_ID))]


@pytest.mark.parametrize("settings", [{"min_digits": 8}, {"min_digits": 0}, {"held_out": 0}, {"min_digits": 2, "max_digits": 3, "held_out": 500}])
def test_settings_that_cannot_be_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        SortEnvironment(**settings)
