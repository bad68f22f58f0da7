"""Budgets of language models: tokens, and money, that are held before a call and settled by what the model counted.

`Budget` is for threads and `AsyncBudget` for asyncio:

    budget = AsyncBudget(AsyncClient("127.0.0.1:50051"))
    async with budget.call(user, estimate=200, max_tokens=1000) as call:
        call.usage(await openai.chat.completions.create(model=…, messages=…, max_tokens=1000))
"""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Generator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar

from rlaas_client._base import _REJECTIONS, Held
from rlaas_client._proto.ratelimit_pb2 import RuleDecision
from rlaas_client._proto.reservation_pb2 import CancelRequest, CommitRequest, ExtendRequest
from rlaas_client._request import Attributes, Costs, Error, check_costs, new_request
from rlaas_client._usage import Reader, Usage, find, new_usage, read_usage
from rlaas_client.async_client import AsyncClient, AsyncHeld
from rlaas_client.client import Client
from rlaas_client.verdict import Verdict, seconds

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["AsyncBudget", "AsyncCall", "Budget", "Call", "Refused", "Usage", "litellm_price", "read_usage"]

RESOURCE = "/v1/chat/completions"
# After this many seconds a call holds its units no longer.
MAX_CALL_SECONDS = 3600
# Seconds to hold where the clocks of the store and of this machine say none.
UNKNOWN_HOLD = 30.0
# The libraries of providers wait no longer between two attempts.
MAX_RETRY_AFTER = 60
# Seconds in which a settlement without an answer is repeated, and pauses between attempts. The service knows for
# 10 minutes what it has settled.
MAX_SETTLE_SECONDS = 300
FIRST_PAUSE, MAX_PAUSE = 0.1, 10.0

# A reservation, by the kind of the client.
H = TypeVar("H", bound=Held[Any, Any])
# The price of a usage of a model, in the units of the rule for money: a whole number.
Price = Callable[[str, Usage], int]


def litellm_price(model: str, usage: Usage) -> int:
    """Returns a price by the table of LiteLLM, which must be installed, in millionths of a dollar, rounded up."""
    import litellm

    prices: tuple[float, float] = litellm.cost_per_token(
        model=model,
        prompt_tokens=usage["input"],
        completion_tokens=usage["output"],
        cache_read_input_tokens=usage["cached_read"],
        cache_creation_input_tokens=usage["cached_write"],
    )
    # Dollars are floats here, whose sum may be above a whole number by an error.
    return math.ceil(round(sum(prices) * 1e6, 3))


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a budget. Rules are meant by their names."""

    resource: str = RESOURCE
    # Tokens that are held for an answer whose call has no `max_tokens`.
    default_output: int = 4096
    # Seconds, at most the shortest `hold` of the rules, which is also the default.
    hold: float | None = None
    price: Price | None = None
    money: str = "money"
    # The rules that headers of a refusal tell about.
    tokens: str = "tokens"
    requests: str = "requests"


class Arguments(TypedDict, total=False):
    """What a call has beside its user."""

    # Tokens of the prompt, at most, and those of the answer.
    estimate: int
    max_tokens: int | None
    # Units of single rules. Those that the answer does not change are charged.
    costs: Costs
    model: str
    attributes: Attributes


class Refused(Exception):
    """A call that was refused, with the status to answer, and the headers that libraries of providers read."""

    def __init__(self, verdict: Verdict, settings: Settings) -> None:
        super().__init__(f"{verdict.rule}: {verdict.reason}" if verdict.rule else verdict.reason)
        self.verdict, self.retry_after = verdict, verdict.retry_after
        is_away = not verdict.rule and verdict.reason in ("NO_ANSWER", "OVERLOADED", "STORE_UNAVAILABLE", "NOT_READY")
        self.status = HTTPStatus.SERVICE_UNAVAILABLE if is_away else HTTPStatus.TOO_MANY_REQUESTS
        self.headers = _headers(verdict, settings)


def _headers(verdict: Verdict, settings: Settings) -> dict[str, str]:
    headers = {}
    wait = verdict.retry_after
    if wait is not None:
        headers["retry-after"] = str(math.ceil(wait))
        headers["retry-after-ms"] = str(math.ceil(wait * 1000))
    if wait is None or wait > MAX_RETRY_AFTER:
        headers["x-should-retry"] = "false"
    names = {settings.tokens: "tokens", settings.requests: "requests"}
    if verdict.rule != settings.money:
        names.setdefault(verdict.rule, "tokens")
    # The deciding rule is last.
    for decision in sorted(verdict.response.decisions, key=lambda decision: decision.rule == verdict.rule):
        if unit := names.get(decision.rule):
            headers[f"x-ratelimit-limit-{unit}"] = str(max(decision.limit, 0))
            headers[f"x-ratelimit-remaining-{unit}"] = str(max(decision.remaining, 0))
            headers[f"x-ratelimit-reset-{unit}"] = _reset(decision)
    return headers


def _reset(decision: RuleDecision) -> str:
    """Returns the time until the whole limit is available, as OpenAI writes it, such as 6m0s."""
    hours, rest = divmod(math.ceil(seconds(decision.reset_after)), 3600)
    minutes, rest = divmod(rest, 60)
    return f"{f'{hours}h' if hours else ''}{f'{minutes}m' if hours or minutes else ''}{rest}s"


@dataclass(frozen=True)
class Budget(Settings):
    """The budgets of users, for threads, by the rules of the server that a client asks."""

    client: Client

    def call(self, user_id: str, **arguments: Unpack[Arguments]) -> Call:
        """Holds the prompt's `estimate` and `max_tokens` for a block. Its beginning raises `Refused`."""
        return Call(self.client, self, user_id, arguments)


