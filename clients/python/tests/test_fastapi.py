"""Limits beside the routes of FastAPI."""

from collections.abc import Callable
from typing import Annotated, Any

import pytest
from conftest import wait_until
from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Response, WebSocket, WebSocketDisconnect
from fastapi.testclient import TestClient
from starlette.testclient import WebSocketDenialResponse

from rlaas_client import AsyncClient, Error, Verdict, keys, testing
from rlaas_client.asgi import App, RateLimit, Receive, Scope, Send
from rlaas_client.fastapi import Refused, limit
from rlaas_client.testing import Limit

PEER = "192.0.2.1"


async def current_user(authorization: Annotated[str, Header()]) -> str:
    if not authorization.startswith("Bearer "):
        raise HTTPException(401)
    return authorization.removeprefix("Bearer ")


def serve(client: AsyncClient, path: str = "/search/{query}", **settings: Any) -> TestClient:
    """An application with a route that is limited."""
    app = FastAPI()
    app.state.rlaas = client
    app.get(path, dependencies=[Depends(limit("search", **settings))])(lambda: {"hello": "world"})
    return TestClient(app, client=(PEER, 50000))


def test_limit_of_a_user_after_authentication() -> None:
    service = testing.count(Limit("search", 4))
    http = serve(testing.AsyncClient(service), cost=2, key=Depends(current_user))
    assert [
        http.get("/search/cats").status_code,
        http.get("/search/a", headers={"authorization": "?"}).status_code,
    ] == [
        422,
        401,
    ]
    assert not service.requests, "who is not authenticated takes nothing"
    alice = {"authorization": "Bearer alice"}
    assert [http.get(f"/search/{query}", headers=alice).status_code for query in "ab"] == [200, 200]
    refused = http.get("/search/c", headers=alice)
    assert (refused.status_code, refused.json()) == (429, {"detail": "try again after 60 seconds"})
    assert refused.headers["retry-after"] == "60" and refused.headers["ratelimit"] == '"search";r=0;t=60'
    assert http.get("/search/a", headers={"authorization": "Bearer bob"}).status_code == 200
    request = service.requests[0]
    assert (request.user_id, request.resource, request.cost) == ("alice", "/search/{query}", 2)


def test_refusal_is_an_exception_of_its_own() -> None:
    http = serve(testing.AsyncClient(testing.count(Limit("search", 1))))

    async def handle(_request: Any, refused: Exception) -> Response:
        assert isinstance(refused, Refused)
        return Response(f"{refused.verdict.rule}: {refused.detail}", refused.status_code, refused.headers)

    assert isinstance(http.app, FastAPI)
    http.app.add_exception_handler(Refused, handle)
    answers = [http.get("/search/a") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert answers[1].text == "search: try again after 60 seconds" and answers[1].headers["retry-after"] == "60"


def test_mistakes_of_the_program() -> None:
    with pytest.raises(Error, match="cost must be a whole number"):
        limit("search", cost="2")  # type: ignore[arg-type]
    http = serve(testing.Client(testing.allow()))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"app.state.rlaas must be an AsyncClient, not Client"):
        http.get("/search/a")


def test_resource_is_the_template_with_the_prefix_of_its_router() -> None:
    service, app, router = testing.allow(), FastAPI(), APIRouter(prefix="/v1")
    app.state.rlaas = testing.AsyncClient(service)
    router.get("/items/{item}", dependencies=[Depends(limit("items"))])(lambda: 1)
    router.get("/other", dependencies=[Depends(limit("items", resource="/items"))])(lambda: 1)
    app.include_router(router)
    http = TestClient(app, client=(PEER, 50000))
    assert http.get("/v1/items/1").status_code == http.get("/v1/other").status_code == 200
    assert [(request.user_id, request.resource) for request in service.requests] == [
        (PEER, "/v1/items/{item}"),
        (PEER, "/items"),
    ]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (keys.header("x-api-key"), ("k", "/search/{query}", 1)),
        (lambda request: keys.Key("k", "/r", cost=3), ("k", "/r", 3)),
        (Depends(lambda: keys.Key("k", attributes={"plan": "free"})), ("k", "/search/{query}", 1)),
        (lambda request: None, None),
        (Depends(lambda: None), None),
    ],
)
def test_keys(key: Any, expected: tuple[str, str, int] | None) -> None:
    service = testing.allow()
    assert (
        serve(testing.AsyncClient(service), key=key).get("/search/a", headers={"x-api-key": "k"}).status_code == 200
    )
    found = [(request.user_id, request.resource, request.cost) for request in service.requests]
    assert found == ([expected] if expected else [])


