"""The client for threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import grpc

from rlaas_client._base import BaseClient, Call, Held, More, Steps, T
from rlaas_client._channel import Channel, open_channel
from rlaas_client._errors import from_grpc
from rlaas_client._queue import CLOSED, MAX_WAIT, NO_TURN, Pending
from rlaas_client._request import Attributes, Error
from rlaas_client.verdict import Verdict

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Client(BaseClient):
    """A client of the service, for any number of threads. It connects with its first call.

    gRPC does not survive a fork once it has started: create a client before a fork, but call it only after.
    """

    _signal = threading.Event
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

    def _start(self, batch: list[Pending]) -> None:
        # There is no thread but those of the callers.
        batch[0].batch = batch
        batch[0].signal.set()

    def _run(self, steps: Steps[T]) -> T:
        """Makes the calls of `steps`."""
        try:
            step = next(steps)
            while True:
                step = steps.send(self._wait(step) if isinstance(step, Pending) else self._make(step))
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            steps.close()

    def _make(self, call: Call) -> Any:
        if call.pause:
            time.sleep(call.pause)
        method = (self._channel or self._open()).methods[call.method]
        try:
            return method(call.request, timeout=call.timeout, metadata=self._metadata)
        except grpc.RpcError as error:
            return from_grpc(error)

    def _wait(self, item: Pending) -> list[Pending] | None:
        """Waits until a check has its outcome, or its thread a batch to carry, which it returns."""
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
