"""Middleware for WSGI: Flask, Django, Bottle.

Usage: `app.wsgi_app = RateLimit(app.wsgi_app, address="127.0.0.1:50051")`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rlaas_client._base import ADDRESS
from rlaas_client._http import Headers, Rejection, admit
from rlaas_client.client import Client
from rlaas_client.keys import PEER, KeyFunction, Request

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


class RateLimit:
    """Limits the requests of an application by `key`, by default the address of the peer.

    Asks `client`, or else one of its own of the server at `address`.
    """

    def __init__(
        self, app: WSGIApplication, client: Client | None = None, *, address: str = ADDRESS, key: KeyFunction = PEER
    ) -> None:
        """Wraps an application."""
        self._app, self._key = app, key
        self._client = client or Client(address)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Serves a request."""
        admitted = self._client._run(lambda: admit(self._client, self._key, _request(environ)))
        if isinstance(admitted, Rejection):
            start_response(f"{admitted.status.value} {admitted.status.phrase}", admitted.headers)
            return [] if environ["REQUEST_METHOD"] == "HEAD" else [admitted.body]

        def start_with_headers(status: str, headers: Headers, *exc_info: Any) -> Any:
            return start_response(status, [*headers, *admitted], *exc_info)

        return self._app(environ, start_with_headers)


def _request(environ: WSGIEnvironment) -> Request:
    def header_lines(name: str) -> list[str]:
        # WSGI servers join the lines of a header.
        value = environ.get("HTTP_" + name.upper().replace("-", "_"))
        return [] if value is None else [value]

    path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    path = path.encode("latin-1").decode(errors="replace")
    return Request(environ["REQUEST_METHOD"], path, environ.get("REMOTE_ADDR") or None, header_lines, environ)
