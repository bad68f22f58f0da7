"""The client for threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import grpc

from rlaas_client._base import BaseClient, Held, Steps, T
from rlaas_client._channel import Channel, open_channel
from rlaas_client._errors import from_grpc
from rlaas_client._proto.ratelimit_pb2 import CheckRequest
from rlaas_client._queue import CLOSED, MAX_WAIT, NO_TURN, Pending
from rlaas_client._request import Error
from rlaas_client.verdict import Verdict


class Client(BaseClient[Verdict, AbstractContextManager[Held[bool, Verdict]]]):
    """A client of the service, for any number of threads. It connects with its first call.

    gRPC does not survive a fork once it has started: create a client before a fork, but call it only after.
    """

    _signal = threading.Event
    _channel: Channel | None = None

    def close(self) -> None:
        """Closes the connection; `on_no_answer` decides the checks that wait. A later call opens another."""
        with self._lock:
            opened, self._channel = self._channel, None
        self._queue.end_all(CLOSED)
        if opened is not None:
            opened.channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> Channel:
        with self._lock:
            self._channel = self._channel or open_channel(grpc, self._endpoint)
            return self._channel

    def _held(self, request: CheckRequest, hold: float | None) -> Held[bool, Verdict]:
        return self._new_held(self._run(lambda: self._reserve(request, hold)), request)

    def _new_held(self, reserved: tuple[Verdict, str, float], request: CheckRequest) -> Held[bool, Verdict]:
        return Held(self, self._run, reserved, request)

    @contextmanager
    def _hold(self, request: CheckRequest, hold: float | None) -> Iterator[Held[bool, Verdict]]:
        held = self._held(request, hold)
        settle = held.cancel
        try:
            yield held
            settle = held.commit
        finally:
            # An error is logged. What the work returned or raised is not lost.
            with suppress(Error):
                settle()

    def _start(self, batch: list[Pending]) -> None:
        # There is no thread but those of the callers.
        batch[0].batch = batch
        batch[0].signal.set()

    def _run(self, begin: Callable[[], Steps[T]]) -> T:
        """Runs a coroutine, which never waits: what it awaits blocks the thread."""
        try:
            begin().send(None)
        except StopIteration as end:
            result: T = end.value
        return result

    async def _pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251

    async def _make(self, method: str, request: Any, seconds: float, pause: float) -> Any:
        if pause:
            await self._pause(pause)
        call = (self._channel or self._open()).methods[method]
        try:
            return call(request, timeout=seconds, metadata=self._metadata)
        except grpc.RpcError as error:
            return from_grpc(error)

    async def _wait(self, item: Pending) -> list[Pending] | None:
        try:
            if not item.signal.wait(self._longest_wait(MAX_WAIT)):
                self._queue.withdraw(item, NO_TURN)
                item.signal.wait()
            item.signal.clear()
        except BaseException:
            # A signal, such as that of Ctrl-C.
            self._queue.withdraw(item, CLOSED)
            if item.batch is not None:
                self._queue.leave(item.batch, [CLOSED] * len(item.batch))
            raise
        return item.batch
