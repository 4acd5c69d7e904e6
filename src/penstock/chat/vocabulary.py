"""A tokenizer in which a control token and its spelling are two different things.

Inside this package a control token (`<|im_end|>`, say) is written as a *mark*: a lead character that no text may hold, and a number. Templates are
rewritten to write marks, so whatever is spelled out in a rendered conversation came from somebody's message and is encoded as text. Ordinary text
meets the same normalizer, splitter and merges as in the tokenizer that was loaded, and so gets the same ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from penstock.chat.token_bytes import TokenBytes, has_byte_tokens
from penstock.errors import ConfigError
from penstock.types import Int32Array

LEAD = "\ufdd0"
"""Opens a mark. A Unicode noncharacter, never meant for interchange; messages that hold it are refused (see `renderer`)."""
_FIRST_NUMBER = 0xF0000
_ANCHOR = LEAD + chr(_FIRST_NUMBER - 1)
_LARGEST_ID = int(np.iinfo(np.int32).max)
_MARK = re.compile(LEAD + "(.)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlToken:
    """A token that steers the model and must never come out of somebody's text."""

    spelling: str
    mark: str
    id: int
    special: bool
    """As the tokenizer's author flagged it. Tags such as `<think>` mostly are not: an assistant's own text may hold them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Encoded:
    """Tokens with the characters they stand for; both bounds never decrease from token to token."""

    ids: Int32Array
    starts: Int32Array
    ends: Int32Array


class Vocabulary:
    """Encodes text with marks, decodes to text with marks.

    `is_control(spelling, special)` chooses among the tokenizer's added tokens.
    """

    def __init__(self, tokenizer_json: str, is_control: Callable[[str, bool], bool]) -> None:
        try:
            plain = Tokenizer.from_str(tokenizer_json)
            twin_json = json.loads(tokenizer_json)
        except Exception as error:  # the library raises bare Exception
            raise ConfigError(f"tokenizer.json cannot be read: {error}") from error
        added = [token for token in twin_json.get("added_tokens", []) if is_control(token["content"], token["special"])]
        self.tokens = tuple(
            ControlToken(spelling=token["content"], mark=LEAD + chr(_FIRST_NUMBER + number), id=_id(plain, token["content"]), special=token["special"])
            for number, token in enumerate(added)
        )
        self._by_spelling = {token.spelling: token for token in self.tokens}
        self._by_mark = {token.mark: token for token in self.tokens}
        self._control_ids = frozenset(token.id for token in self.tokens)
        self._swallows = any(token.get("lstrip") or token.get("rstrip") for token in added)
        """Some control tokens take white space beside them for their own."""
        # Longest first, so that a token wins over one that it contains.
        self._spellings = _any_of(self._by_spelling)
        self._twin = _twin(twin_json, self._by_spelling)
        self._anchor_id = _id(self._twin, _ANCHOR)
        self._bytes = TokenBytes(self._twin, without=self._anchor_id) if has_byte_tokens(twin_json) else None
        if plain.id_to_token(self._anchor_id) is not None:
            raise ConfigError(f"tokenizer.json leaves holes in its vocabulary: {self._anchor_id} should be free")
        for token in self.tokens:
            if self._twin.token_to_id(token.mark) != token.id:
                raise ConfigError(f"tokenizer.json gives the control token {token.spelling!r} an id that depends on its spelling")

    def token(self, spelling: str) -> ControlToken | None:
        """The control token of that spelling."""
        return self._by_spelling.get(spelling)

    def mark(self, text: str, only: Collection[str] | None = None) -> str:
        """`text` with control tokens that are spelled out turned into marks: all, or those in `only`."""

        def replacement(found: re.Match[str]) -> str:
            spelling = found.group()
            return self._by_spelling[spelling].mark if only is None or spelling in only else spelling

        return self._spellings.sub(replacement, text)

    def spelled_in(self, text: str) -> set[str]:
        """The control tokens that are spelled out in `text`."""
        return set(self._spellings.findall(text))

    def spell(self, text: str) -> str:
        """`text` with marks spelled out again."""
        return _MARK.sub(lambda found: self._by_mark[found.group()].spelling, text) if LEAD in text else text

    def mark_at(self, text: str, position: int) -> ControlToken | None:
        """The control token whose mark stands at `position`."""
        return self._by_mark.get(text[position : position + 2])

    def encode(self, marked: str) -> Encoded:
        """Tokens of text with marks. What stands behind a mark is encoded as in the middle of a conversation, all else as at the start of one."""
        encoding = self._twin.encode(marked, add_special_tokens=False)
        plain_ids = encoding.ids
        # One number after another: an array made of pairs costs more than all the rest of this.
        bounds = np.fromiter(chain.from_iterable(encoding.offsets), np.int32, 2 * len(plain_ids)).reshape(-1, 2)
        # Some control tokens swallow white space beside them; they still stand for nothing but their marks.
        for token in [place for place, one in enumerate(plain_ids) if one in self._control_ids]:
            start = marked.index(LEAD, int(bounds[token, 0]))
            bounds[token] = start, start + 2
        # A token may stand for no character or share one with its neighbour; keep the bounds sorted for the searches that use them.
        return Encoded(
            ids=np.fromiter(plain_ids, np.int32, len(plain_ids)), starts=np.maximum.accumulate(bounds[:, 0]), ends=np.maximum.accumulate(bounds[:, 1])
        )

    def cut(self, marked: str, bounds: Sequence[tuple[int, int]]) -> tuple[Int32Array, list[tuple[int, int]]] | None:
        """Tokens of text with marks, and for each pair of characters `start` to `stop` the tokens that hold any of them.

        The same as to search in what `encode` gives, without the bounds of all other tokens; None where only those can tell.
        """
        if self._swallows:
            return None
        encoding = self._twin.encode(marked, add_special_tokens=False)
        plain_ids = encoding.ids
        held: list[tuple[int, int]] = []
        for start, stop in bounds:
            first = encoding.char_to_token(start)
            behind = len(plain_ids)
            if stop < len(marked):
                following = encoding.char_to_token(stop)
                chars = None if following is None else encoding.token_to_chars(following)
                if following is None or chars is None:
                    return None
                # A token that begins before the end holds some of it.
                behind = following + (chars[0] < stop)
            if first is None:
                return None
            held.append((first, behind))
        return np.fromiter(plain_ids, np.int32, len(plain_ids)), held

    def decode(self, ids: Sequence[int] | Int32Array) -> str:
        """Text with marks, as it stands in the middle of a conversation. Ids beyond the vocabulary give nothing."""
        plain = ids.tolist() if isinstance(ids, np.ndarray) else ids
        if self._bytes is not None:
            return self._bytes.decode(plain)
        # The anchor keeps decoders from dropping the space in front of the first word.
        inside = [self._anchor_id, *[int(one) for one in plain if 0 <= one <= _LARGEST_ID and one != self._anchor_id]]
        return str(self._twin.decode(inside, skip_special_tokens=False)).removeprefix(_ANCHOR)


def _twin(tokenizer_json: dict[str, Any], control: dict[str, ControlToken]) -> Tokenizer:
    """The same tokenizer, in which control tokens are known by their marks alone."""
    added = []
    for token in tokenizer_json.get("added_tokens", []):
        known = control.get(token["content"])
        added.append({**token, "content": known.mark, "normalized": False} if known else token)
    anchor = {"id": _free_id(tokenizer_json), "content": _ANCHOR, "special": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    # Offsets must not be trimmed, and nothing be cut off or filled up.
    bare = {**tokenizer_json, "post_processor": None, "truncation": None, "padding": None, "added_tokens": [*added, {**anchor, **flags}]}
    model = dict(bare["model"])
    vocab = model.get("vocab")

    def renamed(piece: str) -> str:
        return control[piece].mark if piece in control else piece

    # A model that holds a control token in its own vocabulary could otherwise build it from text.
    if isinstance(vocab, dict):
        model["vocab"] = {renamed(piece): number for piece, number in vocab.items()}
    elif isinstance(vocab, list):
        model["vocab"] = [[renamed(piece), score] for piece, score in vocab]
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = renamed(model["unk_token"])
    return Tokenizer.from_str(json.dumps({**bare, "model": model}))


def _id(tokenizer: Tokenizer, token: str) -> int:
    number = tokenizer.token_to_id(token)
    assert number is not None  # it is among the tokens that were added
    return number


def _free_id(tokenizer_json: dict[str, Any]) -> int:
    """The id after the last one in use."""
    vocab = tokenizer_json["model"].get("vocab") or {}
    last = max(vocab.values(), default=-1) if isinstance(vocab, dict) else len(vocab) - 1
    return 1 + max([int(last), *(int(token["id"]) for token in tokenizer_json.get("added_tokens", []))])


def _any_of(spellings: Collection[str]) -> re.Pattern[str]:
    longest_first = sorted(spellings, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
