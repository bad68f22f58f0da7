"""The outcome of a request."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from google.protobuf.duration_pb2 import Duration

from rlaas_client._proto.ratelimit_pb2 import CheckResponse

AnsweredBy = Literal["server", "cache", "policy"]

_REASONS = {number: name for name, number in CheckResponse.Reason.items()}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a request. Times are in seconds. `rule`, `limit` and `remaining` are of the deciding rule."""

    allowed: bool
    rule: str
    limit: int
    remaining: int  # Below 0 is debt.
    retry_after: float | None  # None if the request is allowed or waiting does not help.
    reset_after: float | None
    reason: str  # Such as OVER_LIMIT; NO_ANSWER and OVERLOADED are not of the server's rules.
    answered_by: AnsweredBy
    response: CheckResponse = field(repr=False, compare=False)  # It has the decision of each rule.

    @property
    def taken(self) -> int | None:
        """Units to use of a request with `at_least`, 0 of a refused one; None without it, and without an answer."""
        return self.response.taken if self.response.HasField("taken") else None


def from_response(response: CheckResponse, answered_by: AnsweredBy = "server") -> Verdict:
    """Returns the verdict that a response has."""
    waiting_helps = response.HasField("retry_after") and not response.allowed
    return Verdict(
        response.allowed,
        response.rule,
        response.limit,
        response.remaining,
        seconds(response.retry_after) if waiting_helps else None,
        seconds(response.reset_after) if response.HasField("reset_after") else None,
        _REASONS.get(response.reason, str(response.reason)),
        answered_by,
        response,
    )


def without_response(reason: str, answered_by: AnsweredBy, *, allowed: bool) -> Verdict:
    """Returns a verdict that no rule has made, with the response of a server whose store has failed."""
    source = CheckResponse.FAIL_OPEN if allowed else CheckResponse.FAIL_CLOSED
    response = CheckResponse(allowed=allowed, source=source, reason=CheckResponse.STORE_UNAVAILABLE)
    if not allowed:
        response.retry_after.FromSeconds(1)
    return replace(from_response(response, answered_by), reason=reason)


def after(refusal: Verdict, elapsed: float) -> Verdict:
    """Returns a remembered refusal as it reads `elapsed` seconds later."""
    response = CheckResponse()
    response.CopyFrom(refusal.response)
    response.source = CheckResponse.DENY_CACHE
    # The rules that allowed the request may deny it by now.
    denying = [decision for decision in response.decisions if not decision.allowed]
    del response.decisions[:]
    response.decisions.extend(denying)
    for part in [response, *response.decisions]:
        for name in ("retry_after", "reset_after"):
            if part.HasField(name):
                wait: Duration = getattr(part, name)
                wait.FromMicroseconds(max(1, wait.ToMicroseconds() - int(elapsed * 1e6)))
    return from_response(response, "cache")


def seconds(duration: Duration) -> float:
    """Converts a duration of a response."""
    return duration.seconds + duration.nanos / 1e9
