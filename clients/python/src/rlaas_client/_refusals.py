"""A cache of refusals, so that a caller that repeats a refused request causes no calls."""

from __future__ import annotations

import threading
import time

from rlaas_client.verdict import Verdict, after

# Of a generation; there are two.
MAX_REFUSALS = 5_000
# Longest key in bytes, which bounds the memory.
MAX_KEY = 512


class Refusals:
    """Refusals by request. Each holds until its `retry_after`, but for `max_age` seconds at most."""

    def __init__(self, max_age: float) -> None:
        self.max_age = max_age
        self._lock = threading.Lock()
        # The older ones are dropped as a whole.
        self._old: dict[bytes, tuple[float, float, Verdict]] = {}
        self._young = self._old.copy()
        self._since = 0.0

    def get(self, key: bytes) -> Verdict | None:
        """Returns the refusal of a request, with the waits that are left, if it still holds."""
        asked_at, until, verdict = self._young.get(key) or self._old.get(key) or (0.0, 0.0, None)
        now = time.monotonic()
        return after(verdict, now - asked_at) if verdict is not None and now < until else None

    def insert(self, key: bytes, asked_at: float, verdict: Verdict) -> None:
        """Remembers the verdict on a request that was sent at `asked_at`, if it is a refusal by a limit."""
        if verdict.allowed or verdict.reason != "OVER_LIMIT" or verdict.retry_after is None:
            return
        with self._lock:
            now = time.monotonic()
            if len(self._young) >= MAX_REFUSALS or now - self._since >= self.max_age:
                self._since, self._old, self._young = now, self._young, {}
            self._young[key] = asked_at, asked_at + min(verdict.retry_after, self.max_age), verdict
