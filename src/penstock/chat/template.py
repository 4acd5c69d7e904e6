"""A model's chat template and tokenizer as one thing: messages in, token ids out, by what is added and not by what is already there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import takewhile
from pathlib import Path

import msgspec
import xxhash

from penstock.chat.files import TemplateFiles, read_files
from penstock.chat.forks import fork
from penstock.chat.frames import Frame
from penstock.chat.history import PROBE, examine, keeps_reply, tool_call_turn, trials
from penstock.chat.messages import check_messages, check_text
from penstock.chat.pieces import Fork, Known, Piece, Rendered, Reply, Rewrite, joined_ids, shifted, without_first
from penstock.chat.renderer import Renderer, TemplateSource
from penstock.chat.spans import Span, bracketed, labelled, owned, plain_spans, read_spans
from penstock.chat.vocabulary import Vocabulary
from penstock.errors import ConfigError, InvalidError, InvariantError
from penstock.types import Int32Array, Json, Message

_TAGS = frozenset({"<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"})
"""Tokens by which models think and use tools; they steer, even where their tokenizer does not say so and the template does not write them."""
_FRONT = frozenset({Rewrite.FRONT})
_MOST_FRAMES = 256
"""Kinds of messages, by roles and tools, for which it is remembered what a template writes around them."""
_MOST_REMEMBERED, _LONGEST_REMEMBERED = 1024, 4096
"""Texts, and characters of one, whose tokens are remembered."""
_FIRST_QUESTION = Message(role="user", content="question")


class ChatTemplate:
    """Renders conversations for one model. Immutable; safe to share between threads.

    Text of messages never becomes a control token, however it is spelled. The exception are tags in an assistant's own text (`<think>`, `<tool_call>`):
    tokens that the tokenizer does not flag as special, or that the template looks for there. Messages that hold a reserved noncharacter, a lone surrogate
    or an unknown role, and conversations that the template refuses, raise `InvalidError`.
    """

    def __init__(self, files: TemplateFiles, *, now: datetime | None = None, variables: Mapping[str, Json] | None = None) -> None:
        fixed = {**files.special_tokens, **(variables or {})}
        source = TemplateSource(files.template, now)
        steering = _TAGS | set(files.special_tokens.values())
        # White space is ordinary text even where a tokenizer has a token for it and the template writes it.
        self._vocabulary = Vocabulary(
            files.tokenizer_json,
            lambda spelling, special: special or spelling in steering or (bool(spelling.strip()) and source.spells(spelling)),
        )
        self._render = _checked_renderer(source, self._vocabulary, fixed)
        try:
            self._history = examine(self._render, self._vocabulary, source.cut_words)
        except InvalidError as error:
            raise ConfigError(f"the chat template does not render a plain question: {error}") from error
        self._frames: dict[tuple[bool, tuple[str, ...], bytes], Frame | None] = {}
        self._pieces: dict[tuple[str, tuple[tuple[int, int, int], ...]], tuple[Piece, ...]] = {}
        self.digest: str = xxhash.xxh3_128_hexdigest(repr((files.template, sorted(fixed.items()), now)).encode())
        """Of all that decides how messages become text."""
        self.tokenizer_digest: str = xxhash.xxh3_128_hexdigest(files.tokenizer_json.encode())
        ends = [self._history.end, *map(self._vocabulary.token, files.end_tokens)]
        self.eos_ids: tuple[int, ...] = tuple(dict.fromkeys([token.id for token in ends if token is not None] + list(files.end_ids)))
        """Ids that end a reply: first the one that the template itself puts there, if it does."""

    @classmethod
    def load(
        cls, directory: Path | str, *, template: str | None = None, now: datetime | None = None, variables: Mapping[str, Json] | None = None
    ) -> ChatTemplate:
        """Read a Hugging Face model directory: `tokenizer.json`, and what is there of `tokenizer_config.json`, `chat_template.jinja` and the like.

        `template`: a built-in one by name, in place of the directory's own. `now`: the time that `strftime_now` tells; without it the template finds
        no such function. `variables`: what else the template asks for (`enable_thinking`, ...). Raises `ConfigError` with what is missing or wrong.
        """
        return cls(read_files(Path(directory), template), now=now, variables=variables)

    @property
    def end_id(self) -> int | None:
        """The token that the template puts after a reply."""
        return self._history.end.id if self._history.end else None

    @property
    def rewrites(self) -> Mapping[str, frozenset[Rewrite]]:
        """By the role of a new message: the ways in which it may change how earlier ones are shown."""
        return self._history.rewrites

    @property
    def rewrites_history(self) -> bool:
        """Whether there is any conversation that cannot just be extended."""
        return any(kinds - {Rewrite.TRIMS} for kinds in self._history.rewrites.values())

    def open(
        self, messages: Sequence[Message], tools: Sequence[Json] | None = None, *, add_generation_prompt: bool = True, continue_final_message: bool = False
    ) -> Rendered:
        """A whole conversation. Its ids are those of Hugging Face's rendering, tokenized at once, if no message spells a control token.

        With `continue_final_message` the last message, an assistant's, is left open: nothing stands after its text.
        """
        check_messages(messages, tools)
        if not messages:
            raise InvalidError("a conversation needs at least one message")
        if continue_final_message and messages[-1].role != "assistant":
            raise InvalidError(f"only an assistant's message can be continued, the last one is of role {messages[-1].role!r}")
        prompted = add_generation_prompt and not continue_final_message
        found = self._framed(messages, tools, is_opening=True) if prompted else None
        if found is not None:
            return Rendered(pieces=self._cut(*found))
        text, spans = self._whole(messages, tools, prompted)
        if continue_final_message:
            text = self._left_open(text, messages, tools)
        return Rendered(pieces=labelled(self._vocabulary.encode(text), spans) if continue_final_message else self._cut(text, spans))

    def delta(
        self,
        last_id: int,
        messages: Sequence[Message],
        tools: Sequence[Json] | None = None,
        *,
        reply: Message | None = None,
        add_generation_prompt: bool = True,
    ) -> Rendered:
        """What new `messages` add after a reply whose last token is `last_id`. Costs the same however long the conversation is.

        If the reply ended with the token that the template puts there, that token is not repeated; after any other, it comes first. `reply`, the message
        that was sampled, is needed where a template changes some replies, and where it looks at the calls that a tool's result answers.
        Raises `InvariantError` if the conversation must be forked instead; ask `extends` first. Message indices count through `messages`.
        """
        check_messages([reply, *messages] if reply else messages, tools)
        if not messages:
            raise InvalidError("a conversation goes on with at least one new message")
        if not self.extends(messages, reply):
            kinds = ", ".join(sorted(self._kinds(messages) - {Rewrite.TRIMS}))
            raise InvariantError(f"the chat template rewrites history ({kinds}): use refork" + ("" if reply else ", or try with the reply"))
        found = self._framed(messages, tools) if add_generation_prompt else None
        text, spans = found or self._after_reply(messages, tools, reply, add_generation_prompt)
        end = self._vocabulary.mark_at(text, 0)
        assert end is not None, "a template without an end token for replies is not extended"
        pieces = self._cut(text, spans)
        # Dropped only now: what stands behind it is encoded as in the middle of a conversation.
        return Rendered(pieces=without_first(pieces) if end.id == last_id else pieces)

    def extends(self, messages: Sequence[Message], reply: Message | None = None) -> bool:
        """Whether a conversation that ends with `reply` goes on with `messages` and stays as it is. Without the reply: whatever it was."""
        kinds = self._kinds(messages)
        if not kinds:
            return True
        kinds -= {Rewrite.TRIMS}
        if not kinds or reply is None or kinds != {Rewrite.LAST_REPLY}:
            return not kinds
        try:
            whole = self._render([_FIRST_QUESTION, reply, *messages])
        except InvalidError:
            return False
        return keeps_reply(whole, self._render([_FIRST_QUESTION]), self._render.as_own(reply.content))

    def refork(self, messages: Sequence[Message], known: Sequence[Known], tools: Sequence[Json] | None = None, *, add_generation_prompt: bool = True) -> Fork:
        """Render the whole conversation and find where it leaves the `known` tokens.

        Sampled tokens stay as they are if they spell the same text, even if the tokenizer would cut it up otherwise. Sampled replies are to be given with
        the text that `split_reply` gave. Kept and new tokens together are exactly what `open` gives, wherever the kept ones are the tokenizer's own.
        """
        check_messages(messages, tools)
        text, spans = self._whole(messages, tools, add_generation_prompt)
        return fork(self._vocabulary, text, spans, known)

    def extend(self, messages: Sequence[Message], known: Sequence[Known], num_new: int, tools: Sequence[Json] | None = None) -> Fork:
        """How a conversation goes on whose last `num_new` messages are new and whose earlier ones are the `known` tokens, a reply the last of them.

        `delta` where the template allows it, else `refork`. Message indices count through `messages`.
        """
        old, new = messages[: len(messages) - num_new], messages[len(messages) - num_new :]
        ids = joined_ids(known)
        if not old or old[-1].role != "assistant" or not len(ids) or not self.extends(new, old[-1]):
            return self.refork(messages, known, tools)
        rendered = self.delta(int(ids[-1]), new, tools, reply=old[-1])
        return Fork(keep=len(ids), pieces=shifted(rendered.pieces, len(old)))

    def split_reply(self, ids: Sequence[int] | Int32Array) -> Reply:
        """The text of sampled tokens. Control tokens inside are spelled out; the one that ended the reply is left away."""
        ended = len(ids) > 0 and int(ids[-1]) in self.eos_ids
        return Reply(text=self.decode(ids[:-1] if ended else ids), ended=ended)

    def encode_text(self, text: str, *, control_tokens: bool = False) -> Int32Array:
        """Tokens of a text that stands alone. Spelled-out control tokens are text, or with `control_tokens` what they spell, as in Hugging Face."""
        check_text(text)
        return self._vocabulary.encode(self._vocabulary.mark(text) if control_tokens else text).ids

    def decode(self, ids: Sequence[int] | Int32Array) -> str:
        """Text of tokens as it continues other text, control tokens spelled out. Ids that the tokenizer does not know give nothing."""
        return self._vocabulary.spell(self._vocabulary.decode(ids))

    def _kinds(self, messages: Sequence[Message]) -> frozenset[Rewrite]:
        # A role that the trials could not place is left to the full rendering, which places or refuses it.
        if len(messages) == 1:
            return self._history.rewrites.get(messages[0].role, _FRONT)
        return frozenset[Rewrite]().union(*(self.rewrites.get(message.role, _FRONT) for message in messages))

    def _cut(self, text: str, spans: Sequence[Span]) -> tuple[Piece, ...]:
        """A rendered text as tokens, cut at its messages. Members of a group are told much the same: what is short is remembered."""
        key = text, tuple([(span.index, span.start, span.stop) for span in spans])
        known = self._pieces.get(key)
        if known is not None:
            return known
        found = self._vocabulary.cut(text, [(span.start, span.stop) for span in spans if span.stop > span.start])
        if found is None or any(span.stop <= span.start for span in spans):
            pieces = labelled(self._vocabulary.encode(text), spans)
        else:
            pieces = owned(found[0], spans, found[1])
        if len(text) <= _LONGEST_REMEMBERED:
            if len(self._pieces) >= _MOST_REMEMBERED:
                self._pieces.clear()
            self._pieces[key] = pieces
        return pieces

    def _whole(self, messages: Sequence[Message], tools: Sequence[Json] | None, add_generation_prompt: bool) -> tuple[str, list[Span]]:
        """A conversation as the template writes it, and where in it the texts of `messages` are."""
        text = self._render(messages, tools, add_generation_prompt=add_generation_prompt)
        with_brackets = self._render(bracketed(messages), tools, add_generation_prompt=add_generation_prompt)
        return text, read_spans(text, with_brackets, self._contents(messages))

    def _framed(self, messages: Sequence[Message], tools: Sequence[Json] | None, *, is_opening: bool = False) -> tuple[str, list[Span]] | None:
        """As `_after_reply`, or with `is_opening` as `_whole`, from what the template wrote around other texts; None if it must be asked."""
        for message in messages:
            if message.role == "tool" or message.tool_calls or message.name is not None or message.tool_call_id is not None or not message.content.strip():
                return None
        roles = tuple([message.role for message in messages])
        key = is_opening, roles, msgspec.json.encode(tools) if tools else b""
        frame = self._frames.get(key)
        if frame is None:
            if key in self._frames:
                return None
            if len(self._frames) >= _MOST_FRAMES:
                self._frames.clear()
            if is_opening:
                frame = self._render.frame([], roles, tools, start=lambda _: 0)
            else:
                short = [_FIRST_QUESTION, *_probe_turns(messages, None)]
                frame = self._render.frame(short, roles, tools, start=lambda text: self._end_of_turn(text, structured=False))
            self._frames[key] = frame
        contents = [message.content for message in messages]
        if frame is None or not frame.fits(contents):
            return None
        text, spans = frame.parts[0], []
        for index, content in enumerate(contents):
            start, text = len(text), text + content
            spans.append(Span(index=index, start=start, stop=len(text)))
            text += frame.parts[index + 1]
        return text, spans

    def _contents(self, messages: Sequence[Message]) -> list[str]:
        """The texts as they stand in what is rendered."""
        return [self._render.as_own(message.content) if message.role == "assistant" else message.content for message in messages]

    def _left_open(self, text: str, messages: Sequence[Message], tools: Sequence[Json] | None) -> str:
        """`text`, the conversation, up to the end of its last message; white space at that end stays if the template leaves it there."""
        content = messages[-1].content
        core = content.rstrip()
        trail = content[len(core) :]
        probed = replace(messages[-1], content=core + PROBE + trail)
        before, found, behind = self._render([*messages[:-1], probed], tools, add_generation_prompt=False).rpartition(PROBE)
        left_open = before + (trail if behind.startswith(trail) else "")
        if not found or not text.startswith(left_open):
            raise InvalidError("the chat template does not show the last message in a form that could be continued")
        return left_open

    def _after_reply(
        self, messages: Sequence[Message], tools: Sequence[Json] | None, reply: Message | None, add_generation_prompt: bool
    ) -> tuple[str, list[Span]]:
        """What stands behind a reply, from its end token on, and where in it the texts of `messages` are: read off a short conversation."""
        refused: InvalidError | None = None
        contents = self._contents(messages)
        for turn in _probe_turns(messages, reply):
            short = [_FIRST_QUESTION, turn]
            try:
                text = self._render([*short, *messages], tools, add_generation_prompt=add_generation_prompt)
                spans = plain_spans(text, contents)
                if spans is None:
                    with_brackets = self._render([*short, *bracketed(messages)], tools, add_generation_prompt=add_generation_prompt)
                    spans = read_spans(text, with_brackets, contents)
            except InvalidError as error:
                refused = refused or error
                continue
            start = self._end_of_turn(text, structured=bool(turn.tool_calls))
            if start is not None:
                return text[start:], [replace(span, start=span.start - start, stop=span.stop - start) for span in spans if span.start >= start]
        raise refused or InvariantError("the chat template drops a short reply from a conversation, but not in the trials of its history")

    def _end_of_turn(self, text: str, *, structured: bool) -> int | None:
        """Where the probe's turn ends: right behind the probe, or at the first end token behind it if it lies inside a structured call."""
        start = text.find(PROBE) + 1
        if start == 0:
            return None
        while structured and start < len(text):
            token = self._vocabulary.mark_at(text, start)
            if token is not None and token.id in self.eos_ids:
                return start
            start += 1
        return None if structured else start


def _probe_turns(messages: Sequence[Message], reply: Message | None) -> list[Message]:
    """Short replies to try in front of `messages`: one of text, and for results of tools one that calls them."""
    text = Message(role="assistant", content=f"reply{PROBE}")
    results = list(takewhile(lambda message: message.role == "tool", messages))
    if not results:
        return [text]
    if reply is not None and reply.tool_calls:
        return [tool_call_turn(results, reply.tool_calls), text]
    return [text, tool_call_turn(results)]


def _checked_renderer(source: TemplateSource, vocabulary: Vocabulary, variables: Mapping[str, Json]) -> Renderer:
    """A renderer that was compared with Hugging Face's rendering on the trial conversations."""
    render = Renderer(source, vocabulary, variables)
    composed = {spelling for conversation, tools in trials(source.cut_words) for spelling in _spelled_by_template(render, vocabulary, conversation, tools)}
    if composed:
        render = Renderer(source, vocabulary, variables, composed=composed)
    for conversation, tools in trials(source.cut_words):
        try:
            expected = render.unmarked(conversation, tools)
        except InvalidError:
            continue
        if vocabulary.spell(render(conversation, tools)) != expected:
            raise ConfigError("the chat template computes with the length or the letters of its control tokens; such a template cannot be followed")
    return render


def _spelled_by_template(render: Renderer, vocabulary: Vocabulary, conversation: Sequence[Message], tools: Json) -> set[str]:
    """Control tokens that the template put together from parts, so that they are spelled out and not marked."""
    try:
        text = render(conversation, tools)
    except InvalidError:
        return set()
    texts = "\0".join(message.content for message in conversation)
    return {spelling for spelling in vocabulary.spelled_in(text) if spelling not in texts}
