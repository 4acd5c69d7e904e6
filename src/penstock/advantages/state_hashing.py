"""State hashing functions: from what a policy saw at a step to the anchor that says which steps were taken from the same state.

Each fits the argument `state_hashing_function` of `system_apply_gigpo_to_batch_steps`. An observation is a list of messages (`Message`, or dicts as in
OpenAI's API), a single message, text, or anything JSON-like. None has no state: the step is then not compared with others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import xxhash

from penstock.advantages._columns import whole_number
from penstock.advantages._observations import canonical_json

StateHash = Callable[[Any], str | None]


def state_of(state_hashing_function: Callable[[Any], Any], observation: Any, *, place: str) -> Any:
    """What the function says of an observation. Whatever it raises becomes a ValueError that names the function, the place and the error.

    >>> state_of(hash_structured(["room"]), "hall", place="step 3")
    Traceback (most recent call last):
    ValueError: state_hashing_function hash_structured fails on step 3: ValueError: the observation is 'hall'; to take room from it, it must be a dict
    """
    try:
        return state_hashing_function(observation)
    except Exception as error:  # it may be anybody's
        name = getattr(state_hashing_function, "__qualname__", repr(state_hashing_function)).removesuffix(".<locals>.hash_state")
        raise ValueError(f"state_hashing_function {name} fails on {place}: {type(error).__name__}: {error}") from error


def hash_concatenated_content(observation: Any) -> str | None:
    """Digest of the contents of all messages, in order. Roles and names do not count; tool calls do, and where one message ends and the next begins.

    >>> talk = [{"role": "user", "content": "a dark hall"}, {"role": "assistant", "content": "go north"}]
    >>> hash_concatenated_content(talk) == hash_concatenated_content(["a dark hall", "go north"])
    True
    """
    return None if observation is None else _digest(_contents(observation))


def hash_last_messages(num_messages: int) -> StateHash:
    """A function that digests the contents of the last `num_messages` messages: states are the same if the talk ended in the same way.

    >>> last = hash_last_messages(1)
    >>> last(["a dark hall", "you see a mug"]) == last(["a bright room", "you see a mug"])
    True
    """
    whole_number(num_messages, 1, name="num_messages")

    def hash_state(observation: Any) -> str | None:
        return None if observation is None else _digest(_contents(observation)[-num_messages:])

    return hash_state


def hash_structured(keys: Iterable[str] | None = None) -> StateHash:
    """A function that digests a whole JSON-like observation, or of a dict only `keys`: what else is in it (a clock, a step counter) does not count.

    >>> place = hash_structured(["room", "has"])
    >>> place({"room": "hall", "has": [], "turn": 3}) == place({"has": [], "room": "hall", "turn": 9})
    True
    """
    if isinstance(keys, str):
        raise ValueError(f"keys is {keys!r}; it must be a list of keys")
    chosen = None if keys is None else tuple(keys)

    def hash_state(observation: Any) -> str | None:
        if observation is None:
            return None
        if chosen is None:
            return _digest([_json_bytes(observation)])
        if not isinstance(observation, Mapping):
            raise ValueError(f"the observation is {observation!r:.80}; to take {', '.join(map(str, chosen))} from it, it must be a dict")
        return _digest([_json_bytes({key: observation[key] for key in chosen if key in observation})])

    return hash_state


def _contents(observation: Any) -> list[bytes]:
    if isinstance(observation, Mapping) and "messages" in observation:
        observation = observation["messages"]
    messages = observation if isinstance(observation, Sequence) and not isinstance(observation, (str, bytes)) else [observation]
    return [_content(message) for message in messages]


def _content(message: Any) -> bytes:
    """What one message says: its text, or as canonical JSON what is no text (parts, say), and its tool calls where it makes some."""
    if isinstance(message, str):
        return _text_bytes(message)
    get = message.get if isinstance(message, Mapping) else partial(getattr, message)
    content, calls = get("content", message), get("tool_calls", None)
    said = _text_bytes(content) if isinstance(content, str) else _json_bytes(content)
    return said + _json_bytes(calls) if calls else said


def _text_bytes(text: str) -> bytes:
    return b"text " + text.encode("utf-8", "surrogatepass")


def _json_bytes(value: Any) -> bytes:
    # Told apart from text, so that no content at all is not the word "null".
    return b"json " + canonical_json(value).encode("utf-8", "surrogatepass")


def _digest(parts: Sequence[bytes]) -> str:
    digest = xxhash.xxh3_128()
    for part in parts:
        # With its length in front of each, ["ab", "c"] and ["a", "bc"] are different talks.
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()
