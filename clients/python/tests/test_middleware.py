"""The middleware in applications of FastAPI (ASGI) and Flask (WSGI)."""

import runpy
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest
from conftest import CLOSED, Answering, status
from fastapi import FastAPI
from fastapi.testclient import TestClient
from flask import Flask

from rlaas_client import AsyncClient, CheckResponse, Client, asgi, keys, wsgi
from rlaas_client._base import BaseClient
from rlaas_client._http import Rejection, admit, outcome
from rlaas_client._proto.ratelimit_pb2 import CONCURRENCY
from rlaas_client.verdict import from_response

PEER = "192.0.2.1"


Build = Callable[..., httpx2.Client]


def fastapi(address: str, key: keys.KeyFunction = keys.PEER, **settings: Any) -> httpx2.Client:
    app = FastAPI()
    app.add_middleware(asgi.RateLimit, AsyncClient(address, timeout=5, **settings), key=key)
    app.get("/")(lambda: {"hello": "world"})
    return TestClient(app, client=(PEER, 50000))


def flask(address: str, key: keys.KeyFunction = keys.PEER, **settings: Any) -> httpx2.Client:
    app = Flask(__name__)
    client = Client(address, timeout=5, **settings)
    app.wsgi_app = wsgi.RateLimit(app.wsgi_app, client, key=key)  # type: ignore[method-assign]
    app.get("/")(lambda: {"hello": "world"})
    return httpx2.Client(transport=httpx2.WSGITransport(app, remote_addr=PEER), base_url="http://test")


@pytest.fixture(params=[fastapi, flask])
def build(request: pytest.FixtureRequest) -> Iterator[Build]:
    """Builds an application, and returns a client of it."""
    with ExitStack() as stack:
        yield lambda *args, **settings: stack.enter_context(request.param(*args, **settings))


def test_allowed_and_refused(build: Build, address: str) -> None:
    http, key = build(address, keys.header("X-API-Key")), {"x-api-key": f"key-{time.time_ns()}"}
    allowed = http.get("/", headers=key)
    assert (allowed.status_code, allowed.json()) == (200, {"hello": "world"})
    assert allowed.headers["ratelimit-policy"].startswith('"default";q=2')
    assert allowed.headers["ratelimit"].startswith('"default";r=1;t=')
    assert http.get("/", headers=key).status_code == 200
    # The second of these is answered by the cache.
    for _ in range(2):
        refused = http.get("/", headers=key)
        assert refused.status_code == 429 and refused.headers["content-type"] == "application/problem+json"
        wait = int(refused.headers["retry-after"])
        assert 20 < wait <= 30 and refused.headers["ratelimit"] == f'"default";r=0;t={wait}'
        assert refused.json() == {
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Quota Exceeded",
            "status": 429,
            "detail": f"try again after {wait} seconds",
            "violated-policies": ["default"],
        }
    missing = http.get("/")
    assert missing.status_code == 400 and missing.json()["detail"].startswith("header x-api-key must be present")
    assert http.get("/", headers={"x-api-key": "k" * 2000}).status_code == 400, (
        "no policy lets a request pass that can't be decided"
    )
    exempt = build(address, lambda request: None if request.path == "/" else "alice").get("/")
    assert exempt.status_code == 200 and "ratelimit" not in exempt.headers


def test_server_away(build: Build) -> None:
    allowed = build(CLOSED).get("/")
    assert allowed.status_code == 200 and "ratelimit" not in allowed.headers
    denied = build(CLOSED, on_no_answer="deny").get("/")
    assert denied.status_code == 503 and denied.headers["retry-after"] == "1"
    assert denied.json()["detail"] == "rate limiter unavailable" and denied.json()["type"] == "about:blank"


def test_key_behind_a_proxy(build: Build, address: str) -> None:
    http, client = build(address, keys.address(proxies=1)), f"2001:db8:0:{time.time_ns() % 65536:x}"
    for number, expected in [(1, 200), (2, 200), (3, 429)]:
        # Each request claims another client, and comes from another address of the same site.
        headers = {"x-forwarded-for": f"203.0.113.{number}, {client}::{number}"}
        assert http.get("/", headers=headers).status_code == expected
    assert http.get("/", headers={"x-forwarded-for": f"{client}::1, 2001:db8:1::1"}).status_code == 200


@pytest.mark.parametrize("code", [grpc.StatusCode.OUT_OF_RANGE, grpc.StatusCode.FAILED_PRECONDITION])
def test_request_that_the_server_rejects_is_refused(build: Build, code: grpc.StatusCode) -> None:
    with Answering(Check=code).serve() as address:
        assert build(address).get("/").status_code == 400


@pytest.mark.parametrize("user", ["", "k" * 1025, "\ud800", 5, b"bytes"])
def test_key_that_cannot_be_sent_is_refused(build: Build, user: Any) -> None:
    response = build(CLOSED, lambda _: user).get("/")
    assert response.status_code == 400 and response.json()["detail"].startswith("user_id must be text")


