"""What both clients do alike: requests, retries, reservations, and what happens without an answer.

The work is written as generators. They yield the calls to make, and get the responses; the clients run them.
"""

from __future__ import annotations

import inspect
import logging
import threading
import time
import uuid
from collections.abc import Callable, Generator
from datetime import timedelta
from typing import Any, Generic, Literal, NamedTuple, TypedDict, TypeVar

import grpc
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from rlaas_client._channel import endpoint
from rlaas_client._proto.ratelimit_pb2 import CheckRequest, CheckResponse, ReportRequest
from rlaas_client._proto.reservation_pb2 import CancelRequest, CommitRequest, ExtendRequest, ReserveRequest
from rlaas_client._refusals import MAX_KEY, Refusals
from rlaas_client._request import Costs, Error, check_costs, check_units, new_request
from rlaas_client.verdict import Verdict, by_policy, from_response

ADDRESS = "127.0.0.1:50051"
# Time of the first call, which connects.
FIRST_TIMEOUT = 1.0
# Fewer than the server repeats a reply.
MAX_RETRIES = 5
# Pause before a retry. Without it that may still find the connection that broke.
BACKOFF = 0.002
# A call without an answer takes one, another returns a tenth. Checks are repeated while more than half are left.
# Source: gRPC proposal A6, "Throttling Retry Attempts and Hedged RPCs".
MAX_TOKENS = 10.0

_LOG = logging.getLogger("rlaas")
_Code = grpc.StatusCode
# A server that sheds load does not ask for more.
_RETRYABLE = {_Code.UNAVAILABLE, _Code.DEADLINE_EXCEEDED, _Code.CANCELLED, _Code.UNKNOWN}
# The server answered, and would answer the same again.
_REJECTIONS = {
    _Code.INVALID_ARGUMENT,
    _Code.UNAUTHENTICATED,
    _Code.PERMISSION_DENIED,
    _Code.UNIMPLEMENTED,
    _Code.NOT_FOUND,
    _Code.FAILED_PRECONDITION,
    _Code.OUT_OF_RANGE,
}


class Call(NamedTuple):
    """A call to make."""

    method: str
    request: Any
    timeout: float
    # Time to wait before it.
    pause: float


T = TypeVar("T")
R = TypeVar("R")
V = TypeVar("V")
Steps = Generator[Call, Any, T]
OnNoAnswer = Literal["allow", "deny"] | Callable[[CheckRequest, Error], bool]


class More(TypedDict, total=False):
    """Arguments of a request that are rarely used."""

    costs: Costs
    request_id: str