@dataclass(frozen=True)
class AsyncBudget(Settings):
    """The budgets of users, for asyncio, by the rules of the server that a client asks."""

    client: AsyncClient

    def call(self, user_id: str, **arguments: Unpack[Arguments]) -> AsyncCall:
        """Holds the prompt's `estimate` and `max_tokens` for a block. Its beginning raises `Refused`."""
        return AsyncCall(self.client, self, user_id, arguments)


class _Call(Generic[H]):
    """What both kinds of call do alike."""

    _held: H
    # A method and its request, to which there was no answer.
    _unanswered: tuple[str, Any] | None = None

    def __init__(self, client: Client | AsyncClient, settings: Settings, user_id: str, arguments: Arguments) -> None:
        self._client: Client | AsyncClient = client
        self._settings = settings
        self._estimate, self._model = arguments.get("estimate", 0), arguments.get("model", "")
        limit = arguments.get("max_tokens")
        most = new_usage(self._estimate, settings.default_output if limit is None else limit)
        # Units of single rules, in the end.
        self._costs = dict(arguments.get("costs") or {})
        attributes = dict(arguments.get("attributes") or {})
        if self._model:
            attributes.setdefault("model", self._model)
        self._request = new_request(user_id, settings.resource, attributes, most["total"], self._actuals(most))
        self._reader = Reader()
        self._is_cancelled = self._is_settled = self._drops_usage = False
        # A stream was made that is not begun, and the block that has made it has ended.
        self._has_stream = self._is_left = False

    def arguments(self, **arguments: Any) -> dict[str, Any]:
        """Returns the arguments of a chat completion, so that a stream of it ends with its usage.

        `stream` drops the chunk that has it, unless the arguments ask for it themselves.
        """
        if arguments.get("stream"):
            options = arguments.get("stream_options") or {}
            self._drops_usage = not options.get("include_usage")
            arguments["stream_options"] = {**options, "include_usage": True}
        return arguments

    def usage(self, answer: Any, costs: Costs = None) -> Usage | None:
        """Takes the usage of a whole answer, and the units of single rules. The end of the block commits them."""
        check_costs("costs", costs)
        self._costs.update(costs or {})
        self._reader.read(answer)
        return self._reader.usage

    def cancel(self) -> None:
        """Has the end of the block return what is held: the model was not asked."""
        self._is_cancelled = True

    def _read(self, chunk: Any) -> bool:
        """Reads a chunk. Returns false if it is not for the caller."""
        size = self._reader.size
        self._reader.read(chunk)
        if not self._drops_usage or find(chunk, "usage") is None or self._reader.size > size:
            return True
        return any(find(choice, "finish_reason") for choice in find(chunk, "choices") or ())

    def _actuals(self, usage: Usage) -> dict[str, int]:
        price, name = self._settings.price, self._settings.money
        return {**({name: price(self._model, usage)} if price else {}), **self._costs}

    def _outcome(self, error: BaseException | None) -> Usage | None:
        """Returns what to charge after an error, or without one; None returns all."""
        reader = self._reader
        is_refused = not reader.is_final and not reader.size and _is_rejection(error)
        return None if self._is_cancelled or is_refused else reader.charged(self._estimate)

    async def _settle(self, error: BaseException | None) -> None:
        if self._is_settled:
            return
        self._is_settled = True
        held, usage = self._held, self._outcome(error)
        # An error is logged. What the work returned or raised is not lost.
        with suppress(Error):
            if usage is None:
                await self._send("Cancel", CancelRequest(reservation_id=held.reservation_id))
            else:
                await self._charge(usage["total"], self._actuals(usage))

    async def _charge(self, actual: int, actuals: Mapping[str, int]) -> None:
        held, request = self._held, self._request
        if held.is_open:
            # With the request, a call that lasted longer than the hold is charged all the same.
            commit = CommitRequest(
                reservation_id=held.reservation_id, actual=actual, actuals=actuals, request=request
            )
            await self._send("Commit", commit)
        else:
            # Let through without a reservation, such as while the store was away.
            request.cost = actual
            request.costs.update(actuals)
            await self._client._report(request)

    async def _send(self, method: str, request: Any) -> None:
        is_open = self._held.is_open
        if not await self._held._settle(method, request) and is_open:
            self._unanswered = method, request

    def _admit(self, held: H) -> None:
        self._held = held
        if not held.allowed:
            raise Refused(held.verdict, self._settings)
        self._hold = held._left if held._left > 0 else UNKNOWN_HOLD

    async def _extend(self) -> None:
        ttl = timedelta(seconds=self._hold)
        with suppress(Error):
            await self._held._extend(ExtendRequest(reservation_id=self._held.reservation_id, ttl=ttl))

    async def _settle_later(self, method: str, request: Any) -> None:
        """Repeats a settlement until the service answers, or the client is closed. It counts once."""
        pause, until = FIRST_PAUSE, time.monotonic() + MAX_SETTLE_SECONDS
        while time.monotonic() < until:
            await self._client._pause(pause)
            if self._client._channel is None:
                break
            response = await self._client._call(method, request, self._client._deadline())
            if not isinstance(response, Error) or response.code in _REJECTIONS:
                break
            pause = min(2 * pause, MAX_PAUSE)


