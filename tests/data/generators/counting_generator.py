"""A generator as people write them for the original buffer: its imports, its global, its base class."""

import time
from typing import Any

from generator.base_generator import SAMPLING_PARAMS, BaseGenerator, query_single_turn
from generator.reward_utils.math_utils import get_rule_based_math_reward

TASK_TYPE = "counting"
WAIT_SECONDS = 0


def run_rollout(data: dict[str, Any]) -> None:
    print(f"counting starts with {sorted(data)}")
    time.sleep(WAIT_SECONDS)
    global SAMPLING_PARAMS
    for key, value in data["sampling_params"].items():
        SAMPLING_PARAMS[key] = value
        print(f"{key} is {value}", type(value))
    generator = BaseGenerator(
        data["remote_engine_url"],
        data["remote_buffer_url"],
        num_repeat_per_sample=int(data["num_repeat_per_sample"]),
        queue_size=1000000,
        max_tokens=int(data["sampling_params"]["max_tokens"]),
        num_process=int(data.get("num_process", 100)),
        task_type=data["task_type"],
        skip_instance_ids=data.get("skip_instance_ids"),
    )
    generator.entry(data["input_file"], query_single_turn, get_rule_based_math_reward, int(data.get("num_epoch", 1)))
