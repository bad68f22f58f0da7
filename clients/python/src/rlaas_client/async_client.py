"""The client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import grpc
import grpc.aio

from rlaas_client._base import FIRST_TIMEOUT, BaseClient, Held, Steps, T
from rlaas_client._channel import Channel, open_channel
from rlaas_client._errors import from_grpc
from rlaas_client._proto.ratelimit_pb2 import CheckRequest
from rlaas_client._queue import CLOSED, MAX_WAIT, NO_TURN, Pending
from rlaas_client._request import Error
from rlaas_client.verdict import Verdict

AsyncHeld = Held[Steps[bool], Steps[Verdict]]

# While the loop is busy a call is not sent yet, or its answer not looked at. So a timer of ours ends it, after some
# more rounds of the loop. The deadline of gRPC, which runs on meanwhile, is later.
MAX_DELAY = 1.0
ROUNDS = 4

# Event loops refer to their tasks weakly.
_TASKS: set[asyncio.Task[Any]] = set()


class AsyncClient(BaseClient[Steps[Verdict], AbstractAsyncContextManager[AsyncHeld]]):
    """A client of the service, for asyncio. Its connection belongs to the event loop that makes the calls."""

    _signal = asyncio.Event
    _channel: Channel | None = None
    _loop: asyncio.AbstractEventLoop | None = None

    async def connect(self) -> None:
        """Begins to connect, before the first call."""
        self._open().channel.get_state(try_to_connect=True)

    async def close(self) -> None:
        """Closes the connection, after the calls that have begun; `on_no_answer` decides the checks that wait.

        A later call opens another.
        """
        opened, self._channel = self._channel, None
        self._queue.end_all(CLOSED)
        if opened is not None and self._loop is asyncio.get_running_loop():
            # The most that a call takes that is repeated once.
            await opened.channel.close(2 * max(self._timeout, FIRST_TIMEOUT))

    async def __aenter__(self) -> AsyncClient:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _open(self) -> Channel:
        loop = asyncio.get_running_loop()
        if self._channel is None or self._loop is not loop:
            if self._loop is not loop:
                self._renew()
            self._channel, self._loop = open_channel(grpc.aio, self._endpoint), loop
            self._is_first = True
        return self._channel

    async def _held(self, request: CheckRequest, hold: float | None) -> AsyncHeld:
        return self._new_held(await self._run(lambda: self._reserve(request, hold)), request)

    def _new_held(self, reserved: tuple[Verdict, str, float], request: CheckRequest) -> AsyncHeld:
        return AsyncHeld(self, self._run_to_the_end, reserved, request)

    @asynccontextmanager
    async def _hold(self, request: CheckRequest, hold: float | None) -> AsyncIterator[AsyncHeld]:
        held = await self._held(request, hold)
        settle = held.cancel
        try:
            yield held
            settle = held.commit
        finally:
            # An error is logged. What the work returned or raised is not lost.
            with suppress(Error):
                await settle()

    def _start(self, batch: list[Pending]) -> None:
        # A task of its own: a caller may be cancelled.
        self._spawn(self._carry(batch))

    async def _run(self, begin: Callable[[], Steps[T]]) -> T:
        self._open()
        return await begin()

    async def _run_to_the_end(self, begin: Callable[[], Steps[T]]) -> T:
        """Runs a coroutine, even if the caller is cancelled."""
        return await asyncio.shield(self._spawn(self._run(begin)))

    def _spawn(self, steps: Steps[T]) -> asyncio.Task[T]:
        task = asyncio.create_task(steps)
        _TASKS.add(task)
        task.add_done_callback(_TASKS.discard)
        return task

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _make(self, method: str, request: Any, seconds: float, pause: float) -> Any:
        if pause:
            await self._pause(pause)
        call = (self._channel or self._open()).methods[method]
        rpc = call(request, timeout=seconds + MAX_DELAY, metadata=self._metadata)
        timer = Timer(rpc, seconds)
        try:
            return await rpc
        except grpc.RpcError as error:
            return from_grpc(error)
        except asyncio.CancelledError:
            if not timer.has_cancelled:
                raise
            return Error("DEADLINE_EXCEEDED", f"no answer within {seconds:g} s")
        finally:
            timer.handle.cancel()

    async def _wait(self, item: Pending) -> None:
        wait = self._longest_wait(MAX_WAIT)
        timer = asyncio.get_running_loop().call_later(wait, self._queue.withdraw, item, NO_TURN)
        try:
            await item.signal.wait()
        finally:
            timer.cancel()
            self._queue.withdraw(item, CLOSED)


class Timer:
    """Cancels a call after its timeout."""

    has_cancelled = False

    def __init__(self, rpc: Any, seconds: float) -> None:
        self._rpc, self._loop = rpc, asyncio.get_running_loop()
        # gRPC sends it in the next round.
        self.handle: asyncio.Handle = self._loop.call_soon(self._begin, seconds)

    def _begin(self, seconds: float) -> None:
        self.handle = self._loop.call_later(seconds, self._expire, ROUNDS)

    def _expire(self, rounds: int) -> None:
        if rounds:
            self.handle = self._loop.call_soon(self._expire, rounds - 1)
        else:
            self.has_cancelled = self._rpc.cancel()
