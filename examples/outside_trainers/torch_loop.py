"""A plain PyTorch loop fed by the buffer: lease groups, train on them, save, settle. Killed anywhere, it trains every group once.

    penstock init model model
    penstock buffer --dir buffer &
    python examples/outside_trainers/play.py --model model --groups 8        # stands for your agents
    python examples/outside_trainers/torch_loop.py --model model --steps 2

Leases give rewards as they were written: the baseline below is the only normalisation there is.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from leases import Leases, RefusedError, Row, rows_of
from policy import Policy


def train(leases: Leases, policy: Policy, checkpoint: Path, *, name: str, steps: int, groups_per_step: int) -> None:
    """Steps until there are `steps`, from where the checkpoint stands."""
    facts = policy.load(checkpoint) or {"step": 0, "lease": None, "groups": [], "done": []}
    settle(leases, facts)
    while facts["step"] < steps:
        step = facts["step"]
        # Named by the step: after a kill the same step asks for the same groups.
        lease = leases.take(f"{name}-{step}", groups=groups_per_step)
        groups = [group for group in leases.groups(lease) if group["group"]["id"] not in facts["done"]]
        rows, advantages = batch(groups)
        loss = policy.step(rows, advantages) if rows else 0.0
        facts = {"step": step + 1, "lease": lease["lease"], "groups": [group["id"] for group in lease["groups"]], "done": facts["done"]}
        # Save before settling: what is settled is gone, so a checkpoint must hold it by then.
        policy.save(checkpoint, facts)
        settle(leases, facts)
        print(f"step {step}: {len(groups)} groups, {len(rows)} rows, loss {loss:.4f}", flush=True)


def settle(leases: Leases, facts: dict[str, Any]) -> None:
    """Settle the lease of the newest step that was saved; again is fine. If it ran out before, its groups will come again, and are left out then."""
    if facts["lease"] is None:
        return
    try:
        leases.settle(facts["lease"])
    except RefusedError as error:
        if error.status != 409:
            raise
        facts["done"] = sorted({*facts["done"], *facts["groups"]})


def batch(groups: Sequence[dict[str, Any]]) -> tuple[list[Row], list[float]]:
    """Rows and their advantages: the reward, less the mean of the group."""
    rows: list[Row] = []
    advantages: list[float] = []
    for group in groups:
        members = [(rollout["reward"], rows_of(rollout)) for rollout in group["rollouts"] if rollout["reward"] is not None]
        baseline = sum(reward for reward, _ in members) / max(1, len(members))
        for reward, branches in members:
            rows += branches
            advantages += [reward - baseline] * len(branches)
    return rows, advantages


def main(words: Sequence[str] | None = None) -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description="Train on groups that are leased from a buffer.")
    parser.add_argument("--buffer", default="http://127.0.0.1:8889")
    parser.add_argument("--run", default="demo")
    parser.add_argument("--model", required=True, help="directory of a Hugging Face model")
    parser.add_argument("--checkpoint", type=Path, default=Path("torch_loop.safetensors"))
    parser.add_argument("--name", default="torch-loop", help="of this trainer; a trainer that goes on keeps its name")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--groups-per-step", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--lease-seconds", type=float, default=300.0, help="how long a step and a restart may take together")
    given = parser.parse_args(words)
    torch.set_num_threads(1)
    leases = Leases(given.buffer, run=given.run, consumer=given.name, seconds=given.lease_seconds)
    policy = Policy(given.model, learning_rate=given.learning_rate)
    train(leases, policy, given.checkpoint, name=given.name, steps=given.steps, groups_per_step=given.groups_per_step)


if __name__ == "__main__":
    main()
