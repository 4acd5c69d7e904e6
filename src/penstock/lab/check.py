"""`penstock check algorithm`: holds an estimator or a loss, built in or a user's own, to what credit and the learner take for granted."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Literal

from penstock.advantages import COLUMNS, ESTIMATORS, declaration, estimator
from penstock.advantages.registry import ENTRY_POINTS as ESTIMATOR_ENTRY_POINTS
from penstock.config import load
from penstock.config.plugins import check_part_name
from penstock.errors import ConfigError
from penstock.lab.check_findings import CheckFinding
from penstock.learner.config import LOSS_ENTRY_POINTS, LOSS_NAMES, LossConfig

Kind = Literal["estimator", "loss"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """What was found about one algorithm."""

    name: str
    kind: Kind
    findings: tuple[CheckFinding, ...]

    @property
    def failed(self) -> tuple[CheckFinding, ...]:
        """What is wrong."""
        return tuple(finding for finding in self.findings if finding.status == "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """Settings of an estimator, as they stand on a command line."""

    options: dict[str, str | int | float | bool] = field(default_factory=dict)


def check_algorithm(name: str, words: Sequence[str] = ()) -> CheckReport:
    """Try the estimator or loss `name` with the settings `key=value` in `words` (for an estimator its options, for a loss the keys of `algorithm.loss`).

    Raises `ConfigError` if nothing has that name, or if it cannot be driven at all.
    """
    with warnings.catch_warnings():
        # A warning of numpy says nothing that the findings do not say, and does not say of which batch.
        warnings.simplefilter("ignore", RuntimeWarning)
        return _report(name, words)


def _report(name: str, words: Sequence[str]) -> CheckReport:
    if kind_of(name) == "loss":
        from penstock.lab.check_losses import check_loss

        config = load(f"name: {name!r}", words, LossConfig)
        return CheckReport(name=name, kind="loss", findings=check_loss(config))
    from penstock.lab.check_estimators import check_estimator

    options = load("", [f"options.{word}" for word in words], _Options).options
    try:
        declared = declaration(estimator(name), name)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    unknown = sorted(options.keys() - declared.options.keys())
    if unknown:
        raise ConfigError(f"estimator {name!r} has no option {unknown[0]!r}; it has: {', '.join(declared.options) or 'none'}")
    return CheckReport(name=name, kind="estimator", findings=check_estimator(declared, options))


def kind_of(name: str) -> Kind:
    """Whether a name is that of an estimator or of a loss. One that both have is the estimator's.

    A `module:function` is a loss if it takes two arguments of which none is a column of estimators. Raises `ConfigError` if nothing has the name.
    """
    if name in ESTIMATORS or name in _offered(ESTIMATOR_ENTRY_POINTS):
        return "estimator"
    if name in LOSS_NAMES or name in _offered(LOSS_ENTRY_POINTS):
        return "loss"
    if ":" not in name:
        known = [*ESTIMATORS, *LOSS_NAMES, *sorted(_offered(ESTIMATOR_ENTRY_POINTS) | _offered(LOSS_ENTRY_POINTS))]
        check_part_name(name, known, ESTIMATOR_ENTRY_POINTS, key="algorithm")
    try:
        parameters = inspect.signature(estimator(name)).parameters.values()
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error)) from None
    needed = [parameter.name for parameter in parameters if parameter.default is parameter.empty and parameter.kind is not parameter.KEYWORD_ONLY]
    return "loss" if len(needed) == 2 and not set(needed) & COLUMNS.keys() else "estimator"


def describe_check(report: CheckReport) -> str:
    """The report for people."""
    lines = [f"{report.kind} {report.name}"]
    for finding in report.findings:
        mark = {"ok": "ok", "failed": "FAILED", "note": "note"}[finding.status]
        lines.append(f"{mark:<8}{finding.check:<20}{finding.says}")
        lines += [f"            {line}" for line in finding.example]
    lines.append(f"{len(report.failed)} of {len(report.findings)} checks failed" if report.failed else f"{len(report.findings)} checks, nothing is wrong")
    return "\n".join(lines)


def _offered(group: str) -> set[str]:
    return {point.name for point in entry_points(group=group)}
