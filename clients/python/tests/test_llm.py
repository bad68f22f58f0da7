"""Budgets of language models. clients/llm-cases.json has what the clients of all languages read."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from conftest import CLOSED, Answering

from rlaas_client import AsyncClient, CheckResponse, Client
from rlaas_client._proto.reservation_pb2 import CommitResponse, ExtendResponse, ReserveResponse
from rlaas_client._usage import Reader
from rlaas_client.llm import AsyncBudget, Budget, Refused, Usage, read_usage

PATH = Path(__file__).parents[2] / "llm-cases.json"
CASES: list[dict[str, Any]] = json.loads(PATH.read_text())["cases"] if PATH.exists() else []
ANSWER = {"usage": {"prompt_tokens": 12, "completion_tokens": 30, "total_tokens": 42}}
CHUNKS: list[dict[str, Any]] = next((case["chunks"] for case in CASES if case["name"] == "chat-stream"), [])


class ProviderError(Exception):
    """An answer of a provider, by the fields of its library."""

    def __init__(self, status_code: int) -> None:
        super().__init__()
        self.status_code = status_code


def objects(value: Any) -> Any:
    """Returns what the library of a provider makes of JSON."""
    if isinstance(value, dict):
        return SimpleNamespace(**{name: objects(part) for name, part in value.items()})
    return [objects(part) for part in value] if isinstance(value, list) else value


def events(value: Any) -> bytes:
    return f"event: message\ndata: {json.dumps(value)}\n\n".encode()


def read(case: dict[str, Any], form: Any) -> Reader:
    reader = Reader()
    for chunk in case.get("chunks", [case.get("response")]):
        reader.read(form(chunk))
    return reader


@pytest.mark.parametrize("form", [dict, objects, events])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_case(case: dict[str, Any], form: Any) -> None:
    reader = read(case, form)
    assert (reader.usage if reader.is_final else None) == case["usage"]
    assert reader.charged(case.get("estimate", 0)) == case.get("charged", case["usage"])
    if "response" in case and form is not events:
        assert read_usage(form(case["response"])) == case["usage"]


def test_events_may_come_in_any_pieces() -> None:
    case = next(case for case in CASES if case["name"] == "message-stream")
    reader = Reader()
    for byte in b"".join(map(events, case["chunks"])) + b"data: [DONE]\n\n":
        reader.read(bytes([byte]))
    assert reader.usage == case["usage"]


@cache
def connected(address: str) -> Client:
    """Returns a client of the tests for threads, which connects once: a busy machine is slow at that."""
    client = Client(address, timeout=5)
    while client.check("connects", "/large", cost=0).answered_by != "server":
        pass
    return client


def used(address: str, user: str) -> dict[str, int]:
    """Returns the units of a user that are charged or held, by rule."""
    decisions = connected(address).check(user, "/chat", cost=0).response.decisions
    return {decision.rule: decision.limit - decision.remaining for decision in decisions}


def price(_model: str, usage: Usage) -> int:
    return usage["input"] + 4 * usage["output"]


def budget(address: str, **settings: Any) -> Budget:
    return Budget(connected(address), **{"resource": "/chat", "price": price, "tokens": "chat", **settings})


def async_budget(address: str, **settings: Any) -> AsyncBudget:
    return AsyncBudget(AsyncClient(address, timeout=5), **{"resource": "/chat", "price": price, **settings})


def test_usage_is_charged(address: str) -> None:
    with budget(address).call("charged", estimate=20, max_tokens=100, model="m") as call:
        assert used(address, "charged") == {"chat": 120, "money": 420}
        assert call.usage(ANSWER) == {**ANSWER_USAGE}
    assert used(address, "charged") == {"chat": 42, "money": 132}


ANSWER_USAGE = {"input": 12, "cached_read": 0, "cached_write": 0, "output": 30, "reasoning": 0, "total": 42}


def test_costs_of_the_caller_are_charged(address: str) -> None:
    held = budget(address, price=None, default_output=60)
    with held.call("costs", estimate=20, costs={"money": 500}) as call:
        assert used(address, "costs") == {"chat": 80, "money": 500}
        call.usage(ANSWER)
    assert used(address, "costs") == {"chat": 42, "money": 500}
    with held.call("costs", estimate=20, costs={"money": 500}) as call:
        call.usage(ANSWER, costs={"money": 7})
    assert used(address, "costs") == {"chat": 84, "money": 507}


def test_refusal_has_the_headers_of_providers(address: str) -> None:
    with pytest.raises(Refused) as raised, budget(address).call("refused", estimate=20, max_tokens=5000):
        raise AssertionError("the block must not begin")
    refused = raised.value
    assert (refused.status, refused.verdict.rule) == (429, "chat")
    assert refused.headers["x-ratelimit-remaining-tokens"] == "1000"
    assert refused.headers["x-should-retry"] == "false"
    with budget(address).call("refused", max_tokens=1000), pytest.raises(Refused) as raised:
        budget(address).call("refused", estimate=1, max_tokens=1).__enter__()
    headers, wait = raised.value.headers, raised.value.retry_after
    assert wait is not None and headers["x-ratelimit-remaining-tokens"] == "0"
    assert float(headers["retry-after-ms"]) == pytest.approx(wait * 1000, abs=1)
    assert int(headers["retry-after"]) - 1 < wait <= int(headers["retry-after"])
    assert headers["x-ratelimit-reset-tokens"].endswith("s")


@pytest.mark.parametrize(
    ("error", "charged"),
    [
        (ProviderError(429), 0),
        (ProviderError(503), 0),
        (TimeoutError(), 20),
        (KeyError(), 20),
        (type("APITimeoutError", (ProviderError,), {})(408), 20),
    ],
)
def test_error_without_usage(address: str, error: Exception, charged: int) -> None:
    user = f"error-{type(error).__name__}-{getattr(error, 'status_code', 0)}"
    with pytest.raises(type(error)), budget(address).call(user, estimate=20, max_tokens=100):
        raise error
    assert used(address, user)["chat"] == charged


def test_call_that_was_not_made_costs_nothing(address: str) -> None:
    with budget(address).call("cached", estimate=20, max_tokens=100) as call:
        call.cancel()
    assert used(address, "cached") == {"chat": 0, "money": 0}


def test_answer_without_usage_costs_what_is_known(address: str) -> None:
    with budget(address).call("unknown", estimate=20, max_tokens=100) as call:
        call.usage({"choices": [{"message": {"content": "12345"}}]})
    assert used(address, "unknown")["chat"] == 22


def test_stream_passes_and_is_charged(address: str) -> None:
    with budget(address).call("stream", estimate=20, max_tokens=100) as call:
        assert list(call.stream(iter(CHUNKS))) == CHUNKS
    assert used(address, "stream")["chat"] == 30


def test_chunk_with_usage_is_dropped_if_not_asked_for(address: str) -> None:
    chunks = objects(CHUNKS)
    for options, expected in (({}, 2), ({"stream_options": {"include_usage": True}}, 3)):
        with budget(address).call("dropped", estimate=1, max_tokens=100) as call:
            arguments = call.arguments(model="m", stream=True, **options)
            assert arguments["stream_options"] == {"include_usage": True}
            assert len(list(call.stream(iter(chunks)))) == expected
    assert used(address, "dropped")["chat"] == 60
    with budget(address).call("dropped", max_tokens=1) as call:
        assert call.arguments(model="m") == {"model": "m"}
        call.cancel()


@pytest.mark.parametrize("status", [None, 500])
def test_cut_stream_costs_what_was_streamed(address: str, status: int | None) -> None:
    def cut() -> Iterator[Any]:
        yield CHUNKS[0]
        if status:
            raise ProviderError(status)

    user = f"cut-{status}"
    try:
        with budget(address).call(user, estimate=20, max_tokens=100) as call:
            for _ in call.stream(cut()):
                pass
    except ProviderError:
        assert status
    assert used(address, user)["chat"] == 21


def test_caller_that_leaves_closes_the_stream_of_the_provider(address: str) -> None:
    is_closed = []

    def chunks() -> Iterator[Any]:
        try:
            yield from CHUNKS
        finally:
            is_closed.append(True)

    def answer() -> Iterator[Any]:
        with budget(address).call("leaves", estimate=20, max_tokens=100) as call:
            yield from call.stream(chunks())

    streamed = answer()
    next(streamed)
    streamed.close()  # type: ignore[attr-defined]
    assert is_closed == [True]
    assert used(address, "leaves")["chat"] == 21


def test_stream_may_begin_after_its_block(address: str) -> None:
    with budget(address).call("later", estimate=20, max_tokens=100) as call:
        stream = call.stream(iter(CHUNKS))
    assert used(address, "later")["chat"] == 120
    assert list(stream) == CHUNKS
    assert used(address, "later")["chat"] == 30


def brief() -> Answering:
    """A server whose reservations end soon."""

    def reserve(_: bytes) -> ReserveResponse:
        response = ReserveResponse(verdict=CheckResponse(allowed=True), reservation_id="id")
        response.expires_at.FromNanoseconds(time.time_ns() + 400_000_000)
        return response

    return Answering(Reserve=reserve, Extend=ExtendResponse(), Commit=CommitResponse())


def test_stream_holds_on() -> None:
    def chunks() -> Iterator[Any]:
        for chunk in CHUNKS:
            time.sleep(0.25)
            yield chunk

    server = brief()
    with server.serve() as address:
        held = Budget(Client(address, timeout=5))
        with held.call("long", estimate=20, max_tokens=100) as call:
            list(call.stream(chunks()))
        held.client.close()
    assert server.calls == ["Reserve", "Extend", "Extend", "Extend", "Commit"]


async def each(chunks: list[Any], *, hangs: bool = False) -> AsyncIterator[Any]:
    for chunk in chunks:
        yield chunk
    if hangs:
        await asyncio.Event().wait()


def test_async_call(address: str) -> None:
    async def run() -> None:
        held = async_budget(address)
        async with held.call("async", estimate=20, max_tokens=100) as call:
            call.usage(ANSWER)
        async with held.call("async", estimate=20, max_tokens=100) as call:
            assert [chunk async for chunk in call.stream(each(CHUNKS))] == CHUNKS
        async with held.call("async", estimate=20, max_tokens=100) as call:
            stream = call.stream(each(CHUNKS))
        assert [chunk async for chunk in stream] == CHUNKS
        with pytest.raises(Refused):
            await held.call("async", estimate=20, max_tokens=1000).__aenter__()
        await held.client.close()

    asyncio.run(run())
    assert used(address, "async")["chat"] == 42 + 30 + 30


def test_cancelled_task_is_charged_what_was_streamed(address: str) -> None:
    async def stream(held: AsyncBudget, seen: asyncio.Event) -> None:
        async with held.call("cancelled", estimate=20, max_tokens=100) as call:
            async for _ in call.stream(each(CHUNKS[:2], hangs=True)):
                seen.set()

    async def run() -> None:
        held, seen = async_budget(address), asyncio.Event()
        task = asyncio.create_task(stream(held, seen))
        await seen.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await held.client.close()

    asyncio.run(run())
    assert used(address, "cancelled")["chat"] == 22


def test_async_call_holds_on_while_the_model_is_silent() -> None:
    async def run(address: str) -> None:
        held = async_budget(address)
        async with held.call("silent", estimate=20, max_tokens=100) as call:
            while server.calls.count("Extend") < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            call.usage(ANSWER)
        # A stream that nobody begins holds no longer.
        async with held.call("silent", estimate=20, max_tokens=100) as call:
            call.stream(each(CHUNKS))
        await asyncio.sleep(0.3)
        await held.client.close()

    server = brief()
    with server.serve() as address:
        asyncio.run(run(address))
    assert server.calls == ["Reserve", "Extend", "Extend", "Extend", "Commit", "Reserve"]


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_settlement_without_an_answer_is_repeated_until_there_is_one(kind: str) -> None:
    async def by_asyncio(address: str) -> None:
        async with AsyncClient(address, timeout=5) as client:
            async with AsyncBudget(client).call("store", estimate=20, max_tokens=100) as call:
                call.usage(ANSWER)
            assert server.calls == ["Reserve", "Commit", "Commit"]
            await asyncio.to_thread(answer)

    def by_threads(address: str) -> None:
        with Client(address, timeout=5) as client:
            with Budget(client).call("store", estimate=20, max_tokens=100) as call:
                call.usage(ANSWER)
            assert server.calls == ["Reserve", "Commit", "Commit"]
            answer()

    def answer() -> None:
        while server.calls.count("Commit") < 4:
            time.sleep(0.01)
        server.answers["Commit"] = CommitResponse()
        calls = len(server.calls)
        # One may be under way.
        while len(server.calls) == calls:
            time.sleep(0.01)
        time.sleep(1.5)
        assert len(server.calls) <= calls + 2

    server = brief()
    server.answers["Commit"] = grpc.StatusCode.UNAVAILABLE
    with server.serve() as address:
        if kind == "threads":
            by_threads(address)
        else:
            asyncio.run(by_asyncio(address))


def test_call_that_outlives_its_hold_is_charged_once(address: str) -> None:
    with budget(address, hold=0.1).call("outlives", estimate=20, max_tokens=100) as call:
        while used(address, "outlives")["chat"]:
            time.sleep(0.02)
        call.usage(ANSWER)
    assert used(address, "outlives") == {"chat": 42, "money": 132}


def test_call_without_a_reservation_is_reported(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    held = replace(budget(address), client=Client(address, timeout=5))
    with monkeypatch.context() as patch:
        patch.setattr(held.client, "_endpoint", Client(CLOSED)._endpoint)
        call = held.call("away", estimate=20, max_tokens=100)
        call.__enter__()
    held.client.close()
    call.usage(ANSWER)
    call.__exit__(None, None, None)
    assert used(address, "away") == {"chat": 42, "money": 132}


def test_budget_that_denies_without_an_answer() -> None:
    held = Budget(Client(CLOSED, on_no_answer="deny"))
    with pytest.raises(Refused) as raised:
        held.call("away", max_tokens=1).__enter__()
    assert (raised.value.status, raised.value.headers["retry-after"]) == (503, "1")


def test_budget_is_not_overspent(address: str) -> None:
    async def ask(held: AsyncBudget) -> int:
        try:
            async with held.call("race", estimate=12, max_tokens=88) as call:
                await asyncio.sleep(0.01)
                usage = call.usage(ANSWER)
                return usage["total"] if usage else 0
        except Refused:
            return 0

    async def run() -> int:
        held = async_budget(address, price=None, resource="/tokens")
        return sum(await asyncio.gather(*(ask(held) for _ in range(50))))

    assert asyncio.run(run()) == 42
    assert connected(address).check("race", "/tokens", cost=0).remaining == 58
