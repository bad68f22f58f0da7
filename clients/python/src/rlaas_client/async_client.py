"""The client for asyncio."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from rlaas_client._base import FIRST_TIMEOUT, BaseClient, Call, Held, More, Steps, T
from rlaas_client._channel import Channel, open_channel
from rlaas_client._errors import from_grpc
from rlaas_client._queue import CLOSED, MAX_WAIT, NO_TURN, Pending
from rlaas_client._request import Attributes, Error
from rlaas_client.verdict import Verdict

if TYPE_CHECKING:
    from typing_extensions import Unpack

AsyncHeld = Held[Coroutine[Any, Any, bool], Coroutine[Any, Any, Verdict]]

# While the loop is busy a call is not sent yet, or its answer not looked at. So a timer of ours ends it, after some
# more rounds of the loop. The deadline of gRPC, which runs on meanwhile, is later.
MAX_DELAY = 1.0
EXPIRED = math.inf
ROUNDS = 4

# Event loops refer to their tasks weakly.
_TASKS: set[asyncio.Task[Any]] = set()


class AsyncClient(BaseClient):
    """A client of the service, for asyncio. Its connection belongs to the event loop that makes the calls."""

    _signal = asyncio.Event
    _channel: Channel | None = None
    _loop: asyncio.AbstractEventLoop | None = None
    # When the calls in flight end, and the timer of the first of them.
    _due: dict[Any, float]
    _timer: asyncio.TimerHandle | None

    async def check(
        self, user_id: str, resource: str = "", attributes: Attributes = None, cost: int = 1, **more: Unpack[More]
    ) -> Verdict:
        """Decides one request. Raises `Error` if the server rejects it as invalid or without permission."""
        return await self._run(self._check(self._request(user_id, resource, attributes, cost, **more)))

    async def report(
        self, user_id: str, resource: str = "", attributes: Attributes = None, cost: int = 1, **more: Unpack[More]
    ) -> Verdict:
        """Counts a cost that has arisen, whatever is left, in rules that have `post_paid` or `reservable`."""
        return await self._run(self._report(self._request(user_id, resource, attributes, cost, **more)))

    @asynccontextmanager
    async def reserve(
        self,
        user_id: str,
        resource: str = "",
        attributes: Attributes = None,
        cost: int = 1,
        hold: float | None = None,
        **more: Unpack[More],
    ) -> AsyncIterator[AsyncHeld]:
        """Holds a cost during the work, for `hold` seconds at most. Look at `allowed`: a refusal raises nothing.

        The end of the block commits what is held, an exception cancels it, unless it was settled before.
        """
        request = self._request(user_id, resource, attributes, cost, **more)
        reserved = await self._run(self._reserve(request, hold))
        held = AsyncHeld(self, self._run_to_the_end, self._run, reserved, request)
        settle = held.cancel
        try:
            yield held
            settle = held.commit
        finally:
            # An error is logged. What the work returned or raised is not lost.
            with suppress(Error):
                await settle()

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
                self._due, self._timer = {}, None
            self._channel, self._loop = open_channel(grpc.aio, self._endpoint), loop
            self._is_first = True
        return self._channel

    def _start(self, batch: list[Pending]) -> None:
        # A task of its own: a caller may be cancelled.
        self._spawn(self._carry(batch))

    async def _run_to_the_end(self, steps: Steps[T]) -> T:
        """Makes the calls of `steps`, even if the caller is cancelled."""
        return await asyncio.shield(self._spawn(steps))

    def _spawn(self, steps: Steps[T]) -> asyncio.Task[T]:
        task = asyncio.create_task(self._run(steps))
        _TASKS.add(task)
        task.add_done_callback(_TASKS.discard)
        return task

    async def _run(self, steps: Steps[T]) -> T:
        """Makes the calls of `steps`."""
        self._open()
        try:
            step = next(steps)
            while True:
                step = steps.send(await (self._wait(step) if isinstance(step, Pending) else self._make(step)))
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            steps.close()

    async def _make(self, call: Call) -> Any:
        if call.pause:
            await asyncio.sleep(call.pause)
        loop, method = asyncio.get_running_loop(), (self._channel or self._open()).methods[call.method]
        rpc = method(call.request, timeout=call.timeout + MAX_DELAY, metadata=self._metadata)
        # gRPC sends it in the next round.
        loop.call_soon(self._begin, loop, rpc, call.timeout)
        try:
            return await rpc
        except grpc.RpcError as error:
            return from_grpc(error)
        except asyncio.CancelledError:
            if self._due.get(rpc) != EXPIRED:
                raise
            return Error("DEADLINE_EXCEEDED", f"no answer within {call.timeout:g} s")
        finally:
            self._due.pop(rpc, None)

    def _begin(self, loop: asyncio.AbstractEventLoop, rpc: Any, timeout: float) -> None:
        if not rpc.done():
            due = self._due[rpc] = loop.time() + timeout
            if self._timer is None or due < self._timer.when():
                self._set_timer(loop, due)

    def _set_timer(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(due, self._expire, loop)

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer, now = None, loop.time()
        for rpc in [rpc for rpc, due in self._due.items() if due <= now]:
            self._due[rpc] = now + MAX_DELAY
            loop.call_soon(self._cancel, loop, rpc, ROUNDS)
        if self._due:
            self._set_timer(loop, min(self._due.values()))

    def _cancel(self, loop: asyncio.AbstractEventLoop, rpc: Any, rounds: int) -> None:
        if rounds:
            loop.call_soon(self._cancel, loop, rpc, rounds - 1)
        elif not rpc.done():
            self._due[rpc] = EXPIRED
            rpc.cancel()

    async def _wait(self, item: Pending) -> None:
        """Waits until a check has its outcome."""
        wait = self._longest_wait(MAX_WAIT)
        timer = asyncio.get_running_loop().call_later(wait, self._queue.withdraw, item, NO_TURN)
        try:
            await item.signal.wait()
        finally:
            timer.cancel()
            self._queue.withdraw(item, CLOSED)
