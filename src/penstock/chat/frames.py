"""What a template writes around texts, found once: later texts are put in its place without asking the template again.

A template is a program. It runs once on texts that note every question it asks about them (does it begin with this word? is there anything?). Other texts
that would answer each question the same take the same way through it, so what is written around them is the same. Where a template does more with a text
than to ask and to write it out (cuts it, counts it, turns it into JSON), there is no frame, and it is asked each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes

from penstock.chat.messages import RESERVED

_FIRST_NUMBER = 0xF0000
_LAUNDERING = (nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.AssignBlock)
"""Nodes that make new texts out of what is written: nobody could tell what is asked about those."""
_JOINING = frozenset({"join", "format", "format_map"})
_TYPE_TESTS = frozenset({"string", "defined", "undefined", "none", "mapping", "number", "integer", "float", "boolean", "callable"})
"""Tests that all texts answer alike."""
_OF_A_LIST = frozenset({"length", "count", "first", "last", "reverse", "list"})
"""Filters that do not look into the messages of a list."""


class NoFrameError(BaseException):
    """The template does with a text what cannot be foreseen for others. (No `Exception`: Jinja takes some of those for an answer.)"""


@dataclass(frozen=True, slots=True)
class _Question:
    """What a template asked about one text, and what it was told."""

    place: int
    ask: Callable[[str], bool]
    told: bool


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands before, between and behind some texts."""

    parts: tuple[str, ...]
    """One more than there are texts."""
    questions: tuple[_Question, ...]

    def fits(self, texts: Sequence[str]) -> bool:
        """Whether these texts would be written into the same frame."""
        return not self.questions or all(question.ask(texts[question.place]) is question.told for question in self.questions)


class Watched(str):
    """A text that notes what is asked about it. Whatever is not listed here is none of a template's business, and raises `NoFrameError`."""

    notes: list[_Question]
    place: int
    """Which of the texts; -1 for one that was put together from it and others."""

    @classmethod
    def made(cls, text: str, notes: list[_Question], place: int) -> Watched:
        """A text with its notes."""
        made = cls(text)
        made.notes, made.place = notes, place
        return made

    def _told(self, ask: Callable[[str], bool], *words: Any) -> bool:
        if self.place < 0 or _holds_watched(words):
            raise NoFrameError
        told = ask(str.__str__(self))
        self.notes.append(_Question(self.place, ask, told))
        return told

    def _unless(self, changes: Callable[[str], bool], *words: Any) -> Watched:
        """Itself, if it is not changed."""
        if self._told(changes, *words):
            raise NoFrameError
        return self

    def startswith(self, *words: Any) -> bool:
        return self._told(lambda text: text.startswith(*words), *words)

    def endswith(self, *words: Any) -> bool:
        return self._told(lambda text: text.endswith(*words), *words)

    def strip(self, *chars: Any) -> Watched:
        return self._unless(lambda text: text.strip(*chars) != text, *chars)

    def lstrip(self, *chars: Any) -> Watched:
        return self._unless(lambda text: text.lstrip(*chars) != text, *chars)

    def rstrip(self, *chars: Any) -> Watched:
        return self._unless(lambda text: text.rstrip(*chars) != text, *chars)

    def replace(self, old: Any, new: Any, *count: Any) -> Watched:
        return self._unless(lambda text: old in text, old)

    def split(self, *words: Any) -> list[Any]:
        if len(words) != 1:
            raise NoFrameError
        return [self._unless(lambda text: words[0] in text, *words)]

    def __contains__(self, word: Any) -> bool:
        return self._told(lambda text: word in text, word)

    def __bool__(self) -> bool:
        return self._told(bool)

    def __eq__(self, other: object) -> bool:
        return self._told(lambda text: text == other, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __add__(self, other: Any) -> Watched:
        return Watched.made(str.__add__(self, other), self.notes, -1)

    def __radd__(self, other: Any) -> Watched:
        return Watched.made(str.__add__(other, self), self.notes, -1)

    def __str__(self) -> str:
        return self


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise NoFrameError


_ANSWERED = frozenset(vars(Watched)) | {
    "__new__",
    "__init__",
    "__class__",
    "__getattribute__",
    "__setattr__",
    "__init_subclass__",
    "__subclasshook__",
    "__doc__",
}
for _name in set(dir(str)) - _ANSWERED | {"__hash__", "__rmod__", "__rmul__"}:
    setattr(Watched, _name, _refuse)


def can_frame(tree: nodes.Template) -> bool:
    """Whether a template only writes texts out: it puts none together that it could then ask about."""
    written = {id(child) for output in tree.find_all(nodes.Output) for child in output.nodes}
    if any(True for _ in tree.find_all(_LAUNDERING)) or any(id(concat) not in written for concat in tree.find_all(nodes.Concat)):
        return False
    if any(attribute.attr in _JOINING for attribute in tree.find_all(nodes.Getattr)):
        return False
    # Methods of texts, and `in`, that are given a text to look for: those look at it without asking it.
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr) and hasattr(str, call.node.attr) and not all(isinstance(argument, nodes.Const) for argument in call.args):
            return False
    for compare in tree.find_all(nodes.Compare):
        for operand in compare.ops:
            if operand.op in ("in", "notin") and not (isinstance(compare.expr, nodes.Const) or isinstance(operand.expr, (nodes.List, nodes.Tuple))):
                return False
    return True


def watch(environment: jinja2.Environment) -> None:
    """Have the filters and tests of an environment look at no `Watched` text behind its back."""
    filters: dict[str, Any] = environment.filters
    tests: dict[str, Any] = environment.tests
    for name, call in list(filters.items()):
        if name not in ("trim", "string"):
            filters[name] = _blind(call, is_shallow=name in _OF_A_LIST)
    for name, call in list(tests.items()):
        if name not in _TYPE_TESTS:
            tests[name] = _blind(call, is_shallow=False)


def _blind(call: Callable[..., Any], *, is_shallow: bool) -> Callable[..., Any]:
    def blind(*args: Any, **options: Any) -> Any:
        given = (*args, *options.values())
        if any(isinstance(one, Watched) for one in given) or (not is_shallow and _holds_watched(given)):
            raise NoFrameError
        return call(*args, **options)

    # Some ask for the context or the environment as their first argument; how they say so is an attribute.
    blind.__dict__.update(getattr(call, "__dict__", {}))
    return blind


def _holds_watched(values: Iterable[Any]) -> bool:
    for value in values:
        if isinstance(value, Watched):
            return True
        if isinstance(value, (list, tuple, set)) and _holds_watched(value):
            return True
        if isinstance(value, Mapping) and _holds_watched(value.values()):
            return True
    return False


def placeholders(count: int) -> tuple[list[Watched], list[_Question]]:
    """Texts that no message can be, and the notes of what is asked about them."""
    notes: list[_Question] = []
    return [Watched.made(_placeholder(place), notes, place) for place in range(count)], notes


def frame_of(text: str, count: int, notes: Sequence[_Question]) -> Frame:
    """The frame in which placeholders stand in `text`, each once and in order. Raises `NoFrameError`."""
    parts: list[str] = []
    for place in range(count):
        before, found, text = text.partition(_placeholder(place))
        if not found:
            raise NoFrameError
        parts.append(before)
    if RESERVED[2] in "".join([*parts, text]):
        raise NoFrameError
    return Frame((*parts, text), tuple(notes))


def _placeholder(place: int) -> str:
    return RESERVED[2] + chr(_FIRST_NUMBER + place)
