"""From hidden states to the logprobs of given tokens, with a bounded amount of logits in memory at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import log_softmax, nll_loss
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LOGITS_AT_ONCE = 1 << 25
"""Entries of (token, vocabulary) that are held at once: 128 MB in fp32."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenScores:
    """What a model says about given tokens."""

    logprobs_T: torch.Tensor
    entropies_T: torch.Tensor
    """Of the distribution that each token was drawn from, in nats."""


def token_scores(
    model: PreTrainedModel, hidden_TD: torch.Tensor, targets_T: torch.Tensor, *, temperature: float = 1.0, entropy_gradient: bool = False
) -> TokenScores:
    """Score token `targets_T[t]` under the logits of hidden state t divided by `temperature`.

    Entropies carry a gradient only if asked for: it takes as much memory as the logits once more. When the logits do not fit at once they are made
    chunk by chunk, and again in the backward pass.
    """
    rows_per_chunk = max(1, _LOGITS_AT_ONCE // model.config.vocab_size)
    if len(targets_T) <= rows_per_chunk:
        logprobs_T, entropies_T = _score(model, hidden_TD, targets_T, temperature, entropy_gradient)
        return TokenScores(logprobs_T=logprobs_T, entropies_T=entropies_T)
    chunks = [
        checkpoint(_score, model, hidden, targets, temperature, entropy_gradient, use_reentrant=False, preserve_rng_state=False)
        for hidden, targets in zip(torch.split(hidden_TD, rows_per_chunk), torch.split(targets_T, rows_per_chunk), strict=True)
    ]
    return TokenScores(logprobs_T=torch.cat([logprobs for logprobs, _ in chunks]), entropies_T=torch.cat([entropies for _, entropies in chunks]))


def token_logprobs(model: PreTrainedModel, hidden_TD: torch.Tensor, targets_T: torch.Tensor, *, temperature: float = 1.0) -> torch.Tensor:
    """The `logprobs_T` of `token_scores`, to the bit, for who wants nothing else and no gradient."""
    rows_per_chunk = max(1, _LOGITS_AT_ONCE // model.config.vocab_size)
    with torch.no_grad():
        pairs = zip(torch.split(hidden_TD, rows_per_chunk), torch.split(targets_T, rows_per_chunk), strict=True)
        return torch.cat([-nll_loss(_log_softmax(model, hidden, temperature), targets, reduction="none") for hidden, targets in pairs])


def _score(
    model: PreTrainedModel, hidden_TD: torch.Tensor, targets_T: torch.Tensor, temperature: float, entropy_gradient: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    logprobs_TV = _log_softmax(model, hidden_TD, temperature)
    if entropy_gradient:
        entropies_T = -(logprobs_TV.exp() * logprobs_TV).sum(-1)
    else:
        with torch.no_grad():
            # In place: as large as the logits, and once is enough.
            entropies_T = logprobs_TV.exp().mul_(logprobs_TV).sum(-1).neg_()
    return -nll_loss(logprobs_TV, targets_T, reduction="none"), entropies_T


def _log_softmax(model: PreTrainedModel, hidden_TD: torch.Tensor, temperature: float) -> torch.Tensor:
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    logits_TV: torch.Tensor = head(hidden_TD)
    if temperature != 1.0:
        logits_TV = logits_TV / temperature
    # Half precision is too coarse for ratios; double stays double.
    return log_softmax(logits_TV, dim=-1, dtype=torch.promote_types(logits_TV.dtype, torch.float32))