@pytest.mark.parametrize("proxies", [0, 1])
def test_peer_without_an_address_is_refused(proxies: int, caplog: pytest.LogCaptureFixture) -> None:
    request = keys.Request("GET", "/", None, lambda _: [], {})
    with Client(CLOSED) as client:
        for _ in range(2):
            rejection = client._run(lambda: admit(client, keys.address(proxies), request))
            assert isinstance(rejection, Rejection) and rejection.status == 500
    assert len(caplog.records) == 1 and "the peer has no address" in caplog.text


@contextmanager
def no_grpc() -> Iterator[str]:
    """A server of something else, which closes each connection."""

    def serve() -> None:
        with suppress(OSError):
            while True:
                with server.accept()[0] as connection:
                    connection.recv(1000)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("serve", "text"),
    [
        (Answering(Check=grpc.StatusCode.UNAUTHENTICATED).serve, "{0} refuses token, api_key or certificate: no"),
        (no_grpc, "{0} does not answer gRPC: address must be one of server.listen, https://{0} with ca if"),
    ],
)
def test_wrong_setting_is_logged_once(
    build: Build, serve: Callable[..., Any], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = list[str]()
    monkeypatch.setattr(BaseClient, "_warn", lambda _, kind, message, *args: lines.append(message % args))
    with serve() as address:
        http = build(address)
        assert [http.get("/").status_code for _ in range(3)] == [200] * 3
    assert [text.format(address) in line for line in lines] == [True]


@pytest.mark.parametrize(("code", "reason"), [(14, "STORE_UNAVAILABLE"), (14, "NOT_READY"), (8, "OVERLOADED")])
def test_server_that_cannot_decide_refuses(build: Build, code: int, reason: str) -> None:
    with Answering(Check=status(code, reason)).serve() as address:
        refused = build(address, on_no_answer="allow").get("/")
    assert refused.status_code == 503 and refused.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("case", "policy", "status"),
    [
        ("unauthenticated", "allow", 200),
        ("unauthenticated", "deny", 503),
        ("invalid", "allow", 400),
        ("no-rule", "allow", 403),
        ("refused-for-ever", "allow", 429),
    ],
)
def test_answers_of_the_cases(build: Build, cases_address: str, case: str, policy: str, status: int) -> None:
    key = keys.Key(f"{case}@http", attributes={"plan": "free"})
    response = build(cases_address, lambda _: key, on_no_answer=policy).get("/")
    assert response.status_code == status and response.json().get("reason") == ("NO_RULE" if status == 403 else None)


@pytest.mark.parametrize(
    ("proxies", "lines", "expected"),
    [
        (0, ["203.0.113.9"], PEER),
        (1, ["203.0.113.9, 198.51.100.7", "10.0.0.2:8080"], "10.0.0.2"),
        (2, ["203.0.113.9, 198.51.100.7", "10.0.0.2:8080"], "198.51.100.7"),
        (4, ["203.0.113.9, 198.51.100.7", "10.0.0.2:8080"], PEER),
        (1, [], PEER),
        (1, ["unknown"], PEER),
        (1, ["10.0.0.2,"], PEER),
        (1, ["[2001:db8:1:2:3::1]:443"], "2001:db8:1:2::/64"),
        (1, ["::ffff:198.51.100.7"], "198.51.100.7"),
    ],
)
def test_only_addresses_of_trusted_proxies_are_used(proxies: int, lines: list[str], expected: str) -> None:
    request = keys.Request("GET", "/", PEER, lambda name: lines if name == "x-forwarded-for" else [], {})
    assert keys.address(proxies)(request) == expected


def test_headers_have_the_rules_that_agree_with_the_verdict() -> None:
    response = CheckResponse(allowed=True)
    response.decisions.add(rule='a "b\\c" 100%\né', allowed=True, limit=5, remaining=-1).reset_after.FromSeconds(9)
    response.decisions.add(rule="slots", allowed=True, limit=3, remaining=2, algorithm=CONCURRENCY)
    response.decisions[0].window.FromSeconds(60)
    response.decisions[1].window.FromMilliseconds(1500)
    response.decisions.add(rule="trial", shadow=True)
    response.decisions.add(rule="ops", allowed=True, reason=CheckResponse.UNLIMITED)
    response.decisions.add(rule="blind", allowed=True, limit=7, reason=CheckResponse.STORE_UNAVAILABLE)
    name = r'"a \"b\\c\" 100%25%0A%C3%A9"'
    assert outcome(from_response(response)) == [
        ("ratelimit-policy", f'{name};q=5;w=60, "slots";q=3;qu="concurrent-requests", "blind";q=7'),
        ("ratelimit", f'{name};r=0;t=9, "slots";r=2'),
    ]
    banned = CheckResponse()
    banned.decisions.add(rule="ban", reason=CheckResponse.BANNED).reset_after.FromSeconds(9)
    rejection = outcome(from_response(banned))
    assert isinstance(rejection, Rejection) and ("ratelimit", '"ban";r=0') in rejection.headers
    assert b'"detail":"waiting does not help","violated-policies":["ban"]' in rejection.body


@pytest.mark.parametrize("name", ["fastapi_app", "flask_app"])
def test_examples_can_be_loaded(name: str) -> None:
    assert "app" in runpy.run_path(str(Path(__file__).parents[1] / "examples" / f"{name}.py"))
