"""Stands for your agents: samples replies of a model and writes them to the buffer, token by token as they were sampled.

    penstock init model model
    penstock buffer --dir buffer &
    python examples/outside_trainers/play.py --model model --groups 8

The task is one that a random model does not always fail: say as many letters as you can.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import torch
from leases import ask
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPT = "letters, please:"


def sample(model: Any, prompt: list[int], count: int, num_tokens: int) -> list[tuple[list[int], list[float]]]:
    """Replies at temperature 1, each with the logprobs of its tokens."""
    ids = torch.tensor([prompt] * count)
    logprobs: list[torch.Tensor] = []
    with torch.no_grad():
        for _ in range(num_tokens):
            now = torch.log_softmax(model(input_ids=ids).logits[:, -1], -1)
            chosen = torch.multinomial(now.exp(), 1)
            ids = torch.cat([ids, chosen], 1)
            logprobs.append(now.gather(-1, chosen)[:, 0])
    replies, scores = ids[:, len(prompt) :].tolist(), torch.stack(logprobs, 1).tolist()
    return list(zip(replies, scores, strict=True))


def rollout(run: str, group: str, member: int, prompt: list[int], reply: tuple[list[int], list[float]], reward: float) -> dict[str, Any]:
    """One try as the buffer takes it."""
    ids, logprobs = reply
    segments = [
        {"parent": None, "ids": prompt, "source": "env"},
        {"parent": 0, "ids": ids, "source": "sampled", "logprobs": logprobs, "versions": [{"policy": "policy", "version": 0, "count": len(ids)}]},
    ]
    facts = {"run": run, "environment": "letters", "problem_id": "letters", "group_id": group, "member": member, "retry": 0}
    return {"schema": 1, "kind": "rollout", "value": facts | {"rollout_uid": f"{group}:{member}", "reward": reward, "trace": {"segments": segments}}}


def main(words: Sequence[str] | None = None) -> None:
    """Open a run and groups in it, and fill them."""
    parser = argparse.ArgumentParser(description="Fill groups with what a model says.")
    parser.add_argument("--buffer", default="http://127.0.0.1:8889")
    parser.add_argument("--run", default="demo")
    parser.add_argument("--model", required=True, help="directory of a Hugging Face model")
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--first-group", type=int, default=0, help="number of the first of them")
    parser.add_argument("--group-size", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(words)
    torch.set_num_threads(1)
    torch.manual_seed(given.seed)
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    model = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.float32).eval()
    prompt = tokenizer(PROMPT)["input_ids"]
    where = f"{given.buffer.rstrip('/')}/v1/runs/{quote(given.run)}"
    # Credits are for learners that return them by publishing weights; here settling does, and the room is ample.
    ask(where, {"laws": {"credit_tokens": 10**9}, "initial_digest": "none"})
    for number in range(given.first_group, given.first_group + given.groups):
        group = f"letters/0/{number}"
        ask(f"{where}/groups", {"groups": [{"id": group, "environment": "letters", "problem_id": "letters", "size": given.group_size}]})
        replies = sample(model, prompt, given.group_size, given.tokens)
        rewards = [sum(character.isalpha() for character in tokenizer.decode(ids, skip_special_tokens=True)) / given.tokens for ids, _ in replies]
        members = enumerate(zip(replies, rewards, strict=True))
        answer = ask(f"{where}/rollouts", [rollout(given.run, group, member, prompt, reply, reward) for member, (reply, reward) in members])
        refused = [row["message"] for row in answer["rollouts"] if row["code"]]
        print(f"{group}: rewards {', '.join(f'{reward:.2f}' for reward in rewards)}" + (f", refused: {refused[0]}" if refused else ""), flush=True)


if __name__ == "__main__":
    main()
