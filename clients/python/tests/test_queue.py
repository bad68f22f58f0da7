"""The queue of checks: floods, batches, and what happens if a program asks for more than it gets answers."""

import asyncio
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from conftest import Answering, status
from google.rpc.status_pb2 import Status

from rlaas_client import AsyncClient, CheckRequest, CheckResponse, Client, Error, Verdict
from rlaas_client._proto.ratelimit_pb2 import CheckBatchRequest, CheckBatchResponse, CheckResult
from rlaas_client._queue import MAX_BATCH, MAX_IN_FLIGHT, MAX_WAITING, MAX_WAITING_OF_KEY, Pending, Queue

Code = grpc.StatusCode
REFUSED = CheckResponse(reason=CheckResponse.OVER_LIMIT)
HELD = CheckResponse(reason=CheckResponse.HELD)
ALLOWED = CheckResponse(allowed=True)
NO_ANSWER = Error("UNAVAILABLE", "away")


def new_user() -> str:
    return f"user-{time.time_ns()}"


def check_at_once(client: Client, calls: int, user: str, resource: str = "") -> list[Verdict]:
    """Checks in as many threads, and another user beside them, who must get his own answers."""
    verdicts = list[Verdict]()
    start = threading.Event()

    def check() -> None:
        start.wait()
        verdicts.append(client.check(user, resource))

    threads = [threading.Thread(target=check) for _ in range(calls)]
    for thread in threads:
        thread.start()
    start.set()
    assert client.check(f"{user}-other", "/tokens").reason == "WITHIN_LIMIT"
    for thread in threads:
        thread.join()
    return verdicts


async def check_at_once_async(client: AsyncClient, calls: int, user: str, resource: str = "") -> list[Verdict]:
    checks = [client.check(user, resource) for _ in range(calls)]
    *verdicts, other = await asyncio.gather(*checks, client.check(f"{user}-other", "/tokens"))
    assert other.reason == "WITHIN_LIMIT"
    return verdicts


def flood(kind: type[Client] | type[AsyncClient], address: str, resource: str) -> list[Verdict]:
    """Checks 2,000 times at once. The timeout is for a busy machine."""

    async def run() -> list[Verdict]:
        async with AsyncClient(address, timeout=5) as client:
            return await check_at_once_async(client, 2000, new_user(), resource)

    if kind is AsyncClient:
        return asyncio.run(run())
    with Client(address, timeout=5) as client:
        return check_at_once(client, 2000, new_user(), resource)


