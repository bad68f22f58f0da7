"""Limits beside the routes of FastAPI.

Usage: `@app.get("/search", dependencies=[Depends(limit("search", cost=2, key=Depends(current_user)))])`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from fastapi import HTTPException, WebSocketException, params
from starlette.requests import HTTPConnection

from rlaas_client._http import Rejection, decide, outcome
from rlaas_client._proto.ratelimit_pb2 import CheckResponse
from rlaas_client.asgi import HEADERS, request_from_scope
from rlaas_client.async_client import AsyncClient
from rlaas_client.keys import PEER, Key, KeyFunction
from rlaas_client.verdict import Verdict

_LOG = logging.getLogger("rlaas")
# Origins of answers that may lack rules that match.
_FEWER_RULES = (CheckResponse.DENY_CACHE, CheckResponse.FAIL_OPEN, CheckResponse.FAIL_CLOSED)
# A code of websockets: try again later.
TRY_AGAIN_LATER = 1013

Dependency = Callable[..., Coroutine[Any, Any, Verdict | None]]


def limit(
    rule: str,
    *,
    cost: int | None = None,
    key: KeyFunction | Any = PEER,
    resource: str | None = None,
    strict: bool = False,
) -> Dependency:
    """Returns a dependency that limits a route of HTTP or websockets, and returns the verdict, or None if exempt.

    Asks `app.state.rlaas`, an `AsyncClient`, or else one with all defaults. `rule` is the name of the rule that is
    expected to decide: the first answer without it is logged, and with `strict` each is the error 500. `key` is a
    `Depends`, such as of the user after authentication, or a function as in `rlaas_client.keys`. The resource is the
    template of the route.
    """
    route = _Route(rule, cost, resource, strict)
    if not isinstance(key, params.Depends):

        async def by_request(connection: HTTPConnection) -> Verdict | None:
            return await route.admit(connection, key)

        return by_request

    async def by_dependency(connection: HTTPConnection, user: Any = key) -> Verdict | None:
        if user is not None and not isinstance(user, (str, Key)):
            raise TypeError(f"the key of limit({rule!r}) must be text, a Key or None, not {type(user).__name__}")
        return await route.admit(connection, lambda _: user)

    return by_dependency


class _Route:
    """A limit of a route."""

    def __init__(self, rule: str, cost: int | None, resource: str | None, strict: bool) -> None:
        self._rule, self._cost, self._resource, self._strict = rule, cost, resource, strict
        self._is_confirmed = self._is_logged = False

    async def admit(self, connection: HTTPConnection, key: KeyFunction) -> Verdict | None:
        """Decides a request. Raises what refuses it."""
        request, client = request_from_scope(connection.scope), _client(connection)
        template = getattr(connection.scope.get("route"), "path", request.path)

        def key_of_route(_: object) -> Key | None:
            found = key(request)
            if found is None:
                return None
            found = found if isinstance(found, Key) else Key(found)
            resource = self._resource or (template if found.resource is None else found.resource)
            return replace(found, resource=resource, cost=found.cost if self._cost is None else self._cost)

        decided = await client._run(lambda: decide(client, key_of_route, request))
        if isinstance(decided, Rejection):
            raise _refusal(connection, decided)
        if decided is None:
            return None
        if decided.answered_by == "server" and client._has_rules and not self._is_confirmed:
            self._confirm(template, decided)
        admitted = outcome(decided)
        if isinstance(admitted, Rejection):
            raise _refusal(connection, admitted)
        # FastAPI drops headers of a dependency if the route returns a response of its own.
        connection.scope.get(HEADERS, []).extend(admitted)
        return decided

    def _confirm(self, template: str, verdict: Verdict) -> None:
        """Looks for the rule among those that have decided."""
        rules = [decision.rule for decision in verdict.response.decisions]
        self._is_confirmed = self._rule in rules
        if self._is_confirmed or verdict.response.source in _FEWER_RULES:
            return
        if not self._is_logged:
            self._is_logged = True
            others = ", ".join(rules) or "none"
            _LOG.error("route %s: no rule named %s matches its requests, but %s", template, self._rule, others)
        if self._strict:
            raise HTTPException(500, "internal error")


def _client(connection: HTTPConnection) -> AsyncClient:
    state = connection.app.state
    if not hasattr(state, "rlaas"):
        state.rlaas = AsyncClient()
    client: AsyncClient = state.rlaas
    return client


def _refusal(connection: HTTPConnection, rejection: Rejection) -> Exception:
    detail = rejection.document["detail"]
    headers = {name: value for name, value in rejection.headers if not name.startswith("content-")}
    # A server without this extension can't refuse a websocket by a response.
    extensions = connection.scope.get("extensions") or {}
    if connection.scope["type"] == "websocket" and "websocket.http.response" not in extensions:
        return WebSocketException(TRY_AGAIN_LATER, detail)
    return HTTPException(rejection.status.value, detail, headers)
