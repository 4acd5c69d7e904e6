"""A multi-turn agent with tools, written with nothing but the `openai` package. It knows nothing of Penstock: it is given a base_url.

    penstock buffer --dir store
    penstock serve --model MODEL
    penstock gateway --engine http://127.0.0.1:8000 --buffer http://127.0.0.1:8889 --model MODEL --run tools --open-run
    python examples/gateway/tool_agent.py --gateway http://127.0.0.1:8100 --members 4

Each member of the group is one session: opened, played, rewarded, ended. The same function `run` is started by the workers of a run with

    envs:
      sums: {kind: sort, agent: examples/gateway/tool_agent.py:run}
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import urllib.request
from typing import Any

import openai

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "sort_digits",
            "description": "Gives digits in ascending order.",
            "parameters": {"type": "object", "properties": {"digits": {"type": "string"}}, "required": ["digits"]},
        },
    }
]
MOST_TURNS = 6


async def run(problem: Any, base_url: str) -> float:
    """Let the model work on a problem, and say how well it did: 1 if its last word is the answer."""
    messages: list[Any] = [{"role": "user", "content": str(problem.prompt)}]
    async with openai.AsyncOpenAI(base_url=base_url, api_key=os.environ.get("PENSTOCK_TOKEN", "none")) as client:
        for _ in range(MOST_TURNS):
            reply = await client.chat.completions.create(model="policy", messages=messages, tools=TOOLS, max_tokens=96)
            message = reply.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return float((message.content or "").strip() == str(problem.ground_truth))
            for call in message.tool_calls:
                messages.append({"role": "tool", "tool_call_id": call.id, "content": called(call.function.name, call.function.arguments)})
    return 0.0


def called(name: str, arguments: str) -> str:
    """What a tool answers. A wrong call is told what is wrong with it."""
    try:
        digits = json.loads(arguments)["digits"]
    except (ValueError, KeyError, TypeError) as error:
        return f"error: {type(error).__name__}"
    return "".join(sorted(str(digits))) if name == "sort_digits" else f"error: there is no tool {name}"


def post(url: str, body: Any) -> Any:
    """One request to the gateway's own routes."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if (token := os.environ.get("PENSTOCK_TOKEN")) else {})
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
        return json.loads(answer.read())


class Problem:
    """Digits to sort."""

    def __init__(self, digits: str) -> None:
        self.id, self.prompt, self.ground_truth = f"sort-{digits}", f"sort {digits}>", "".join(sorted(digits))


async def member(gateway: str, group: str, size: int, problem: Problem) -> str:
    """One session from its opening to its end."""
    wanted = {"group_id": group, "group_size": size, "environment": "tools", "problem_id": problem.id}
    session = await asyncio.to_thread(post, f"{gateway}/sessions", wanted)
    where = f"{gateway}/sessions/{session['id']}"
    try:
        reward = await run(problem, session["base_url"])
    except openai.OpenAIError as error:
        # A failure is told as one: its slot is tried again, and nobody learns from a reward that was made up.
        ended = await asyncio.to_thread(post, f"{where}/end", {"status": "infra_error", "failure": str(error)[:200]})
    else:
        ended = await asyncio.to_thread(post, f"{where}/end", {"reward": reward})
    return f"{ended['rollout_uid']}: {ended['status']}, {ended['turns']} turns, reward {ended['rewards'].get('reward')}, {ended['stored']['fate']}"


async def main() -> None:
    """Play one group."""
    parser = argparse.ArgumentParser(description="Play one group of an agent with a tool.")
    parser.add_argument("--gateway", default="http://127.0.0.1:8100")
    parser.add_argument("--group", default="tools/0/0", help="source/pass/index")
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--digits", default="50718")
    words = parser.parse_args()
    for line in await asyncio.gather(*(member(words.gateway, words.group, words.members, Problem(words.digits)) for _ in range(words.members))):
        print(line)


if __name__ == "__main__":
    asyncio.run(main())
