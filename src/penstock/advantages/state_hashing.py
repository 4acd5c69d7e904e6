"""State hashing functions: from what a policy saw at a step to the anchor that says which steps were taken from the same state.

Each fits the argument `state_hashing_function` of `system_apply_gigpo_to_batch_steps`. An observation is a list of messages (`Message`, or dicts as in
OpenAI's API), a single message, text, or anything JSON-like. None has no state: the step is then not compared with others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import xxhash

from penstock.advantages.anchors import canonical_json

StateHash = Callable[[Any], str | None]


def hash_concatenated_content(observation: Any) -> str | None:
    """Digest of the contents of all messages, in order. Roles and names do not count; where one message ends and the next begins does.

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
    if isinstance(num_messages, bool) or not isinstance(num_messages, int) or num_messages < 1:
        raise ValueError(f"num_messages is {num_messages!r}; it must be an integer, 1 or more")

    def hash_state(observation: Any) -> str | None:
        return None if observation is None else _digest(_contents(observation)[-num_messages:])

    return hash_state


def hash_structured(keys: Iterable[str] | None = None) -> StateHash:
    """A function that digests a whole JSON-like observation, or of a dict only `keys`: what else is in it (a clock, a step counter) does not count.

    >>> place = hash_structured(["room", "has"])
    >>> place({"room": "hall", "has": [], "turn": 3}) == place({"has": [], "room": "hall", "turn": 9})
    True
    """
    chosen = None if keys is None else tuple(keys)

    def hash_state(observation: Any) -> str | None:
        if observation is None:
            return None
        if chosen is None:
            return _digest([canonical_json(observation)])
        if not isinstance(observation, Mapping):
            raise ValueError(f"the observation is {observation!r:.80}; to take {', '.join(chosen)} from it, it must be a dict")
        return _digest([canonical_json({key: observation[key] for key in chosen if key in observation})])

    return hash_state


def _contents(observation: Any) -> list[str]:
    if isinstance(observation, Mapping) and "messages" in observation:
        observation = observation["messages"]
    messages = observation if isinstance(observation, Sequence) and not isinstance(observation, (str, bytes)) else [observation]
    return [_content(message) for message in messages]


def _content(message: Any) -> str:
    """What one message says. Content that is not text (parts, tool calls without words) counts as canonical JSON."""
    if isinstance(message, str):
        return message
    content = message.get("content", message) if isinstance(message, Mapping) else getattr(message, "content", message)
    return content if isinstance(content, str) else canonical_json(content)


def _digest(texts: Sequence[str]) -> str:
    digest = xxhash.xxh3_128()
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")
        # With its length in front of each, ["ab", "c"] and ["a", "bc"] are different talks.
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.hexdigest()
