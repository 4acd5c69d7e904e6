"""Finds fields that a noun does not have. Runs on the plain values of a body, for bodies that we did not write ourselves."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, get_args, get_origin

from penstock.wire._fault import Fault
from penstock.wire._strict import show

Search = Callable[[Any], None]
"""Raises `Fault` at the first unknown field. Values of a wrong type are passed over: they are refused elsewhere."""


def refuse_unknown_fields(plain: Any, noun: Any, root: str) -> None:
    """Raise `InvalidError` if the plain form of a `noun`, or of a noun in it, has a key that is no field."""
    search = _search_of(noun)
    try:
        if search is not None:
            search(plain)
    except Fault as fault:
        raise fault.as_error(root) from None


@cache
def _search_of(hint: Any) -> Search | None:
    """The search through values of a type; None if they hold no nouns."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _through_noun(hint)
    if get_origin(hint) is Mapping:
        inner = _search_of(get_args(hint)[1])
        return None if inner is None else _through_values(inner)
    inner = next((search for member in get_args(hint) if (search := _search_of(member)) is not None), None)
    if inner is None or get_origin(hint) not in (tuple, list):
        return inner
    if get_origin(hint) is tuple and get_args(hint)[-1] is not Ellipsis:
        raise TypeError(f"{hint} has no form on the wire: nouns travel in tuples of any length")
    return _through_list(inner)


def _through_noun(noun: type) -> Search:
    hints = typing.get_type_hints(noun)
    names = frozenset(hints)
    nested = tuple((name, search) for name, hint in hints.items() if (search := _search_of(hint)) is not None)

    def search_noun(plain: Any) -> None:
        if type(plain) is not dict:
            return
        if not plain.keys() <= names:
            unknown = next(key for key in plain if key not in names)
            nearest = get_close_matches(str(unknown), names, n=1)
            raise Fault(f"has no field {show(unknown)}{f'; did you mean {nearest[0]!r}?' if nearest else f', but {sorted(names)}'}")
        for name, search in nested:
            if name in plain:
                try:
                    search(plain[name])
                except Fault as fault:
                    raise fault.at(f".{name}") from None

    return search_noun


def _through_list(search: Search) -> Search:
    def search_list(plain: Any) -> None:
        if type(plain) is not list:
            return
        for index, entry in enumerate(plain):
            try:
                search(entry)
            except Fault as fault:
                raise fault.at(f"[{index}]") from None

    return search_list


def _through_values(search: Search) -> Search:
    def search_values(plain: Any) -> None:
        if type(plain) is not dict:
            return
        for key, entry in plain.items():
            try:
                search(entry)
            except Fault as fault:
                raise fault.at(f"[{show(key)}]") from None

    return search_values