class Call(_Call[Held[bool, Verdict]]):
    """A call of a model, for threads. The end of its block settles it."""

    _client: Client
    _extend_at = 0.0

    def __enter__(self) -> Call:
        self._admit(self._client._held(self._request, self._settings.hold))
        self._extend_at = time.monotonic() + self._hold / 2
        return self

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        self._is_left = True
        if error is not None or not self._has_stream:
            self._end(error)

    def stream(self, chunks: Iterable[Any]) -> Generator[Any, None, None]:
        """Passes chunks through, and holds on. One that is begun after the block settles at its own end."""
        self._has_stream = True
        return self._pass(chunks)

    def _pass(self, chunks: Iterable[Any]) -> Generator[Any, None, None]:
        self._has_stream, settles = False, self._is_left
        error: BaseException | None = None
        try:
            for chunk in chunks:
                if time.monotonic() >= self._extend_at:
                    self._client._run(self._extend)
                    self._extend_at = time.monotonic() + self._hold / 2
                if self._read(chunk):
                    yield chunk
        except BaseException as raised:
            error = raised
            raise
        finally:
            if settles:
                self._end(error)
            if close := getattr(chunks, "close", None):
                close()

    def _end(self, error: BaseException | None) -> None:
        self._client._run(lambda: self._settle(error))
        if (unanswered := self._unanswered) is not None:
            self._unanswered = None
            later = (lambda: self._settle_later(*unanswered),)
            threading.Thread(target=self._client._run, args=later, daemon=True).start()


class AsyncCall(_Call[AsyncHeld]):
    """A call of a model, for asyncio. The end of its block settles it, even if its task is cancelled."""

    _client: AsyncClient
    _timer: asyncio.Handle | None = None

    async def __aenter__(self) -> AsyncCall:
        self._admit(await self._client._held(self._request, self._settings.hold))
        self._hold_on(time.monotonic() + MAX_CALL_SECONDS)
        return self

    async def __aexit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        self._is_left = True
        if error is not None or not self._has_stream:
            await self._end(error)
        elif self._timer is not None:
            self._timer.cancel()

    def stream(self, chunks: AsyncIterable[Any]) -> AsyncGenerator[Any, None]:
        """Passes chunks through. One that is begun after the block settles at its own end."""
        self._has_stream = True
        return self._pass(chunks)

    async def _pass(self, chunks: AsyncIterable[Any]) -> AsyncGenerator[Any, None]:
        self._has_stream, settles = False, self._is_left
        error: BaseException | None = None
        if settles:
            self._hold_on(time.monotonic() + MAX_CALL_SECONDS)
        try:
            async for chunk in chunks:
                if self._read(chunk):
                    yield chunk
        except BaseException as raised:
            error = raised
            raise
        finally:
            if settles:
                await self._end(error)
            close = getattr(chunks, "aclose", None) or getattr(chunks, "close", None)
            if close and inspect.isawaitable(closing := close()):
                await closing

    async def _end(self, error: BaseException | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._client._run_to_the_end(lambda: self._settle(error))
        if self._unanswered is not None:
            self._client._spawn(self._settle_later(*self._unanswered))
            self._unanswered = None

    def _hold_on(self, until: float) -> None:
        """Extends the reservation at half of its time until then."""

        def extend() -> None:
            self._client._spawn(self._extend())
            self._hold_on(until)

        if self._timer is not None:
            self._timer.cancel()
        if time.monotonic() < until:
            self._timer = asyncio.get_running_loop().call_later(self._hold / 2, extend)


def _is_rejection(error: BaseException | None) -> bool:
    """Returns true if the provider has answered with an error, by the exceptions of its library, or of httpx."""
    names = {kind.__name__ for kind in type(error).__mro__}
    # LiteLLM gives a status to these, too.
    if names & {"APIConnectionError", "APITimeoutError"}:
        return False
    codes = [getattr(error, name, None) for name in ("status_code", "code")]
    codes.append(getattr(getattr(error, "response", None), "status_code", None))
    return any(isinstance(code, int) and 400 <= code < 600 for code in codes)
