"""Clients for tests of programs: without a server they answer as one would."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from conftest import wait_until

from rlaas_client import CheckResponse, Error, Verdict, testing
from rlaas_client import Client as RealClient
from rlaas_client.testing import Limit


def checks(kind: type[Any], service: testing.Service, count: int, **settings: Any) -> list[Verdict]:
    """Checks of alice, one after the other."""

    async def run() -> list[Verdict]:
        async with testing.AsyncClient(service, **settings) as client:
            return [await client.check("alice", "/search") for _ in range(count)]

    if kind is testing.AsyncClient:
        return asyncio.run(run())
    with testing.Client(service, **settings) as client:
        return [client.check("alice", "/search") for _ in range(count)]


@pytest.fixture(params=[testing.Client, testing.AsyncClient])
def check(request: pytest.FixtureRequest) -> Callable[..., list[Verdict]]:
    return lambda service, count=1, **settings: checks(request.param, service, count, **settings)


def test_all_are_allowed(check: Callable[..., list[Verdict]]) -> None:
    service = testing.allow()
    assert [verdict.allowed for verdict in check(service, 3)] == [True] * 3
    assert [request.resource for request in service.requests] == ["/search"] * 3


def test_all_are_refused(check: Callable[..., list[Verdict]]) -> None:
    for verdict in check(testing.refuse("search", 12.5), 2):
        assert (verdict.allowed, verdict.rule, verdict.reason) == (False, "search", "OVER_LIMIT")
        assert (verdict.retry_after, verdict.answered_by) == (12.5, "server")


def test_policy_decides_while_it_is_away(check: Callable[..., list[Verdict]]) -> None:
    for policy in ("allow", "deny"):
        [verdict] = check(testing.away(), on_no_answer=policy)
        assert (verdict.allowed, verdict.reason) == (policy == "allow", "NO_ANSWER")
    service = testing.count(Limit("search", 1))
    service.is_away = True
    assert check(service)[0].answered_by == "policy"
    service.is_away = False
    assert check(service)[0].remaining == 0, "nothing was counted meanwhile"


def test_counts_by_its_limits_until_time_moves(check: Callable[..., list[Verdict]]) -> None:
    service = testing.count(
        Limit("search", 2, 10, resource="/search*"), Limit("all", 5), Limit("other", 0, resource="/x")
    )
    assert [(verdict.allowed, verdict.remaining) for verdict in check(service, 3)] == [
        (True, 1),
        (True, 0),
        (False, 0),
    ]
    service.advance(4)
    [refused] = check(service)
    assert (refused.rule, refused.retry_after, refused.reset_after) == ("search", 6, 6)
    assert [part.rule for part in refused.response.decisions] == ["search", "all"]
    assert refused.response.decisions[1].allowed
    service.advance(6)
    assert check(service)[0].remaining == 1
    assert check(service)[0].response.decisions[1].remaining == 1, "a refused request takes units of no rule"


def test_users_and_costs() -> None:
    with testing.Client(testing.count(Limit("a", 10), Limit("b", 10))) as client:
        assert client.check("alice", cost=4, costs={"b": 9}).rule == "b"
        assert client.check("bob", cost=10).allowed
        above = client.check("carol", cost=11)
        assert (above.allowed, above.reason, above.retry_after) == (False, "COST_ABOVE_LIMIT", None)
        report = client.report("alice", cost=20)
        assert report.allowed and report.remaining == -19
        with pytest.raises(Error):
            client.check("")


def test_reservations_are_settled() -> None:
    with testing.Client(testing.count(Limit("tokens", 100))) as client:
        with client.reserve("alice", cost=60) as held:
            assert not client.check("alice", cost=60).allowed
            assert held.extend(30).remaining == 10
            assert held.commit(5)
        assert client.check("alice", cost=0).remaining == 95
        with pytest.raises(KeyError), client.reserve("alice", cost=60):
            raise KeyError
        with client.reserve("alice", cost=50):
            pass
        assert client.check("alice", cost=0).remaining == 45
        with client.reserve("alice", cost=60) as refused:
            assert not refused.allowed and not refused.reservation_id


def test_reserving_what_is_there() -> None:
    limits = Limit("tokens", 100), Limit("search", 2, resource="/search")
    with testing.Client(testing.count(*limits)) as client:
        with client.reserve("alice", "/search", cost=300, at_least=20, costs={"search": 1}) as held:
            assert held.verdict.taken == 100
            assert [decision.held for decision in held.verdict.response.decisions] == [100, 1]
            with client.reserve("alice", cost=300, at_least=20) as refused:
                assert (refused.allowed, refused.verdict.taken) == (False, 0)
            assert held.commit(30)
        assert client.check("alice", cost=0).remaining == 70
    with testing.Client(testing.allow()) as client:
        assert client.check("alice", cost=9, at_least=2).taken == 9


def test_refusing_changes_no_counts() -> None:
    service = testing.count(Limit("tokens", 100))
    with testing.Client(service) as client:
        with client.reserve("alice", cost=60) as held:
            service.is_refusing = True
            assert not client.check("alice").allowed
            assert not held.extend(1).allowed
            assert client.report("alice", cost=10).remaining == 30
            assert held.commit(20)
        service.is_refusing = False
        assert client.check("alice", cost=0).remaining == 70
    assert [request.cost for request in service.requests] == [60, 1, 1, 10, 0]
    assert not service.requests[0].costs


def test_many_at_once_are_counted_once() -> None:
    async def run() -> list[Verdict]:
        async with testing.AsyncClient(testing.count(Limit("search", 30))) as client:
            return await asyncio.gather(*(client.check("alice") for _ in range(100)))

    assert sum(verdict.allowed for verdict in asyncio.run(run())) == 30


def test_answers_as_the_server_does(address: str) -> None:
    """The same calls at a service of tests, and at one that runs."""
    service = testing.count(Limit("default", 2, 60))
    with testing.Client(service) as client, RealClient(address, timeout=5, max_age=0) as real:
        wait_until(lambda: real.check("first").answered_by == "server")
        for user, cost, at_least in (
            ("same", 1, 0),
            ("same", 1, 0),
            ("same", 1, 0),
            ("same", 3, 0),
            ("there", 1, 0),
            ("there", 2, 2),
            ("there", 2, 1),
            ("there", 2, 1),
        ):
            expected, found = (each.check(user, cost=cost, at_least=at_least) for each in (real, client))
            fields = ["allowed", "rule", "limit", "remaining", "reason", "answered_by", "taken"]
            assert [getattr(found, name) for name in fields] == [getattr(expected, name) for name in fields]
            assert (found.retry_after is None) == (expected.retry_after is None)
            assert found.response.source == CheckResponse.STORE
