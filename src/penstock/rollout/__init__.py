"""Rollouts: agents in environments, recorded token by token and written to the buffer.

- `policy`: what an agent is. `engine_policy`: one that samples from an inference server by token ids.
- `dialogue`: a conversation as it grows, in messages and tokens. `episode`: one try at a problem, from opening to score.
- `servers`: the least loaded of several. `dispatch`, `writing`, `worker`: the process that keeps many episodes in flight.
- `evaluate`: held-out problems under one pinned version.

`python -m penstock.rollout` starts a worker.
"""

from penstock.rollout.config import ActorConfig, EnvConfig, EvalConfig, WorkerConfig
from penstock.rollout.episode import Setting, Ticket, run_episode
from penstock.rollout.policy import Action, AgentPolicy, Situation

__all__ = ["Action", "ActorConfig", "AgentPolicy", "EnvConfig", "EvalConfig", "Setting", "Situation", "Ticket", "WorkerConfig", "run_episode"]
