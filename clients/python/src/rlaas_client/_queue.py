"""The queue of checks: a few calls are in flight, and the checks that wait for one of them go together in batches.

It knows neither threads nor event loops: a client starts the batches.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from rlaas_client._proto.ratelimit_pb2 import CheckRequest, CheckResponse
from rlaas_client._request import Error

MAX_IN_FLIGHT = 8
MAX_WAITING = 10_000
# So that a flood of one user leaves room for others.
MAX_WAITING_OF_KEY = MAX_WAITING // 4
MAX_WAIT = 1.0
MAX_BATCH = 100
MAX_BATCH_BYTES = 256 * 1024
# What a request has in a batch beside its key: an id, and lengths.
ID_BYTES = 80
# Seconds after a refusal in which one check of its key is in flight at a time, and most keys that have them.
REFUSED_FOR = 1.0
MAX_REFUSED = 10_000

CLOSED = Error("CANCELLED", "the client was closed, or the call given up")
# Of the requests of a batch that was not taken.
ALONE = Error("CANCELLED", "each is to be sent alone")
FULL = Error("OVERLOADED", "too many checks wait for their turn")
NO_TURN = Error("OVERLOADED", f"the turn of a check did not come within {MAX_WAIT:g} s")


class Pending:
    """A check that waits or is in flight."""

    # An event, set with the outcome, or with the batch that the caller is to send; None if it never waited.
    signal: Any = None
    batch: list[Pending] | None = None
    outcome: CheckResponse | Error | None = None
    # When it was sent. Without it the outcome is that of another check.
    sent_at = 0.0
    # The only check in flight of a key that was refused.
    is_probe = False

    def __init__(self, request: CheckRequest, key: bytes, is_gated: bool, pause: float) -> None:
        # The refusal of another check with the key may answer a gated one.
        self.request, self.key, self.is_gated, self.pause = request, key, is_gated, pause


class Queue:
    """The checks of a client. Those of a key have a line, and lines are served in turn."""

    def __init__(self, timeout: float, signal: Callable[[], Any], start: Callable[[list[Pending]], object]) -> None:
        self.max_batch = MAX_BATCH
        # The error of a call without an answer, until one is answered.
        self.no_answer: Error | None = None
        self._timeout, self._signal, self._start = timeout, signal, start
        # The collector of garbage may end a call wherever it runs.
        self._lock = threading.RLock()
        self._free, self._count, self._answered_at = MAX_IN_FLIGHT, 0, 0.0
        # None is empty.
        self._lines: dict[bytes, deque[Pending]] = {}
        self._refused_at: dict[bytes, float] = {}
        self._probed: set[bytes] = set()

    def enter(self, item: Pending) -> list[Pending] | None:
        """Returns the batch to send if there is room for a call. Else the check waits, or has its outcome."""
        with self._lock:
            if self._free and item.key not in self._probed:
                self._free -= 1
                self._note_sent(item, time.monotonic())
                return [item]
            line = self._lines.get(item.key, ())
            if self.no_answer or self._count >= MAX_WAITING or len(line) >= MAX_WAITING_OF_KEY:
                item.outcome = self.no_answer or FULL
            else:
                item.signal = self._signal()
                self._count += 1
                self._lines.setdefault(item.key, deque()).append(item)
        return None

    def leave(self, batch: list[Pending], outcomes: list[CheckResponse | Error]) -> None:
        """Distributes the outcomes of a batch, and starts what waits."""
        with self._lock:
            self._free += 1
            for number, item in enumerate(batch):
                item.outcome = outcome = outcomes[number]
                if item.signal is not None:
                    item.signal.set()
                if item.is_probe:
                    self._probed.discard(item.key)
                is_refused = isinstance(outcome, CheckResponse) and not outcome.allowed
                # Units that are held may be free at any time.
                if item.is_gated and is_refused and outcome.reason != CheckResponse.HELD:
                    if len(self._refused_at) >= MAX_REFUSED:
                        self._refused_at.clear()
                    self._refused_at[item.key] = time.monotonic()
                    self._end(self._lines.pop(item.key, ()), outcome)
            while self._lines and self._free and (waiting := self._take()):
                self._free -= 1
                self._start(waiting)

    def withdraw(self, item: Pending, outcome: Error) -> None:
        """Takes a check that still waits out of the queue."""
        with self._lock:
            line = self._lines.get(item.key, deque())
            if item.outcome is None and item in line:
                line.remove(item)
                self._end([item], outcome)
                if not line:
                    del self._lines[item.key]

    def record(self, no_answer: Error | None) -> None:
        """Records that a call was answered, or was not: if none was within a timeout, no check waits any longer."""
        now = time.monotonic()
        with self._lock:
            if no_answer is None:
                self._answered_at, self.no_answer = now, None
            elif now - self._answered_at > self._timeout:
                self.no_answer = no_answer
                self.end_all(no_answer)

    def end_all(self, outcome: Error) -> None:
        """Gives all checks that wait the same outcome."""
        with self._lock:
            for line in self._lines.values():
                self._end(line, outcome)
            self._lines.clear()

    def _end(self, items: Iterable[Pending], outcome: CheckResponse | Error) -> None:
        for item in items:
            self._count -= 1
            item.outcome = outcome
            item.signal.set()

    def _note_sent(self, item: Pending, now: float) -> None:
        item.sent_at = now
        if item.is_gated and now - self._refused_at.get(item.key, -REFUSED_FOR) < REFUSED_FOR:
            item.is_probe = True
            self._probed.add(item.key)

    def _take(self) -> list[Pending]:
        """Takes the next batch out of the lines; an empty one if nothing is to be sent."""
        batch: list[Pending] = []
        size, now = 0, time.monotonic()
        keys = deque(key for key in self._lines if key not in self._probed)
        while keys and len(batch) < self.max_batch:
            key = keys.popleft()
            size += len(key) + ID_BYTES
            if batch and size > MAX_BATCH_BYTES:
                break
            line = self._lines.pop(key)
            item = line.popleft()
            self._note_sent(item, now)
            batch.append(item)
            if line:
                # The next turn of the key is after those of all others.
                self._lines[key] = line
                if not item.is_probe:
                    keys.append(key)
        self._count -= len(batch)
        return batch
