"""Demonstrations as tokens, in the form that episodes have: the prompt as the template opens it, the reply with the token that ends it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.chat import ChatTemplate
from penstock.types import Message, Problem


def tokenized(template: ChatTemplate, pairs: Iterable[tuple[Problem, str]]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(prompt ids, reply ids) for each problem and answer; see `penstock.models.Demonstration`."""
    for problem, answer in pairs:
        yield tuple(template.open(opening_messages(problem)).ids.tolist()), (*template.encode_text(answer).tolist(), template.eos_ids[0])


def opening_messages(problem: Problem) -> tuple[Message, ...]:
    """A problem's prompt as messages: a text is the user's."""
    return (Message(role="user", content=problem.prompt),) if isinstance(problem.prompt, str) else tuple(problem.prompt)
