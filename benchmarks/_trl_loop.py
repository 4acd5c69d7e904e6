"""Peer of the loop's benchmark: TRL's GRPOTrainer with the same model, prompts, sampling, reward and optimizer, in a process of its own.

python benchmarks/_trl_loop.py MODEL_DIR --steps 3 --threads 1 --latency 0     -> wall and CPU seconds of each step after the first, as JSON
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from _loop_env import prompt_text, reward_of


class Clock(TrainerCallback):
    """Wall and CPU time of each optimizer step, sampling included."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, float]] = []
        self._start = (0.0, 0.0)

    def on_step_begin(self, *args: object, **kwargs: object) -> None:
        self._start = (time.perf_counter(), time.process_time())

    def on_step_end(self, *args: object, **kwargs: object) -> None:
        self.steps.append((time.perf_counter() - self._start[0], time.process_time() - self._start[1]))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--steps", type=int, default=3, help="measured ones; one more comes before")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds that the environment takes; all episodes of a step wait at once")
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=200)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--micro-batch", type=int, default=32)
    return parser.parse_args()


def main() -> None:
    options = parsed()
    torch.set_num_threads(options.threads)
    clock, batch, lengths = Clock(), options.groups * options.members, []

    def reward(completions: list[str], completion_ids: list[list[int]], **_: object) -> list[float]:
        time.sleep(options.latency)
        lengths.extend(len(ids) for ids in completion_ids)
        return [reward_of(text) for text in completions]

    with tempfile.TemporaryDirectory() as scratch:
        config = GRPOConfig(
            output_dir=scratch,
            per_device_train_batch_size=options.micro_batch,
            gradient_accumulation_steps=batch // options.micro_batch,
            num_generations=options.members,
            max_completion_length=options.max_tokens,
            temperature=1.0,
            beta=0.0,
            epsilon=0.2,
            learning_rate=1e-4,
            adam_beta1=0.9,
            adam_beta2=0.99,
            weight_decay=0.0,
            max_grad_norm=1.0,
            lr_scheduler_type="constant",
            max_steps=options.steps + 1,
            logging_steps=1000,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
            shuffle_dataset=False,
        )
        prompts = [prompt_text(index, options.prompt_tokens) for index in range((options.steps + 2) * options.groups)]
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(options.model),
            reward_funcs=reward,
            args=config,
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            processing_class=AutoTokenizer.from_pretrained(options.model, padding_side="left"),
            callbacks=[clock],
        )
        trainer.train()
    measured = clock.steps[1:]
    print(
        json.dumps(
            {
                "wall_seconds": [wall for wall, _ in measured],
                "cpu_seconds": [cpu for _, cpu in measured],
                "mean_tokens": sum(lengths) / len(lengths),
            }
        )
    )


main()
