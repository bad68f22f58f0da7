"""Servers of the tests. Tests without theirs are skipped.

RLAAS_CASES is the address of the server that plays clients/cases.yaml, RLAAS_SERVER the path of the binary rlaas.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from rlaas_client import CheckResponse

RULES = """
rate-limiter: { use-algo: gcra, window-size: 60, max-requests: 2 }
rules:
  - { name: tokens, match: { resource: /tokens }, algorithm: gcra, limit: 100, window: 30d, reservable: true }
  - { name: chat, match: { resource: /chat }, algorithm: fixed-window, limit: 1000, window: 30d, reservable: true }
  - { name: money, match: { resource: /chat }, algorithm: fixed-window, limit: 9000, window: 30d, reservable: true }
  - { name: large, match: { resource: /large }, algorithm: gcra, limit: 1000000, window: 1h }
"""
CLOSED = "127.0.0.1:1"
Serve = Callable[..., AbstractContextManager[str]]


def status(code: int, reason: str) -> Status:
    """A status with a reason of our servers."""
    result = Status(code=code, message="no")
    result.details.add().Pack(ErrorInfo(domain="rlaas", reason=reason))
    return result


class Answering(grpc.GenericRpcHandler):
    """A server that answers each method with a code or a status, or else a message, or a function of the request."""

    def __init__(self, **answers: grpc.StatusCode | Message | Callable[[bytes], Message]) -> None:
        self.answers, self.calls = answers, list[str]()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        method = details.method.rsplit("/", 1)[1]

        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            self.calls.append(method)
            answer = self.answers.get(method, CheckResponse())
            if isinstance(answer, grpc.StatusCode):
                context.abort(answer, "no")
            if isinstance(answer, Status):
                context.set_trailing_metadata((("grpc-status-details-bin", answer.SerializeToString()),))
                context.abort(next(code for code in grpc.StatusCode if code.value[0] == answer.code), "no")
            return (answer if isinstance(answer, Message) else answer(request)).SerializeToString()

        return grpc.unary_unary_rpc_method_handler(answer)

    @contextmanager
    def serve(self, address: str = "127.0.0.1:0") -> Iterator[str]:
        server = grpc.server(ThreadPoolExecutor(1), [self])
        port = server.add_insecure_port(address)
        server.start()
        yield f"127.0.0.1:{port}"
        server.stop(None).wait()


def wait_until(is_true: Callable[[], bool]) -> None:
    """Waits, as for the first answer of a server on a busy machine."""
    started = time.monotonic()
    while not is_true():
        assert time.monotonic() - started < 30
        time.sleep(0.1)


@pytest.fixture(scope="session")
def cases_address() -> str:
    return os.environ.get("RLAAS_CASES") or pytest.skip("RLAAS_CASES is unset")


@pytest.fixture(scope="session")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Serve:
    """Starts servers that allow each user two requests a minute, 100 tokens of /tokens, 1,000 of /chat for 9,000 of
    money, and a million of /large."""
    binary = os.environ.get("RLAAS_SERVER") or pytest.skip("RLAAS_SERVER is unset")
    rules = tmp_path_factory.mktemp("rlaas") / "rules.yaml"
    rules.write_text(RULES)
    # The server would take our variables for settings.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RLAAS_")}

    @contextmanager
    def run(*settings: str) -> Iterator[str]:
        listen = ["server.listen=127.0.0.1:0", "server.http=127.0.0.1:0", *settings]
        command = [binary, "serve", "--config", str(rules), *(f"--set={setting}" for setting in listen)]
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as server:
            assert server.stderr is not None
            try:
                lines = (re.search(r"grpc=(\S+)", line) for line in server.stderr)
                found = next((line for line in lines if line is not None), None)
                assert found is not None, "the server must start"
                yield found[1]
            finally:
                server.terminate()

    return run


@pytest.fixture(scope="session")
def address(serve: Serve) -> Iterator[str]:
    with serve() as address:
        yield address
