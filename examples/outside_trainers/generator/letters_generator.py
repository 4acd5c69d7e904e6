"""Rollouts for `polling_client.py`: a model is asked for letters, and its reward is the share of them in what it says."""

from generator.base_generator import BaseGenerator, query_single_turn

TASK_TYPE = "letters"

SAMPLING_PARAMS = {"temperature": 1.0}


def reward(item):
    """A random model gets something between 0 and 1, so groups have something to compare."""
    text = item["messages"][-1]["content"] or ""
    return sum(character.isascii() and character.isalpha() for character in text) / max(1, len(text))


def run_rollout(data):
    """What the buffer calls, in a process of its own, with the payload of /start_rollout."""
    SAMPLING_PARAMS.update(data["sampling_params"])
    generator = BaseGenerator(
        data["remote_engine_url"],
        data["remote_buffer_url"],
        num_repeat_per_sample=int(data["num_repeat_per_sample"]),
        num_process=int(data.get("num_process", 2)),
        task_type=data["task_type"],
        max_tokens=int(SAMPLING_PARAMS.get("max_tokens", 8)),
        skip_instance_ids=data.get("skip_instance_ids"),
    )
    generator.entry(data["input_file"], query_single_turn, reward, int(data.get("num_epoch", 1)))
