"""Routes that know what they need, and one shape for what is not there: an app of them goes behind a `Guard`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.routing import BaseRoute, Route, Router
from starlette.types import Lifespan, Receive, Send
from starlette.types import Scope as AsgiScope

from penstock.errors import ForbiddenError, MethodError, UnknownError
from penstock.httpd.direct import DirectRoute
from penstock.httpd.tokens import ALL_SCOPES, Scope


class ScopedRoute(Route):
    """A route that a token must allow. A plain `Route` in a `router` needs `admin`: what nobody thought of is closed."""

    needs: Scope | None = Scope.ADMIN
    """None: open to everybody, for a sign of life."""
    allows: tuple[str, ...] = ()
    """Methods that its path has."""

    async def handle(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Answer, if the path has the method and the token the scope."""
        if self.methods and scope["method"] not in self.methods:
            raise MethodError(f"{scope['path'][:200]} takes {', '.join(self.allows)}, not {scope['method']}", allowed=self.allows)
        check_scope(scope, self.needs)
        await super().handle(scope, receive, send)


def scoped(path: str, endpoint: Any, needs: Scope | None, *, methods: Sequence[str] = ("GET",)) -> ScopedRoute:
    """A route that needs a scope."""
    route = ScopedRoute(path, endpoint, methods=list(methods))
    route.needs = needs
    return route


def routed(direct: DirectRoute) -> ScopedRoute:
    """A direct route as one of an app, for the requests that do not come by the lane."""
    # The route itself looks at the scope, so that its refusal has its own shape.
    return scoped(direct.path, direct.endpoint, None, methods=[direct.method])


def check_scope(scope: AsgiScope, needs: Scope | None) -> None:
    """Raise `ForbiddenError` unless whoever sent the request may do what `needs` names. For apps that route by themselves."""
    if needs is not None and needs not in scope.get("state", {}).get("scopes", ALL_SCOPES):
        raise ForbiddenError(f"the token does not have the scope {needs}")


def router(routes: Sequence[BaseRoute], lifespan: Lifespan[Any] | None = None) -> Router:
    """An app of `routes` to put behind a `Guard`. (A `Starlette` would answer 500 for every error before the guard sees it.)"""
    own = [_scoped(route) for route in routes]
    for route in own:
        if isinstance(route, ScopedRoute):
            same = [other for other in own if isinstance(other, ScopedRoute) and other.path == route.path]
            route.allows = tuple(sorted({method for other in same for method in other.methods or ()}))
    return Router(own, default=_no_such_path, lifespan=lifespan, redirect_slashes=False)


def _scoped(route: BaseRoute) -> BaseRoute:
    if isinstance(route, ScopedRoute) or not isinstance(route, Route):
        return route
    needs = None if route.path == "/livez" else Scope.ADMIN
    return scoped(route.path, route.endpoint, needs, methods=sorted(route.methods or {"GET"}))


async def _no_such_path(scope: AsgiScope, receive: Receive, send: Send) -> None:
    raise UnknownError(f"no path {scope['path'][:200]!r} for {scope['method']}")
