"""A limit beside a route, for all frameworks: how it decides, what it says of its rule, and what it counts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Literal, NamedTuple, TypedDict, TypeVar

from rlaas_client._base import BaseClient, Held
from rlaas_client._http import Headers, Rejection, decide, outcome, problem
from rlaas_client._proto.ratelimit_pb2 import CheckRequest, CheckResponse
from rlaas_client._request import Error, check_units
from rlaas_client._turns import Turns
from rlaas_client.client import Client
from rlaas_client.keys import PEER, Key, KeyFunction, Request
from rlaas_client.verdict import Verdict

_LOG = logging.getLogger("rlaas")
# Origins of answers that may lack rules that match.
_FEWER_RULES = (CheckResponse.DENY_CACHE, CheckResponse.FAIL_OPEN, CheckResponse.FAIL_CLOSED)

Count = Literal["failures", "successes"]
# A response of Flask or Django.
P = TypeVar("P", bound=Any)


class Options(TypedDict, total=False):
    """Settings of a limit beside a route, whose first argument is the name of the rule that is expected to decide."""

    # Units of each request, by default those of the key.
    cost: int | None
    # A function as in `rlaas_client.keys`.
    key: KeyFunction | Any
    # By default the template of the route.
    resource: str | None
    # Answers a request that the rule has not decided by the error 500. The first is logged in any case.
    strict: bool
    # Reserves units, and charges them only if the status is 400 or more, or only if it is less. The rule must be
    # `reservable`: else the first answer, and each other, is the error 500.
    count: Count | None
    # Seconds to wait in place of a refusal, if the request can be allowed by then. Those with one key wait in
    # turn, and at most 100 of the route.
    wait: float


class Admission(NamedTuple):
    """How a request passes. Nothing has decided one that is exempt."""

    verdict: Verdict | None
    headers: Headers
    held: Held[Any, Any] | None = None


@dataclass
class Route:
    """A limit of a route."""

    rule: str
    cost: int | None = None
    key: KeyFunction | Any = PEER
    resource: str | None = None
    strict: bool = False
    count: Count | None = None
    wait: float = 0.0

    def __post_init__(self) -> None:
        if self.count not in (None, "failures", "successes"):
            raise ValueError(f'count must be "failures" or "successes", not {self.count!r}')
        if self.cost is not None:
            check_units("cost", self.cost)
        self._is_confirmed = self._is_logged = False
        self._turns = Turns()

    async def admit(
        self, client: BaseClient[Any, Any], request: Request, template: str, key: KeyFunction | None = None
    ) -> Admission | Rejection:
        """Decides a request to the route with this template."""
        held: Held[Any, Any] | None = None

        def key_of_route(_: object) -> Key | None:
            found = (key or self.key)(request)
            if found is None:
                return None
            found = found if isinstance(found, Key) else Key(found)
            resource = self.resource or (template if found.resource is None else found.resource)
            return replace(found, resource=resource, cost=found.cost if self.cost is None else self.cost)

        async def attempt(message: CheckRequest) -> Verdict:
            nonlocal held
            if self.count is None:
                return await client._check(message)
            held = client._new_held(await client._reserve(message, None), message)
            return held.verdict

        async def ask(message: CheckRequest) -> Verdict:
            if self.wait <= 0:
                return await attempt(message)
            text = message.SerializeToString(deterministic=True)
            # Each attempt is a request of its own.
            return await self._turns.decide(client, self.wait, text, lambda: attempt(CheckRequest.FromString(text)))

        decided = await decide(client, key_of_route, request, ask)
        if decided is None or isinstance(decided, Rejection):
            return decided or Admission(None, [])
        if client._has_rules and self._is_mistaken(template, decided):
            return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error")
        admitted = outcome(decided)
        return admitted if isinstance(admitted, Rejection) else Admission(decided, admitted, held)

    def serve(
        self,
        client: Client,
        request: Request,
        template: str,
        view: Callable[[], P],
        refuse: Callable[[Rejection], P],
    ) -> P:
        """Serves a request in a thread. An exception of the view is a failure."""
        admitted = client._run(lambda: self.admit(client, request, template))
        if isinstance(admitted, Rejection):
            return refuse(admitted)
        status = 500
        try:
            response = view()
            status = response.status_code
        finally:
            if admitted.held is not None:
                # An error is logged.
                with suppress(Error):
                    self.settlement(admitted.held, status)()
        for name, value in admitted.headers:
            before = response.headers.get(name)
            response.headers[name] = f"{before}, {value}" if before else value
        return response

    def settlement(self, held: Held[Any, Any], status: int) -> Callable[[], Any]:
        """Returns what charges the units that are held, if responses with this status are counted, or frees them."""
        return held.commit if (status >= 400) == (self.count == "failures") else held.cancel

    def _is_mistaken(self, template: str, verdict: Verdict) -> bool:
        """Returns whether a request is not to pass: its rule has not decided, or holds nothing to be counted."""
        if self._is_confirmed or verdict.answered_by != "server" or verdict.response.source in _FEWER_RULES:
            return False
        rules = {decision.rule: decision for decision in verdict.response.decisions}
        found = rules.get(self.rule)
        holds = found is not None and (found.held > 0 or found.reason != CheckResponse.WITHIN_LIMIT)
        self._is_confirmed = holds if self.count else found is not None
        if not self._is_confirmed and not self._is_logged:
            self._is_logged = True
            if found is None:
                others = ", ".join(rules) or "none"
                _LOG.error("route %s: no rule named %s matches its requests, but %s", template, self.rule, others)
            else:
                _LOG.error("route %s: the rule %s must be reservable to count %s", template, self.rule, self.count)
        return not self._is_confirmed and (self.strict or self.count is not None)
