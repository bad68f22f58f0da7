"""The table of behaviours that the clients of all languages have: clients/cases.yaml."""

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlaas_client import AsyncClient, Client, Error, Verdict

PATH = Path(__file__).parents[2] / "cases.yaml"
TABLE: dict[str, Any] = yaml.safe_load(PATH.read_text()) if PATH.exists() else {"cases": []}


async def act(client: Client | AsyncClient, action: str, user: str) -> Verdict:
    if action == "check":
        return client.check(user) if isinstance(client, Client) else await client.check(user)
    with suppress(KeyError):
        if isinstance(client, Client):
            with client.reserve(user, cost=10) as held:
                if action == "reserve-and-fail":
                    raise KeyError
                assert held.commit(3)
        else:
            async with client.reserve(user, cost=10) as async_held:
                if action == "reserve-and-fail":
                    raise KeyError
                assert await async_held.commit(3)
    return held.verdict if isinstance(client, Client) else async_held.verdict


async def play(client: Client | AsyncClient, case: dict[str, Any], user: str) -> None:
    assert len(case["do"]) == len(case["expect"])
    for action, expected in zip(case["do"], case["expect"], strict=True):
        started = time.monotonic()
        try:
            verdict = await act(client, action, user)
            result = {name: getattr(verdict, name, None) for name in expected}
        except Error as error:
            result = {"error": error.code}
        if "within" in expected:
            assert time.monotonic() - started < expected["within"]
            result["within"] = expected["within"]
        assert result == expected
    assert client.unanswered == case.get("unanswered", 0)


def test_table_is_there(cases_address: str) -> None:
    assert TABLE["cases"], f"{PATH} must have cases"


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("case", TABLE["cases"], ids=lambda case: case["name"])
def test_case(cases_address: str, case: dict[str, Any], kind: type[Client] | type[AsyncClient]) -> None:
    user = f"{case['name']}@python-{kind.__name__}-{time.time_ns()}"
    # The short timeout is for the case of a late answer. A busy machine would make others late, too.
    settings = {"timeout": TABLE["defaults"]["timeout"] if case["name"] == "late" else 5}
    asyncio.run(play(kind(cases_address, **{**settings, **case.get("client", {})}), case, user))
    seen = Client(cases_address, timeout=5).check(f"calls/{case.get('method', 'Check')}/{user}").response
    assert seen.current_count == case.get("calls", seen.current_count)
    assert seen.remaining == case.get("request_ids", seen.remaining)
