"""A trainer in the old style: it starts a generator, polls `get_rollout_data`, and keeps with its checkpoint which instances are done.

    cd examples/outside_trainers
    penstock init model model
    penstock serve --model model &
    penstock buffer --dir buffer &
    python polling_client.py --model model --steps 4

Killed and started again it goes on from its checkpoint: reads that the checkpoint does not contain are served again, and the generator is told to skip
what is done, also if the buffer is a new one.

A read normalises rewards (`raw_reward` has the old ones), so they are used as advantages and not normalised again.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from leases import RefusedError, Row, ask
from policy import Policy

Item = dict[str, Any]


class Reads:
    """What was read from the buffer, in order. Each read is noted in a file, so that a restart knows which of them its checkpoint contains.

    A read takes its items out of the buffer, but for good only from others: whoever knows its id may have it again.
    """

    def __init__(self, buffer: str, notes: Path) -> None:
        self._buffer = buffer
        self._notes = notes
        self._known = [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []

    def again(self, num_used: int) -> list[dict[str, Any]]:
        """Reads behind the first `num_used`, and the one whose answer was lost with the process, if there is one."""
        (stats,) = ask(f"{self._buffer}/buffer/stats")
        last = stats["last_read_id"]
        replies = []
        for note in self._known[num_used:]:
            try:
                replies.append(self._read({"read_id": note["read_id"]}) | {"finished": note["finished"]})
            except RefusedError as error:
                # A new buffer knows nothing of the old one's reads. What was in them is made again, since no checkpoint calls it done.
                if error.status != 404:
                    raise
                replies.append({"items": [], "finished": []})
        if last and last not in {note["read_id"] for note in self._known}:
            reply = self._read({"read_id": last})
            replies.append(self._note(reply | {"finished": sorted({str(item["instance_id"]) for item in reply["items"]})}))
        return replies

    def next(self) -> dict[str, Any] | None:
        """Everything that is ready now; None if that is nothing."""
        reply = self._read({})
        return self._note(reply) if reply["items"] else None

    def _read(self, asked: dict[str, Any]) -> dict[str, Any]:
        data = ask(f"{self._buffer}/get_rollout_data", asked)["data"]
        meta = data["meta_info"]
        return {"items": data["data"], "read_id": meta.get("read_id"), "finished": meta.get("finished_groups", [])}

    def _note(self, reply: dict[str, Any]) -> dict[str, Any]:
        note = {"read_id": reply["read_id"], "finished": reply["finished"]}
        with self._notes.open("a") as file:
            file.write(json.dumps(note) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._known.append(note)
        return reply


def newest(items: Sequence[Item], group_size: int, count: int) -> list[list[Item]]:
    """The `count` groups that were made last. Items of a group stand together, `group_size` of them.

    >>> made = [{"instance_id": i, "extra_info": {"timestamp": t}} for i, t in (("a", 1), ("a", 4), ("b", 2), ("b", 3), ("c", 5), ("c", 6))]
    >>> [group[0]["instance_id"] for group in newest(made, 2, 2)]
    ['a', 'c']
    """
    groups = [list(items[start : start + group_size]) for start in range(0, len(items), group_size)]
    by_age = sorted(groups, key=lambda group: max(float(item["extra_info"].get("timestamp", 0)) for item in group))
    return by_age[-count:]


def row_of(item: Item) -> Row | None:
    """The very tokens that were sampled; None for an item whose engine did not tell them."""
    facts = item["extra_info"]
    if not {"prompt_tokens", "tokens", "logprobs"} <= facts.keys():
        return None
    prompt = facts["prompt_tokens"]
    return Row(ids=prompt + facts["tokens"], mask=[0] * len(prompt) + [1] * len(facts["tokens"]), logprobs=[0.0] * len(prompt) + facts["logprobs"])


class Trainer:
    """The loop, and all that it remembers."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._policy = Policy(given.model, learning_rate=given.learning_rate)
        self._facts = self._policy.load(given.checkpoint) or {"step": 0, "reads": 0, "skip_instance_ids": []}
        self._reads = Reads(given.buffer, given.checkpoint.with_suffix(".reads"))

    def run(self) -> None:
        """Steps until there are enough of them, or until the generator makes no more."""
        given, facts = self._given, self._facts
        replies = self._reads.again(facts["reads"])
        if replies:
            print(f"{len(replies)} reads are not in the checkpoint, {sum(len(reply['items']) for reply in replies)} items are read again", flush=True)
        self.start_generator([*facts["skip_instance_ids"], *(id for reply in replies for id in reply["finished"])])
        wanted = given.groups_per_step * given.group_size
        while facts["step"] < given.steps:
            while sum(len(reply["items"]) for reply in replies) < wanted:
                reply = self._poll()
                if reply is None:
                    print(f"the generator has ended after {facts['step']} steps", flush=True)
                    return
                replies.append(reply)
            self._step(replies)
            replies = []
        ask(f"{given.buffer}/generators/{quote(given.task_type)}/stop", {})

    def start_generator(self, skip_instance_ids: list[str]) -> None:
        """Have rollouts made. If a generator is at it already, the same request changes nothing."""
        given = self._given
        payload = {
            "task_type": given.task_type,
            "remote_engine_url": given.engine,
            "remote_buffer_url": given.buffer,
            "input_file": given.input_file,
            "num_repeat_per_sample": given.group_size,
            "num_epoch": given.epochs,
            "num_process": given.processes,
            "sampling_params": {"max_tokens": given.max_tokens, "temperature": 1.0},
            "skip_instance_ids": skip_instance_ids,
        }
        ask(f"{given.buffer}/start_rollout", payload)
        print(f"generator {given.task_type} is started, {len(skip_instance_ids)} instances are done", flush=True)

    def _poll(self) -> dict[str, Any] | None:
        while True:
            # In this order: what a generator writes before its end is read.
            has_ended = self._generator_state() in ("finished", "failed", "stopped")
            reply = self._reads.next()
            if reply is not None or has_ended:
                return reply
            time.sleep(self._given.poll_seconds)

    def _generator_state(self) -> str:
        states = ask(f"{self._given.buffer}/generators")["generators"]
        return next(str(state["state"]) for state in states if state["task_type"] == self._given.task_type)

    def _step(self, replies: Sequence[dict[str, Any]]) -> None:
        given, facts = self._given, self._facts
        items = [item for reply in replies for item in reply["items"]]
        # More than one step's worth has come: the newest are closest to the policy as it is. The others are done, too.
        chosen = [item for group in newest(items, given.group_size, given.groups_per_step) for item in group]
        trained = [(row, item["reward"]) for item in chosen if (row := row_of(item)) is not None]
        loss = self._policy.step([row for row, _ in trained], [reward for _, reward in trained]) if trained else 0.0
        step = facts["step"]
        facts["step"] += 1
        facts["reads"] += len(replies)
        facts["skip_instance_ids"] += [id for reply in replies for id in reply["finished"]]
        self._policy.save(given.checkpoint, facts)
        ids = ", ".join(dict.fromkeys(str(item["instance_id"]) for item in chosen))
        print(f"step {step}: {len(trained)} of {len(items)} items ({ids}), loss {loss:.4f}", flush=True)


def main(words: Sequence[str] | None = None) -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description="Train on what a generator makes, by polling a buffer.")
    parser.add_argument("--buffer", default="http://127.0.0.1:8889")
    parser.add_argument("--engine", default="http://127.0.0.1:8000")
    parser.add_argument("--model", required=True, help="directory of the Hugging Face model that the engine serves")
    parser.add_argument("--task-type", default="letters")
    parser.add_argument("--input-file", default="letters.jsonl", help="as the buffer finds it, from its --data-root")
    parser.add_argument("--checkpoint", type=Path, default=Path("polling_client.safetensors"), help="beside it, with the ending .reads, are the reads' ids")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--groups-per-step", type=int, default=2)
    parser.add_argument("--group-size", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--poll-seconds", type=float, default=1.0)
    torch.set_num_threads(1)
    Trainer(parser.parse_args(words)).run()


if __name__ == "__main__":
    main()
