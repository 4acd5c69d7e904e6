"""Demonstrations as tokens, in the form that episodes have: the prompt as the template opens it, the reply with the token that ends it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from penstock.chat import ChatTemplate
from penstock.types import Message, Problem


def tokenized(template: ChatTemplate, pairs: Iterable[tuple[Problem, str]]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(prompt ids, reply ids) for each problem and answer; see `penstock.models.Demonstration`."""
    for problem, answer in pairs:
        yield tuple(template.open(opening_messages(problem)).ids.tolist()), (*template.encode_text(answer).tolist(), template.eos_ids[0])


def tokenized_turns(template: ChatTemplate, episodes: Iterable[Sequence[tuple[str, str]]]) -> Iterator[tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]]:
    """For each episode of (what is shown, what is done), the turns as (ids that were added, reply ids): all of them one after another are the episode."""
    for episode in episodes:
        turns: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        done = None
        for shown, action in episode:
            message = Message(role="user", content=shown)
            rendered = template.open([message]) if done is None else template.delta(template.eos_ids[0], [message], reply=done)
            turns.append((tuple(rendered.ids.tolist()), (*template.encode_text(action).tolist(), template.eos_ids[0])))
            done = Message(role="assistant", content=action)
        yield tuple(turns)


def opening_messages(problem: Problem) -> tuple[Message, ...]:
    """A problem's prompt as messages: a text is the user's."""
    return (Message(role="user", content=problem.prompt),) if isinstance(problem.prompt, str) else tuple(problem.prompt)
