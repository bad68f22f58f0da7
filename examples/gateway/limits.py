"""What the gateway asks of rlaas: to hold the estimate of a completion, and to charge the usage."""

import asyncio
import logging
import math
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus

import grpc
from google.protobuf.message import Message

from ratelimit_pb2 import CheckRequest, CheckResponse, ReportRequest
from ratelimit_pb2_grpc import RateLimitServiceStub
from reservation_pb2 import CancelRequest, CommitRequest, ExtendRequest, ReserveRequest
from reservation_pb2_grpc import ReservationServiceStub

LOG = logging.getLogger(__name__)
RESOURCE = "/v1/chat/completions"

# What to do without an answer of rlaas. False refuses completions: an outage of rlaas is one of
# the gateway. True serves them without limits, and reports what they cost once they have ended.
FAIL_OPEN = False
OUTAGE = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}

# Deadlines. The second is long, because a charge must not be lost.
RESERVE_SECONDS = 1
SETTLE_SECONDS = 10

# Calls without an answer are repeated: their ids make that safe.
SERVICE_CONFIG = """{"methodConfig": [{
  "name": [{"service": "ratelimit.v1.ReservationService"},
           {"service": "ratelimit.v1.RateLimitService", "method": "Report"}],
  "retryPolicy": {"maxAttempts": 5, "initialBackoff": "0.1s", "maxBackoff": "2s",
                  "backoffMultiplier": 3, "retryableStatusCodes": ["UNAVAILABLE"]}
}]}"""


class Refusal(Exception):
    """Why a completion is not served. `retry_after` is in seconds."""

    def __init__(self, status: HTTPStatus, detail: str, retry_after: int | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.retry_after = retry_after


@dataclass
class Usage:
    """Tokens of a completion: the most that it can take, or those so far."""

    prompt_tokens: int
    completion_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    @property
    def micro_dollars(self) -> int:
        """The price: 1 dollar for a million tokens of prompts, 4 for a million of completions."""
        return self.prompt_tokens + 4 * self.completion_tokens


@dataclass
class Completion:
    """What a client asks for. Words are tokens here; a real model has a tokenizer."""

    user_id: str
    project: str
    prompt: str
    max_tokens: int

    def usage(self, completion_tokens: int) -> Usage:
        """Returns the usage after so many tokens."""
        return Usage(len(self.prompt.split()), completion_tokens)


def connect(target: str) -> grpc.aio.Channel:
    """Returns a channel to rlaas, which connects with the first call."""
    return grpc.aio.insecure_channel(target, [("grpc.service_config", SERVICE_CONFIG)])


def check_request(completion: Completion, usage: Usage) -> CheckRequest:
    """Returns a request with a new id, which must never come from a client."""
    return CheckRequest(
        user_id=completion.user_id,
        resource=RESOURCE,
        attributes={"project": completion.project},
        cost=usage.total_tokens,
        costs={"money": usage.micro_dollars},
        request_id=uuid.uuid4().hex,
    )


def check_verdict(verdict: CheckResponse) -> None:
    """Raises a `Refusal` unless the completion is allowed."""
    if verdict.allowed:
        return
    detail = f"{verdict.rule}: {CheckResponse.Reason.Name(verdict.reason)}"
    if not verdict.HasField("retry_after"):
        raise Refusal(HTTPStatus.FORBIDDEN, detail)  # Waiting does not help.
    seconds = math.ceil(verdict.retry_after.ToTimedelta().total_seconds())
    raise Refusal(HTTPStatus.TOO_MANY_REQUESTS, detail, seconds)


class Limits:
    """Reserves completions, for `hold_seconds` at a time: at most the shortest `hold` of a rule."""

    def __init__(self, channel: grpc.aio.Channel, hold_seconds: int = 30) -> None:
        self.checks = RateLimitServiceStub(channel)
        self.reservations = ReservationServiceStub(channel)
        self.hold = timedelta(seconds=hold_seconds)

    async def reserve(self, completion: Completion) -> "Reservation":
        """Holds the most that a completion can take. Raises `Refusal`."""
        request = check_request(completion, completion.usage(completion.max_tokens))
        reserve = ReserveRequest(request=request, ttl=self.hold)
        try:
            response = await self.reservations.Reserve(reserve, timeout=RESERVE_SECONDS)
        except grpc.aio.AioRpcError as error:
            if error.code() not in OUTAGE:
                raise
            if not FAIL_OPEN:
                raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "limits unknown", 1) from error
            return Reservation(self, completion)
        check_verdict(response.verdict)
        return Reservation(self, completion, response.reservation_id)


class Reservation:
    """What is held for a completion. Without an id nothing is: rlaas or its store was away."""

    def __init__(self, limits: Limits, completion: Completion, reservation_id: str = "") -> None:
        self._limits = limits
        self._completion = completion
        self._id = reservation_id

    @asynccontextmanager
    async def renewed(self) -> AsyncIterator[None]:
        """Extends the reservation at half of its time, as long as the context is open."""
        renewal = asyncio.create_task(self._renew())
        try:
            yield
        finally:
            renewal.cancel()

    async def _renew(self) -> None:
        extend = ExtendRequest(reservation_id=self._id, ttl=self._limits.hold)
        while self._id:
            await asyncio.sleep(self._limits.hold.total_seconds() / 2)
            status = await status_of(self._limits.reservations.Extend, extend, RESERVE_SECONDS)
            if status is not grpc.StatusCode.OK:
                LOG.warning("reservation not extended: %s", status.name)

    async def commit(self, usage: Usage) -> None:
        """Charges what was used. If nothing is held any more, it is reported."""
        money = {"money": usage.micro_dollars}
        commit = CommitRequest(reservation_id=self._id, actual=usage.total_tokens, actuals=money)
        report = ReportRequest(request=check_request(self._completion, usage))
        status = grpc.StatusCode.NOT_FOUND
        if self._id:
            status = await status_of(self._limits.reservations.Commit, commit, SETTLE_SECONDS)
        if status is grpc.StatusCode.NOT_FOUND:
            status = await status_of(self._limits.checks.Report, report, SETTLE_SECONDS)
        if status is not grpc.StatusCode.OK:
            LOG.error("charge of %s not confirmed: %s", usage, status.name)

    async def cancel(self) -> None:
        """Returns what is held. If that fails, the hold ends by itself."""
        if self._id:
            cancel = CancelRequest(reservation_id=self._id)
            await status_of(self._limits.reservations.Cancel, cancel, SETTLE_SECONDS)


async def status_of(
    method: grpc.aio.UnaryUnaryMultiCallable, request: Message, seconds: int
) -> grpc.StatusCode:
    """Calls a method, and returns the status instead of an error."""
    try:
        await method(request, timeout=seconds)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK
