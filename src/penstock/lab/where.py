"""`penstock where`: finds a group, a member or a rollout, and tells its story."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from penstock.buffer.story import Story
from penstock.errors import InexactError, UnknownError
from penstock.lab.sources import Source
from penstock.types import GroupRecord


def find_stories(sources: Sequence[Source], asked: str, run: str | None = None) -> tuple[Story, ...]:
    """The stories of whatever is named `asked`, in each run that has it. Raises `UnknownError` if none does."""
    stories, looked, refusals = [], [], []
    for source in sources:
        for name in (run,) if run is not None else source.runs():
            looked.append(name)
            try:
                stories.append(source.story(name, asked))
            except UnknownError as error:
                refusals.append(error)
    if stories:
        return tuple(stories)
    # Some run may know something that is nearly it, and say what to ask for.
    hints = refusals if len(refusals) == 1 else [refusal for refusal in refusals if isinstance(refusal, InexactError)]
    if hints:
        raise UnknownError("; ".join(map(str, hints)))
    if not looked:
        raise UnknownError(f"there is no group, member or rollout {asked!r}: nothing was stored here yet")
    raise UnknownError(f"no run has a group, member or rollout {asked!r}; looked in {', '.join(looked)}")


def describe_story(story: Story) -> str:
    """The story for people: what it is, how it stands, and what happened, line by line."""
    lines = [f"{story.kind} {story.asked} of run {story.run}", f"  {_standing(story.group)}"]
    lines += [f"  {_time(event.at)}  {event.what}" for event in story.events]
    waiting = [(member.slot.member, name) for member in story.members for found in member.tries for name in found.missing]
    lines += [f"  waits for annotation {name} of member {member}" for member, name in waiting]
    return "\n".join(lines)


def _standing(group: GroupRecord) -> str:
    reason = f" ({group.reason})" if group.reason else ""
    place = f", in archive file {group.archive}" if group.archive else ""
    lease = f", under lease {group.lease}" if group.lease else ""
    return f"group {group.id} is {group.state}{reason}: {group.usable} of {group.size} members accepted, {group.pending} awaited{lease}{place}"


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
