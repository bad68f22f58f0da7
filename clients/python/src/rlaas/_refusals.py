"""A cache of refusals, so that a caller that repeats a refused request causes no calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable

from rlaas.verdict import Verdict, after

MAX_REFUSALS = 10_000


class Refusals:
    """Refusals by request. Each holds until its `retry_after`, but for `max_age` seconds at most."""

    def __init__(self, max_age: float) -> None:
        self.max_age = max_age
        self._lock = threading.Lock()
        # In the order of insertion, which is nearly the one in which they end.
        self._refusals: dict[Hashable, tuple[float, float, Verdict]] = {}

    def get(self, key: Hashable) -> Verdict | None:
        """Returns the refusal of a request, with the waits that are left, if it still holds."""
        asked_at, until, verdict = self._refusals.get(key) or (0.0, 0.0, None)
        now = time.monotonic()
        return after(verdict, now - asked_at) if verdict is not None and now < until else None

    def insert(self, key: Hashable, asked_at: float, verdict: Verdict) -> None:
        """Remembers the verdict on a request that was sent at `asked_at`, if it is a refusal by a limit."""
        if verdict.allowed or verdict.reason != "OVER_LIMIT" or verdict.retry_after is None:
            return
        with self._lock:
            self._refusals.pop(key, None)
            if len(self._refusals) >= MAX_REFUSALS:
                del self._refusals[next(iter(self._refusals))]
            self._refusals[key] = asked_at, asked_at + min(verdict.retry_after, self.max_age), verdict
