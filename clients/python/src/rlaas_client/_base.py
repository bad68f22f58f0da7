"""What both clients do alike: requests, retries, reservations, and what happens without an answer.

The work is written as coroutines. Those of the client for threads block where those of asyncio wait.
"""

from __future__ import annotations

import inspect
import logging
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Coroutine
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, TypeVar

from rlaas_client._channel import endpoint
from rlaas_client._errors import explain, from_result
from rlaas_client._proto.ratelimit_pb2 import CheckBatchRequest, CheckRequest, CheckResponse, ReportRequest
from rlaas_client._proto.reservation_pb2 import CancelRequest, CommitRequest, ExtendRequest, ReserveRequest
from rlaas_client._queue import ALONE, CLOSED, Pending, Queue
from rlaas_client._refusals import MAX_KEY, Refusals
from rlaas_client._request import Attributes, Costs, Error, check_costs, check_units, new_request
from rlaas_client.verdict import Verdict, after, from_response, without_response

if TYPE_CHECKING:
    from typing_extensions import Unpack

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
_INVALID = {"INVALID_ARGUMENT", "UNIMPLEMENTED", "OUT_OF_RANGE"}
# The server answered, and would answer the same again.
_REJECTIONS = _INVALID | {"UNAUTHENTICATED", "PERMISSION_DENIED", "NOT_FOUND", "FAILED_PRECONDITION"}
# A server, or a proxy, that does not take a batch may take its requests one by one.
_NOT_IN_A_BATCH = _INVALID | {"RESOURCE_EXHAUSTED"}

T = TypeVar("T")
R = TypeVar("R")
V = TypeVar("V")
# What reserves for the time of a block.
B = TypeVar("B")
Steps = Coroutine[Any, Any, T]
Policy = Literal["allow", "deny"] | Callable[[CheckRequest, Error], bool]


class More(TypedDict, total=False):
    """Arguments of a request that are rarely used."""

    costs: Costs
    request_id: str
    at_least: int  # Any number of units from it to the cost will do: `taken` of the verdict says how many.


