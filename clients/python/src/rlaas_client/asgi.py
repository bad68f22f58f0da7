"""Middleware for ASGI: FastAPI, Starlette, Django, Quart.

Usage: `app.add_middleware(RateLimit, address="127.0.0.1:50051")`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

from rlaas_client._base import ADDRESS
from rlaas_client._http import Headers, Rejection, admit
from rlaas_client._request import Error
from rlaas_client.async_client import AsyncClient
from rlaas_client.keys import PEER, KeyFunction, Request

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


# Key of the scope for headers that a limit within the application adds to its response.
HEADERS = "rlaas.headers"
# Key of the scope for functions of such a limit, which return what settles it, by the status.
SETTLEMENTS = "rlaas.settlements"


class RateLimit:
    """Limits the requests of an application by `key`, by default the address of the peer.

    Asks `client`, or else one of its own of the server at `address`. Websockets are not limited.
    """

    def __init__(
        self, app: App, client: AsyncClient | None = None, *, address: str = ADDRESS, key: KeyFunction = PEER
    ) -> None:
        """Wraps an application."""
        self._app, self._key = app, key
        self._is_own = client is None
        self._client = client or AsyncClient(address)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves a connection."""
        if scope["type"] == "lifespan":
            await self._client.connect()
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            if scope["type"] == "lifespan" and self._is_own:
                await self._client.close()
            return
        admitted = await self._client._run(lambda: admit(self._client, self._key, request_from_scope(scope)))
        if isinstance(admitted, Rejection):
            start = {"type": "http.response.start", "status": admitted.status.value}
            await send({**start, "headers": _encoded(admitted.headers)})
            await send({"type": "http.response.body", "body": admitted.body})
            return
        scope[HEADERS], scope[SETTLEMENTS] = admitted, []
        # An exception is a failure.
        status = 500

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), *_encoded(admitted)]}
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        finally:
            for settlement in scope[SETTLEMENTS]:
                # An error is logged.
                with suppress(Error):
                    await settlement(status)()


def request_from_scope(scope: Scope) -> Request:
    """Returns the request of a scope, that of a websocket as a GET."""

    def header_lines(name: str) -> list[str]:
        searched = name.encode("latin-1")
        return [value.decode("latin-1") for key, value in scope["headers"] if key == searched]

    client = scope.get("client")
    return Request(scope.get("method", "GET"), scope["path"], client[0] if client else None, header_lines, scope)


def _encoded(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers]
