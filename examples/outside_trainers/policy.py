"""A causal language model, its optimizer, and one policy gradient step: what the plain trainers beside this file share."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from leases import Row
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

CLIP = 0.2


class Policy:
    """A model that learns. Saved in one file, so that a checkpoint is there as a whole or not at all."""

    def __init__(self, model: str, *, learning_rate: float) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=learning_rate, weight_decay=0.0)

    def step(self, rows: Sequence[Row], advantages: Sequence[float]) -> float:
        """One clipped policy gradient step; `advantages` are used as they are. Gives the loss.

        The ratio is taken to the sampler's own logprobs, so it is right for rollouts of somewhat older weights, too.
        """
        num_tokens = sum(sum(row.mask) for row in rows)
        total = 0.0
        self._optimizer.zero_grad()
        # Row by row: nothing is padded, and the gradients add up to those of the whole batch.
        for row, advantage in zip(rows, advantages, strict=True):
            mask = torch.tensor(row.mask[1:], dtype=torch.float32)
            ratio = torch.exp((self.logprobs(row.ids) - torch.tensor(row.logprobs[1:])) * mask)
            gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
            loss = -(gain * mask).sum() / num_tokens
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        return total

    def logprobs(self, ids: Sequence[int]) -> torch.Tensor:
        """Of each token but the first, given those before it."""
        inputs = torch.tensor([ids])
        logits = self.model(input_ids=inputs).logits[0, :-1]
        return torch.log_softmax(logits, -1).gather(-1, inputs[0, 1:, None])[:, 0]

    def save(self, path: Path, facts: dict[str, Any]) -> None:
        """Weights, optimizer and `facts` together. A kill leaves the old file or the new one."""
        tensors = {f"model/{name}": tensor.detach().clone() for name, tensor in self.model.named_parameters()}
        for place, state in self._optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer/{place}/{name}": torch.as_tensor(value) for name, value in state.items()}
        temporary = path.with_suffix(".new")
        save_file(tensors, temporary, {"facts": json.dumps(facts)})
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)

    def load(self, path: Path) -> dict[str, Any] | None:
        """The facts of a checkpoint, whose weights and optimizer are in place afterwards; None if there is none."""
        if not path.exists():
            return None
        state: dict[int, dict[str, torch.Tensor]] = {}
        parameters = dict(self.model.named_parameters())
        with safe_open(path, framework="pt") as file, torch.no_grad():
            for key in sorted(file.keys()):
                kind, _, name = key.partition("/")
                if kind == "model":
                    parameters[name].copy_(file.get_tensor(key))
                else:
                    place, _, field = name.partition("/")
                    state.setdefault(int(place), {})[field] = file.get_tensor(key)
            facts: dict[str, Any] = json.loads(file.metadata()["facts"])
        self._optimizer.load_state_dict({"state": state, "param_groups": self._optimizer.state_dict()["param_groups"]})
        return facts
