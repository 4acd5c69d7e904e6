"""A generator for the original buffer with its own way to ask, to go on after an abort, and to score."""

import copy
import random
import time

from generator.base_generator import BaseGenerator

TASK_TYPE = "letters"
SAMPLING_PARAMS = {"top_p": 1}
ABORT_WAIT_SECONDS = 0.05


def query(client, messages, sampling_params, tools=None):
    base = {"messages": messages, **sampling_params, "model": "custom", "stream": False, "seed": random.randint(1, 10000000), "tools": tools}
    text, used, parts = None, 0, 0
    for _ in range(50):
        payload = copy.deepcopy(base)
        if text is not None:
            payload["messages"] = [*copy.deepcopy(messages), {"role": "assistant", "content": text}]
            payload["max_tokens"] = max(0, sampling_params["max_tokens"] - used)
            payload["extra_body"] = {"continue_final_message": True}
        if payload["max_tokens"] == 0:
            break
        response = client.chat.completions.create(**payload)
        choice = response.choices[0]
        used += response.usage.completion_tokens
        parts += 1
        text = (text or "") + (choice.message.content or "")
        if choice.finish_reason != "abort":
            break
        print(f"aborted after {used} tokens")
        time.sleep(ABORT_WAIT_SECONDS)
    messages.append({"role": "assistant", "content": text})
    messages[0]["parts"], messages[0]["used"] = parts, used
    return messages


def score(item):
    return sum(item["messages"][-1]["content"].encode()) % 1009 / 1009


def run_rollout(data: dict):
    global SAMPLING_PARAMS
    for key, value in data["sampling_params"].items():
        SAMPLING_PARAMS[key] = value
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
    generator.entry(data["input_file"], query, score, int(data.get("num_epoch", 1)))
