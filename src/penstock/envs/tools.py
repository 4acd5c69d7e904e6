"""Tools as an environment: the agent calls functions, their results are what it sees next."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.envs.demonstrations import opening_messages
from penstock.envs.protocol import Observation, Reply, Rewards
from penstock.errors import EnvError, EpisodeError, InputError
from penstock.process.threads import in_thread
from penstock.types import Json, Message, Problem, Rollout
from penstock.wire import parse_json

_LONGEST_RESULT = 65_536
_LONGEST_ERROR = 500
_SCHEMA_TYPES: Mapping[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tool:
    """A function that an agent may call.

    What it returns is shown to the agent, as text or as JSON. What it raises is shown too: a failed call is something to learn from. Only an `EpisodeError`
    ends the episode: `InfraError` as one to be tried again, `EnvError` as one that is invalid.
    """

    name: str
    function: Callable[..., Any]
    """Asynchronous, or an ordinary one, which then runs in a thread. Called with the arguments by name."""
    description: str = ""
    parameters: Mapping[str, Json] = field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON schema of the arguments."""
    ends: bool = False
    """Whether the episode is over after a call of it that succeeded."""

    @classmethod
    def of(cls, function: Callable[..., Any], *, name: str = "", ends: bool = False) -> Tool:
        """A tool that is described by the function itself: its name, its docstring, its arguments and their types.

        >>> def look(at: str, times: int = 1) -> str:
        ...     "Looks at something."
        >>> Tool.of(look).parameters["properties"], Tool.of(look).parameters["required"]
        ({'at': {'type': 'string'}, 'times': {'type': 'integer'}}, ['at'])
        """
        arguments = inspect.signature(function, eval_str=True).parameters.values()
        properties = {one.name: {"type": _SCHEMA_TYPES[one.annotation]} if one.annotation in _SCHEMA_TYPES else {} for one in arguments}
        required = [one.name for one in arguments if one.default is inspect.Parameter.empty]
        return cls(
            name=name or function.__name__,
            function=function,
            description=inspect.getdoc(function) or "",
            parameters={"type": "object", "properties": properties, "required": required},
            ends=ends,
        )

    @property
    def spec(self) -> Json:
        """In the shape of OpenAI's API."""
        return {"type": "function", "function": {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}}


@dataclass(frozen=True, slots=True)
class _Result:
    """What came of one call."""

    content: str
    error: str | None = None
    ends: bool = False


class ToolEnv:
    """One episode with tools. A reply without a call is the final answer, unless there is something to answer to it."""

    def __init__(self, tools: Sequence[Tool], *, text_reply: str | None = None) -> None:
        """`text_reply`: what a user says to a reply without a call, so that the episode goes on."""
        self._tools = {tool.name: tool for tool in tools}
        self._text_reply = text_reply

    async def open(self, problem: Problem, seed: int) -> Observation:
        """See `Env`."""
        return Observation(messages=opening_messages(problem), tools=tuple(tool.spec for tool in self._tools.values()))

    async def step(self, reply: Reply) -> Observation:
        """See `Env`. Calls of one reply are made one after the other, in its order."""
        if not reply.tool_calls:
            if self._text_reply is None:
                return Observation(done=True)
            return Observation(messages=(Message(role="user", content=self._text_reply),))
        messages, results = [], []
        for call in reply.tool_calls:
            name, result = await self._called(call)
            results.append({"name": name, "success": result.error is None, **({} if result.error is None else {"error": result.error})})
            messages.append(Message(role="tool", content=result.content, tool_call_id=_text(call.get("id")), name=name))
            if result.ends:
                return Observation(messages=tuple(messages), done=True, info={"tool_calls": results})
        return Observation(messages=tuple(messages), info={"tool_calls": results})

    async def score(self, rollout: Rollout) -> Rewards:
        """Tools give no reward: a reward function does."""
        raise EnvError("tools give no reward; name a reward function")

    async def _called(self, call: Json) -> tuple[str, _Result]:
        function = call.get("function") or {}
        name = str(function.get("name"))
        tool = self._tools.get(name)
        if tool is None:
            return name, _failed(f"there is no tool {name!r:.80}; there are {', '.join(self._tools)}")
        try:
            arguments = _arguments(function.get("arguments"))
            if inspect.iscoroutinefunction(tool.function):
                returned = await tool.function(**arguments)
            else:
                returned = await in_thread(tool.function, **arguments)
            return name, _Result(_shown(returned), ends=tool.ends)
        except EpisodeError:
            raise
        except Exception as error:  # whatever a tool raises is for the agent to see
            return name, _failed(f"{type(error).__name__}: {error}")


def _arguments(value: Json) -> dict[str, Any]:
    """Arguments as OpenAI's API has them, JSON text, or as they are meant."""
    try:
        arguments = parse_json(value.encode()) if isinstance(value, str) else value
    except (InputError, UnicodeEncodeError) as error:
        raise ValueError(f"the arguments are not JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise ValueError("the arguments are not an object")
    return arguments


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "replace").decode()[:_LONGEST_RESULT]


def _failed(sentence: str) -> _Result:
    error = sentence.encode("utf-8", "replace").decode()[:_LONGEST_ERROR]
    return _Result(f"error: {error}", error)


def _text(value: Json) -> str | None:
    return None if value is None else str(value)
