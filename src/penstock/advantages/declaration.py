"""What an estimator needs, read off its signature: so that credit, checks and comparisons can drive any of them, built-in or a user's own.

The positional parameters of an estimator name the columns it cannot do without, its keyword-only ones are options, or further columns: needed if they have
no default, else taken where there are any. `COLUMNS` is the vocabulary. What cannot be seen in a signature is said with `@declares`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.advantages._columns import nearest
from penstock.types import Float64Array

Estimator = Callable[..., Any]
"""A pure function on flat columns of N rows. It gives N advantages, or an object that holds them as `total` beside what they were made of."""
Column = npt.NDArray[Any] | list[Any]
Wrapped = TypeVar("Wrapped", bound=Estimator)
Scale = Literal["grows", "stays", "either"]


class RowKind(StrEnum):
    """What one row of an estimator's columns stands for."""

    EPISODE = "episode"
    """A rollout."""
    STEP = "step"
    """One reply of an agent."""
    LEVEL = "level"
    """One thinking level of a step: four rows, or one if it was not expanded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnMeaning:
    """A word of the vocabulary."""

    meaning: str
    row: RowKind = RowKind.EPISODE
    """The coarsest rows that have such a thing; finer ones repeat it."""
    example: tuple[Any, ...]
    """Of two rows."""


COLUMNS: Mapping[str, ColumnMeaning] = {
    "rewards": ColumnMeaning(meaning="reward of the row's episode", example=(1.0, 0.0)),
    "group": ColumnMeaning(meaning="label of the group that is compared with each other", example=(0, 0)),
    "lengths": ColumnMeaning(meaning="sampled tokens of the episode", example=(1.0, 2.0)),
    "greedy_rewards": ColumnMeaning(meaning="reward of a greedy try at the same problem (annotation `greedy`)", example=(0.5, 0.5)),
    "trajectory": ColumnMeaning(meaning="label of the episode", row=RowKind.STEP, example=(0, 1)),
    "step_rewards": ColumnMeaning(meaning="reward of the step alone", row=RowKind.STEP, example=(1.0, 0.0)),
    "anchor": ColumnMeaning(meaning="state that the step was taken from; None: it is not compared", row=RowKind.STEP, example=("hall", "hall")),
    "scores": ColumnMeaning(meaning="reward of the step's episode", row=RowKind.STEP, example=(1.0, 0.0)),
    "values": ColumnMeaning(meaning="a critic's value of that state", row=RowKind.STEP, example=(0.5, 0.5)),
    "confidence": ColumnMeaning(meaning="how sure the level makes the model of its action; NaN: not known", row=RowKind.LEVEL, example=(np.nan, np.nan)),
    "cost": ColumnMeaning(meaning="thinking tokens of the level", row=RowKind.LEVEL, example=(0.0, 0.0)),
    "thinking_group": ColumnMeaning(meaning="label of the step; -1: not expanded", row=RowKind.LEVEL, example=(-1, -1)),
    "chosen": ColumnMeaning(meaning="whether the level is the one that was sampled", row=RowKind.LEVEL, example=(True, True)),
    "level": ColumnMeaning(meaning="the level's number; 0: not known, of a step that was not expanded", row=RowKind.LEVEL, example=(1, 2)),
    "base": ColumnMeaning(meaning="a ready trajectory advantage", row=RowKind.LEVEL, example=(0.5, -0.5)),
    "bootstrap": ColumnMeaning(meaning="a critic's value of the state after the step", row=RowKind.STEP, example=(0.0, 0.0)),
}
"""Names of columns. A parameter with another name is an option."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a signature does not show."""

    trains_injected: bool = False
    """Loss lies on injected segments too (alternatives that a scorer scored and nobody sampled)."""
    least_reward: float | None = None
    """Rewards below this are refused."""
    batch_wide: bool = False
    """The advantages of a group may depend on the other groups of its batch."""
    scale: Scale | None = None
    """When all rewards grow by one factor, the advantages grow by it (`grows`), stay but for an eps (`stays`), or do one of the two as the options say
    (`either`). None: nothing is promised."""
    ignores_shift: bool = False
    """When all rewards rise by one amount, the advantages stay."""


