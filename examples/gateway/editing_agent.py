"""An agent that edits its own history: once it is long, the oldest turns are replaced by a note that the model itself wrote.

The gateway sees messages that are not those it knows, and forks where they differ. What was sampled before stays on its own branch and is trained there;
what is sampled from the shortened history is trained on the new one. Every token that the model sampled carries loss once, however often it is shown again.

    python examples/gateway/editing_agent.py --gateway http://127.0.0.1:8100 --turns 6
"""

from __future__ import annotations

import argparse
import json
import os
import urllib.request
from typing import Any

import openai

SYSTEM = {"role": "system", "content": "Count on from the last number. Answer with the next number only."}
MOST_MESSAGES = 6


def shortened(client: openai.OpenAI, messages: list[Any]) -> list[Any]:
    """The history with everything but its last turn replaced by the model's own summary of it."""
    asked = [*messages[:-1], {"role": "user", "content": "Sum up what was said so far, in one line."}]
    summary = client.chat.completions.create(model="policy", messages=asked, max_tokens=32).choices[0].message.content
    return [SYSTEM, {"role": "user", "content": f"So far: {summary}"}, messages[-1]]


def play(base_url: str, num_turns: int) -> float:
    """Talk for some turns; the share of right answers is the reward."""
    messages: list[Any] = [SYSTEM]
    num_right = 0
    with openai.OpenAI(base_url=base_url, api_key=os.environ.get("PENSTOCK_TOKEN", "none")) as client:
        for number in range(num_turns):
            messages.append({"role": "user", "content": str(2 * number)})
            if len(messages) > MOST_MESSAGES:
                messages = shortened(client, messages)
            reply = client.chat.completions.create(model="policy", messages=messages, max_tokens=16).choices[0].message
            messages.append({"role": "assistant", "content": reply.content})
            num_right += (reply.content or "").strip() == str(2 * number + 1)
    return num_right / num_turns


def run(problem: Any, base_url: str) -> float:
    """The same for the workers of a run (`envs.<name>.agent`); it needs nothing of the problem."""
    return play(base_url, 6)


def post(url: str, body: Any) -> Any:
    """One request to the gateway's own routes."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if (token := os.environ.get("PENSTOCK_TOKEN")) else {})
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
        return json.loads(answer.read())


def main() -> None:
    """Play one session and print what became of it."""
    parser = argparse.ArgumentParser(description="Play one session of an agent that edits its own history.")
    parser.add_argument("--gateway", default="http://127.0.0.1:8100")
    parser.add_argument("--group", default="counting/0/0", help="source/pass/index")
    parser.add_argument("--turns", type=int, default=6)
    words = parser.parse_args()
    wanted = {"group_id": words.group, "group_size": 2, "environment": "counting", "problem_id": "count"}
    session = post(f"{words.gateway}/sessions", wanted)
    reward = play(session["base_url"], words.turns)
    ended = post(f"{words.gateway}/sessions/{session['id']}/end", {"reward": reward})
    print(f"{ended['rollout_uid']}: {ended['turns']} turns, {ended['forks']} forks, reward {reward}, {ended['stored']['fate']}")


if __name__ == "__main__":
    main()
