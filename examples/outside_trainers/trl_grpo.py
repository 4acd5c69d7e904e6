"""TRL's GRPOTrainer fed by the buffer: it trains on leased groups where it would otherwise sample.

    penstock init model model
    penstock buffer --dir buffer &
    python examples/outside_trainers/play.py --model model --groups 8        # stands for your agents
    python examples/outside_trainers/trl_grpo.py --model model --steps 2

Three things matter, whatever else you configure:

- `scale_rewards="none"`: the trainer's own reward normalisation is off. TRL still takes the mean of a group away. Leases give rewards as
  they were written; `get_rollout_data` gives normalised ones, whose mean is 0 already.
- `num_generations` is the size of the groups. Of a group with failed members the free places are filled with rows that carry no loss and no reward.
- The ratio is taken to the sampler's logprobs (`BufferTrainer`). By itself TRL takes what it is given for samples of its newest weights.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from leases import Leases, Row, rows_of
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOConfig, GRPOTrainer


class Feed:
    """Leased groups as TRL wants them: `rollouts` is its rollout_func, `rewards` its reward function."""

    def __init__(self, leases: Leases, name: str) -> None:
        self._leases = leases
        self._name = name
        self._held: list[str] = []
        """Leases whose groups no checkpoint contains yet."""

    def rollouts(self, prompts: Sequence[Any], trainer: GRPOTrainer) -> dict[str, Any]:
        """A row for each of `prompts`, whose texts do not matter: what was asked stands in the rollouts."""
        size = trainer.num_generations
        if len(prompts) % size:
            raise ValueError(f"a process gets {len(prompts)} rows, which is no multiple of num_generations ({size}): groups would be torn")
        for lease in self._held:
            self._leases.renew(lease)
        lease = self._leases.take(self._lease_of(trainer.state.global_step, trainer.accelerator.process_index), groups=len(prompts) // size)
        self._held.append(lease["lease"])
        rows: list[tuple[Row, float | None]] = []
        for group in self._leases.groups(lease):
            rows += padded(group, size, trainer.processing_class.eos_token_id)
        return {
            "prompt_ids": [row.ids[: row.prompt_length] for row, _ in rows],
            "completion_ids": [row.ids[row.prompt_length :] for row, _ in rows],
            "logprobs": [row.logprobs[row.prompt_length :] for row, _ in rows],
            "env_mask": [row.mask[row.prompt_length :] if reward is not None else [0] * (len(row.ids) - row.prompt_length) for row, reward in rows],
            "buffer_reward": [reward for _, reward in rows],
        }

    def rewards(self, buffer_reward: list[float | None], **_: Any) -> list[float | None]:
        """Rewards are facts of the buffer; nothing is graded here."""
        return buffer_reward

    def settle(self) -> None:
        """Everything that was taken is in a checkpoint."""
        for lease in self._held:
            self._leases.settle(lease)
        self._held.clear()

    def settle_before(self, step: int, process: int) -> None:
        """After a restart: settle what the checkpoint contains, for which there was no time before the kill."""
        for earlier in reversed(range(step)):
            lease = self._leases.find(self._lease_of(earlier, process))
            if lease is None or lease["state"] == "settled":
                return
            if lease["state"] == "taken":
                self._leases.settle(lease["lease"])

    def _lease_of(self, step: int, process: int) -> str:
        # Named by the step: after a kill the same step asks for the same groups.
        return f"{self._name}-{process}-{step}"


def padded(group: dict[str, Any], size: int, end: int) -> list[tuple[Row, float | None]]:
    """`size` rows and their rewards. TRL trains one row a rollout: of one with several branches, that with the most sampled tokens."""
    rows: list[tuple[Row, float | None]] = []
    for rollout in group["rollouts"]:
        branches = rows_of(rollout) if rollout["reward"] is not None else []
        if branches:
            rows.append((max(branches, key=lambda row: sum(row.mask)), rollout["reward"]))
    if len(rows) > size:
        raise ValueError(f"group {group['group']['id']} has {len(rows)} members; num_generations is {size}")
    nothing = Row(ids=[end, end], mask=[0, 1], logprobs=[0.0, 0.0])
    return rows + [(nothing, None)] * (size - len(rows))


class SettleWhenSaved(TrainerCallback):
    """Groups are settled when a checkpoint holds what was learned from them, and not before."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See `Feed.settle_before`."""
        self._feed.settle_before(state.global_step, args.process_index)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See `Feed.settle`."""
        self._feed.settle()


class BufferTrainer(GRPOTrainer):
    """GRPO whose ratio is taken to the logprobs that came with the rollouts."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        batch = super()._generate_and_score_completions(inputs)
        batch["old_per_token_logps"] = batch["sampling_per_token_logps"]
        return batch


def main(words: Sequence[str] | None = None) -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description="Train with TRL on groups that are leased from a buffer.")
    parser.add_argument("--buffer", default="http://127.0.0.1:8889")
    parser.add_argument("--run", default="demo")
    parser.add_argument("--model", required=True, help="directory of a Hugging Face model")
    parser.add_argument("--out", type=Path, default=Path("trl_grpo"), help="where checkpoints go; one that is there is continued")
    parser.add_argument("--name", default="trl", help="of this trainer; a trainer that goes on keeps its name")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--save-every", type=int, default=1)
    parser.add_argument("--groups-per-step", type=int, default=4)
    parser.add_argument("--group-size", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--lease-seconds", type=float, default=600.0, help="how long the steps between two checkpoints, and a restart, may take")
    given = parser.parse_args(words)
    torch.set_num_threads(1)
    feed = Feed(Leases(given.buffer, run=given.run, consumer=given.name, seconds=given.lease_seconds), given.name)
    config = GRPOConfig(
        output_dir=str(given.out),
        max_steps=given.steps,
        save_steps=given.save_every,
        per_device_train_batch_size=given.groups_per_step * given.group_size,
        num_generations=given.group_size,
        scale_rewards="none",
        learning_rate=given.learning_rate,
        lr_scheduler_type="constant",
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        logging_steps=1,
        disable_tqdm=True,
    )
    trainer = BufferTrainer(
        model=AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(given.model),
        args=config,
        reward_funcs=feed.rewards,
        rollout_func=feed.rollouts,
        # TRL counts its steps by a data set; the buffer decides what is in them.
        train_dataset=Dataset.from_list([{"prompt": ""}] * given.groups_per_step),
        callbacks=[SettleWhenSaved(feed)],
    )
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(given.out)) if given.out.is_dir() else None)


if __name__ == "__main__":
    main()