def declares(
    *,
    trains_injected: bool = False,
    least_reward: float | None = None,
    batch_wide: bool = False,
    scale: Scale | None = None,
    ignores_shift: bool = False,
) -> Callable[[Wrapped], Wrapped]:
    """Decorator: say about an estimator what its signature does not show (see `Facts`). `penstock check algorithm` holds it to that.

    >>> @declares(trains_injected=True)
    ... def mine(rewards, group):
    ...     return rewards
    >>> declaration(mine).facts.trains_injected
    True
    """
    facts = Facts(trains_injected=trains_injected, least_reward=least_reward, batch_wide=batch_wide, scale=scale, ignores_shift=ignores_shift)

    def attach(function: Wrapped) -> Wrapped:
        function.facts = facts  # type: ignore[attr-defined]
        return function

    return attach


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """An estimator and what it needs."""

    name: str
    function: Estimator
    row: RowKind
    columns: tuple[str, ...]
    """Columns it cannot do without, in the order of its parameters."""
    by_keyword: tuple[str, ...] = ()
    """Those of `columns` that are given by keyword."""
    optional_columns: tuple[str, ...]
    """Columns it takes by keyword where they are known."""
    options: Mapping[str, Any]
    """Settings with their defaults; `inspect.Parameter.empty` for one that has none."""
    facts: Facts = field(default_factory=Facts)

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Refuse options that the estimator does not know, or does not accept when it is tried on two rows. ValueError."""
        for name, value in options.items():
            if name not in self.options:
                hint = f"did you mean {nearest(name, list(self.options))!r}? " if self.options else ""
                raise ValueError(f"estimator {self.name!r} has no option {name!r} (value {value!r}); {hint}It has: {', '.join(self.options) or 'none'}")
        columns = {name: list(COLUMNS[name].example) for name in (*self.columns, *self.optional_columns) if name not in ("base", "bootstrap")}
        self.apply(columns, options)

    def apply(self, columns: Mapping[str, Column], options: Mapping[str, Any] | None = None) -> Float64Array:
        """The advantage of each row. `columns` holds the needed ones, and optional ones where they are known; others are passed over. Numbers, and labels
        that are numbers, reach the estimator as arrays.

        ValueError if a needed column is missing, or if the estimator gives something else than one finite number per row.
        """
        missing = [name for name in self.columns if name not in columns]
        if missing:
            raise ValueError(f"estimator {self.name!r} needs the column {missing[0]!r} ({COLUMNS[missing[0]].meaning}), which is missing")
        needed = [_as_array(columns[name]) for name in self.columns if name not in self.by_keyword]
        named = {name: _as_array(columns[name]) for name in (*self.by_keyword, *self.optional_columns) if name in columns}
        found = self.function(*needed, **named, **(options or {}))
        try:
            advantages_N = np.asarray(getattr(found, "total", found), dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"estimator {self.name!r} gave {found!r:.80}, which is no column of numbers ({error})") from None
        num_rows = len(columns[self.columns[0]])
        if advantages_N.shape != (num_rows,):
            raise ValueError(f"estimator {self.name!r} gave shape {advantages_N.shape} for {num_rows} rows")
        if not np.isfinite(advantages_N).all():
            row = int(np.argmin(np.isfinite(advantages_N)))
            raise ValueError(f"estimator {self.name!r} gave {advantages_N[row]} for row {row}; advantages must be finite")
        return advantages_N


def declaration(function: Estimator, name: str | None = None) -> Declaration:
    """Read the signature of an estimator.

    ValueError if it cannot be driven: a positional parameter that is no column, none at all, or parameters like `*args` that say nothing.

    >>> from penstock.advantages.gigpo import gigpo
    >>> found = declaration(gigpo)
    >>> found.row, found.columns, found.optional_columns, found.options["gamma"]
    (<RowKind.STEP: 'step'>, ('step_rewards', 'trajectory', 'group', 'anchor'), ('scores',), 0.95)
    """
    name = name or str(getattr(function, "__name__", repr(function)))
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise ValueError(f"estimator {name!r} has no signature to read ({error})") from None
    columns: list[str] = []
    by_keyword: list[str] = []
    optional_columns: list[str] = []
    options: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ValueError(f"estimator {name!r} has a parameter {parameter}; name its columns and options instead")
        if parameter.kind is parameter.KEYWORD_ONLY or parameter.default is not parameter.empty:
            if parameter.name not in COLUMNS:
                options[parameter.name] = parameter.default
            elif parameter.default is parameter.empty:
                by_keyword.append(parameter.name)
            else:
                optional_columns.append(parameter.name)
        elif parameter.name in COLUMNS:
            columns.append(parameter.name)
        else:
            known = list(COLUMNS)
            raise ValueError(
                f"estimator {name!r} needs {parameter.name!r}, which is no column; did you mean {nearest(parameter.name, known)!r}? {_vocabulary()}"
            )
    if not columns:
        raise ValueError(f"estimator {name!r} takes no column; its positional parameters must name some. {_vocabulary()}")
    facts = getattr(function, "facts", None)
    return Declaration(
        name=name,
        function=function,
        row=_row_kind([*columns, *by_keyword]),
        columns=(*columns, *by_keyword),
        by_keyword=tuple(by_keyword),
        optional_columns=tuple(optional_columns),
        options=options,
        facts=facts if isinstance(facts, Facts) else Facts(),
    )


def _as_array(column: Column) -> Column:
    """Lists of numbers as an array, so that an estimator may calculate with them; text, None and what is mixed stay as they are."""
    return np.asarray(column) if isinstance(column, list) and set(map(type, column)) in ({float}, {int}, {bool}) else column


def _row_kind(columns: list[str]) -> RowKind:
    """The finest that any needed column asks for."""
    kinds = {COLUMNS[name].row for name in columns}
    return next(kind for kind in (RowKind.LEVEL, RowKind.STEP, RowKind.EPISODE) if kind in kinds)


def _vocabulary() -> str:
    return f"Columns: {', '.join(COLUMNS)}"
