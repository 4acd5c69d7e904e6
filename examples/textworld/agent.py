"""A text-world agent with step records: plays one problem several times, and compares what was done in the same state.

    python examples/textworld/agent.py                         a player that errs now and then
    python examples/textworld/agent.py --base-url http://127.0.0.1:8000 --model models/textworld

The second plays with a model that is served (`penstock serve --model models/textworld`), or with any other server that has OpenAI's API: then without
`--model`, if its chat template is not at hand.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack

from penstock.advantages import system_apply_gigpo_to_batch_steps
from penstock.chat import ChatTemplate
from penstock.envs import TextWorldEnvironment
from penstock.problems import Split
from penstock.rollout import Action, ActorConfig, AgentPolicy, OpenAIAgentPolicy, RLRolloutWorker, Situation, TaskDefinition
from penstock.types import Json, Message, StepData


class ClumsyPolicy:
    """Goes where it is told to go, but errs every third time. A policy is anything that has this method."""

    async def get_action(self, observation: Situation, available_tools_specs: Sequence[Json] | None = None) -> Action:
        """See `AgentPolicy`."""
        source = random.Random(observation.seed)
        sensible = _sensible(observation.messages[-1].content)
        said = source.choice(["n", "e", "s", "w", "take", "drop"]) if source.random() < 1 / 3 else sensible
        return Action(message=Message(role="assistant", content=said))


def _sensible(shown: str) -> str:
    """What to do where `+mug c2 a3>` is shown: the last two words are where one is and where to go."""
    here, there = shown.rstrip(">").split()[-2:]
    if here == there:
        return "drop" if "+" in shown else "take"
    if here[0] != there[0]:
        return "e" if here[0] < there[0] else "w"
    return "s" if here[1] < there[1] else "n"


async def play(policy: AgentPolicy, template: ChatTemplate | None, *, episodes: int, problem: int) -> tuple[list[list[StepData]], list[float]]:
    """The steps and the reward of each episode."""
    world = TextWorldEnvironment()
    task = TaskDefinition.of(world, world.problems(Split.TRAIN).problem(0, problem))
    worker = RLRolloutWorker(task, policy, max_episode_steps=12, template=template, limits=ActorConfig(max_tokens=8, max_episode_tokens=768))
    steps, rewards = [], []
    for _ in range(episodes):
        found, messages, _ground_truth = await worker.run_episode()
        if worker.rollout.reward is None:
            print(f"an episode failed: {worker.rollout.failure}")
            continue
        print(f"{worker.rollout.reward:.0f} after {len(found):2} steps, ended by {worker.rollout.metadata['end']}: {messages[0].content}")
        steps.append(found)
        rewards.append(worker.rollout.reward)
    return steps, rewards


def compare(steps: list[list[StepData]], rewards: list[float]) -> None:
    """Print what was done in states that several episodes met, and whether it was better or worse than what else was done there."""
    credited = system_apply_gigpo_to_batch_steps(steps, rewards, omega=0.5, gamma=0.95, state_hashing_function=lambda state: state)
    by_state: defaultdict[str, list[StepData]] = defaultdict(list)
    for step in (step for episode in credited for step in episode):
        state = step.observation_data
        by_state[f"in {state['room']}, sees {state['sees'] or 'nothing'}, holds {state['holds'] or 'nothing'}"].append(step)
    for state, met in sorted(by_state.items(), key=lambda item: -len(item[1])):
        if len(met) > 1:
            print(f"\n{state} ({len(met)} times)")
            for step in sorted(met, key=lambda step: -(step.advantage or 0.0)):
                print(f"    {step.action_taken['content']:6} advantage {step.advantage:+.2f}")


async def main() -> None:
    """Play, then compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", help="a server with OpenAI's API, without /v1")
    parser.add_argument("--model", default="", help="directory of the model that is served, for its chat template")
    parser.add_argument("--episodes", type=int, default=8)
    parser.add_argument("--problem", type=int, default=0, help="which problem")
    words = parser.parse_args()
    template = ChatTemplate.load(words.model) if words.model else None
    async with AsyncExitStack() as stack:
        policy: AgentPolicy = ClumsyPolicy()
        if words.base_url:
            policy = await stack.enter_async_context(OpenAIAgentPolicy(words.base_url, words.model, template=template))
        compare(*await play(policy, template, episodes=words.episodes, problem=words.problem))


if __name__ == "__main__":
    asyncio.run(main())
