"""Limits beside the routes of FastAPI.

Usage: `@app.get("/search", dependencies=[Depends(limit("search", cost=2, key=Depends(current_user)))])`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import HTTPException, WebSocketException, params
from starlette.requests import HTTPConnection

from rlaas_client._http import Rejection
from rlaas_client._route import Options, Route
from rlaas_client.asgi import HEADERS, SETTLEMENTS, request_from_scope
from rlaas_client.async_client import AsyncClient
from rlaas_client.keys import Key, KeyFunction
from rlaas_client.verdict import Verdict

if TYPE_CHECKING:
    from typing_extensions import Unpack

# A code of websockets: try again later.
TRY_AGAIN_LATER = 1013

Dependency = Callable[..., Coroutine[Any, Any, Verdict | None]]


class Refused(HTTPException):
    """The refusal of a request: 429, or 503 without a decision."""

    def __init__(self, status: int, detail: str, headers: dict[str, str], verdict: Verdict) -> None:
        super().__init__(status, detail, headers)
        self.verdict = verdict


def limit(rule: str, **options: Unpack[Options]) -> Dependency:
    """Returns a dependency that limits a route of HTTP or websockets, and returns the verdict, or None if exempt.

    Asks `app.state.rlaas`, an `AsyncClient`, or else one with all defaults. The key may be a `Depends`, such as of
    the user after authentication. `count` needs the middleware `rlaas_client.asgi.RateLimit`, which sees the status;
    its key may be `lambda request: None`.
    """
    route = Route(rule, **options)
    if not isinstance(route.key, params.Depends):

        async def by_request(connection: HTTPConnection) -> Verdict | None:
            return await _admit(route, connection, route.key)

        return by_request

    async def by_dependency(connection: HTTPConnection, user: Any = route.key) -> Verdict | None:
        if user is not None and not isinstance(user, (str, Key)):
            raise TypeError(f"the key of limit({rule!r}) must be text, a Key or None, not {type(user).__name__}")
        return await _admit(route, connection, lambda _: user)

    return by_dependency


async def _admit(route: Route, connection: HTTPConnection, key: KeyFunction) -> Verdict | None:
    """Decides a request. Raises what refuses it."""
    scope, request, client = connection.scope, request_from_scope(connection.scope), _client(connection)
    if route.count and SETTLEMENTS not in scope:
        raise RuntimeError("count needs the middleware rlaas_client.asgi.RateLimit, and HTTP")
    template = getattr(scope.get("route"), "path", request.path)
    admitted = await client._run(lambda: route.admit(client, request, template, key))
    if isinstance(admitted, Rejection):
        raise _refusal(connection, admitted)
    # FastAPI drops headers of a dependency if the route returns a response of its own.
    scope.get(HEADERS, []).extend(admitted.headers)
    if admitted.held is not None:
        scope[SETTLEMENTS].append(partial(route.settlement, admitted.held))
    return admitted.verdict


def _client(connection: HTTPConnection) -> AsyncClient:
    state = connection.app.state
    if not hasattr(state, "rlaas"):
        state.rlaas = AsyncClient()
    if not isinstance(state.rlaas, AsyncClient):
        raise TypeError(f"app.state.rlaas must be an AsyncClient, not {type(state.rlaas).__name__}")
    return state.rlaas


def _refusal(connection: HTTPConnection, rejection: Rejection) -> Exception:
    detail = rejection.document["detail"]
    headers = {name: value for name, value in rejection.headers if not name.startswith("content-")}
    # A server without this extension can't refuse a websocket by a response.
    extensions = connection.scope.get("extensions") or {}
    if connection.scope["type"] == "websocket" and "websocket.http.response" not in extensions:
        return WebSocketException(TRY_AGAIN_LATER, detail)
    if rejection.verdict is None:
        return HTTPException(rejection.status.value, detail, headers)
    return Refused(rejection.status.value, detail, headers, rejection.verdict)
