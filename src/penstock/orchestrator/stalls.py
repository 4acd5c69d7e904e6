"""Why nothing gets done: a sentence about who waits for what, from what the buffer and the supervisor know. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.buffer.api import EnvironmentStatus, RunStatus
from penstock.process.supervisor import PartState, PartStatus
from penstock.types import Laws


def explain_stall(status: RunStatus | None, parts: Sequence[PartStatus]) -> str:
    """Who waits for what, the most basic trouble first."""
    absent = [f"{part.name} is {part.state}{f' (last: {part.last_exit})' if part.last_exit else ''}" for part in parts if not _is_fine(part)]
    if absent:
        return "; ".join(absent)
    if status is None:
        return "the buffer does not answer, everybody waits for it"
    if status.term is None:
        return "the learner has not begun: it has taken no term"
    if status.live_version < status.newest.version:
        return f"the learner waits for the servers to take version {status.newest.version}; live is {status.live_version}"
    waits = [_explain_environment(name, found, status.laws) for name, found in status.environments.items()]
    return "; ".join(waits) or "no group was ever opened: the workers wait for a server, or have no problems"


def _is_fine(part: PartStatus) -> bool:
    return part.state in (PartState.READY, PartState.ENDED)


def _explain_environment(name: str, found: EnvironmentStatus, laws: Laws) -> str:
    groups = {state: found.groups.get(state, 0) for state in ("open", "complete", "ready", "bound")}
    held = f"{found.held_tokens} of {found.credit_tokens} credit tokens held"
    facts = f"{name}: {_counts(groups)}, {held if laws.credit_groups is None else f'{laws.credit_groups} may be under way'}"
    if groups["open"]:
        return f"{facts}; {found.members.get('pending', 0)} replies are waited for"
    if groups["complete"]:
        return f"{facts}; annotations are waited for"
    if groups["bound"]:
        return f"{facts}; the learner is at work on a batch"
    if groups["ready"]:
        return f"{facts}; they wait for the learner, or for groups of another environment"
    return f"{facts}; the workers open no group"


def _counts(groups: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in groups.items() if count) or "no groups under way"