class BaseClient:
    """The settings of a client. Times are in seconds, certificates and keys in PEM."""

    def __init__(
        self,
        address: str = ADDRESS,
        *,
        timeout: float = 0.05,
        on_no_answer: OnNoAnswer = "allow",
        retries: int = 0,
        max_age: float = 1.0,
        token: str | None = None,
        api_key: str | None = None,
        ca: bytes | None = None,
        certificate: bytes | None = None,
        private_key: bytes | None = None,
    ) -> None:
        """Creates a client, which connects with its first call. The README explains the settings."""
        if timeout <= 0 or not 0 <= retries <= MAX_RETRIES:
            raise ValueError(f"timeout must be longer than zero, and retries 0 to {MAX_RETRIES}")
        if not callable(on_no_answer) and on_no_answer not in ("allow", "deny"):
            raise ValueError("on_no_answer must be allow, deny or a function")
        if any(map(inspect.iscoroutinefunction, (on_no_answer, type(on_no_answer).__call__))):
            raise ValueError("on_no_answer must not be a coroutine function")
        if not all(secret.isascii() and secret.isprintable() for secret in (token or "", api_key or "")):
            raise ValueError("token and api_key must be one line of visible ASCII characters")
        self._endpoint = endpoint(address, ca, certificate, private_key)
        credentials = (("authorization", token and f"Bearer {token}"), ("x-api-key", api_key))
        self._metadata = tuple((name, value) for name, value in credentials if value)
        self._timeout, self._on_no_answer, self._retries = timeout, on_no_answer, retries
        self._refusals = Refusals(max_age)
        self._is_first = True
        self._tokens = MAX_TOKENS
        self._lock = threading.Lock()
        self._unanswered = 0
        self._warned_at: dict[str, float] = {}

    @property
    def unanswered(self) -> int:
        """Number of requests that the policy decided."""
        return self._unanswered

    _request = staticmethod(new_request)

    def _check(self, request: CheckRequest) -> Steps[Verdict]:
        key = self._refusal_key(request)
        if key is not None and (refusal := self._refusals.get(key)):
            return refusal
        asked_at = time.monotonic()
        if self._retries and not request.request_id:
            request.request_id = uuid.uuid4().hex
        try:
            # A call that is not to be repeated has the whole timeout.
            retries = self._retries if self._tokens > MAX_TOKENS / 2 else 0
            response = yield from self._call("Check", request, retries, self._deadline())
        except grpc.RpcError as error:
            return self._verdict_without_response(request, error)
        verdict = from_response(response)
        if key is not None:
            self._refusals.insert(key, asked_at, verdict)
        return verdict

    def _report(self, request: CheckRequest) -> Steps[Verdict]:
        request.request_id = request.request_id or uuid.uuid4().hex
        try:
            response = yield from self._call_twice("Report", ReportRequest(request=request))
        except grpc.RpcError as error:
            return self._verdict_without_response(request, error)
        return from_response(response.verdict)

    def _reserve(self, request: CheckRequest, hold: float | None) -> Steps[tuple[Verdict, str]]:
        message = ReserveRequest(request=request, ttl=None if hold is None else timedelta(seconds=hold))
        try:
            response = yield from self._call("Reserve", message, 0, self._deadline())
        except grpc.RpcError as error:
            return self._verdict_without_response(request, error), ""
        return from_response(response.verdict), response.reservation_id

    def _extend(self, request: ExtendRequest) -> Steps[Verdict]:
        try:
            response = yield from self._call("Extend", request, 0, self._deadline())
        except grpc.RpcError as error:
            raise _to_error(error) from error
        return from_response(response.verdict)

    def _settle(self, method: str, request: CommitRequest | CancelRequest) -> Steps[bool]:
        try:
            yield from self._call_twice(method, request)
        except grpc.RpcError as error:
            self._warn("settle", "reservation not settled: %s", _to_error(error))
            if error.code() in _REJECTIONS:
                raise _to_error(error) from error
            return False
        return True

    def _call_twice(self, method: str, request: Any) -> Steps[Any]:
        """Makes a call, and again without an answer, each time within the whole deadline."""
        return self._call(method, request, 1, 2 * self._deadline())

    def _call(self, method: str, request: Any, retries: int, deadline: float) -> Steps[Any]:
        """Makes a call, and again without an answer. Each attempt has an equal part of the time left."""
        until = time.monotonic() + deadline
        pause = 0.0
        for left in range(retries, -1, -1):
            gained = 0.0
            try:
                response = yield Call(method, request, (until - time.monotonic() - pause) / (1 + left), pause)
                gained = 0.1
                return response
            except grpc.RpcError as error:
                code = error.code()
                gained = 0.1 if code in _REJECTIONS else -1.0
                is_throttled = method == "Check" and self._tokens + gained <= MAX_TOKENS / 2
                if left == 0 or code not in _RETRYABLE or is_throttled:
                    raise
            finally:
                pause = BACKOFF
                self._is_first = False
                self._tokens = min(max(self._tokens + gained, 0.0), MAX_TOKENS)

    def _deadline(self) -> float:
        return max(self._timeout, FIRST_TIMEOUT) if self._is_first else self._timeout

    def _refusal_key(self, request: CheckRequest) -> bytes | None:
        """Returns the key of a request in the cache; None if a refusal must not answer it."""
        # A request with an id may be a retry whose units were taken. One that takes nothing reads the current state.
        if request.request_id or request.cost == 0 or self._refusals.max_age <= 0:
            return None
        key = request.SerializeToString(deterministic=True)
        return key if len(key) <= MAX_KEY else None

    def _verdict_without_response(self, request: CheckRequest, error: grpc.RpcError) -> Verdict:
        """Returns the verdict of the policy, or raises the error of a call that the server rejected."""
        if error.code() == _Code.PERMISSION_DENIED and _is_no_rule(error):
            return from_response(CheckResponse(reason=CheckResponse.NO_RULE))
        if error.code() in _REJECTIONS:
            raise _to_error(error) from error
        return self._by_policy(request, _to_error(error))

    def _by_policy(self, request: CheckRequest, error: Error) -> Verdict:
        with self._lock:
            self._unanswered += 1
        policy = self._on_no_answer
        allowed = bool(policy(request, error)) if callable(policy) else policy == "allow"
        outcome = "allowed" if allowed else "denied"
        self._warn("check", "check failed, request %s (%d so far): %s", outcome, self._unanswered, error)
        return by_policy(allowed=allowed)

    def _warn(self, kind: str, message: str, *args: object) -> None:
        """Logs a warning, of each kind at most one a second."""
        now = time.monotonic()
        if now - self._warned_at.get(kind, 0.0) >= 1:
            self._warned_at[kind] = now
            _LOG.warning(message, *args)


