"""What is served about generators, beside `/start_rollout`: how they stand, what they say, and an end to them."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from penstock.buffer.compat.generators.lives import GeneratorState
from penstock.buffer.compat.generators.running import Generators
from penstock.errors import InvalidError
from penstock.httpd import Scope, reply
from penstock.httpd.operations import Body, Operation, Query, routes_of
from penstock.httpd.routing import ScopedRoute

DEFAULT_LINES = 100
MAX_LINES = 10_000


async def _generators(generators: Generators, request: Request) -> Response:
    await generators.look_again()
    discovery = generators.discovery
    refused = [{"file": refused.path.name, "reason": refused.reason} for refused in discovery.refused]
    return reply({"generators": generators.states(), "refused": refused})


async def _stop_generator(generators: Generators, request: Request) -> Response:
    return reply(await generators.stop(request.path_params["task_type"]))


async def _generator_log(generators: Generators, request: Request) -> Response:
    given = request.query_params.get("lines", str(DEFAULT_LINES))
    # By its digits first: Python refuses to read a number of thousands of them.
    if not given.isdecimal() or len(given) > 9 or not 1 <= int(given) <= MAX_LINES:
        raise InvalidError(f"lines must be an integer in 1..{MAX_LINES}, got {given[:80]!r}")
    task_type = request.path_params["task_type"]
    return reply({"task_type": task_type, "lines": generators.logs(task_type, int(given))})


OPERATIONS: tuple[Operation[Generators], ...] = (
    Operation(
        method="GET",
        path="/generators",
        call=_generators,
        needs=Scope.VIEW,
        summary="Generators that are there now, and how each stands.",
        text="`generators`: one state each; `refused`: files that look like one and are none, with the reason.",
        answer=Body(noun=dict[str, Any]),
    ),
    Operation(
        method="GET",
        path="/generators/{task_type:path}/log",
        call=_generator_log,
        needs=Scope.VIEW,
        summary="The end of what a generator has written to its log.",
        query=(Query(name="lines", text=f"How many lines, {DEFAULT_LINES} if not given.", kind="integer"),),
        answer=Body(noun=dict[str, Any]),
        refuses=(404, 422),
    ),
    Operation(
        method="POST",
        path="/generators/{task_type:path}/stop",
        call=_stop_generator,
        needs=Scope.ADMIN,
        summary="Stop a generator and all that it has started.",
        text="SIGTERM, then SIGKILL for the whole process group. One that has ended is left as it is.",
        answer=Body(noun=GeneratorState),
        refuses=(404,),
    ),
)


def generator_routes(generators: Generators) -> list[ScopedRoute]:
    """The routes, to be put beside the native ones."""
    return routes_of(OPERATIONS, generators)
