"""Checks of estimators: what credit takes for granted about any of them. Each check looks at one batch; the first that fails is made small and shown."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.advantages import Declaration
from penstock.lab.check_cases import GAP_COLUMNS, NUMBER_COLUMNS, RARE_COLUMNS, REWARD_COLUMNS, Case, Key, cases, columns_of, interleaved, keys_of, smallest
from penstock.lab.check_findings import CheckFinding, shown

Options = Mapping[str, Any]
Columns = dict[str, list[Any]]
Fault = tuple[str, Columns]
"""What is wrong, and the columns that show it."""

_TOLERANCE = 1e-6
"""Relative to the largest advantage; an estimator may calculate in fp32."""
_SCALE_TOLERANCE = 1e-4
"""With an eps in the denominator an advantage changes a little with the scale."""
_SPARE = 4
"""Where one batch shows as much as another, every so many are tried."""
_FACTOR, _SHIFT = 4.0, 8.0
"""Powers of two: they change no digit of the rewards."""


class _Trial:
    """An estimator with its settings, and the columns that it is given."""

    def __init__(self, declared: Declaration, options: Options, asked: Sequence[str]) -> None:
        self.declared, self.options, self.asked = declared, options, asked
        self._found: dict[Case, list[float]] = {}

    def keys(self, case: Case) -> list[Key]:
        return keys_of(case, self.declared.row)

    def columns(self, case: Case, keys: Sequence[Key] | None = None) -> Columns:
        return columns_of(case, self.keys(case) if keys is None else keys, self.asked)

    def values(self, columns: Mapping[str, Any]) -> list[float]:
        """The advantages. ValueError as `Declaration.apply`."""
        # A warning of numpy says nothing that the values do not say.
        with np.errstate(all="ignore"):
            return list(map(float, self.declared.apply({name: _fresh(column) for name, column in columns.items()}, self.options)))

    def of_case(self, case: Case) -> list[float]:
        """The advantages of a batch as it is, which most checks compare with: computed once."""
        if case not in self._found:
            self._found[case] = self.values(self.columns(case))
        return self._found[case]


Look = Callable[[_Trial, Case], Fault | None]


def check_estimator(declared: Declaration, options: Options) -> tuple[CheckFinding, ...]:
    """Everything that is checked about an estimator, in an order in which later checks may rely on earlier ones."""
    trial = _Trial(declared, options, [name for name in (*declared.columns, *declared.optional_columns) if name not in RARE_COLUMNS])
    tried = cases(declared.row, least_reward=declared.facts.least_reward)
    plain = _searched("finite", "every row gets one finite number, for groups of every size", _finite, trial, tried)
    if plain.status == "failed":
        # On what it cannot compute there is nothing further to compare.
        return (plain, *_inputs(trial, tried))
    return (
        plain,
        _searched("single_group", _single_says(trial), _single, trial, [case for case in tried if _smallest_group(case) == 1]),
        _searched("constant_group", _constant_says(trial), _constant, trial, [case for case in tried if _is_constant(case)]),
        _searched("partial_groups", "a member that is missing changes nothing for other groups", _partial, trial, tried),
        _searched("repeatable", "the same batch gives the same advantages again", _repeatable, trial, tried),
        _searched("permutation", "advantages follow their rows into any order", _permutation, trial, tried),
        _searched("labels", "what groups and trajectories are called does not matter", _labels, trial, tried),
        _split(trial, tried),
        _scale(trial, tried),
        _shift(trial, tried),
        *(_optional(trial, name, tried) for name in declared.optional_columns),
        *_inputs(trial, tried),
    )


def _optional(trial: _Trial, name: str, tried: Sequence[Case]) -> CheckFinding:
    """A column that need not be there: without it, or with one that is rare, the rest must hold as well."""
    is_rare = name in RARE_COLUMNS
    other = _Trial(trial.declared, trial.options, [*trial.asked, name] if is_rare else [asked for asked in trial.asked if asked != name])
    check = f"{'with' if is_rare else 'without'}_{name}"
    try:
        other.of_case(tried[-1])
    except ValueError as error:
        if not is_rare:
            return CheckFinding(check=check, status="note", says=f"needs it under these settings: {error}")
    except Exception:  # whatever a user's own function does; found again below, with the smallest batch
        pass
    looks: list[Look] = [_finite, _permutation, _labels]
    if not trial.declared.facts.batch_wide:
        looks.append(_alone)
    if is_rare:
        looks.append(lambda trial, case: _spoiled(trial, case, name))

    def look(trial: _Trial, case: Case) -> Fault | None:
        return next((fault for look in looks if (fault := look(trial, case)) is not None), None)

    return _searched(check, "finite, in any order, under any names, alone as in the batch", look, other, tried[::_SPARE])


def _inputs(trial: _Trial, tried: Sequence[Case]) -> tuple[CheckFinding, ...]:
    return (
        _searched("unchanged_inputs", "what it is given it leaves as it is", _unchanged, trial, tried),
        _searched("empty_input", "no rows give no advantages, or a ValueError", _empty, trial, tried[:1]),
        _searched("bad_values", "NaN and infinity end in a ValueError, wherever numbers are asked for", _bad_values, trial, tried[::_SPARE]),
        _searched("bad_lengths", "columns of different lengths end in a ValueError", _bad_lengths, trial, tried[::_SPARE]),
        *([_searched("least_reward", "rewards below the declared least end in a ValueError", _least, trial, tried)] if _has_least(trial) else []),
    )


def _searched(name: str, says: str, look: Look, trial: _Trial, tried: Sequence[Case]) -> CheckFinding:
    """A finding over all batches; the first that fails is made small."""
    for case in tried:
        if (seen := _guarded(look, trial, case)) is not None:
            small = smallest(case, lambda other: _guarded(look, trial, other) is not None)
            # What depends on chance need not fail again; then what was seen first is shown.
            fault = _guarded(look, trial, small) or seen
            return CheckFinding(check=name, status="failed", says=fault[0], example=shown(fault[1]))
    return CheckFinding(check=name, status="ok", says=f"{says} ({len(tried)} tried)")


def _guarded(look: Look, trial: _Trial, case: Case) -> Fault | None:
    """What a look finds; an exception that is not meant is a fault as well."""
    try:
        return look(trial, case)
    except Exception as error:  # whatever a user's own function does
        return f"raises {type(error).__name__}: {error}", trial.columns(case)


def _finite(trial: _Trial, case: Case) -> Fault | None:
    trial.of_case(case)  # raises for a wrong shape and for what is not finite
    return None


def _promises_zero(trial: _Trial) -> bool:
    """Where only differences count. Thinking levels differ even where rewards do not, and a greedy try may differ from all of them."""
    return trial.declared.facts.ignores_shift and not {"confidence", "greedy_rewards"} & set(trial.asked)


def _constant_says(trial: _Trial) -> str:
    return "where all rewards are alike nobody gets credit" if _promises_zero(trial) else "where all rewards are alike the numbers are finite"


def _constant(trial: _Trial, case: Case) -> Fault | None:
    found = trial.of_case(case)
    if _is_constant(case) and _promises_zero(trial) and max(map(abs, found), default=0.0) > _TOLERANCE:
        return "all rewards are alike, and some rows get credit", {**trial.columns(case), "found": found}
    return None


def _single_says(trial: _Trial) -> str:
    return "a group of one gets no credit" if _compares_groups(trial) else "a group of one gets a finite number"


def _compares_groups(trial: _Trial) -> bool:
    """Whether nobody gets credit who has nobody to be compared with."""
    return _promises_zero(trial) and not trial.declared.facts.batch_wide


def _single(trial: _Trial, case: Case) -> Fault | None:
    found = trial.of_case(case)
    alone = [value for (place, _, _), value in zip(trial.keys(case), found, strict=True) if _size_of_group(case, place) == 1]
    if _compares_groups(trial) and max(map(abs, alone), default=0.0) > _TOLERANCE:
        return "a group of one gets credit, though shifts of rewards do not count", {**trial.columns(case), "found": found}
    return None


def _partial(trial: _Trial, case: Case) -> Fault | None:
    """The batch without its last member, whose group has others."""
    if trial.declared.facts.batch_wide or _size_of_group(case, -1) < 2:
        return None
    keys = trial.keys(case)
    whole, without = (dict(zip(trial.keys(some), trial.of_case(some), strict=True)) for some in (case, case[:-1]))
    others = [key for key in keys if case[key[0]].group != case[-1].group]
    if _close([without[key] for key in others], [whole[key] for key in others]):
        return None
    shown_without = [f"{without[key]:.6g}" if key in without else "" for key in keys]
    sentence = "when the last member is missing, other groups get other advantages"
    return sentence, {**trial.columns(case), "in the batch": list(whole.values()), "without the last": shown_without}


def _repeatable(trial: _Trial, case: Case) -> Fault | None:
    first, again = (trial.values(trial.columns(case)) for _ in range(2))
    return None if first == again else ("the same batch gives other advantages the second time", {**trial.columns(case), "first": first, "again": again})


def _permutation(trial: _Trial, case: Case) -> Fault | None:
    keys = trial.keys(case)
    expected = dict(zip(keys, trial.of_case(case), strict=True))
    for seed in range(3):
        order = interleaved(case, keys, seed)
        columns = trial.columns(case, order)
        found = trial.values(columns)
        wanted = [expected[key] for key in order]
        if not _close(found, wanted):
            return "rows get other advantages in another order", {**columns, "expected": wanted, "found": found}
    return None


def _labels(trial: _Trial, case: Case) -> Fault | None:
    columns = trial.columns(case)
    wanted = trial.values(columns)
    for rename in (lambda label: f"name {label}", lambda label: 10**12 - 7 * label):
        renamed = {name: [rename(label) for label in column] if name in ("group", "trajectory") else column for name, column in columns.items()}
        found = trial.values(renamed)
        if not _close(found, wanted):
            return "other names of groups give other advantages", {**renamed, "expected": wanted, "found": found}
    return None


def _split(trial: _Trial, tried: Sequence[Case]) -> CheckFinding:
    says = "a group gets the same alone, in a micro-batch, on its own rank and in the whole batch"
    finding = _searched("split", says, _alone, trial, tried)
    if finding.status == "failed" and trial.declared.facts.batch_wide:
        return CheckFinding(check="split", status="note", says="depends on the other groups of the batch, as it declares: give it whole batches")
    return finding


def _alone(trial: _Trial, case: Case) -> Fault | None:
    keys = trial.keys(case)
    whole = dict(zip(keys, trial.of_case(case), strict=True))
    for group in sorted({episode.group for episode in case}):
        own = [key for key in keys if case[key[0]].group == group]
        found, wanted = trial.values(trial.columns(case, own)), [whole[key] for key in own]
        if not _close(found, wanted):
            alone = dict(zip(own, found, strict=True))
            shown_alone = [f"{alone[key]:.6g}" if key in alone else "" for key in keys]
            sentence = "a group gets other advantages alone than in its batch; an estimator that means it says @declares(batch_wide=True)"
            return sentence, {**trial.columns(case), "in the batch": list(whole.values()), "alone": shown_alone}
    return None


def _scale(trial: _Trial, tried: Sequence[Case]) -> CheckFinding:
    promised = trial.declared.facts.scale
    grows = _searched("scale", f"rewards times {_FACTOR:g} give advantages times {_FACTOR:g}", _scaled_by(_FACTOR), trial, tried)
    stays = _searched("scale", f"rewards times {_FACTOR:g} give the same advantages", _scaled_by(1.0), trial, tried)
    if promised == "grows":
        return grows
    if promised == "stays":
        return stays
    held = next((finding for finding in (grows, stays) if finding.status == "ok"), None)
    if held is not None:
        return held if promised == "either" else _note(held)
    return stays if promised == "either" else CheckFinding(check="scale", status="note", says="neither grows with the rewards nor stays; nothing is declared")


def _scaled_by(factor: float) -> Look:
    def look(trial: _Trial, case: Case) -> Fault | None:
        columns = trial.columns(case)
        scaled = {name: [value * _FACTOR for value in column] if name in REWARD_COLUMNS else column for name, column in columns.items()}
        wanted, found = [value * factor for value in trial.values(columns)], trial.values(scaled)
        if _close(found, wanted, _SCALE_TOLERANCE):
            return None
        return f"rewards times {_FACTOR:g} do not give advantages times {factor:g}", {**scaled, "expected": wanted, "found": found}

    return look


def _shift(trial: _Trial, tried: Sequence[Case]) -> CheckFinding:
    finding = _searched("shift", f"rewards plus {_SHIFT:g} give the same advantages", _shifted, trial, tried)
    if trial.declared.facts.ignores_shift:
        return finding
    if finding.status == "ok":
        return _note(finding)
    return CheckFinding(check="shift", status="note", says="advantages change when all rewards rise by one amount; nothing else is declared")


def _shifted(trial: _Trial, case: Case) -> Fault | None:
    keys, columns = trial.keys(case), trial.columns(case)
    moved = {name: [value + _SHIFT for value in column] if name in ("rewards", "scores", "greedy_rewards") else column for name, column in columns.items()}
    if "step_rewards" in moved:
        last = [step == len(case[place].steps) - 1 for place, step, _ in keys]
        moved["step_rewards"] = [value + _SHIFT * is_last for value, is_last in zip(moved["step_rewards"], last, strict=True)]
    wanted, found = trial.values(columns), trial.values(moved)
    if _close(found, wanted):
        return None
    return f"rewards plus {_SHIFT:g} give other advantages", {**moved, "expected": wanted, "found": found}


def _unchanged(trial: _Trial, case: Case) -> Fault | None:
    given = {name: _fresh(column) for name, column in trial.columns(case).items()}
    before = copy.deepcopy(given)
    try:
        with np.errstate(all="ignore"):
            trial.declared.apply(given, trial.options)
    except ValueError:
        pass  # found by another check
    for name, column in given.items():
        if not _same(before[name], column):
            return f"changes its input {name!r}", {f"{name} before": list(before[name]), f"{name} after": list(column)}
    return None


def _empty(trial: _Trial, case: Case) -> Fault | None:
    try:
        trial.values({name: [] for name in trial.asked})
    except ValueError:
        pass
    except Exception as error:  # whatever a user's own function does
        return f"no rows at all raise {type(error).__name__}: {error}", {}
    return None


def _bad_values(trial: _Trial, case: Case) -> Fault | None:
    return next((fault for name in trial.asked if (fault := _spoiled(trial, case, name)) is not None), None)


def _spoiled(trial: _Trial, case: Case, name: str) -> Fault | None:
    if name not in NUMBER_COLUMNS and name not in GAP_COLUMNS:
        return None
    columns = trial.columns(case)
    for value in (math.inf, -math.inf) if name in GAP_COLUMNS else (math.nan, math.inf, -math.inf):
        if (fault := _must_refuse(trial, {**columns, name: [value, *columns[name][1:]]}, f"{value} in {name!r}")) is not None:
            return fault
    return None


def _bad_lengths(trial: _Trial, case: Case) -> Fault | None:
    columns = trial.columns(case)
    if len(columns[trial.declared.columns[0]]) < 2:
        return None
    for name in trial.asked[1:]:
        if (fault := _must_refuse(trial, {**columns, name: columns[name][:-1]}, f"a value of {name!r} too few")) is not None:
            return fault
    return None


def _has_least(trial: _Trial) -> bool:
    return trial.declared.facts.least_reward is not None and "rewards" in trial.asked


def _least(trial: _Trial, case: Case) -> Fault | None:
    columns = trial.columns(case)
    least = trial.declared.facts.least_reward
    assert least is not None
    return _must_refuse(trial, {**columns, "rewards": [least - 1.0, *columns["rewards"][1:]]}, f"a reward below {least:g}")


def _must_refuse(trial: _Trial, columns: Columns, what: str) -> Fault | None:
    try:
        found = trial.values(columns)
    except ValueError:
        return None
    except Exception as error:  # whatever a user's own function does
        return f"{what} raises {type(error).__name__} and no ValueError: {error}", columns
    return f"{what} is taken without a word", {**columns, "found": found}


def _note(finding: CheckFinding) -> CheckFinding:
    return CheckFinding(check=finding.check, status="note", says=finding.says)


def _fresh(column: Any) -> Any:
    """Numbers as an array of its own, which can be changed; everything else as a list of its own."""
    return np.array(column) if set(map(type, column)) in ({float}, {int}, {bool}) else list(column)


def _same(before: Any, after: Any) -> bool:
    if isinstance(before, np.ndarray) and before.dtype.kind == "f":
        return bool(np.array_equal(before, after, equal_nan=True))
    return list(before) == list(after)


def _close(found: Sequence[float], wanted: Sequence[float], tolerance: float = _TOLERANCE) -> bool:
    largest = max((abs(value) for value in (*found, *wanted)), default=0.0)
    return all(abs(one - other) <= tolerance * max(1.0, largest) for one, other in zip(found, wanted, strict=True))


def _size_of_group(case: Case, place: int) -> int:
    return sum(episode.group == case[place].group for episode in case)


def _smallest_group(case: Case) -> int:
    return min(_size_of_group(case, place) for place in range(len(case)))


def _is_constant(case: Case) -> bool:
    return len({episode.reward for episode in case}) == 1