def test_key_that_is_no_text_is_a_mistake_of_the_program() -> None:
    http = serve(testing.AsyncClient(testing.allow()), key=Depends(lambda: {"id": 5}))
    with pytest.raises(TypeError, match=r"key of limit\('search'\) must be text, a Key or None, not dict"):
        http.get("/search/a")
    assert (
        serve(testing.AsyncClient(testing.allow()), key=keys.header("x-api-key")).get("/search/a").status_code == 400
    )


@pytest.mark.parametrize(
    ("service", "policy", "status"),
    [(testing.away(), "allow", 200), (testing.away(), "deny", 503), (testing.refuse(), "allow", 429)],
)
def test_service_that_is_away_or_refuses(service: testing.Service, policy: Any, status: int) -> None:
    http = serve(testing.AsyncClient(service, on_no_answer=policy), strict=True)
    assert http.get("/search/a").status_code == status


def test_rule_that_does_not_decide_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    http = serve(testing.AsyncClient(testing.count(Limit("default", 9))))
    assert [http.get("/search/a").status_code for _ in range(3)] == [200] * 3
    assert [record.getMessage() for record in caplog.records if record.name == "rlaas"] == [
        "route /search/{query}: no rule named search matches its requests, but default"
    ]
    strict = serve(testing.AsyncClient(testing.count(Limit("search", 9, resource="/x"))), strict=True)
    assert [strict.get("/search/a").status_code for _ in range(2)] == [500] * 2
    assert caplog.records[-1].getMessage().endswith("but none") and len(caplog.records) == 2
    fine = serve(testing.AsyncClient(testing.count(Limit("search", 1), Limit("all", 9))), strict=True)
    assert [fine.get("/search/a").status_code for _ in range(2)] == [200, 429] and len(caplog.records) == 2


def test_headers_come_by_the_middleware() -> None:
    app, client = FastAPI(), testing.AsyncClient(testing.count(Limit("search", 2)))
    app.state.rlaas = client
    app.get("/a", dependencies=[Depends(limit("search"))])(lambda: Response("own"))
    http = TestClient(app, client=(PEER, 50000))
    assert "ratelimit" not in http.get("/a").headers
    app = FastAPI()
    app.state.rlaas = client
    app.add_middleware(RateLimit, client, key=lambda request: None)
    app.get("/a", dependencies=[Depends(limit("search"))])(lambda: Response("own"))
    assert TestClient(app, client=(PEER, 50000)).get("/a").headers["ratelimit"] == '"search";r=0;t=60'


def without_extensions(app: App) -> App:
    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "extensions": {}}, receive, send)

    return run


@pytest.mark.parametrize("wrap", [lambda app: app, without_extensions])
def test_websockets(wrap: Callable[[App], App]) -> None:
    app = FastAPI()
    app.state.rlaas = testing.AsyncClient(testing.count(Limit("live", 1)))

    @app.websocket("/live/{room}")
    async def live(socket: WebSocket, verdict: Annotated[Verdict, Depends(limit("live", strict=True))]) -> None:
        await socket.accept()
        await socket.send_text(f"{verdict.rule} {verdict.remaining}")
        await socket.close()

    http = TestClient(wrap(app), client=(PEER, 50000))
    with http.websocket_connect("/live/1") as socket:
        assert socket.receive_text() == "live 0"
    with pytest.raises((WebSocketDenialResponse, WebSocketDisconnect)) as refused, http.websocket_connect("/live/2"):
        pass
    if isinstance(refused.value, WebSocketDenialResponse):
        assert (refused.value.status_code, refused.value.headers["retry-after"]) == (429, "60")
    else:
        assert (refused.value.code, refused.value.reason) == (1013, "try again after 60 seconds")


def test_with_a_server(address: str) -> None:
    app = FastAPI()
    app.state.rlaas = AsyncClient(address, timeout=5)
    key = keys.Key(f"fastapi-{id(app)}")
    wrong, right = limit("search", resource="/large", strict=True), limit("large", key=lambda _: key, cost=400_000)
    app.get("/wrong", dependencies=[Depends(wrong)])(lambda: 1)
    app.get("/large", dependencies=[Depends(right)])(lambda: 1)
    with TestClient(app, client=(PEER, 50000)) as http:
        # The rule is named large.
        wait_until(lambda: http.get("/wrong").status_code == 500)
        assert [http.get("/large").status_code for _ in range(3)] == [200, 200, 429]


def test_client_with_all_defaults_is_made_once() -> None:
    app = FastAPI()
    app.get("/a", dependencies=[Depends(limit("search"))])(lambda: 1)
    with TestClient(app, client=(PEER, 50000)) as http:
        assert http.get("/a").status_code == 200
        client = app.state.rlaas
        assert http.get("/a").status_code == 200 and app.state.rlaas is client
