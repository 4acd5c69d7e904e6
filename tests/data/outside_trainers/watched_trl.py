"""The TRL example, whose batches are printed as the loss sees them."""

from __future__ import annotations

import json
from typing import Any

import trl_grpo


def watched(trainer: Any, inputs: Any) -> Any:
    batch = made(trainer, inputs)
    rows = list(zip(batch["completion_ids"].tolist(), batch["completion_mask"].tolist(), batch["tool_mask"].tolist(), strict=True))
    seen = {
        "advantages": batch["advantages"].tolist(),
        "tokens": [[token for token, there, _ in zip(*row, strict=True) if there and token != trainer.processing_class.eos_token_id] for row in rows],
        "trained": [[token for token, there, trains in zip(*row, strict=True) if there and trains] for row in rows],
        "old": [
            [logprob for logprob, there, trains in zip(logprobs, row[1], row[2], strict=True) if there and trains]
            for logprobs, row in zip(batch["old_per_token_logps"].tolist(), rows, strict=True)
        ],
    }
    print("batch:", json.dumps(seen), flush=True)
    return batch


made = trl_grpo.BufferTrainer._generate_and_score_completions
trl_grpo.BufferTrainer._generate_and_score_completions = watched  # type: ignore[method-assign]
main = trl_grpo.main
