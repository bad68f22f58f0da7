"""Limits beside the routes of Flask.

Usage: `@limit("search", cost=2)`, below `@app.get("/search")`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import flask

from rlaas_client._http import Rejection
from rlaas_client._route import Options, Route
from rlaas_client.client import Client
from rlaas_client.keys import Request

if TYPE_CHECKING:
    from typing_extensions import Unpack


def limit(rule: str, **options: Unpack[Options]) -> Callable[[Callable[..., Any]], Callable[..., flask.Response]]:
    """Returns a decorator that limits a view by a rule.

    Asks `app.extensions["rlaas"]`, a `Client`, or else one with all defaults.
    """
    route = Route(rule, **options)

    def decorate(view: Callable[..., Any]) -> Callable[..., flask.Response]:
        @wraps(view)
        def limited(*args: Any, **values: Any) -> flask.Response:
            app, request = flask.current_app, flask.request
            client = app.extensions.get("rlaas") or app.extensions.setdefault("rlaas", Client())
            called = Request(
                request.method, request.path, request.remote_addr, request.headers.getlist, request.environ
            )
            template = request.path if request.url_rule is None else request.url_rule.rule
            return route.serve(
                client,
                called,
                template,
                lambda: flask.make_response(app.ensure_sync(view)(*args, **values)),
                _refusal,
            )

        return limited

    return decorate


def _refusal(rejection: Rejection) -> flask.Response:
    return flask.Response(rejection.body, rejection.status.value, rejection.headers)
