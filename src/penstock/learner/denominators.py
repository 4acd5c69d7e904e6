"""How token losses become one number. The weights are those of the whole update, so that no split into rows, micro-batches or ranks can be seen."""

from __future__ import annotations

import numpy as np

from penstock.learner.config import LossConfig
from penstock.types import Float64Array, RlExample


def token_weights(example: RlExample, loss: LossConfig, *, update_tokens: int | None = None) -> Float64Array:
    """(row, token): the loss of an update is the sum of token losses times these; 0 where there is no loss.

    token_mean      1 / tokens with loss in the update
    sequence_mean   1 / (samples in the update * tokens with loss in the token's sample)
    fixed           1 / fixed_denominator

    `example` is the whole update, or some rows of it (`micro_batches`, a rank's share), which must then be told how many tokens with loss the whole
    update has. `num_samples` is the whole update's in every part, and a sample lies in one part only.
    """
    mask_RT = example.loss_mask
    if loss.denominator == "token_mean":
        return mask_RT / max(1, int(mask_RT.sum()) if update_tokens is None else update_tokens)
    if loss.denominator == "fixed":
        return mask_RT / loss.fixed_denominator
    counts_S = np.bincount(example.sample_ids[mask_RT], minlength=example.num_samples)
    weights_RT = np.zeros(mask_RT.shape)
    weights_RT[mask_RT] = 1.0 / (example.num_samples * counts_S[example.sample_ids[mask_RT]])
    return weights_RT
