"""Limits beside the routes of FastAPI, Flask and Django, by the same options."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import django.test
import flask
import pytest
from conftest import wait_until
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.urls import path
from fastapi import Depends, FastAPI, Response
from fastapi.testclient import TestClient

from rlaas_client import AsyncClient, CheckResponse, Client, Verdict, keys, testing
from rlaas_client._turns import MAX_WAITING, Turns
from rlaas_client.asgi import RateLimit
from rlaas_client.django import limit as django_limit
from rlaas_client.fastapi import limit as fastapi_limit
from rlaas_client.flask import limit as flask_limit
from rlaas_client.testing import Limit
from rlaas_client.verdict import from_response

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"])
django.setup()
urlpatterns: list[Any] = []


class Answer(NamedTuple):
    status: int
    headers: Any


# Returns an answer to a request of a user to /users/ID, for which the view returns a status.
Get = Callable[..., Answer]


class With(NamedTuple):
    """What a client asks: a service of tests, or a server."""

    service: testing.Service | None = None
    address: str = ""

    def client(self, asynchronous: bool = False) -> Any:
        if self.service is not None:
            return (testing.AsyncClient if asynchronous else testing.Client)(self.service)
        return (AsyncClient if asynchronous else Client)(self.address, timeout=5, max_age=0)


def serve_fastapi(asked: With, *, view: Callable[[], int] = lambda: 200, **options: Any) -> Get:
    app, client = FastAPI(), asked.client(asynchronous=True)
    app.state.rlaas = client
    app.add_middleware(RateLimit, client, key=lambda request: None)

    @app.get("/users/{number}", dependencies=[Depends(fastapi_limit("users", **options))])
    def users(number: int) -> Response:
        return Response(status_code=view())

    http = TestClient(app, raise_server_exceptions=False)
    http.__enter__()

    def get(user: str = "alice") -> Answer:
        answer = http.get("/users/1", headers={"x-user": user})
        return Answer(answer.status_code, answer.headers)

    return get


def serve_flask(asked: With, *, view: Callable[[], int] = lambda: 200, **options: Any) -> Get:
    app = flask.Flask(__name__)
    app.extensions["rlaas"] = asked.client()

    @app.get("/users/<int:number>")
    @flask_limit("users", **options)
    def users(number: int) -> tuple[str, int]:
        return "", view()

    def get(user: str = "alice") -> Answer:
        answer = app.test_client().get("/users/1", headers={"x-user": user})
        return Answer(answer.status_code, answer.headers)

    return get


def serve_django(asked: With, *, view: Callable[[], int] = lambda: 200, **options: Any) -> Get:
    @django_limit("users", **options)
    def users(request: HttpRequest, number: int) -> HttpResponse:
        return HttpResponse(status=view())

    settings.RLAAS = asked.client()
    urlpatterns[:] = [path("users/<int:number>", users)]
    django.urls.clear_url_caches()

    def get(user: str = "alice") -> Answer:
        answer = django.test.Client(raise_request_exception=False).get("/users/1", headers={"x-user": user})
        return Answer(answer.status_code, answer.headers)

    return get


BY_USER = keys.header("x-user")
FRAMEWORKS = {
    "fastapi": (serve_fastapi, "/users/{number}"),
    "flask": (serve_flask, "/users/<int:number>"),
    "django": (serve_django, "/users/<int:number>"),
}


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> tuple[Callable[..., Get], str]:
    return FRAMEWORKS[request.param]


@pytest.fixture
def serve_app(framework: tuple[Callable[..., Get], str]) -> Callable[..., Get]:
    return framework[0]


def test_limit_beside_a_route(framework: tuple[Callable[..., Get], str]) -> None:
    serve_app, template = framework
    service = testing.count(Limit("users", 3))
    get = serve_app(With(service), cost=2, key=BY_USER, strict=True)
    allowed = get()
    assert (allowed.status, allowed.headers["ratelimit"]) == (200, '"users";r=1;t=60')
    refused = get()
    assert (refused.status, refused.headers["retry-after"]) == (429, "60")
    assert get("bob").status == 200
    request = service.requests[0]
    assert (request.user_id, request.resource, request.cost) == ("alice", template, 2)
    assert serve_app(With(service), key=keys.header("x-other"))().status == 400
    exempt = serve_app(With(service), key=lambda request: None)()
    assert exempt.status == 200 and "ratelimit" not in exempt.headers


def test_strict_rule_and_own_resource(serve_app: Callable[..., Get], caplog: pytest.LogCaptureFixture) -> None:
    service = testing.count(Limit("users", 9, resource="/x"))
    assert serve_app(With(service), resource="/x", strict=True)().status == 200
    assert serve_app(With(service), strict=True)().status == 500
    assert any(line.endswith("no rule named users matches its requests, but none") for line in caplog.messages)


@pytest.mark.parametrize(
    ("count", "expected"), [("failures", [200, 404, 200, 500, 429]), ("successes", [200, 404, 200, 429, 429])]
)
def test_only_some_outcomes_are_counted(serve_app: Callable[..., Get], count: Any, expected: list[int]) -> None:
    outcomes = iter([200, 404, 200, None, 200])

    def view() -> int:
        outcome = next(outcomes)
        if isinstance(outcome, int):
            return outcome
        raise KeyError

    get = serve_app(With(testing.count(Limit("users", 2))), count=count, key=BY_USER, view=view)
    assert [get().status for _ in expected] == expected


def test_outcomes_have_names() -> None:
    with pytest.raises(ValueError, match='count must be "failures" or "successes"'):
        flask_limit("users", count="errors")  # type: ignore[arg-type]
    app = FastAPI()
    app.state.rlaas = testing.AsyncClient(testing.allow())
    app.get("/", dependencies=[Depends(fastapi_limit("users", count="failures"))])(lambda: 1)
    with pytest.raises(RuntimeError, match="count needs the middleware"):
        TestClient(app).get("/")


def test_wrong_passwords_are_counted_by_a_server(
    serve_app: Callable[..., Get], serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    status, user = [200], str(uuid.uuid4())
    rule = "name: users, endpoint: /login, algorithm: sliding-window-counter, limit: 2, window: 1h, reservable: true"
    with serve(f"rules=[{{ {rule} }}]") as address:
        options = {"resource": "/login", "key": BY_USER, "count": "failures"}
        get = serve_app(With(address=address), view=lambda: status[0], **options)
        # The first answer of a server takes time.
        wait_until(lambda: "ratelimit" in get("first").headers)
        caplog.clear()
        for status[0] in (200, 401, 200, 401):
            assert get(user).status == status[0]
        assert get(user).status == 429
        assert not [record for record in caplog.records if record.name == "rlaas"]


def test_rule_that_is_not_reservable_is_named(
    serve_app: Callable[..., Get], serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with serve("rules=[{ name: users, endpoint: /login, limit: 9, window: 1h }]") as address:
        get = serve_app(With(address=address), resource="/login", key=BY_USER, count="failures")
        wait_until(lambda: get().status == 500)
        assert get().status == 500
        text = "the rule users must be reservable to count failures"
        assert [line.endswith(text) for line in caplog.messages].count(True) == 1


SOON = "rules=[{ name: users, endpoint: /soon, algorithm: gcra, limit: 2, window: 1s, burst: 1 }]"


def test_requests_wait_in_turn(serve_app: Callable[..., Get], serve: Any) -> None:
    with serve(SOON) as address, ThreadPoolExecutor(4) as threads:
        waiting = {"resource": "/soon", "key": BY_USER, "strict": True}
        get = serve_app(With(address=address), wait=30, **waiting)
        wait_until(lambda: "ratelimit" in get("first").headers)
        began = time.monotonic()
        assert [answer.status for answer in threads.map(get, ["alice"] * 4)] == [200] * 4
        assert time.monotonic() - began >= 1.4, "one passes at once, and the others each half a second"
        short = serve_app(With(address=address), wait=0.001, **waiting)
        wait_until(lambda: "ratelimit" in short("first").headers)
        assert [short("bob").status, short("bob").status] == [200, 429]


def test_requests_wait_no_longer_for_what_is_held(serve_app: Callable[..., Get], serve: Any) -> None:
    rule = "name: users, endpoint: /held, algorithm: gcra, limit: 1, window: 1h, reservable: true"
    with serve(f"rules=[{{ {rule} }}]") as address, Client(address, timeout=5) as client:
        wait_until(lambda: client.check("first").answered_by == "server")
        get = serve_app(With(address=address), wait=0.2, resource="/held", key=BY_USER, count="failures")
        wait_until(lambda: "ratelimit" in get("first").headers)
        with client.reserve("alice", "/held") as held:
            began = time.monotonic()
            assert get().status == 429
            assert 0.2 <= time.monotonic() - began < 15
            held.cancel()
        assert get().status == 200


def test_waiting_is_bounded() -> None:
    turns, seen = Turns(), list[str]()

    async def attempt() -> Verdict:
        seen.append("asked")
        return from_response(CheckResponse(allowed=True))

    turns._waiting = [(b"other", object())] * MAX_WAITING
    client = testing.Client(testing.allow())
    assert client._run(lambda: turns.decide(client, 60, b"mine", attempt)).allowed and seen == ["asked"]