@pytest.fixture
def busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets checks wait for as long as a busy machine may need."""
    for module in ("client", "async_client"):
        monkeypatch.setattr(f"rlaas_client.{module}.MAX_WAIT", 60.0)


@pytest.mark.usefixtures("busy_machine")
@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(("resource", "passed"), [("", 2), ("/large", 2000)])
def test_flood_is_limited(kind: type[Client] | type[AsyncClient], address: str, resource: str, passed: int) -> None:
    outcomes = Counter(verdict.reason for verdict in flood(kind, address, resource))
    assert outcomes == Counter(WITHIN_LIMIT=passed, OVER_LIMIT=2000 - passed)


class Caller(threading.Event):
    """The signal of a check whose caller is a test."""


def new_queue(timeout: float = 1.0) -> tuple[Queue, list[list[Pending]]]:
    started = list[list[Pending]]()
    return Queue(timeout, Caller, started.append), started


def pending(key: bytes = b"alice") -> Pending:
    return Pending(CheckRequest(), key, is_gated=True, pause=0.0)


def fill(queue: Queue) -> list[Pending]:
    """Takes all room for calls."""
    items = [pending(b"first") for _ in range(MAX_IN_FLIGHT)]
    assert all(queue.enter(item) == [item] for item in items)
    return items


def test_one_check_of_a_refused_key_is_in_flight() -> None:
    queue, started = new_queue()
    queue.leave(queue.enter(pending()) or [], [REFUSED])
    probe, waiting = pending(), [pending() for _ in range(3)]
    assert queue.enter(probe) == [probe] and [queue.enter(item) for item in waiting] == [None] * 3
    other = pending(b"bob")
    assert queue.enter(other) == [other], "other keys are not held up"
    queue.leave([probe], [HELD])
    assert started == [[waiting[0]]] and waiting[1].outcome is None, "units that are held may be free at any time"
    queue.leave([waiting[0]], [ALLOWED])
    assert started[1:] == [[waiting[1]]], "the next one is sent"
    queue.leave([waiting[1]], [REFUSED])
    assert waiting[2].outcome is REFUSED and waiting[2].sent_at == 0.0 and waiting[2].signal.is_set()


def test_refusal_is_forgotten_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    queue, _ = new_queue()
    queue.leave(queue.enter(pending()) or [], [REFUSED])
    now = 101.0
    assert all(queue.enter(item) == [item] for item in (pending(), pending()))


def test_keys_are_served_in_turn() -> None:
    queue, started = new_queue()
    first = fill(queue)
    flood = [pending(b"flood") for _ in range(2 * MAX_BATCH)]
    others = [pending(b"%d" % number) for number in range(3)]
    for item in flood + others:
        assert queue.enter(item) is None
    queue.leave(first[:1], [ALLOWED])
    assert len(started[0]) == MAX_BATCH and started[0][1:4] == others
    queue.leave(first[1:2], [REFUSED])
    assert started[1] == flood[MAX_BATCH - 3 : 2 * MAX_BATCH - 3], "in the order in which they came"


def test_batches_have_limited_bytes() -> None:
    queue, started = new_queue()
    first = fill(queue)
    for number in range(20):
        queue.enter(pending(b"%d" % number + b"x" * 35_000))
    queue.leave(first[:1], [ALLOWED])
    assert len(started[0]) == 7


def test_queue_and_share_of_a_key_are_limited() -> None:
    queue, _ = new_queue()
    fill(queue)
    flood = [pending() for _ in range(MAX_WAITING_OF_KEY + 1)]
    others = [pending(b"%d" % number) for number in range(MAX_WAITING - MAX_WAITING_OF_KEY + 1)]
    for item in flood + others:
        queue.enter(item)
    for line in (flood, others):
        assert all(item.outcome is None for item in line[:-1])
        assert isinstance(line[-1].outcome, Error) and line[-1].outcome.code == "OVERLOADED"
    queue.withdraw(others[0], NO_ANSWER)
    last = pending(b"last")
    queue.enter(last)
    assert last.outcome is None, "who leaves gives room"


def test_nobody_waits_for_a_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    queue, started = new_queue(timeout=1.0)
    first, waiting = fill(queue), pending()
    queue.record(None)
    queue.enter(waiting)
    now = 100.9
    queue.record(NO_ANSWER)
    assert waiting.outcome is None, "another call was answered within a timeout"
    now = 101.1
    queue.record(NO_ANSWER)
    assert waiting.outcome is NO_ANSWER and waiting.signal.is_set()
    for item in (pending(), pending(b"bob")):
        queue.enter(item)
        assert item.outcome is NO_ANSWER
    queue.leave(first[:1], [NO_ANSWER])
    probe = pending()
    assert queue.enter(probe) == [probe] and not started, "one that finds room is sent"
    queue.record(None)
    last = pending()
    queue.enter(last)
    assert last.outcome is None


def batch_of(answer: Any) -> Any:
    """Answers each request of a batch alike."""

    def batch(request: bytes) -> CheckBatchResponse:
        size = len(CheckBatchRequest.FromString(request).requests)
        result = CheckResult(error=answer) if isinstance(answer, Status) else CheckResult(response=answer)
        return CheckBatchResponse(results=[result] * size)

    return batch


def check_many(address: str, **settings: Any) -> list[Verdict | BaseException]:
    """Checks 30 users at once."""

    async def run() -> list[Verdict | BaseException]:
        async with AsyncClient(address, timeout=5, **settings) as client:
            checks = (client.check(f"user-{number}") for number in range(30))
            return await asyncio.gather(*checks, return_exceptions=True)

    return asyncio.run(run())


def test_checks_that_wait_go_together() -> None:
    server = Answering(Check=ALLOWED, CheckBatch=batch_of(ALLOWED))
    with server.serve() as address:
        verdicts = check_many(address)
    assert all(isinstance(verdict, Verdict) and verdict.allowed for verdict in verdicts)
    assert server.calls.count("Check") == MAX_IN_FLIGHT and server.calls.count("CheckBatch") == 1


@pytest.mark.parametrize(
    ("code", "reason", "settings", "expected"),
    [
        (14, "STORE_UNAVAILABLE", {}, (False, "server", "STORE_UNAVAILABLE", 1)),
        (14, "NOT_READY", {}, (False, "server", "NOT_READY", 1)),
        (8, "OVERLOADED", {}, (False, "server", "OVERLOADED", 1)),
        (8, "OVERLOADED", {"on_overload": "allow"}, (True, "policy", "OVERLOADED", None)),
        (8, "OVERLOADED", {"on_overload": lambda *_: False}, (False, "server", "OVERLOADED", 1)),
        (7, "NO_RULE", {}, (False, "server", "NO_RULE", None)),
        (14, "", {}, (True, "policy", "NO_ANSWER", None)),
        (14, "", {"on_no_answer": "deny"}, (False, "policy", "NO_ANSWER", 1)),
    ],
)
def test_error_of_a_batch_is_that_of_a_check(code: int, reason: str, settings: Any, expected: Any) -> None:
    answer = status(code, reason) if reason else Status(code=code)
    with Answering(Check=answer, CheckBatch=batch_of(answer)).serve() as address:
        verdicts = check_many(address, **settings)
    for verdict in verdicts:
        assert isinstance(verdict, Verdict)
        assert (verdict.allowed, verdict.answered_by, verdict.reason, verdict.retry_after) == expected


def test_rejected_batch_rejects_all_its_callers() -> None:
    with Answering(Check=ALLOWED, CheckBatch=Code.UNAUTHENTICATED).serve() as address:
        outcomes = check_many(address)
    errors = [outcome for outcome in outcomes if isinstance(outcome, Error)]
    assert len(errors) == 30 - MAX_IN_FLIGHT and {error.code for error in errors} == {"UNAUTHENTICATED"}


@pytest.mark.parametrize("code", [Code.UNIMPLEMENTED, Code.INVALID_ARGUMENT, Code.RESOURCE_EXHAUSTED])
def test_batch_that_is_not_taken_is_sent_one_by_one(code: Code) -> None:
    server = Answering(Check=ALLOWED, CheckBatch=code)

    async def run(address: str) -> None:
        async with AsyncClient(address, timeout=5) as client:
            for _ in range(2):
                verdicts = await asyncio.gather(*(client.check(f"user-{number}") for number in range(30)))
                assert all(verdict.allowed for verdict in verdicts)

    with server.serve() as address:
        asyncio.run(run(address))
    assert server.calls.count("Check") == 60
    assert server.calls.count("CheckBatch") == (1 if code is Code.UNIMPLEMENTED else 2)


def test_requests_of_a_rejected_batch_go_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> list[Verdict]:
        all_there, calls = asyncio.Event(), 0

        async def make(method: str, *_: object) -> CheckResponse | Error:
            nonlocal calls
            if method == "CheckBatch":
                return Error("INVALID_ARGUMENT", "no")
            calls += 1
            if calls == 30:
                all_there.set()
            # The others wait for the first calls, and these for nothing.
            await (asyncio.wait_for(all_there.wait(), 20) if calls > MAX_IN_FLIGHT else asyncio.sleep(0))
            return ALLOWED

        client = AsyncClient()
        monkeypatch.setattr(client, "_make", make)
        monkeypatch.setattr("rlaas_client.async_client.MAX_WAIT", 60.0)
        return await asyncio.gather(*(client.check(f"user-{number}") for number in range(30)))

    assert all(verdict.allowed for verdict in asyncio.run(run()))


def test_unanswered_requests_of_a_batch_are_repeated() -> None:
    seen = list[CheckRequest]()

    def batch(request: bytes) -> CheckBatchResponse:
        requests = CheckBatchRequest.FromString(request).requests
        is_first = not seen
        seen.extend(requests)
        error = CheckResult(error=status(14, "STORE_UNAVAILABLE"))
        return CheckBatchResponse(
            results=[
                error if is_first and number % 2 else CheckResult(response=ALLOWED) for number in range(len(requests))
            ]
        )

    with Answering(Check=ALLOWED, CheckBatch=batch).serve() as address:
        verdicts = check_many(address, retries=1)
    assert all(isinstance(verdict, Verdict) and verdict.allowed for verdict in verdicts)
    ids = Counter(request.request_id for request in seen)
    assert len(ids) == 30 - MAX_IN_FLIGHT, "a retry has the same id"


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_busy_program_is_not_a_server_without_an_answer(silent: str) -> None:
    async def run() -> Verdict:
        async with AsyncClient(silent, timeout=0.1) as client:
            client._is_first = False
            check = asyncio.create_task(client.check("alice"))
            await asyncio.sleep(0)
            time.sleep(0.5)  # noqa: ASYNC251
            return await check

    verdict = asyncio.run(run())
    assert (verdict.allowed, verdict.answered_by, verdict.reason) == (False, "policy", "OVERLOADED")


def test_answer_counts_that_came_while_the_program_was_busy(address: str) -> None:
    async def run() -> list[Verdict]:
        async with AsyncClient(address, timeout=1) as client:
            await client.check("alice", "/large")
            verdicts = []
            # Before the call is sent, and before its answer is looked at.
            for rounds in (1, 2, 3):
                check = asyncio.create_task(client.check("alice", "/large"))
                for _ in range(rounds):
                    await asyncio.sleep(0)
                time.sleep(1.6)  # noqa: ASYNC251
                verdicts.append(await check)
            return verdicts

    assert [verdict.answered_by for verdict in asyncio.run(run())] == ["server"] * 3


def test_caller_that_gives_up_is_cancelled(silent: str) -> None:
    async def run() -> None:
        async with AsyncClient(silent, timeout=0.2) as client:
            client._is_first = False
            for wait in (0, 0.1, 0.2):
                check = asyncio.create_task(client.check("alice"))
                await asyncio.sleep(wait)
                if check.cancel():
                    with pytest.raises(asyncio.CancelledError):
                        await check
            assert (await client.check("alice")).reason == "NO_ANSWER"

    asyncio.run(run())


@pytest.mark.usefixtures("busy_machine")
def test_server_that_hangs_delays_a_flood_by_one_timeout(silent: str) -> None:
    async def run() -> list[Verdict]:
        async with AsyncClient(silent, timeout=2) as client:
            client._is_first = False
            return await asyncio.gather(*(client.check(f"user-{number}") for number in range(500)))

    started = time.monotonic()
    assert {verdict.reason for verdict in asyncio.run(run())} == {"NO_ANSWER"}
    assert time.monotonic() - started < 4


def test_close_decides_what_waits(silent: str) -> None:
    with Client(silent, timeout=30) as client:
        threads = [threading.Thread(target=client.check, args=(f"user-{number}",)) for number in range(20)]
        for thread in threads:
            thread.start()
        while client._queue._count < 20 - MAX_IN_FLIGHT:
            time.sleep(0.01)
    for thread in threads:
        thread.join()
    assert client.unanswered == 20


def test_cancelled_check_is_not_sent() -> None:
    server = Answering(Check=ALLOWED, CheckBatch=batch_of(ALLOWED))

    async def run(address: str) -> None:
        async with AsyncClient(address, timeout=5) as client:
            checks = [asyncio.create_task(client.check(f"user-{number}")) for number in range(MAX_IN_FLIGHT + 1)]
            await asyncio.sleep(0)
            checks.pop().cancel()
            assert all(verdict.allowed for verdict in await asyncio.gather(*checks))

    with server.serve() as address:
        asyncio.run(run(address))
    assert server.calls == ["Check"] * MAX_IN_FLIGHT


def test_reservations_at_once_are_limited(silent: str) -> None:
    with Client(silent) as client:
        client._reserving = threading.Semaphore(0)
        with client.reserve("alice") as held:
            assert (held.allowed, held.verdict.reason) == (False, "OVERLOADED")
