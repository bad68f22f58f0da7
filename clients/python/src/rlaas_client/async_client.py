"""The client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from rlaas_client._base import FIRST_TIMEOUT, BaseClient, Held, More, Steps, T
from rlaas_client._channel import Channel, open_channel
from rlaas_client._request import Attributes, Error
from rlaas_client.verdict import Verdict

if TYPE_CHECKING:
    from typing_extensions import Unpack

AsyncHeld = Held[Coroutine[Any, Any, bool], Coroutine[Any, Any, Verdict]]

# Event loops refer to their tasks weakly.
_TASKS: set[asyncio.Task[Any]] = set()


class AsyncClient(BaseClient):
    """A client of the service, for asyncio. Its connection belongs to the event loop that makes the calls."""

    _channel: Channel | None = None
    _loop: asyncio.AbstractEventLoop | None = None

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
        """Closes the connection, after the calls that have begun. A later call opens another."""
        opened, self._channel = self._channel, None
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
            self._channel, self._loop = open_channel(grpc.aio, self._endpoint), loop
            self._is_first = True
        return self._channel

    async def _run_to_the_end(self, steps: Steps[T]) -> T:
        """Makes the calls of `steps`, even if the caller is cancelled."""
        task = asyncio.create_task(self._run(steps))
        _TASKS.add(task)
        task.add_done_callback(_TASKS.discard)
        return await asyncio.shield(task)

    async def _run(self, steps: Steps[T]) -> T:
        """Makes the calls of `steps`."""
        try:
            call = next(steps)
            while True:
                if call.pause:
                    await asyncio.sleep(call.pause)
                method = self._open().methods[call.method]
                try:
                    response = await method(call.request, timeout=call.timeout, metadata=self._metadata)
                except grpc.RpcError as error:
                    call = steps.throw(error)
                else:
                    call = steps.send(response)
        except StopIteration as end:
            result: T = end.value
            return result
