"""Clients for the tests of programs, without a server.

    service = testing.count(testing.Limit("search", 2))
    client = testing.AsyncClient(service)  # or testing.Client

They are clients like any other, with all their settings, and ask a `Service` in the same program.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Any

from rlaas_client import async_client, client
from rlaas_client._proto import ratelimit_pb2 as messages
from rlaas_client._proto.ratelimit_pb2 import CheckRequest, CheckResponse
from rlaas_client._proto.reservation_pb2 import CancelResponse, CommitResponse, ExtendResponse, ReserveResponse
from rlaas_client._request import Error


@dataclass(frozen=True, slots=True)
class Limit:
    """A rule of a test: units of each user in a window, which begins with a first request."""

    rule: str
    limit: int
    window: float = 60.0  # Seconds.
    resource: str = "*"  # Pattern of the resources that it limits, as in a shell.


class Service:
    """What clients of tests ask. It allows what no limit matches, and all rules hold reservations.

    It keeps the `requests` that it was asked. Its time stands still until `advance` moves it. `is_away`, and
    `is_refusing` for all that its limits match, may be set at any time.
    """

    def __init__(self, *limits: Limit, is_away: bool = False, is_refusing: bool = False) -> None:
        self.limits, self.is_away, self.is_refusing = limits, is_away, is_refusing
        self.requests = list[CheckRequest]()
        self._now = 0.0
        # When the window of a rule and user has begun, and the units in use.
        self._used: dict[tuple[str, str], tuple[float, int]] = {}
        self._held: dict[str, CheckRequest] = {}
        self._lock = threading.Lock()

    def advance(self, seconds: float) -> None:
        """Moves the time."""
        self._now += seconds

    def answer(self, method: str, request: Any) -> Any:
        """Answers a call by a message or an `Error`."""
        with self._lock:
            if self.is_away:
                return Error("UNAVAILABLE", "the service of the test is away")
            if method == "Check":
                return self._decide(request)
            if method == "CheckBatch":
                results = [messages.CheckResult(response=self._decide(each)) for each in request.requests]
                return messages.CheckBatchResponse(results=results)
            if method == "Report":
                return messages.ReportResponse(verdict=self._decide(request.request, is_done=True))
            if method == "Reserve":
                return self._reserve(request.request)
            return self._settle(method, request)

    def _reserve(self, request: CheckRequest) -> ReserveResponse:
        verdict = self._decide(request)
        reservation_id = f"reservation-{len(self.requests)}" if verdict.allowed and verdict.decisions else ""
        if reservation_id:
            held = CheckRequest.FromString(request.SerializeToString())
            held.cost = verdict.taken if verdict.HasField("taken") else request.cost
            self._held[reservation_id] = held
            for decision, limit in zip(verdict.decisions, self._matching(request), strict=True):
                decision.held = _units(limit, held.cost, held.costs)
        return ReserveResponse(verdict=verdict, reservation_id=reservation_id)

    def _settle(self, method: str, request: Any) -> Any:
        held = self._held.get(request.reservation_id)
        if held is None:
            return Error("NOT_FOUND", "this reservation holds nothing")
        if method == "Extend":
            more = CheckRequest(user_id=held.user_id, resource=held.resource, cost=request.cost, costs=request.costs)
            verdict = self._decide(more)
            for limit in self._matching(held) if verdict.allowed else ():
                held.costs[limit.rule] = _units(limit, held.cost, held.costs) + _units(limit, more.cost, more.costs)
            return ExtendResponse(verdict=verdict)
        del self._held[request.reservation_id]
        for limit in self._matching(held):
            reserved, actual = _units(limit, held.cost, held.costs), 0
            if method == "Commit":
                actual = _units(limit, request.actual if request.HasField("actual") else reserved, request.actuals)
            since, used = self._window(limit, held)
            self._used[limit.rule, held.user_id] = since, max(0, used - reserved + actual)
        return CommitResponse() if method == "Commit" else CancelResponse()

    def _matching(self, request: CheckRequest) -> list[Limit]:
        return [limit for limit in self.limits if fnmatchcase(request.resource, limit.resource)]

    def _window(self, limit: Limit, request: CheckRequest) -> tuple[float, int]:
        since, used = self._used.get((limit.rule, request.user_id), (self._now, 0))
        return (since, used) if self._now - since < limit.window else (self._now, 0)

    def _decide(self, request: CheckRequest, *, is_done: bool = False) -> CheckResponse:
        """Takes the units of all rules that match, or of none. A cost that has arisen is always taken."""
        self.requests.append(request)
        limits = self._matching(request)
        wanted = self._there(request, limits) if request.at_least else request.cost
        rules = [(each, _units(each, wanted, request.costs), *self._window(each, request)) for each in limits]
        if self.is_refusing and not is_done:
            rules = [(limit, cost, since, limit.limit) for limit, cost, since, _ in rules]
        is_taken = is_done or (
            not self.is_refusing and all(used + cost <= limit.limit for limit, cost, _, used in rules)
        )
        decisions, parts = list[dict[str, Any]](), list[messages.RuleDecision]()
        for limit, cost, since, used in rules:
            allowed = is_done or used + cost <= limit.limit
            if is_taken:
                used += cost
                self._used[limit.rule, request.user_id] = since, used
            refusal = CheckResponse.OVER_LIMIT if cost <= limit.limit else CheckResponse.COST_ABOVE_LIMIT
            decision: dict[str, Any] = {"rule": limit.rule, "allowed": allowed, "limit": limit.limit}
            decision |= {"algorithm": messages.FIXED_WINDOW, "current_count": used, "remaining": limit.limit - used}
            decision["reason"] = CheckResponse.WITHIN_LIMIT if allowed else refusal
            decision["reset_after"] = timedelta(seconds=since + limit.window - self._now)
            if decision["reason"] == CheckResponse.OVER_LIMIT:
                decision["retry_after"] = decision["reset_after"]
            decisions.append(decision)
            parts.append(messages.RuleDecision(**decision, window=timedelta(seconds=limit.window)))
        if not decisions:
            taken = request.cost if request.at_least else None
            return CheckResponse(allowed=True, reason=CheckResponse.NO_RULE, taken=taken)
        deciding = min(decisions, key=lambda decision: (decision["allowed"], decision["remaining"]))
        if request.at_least:
            deciding["taken"] = wanted if deciding["allowed"] else 0
        return CheckResponse(**deciding, source=CheckResponse.STORE, decisions=parts)

    def _there(self, request: CheckRequest, limits: list[Limit]) -> int:
        """Returns the units of a request that are there, or the fewest that will do."""
        lefts = [limit.limit - self._window(limit, request)[1] for limit in limits if limit.rule not in request.costs]
        return max(request.at_least, min([request.cost, *lefts]))


def allow() -> Service:
    """Returns a service that allows all requests."""
    return Service()


def count(*limits: Limit) -> Service:
    """Returns a service that counts in memory."""
    return Service(*limits)


def refuse(rule: str = "default", retry_after: float = 30.0) -> Service:
    """Returns a service that refuses all requests."""
    return Service(Limit(rule, 2**32, retry_after), is_refusing=True)


def away() -> Service:
    """Returns a service that does not answer."""
    return Service(is_away=True)


class _Asking:
    """What asks a service of the test. Refusals are not remembered unless `max_age` is set."""

    def __init__(self, service: Service, **settings: Any) -> None:
        super().__init__(**{"max_age": 0.0, **settings})
        self._service, self._has_rules = service, bool(service.limits) and not service.is_refusing

    async def _make(self, method: str, request: Any, seconds: float, pause: float) -> Any:
        return self._service.answer(method, request)


class Client(_Asking, client.Client):
    """A `rlaas_client.Client` that asks a service of the test."""


class AsyncClient(_Asking, async_client.AsyncClient):
    """A `rlaas_client.AsyncClient` that asks a service of the test."""

    def _open(self) -> Any:
        """Opens nothing."""

    async def connect(self) -> None:
        """Does nothing."""


def _units(limit: Limit, default: int, by_rule: Mapping[str, int]) -> int:
    return by_rule.get(limit.rule, default)
