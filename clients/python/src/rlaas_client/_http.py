"""Responses of the middleware: headers and problem documents, as those of the tower layer.

Source: RFC 9457 (problem documents); draft-ietf-httpapi-ratelimit-headers-11, 3, 4 and 5.1.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any, NamedTuple

from rlaas_client._base import BaseClient, Steps
from rlaas_client._proto.ratelimit_pb2 import CONCURRENCY, CheckRequest, CheckResponse, RuleDecision
from rlaas_client._request import Error, new_request
from rlaas_client.keys import Key, KeyFunction, NoKey, NoPeer, Request
from rlaas_client.verdict import Verdict, seconds

Headers = list[tuple[str, str]]


class Rejection(NamedTuple):
    """A response in the place of that of the application."""

    status: HTTPStatus
    headers: Headers
    document: dict[str, Any]
    # The problem document in JSON.
    body: bytes
    # None if nothing was decided.
    verdict: Verdict | None = None


async def admit(client: BaseClient[Any, Any], key_function: KeyFunction, request: Request) -> Headers | Rejection:
    """Decides a request. Returns the headers to add to the response of the application, or a rejection."""
    decided = await decide(client, key_function, request)
    return outcome(decided) if isinstance(decided, Verdict) else decided or []


async def decide(
    client: BaseClient[Any, Any],
    key_function: KeyFunction,
    request: Request,
    ask: Callable[[CheckRequest], Steps[Verdict]] | None = None,
) -> Verdict | Rejection | None:
    """Returns the verdict on a request, a rejection without one, or None for a request that is exempt."""
    try:
        key = key_function(request)
    except NoKey as error:
        return problem(HTTPStatus.BAD_REQUEST, str(error))
    except NoPeer as error:
        client._warn("peer", "request rejected: %s", error)
        return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error")
    if key is None:
        return None
    key = key if isinstance(key, Key) else Key(key)
    resource = request.path if key.resource is None else key.resource
    try:
        message = new_request(key.user_id, resource, key.attributes, key.cost)
        return await (ask or client._check)(message)
    except Error as error:
        # What no server would decide is refused: an allowing policy would be a way past every limit. For a mistake
        # of the program, such as a wrong token, the policy decides.
        if error.code in ("INVALID_ARGUMENT", "FAILED_PRECONDITION", "OUT_OF_RANGE"):
            client._warn("invalid", "request rejected: %s", error)
            return problem(HTTPStatus.BAD_REQUEST, error.message)
        return client._by_policy(message, error)


def outcome(verdict: Verdict) -> Headers | Rejection:
    """Returns the headers to add to the response of the application, or a rejection."""
    return _limit_headers(verdict) if verdict.allowed else _refusal(verdict)._replace(verdict=verdict)


def _refusal(verdict: Verdict) -> Rejection:
    # A rule that denies while its store is away has a name, and limits as others do.
    if not verdict.rule and verdict.reason in ("NO_ANSWER", "OVERLOADED", "STORE_UNAVAILABLE", "NOT_READY"):
        return problem(HTTPStatus.SERVICE_UNAVAILABLE, "rate limiter unavailable", [("retry-after", "1")])
    if verdict.reason == "NO_RULE":
        return problem(HTTPStatus.FORBIDDEN, "no rule matches", reason="NO_RULE")
    return _limited(verdict)


def _limited(verdict: Verdict) -> Rejection:
    headers, detail = _limit_headers(verdict), "waiting does not help"
    if verdict.retry_after is not None:
        wait = math.ceil(verdict.retry_after)
        detail = f"try again after {wait} second{'' if wait == 1 else 's'}"
        headers.append(("retry-after", str(wait)))
    document = {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Quota Exceeded",
        "status": 429,
        "detail": detail,
        "violated-policies": [_policy_name(decision.rule) for decision in _rules(verdict) if not decision.allowed],
    }
    return _rejection(HTTPStatus.TOO_MANY_REQUESTS, document, headers)


def problem(status: HTTPStatus, detail: str, headers: Headers | None = None, **members: str) -> Rejection:
    """Returns a response whose status says it all, but for the detail."""
    document = {"type": "about:blank", "title": status.phrase, "status": status.value, "detail": detail}
    return _rejection(status, {**document, **members}, headers or [])


def _rejection(status: HTTPStatus, document: dict[str, Any], headers: Headers) -> Rejection:
    body = json.dumps(document, separators=(",", ":")).encode()
    of_body = [("content-type", "application/problem+json"), ("content-length", str(len(body)))]
    return Rejection(status, of_body + headers, document, body)


def _rules(verdict: Verdict) -> Iterator[RuleDecision]:
    """Yields the enforced rules, except those without a limit."""
    for decision in verdict.response.decisions:
        if not decision.shadow and decision.reason != CheckResponse.UNLIMITED:
            yield decision


def _limit_headers(verdict: Verdict) -> Headers:
    """Returns `ratelimit-policy` with all rules, and `ratelimit` with those that agree with the verdict."""
    policies, limits = [], []
    for decision in _rules(verdict):
        escaped = _policy_name(decision.rule).replace("\\", "\\\\").replace('"', '\\"')
        # The draft has no fractions of seconds.
        has_window = decision.HasField("window") and not decision.window.nanos
        window = f";w={decision.window.seconds}" if has_window else ""
        slots = ';qu="concurrent-requests"' if decision.algorithm == CONCURRENCY else ""
        policies.append(f'"{escaped}";q={max(decision.limit, 0)}{window}{slots}')
        is_counted = not (decision.allowed and decision.reason == CheckResponse.STORE_UNAVAILABLE)
        if is_counted and decision.allowed == verdict.allowed:
            limits.append(f'"{escaped}";r={max(decision.remaining, 0)}{_reset(decision)}')
    lists = (("ratelimit-policy", policies), ("ratelimit", limits))
    return [(name, ", ".join(items)) for name, items in lists if items]


def _reset(decision: RuleDecision) -> str:
    """Returns the parameter with the seconds until the limit resets. A ban does not end with time."""
    for name in ("retry_after", "reset_after"):
        if decision.HasField(name) and decision.reason != CheckResponse.BANNED:
            return f";t={math.ceil(seconds(getattr(decision, name)))}"
    return ""


def _policy_name(rule: str) -> str:
    """Returns the name of a rule for a structured field: all but visible ASCII is percent-encoded."""
    return "".join(
        f"%{byte:02X}" if byte == ord("%") or not 0x20 <= byte < 0x7F else chr(byte) for byte in rule.encode()
    )