class BaseClient(Generic[V, B]):
    """The settings of a client. Times are in seconds, certificates and keys in PEM."""

    # Whether the rules that answer are those of the program.
    _has_rules = True
    _run: Callable[[Callable[[], Steps[Verdict]]], V]
    _hold: Callable[[CheckRequest, float | None], B]
    # Creates what `_reserve` holds, to be settled.
    _new_held: Callable[[tuple[Verdict, str, float], CheckRequest], Held[Any, Any]]
    # Makes a call of a method, with a request, a timeout, and a pause before. Returns the response, or an `Error`.
    _make: Callable[[str, Any, float, float], Steps[Any]]
    # Waits for some seconds.
    _pause: Callable[[float], Steps[None]]
    # Waits until a check has its outcome, or a batch to carry, which it returns.
    _wait: Callable[[Pending], Steps[list[Pending] | None]]
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
        # Number of requests that `on_no_answer` decided.
        self.unanswered = 0
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

    def check(
        self, user_id: str, resource: str = "", attributes: Attributes = None, cost: int = 1, **more: Unpack[More]
    ) -> V:
        """Decides one request. Raises `Error` if the server rejects it as invalid or without permission."""
        return self._run(lambda: self._check(new_request(user_id, resource, attributes, cost, **more)))

    def report(
        self, user_id: str, resource: str = "", attributes: Attributes = None, cost: int = 1, **more: Unpack[More]
    ) -> V:
        """Counts a cost that has arisen, whatever is left, in rules that have `post_paid` or `reservable`."""
        return self._run(lambda: self._report(new_request(user_id, resource, attributes, cost, **more)))

    def reserve(
        self,
        user_id: str,
        resource: str = "",
        attributes: Attributes = None,
        cost: int = 1,
        hold: float | None = None,
        **more: Unpack[More],
    ) -> B:
        """Holds a cost during the work, for `hold` seconds at most. Look at `allowed`: a refusal raises nothing.

        The end of the block commits what is held, an exception cancels it, unless it was settled before.
        """
        return self._hold(new_request(user_id, resource, attributes, cost, **more), hold)

    async def _check(self, request: CheckRequest) -> Verdict:
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
                    await self._carry(batch)
                else:
                    batch = await self._wait(item)
            outcome = item.outcome
            if outcome is ALONE:
                outcome = await self._call("Check", request, self._deadline())
            is_final = not isinstance(outcome, Error) or outcome is CLOSED or outcome.code not in _RETRYABLE
            if is_final or self._tokens <= MAX_TOKENS / 2:
                break
        verdict = self._verdict(request, outcome)
        if isinstance(outcome, CheckResponse) and not item.sent_at:
            return after(verdict, 0)
        if is_gated:
            self._refusals.insert(key, item.sent_at, verdict)
        return verdict

    async def _carry(self, batch: list[Pending]) -> None:
        queue = self._queue
        outcomes: list[Any] = [CLOSED] * len(batch)
        # A call that is not to be repeated has the whole timeout.
        timeout = self._deadline() / (len(self._pauses) if self._tokens > MAX_TOKENS / 2 else 1)
        try:
            if len(batch) == 1:
                response = await self._call("Check", batch[0].request, timeout, batch[0].pause)
            else:
                requests = CheckBatchRequest(requests=[item.request for item in batch])
                response = await self._call("CheckBatch", requests, timeout, batch[0].pause)
            if len(batch) > 1 and not isinstance(response, Error):
                # Should the server answer fewer, nobody waits for ever.
                outcomes[: len(response.results)] = map(from_result, response.results)
            elif len(batch) > 1 and response.code in _NOT_IN_A_BATCH and not response.reason:
                queue.max_batch = 1 if response.code == "UNIMPLEMENTED" else queue.max_batch
                outcomes = [ALONE] * len(batch)
            else:
                outcomes = [response] * len(batch)
        finally:
            queue.leave(batch, outcomes)

    async def _report(self, request: CheckRequest) -> Verdict:
        request.request_id = request.request_id or uuid.uuid4().hex
        response = await self._call_twice("Report", ReportRequest(request=request))
        return self._verdict(request, response if isinstance(response, Error) else response.verdict)

    async def _reserve(self, request: CheckRequest, hold: float | None) -> tuple[Verdict, str, float]:
        message = ReserveRequest(request=request, ttl=None if hold is None else timedelta(seconds=hold))
        response: Any = self._queue.no_answer or Error("OVERLOADED", "too many calls reserve at once")
        if self._reserving.acquire(blocking=False):
            try:
                response = await self._call("Reserve", message, self._deadline())
            finally:
                self._reserving.release()
        if isinstance(response, Error):
            return self._verdict(request, response), "", 0.0
        left = response.expires_at.ToNanoseconds() / 1e9 - time.time()
        return from_response(response.verdict), response.reservation_id, left

    async def _call_twice(self, method: str, request: Any) -> Any:
        """Makes a call, and again without an answer, each time within the whole deadline."""
        deadline = self._deadline()
        response = await self._call(method, request, deadline)
        if isinstance(response, Error) and response.code in _RETRYABLE:
            response = await self._call(method, request, deadline, BACKOFF)
        return response

    async def _call(self, method: str, request: Any, seconds: float, pause: float = 0.0) -> Any:
        """Makes a call, and records how it ends. Returns the response, or an `Error`."""
        until, gained = time.monotonic() + pause + seconds, 0.1
        response = await self._make(method, request, seconds, pause)
        if not isinstance(response, Error):
            self._queue.record(None)
            self._is_misconfigured = False
        else:
            is_late = response.code == "DEADLINE_EXCEEDED" and time.monotonic() - until > seconds / 2
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

    def _verdict(self, request: CheckRequest, error: CheckResponse | Error) -> Verdict:
        """Returns what the server says, or a policy, or raises the error of a call that the server rejected."""
        if not isinstance(error, Error):
            return from_response(error)
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
            self.unanswered += 1
        if not self._is_misconfigured:
            text, self._is_misconfigured = explain(error, self._address)
            kind = "setting" if self._is_misconfigured else "check"
            self._warn(kind, "check failed, request %s (%d so far): %s", outcome, self.unanswered, text)
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
        client: BaseClient[V, Any],
        run: Callable[[Callable[[], Steps[bool]]], R],
        reserved: tuple[Verdict, str, float],
        request: CheckRequest,
    ) -> None:
        # The id is empty if nothing is held: refused, decided by the policy, or no rule that holds.
        # The last are the seconds to its end, by the clocks of the store and of this machine.
        self.verdict, self.reservation_id, self._left = reserved
        self.allowed = self.verdict.allowed
        self._client, self._request, self._run = client, request, run
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
        return self._run(lambda: self._settle("Commit", request))

    def extend(self, cost: int = 0, hold: float | None = None, costs: Costs = None) -> V:
        """Holds more units, or for `hold` seconds from now on, or both. A refusal leaves what is held as it was.

        Raises `Error` without an answer, whatever the policy is. It is not repeated, as that might add twice. If
        nothing is held, nothing is sent, and the result is the verdict on the request.
        """
        check_units("cost", cost)
        check_costs("costs", costs)
        ttl = None if hold is None else timedelta(seconds=hold)
        request = ExtendRequest(reservation_id=self.reservation_id, cost=cost, costs=costs, ttl=ttl)
        return self._client._run(lambda: self._extend(request))

    def cancel(self) -> R:
        """Returns all that is held. The result is that of `commit`."""
        return self._run(lambda: self._settle("Cancel", CancelRequest(reservation_id=self.reservation_id)))

    async def _extend(self, request: ExtendRequest) -> Verdict:
        if not self.reservation_id:
            return self.verdict
        response = await self._client._call("Extend", request, self._client._deadline())
        if isinstance(response, Error):
            raise response
        return from_response(response.verdict)

    async def _settle(self, method: str, request: CommitRequest | CancelRequest) -> bool:
        if not self.is_open:
            return False
        self.is_open = False
        response = await self._client._call_twice(method, request)
        if not isinstance(response, Error):
            return True
        self._client._warn("settle", "reservation not settled: %s", response)
        # Nothing was charged.
        self.is_open = response.code == "INVALID_ARGUMENT"
        if response.code in _REJECTIONS:
            raise response
        return False


def _renew(reference: weakref.ref[BaseClient[Any, Any]]) -> None:
    if client := reference():
        client._renew()
