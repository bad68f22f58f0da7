"""What both clients do alike: requests, retries, reservations, and what happens without an answer.

The work is written as generators. They yield the calls to make, and get the responses; the clients run them.
"""

from __future__ import annotations

import inspect
import logging
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Generator
from datetime import timedelta
from functools import partial
from typing import Any, Generic, Literal, NamedTuple, TypedDict, TypeVar

from rlaas_client._channel import endpoint
from rlaas_client._errors import explain, from_status
from rlaas_client._proto.ratelimit_pb2 import CheckBatchRequest, CheckRequest, CheckResponse, ReportRequest
from rlaas_client._proto.reservation_pb2 import CancelRequest, CommitRequest, ExtendRequest, ReserveRequest
from rlaas_client._queue import CLOSED, Pending, Queue
from rlaas_client._refusals import MAX_KEY, Refusals
from rlaas_client._request import Costs, Error, check_costs, check_units, new_request
from rlaas_client.verdict import Verdict, after, from_response, without_response

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
# Calls at once that reserve.
MAX_RESERVING = 128

_LOG = logging.getLogger("rlaas")
# A server that sheds load does not ask for more.
_RETRYABLE = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "UNKNOWN"}
# The server answered, and would answer the same again.
_REJECTIONS = {
    "INVALID_ARGUMENT",
    "UNAUTHENTICATED",
    "PERMISSION_DENIED",
    "UNIMPLEMENTED",
    "NOT_FOUND",
    "FAILED_PRECONDITION",
    "OUT_OF_RANGE",
}
# A server, or a proxy, that does not take a batch may take its requests one by one.
_NOT_IN_A_BATCH = {"INVALID_ARGUMENT", "UNIMPLEMENTED", "OUT_OF_RANGE", "RESOURCE_EXHAUSTED"}


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
# Of a call it gets the response or an `Error`, of a check that waits the batch that it is to carry.
Steps = Generator[Call | Pending, Any, T]
Policy = Literal["allow", "deny"] | Callable[[CheckRequest, Error], bool]


class More(TypedDict, total=False):
    """Arguments of a request that are rarely used."""

    costs: Costs
    request_id: str


