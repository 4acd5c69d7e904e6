"""`RLRolloutWorker`: steps, messages, ground truth, and every way to end."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import pytest
from tests.unit.rollout.stub_engine import StubEngine

from penstock.chat import ChatTemplate
from penstock.envs import Observation, Reply, Rewards, TextWorldEnvironment, Tool
from penstock.errors import ConfigError, EnvError, InfraError
from penstock.inference.client import InferenceClient
from penstock.problems import Split
from penstock.rollout import Action, ActorConfig, Execution, Occasion, RLRolloutWorker, ScriptedPolicy, TaskDefinition
from penstock.rollout.engine_policy import EnginePolicy
from penstock.rollout.judging import Judgement
from penstock.testing.clock import FakeClock
from penstock.trace import samples
from penstock.types import Json, Message, Problem, Rollout, RolloutStatus, StepData
from penstock.wire import decode_msgpack, encode_msgpack

Templates = Callable[[str], ChatTemplate]
WORLD = TextWorldEnvironment()
# A mug in b3 is wanted in a3; a hat lies in c2, where the agent begins.
PROBLEM = Problem(
    id="fetch",
    environment="textworld",
    prompt="bring mug to a3. ",
    task={"size": 3, "start": [2, 1], "thing": "mug", "wanted": [0, 2], "lying": [[[1, 2], "mug"], [[2, 1], "hat"]], "hidden": False},
    ground_truth="a3",
)
TASK = TaskDefinition.of(WORLD, PROBLEM)
SOLUTION = ["w", "s", "take", "w", "drop"]


def scripted(script: Sequence[Any], template: ChatTemplate | None, task: TaskDefinition = TASK, **options: Any) -> RLRolloutWorker:
    return RLRolloutWorker(task, ScriptedPolicy(script), 12, template=template, **options)


async def test_an_episode_gives_steps_with_every_field_messages_and_the_ground_truth(template_of: Templates) -> None:
    worker = scripted(SOLUTION, template_of("plain"))
    steps, messages, ground_truth = await worker.run_episode()
    assert ground_truth == "a3"
    assert [(message.role, message.content) for message in messages[:4]] == [
        ("user", "bring mug to a3. hat c2 b3>"),
        ("assistant", "w"),
        ("user", "b2 b3>"),
        ("assistant", "s"),
    ]
    assert [step.system_step_index for step in steps] == [0, 1, 2, 3, 4]
    assert [step.observation_data["room"] for step in steps] == ["c2", "b2", "b3", "b3", "a3"]
    assert [step.action_taken for step in steps] == [{"type": "text", "content": said} for said in SOLUTION]
    assert [step.raw_policy_output for step in steps] == SOLUTION
    assert [step.resulting_messages_history for step in steps] == [messages[: 2 * index + 3] for index in range(4)] + [messages]
    assert [step.is_done for step in steps] == [False] * 4 + [True]
    assert [step.base_reward for step in steps] == [0.0] * 4 + [1.0]
    assert [step.step_info for step in steps] == [{"valid": True}] * 4 + [{"valid": True, "termination_reason": "env"}]
    assert {field.name for field in fields(StepData)} >= {"policy_logprobs", "policy_value_estimate", "advantage", "return_to_go"}
    assert (worker.rollout.reward, worker.rollout.metadata["end"]) == (1.0, "env")
    assert decode_msgpack(encode_msgpack(worker.rollout), Rollout).reward == 1.0


async def test_steps_of_a_sampling_policy_carry_its_tokens_and_logprobs(template_of: Templates) -> None:
    template = template_of("chatml")
    engine = StubEngine(lambda prompt: SOLUTION[prompt.count("assistant\n") - 1], end_id=template.eos_ids[0])
    async with engine.running(), InferenceClient(engine.url) as client:
        worker = RLRolloutWorker(TASK, EnginePolicy(sampler=client, template=template), template=template)
        steps, _, _ = await worker.run_episode()
    assert [step.policy_logprobs["token_ids"] for step in steps] == [reply["token_ids"] for reply in engine.replies]
    assert [step.policy_logprobs["logprobs"] for step in steps] == [reply["logprobs"]["token_logprobs"] for reply in engine.replies]


async def test_histories_are_whole_where_the_template_hides_thinking(template_of: Templates) -> None:
    template = template_of("chatml_think")
    engine = StubEngine(lambda _: "<think>so</think>n", end_id=template.eos_ids[0])
    async with engine.running(), InferenceClient(engine.url) as client:
        worker = RLRolloutWorker(TASK, EnginePolicy(sampler=client, template=template), 3, template=template)
        steps, messages, _ = await worker.run_episode()
    assert [step.resulting_messages_history for step in steps] == [messages[:3], messages[:5], messages]
    assert [message.content for message in messages if message.role == "assistant"] == ["<think>so</think>n"] * 3


async def test_a_policy_may_return_the_four_values_themselves(template_of: Templates) -> None:
    class Plain:
        async def get_action(self, observation: Any, available_tools_specs: Any = None) -> Any:
            if len(observation.messages) == 1:
                return {"type": "text", "content": "w"}, "go w", {"w": -0.5}, 0.25
            return {"type": "terminate"}, "bye", None, None

    worker = RLRolloutWorker(TASK, Plain(), template=template_of("plain"))
    steps, _, _ = await worker.run_episode()
    assert [(step.action_taken["type"], step.raw_policy_output, step.policy_logprobs, step.policy_value_estimate) for step in steps] == [
        ("text", "go w", {"w": -0.5}, 0.25),
        ("terminate", "bye", None, None),
    ]
    assert samples(worker.rollout) == []


@pytest.mark.parametrize(
    "wrong", [None, "n", ("n", "n"), ({"type": "dance"}, "", None, None), ({}, "", None, None), ({"type": "text", "content": 5}, "", None, None)], ids=repr
)
async def test_a_policy_that_returns_no_action_costs_the_episode(template_of: Templates, wrong: Any) -> None:
    class Wrong:
        async def get_action(self, observation: Any, available_tools_specs: Any = None) -> Any:
            return wrong

    worker = RLRolloutWorker(TASK, Wrong(), template=template_of("plain"))
    await worker.run_episode()
    assert (worker.rollout.status, worker.rollout.metadata["error"]) == (RolloutStatus.INFRA_ERROR, "server")


async def test_without_a_template_the_words_are_recorded_and_nothing_else() -> None:
    worker = scripted(SOLUTION, None)
    steps, messages, _ = await worker.run_episode()
    assert worker.rollout.trace.segments == ()
    assert [step.resulting_messages_history for step in steps] == [messages[: 2 * index + 3] for index in range(4)] + [messages]
    assert [step.policy_logprobs for step in steps] == [None] * 5


async def test_members_of_a_group_begin_alike_and_sample_apart(template_of: Templates) -> None:
    template = template_of("plain")
    engine = StubEngine(lambda _: "n")
    async with engine.running(), InferenceClient(engine.url) as client:
        worker = RLRolloutWorker(TASK, EnginePolicy(sampler=client, template=template), 1, template=template, occasion=Occasion(group_id="g/0/4", seed=3))
        rollouts = []
        for _ in range(2):
            await worker.run_episode()
            rollouts.append(worker.rollout)
    assert [rollout.rollout_uid for rollout in rollouts] == ["g/0/4:0:0", "g/0/4:1:0"]
    assert engine.requests[0]["prompt"] == engine.requests[1]["prompt"]
    assert engine.requests[0]["seed"] != engine.requests[1]["seed"]


class Breaking:
    """An environment that fails at its second step."""

    def __init__(self, error: BaseException) -> None:
        self._error, self._num_steps = error, 0

    async def open(self, problem: Problem, seed: int) -> Observation:
        return Observation(messages=(Message(role="user", content="go>"),))

    async def step(self, reply: Reply) -> Observation:
        self._num_steps += 1
        if self._num_steps == 2:
            raise self._error
        return Observation(messages=(Message(role="user", content="on>"),))

    async def score(self, rollout: Rollout) -> Rewards:
        return {"r": 1.0}


TERMINATE = Action(type="terminate", message=Message(role="assistant", content="enough"))


@pytest.mark.parametrize(
    ("script", "options", "reason", "num_steps", "status"),
    [
        (["n"] * 12, {"max_episode_steps": 3}, "max_episode_steps", 3, RolloutStatus.TRUNCATED),
        (["w", TERMINATE], {}, "terminate", 2, RolloutStatus.OK),
        (["w"], {}, "terminate", 2, RolloutStatus.OK),
        (["w", "I am DONE now"], {"regex": r"DONE\b"}, "regex", 2, RolloutStatus.OK),
        (SOLUTION, {"regex": "never"}, "env", 5, RolloutStatus.OK),
        (["n", "s"] * 6, {"limits": ActorConfig(max_episode_tokens=60)}, "max_episode_tokens", 4, RolloutStatus.TRUNCATED),
        (["n", "s"] * 6, {"limits": ActorConfig(episode_seconds=7.0), "clock": FakeClock()}, "episode_seconds", 2, RolloutStatus.TRUNCATED),
    ],
    ids=["max steps", "terminate action", "end of the script", "regex", "no match", "tokens", "time"],
)
async def test_the_reason_of_the_end_is_recorded(
    template_of: Templates, script: list[Any], options: dict[str, Any], reason: str, num_steps: int, status: RolloutStatus
) -> None:
    clock = options.get("clock")
    if clock is not None:

        class Slow:
            def __init__(self) -> None:
                env = WORLD.make()
                self.open, self.score, self._step = env.open, env.score, env.step

            async def step(self, reply: Reply) -> Observation:
                await clock.advance(4.0)
                return await self._step(reply)

        task = TaskDefinition(id="slow", environment=Slow, problem_text="bring mug to a3. ", environment_details=PROBLEM.task)
    else:
        task = TaskDefinition.of(WORLD, PROBLEM, termination_regex=options.get("regex"))
    rest = {key: value for key, value in options.items() if key not in ("max_episode_steps", "regex")}
    worker = RLRolloutWorker(task, ScriptedPolicy(script), options.get("max_episode_steps", 12), template=template_of("plain"), **rest)
    steps, _, _ = await worker.run_episode()
    assert (worker.rollout.metadata["end"], len(steps), worker.rollout.status) == (reason, num_steps, status)
    assert [step.is_done for step in steps] == [False] * (num_steps - 1) + [True]
    assert steps[-1].step_info["termination_reason"] == reason


@pytest.mark.parametrize(("error", "status"), [(RuntimeError("broken"), RolloutStatus.INFRA_ERROR), (EnvError("no level"), RolloutStatus.ENV_ERROR)])
async def test_a_critical_error_ends_the_episode_and_the_steps_before_are_there(template_of: Templates, error: Exception, status: RolloutStatus) -> None:
    worker = scripted(["a", "b", "c"], template_of("plain"), TaskDefinition(environment=lambda: Breaking(error)))
    steps, messages, _ = await worker.run_episode()
    assert (worker.rollout.status, worker.rollout.reward, worker.rollout.metadata["end"]) == (status, None, "critical_error")
    assert [step.is_done for step in steps] == [False, True]
    assert str(error) in steps[1].step_info["critical_error"]
    assert [message.content for message in messages] == ["go>", "a", "on>", "b"]


async def test_a_policy_that_fails_ends_the_episode_and_not_the_worker(template_of: Templates) -> None:
    def fail(_: Any) -> str:
        raise InfraError("no server")

    worker = scripted(["w", fail], template_of("plain"))
    steps, messages, _ = await worker.run_episode()
    assert (worker.rollout.status, worker.rollout.metadata["error"], len(steps), len(messages)) == (RolloutStatus.INFRA_ERROR, "server", 1, 3)


async def test_what_a_turn_consists_of_can_be_overridden(template_of: Templates) -> None:
    seen: list[Any] = []

    class Own(RLRolloutWorker):
        def _prepare_policy_observation(self, current_messages_history: Sequence[Message]) -> Json:
            seen.append(len(current_messages_history))
            return super()._prepare_policy_observation(current_messages_history)

        async def _execute_action_in_environment(self, policy_action: Action) -> Execution:
            if policy_action.message.content == "shout":
                answer = Observation(messages=(Message(role="user", content="echo>"),), info={"loud": True})
                return Execution(action=policy_action, observation=answer)
            return await super()._execute_action_in_environment(policy_action)

        def _check_termination(self, current_messages_history: Sequence[Message], action_execution: Execution) -> str:
            information, said, answers = action_execution
            seen.append((information, said, [message.content for message in answers]))
            return "bored" if said == "n" else super()._check_termination(current_messages_history, action_execution)

    worker = Own(TASK, ScriptedPolicy(["shout", "n", "n"]), template=template_of("plain"))
    steps, _, _ = await worker.run_episode()
    assert seen == [1, ({"loud": True}, "shout", ["echo>"]), 3, ({"valid": True}, "n", ["c1 b3>"])]
    assert worker.rollout.metadata["end"] == "bored"
    assert steps[-1].is_done


@pytest.mark.parametrize(
    ("says_over", "end", "num_steps"), [(lambda history: len(history) == 5, "check_termination", 2), (lambda history: False, "max_episode_steps", 4)]
)
async def test_overrides_may_return_the_plain_values_and_the_limits_hold_all_the_same(
    template_of: Templates, says_over: Callable[[Sequence[Message]], bool], end: str, num_steps: int
) -> None:
    class Plain(RLRolloutWorker):
        async def _execute_action_in_environment(self, policy_action: Action) -> Any:
            return {"success": True}, policy_action.message.content, [Message(role="user", content="go on")]

        def _check_termination(self, current_messages_history: Sequence[Message], action_execution: Execution) -> Any:
            return says_over(current_messages_history)

    worker = Plain(TASK, ScriptedPolicy(["n"] * 9), 4, template=template_of("plain"))
    steps, messages, _ = await worker.run_episode()
    assert (worker.rollout.metadata["end"], len(steps)) == (end, num_steps)
    assert [message.content for message in messages[1:]] == ["n", "go on"] * num_steps
    assert steps[0].step_info == {"success": True}


def _raising(*_: Any) -> Any:
    raise KeyError("mine")


@pytest.mark.parametrize(
    ("method", "does", "told"),
    [
        ("_execute_action_in_environment", _raising, "raised KeyError: 'mine'"),
        ("_execute_action_in_environment", lambda *_: None, "must return an Execution, or information, text and messages; got None"),
        ("_execute_action_in_environment", lambda *_: ({}, "", [{"role": "tool", "content": "3"}]), "whose messages are no tuple of Message"),
        ("_execute_action_in_environment", lambda *_: ({"critical_error": "no disk"}, "", []), "critical error: no disk"),
        ("_check_termination", _raising, "_check_termination raised KeyError: 'mine'"),
    ],
    ids=["action raises", "action returns nothing", "messages are dicts", "critical error", "check raises"],
)
async def test_an_overridden_method_that_fails_costs_the_episode(template_of: Templates, method: str, does: Callable[..., Any], told: str) -> None:
    async def executes(*arguments: Any) -> Any:
        return does(*arguments)

    broken = type("Broken", (RLRolloutWorker,), {method: executes if method.startswith("_execute") else does})
    worker = broken(TASK, ScriptedPolicy(["n"]), template=template_of("plain"))
    steps, _, _ = await worker.run_episode()
    assert (worker.rollout.status, worker.rollout.metadata["error"], len(steps)) == (RolloutStatus.INFRA_ERROR, "env_raised", 1)
    assert told in worker.rollout.failure
    assert steps[-1].step_info["termination_reason"] == "critical_error"


@pytest.mark.parametrize("wrong", [0, "3", None, 2.5])
def test_a_number_of_steps_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="max_episode_steps"):
        RLRolloutWorker(TASK, ScriptedPolicy([]), wrong)


class ByHand:
    """A judge that was told what to say."""

    def __init__(self, judgement: Judgement) -> None:
        self._judgement = judgement
        self.seen: list[Any] = []

    async def judge(self, messages: Sequence[Message], problem: Problem, rollout: Rollout) -> Judgement:
        self.seen.append((messages[-1].content, problem.ground_truth, rollout.status))
        return self._judgement


async def test_a_reward_function_judges_in_place_of_the_environment_and_single_steps_by_index(template_of: Templates) -> None:
    judge = ByHand(Judgement(total=0.75, parts={"a": 0.5, "b": 0.25}, steps={0: -0.5, 3: 2.0}))
    worker = scripted(SOLUTION, template_of("plain"), judge=judge)
    steps, _, _ = await worker.run_episode()
    assert judge.seen == [("drop", "a3", RolloutStatus.OK)]
    assert (worker.rollout.reward, worker.rollout.rewards) == (0.75, {"a": 0.5, "b": 0.25})
    assert [step.base_reward for step in steps] == [-0.5, 0.0, 0.0, 2.0, 1.0]


async def test_a_reward_for_a_step_that_is_not_there_is_a_failure(template_of: Templates) -> None:
    worker = scripted(SOLUTION, template_of("plain"), judge=ByHand(Judgement(total=1.0, steps={5: 1.0})))
    await worker.run_episode()
    assert (worker.rollout.status, worker.rollout.reward, worker.rollout.metadata["error"]) == (RolloutStatus.INFRA_ERROR, None, "reward")


def call(name: str, arguments: Any = "{}", id: str = "c1") -> Action:
    return Action(
        type="tool_call", message=Message(role="assistant", tool_calls=({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}},))
    )


def add(a: int, b: int = 1) -> int:
    """Adds two numbers."""
    return a + b


async def later(text: str) -> str:
    """Gives it back."""
    return text


def broken() -> None:
    """Never works."""
    raise ZeroDivisionError("by zero")


def gone() -> None:
    """Its server is gone."""
    raise InfraError("the database is gone")


def tools_task(**options: Any) -> TaskDefinition:
    tools = (Tool.of(add), Tool.of(later), Tool.of(broken), Tool.of(gone), Tool.of(add, name="submit", ends=True))
    return TaskDefinition(id="sum", initial_messages=(Message(role="user", content="1 + 2?"),), tools=tools, ground_truth=3, **options)


@pytest.mark.parametrize("name", ["chatml", "chatml_think", "plain"])
async def test_tools_are_called_and_their_results_are_seen(template_of: Templates, name: str) -> None:
    script = [call("add", '{"a": 1, "b": 2}'), call("later", {"text": "hm"}), "3"]
    worker = scripted(script, template_of(name), tools_task())
    steps, messages, ground_truth = await worker.run_episode()
    assert [(message.role, message.content, message.tool_call_id) for message in messages if message.role == "tool"] == [
        ("tool", "3", "c1"),
        ("tool", "hm", "c1"),
    ]
    assert [step.action_taken for step in steps] == [
        {"type": "tool_call", "name": "add", "arguments": {"a": 1, "b": 2}},
        {"type": "tool_call", "name": "later", "arguments": {"text": "hm"}},
        {"type": "text", "content": "3"},
    ]
    assert [step.step_info for step in steps] == [
        {"tool_calls": [{"name": "add", "success": True}]},
        {"tool_calls": [{"name": "later", "success": True}]},
        {"termination_reason": "env"},
    ]
    assert (worker.rollout.reward, worker.rollout.status, ground_truth) == (None, RolloutStatus.OK, 3)


@pytest.mark.parametrize(
    ("action", "error"),
    [
        (call("broken"), "ZeroDivisionError: by zero"),
        (call("subtract"), "there is no tool 'subtract'"),
        (call("add", '{"a": '), "the arguments are not JSON"),
        (call("add", "[1]"), "the arguments are not an object"),
        (call("add", '{"c": 1}'), "TypeError"),
    ],
    ids=["raises", "unknown", "no JSON", "no object", "wrong names"],
)
async def test_a_call_that_fails_is_for_the_agent_to_see(template_of: Templates, action: Action, error: str) -> None:
    worker = scripted([action, "sorry"], template_of("chatml"), tools_task())
    steps, messages, _ = await worker.run_episode()
    assert messages[2].content.startswith("error: ")
    assert re.search(error, messages[2].content)
    assert steps[0].step_info["tool_calls"][0]["success"] is False
    assert worker.rollout.status is RolloutStatus.OK


async def test_a_tool_may_end_the_episode_or_fail_it(template_of: Templates) -> None:
    worker = scripted([call("submit", '{"a": 3}')], template_of("chatml"), tools_task())
    await worker.run_episode()
    assert (worker.rollout.metadata["end"], worker.rollout.status) == ("env", RolloutStatus.OK)
    worker = scripted([call("gone")], template_of("chatml"), tools_task())
    await worker.run_episode()
    assert (worker.rollout.metadata["end"], worker.rollout.status) == ("critical_error", RolloutStatus.INFRA_ERROR)


async def test_a_reply_without_a_call_can_be_answered(template_of: Templates) -> None:
    worker = scripted(["hm", "ANSWER 3"], template_of("chatml"), tools_task(text_reply="go on", termination_regex="ANSWER"))
    steps, messages, _ = await worker.run_episode()
    assert [message.content for message in messages] == ["1 + 2?", "hm", "go on", "ANSWER 3", "go on"]
    assert (worker.rollout.metadata["end"], len(steps)) == ("regex", 2)


async def test_the_prompt_names_the_tools_and_what_the_model_wrote_is_there_as_it_wrote_it(template_of: Templates) -> None:
    template = template_of("chatml")
    wrote = 'so: <tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
    engine = StubEngine(lambda prompt: "3" if wrote in prompt else wrote, end_id=template.eos_ids[0])
    async with engine.running(), InferenceClient(engine.url) as client:
        worker = RLRolloutWorker(tools_task(), EnginePolicy(sampler=client, template=template), template=template)
        steps, _, _ = await worker.run_episode()
    assert [(step.action_taken["type"], step.raw_policy_output) for step in steps] == [("tool_call", wrote), ("text", "3")]
    assert engine.requests[0]["prompt"] == template.open([Message(role="user", content="1 + 2?")], [tool.spec for tool in tools_task().tools]).ids.tolist()


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"initial_messages": (Message(role="user"),), "termination_regex": "("},
        {"id": "no id", "environment": WORLD.make},
        {"environment": WORLD.make, "text_reply": "x"},
    ],
)
def test_a_task_that_cannot_be_played_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        TaskDefinition(**wrong)


def test_a_problem_of_any_environment_is_a_task() -> None:
    problem = WORLD.problems(Split.TRAIN).problem(0, 0)
    task = TaskDefinition.of(WORLD, problem)
    assert (task.problem.prompt, task.problem.task, task.ground_truth) == (problem.prompt, problem.task, problem.ground_truth)
