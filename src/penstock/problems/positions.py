"""Positions in a source, and group ids that spell them: `source/pass/index`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.errors import InvalidError


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Position:
    """A place in a source."""

    pass_: int = 0
    index: int = 0

    def after(self, size: int | None) -> Position:
        """The next place in a source of `size` problems (None: endless): the first of the next pass after the last of this one.

        >>> Position(index=2).after(3)
        Position(pass_=1, index=0)
        """
        if size is not None and self.index + 1 >= size:
            return Position(pass_=self.pass_ + 1)
        return replace(self, index=self.index + 1)


def group_id(source: str, position: Position) -> str:
    """The id of the group about one problem.

    >>> group_id("sort:train", Position(index=7))
    'sort:train/0/7'
    """
    return f"{source}/{position.pass_}/{position.index}"


def parse_group_id(group: str) -> tuple[str, Position]:
    """Source and position that an id spells. Raises `InvalidError` if it spells none.

    >>> parse_group_id("sort:train/0/7")
    ('sort:train', Position(pass_=0, index=7))
    """
    source, *numbers = group.rsplit("/", 2)
    if not source or len(numbers) != 2 or not all(number.isascii() and number.isdigit() for number in numbers):
        raise InvalidError(f"group id {group!r:.80} is not of the form source/pass/index")
    return source, Position(pass_=int(numbers[0]), index=int(numbers[1]))
