"""One reply of the model, asked for until it is whole: failures are tried again, and a reply that was aborted is continued where it stopped."""

from __future__ import annotations

import copy
import logging
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

log = logging.getLogger(__name__)

MAX_FAILURES = 6
"""Attempts in a row that bring nothing before a reply is given up. An aborted one that brought tokens is no failure, however often it happens."""
PAUSES_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""After the first, second, ... attempt that brought nothing; the last one is repeated."""
ABORT_PAUSE_SECONDS = 0.2
"""A server that aborts is about to change its weights: it takes requests meanwhile, but has better things to do."""
_GIVE_UP_ON = frozenset(range(400, 500)) - {408, 409, 425, 429}
"""Answers that would be the same again."""


class QueryError(RuntimeError):
    """The model has given no reply."""


class Conversation(list[dict[str, Any]]):
    """Messages as they are sent and graded, and beside them what is known about the reply at their end."""

    def __init__(self, messages: Sequence[dict[str, Any]], *, finish_reason: str, facts: Mapping[str, Any]) -> None:
        super().__init__(messages)
        self.finish_reason = finish_reason
        self.facts = dict(facts)
        """`prompt_tokens`, `tokens`, `logprobs`, `versions`, as far as the engine tells them."""


@dataclass(slots=True)
class _Reply:
    """What there is of a reply so far."""

    text: str = ""
    num_tokens: int = 0
    is_begun: bool = False
    finish_reason: str = ""
    prompt_ids: list[int] | None = None
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[dict[str, Any]] = field(default_factory=list)

    def grow(self, response: Any) -> int:
        """Put a response behind what there is; the number of new tokens."""
        choice = response.choices[0]
        self.text += choice.message.content or ""
        new = response.usage.completion_tokens if response.usage is not None else 0
        self.num_tokens += new
        self.finish_reason = choice.finish_reason
        if not self.is_begun:
            self.prompt_ids = getattr(response, "prompt_token_ids", None)
        self.is_begun = True
        self.ids += getattr(choice, "token_ids", None) or []
        logprobs = getattr(choice, "logprobs", None)
        self.logprobs += [_plain(token)["logprob"] for token in (getattr(logprobs, "content", None) or [])]
        self.versions += [_plain(run) for run in getattr(choice, "versions", None) or []]
        return new

    def facts(self) -> dict[str, Any]:
        """Tokens, and what is known of each: only what covers all of them."""
        if not self.ids or len(self.ids) != self.num_tokens:
            return {}
        facts: dict[str, Any] = {"tokens": self.ids}
        if self.prompt_ids is not None:
            facts["prompt_tokens"] = self.prompt_ids
        if len(self.logprobs) == len(self.ids):
            facts["logprobs"] = self.logprobs
        if sum(run["count"] for run in self.versions) == len(self.ids):
            facts["versions"] = self.versions
        return facts


def query_single_turn(client: Any, messages: Sequence[dict[str, Any]], sampling_params: Mapping[str, Any], tools: Any = None) -> Conversation:
    """The messages with the model's reply behind them. An assistant's message at the end of `messages` is replaced by the new reply.

    `client` is an `openai.OpenAI`, or what behaves like one. `max_tokens` bounds the reply over all its parts. Raises `QueryError` if there is none:
    the caller stores the rollout as failed, which is not a reward.
    """
    prompt = [dict(message) for message in messages]
    if prompt and prompt[-1]["role"] == "assistant":
        prompt.pop()
    reply, failures, limit = _Reply(), 0, sampling_params.get("max_tokens")
    while True:
        left = None if limit is None else int(limit) - reply.num_tokens
        if left is not None and left <= 0:
            reply.finish_reason = "length"
            break
        try:
            new = reply.grow(client.chat.completions.create(**_payload(prompt, sampling_params, tools, reply, left)))
        except Exception as error:
            # Whatever a client raises: which errors there are depends on the client.
            new, trouble = 0, f"{type(error).__name__}: {error}"
            if getattr(error, "status_code", None) in _GIVE_UP_ON:
                raise QueryError(f"the model's server refuses the request: {trouble}") from error
        else:
            if reply.finish_reason != "abort":
                break
            trouble = "aborted"
        if new:
            failures = 0
            time.sleep(ABORT_PAUSE_SECONDS)
            continue
        failures += 1
        if failures >= MAX_FAILURES:
            raise QueryError(f"no reply after {failures} attempts: {trouble}")
        log.warning("the model gives no reply, attempt %d of %d: %s", failures, MAX_FAILURES, trouble)
        time.sleep(PAUSES_SECONDS[min(failures, len(PAUSES_SECONDS)) - 1])
    return Conversation([*prompt, {"role": "assistant", "content": reply.text}], finish_reason=reply.finish_reason, facts=reply.facts())


def _payload(prompt: list[dict[str, Any]], sampling_params: Mapping[str, Any], tools: Any, reply: _Reply, left: int | None) -> dict[str, Any]:
    """Arguments of one attempt."""
    settings = copy.deepcopy(dict(sampling_params))
    # What other engines have in their own way is let through beside the fields that the client knows.
    body = {"return_token_ids": True} | settings.pop("extra_body", {})
    body |= {name: settings.pop(name) for name in list(settings) if name not in _CLIENT_FIELDS}
    if left is not None:
        settings["max_tokens"] = left
    if reply.is_begun:
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    return {
        "model": "custom",
        "stream": False,
        "seed": random.randint(1, 10_000_000),
        "logprobs": True,
        **settings,
        "messages": prompt + ([{"role": "assistant", "content": reply.text}] if reply.is_begun else []),
        **({"tools": tools} if tools else {}),
        "extra_body": body,
    }


_CLIENT_FIELDS = frozenset(
    {
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "model",
        "n",
        "presence_penalty",
        "response_format",
        "seed",
        "stop",
        "temperature",
        "timeout",
        "tool_choice",
        "top_logprobs",
        "top_p",
        "user",
    }
)
"""Sampling parameters that `create` takes by name; others (`top_k`, `min_p`, ...) go into its `extra_body`."""


def _plain(value: Any) -> dict[str, Any]:
    """An object of the client's as a dict."""
    if isinstance(value, dict):
        return value
    return dict(value.model_dump()) if hasattr(value, "model_dump") else dict(vars(value))
