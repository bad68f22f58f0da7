"""The client for threads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import grpc

from rlaas_client._base import BaseClient, Held, More, Steps, T
from rlaas_client._channel import Channel, open_channel
from rlaas_client._request import Attributes, Error
from rlaas_client.verdict import Verdict

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Client(BaseClient):
    """A client of the service, for any number of threads. It connects with its first call.

    gRPC does not survive a fork once it has started: create a client before a fork, but call it only after.
    """

    _channel: Channel | None = None

    def check(
        self, user_id: str, resource: str = "", attributes: Attributes = None, cost: int = 1, **more: Unpack[More]
    ) -> Verdict:
        """Decides one request. Raises `Error` if the server rejects it as invalid or without permission."""
        return self._run(self._check(self._request(user_id, resource, attributes, cost, **more)))

    def report(
        self, user_id: str, resource: str = "", attributes: Attributes = None, cost: int = 1, **more: Unpack[More]
    ) -> Verdict:
        """Counts a cost that has arisen, whatever is left, in rules that have `post_paid` or `reservable`."""
        return self._run(self._report(self._request(user_id, resource, attributes, cost, **more)))

    @contextmanager
    def reserve(
        self,
        user_id: str,
        resource: str = "",
        attributes: Attributes = None,
        cost: int = 1,
        hold: float | None = None,
        **more: Unpack[More],
    ) -> Iterator[Held[bool, Verdict]]:
        """Holds a cost during the work, for `hold` seconds at most. Look at `allowed`: a refusal raises nothing.

        The end of the block commits what is held, an exception cancels it, unless it was settled before.
        """
        request = self._request(user_id, resource, attributes, cost, **more)
        held = Held(self, self._run, self._run, self._run(self._reserve(request, hold)), request)
        settle = held.cancel
        try:
            yield held
            settle = held.commit
        finally:
            # An error is logged. What the work returned or raised is not lost.
            with suppress(Error):
                settle()

    def close(self) -> None:
        """Closes the connection. A later call opens another."""
        with self._lock:
            opened, self._channel = self._channel, None
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

    def _run(self, steps: Steps[T]) -> T:
        """Makes the calls of `steps`."""
        try:
            call = next(steps)
            while True:
                if call.pause:
                    time.sleep(call.pause)
                method = (self._channel or self._open()).methods[call.method]
                try:
                    response = method(call.request, timeout=call.timeout, metadata=self._metadata)
                except grpc.RpcError as error:
                    call = steps.throw(error)
                else:
                    call = steps.send(response)
        except StopIteration as end:
            result: T = end.value
            return result
