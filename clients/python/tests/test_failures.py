"""Calls that fail, or are cancelled, and what is kept all the same."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import grpc
import pytest
from conftest import CLOSED, Answering

from rlaas_client import AsyncClient, CheckResponse, Client, Error, Verdict
from rlaas_client._channel import Endpoint
from rlaas_client._proto.reservation_pb2 import ReserveResponse

Code = grpc.StatusCode
HELD = ReserveResponse(verdict=CheckResponse(allowed=True), reservation_id="id")


def test_checks_are_not_repeated_while_most_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Answering(Check=Code.UNAVAILABLE)
    with server.serve() as address, Client(address, timeout=5, retries=5) as client:
        for _ in range(20):
            client.check("alice")
        assert len(server.calls) == 24
        with monkeypatch.context() as patch:
            timeouts = list[float]()
            make = client._make

            async def record(method: str, request: Any, seconds: float, pause: float) -> Any:
                timeouts.append(seconds)
                return await make(method, request, seconds, pause)

            patch.setattr(client, "_make", record)
            client.check("alice")
            assert len(timeouts) == 1 and timeouts[0] > 4
        del server.answers["Check"]
        for _ in range(62):
            client.check("alice")
        server.answers["Check"] = Code.UNAVAILABLE
        server.calls.clear()
        client.check("alice")
        assert len(server.calls) == 2


def test_new_client_does_not_wait_until_another_connects_again() -> None:
    with Answering().serve() as address:
        waiting = Client(address)
        waiting.check("alice")
    waiting.check("alice")
    with Answering().serve(address), Client(address) as client:
        assert client.check("alice").answered_by == "server"


@pytest.mark.parametrize(("code", "calls"), [(Code.UNAVAILABLE, 2), (Code.RESOURCE_EXHAUSTED, 1)])
def test_settlements_and_reports_are_repeated_once(code: Code, calls: int) -> None:
    server = Answering(Reserve=HELD, Commit=code, Cancel=code, Report=code)
    with server.serve() as address, Client(address, timeout=5) as client:
        for _ in range(10):
            with client.reserve("alice"):
                pass
            with pytest.raises(KeyError), client.reserve("alice"):
                raise KeyError
            client.report("alice")
    assert [server.calls.count(method) for method in ("Commit", "Cancel", "Report")] == [10 * calls] * 3


@pytest.mark.parametrize("code", [Code.NOT_FOUND, Code.INVALID_ARGUMENT, Code.UNAVAILABLE])
def test_end_of_the_work_does_not_lose_its_result(code: Code, caplog: pytest.LogCaptureFixture) -> None:
    def work(client: Client) -> str:
        with client.reserve("alice"):
            return "result"

    async def work_async(address: str) -> str:
        async with AsyncClient(address, timeout=5) as client, client.reserve("alice"):
            return "result"

    with Answering(Reserve=HELD, Commit=code).serve() as address:
        with Client(address, timeout=5) as client:
            assert work(client) == "result"
        assert asyncio.run(work_async(address)) == "result"
    assert [code.name in record.getMessage() for record in caplog.records] == [True, True]


@pytest.mark.parametrize(("code", "cancels"), [(Code.INVALID_ARGUMENT, 1), (Code.NOT_FOUND, 0)])
def test_rejected_commit_raises(code: Code, cancels: int) -> None:
    server = Answering(Reserve=HELD, Commit=code)
    with (
        server.serve() as address,
        Client(address, timeout=5) as client,
        pytest.raises(Error, match=code.name),
        client.reserve("alice") as held,
    ):
        held.commit(3)
    assert server.calls == ["Reserve", "Commit"] + ["Cancel"] * cancels


@pytest.mark.parametrize("actual", [{"actual": -1}, {"actual": 2**32}, {"actual": 1.5}, {"actuals": {"rule": 2**32}}])
def test_commit_out_of_bounds_is_not_sent(actual: dict[str, Any]) -> None:
    server = Answering(Reserve=HELD)
    with (
        server.serve() as address,
        Client(address, timeout=5) as client,
        pytest.raises(Error, match="INVALID_ARGUMENT: actual"),
        client.reserve("alice") as held,
    ):
        held.commit(**actual)
    assert server.calls == ["Reserve", "Cancel"]


def test_cancellation_loses_no_settlement(address: str) -> None:
    user = f"user-{time.time_ns()}"

    async def commit(client: AsyncClient) -> None:
        async with client.reserve(user, "/tokens", cost=10) as held:
            unsent = held.commit(1)
            assert held.is_open
            unsent.close()
            current = asyncio.current_task()
            assert current is not None and current.cancel()
            try:
                await held.commit(3)
            finally:
                await asyncio.sleep(0)
                assert not held.is_open

    async def run() -> None:
        async with AsyncClient(address, timeout=5) as client:
            await client.check(user, "/tokens", cost=0)
            with pytest.raises(asyncio.CancelledError):
                await asyncio.create_task(commit(client))
            with anyio.CancelScope() as scope:
                async with client.reserve(user, "/tokens", cost=40):
                    scope.cancel()
                    await anyio.sleep(60)

    asyncio.run(run())
    assert Client(address, timeout=5).check(user, "/tokens", cost=0).remaining == 97


def test_policy_decides_a_call_that_a_close_meets() -> None:
    async def run(address: str) -> Verdict:
        client = AsyncClient(address)
        check = asyncio.create_task(client.check("alice"))
        await asyncio.sleep(0.1)
        await client.close()
        return await check

    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert asyncio.run(run(f"127.0.0.1:{silent.getsockname()[1]}")).answered_by == "policy"


@contextmanager
def name_server(*addresses: str) -> Iterator[int]:
    """Answers each question for an IPv4 address with the next of these; the last one for ever."""
    left = list(addresses)

    def serve() -> None:
        while (query := server.recvfrom(512))[0]:
            question = query[0][12 : query[0].index(b"\0", 12) + 5]
            answer = b""
            if question[-4:] == b"\0\1\0\1":
                address = socket.inet_aton(left.pop(0) if len(left) > 1 else left[0])
                answer = b"\xc0\x0c\0\1\0\1\0\0\0\0\0\4" + address
            header = query[0][:2] + b"\x81\x80\0\1" + (b"\0\1" if answer else b"\0\0") + b"\0\0\0\0"
            server.sendto(header + question + answer, query[1])

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        server.sendto(b"", server.getsockname())
        thread.join()


def test_new_address_of_a_name_is_found() -> None:
    with Answering().serve() as address, name_server("127.0.0.2", "127.0.0.1") as port, Client(CLOSED) as client:
        client._endpoint = Endpoint(f"dns://127.0.0.1:{port}/moved.test:{address.rpartition(':')[2]}", None)
        started = time.monotonic()
        while client.check("alice").answered_by != "server":
            assert time.monotonic() - started < 15
            time.sleep(0.1)
        assert time.monotonic() - started > 1, "the first address is that of no server"
