"""Which characters of a rendered conversation are the text of which message.

A conversation is rendered once more with an opening and a closing mark around each text; where the marks come out, the text came out. Marks sit inside
the white space at both ends of a text, so that templates may trim it. A template that cuts a text (drops the thinking) may lose one of the two.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from penstock.chat.messages import RESERVED
from penstock.chat.pieces import Piece
from penstock.chat.vocabulary import Encoded
from penstock.types import Int32Array, Message, Source
from penstock.types.frozen import quickly_made

_OPEN, _CLOSE = RESERVED[1], RESERVED[2]
_FIRST_NUMBER = 0xF0000
_SHORTEST_PLAIN = 16
_SPAN_MARK = re.compile(f"([{_OPEN}{_CLOSE}])(.)", re.DOTALL)


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Characters `start` to `stop` are text of message `index`."""

    index: int
    start: int
    stop: int


def bracketed(messages: Sequence[Message]) -> list[Message]:
    """The messages with marks around their texts."""
    return [replace(message, content=_bracket(message.content, index)) for index, message in enumerate(messages)]


def read_spans(rendered: str, bracketed_rendering: str, contents: Sequence[str]) -> list[Span]:
    """Where the contents stand in `rendered`, in order. `contents` are as the template saw them.

    If the marks changed more than themselves (a template that asks how a text begins), the contents are looked for one after another instead; then
    one that occurs earlier by chance may be found there. Ids never depend on it.
    """
    clean, events = _without_marks(bracketed_rendering)
    spans = _paired(clean, events, contents) if clean == rendered else _searched(rendered, contents)
    return sorted((_with_borders(span, rendered, contents[span.index]) for span in spans), key=lambda span: span.start)


def plain_spans(rendered: str, contents: Sequence[str]) -> list[Span] | None:
    """Where the contents stand, if that can be told without brackets: each occurs once, and they follow each other. None if it cannot."""
    spans: list[Span] = []
    position = 0
    for index, content in enumerate(contents):
        core = content.strip()
        start = rendered.find(core) if core else -1
        # Short texts may stand in what the template itself writes, in place of one that it drops.
        if start < position or len(core) < _SHORTEST_PLAIN or rendered.find(core, start + 1) >= 0:
            return None
        position = start + len(core)
        spans.append(_with_borders(Span(index=index, start=start, stop=position), rendered, content))
    return spans


def labelled(encoded: Encoded, spans: Sequence[Span]) -> tuple[Piece, ...]:
    """The tokens, cut where the message changes. A token that holds any character of a message's text belongs to the message, to the last of several."""
    held = [(int(encoded.ends.searchsorted(span.start, side="right")), int(encoded.starts.searchsorted(span.stop, side="left"))) for span in spans]
    return owned(encoded.ids, spans, held)


def owned(ids: Int32Array, spans: Sequence[Span], held: Sequence[tuple[int, int]]) -> tuple[Piece, ...]:
    """The same, with the tokens known that hold each span."""
    cuts: list[tuple[int, int | None]] = [(0, None)]
    """Where a run of tokens begins, and whose they are."""
    for span, (first, behind) in zip(spans, held, strict=True):
        if behind > first:
            while cuts and cuts[-1][0] >= first:
                cuts.pop()
            cuts += [(first, span.index), (behind, None)]
    return tuple(_pieces(ids, cuts))


def _pieces(ids: Int32Array, cuts: Sequence[tuple[int, int | None]]) -> Iterator[Piece]:
    """The runs of tokens; neighbours with the same owner are one."""
    start, owner = cuts[0]
    for next_start, next_owner in (*cuts[1:], (len(ids), -1)):
        if next_owner == owner:
            continue
        if next_start > start:
            # A copy that nobody can change: pieces are remembered, and sent again and again.
            own_ids = ids[start:next_start].copy()
            own_ids.setflags(write=False)
            yield Piece(ids=own_ids, source=Source.TEMPLATE if owner is None else Source.ENV, message_index=owner)
        start, owner = next_start, next_owner


def _bracket(content: str, index: int) -> str:
    core = content.strip()
    if not core:
        return content
    lead = content[: len(content) - len(content.lstrip())]
    trail = content[len(content.rstrip()) :]
    number = chr(_FIRST_NUMBER + index)
    return f"{lead}{_OPEN}{number}{core}{_CLOSE}{number}{trail}"


def _without_marks(text: str) -> tuple[str, list[tuple[str, int, int]]]:
    """The text, and for each mark that stood in it: which end, of which message, and where in the text."""
    parts: list[str] = []
    events: list[tuple[str, int, int]] = []
    position = last = 0
    for found in _SPAN_MARK.finditer(text):
        parts.append(text[last : found.start()])
        position += found.start() - last
        events.append((found.group(1), ord(found.group(2)) - _FIRST_NUMBER, position))
        last = found.end()
    return "".join([*parts, text[last:]]), events


def _paired(clean: str, events: Sequence[tuple[str, int, int]], contents: Sequence[str]) -> list[Span]:
    spans: list[Span] = []
    opened: dict[int, int] = {}
    for kind, index, position in events:
        if kind == _OPEN:
            opened[index] = position
        else:
            start = opened.pop(index, None)
            if start is None:
                core = contents[index].strip()
                start = position - _common_suffix(clean[max(0, position - len(core)) : position], core)
            spans.append(Span(index=index, start=start, stop=position))
    for index, start in opened.items():
        core = contents[index].strip()
        spans.append(Span(index=index, start=start, stop=start + _common_suffix(clean[start : start + len(core)][::-1], core[::-1])))
    return spans


def _with_borders(span: Span, rendered: str, content: str) -> Span:
    """The span with the white space at both ends of the text, if it came out too."""
    lead = content[: len(content) - len(content.lstrip())]
    trail = content[len(content.rstrip()) :]
    before = len(lead) if rendered[max(0, span.start - len(lead)) : span.start] == lead else 0
    behind = len(trail) if rendered.startswith(trail, span.stop) else 0
    return replace(span, start=span.start - before, stop=span.stop + behind)


def _searched(rendered: str, contents: Sequence[str]) -> list[Span]:
    spans: list[Span] = []
    position = 0
    for index, content in enumerate(contents):
        core = content.strip()
        start = rendered.find(core, position) if core else -1
        if start >= 0:
            position = start + len(core)
            spans.append(Span(index=index, start=start, stop=position))
    return spans


def _common_suffix(text: str, other: str) -> int:
    """How many characters both end with."""
    count = 0
    for one, two in zip(reversed(text), reversed(other), strict=False):
        if one != two:
            break
        count += 1
    return count
