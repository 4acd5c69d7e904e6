"""The base of generators, and a generator itself: mathematics, graded by a rule. Copy its end, `run_rollout`, to begin one of your own.

for each epoch, for each problem that is not to be skipped, `num_repeat_per_sample` times:
    rollout_func -> reward_func -> the buffer
"""

from __future__ import annotations

import importlib
import logging
import os
import random
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from .progress import Progress
from .querying import Conversation, QueryError, query_single_turn
from .reward_utils.math_utils import get_rule_based_math_reward
from .rollouts import FAILED_REWARD, RewardFunction, RolloutFunction, failed, read_problems, rolled_out
from .sending import send_item
from .workers import worked_off

__all__ = ["SAMPLING_PARAMS", "TASK_TYPE", "BaseGenerator", "Conversation", "QueryError", "get_rule_based_math_reward", "query_single_turn", "run_rollout"]

log = logging.getLogger(__name__)

TASK_TYPE = "math"

ENGINE_TOKEN_VARIABLE = "PENSTOCK_ENGINE_TOKEN"
"""What the inference server wants to be told, if it wants anything. Not a key for other services: a client says where the server is."""

SAMPLING_PARAMS: dict[str, Any] = {"top_p": 1}
"""How replies are sampled. A generator file may change this one, or have one of its own."""


class BaseGenerator:
    """Runs a rollout function over a file of problems, in `num_process` processes, and sends what comes of it to the buffer.

    `skip_instance_ids`: problems that were done before, once for each epoch in which they were. `num_repeats`: passes over the file in one `run`.
    """

    def __init__(
        self,
        remote_engine_url: str,
        remote_buffer_url: str,
        num_repeat_per_sample: int = 1,
        queue_size: int = 1_000_000,
        num_process: int = 10,
        task_type: str = "math",
        max_tokens: int = 4096,
        num_repeats: int = 1,
        skip_instance_ids: Sequence[str | int] | None = None,
    ) -> None:
        self.remote_engine_url = remote_engine_url
        self.remote_buffer_url = remote_buffer_url
        self.num_repeat_per_sample = num_repeat_per_sample
        self.queue_size = queue_size
        """For generators that have queues of their own; here no more is begun than is worked on."""
        self.num_process = num_process
        self.task_type = task_type
        self.max_tokens = max_tokens
        self.num_repeats = num_repeats
        # One for each repeat, as generators with a loop of their own expect it.
        self.skip_instance_ids = None if skip_instance_ids is None else list(skip_instance_ids) * num_repeat_per_sample
        self._to_skip = Counter(str(id) for id in skip_instance_ids or ())
        self._sampling_params = _params_of_caller()
        base_url = remote_engine_url if "/v1" in remote_engine_url else remote_engine_url.rstrip("/") + "/v1"
        self.client = importlib.import_module("openai").OpenAI(api_key=os.environ.get(ENGINE_TOKEN_VARIABLE, "none"), base_url=base_url)

    def entry(self, input_file: str | Path, rollout_func: RolloutFunction, reward_func: RewardFunction, num_epoch: int = 1) -> None:
        """`run` once for each epoch."""
        for epoch in range(num_epoch):
            log.info("epoch %d of %d", epoch + 1, num_epoch)
            self.run(input_file, rollout_func, reward_func)

    def run(self, input_file: str | Path, rollout_func: RolloutFunction, reward_func: RewardFunction) -> str:
        """One epoch; ends when all of it is in the buffer."""
        problems = self._to_do(read_problems(input_file))
        tasks = ({**problem, "rollout_index": index} for problem in problems for index in range(self.num_repeat_per_sample))
        SAMPLING_PARAMS["max_tokens"] = self.max_tokens
        sampling_params = {**SAMPLING_PARAMS, **self._sampling_params, "max_tokens": self.max_tokens}
        work = partial(rolled_out, rollout_func=rollout_func, reward_func=reward_func, client=self.client, sampling_params=sampling_params)
        with Progress(len(problems) * self.num_repeat_per_sample, self.task_type) as progress:
            for item in worked_off(tasks, work, partial(failed, sampling_params=sampling_params), self.num_process):
                self.send_data_to_buffer(item)
                progress.advance(failed=item["reward"] == FAILED_REWARD)
        return "finished"

    def send_data_to_buffer(self, data: Any) -> None:
        """Write an item to the buffer, again and again until it is there."""
        send_item(self.remote_buffer_url, data)

    def _to_do(self, problems: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The problems of all passes, in the order in which they are worked on, without those that were done before."""
        to_do = []
        for _ in range(self.num_repeats):
            random.shuffle(problems)
            for problem in problems:
                id = str(problem["instance_id"])
                if self._to_skip[id] > 0:
                    self._to_skip[id] -= 1
                else:
                    to_do.append(problem)
        num_skipped = self.num_repeats * len(problems) - len(to_do)
        if num_skipped:
            log.info("%d problems were done before and are skipped", num_skipped)
        return to_do


def run_rollout(data: dict[str, Any]) -> None:
    """What the buffer calls in the generator's own process, with the payload of `/start_rollout`."""
    SAMPLING_PARAMS.update(data["sampling_params"])
    generator = BaseGenerator(
        data["remote_engine_url"],
        data["remote_buffer_url"],
        num_repeat_per_sample=int(data["num_repeat_per_sample"]),
        num_process=int(data.get("num_process", 16)),
        task_type=data["task_type"],
        max_tokens=int(data["sampling_params"].get("max_tokens", 4096)),
        skip_instance_ids=data.get("skip_instance_ids"),
    )
    generator.entry(data["input_file"], query_single_turn, get_rule_based_math_reward, int(data.get("num_epoch", 10)))


def _params_of_caller() -> dict[str, Any]:
    """`SAMPLING_PARAMS` of the file that makes a generator: it sets its own dict, and means the one that is used."""
    params = sys._getframe(2).f_globals.get("SAMPLING_PARAMS")
    return params if isinstance(params, dict) else {}
