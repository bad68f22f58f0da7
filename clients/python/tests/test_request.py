"""Requests that can't be sent, and errors."""

import asyncio
import pickle
from typing import Any

import pytest
from conftest import CLOSED

from rlaas_client import AsyncClient, Client, Error

MOST: dict[str, Any] = {
    "user_id": "é" * 512,
    "resource": "r" * 1024,
    "attributes": {f"{number:064}": "v" * 1024 for number in range(32)},
    "cost": 2**32 - 1,
    "costs": {f"rule-{number}": 2**32 - 1 for number in range(64)},
    "request_id": "i" * 64,
    "at_least": 2**32 - 1,
}


def test_bounds_are_those_of_the_server(address: str) -> None:
    with Client(address, timeout=5) as client:
        assert client.check(**MOST).answered_by == "server"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("user_id", value) for value in ("", "é" * 512 + "x", "\ud800", None, 5, b"bytes")],
        *[("resource", value) for value in ("r" * 1025, "\ud800", None)],
        *[("attributes", {"plan": value}) for value in ("v" * 1025, "\ud800", None, 1)],
        *[("attributes", {name: "free"}) for name in ("", "n" * 65, "\ud800", 1)],
        *[("attributes", value) for value in (dict.fromkeys(map(str, range(33)), ""), "plan", [("a", "b")])],
        *[("cost", value) for value in (-1, 2**32, 2**64, 1.5, 1.0, "1", True, None)],
        *[("costs", {"rule": value}) for value in (-1, 2**32, 1.5)],
        *[("costs", value) for value in ({"\ud800": 1}, {1: 1}, dict.fromkeys(map(str, range(65)), 1), 5)],
        *[("at_least", value) for value in (-1, 2, 2**64, 0.5, None)],
        *[("request_id", value) for value in ("i" * 65, "\ud800", None)],
    ],
)
def test_request_out_of_bounds_is_not_sent(field: str, value: Any) -> None:
    arguments = {"user_id": "alice", field: value}

    async def check() -> None:
        await AsyncClient(CLOSED).check(**arguments)

    client = Client(CLOSED)
    for call in (client.check, client.report, lambda **_: asyncio.run(check())):
        with pytest.raises(Error, match=f"INVALID_ARGUMENT: {field}.* must be ") as caught:
            call(**arguments)
        assert caught.value.code == "INVALID_ARGUMENT"
    with pytest.raises(Error, match=field), client.reserve(**arguments):
        pass
    assert client.unanswered == 0


def test_errors_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(Error("UNAVAILABLE", "away")))
    assert (str(error), error.code, error.message) == ("UNAVAILABLE: away", "UNAVAILABLE", "away")
