"""A conversation as it grows: messages as people read them, tokens as models do, both in one trace."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.chat import ChatTemplate, Known, Piece, Rendered
from penstock.errors import InvalidError
from penstock.rollout.policy import Action
from penstock.trace import Recorder
from penstock.types import Int32Array, Json, Message, Source, StepFacts, Trace

_CACHED_PROMPTS = 1024


class Prompts:
    """A chat template that remembers how the last conversations opened: the members of a group open alike."""

    def __init__(self, template: ChatTemplate) -> None:
        self.template = template
        self._known: OrderedDict[tuple[Message, ...], Rendered] = OrderedDict()
        self._deltas: OrderedDict[tuple[tuple[Message, ...], int], tuple[Piece, ...]] = OrderedDict()

    def open(self, messages: tuple[Message, ...], tools: tuple[Json, ...] = ()) -> Rendered:
        """As `ChatTemplate.open`."""
        if tools or any(message.tool_calls for message in messages):  # JSON objects cannot be looked up
            return self.template.open(messages, tools or None)
        known = self._known.get(messages)
        if known is None:
            known = self._known[messages] = self.template.open(messages)
            if len(self._known) > _CACHED_PROMPTS:
                self._known.popitem(last=False)
        return known

    def delta(self, last_id: int, messages: tuple[Message, ...], reply: Message, tools: tuple[Json, ...] = ()) -> tuple[Piece, ...]:
        """The pieces of `ChatTemplate.delta`. Members of a group see the same again and again, and what they see is rendered once."""
        if tools or reply.tool_calls or any(message.tool_calls or message.role == "tool" for message in messages) or not self.template.extends(messages):
            return self.template.delta(last_id, messages, tools or None, reply=reply).pieces
        key = messages, last_id
        known = self._deltas.get(key)
        if known is None:
            known = self._deltas[key] = self.template.delta(last_id, messages, reply=reply).pieces
            if len(self._deltas) > _CACHED_PROMPTS:
                self._deltas.popitem(last=False)
        return known


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
        template, tools, first = self._prompts.template, self._tools or None, 0
        if not old:
            pieces = self._prompts.open(new, self._tools).pieces
        elif template.extends(new, old[-1]):
            pieces = self._prompts.delta(int(self._known[-1].ids[-1]), new, old[-1], self._tools)
        else:
            fork = template.refork(self.messages, self._known, tools)
            self._keep(fork.keep)
            # Older messages that are shown again carry no mark: they were said once.
            pieces, first = fork.pieces, len(old)
        self._record(pieces, new, first, timestamp)

    def say(self, action: Action, timestamp: int | None = None) -> int:
        """Add what the agent did, and give the number of its message in the trace."""
        recorder, reply, self._trace = self._recorder, action.reply, None
        if action.prompt_ids is not None:
            self._adopt(action.prompt_ids)
        recorder.open_message()
        if reply is not None:
            self._known.append(_Said(reply.ids))
            recorder.append(reply.ids, Source.SAMPLED, logprobs=reply.logprobs, versions=reply.versions)
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

    def _record(self, pieces: Sequence[Piece], new: Sequence[Message], first: int, timestamp: int | None) -> None:
        """Append pieces; those that spell a new message (their indices count from `first`) are marked as it. A message without any is marked too."""
        num_marked = 0
        for piece in pieces:
            self._known.append(piece)
            index = -1 if piece.message_index is None else piece.message_index - first
            if index < num_marked:
                self._recorder.append(piece.ids, piece.source)
                continue
            self._mark_silent(new[num_marked:index], timestamp)
            self._recorder.open_message()
            self._recorder.append(piece.ids, piece.source)
            self._recorder.close_message(new[index], timestamp=timestamp)
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
