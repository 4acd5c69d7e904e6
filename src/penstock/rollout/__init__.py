"""Rollouts: agents in environments, recorded token by token and written to the buffer.

- `policy`: what an agent is. `engine_policy`: one that samples from an inference server by token ids. `openai_policy`: any server with OpenAI's API.
  `scripted_policies`: for tests and debugging.
- `dialogue`: a conversation as it grows, in messages and tokens. `play`: the loop of an episode. `episode`: one try at a problem, from opening to score.
- `task`, `episode_worker`: `RLRolloutWorker`, episodes of one task with their steps.
- `judging`, `rewards`: reward functions of users, in processes of their own.
- `servers`: the least loaded of several. `dispatch`, `writing`, `worker`: the process that keeps many episodes in flight.
- `waking`, `blocking`, `bounds`: a worker that finds no server, one whose event loop is held up, and one that holds too much (evaluations, too).
- `evaluate`: held-out problems under one pinned version.

`penstock worker` starts a worker.
"""

from penstock.rollout.config import ActorConfig, EnvConfig, EvalConfig, WorkerConfig
from penstock.rollout.episode import Setting, Ticket, run_episode
from penstock.rollout.episode_worker import Execution, Occasion, RLRolloutWorker
from penstock.rollout.openai_policy import OpenAIAgentPolicy
from penstock.rollout.policy import Action, AgentPolicy, Situation
from penstock.rollout.rewards import RewardConfig, RewardPool
from penstock.rollout.scripted_policies import ReplayingPolicy, ScriptedPolicy
from penstock.rollout.task import TaskDefinition

__all__ = [
    "Action",
    "ActorConfig",
    "AgentPolicy",
    "EnvConfig",
    "EvalConfig",
    "Execution",
    "Occasion",
    "OpenAIAgentPolicy",
    "RLRolloutWorker",
    "ReplayingPolicy",
    "RewardConfig",
    "RewardPool",
    "ScriptedPolicy",
    "Setting",
    "Situation",
    "TaskDefinition",
    "Ticket",
    "WorkerConfig",
    "run_episode",
]
