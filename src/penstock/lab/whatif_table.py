"""A comparison as a table for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.lab.whatif import WhatIf
from penstock.lab.whatif_stats import Comparison, Filtered, LossStats, SettingStats

_NOBODY = Filtered(rollouts=0, length=None, longest=None)
Row = tuple[str, str, str]


def describe_whatif(found: WhatIf) -> str:
    """Lines for people: what was compared, a table for everything and for each environment, and what is not in the numbers."""
    weights = "the stored logprobs" if found.checkpoint is None else f"the weights of checkpoint update_{found.checkpoint}"
    lines = [f"run {found.run}, updates {found.first_update}-{found.last_update}, losses under {weights}", f"changed: {' '.join(found.changes)}"]
    for comparison in found.comparisons:
        lines += ["", *_table(comparison)]
    return "\n".join([*lines, "", *(f"note: {note}" for note in found.notes)])


def _table(comparison: Comparison) -> list[str]:
    title = "everything" if comparison.environment is None else comparison.environment
    rows = [(f"{title}: {comparison.planned_groups} groups, {comparison.planned_rollouts} rollouts", "as run", "changed"), *_rows(comparison)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}" for row in rows]
    between = (
        f"advantages of the {comparison.tokens_in_both} tokens with loss under both: "
        f"correlation {_number(comparison.correlation)}, same sign {_share(comparison.sign_agreement)}"
    )
    return [lines[0], "-" * len(lines[0]), *lines[1:], between]


def _rows(comparison: Comparison) -> Iterator[Row]:
    before, after = comparison.as_run, comparison.changed
    for name in ("updates", "groups", "rollouts"):
        yield f"{name} used", str(getattr(before, name)), str(getattr(after, name))
    yield "sampled tokens of a rollout used, mean", _number(before.length), _number(after.length)
    yield "sampled tokens of a rollout used, most", _number(before.longest), _number(after.longest)
    for name in sorted({*before.filtered, *after.filtered}):
        old, new = before.filtered.get(name, _NOBODY), after.filtered.get(name, _NOBODY)
        yield f"rollouts filtered: {name}", str(old.rollouts), str(new.rollouts)
        yield "  their sampled tokens, mean", _number(old.length), _number(new.length)
        yield "  their sampled tokens, most", _number(old.longest), _number(new.longest)
    yield "tokens with loss", str(before.tokens), str(after.tokens)
    if before.injected_tokens or after.injected_tokens:
        yield "  that nobody sampled", str(before.injected_tokens), str(after.injected_tokens)
    for name in ("mean", "std", "min", "max"):
        yield f"advantage {name}", _number(getattr(before, f"advantage_{name}")), _number(getattr(after, f"advantage_{name}"))
    yield "rollouts with advantage 0", _share(before.zero_rollouts), _share(after.zero_rollouts)
    yield "tokens with advantage 0", _share(before.zero_tokens), _share(after.zero_tokens)
    yield from _loss_rows(before, after)


def _loss_rows(before: SettingStats, after: SettingStats) -> Iterator[Row]:
    if before.loss is None and after.loss is None:
        return
    for label, name in _LOSS_NUMBERS:
        values = [None if one.loss is None else getattr(one.loss, name) for one in (before, after)]
        if values != [None, None]:
            yield label, _number(values[0]), _number(values[1])
    for label, name in (("tokens clipped", "clip_frac"), ("effective sample size", "effective_sample_size")):
        values = [None if one.loss is None else getattr(one.loss, name) for one in (before, after)]
        yield label, _share(values[0]), _share(values[1])
    for bound in sorted({*_bounds(before.loss), *_bounds(after.loss)}):
        yield f"tokens clipped: {bound}", _share(_bounds(before.loss).get(bound)), _share(_bounds(after.loss).get(bound))


_LOSS_NUMBERS = (
    ("loss", "loss"),
    ("ratio mean", "ratio_mean"),
    ("ratio min", "ratio_min"),
    ("ratio max", "ratio_max"),
    ("kl to sampler, k1", "kl_k1"),
    ("kl to sampler, k2", "kl_k2"),
    ("kl to sampler, k3", "kl_k3"),
    ("kl to reference", "kl_reference"),
    ("entropy", "entropy"),
)


def _bounds(loss: LossStats | None) -> dict[str, float]:
    return {} if loss is None else dict(loss.clip_fracs)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value + 0.0:.4g}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
