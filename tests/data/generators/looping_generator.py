"""A generator for the original buffer that has its own client, its own loop over processes, its own way to write, and its own functions."""

import copy
import json
import random
import uuid
from functools import partial
from multiprocessing import Process, Queue
from pathlib import Path

import requests
from openai import OpenAI
from slime.rollout.rm_hub import get_deepscaler_rule_based_reward
from slime_plugins.rollout_buffer.generator.base_generator import BaseGenerator
from slime_plugins.rollout_buffer.generator.utils.default_func import default_filter_item, default_normalize_group_data
from tqdm import tqdm

from .scoring import length_score

TASK_TYPE = "looping"
SAMPLING_PARAMS = {"top_p": 1}


def ask(client, messages, sampling_params):
    answer = client.chat.completions.create(model="custom", messages=messages, stream=False, seed=random.randint(1, 100), tools=None, **sampling_params)
    return [*messages, {"role": "assistant", "content": answer.choices[0].message.content}]


def work(tasks, done, client, sampling_params):
    for item in iter(tasks.get, "STOP"):
        messages = ask(client, item["prompt"], sampling_params)
        text = messages[-1]["content"]
        extra = {"is_right": get_deepscaler_rule_based_reward(text, item["label"])}
        done.put({"uid": item["uid"], "instance_id": item["instance_id"], "messages": messages, "reward": length_score(text), "extra_info": extra})
    done.put("COMPLETE")


class LoopingGenerator(BaseGenerator):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.client = OpenAI(api_key="test", base_url=self.remote_engine_url.rstrip("/") + "/v1")

    def run(self, input_file, rollout_func, reward_func):
        tasks, done = Queue(maxsize=self.queue_size), Queue(maxsize=self.queue_size)
        workers = [Process(target=partial(work, tasks, done, self.client, SAMPLING_PARAMS)) for _ in range(self.num_process)]
        for worker in workers:
            worker.start()
        with Path(input_file).open() as file:
            for line in file:
                item = json.loads(line)
                for _ in range(self.num_repeat_per_sample):
                    if self.skip_instance_ids and item["instance_id"] in self.skip_instance_ids:
                        self.skip_instance_ids.remove(item["instance_id"])
                        continue
                    tasks.put(copy.deepcopy(item) | {"uid": str(uuid.uuid4())})
        for _ in workers:
            tasks.put("STOP")
        bar, finished = tqdm(), 0
        while finished < self.num_process:
            item = done.get()
            if item == "COMPLETE":
                finished += 1
                continue
            answer = requests.post(self.remote_buffer_url.rstrip("/") + "/buffer/write", json=item)
            assert answer.status_code == 200, answer.text
            bar.update(1)
        bar.close()
        for worker in workers:
            worker.join()


def run_rollout(data: dict):
    global SAMPLING_PARAMS
    for key, value in data["sampling_params"].items():
        SAMPLING_PARAMS[key] = value
    generator = LoopingGenerator(
        data["remote_engine_url"],
        data["remote_buffer_url"],
        num_repeat_per_sample=int(data["num_repeat_per_sample"]),
        num_process=int(data.get("num_process", 100)),
        max_tokens=int(data["sampling_params"]["max_tokens"]),
        skip_instance_ids=data.get("skip_instance_ids"),
    )
    generator.entry(data["input_file"], None, None, int(data.get("num_epoch", 1)))


def normalize_group_data(group):
    print(f"normalizing {group[0]}")
    return default_normalize_group_data(group)


def filter_item(item, task_type):
    assert task_type == TASK_TYPE
    return default_filter_item(item, task_type) and len(item["messages"]) > 1


def is_valid_group(group, min_valid_group_size, task_type):
    _, items = group
    assert isinstance(group, tuple) and task_type == TASK_TYPE
    is_finished = len(items) >= min_valid_group_size
    return is_finished and all(item["messages"][-1]["content"].strip() for item in items), is_finished
