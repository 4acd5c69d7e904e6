"""A conversation as it grows: messages as people read them, tokens as models do, both in one trace."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from penstock.chat import ChatTemplate, Known, Piece
from penstock.errors import InvalidError
from penstock.rollout.policy import Action
from penstock.trace import Recorder, Tokens, checked_tokens
from penstock.types import Int32Array, Json, Message, Source, StepFacts, Trace

_CACHED_PROMPTS = 1024

K = TypeVar("K")


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """A piece of what a template makes of messages, checked once and recorded as often as it comes."""

    tokens: Tokens
    message_index: int | None
    """Which of the messages it spells; None for what the template wrote around them."""


class Prompts:
    """A chat template that remembers how the last conversations opened and went on: the members of a group open alike, and see the same again and again."""

    def __init__(self, template: ChatTemplate) -> None:
        self.template = template
        self._opened: OrderedDict[tuple[Message, ...], tuple[Shown, ...]] = OrderedDict()
        self._deltas: OrderedDict[tuple[tuple[Message, ...], int], tuple[Shown, ...]] = OrderedDict()

    def open(self, messages: tuple[Message, ...], tools: tuple[Json, ...] = ()) -> tuple[Shown, ...]:
        """What `ChatTemplate.open` gives."""
        if tools or any(message.tool_calls for message in messages):  # JSON objects cannot be looked up
            return _shown(self.template.open(messages, tools or None).pieces)
        known = self._opened.get(messages)
        if known is None:
            known = _remember(self._opened, messages, _shown(self.template.open(messages).pieces))
        return known

    def delta(self, last_id: int, messages: tuple[Message, ...], reply: Message, tools: tuple[Json, ...] = ()) -> tuple[Shown, ...] | None:
        """What `ChatTemplate.delta` gives; None if the conversation must be forked instead."""
        if tools or reply.tool_calls or any(message.tool_calls or message.role == "tool" for message in messages):
            return self._delta(last_id, messages, reply, tools)
        key = messages, last_id
        known = self._deltas.get(key)
        if known is None:
            known = self._delta(last_id, messages, reply, ())
            if known is not None and self.template.extends(messages):  # whatever the reply was
                _remember(self._deltas, key, known)
        return known

    def _delta(self, last_id: int, messages: tuple[Message, ...], reply: Message, tools: tuple[Json, ...]) -> tuple[Shown, ...] | None:
        if not self.template.extends(messages, reply):
            return None
        return _shown(self.template.delta(last_id, messages, tools or None, reply=reply).pieces)


def _shown(pieces: Sequence[Piece]) -> tuple[Shown, ...]:
    return tuple(Shown(checked_tokens(piece.ids, piece.source), piece.message_index) for piece in pieces)


def _remember(known: OrderedDict[K, tuple[Shown, ...]], key: K, shown: tuple[Shown, ...]) -> tuple[Shown, ...]:
    known[key] = shown
    if len(known) > _CACHED_PROMPTS:
        known.popitem(last=False)
    return shown


@dataclass(frozen=True, slots=True, eq=False)
class _Said:
    """Tokens of a reply that stand in the conversation."""

    ids: Int32Array


class Dialogue:
    """Belongs to one episode. `see` what the environment says, `say` what the agent does, in turns; tokens are only ever added.

    Without `prompts` nobody here knows how messages become tokens: those that a server reports with its replies are recorded, and no others.
    """

    def __init__(self, prompts: Prompts | None, tools: tuple[Json, ...] = ()) -> None:
        self._prompts = prompts
        self._tools = tools
        self._recorder = Recorder()
        self._known: list[Known] = []
        """The tokens on the path to the tip."""
        self._trace: Trace | None = None
        """None if something was recorded since somebody looked."""
        self.messages: tuple[Message, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Of the conversation as the model sees it."""
        return self._recorder.num_tokens

    def ids(self) -> Int32Array:
        """What the next reply continues."""
        return self._recorder.ids()

    def trace(self) -> Trace:
        """What was recorded so far."""
        if self._trace is None:
            self._trace = self._recorder.trace()
        return self._trace

    def see(self, messages: Sequence[Message], timestamp: int | None = None) -> None:
        """Add messages of the environment.

        Where the template would show what came before in another form (without its thinking, say), the trace forks there; what was sampled stays on its
        own branch and is trained on there.
        """
        new = tuple(messages)
        self._trace = None
        if not new:
            raise InvalidError("the environment neither said anything nor ended the episode")
        old, self.messages = self.messages, self.messages + new
        if self._prompts is None:
            self._mark_silent(new, timestamp)
            return
        shown = self._prompts.open(new, self._tools) if not old else self._prompts.delta(int(self._known[-1].ids[-1]), new, old[-1], self._tools)
        if shown is not None:
            self._record(shown, new, 0, timestamp)
            return
        fork = self._prompts.template.refork(self.messages, self._known, self._tools or None)
        self._keep(fork.keep)
        # Older messages that are shown again carry no mark: they were said once.
        self._record(_shown(fork.pieces), new, len(old), timestamp)

    def say(self, action: Action, timestamp: int | None = None) -> int:
        """Add what the agent did, and give the number of its message in the trace."""
        recorder, reply, self._trace = self._recorder, action.reply, None
        if action.prompt_ids is not None:
            self._adopt(action.prompt_ids)
        recorder.open_message()
        if reply is not None:
            tokens = checked_tokens(reply.ids, Source.SAMPLED, logprobs=reply.logprobs, versions=reply.versions)
            self._known.append(tokens)
            recorder.append_checked(tokens)
        elif self._prompts is not None:
            self._inject(self._prompts.template, action.message)
        self.messages = (*self.messages, action.message)
        return recorder.close_message(action.message, inference=None if reply is None else reply.metadata, timestamp=timestamp)

    def judge(self, mark: int, *, reward: float | None, step: StepFacts | None = None) -> None:
        """Add to a message of the agent what the environment made of it."""
        self._trace = None
        self._recorder.attach(mark, reward=reward, step=step)

    def _inject(self, template: ChatTemplate, message: Message) -> None:
        ids = np.concatenate([template.encode_text(_spelled(message)), np.array(template.eos_ids[:1], np.int32)])
        self._known.append(_Said(ids))
        self._recorder.append(ids, Source.INJECTED)

    def _adopt(self, prompt_ids: Int32Array) -> None:
        """Make these the tokens that the reply continues: what a server computed on is the truth, whatever was expected."""
        known = self._recorder.ids()
        length = min(len(known), len(prompt_ids))
        different = np.flatnonzero(known[:length] != prompt_ids[:length])
        shared = int(different[0]) if len(different) else length
        if shared < len(known):
            self._keep(shared)
        if shared < len(prompt_ids):
            self._known.append(_Said(prompt_ids[shared:]))
            self._recorder.append(prompt_ids[shared:], Source.TEMPLATE)

    def _keep(self, num_tokens: int) -> None:
        """Go back to the first `num_tokens` tokens."""
        self._recorder.rewind(num_tokens)
        kept: list[Known] = []
        for known in self._known:
            if num_tokens > 0:
                kept.append(_Said(known.ids[:num_tokens]))
                num_tokens -= len(kept[-1].ids)
        self._known = kept

    def _record(self, shown: Sequence[Shown], new: Sequence[Message], first: int, timestamp: int | None) -> None:
        """Append pieces; those that spell a new message (their indices count from `first`) are marked as it. A message without any is marked too."""
        recorder, num_marked = self._recorder, 0
        for piece in shown:
            self._known.append(piece.tokens)
            index = -1 if piece.message_index is None else piece.message_index - first
            if index < num_marked:
                recorder.append_checked(piece.tokens)
                continue
            self._mark_silent(new[num_marked:index], timestamp)
            recorder.open_message()
            recorder.append_checked(piece.tokens)
            recorder.close_message(new[index], timestamp=timestamp)
            num_marked = index + 1
        self._mark_silent(new[num_marked:], timestamp)

    def _mark_silent(self, messages: Sequence[Message], timestamp: int | None) -> None:
        for message in messages:
            self._recorder.open_message()
            self._recorder.close_message(message, timestamp=timestamp)


def _spelled(message: Message) -> str:
    """What a model would have written to say it: calls of tools as text."""
    calls = []
    for call in message.tool_calls:
        arguments = call["function"]["arguments"]
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        calls.append(f'<tool_call>{{"name": {json.dumps(call["function"]["name"], ensure_ascii=False)}, "arguments": {text}}}</tool_call>')
    return message.content + "".join(calls)