class Held(Generic[R, V]):
    """A reservation, or the verdict on a request that holds nothing. Those of an AsyncClient are awaited."""

    def __init__(
        self,
        client: BaseClient,
        run: Callable[[Steps[bool]], R],
        run_extension: Callable[[Steps[Verdict]], V],
        reserved: tuple[Verdict, str],
        request: CheckRequest,
    ) -> None:
        # The id is empty if nothing is held: refused, decided by the policy, or no rule that holds.
        self.verdict, self.reservation_id = reserved
        self.allowed = self.verdict.allowed
        self._client, self._request = client, request
        self._run, self._run_extension = run, run_extension
        # True until a settlement is sent.
        self.is_open = bool(self.reservation_id)

    def commit(self, actual: int | None = None, actuals: Costs = None) -> R:
        """Charges the actual cost, by default what is held, and returns the rest.

        The result is False if nothing is held, such as after a settlement, or the server does not answer; the hold
        then ends by itself. Raises `Error` if it is rejected.
        """
        if actual is not None:
            check_units("actual", actual)
        check_costs("actuals", actuals)
        # With the request, work that lasted longer than the hold is charged all the same.
        request = CommitRequest(
            reservation_id=self.reservation_id, actual=actual, actuals=actuals, request=self._request
        )
        return self._run(self._settle("Commit", request))

    def extend(self, cost: int = 0, hold: float | None = None, costs: Costs = None) -> V:
        """Holds more units, or for `hold` seconds from now on, or both. A refusal leaves what is held as it was.

        Raises `Error` without an answer, whatever the policy is. It is not repeated, as that might add twice. If
        nothing is held, nothing is sent, and the result is the verdict on the request.
        """
        check_units("cost", cost)
        check_costs("costs", costs)
        ttl = None if hold is None else timedelta(seconds=hold)
        request = ExtendRequest(reservation_id=self.reservation_id, cost=cost, costs=costs, ttl=ttl)
        return self._run_extension(self._extend(request))

    def cancel(self) -> R:
        """Returns all that is held. The result is that of `commit`."""
        return self._run(self._settle("Cancel", CancelRequest(reservation_id=self.reservation_id)))

    def _extend(self, request: ExtendRequest) -> Steps[Verdict]:
        if not self.reservation_id:
            return self.verdict
        return (yield from self._client._extend(request))

    def _settle(self, method: str, request: CommitRequest | CancelRequest) -> Steps[bool]:
        if not self.is_open:
            return False
        self.is_open = False
        try:
            return (yield from self._client._settle(method, request))
        except Error as error:
            # Nothing was charged.
            self.is_open = error.code == "INVALID_ARGUMENT"
            raise


def _to_error(error: grpc.RpcError) -> Error:
    return Error(error.code().name, error.details() or "")


def _is_no_rule(error: grpc.RpcError) -> bool:
    """Returns True if the call failed because no rule matches, which is a verdict."""
    # The type differs between the two clients, and from its stub.
    metadata: Any = error.trailing_metadata()
    details = next((value for name, value in metadata or () if name == "grpc-status-details-bin"), b"")
    for detail in Status.FromString(details).details:
        info = ErrorInfo()
        if detail.Unpack(info):
            return info.domain == "rlaas" and info.reason == "NO_RULE"
    return False
