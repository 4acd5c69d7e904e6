"""Jinja chat templates, rendered as Hugging Face renders them, but with marks in place of control tokens (see `vocabulary`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from penstock.chat.frames import Frame, NoFrameError, can_frame, frame_of, placeholders, watch
from penstock.chat.messages import RESERVED, as_json, copied
from penstock.chat.vocabulary import Vocabulary
from penstock.errors import ConfigError, InvalidError
from penstock.types import Json, Message

_BREAK = RESERVED[3]
"""Put into the spelling of a composed control token in somebody's text, taken out again after rendering."""


class TemplateSource:
    """The text of a template, parsed: what it spells, and with what words it takes messages apart."""

    def __init__(self, text: str, now: datetime | None) -> None:
        self.environment = _environment(now)
        self.text, self.now = text, now
        try:
            self.tree = self.environment.parse(text)
        except (jinja2.TemplateError, RecursionError) as error:
            raise ConfigError(f"the chat template is not valid Jinja: {error}") from error

    def spells(self, spelling: str) -> bool:
        """Whether `spelling` stands in the template as it is."""
        return any(spelling in text for text in self._literals())

    @property
    def cut_words(self) -> tuple[str, ...]:
        """Strings that the template looks for in others: operands of `in`, arguments of `split`, `startswith`, `replace` and the like."""
        words: dict[str, None] = {}
        for call in self.tree.find_all(nodes.Call):
            if isinstance(call.node, nodes.Getattr):
                words.update((one.value, None) for one in call.args if isinstance(one, nodes.Const) and isinstance(one.value, str))
        for compare in self.tree.find_all(nodes.Compare):
            if isinstance(compare.expr, nodes.Const) and isinstance(compare.expr.value, str):
                words[compare.expr.value] = None
        return tuple(word for word in words if word.strip())

    def mark(self, vocabulary: Vocabulary) -> nodes.Template:
        """The template, writing and looking for marks where it spelled control tokens."""
        marked = self.environment.parse(self.text)
        for constant in marked.find_all(nodes.Const):
            if isinstance(constant.value, str):
                constant.value = vocabulary.mark(constant.value)
        for data in marked.find_all(nodes.TemplateData):
            data.data = vocabulary.mark(data.data)
        return marked

    def _literals(self) -> Iterator[str]:
        yield from (data.data for data in self.tree.find_all(nodes.TemplateData))
        yield from (constant.value for constant in self.tree.find_all(nodes.Const) if isinstance(constant.value, str))


class Renderer:
    """Turns messages into text with marks.

    `variables` are given to the template beside the messages; strings among them may spell control tokens. `composed`: control tokens that the template
    puts together from parts, where no mark can be written; they are marked afterwards, and their spelling in messages is broken up meanwhile.
    """

    def __init__(self, source: TemplateSource, vocabulary: Vocabulary, variables: Mapping[str, Json], *, composed: Collection[str] = ()) -> None:
        self._vocabulary = vocabulary
        self._marked = source.environment.from_string(source.mark(vocabulary))
        self._unmarked = source.environment.from_string(source.text)
        self._variables = dict(variables)
        self._marked_variables = {name: vocabulary.mark(value) if isinstance(value, str) else value for name, value in variables.items()}
        self._composed = frozenset(composed)
        self._watched: jinja2.Template | None = None
        if not composed and can_frame(source.tree):
            watched = _environment(source.now)
            watch(watched)
            self._watched = watched.from_string(source.mark(vocabulary))
        # An assistant's text may hold what its author did not flag as special, and what the template itself looks for in it.
        cut_words = frozenset(source.cut_words)
        self._own_tags = frozenset(token.spelling for token in vocabulary.tokens if not token.special or token.spelling in cut_words)

    def __call__(self, messages: Sequence[Message], tools: Sequence[Json] | None = None, *, add_generation_prompt: bool = True) -> str:
        """The conversation as text with marks. Raises `InvalidError` if the template refuses it."""
        plain = [self._plain(message) for message in messages]
        text = self._render(self._marked, {**self._marked_variables, "messages": plain, "tools": self._shield(copied(tools))}, add_generation_prompt)
        return self._vocabulary.mark(text, only=self._composed).replace(_BREAK, "") if self._composed else text

    def unmarked(self, messages: Sequence[Message], tools: Sequence[Json] | None = None, *, add_generation_prompt: bool = True) -> str:
        """The conversation as Hugging Face renders it, to compare with."""
        plain = [as_json(message) for message in messages]
        return self._render(self._unmarked, {**self._variables, "messages": plain, "tools": copied(tools)}, add_generation_prompt)

    def frame(self, before: Sequence[Message], roles: Sequence[str], tools: Sequence[Json] | None, *, start: Callable[[str], int | None]) -> Frame | None:
        """What is written from `start` on (a place in the whole text) around the texts of messages of these roles behind `before`; None if that depends."""
        if self._watched is None or "assistant" in roles:
            return None
        texts, notes = placeholders(len(roles))
        messages = [self._plain(message) for message in before] + [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
        try:
            text = self._render(self._watched, {**self._marked_variables, "messages": messages, "tools": copied(tools)}, True)
            place = start(text)
            return None if place is None else frame_of(text[place:], len(roles), notes)
        except (NoFrameError, InvalidError):
            return None

    def as_own(self, text: str) -> str:
        """How a reply's text stands in what is rendered."""
        return self._vocabulary.mark(text, only=self._own_tags)

    def _plain(self, message: Message) -> dict[str, Any]:
        """A message as the template gets it."""
        plain: dict[str, Any] = self._shield(as_json(message))
        if message.role == "assistant":
            plain["content"] = self.as_own(plain["content"])
        return plain

    def _shield(self, value: Any) -> Any:
        """`value` with the spellings of composed tokens broken, so that only the template can put them together."""
        if not self._composed:
            return value
        if isinstance(value, str):
            for spelling in self._composed:
                value = value.replace(spelling, spelling[0] + _BREAK + spelling[1:])
            return value
        if isinstance(value, dict):
            return {key: self._shield(one) for key, one in value.items()}
        return [self._shield(one) for one in value] if isinstance(value, list) else value

    def _render(self, template: jinja2.Template, context: dict[str, Any], add_generation_prompt: bool) -> str:
        try:
            return template.render(documents=None, add_generation_prompt=add_generation_prompt, **context)
        # A template is foreign code: what it does with a shape it does not know (None + str, a missing key) is its way to refuse.
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            raise InvalidError(f"the chat template refuses these messages: {self._vocabulary.spell(str(error))}") from error


class _Generation(Extension):
    """`{% generation %} ... {% endgeneration %}` says which text a model wrote. Where tokens are the truth it says nothing new: the body is rendered."""

    tags = {"generation"}  # noqa: RUF012  jinja declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _environment(now: datetime | None) -> ImmutableSandboxedEnvironment:
    """As Hugging Face sets it up, except that the time of `strftime_now` is an argument. Without one the function is not defined."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    if now is not None:
        environment.globals["strftime_now"] = now.strftime
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(value: Json, ensure_ascii: bool = False, indent: int | None = None, separators: tuple[str, str] | None = None, sort_keys: bool = False) -> str:
    # Jinja's own filter escapes HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
