"""Limits beside the views of Django.

Usage: `@limit("search", cost=2)` above a view, which is not a coroutine function.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseBase

from rlaas_client._http import Rejection
from rlaas_client._route import Options, Route
from rlaas_client.client import Client
from rlaas_client.keys import Request

if TYPE_CHECKING:
    from typing_extensions import Unpack

View = Callable[..., HttpResponseBase]


def limit(rule: str, **options: Unpack[Options]) -> Callable[[View], View]:
    """Returns a decorator that limits a view by a rule.

    Asks the `Client` in the setting RLAAS, or else one with all defaults. A key function finds the request of Django
    as `request.raw["django.request"]`.
    """
    route = Route(rule, **options)

    def decorate(view: View) -> View:
        @wraps(view)
        def limited(request: HttpRequest, *args: Any, **values: Any) -> HttpResponseBase:
            called = Request(
                request.method or "",
                request.path,
                request.META.get("REMOTE_ADDR") or None,
                lambda name: [request.headers[name]] if name in request.headers else [],
                {**request.META, "django.request": request},
            )
            template = request.path if request.resolver_match is None else f"/{request.resolver_match.route}"
            client = getattr(settings, "RLAAS", None) or _default_client()
            return route.serve(client, called, template, lambda: view(request, *args, **values), _refusal)

        return limited

    return decorate


@cache
def _default_client() -> Client:
    return Client()


def _refusal(rejection: Rejection) -> HttpResponseBase:
    return HttpResponse(rejection.body, status=rejection.status.value, headers=dict(rejection.headers))
