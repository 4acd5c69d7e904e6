"""The peer of `buffer.py`: the seed's pipeline on plain dicts behind FastAPI, the least one would write. Nothing is durable, nothing is checked.

python benchmarks/_buffer_peer.py PORT_FILE [GROUP_SIZE]
"""

from __future__ import annotations

import socket
import statistics
import sys
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request

Item = dict[str, Any]


def peer_app(group_size: int) -> FastAPI:
    """One route to write an item, one to read all full groups."""
    app = FastAPI()
    items_of: dict[str, list[Item]] = {}

    @app.post("/buffer/write")
    async def write(request: Request) -> dict[str, Any]:
        given = await request.json()
        # A list is only how a benchmark fills it.
        for item in given if isinstance(given, list) else [given]:
            items_of.setdefault(item["instance_id"], []).append(item)
        return {"success": True, "message": "written", "data": {"data": given if isinstance(given, list) else [given], "meta_info": "write to buffer"}}

    @app.post("/get_rollout_data")
    async def read() -> dict[str, Any]:
        rewards = [item["reward"] for items in items_of.values() for item in items]
        meta: dict[str, Any] = {"total_samples": len(rewards), "num_groups": len(items_of), "avg_reward": sum(rewards) / max(1, len(rewards))}
        meta["finished_groups"] = [instance for instance, items in items_of.items() if len(items) >= group_size]
        given: list[Item] = []
        for instance in meta["finished_groups"]:
            items = items_of.pop(instance)
            if len({item["reward"] for item in items}) > 1:
                given += normalized(items)
        return {"success": bool(given), "message": f"{len(given)} items", "data": {"data": given, "meta_info": meta}}

    return app


def normalized(items: list[Item]) -> list[Item]:
    """The items with rewards of mean 0 and deviation 1."""
    rewards = [item["reward"] for item in items]
    mean, deviation = statistics.fmean(rewards), statistics.pstdev(rewards)
    for item in items:
        item["raw_reward"] = item["reward"]
        item["reward"] = (item["reward"] - mean) / (deviation + 1e-8)
    return items


def main() -> None:
    port_file, group_size = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 8
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    port_file.write_text(str(listener.getsockname()[1]))
    # As it comes: with the loop and the parser that are installed, which are those that the buffer uses.
    uvicorn.Server(uvicorn.Config(peer_app(group_size), log_level="warning")).run(sockets=[listener])


if __name__ == "__main__":
    main()
