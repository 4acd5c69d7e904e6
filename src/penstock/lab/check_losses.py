"""Checks of losses: what the learner takes for granted about any of them. Numbers only; torch stays behind `try_loss`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from penstock.batching import micro_batches, rank_rows
from penstock.lab.check_findings import CheckFinding, shown
from penstock.lab.check_tokens import PROMPT, Tokens, chosen, columns_of, in_rows, on_policy, packed, smallest, token_cases
from penstock.learner.config import LossConfig
from penstock.learner.denominators import token_weights
from penstock.learner.losses.trial import TrialLoss, TrialTokens, TriedTokens, trial_loss, try_loss
from penstock.types import Float64Array, RlExample

Fault = tuple[str, dict[str, list[float]]]
Look = Callable[[TrialLoss, Tokens], Fault | None]

_TOLERANCE = 1e-6
_STEP = 1e-6
"""Of the differences. Losses are computed in fp64."""
_DIFFERENCE_TOLERANCE = 1e-5


def check_loss(config: LossConfig) -> tuple[CheckFinding, ...]:
    """Everything that is checked about a loss, under its settings."""
    loss, tried = trial_loss(config), token_cases()
    plain = _searched("finite", "every token gets a finite loss and gradient, also for ratios beyond all bounds", _finite, loss, tried)
    if plain.status == "failed":
        return (plain, _searched("bad_values", "NaN and infinity show in the loss, so that the update is skipped", _bad_values, loss, tried))
    return (
        plain,
        _searched("repeatable", "the same tokens give the same losses again", _repeatable, loss, tried),
        _searched("permutation", "losses follow their tokens into any order of samples", _permutation, loss, tried),
        _searched("alone", "a sample gets the same losses alone as among others, also one of a single token", _alone, loss, tried),
        _searched("packing", "the update's loss and gradient are the same in rows of any width", _packing, loss, tried),
        _searched("padding", "empty places at the end of rows change nothing", _padding, loss, tried),
        _searched("micro_batches", "the update's loss and gradient are the same row by row", _micro_batches, loss, tried),
        _searched("ranks", "the update's loss and gradient are the sum over data-parallel ranks", _ranks, loss, tried),
        _searched("on_policy_gradient", "under the sampler's weights every token is pulled by its own advantage", _on_policy, loss, tried),
        _searched("differences", "the gradient is that of the loss, by finite differences", _differences, loss, tried),
        _noted("scale", "advantages times 4 give losses times 4", _scale, loss, tried),
        _noted("shift", "only ratios count: logprobs of both sides plus 0.5 give the same gradient", _shift, loss, tried),
        _searched("unchanged_inputs", "what it is given it leaves as it is", _unchanged, loss, tried),
        _searched("bad_values", "NaN and infinity show in the loss, so that the update is skipped", _bad_values, loss, tried),
    )


def _searched(name: str, says: str, look: Look, loss: TrialLoss, tried: Sequence[Tokens]) -> CheckFinding:
    for case in tried:
        if (seen := _guarded(look, loss, case)) is not None:
            small = smallest(case, lambda other: _guarded(look, loss, other) is not None)
            # What depends on chance need not fail again; then what was seen first is shown.
            fault = _guarded(look, loss, small) or seen
            return CheckFinding(check=name, status="failed", says=fault[0], example=shown(fault[1]))
    return CheckFinding(check=name, status="ok", says=f"{says} ({len(tried)} tried)")


def _noted(name: str, says: str, look: Look, loss: TrialLoss, tried: Sequence[Tokens]) -> CheckFinding:
    """What most losses keep and none has to."""
    finding = _searched(name, says, look, loss, tried)
    return replace(finding, status="note") if finding.status == "failed" else finding


def _guarded(look: Look, loss: TrialLoss, case: Tokens) -> Fault | None:
    try:
        return look(loss, case)
    except Exception as error:  # whatever a user's own function does
        return f"raises {type(error).__name__}: {error}", _shown(columns_of(case))


def _tried(loss: TrialLoss, tokens: TrialTokens) -> TriedTokens:
    return try_loss(loss, tokens, weights_L=np.ones(len(tokens.logprobs_L)))


def _shown(tokens: TrialTokens, **more: Float64Array) -> dict[str, list[float]]:
    columns = {"sample": tokens.sample_ids_L, "logprob": tokens.logprobs_L, "behaviour": tokens.behaviour_logprobs_L, "advantage": tokens.advantages_L, **more}
    return {name: values.tolist() for name, values in columns.items()}


def _finite(loss: TrialLoss, case: Tokens) -> Fault | None:
    # Far beyond what exp can hold, in both directions.
    for far in (0.0, 800.0, -800.0):
        tokens = columns_of(case)
        tokens = replace(tokens, behaviour_logprobs_L=tokens.behaviour_logprobs_L - far)
        found = _tried(loss, tokens)
        if not np.isfinite(found.losses_L).all() or not np.isfinite(found.gradient_L).all():
            return "loss or gradient is not finite", _shown(tokens, loss=found.losses_L, gradient=found.gradient_L)
    return None


def _repeatable(loss: TrialLoss, case: Tokens) -> Fault | None:
    tokens = columns_of(case)
    first, again = _tried(loss, tokens), _tried(loss, tokens)
    return _different("the same tokens give other losses the second time", tokens, first, again, range(len(first.losses_L)))


def _permutation(loss: TrialLoss, case: Tokens) -> Fault | None:
    tokens = columns_of(case)
    whole = _tried(loss, tokens)
    # Tokens of a sample keep their order; samples change places and are mixed with each other.
    backwards = np.argsort(-tokens.sample_ids_L, kind="stable").tolist()
    turns = np.argsort(_turns(tokens), kind="stable").tolist()
    for order in (backwards, turns):
        moved = chosen(tokens, order)
        if (fault := _different("tokens get other losses in another order", moved, whole, _tried(loss, moved), order)) is not None:
            return fault
    renamed = replace(tokens, sample_ids_L=70 - 7 * tokens.sample_ids_L)
    return _different("other numbers of samples give other losses", renamed, whole, _tried(loss, renamed), range(len(whole.losses_L)))


def _turns(tokens: TrialTokens) -> Float64Array:
    """For each token how many of its sample stand before it."""
    ids = tokens.sample_ids_L.tolist()
    return np.array([float(ids[:place].count(number)) for place, number in enumerate(ids)])


def _alone(loss: TrialLoss, case: Tokens) -> Fault | None:
    tokens = columns_of(case)
    whole = _tried(loss, tokens)
    for number in range(len(case)):
        own = np.flatnonzero(tokens.sample_ids_L == number).tolist()
        part = chosen(tokens, own)
        if (fault := _different("a sample gets other losses alone than among others", part, whole, _tried(loss, part), own)) is not None:
            return fault
    return None


def _different(sentence: str, tokens: TrialTokens, whole: TriedTokens, found: TriedTokens, places: Sequence[int]) -> Fault | None:
    """The fault if `found` is not what `whole` says about the tokens at `places`."""
    order = list(places)
    if _close(found.losses_L, whole.losses_L[order]) and _close(found.gradient_L, whole.gradient_L[order]):
        return None
    return sentence, _shown(
        tokens, expected=whole.losses_L[order], found=found.losses_L, **{"expected gradient": whole.gradient_L[order], "gradient": found.gradient_L}
    )


def _packing(loss: TrialLoss, case: Tokens) -> Fault | None:
    longest = PROMPT + max(map(len, case))
    return _same_update(loss, case, "in rows of another width", [[packed(case, tokens_per_row=longest)], [packed(case, tokens_per_row=2 * longest)]])


def _padding(loss: TrialLoss, case: Tokens) -> Fault | None:
    return _same_update(loss, case, "with empty places", [[packed(case, tokens_per_row=None, padding=3)]])


def _micro_batches(loss: TrialLoss, case: Tokens) -> Fault | None:
    rows = packed(case, tokens_per_row=PROMPT + max(map(len, case)))
    return _same_update(loss, case, "in micro-batches", [list(micro_batches(rows, 1))])


def _ranks(loss: TrialLoss, case: Tokens) -> Fault | None:
    """Ranks with different numbers of tokens, each computing its rows at once or one by one, under denominators of the whole update."""
    rows = packed(case, tokens_per_row=PROMPT + max(map(len, case)))
    layouts = []
    for num_ranks in (2, 3):
        ranks = [rank_rows(rows, rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)]
        layouts += [ranks, [part for rank in ranks for part in micro_batches(rank, 1)]]
    return _same_update(loss, case, "on several ranks", layouts)


def _same_update(loss: TrialLoss, case: Tokens, where: str, layouts: Sequence[Sequence[RlExample]]) -> Fault | None:
    """The update computed in parts must be the update computed at once: the same sum, and the same pull on every token."""
    expected, pull_L = _update(loss, case, [packed(case, tokens_per_row=None)])
    for parts in layouts:
        found, gradient_L = _update(loss, case, parts)
        if not _close(np.array([found]), np.array([expected])) or not _close(gradient_L, pull_L):
            sentence = f"the update's loss is {found:.6g} {where}, and {expected:.6g} at once"
            return sentence, _shown(columns_of(case), **{"expected gradient": pull_L, "gradient": gradient_L})
    return None


def _update(loss: TrialLoss, case: Tokens, parts: Sequence[RlExample]) -> tuple[float, Float64Array]:
    """Loss of an update that is computed part by part, and its gradient by token of the batch. A part knows of the others how many tokens they have."""
    num_tokens = sum(map(len, case))
    total, gradient_L = 0.0, np.zeros(num_tokens)
    for part in parts:
        if not part.loss_mask.any():
            continue
        tokens, places = in_rows(part)
        weights_L = token_weights(part, loss.config, update_tokens=num_tokens)[part.loss_mask]
        found = try_loss(loss, tokens, weights_L=weights_L)
        total += float((found.losses_L * weights_L).sum())
        gradient_L[places] += found.gradient_L
    return total, gradient_L


def _on_policy(loss: TrialLoss, case: Tokens) -> Fault | None:
    """At ratio 1 the gradient is -A, up to one factor: every loss then is the policy gradient."""
    tokens = columns_of(on_policy(case))
    advantages_L = tokens.advantages_L
    found = _tried(loss.plain, tokens)
    size = float(advantages_L @ advantages_L)
    factor = -float(found.gradient_L @ advantages_L) / size if size else 1.0
    expected_L = -factor * advantages_L
    if (factor > 0 or not size) and _close(found.gradient_L, expected_L):
        return None
    sentence = "under the sampler's own weights the gradient is not -advantage times one factor for all tokens"
    return sentence, _shown(tokens, **{"expected gradient": -advantages_L, "gradient": found.gradient_L})


def _differences(loss: TrialLoss, case: Tokens) -> Fault | None:
    tokens = columns_of(case)
    num_tokens = len(tokens.logprobs_L)
    # Different weights, so that errors of two tokens cannot cancel.
    weights_L = 1.0 + np.arange(num_tokens) / 8
    found = try_loss(loss, tokens, weights_L=weights_L)

    def total(place: int, by: float) -> float:
        moved_L = tokens.logprobs_L.copy()
        moved_L[place] += by
        moved = try_loss(loss, replace(tokens, logprobs_L=moved_L), weights_L=weights_L, held_logprobs_L=tokens.logprobs_L)
        return float((moved.losses_L * weights_L).sum())

    middle = [total(place, 0.0) for place in range(num_tokens)]
    above_L = np.array([(total(place, _STEP) - middle[place]) / _STEP for place in range(num_tokens)])
    below_L = np.array([(middle[place] - total(place, -_STEP)) / _STEP for place in range(num_tokens)])
    # At the corner of a clip any slope between the two sides is right.
    slack_L = _DIFFERENCE_TOLERANCE * np.maximum(1.0, np.maximum(abs(above_L), abs(below_L)))
    right_L = (found.gradient_L >= np.minimum(above_L, below_L) - slack_L) & (found.gradient_L <= np.maximum(above_L, below_L) + slack_L)
    if right_L.all():
        return None
    sentence = "the gradient is not that of the loss; weights without a gradient must be made of inputs.constant_logprobs_L"
    return sentence, _shown(tokens, weight=weights_L, gradient=found.gradient_L, differences=(above_L + below_L) / 2)


def _scale(loss: TrialLoss, case: Tokens) -> Fault | None:
    tokens = columns_of(case)
    larger = replace(tokens, advantages_L=tokens.advantages_L * 4)
    expected, found = _tried(loss.plain, tokens), _tried(loss.plain, larger)
    if _close(found.losses_L, expected.losses_L * 4) and _close(found.gradient_L, expected.gradient_L * 4):
        return None
    return "advantages times 4 do not give losses times 4", _shown(larger, expected=expected.losses_L * 4, found=found.losses_L)


def _shift(loss: TrialLoss, case: Tokens) -> Fault | None:
    tokens = columns_of(case)
    moved = replace(tokens, logprobs_L=tokens.logprobs_L + 0.5, behaviour_logprobs_L=tokens.behaviour_logprobs_L + 0.5)
    expected, found = _tried(loss.plain, tokens), _tried(loss.plain, moved)
    if _close(found.gradient_L, expected.gradient_L):
        return None
    return "the gradient depends on more than ratios and advantages", _shown(moved, **{"expected gradient": expected.gradient_L, "gradient": found.gradient_L})


def _unchanged(loss: TrialLoss, case: Tokens) -> Fault | None:
    tokens = columns_of(case)
    changed = _tried(loss, tokens).changed
    return (f"changes its input {changed[0]!r}", _shown(tokens)) if changed else None


def _bad_values(loss: TrialLoss, case: Tokens) -> Fault | None:
    """What the model gives, and what credit gives; of the sampler's logprobs the learner itself makes sure before it asks the loss."""
    tokens = columns_of(case)
    for name, value in (("logprobs_L", math.nan), ("advantages_L", math.nan), ("advantages_L", math.inf)):
        spoiled_L = getattr(tokens, name).copy()
        spoiled_L[0] = value
        spoiled = replace(tokens, **{name: spoiled_L})
        try:
            found = _tried(loss, spoiled)
        except ValueError:
            continue
        if np.isfinite(found.losses_L).all():
            return f"{value} in {name} does not show in the loss", _shown(spoiled, loss=found.losses_L)
    return None


def _close(found: Float64Array, wanted: Float64Array) -> bool:
    largest = max(float(np.abs(wanted).max(initial=0.0)), float(np.abs(found).max(initial=0.0)), 1.0)
    return bool((np.abs(found - wanted) <= _TOLERANCE * largest).all())