class BaseClient:
    """The settings of a client. Times are in seconds, certificates and keys in PEM."""

    # Creates the event by which a check waits.
    _signal: Callable[[], Any]
    # Has a batch sent whose callers wait.
    _start: Callable[[list[Pending]], object]

    def __init__(
        self,
        address: str = ADDRESS,
        *,
        timeout: float = 0.25,
        on_no_answer: Policy = "allow",
        on_overload: Policy = "deny",
        retries: int = 0,
        max_age: float = 1.0,
        token: str | None = None,
        api_key: str | None = None,
        ca: bytes | None = None,
        certificate: bytes | None = None,
        private_key: bytes | None = None,
    ) -> None:
        """Creates a client, which connects with its first call. The README explains the settings."""
        if not isinstance(timeout, (int, float)) or timeout <= 0:
            raise ValueError(f"timeout must be a number of seconds above 0, such as 0.25, not {timeout!r}")
        if not 0 <= retries <= MAX_RETRIES:
            raise ValueError(f"retries must be 0 to {MAX_RETRIES}")
        for name, policy in (("on_no_answer", on_no_answer), ("on_overload", on_overload)):
            if not callable(policy) and policy not in ("allow", "deny"):
                raise ValueError(f"{name} must be allow, deny or a function")
            if any(map(inspect.iscoroutinefunction, (policy, type(policy).__call__))):
                raise ValueError(f"{name} must not be a coroutine function")
        if not all(secret.isascii() and secret.isprintable() for secret in (token or "", api_key or "")):
            raise ValueError("token and api_key must be one line of visible ASCII characters")
        self._address, self._endpoint = address, endpoint(address, ca, certificate, private_key)
        credentials = (("authorization", token and f"Bearer {token}"), ("x-api-key", api_key))
        self._metadata = tuple((name, value) for name, value in credentials if value)
        self._timeout, self._max_age = timeout, max_age
        # Before each attempt of a check.
        self._pauses = (0.0, *[BACKOFF] * retries)
        self._on_no_answer, self._on_overload = on_no_answer, on_overload
        self._is_first = True
        self._tokens = MAX_TOKENS
        self._unanswered = 0
        self._warned_at: dict[str, float] = {}
        # A wrong setting was logged, and no call has succeeded since.
        self._is_misconfigured = False
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=partial(_renew, weakref.ref(self)))

    def _renew(self) -> None:
        # Also after a fork: a thread that has not survived it may hold a lock.
        self._lock, self._reserving = threading.Lock(), threading.Semaphore(MAX_RESERVING)
        self._refusals = Refusals(self._max_age)
        self._queue = Queue(self._timeout, self._signal, self._start)

    @property
    def unanswered(self) -> int:
        """Number of requests that `on_no_answer` decided."""
        return self._unanswered

    _request = staticmethod(new_request)

    def _check(self, request: CheckRequest) -> Steps[Verdict]:
        if own_id := request.request_id:
            request.request_id = ""
        key = request.SerializeToString(deterministic=True)
        # A request with an id may be a retry whose units were taken. One that takes nothing reads the current state.
        is_gated = not own_id and request.cost != 0 and len(key) <= MAX_KEY
        if is_gated and (refusal := self._refusals.get(key)):
            return refusal
        if own_id or len(self._pauses) > 1:
            request.request_id = own_id or uuid.uuid4().hex
        for attempt, pause in enumerate(self._pauses):
            # The units of a check that is repeated may have been taken: no other one answers it.
            has_id = own_id or attempt > 0
            item = Pending(request, key + b"id" if has_id else key, is_gated and not has_id, pause)
            batch = self._queue.enter(item)
            while item.outcome is None:
                if batch is not None:
                    yield from self._carry(batch)
                else:
                    batch = yield item
            outcome = item.outcome
            is_final = not isinstance(outcome, Error) or outcome is CLOSED or outcome.code not in _RETRYABLE
            if is_final or self._tokens <= MAX_TOKENS / 2:
                break
        if isinstance(outcome, Error):
            return self._verdict_without_response(request, outcome)
        self._is_misconfigured = False
        verdict = from_response(outcome)
        if not item.sent_at:
            return after(verdict, 0)
        if is_gated:
            self._refusals.insert(key, item.sent_at, verdict)
        return verdict

    def _carry(self, batch: list[Pending]) -> Steps[None]:
        queue = self._queue
        outcomes: list[Any] = [CLOSED] * len(batch)
        # A call that is not to be repeated has the whole timeout.
        timeout = self._deadline() / (len(self._pauses) if self._tokens > MAX_TOKENS / 2 else 1)
        try:
            if len(batch) == 1:
                outcomes = [(yield from self._call("Check", batch[0].request, timeout, batch[0].pause))]
                return
            requests = CheckBatchRequest(requests=[item.request for item in batch])
            response = yield from self._call("CheckBatch", requests, timeout, batch[0].pause)
            if not isinstance(response, Error):
                results = [
                    one.response if one.HasField("response") else from_status(one.error) for one in response.results
                ]
                # Should the server answer fewer, nobody waits for ever.
                outcomes[: len(results)] = results
            elif response.code not in _NOT_IN_A_BATCH or response.reason:
                outcomes = [response] * len(batch)
            else:
                queue.max_batch = 1 if response.code == "UNIMPLEMENTED" else queue.max_batch
                for number, item in enumerate(batch):
                    outcomes[number] = queue.no_answer or (yield from self._call("Check", item.request, timeout))
        finally:
            queue.leave(batch, outcomes)

    def _report(self, request: CheckRequest) -> Steps[Verdict]:
        request.request_id = request.request_id or uuid.uuid4().hex
        response = yield from self._call_twice("Report", ReportRequest(request=request))
        if isinstance(response, Error):
            return self._verdict_without_response(request, response)
        return from_response(response.verdict)

    def _reserve(self, request: CheckRequest, hold: float | None) -> Steps[tuple[Verdict, str]]:
        message = ReserveRequest(request=request, ttl=None if hold is None else timedelta(seconds=hold))
        if not self._reserving.acquire(blocking=False):
            error = self._queue.no_answer or Error("OVERLOADED", "too many calls reserve at once")
            return self._verdict_without_response(request, error), ""
        try:
            response = yield from self._call("Reserve", message, self._deadline())
        finally:
            self._reserving.release()
        if isinstance(response, Error):
            return self._verdict_without_response(request, response), ""
        return from_response(response.verdict), response.reservation_id

    def _extend(self, request: ExtendRequest) -> Steps[Verdict]:
        response = yield from self._call("Extend", request, self._deadline())
        if isinstance(response, Error):
            raise response
        return from_response(response.verdict)

    def _settle(self, method: str, request: CommitRequest | CancelRequest) -> Steps[bool]:
        response = yield from self._call_twice(method, request)
        if not isinstance(response, Error):
            return True
        self._warn("settle", "reservation not settled: %s", response)
        if response.code in _REJECTIONS:
            raise response
        return False

    def _call_twice(self, method: str, request: Any) -> Steps[Any]:
        """Makes a call, and again without an answer, each time within the whole deadline."""
        deadline = self._deadline()
        response = yield from self._call(method, request, deadline)
        if isinstance(response, Error) and response.code in _RETRYABLE:
            response = yield from self._call(method, request, deadline, BACKOFF)
        return response

    def _call(self, method: str, request: Any, timeout: float, pause: float = 0.0) -> Steps[Any]:
        """Makes a call, and records how it ends. Returns the response, or an `Error`."""
        until, gained = time.monotonic() + pause + timeout, 0.1
        response = yield Call(method, request, timeout, pause)
        if not isinstance(response, Error):
            self._queue.record(None)
        else:
            is_late = response.code == "DEADLINE_EXCEEDED" and time.monotonic() - until > timeout / 2
            if is_late and method in ("Check", "CheckBatch", "Reserve"):
                return Error("OVERLOADED", "the program was too busy to look at an answer")
            self._queue.record(response if response.code in _RETRYABLE and not response.reason else None)
            gained = 0.1 if response.code in _REJECTIONS else -1.0
        self._is_first = False
        self._tokens = min(max(self._tokens + gained, 0.0), MAX_TOKENS)
        return response

    def _deadline(self) -> float:
        return max(self._timeout, FIRST_TIMEOUT) if self._is_first else self._timeout

    def _longest_wait(self, most: float) -> float:
        """Returns how long a check may wait: a call without an answer ends first."""
        return max(most + self._deadline() - self._timeout, 1.5 * self._timeout)

    def _verdict_without_response(self, request: CheckRequest, error: Error) -> Verdict:
        """Returns what the error says, or a policy, or raises the error of a call that the server rejected."""
        if error.reason == "NO_RULE":
            return from_response(CheckResponse(reason=CheckResponse.NO_RULE))
        if error.code in _REJECTIONS:
            # Callers in other threads may have the same one.
            raise Error(error.code, error.message, error.reason) from error
        if error.reason in ("STORE_UNAVAILABLE", "NOT_READY"):
            self._warn("refused", "check refused by the server: %s", error)
            return without_response(error.reason, "server", allowed=False)
        return self._by_policy(request, error)

    def _by_policy(self, request: CheckRequest, error: Error) -> Verdict:
        is_overload = "OVERLOADED" in (error.code, error.reason)
        policy = self._on_overload if is_overload else self._on_no_answer
        allowed = bool(policy(request, error)) if callable(policy) else policy == "allow"
        outcome = "allowed" if allowed else "denied"
        if is_overload:
            self._warn("overload", "check overloaded, request %s: %s", outcome, error)
            is_of_server = error.reason and not allowed
            return without_response("OVERLOADED", "server" if is_of_server else "policy", allowed=allowed)
        with self._lock:
            self._unanswered += 1
        if not self._is_misconfigured:
            text, self._is_misconfigured = explain(error, self._address)
            kind = "setting" if self._is_misconfigured else "check"
            self._warn(kind, "check failed, request %s (%d so far): %s", outcome, self._unanswered, text)
        return without_response("NO_ANSWER", "policy", allowed=allowed)

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


def _renew(reference: weakref.ref[BaseClient]) -> None:
    if client := reference():
        client._renew()
