"""Which files are generators, and what they bring: read from their text, never by running them here.

A generator is a file `*_generator.py` in one of the folders that the server was started with. Nothing a client sends becomes a module or a path: it names a
`TASK_TYPE` that was found. A file whose text does not tell for sure (a computed `TASK_TYPE`, names behind an `if` or a star import) is run, once, in
another process.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard, get_args

from penstock.buffer.compat.hooks import HookName
from penstock.errors import InputError
from penstock.wire import check_id

PATTERN = "*_generator.py"
SHIPPED = Path(__file__).parent.parent / "shim" / "generator" / "base_generator.py"
"""The generator that is always there, unless a file of the user's has its task type."""
_NEEDED = ("TASK_TYPE", "run_rollout")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """What a file defines, of the names that matter."""

    task_type: object
    """The value of `TASK_TYPE`; None if there is none."""
    names: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A generator that can be started."""

    task_type: str
    path: Path
    hooks: frozenset[HookName]
    """Of the five functions, those that it brings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A file that looks like a generator and is none."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """All that was found, by task type, and what was not taken."""

    found: Mapping[str, Found]
    refused: tuple[Refused, ...]
    unsure: tuple[Path, ...] = ()
    """Files that must be run to know more."""


class DescribeError(Exception):
    """A file could not be run to see what it defines."""


class UnsureError(Exception):
    """A file must be run to see what it defines, and was not yet."""


def discover(folders: Sequence[Path], describe: Callable[[Path], Outline]) -> Discovery:
    """Look through `folders`, in their order.

    `describe` says what a file defines whose text does not tell; it raises `DescribeError` if running it did not tell either, `UnsureError` if it was
    not run yet.
    """
    found: dict[str, Found] = {}
    refused: list[Refused] = []
    unsure: list[Path] = []
    # Once each, however often a folder is named.
    paths = dict.fromkeys(path.resolve() for folder in folders for path in sorted(folder.glob(PATTERN)) if path.is_file())
    for path in paths:
        try:
            one = _read(path, describe)
        except UnsureError:
            unsure.append(path)
            continue
        except _NotOne as error:
            refused.append(Refused(path=path, reason=str(error)))
            continue
        taken = found.setdefault(one.task_type, one)
        if taken is not one:
            refused.append(Refused(path=path, reason=f"its TASK_TYPE {one.task_type!r} is that of {taken.path.name} already"))
    shipped = _read(SHIPPED, describe)
    found.setdefault(shipped.task_type, shipped)
    return Discovery(found=found, refused=tuple(refused), unsure=tuple(unsure))


class _NotOne(Exception):
    """A file is no generator; says why."""


def _read(path: Path, describe: Callable[[Path], Outline]) -> Found:
    try:
        outline = outline_of(path.read_bytes())
    except OSError as error:
        raise _NotOne(f"it cannot be read: {error.strerror}") from None
    except SyntaxError as error:
        raise _NotOne(f"it is not valid Python: {error.msg}" + (f" (line {error.lineno})" if error.lineno else "")) from None
    except (ValueError, RecursionError) as error:
        raise _NotOne(f"it is not valid Python: {error}") from None
    if outline is None:
        try:
            outline = describe(path)
        except DescribeError as error:
            raise _NotOne(f"it cannot be loaded: {error}") from None
    for name in _NEEDED:
        if name not in outline.names:
            raise _NotOne(f"it does not define {name}")
    if not isinstance(outline.task_type, str):
        raise _NotOne(f"its TASK_TYPE must be a text, it is {outline.task_type!r}")
    try:
        check_id(outline.task_type, "TASK_TYPE")
    except InputError as error:
        raise _NotOne(str(error)) from None
    return Found(task_type=outline.task_type, path=path, hooks=frozenset(filter(_is_hook, outline.names)))


def outline_of(source: bytes) -> Outline | None:
    """What a file defines at its top level; None if only running it can tell. Raises `SyntaxError` or `ValueError`.

    >>> outline_of(b"TASK_TYPE = 'sums'\\ndef run_rollout(data): ...").task_type
    'sums'
    """
    body = ast.parse(source).body
    certain = _Bindings(body)
    everywhere = _Bindings(node for statement in body for node in ast.walk(statement) if isinstance(node, ast.stmt))
    missing = {*_NEEDED, *get_args(HookName)} - certain.names
    # Bound somewhere, but not plainly: behind a condition, in a function with `global`, or by a star import.
    if missing & everywhere.names or everywhere.has_star or (certain.values and everywhere.num_task_types != 1):
        return None
    if "TASK_TYPE" not in certain.names:
        return Outline(task_type=None, names=certain.names)
    if not certain.values:
        return None
    try:
        return Outline(task_type=ast.literal_eval(certain.values[0]), names=certain.names)
    except ValueError:
        return None


class _Bindings:
    """Names that statements bind."""

    def __init__(self, statements: Iterable[ast.stmt]) -> None:
        self.values: list[ast.expr] = []
        """What `TASK_TYPE` is set to."""
        self.num_task_types = 0
        self.has_star = False
        self.names: frozenset[str] = frozenset(name for statement in statements for name in self._bound(statement))

    def _bound(self, statement: ast.stmt) -> set[str]:
        names: set[str] = set()
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                self.has_star = self.has_star or any(alias.name == "*" for alias in aliases)
                names.update((alias.asname or alias.name).partition(".")[0] for alias in aliases)
            case ast.Assign(targets=targets, value=value):
                names.update(node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
                if any(isinstance(target, ast.Name) and target.id == "TASK_TYPE" for target in targets):
                    self.values.append(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                names.add(name)
                if name == "TASK_TYPE":
                    self.values.append(value)
            case ast.AugAssign(target=ast.Name(id=name)):
                names.add(name)
        self.num_task_types += "TASK_TYPE" in names
        return names


def _is_hook(name: str) -> TypeGuard[HookName]:
    return name in get_args(HookName)
