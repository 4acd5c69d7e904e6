"""Every loss once more, in plain Python floats, a token at a time, straight from the formula and with its derivative worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.learner.config import LossConfig


@dataclass(frozen=True, kw_only=True)
class Token:
    """One token with loss."""

    sample: int
    logprob: float
    behaviour: float
    advantage: float
    reference: float = -1.0


@dataclass(frozen=True, kw_only=True)
class Twin:
    """What a loss must give for one token."""

    loss: float
    slope: float
    """Derivative by the token's own logprob, constants held."""
    clipped: frozenset[str]


def twin(tokens: Sequence[Token], place: int, config: LossConfig) -> Twin:
    """The loss of `tokens[place]`."""
    token = tokens[place]
    mates = [math.log(ratio(mate)) for mate in tokens if mate.sample == token.sample]
    if config.name == "ppo_clip":
        return _clipped(ratio(token), token.advantage, config)
    if config.name == "gspo":
        return _clipped(math.exp(sum(mates) / len(mates)), token.advantage, config)
    weight = ratio(token)
    if config.name == "cispo":
        low, high = config.ratio_bounds
        clipped = {name for name, is_out in (("low", weight < low), ("high", weight > high)) if is_out}
        return _weighted(min(max(weight, low), high), token, clipped)
    if config.weight_level == "sequence":
        weight = math.exp(sum(mates))
    if config.name == "reinforce_tis":
        return _weighted(min(weight, config.weight_cap), token, {"high"} if weight > config.weight_cap else set())
    assert config.name == "icepop"
    clipped = {name for name, is_out in (("low", weight < config.mask_low), ("high", weight > config.mask_high)) if is_out}
    return _weighted(0.0 if clipped else weight, token, clipped)


def penalty(token: Token, entropy: float, config: LossConfig) -> tuple[float, float]:
    """What penalties add to the loss of a token, and its derivative by the token's logprob."""
    difference = token.logprob - token.reference
    value, slope = {
        "k1": (difference, difference),
        "k2": (difference**2 / 2, difference),
        "k3": (math.exp(-difference) - 1 + difference, 1 - math.exp(-difference)),
    }[config.kl_estimator]
    return config.kl_coef * value - config.entropy_coef * entropy, config.kl_coef * slope


def ratio(token: Token) -> float:
    """Learner's probability over the sampler's."""
    return math.exp(token.logprob - token.behaviour)


def _clipped(found: float, advantage: float, config: LossConfig) -> Twin:
    low, high = config.ratio_bounds
    if advantage < 0 and config.dual_clip is not None and found > config.dual_clip:
        return Twin(loss=-config.dual_clip * advantage, slope=0.0, clipped=frozenset({"dual"}))
    if advantage > 0 and found > high:
        return Twin(loss=-high * advantage, slope=0.0, clipped=frozenset({"high"}))
    if advantage < 0 and found < low:
        return Twin(loss=-low * advantage, slope=0.0, clipped=frozenset({"low"}))
    return Twin(loss=-found * advantage, slope=-found * advantage, clipped=frozenset())


def _weighted(weight: float, token: Token, clipped: set[str]) -> Twin:
    return Twin(loss=-weight * token.advantage * token.logprob, slope=-weight * token.advantage, clipped=frozenset(clipped))
