"""From logits to tokens: a pure function of logits, settings and one random number per row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How one reply is drawn."""

    temperature: float = 1.0
    """0: always the likeliest token."""
    top_p: float = 1.0
    top_k: int = 0
    """0: all."""
    num_alternatives: int = 0
    """Likeliest tokens to be reported with each token."""
    seed: int = 0

    @property
    def is_filtered(self) -> bool:
        """Whether some tokens are never drawn though the model gives them a chance."""
        return self.temperature > 0 and (self.top_p < 1.0 or self.top_k > 0)


@dataclass(frozen=True, slots=True)
class Drawn:
    """One sampled token."""

    id: int
    logprob: float
    """After temperature (of the model itself when greedy), before filters."""
    raw_logprob: float
    """At temperature 1."""
    alternatives: tuple[tuple[int, float], ...] = ()
    """The likeliest tokens with their logprobs, likeliest first."""


@dataclass(slots=True)
class Randomness:
    """The random numbers of one reply, by token: a function of seed and choice, drawn from a counter-based generator of its own."""

    seed: int
    choice: int
    _block: list[float] = field(default_factory=list)
    _generator: np.random.Generator | None = None

    def at(self, token: int) -> float:
        """The number in [0, 1) for the token-th sampled token."""
        while token >= len(self._block):
            if self._generator is None:
                key = np.array([self.seed % 2**64, self.choice], np.uint64)
                self._generator = np.random.Generator(np.random.Philox(key=key))
            self._block += self._generator.random(64).tolist()
        return self._block[token]


def draw(logits_BV: Tensor, settings_B: Sequence[Sampling], uniforms_B: Sequence[float]) -> list[Drawn]:
    """One token per row. A row's token depends on that row alone.

    Temperature divides the logits; the token is where the running sum of probabilities passes the uniform number.
    """
    raw_BV = torch.log_softmax(logits_BV, dim=-1)
    temperatures_B = torch.tensor([setting.temperature if setting.temperature > 0 else 1.0 for setting in settings_B])
    is_raw = bool((temperatures_B == 1.0).all())
    logprobs_BV = raw_BV if is_raw else torch.log_softmax(logits_BV / temperatures_B[:, None], dim=-1)
    ids_B = _inverse_cdf(_filtered(logprobs_BV.exp(), settings_B), uniforms_B)
    greedy = [row for row, setting in enumerate(settings_B) if setting.temperature == 0]
    if greedy:
        ids_B[greedy] = logits_BV[greedy].argmax(dim=-1)
    chosen_B = logprobs_BV.gather(1, ids_B[:, None])[:, 0].tolist()
    raw_B = chosen_B if is_raw else raw_BV.gather(1, ids_B[:, None])[:, 0].tolist()
    alternatives_B = _alternatives(logprobs_BV, settings_B)
    return [Drawn(*row) for row in zip(ids_B.tolist(), chosen_B, raw_B, alternatives_B, strict=True)]


def _inverse_cdf(probabilities_BV: Tensor, uniforms_B: Sequence[float]) -> Tensor:
    # Sums in fp64: in fp32 the tail of a large vocabulary would round away.
    sums_BV = probabilities_BV.cumsum(dim=-1, dtype=torch.float64)
    totals_B = sums_BV[:, -1]
    # Strictly below the total, so that rounding cannot point behind the last token that has a chance.
    targets_B = torch.minimum(torch.tensor(uniforms_B, dtype=torch.float64) * totals_B, torch.nextafter(totals_B, torch.zeros_like(totals_B)))
    ids_B = torch.searchsorted(sums_BV, targets_B[:, None], right=True)[:, 0]
    return ids_B.clamp_(max=probabilities_BV.shape[1] - 1)


def _filtered(probabilities_BV: Tensor, settings_B: Sequence[Sampling]) -> Tensor:
    """Set to zero what top-k and top-p leave out."""
    for row, setting in enumerate(settings_B):
        if not setting.is_filtered:
            continue
        ordered, order = probabilities_BV[row].sort(descending=True, stable=True)
        # A token stays if what is likelier does not reach top_p yet: the likeliest always stays.
        left_out = (ordered.cumsum(0, dtype=torch.float64) - ordered) >= setting.top_p
        if setting.top_k > 0:
            left_out[setting.top_k :] = True
        probabilities_BV[row, order[left_out]] = 0.0
    return probabilities_BV


def _alternatives(logprobs_BV: Tensor, settings_B: Sequence[Sampling]) -> list[tuple[tuple[int, float], ...]]:
    most = max(setting.num_alternatives for setting in settings_B)
    if most == 0:
        return [()] * len(settings_B)
    values, ids = logprobs_BV.topk(min(most, logprobs_BV.shape[1]), dim=-1)
    rows = zip(settings_B, ids.tolist(), values.tolist(), strict=True)
    return [tuple(zip(row_ids, row_values, strict=True))[: setting.num_alternatives] for setting, row_ids, row_values in rows]
