"""Both clients against a real server, and without one."""

import asyncio
import logging
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import CLOSED, Serve

from rlaas_client import AsyncClient, CheckRequest, CheckResponse, Client, Error
from rlaas_client._channel import endpoint
from rlaas_client._refusals import MAX_REFUSALS, Refusals
from rlaas_client.verdict import from_response


def new_user() -> str:
    return f"user-{time.time_ns()}"


def test_addresses() -> None:
    for address in ("a:1", "http://a:1", "https://a:1", "dns:///a:1"):
        target, tls = endpoint(address, None, None, None)
        assert target == "dns:///a:1" and (tls is not None) == address.startswith("https")
    assert endpoint("unix:/run/a.sock", None, None, None) == ("unix:/run/a.sock", None)
    assert endpoint("[::1]:1", None, None, None) == ("dns:///[::1]:1", None)


async def coroutine_function(request: CheckRequest, error: Error) -> bool:
    return False


class CoroutineFunction:
    __call__ = staticmethod(coroutine_function)


@pytest.mark.parametrize(
    "settings",
    [
        {"address": "a"},
        {"address": "ftp://a:1"},
        {"address": "http://a:1", "ca": b"pem"},
        {"certificate": b"pem"},
        {"token": "a\nb"},
        {"retries": 6},
        {"timeout": "50ms"},
        {"timeout": 0},
        {"on_overload": "fail"},
        {"on_no_answer": "fail"},
        {"on_no_answer": coroutine_function},
        {"on_no_answer": CoroutineFunction()},
        {"ca": b"garbage"},
        {"ca": b""},
        {"certificate": b"-----BEGIN CERTIFICATE-----", "private_key": b"key"},
    ],
)
def test_invalid_setting_is_an_error(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        Client(**settings)


def test_timeout_with_a_unit_says_what_it_must_be() -> None:
    with pytest.raises(ValueError, match=r"timeout must be a number of seconds above 0, such as 0\.25, not '50ms'"):
        Client(timeout="50ms")  # type: ignore[arg-type]


def test_refusals_count_down_and_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    response = CheckResponse(reason=CheckResponse.OVER_LIMIT)
    response.retry_after.FromSeconds(30)
    response.decisions.add(rule="hour", allowed=True)
    response.decisions.add(rule="minute").retry_after.FromSeconds(30)
    refusals = Refusals(max_age=1.0)
    refusals.insert(b"alice", now, from_response(response))
    now = 100.5
    refusal = refusals.get(b"alice")
    assert refusal is not None and refusal.answered_by == "cache" and refusal.retry_after == 29.5
    assert [decision.rule for decision in refusal.response.decisions] == ["minute"]
    for number in range(2 * MAX_REFUSALS):
        refusals.insert(b"%d" % number, now, from_response(response))
    assert refusals.get(b"alice") is None and refusals.get(b"%d" % number) is not None
    now = 101.5
    assert refusals.get(b"%d" % number) is None
    for _ in range(2):
        refusals.insert(b"bob", now, from_response(response))
        now += 1
    assert len({**refusals._young, **refusals._old}) == 1, "what has ended is dropped"


def test_limit_is_exact_for_threads(address: str) -> None:
    user = new_user()
    with Client(address, timeout=5) as client, ThreadPoolExecutor(8) as pool:
        verdicts = list(pool.map(lambda _: client.check(user, "/path", {"plan": "free"}), range(16)))
        assert sum(verdict.allowed for verdict in verdicts) == 2 and client.unanswered == 0
        refused = client.check(user, "/path", {"plan": "free"})
        assert (refused.allowed, refused.rule, refused.answered_by) == (False, "default", "cache")
        for other in ({"cost": 2}, {"costs": {"default": 1}}, {"request_id": "own"}):
            assert client.check(user, "/path", {"plan": "free"}, **other).answered_by == "server"
        for _ in range(2):
            long = client.check(user, "/path", {"plan": "free", "long": "x" * 500})
            assert (long.allowed, long.answered_by) == (False, "server"), "long requests are not remembered"


def test_what_is_there_is_taken(address: str) -> None:
    user = new_user()
    with Client(address, timeout=5) as client:
        assert client.check(user, "/tokens", cost=60).taken is None
        assert client.check(user, "/tokens", cost=60, at_least=5).taken == 40
        refused = [client.check(user, "/tokens", cost=60, at_least=least) for least in (5, 5, 6)]
        assert [verdict.answered_by for verdict in refused] == ["server", "cache", "server"]
        assert [verdict.taken for verdict in refused] == [0, 0, 0]


def test_reservation_is_charged_by_its_end(address: str) -> None:
    user = new_user()
    with Client(address, timeout=5) as client:

        def left() -> int:
            return client.check(user, "/tokens", cost=0).remaining

        with client.reserve(user, "/tokens", cost=10, hold=30) as held:
            assert held.allowed and left() == 90
            assert held.extend(20, hold=40).allowed and not held.extend(90).allowed and left() == 70
            assert held.commit(3) and not held.commit(50) and not held.cancel()
        assert left() == 97
        with client.reserve(user, "/tokens", cost=10):
            pass
        assert left() == 87, "the end commits what is held"
        with pytest.raises(KeyError), client.reserve(user, "/tokens", cost=10):
            raise KeyError
        assert left() == 87, "an error cancels"
        with pytest.raises(KeyError), client.reserve(user, "/tokens", cost=10) as held:
            assert held.commit()
            raise KeyError
        assert left() == 77, "what was settled stays"
        with client.reserve(user, "/tokens", cost=90) as held:
            assert not held.allowed and not held.reservation_id and not held.commit(1)
        assert left() == 77
        assert client.report(user, "/tokens", cost=100).remaining == -23


def test_async_reservation_of_a_cancelled_task_is_cancelled(address: str) -> None:
    user = new_user()

    async def run() -> int:
        async with AsyncClient(address, timeout=5) as client:
            async with client.reserve(user, "/tokens", cost=10) as held:
                assert (await held.extend(5)).remaining == 85
                assert await held.commit(3)
            async with client.reserve(user, "/tokens", cost=10):
                pass
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(work_for_ever(client), 0.1)
            return (await client.report(user, "/tokens", cost=7)).remaining

    async def work_for_ever(client: AsyncClient) -> None:
        async with client.reserve(user, "/tokens", cost=10):
            await asyncio.Event().wait()

    assert asyncio.run(run()) == 80


def test_async_client_serves_one_event_loop_after_the_other(address: str) -> None:
    client, user = AsyncClient(address, timeout=5), new_user()
    for expected in (1, 0):
        verdict = asyncio.run(client.check(user))
        assert (verdict.answered_by, verdict.remaining) == ("server", expected)


def test_policy_decides_without_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[tuple[str, str]] = []

    def policy(request: CheckRequest, error: Error) -> bool:
        asked.append((request.user_id, error.code))
        return request.user_id == "alice"

    with Client(CLOSED, on_no_answer=policy) as client, caplog.at_level(logging.WARNING, "rlaas"):
        for user in ("alice", "bob"):
            started = time.monotonic()
            verdict = client.check(user)
            assert (verdict.allowed, verdict.answered_by) == (user == "alice", "policy")
            assert time.monotonic() - started < 0.9, "a refused connection is known at once"
        with client.reserve("alice") as held:
            assert held.allowed and not held.commit(3)
        assert client.report("alice").answered_by == "policy" and client.unanswered == 4
    assert asked == [(name, "UNAVAILABLE") for name in ("alice", "bob", "alice", "alice")]
    assert len(caplog.records) == 1, "one line a second"


@pytest.mark.parametrize("answer", [None, 0, 1, "yes"])
def test_truth_of_what_a_policy_returns_counts(answer: Any) -> None:
    with Client(CLOSED, on_no_answer=lambda *_: answer) as client:
        assert client.check("alice").allowed is bool(answer)


def test_only_the_first_call_waits_for_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, Client(f"127.0.0.1:{silent.getsockname()[1]}") as client:
        for least, most in ((0.9, 1.5), (0, 0.5)):
            started = time.monotonic()
            assert client.check("alice").answered_by == "policy"
            assert least < time.monotonic() - started < most


def test_client_may_be_created_before_a_fork(address: str) -> None:
    program = f"""if True:
        import os, rlaas_client
        client = rlaas_client.Client({address!r}, timeout=5)
        client._queue._free = 0  # As if threads made calls, which are not in the new process.
        for _ in range(2):
            if os.fork() == 0:
                os._exit(client.check("fork").answered_by != "server")
            assert os.wait()[1] == 0
    """
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_unix_socket(serve: Serve, tmp_path: Path) -> None:
    with serve(f"server.listen=unix:{tmp_path}/s") as address, Client(address, timeout=5) as client:
        assert address.startswith("unix:") and client.check("alice").answered_by == "server"


def test_tls_with_client_certificate(serve: Serve, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    names = "-subj /CN=test -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=CA:FALSE"
    create = f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes {names}"
    subprocess.run([*create.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    pem = certificate.read_bytes()
    files = {"cert": certificate, "key": key, "client-ca": certificate}
    with serve(*(f"server.tls.{name}={path}" for name, path in files.items())) as address:
        with Client(address, timeout=5, ca=pem, certificate=pem, private_key=key.read_bytes()) as client:
            assert client.check("alice").answered_by == "server"
        for pair in ((None, None), (pem, b"garbage")):
            with Client(address, timeout=5, ca=pem, certificate=pair[0], private_key=pair[1]) as client:
                assert client.check("alice").answered_by == "policy"
